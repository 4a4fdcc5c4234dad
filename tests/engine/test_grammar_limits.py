"""Limits on the size of structured outputs, checked before anything is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from rove.core.errors import ConfigError
from rove.engine.grammar_limits import check_schema, check_structured_output


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


TOO_LARGE = {
    "a long regular expression": {"regex": "ab" * 500_000},
    "a regular expression with many branches": {"regex": "|".join(f"x{i}" for i in range(30_000))},
    "nested repeats": {"regex": "((((a{100}){100}){100}){100}){100}"},
    "nested repeats after a prefix": {"regex": "abc|x(y(a{1,400}){0,400}){3,400}"},
    "a repeat with a huge count": {"regex": "a{99999999999999999999}"},
    "deep brackets": {"regex": "(" * 500 + "x" + ")" * 500},
    "many choices": {"choice": [str(i) for i in range(50_000)]},
    "a long choice": {"choice": ["a" * 1_000_000]},
    "nested repeats of Lark": {"grammar": 'start: ((("a" | "b"){100}){100}){100}'},
    "deep brackets of Lark": {"grammar": "start: " + "(" * 500 + '"x"' + ")" * 500},
    "a regular expression in Lark": {"grammar": "start: A\nA: /((a{1000}){1000})/"},
    "a schema in Lark": {"grammar": 'start: %json {"enum": [' + ",".join(map(str, range(30_000))) + "]}"},
    "a deep schema": {"json": nested(100)},
    "a deep schema as text": {"json": '{"anyOf":[' * 100_000},
    "a large enum": {"json": {"enum": list(range(30_000))}},
    "many patterns": {"json": {"properties": {str(i): {"type": "string", "pattern": f"a{i}"} for i in range(200)}}},
    "many pattern properties": {"json": {"patternProperties": {f"a{i}": {} for i in range(200)}}},
    "nested repeats in a pattern": {"json": {"properties": {"a": {"pattern": "((a{1000}){1000})"}}}},
}


@pytest.mark.parametrize("requested", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_structured_output_beyond_a_limit_is_refused_with_the_limit(requested: dict[str, Any]):
    with pytest.raises(ConfigError, match="too large: .* expected at most .*: simplify it"):
        check_structured_output(requested)


USUAL: dict[str, dict[str, Any]] = {
    "a date": {"regex": r"\d{4}-\d{2}-\d{2}T([01]\d|2[0-3])(:[0-5]\d){2}"},
    "brackets in a class": {"regex": "[({]{100}[\\])}]{100}" * 60},
    "escaped brackets": {"regex": r"\(\(\(" * 100},
    "consecutive repeats": {"regex": "a{1000}b{1000}c{1000}d{1000}"},
    "answers": {"choice": ["yes", "no", "(((", "a{1000000}"]},
    "strings of brackets in Lark": {"grammar": "start: " + " ".join(['"((("'] * 100) + " /[(]{3}/ // (((("},
    "a tool call": {"grammar": 'start: "f(" r0 ")"\nr0: %json {"type": "string", "pattern": "^a{3}$"}'},
    "a schema": {"json": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{1,64}$"}}}},
    "a schema as text": {"json": '{"type": "object"}'},
    "properties named like keywords": {
        "json": {"properties": {"pattern": {"type": "string"}, "enum": {"type": "array"}}}
    },
    "a nested schema": {"json": nested(20)},
    "countries": {"json": {"enum": [f"country {i}" for i in range(250)]}},
}


@pytest.mark.parametrize("requested", USUAL.values(), ids=USUAL)
def test_usual_structured_outputs_are_within_the_limits(requested: dict[str, Any]):
    check_structured_output(requested)


def test_what_is_not_json_is_left_to_the_compiler():
    check_schema("{")
    check_structured_output({"json": None, "regex": 3, "choice": "a", "other": "b"})
