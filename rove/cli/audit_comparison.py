"""`rove audit --compare`: compare the audits of two versions of an environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rove.audit.comparison import (
    Comparison,
    compare,
    json_comparison,
    markdown_comparison,
    rates_text,
    read_report,
    reward_text,
    severities_text,
    text_of,
)
from rove.audit.findings import Report
from rove.cli.common import check_outputs, indented_json, print_json
from rove.core.errors import ConfigError
from rove.core.findings import Severity
from rove.stages.auditing import located
from rove.stages.reporter import WIDTH
from rove.utils.console import styled
from rove.utils.files import atomic_write

SUFFIXES = (".md", ".json")
STYLES = {"new": "red", "remains": "yellow", "not checked": "dim", "closed": "green"}


def compare_audits(
    pair: tuple[str, str],
    env_dir: str | None,
    run: Callable[[str, str | None], Report],
    console: Console,
    output: tuple[str, ...],
    as_json: bool,
) -> Severity | None:
    """Audit both versions, print the changes, and return the highest severity of new findings; None without new findings.

    An error that ends a check of the new version counts as a new finding of high severity.

    Args:
        pair: Old and new version: a name, the path of a module or folder, or a report (FILE.json).
    """
    check_outputs(output, SUFFIXES)
    for name in pair:
        if not _is_report(name):
            located(name, env_dir)  # an audit takes minutes: a wrong name is an error before the first one
    old, new = (_report(source, env_dir, run) for source in pair)
    failures: list[str] = []
    for report in (old, new):
        if not _is_checked(report):
            failures += [finding.text for finding in report.findings]
    if len(failures) == len(pair):
        raise ConfigError(f"neither version works: {pair[0]}: {failures[0]}; {pair[1]}: {failures[1]}")
    comparison = compare(old, new, pair)
    for file in map(Path, output):
        is_page = file.suffix == ".md"
        content = markdown_comparison(comparison).encode() if is_page else indented_json(json_comparison(comparison))
        atomic_write(file, content)
    if as_json:
        print_json(json_comparison(comparison))
    else:
        print_comparison(comparison, console)
    return Severity.HIGH if new.failed else comparison.worst_new()


def _is_checked(report: Report) -> bool:
    """Return whether the environment was loaded, so that checks were done."""
    other_checks = set(report.checks) - {"load"}
    return not any(finding.id == "load" for finding in report.findings) or bool(other_checks - set(report.skipped))


def _report(name: str, env_dir: str | None, run: Callable[[str, str | None], Report]) -> Report:
    return read_report(name) if _is_report(name) else run(*located(name, env_dir))


def _is_report(name: str) -> bool:
    return Path(name).suffix == ".json"


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the findings, grouped by how they changed, and the rewards of honest policies."""
    width = min(WIDTH, console.width)
    title = f"audit: {comparison.old} → {comparison.new}"
    if comparison.changes:
        table = Table(title=title, width=width)
        for name in ("", "severity", "check", "finding", "reward or share"):
            table.add_column(name, overflow="fold")
        for change in comparison.changes:
            status = styled((change.status, STYLES[change.status]))
            cells = (severities_text(change), change.latest.id, text_of(change), rates_text(change))
            table.add_row(status, *cells)
        console.print(table)
    else:
        console.print(styled((title, "bold"), ": no findings"))
    if comparison.honest:
        table = Table(title="rewards of right answers and scripted policies", width=width)
        for name in ("policy", "old", "new", "difference"):
            table.add_column(name, overflow="fold")
        for reward in comparison.honest:
            difference = reward_text(reward.difference, "+")
            table.add_row(reward.policy, *map(reward_text, (reward.old, reward.new)), difference)
        console.print(table)
    else:
        console.print(
            "There are no rewards to compare: neither right answers nor a scripted policy ran in both versions."
        )
