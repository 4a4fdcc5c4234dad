"""Tools in chat templates: rendering tools, parsing calls, and keeping calls as they were sampled."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import bpe_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, ToolMessage, UserMessage
from rove.core.records import StepTokens
from rove.rendering.renderer import SAMPLED, Renderer
from rove.rendering.tool_calls import Call, calls_of

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HEAD = "{% if tools %}<|system|>{% for t in tools %}{{ t | tojson }}{% endfor %}<|end|>{% endif %}"
TAIL = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
MESSAGE = "<|{{ m.role }}|>{{ m.content }}"

# The relevant parts of the chat templates of Qwen2.5, Llama 3.2, LFM2 and Mistral 7B v0.3, with the tiny tokenizer's tokens.
TEMPLATES = {
    "hermes": HEAD
    + "{% for m in messages %}"
    + MESSAGE
    + "{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    + '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    + "{% endfor %}<|end|>{% endfor %}"
    + TAIL,
    "llama3": HEAD
    + "{# <|start_header_id|> #}{% for m in messages %}{% if m.tool_calls %}<|assistant|>"
    + '{% for call in m.tool_calls %}{"name": "{{ call.function.name }}", '
    + '"parameters": {{ call.function.arguments | tojson }}}{% endfor %}'
    + "{% else %}"
    + MESSAGE
    + "{% endif %}<|end|>{% endfor %}"
    + TAIL,
    "lfm2": HEAD + "{# <|tool_list_start|> #}{% for m in messages %}" + MESSAGE + "<|end|>{% endfor %}" + TAIL,
    "mistral": HEAD
    + "{% for m in messages %}{% if m.tool_calls %}<|assistant|>[TOOL_CALLS] [{% for call in m.tool_calls %}"
    + '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    + "{{ '' if loop.last else ', ' }}{% endfor %}]{% else %}"
    + MESSAGE
    + "{% endif %}<|end|>{% endfor %}"
    + TAIL,
}


def renderer_of(name: str) -> Renderer:
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = TEMPLATES[name]
    return Renderer(tokenizer)


RENDERERS = {name: renderer_of(name) for name in TEMPLATES}


def sampled_ids(renderer: Renderer, text: str) -> list[int]:
    return [*renderer.encode(text), *renderer.stop_ids]


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_are_rendered_and_calls_are_parsed(name: str):
    renderer = RENDERERS[name]
    tool_format = renderer.tool_format
    assert tool_format is not None and tool_format.name == name
    assert '"name": "f"' in renderer.text([UserMessage("hi")], [TOOL])
    ids = sampled_ids(renderer, tool_format.write([Call("f", {"a": "x y", "b": [1, None]})]))
    message = renderer.read(ids, [TOOL], prompt_length=4)
    assert (message.role, message.content) == ("assistant", None)
    assert calls_of(message) == [Call("f", {"a": "x y", "b": [1, None]})]
    assert renderer.read(ids) == AssistantMessage(renderer.decode(ids[:-1]))  # without tools, calls are plain text
    assert renderer.read(ids, []) == renderer.read(ids)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=40)
@given(calls=st.lists(st.builds(Call, st.just("f"), st.dictionaries(st.sampled_from("ab"), st.text(max_size=4)))))
def test_calls_from_other_sources_are_rendered_in_the_format_of_the_model(name: str, calls: list[Call]):
    renderer = RENDERERS[name]
    tool_format = renderer.tool_format
    assert tool_format is not None
    if name == "llama3":
        calls = calls[:1]
    message = (
        renderer.read(sampled_ids(renderer, tool_format.write(calls)), [TOOL]) if calls else AssistantMessage("no")
    )
    message.pop(SAMPLED, None)
    prompt = renderer.text([UserMessage("hi")], [TOOL])
    whole = renderer.text([UserMessage("hi"), message], [TOOL], generation_prompt=False)
    assert whole.startswith(prompt) and whole.endswith("<|end|>")
    parsed = renderer.read(renderer.encode(whole[len(prompt) :]), [TOOL])
    assert calls_of(parsed) == calls


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("space", ["", " "])
def test_the_next_prompt_keeps_the_tokens_of_earlier_calls(name: str, space: str):
    renderer = RENDERERS[name]
    tool_format = renderer.tool_format
    assert tool_format is not None
    messages: list[Any] = [UserMessage("hi")]
    previous = None
    for turn in range(3):
        prompt = renderer.prompt_ids(messages, previous, [TOOL])
        if previous is not None:
            assert prompt[: len(previous.ids)] == previous.ids
        text = tool_format.write([Call("f", {"a": turn})]).replace(": ", f":{space}")  # no template writes ":0"
        previous = StepTokens(prompt, sampled_ids(renderer, text), [0.0])
        message = renderer.read(previous.completion_ids, [TOOL], prompt_length=len(prompt))
        assert message[SAMPLED] == text
        messages += [message, ToolMessage("1", message.tool_calls[0]["id"])]
    assert len({message["tool_calls"][0]["id"] for message in messages[1::2]}) == 3


def test_edited_messages_are_not_rendered_as_sampled():
    renderer = RENDERERS["hermes"]
    ids = sampled_ids(renderer, 'So: <tool_call>{"name":"f","arguments":{"a":1}}</tool_call>')
    message = renderer.read(ids, [TOOL])
    assert renderer.decode(ids) in renderer.text([message])
    for edited in ({**message, "content": "Well:"}, {**message, "tool_calls": message.tool_calls * 2}):
        text = renderer.text([edited])
        assert renderer.decode(ids) not in text and '"arguments": {"a": 1}' in text


def test_calls_with_invalid_json_reach_the_template_unchanged():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "oops"}}
    assert '"oops"' in RENDERERS["hermes"].text([AssistantMessage("", tool_calls=[call])])


def test_a_template_without_tool_support_rejects_tools():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    renderer = Renderer(tokenizer)
    assert renderer.tool_format is None
    with pytest.raises(ConfigError, match="no known tool-call format"):
        renderer.prompt_ids([UserMessage("hi")], tools=[TOOL])
    assert renderer.prompt_ids([UserMessage("hi")], tools=[]) == renderer.prompt_ids([UserMessage("hi")])


def test_the_tool_format_is_detected_from_any_of_several_templates():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = {"default": "hi", "tool_use": TEMPLATES["mistral"]}
    tool_format = Renderer(tokenizer).tool_format
    assert tool_format is not None and tool_format.name == "mistral"
