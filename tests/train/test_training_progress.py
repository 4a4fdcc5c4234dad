"""Progress within a training step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes import tiny_model

import tests.train.test_rl as rl
import tests.train.test_sft as sft
from rove.runs.run import Run
from rove.train.callbacks import counted
from rove.train.rl import train_rl
from rove.train.sft import train_sft


class ProgressRecorder:
    """A progress callback that records its calls."""

    def __init__(self) -> None:
        self.counts: dict[str, list[tuple[int, int]]] = {}

    def __call__(self, activity: str, done: int, total: int) -> None:
        self.counts.setdefault(activity, []).append((done, total))


def test_counted_reports_before_the_first_item_and_after_each():
    progress = ProgressRecorder()
    assert list(counted("ab", "letters", progress)) == ["a", "b"]
    assert progress.counts == {"letters": [(0, 2), (1, 2), (2, 2)]}


def test_sft_reports_tokenizing_training_and_validation(tmp_path: Path):
    progress = ProgressRecorder()
    with Run(tmp_path) as run:
        run.start("sft", {}, {})
        config = sft.settings(epochs=1, micro_batch_tokens=16)
        train_sft(config, sft.random_rollouts(), tiny_model(), run, on_progress=progress)
    assert progress.counts["conversations tokenized"][0] == (0, 40)
    assert progress.counts["conversations tokenized"][-1] == (40, 40)
    assert {total for _, total in progress.counts["micro-batches"]} != {1}
    assert progress.counts["validation micro-batches"][-1][0] == progress.counts["validation micro-batches"][-1][1]


@pytest.mark.parametrize("overrides", [{}, {"max_off_policy_steps": 2}], ids=["in step", "streaming"])
def test_rl_reports_rollouts_and_micro_batches(tmp_path: Path, overrides: dict[str, Any]):
    progress = ProgressRecorder()
    config = rl.settings(steps=2, **overrides)
    with Run(tmp_path) as run:
        run.start("rl", {}, {})
        asyncio.run(train_rl(config, rl.one_turn(), tiny_model(), run, on_progress=progress))
    assert (16, 16) in progress.counts["rollouts"]
    assert all(done <= total == 16 for done, total in progress.counts["rollouts"])
    assert (1, 1) in progress.counts["micro-batches"]
