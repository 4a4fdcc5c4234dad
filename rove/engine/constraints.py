"""Structured output: grammars (by llguidance) that restrict the next token of a completion.

The grammars come from JSON schemas, regular expressions, choices, Lark, or a forced tool call. Grammars of tool calls
accept calls of the allowed tools in the model's own format, with arguments that match the tool's JSON schema.
`rove.rendering.tool_calls` parses every text that they accept, except numbers beyond the range of a float (1e999).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance._lib import LLParserLimits  # pyright: ignore[reportMissingModuleSource]

from rove.core.errors import ConfigError, as_json
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.core.protocols import SamplingParams, ToolChoice
from rove.engine.grammar_check import LIMITS, readable, tokenizer_json
from rove.rendering.json_calls import LIST_FORMS, MARKED_FORMS, JsonForm
from rove.rendering.python_calls import NAME
from rove.rendering.tag_calls import TAG_TEXTS, TagTexts, argument_head, json_types, resolved_schema
from rove.rendering.tool_calls import Format

WHITESPACE = " ?"
"""Pattern of whitespace between the parts of a JSON text: at most one space. If any whitespace is allowed, as in JSON, small
models (and occasionally large models) write line breaks until they run out of tokens."""

TEMPLATE_JSON: JsonObject = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Settings of llguidance for JSON as chat templates write it."""
CALL_ID = "/[a-zA-Z0-9]{9}/"
"""Expression for the id of a call in Mistral's formats."""

MAX_GRAMMAR_CHARACTERS = 200_000
"""Maximum size of a grammar. The cost of smaller grammars is measured by compiling them in a worker process; see
`grammar_check`."""
MAX_MASK_SECONDS = 2.0
"""Maximum CPU time for computing the allowed tokens of one position. The computation blocks the event loop, so a slower
grammar fails."""


class Constraint:
    """The state of one completion in its grammar."""

    def __init__(self, matcher: LLMatcher):
        self._matcher = matcher
        self._is_slow = False

    def mask(self, vocab: int) -> torch.Tensor:
        """Return which of the model's `vocab` tokens may come next: [V], bool, on the CPU. There is at least one, unless
        `error` is set.
        """
        started = time.thread_time()
        bias = bytearray(self._matcher.compute_logit_bias())
        self._is_slow = self._is_slow or time.thread_time() - started > MAX_MASK_SECONDS
        allowed = torch.frombuffer(bias, dtype=torch.uint8) > 0
        # A model may have more tokens than its tokenizer, or fewer: a negative pad truncates.
        return torch.nn.functional.pad(allowed, (0, vocab - len(allowed)))

    def advance(self, token: int) -> None:
        """Consume a sampled token; `error` is set if the token is not allowed."""
        self._matcher.consume_token(token)

    @property
    def done(self) -> bool:
        """Whether no token can follow: the output is complete, or there was an error."""
        return self._is_slow or self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Reason why the grammar failed, such as a limit on its complexity; "" if it did not fail."""
        if self._is_slow:
            return f"the allowed tokens of one position took more than {MAX_MASK_SECONDS:g} s; simplify the grammar"
        return readable(self._matcher.get_error())


def constraint_for(sampling: SamplingParams, tokenizer: object, stop_ids: Sequence[int] = ()) -> Constraint | None:
    """Return the constraint of a new completion; None if no structured output is requested.

    A grammar is compiled once; the first use of a tokenizer takes up to a second.

    Args:
        stop_ids: Tokens that may end an output that is complete but could continue. Default: the tokenizer's end token.
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
        grammar = _grammar_of_format(sampling.response_format)
    elif sampling.structured_outputs is not None:
        grammar = _grammar_of_outputs(sampling.structured_outputs)
    else:
        return None
    if grammar is not None and len(grammar) > MAX_GRAMMAR_CHARACTERS:
        raise ConfigError(
            f"the requested structured output is too large: its grammar has {len(grammar):,} characters; expected at most "
            f"{MAX_GRAMMAR_CHARACTERS:,}: simplify it"
        )
    return grammar


