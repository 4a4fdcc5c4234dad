from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row, first_quick

from rove.rendering.tool_calls import (
    ALL_FORMATS,
    FORMATS,
    Call,
    Format,
    calls_of,
    format_of,
    read_calls,
    settled_characters,
    unparsed_call_format,
)

BY_NAME = {call_format.name: call_format for call_format in FORMATS}
NAMES = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9_.-]{0,8}", fullmatch=True) | st.sampled_from(
    ["from", "None", "get.call"]
)
MARKERS = [
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|tool_call_start|>",
    "]<|tool_call_end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
]
MARKERS += ["<|python_tag|>", "\n", "\r\n", '"', "'", "\\", "'" * 3, '"' * 3, "\0", "it's so", "; ", ")", "}]"]
SCALARS = (
    st.lists(st.sampled_from(MARKERS), min_size=1, max_size=3).map("".join)
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3), max_leaves=8
)
ARGUMENTS = st.dictionaries(NAMES | st.text(max_size=4), VALUES, max_size=4)
CALLS = st.lists(st.builds(Call, NAMES, ARGUMENTS), min_size=1, max_size=3)

FRAGMENTS = ["<tool_call>", "</tool_call>", "<|tool_call_start|>[", "]<|tool_call_end|>", "[TOOL_CALLS]", "[", "[ARGS]"]
FRAGMENTS += [
    "<|python_tag|>",
    '{"name": "f"',
    ', "arguments": {}}',
    ', "parameters": {}}',
    "f(",
    "a=1)",
    ";",
    "</think>",
]


def read(text: str, format_name: str, *names: str) -> tuple[str, list[Call]]:
    outside, tool_calls = read_calls(text, BY_NAME[format_name], names or ("f", "g"))
    calls = calls_of({"tool_calls": tool_calls})
    assert calls is not None
    return outside, calls


@pytest.mark.parametrize("tool_format", first_quick(FORMATS, 2), ids=lambda tool_format: tool_format.name)
@given(calls=CALLS, reported=st.sampled_from(["", "Let me see. ", "<think>or <tool_call>?</think>"]))
def test_written_calls_are_parsed_back(tool_format: Format, calls: list[Call], reported: str):
    if tool_format.name == "llama3":
        reported = ""  # a response is either text or calls in this format
    outside, parsed = read_calls(reported + tool_format.write(calls), tool_format, [call.name for call in calls])
    assert calls_of({"tool_calls": parsed}) == calls
    assert outside == reported.strip()
    assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in parsed)
    assert len({call["id"] for call in parsed}) == len(parsed)


@each_row("tool_format", ALL_FORMATS)
def test_every_format_reads_back_what_it_writes(tool_format: Format):
    """The tests with drawn calls are quick for the first formats only."""
    for calls in ([Call("f", {"a": "x y"})], [Call("f", {"a": "x y", "b": "z"}), Call("g", {}), Call("f", {"a": ""})]):
        text = tool_format.write(calls)
        outside, parsed = read_calls(text, tool_format, ["f", "g"])
        assert (outside, calls_of({"tool_calls": parsed})) == ("", calls)
        assert {settled_characters(text[:length], tool_format) for length in range(len(text) + 1)} == {0}
        if not tool_format.bare:
            outside, parsed = read_calls(f"Let me see. {text}", tool_format, ["f", "g"])
            assert (outside, calls_of({"tool_calls": parsed})) == ("Let me see.", calls)


@pytest.mark.parametrize("tool_format", first_quick(FORMATS, 2), ids=lambda tool_format: tool_format.name)
@given(calls=CALLS, data=st.data())
def test_a_truncated_response_yields_only_complete_calls(tool_format: Format, calls: list[Call], data: st.DataObject):
    text = tool_format.write(calls)
    truncated = text[: data.draw(st.integers(0, len(text) - 1))]
    outside, parsed = read_calls(truncated, tool_format, [call.name for call in calls])
    parsed_calls = calls_of({"tool_calls": parsed})
    assert parsed_calls is not None and parsed_calls == calls[: len(parsed_calls)]
    assert parsed or outside == truncated


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
@given(
    pieces=st.lists(
        st.text(max_size=5) | st.sampled_from(FRAGMENTS),
        max_size=8,
    )
)
def test_any_text_can_be_parsed(tool_format: Format, pieces: list[str]):
    text = "".join(pieces)
    outside, parsed = read_calls(text, tool_format, ["f"])
    assert parsed or outside == text


