"""Baseline files accept findings, each with a reason."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import Rove, in_process_rove, write_environment

from rove.audit.acceptance import Acceptance, accept_findings, read_baseline_file
from rove.audit.findings import Report
from rove.audit.report import junit_report, markdown_report, sarif_report
from rove.core.errors import ConfigError
from rove.core.findings import Finding, Severity

REASON = "lists are partly right by design"


def report() -> Report:
    findings = [
        Finding(id="hedging", severity=Severity.HIGH, text="replies earn 1.0: 'retraction'"),
        Finding(id="length", severity=Severity.MEDIUM, text="longer replies earn more"),
    ]
    return Report(
        env="sums", findings=findings, checks=["hedging", "length", "blind-game"], skipped={"blind-game": "no"}
    )


def accepted(*entries: Acceptance) -> tuple[list[str], list[str]]:
    """Return the ids of the accepted findings, and the entries that match nothing."""
    audited = report()
    accept_findings(audited, entries)
    return [finding.id for finding in audited.findings if finding.accepted], audited.unmatched


def test_an_accepted_finding_does_not_count() -> None:
    audited = report()
    accept_findings(audited, [Acceptance(check="hedging", reason=REASON)])
    assert [finding.id for finding in audited.open_findings] == ["length"]
    assert audited.worst is Severity.MEDIUM and f"high, accepted: {REASON}" in str(audited)


def test_an_entry_can_name_the_environment_a_reply_and_a_severity() -> None:
    assert accepted(Acceptance(check="hedging", reason=REASON, env="sums", text="'retraction'")) == (["hedging"], [])
    assert accepted(Acceptance(check="hedging", reason=REASON, env="units")) == ([], [])
    assert accepted(Acceptance(check="hedging", reason=REASON, text="'negation'")) == (
        [],
        ["hedging, text \"'negation'\""],
    )
    assert accepted(Acceptance(check="hedging", reason=REASON, severity=Severity.MEDIUM)) == (
        [],
        ["hedging, severity up to medium"],
    )


def test_an_entry_of_a_check_that_was_not_done_is_no_news() -> None:
    assert accepted(Acceptance(check="blind-game", reason=REASON), Acceptance(check="own-answer", reason=REASON)) == (
        [],
        [],
    )


def test_reports_show_the_reason() -> None:
    audited = report()
    accept_findings(
        audited, [Acceptance(check="hedging", reason=REASON), Acceptance(check="length", reason="x", text="y")]
    )
    page = markdown_report([audited])
    assert f"| high, accepted: {REASON} |" in page and 'match no finding any more: length, text "y".' in page
    results = sarif_report([audited])["runs"][0]["results"]
    assert [result.get("suppressions") for result in results] == [[{"kind": "external", "justification": REASON}], None]
    [suite] = ElementTree.fromstring(junit_report([audited], Severity.LOW))
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["length"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[accept]]\ncheck = "hedging"', "missing required field `reason`"),
        ('[[accept]]\ncheck = "hedging"\nreason = " "', "the entry of the check 'hedging' has an empty reason"),
        ('[[accept]]\ncheck = "hedgin"\nreason = "x"', "unknown check 'hedgin'; did you mean 'hedging'?"),
        ('[[accept]]\ncheck = "hedging"\nreason = "x"\npolicy = "y"', "unknown field `policy`"),
        ("accept = 1", "is not a baseline file"),
        ("[accept", "is not a baseline file"),
    ],
)
def test_a_wrong_file_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "baseline.toml").write_text(text)
    with pytest.raises(ConfigError, match="expected tables") as caught:
        read_baseline_file(tmp_path / "baseline.toml")
    assert message in str(caught.value)


ANY_REPLY = """
import rove as vf

def load_environment():
    def correct(completion, answer):
        return float(answer in completion[-1]["content"])

    rows = [{"question": f"{n} + 7?", "answer": str(n + 7)} for n in range(1000, 1030)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_environment(tmp_path / "environments", "sums", ANY_REPLY)
    rove: Rove = in_process_rove(tmp_path, monkeypatch, capsys)
    entries = [f'[[accept]]\ncheck = "{check}"\nreason = "{REASON}"\n' for check in ("hedging", "side-effects")]
    Path("baseline.toml").write_text("\n".join(entries))
    options = ("audit", "sums", "--only", "hedging", "--only", "side-effects", "-n", "20", "--baseline")
    done = rove(*options, "baseline.toml")
    assert done.status == 0 and REASON in " ".join(done.out.replace("│", " ").split())
    assert "no finding matches this entry of the baseline file any more: side-effects" in done.out
    missing = rove(*options, "missing.toml")
    assert missing.status == 2 and "missing.toml is not a baseline file" in missing.err
    compared = rove("audit", "--compare", "sums", "sums", "--baseline", "baseline.toml")
    assert compared.status == 2 and "remove --baseline" in compared.err