def _grammar_of_format(response_format: Mapping[str, object]) -> str | None:
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _json_grammar({"type": "object"})
    named_schema = response_format.get("json_schema")
    schema = named_schema.get("schema") if isinstance(named_schema, Mapping) else None
    if kind != "json_schema" or not isinstance(schema, Mapping):
        raise ConfigError(
            f"response_format is {as_json(response_format)}; expected "
            '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}, {"type": "json_object"} or {"type": "text"}'
        )
    return _json_grammar(schema)


def _grammar_of_outputs(structured_outputs: Mapping[str, object]) -> str:
    options = [(kind, value) for kind, value in structured_outputs.items() if value is not None]
    match options:
        case [("json", str() as schema)]:
            return _json_grammar(schema)
        case [("json", dict() as schema)]:
            return _json_grammar(schema)
        case [("json_object", True)]:
            return _json_grammar({"type": "object"})
        case [("regex", str() as regex)]:
            return LLMatcher.grammar_from_regex(regex)
        case [("choice", [str(), *_] as texts)] if all(isinstance(text, str) for text in texts):
            patterns = [_SPECIAL.sub(_code_point, text) for text in texts]
            return LLMatcher.grammar_from_regex("|".join(patterns))
        case [("grammar", str() as lark)]:
            return LLMatcher.grammar_from_lark(lark)
    raise ConfigError(
        f"structured_outputs is {as_json(dict(structured_outputs))}; expected exactly one of "
        '{"json": schema}, {"json_object": true}, {"regex": text}, {"choice": [texts]}, {"grammar": Lark text}'
    )


_SPECIAL = re.compile(r"[^A-Za-z0-9]")
"""Characters that may be special in a regular expression."""


def _code_point(character: re.Match[str]) -> str:
    return f"\\x{{{ord(character[0]):x}}}"


def _json_grammar(schema: Mapping[str, object] | str) -> str:
    plain_schema = schema if isinstance(schema, str) else dict(schema)
    try:
        return LLMatcher.grammar_from_json_schema(plain_schema, overrides={"whitespace_pattern": WHITESPACE})
    except ValueError as error:
        raise ConfigError(
            f"the JSON schema '{str(schema)[:200]}' is not valid: {error}; expected a JSON object"
        ) from error


FindSpecialToken = Callable[[str], int | None]
"""Return the id of the special token with this text; None for ordinary text."""

MAX_CALLS = 8
"""Maximum number of calls in one response; small models tend to repeat themselves until they run out of tokens."""
_COMPOSED = {"$ref", "allOf", "anyOf", "oneOf"}
"""Keywords of a schema that may describe arguments that are not in its `properties`."""


def tool_call_grammar(
    tool_format: Format,
    tools: Sequence[JsonMapping],
    choice: ToolChoice,
    special_token: FindSpecialToken,
    is_exact: bool = False,
    has_ids: bool = False,
    has_space: bool = False,
) -> str:
    """Return the Lark grammar of one or more calls of the tools that `choice` names.

    Args:
        is_exact: Whether the template writes a sampled call again from its arguments. The spaces of the JSON are then those that
            templates write; otherwise, the next turn would not continue the sampled tokens.
        has_ids: Whether the template writes ids into calls; only those of Mistral's formats are left to the model.
        has_space: Whether the template writes a space before a list of calls; only the format "mistral" has such a list.
    """
    functions = [tool["function"] for tool in tools if tool["function"]["name"] in choice.names]
    lark = _Lark(special_token, is_exact, has_ids, has_space)
    write_rules = _WRITERS[tool_format.name]
    begin, separator, end, calls = write_rules(lark, functions)
    any_call = f"({' | '.join(calls)})"
    further_calls = f" ({separator} {any_call}){{0,{MAX_CALLS - 1}}}" if choice.parallel else ""
    return "\n".join([f"start: {begin} {any_call}{further_calls} {end}", *lark.rules])


