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


class Seen:
    """A progress callback that records its calls."""

    def __init__(self) -> None:
        self.counts: dict[str, list[tuple[int, int]]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        self.counts.setdefault(what, []).append((done, total))


def test_counted_reports_before_the_first_item_and_after_each():
    seen = Seen()
    assert list(counted("ab", "letters", seen)) == ["a", "b"]
    assert seen.counts == {"letters": [(0, 2), (1, 2), (2, 2)]}


def test_sft_reports_tokenizing_training_and_validation(tmp_path: Path):
    seen = Seen()
    with Run(tmp_path) as run:
        run.start("sft", {}, {})
        config = sft.settings(epochs=1, micro_batch_tokens=16)
        train_sft(config, sft.lawless(), tiny_model(), run, on_progress=seen)
    assert seen.counts["conversations tokenized"][0] == (0, 40)
    assert seen.counts["conversations tokenized"][-1] == (40, 40)
    assert {total for _, total in seen.counts["micro-batches"]} != {1}
    assert seen.counts["validation micro-batches"][-1][0] == seen.counts["validation micro-batches"][-1][1]


@pytest.mark.parametrize("more", [{}, {"max_off_policy_steps": 2}], ids=["in step", "streaming"])
def test_rl_reports_rollouts_and_micro_batches(tmp_path: Path, more: dict[str, Any]):
    seen = Seen()
    config = rl.settings(steps=2, **more)
    with Run(tmp_path) as run:
        run.start("rl", {}, {})
        asyncio.run(train_rl(config, rl.one_turn(), tiny_model(), run, on_progress=seen))
    assert (16, 16) in seen.counts["rollouts"]
    assert all(done <= total == 16 for done, total in seen.counts["rollouts"])
    assert (1, 1) in seen.counts["micro-batches"]
