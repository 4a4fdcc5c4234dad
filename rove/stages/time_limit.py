"""Make the sizes of a recipe smaller until its estimated time fits a limit, as `rove train --minutes` asks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rove.core.errors import ConfigError
from rove.doctor.estimate import OVERHEAD, Estimate
from rove.stages.choice import SFT_WARMUP, warmup_of
from rove.stages.examination import GROUP_SIZE
from rove.stages.recipe import Section

TABLE_SHARE = 0.25
"""Maximum share of the time for the results table."""
SFT_SHARE = 0.4
"""Maximum share of the time for the teacher's rollouts and SFT."""
MIN_EXAMPLES = 50
"""Minimum number of examples of an evaluation: with fewer, intervals are too wide to show a difference."""
GOOD_STEPS = 20
"""Number of RL steps below which the batch becomes smaller."""
MIN_STEPS = 5
"""Minimum number of steps of SFT and of RL."""
MIN_GROUPS = 4
"""Minimum number of groups in an RL step."""


def fit_to_time(sections: Sequence[Section], estimate: Estimate, minutes: float) -> tuple[list[Section], Estimate]:
    """Return a recipe whose estimated time is at most `minutes`, and its estimate.

    Evaluations get fewer examples, SFT fewer examples or epochs, and RL fewer steps, in that order; with few steps, also fewer
    groups per step. SFT and RL get time limits, because steps can take longer than the estimate. The remaining settings stay.

    Raises:
        ConfigError: Even the smallest recipe takes longer.
    """
    fitted, shorter = copy.deepcopy(list(sections)), estimate
    if estimate.most > 60 * minutes:
        fitted, shorter = _shortened(sections, estimate, 60 * minutes)
    if shorter.rl_steps < MIN_STEPS:
        least = _least_minutes(sections, estimate, minutes)
        raise ConfigError(
            f"minutes is {minutes:g}; expected at least {least}: the smallest recipe takes that long with this model on "
            "this machine at its present load"
        )
    _limit_stages(fitted, shorter, minutes)
    return fitted, shorter


def _limit_stages(sections: Sequence[Section], estimate: Estimate, minutes: float) -> None:
    """Divide the time that the data and the table leave between SFT and RL, in proportion to their estimated times."""
    values: dict[str, Any] = {section.name: section.values for section in sections}
    sft_seconds = estimate.sft_steps * estimate.sft_step
    rl_seconds = estimate.initial + estimate.rl_steps * estimate.rl_step
    factor = (60 * minutes - estimate.data - estimate.table) / (sft_seconds + rl_seconds)
    if "sft" in values:
        values["sft"]["max_minutes"] = _rounded(factor * sft_seconds / 60)
    [rl] = values["rl"]
    rl["max_minutes"] = _rounded(factor * rl_seconds / 60)


def _rounded(minutes: float) -> float:
    return max(0.1, round(minutes, 1))


def _least_minutes(sections: Sequence[Section], estimate: Estimate, minutes: float) -> int:
    """Return the smallest whole number of minutes, above `minutes`, for which there is a recipe."""
    whole = math.ceil(estimate.most / 60)
    # Not the time of the smallest recipe: with more time, the evaluations and SFT take their shares of it, too.
    for candidate in range(math.floor(minutes) + 1, whole):
        _, shorter = _shortened(sections, estimate, 60 * candidate)
        if shorter.rl_steps >= MIN_STEPS:
            return candidate
    return whole


def _shortened(sections: Sequence[Section], estimate: Estimate, seconds: float) -> tuple[list[Section], Estimate]:
    """Return a recipe for the time, and its estimate; RL may have fewer than `MIN_STEPS` steps."""
    fitted = copy.deepcopy(list(sections))
    values: dict[str, Any] = {section.name: section.values for section in fitted}
    [rl] = values["rl"]
    estimate = _with_smaller_evaluations(values, rl, estimate, seconds)
    if estimate.sft_steps:
        estimate = _with_shorter_sft(values, estimate, SFT_SHARE * seconds)
        warmup = warmup_of(estimate.sft_steps)
        if warmup < SFT_WARMUP:
            values["sft"]["warmup_steps"] = warmup
    remaining = seconds - (estimate.most - estimate.rl_steps * estimate.rl_step)
    return fitted, _with_shorter_rl(rl, estimate, remaining)