class _Lark:
    def __init__(
        self,
        special_token: FindSpecialToken,
        is_exact: bool = False,
        has_ids: bool = False,
        has_space: bool = False,
    ):
        self.rules: list[str] = []
        self.has_ids = has_ids
        self.has_space = has_space
        self._json_settings = TEMPLATE_JSON if is_exact else {"whitespace_pattern": WHITESPACE}
        self._special_token = special_token

    def literal(self, text: str) -> str:
        """Return an expression for exactly this text."""
        return json.dumps(text) if text else ""

    def mark(self, text: str) -> str:
        """Return an expression for a mark of the format; the mark may be a special token."""
        token = self._special_token(text)
        return self.literal(text) if token is None else f"<[{token}]>"

    def marks(self, text: str) -> str:
        """Return an expression for a text that contains marks of the format."""
        pieces = re.split(r"(<[^<>\s]+>|\[[A-Z_]+\]|\{index\})", text)
        return " ".join("/[0-9]{1,3}/" if piece == "{index}" else self.mark(piece) for piece in pieces if piece)

    def text_until(self, end: str) -> str:
        """Return an expression for any text without `</` and the mark `end` after the text.

        If the mark is ordinary text, both are one regular expression: llguidance matches the longest text, which would otherwise
        include the beginning of the mark.
        """
        text = r"([^<]|<+[^<\/])*"
        token = self._special_token(end)
        if token is not None:
            return f"/{text}/ <[{token}]>"
        mark = re.sub(r"[^A-Za-z0-9_]", _code_point, end)
        return f"/{text}{mark}/"

    def rule(self, body: str) -> str:
        """Add a rule; return the rule's name."""
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def json(self, schema: Mapping[str, object]) -> str:
        """Add a rule for the JSON texts that match a schema; return the rule's name."""
        guided_schema = {**schema, "x-guidance": self._json_settings}
        return self.rule("%json " + json.dumps(guided_schema))


CallRules = tuple[str, str, str, list[str]]
"""Expressions for the beginning of the calls, the separator between calls, the end of the calls, and the call of each function.
"""


def _schema(function: JsonMapping) -> JsonObject:
    """Return the schema of a function's arguments; it is always an object.

    Arguments that `properties` does not name are excluded, unless another part of the schema may describe them.
    """
    schema = _valid_parameters(function)
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ConfigError(f"the parameters of the tool '{function['name']}' have type {kind}; expected object")
    schema = {**schema, "type": "object"}
    is_composed = bool(_COMPOSED & schema.keys())
    is_closed = "properties" in schema and not is_composed and not _undescribed(schema)
    return {"additionalProperties": False, **schema} if is_closed else schema


def _valid_parameters(function: JsonMapping) -> JsonMapping:
    """Return the schema of a function's arguments after checking the parts that rove reads, because a client may have sent it."""
    schema = function.get("parameters") or {"properties": {}}
    if not _has_readable_parts(schema):
        raise ConfigError(
            f"the parameters of the tool '{function['name']}' are {as_json(schema)[:200]}; expected a JSON schema of an object, "
            "with a schema for each of its properties and a list of the names that are required"
        )
    return schema


def _has_readable_parts(schema: JsonValue) -> bool:
    if not isinstance(schema, Mapping):
        return False
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, Mapping) or not isinstance(required, list | tuple):
        return False
    has_schemas = all(isinstance(value, Mapping | bool) for value in properties.values())
    return has_schemas and all(isinstance(key, str) for key in required)


def _undescribed(schema: JsonMapping) -> list[str]:
    """Return the required arguments that `properties` does not describe, sorted."""
    described = (schema.get("properties") or {}).keys()
    return sorted(set(schema.get("required") or ()) - described)


def _json_call(lark: _Lark, function: Mapping[str, object], key: str = "arguments", id: str = "") -> str:
    name = json.dumps(function["name"], ensure_ascii=False)
    begin = lark.literal(f'{{"name": {name}, "{key}": ')
    return f"{begin} {lark.json(_schema(function))} {id} {lark.literal('}')}"


def _tagged(lark: _Lark, functions: Sequence[Mapping[str, object]]) -> CallRules:
    newline = lark.literal("\n")
    begin = f"{lark.mark('<tool_call>')} {newline}"
    end = f"{newline} {lark.mark('</tool_call>')}"
    return "", newline, "", [f"{begin} {_json_call(lark, function)} {end}" for function in functions]


def _llama(lark: _Lark, functions: Sequence[Mapping[str, object]]) -> CallRules:
    calls = [_json_call(lark, function, "parameters") for function in functions]
    return "", lark.literal("; "), "", calls


