"""What was found of many packages, on one page and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from rove.check.package import Report
from rove.check.rules import GENERATIONS, Deviation

HEAD = ("package", "written for", "verdict", "rollouts", "mean reward", "deviations", "told")
COUNTED = {
    "runs unchanged": "run unchanged",
    "runs with deviations": "run with deviations",
    "needs": "need something that is not here",
    "cannot run": "cannot run",
}


def as_json(reports: Sequence[Report]) -> dict[str, Any]:
    """Version of rove, whether all run, and every report with its verdict."""
    packages = [{"verdict": report.verdict, **msgspec.to_builtins(report)} for report in reports]
    return {"rove": version("rove"), "all_run": all(report.runs for report in reports), "packages": packages}


def as_markdown(reports: Sequence[Report]) -> str:
    """The page: a row for each package, what the deviations are, and which names are used how often."""
    counts = Counter(report.status for report in reports)
    numbers: dict[Deviation, int] = {}
    for report in reports:
        for one in report.deviations:
            numbers.setdefault(one, len(numbers) + 1)
    said = ", ".join(f"{counts[status]} {words}" for status, words in COUNTED.items() if counts[status])
    lines = [
        "# Compatibility matrix",
        "",
        f"Made by `rove check` of rove {version('rove')}. {len(reports)} packages: {said}.",
    ]
    lines += ["", *_table(HEAD, [_row(report, numbers) for report in reports])]
    used = dict.fromkeys(report.generation for report in reports if report.generation in GENERATIONS)
    lines += ["", "; ".join(f"{name}: {GENERATIONS[name]}" for name in sorted(used)) + "."] if used else []
    if numbers:
        rows = [(str(number), one.what, one.here) for one, number in numbers.items()]
        lines += ["", "## Deviations", "", *_table(("#", "what", "here"), rows)]
    for api in ("verifiers", "rove"):
        times = Counter(name for report in reports for name in report.names.get(api, ()))
        if times:
            names = ", ".join(
                f"`{name}` {n}" for name, n in sorted(times.items(), key=lambda item: (-item[1], item[0]))
            )
            lines += ["", f"## Names of {api}, by packages that use them", "", f"{names}."]
    return "\n".join(lines) + "\n"


def told_of(report: Report) -> list[str]:
    """What else there is to know of a package, beside its verdict."""
    played = report.played
    told = [f"{one.times} × {one.phase}: {one.type}: {one.message}" for one in played.failures]
    told += [f"raised, which counts as 0: {one}" for one in played.swallowed]
    told += [f"not installed: {', '.join(report.missing_modules)}"] if report.missing_modules else []
    told += [f"not answered for: {', '.join(report.lacking)}"] if report.lacking else []
    unset = [f"{name} ({value})" for name, value in report.keys.items() if value != "set"]
    told += [f"keys: {', '.join(unset)}"] if unset else []
    told += [f"played with a placeholder for {', '.join(report.placeholders)}"] if report.placeholders else []
    return told


def _row(report: Report, numbers: dict[Deviation, int]) -> tuple[str, ...]:
    played = report.played
    failed = f", {played.failed} failed" if played.failed else ""
    rewards = ", ".join(f"{name} {value:g}" for name, value in played.rewards.items())
    return (
        report.package,
        report.generation,
        report.verdict,
        f"{played.rollouts}{failed}",
        rewards,
        ", ".join(str(numbers[one]) for one in report.deviations),
        "; ".join(told_of(report)),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *([_cell(text) for text in row] for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
