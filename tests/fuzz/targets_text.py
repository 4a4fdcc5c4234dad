"""Targets for texts that models write: tool calls, verdicts, answers. Reading them raises no error, unless one is named here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from rove.core.errors import Error, InvalidModelResponseError, ToolParseError
from rove.core.messages import call_arguments
from rove.rendering.calls_in_text import call_left_in
from rove.rendering.python_calls import Call
from rove.rendering.reasoning import after_empty_reasoning, in_form, sampled_after_opened
from rove.rendering.tool_calls import (
    ALL_FORMATS,
    FORMATS,
    MARKED_FORMATS,
    TAG_FORMATS,
    Format,
    calls_of,
    read_calls,
    settled_characters,
    unparsed_call_format,
)
from rove.rubrics import math_worker, scorers
from rove.rubrics.answers import normalized, read_answer
from rove.rubrics.choices import read_choice
from rove.rubrics.numbers import count_numbers, read_number
from rove.rubrics.parser import (
    MaybeThinkParser,
    Parser,
    ThinkParser,
    XMLParser,
    extract_boxed_answer,
    extract_hash_answer,
)
from rove.rubrics.verdicts import read_verdict
from rove.tools import make_tool
from rove.utils.terminal_text import inert
from tests.fuzz.target import Target, parts_of, text_of

TOOLS = ("add", "search", "get_weather", "f", "g")
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "city": {"type": "string"},
        "x": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "$defs": {"item": {"type": "boolean"}},
}
SCHEMAS = dict.fromkeys(TOOLS, SCHEMA)
MARKS = tuple(dict.fromkeys(mark for tool_format in ALL_FORMATS for mark in (*tool_format.marks, tool_format.call_end)))
PYTHON_FORMATS = ("lfm2", "gemma4", "llama4")
FORMATS_BY_SYNTAX: dict[str, list[Format]] = {
    "json": [tool_format for tool_format in FORMATS if tool_format.name not in PYTHON_FORMATS],
    "tags": list(TAG_FORMATS),
    "marked": [tool_format for tool_format in MARKED_FORMATS if tool_format.name not in PYTHON_FORMATS],
    "python": [tool_format for tool_format in ALL_FORMATS if tool_format.name in PYTHON_FORMATS],
}
EXAMPLE = Call("f", {"a": 1, "city": "Oslo"})


def _calls_reader(tool_formats: Sequence[Format]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        for tool_format in tool_formats:
            _read_calls(text_of(data), tool_format)

    return read


def _read_calls(text: str, tool_format: Format) -> None:
    content, calls = read_calls(text, tool_format, TOOLS, schemas=SCHEMAS)
    read_calls(text, tool_format, TOOLS, is_cut=True, schemas=SCHEMAS)
    settled = settled_characters(text, tool_format)
    assert content.startswith(text[:settled]), "settled text is not part of the content"
    if not calls:
        assert content == text, "a response without calls is returned unchanged"
        return
    msgspec.json.encode(calls)
    parsed = calls_of({"tool_calls": calls})
    assert parsed is not None, "the arguments of a parsed call can be read"
    if not tool_format.is_untyped:  # without a schema, texts of digits become numbers
        _check_written(tool_format, parsed)


def _words_of(tool_formats: Sequence[Format]) -> tuple[str, ...]:
    marks = [mark for tool_format in tool_formats for mark in (*tool_format.marks, tool_format.call_end)]
    return (*dict.fromkeys(marks), *(tool_format.write([EXAMPLE]) for tool_format in tool_formats))


def _check_written(tool_format: Format, calls: list[Call]) -> None:
    """Assert that calls are equal after they were written and read."""
    _, parsed = read_calls(tool_format.write(calls), tool_format, [call.name for call in calls])
    if parsed:  # a format may have no form for a name or a key
        assert calls_of({"tool_calls": parsed}) == calls, "written calls are read as other calls"


def read_any_call(data: bytes) -> None:
    """Look for calls of unknown formats, and for reasoning."""
    text = text_of(data)
    call_left_in(text, TOOLS)
    unparsed_call_format(text)
    after_empty_reasoning(text)
    sampled_after_opened(text, text)
    for form in ("text", "tagged", "field"):
        in_form({"role": "assistant", "content": text}, form)
    assert inert(inert(text)) == inert(text)


def _tool(a: int, city: str = "", x: float | None = None, items: list[bool] | None = None) -> str:
    """Return a text."""
    return f"{a}{city}{x}{items}"


TOOL = make_tool(_tool, name="f")


def read_arguments(data: bytes) -> None:
    """Read the arguments of a call."""
    arguments = call_arguments({"function": {"name": "f", "arguments": text_of(data)}})
    try:
        _tool(**TOOL.read(arguments))
    except ToolParseError as error:
        str(error).encode()
        raise


CHOICES = (["yes", "no"], ["A", "B", "C"], [str(number) for number in range(1, 11)], ["correct", "partially correct"])


def read_judge(data: bytes) -> None:
    """Read a verdict; the second part of the input is the judged text."""
    reply, judged = map(text_of, parts_of(data, 2))
    choices = CHOICES[len(reply) % len(CHOICES)]
    with suppress(InvalidModelResponseError):
        assert read_verdict(reply, choices, reply.endswith(" "), judged, choices[-1]) in choices


PARSERS = (Parser(), ThinkParser(extract_boxed_answer), MaybeThinkParser(), XMLParser(["think", ("answer", "move")]))


def read_answers(data: bytes) -> None:
    """Read the answer of a reply in every way; the second part of the input is the right answer."""
    reply, right = map(text_of, parts_of(data, 2))
    reply = reply.casefold()  # "\\Text" is no command of LaTeX, and normalized it is "\\text"
    completion = [{"role": "assistant", "content": reply}]
    for parser in PARSERS:
        parser.parse_answer(completion)
        assert 0 <= parser.format_score(reply) <= 1
    extract_hash_answer(reply)
    assert normalized(normalized(reply)) == normalized(reply) or len(reply) > 100  # each pass removes eight wrappers
    assert scorers.exact(completion, right) in (0.0, 1.0)
    assert scorers.has_answer_tag(completion) in (0.0, 1.0)
    assert scorers.choice(completion, right, ["red", "green", "3"]) in (0.0, 1.0)
    assert scorers.numeric(completion, right) in (0.0, 1.0)


def read_numbers(data: bytes) -> None:
    """Read a number, a choice and a quantity with a unit."""
    text = text_of(data)
    read_number(text)
    count_numbers(text)
    read_choice(text, ["red", "green", "3"])
    read_choice(text, [])
    math_worker._quantity(math_worker._tidied(text))
    read_answer(text)
    try:
        scorers.right_number(text)
    except Error as error:
        assert len(str(error)) < len(repr(text)) + 1000


_CALLS = ("tests/rendering",)
_ANSWERS = ("tests/rubrics", "tests/audit/test_replies.py")
_VERDICT_WORDS = (
    "Verdict:",
    "Score (1-10):",
    "[[",
    "]]",
    "\\boxed{",
    "<verdict>",
    "8/10",
    "**",
    "I was wrong",
    '{"verdict":',
)
_ANSWER_WORDS = (
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "####",
    "Answer:",
    "\\frac{",
    "\\text{",
    "not",
    "or maybe",
)

TARGETS = [
    *(
        Target(f"calls_{name}", _calls_reader(formats), _CALLS, _words_of(formats))
        for name, formats in FORMATS_BY_SYNTAX.items()
    ),
    Target("calls_in_text", read_any_call, _CALLS, MARKS),
    Target("arguments", read_arguments, ("tests/tools", "tests/rendering"), ('"a":', '"items":', "null")),
    Target("verdict", read_judge, ("tests/rubrics",), _VERDICT_WORDS),
    Target("answer", read_answers, _ANSWERS, _ANSWER_WORDS),
    Target("number", read_numbers, _ANSWERS, ("1,000", "10^", "\\frac{1}{2}", "km/h", "or", "not", "and", " m^2")),
]