def _mistral(lark: _Lark, functions: Sequence[Mapping[str, object]]) -> CallRules:
    list_begin = " [" if lark.has_space else "["
    begin = f"{lark.mark('[TOOL_CALLS]')} {lark.literal(list_begin)}"
    id_key, quote = lark.literal(', "id": "'), lark.literal('"')
    id = f"{id_key} {CALL_ID} {quote}" if lark.has_ids else ""
    calls = [_json_call(lark, function, id=id) for function in functions]
    return begin, lark.literal(", "), lark.literal("]"), calls


def _mistral_named(lark: _Lark, functions: Sequence[JsonMapping]) -> CallRules:
    calls = []
    id = f"{lark.mark('[CALL_ID]')} {CALL_ID}" if lark.has_ids else ""
    for function in functions:
        name, arguments = lark.literal(_checked_name(function["name"])), lark.json(_schema(function))
        calls.append(f"{lark.mark('[TOOL_CALLS]')} {name} {id} {lark.mark('[ARGS]')} {arguments}")
    return "", "", "", calls


def _pythonic(
    lark: _Lark, functions: Sequence[JsonMapping], begin: str = "<|tool_call_start|>[", end: str = "]<|tool_call_end|>"
) -> CallRules:
    calls = [_python_call(lark, function) for function in functions]
    return lark.marks(begin), lark.literal(", "), lark.marks(end), calls


def _python_call(lark: _Lark, function: JsonMapping) -> str:
    """Return a call with named arguments in the schema's order; values are JSON, which the parser accepts within Python."""

    def argument(key: str, schema: JsonMapping) -> str:
        return f"{lark.literal(f'{_checked_name(key)}=')} {lark.json(schema)}"

    begin = lark.literal(f"{_checked_name(function['name'])}(")
    return f"{begin} {_named_arguments(lark, function, argument, lark.literal(', '))} {lark.literal(')')}"


def _tags(lark: _Lark, functions: Sequence[JsonMapping], texts: TagTexts) -> CallRules:
    def argument(key: str, schema: JsonMapping) -> str:
        is_string = json_types(schema) == {"string"}
        head = lark.marks(argument_head(texts, _checked_name(key), is_string))
        if texts.argument_end.startswith("\n"):  # a string ends at the line break
            return f"{head} {_untyped_value(lark, key, schema, texts.argument_end)}"
        end = texts.argument_end.rstrip("\n")
        return f"{head} {_untyped_value(lark, key, schema, end)} {lark.literal(texts.argument_end[len(end) :])}"

    calls: list[str] = []
    for function in functions:
        head = lark.marks(texts.head.replace("{name}", _checked_name(function["name"])))
        calls.append(f"{head} {_named_arguments(lark, function, argument)} {lark.marks(texts.tail)}")
    return lark.marks(texts.begin), lark.marks(texts.separator), lark.marks(texts.end), calls


def _json_form(lark: _Lark, functions: Sequence[JsonMapping], form: JsonForm) -> CallRules:
    calls: list[str] = []
    for function in functions:
        head = lark.marks(form.head.replace("{name}", _checked_name(function["name"])))
        calls.append(f"{head} {lark.json(_schema(function))} {lark.marks(form.tail)}")
    return lark.marks(form.begin), lark.marks(form.separator), lark.marks(form.end), calls


def _gemma(lark: _Lark, functions: Sequence[JsonMapping]) -> CallRules:
    quote = lark.mark('<|"|>')

    def argument(key: str, schema: JsonMapping) -> str:
        types = json_types(schema)
        name = lark.literal(f"{_checked_name(key)}:")
        if types == {"string"}:
            text = _string_options(lark, key, schema) or "/[^<]*/"
            return f"{name} {quote} {text} {quote}"
        if not types or not types <= {"integer", "number", "boolean", "null"}:
            raise ConfigError(
                f"the argument '{key}' has the schema {as_json(dict(schema))}; expected a string, a number or a boolean, the "
                "only values that a forced call can have in the format of Gemma 4: change the tool or the tool_choice"
            )
        return f"{name} {lark.json(schema)}"

    calls: list[str] = []
    for function in functions:
        head = lark.marks("<|tool_call>") + " " + lark.literal(f"call:{_checked_name(function['name'])}{{")
        arguments = _named_arguments(lark, _with_sorted_arguments(function), argument, lark.literal(","))
        calls.append(f"{head} {arguments} {lark.literal('}')} {lark.mark('<tool_call|>')}")
    return "", "", "", calls


