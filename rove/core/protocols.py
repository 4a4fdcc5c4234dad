"""The two seams everything else plugs into: who answers a request, and what generates tokens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from rove.core.config import check_positive
from rove.core.errors import ConfigError, OverlongPromptError, in_json
from rove.core.messages import Message
from rove.core.records import StepTokens, Usage
from rove.core.state import State


class SamplingParams(msgspec.Struct, frozen=True):
    """How to sample an answer. None = leave it to the answerer.

    Names are OpenAI's, and vLLM's where OpenAI has none. What each does to the distribution of the embedded engine, and in
    which order, tells `rove.engine.sampler`.
    """

    temperature: float | None = None
    """0 = greedy."""
    max_tokens: int | None = None
    """Maximum tokens per response. 0 generates nothing, which engines can do to score a prompt (`prompt_logprobs`)."""
    top_p: float | None = None
    """Sample from the likeliest tokens that together have this probability. 1 = off."""
    seed: int | None = None
    """Sent to endpoints as it is; the embedded engine seeds every request by itself (`Request.seed`)."""
    stop: list[str] | None = None
    """Texts that end the answer. They are not part of it."""
    top_k: int | None = None
    """Sample from so many of the likeliest tokens. 0 or -1 = off."""
    min_p: float | None = None
    """Sample from tokens at least this times as likely as the likeliest. 0 = off."""
    repetition_penalty: float | None = None
    """Logits of tokens of the prompt and the answer are divided by it where above 0, else multiplied. 1 = off."""
    presence_penalty: float | None = None
    """Taken off the logits of tokens that the answer has already. 0 = off."""
    frequency_penalty: float | None = None
    """Taken off the logits of tokens of the answer, once for each time it has them. 0 = off."""
    logit_bias: dict[int, float] | None = None
    """Token id → what is added to its logit."""
    stop_token_ids: list[int] | None = None
    """Further tokens that end the answer."""
    min_tokens: int | None = None
    """Tokens before anything but a length limit may end the answer."""
    ignore_eos: bool | None = None
    """Whether to go on after the model's own end tokens."""
    logprobs: int | None = None
    """Return log-probabilities of the sampled tokens, and of so many of the likeliest in the place of each."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens."""
    response_format: dict[str, Any] | None = None
    """OpenAI's way to ask for JSON: {"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}."""
    structured_outputs: dict[str, Any] | None = None
    """vLLM's way to ask for a form: one of {"json": schema}, {"regex": …}, {"choice": [texts]}, {"grammar": Lark}."""
    extra: dict[str, Any] = {}
    """Further fields for an endpoint's request body, unchanged."""

    @staticmethod
    def from_args(*args: Mapping[str, Any] | None) -> SamplingParams:
        """From dicts with OpenAI's and vLLM's names, later ones over earlier ones.

        OpenAI's other shapes are understood: `max_completion_tokens`, a `stop` that is one text, `logit_bias` with text
        keys, `logprobs: true` with `top_logprobs`. None means not given; unknown names go to `extra`.

        Raises:
            ConfigError: a value has the wrong type or is out of range.
        """
        given: dict[str, Any] = {}
        for one in args:
            given |= _in_our_shapes({key: value for key, value in (one or {}).items() if value is not None})
        extra: dict[str, Any] = {}
        for name in ("extra", "extra_body"):
            more = given.pop(name, {})
            if not isinstance(more, Mapping):
                raise ConfigError(
                    f"{name} is {in_json(more)}; expected a dict of further fields for an endpoint's request"
                )
            extra |= more
        known = {key: given.pop(key) for key in list(given) if key in SamplingParams.__struct_fields__}
        try:
            sampling = msgspec.convert({**known, "extra": {**given, **extra}}, SamplingParams)
        except msgspec.ValidationError as error:
            raise ConfigError(f"sampling arguments {in_json(known | given)}: {error}") from error
        _check_ranges(sampling)
        return sampling


def _in_our_shapes(told: dict[str, Any]) -> dict[str, Any]:
    """Sampling arguments with OpenAI's other names and shapes replaced by those of `Sampling`."""
    if "max_completion_tokens" in told:
        told["max_tokens"] = told.pop("max_completion_tokens")
    if isinstance(told.get("stop"), str):
        told["stop"] = [told["stop"]]
    top = told.pop("top_logprobs", None)
    if told.get("logprobs", top) is True:
        told["logprobs"] = top or 0
    elif told.get("logprobs") is False:
        told["logprobs"] = None
    elif top is not None:
        told["logprobs"] = top
    if isinstance(told.get("logit_bias"), Mapping):
        try:
            told["logit_bias"] = {int(token): bias for token, bias in told["logit_bias"].items()}
        except (TypeError, ValueError) as error:
            raise ConfigError(f"logit_bias is {in_json(told['logit_bias'])}; expected token ids as its keys") from error
    return told


