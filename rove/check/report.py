"""Reports on many packages as JSON and as a Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from rove.check.checker import Report
from rove.check.rules import GENERATIONS
from rove.core.findings import Finding
from rove.utils.markdown import table_lines

HEAD = ("package", "written for", "verdict", "rollouts", "mean reward", "deviations", "notes")
STATUSES = ("runs unchanged", "runs with deviations", "needs", "cannot run")


def as_json(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the version of rove, whether all packages run, and every report with its verdict."""
    packages = [{"verdict": report.verdict, **msgspec.to_builtins(report)} for report in reports]
    return {"rove": version("rove"), "all_run": all(report.runs for report in reports), "packages": packages}


def as_markdown(reports: Sequence[Report]) -> str:
    """Return the Markdown page: one row per package, the deviations, and how often each name is used."""
    counts = Counter(report.status for report in reports)
    numbers: dict[Finding, int] = {}
    for report in reports:
        for one in report.deviations:
            numbers.setdefault(one, len(numbers) + 1)
    summary = ", ".join(f"{status} ({counts[status]})" for status in STATUSES if counts[status])
    packages = f"{len(reports)} package{'' if len(reports) == 1 else 's'}"
    lines = [
        "# Compatibility matrix",
        "",
        f"`rove check` (rove {version('rove')}) wrote this page. It checked {packages}, with these verdicts: {summary}.",
    ]
    lines += ["", *table_lines(HEAD, [_row(report, numbers) for report in reports])]
    used = dict.fromkeys(report.generation for report in reports if report.generation in GENERATIONS)
    if used:
        lines += ["", 'In the column "written for":', ""]
        lines += [f"- {name}: {GENERATIONS[name]}" for name in sorted(used)]
    if numbers:
        rows = [(str(number), one.text, one.remedy) for one, number in numbers.items()]
        lines += ["", "## Deviations", "", *table_lines(("#", "what", "here"), rows)]
    for api in ("verifiers", "rove"):
        times = Counter(name for report in reports for name in report.names.get(api, ()))
        if times:
            names = ", ".join(
                f"`{name}` {n}" for name, n in sorted(times.items(), key=lambda item: (-item[1], item[0]))
            )
            lines += [
                "",
                f"## Names from {api}",
                "",
                f"Each name is followed by the number of packages that use it: {names}.",
            ]
    return "\n".join(lines) + "\n"


def report_notes(report: Report) -> list[str]:
    """Return notes on a package that its verdict does not contain."""
    rollouts = report.rollouts
    notes = [f"{one.times} × {one.phase}: {one.type}: {one.message}" for one in rollouts.failures]
    notes += [f"raised, counted as reward 0: {one}" for one in rollouts.swallowed]
    notes += [f"not installed: {', '.join(report.missing_modules)}"] if report.missing_modules else []
    notes += [f"not provided by rove: {', '.join(report.lacking)}"] if report.lacking else []
    unset = [f"{name} ({value})" for name, value in report.keys.items() if value != "set"]
    notes += [f"keys: {', '.join(unset)}"] if unset else []
    notes += [f"rollouts used placeholder values for {', '.join(report.placeholders)}"] if report.placeholders else []
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
        ", ".join(str(numbers[one]) for one in report.deviations),
        "; ".join(report_notes(report)),
    )
