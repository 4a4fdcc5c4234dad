"""Comparison of findings with those of an older version, and the cost of a fix for honest policies."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from commands import Rove, in_process_rove, write_environment

from rove.audit.comparison import Comparison, compare, markdown_comparison, read_report
from rove.audit.findings import CHECKS, Report
from rove.audit.report import json_report
from rove.core.errors import ConfigError
from rove.core.findings import Finding, Severity
from tests.audit.test_auditor import HONEST, SUMS

REWARDS = {"right answer": (1.0, 1.0, 1.0), "policy good": (0.8, 0.7, 0.9), "empty": (0.5, 0.4, 0.6)}


def found(check: str, severity: Severity = Severity.HIGH, rate: float = 0.5) -> Finding:
    return Finding(id=check, severity=severity, text=f"about {check}", rate=(rate, rate - 0.1, rate + 0.1))


def report(*findings: Finding, skipped: dict[str, str] | None = None, without: str = "") -> Report:
    checks = [name for name in CHECKS if name != without]
    return Report(env="sums", findings=list(findings), checks=checks, skipped=skipped or {}, rewards=REWARDS)


def statuses(comparison: Comparison) -> list[tuple[str, str]]:
    return [(change.status, change.latest.id) for change in comparison.changes]


def test_closed_new_and_remaining_findings() -> None:
    old = report(found("blind-reply"), found("hedging", rate=0.9))
    new = report(found("hedging", rate=0.4), found("length", Severity.MEDIUM))
    comparison = compare(old, new, ("v1", "v2"))
    assert statuses(comparison) == [("new", "length"), ("remains", "hedging"), ("closed", "blind-reply")]
    assert comparison.worst_new() is Severity.MEDIUM
    back = compare(new, old)
    assert statuses(back) == [("new", "blind-reply"), ("remains", "hedging"), ("closed", "length")]
    assert back.worst_new() is Severity.HIGH
    page = markdown_comparison(comparison)
    assert "| remains | high | hedging | about hedging | 0.90 → 0.40 |" in page
    assert "| right answer | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] | +0.000 [+0.000, +0.000] |" in page
    assert "empty" not in page


def test_no_changes() -> None:
    comparison = compare(report(found("hedging")), report(found("hedging")))
    assert statuses(comparison) == [("remains", "hedging")] and comparison.worst_new() is None


def test_a_finding_that_becomes_more_severe_counts_as_new() -> None:
    comparison = compare(report(found("hedging", Severity.LOW)), report(found("hedging")))
    assert (statuses(comparison), comparison.worst_new()) == ([("remains", "hedging")], Severity.HIGH)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (report(skipped={"hedging": "the time budget is used up"}), "not checked"),
        (report(without="hedging"), "not checked"),
        (report(), "closed"),
    ],
)
def test_a_check_that_was_not_done_closes_nothing(new: Report, expected: str) -> None:
    assert (expected, "hedging") in statuses(compare(report(found("hedging")), new))


def test_a_finding_that_the_old_version_was_not_checked_for_is_new_with_a_note() -> None:
    old = report(found("blind-reply"), skipped={"policy-search": "a reply is known already"})
    [new, _] = compare(old, report(found("policy-search"))).changes
    assert (new.status, new.note) == ("new", "not checked in the old version: a reply is known already")


def test_the_costs_of_a_fix() -> None:
    new = report()
    new.rewards = {"right answer": (0.6, 0.5, 0.7), "policy good": (0.8, 0.7, 0.9)}
    own_policy, good = compare(report(), new).honest
    assert own_policy.difference == pytest.approx((-0.4, -0.5, -0.3))
    assert good.difference == pytest.approx((0.0, -0.1414, 0.1414), abs=1e-3)


def test_reports_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_bytes(msgspec.json.encode(json_report(report(found("hedging")))))
    assert read_report(path) == report(found("hedging"))
    path.write_text(path.read_text().replace('"hedging"', '"hedge"'))
    with pytest.raises(ConfigError, match="unknown check 'hedge'"):
        read_report(path)


@pytest.mark.parametrize("content", ["{}", "[1]", '{"findings": [{"severity": "bad"}]}', '{"findings": 3}', "x"])
def test_a_file_that_is_no_report(content: str, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="is not a report of an audit"):
        read_report(path)


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    write_environment(tmp_path / "v1", "sums", SUMS.replace("GRADE", "return float(answer in text)"))
    write_environment(tmp_path / "v2", "sums", SUMS.replace("GRADE", HONEST))
    return in_process_rove(tmp_path, monkeypatch, capsys)


def test_stored_reports_are_compared_by_the_command(rove: Rove) -> None:
    Path("old.json").write_bytes(msgspec.json.encode(json_report(report(found("blind-reply")))))
    Path("fixed.json").write_bytes(msgspec.json.encode(json_report(report())))
    back = rove("audit", "--compare", "fixed.json", "old.json", "--json")
    assert (back.status, json.loads(back.out)["worst_new"]) == (1, "high")
    fix = rove("audit", "--compare", "old.json", "fixed.json", "-o", "fix.md", "-o", "fix.json")
    assert fix.status == 0, fix.out + fix.err
    assert "closed" in fix.out and "right answer" in fix.out
    assert max(map(len, fix.out.splitlines())) <= 100
    assert json.loads(Path("fix.json").read_text())["changes"][0]["status"] == "closed"
    wrong = rove("audit", "--compare", "old.json", "old.json", "-o", "fix.xml")
    assert (wrong.status, "ends in .md or .json" in wrong.err) == (2, True)


@pytest.mark.slow
def test_two_versions_are_audited_and_compared(rove: Rove) -> None:
    options = ("--only", "blind-reply", "-n", "20")
    done = rove("audit", "--compare", "v1/sums", "v2/sums", *options, "-o", "fix.json")
    assert done.status == 0, done.out + done.err
    assert "closed" in done.out and "right answer" in done.out
    assert json.loads(Path("fix.json").read_text())["changes"][0]["status"] == "closed"
    Path("old.json").write_bytes(msgspec.json.encode(json_report(report(found("blind-reply")))))
    Path("v2/sums/sums.py").write_text("raise ValueError('broken')")
    assert rove("audit", "--compare", "old.json", "v2/sums", *options).status == 1
    neither = rove("audit", "--compare", "v2/sums", "v2/sums", *options)
    assert (neither.status, "neither version works" in neither.err) == (2, True)
