"""The speed check: both sides of each case do the same work, and only a ratio that is low in all rounds fails."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = {
    **{"NUM_ROLLOUTS": 3, "CONCURRENCY": 2, "NUM_NEW_TOKENS": 1, "NUM_GROUPS": 1, "RESPONSE_TOKENS": 4},
    **{"SFT_ROWS": 2, "SFT_TOKENS": 8, "VIEWED_ROLLOUTS": 60, "IMPORTS": 1},
}


@pytest.fixture
def smoke(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("smoke")


@pytest.mark.broad
def test_both_sides_of_every_case_return_the_same(smoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in SMALL.items():
        monkeypatch.setattr(smoke, name, value)
    with smoke.mock_server() as url:
        for name, case in smoke.CASES.items():
            results = []
            for side in ("rove", "reference"):
                folder = tmp_path / name / side
                folder.mkdir(parents=True)
                repeat = getattr(case, side)(url, folder)
                results.append([repeat(0), repeat(1)])
            assert results[0] == pytest.approx(results[1], rel=0.01, abs=1e-4), name


def check(smoke: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, measured: dict[str, list[float]]) -> bool:
    """Check cases whose recorded ratio is 2 and whose ratios in each round are given; all of these must be used."""
    ratios: dict[str, Iterator[float]] = {name: iter(values) for name, values in measured.items()}
    recorded = {
        "commit": "abc",
        "machine": "a machine",
        "libraries": {"torch": "0.1"},
        "ratios": dict.fromkeys(ratios, 2.0),
    }
    (folder / "smoke.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(smoke, "RECORDED", folder / "smoke.json")
    monkeypatch.setattr(smoke, "measure", lambda name, url: next(ratios[name]))
    passes = smoke.check("", list(measured))
    assert [next(values, None) for values in ratios.values()] == [None] * len(ratios)
    return passes


def test_a_ratio_that_is_low_in_two_rounds_passes(
    smoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(smoke, monkeypatch, tmp_path, {"viewer": [1.0, 1.69, 1.71], "import": [1.7]})
    text = capsys.readouterr().out
    assert text.count("below 85% of the recorded ratio") == 2
    assert "recorded at abc on a machine" in text
    assert "the ratios were recorded with 0.1" in text


def test_a_ratio_that_is_low_in_three_rounds_fails(smoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not check(smoke, monkeypatch, tmp_path, {"viewer": [1.6, 1.6, 1.6], "import": [2.5]})
