"""`rove.audit_environment`: an audit from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import rove
from rove.core.findings import HIGH

ANYWHERE_ENV = """
import rove as vf

def load_environment():
    def anywhere(completion, answer):
        return float(answer in completion[-1]["content"])

    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(100, 130)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([anywhere]))
"""


@pytest.mark.slow
def test_an_audit_by_path_returns_the_findings(tmp_path: Path) -> None:
    (tmp_path / "doubles.py").write_text(ANYWHERE_ENV)
    report = rove.audit_environment(str(tmp_path / "doubles.py"), only=["hedging"], reporter=rove.SilentReporter())
    assert [finding.id for finding in report.findings] == ["hedging"]
    assert report.worst == HIGH
    assert str(report).startswith("audit of doubles: ") and "high: hedging: " in str(report)


def test_wrong_settings_are_reported_before_anything_runs() -> None:
    with pytest.raises(rove.ConfigError, match="num_example"):
        rove.audit_environment("tictactoe", num_example=3)
    with pytest.raises(rove.ConfigError, match="unknown check 'hedgin'"):
        rove.audit_environment("tictactoe", only=["hedgin"])
    with pytest.raises(rove.ConfigError, match="no_such_environment"):
        rove.audit_environment("no_such_environment")