@each_row(
    ("format_name", "text", "outside", "calls"),
    [
        ("hermes", 'Hm.\n<tool_call>\n{"name": "f", "arguments": {"a": [null]}}\n</tool_call>', "Hm.", [("f", {"a": [None]})]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', "", [("f", {"a": "x\ny"})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"</tool_call>": 1}}</tool_call>', "", [("f", {"</tool_call>": 1})]),
        ("hermes", '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', "", [("f", {"a": 1})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": null, "id": "1"}</tool_call>', "", [("f", {})]),
        ("hermes", '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</tool_call>', "",
         [("f", {"a": 1}), ("g", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "null"}</tool_call>', "", [("f", {})]),
        ("llama3", '{"name": "f", "parameters": {"a": 1}}', "", [("f", {"a": 1})]),
        ("llama3", '{"name": "f", "parameters": {"a": "<|python_tag|>"}}', "", [("f", {"a": "<|python_tag|>"})]),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "arguments": {}}', "", [("f", {}), ("g", {})]),
        ("llama3", '<|python_tag|>f.call(query="x")', "", [("f", {"query": "x"})]),
        ("lfm2", "<|tool_call_start|>[get-weather(max-items=3, a.b=[1, (2,)])]<|tool_call_end|>", "",
         [("get-weather", {"max-items": 3, "a.b": [1, [2]]})]),
        ("lfm2", "<|tool_call_start|>[f(a='x\ny', b='<|tool_call_end|>')]<|tool_call_end|>", "",
         [("f", {"a": "x\ny", "b": "<|tool_call_end|>"})]),
        ("lfm2", "<|tool_call_start|>[f(**{'a b': 1}, c='1' \"2\", d=r'\\n')]<|tool_call_end|>", "",
         [("f", {"a b": 1, "c": "12", "d": "\\n"})]),
        ("lfm2", '<|tool_call_start|>[f(a="\\ud83d\\ude00\\/", b=.5, c=0x1f, d=(1), e=())]<|tool_call_end|>', "",
         [("f", {"a": "😀/", "b": 0.5, "c": 31, "d": 1, "e": []})]),
        ("lfm2", "<|tool_call_start|>[f(a='x', b=-1.5), g(c=true)]<|tool_call_end|>Well.", "Well.",
         [("f", {"a": "x", "b": -1.5}), ("g", {"c": True})]),
        ("lfm2", "<|tool_call_start|>[f(from='a(in=1)', None=[None, True],\n in=-1), pass()]<|tool_call_end|>", "",
         [("f", {"from": "a(in=1)", "None": [None, True], "in": -1}), ("pass", {})]),
        ("lfm2", '<|tool_call_start|>[mail.import(class="""a "from=" b""")]<|tool_call_end|>', "",
         [("mail.import", {"class": 'a "from=" b'})]),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "123456789"}]', "", [("f", {"a": 1})]),
        ("mistral_named", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "", [("f", {"a": 1}), ("g", {})]),
        ("mistral_named", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}\n[TOOL_CALLS]g-1 {"b": 2}', "",
         [("f", {"a": 1}), ("g-1", {"b": 2})]),
        ("mistral_named", '[TOOL_CALLS]f[CALL_ID][ARGS]{"a": 1}', "", [("f", {"a": 1})]),
    ],
)  # fmt: skip
def test_calls_of_each_format_are_parsed(
    format_name: str, text: str, outside: str, calls: list[tuple[str, dict[str, Any]]]
):
    assert read(text, format_name) == (outside, calls)


@each_row(
    ("format_name", "text"),
    [
        ("hermes", "no call at all"),
        ("hermes", "<tool_call></tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "args": {"a": 1}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}, "a": 1}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 1}}</tool_call>'),
        ("lfm2", "<|tool_call_start|>[f(a=1, a=2)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(**[1])]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(a=1j)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(a=2024-01-01)]<|tool_call_end|>"),
        ("llama3", "<|python_tag|>f.call(a=1) or so"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>oops</tool_call>'),
        ("hermes", '<think><tool_call>{"name": "f", "arguments": {}}</tool_call></think>No.'),
        ("hermes", "<tool_call>" + "[" * 100_000),
        ("llama3", '{"name": "unknown", "parameters": {}}'),
        ("llama3", '{"name": "f"}'),
        ("llama3", '{"name": "f", "parameters": {}} or so'),
        ("llama3", 'I say {"name": "f", "parameters": {}}'),
        ("llama3", "<|python_tag|>print(1)"),
        ("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(**a)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(a=b)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(a=g())]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(a={1: 2})]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(a=b'x')]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>f()<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[(lambda: 0)()]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(a=" + "[" * 1000 + "<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f()]"),
        ("lfm2", "<|tool_call_start|>[f(from=in)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(from='a)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(from=not (1))]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(from == 1)]<|tool_call_end|>"),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", '[TOOL_CALLS]{"name": "f"}'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}] and more'),
        ("mistral_named", "[TOOL_CALLS]f[ARGS]"),
    ],
)
def test_malformed_calls_stay_text(format_name: str, text: str):
    assert read(text, format_name) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "Use functools.lru_cache to memoize the function.",
        "```python\nfrom functools import wraps\n```",
        "The HTML tag <tool_calls> is unknown, and so is <TOOLCALL>.",
    ],
)
def test_a_word_or_a_tag_in_an_answer_is_no_started_call(text: str):
    assert unparsed_call_format(text) is None


