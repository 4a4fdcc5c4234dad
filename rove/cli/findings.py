"""Findings on the console: a table for the commands that check something, and the style of each severity."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from rove.audit.report import rate_text
from rove.core.findings import HIGH, INFO, LOW, MEDIUM, OK, SKIPPED, Finding
from rove.stages.reporter import WIDTH
from rove.utils.console import styled

STYLES = {HIGH: "red", MEDIUM: "yellow", LOW: "cyan", INFO: "dim", SKIPPED: "dim", OK: "green"}
MARKS = {OK: "✓", SKIPPED: "–"}
"""Marks in the table for severities that are not problems."""


def print_findings(findings: Sequence[Finding], title: str, console: Console) -> None:
    """Print findings as a table; its last column shows rewards and shares if findings have any, and remedies otherwise."""
    has_rates = any(finding.rate is not None for finding in findings)
    table = Table(title=title, width=min(WIDTH, console.width))
    table.add_column("severity", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("finding", overflow="fold")
    table.add_column("reward or share" if has_rates else "to try", overflow="fold")
    for finding in findings:
        severity = styled((MARKS.get(finding.severity, finding.severity.value), STYLES[finding.severity]))
        last = rate_text(finding) if has_rates else finding.remedy
        text = f"{finding.text} (accepted: {finding.accepted})" if finding.accepted else finding.text
        table.add_row(severity, finding.id, text, last)
    console.print(table)