def _with_sorted_arguments(function: JsonMapping) -> JsonMapping:
    """Return a function with its arguments in the order in which Gemma 4's template writes them."""
    schema = _schema(function)
    properties = schema.get("properties") or {}
    return {
        **function,
        "parameters": {**schema, "properties": {key: properties[key] for key in sorted(properties, key=str.lower)}},
    }


def _untyped_value(lark: _Lark, key: str, schema: JsonMapping, end: str) -> str:
    """Return an expression for a value in tags and its closing tag. Strings have no quotes there."""
    if json_types(schema) != {"string"}:
        return f"{lark.json(schema)} {lark.mark(end)}"
    options = _string_options(lark, key, schema)
    return lark.text_until(end) if options is None else f"{options} {lark.mark(end)}"


def _string_options(lark: _Lark, key: str, schema: JsonMapping) -> str | None:
    """Return an expression for the strings that a schema lists as allowed values; None if the schema lists none."""
    value = resolved_schema(schema)
    options = [value["const"]] if "const" in value else value.get("enum")
    if options is None:
        return None
    strings = [option for option in options if isinstance(option, str)] if isinstance(options, list) else []
    if not strings:
        raise ConfigError(
            f"the argument '{key}' has the schema {as_json(dict(schema))}, a string that no text matches; list at least one "
            "string in its enum or const"
        )
    return f"({' | '.join(map(lark.literal, strings))})"


def _named_arguments(
    lark: _Lark, function: JsonMapping, argument: Callable[[str, JsonMapping], str], separator: str = ""
) -> str:
    """Return an expression for the arguments of a call in the schema's order; `argument` writes each argument."""
    name, schema = function["name"], _schema(function)
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    if missing := _undescribed(schema):
        raise ConfigError(f"the tool '{name}' requires {missing[0]}, which its properties do not describe; describe it")
    if composed := sorted(_COMPOSED & schema.keys()):
        raise ConfigError(
            f"the parameters of the tool '{name}' use {composed[0]}, which this model's format of calls cannot follow; "
            "expected properties only: list all arguments there"
        )
    # A reference inside an argument's schema points to the definitions at the root, so each argument carries them.
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    # Built from the last argument to the first: the rules for the arguments that may follow, without and with a separator before.
    # A rule per argument keeps the grammar linear in their number; all subsets written out would be exponential.
    first_rest, later_rest = "", ""
    for key, value in reversed(properties.items()):
        if value is False:
            if key in required:
                raise ConfigError(
                    f"the tool '{name}' requires {key}, whose schema false allows no value; give it another"
                )
            continue
        value_schema = {} if value is True else value
        with_argument = lark.rule(f"{argument(key, {**value_schema, **definitions})} {later_rest}")
        after_separator = f"{separator} {with_argument}"
        if key in required:
            first_rest, later_rest = with_argument, after_separator
        else:
            first_rest, later_rest = f"({with_argument} | {first_rest})", f"({after_separator} | {later_rest})"
    return first_rest


def _checked_name(name: str) -> str:
    """Check and return the name of a tool or an argument for a format that writes names without quotes."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"this model cannot write the name '{name}' in a tool call; expected letters, digits, underscores, hyphens and "
            "dots: rename it"
        )
    return name


_JSON_FORMS = {**MARKED_FORMS, **LIST_FORMS}
_WRITERS: dict[str, Callable[[_Lark, Sequence[JsonMapping]], CallRules]] = {
    "hermes": _tagged,
    "llama3": _llama,
    "lfm2": _pythonic,
    "mistral": _mistral,
    "mistral_named": _mistral_named,
    "llama4": partial(_pythonic, begin="[", end="]"),
    "gemma4": _gemma,
    **{name: partial(_tags, texts=texts) for name, texts in TAG_TEXTS.items()},
    **{name: partial(_json_form, form=form) for name, form in _JSON_FORMS.items()},
}
