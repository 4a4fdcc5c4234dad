"""Parse and write tool calls in Python's syntax: `[f(a=1), g(b='x')]`.

Names of tools and arguments are any words with letters, digits, `_`, `-` and `.`, although Python would read `max-items` as a
difference and reject `from` and `pass`. An argument with another name is in a dict: `f(**{'a b': 1})`. Values are literals of
Python or JSON. Strings may contain raw line breaks, which models write, and any marker of a format, because a string is read to
its end quote. No code is evaluated.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rove.core.plain import UNPARSABLE, Arguments, JsonObject, JsonValue


class Call(NamedTuple):
    """A parsed tool call."""

    name: str
    arguments: Arguments
    id = ""  # no field, because two calls that differ in their ids only are equal


class _IdentifiedCall(Call):
    """A call with the id that the model wrote."""


def with_id(call: Call, id: str) -> Call:
    """Return a call with the id that the model wrote; "" if it wrote none."""
    identified = _IdentifiedCall(*call)
    identified.id = id
    return identified


class MalformedCall(Exception):
    """Error: the text is not a valid tool call."""


NAME = re.compile(r"[\w.-]+")
"""Name of a tool or of an argument that needs no quotes."""
_SPACE = re.compile(r"\s*")
_STRING = re.compile(
    r"""(?P<prefix>[rRuU]?)(?:'''(?:\\.|(?!''').)*'''|\"""(?:\\.|(?!\""").)*\"""|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")""",
    re.DOTALL,
)
_RAW_STRING = re.compile(
    r"""'(?P<raw>.*?)'(?=\s*(?:\)\s*(?:\]|,\s*[\w.-]+\()|,\s*[\w.-]+=|,\s*['"\[{\d-]|\]|\}|:))|"(?:\\.|[^"\\])*\"""",
    re.DOTALL,
)
"""A string that may contain its own quote `'`. It ends at the first quote before the end of a call, list or dict, or before
another item."""
_NUMBER = re.compile(r"[+-]?(?:\.\d|\d)[\w.]*(?:(?<=[eE])[+-]\d+)?")
CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
"""Python's constants, and JSON's constants, which models use in Python calls as well."""


def read_call_list(text: str, start: int = 0, has_raw_strings: bool = False) -> tuple[list[Call], int]:
    """Return the calls in the list `[f(a=1), …]` that starts at `start`, and the position after it.

    Args:
        has_raw_strings: Whether strings may contain their own quote: LFM2.5's template writes `'` + value + `'` for any value.
            A string then ends at a quote before the end of the call or before the next argument.
    """
    reader = _Reader(text, start, _RAW_STRING if has_raw_strings else _STRING)
    reader.expect("[")
    calls = reader.items("]", reader.call)
    if not calls:
        raise MalformedCall("an empty list")
    return calls, reader.at


def read_calls_until(text: str, start: int, end: str) -> tuple[list[Call], int]:
    """Return the calls up to the marker `end`, one per line, and the position after the marker."""
    reader = _Reader(text, start)
    calls = [reader.call()]
    while not reader.skip(end):
        calls.append(reader.call())
    return calls, reader.at


def read_call(text: str, start: int = 0) -> tuple[Call, int]:
    """Return the call `f(a=1)` that starts at `start`, and the position after it."""
    reader = _Reader(text, start)
    return reader.call(), reader.at


def read_literal(text: str) -> JsonValue:
    """Return the value of a text that is one literal of Python or JSON."""
    reader = _Reader(text, 0)
    value = reader.value()
    if text[reader.at :].strip():
        raise MalformedCall("unexpected text after the value")
    return value


def write_call(call: Call) -> str:
    """Return a call in Python's syntax."""
    arguments: list[str] = []
    quoted: Arguments = {}
    for key, value in call.arguments.items():
        if NAME.fullmatch(key):
            arguments.append(f"{key}={value!r}")
        else:
            quoted[key] = value
    if quoted:
        arguments.append(f"**{quoted!r}")
    return f"{call.name}({', '.join(arguments)})"


def write_call_list(calls: Sequence[Call]) -> str:
    """Return a list of calls in Python's syntax."""
    return f"[{', '.join(map(write_call, calls))}]"


_GEMMA_STRING = re.compile(r"""<\|"\|>(?P<raw>.*?)<\|"\|>""", re.DOTALL)
_GEMMA_KEY = re.compile(r"[^:{}\[\],<>]+")


def read_gemma_call(text: str, start: int = 0) -> tuple[Call, int]:
    """Return the call `call:f{a:1,b:<|"|>x<|"|>}` of Gemma 4 that starts at `start`, and the position after it."""
    reader = _GemmaReader(text, start, _GEMMA_STRING)
    reader.expect("call:")
    name = reader.match(NAME, "the name of a tool")
    arguments = reader.value()
    if not isinstance(arguments, dict):
        raise MalformedCall("the arguments are not in braces")
    return Call(name, arguments), reader.at


def write_gemma_call(call: Call) -> str:
    """Return a call as Gemma 4 writes it."""
    return f"call:{call.name}{_gemma_text(call.arguments)}"


def _gemma_text(value: JsonValue) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma_text(value[key])}" for key in sorted(value, key=str.lower)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_text, value)) + "]"
    return json.dumps(value)


class _Reader:
    """Reads calls and literals, starting at a position."""

    def __init__(self, text: str, start: int, string: re.Pattern[str] = _STRING):
        self.text = text
        self.at = start
        self._string_pattern = string

    def skip(self, mark: str) -> bool:
        """Skip spaces and a mark, and return whether the mark is there."""
        self._skip_space()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def expect(self, mark: str) -> None:
        """Skip spaces and a mark; raise an error if the mark is not there."""
        if not self.skip(mark):
            raise MalformedCall(f"expected {mark} at character {self.at}")

    def items(self, end: str, read: Callable[[], JsonValue]) -> list[JsonValue]:
        """Return items that commas separate, until `end`; a comma may follow the last one."""
        items: list[JsonValue] = []
        while not self.skip(end):
            items.append(read())
            if self.skip(","):
                continue
            self.expect(end)
            break
        return items

    def call(self) -> Call:
        """Return the call at the position."""
        name = self.match(NAME, "the name of a tool")
        self.expect("(")
        arguments: Arguments = {}
        for argument in self.items(")", self._argument):
            if argument.keys() & arguments.keys():
                raise MalformedCall(f"an argument of {name} is given twice")
            arguments.update(argument)
        return Call(name, arguments)

    def _argument(self) -> JsonObject:
        if self.skip("**"):
            value = self.value()
            if not isinstance(value, dict):
                raise MalformedCall("** is not followed by a dict")
            return value
        name = self.match(NAME, "the name of an argument")
        self.expect("=")
        return {name: self.value()}

    def value(self) -> JsonValue:
        """Return the JSON value of the literal at the position."""
        if self.skip("["):
            return self.items("]", self.value)
        if self.skip("("):
            return self._tuple()
        if self.skip("{"):
            return self._dict()
        if self._string_pattern.match(self.text, self.at):
            return self._strings()
        if _NUMBER.match(self.text, self.at):
            return _number(self.match(_NUMBER, "a number"))
        word = self.match(NAME, "a value")
        if word not in CONSTANTS:
            raise MalformedCall(f"not a literal: {word}")
        return CONSTANTS[word]

    def _tuple(self) -> object:
        start = self.at
        items = self.items(")", self.value)
        has_comma = self.text[start : self.at - 1].rstrip().endswith(",")
        return items[0] if len(items) == 1 and not has_comma else items

    def _dict(self) -> JsonObject:
        pairs = self.items("}", self._pair)
        return dict(pairs)

    def _pair(self) -> tuple[str, JsonValue]:
        key = self.value()
        if not isinstance(key, str):
            raise MalformedCall("the keys are not strings")
        self.expect(":")
        return key, self.value()

    def _strings(self) -> str:
        """Return the string at the position, joined with the strings that follow it, as Python joins them."""
        joined = ""
        while match := self._string_pattern.match(self.text, self.at):
            self.at = match.end()
            raw = match.groupdict().get("raw")
            joined += _string(match[0]) if raw is None else raw
            self._skip_space()
        return joined

    def match(self, pattern: re.Pattern[str], expected: str) -> str:
        """Skip spaces and the text that matches a pattern, and return this text; raise an error if nothing matches."""
        self._skip_space()
        match = pattern.match(self.text, self.at)
        if match is None:
            raise MalformedCall(f"expected {expected} at character {self.at}")
        self.at = match.end()
        return match[0]

    def _skip_space(self) -> None:
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at


class _GemmaReader(_Reader):
    """Reads the arguments of Gemma 4, whose keys have no quotes."""

    def _pair(self) -> tuple[str, JsonValue]:
        self._skip_space()
        is_quoted = self._string_pattern.match(self.text, self.at) is not None
        key = self._strings() if is_quoted else self.match(_GEMMA_KEY, "the name of an argument").strip()
        self.expect(":")
        return key, self.value()


def _string(literal: str) -> str:
    """Return the value of a string literal of Python or JSON that may contain raw line breaks."""
    if literal.startswith('"') and not literal.startswith('"""'):
        try:
            return json.loads(literal, strict=False)  # reads pairs of surrogates and `\/`, as Python does not
        except ValueError:
            pass
    is_raw = literal[0] in "rR"
    if not is_raw:
        # Python rejects raw line breaks in quotes, which models write; after a backslash they continue the line.
        literal = literal.replace("\\\r\n", "").replace("\\\n", "")
        literal = literal.replace("\r", "\\r").replace("\n", "\\n")
    value = _literal(literal)
    if not isinstance(value, str):
        raise MalformedCall("not a string")
    return value


def _number(literal: str) -> int | float:
    value = _literal(literal)
    if type(value) not in (int, float):
        raise MalformedCall("not a number")
    return value


def _literal(literal: str) -> JsonValue:
    try:
        with warnings.catch_warnings():  # invalid escapes such as "\\d"
            warnings.simplefilter("ignore")
            return ast.literal_eval(literal)
    except UNPARSABLE as error:
        raise MalformedCall(str(error)) from error
