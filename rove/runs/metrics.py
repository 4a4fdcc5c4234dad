"""The charts of a training run: the metrics that share a chart, and the order and names of their curves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rove.core.plain import JsonMapping, JsonObject, JsonValue

DERIVED = "derived/"
"""Prefix of metrics that `with_derived` adds."""
ZERO_ADVANTAGE = f"{DERIVED}zero_advantage"
THROUGHPUT = f"{DERIVED}throughput"
SECONDS = f"{DERIVED}seconds"
HELD_OUT_REWARD = re.compile("eval/(.+)/reward/mean")
"""Name of the mean reward of a held-out evaluation; the group is the name of the evaluation."""


class Panel(NamedTuple):
    """A chart.

    Args:
        metrics: Regular expression for the chart's metrics. Its first group is the name of a curve; without a group, the title
            is the name.
        band: "steps" for a band of the rewards of rollouts, "interval" for the interval of an evaluation.
    """

    group: str
    title: str
    metrics: str
    most: float = math.inf
    least: float = -1.0
    band: str = ""
    in_table: bool = False


PANELS = (
    Panel("Reward", "reward", "reward/mean", band="steps", in_table=True),
    Panel("Reward", "loss", "loss|validation_loss", in_table=True),
    Panel("Reward", "reward functions", "reward/(?!mean$)(.+)", in_table=True),
    Panel("Reward", "zero-advantage groups", ZERO_ADVANTAGE, in_table=True),
    Panel("Reward", "metrics", "metrics/(.+)", most=1.0),
    Panel("Reward", "metrics above 1", "metrics/(.+)", least=1.0),
    Panel("Evaluations", "held-out reward", HELD_OUT_REWARD.pattern, band="interval", in_table=True),
    Panel("Policy", "entropy (nats per token)", "entropy/all/mean", in_table=True),
    Panel("Policy", "KL between sampler and trainer", "(mismatch_kl)/all/mean|(kl)/mean|(reference_kl)/mean"),
    Panel("Policy", "importance ratio", "ratio/mean", in_table=True),
    Panel("Policy", "largest importance ratio", "ratio/max", in_table=True),
    Panel("Policy", "gradient norm", "optim/grad_norm", in_table=True),
    Panel("Policy", "learning rate", "optim/lr"),
    Panel("Policy", "parity check with vLLM (nats)", "sampler/probe_difference"),
    Panel("Lengths", "length (tokens per rollout)", "length/mean", in_table=True),
    Panel("Lengths", "held-out length (tokens per rollout)", "eval/(.+)/length/mean", in_table=True),
    Panel("Lengths", "held-out truncated rollouts (share)", "eval/(.+)/truncated", in_table=True),
    Panel("Lengths", "truncated and failed rollouts per step", "rollouts/(truncated)|rollouts/(failed)"),
    Panel("Speed", "throughput (trained tokens per second)", THROUGHPUT),
    Panel("Speed", "seconds per step", "time/(.+)"),
    Panel("Speed", "staleness (steps)", "off_policy/(.+)"),
    Panel("Speed", "idle (share of time)", "idle/(.+)"),
    Panel("Speed", "groups in queues", "queue/(.+)"),
)


def panels(rows: Sequence[Mapping[str, object]]) -> list[JsonObject]:
    """Return the charts for which some rows have metrics.

    Each chart has `group`, `title`, `band`, `in_table`, `named` (whether its curves have their own names) and `curves`, which
    maps metrics to their names.
    """
    largest: dict[str, float] = {}
    for row in rows:
        for name, value in with_derived(row).items():
            if _is_number(value):
                largest[name] = max(largest.get(name, 0.0), abs(value))
    charts: list[dict[str, object]] = []
    for panel in PANELS:
        matches: dict[str, re.Match[str]] = {}
        for name in sorted(largest):
            match = re.fullmatch(panel.metrics, name)
            # The largest value decides which of two charts with the same metrics shows a curve: those up to 1, or those above.
            if match and panel.least < largest[name] <= panel.most:
                matches[name] = match
        curves = {name: _label(panel, match, len(matches)) for name, match in matches.items()}
        if curves:
            named = re.compile(panel.metrics).groups > 0
            fields = {name: getattr(panel, name) for name in ("group", "title", "band", "in_table")}
            charts.append({**fields, "named": named, "curves": curves})
    return charts


def _label(panel: Panel, match: re.Match[str], count: int) -> str:
    groups = [group for group in match.groups() if group]
    if groups:
        # Reward functions and held-out environments have names of their authors, which stay as they are.
        return groups[0] if panel.group in ("Reward", "Evaluations") else groups[0].replace("_", " ")
    return match[0].replace("_", " ") if count > 1 else panel.title


def with_derived(row: JsonMapping) -> JsonObject:
    """Return a row of metrics with the share of zero-advantage groups, the seconds of the step, and trained tokens per second."""
    seconds = seconds_of_sampling_and_training(row)
    derived = {
        ZERO_ADVANTAGE: zero_advantage_share(row),
        SECONDS: seconds or None,
        THROUGHPUT: _ratio(row.get("tokens"), seconds),
    }
    return {**row, **{name: value for name, value in derived.items() if value is not None}}


def seconds_of_sampling_and_training(row: JsonMapping) -> float:
    """Return the seconds of a step without its evaluations. `time/step` counts overlapping sampling and training once."""
    names = ("time/step",) if "time/step" in row else ("time/sampling", "time/training")
    return sum(float(row[name]) for name in names if _is_number(row.get(name)))


def interval_of(row: Mapping[str, float | None], metric: str) -> tuple[float, float]:
    """Return the 95% interval of a mean such as "eval/NAME/reward/mean"; without a measured interval, the mean twice.

    An unknown number, which metrics.jsonl has as null, is nan.
    """
    prefix = metric.removesuffix("mean")
    limits: list[float] = []
    for name in ("interval_low", "interval_high"):
        limit = row.get(f"{prefix}{name}")
        if limit is None:
            limit = row[metric]
        limits.append(math.nan if limit is None else limit)
    return limits[0], limits[1]


def zero_advantage_share(*rows: JsonMapping) -> float | None:
    """Return the share of zero-advantage groups in some steps; None if they have no groups."""
    num_groups = num_zero_advantage = 0
    for row in rows:
        if _is_number(row.get("groups/all")) and _is_number(row.get("groups/zero_spread")):
            num_groups += row["groups/all"]
            num_zero_advantage += row["groups/zero_spread"]
    return num_zero_advantage / num_groups if num_groups else None


def _ratio(part: JsonValue, whole: JsonValue) -> float | None:
    if not _is_number(part) or not _is_number(whole) or not whole:
        return None
    return float(part) / float(whole)


def _is_number(value: object) -> bool:
    """Return whether a value can be drawn; NaN and infinity cannot, and a damaged file may have huge integers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
