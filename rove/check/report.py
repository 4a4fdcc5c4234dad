"""Reports on many packages as JSON and as a Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, get_args

import msgspec

from rove.check.checker import Report, Status
from rove.check.rules import GENERATIONS
from rove.core.findings import Finding
from rove.utils.markdown import table_lines

HEAD = ("package", "written for", "verdict", "rollouts", "mean reward", "deviations", "notes")
STATUSES = get_args(Status)


def as_json(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the version of rove, whether all packages run, and every report with its verdict."""
    packages = [{"verdict": report.verdict, **msgspec.to_builtins(report)} for report in reports]
    return {"rove": version("rove"), "all_run": all(report.runs for report in reports), "packages": packages}


def as_markdown(reports: Sequence[Report]) -> str:
    """Return the Markdown page: one row per package, the deviations, and the number of packages that use each name."""
    counts = Counter(report.status for report in reports)
    summary = ", ".join(f"{status} ({counts[status]})" for status in STATUSES if counts[status])
    # The same deviation has one number in the rows of all packages; the table below the rows explains it once.
    numbers: dict[Finding, int] = {}
    for report in reports:
        for deviation in report.deviations:
            numbers.setdefault(deviation, len(numbers) + 1)
    packages = f"{len(reports)} package{'' if len(reports) == 1 else 's'}"
    lines = [
        "# Compatibility matrix",
        "",
        f"`rove check` (rove {version('rove')}) wrote this page. It checked {packages}, with these verdicts: {summary}.",
    ]
    lines += ["", *table_lines(HEAD, [_row(report, numbers) for report in reports])]
    generations = {report.generation for report in reports} & GENERATIONS.keys()
    if generations:
        lines += ["", 'In the column "written for":', ""]
        lines += [f"- {name}: {GENERATIONS[name]}" for name in sorted(generations)]
    if numbers:
        rows = [(str(number), deviation.text, deviation.remedy) for deviation, number in numbers.items()]
        lines += ["", "## Deviations", "", *table_lines(("#", "what", "here"), rows)]
    for api in ("verifiers", "rove"):
        lines += _names_section(api, reports)
    return "\n".join(lines) + "\n"


def _names_section(api: str, reports: Sequence[Report]) -> list[str]:
    num_users: Counter[str] = Counter()
    for report in reports:
        num_users.update(report.names.get(api, ()))
    if not num_users:
        return []
    by_use = sorted(num_users.items(), key=lambda item: (-item[1], item[0]))
    names = ", ".join(f"`{name}` {count}" for name, count in by_use)
    text = f"Each name is followed by the number of packages that use it: {names}."
    return ["", f"## Names from {api}", "", text]


def report_notes(report: Report) -> list[str]:
    """Return notes on a package, in addition to its verdict."""
    notes: list[str] = []
    for failure in report.rollouts.failures:
        notes.append(f"{failure.times} × {failure.phase}: {failure.type}: {failure.message}")
    for error in report.rollouts.swallowed:
        notes.append(f"raised, counted as reward 0: {error}")
    unset_keys = [f"{name} ({value})" for name, value in report.keys.items() if value != "set"]
    lists = (
        ("not installed: ", report.missing_modules),
        ("not provided by rove: ", report.lacking),
        ("keys: ", unset_keys),
        ("rollouts used placeholder values for ", report.placeholders),
    )
    notes += [f"{label}{', '.join(names)}" for label, names in lists if names]
    return notes


def _row(report: Report, numbers: dict[Finding, int]) -> tuple[str, ...]:
    rollouts = report.rollouts
    failed = f", {rollouts.failed} failed" if rollouts.failed else ""
    rewards = ", ".join(f"{name} {value:g}" for name, value in rollouts.rewards.items())
    return (
        report.package,
        report.generation,
        report.verdict,
        f"{rollouts.rollouts}{failed}",
        rewards,
        ", ".join(str(numbers[deviation]) for deviation in report.deviations),
        "; ".join(report_notes(report)),
    )
