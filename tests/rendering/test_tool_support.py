"""Detection of tool-call formats: each template below writes calls as published families do, and the family's calls are read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fakes import bpe_tokenizer
from tiers import each_row, some_quick

from rove.core.errors import ConfigError
from rove.core.messages import ToolMessage, UserMessage
from rove.core.records import StepTokens
from rove.rendering.renderer import Renderer
from rove.rendering.tool_calls import (
    ALL_FORMATS,
    TAG_FORMATS,
    Call,
    calls_of,
    read_calls,
    schemas_of,
    unparsed_call_format,
)

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
ARGUMENT_LOOP = "{% for key, value in function.arguments | items %}"
PLAIN_VALUE = "{{ value if value is string else value | tojson }}"
SEED_CALL = (
    "{{ '<seed:tool_call>\n<function=' + function.name + '>\n' }}" + ARGUMENT_LOOP + "<parameter={{ key }}>"
    "{{ value if value is string else value | string }}{{ '</parameter>\n' }}{% endfor %}{{ '</function>\n</seed:tool_call>' }}"
)
MINIMAX_CALL = (
    "{{ '<minimax:tool_call>\n' if loop.first else '' }}<invoke name=\"{{ function.name }}\">{{ '\n' }}"
    + ARGUMENT_LOOP
    + '<parameter name="{{ key }}">'
    + PLAIN_VALUE
    + "{{ '</parameter>\n' }}{% endfor %}"
    "{{ '</invoke>\n' }}{{ '</minimax:tool_call>' if loop.last else '' }}"
)
DSML_CALL = (
    "{{ '<｜DSML｜function_calls>\n' if loop.first else '' }}<｜DSML｜invoke name=\"{{ function.name }}\">{{ '\n' }}"
    + ARGUMENT_LOOP
    + "<｜DSML｜parameter name=\"{{ key }}\" string=\"{{ 'true' if value is string else 'false' }}\">"
    + PLAIN_VALUE
    + "{{ '</｜DSML｜parameter>\n' }}{% endfor %}{{ '</｜DSML｜invoke>\n' }}"
    "{{ '</｜DSML｜function_calls>' if loop.last else '' }}"
)
DEEPSEEK_CALL = (
    "{{ '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ function.name }}"
    "{{ '\n```json\n' }}{{ function.arguments | tojson }}{{ '\n```<｜tool▁call▁end｜>' }}"
    "{{ '<｜tool▁calls▁end｜>' if loop.last else '' }}"
)
DEEPSEEK_31_CALL = (
    "{{ '<｜tool▁calls▁begin｜>' if loop.first else '' }}<｜tool▁call▁begin｜>{{ function.name }}<｜tool▁sep｜>"
    "{{ function.arguments | tojson }}<｜tool▁call▁end｜>{{ '<｜tool▁calls▁end｜>' if loop.last else '' }}"
)
KIMI_CALL = (
    "{{ '<|tool_calls_section_begin|>' if loop.first else '' }}<|tool_call_begin|>functions.{{ function.name }}:"
    "{{ loop.index0 }}<|tool_call_argument_begin|>{{ function.arguments | tojson }}<|tool_call_end|>"
    "{{ '<|tool_calls_section_end|>' if loop.last else '' }}"
)
OBJECT = '{"name": "{{ function.name }}", "arguments": {{ function.arguments | tojson }}}'
COHERE_CALL = (
    '{{ \'<|START_ACTION|>[\n\' if loop.first else \',\n\' }}    {"tool_call_id": "{{ loop.index0 }}", "tool_name": '
    "\"{{ function.name }}\", \"parameters\": {{ function.arguments | tojson }}}{{ '\n]<|END_ACTION|>' if loop.last else '' }}"
)


def listed(begin: str, end: str) -> str:
    """Return the body of a loop that writes a list of objects."""
    return "{{ '" + begin + "' if loop.first else ', ' }}" + OBJECT + "{{ '" + end + "' if loop.last else '' }}"


TEMPLATES = {
    "seed": template_of(SEED_CALL),
    "minimax": template_of(MINIMAX_CALL),
    "deepseek_v32": template_of(DSML_CALL),
    "deepseek_v3": template_of(DEEPSEEK_CALL),
    "deepseek_v31": template_of(DEEPSEEK_31_CALL),
    "kimi": template_of(KIMI_CALL),
    "cohere": template_of(COHERE_CALL),
    "granite": template_of(listed("<|tool_call|>[", "]")),
    "phi4": template_of(listed("functools[", "]")),
    "nemotron2": template_of(listed("<TOOLCALL>[", "]</TOOLCALL>")),
    "apriel": template_of(listed("<tool_calls>[", "]</tool_calls>")),
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


def hiding_results(template: str, condition: str) -> str:
    """Return a template that leaves out the text of the messages for which a condition is true."""
    return template.replace("{{ m.content }}", "{{ '' if " + condition + " else m.content }}")


def renderer_of(template: str) -> Renderer:
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = template
    return Renderer(tokenizer)


def chat_calls(*calls: Call) -> list[dict[str, Any]]:
    return [
        {"id": f"abcdefgh{number}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for number, call in enumerate(calls)
    ]


@pytest.mark.parametrize("name", some_quick(TEMPLATES, 3))
def test_the_calls_that_a_template_writes_are_read_and_kept_over_turns(name: str):
    renderer = renderer_of(TEMPLATES[name])
    assert renderer.tool_format is not None and renderer.tool_format.name == name
    assert renderer.tool_support.keeps_text  # these templates write the text of a message as it is
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
        (template_of("<|channel|>commentary to=functions.{{ function.name }}"), "in the format of gpt-oss"),
        (template_of("<|open|>call tool={{ function.name }}"), "in the format of Kimi K3"),
        (template_of("CALL {{ function.name }}!"), "does not read: 'CALL probe_tool!"),
        (template_of("{{ raise_exception('no calls') }}"), "rejects a message with a tool call: .*no calls"),
        (HEAD + "{% for m in messages %}{{ m.content }}{% endfor %}" + TAIL, "it writes no calls"),
        ("{# <tool_call> #}" + template_of("CALL {{ function.name }}!"), "does not read"),
        (hiding_results(template_of(HERMES_CALL), "m.role == 'tool'"), r"\(hermes\), but not the results of tools"),
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


def test_a_template_that_writes_no_calls_may_name_their_format_in_its_instructions():
    instructions = '{% if tools %}Write <tool_call>{"name": "f", "arguments": {}}</tool_call>.{% endif %}'
    plain = HEAD + "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}" + TAIL
    support = renderer_of(instructions + plain).tool_support
    assert support.format is not None and support.format.name == "hermes"
    assert support.keeps_text and not (support.short_ids or support.writes_ids or support.writes_space)


def test_calls_are_given_as_text_if_the_template_hides_a_result_after_calls():
    renderer = renderer_of(hiding_results(template_of(HERMES_CALL), "m.role == 'tool' and loop.previtem.tool_calls"))
    assert renderer.tool_support.keeps_text
    message = renderer.message('<tool_call>{"name": "f", "arguments": {"count": 1}}</tool_call>', TOOLS)
    turn = [message, ToolMessage("done", message.tool_calls[0]["id"])]
    assert renderer.text([UserMessage("hi"), *turn, *turn], TOOLS).count("done") == 2


@each_row(
    ("format_name", "text", "expected"),
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
def test_values_without_types_get_those_of_the_schema(format_name: str, text: str, expected: dict[str, Any]):
    [tool_format] = [candidate for candidate in TAG_FORMATS if candidate.name == format_name]
    _, calls = read_calls(text, tool_format, schemas=schemas_of(TOOLS))
    assert calls_of({"tool_calls": calls}) == [Call("f", expected)]


def typed_call(parameters: Any) -> list[Call] | None:
    """Return the call `f` with the text 1 for the argument `a` of these parameters."""
    [tool_format] = [tool_format for tool_format in TAG_FORMATS if tool_format.name == "qwen_xml"]
    text = "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    return calls_of({"tool_calls": read_calls(text, tool_format, schemas=schemas_of(tools))[1]})


@each_row(
    ("option", "value"),
    [
        ({"anyOf": [{"$ref": "#/$defs/A"}, {"type": "string"}]}, "1"),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/A"}]}, 1),
        ({"$ref": "#/$defs/A"}, 1),
    ],
)
def test_a_definition_that_refers_to_itself_has_the_types_of_its_other_options(option: dict[str, Any], value: object):
    parameters = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": option}}
    assert typed_call(parameters) == [Call("f", {"a": value})]


def test_definitions_that_name_the_next_one_twice_are_followed_once_each():
    definitions: dict[str, Any] = {f"D{i}": {"anyOf": [{"$ref": f"#/$defs/D{i + 1}"}] * 2} for i in range(200)}
    definitions["D200"] = {"type": "string"}  # following both options would take 2 ** 200 steps
    assert typed_call({"properties": {"a": {"$ref": "#/$defs/D0"}}, "$defs": definitions}) == [Call("f", {"a": "1"})]


@each_row(
    "parameters",
    [
        "x",
        {"properties": ["a"]},
        {"properties": {"a": 1}},
        {"properties": {"a": {"type": [{}]}}},
        {"properties": {"a": {"type": {"x": 1}}}},
        {"properties": {"a": {"anyOf": [1]}}},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": ["A"]},
    ],
)
def test_an_argument_of_an_invalid_schema_has_an_unknown_type(parameters: Any):
    assert typed_call(parameters) == [Call("f", {"a": 1})]


@each_row(
    ("format_name", "text"),
    [
        ("qwen_xml", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"),
        ("qwen_xml", "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>"),
        ("qwen_xml", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
        ("qwen_xml", "<tool_call><function=></function></tool_call>"),
        ("glm", "<tool_call>f<arg_key>a</arg_key></tool_call>"),
        ("glm", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    ],
)  # fmt: skip
def test_malformed_tags_are_text(format_name: str, text: str):
    [tool_format] = [candidate for candidate in TAG_FORMATS if candidate.name == format_name]
    assert read_calls(text, tool_format) == (text, [])


def test_the_example_for_a_malformed_call_is_of_the_format_that_the_model_began():
    detected = unparsed_call_format("<tool_call>\n<function=f>\n<parameter=a>")
    assert detected is not None and detected.name == "qwen_xml"
    detected = unparsed_call_format('<tool_call>\n{"name": "f"')
    assert detected is not None and detected.name == "hermes"


THINKING_TAIL = "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
SHOWN_REASONING = (
    "{{ ('<think></think>' if '<think>' not in m.content and '</think>' not in m.content else '') + m.content }}"
)
FORMS = {
    "text": "{{ '<think>\n' if '</think>' in m.content else '' }}{{ m.content }}",
    "tagged": SHOWN_REASONING,
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
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}"
        + SHOWN_REASONING
        + "{% for call in m.tool_calls "
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


def test_ids_of_other_models_are_replaced_where_a_template_rejects_them():
    check = "{% for m in messages %}{% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}"
    check += "{{ raise_exception('ids have nine characters') }}{% endif %}{% endfor %}{% endfor %}"
    result = "{% for m in messages if m.role == 'tool' %}[{{ m.tool_call_id }}]{% endfor %}"
    renderer = renderer_of(check + TEMPLATES["mistral_named"].replace(TAIL, result + TAIL))
    assert renderer.tool_support.short_ids
    call = {"id": "call_0a1b2c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    text = renderer.text([UserMessage("hi"), message, ToolMessage("done", "call_0a1b2c")], TOOLS)
    [id] = re.findall(r"\[CALL_ID\](\w{9})\[ARGS\]", text)
    assert f"[{id}]" in text


@each_row(
    ("format_name", "text", "id"),
    [
        ("mistral_named", "[TOOL_CALLS]f[CALL_ID]aB3456789[ARGS]{}", "aB3456789"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "aB3456789"}]', "aB3456789"),
        (
            "kimi",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
            "functions.f:3",
        ),
    ],
)
def test_an_id_that_the_model_wrote_is_kept(format_name: str, text: str, id: str):
    [tool_format] = [candidate for candidate in ALL_FORMATS if candidate.name == format_name]
    [call] = read_calls(text, tool_format)[1]
    assert call["id"] == id


def test_a_turn_ends_with_the_token_that_the_template_writes_before_the_next_message():
    """GLM 4.5 has no end of a turn: after calls the model samples `<|observation|>`, and after an answer `<|user|>`."""
    body = (
        "{% for m in messages %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>{{ m.content }}{% for call in "
    )
    body += "m.tool_calls or [] %}{% set function = call.function %}" + GLM_CALL + "{% endfor %}{% endfor %}"
    renderer = renderer_of(HEAD + body + TAIL)
    marks = [renderer.encode(mark) for mark in ("<|user|>", "<|observation|>")]
    renderer = Renderer(renderer.tokenizer, [ids[0] for ids in marks if len(ids) == 1])
    calling = {"role": "assistant", "content": "", "tool_calls": chat_calls(Call("f", {"count": 1}))}
    messages = [UserMessage("hi"), calling, ToolMessage("done", "abcdefgh0"), {"role": "assistant", "content": "yes"}]
    branches = renderer.training_branches(messages, TOOLS)
    trained = [id for ids, mask in branches for id, is_trained in zip(ids, mask, strict=True) if is_trained]
    assert renderer.decode(trained).endswith("yes<|user|>")
