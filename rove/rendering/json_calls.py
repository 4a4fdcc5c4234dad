"""Parse and write tool calls whose arguments are a JSON object between the markers of a family.

DeepSeek V3, V3.1 and Kimi K2 write a name and its arguments between markers; Granite, Phi-4, Cohere and others write a list of
objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from rove.core.plain import JsonObject, JsonValue
from rove.rendering.python_calls import Call, MalformedCall, with_id


def _no_constant(name: str) -> object:
    raise MalformedCall(name)


JSON_DECODER = json.JSONDecoder(parse_constant=_no_constant, strict=False)  # models put raw line breaks into strings


def read_json(text: str, start: int = 0) -> tuple[JsonValue, int]:
    """Return the JSON value that starts at `start`, and the position after it."""
    while text[start : start + 1].isspace():
        start += 1
    try:
        return JSON_DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise MalformedCall(str(error)) from error


def whole_json(text: str) -> JsonValue:
    """Return the JSON value that is the whole text."""
    value, end = read_json(text)
    if text[end:].strip():
        raise MalformedCall("unexpected text after the JSON")
    return value


def json_arguments(value: object) -> JsonObject:
    """Return arguments given as an object or its JSON text; null (as a value or as text) and an empty text mean no arguments."""
    if isinstance(value, str):
        value = whole_json(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedCall("the arguments are not a JSON object")
    return value


ARGUMENT_KEYS = ("arguments", "parameters")
_METADATA = frozenset({"name", "id", "type", "index", *ARGUMENT_KEYS})
"""Keys of a call that do not hold the tool's arguments."""


def call_in(value: object, needs_arguments: bool = False) -> Call:
    """Return the call in a JSON object; its arguments are under one of `ARGUMENT_KEYS`.

    Null means no arguments. An object without arguments is a call only if no other key might hold them, because arguments must
    not be lost silently.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise MalformedCall("not a call")
    values = [value[key] for key in ARGUMENT_KEYS if value.get(key) is not None]
    if len(values) > 1:
        raise MalformedCall("two keys hold arguments")
    if needs_arguments and not value.keys() & set(ARGUMENT_KEYS):
        raise MalformedCall("no arguments")
    arguments = json_arguments(values[0]) if values else {}
    if not arguments and value.keys() - _METADATA:
        raise MalformedCall("the arguments have another key")
    return Call(value["name"], arguments)


class JsonForm(NamedTuple):
    """The texts around calls and their arguments, in the order in which they occur.

    `{name}` stands for the name of the tool, and `{index}` for the number of the call, from 0.
    """

    begin: str
    head: str
    tail: str
    separator: str
    end: str

    @property
    def tag(self) -> str:
        """The text before the calls or their list."""
        return self.begin.strip().removesuffix("[").strip()

    @property
    def marker(self) -> str:
        """The marker that begins the calls."""
        # An answer about Python contains the word "functools" alone.
        return f"{self.tag}[" if self.tag.isalpha() else self.tag

    @property
    def start(self) -> re.Pattern[str]:
        """Pattern of the tag that begins the calls. JSON must follow, because an answer may contain the same word or HTML tag."""
        tag = re.escape(self.tag)
        if self.tag.isalpha():
            return re.compile(rf"{tag}(?=\[)")
        is_special = "|" in self.tag or "｜" in self.tag
        return re.compile(tag if is_special else rf"{tag}(?=\s*[\[{{])")


MARKED_FORMS = {
    "deepseek_v3": JsonForm(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        "\n",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": JsonForm(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "",
        "<｜tool▁calls▁end｜>",
    ),
    "kimi": JsonForm(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "",
        "<|tool_calls_section_end|>",
    ),
}
"""Formats with the name before the arguments."""

_OBJECT = '{"name": "{name}", "arguments": '
LIST_FORMS = {
    "granite": JsonForm("<|tool_call|>[", _OBJECT, "}", ", ", "]"),
    "phi4": JsonForm("functools[", _OBJECT, "}", ", ", "]"),
    "nemotron2": JsonForm("<TOOLCALL>[", _OBJECT, "}", ", ", "]</TOOLCALL>"),
    "apriel": JsonForm("<tool_calls>[", _OBJECT, "}", ", ", "]</tool_calls>"),
    "minimax_m1": JsonForm("<tool_calls>\n", _OBJECT, "}", "\n", "\n</tool_calls>"),
    "cohere": JsonForm(
        "<|START_ACTION|>[\n",
        '    {"tool_call_id": "{index}", "tool_name": "{name}", "parameters": ',
        "}",
        ",\n",
        "\n]<|END_ACTION|>",
    ),
}
"""Formats whose calls are JSON objects: in a list, or one per line."""


def write_form(calls: Sequence[Call], form: JsonForm) -> str:
    """Return calls in a form."""
    texts: list[str] = []
    for index, call in enumerate(calls):
        head = form.head.replace("{name}", call.name).replace("{index}", str(index))
        texts.append(head + json.dumps(call.arguments, ensure_ascii=False) + form.tail)
    return form.begin + form.separator.join(texts) + form.end


def parse_marked(text: str, form: JsonForm) -> tuple[str, list[Call]]:
    """Return the text outside calls with the name before the arguments, and the calls."""
    head, tail, end = _head_pattern(form.head), _spaced(form.tail), _spaced(form.end)
    calls: list[Call] = []
    content, position = "", 0
    while (start := text.find(form.begin, position)) >= 0:
        content += text[position:start]
        position = start + len(form.begin)
        num_calls = len(calls)
        while match := head.match(text, position):
            value, position = read_json(text, match.end())
            position = _match_end(tail, text, position)
            calls.append(with_id(Call(match["name"], json_arguments(value)), match["id"] or ""))
        if len(calls) == num_calls:
            raise MalformedCall("no call after the marker")
        position = _match_end(end, text, position)
    return content + text[position:], calls


def _head_pattern(head: str) -> re.Pattern[str]:
    """Return the pattern of the text before a call's arguments; a part of it that contains the call's number is the call's id."""
    opening, name_and_index, closing = re.split(r"((?:functions\.)?\{name\}(?::\{index\})?)", head)
    name = r"(?P<name>[^\s<>:]+)"
    id = rf"(?P<id>(?:functions\.)?{name}:\d+)" if "{index}" in name_and_index else rf"(?P<id>){name}"
    return re.compile(rf"{_spaced(opening).pattern}\s*{id}{_spaced(closing).pattern}")


