"""Structured output: which tokens may come next, so that the answer has the form that was asked for.

The grammars are llguidance's, which knows JSON schemas, regular expressions and Lark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer

from rove.core.errors import ConfigError, in_json
from rove.core.protocols import SamplingParams

WHITESPACE = " ?"
"""Between the parts of a JSON text there may be one space. With any whitespace, as JSON has it, small models (and large ones
now and then) write line breaks until their tokens run out."""


class Constraint:
    """How far one answer has come in its grammar.

    Args:
        matcher: of llguidance, at the beginning of the grammar.
    """

    def __init__(self, matcher: LLMatcher):
        self._matcher = matcher

    def mask(self, vocab: int) -> torch.Tensor:
        """Which of the model's `vocab` tokens may come next [V], bool, on the CPU. Without an error there always is one."""
        allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8) > 0
        return torch.nn.functional.pad(allowed, (0, vocab - len(allowed)))  # cuts where the model has fewer tokens

    def advance(self, token: int) -> None:
        """Take a token that was sampled; see `error` for one that must not come."""
        self._matcher.consume_token(token)

    @property
    def done(self) -> bool:
        """Whether nothing more can come: the form is complete, or there was an error."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why the grammar cannot go on, such as by a limit on its complexity; "" = it can."""
        return self._matcher.get_error().partition("\n")[0]


def constraint_for(sampling: SamplingParams, tokenizer: Any, stop_ids: Sequence[int] = ()) -> Constraint | None:
    """The constraint at the beginning of an answer; None where none is asked for.

    The grammar of a form is compiled once; the first use of a tokenizer takes up to a second.

    Args:
        sampling: its `response_format` or `structured_outputs` count.
        tokenizer: a `transformers` fast tokenizer.
        stop_ids: tokens that may come where the form is complete but could go on. Default: the tokenizer's end.

    Raises:
        ConfigError: the form is not one that the engine knows, or there is something wrong with it.
    """
    grammar = _grammar_of(sampling)
    if grammar is None:
        return None
    matcher = _matcher(tokenizer, tuple(sorted(stop_ids)), grammar)
    if matcher.is_error():
        why = " ".join(matcher.get_error().partition("<state>")[0].split())
        why = why.replace("NoExtensionBias", "there is nothing that fits it")
        raise ConfigError(f"the structured output asked for is not possible: {why}; expected a form that can be met")
    return Constraint(matcher.deep_copy())


@lru_cache(maxsize=64)
def _matcher(tokenizer: Any, stop_ids: tuple[int, ...], grammar: str) -> LLMatcher:
    matcher = LLMatcher(_tokenizer(tokenizer, stop_ids), grammar, log_level=0)
    probe = matcher.deep_copy()
    if not probe.is_error():
        probe.compute_logit_bias()  # only now is it seen that nothing fits the form, or that it is too complex to begin
    return probe if probe.is_error() else matcher


@lru_cache(maxsize=4)
def _tokenizer(tokenizer: Any, stop_ids: tuple[int, ...]) -> LLTokenizer:
    return from_tokenizer(tokenizer, eos_token=list(stop_ids) or None)


def _grammar_of(sampling: SamplingParams) -> str | None:
    asked = [name for name in ("response_format", "structured_outputs") if getattr(sampling, name) is not None]
    if len(asked) > 1:
        raise ConfigError("response_format and structured_outputs are both given; expected one of them")
    if sampling.response_format is not None:
        return _of_response_format(sampling.response_format)
    if sampling.structured_outputs is not None:
        return _of_structured_outputs(sampling.structured_outputs)
    return None


def _of_response_format(given: Mapping[str, Any]) -> str | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _json({"type": "object"})
    schema = given.get("json_schema")
    if kind != "json_schema" or not isinstance(schema, Mapping) or not isinstance(schema.get("schema"), Mapping):
        raise ConfigError(
            f"response_format is {in_json(given)}; expected "
            '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}, {"type": "json_object"} or {"type": "text"}'
        )
    return _json(schema["schema"])


def _of_structured_outputs(given: Mapping[str, Any]) -> str:
    told = [(kind, value) for kind, value in given.items() if value is not None]
    match told:
        case [("json", str() as schema)]:
            return _json(schema)
        case [("json", dict() as schema)]:
            return _json(schema)
        case [("json_object", True)]:
            return _json({"type": "object"})
        case [("regex", str() as regex)]:
            return LLMatcher.grammar_from_regex(regex)
        case [("choice", [str(), *_] as texts)] if all(isinstance(text, str) for text in texts):
            # By their code points, so that no character has a meaning.
            literal = ["".join(f"\\x{{{ord(character):x}}}" for character in text) for text in texts]
            return LLMatcher.grammar_from_regex("|".join(literal))
        case [("grammar", str() as lark)]:
            return LLMatcher.grammar_from_lark(lark)
    raise ConfigError(
        f"structured_outputs is {in_json(dict(given))}; expected exactly one of "
        '{"json": schema}, {"json_object": true}, {"regex": text}, {"choice": [texts]}, {"grammar": Lark text}'
    )


def _json(schema: Mapping[str, Any] | str) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(
            schema if isinstance(schema, str) else dict(schema), overrides={"whitespace_pattern": WHITESPACE}
        )
    except ValueError as error:
        raise ConfigError(f"the JSON schema '{schema}' is not valid: {error}") from error
