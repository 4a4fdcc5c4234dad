"""Encode records as lines of JSON.

In memory, every step has its whole prompt. On disk, a step that extends the previous step has only the new messages and tokens,
so that a rollout of T turns takes O(T) space (docs/decisions/disk_steps.md). `decode_record` restores the record, except for
values that JSON cannot represent. The other decoders read fewer fields and are faster, because resuming and listing read every
line of large files.
"""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import msgspec

from rove.core.errors import ConfigError, RunError, short_repr
from rove.core.messages import Message
from rove.core.plain import UNREADABLE, JsonValue, MessageDict, ToolDefinition, is_mapping
from rove.core.records import SCHEMA_VERSION, Outcome, RolloutRecord, StepTokens, TrajectoryStep, Usage

RolloutKey = tuple[int | None, str, int]
"""Training step (None outside of RL), example key, position in the group."""


def _extends(longer: list[JsonValue], shorter: list[JsonValue]) -> bool:
    return len(longer) >= len(shorter) and longer[: len(shorter)] == shorter


class _StoredStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step on disk. Its first `shared_*` items equal the items of the previous step (its prompt, then its completion)."""

    completion: list[MessageDict]
    prompt: list[MessageDict] = []
    shared_messages: int = 0
    finish_reason: str = "stop"
    usage: Usage = Usage()
    seconds: float = 0.0
    prompt_ids: list[int] | None = None
    shared_ids: int = 0
    completion_ids: list[int] = []
    logprobs: list[float] = []
    policy_version: int = 0
    version_spans: list[tuple[int, int]] = []
    attempts: list[str] = []
    reward: float | None = None
    tools: list[ToolDefinition] | None = None


class _StoredRecord(msgspec.Struct, frozen=True):
    record: RolloutRecord
    steps: list[_StoredStep]
    model_roles: dict[str, list[_StoredStep]] = {}


class _StoredTurn(msgspec.Struct, frozen=True):
    seconds: float = 0.0
    attempts: list[str] = []


class _StoredRoleTurn(msgspec.Struct, frozen=True):
    usage: Usage = Usage()


class _StoredOutcome(msgspec.Struct, frozen=True):
    record: Outcome
    steps: list[_StoredTurn]
    model_roles: dict[str, list[_StoredRoleTurn]] = {}


class RolloutListing(Outcome, frozen=True):
    """A rollout as shown in lists: an outcome with prompt, completion, expected answer, the row's `info`, temperature and schema
    version.
    """

    prompt: list[MessageDict] = []
    completion: list[MessageDict] = []
    answer: str = ""
    info: msgspec.Raw = msgspec.Raw(b"null")
    temperature: float | None = None
    schema_version: int = SCHEMA_VERSION


class _StoredListed(msgspec.Struct, frozen=True):
    record: RolloutListing
    steps: list[_StoredTurn]
    model_roles: dict[str, list[_StoredRoleTurn]] = {}


class _Version(msgspec.Struct, frozen=True):
    schema_version: int = SCHEMA_VERSION


class _StoredVersion(msgspec.Struct, frozen=True):
    record: _Version


class Place(msgspec.Struct, frozen=True):
    """Identity, error and usage of the rollout in a line."""

    example_key: str
    rollout_index: int
    step: int | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    usage: Usage = Usage()

    @property
    def key(self) -> RolloutKey:
        """The key of the rollout."""
        return self.step, self.example_key, self.rollout_index

    @property
    def failed(self) -> bool:
        """Whether the rollout ended in an error."""
        return bytes(self.error) != b"null"


class _StoredPlace(msgspec.Struct, frozen=True):
    record: Place


def _store(steps: list[TrajectoryStep]) -> list[_StoredStep]:
    stored: list[_StoredStep] = []
    messages: list[MessageDict] = []
    ids: list[int] = []
    for step in steps:
        # The whole previous step or none of it: a step of another branch, such as a sub-agent's, is stored with its prompt.
        shared_messages = len(messages) if _extends(step.prompt, messages) else 0
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
                version_spans=tokens.version_spans if tokens else [],
                attempts=step.attempts,
                reward=step.reward,
                tools=step.tools,
            )
        )
        messages = step.prompt + step.completion
        ids = tokens.ids if tokens else []
    return stored


def _restore(stored: list[_StoredStep]) -> list[TrajectoryStep]:
    steps: list[TrajectoryStep] = []
    messages: list[MessageDict] = []
    ids: list[int] = []
    for item in stored:
        tokens = None
        if item.prompt_ids is not None:
            prompt_ids = ids[: item.shared_ids] + item.prompt_ids
            tokens = StepTokens(prompt_ids, item.completion_ids, item.logprobs, item.policy_version, item.version_spans)
        prompt = messages[: item.shared_messages] + [Message(m) for m in item.prompt]
        completion: list[MessageDict] = [Message(m) for m in item.completion]
        fields = (item.finish_reason, item.usage, item.seconds, tokens, item.attempts, item.reward, item.tools)
        steps.append(TrajectoryStep(prompt, completion, *fields))
        messages = prompt + completion
        ids = tokens.ids if tokens else []
    return steps


MAX_DEPTH = 100
"""Maximum nesting depth that is written; deeper values become texts."""
MAX_INTEGER = 1 << 63
"""Integers of this size or larger become texts."""


def _storable(value: object, parents: tuple[int, ...] = ()) -> object:
    """Return a value that JSON can represent: numpy and torch values become plain values, and lone surrogates become "?".

    Huge integers, structures that contain themselves, and values nested more deeply than `MAX_DEPTH` become texts.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
        return hex(value)  # str() refuses integers of more than 4,300 digits
    # By exact type: numpy's float64 is a subclass of float, and its `tolist` gives the plain one.
    if value is None or type(value) in (bool, int, float):
        return value
    if id(value) in parents or len(parents) == MAX_DEPTH:
        return short_repr(value)
    inside = (*parents, id(value))
    if isinstance(value, msgspec.Struct):
        return {name: _storable(getattr(value, name), inside) for name in value.__struct_fields__}
    if is_mapping(value):
        return {_storable(str(key)): _storable(item, inside) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items: list[Any] = [*value]
        return [_storable(item, inside) for item in items]
    to_list = getattr(value, "tolist", None)
    return _storable(str(value) if to_list is None else to_list(), inside)


_StoredT = TypeVar("_StoredT", _StoredRecord, _StoredOutcome, _StoredListed, _StoredVersion, _StoredPlace)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_StoredRecord)
_outcome_decoder = msgspec.json.Decoder(_StoredOutcome)
_listed_decoder = msgspec.json.Decoder(_StoredListed)
_version_decoder = msgspec.json.Decoder(_StoredVersion)
_place_decoder = msgspec.json.Decoder(_StoredPlace)


