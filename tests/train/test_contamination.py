from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import write_environment
from flat_settings import with_tables
from tiers import each_row
from toy_envs import Quiz, rows

from rove.core.config import convert
from rove.core.errors import ConfigError
from rove.envs.dataset import example_key
from rove.train.config import EvaluationConfig, RLConfig
from rove.train.contamination import MAX_ROWS, Overlap, find_overlaps, trained_keys

SOURCE = """
import rove as vf

def load_environment(first=0, count=30):
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(first, first + count)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())
"""


def config(**over: Any) -> RLConfig:
    return convert(
        RLConfig,
        with_tables({"env": "quiz", "model": "m", "steps": 5, "batch_size": 8, "rollouts_per_example": 4, **over}),
    )


@each_row(
    ("over", "count", "looked_at"),
    [
        ({}, 100, 10),  # two groups in each of five steps
        ({}, 6, 6),
        ({"filter__dynamic_sampling_rounds": 2}, 100, 30),
        ({"curriculum__shuffle": True}, 100, 100),
        ({"curriculum__shuffle": True}, MAX_ROWS + 5, MAX_ROWS),
        ({"steps": MAX_ROWS}, MAX_ROWS + 5, MAX_ROWS),
    ],
)
def test_trained_keys_covers_the_rows_that_a_run_may_use(over: dict[str, Any], count: int, looked_at: int):
    env = Quiz(count=count)
    assert trained_keys(config(**over), env) == [example_key(row) for row in env.get_dataset(looked_at)]


def test_only_the_rows_used_by_the_run_are_read_from_a_generator():
    rows_read = []

    def generate_rows() -> Any:
        for row in rows(100):
            rows_read.append(row)
            yield row

    assert len(trained_keys(config(curriculum__shuffle=True), Quiz(dataset=generate_rows))) == 10
    assert len(rows_read) == 10


def test_find_overlaps_counts_evaluation_rows_that_are_also_trained_on(tmp_path: Path):
    write_environment(tmp_path, "shared_rows", SOURCE)
    trained = {example_key(row) for row in Quiz(count=20).get_dataset()}
    evaluations = [
        EvaluationConfig(env="shared_rows", name="same"),
        EvaluationConfig(env="shared_rows", name="few", num_examples=5),
        EvaluationConfig(env="shared_rows", name="all", num_examples=-1, env_args={"first": 15}),
        EvaluationConfig(env="shared_rows", name="others", env_args={"first": 20}),
        EvaluationConfig(env="shared_rows", name="lines", kind="exhaustive"),
    ]
    overlaps = find_overlaps(evaluations, tmp_path, trained)
    assert overlaps == [Overlap("same", 20, 30), Overlap("few", 5, 5), Overlap("all", 5, 30), Overlap("others", 0, 30)]
    assert str(overlaps[0]) == "same: 20 of 30 rows are also trained on"
    with pytest.raises(ConfigError):
        find_overlaps([EvaluationConfig(env="shared_rowz")], tmp_path, trained)
