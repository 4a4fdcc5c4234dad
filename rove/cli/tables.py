"""Tables and texts for the terminal, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rove.core.messages import text_of
from rove.core.records import RolloutRecord
from rove.statistics import Comparison, Difference, Mover
from rove.viewer.format import caveats, interval, number, percent, seconds, signed, sparkline
from rove.viewer.html import cut

LINE = 100
"""Columns of the lines below a table."""


def summary_table(summary: Mapping[str, Any], title: str) -> Table:
    """An evaluation's summary: reward, chances to pass, reward functions and metrics with their intervals.

    The chances are shown where they say more than the reward: of groups of two and more, some of which pass.
    """
    rows: list[tuple[str, Mapping[str, Any], str]] = [("reward", summary["reward"], "")]
    rows += [(name, seen, "") for name, seen in _passes(summary)]
    for name, seen in sorted(summary["functions"].items(), key=lambda item: -abs(item[1]["weight"])):
        rows.append((name, seen, f"{seen['weight']:g}" if seen["weight"] else "metric"))
    rows += [(f"reward in {name}", seen, "") for name, seen in summary.get("environments", {}).items()]
    noted = caveats(seen for _, seen, _ in rows)
    table = Table(title=title, title_justify="left", width=72, caption=escape(noted) or None, caption_justify="left")
    table.add_column("", style="bold")
    table.add_column("mean", justify="right")
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("weight", justify="right")
    for name, seen, weight in rows:
        table.add_row(name, number(seen["mean"]), escape(interval(seen)), weight)
    return table


def _passes(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    """The chance of one rollout to pass, and of one and of all of a whole group."""
    any_of, all_of = summary.get("pass@k", {}), summary.get("pass^k", {})
    largest = max(map(int, any_of), default=0)
    if largest < 2 or not 0.0 < (any_of["1"]["mean"] or 0.0) < 1.0:
        return []
    threshold = f"reward ≥ {summary['pass_threshold']:g}"
    whole = str(largest)
    return [
        (f"pass@1 ({threshold})", any_of["1"]),
        (f"pass@{whole} (one of {whole})", any_of[whole]),
        (f"pass^{whole} (all of {whole})", all_of[whole]),
    ]


def counts_line(summary: Mapping[str, Any]) -> str:
    """How many rollouts, how many failed and why, how many were cut off, how they ended; then what a rollout takes.

    Lines of at most 100 columns, where a single part is not longer than that.
    """
    parts = [f"{summary['scored']} of {summary['rollouts']} rollouts scored"]
    if summary["failed"]:
        reasons = ", ".join(f"{count} × {name}" for name, count in sorted(summary["errors"].items()))
        parts.append(f"[red]{summary['failed']} failed ({reasons})[/red]{_of_all(summary, 'error_share')}")
    if summary.get("not_run", 0) != 0:
        parts.append(f"[yellow]{summary['not_run'] or 'the rest'} not run: the budget is spent[/yellow]")
    if summary["truncated"]:
        parts.append(f"{summary['truncated']} truncated{_of_all(summary, 'truncation_share')}")
    if summary.get("retries"):
        parts.append(f"{summary['retries']} requests tried again")
    if summary["stops"]:
        parts.append("ended by " + ", ".join(f"{name} ({count})" for name, count in summary["stops"].items()))
    lines = [*_packed(parts), *_packed(_spent(summary))]
    if summary.get("too_few"):
        lines.append(f"[dim]{summary['too_few']}[/dim]")
    return "\n".join(lines)


def _of_all(summary: Mapping[str, Any], name: str) -> str:
    """A share, of enough rollouts for it to say more than the count."""
    share = summary.get(name)
    return f", {percent(share)} %" if share is not None and summary["rollouts"] >= 20 else ""


def _spent(summary: Mapping[str, Any]) -> list[str]:
    """Tokens, seconds and money; nothing where there is none, as with scripted policies."""
    parts: list[str] = []
    tokens = summary.get("tokens_per_rollout", {})
    if tokens.get("completion"):
        parts.append(f"tokens per rollout: {tokens['prompt']:,.0f} prompt, {tokens['completion']:,.0f} completion")
    for name, words in (("answer", "an answer"), ("rollout", "a rollout")):
        seen = summary.get("latency", {}).get(name, {})
        if (seen.get("p50") or 0.0) >= 0.001:
            parts.append(f"{words}: {seconds(seen['p50'])} (p90 {seconds(seen['p90'])}, p99 {seconds(seen['p99'])})")
    for role, used in summary.get("model_roles", {}).items():
        tokens = f"{used['prompt_tokens']:,} prompt, {used['completion_tokens']:,} completion tokens"
        cost = f", cost {used['cost']:.4g}" if "cost" in used else ""
        parts.append(f"{role}: {used['calls']:,} calls, {tokens}{cost}")
    if "cost" in summary:
        parts.append(f"cost: {summary['cost']['total']:.4g}, {summary['cost']['per_rollout'] or 0.0:.2g} per rollout")
    return parts


def _packed(parts: Sequence[str]) -> list[str]:
    """Parts with "; " between them, on as few lines as hold them."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}; {part}" if lines else part
        if lines and Text.from_markup(longer).cell_len <= LINE:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def comparison_table(comparison: Comparison) -> Table:
    """Two runs side by side: every value both have, its difference, and which way it went where that can be told."""
    examples = "the examples of both" if comparison.paired else "different examples"
    title = f"means over {examples}; higher or lower where that can be told"
    values = (comparison.main, *comparison.others)
    noted = caveats({"caveat": one.caveat} for one in values)
    table = Table(title=title, title_justify="left", width=98, caption=escape(noted) or None, caption_justify="left")
    table.add_column("", style="bold")
    for name in comparison.names:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in values:
        table.add_row(*map(escape, comparison_row(one)))
    return table


