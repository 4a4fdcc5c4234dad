"""Which held-out examples choose the weights, and which ones are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.stages.evaluation import EvalConfig
from rove.train.config import EvaluationConfig
from rove.train.held_out import FEWEST_SPLIT, SELECTION_ROLLOUTS, overlap_note, split_held_out

METRIC = "eval/sampled/reward/mean"


@given(st.none() | st.integers(1, 3000), st.sampled_from([400, 1000]), st.booleans())
def test_the_examples_of_both_are_disjoint_and_exist(available: int | None, table: int, has_seed: bool):
    split = split_held_out(available, table, has_seed)
    assert split.selection > 0 and split.table > 0
    if available is not None and not split.has_other_seed:
        assert split.skipped + split.table <= available
    if split.has_other_seed:
        assert has_seed and (available is None or available >= SELECTION_ROLLOUTS + table)
    elif available is None or available >= FEWEST_SPLIT:
        assert split.skipped == split.selection
    else:
        assert (split.selection, split.table, split.skipped) == (available, available, 0)
        assert f"There are only {available}" in split.explanation


def test_splits_computed_by_hand():
    assert split_held_out(None, 1000, False)[:4] == (200, 1000, 200, False)
    assert split_held_out(None, 1000, True)[:4] == (200, 1000, 0, True)
    assert split_held_out(90, 1000, True)[:4] == (30, 60, 30, False)
    assert split_held_out(5000, 400, False)[:4] == (200, 400, 200, False)


def table(**settings: object) -> EvalConfig:
    return EvalConfig(**{"env": "quiz", "model": "m", "num_examples": 40, "env_args": {}, **settings})  # pyright: ignore[reportArgumentType]


SELECTION = EvaluationConfig(env="quiz", name="sampled", num_examples=20)


@pytest.mark.parametrize(
    "settings",
    [{"skip_examples": 20}, {"skip_examples": 30}, {"env_args": {"seed": 1}}, {"env": "other"}],
)
def test_a_table_of_other_examples_has_no_note(settings: dict[str, object]):
    assert overlap_note(METRIC, [SELECTION], 0, table(**settings)) is None


def test_a_table_of_the_same_examples_says_so():
    same = overlap_note(METRIC, [SELECTION], 0, table(seed=0))
    assert same is not None and "the same random seeds, so its values are too high" in same
    assert "set skip_examples = 20 under [evaluation]" in same
    seeds = overlap_note(METRIC, [SELECTION], 0, table(seed=7, skip_examples=19))
    assert seeds is not None and "so its values may be too high" in seeds
    assert overlap_note("loss/validation", [SELECTION], 0, table()) is None
    assert overlap_note(None, [SELECTION], 0, table()) is None
