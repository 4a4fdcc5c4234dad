"""Detection of tool-call formats: each template below writes calls as published families do, and the family's calls are read."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import bpe_tokenizer
from tiers import each_row

from rove.core.errors import ConfigError
from rove.core.messages import ToolMessage, UserMessage
from rove.core.records import StepTokens
from rove.rendering.renderer import Renderer
from rove.rendering.tool_calls import TAG_FORMATS, Call, calls_of, read_calls, schemas_of, unparsed_call_format

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        "items": {"type": "array"},
        "mode": {"$ref": "#/$defs/Mode"},
    },
    "$defs": {"Mode": {"enum": ["1", "2"]}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("f", "my-tool", "a.b")
]
HEAD = "{% if tools %}<|system|>{% for t in tools %}{{ t | tojson }}{% endfor %}<|end|>{% endif %}"
TAIL = "{% if add_generation_prompt %}<|assistant|>{% endif %}"


def template_of(calls: str, head: str = HEAD, tail: str = TAIL) -> str:
    """Return a template that writes the calls of a message with the body of a loop over `function`."""
    loop = "{% for call in m.tool_calls or [] %}{% set function = call.function %}" + calls + "{% endfor %}"
    return head + "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}" + loop + "<|end|>{% endfor %}" + tail


QWEN_CALL = (
    "{{ '\n<tool_call>\n<function=' + function.name + '>\n' }}{% for key, value in function.arguments | items %}"
    "{{ '<parameter=' + key + '>\n' + (value if value is string else value | string if value is not iterable else "
    "value | tojson) + '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}"
)
GLM_CALL = (
    "{{ '\n<tool_call>' + function.name + '\n' }}{% for key, value in function.arguments | items %}"
    "{{ '<arg_key>' + key + '</arg_key>\n<arg_value>' + (value if value is string else value | tojson) }}"
    "{{ '</arg_value>\n' }}{% endfor %}{{ '</tool_call>' }}"
)
HERMES_CALL = '<tool_call>{"name": "{{ function.name }}", "arguments": {{ function.arguments | tojson }}}</tool_call>'
LFM_CALL = (
    "<|tool_call_start|>[{{ function.name }}({% for key, value in function.arguments | items %}{{ key }}="
    "{{ \"'\" + value + \"'\" if value is string else value }}{{ '' if loop.last else ', ' }}{% endfor %})]<|tool_call_end|>"
)
MISTRAL_CALL = "[TOOL_CALLS]{{ function.name }}[CALL_ID]{{ call.id }}[ARGS]{{ function.arguments | tojson }}"
TEMPLATES = {
    "qwen_xml": template_of(QWEN_CALL),
    "glm": template_of(GLM_CALL),
    "hermes": template_of(HERMES_CALL),
    "lfm2": template_of(LFM_CALL),
    "mistral_named": template_of(MISTRAL_CALL),
}
CALLS = [
    Call("my-tool", {"count": 2}),
    Call("a.b", {"text": "x\ny\n"}),
    Call("f", {"text": 'Oslo\'s "big" <b> day'}),
    Call("f", {"items": [1.5, True, None, {"k": "it's"}]}),
    Call("f", {"text": "12", "count": 12}),
    Call("f", {"text": "None"}),
    Call("f", {}),
]


def renderer_of(template: str) -> Renderer:
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = template
    return Renderer(tokenizer)


def chat_calls(*calls: Call) -> list[dict[str, Any]]:
    return [
        {"id": f"abcdefgh{number}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for number, call in enumerate(calls)
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_calls_that_a_template_writes_are_read_and_kept_over_turns(name: str):
    renderer = renderer_of(TEMPLATES[name])
    assert renderer.tool_format is not None and renderer.tool_format.name == name
    user = UserMessage("hi")
    prompt = renderer.text([user], TOOLS)
    for calls in [[call] for call in CALLS] + [CALLS[:2]]:
        if name == "lfm2" and calls == [CALLS[3]]:  # this template writes a list as Python does, with its own quotes
            continue
        written = renderer.tokenizer.apply_chat_template(
            [user, {"role": "assistant", "content": "", "tool_calls": chat_calls(*calls)}], tools=TOOLS, tokenize=False
        )
        reply = written[len(prompt) :]
        first = StepTokens(renderer.encode(prompt), renderer.encode(reply), [0.0])
        message = renderer.read(first.completion_ids, TOOLS)
        assert calls_of(message) == calls, reply
        results = [ToolMessage("done", call["id"]) for call in message.tool_calls]
        second = renderer.prompt_ids([user, message, *results], first, TOOLS)
        assert second[: len(first.ids)] == first.ids
        third = renderer.prompt_ids([user, message, *results, message, *results], None, TOOLS)
        assert renderer.decode(third).count("done") == 2 * len(calls)


@each_row(
    ("template", "problem"),
    [
        (template_of(HERMES_CALL, head=""), "ignores tools"),
        (
            template_of(HERMES_CALL, head="{% if tools %}{{ raise_exception('no tools') }}{% endif %}"),
            "rejects tools: .*no tools",
        ),
        (template_of("<|tool_call>call:{{ function.name }}{}<tool_call|>"), "in the format of Gemma 4"),
        (template_of("<|channel|>commentary to=functions.{{ function.name }}"), "in the format of gpt-oss"),
        (template_of("<|tool_calls_section_begin|>functions.{{ function.name }}:0"), "in the format of Kimi"),
        (template_of("CALL {{ function.name }}!"), "does not read: 'CALL probe_tool!"),
        (template_of("{{ raise_exception('no calls') }}"), "rejects a message with a tool call: .*no calls"),
        (HEAD + "{% for m in messages %}{{ m.content }}{% endfor %}" + TAIL, "it writes no calls"),
        ("{# <tool_call> #}" + template_of("CALL {{ function.name }}!"), "does not read"),
    ],
)
def test_tools_that_a_template_cannot_use_are_refused_with_the_reason(template: str, problem: str):
    renderer = renderer_of(template)
    assert renderer.tool_format is None
    with pytest.raises(ConfigError, match=f"no known tool-call format: .*{problem}"):
        renderer.text([UserMessage("hi")], TOOLS)
    assert renderer.text([UserMessage("hi")])


def test_tools_are_given_in_the_variable_that_the_template_reads():
    """SmolLM3's template takes `xml_tools` and ignores `tools`."""
    renderer = renderer_of(template_of(HERMES_CALL).replace("tools %}", "xml_tools %}"))
    assert renderer.tool_support.variable == "xml_tools"
    assert '"name": "my-tool"' in renderer.text([UserMessage("hi")], TOOLS)


