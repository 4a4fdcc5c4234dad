"""`make test-all`: every failing target is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from all_targets import TARGETS, main

MAKEFILE = """
test-red:
\t@echo "SKIPPED [2] tests/a.py:3: no network"
\t@echo "FAILED tests/a.py::test_sum - assert 1 == 2"
\t@echo "==== 1 failed, 40 passed, 2 skipped, 3 warnings in 2.50s ===="
\t@exit 1
test-two-runs:
\t@echo "5 passed in 0.10s"
\t@echo "1 passed, 1 error in 61.00s (0:01:01)"
test-broken:
\t@exit 1
"""


def test_a_red_target_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Makefile").write_text(MAKEFILE)
    assert main(["test-red", "test-two-runs", "test-broken"]) == 2
    out = capsys.readouterr().out
    rows = [line.split()[:-1] for line in out.splitlines() if line.startswith("test-") and ":" not in line]
    assert rows == [
        ["test-red", "2", "40", "1", "0", "2", "1"],
        ["test-two-runs", "0", "6", "0", "1", "0", "2"],
        ["test-broken", "2", "0", "0", "0", "0", "0"],
    ]
    assert "test-red: skipped 2: no network" in out
    assert "test-red: FAILED tests/a.py::test_sum - assert 1 == 2" in out
    assert "test-broken: ended with status 2; see build/test-all/test-broken.log" in out
    assert "40 passed" in Path("build/test-all/test-red.log").read_text()
    assert main(["test-two-runs"]) == 0


def test_every_test_target_is_run() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    targets = {line.split(":")[0] for line in makefile.splitlines() if line.startswith("test")}
    assert set(TARGETS) == targets - {"test-all"}
