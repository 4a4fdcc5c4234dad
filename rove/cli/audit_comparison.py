"""`rove audit --compare`: two versions of an environment, or two reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
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
from rove.audit.findings import Report, Severity
from rove.cli.common import WIDTH, check_outputs, print_json
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
    """Audit both, print what changed, and return the highest severity of new findings; None without new findings.

    Args:
        pair: Old and new version: a name, the path of a module or folder, or a report (FILE.json).
        env_dir: Folder of environments given by name.
        run: Audits an environment: name, and the folder that has it.
        console: For the tables.
        output: Files to write, .md or .json.
        as_json: Print JSON instead of tables.
    """
    check_outputs(output, SUFFIXES)
    old, new = (_report(one, env_dir, run) for one in pair)
    comparison = compare(old, new, pair)
    for one in output:
        is_page = Path(one).suffix == ".md"
        content = markdown_comparison(comparison).encode() if is_page else _json(comparison)
        atomic_write(Path(one), content)
    if as_json:
        print_json(json_comparison(comparison))
    else:
        print_comparison(comparison, console)
    return comparison.worst_new()


def _report(name: str, env_dir: str | None, run: Callable[[str, str | None], Report]) -> Report:
    path = Path(name)
    if path.suffix == ".json":
        return read_report(path)
    if path.exists() and (path.suffix == ".py" or len(path.parts) > 1):
        return run(path.stem if path.suffix == ".py" else path.name, str(path.parent))
    return run(name, env_dir)


def _json(comparison: Comparison) -> bytes:
    return msgspec.json.format(msgspec.json.encode(json_comparison(comparison)), indent=1)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the findings by what became of them, and the rewards of honest policies."""
    width = min(WIDTH, console.width)
    title = escape(f"audit: {comparison.old} → {comparison.new}")
    if comparison.changes:
        table = Table(title=title, width=width)
        for name in ("", "severity", "check", "finding", "rate"):
            table.add_column(name, overflow="fold")
        for one in comparison.changes:
            style = STYLES[one.status]
            status = f"[{style}]{one.status}[/{style}]"
            cells = (severities_text(one), one.latest.check, escape(text_of(one)), escape(rates_text(one)))
            table.add_row(status, *cells)
        console.print(table)
    else:
        console.print(f"[bold]{title}[/bold]: no findings")
    if comparison.honest:
        table = Table(title="rewards of policies that do the task", width=width)
        for name in ("policy", "old", "new", "difference"):
            table.add_column(name, overflow="fold")
        for reward in comparison.honest:
            difference = reward_text(reward.difference, "+")
            table.add_row(
                escape(reward.policy),
                *(escape(reward_text(one)) for one in (reward.old, reward.new)),
                escape(difference),
            )
        console.print(table)
    else:
        console.print("There is no honest policy to compare: no row has an answer, and there is no scripted policy.")