def test_a_call_after_its_marker_as_a_word_is_read():
    [phi4] = [tool_format for tool_format in ALL_FORMATS if tool_format.name == "phi4"]
    text = 'I would use functools here.\nfunctools[{"name": "f", "arguments": {"a": 1}}]'
    content, calls = read_calls(text, phi4, ["f"])
    assert content.strip() == "I would use functools here."
    assert calls_of({"tool_calls": calls}) == [Call("f", {"a": 1})]
    assert unparsed_call_format('functools[{"name": "f", "arguments": {"a"') == phi4


@each_row("head", ["f", "f[CALL_ID]", "f[CALL_ID]x", "f[ARGS]"])
def test_spaces_after_the_name_of_a_mistral_call_take_linear_time(head: str):
    spaces = " " * 300_000  # quadratic time would be an hour
    call = f"[TOOL_CALLS]{head}{spaces}"
    assert read(call, "mistral_named") == (call, [])
    assert read(call + "{}", "mistral_named") == ("", [Call("f", {})])


def test_equal_calls_of_different_turns_have_different_ids():
    text = '<tool_call>{"name": "f"}</tool_call>'
    ids = [read_calls(text, BY_NAME["hermes"], prompt_length=length)[1][0]["id"] for length in (3, 9, 3)]
    assert ids[0] == ids[2] != ids[1]
    assert all(len(id) == 9 and id.isalnum() for id in ids)


@each_row(
    ("template", "name"),
    [
        ("{{- '<tool_call>\\n' }}", "hermes"),
        ('Write <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>', "hermes"),
        ("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", None),
        ("{{ '<tool_call>' + name }}{{ '\n<arg_key>' + key + '</arg_key>' }}</tool_call>", None),
        ("{{ '<tool_call>' + call.name + '(' }}{{ call.arguments | tojson }})</tool_call>", None),
        ("{{- '<tool_call>\\n' }}{{- tool['name'] }}{{- ' ' + tool['arguments'] }}", None),
        ("<tool_call>{{ {'name': call.name, 'arguments': call.arguments} | tojson }}</tool_call>", "hermes"),
        ('{{- \'<tool_call>\\n{"name": "\' + call.name + \'", "arguments": \' }}', "hermes"),
        ("<tool_call><name>f</name><input>{}</input></tool_call>", None),
        ("{{ '<tool_call>' }}{{ '<function=' + name + '>' }}", None),
        ("<|tool_call_start|>\n```python\nf(a=1)\n```\n<|tool_call_end|>", None),
        ("<|tool_list_start|>", "lfm2"),
        ('{{- "[TOOL_CALLS] [" }}', "mistral"),
        ('{{- "[TOOL_CALLS]" + name + "[ARGS]" }}', "mistral_named"),
        ("{{- '<|python_tag|>' }}", "llama3"),
        ("{{- '<|start_header_id|>' }}\n{{- '\"parameters\": ' }}", "llama3"),
        ("<|im_start|>", None),
        ("", None),
    ],
)
def test_the_tool_call_format_is_detected_from_the_template(template: str, name: str | None):
    tool_format = format_of(template)
    assert (tool_format and tool_format.name) == name


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
def test_a_cut_response_keeps_its_complete_calls(tool_format: Format):
    calls = [Call("f", {"a": [{"b": ")}"}], "c": "</tool_call>"}), Call("g", {})]
    text = tool_format.write(calls)
    call_counts = set()
    for length in range(len(text)):
        content, parsed = read_calls(text[:length], tool_format, ["f", "g"], is_cut=True)
        parsed_calls = calls_of({"tool_calls": parsed})
        assert parsed_calls is not None and parsed_calls == calls[: len(parsed_calls)]
        assert content == ("" if parsed else text[:length])
        call_counts.add(len(parsed_calls))
    assert call_counts >= {0, 1}
    assert read_calls(text[:-20], tool_format, ["f", "g"])[1] == [] or tool_format.name in ("llama3", "mistral_named")


