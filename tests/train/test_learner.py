"""X."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes import record_of
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import alone, difference, several
from ranks_program import Job

from rove.core.records import RolloutRecord, StepTokens
from rove.runs.token_stats import TrainedRollout
from rove.train.batch import micro_batches
from rove.train.learner import TokenStats
from rove.train.sequences import TrainingSequence, sequences_from_record

FEW = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@st.composite
def records(draw: st.DrawFn) -> list[RolloutRecord]:
    """Rollouts of few different tokens, whose turns go on, break off or alternate; every log-probability is another one."""
    made, count = [], 0
    for index in range(draw(st.integers(1, 5))):
        turns: list[StepTokens] = []
        for added, said in draw(st.lists(st.tuples(FEW, st.lists(st.integers(0, 3), max_size=4)), max_size=4)):
            before = draw(st.sampled_from([[], *(turn.ids for turn in turns)]))
            logprobs = [-float(count + i) for i in range(len(said))]
            count += len(said)
            turns.append(StepTokens([*before, *added], said, logprobs))
        made.append(record_of(turns, index=index))
    return made


@settings(deadline=None, max_examples=200)
@given(records(), st.booleans(), st.integers(1, 40), st.integers(0, 9))
def test_every_token_has_its_own_numbers(made: list[RolloutRecord], pack: bool, most: int, count: int):
    samples = [
        sample for one in made for sample in sequences_from_record(one, [0.5 + i for i in range(len(one.steps))])
    ]
    stats = TokenStats(samples, count, seed=1)
    for batch in micro_batches(samples, most, pack=pack):
        stats.add(batch, batch.logprobs, batch.targets.float())
    found = {rollout.rollout_index: rollout for rollout in stats.rollouts()}
    played = {one.rollout_index: one.steps for one in made if one.steps}
    assert found.keys() <= played.keys() and len(found) == min(count, len(played))
    for index, rollout in found.items():
        said = {i: step.tokens for i, step in enumerate(played[index]) if step.tokens and step.tokens.completion_ids}
        assert {turn.turn: (turn.logprobs, turn.entropies) for turn in rollout.turns} == {
            i: (tokens.logprobs, [float(id) for id in tokens.completion_ids]) for i, tokens in said.items()
        }
        assert all(turn.advantage == 0.5 + turn.turn for turn in rollout.turns)


def test_the_same_seed_chooses_the_same_and_none_are_none():
    samples = [sample for i in range(20) for sample in sequences_from_record(turns_of(i), 1.0)]
    chosen = TokenStats(samples, 3, seed=7).chosen
    assert chosen == TokenStats(samples[::-1], 3, seed=7).chosen != TokenStats(samples, 3, seed=8).chosen
    assert TokenStats(samples, 0, seed=7).rollouts() == []
    assert TokenStats([TrainingSequence([1, 2], [False, True], [0.0, -1.0], [0.0, 1.0])], 3, seed=7).chosen == set()


def turns_of(index: int) -> RolloutRecord:
    return record_of([StepTokens([1, 2], [3, index], [-0.1, -0.2])], index=index)


def test_a_first_token_that_nothing_predicts_is_left_out():
    [sample] = sequences_from_record(record_of([StepTokens([], [3, 4], [-0.1, -0.2])]), 1.0)
    stats = TokenStats([sample], 1, seed=0)
    [batch] = micro_batches([sample], 10)
    stats.add(batch, torch.tensor([-0.2]), torch.tensor([0.3]))
    assert stats.rollouts() == [TrainedRollout("a", 0, [])]


def test_numbers_are_rounded_to_a_millionth():
    [sample] = sequences_from_record(turns_of(5), 1.0)
    stats = TokenStats([sample], 1, seed=0)
    [batch] = micro_batches([sample], 10)
    stats.add(batch, torch.tensor([-0.12345678, -0.0]), torch.tensor([0.5, 1.0]))
    assert stats.rollouts()[0].turns[0].logprobs == pytest.approx([-0.123457, 0.0], abs=1e-9)


@pytest.mark.broad
def test_two_processes_are_one_and_one_goes_on_from_what_two_have_saved(tmp_path: Path):
    steps = {"out": str(tmp_path / "whole"), "steps": (0, 20)}
    whole = alone(Job(**steps))
    two = several(2, Job(**steps | {"out": str(tmp_path / "two")}, save=str(tmp_path / "saved")))
    assert difference(two["gradient"], whole["gradient"]) <= 1e-5
    assert difference(two["weights"], whole["weights"]) <= 1e-5
    assert two["measured"] == pytest.approx(whole["measured"], rel=1e-3)
    assert two["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    rest = alone(Job(str(tmp_path / "rest"), steps=(20, 22), restore=str(tmp_path / "saved")))
    longer = alone(Job(str(tmp_path / "longer"), steps=(0, 22)))
    assert difference(rest["weights"], longer["weights"]) <= 1e-5


@pytest.mark.slow
def test_mixed_precision_is_near(tmp_path: Path):
    whole = alone(Job(str(tmp_path / "whole")))
    mixed = several(2, Job(str(tmp_path / "mixed"), config={"mixed_precision": True}))
    assert 1e-6 < difference(mixed["gradient"], whole["gradient"]) < 0.05
    assert all(tensor.dtype == torch.float32 for tensor in mixed["weights"].values())
