"""The two seams everything else plugs into: who answers a request, and what generates tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from rove.config import check_positive
from rove.errors import ConfigError
from rove.messages import Message
from rove.records import StepTokens, Usage
from rove.state import State


class Sampling(msgspec.Struct, frozen=True):
    """How to sample an answer. None = leave it to the answerer."""

    temperature: float | None = None
    """0 = greedy."""
    max_tokens: int | None = None
    """Most tokens in one answer."""
    top_p: float | None = None
    seed: int | None = None
    """Sent to endpoints as it is; the embedded engine seeds every request by itself (`Request.seed`)."""
    stop: list[str] | None = None
    extra: dict[str, Any] = {}
    """Further fields for an endpoint's request body, unchanged."""

    @staticmethod
    def from_args(*args: Mapping[str, Any] | None) -> Sampling:
        """From dicts with OpenAI's names (`max_completion_tokens` too), later ones over earlier ones.

        None means not given; unknown names go to `extra`.

        Raises:
            ConfigError: a value has the wrong type or is out of range.
        """
        given: dict[str, Any] = {}
        for one in args:
            told = {key: value for key, value in (one or {}).items() if value is not None}
            if "max_completion_tokens" in told:
                told["max_tokens"] = told.pop("max_completion_tokens")
            given |= told
        if isinstance(given.get("stop"), str):
            given["stop"] = [given["stop"]]
        extra = dict(given.pop("extra", {}) or {}) | dict(given.pop("extra_body", {}) or {})
        known = {key: given.pop(key) for key in list(given) if key in Sampling.__struct_fields__}
        try:
            sampling = msgspec.convert({**known, "extra": {**given, **extra}}, Sampling)
        except msgspec.ValidationError as error:
            raise ConfigError(f"sampling arguments {given}: {error}") from error
        if sampling.temperature is not None and sampling.temperature < 0:
            raise ConfigError(f"temperature is {sampling.temperature}; expected 0 (greedy) or more")
        if sampling.max_tokens is not None and sampling.max_tokens < 1:
            raise ConfigError(f"max_tokens is {sampling.max_tokens}; expected 1 or more")
        return sampling


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


class Request(msgspec.Struct, frozen=True):
    """One question to a model: the whole conversation (or raw text), and the exact tokens of the last turn."""

    messages: list[dict[str, Any]]
    sampling: Sampling = Sampling()
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    previous: StepTokens | None = None
    """Tokens of the rollout's last turn; a token-aware client extends them instead of tokenising the past again."""
    seed: int = 0
    """Seed of this request's own random stream (rollout seed and turn)."""
    state: State | None = None
    """The running rollout, for scripted players; never sent over a wire."""
    text: str | None = None
    """A raw text to continue as it stands, without a chat template. `messages` then only tell who wrote which piece of it,
    if anything."""


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
    logprobs: list[float]
    finish_reason: str
    policy_version: int


@runtime_checkable
class InferenceEngine(Protocol):
    """Token ids in, token ids out, with weights that can be replaced while it lives."""

    policy_version: int

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int = 0) -> Generation:
        """Sample a continuation of `prompt_ids`."""
        ...

    def score(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each of `ids[1:]` given what precedes it."""
        ...

    def update_weights(self, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """Take new weights (None: they were changed in place) and forget everything computed with the old ones."""
        ...
