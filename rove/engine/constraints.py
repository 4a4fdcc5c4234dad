"""Structured output: grammars (by llguidance) that restrict the next token of a completion.

They come from JSON schemas, regular expressions, choices, Lark, or a forced tool call. Grammars of tool calls accept calls of
the allowed tools in the model's own format, with arguments that match the tool's JSON schema. `rove.rendering.tool_calls` parses
every text that they accept, except numbers beyond the range of a float (1e999).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance._lib import LLParserLimits  # pyright: ignore[reportMissingModuleSource]

from rove.core.errors import ConfigError, as_json
from rove.core.plain import JsonMapping, JsonObject
from rove.core.protocols import SamplingParams, ToolChoice
from rove.engine.grammar_check import LIMITS, readable, tokenizer_json
from rove.rendering.python_calls import NAME
from rove.rendering.tool_calls import Format

WHITESPACE = " ?"
"""Whitespace between the parts of a JSON text: at most one space. If any whitespace is allowed, as in JSON, small models (and
occasionally large ones) write line breaks until they run out of tokens."""

MAX_GRAMMAR_CHARACTERS = 200_000
"""Size of a grammar. What a smaller one costs is found by compiling it in a worker process; see `grammar_check`."""
MAX_MASK_SECONDS = 2.0
"""CPU time for the allowed tokens of one position. It is spent in the event loop, so a slower grammar fails at once."""


class Constraint:
    """The state of one completion in its grammar."""

    def __init__(self, matcher: LLMatcher):
        self._matcher = matcher
        self._is_slow = False

    def mask(self, vocab: int) -> torch.Tensor:
        """Return which of the model's `vocab` tokens may come next: [V], bool, on the CPU. At least one may, unless `error`
        is set.
        """
        started = time.thread_time()
        allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8) > 0
        self._is_slow = self._is_slow or time.thread_time() - started > MAX_MASK_SECONDS
        return torch.nn.functional.pad(
            allowed, (0, vocab - len(allowed))
        )  # a negative pad truncates, if the model has fewer tokens than the tokenizer

    def advance(self, token: int) -> None:
        """Consume a sampled token; `error` is set if it is not allowed."""
        self._matcher.consume_token(token)

    @property
    def done(self) -> bool:
        """Whether no token can follow: the form is complete, or there was an error."""
        return self._is_slow or self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why the grammar failed, such as a limit on its complexity; "" if it did not."""
        if self._is_slow:
            return f"the allowed tokens of one position took more than {MAX_MASK_SECONDS:g} s; simplify the grammar"
        return readable(self._matcher.get_error())


def constraint_for(sampling: SamplingParams, tokenizer: object, stop_ids: Sequence[int] = ()) -> Constraint | None:
    """Return the constraint of a new completion; None if no structured output is requested.

    A grammar is compiled once; the first use of a tokenizer takes up to a second.

    Args:
        stop_ids: Tokens that may end a complete form that could continue. Default: the tokenizer's end token.
    """
    grammar = grammar_of(sampling)
    if grammar is None:
        return None
    matcher = _matcher(tokenizer, tuple(sorted(stop_ids)), grammar)
    if matcher.is_error():
        raise ConfigError(
            f"the requested structured output is not possible: {readable(matcher.get_error())}; expected a form that some "
            "text matches"
        )
    return Constraint(matcher.deep_copy())


@lru_cache(maxsize=64)
def _matcher(tokenizer: object, stop_ids: tuple[int, ...], grammar: str) -> LLMatcher:
    matcher = LLMatcher(_tokenizer(tokenizer, stop_ids), grammar, log_level=0, limits=LLParserLimits(**LIMITS))
    probe = matcher.deep_copy()
    if not probe.is_error():
        probe.compute_logit_bias()  # only this finds forms that nothing matches, or that are too complex
    return probe if probe.is_error() else matcher


@lru_cache(maxsize=4)
def _tokenizer(tokenizer: Any, stop_ids: tuple[int, ...]) -> LLTokenizer:
    return LLTokenizer(tokenizer_json(tokenizer), eos_token=list(stop_ids) or tokenizer.eos_token_id)


