"""The load test of the servers: rove's answers are correct, and errors are counted."""

from __future__ import annotations

import argparse
import importlib
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("load")


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["view", "hub"])
async def test_rove_answers_without_an_error(
    load: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = importlib.import_module("hub")
    for name, value in {"ENVIRONMENTS": 1, "VERSIONS": 2, "LARGE_BYTES": 1024}.items():
        monkeypatch.setattr(hub, name, value)
    monkeypatch.setattr(load, "ROLLOUTS", 100)
    args = argparse.Namespace(minutes=0.01, connections=[3], rounds=1, inspect=None, pypiserver="true")
    targets = load.KINDS[kind](args, tmp_path)
    try:
        assert await load.measure(targets[:1], args), capsys.readouterr().out
    finally:
        for target in targets:
            target.server.process.kill()
            target.server.process.wait()


async def test_errors_are_counted_and_have_no_latency(load: Any) -> None:
    sent: list[int] = []

    async def send(session: Any, number: int) -> None:
        sent.append(number)
        if number % 2 == 0:
            raise ValueError("an even number")

    server = SimpleNamespace(name="rove", cpu=lambda: 0.0, process=SimpleNamespace(pid=0))
    measured = await load.run_round(load.Target(server, send), 2, 0.01, count())
    assert len(sent) > 1
    assert measured.errors == {"ValueError: an even number": sum(number % 2 == 0 for number in sent)}
    assert len(measured.latencies) == sum(number % 2 == 1 for number in sent)
