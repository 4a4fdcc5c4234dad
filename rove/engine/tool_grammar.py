"""Grammars (llguidance's Lark) of forced tool calls: the text must be calls of the allowed tools, in the model's own format.

The arguments of each call match the tool's JSON schema. `rove.rendering.tool_calls` reads every text that these grammars accept,
except numbers beyond the range of a float (1e999) and strings that quote the mark that ends a call.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rove.core.errors import ConfigError
from rove.core.protocols import ToolChoice
from rove.engine.constraints import WHITESPACE
from rove.rendering.tool_calls import Format

SpecialToken = Callable[[str], int | None]
"""Return the id of the special token with this text; None for ordinary text."""

MAX_CALLS = 8
"""Calls in one response; small models tend to repeat themselves until their tokens run out."""
_PYTHON_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MISTRAL_NAME = re.compile(r"[\w.-]+")
_COMPOSED = {"$ref", "allOf", "anyOf", "oneOf"}
"""Parts of a schema that may describe arguments beside its `properties`."""


def tool_call_grammar(
    how: Format, tools: Sequence[Mapping[str, Any]], choice: ToolChoice, special_token: SpecialToken
) -> str:
    """Return the Lark grammar of one call, or of several, of the tools that `choice` names.

    Args:
        how: the format in which the model writes calls.
        tools: all tools of the request, in chat form.
        choice: the tools that may be called, and whether there may be several calls.
        special_token: finds special tokens, which grammars name by id.

    Raises:
        ConfigError: the format cannot write a tool's name or its arguments.
    """
    functions = [tool["function"] for tool in tools if tool["function"]["name"] in choice.names]
    lark = _Lark(special_token)
    write = _WRITERS[how.name]
    begin, separator, end, calls = write(lark, functions)
    call = f"({' | '.join(calls)})"
    several = f" ({separator} {call}){{0,{MAX_CALLS - 1}}}" if choice.parallel else ""
    return "\n".join([f"start: {begin} {call}{several} {end}", *lark.rules])


class _Lark:
    """Collects the rules of a grammar."""

    def __init__(self, special_token: SpecialToken):
        self.rules: list[str] = []
        self._special_token = special_token

    def literal(self, text: str) -> str:
        """Return an expression for exactly this text."""
        return json.dumps(text) if text else ""

    def mark(self, text: str) -> str:
        """Return an expression for a mark of the format, which may be a special token."""
        token = self._special_token(text)
        return self.literal(text) if token is None else f"<[{token}]>"

    def rule(self, body: str) -> str:
        """Add a rule; returns its name."""
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def json(self, schema: Mapping[str, Any]) -> str:
        """Add a rule for the JSON texts that match a schema; returns its name."""
        return self.rule("%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}))


Written = tuple[str, str, str, list[str]]
"""Expressions for the beginning, for what separates calls, for the end, and for a call of each function."""


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, which are always an object.

    Arguments that `properties` does not name are excluded, unless another part of the schema may describe them.
    """
    schema = function.get("parameters") or {"properties": {}}
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ConfigError(f"the parameters of the tool '{function['name']}' have type {kind}; expected object")
    schema = {**schema, "type": "object"}
    is_closed = "properties" in schema and not _COMPOSED & schema.keys() and not _undescribed(schema)
    return {"additionalProperties": False, **schema} if is_closed else schema


def _undescribed(schema: Mapping[str, Any]) -> list[str]:
    """Return the required arguments that `properties` does not describe, sorted."""
    return sorted(set(schema.get("required") or ()) - (schema.get("properties") or {}).keys())


