"""Tools through chat templates: shown to the model, called by it, and its calls kept as they were sampled."""

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
SPOKEN = "<|{{ m.role }}|>{{ m.content }}"

# The parts that matter of the templates of Qwen2.5, Llama 3.2, LFM2 and Mistral 7B v0.3, in the tiny tokenizer's tokens.
TEMPLATES = {
    "hermes": HEAD
    + "{% for m in messages %}"
    + SPOKEN
    + "{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    + '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    + "{% endfor %}<|end|>{% endfor %}"
    + TAIL,
    "llama3": HEAD
    + "{# <|start_header_id|> #}{% for m in messages %}{% if m.tool_calls %}<|assistant|>"
    + '{% for call in m.tool_calls %}{"name": "{{ call.function.name }}", '
    + '"parameters": {{ call.function.arguments | tojson }}}{% endfor %}'
    + "{% else %}"
    + SPOKEN
    + "{% endif %}<|end|>{% endfor %}"
    + TAIL,
    "lfm2": HEAD + "{# <|tool_list_start|> #}{% for m in messages %}" + SPOKEN + "<|end|>{% endfor %}" + TAIL,
    "mistral": HEAD
    + "{% for m in messages %}{% if m.tool_calls %}<|assistant|>[TOOL_CALLS] [{% for call in m.tool_calls %}"
    + '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    + "{{ '' if loop.last else ', ' }}{% endfor %}]{% else %}"
    + SPOKEN
    + "{% endif %}<|end|>{% endfor %}"
    + TAIL,
}


def renderer_of(name: str) -> Renderer:
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = TEMPLATES[name]
    return Renderer(tokenizer)


RENDERERS = {name: renderer_of(name) for name in TEMPLATES}


def sampled(renderer: Renderer, text: str) -> list[int]:
    return [*renderer.encode(text), *renderer.stop_ids]


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_are_shown_and_calls_are_read(name: str):
    renderer = RENDERERS[name]
    how = renderer.tool_format
    assert how is not None and how.name == name
    assert '"name": "f"' in renderer.text([UserMessage("hi")], [TOOL])
    ids = sampled(renderer, how.write([Call("f", {"a": "x y", "b": [1, None]})]))
    message = renderer.read(ids, [TOOL], before=4)
    assert (message.role, message.content) == ("assistant", None)
    assert calls_of(message) == [Call("f", {"a": "x y", "b": [1, None]})]
    assert renderer.read(ids) == AssistantMessage(renderer.decode(ids[:-1]))  # nobody gave it tools
    assert renderer.read(ids, []) == renderer.read(ids)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=40)
@given(calls=st.lists(st.builds(Call, st.just("f"), st.dictionaries(st.sampled_from("ab"), st.text(max_size=4)))))
def test_calls_that_came_from_elsewhere_are_rendered_as_the_model_writes_them(name: str, calls: list[Call]):
    renderer = RENDERERS[name]
    how = renderer.tool_format
    assert how is not None
    if name == "llama3":
        calls = calls[:1]
    message = renderer.read(sampled(renderer, how.write(calls)), [TOOL]) if calls else AssistantMessage("no")
    message.pop(SAMPLED, None)
    prompt = renderer.text([UserMessage("hi")], [TOOL])
    whole = renderer.text([UserMessage("hi"), message], [TOOL], generation_prompt=False)
    assert whole.startswith(prompt) and whole.endswith("<|end|>")
    said = renderer.read(renderer.encode(whole[len(prompt) :]), [TOOL])
    assert calls_of(said) == calls


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("space", ["", " "])
def test_the_next_turn_keeps_the_tokens_of_the_calls_before_it(name: str, space: str):
    renderer = RENDERERS[name]
    how = renderer.tool_format
    assert how is not None
    messages: list[Any] = [UserMessage("hi")]
    previous = None
    for turn in range(3):
        prompt = renderer.prompt_ids(messages, previous, [TOOL])
        if previous is not None:
            assert prompt[: len(previous.ids)] == previous.ids
        text = how.write([Call("f", {"a": turn})]).replace(": ", f":{space}")  # no template writes ":0"
        previous = StepTokens(prompt, sampled(renderer, text), [0.0])
        message = renderer.read(previous.completion_ids, [TOOL], before=len(prompt))
        assert message[SAMPLED] == text
        messages += [message, ToolMessage("1", message.tool_calls[0]["id"])]
    assert len({message["tool_calls"][0]["id"] for message in messages[1::2]}) == 3


def test_edited_calls_are_not_what_was_sampled():
    renderer = RENDERERS["hermes"]
    ids = sampled(renderer, 'So: <tool_call>{"name":"f","arguments":{"a":1}}</tool_call>')
    message = renderer.read(ids, [TOOL])
    assert renderer.decode(ids) in renderer.text([message])
    for edited in ({**message, "content": "Well:"}, {**message, "tool_calls": message.tool_calls * 2}):
        text = renderer.text([edited])
        assert renderer.decode(ids) not in text and '"arguments": {"a": 1}' in text


def test_calls_without_json_go_to_the_template_as_they_are():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "oops"}}
    assert '"oops"' in RENDERERS["hermes"].text([AssistantMessage("", tool_calls=[call])])


def test_a_template_that_shows_no_tools_refuses_them():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    renderer = Renderer(tokenizer)
    assert renderer.tool_format is None
    with pytest.raises(ConfigError, match="no known tool-call format"):
        renderer.prompt_ids([UserMessage("hi")], tools=[TOOL])
    assert renderer.prompt_ids([UserMessage("hi")], tools=[]) == renderer.prompt_ids([UserMessage("hi")])


def test_of_several_templates_any_may_show_how():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = {"default": "hi", "tool_use": TEMPLATES["mistral"]}
    how = Renderer(tokenizer).tool_format
    assert how is not None and how.name == "mistral"