def grammar_of(sampling: SamplingParams) -> str | None:
    """Return the grammar of the requested structured output in llguidance's form, uncompiled; None if there is none."""
    if sampling.response_format is not None and sampling.structured_outputs is not None:
        raise ConfigError("response_format and structured_outputs are both given; expected one of them")
    if sampling.response_format is not None:
        grammar = _of_response_format(sampling.response_format)
    elif sampling.structured_outputs is not None:
        grammar = _of_structured_outputs(sampling.structured_outputs)
    else:
        return None
    if grammar is not None and len(grammar) > MAX_GRAMMAR_CHARACTERS:
        raise ConfigError(
            f"the requested structured output is too large: its grammar has {len(grammar):,} characters; expected at most "
            f"{MAX_GRAMMAR_CHARACTERS:,}: simplify it"
        )
    return grammar


def _of_response_format(given: Mapping[str, object]) -> str | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _json({"type": "object"})
    schema = given.get("json_schema")
    if kind != "json_schema" or not isinstance(schema, Mapping) or not isinstance(schema.get("schema"), Mapping):
        raise ConfigError(
            f"response_format is {as_json(given)}; expected "
            '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}, {"type": "json_object"} or {"type": "text"}'
        )
    return _json(schema["schema"])


def _of_structured_outputs(given: Mapping[str, object]) -> str:
    options = [(kind, value) for kind, value in given.items() if value is not None]
    match options:
        case [("json", str() as schema)]:
            return _json(schema)
        case [("json", dict() as schema)]:
            return _json(schema)
        case [("json_object", True)]:
            return _json({"type": "object"})
        case [("regex", str() as regex)]:
            return LLMatcher.grammar_from_regex(regex)
        case [("choice", [str(), *_] as texts)] if all(isinstance(text, str) for text in texts):
            return LLMatcher.grammar_from_regex("|".join(_SPECIAL.sub(_code_point, text) for text in texts))
        case [("grammar", str() as lark)]:
            return LLMatcher.grammar_from_lark(lark)
    raise ConfigError(
        f"structured_outputs is {as_json(dict(given))}; expected exactly one of "
        '{"json": schema}, {"json_object": true}, {"regex": text}, {"choice": [texts]}, {"grammar": Lark text}'
    )


_SPECIAL = re.compile(r"[^A-Za-z0-9]")
"""Characters that may be special in a regular expression."""


def _code_point(character: re.Match[str]) -> str:
    return f"\\x{{{ord(character[0]):x}}}"


def _json(schema: Mapping[str, object] | str) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(
            schema if isinstance(schema, str) else dict(schema), overrides={"whitespace_pattern": WHITESPACE}
        )
    except ValueError as error:
        raise ConfigError(
            f"the JSON schema '{str(schema)[:200]}' is not valid: {error}; expected a JSON object"
        ) from error


FindSpecialToken = Callable[[str], int | None]
"""Return the id of the special token with this text; None for ordinary text."""

MAX_CALLS = 8
"""Maximum calls in one response; small models tend to repeat themselves until they run out of tokens."""
_COMPOSED = {"$ref", "allOf", "anyOf", "oneOf"}
"""Parts of a schema that may describe arguments not in its `properties`."""


def tool_call_grammar(
    how: Format, tools: Sequence[JsonMapping], choice: ToolChoice, special_token: FindSpecialToken
) -> str:
    """Return the Lark grammar of one call, or of several, of the tools that `choice` names."""
    functions = [tool["function"] for tool in tools if tool["function"]["name"] in choice.names]
    lark = _Lark(special_token)
    write = _WRITERS[how.name]
    begin, separator, end, calls = write(lark, functions)
    call = f"({' | '.join(calls)})"
    several = f" ({separator} {call}){{0,{MAX_CALLS - 1}}}" if choice.parallel else ""
    return "\n".join([f"start: {begin} {call}{several} {end}", *lark.rules])