def _json_call(lark: _Lark, function: Mapping[str, Any], key: str = "arguments") -> str:
    begin = lark.literal(f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "{key}": ')
    return f"{begin} {lark.json(_schema(function))} {lark.literal('}')}"


def _tagged(lark: _Lark, functions: Sequence[Mapping[str, Any]]) -> Written:
    begin = f"{lark.mark('<tool_call>')} {lark.literal(chr(10))}"
    end = f"{lark.literal(chr(10))} {lark.mark('</tool_call>')}"
    return "", lark.literal("\n"), "", [f"{begin} {_json_call(lark, one)} {end}" for one in functions]


def _llama(lark: _Lark, functions: Sequence[Mapping[str, Any]]) -> Written:
    return "", lark.literal("; "), "", [_json_call(lark, one, "parameters") for one in functions]


def _mistral(lark: _Lark, functions: Sequence[Mapping[str, Any]]) -> Written:
    begin = f"{lark.mark('[TOOL_CALLS]')} {lark.literal('[')}"
    return begin, lark.literal(", "), lark.literal("]"), [_json_call(lark, one) for one in functions]


def _mistral_named(lark: _Lark, functions: Sequence[Mapping[str, Any]]) -> Written:
    calls = []
    for one in functions:
        name = lark.literal(_checked(one["name"], bool(_MISTRAL_NAME.fullmatch(one["name"]))))
        calls.append(f"{lark.mark('[TOOL_CALLS]')} {name} {lark.mark('[ARGS]')} {lark.json(_schema(one))}")
    return "", "", "", calls


def _pythonic(lark: _Lark, functions: Sequence[Mapping[str, Any]]) -> Written:
    begin = f"{lark.mark('<|tool_call_start|>')} {lark.literal('[')}"
    end = f"{lark.literal(']')} {lark.mark('<|tool_call_end|>')}"
    return begin, lark.literal(", "), end, [_python_call(lark, one) for one in functions]


def _python_call(lark: _Lark, function: Mapping[str, Any]) -> str:
    """A call with named arguments in the schema's order; their values are JSON, which the reader takes among Python's."""
    name, schema = _python_function(function["name"]), _schema(function)
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    if missing := _undescribed(schema):
        raise ConfigError(f"the tool '{name}' requires {missing[0]}, which its properties do not describe; describe it")
    if composed := sorted(_COMPOSED & schema.keys()):
        raise ConfigError(
            f"the parameters of the tool '{name}' use {composed[0]}, which this model's format of calls cannot follow; "
            "expected properties only: list all arguments there"
        )
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    first, more = "", ""  # what may follow when no argument was written yet, and after one
    for key, value in reversed(properties.items()):
        if value is False:
            if key in required:
                raise ConfigError(
                    f"the tool '{name}' requires {key}, whose schema false allows no value; give it another"
                )
            continue
        value = {} if value is True else value
        argument = f"{lark.literal(f'{_python_argument(key)}=')} {lark.json({**value, **shared})}"
        then = lark.rule(f"{argument} {more}")
        after = f"{lark.literal(', ')} {then}"
        if key in required:
            first, more = then, after
        else:
            first, more = f"({then} | {first})", f"({after} | {more})"
    return f"{lark.literal(f'{name}(')} {first} {lark.literal(')')}"


def _python_function(name: str) -> str:
    fits = _PYTHON_NAME.fullmatch(name) is not None and all(map(_is_identifier, name.split(".")))
    return _checked(name, fits and not name.endswith(".call"))  # the reader takes "f.call" for a call of f


def _python_argument(name: str) -> str:
    return _checked(name, _is_identifier(name))


def _is_identifier(name: str) -> bool:
    """Whether Python's parser reads this name, and reads it unchanged; the reader allows keywords too."""
    return name.isidentifier() and unicodedata.normalize("NFKC", name) == name


def _checked(name: str, fits: bool) -> str:
    if not fits:
        raise ConfigError(
            f"this model cannot write the name '{name}' in a tool call; expected letters, digits and underscores "
            "in Unicode's normal form NFKC, and no '.call' at the end: rename it"
        )
    return name


_WRITERS: dict[str, Callable[[_Lark, Sequence[Mapping[str, Any]]], Written]] = {
    "hermes": _tagged,
    "llama3": _llama,
    "lfm2": _pythonic,
    "mistral": _mistral,
    "mistral_named": _mistral_named,
}