def test_calls_are_given_as_calls_if_the_template_rejects_a_result_after_text():
    """Mistral's templates count the messages without calls, and raise in the second turn."""
    check = (
        "{% set turn = namespace(count=0) %}{% for m in messages if m.role == 'user' or (m.role == 'assistant' and not "
        "m.tool_calls) %}{% if (m.role == 'user') != (turn.count % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
        "{% set turn.count = turn.count + 1 %}{% endfor %}"
    )
    renderer = renderer_of(check + TEMPLATES["mistral_named"])
    assert not renderer.tool_support.keeps_text
    message = renderer.message('[TOOL_CALLS]f[ARGS]{"count": 1}', TOOLS)
    turn = [message, ToolMessage("done", message.tool_calls[0]["id"])]
    assert renderer.text([UserMessage("hi"), *turn, *turn], TOOLS).count("done") == 2


@each_row(
    ("how", "text", "expected"),
    [
        ("qwen_xml", "Hm.<tool_call>\n<function=f>\n<parameter=text>\n1\n</parameter>\n</function>\n</tool_call>", {"text": "1"}),
        ("qwen_xml", "<tool_call><function=f><parameter=count>7</parameter></function></tool_call>", {"count": 7}),
        ("qwen_xml", "<tool_call><function=f><parameter=count>x</parameter></function></tool_call>", {"count": "x"}),
        ("qwen_xml", "<tool_call><function=f><parameter=either>7</parameter></function></tool_call>", {"either": 7}),
        ("qwen_xml", "<tool_call><function=f><parameter=either>None</parameter></function></tool_call>", {"either": None}),
        ("qwen_xml", "<tool_call><function=f><parameter=either>[1]</parameter></function></tool_call>", {"either": "[1]"}),
        ("qwen_xml", "<tool_call><function=f><parameter=mode>1</parameter></function></tool_call>", {"mode": "1"}),
        ("qwen_xml", "<tool_call><function=f><parameter=other>True</parameter></function></tool_call>", {"other": True}),
        ("qwen_xml", "<tool_call><function=f><parameter=other>NaN</parameter></function></tool_call>", {"other": "NaN"}),
        ("qwen_xml", "<tool_call><function=f><parameter=text></parameter> x</parameter></function></tool_call>",
         {"text": "</parameter> x"}),
        ("glm", "<tool_call>f<arg_key>text</arg_key><arg_value>\n1</arg_value></tool_call>", {"text": "\n1"}),
        ("glm", "<think>no</think><tool_call>f\n</tool_call>", {}),
    ],
)  # fmt: skip
def test_values_without_types_get_those_of_the_schema(how: str, text: str, expected: dict[str, Any]):
    [tool_format] = [one for one in TAG_FORMATS if one.name == how]
    _, calls = read_calls(text, tool_format, schemas=schemas_of(TOOLS))
    assert calls_of({"tool_calls": calls}) == [Call("f", expected)]