def _spaced(text: str) -> re.Pattern[str]:
    """Return a pattern for a text with any whitespace before it and between its words."""
    return re.compile(r"\s*" + r"\s*".join(re.escape(word) for word in text.split()))


def _match_end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    if match is None:
        raise MalformedCall("not closed")
    return match.end()


def parse_listed(text: str, form: JsonForm) -> tuple[str, list[Call]]:
    """Return the text outside calls that are JSON objects, and the calls."""
    close = form.end.replace("]", "").strip()
    calls: list[Call] = []
    content, position = "", 0
    while start := form.start.search(text, position):
        content += text[position : start.start()]
        values, position = _json_values(text, start.end())
        calls += [call_in(_with_common_keys(value)) for value in values]
        if close:
            position = _match_end(_spaced(close), text, position)
    return content + text[position:], calls


def _json_values(text: str, start: int) -> tuple[list[JsonValue], int]:
    """Return the values of a list, or of objects that follow one another, and the position after them."""
    value, position = read_json(text, start)
    if isinstance(value, list):
        if not value:
            raise MalformedCall("no calls")
        return value, position
    values = [value]
    while text[position:].lstrip().startswith("{"):
        value, position = read_json(text, position)
        values.append(value)
    return values, position


def _with_common_keys(value: JsonValue) -> JsonValue:
    """Return an object with Cohere's keys replaced by the keys that other families use."""
    if not isinstance(value, dict) or "tool_name" not in value:
        return value
    renamed = {"tool_name": "name", "tool_call_id": "index"}
    return {renamed.get(key, key): item for key, item in value.items()}