class _Lark:
    """Collects the rules of a grammar."""

    def __init__(self, special_token: FindSpecialToken):
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

    def json(self, schema: Mapping[str, object]) -> str:
        """Add a rule for the JSON texts that match a schema; returns its name."""
        return self.rule("%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}))


CallRules = tuple[str, str, str, list[str]]
"""Expressions for the beginning, the separator of calls, the end, and a call of each function."""


def _schema(function: JsonMapping) -> JsonObject:
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


def _undescribed(schema: JsonMapping) -> list[str]:
    """Return the required arguments that `properties` does not describe, sorted."""
    return sorted(set(schema.get("required") or ()) - (schema.get("properties") or {}).keys())


def _json_call(lark: _Lark, function: Mapping[str, object], key: str = "arguments") -> str:
    begin = lark.literal(f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "{key}": ')
    return f"{begin} {lark.json(_schema(function))} {lark.literal('}')}"


def _tagged(lark: _Lark, functions: Sequence[Mapping[str, object]]) -> CallRules:
    begin = f"{lark.mark('<tool_call>')} {lark.literal(chr(10))}"
    end = f"{lark.literal(chr(10))} {lark.mark('</tool_call>')}"
    return "", lark.literal("\n"), "", [f"{begin} {_json_call(lark, one)} {end}" for one in functions]


def _llama(lark: _Lark, functions: Sequence[Mapping[str, object]]) -> CallRules:
    return "", lark.literal("; "), "", [_json_call(lark, one, "parameters") for one in functions]


def _mistral(lark: _Lark, functions: Sequence[Mapping[str, object]]) -> CallRules:
    begin = f"{lark.mark('[TOOL_CALLS]')} {lark.literal('[')}"
    return begin, lark.literal(", "), lark.literal("]"), [_json_call(lark, one) for one in functions]


def _mistral_named(lark: _Lark, functions: Sequence[JsonMapping]) -> CallRules:
    calls = []
    for one in functions:
        name = lark.literal(_checked(one["name"]))
        calls.append(f"{lark.mark('[TOOL_CALLS]')} {name} {lark.mark('[ARGS]')} {lark.json(_schema(one))}")
    return "", "", "", calls


def _pythonic(lark: _Lark, functions: Sequence[Mapping[str, object]]) -> CallRules:
    begin = f"{lark.mark('<|tool_call_start|>')} {lark.literal('[')}"
    end = f"{lark.literal(']')} {lark.mark('<|tool_call_end|>')}"
    return begin, lark.literal(", "), end, [_python_call(lark, one) for one in functions]


def _python_call(lark: _Lark, function: JsonMapping) -> str:
    """Return a call with named arguments in the schema's order; values are JSON, which the parser accepts within Python."""
    name, schema = _checked(function["name"]), _schema(function)
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
    first, more = "", ""  # rules before and after the first argument
    for key, value in reversed(properties.items()):
        if value is False:
            if key in required:
                raise ConfigError(
                    f"the tool '{name}' requires {key}, whose schema false allows no value; give it another"
                )
            continue
        value = {} if value is True else value
        argument = f"{lark.literal(f'{_checked(key)}=')} {lark.json({**value, **shared})}"
        then = lark.rule(f"{argument} {more}")
        after = f"{lark.literal(', ')} {then}"
        if key in required:
            first, more = then, after
        else:
            first, more = f"({then} | {first})", f"({after} | {more})"
    return f"{lark.literal(f'{name}(')} {first} {lark.literal(')')}"


def _checked(name: str) -> str:
    """Return the name of a tool or of an argument, which such formats write without quotes."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"this model cannot write the name '{name}' in a tool call; expected letters, digits, underscores, hyphens and "
            "dots: rename it"
        )
    return name


_WRITERS: dict[str, Callable[[_Lark, Sequence[JsonMapping]], CallRules]] = {
    "hermes": _tagged,
    "llama3": _llama,
    "lfm2": _pythonic,
    "mistral": _mistral,
    "mistral_named": _mistral_named,
}
