"""Records of finished rollouts: frozen and versioned; `rove.runs.serialization` writes them to disk."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec

from rove.core.plain import Info, JsonObject, MessageDict, ToolDefinition
from rove.core.renderings import Rendering

SCHEMA_VERSION = 2
ROVE = Path(__file__).parents[1]
"""Folder of rove's own code."""
BUNDLED_ENVIRONMENTS = ROVE / "_environments"
"""Folder of the environments in an installed rove."""
PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")
"""Matches the path of a file of an installed package."""
STANDARD_LIBRARY = re.compile(r"^<|[/\\]lib[/\\]python3|[/\\]Python3\d*[/\\]Lib[/\\]")
"""Matches the path of a file of Python itself (also on Windows), or of code without a file, such as "<string>"."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts as reported by the client."""

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
    """The sampled ids, including the sampled end-of-turn token."""
    logprobs: list[float]
    """Log-probability of each sampled id under the sampling distribution (temperature applied)."""
    policy_version: int = 0
    """Version of the weights that sampled the ids; if the weights changed during the turn, the oldest version."""
    version_spans: list[tuple[int, int]] = []
    """If the weights changed during the turn: each version, oldest first, with the number of ids that it sampled."""

    @property
    def versions(self) -> list[tuple[int, int]]:
        """Each version of the weights, oldest first, with the number of ids that it sampled."""
        return self.version_spans or [(self.policy_version, len(self.completion_ids))]

    @property
    def ids(self) -> list[int]:
        """Prompt and completion together; the next turn of this branch starts with them."""
        return self.prompt_ids + self.completion_ids


class TrajectoryStep(msgspec.Struct, frozen=True):
    """One model turn: the prompt and the answer.

    Only the reward of a step is mutable (docs/decisions/turn_rewards.md); environments and reward functions can set it.
    In memory, every step has its complete prompt; on disk, a step has only the messages and tokens that it added
    (docs/decisions/disk_steps.md).

    Example:
        >>> state["trajectory"][-1]["reward"] = 0.5
    """

    prompt: list[MessageDict]
    completion: list[MessageDict]
    finish_reason: str = "stop"
    usage: Usage = Usage()
    seconds: float = 0.0
    """Wall time of the answer in seconds."""
    tokens: StepTokens | None = None
    attempts: list[str] = []
    """One line per failed attempt before this answer, oldest first."""
    reward: float | None = None
    """Reward of this turn, in addition to the rollout's reward; None if not set. RL uses this reward; evaluation does not."""
    tools: list[ToolDefinition] | None = None
    """Tools of this turn if they differ from the rollout's tools; [] = no tools."""

    def __getitem__(self, key: str) -> Any:  # steps of `verifiers` v0 are dicts
        return getattr(self, key)

    def __setitem__(self, key: str, value: float) -> None:
        """Set the reward.

        Raises:
            TypeError: the key is not "reward".
            ValueError: the reward is not a finite number.
        """
        if key != "reward":
            raise TypeError(f"{key!r} of a step cannot be changed; only its 'reward' can")
        if not math.isfinite(value):  # JSON has no NaN, and the record has to be readable
            raise ValueError(f"the reward of a step is {value}; expected a finite number")
        msgspec.structs.force_setattr(self, "reward", float(value))


PROMPT_TOO_LONG = "prompt_too_long"
"""Stop condition of a rollout whose next prompt does not fit the model's context."""
REWARD_ERRORS = "reward_errors"
"""Key of `Scores.extras`: reward function → the error that it raised, which counted as 0.0."""


class Scores(msgspec.Struct, frozen=True):
    """Scores of one rollout: `reward` = Σ weight × value over `rewards`.

    Example:
        >>> Scores(reward=0.5, rewards={"correct": 1.0}, weights={"correct": 0.5})
    """

    reward: float
    rewards: dict[str, float]
    """Raw value of every reward function."""
    weights: dict[str, float]
    metrics: dict[str, float] = {}
    """Values that do not count towards the reward."""
    extras: JsonObject = {}


