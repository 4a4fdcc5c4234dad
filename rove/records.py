"""What a rollout leaves behind: frozen, versioned, one JSON line each.

In memory every step holds its whole prompt. On disk a step that extends the step before it holds only what was added, so
that a rollout of T turns takes O(T) space; `decode_record` gives back what `encode_record` was
given, but for values JSON cannot hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from rove.errors import RunError
from rove.messages import Message

SCHEMA_VERSION = 1


class Usage(msgspec.Struct, frozen=True):
    """Token counts, as the answerer reports them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


class StepTokens(msgspec.Struct, frozen=True):
    """The exact tokens of one model turn.

    A turn whose prompt was [1, 2, 3] and whose answer was sampled as [7, 8] has prompt_ids [1, 2, 3], completion_ids [7, 8]
    and two logprobs. The next turn of the same branch has prompt_ids [1, 2, 3, 7, 8, …].
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    """The sampled ids, the sampled end-of-turn token included."""
    logprobs: list[float]
    """Log-probability of each sampled id under the sampling distribution (temperature applied)."""
    policy_version: int = 0
    """Version of the weights that sampled them."""

    @property
    def ids(self) -> list[int]:
        """Prompt and completion together: what the next turn of this branch must start with."""
        return self.prompt_ids + self.completion_ids


class TrajectoryStep(msgspec.Struct, frozen=True):
    """One model turn: what it was shown, what it answered.

    While a rollout runs or is scored, its environment and reward functions may say what a turn was worth:
    `state["trajectory"][-1]["reward"] = 0.5`. Nothing else of a step can be changed.
    """

    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]
    finish_reason: str = "stop"
    usage: Usage = Usage()
    seconds: float = 0.0
    """Wall time the answer took."""
    tokens: StepTokens | None = None
    attempts: list[str] = []
    """One line per failed try before this answer, oldest first."""
    reward: float | None = None
    """What this turn earned beside the rollout's own reward; None: nobody said. RL trains by it, evaluation does not count it."""

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __setitem__(self, key: str, value: float) -> None:
        """Set the reward.

        Raises:
            TypeError: the key is another one.
            ValueError: the reward is not a finite number.
        """
        if key != "reward":
            raise TypeError(f"{key!r} of a step is a fact and cannot be changed; only its 'reward' can")
        if not math.isfinite(value):
            raise ValueError(f"the reward of a step is {value}; expected a finite number")
        msgspec.structs.force_setattr(self, "reward", float(value))


class Scores(msgspec.Struct, frozen=True):
    """What a rubric says of one rollout: `reward` = Σ weight × value over `rewards`."""

    reward: float
    rewards: dict[str, float]
    """Raw value of every reward function."""
    weights: dict[str, float]
    metrics: dict[str, float] = {}
    """Values that do not count towards the reward."""
    extras: dict[str, Any] = {}


class ErrorInfo(msgspec.Struct, frozen=True):
    """An exception as data: where in the rollout, what, and every failed attempt before it."""

    phase: str
    type: str
    message: str
    traceback: str = ""
    attempts: list[str] = []


class Timing(msgspec.Struct, frozen=True):
    """Wall seconds of a rollout's parts."""

    total: float = 0.0
    model: float = 0.0
    scoring: float = 0.0


class RolloutRecord(msgspec.Struct, frozen=True):
    """One finished rollout. Exactly one of `scores` and `error` is set."""

    example_key: str
    """Hash of the example's content; the same row has the same key in every run."""
    example_id: int
    """The example's position in its dataset."""
    rollout_index: int
    """0 … rollouts_per_example − 1: which sibling of its group."""
    seed: int
    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]
    answer: str
    info: dict[str, Any]
    steps: list[TrajectoryStep]
    stop_condition: str | None
    is_truncated: bool
    scores: Scores | None
    error: ErrorInfo | None
    usage: Usage = Usage()
    timing: Timing = Timing()
    temperature: float | None = None
    """Sampling temperature, where one was asked for."""
    step: int | None = None
    """Training step that sampled it; None outside RL."""
    tools: list[dict[str, Any]] | None = None
    """The tools that the model was shown, in the OpenAI wire form; None: there were none."""
    schema_version: int = SCHEMA_VERSION

    @property
    def reward(self) -> float | None:
        """The reward, or None when the rollout failed."""
        return self.scores.reward if self.scores else None

    @property
    def outcome(self) -> Outcome:
        """The rollout without its texts and tokens."""
        return Outcome(
            self.example_key,
            self.example_id,
            self.rollout_index,
            self.stop_condition,
            self.is_truncated,
            self.scores,
            self.error,
            self.usage,
            self.timing,
            self.step,
            [step.seconds for step in self.steps],
            sum(len(step.attempts) for step in self.steps),
        )


class Outcome(msgspec.Struct, frozen=True):
    """What statistics and resuming need of a rollout: everything of a `RolloutRecord` but texts and tokens."""

    example_key: str
    example_id: int
    rollout_index: int
    stop_condition: str | None
    is_truncated: bool
    scores: Scores | None
    error: ErrorInfo | None
    usage: Usage = Usage()
    timing: Timing = Timing()
    step: int | None = None
    turn_seconds: list[float] = []
    """Wall time of each answer of the model."""
    retries: int = 0
    """Failed tries before those answers."""

    @property
    def reward(self) -> float | None:
        """The reward, or None when the rollout failed."""
        return self.scores.reward if self.scores else None


def _extends(longer: list[Any], shorter: list[Any]) -> bool:
    return len(longer) >= len(shorter) and longer[: len(shorter)] == shorter