_TINY, _HUGE = sys.float_info.min, sys.float_info.max
_RANGES = {
    "temperature": (0, _HUGE, "0 (greedy) or more"),
    "max_tokens": (1, _HUGE, "1 or more"),
    "top_p": (_TINY, 1, "more than 0 and at most 1 (off)"),
    "top_k": (-1, _HUGE, "1 or more, or 0 or -1 (off)"),
    "min_p": (0, 1, "0 (off) to 1"),
    "repetition_penalty": (_TINY, _HUGE, "more than 0 (1: off)"),
    "presence_penalty": (-2, 2, "-2 to 2"),
    "frequency_penalty": (-2, 2, "-2 to 2"),
    "min_tokens": (0, _HUGE, "0 or more"),
    "logprobs": (0, _HUGE, "0 or more"),
    "prompt_logprobs": (0, _HUGE, "0 or more"),
}
MAX_BIAS = 100
"""Largest `logit_bias`, either way; what OpenAI and vLLM take."""


def _check_ranges(sampling: SamplingParams) -> None:
    for name, (least, most, expected) in _RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{name} is {value}; expected {expected}")
    for token, bias in (sampling.logit_bias or {}).items():
        if token < 0 or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ConfigError(f"logit_bias of token {token} is {bias}; expected ids from 0, -{MAX_BIAS} to {MAX_BIAS}")
    if "" in (sampling.stop or []):
        raise ConfigError(f"stop is {sampling.stop}; expected texts that are not empty")
    if sampling.max_tokens is not None and (sampling.min_tokens or 0) > sampling.max_tokens:
        raise ConfigError(f"min_tokens is {sampling.min_tokens}; expected max_tokens ({sampling.max_tokens}) or less")
    if sampling.response_format is not None and not isinstance(sampling.response_format.get("type"), str):
        raise ConfigError(
            f"response_format is {in_json(sampling.response_format)}; expected "
            '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}} or {"type": "json_object"}'
        )


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rollout may use, whatever its environment allows. None = no limit.

    A rollout that meets a limit ends with that stop condition and is scored as it stands.

    Raises:
        ConfigError: a limit is not above 0.
    """

    max_turns: int | None = None
    """Answers of the model."""
    max_total_tokens: int | None = None
    """Prompt and completion tokens of all its answers; checked before every further one."""
    max_cost: float | None = None
    """Price of these tokens, in the currency of the price table; checked likewise."""
    timeout_seconds: float | None = None
    """Wall time."""

    def __post_init__(self) -> None:
        check_positive(self, *self.__struct_fields__)


class ToolChoice(msgspec.Struct, frozen=True):
    """The model must call a tool."""

    names: tuple[str, ...]
    """Tools that it may call; at least one."""
    parallel: bool = True
    """Whether it may make several calls."""


class Token(msgspec.Struct, frozen=True):
    """One sampled token, told as soon as there is one."""

    id: int
    logprob: float
    """Under the distribution that it was drawn from."""
    top: list[tuple[int, float]] | None = None
    """The likeliest ids in its place, where `Sampling.logprobs` asked."""
    text: str | None = None
    """Where stop texts were given: the further text that none of them can take back any more."""


OnToken = Callable[[Token], None]


class Request(msgspec.Struct, frozen=True):
    """One question to a model: the whole conversation (or raw text), and the exact tokens of the last turn."""

    messages: list[dict[str, Any]]
    sampling_params: SamplingParams = SamplingParams()
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    """The tools of which one must be called. None = the model chooses, and need not call any."""
    add_generation_prompt: bool = True
    """Whether the chat template ends the prompt with the beginning of the assistant's turn."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the model's chat template, such as `enable_thinking`."""
    previous: StepTokens | None = None
    """Tokens of the rollout's last turn; a token-aware client extends them instead of tokenising the past again."""
    seed: int = 0
    """Seed of this request's own random stream (rollout seed and turn)."""
    state: State | None = None
    """The running rollout, for scripted policies; never sent over a wire."""
    text: str | None = None
    """A raw text to continue as it stands, without a chat template. `messages` then only tell who wrote which piece of it,
    if anything."""
    on_text: Callable[[str], None] | None = None
    """Called on the event loop with each further piece of the answer's text, by clients that have it before the answer ends.
    The pieces together are the beginning of that text; a client that cannot know them early never calls it."""
    on_token: OnToken | None = None
    """Called likewise with each sampled token, before `on_text` is told what it adds, by clients that have tokens."""