def _with_smaller_evaluations(
    values: Mapping[str, Any], rl: dict[str, Any], estimate: Estimate, seconds: float
) -> Estimate:
    """Reduce the number of examples in the results table, and that of the evaluations during training by the same factor."""
    share = min(1.0, TABLE_SHARE * seconds / estimate.table)
    table = values["evaluation"]
    examples = _reduced(table["num_examples"], share)
    changes = {"table": estimate.table * examples / table["num_examples"]}
    table["num_examples"] = examples
    for stage, step in ((values.get("sft"), "sft_step"), (rl, "rl_step")):
        if stage is None:
            continue
        [evaluation] = stage["evaluation"]
        examples = _reduced(evaluation["num_examples"], share)
        saved = (evaluation["num_examples"] - examples) * evaluation["rollouts_per_example"] * estimate.rollout
        evaluation["num_examples"] = examples
        changes[step] = getattr(estimate, step) - OVERHEAD * saved / evaluation["every"]
        if stage is rl:
            changes["initial"] = max(0.0, estimate.initial - saved)
    return msgspec.structs.replace(estimate, **changes)


def _reduced(count: int, share: float) -> int:
    return max(min(count, MIN_EXAMPLES), int(count * share))


def _with_shorter_sft(values: Mapping[str, Any], estimate: Estimate, seconds: float) -> Estimate:
    """Reduce the epochs of SFT, or the teacher's rollouts if less than an epoch fits."""
    data, sft = values["data"], values["sft"]
    needed = estimate.data + estimate.sft_steps * estimate.sft_step
    if needed <= seconds:
        return estimate
    epoch_steps = estimate.sft_steps / sft["epochs"]
    share = seconds / (estimate.data + epoch_steps * estimate.sft_step)
    if share < 1.0:  # Less than an epoch fits: fewer rollouts, but enough for the fewest steps.
        whole = data["num_examples"] * data["rollouts_per_example"]
        rollouts = min(1.0, max(share, MIN_STEPS / epoch_steps)) * whole
        # Fewer rollouts per example first: a model that sees few of the examples memorizes them.
        data["rollouts_per_example"] = max(1, int(rollouts / data["num_examples"]))
        data["num_examples"] = max(1, min(data["num_examples"], int(rollouts / data["rollouts_per_example"])))
        used_share = data["num_examples"] * data["rollouts_per_example"] / whole
        estimate = msgspec.structs.replace(estimate, data=estimate.data * used_share)
        epoch_steps *= used_share
    fitting_steps = max(MIN_STEPS, int((seconds - estimate.data) / estimate.sft_step))
    # The last epoch may be longer than the time, which then ends SFT.
    sft["epochs"] = min(sft["epochs"], max(1, math.ceil(fitting_steps / epoch_steps)))
    return msgspec.structs.replace(estimate, sft_steps=max(1, min(fitting_steps, round(epoch_steps * sft["epochs"]))))


def _with_shorter_rl(rl: dict[str, Any], estimate: Estimate, seconds: float) -> Estimate:
    """Reduce the steps of RL; if few steps are left, also the groups of a step."""
    steps = int(max(0.0, seconds) / estimate.rl_step)
    step_seconds = estimate.rl_step
    if steps < GOOD_STEPS:
        [evaluation] = rl["evaluation"]
        rollouts = evaluation["num_examples"] * evaluation["rollouts_per_example"]
        evaluating = OVERHEAD * rollouts * estimate.rollout / evaluation["every"]
        groups = rl["batch_size"] // GROUP_SIZE
        of_group = max(1e-9, (step_seconds - evaluating) / groups)
        fitting = int((seconds / GOOD_STEPS - evaluating) / of_group)
        fewer = min(groups, max(MIN_GROUPS, fitting))
        rl["batch_size"] = fewer * GROUP_SIZE
        step_seconds = evaluating + fewer * of_group
        steps = int(max(0.0, seconds) / step_seconds)
    rl["steps"] = min(rl["steps"], steps)
    return msgspec.structs.replace(estimate, rl_step=step_seconds, rl_steps=rl["steps"])
