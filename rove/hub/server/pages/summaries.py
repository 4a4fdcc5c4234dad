"""What was pushed with a run, read without trust: whoever may upload can push any JSON as results.

What is not as `rove push` writes it (see `rove.hub.client.run_results`) is left out.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from rove.core.records import RolloutRecord, Scores
from rove.hub.package.manifest import Whole

Value = Annotated[float, Meta(ge=-1e15, le=1e15)]


class Estimate(Struct, frozen=True):
    """A mean with its 95 % interval; None where there is none."""

    mean: Value | None = None
    half_width: Value | None = None
    """In summaries of older versions, instead of `low` and `high`."""
    low: Value | None = None
    high: Value | None = None
    caveat: str | None = None
    """Why the interval may not hold."""
    weight: Value | None = None
    """Of a reward function; 0 = a metric."""

    @property
    def limits(self) -> tuple[float, float] | None:
        """The interval; None where there is none."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        if self.mean is None or self.half_width is None:
            return None
        return self.mean - self.half_width, self.mean + self.half_width


class Summary(Struct, frozen=True):
    """An evaluation's summary, as far as pages show it."""

    rollouts: Whole | None = None
    scored: Whole | None = None
    failed: Whole = 0
    truncated: Whole = 0
    examples: Whole | None = None
    reward: Estimate = Estimate()
    functions: dict[str, Estimate] = {}
    any_of: dict[str, Estimate] = field(name="pass@k", default_factory=dict)
    all_of: dict[str, Estimate] = field(name="pass^k", default_factory=dict)
    pass_threshold: Value | None = None
    stops: dict[str, Whole] = {}
    errors: dict[str, Whole] = {}
    prompt_tokens: Whole | None = None
    completion_tokens: Whole | None = None


class _Message(Struct):
    role: str
    content: str | list[str | dict[str, Any]] | None = None


class _Example(Struct):
    """What is pushed of a rollout."""

    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]
    answer: str = ""
    info: dict[str, Any] = {}
    scores: Scores | None = None
    stop_condition: str | None = None
    is_truncated: bool = False


def read_summary(told: Any) -> Summary:
    """A summary; an empty one where it is none."""
    try:
        return msgspec.convert(told, Summary)
    except (msgspec.ValidationError, RecursionError):
        return Summary()


def read_example(told: Any) -> RolloutRecord | None:
    """A rollout, as far as it was pushed; None where it is none."""
    try:
        example = msgspec.convert(told, _Example)
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
