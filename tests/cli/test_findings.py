"""Findings as a table."""

from __future__ import annotations

import io

from rove.cli.findings import print_findings
from rove.core.findings import HIGH, OK, SKIPPED, Finding
from rove.utils.console import SafeConsole


def printed(*findings: Finding) -> str:
    out = io.StringIO()
    print_findings(findings, "title", SafeConsole(file=out, width=100))
    return out.getvalue()


def test_a_table_of_checks_has_marks_and_remedies():
    text = printed(
        Finding("batch", "512 rollouts per step", OK), Finding("samples", "none", SKIPPED), Finding("key", "x")
    )
    assert "│ ✓ " in text and "│ – " in text and "│ high " in text
    assert "to try" in text and "set the variable of -k" in text
    assert {len(line) for line in text.splitlines() if line.startswith("│")} == {100}


def test_rates_are_shown_in_place_of_remedies():
    text = printed(Finding("hedging", "two answers", HIGH, rate=(0.52, 0.4, 0.64), floor=0.1))
    assert "0.52 [0.40, 0.64], floor 0.10" in text and "reward or share" in text and "to try" not in text


def test_brackets_are_not_read_as_markup():
    assert "[red] [/x]" in printed(Finding("key", "[red] [/x]"))
