"""Limits on the size of requested structured outputs, checked before anything is compiled.

Costs that these limits cannot predict (patterns that must match at the same time, for example) are found by compiling the
grammar in a worker process; see `grammar_check`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from rove.core.errors import ConfigError
from rove.core.plain import JsonMapping

MAX_CHARACTERS = 200_000
"""Characters of a schema, regular expression, grammar, or of all choices together."""
MAX_DEPTH = 64
"""Nested objects and arrays of a schema, or nested brackets of a regular expression or grammar."""
MAX_PATTERNS = 100
"""Regular expressions of a schema (`pattern` and `patternProperties`)."""
MAX_BRANCHES = 20_000
"""Choices, values of `enum`s, alternatives of `anyOf` and `oneOf`, or `|` of a regular expression or grammar."""
MAX_REPEATS = 100_000
"""Product of nested counted repeats: `(a{100}){50}` has 5,000."""

_REGEX_PART = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|[()|]", re.DOTALL)
_LARK_PART = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?P<regex>(?:\\.|[^/\\\n])+)/|\{(\d+)(?:,(\d*))?\}|[()\[\]|]')
_LARK_JSON = re.compile(r"%json\s*(?=\{)")
_DECODER = json.JSONDecoder()


def check_structured_output(requested: Mapping[str, object]) -> None:
    """Check the size of `SamplingParams.structured_outputs`; other errors of its form are left to the compiler.

    Raises:
        ConfigError: It exceeds a limit.
    """
    for kind, value in requested.items():
        if kind == "json":
            check_schema(value)
        elif kind == "regex" and isinstance(value, str):
            _check_text(value, "the regular expression")
            _check_regex(value, "the regular expression")
        elif kind == "grammar" and isinstance(value, str):
            _check_text(value, "the grammar")
            _check_lark(value)
        elif kind == "choice" and isinstance(value, list):
            _check("choice", len(value), MAX_BRANCHES, "texts")
            _check("choice", sum(len(str(text)) for text in value), MAX_CHARACTERS, "characters")


def check_schema(schema: object) -> None:
    """Check the size of a JSON schema, which may be a text.

    Raises:
        ConfigError: It exceeds a limit.
    """
    what = "the JSON schema"
    if isinstance(schema, str):
        _check_text(schema, what)
        try:
            schema = json.loads(schema)
        except ValueError:
            return  # the compiler reports it
        except RecursionError:
            _check(what, MAX_DEPTH + 1, MAX_DEPTH, "nested objects and arrays or more")
    depth = _depth_of(schema)
    _check(what, depth, MAX_DEPTH, "nested objects and arrays")
    _check_text(json.dumps(schema, ensure_ascii=False), what)
    patterns, branches = 0, 0
    for node in _objects_of(schema):
        regexes = list(_regexes_of(node))
        patterns += len(regexes)
        branches += sum(len(node[key]) for key in ("enum", "anyOf", "oneOf") if isinstance(node.get(key), list))
        for regex in regexes:
            _check_regex(regex, f"the pattern {json.dumps(regex[:40])}")
    _check(what, patterns, MAX_PATTERNS, "regular expressions")
    _check(what, branches, MAX_BRANCHES, "alternatives")


def _regexes_of(node: JsonMapping) -> Iterator[str]:
    if isinstance(node.get("pattern"), str):
        yield node["pattern"]
    if isinstance(node.get("patternProperties"), Mapping):
        yield from node["patternProperties"]


def _objects_of(schema: object) -> Iterator[JsonMapping]:
    """Yield all objects within a JSON value."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _depth_of(value: object) -> int:
    """Return the number of objects and arrays around the innermost value, or a number above `MAX_DEPTH`."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        inner: list[object] = []
        for container in level:
            if isinstance(container, Mapping):
                inner.extend(container.values())
            elif isinstance(container, list):
                inner.extend(container)
        level = inner
        depth += 1
    return depth


def _check_lark(grammar: str) -> None:
    """Check a Lark grammar, with the JSON schemas and regular expressions in it."""
    rules, schemas = _split_lark(grammar)
    for schema in schemas:
        check_schema(schema)
    for part in _LARK_PART.finditer(rules):
        if part["regex"]:
            _check_regex(part["regex"], f"the pattern {json.dumps(part['regex'][:40])}")
    _check_brackets(rules, _LARK_PART, "the grammar")


def _split_lark(grammar: str) -> tuple[str, list[object]]:
    """Return a grammar without its JSON schemas, whose brackets are not its own, and these schemas."""
    rules, schemas, end = "", [], 0
    for part in _LARK_JSON.finditer(grammar):
        if part.start() < end:  # within the schema before
            continue
        try:
            schema, schema_end = _DECODER.raw_decode(grammar, part.end())
        except (ValueError, RecursionError):  # the compiler reports it
            continue
        rules += grammar[end : part.start()]
        schemas.append(schema)
        end = schema_end
    return rules + grammar[end:], schemas


def _check_regex(pattern: str, what: str) -> None:
    """Check a regular expression."""
    _check_brackets(pattern, _REGEX_PART, what)


def _check_brackets(text: str, parts: re.Pattern[str], what: str) -> None:
    """Check nesting, alternatives, and the product of nested counted repeats."""
    branches, largest = 0, 1
    inner = [1]
    """Per open bracket: the largest product of repeats within it so far."""
    last, end = 1, 0  # the same of the part just read, which a count would multiply, and where that part ends
    for part in parts.finditer(text):
        if text[end : part.start()].strip():  # other characters
            last = 1
        end = part.end()
        if part[0] in "([":
            inner.append(1)
            _check(what, len(inner) - 1, MAX_DEPTH, "nested brackets")
            last = 1
        elif part[0] in ")]":
            last = inner.pop() if len(inner) > 1 else 1
            inner[-1] = max(inner[-1], last)
        elif part[0] == "|":
            branches += 1
            last = 1
        elif part[0][0] == "{":
            low, high = part.groups()[-2:]
            last *= max(int(low[:9]), int((high or "0")[:9]), 1)
            inner[-1] = max(inner[-1], last)
            largest = max(largest, last)
            _check(what, largest, MAX_REPEATS, "as the product of its nested repeats")
        else:
            last = 1
    _check(what, branches, MAX_BRANCHES, "alternatives")


def _check_text(text: str, what: str) -> None:
    _check(what, len(text), MAX_CHARACTERS, "characters")


def _check(what: str, count: int, limit: int, unit: str) -> None:
    if count > limit:
        raise ConfigError(
            f"the requested structured output is too large: {what} has {count:,} {unit}; expected at most {limit:,}: simplify it"
        )
