"""Training callbacks: alerts, loggers and rollouts shown at intervals."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes import tiny_model
from tiers import first_quick

from rove.core.errors import ConfigError
from rove.core.findings import Finding
from rove.core.records import RolloutRecord
from rove.runs.run import Run
from rove.train.alerts import AlertLimits
from rove.train.config import RLConfig
from rove.train.rl import train_rl
from tests.train.test_loggers import Fake
from tests.train.test_rl import Killed, metrics_of, settings, train, two_turns
from tests.train.test_sft import learnable_rollouts
from tests.train.test_sft import settings as sft_settings
from tests.train.test_sft import train as train_sft

SENSITIVE_LIMITS = AlertLimits(window=1, length_factor=0.1, grad_norm_factor=1e-6)
"""Limits that cause two alerts from the second step on."""


def train_with_callbacks(path: Path, config: RLConfig) -> tuple[list[Finding], list[tuple[int, RolloutRecord]]]:
    alerts: list[Finding] = []
    samples: list[tuple[int, RolloutRecord]] = []
    with Run(path) as run:
        run.start("rl", {}, {})
        asyncio.run(
            train_rl(
                config,
                two_turns(),
                tiny_model(),
                run,
                on_alert=alerts.append,
                on_sample=lambda step, record: samples.append((step, record)),
            )
        )
    return alerts, samples


def test_an_alert_is_reported_once_and_saved(tmp_path: Path):
    alerts, _ = train_with_callbacks(tmp_path, settings(alerts=SENSITIVE_LIMITS))
    assert [(a.step, a.id) for a in alerts] == [(2, "length_growth"), (2, "grad_norm_spike")]
    assert [msgspec.convert(row, Finding) for row in Run(tmp_path).alerts()] == alerts


@pytest.mark.broad
def test_the_default_limits_cause_no_alerts(tmp_path: Path):
    assert train_with_callbacks(tmp_path, settings()) == ([], [])
    assert not (tmp_path / "alerts.jsonl").exists()


@pytest.mark.broad
@pytest.mark.parametrize("kills", first_quick([[2], [3], [2, 4]], broad=0))
def test_a_resumed_run_has_every_alert_once(tmp_path: Path, kills: list[int]):
    config = settings(alerts=SENSITIVE_LIMITS)
    for kill_at in kills:
        with pytest.raises(Killed):
            train(tmp_path, config, two_turns(), kill_at)
    train(tmp_path, config, two_turns())
    assert [(a["step"], a["id"]) for a in Run(tmp_path).alerts()] == [(2, "length_growth"), (2, "grad_norm_spike")]


@pytest.mark.slow
def test_a_rollout_is_shown_every_n_steps(tmp_path: Path):
    _, samples = train_with_callbacks(tmp_path, settings(show_every=2))
    assert [(step, record.step) for step, record in samples] == [(2, 2), (4, 4)]
    assert [
        record.example_key for _, record in train_with_callbacks(tmp_path / "again", settings(show_every=2))[1]
    ] == [record.example_key for _, record in samples]


@pytest.mark.broad
def test_loggers_receive_the_metrics_of_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    library = Fake("wandb")
    monkeypatch.setitem(sys.modules, "wandb", library)
    with pytest.raises(Killed):
        train(tmp_path, settings(loggers=["wandb"]), two_turns(), kill_at=3)
    assert library.calls[-1] == ("finish", None)
    train(tmp_path, settings(loggers=["wandb"]), two_turns())
    logged = {step: row for kind, call in library.calls if kind == "log" for step, row in [call]}
    assert list(logged) == [1, 2, 3, 4, 5]
    for row in Run(tmp_path).metrics():
        assert logged[row.pop("step")] == row
    assert library.calls[0][1]["config"]["batch_size"] == 16


@pytest.mark.broad
def test_sft_has_alerts_and_loggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    library = Fake("trackio")
    monkeypatch.setitem(sys.modules, "trackio", library)
    train_sft(tmp_path, sft_settings(alerts=SENSITIVE_LIMITS, loggers=["trackio"]), learnable_rollouts())
    assert [alert["id"] for alert in Run(tmp_path).alerts()] == ["grad_norm_spike"]
    assert len([call for call in library.calls if call[0] == "log"]) == len(metrics_of(tmp_path)) == 16
    assert library.calls[-1] == ("finish", None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"show_every": -1}, "show_every is -1"),
        ({"loggers": ["csv"]}, "no logger 'csv'"),
        ({"alerts": {"window": 0}}, "alerts.window is 0"),
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        settings(**wrong).check()
