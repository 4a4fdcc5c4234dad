"""Results of evaluations that users push to a hub: checked when they arrive, and read for the pages."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from rove.core.errors import RejectedError
from rove.core.records import RolloutRecord, Scores
from rove.hub.package.manifest import Count, find_markup

MAX_RUN_BYTES = 4 << 20
MAX_MODEL_CHARS = 200
MAX_SUMMARY_BYTES = 64 << 10
"""Maximum size of a summary, which is part of the list of runs."""
MAX_RUNS_PER_VERSION = 1000


class Result(NamedTuple):
    """Validated results of one run."""

    id: str
    """Hash of the content, so that repeated pushes are stored once."""
    model: str
    summary: str
    """Summary as JSON."""
    sha256: str
    content: bytes


class _PushedRun(msgspec.Struct):
    model: str
    summary: dict[str, Any]


def read_run(content: bytes) -> Result:
    """Validate pushed results: a JSON object with `model` (a name), `summary` (an object) and other fields.

    Raises:
        RejectedError: The content is malformed or too large.
    """
    try:
        pushed = msgspec.json.decode(content, type=_PushedRun)
        written = msgspec.json.encode(msgspec.json.decode(content), order="sorted")
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise RejectedError(400, f"the results of a run are malformed: {error}") from error
    if not 0 < len(pushed.model) <= MAX_MODEL_CHARS or not pushed.model.isprintable() or find_markup(pushed.model):
        raise RejectedError(
            400, f"the model's name must be one line of plain text of at most {MAX_MODEL_CHARS} characters"
        )
    summary = msgspec.json.encode(pushed.summary, order="sorted")
    if len(summary) > MAX_SUMMARY_BYTES:
        raise RejectedError(413, f"the summary has {len(summary):,} bytes; expected at most {MAX_SUMMARY_BYTES:,}")
    sha256 = hashlib.sha256(written).hexdigest()
    return Result(sha256[:16], pushed.model, summary.decode(), sha256, written)


Value = Annotated[float, Meta(ge=-1e15, le=1e15)]


class Estimate(Struct, frozen=True):
    """A mean with its 95 % interval; missing values are None."""

    mean: Value | None = None
    half_width: Value | None = None
    """Half width of the interval, in older summaries without `low` and `high`."""
    low: Value | None = None
    high: Value | None = None
    caveat: str | None = None
    """Reason why the interval may be inaccurate."""
    weight: Value | None = None
    """Weight of a reward function; 0 for a metric."""

    @property
    def limits(self) -> tuple[float, float] | None:
        """The interval, or None."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        if self.mean is None or self.half_width is None:
            return None
        return self.mean - self.half_width, self.mean + self.half_width


class Summary(Struct, frozen=True):
    """The fields of an evaluation's summary that pages show."""

    rollouts: Count | None = None
    scored: Count | None = None
    failed: Count = 0
    truncated: Count = 0
    examples: Count | None = None
    reward: Estimate = Estimate()
    functions: dict[str, Estimate] = {}
    any_of: dict[str, Estimate] = field(name="pass@k", default_factory=dict)
    all_of: dict[str, Estimate] = field(name="pass^k", default_factory=dict)
    pass_threshold: Value | None = None
    stops: dict[str, Count] = {}
    errors: dict[str, Count] = {}
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class _Message(Struct):
    role: str
    content: str | list[str | dict[str, Any]] | None = None


class _Example(Struct):
    """The fields of a pushed rollout."""

    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]
    answer: str = ""
    info: dict[str, Any] = {}
    scores: Scores | None = None
    stop_condition: str | None = None
    is_truncated: bool = False


def read_summary(value: Any) -> Summary:
    """Parse a summary; return an empty one if it is malformed."""
    try:
        return msgspec.convert(value, Summary)
    except (msgspec.ValidationError, RecursionError):
        return Summary()


def read_example(value: Any) -> RolloutRecord | None:
    """Parse a pushed rollout; return None if it is malformed."""
    try:
        example = msgspec.convert(value, _Example)
        msgspec.convert([*example.prompt, *example.completion], list[_Message])
    except (msgspec.ValidationError, RecursionError):
        return None
    return RolloutRecord(
        example_key="",
        example_id=0,
        rollout_index=0,
        seed=0,
        steps=[],
        error=None,
        **{name: getattr(example, name) for name in example.__struct_fields__},
    )