CHECKSUM_KEY = b',"checksum":"'
CHECKSUM_BYTES = len(CHECKSUM_KEY) + len('01234567"}')
"""Length of the end of a line, which has its checksum."""


def _checksum_field(content: bytes) -> bytes:
    """Return the end of a line that has this content before it."""
    return CHECKSUM_KEY + b'%08x"}' % zlib.crc32(content)


def with_checksum(line: bytes) -> bytes:
    """Return a line, a JSON object, with the CRC-32 of its bytes as the last field.

    A flipped bit in a reward or in a text is still valid JSON, so that only a checksum detects it.
    """
    content = line[:-1]
    return content + _checksum_field(content)


def check_line(line: bytes) -> None:
    """Raise a RunError if a line has changed since it was written. A line without a checksum is not checked."""
    content, end = line[:-CHECKSUM_BYTES], line[-CHECKSUM_BYTES:]
    if end.startswith(CHECKSUM_KEY) and end != _checksum_field(content):
        raise RunError(
            "the line differs from its checksum, so it is damaged or was edited (after an edit of your own, delete its field "
            f"`checksum`); the line starts {line[:80]!r}"
        )


def encode_record(record: RolloutRecord) -> bytes:
    """Return a record as a JSON line with a checksum, without the newline; values that JSON cannot represent are converted
    (see `_storable`).
    """
    bare = msgspec.structs.replace(record, steps=[], model_roles={})
    model_roles = {role: _store(steps) for role, steps in record.model_roles.items()}
    stored = _StoredRecord(bare, _store(record.steps), model_roles)
    try:  # nearly every record needs no conversion, and `_storable` copies all of it
        return with_checksum(_encoder.encode(stored))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return with_checksum(_encoder.encode(_storable(stored)))