@each_row(
    ("how", "text"),
    [
        ("qwen_xml", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"),
        ("qwen_xml", "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>"),
        ("qwen_xml", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
        ("qwen_xml", "<tool_call><function=></function></tool_call>"),
        ("glm", "<tool_call>f<arg_key>a</arg_key></tool_call>"),
        ("glm", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    ],
)  # fmt: skip
def test_malformed_tags_are_text(how: str, text: str):
    [tool_format] = [one for one in TAG_FORMATS if one.name == how]
    assert read_calls(text, tool_format) == (text, [])


def test_the_example_for_a_malformed_call_is_of_the_format_that_the_model_began():
    begun = unparsed_call_format("<tool_call>\n<function=f>\n<parameter=a>")
    assert begun is not None and begun.name == "qwen_xml"
    begun = unparsed_call_format('<tool_call>\n{"name": "f"')
    assert begun is not None and begun.name == "hermes"


THINKING_TAIL = "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
SHOWN = "{{ ('<think></think>' if '<think>' not in m.content and '</think>' not in m.content else '') + m.content }}"
FORMS = {
    "text": "{{ '<think>\n' if '</think>' in m.content else '' }}{{ m.content }}",
    "tagged": SHOWN,
    "field": "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{{ m.content }}",
}


@pytest.mark.parametrize("form", FORMS)
def test_reasoning_that_the_prompt_opened_is_continued_in_the_next_turn(form: str):
    body = "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}" + FORMS[form]
    renderer = renderer_of(HEAD + body + "{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}" + THINKING_TAIL)
    user = UserMessage("hi")
    first = StepTokens(renderer.prompt_ids([user]), renderer.encode("so\n</think>\n\nyes<|end|>"), [0.0])
    message = renderer.read(first.completion_ids)
    assert message.content == "so\n</think>\n\nyes"
    text = renderer.decode(renderer.prompt_ids([user, message, user], first))
    assert text.startswith(renderer.decode(first.ids)) and text.count("<think>") == 2
    [(ids, mask)] = renderer.training_branches([user, message])
    trained = renderer.decode([id for id, is_trained in zip(ids, mask, strict=True) if is_trained])
    assert trained == "so\n</think>\n\nyes<|end|>"
    if form != "text":
        both_tags = renderer.text([user, {"role": "assistant", "content": "<think>\nso\n</think>\n\nyes"}])
        assert both_tags == renderer.text([user, message])


def test_calls_without_reasoning_are_trained_with_a_closed_block():
    """Nemotron 3 writes <think></think> before them, although its prompt opens the block with a line break."""
    body = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}" + SHOWN + "{% for call in m.tool_calls "
    )
    body += (
        "or [] %}{% set function = call.function %}" + QWEN_CALL + "{% endfor %}{% else %}{{ m.content }}{% endif %}"
    )
    renderer = renderer_of(HEAD + body + "<|end|>{% endfor %}" + THINKING_TAIL)
    message = {"role": "assistant", "content": "", "tool_calls": chat_calls(Call("f", {"count": 1}))}
    [(ids, mask)] = renderer.training_branches([UserMessage("hi"), message], TOOLS)
    trained = renderer.decode([id for id, is_trained in zip(ids, mask, strict=True) if is_trained])
    assert trained.startswith("\n</think>\n\n<tool_call>") and trained.endswith("</tool_call><|end|>")
    assert calls_of(renderer.message(trained.removesuffix("<|end|>"), TOOLS)) == [Call("f", {"count": 1})]