def comparison_row(one: Difference) -> tuple[str, str, str, str, str, str]:
    """Name, both means, difference, interval and direction ("higher", "lower" or "") of a value of two runs."""
    direction = {1: "higher", 0: "", -1: "lower"}[one.direction]
    reach = interval({"low": one.low, "high": one.high, "caveat": one.caveat})
    return one.name, number(one.a), number(one.b), signed(one.difference), reach, direction


def movers_table(comparison: Comparison) -> Table:
    """The examples that moved most, upwards and downwards, with their position in the dataset."""
    table = Table(title=f"the examples whose {comparison.main.name} moved most", title_justify="left", width=98)
    table.add_column("example_id", justify="right", no_wrap=True)
    for name in comparison.names:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("example_key", no_wrap=True)
    for group in (comparison.up, comparison.down):
        for mover in group:
            table.add_row(*_mover(mover))
        table.add_section()
    return table


def _mover(mover: Mover) -> tuple[str, ...]:
    change = signed(mover.b - mover.a)
    return str(mover.example_id), number(mover.a), number(mover.b), change, mover.example_key


def curves_table(metrics: Sequence[Mapping[str, float]], names: Sequence[str], title: str) -> Table:
    """First value, last value and curve of each metric over the steps."""
    table = Table(title=title, title_justify="left", width=96)
    table.add_column("", style="bold")
    table.add_column("first", justify="right")
    table.add_column("last", justify="right")
    table.add_column(f"over {len(metrics)} steps")
    for name in names:
        values = [m[name] for m in metrics if name in m]
        if values:
            table.add_row(name, number(values[0]), number(values[-1]), sparkline(values))
    return table


MESSAGE_LIMIT = 2_000
"""Most characters shown of one message."""


def rollout_text(record: RolloutRecord, title: str = "") -> str:
    """Who said what, and what it scored or why it failed."""
    facts = [title] if title else []
    facts.append(f"example {record.example_id}, rollout {record.rollout_index}")
    if record.scores is not None:
        parts = [f"{name} {value:.3g}" for name, value in {**record.scores.rewards, **record.scores.metrics}.items()]
        facts.append(
            f"reward {record.scores.reward:.3g} ({', '.join(parts)})" if parts else f"{record.scores.reward:.3g}"
        )
    if record.error is not None:
        facts.append(f"failed in {record.error.phase}: {record.error.type}: {record.error.message}")
    facts.append(f"ended by {record.stop_condition}" + (", truncated" if record.is_truncated else ""))
    lines = [f"  {m['role']}: {message_text(m)}" for m in [*record.prompt, *record.completion]]
    return "\n".join([" · ".join(facts), *lines])


def message_text(message: Mapping[str, Any]) -> str:
    """A message's text, and the calls in it."""
    calls = message.get("tool_calls")
    told = [_called(call) for call in calls] if isinstance(calls, list) else []
    return " ".join([cut(text_of(message), MESSAGE_LIMIT), *told])


def _called(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):  # models, and servers, write anything
        return f"→ {cut(str(call), MESSAGE_LIMIT)}"
    return f"→ {function.get('name')}({cut(str(function.get('arguments')), MESSAGE_LIMIT)})"