class ErrorInfo(msgspec.Struct, frozen=True):
    """An exception as data: the phase of the rollout, the type, the message, and the failed attempts before the exception."""

    phase: str
    type: str
    message: str
    traceback: str = ""
    attempts: list[str] = []

    @property
    def source_line(self) -> str:
        """The innermost line of the user's code in the traceback, in brackets; "" if there is none.

        Lines of installed packages, such as an environment from the hub, count if there is no other line. Lines of rove and of
        Python never count: a user cannot fix them.
        """
        stripped_lines = [line.strip() for line in self.traceback.splitlines()]
        frames = [line for line in stripped_lines if line.startswith('File "')]
        outside = [frame for frame in frames if not _is_internal(frame.split('"')[1])]
        outside_packages = [frame for frame in outside if not PACKAGES.search(frame)]
        innermost = (outside_packages or outside)[-1:]
        return f" ({innermost[0]})" if innermost else ""


def _is_internal(file: str) -> bool:
    """Return whether a file belongs to rove or Python."""
    path = Path(file)
    if path.is_relative_to(ROVE):
        return not path.is_relative_to(BUNDLED_ENVIRONMENTS)
    return STANDARD_LIBRARY.search(file) is not None and PACKAGES.search(file) is None


class Timing(msgspec.Struct, frozen=True):
    """Wall time of a rollout's parts in seconds."""

    total: float = 0.0
    model: float = 0.0
    scoring: float = 0.0


class RolloutRecord(msgspec.Struct, frozen=True):
    """One finished rollout. Exactly one of `scores` and `error` is set."""

    example_key: str
    """Content hash of the example; the same row has the same key in every run."""
    example_id: int
    """The example's position in its dataset."""
    rollout_index: int
    """Position of the rollout in its group: 0 … rollouts_per_example − 1."""
    seed: int
    prompt: list[MessageDict]
    completion: list[MessageDict]
    answer: str
    info: Info
    steps: list[TrajectoryStep]
    stop_condition: str | None
    is_truncated: bool
    scores: Scores | None
    error: ErrorInfo | None
    usage: Usage = Usage()
    timing: Timing = Timing()
    temperature: float | None = None
    """Sampling temperature, if one was requested."""
    step: int | None = None
    """Training step that sampled the rollout; None outside RL."""
    tools: list[ToolDefinition] | None = None
    """Tools offered to the model, in the OpenAI wire form; None = none."""
    schema_version: int = SCHEMA_VERSION
    env_id: str = ""
    """Environment within an `EnvGroup`, "outer/inner" in nested groups; "" outside of groups."""
    model_roles: dict[str, list[TrajectoryStep]] = {}
    """Answers of other models (judges, opponents, simulated users) by role. They are not part of `usage`, and rove never trains
    on them."""
    is_text: bool = False
    """Whether prompt and completion are raw texts, which no chat template renders; each message is a part of the text."""
    renderings: dict[int, Rendering] = {}
    """Rendering of the state after a message, by its position in prompt + completion, for environments that render."""

    @property
    def reward(self) -> float | None:
        """The reward; None if the rollout failed."""
        return self.scores.reward if self.scores else None

    @property
    def outcome(self) -> Outcome:
        """The rollout without texts and tokens."""
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
            self.env_id,
            {role: [step.usage for step in steps] for role, steps in self.model_roles.items()},
        )


class Outcome(msgspec.Struct, frozen=True):
    """A `RolloutRecord` without texts and tokens, for statistics and resuming."""

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
    """Wall time of each model turn in seconds."""
    retries: int = 0
    """Number of failed attempts before the answers."""
    env_id: str = ""
    """See `RolloutRecord.env_id`."""
    model_roles: dict[str, list[Usage]] = {}
    """Token counts of each answer, by role."""

    @property
    def reward(self) -> float | None:
        """The reward; None if the rollout failed."""
        return self.scores.reward if self.scores else None