def test_calls_of_returns_none_for_invalid_calls():
    assert calls_of({"tool_calls": [{"function": {"name": "f", "arguments": "oops"}}]}) is None
    assert calls_of({"tool_calls": [{}]}) is None
    assert calls_of({}) == []


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
@given(
    parts=st.lists(st.sampled_from([*FRAGMENTS, "Let me see.", " ", "\n", "<", "{"]) | st.text(max_size=3), max_size=8)
)
def test_text_that_settled_characters_accepts_stays_in_the_parsed_text(tool_format: Format, parts: list[str]):
    text = "".join(parts)
    outside, _ = read_calls(text, tool_format, ["f", "g"])
    for length in range(len(text) + 1):
        prefix = text[:length]
        assert outside.startswith(prefix[: settled_characters(prefix, tool_format)])


@pytest.mark.broad
@pytest.mark.parametrize("tool_format", first_quick(FORMATS, 2), ids=lambda tool_format: tool_format.name)
@given(calls=CALLS)
def test_settled_characters_accepts_plain_words_immediately_and_calls_never(tool_format: Format, calls: list[Call]):
    written = tool_format.write(calls)
    assert {settled_characters(written[:length], tool_format) for length in range(len(written) + 1)} == {0}
    for length in range(len("Let me see. I think so.")):
        prefix = "Let me see. I think so."[:length]
        assert settled_characters(prefix, tool_format) == len(prefix.rstrip())
    assert settled_characters("a <b> c", tool_format) == 7


@given(
    tool_format=st.sampled_from([call_format for call_format in FORMATS if not call_format.bare]),
    pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=8),
)
def test_a_started_call_is_parsed_or_reported_as_unparsed(tool_format: Format, pieces: list[str]) -> None:
    text = "".join(pieces)
    _, tool_calls = read_calls(text, tool_format, ("f",))
    call_start = tool_format.starts.search(text.rpartition("</think>")[2])
    assert tool_calls or unparsed_call_format(text) if call_start else not tool_calls
    if not any(mark in text for call_format in FORMATS for mark in call_format.marks):
        assert unparsed_call_format(text) is None


HALF = "\\ud800"
HALF_CALLS = {
    "hermes": f'<tool_call>\n{{"name": "f", "arguments": {{"a": "{HALF}"}}}}\n</tool_call>',
    "lfm2": f"<|tool_call_start|>[f(a='{HALF}')]<|tool_call_end|>",
    "mistral": f'[TOOL_CALLS][{{"name": "f", "arguments": {{"a": "{HALF}"}}}}]',
    "mistral_named": f'[TOOL_CALLS]f[ARGS]{{"a": "{HALF}"}}',
    "llama3": f'{{"name": "f", "parameters": {{"a": "{HALF}"}}}}',
    "llama4": f'[f(a="{HALF}")]',
    "granite": f'<|tool_call|>[{{"name": "f", "arguments": {{"a": "{HALF}"}}}}]',
    "deepseek_v31": (
        f'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{{"a": "{HALF}"}}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
}


@pytest.mark.parametrize("name", HALF_CALLS)
def test_half_a_character_is_no_text_so_its_call_is_malformed(name: str):
    tool_format = next(each for each in ALL_FORMATS if each.name == name)
    text = HALF_CALLS[name]
    assert read_calls(text, tool_format, ["f"]) == (text, [])
    if name in ("lfm2", "llama4"):  # each of Python's escapes stands for one character
        return
    calls = read_calls(text.replace(HALF, "\\ud83d\\ude00"), tool_format, ["f"])[1]
    assert calls_of({"tool_calls": calls}) == [Call("f", {"a": "😀"})]


def test_a_call_of_another_program_with_half_a_character_has_no_arguments_to_render():
    message = {"tool_calls": [{"function": {"name": "f", "arguments": f'{{"a": "{HALF}"}}'}}]}
    assert calls_of(message) is None


PATHOLOGICAL = {
    "qwen_xml": ("<tool_call><function=f>", "<parameter=a>", "</parameter>x"),
    "glm": ("<tool_call>f\n", "<arg_key>a</arg_key><arg_value>", "</arg_value>x"),
    "seed": ("<seed:tool_call><function=f>", "<parameter=a>", "</parameter>x"),
    "minimax": ('<minimax:tool_call><invoke name="f">', '<parameter name="a">', "</parameter>x"),
    "deepseek_v32": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="f">',
        '<｜DSML｜parameter name="a" string="true">',
        "</｜DSML｜parameter>x",
    ),
}


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_a_malformed_call_with_many_arguments_is_parsed_in_linear_time(name: str):
    (call_format,) = [call_format for call_format in ALL_FORMATS if call_format.name == name]
    begin, argument, end = PATHOLOGICAL[name]
    for repeated in (argument, end, argument + end):
        text = begin + argument + repeated * (100_000 // len(repeated))
        started = time.process_time()
        assert read_calls(text, call_format, ["f"]) == (text, [])
        assert time.process_time() - started < 1.0  # 3.5 s in quadratic time
