"""How well a trained model does, compared with the scripted policies of an environment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rove.core.errors import RunError
from rove.core.messages import text_of
from rove.core.protocols import Client
from rove.core.records import ErrorInfo, Outcome, RolloutRecord
from rove.envs.environment import Environment
from rove.rendering.renderer import Renderer
from rove.rollouts.evaluate import evaluate
from rove.train.callbacks import OnProgress, ignore

FORMAT_LEARNED = 0.9
"""Mean of the format functions from which on a model has learned the format."""
LEAST_MARGIN = 0.02
"""Task scores that are closer than this count as equal."""
MOST_TOKENS = 512
"""Most tokens in one turn of a measured model."""
READ_RECORDS = 200
"""Rollouts whose turns say how long a turn of the model may be."""


class PolicyResult(msgspec.Struct, frozen=True):
    """What one model or policy reached."""

    name: str
    reward: float
    low: float
    """Lower limit of the 95 % interval of the reward; nan where there is no interval."""
    high: float
    """Upper limit."""
    format: float | None
    """Mean of the functions whose name contains "format"; None if there are none."""
    task: float
    """Weighted sum of the means of the other reward functions."""
    task_margin: float
    """About half the 95 % interval of `task`."""
    task_names: list[str]
    """Names of those functions."""
    scored: int
    """Rollouts."""


async def measure_policy(
    env: Environment,
    client: Client,
    name: str,
    rollouts: int,
    *,
    max_tokens: int = MOST_TOKENS,
    seed: int = 0,
    on_progress: OnProgress = ignore,
) -> PolicyResult:
    """Roll a client out in an environment, greedily.

    Args:
        env: the environment; it is torn down afterwards.
        client: the model or policy.
        name: name of the row.
        rollouts: how many, about: one per example, or more of each where there are fewer examples.
        max_tokens: most tokens in one turn.
        seed: random seed.
        on_progress: called after every rollout.

    Raises:
        RunError: every rollout failed; with the first error.
    """
    count = env.count_examples(rollouts)
    each = max(1, rollouts // count) if count else 1
    total = (count or rollouts) * each
    errors: list[ErrorInfo] = []
    done = 0

    def see(record: RolloutRecord | Outcome) -> None:
        nonlocal done
        done += 1
        on_progress(f"rollouts of {name}", done, total)
        if record.error is not None:
            errors.append(record.error)

    sampling = {"temperature": 0.0, "max_tokens": max_tokens}
    summary = await evaluate(
        env,
        client,
        on_record=see,
        num_examples=rollouts,
        rollouts_per_example=each,
        sampling_args=sampling,
        seed=seed,
    )
    if not summary["scored"]:
        said = f"{errors[0].phase}: {errors[0].message}" if errors else "there are no examples"
        raise RunError(f"no rollout of {name} was scored; the first error: {said}")
    return row_of(name, summary)


def row_of(name: str, summary: dict[str, Any]) -> PolicyResult:
    """Return the row of a summary of `rove.evaluate`."""
    functions = summary["functions"]
    formats = [one["mean"] for key, one in functions.items() if "format" in key]
    tasks = {key: one for key, one in functions.items() if "format" not in key and one["weight"]}
    return PolicyResult(
        name,
        reward=summary["reward"]["mean"],
        low=summary["reward"]["low"],
        high=summary["reward"]["high"],
        format=math.fsum(formats) / len(formats) if formats else None,
        task=math.fsum(one["weight"] * one["mean"] for one in tasks.values()),
        task_margin=math.hypot(*(one["weight"] * _margin(one) for one in tasks.values())),
        task_names=[*tasks],
        scored=summary["scored"],
    )


def _margin(estimate: dict[str, Any]) -> float:
    """Return half the width of an interval; 0 where there is none."""
    half = (estimate["high"] - estimate["low"]) / 2
    return half if math.isfinite(half) else 0.0


def learned_only_format(model: PolicyResult, policies: Sequence[PolicyResult]) -> bool:
    """Return whether a model keeps the format, but is no better at the task than the weakest policy."""
    return model.format is not None and model.format >= FORMAT_LEARNED and is_weakest(model, policies)


def is_weakest(model: PolicyResult, policies: Sequence[PolicyResult]) -> bool:
    """Return whether a model is no better at the task than the weakest policy, where policies differ."""
    tasks = [policy.task for policy in policies]
    margin = max(LEAST_MARGIN, model.task_margin)
    return len(tasks) > 1 and max(tasks) > min(tasks) + margin and model.task <= min(tasks) + margin


def placement_text(model: PolicyResult, policies: Sequence[PolicyResult]) -> str:
    """Describe in a sentence or two where a model is among the policies."""
    if not policies:
        return f"reward {model.reward:.3f}; the environment has no scripted policies to compare with"
    if is_weakest(model, policies):
        weakest = min(policies, key=lambda policy: policy.task)
        said = (
            f"{' + '.join(model.task_names)} of {model.task:.3f} is no better than that of the weakest scripted policy, "
            f"{weakest.name} ({weakest.task:.3f})"
        )
        if learned_only_format(model, policies):
            return f"The model learned only the format: format {model.format:.2f}, but {said}."
        return f"The model learned little of the task: {said}."
    below = max((p for p in policies if p.reward <= model.reward), key=lambda p: p.reward, default=None)
    above = min((p for p in policies if p.reward > model.reward), key=lambda p: p.reward, default=None)
    if below is None:
        assert above is not None
        return f"Its reward of {model.reward:.3f} is below every scripted policy; the weakest is {_shown(above)}."
    if above is None:
        return (
            f"Its reward of {model.reward:.3f} is at least that of every scripted policy; the best is {_shown(below)}."
        )
    return f"Its reward of {model.reward:.3f} is between {_shown(below)} and {_shown(above)}."


def _shown(row: PolicyResult) -> str:
    return f"{row.name} ({row.reward:.3f})"


def turn_limit(renderer: Renderer, records: Iterable[RolloutRecord]) -> int:
    """Return the most tokens that a turn of a model may have that learned from these rollouts: twice the longest of theirs."""
    longest = 0
    for record, _ in zip(records, range(READ_RECORDS), strict=False):
        for message in record.completion:
            if message["role"] == "assistant":
                longest = max(longest, len(renderer.encode(text_of(message))))
    return min(MOST_TOKENS, 2 * longest + 16)