class _StoredStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step on disk: `shared_*` leading items are those of the previous step (its prompt, then its completion)."""

    completion: list[dict[str, Any]]
    prompt: list[dict[str, Any]] = []
    shared_messages: int = 0
    finish_reason: str = "stop"
    usage: Usage = Usage()
    seconds: float = 0.0
    prompt_ids: list[int] | None = None
    shared_ids: int = 0
    completion_ids: list[int] = []
    logprobs: list[float] = []
    policy_version: int = 0
    attempts: list[str] = []
    reward: float | None = None


class _StoredRecord(msgspec.Struct, frozen=True):
    record: RolloutRecord
    steps: list[_StoredStep]


class _StoredTurn(msgspec.Struct, frozen=True):
    seconds: float = 0.0
    attempts: list[str] = []


class _StoredOutcome(msgspec.Struct, frozen=True):
    record: Outcome
    steps: list[_StoredTurn]


class Place(msgspec.Struct, frozen=True):
    """Which rollout a line is of, whether it failed, and what it used."""

    example_key: str
    rollout_index: int
    step: int | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    usage: Usage = Usage()

    @property
    def key(self) -> tuple[int | None, str, int]:
        """Training step (None outside of RL), example and sibling: what makes a rollout."""
        return self.step, self.example_key, self.rollout_index

    @property
    def failed(self) -> bool:
        """Whether it ended in an error."""
        return bytes(self.error) != b"null"


class _StoredPlace(msgspec.Struct, frozen=True):
    record: Place


def _store(steps: list[TrajectoryStep]) -> list[_StoredStep]:
    stored: list[_StoredStep] = []
    said: list[dict[str, Any]] = []
    ids: list[int] = []
    for step in steps:
        shared_messages = len(said) if _extends(step.prompt, said) else 0
        tokens = step.tokens
        shared_ids = len(ids) if tokens and _extends(tokens.prompt_ids, ids) else 0
        stored.append(
            _StoredStep(
                completion=step.completion,
                prompt=step.prompt[shared_messages:],
                shared_messages=shared_messages,
                finish_reason=step.finish_reason,
                usage=step.usage,
                seconds=step.seconds,
                prompt_ids=tokens.prompt_ids[shared_ids:] if tokens else None,
                shared_ids=shared_ids,
                completion_ids=tokens.completion_ids if tokens else [],
                logprobs=tokens.logprobs if tokens else [],
                policy_version=tokens.policy_version if tokens else 0,
                attempts=step.attempts,
                reward=step.reward,
            )
        )
        said = step.prompt + step.completion
        ids = tokens.ids if tokens else []
    return stored


def _restore(stored: list[_StoredStep]) -> list[TrajectoryStep]:
    steps: list[TrajectoryStep] = []
    said: list[dict[str, Any]] = []
    ids: list[int] = []
    for item in stored:
        tokens = None
        if item.prompt_ids is not None:
            prompt_ids = ids[: item.shared_ids] + item.prompt_ids
            tokens = StepTokens(prompt_ids, item.completion_ids, item.logprobs, item.policy_version)
        prompt = said[: item.shared_messages] + [Message(m) for m in item.prompt]
        completion: list[dict[str, Any]] = [Message(m) for m in item.completion]
        told = (item.finish_reason, item.usage, item.seconds, tokens, item.attempts, item.reward)
        steps.append(TrajectoryStep(prompt, completion, *told))
        said = prompt + completion
        ids = tokens.ids if tokens else []
    return steps


def _storable(value: Any) -> Any:
    """What JSON can hold instead: numpy's and torch's values as plain ones, half a surrogate pair as "?"."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, msgspec.Struct):
        return {name: _storable(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {_storable(str(key)): _storable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_storable(item) for item in value]
    return _storable(value.tolist() if hasattr(value, "tolist") else str(value))


_StoredT = TypeVar("_StoredT", _StoredRecord, _StoredOutcome, _StoredPlace)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_StoredRecord)
_outcome_decoder = msgspec.json.Decoder(_StoredOutcome)
_place_decoder = msgspec.json.Decoder(_StoredPlace)


def encode_record(record: RolloutRecord) -> bytes:
    """One JSON line, without the newline; what JSON cannot hold (a tool may return anything) becomes what it can."""
    stored = _StoredRecord(msgspec.structs.replace(record, steps=[]), _store(record.steps))
    try:
        return _encoder.encode(stored)
    except (TypeError, UnicodeEncodeError):
        return _encoder.encode(_storable(stored))


def decode_record(line: bytes) -> RolloutRecord:
    """The record of one line.

    Raises:
        RunError: the line is not a rollout record, or of a newer schema than this rove reads.
    """
    stored = _decoded(_decoder, line)
    if stored.record.schema_version > SCHEMA_VERSION:
        raise RunError(
            f"this rollout was written with schema {stored.record.schema_version}, this rove reads up to {SCHEMA_VERSION}: "
            "upgrade rove"
        )
    return msgspec.structs.replace(
        stored.record,
        steps=_restore(stored.steps),
        prompt=[Message(m) for m in stored.record.prompt],
        completion=[Message(m) for m in stored.record.completion],
    )


def decode_outcome(line: bytes) -> Outcome:
    """The outcome of one line, several times quicker than the whole record.

    Raises:
        RunError: the line is not a rollout record.
    """
    stored = _decoded(_outcome_decoder, line)
    return msgspec.structs.replace(
        stored.record,
        turn_seconds=[step.seconds for step in stored.steps],
        retries=sum(len(step.attempts) for step in stored.steps),
    )


def decode_place(line: bytes) -> Place:
    """Which rollout a line is of; quickest.

    Raises:
        RunError: the line is not a rollout record.
    """
    return _decoded(_place_decoder, line).record


def _decoded(decoder: msgspec.json.Decoder[_StoredT], line: bytes) -> _StoredT:
    try:
        return decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise RunError(f"not a rollout record: {error}; the line starts {line[:80]!r}") from error
