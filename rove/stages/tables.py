"""Tables and texts for the terminal, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.table import Table
from rich.text import Text

from rove.core.messages import text_of
from rove.core.plain import JsonMapping, is_list, is_mapping
from rove.core.records import RolloutRecord
from rove.runs.metrics import DERIVED, panels, with_derived
from rove.statistics import Comparison
from rove.statistics.compare import name_width
from rove.statistics.format import cost_text, cut, folded, number, percent, signed, sparkline
from rove.utils.console import TextTable, styled
from rove.utils.units import human_seconds

MAX_COLUMNS = 100
"""Maximum width of the lines below a table."""


def counts_line(summary: JsonMapping, unit: str = "tokens") -> Text:
    """Return the counts of rollouts, failures, truncations and stop conditions, then the usage (in `unit`), latency and cost.

    Lines have at most 100 columns, unless a single part is longer.
    """
    parts = [styled(f"{summary['scored']} of {summary['rollouts']} rollouts scored")]
    if summary["failed"]:
        reasons = ", ".join(f"{count} × {name}" for name, count in sorted(summary["errors"].items()))
        parts.append(styled((f"{summary['failed']} failed ({reasons})", "red"), _of_all(summary, "error_share")))
    if summary.get("not_run", 0) != 0:
        parts.append(styled((f"{summary['not_run'] or 'the rest'} not run: the budget is used up", "yellow")))
    if summary["truncated"]:
        parts.append(styled(f"{summary['truncated']} truncated{_of_all(summary, 'truncation_share')}"))
    if summary.get("retries"):
        parts.append(styled(f"{summary['retries']} requests retried"))
    if summary["stops"]:
        stops = ", ".join(f"{name} ({count})" for name, count in summary["stops"].items())
        parts.append(styled(f"stop conditions: {stops}"))
    lines = [*_packed(parts), *_packed([styled(part) for part in _usage(summary, unit)])]
    if summary.get("too_few"):
        lines.append(styled((summary["too_few"], "dim")))
    return Text("\n").join(lines)


def _of_all(summary: JsonMapping, name: str) -> str:
    """Return a count with a percentage if there are enough rollouts for a meaningful percentage."""
    share = summary.get(name)
    return f", {percent(share)}%" if share is not None and summary["rollouts"] >= 20 else ""


def _usage(summary: JsonMapping, unit: str) -> list[str]:
    """Return tokens or words, latency and cost."""
    parts: list[str] = []
    tokens = summary.get("tokens_per_rollout", {})
    if tokens.get("completion"):
        parts.append(
            f"{unit} per rollout: {tokens['prompt']:,.0f} in prompts (all turns), {tokens['completion']:,.0f} in responses"
        )
    for name, label in (("answer", "response"), ("rollout", "rollout")):
        quantiles = summary.get("latency", {}).get(name, {})
        if (quantiles.get("p50") or 0.0) >= 0.001:
            p50, p90, p99 = (human_seconds(quantiles[quantile]) for quantile in ("p50", "p90", "p99"))
            parts.append(f"{label}: {p50} (p90 {p90}, p99 {p99})")
    for role, used in summary.get("model_roles", {}).items():
        role_tokens = f"{used['prompt_tokens']:,} prompt, {used['completion_tokens']:,} completion tokens"
        role_cost = f", cost {cost_text(used['cost'])}" if "cost" in used else ""
        parts.append(f"{role}: {used['calls']:,} calls, {role_tokens}{role_cost}")
    if "cost" in summary:
        cost = summary["cost"]
        parts.append(f"cost: {cost_text(cost['total'])}, {cost_text(cost['per_rollout'], 2)} per rollout")
    return parts


def _packed(parts: Sequence[Text]) -> list[Text]:
    """Join parts with "; " into as few lines as possible."""
    lines: list[Text] = []
    for part in parts:
        longer = Text("; ").join([lines[-1], part]) if lines else part
        if lines and longer.cell_len <= MAX_COLUMNS:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def movers_table(comparison: Comparison, questions: Mapping[str, str] = MappingProxyType({}), width: int = 98) -> Table:
    """Return a table of the examples that changed most, in both directions.

    Args:
        questions: The question of each example by the example's key; the table shows the key if there is no question.
    """
    width = min(98, width)
    table = Table(title=f"examples whose {comparison.main.name} changed most", title_justify="left", width=width)
    table.add_column("example_id", justify="right", no_wrap=True)
    for name in comparison.names:
        table.add_column(folded(name, name_width(width)), justify="right", no_wrap=True)
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("question", no_wrap=True, overflow="ellipsis", ratio=1)
    for group in (comparison.up, comparison.down):
        for mover in group:
            values = (number(mover.a), number(mover.b), signed(mover.b - mover.a))
            question = " ".join(questions.get(mover.example_key, mover.example_key).split())
            table.add_row(str(mover.example_id), *values, cut(question, MAX_COLUMNS))
        table.add_section()
    return table


def curves_table(metrics: Sequence[Mapping[str, float | None]], title: str) -> Table:
    """Return a table with the first value, last value and curve of the main metrics of a training run."""
    table = TextTable(title=title, title_justify="left", width=96)
    table.add_column("", style="bold")
    table.add_column("first", justify="right")
    table.add_column("last", justify="right")
    steps = metrics[-1]["step"] if metrics else 0
    table.add_column(f"over {steps:g} steps")
    rows = [with_derived(row) for row in metrics]
    for chart in panels(rows):
        if not chart["in_table"]:
            continue
        for metric in chart["curves"]:
            values = [row[metric] for row in rows if metric in row]
            name = chart["title"] if metric.startswith(DERIVED) else metric
            table.add_row(name, number(values[0]), number(values[-1]), sparkline(values))
    return table


MESSAGE_LIMIT = 2_000
"""Maximum number of characters shown of a message."""


def rollout_text(record: RolloutRecord, title: str = "") -> str:
    """Return a rollout as text: scores or error, then all messages."""
    facts = [title] if title else []
    facts.append(f"example {record.example_id}, rollout {record.rollout_index}")
    if record.scores is not None:
        scores = record.scores
        values = ", ".join(f"{name} {value:.3g}" for name, value in {**scores.rewards, **scores.metrics}.items())
        facts.append(f"reward {scores.reward:.3g} ({values})" if values else f"reward {scores.reward:.3g}")
    if record.error is not None:
        facts.append(f"failed in {record.error.phase}: {record.error.type}: {record.error.message}")
    facts.append(f"stop condition {record.stop_condition}" + (", truncated" if record.is_truncated else ""))
    lines = [f"  {m['role']}: {message_text(m)}" for m in [*record.prompt, *record.completion]]
    return "\n".join([" · ".join(facts), *lines])


def message_text(message: JsonMapping) -> str:
    """Return a message's text and tool calls as one text."""
    calls = message.get("tool_calls")
    rendered = [_call_text(call) for call in calls] if is_list(calls) else []
    return " ".join([cut(text_of(message), MESSAGE_LIMIT), *rendered])


def _call_text(call: Any) -> str:
    function = call.get("function") if is_mapping(call) else None
    if not is_mapping(function):  # models and servers may send anything
        return f"→ {cut(str(call), MESSAGE_LIMIT)}"
    return f"→ {function.get('name')}({cut(str(function.get('arguments')), MESSAGE_LIMIT)})"