class Response(msgspec.Struct, frozen=True):
    """One answer."""

    message: Message
    usage: Usage = Usage()
    finish_reason: str = "stop"
    """"stop", "length" or "tool_calls"."""
    tokens: StepTokens | None = None
    """Exact tokens, where the answerer has them."""
    attempts: list[str] = []
    """One line per failed try before this answer, oldest first."""
    top_logprobs: list[list[tuple[int, float]]] | None = None
    """For each sampled token the likeliest ids in its place, where `Sampling.logprobs` asked and the answerer knows."""
    prompt_logprobs: list[float] | None = None
    """Of each prompt token but the first, at temperature 1, where `Sampling.prompt_logprobs` asked and the answerer knows."""
    prompt_top_logprobs: list[list[tuple[int, float]]] | None = None
    """Likewise the likeliest ids in the place of each."""

    @staticmethod
    def of(message: Message, prompt_ids: list[int], made: Generation, finish_reason: str | None = None) -> Response:
        """The answer that an engine's tokens are; `finish_reason` where it is not that of the generation."""
        return Response(
            message,
            Usage(len(prompt_ids), len(made.ids)),
            finish_reason or made.finish_reason,
            StepTokens(prompt_ids, made.ids, made.logprobs, made.policy_version, made.version_spans),
            top_logprobs=made.top_logprobs,
            prompt_logprobs=made.prompt_logprobs,
            prompt_top_logprobs=made.prompt_top_logprobs,
        )


@runtime_checkable
class Client(Protocol):
    """Whoever answers requests: an endpoint, a script, an in-process engine."""

    @property
    def max_concurrent(self) -> int:
        """How many requests it likes to have under way at once."""
        ...

    async def respond(self, request: Request) -> Response:
        """Answer one request; raise `rove.errors.ModelError` or `InfraError` when that fails for good."""
        ...

    async def close(self) -> None:
        """Free connections and memory."""
        ...


class Generation(msgspec.Struct, frozen=True):
    """Tokens sampled for one prompt."""

    ids: list[int]
    """With the stop token, or all of the tokens that a stop text was in."""
    logprobs: list[float]
    """Of each token, under the distribution that it was drawn from (see `rove.engine.sampler`)."""
    finish_reason: str
    """"stop" or "length"."""
    policy_version: int
    """Version of the weights that sampled the first token."""
    top_logprobs: list[list[tuple[int, float]]] | None = None
    """For each token the likeliest ids in its place with their log-probabilities; None where none were asked for."""
    prompt_logprobs: list[float] | None = None
    """Of each prompt token but the first, under the model at temperature 1; None where none were asked for."""
    prompt_top_logprobs: list[list[tuple[int, float]]] | None = None
    """Likewise the likeliest ids in the place of each."""
    text: str | None = None
    """What the ids say, cut before the stop text that ended it; None where no stop texts were given."""
    stopped_by: str | int | None = None
    """The stop text or the token id that ended it."""
    version_spans: list[tuple[int, int]] = []
    """Where the weights changed on the way: each version, oldest first, and how many of the tokens it has sampled."""


@runtime_checkable
class InferenceEngine(Protocol):
    """Token ids in, token ids out, with weights that can be replaced while it lives."""

    @property
    def policy_version(self) -> int:
        """Of the newest weights."""
        ...

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int = 0,
        on_token: OnToken | None = None,
        adapter: str | None = None,
    ) -> Generation:
        """Sample a continuation of `prompt_ids`, with a loaded adapter or (None) from the model as it is; `on_token` is told of
        each token as it comes."""
        ...

    def score(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each of `ids[1:]` given what precedes it."""
        ...

    def update_weights(self, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """Take new weights (None: they were changed in place) and forget everything computed with the old ones, but for requests
        under way: these are refused, or go on with what they have."""
        ...


def room_after(prompt_ids: Sequence[int], vocab: int, context: int, least: int = 1) -> int:
    """How many tokens may follow a prompt.

    Args:
        vocab: number of the model's tokens.
        context: most tokens that it takes, prompt and answer together.
        least: tokens that must fit after the prompt; 0 for a prompt that is only scored.

    Raises:
        ConfigError: the prompt is empty, or has a token that the model does not have.
        OverlongPromptError: fewer than `least` tokens fit.
    """
    if len(prompt_ids) == 0:
        raise ConfigError("the prompt has no tokens; a model needs at least one to start from")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab:
        wrong = next(i for i in prompt_ids if not 0 <= i < vocab)
        raise ConfigError(f"the prompt has token {wrong}; expected ids from 0 to {vocab - 1}, the model's vocabulary")
    room = context - len(prompt_ids)
    if room < least:
        raise OverlongPromptError(
            f"the prompt has {len(prompt_ids)} tokens, the model's context {context}; expected at most {context - least}: "
            "shorten the prompt"
        )
    return room