class _CheckedRecord(RolloutRecord, frozen=True, kw_only=True):
    """A record whose renderings are not decoded, because decoding their cells took as long as the rest of the line."""

    renderings: dict[int, msgspec.Raw] = {}  # pyright: ignore[reportIncompatibleVariableOverride]


class _CheckedLine(msgspec.Struct, frozen=True):
    record: _CheckedRecord
    steps: list[_StoredStep]
    model_roles: dict[str, list[_StoredStep]] = {}


_check_decoder = msgspec.json.Decoder(_CheckedLine)


def checked_line(record: RolloutRecord) -> bytes:
    """Return the line of a record as `encode_record` does, and check that it can be read back."""
    try:
        line = encode_record(record)
        _check_decoder.decode(line)
        for rendering in record.renderings.values():
            rendering.check()  # again: the environment may have changed its rows
        return line
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"the rollout's record cannot be written: {error}. Check the messages, rewards of turns and renderings that the "
            "environment makes: they have to be plain JSON values of the documented types"
        ) from error


def decode_record(line: bytes) -> RolloutRecord:
    """Return the record of a line."""
    stored = _decoded(_decoder, line)
    _check_version(stored.record.schema_version)
    return msgspec.structs.replace(
        stored.record,
        steps=_restore(stored.steps),
        model_roles={role: _restore(steps) for role, steps in stored.model_roles.items()},
        prompt=[Message(m) for m in stored.record.prompt],
        completion=[Message(m) for m in stored.record.completion],
    )


def decode_outcome(line: bytes) -> Outcome:
    """Return the outcome of a line, several times faster than the whole record."""
    return _with_turns(_decoded(_outcome_decoder, line))


def decode_listing(line: bytes) -> RolloutListing:
    """Return the rollout of a line as shown in lists, about as fast as `decode_outcome`."""
    try:
        listed = _with_turns(_decoded(_listed_decoder, line))
    except RunError:  # a later version may have other fields: then "upgrade rove" is the better message
        _check_version(_decoded(_version_decoder, line).record.schema_version)
        raise
    _check_version(listed.schema_version)
    return listed


def _check_version(version: int) -> None:
    if version > SCHEMA_VERSION:
        raise RunError(
            f"this rollout has schema {version}; this version of rove reads up to {SCHEMA_VERSION}. Upgrade rove"
        )


def _with_turns(stored: JsonValue) -> JsonValue:
    """Return the stored outcome with the times, retries and usage of its steps."""
    return msgspec.structs.replace(
        stored.record,
        turn_seconds=[step.seconds for step in stored.steps],
        retries=sum(len(step.attempts) for step in stored.steps),
        model_roles={role: [step.usage for step in steps] for role, steps in stored.model_roles.items()},
    )


def decode_place(line: bytes) -> Place:
    """Return the identity of the rollout in a line; this is the fastest decoder."""
    return _decoded(_place_decoder, line).record


def _decoded(decoder: msgspec.json.Decoder[_StoredT], line: bytes) -> _StoredT:
    check_line(line)
    try:
        return decoder.decode(line)
    except UNREADABLE as error:
        raise RunError(f"not a rollout record: {error}; the line starts {line[:80]!r}") from error
