"""The learner: token statistics and training with several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes import make_rollout, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import relative_difference, run_in_process, run_with_torchrun
from ranks_program import Job

from rove.core.records import RolloutRecord, StepTokens
from rove.runs.token_stats import TrainedRollout
from rove.train.batch import micro_batches
from rove.train.learner import Learner, TokenStats
from rove.train.rl import objective_of
from rove.train.sequences import TrainingSequence, sequences_from_record
from tests.train.test_rl import settings as rl_settings


@pytest.mark.parametrize("mixed_precision", [False, True])
def test_the_reference_computes_in_the_precision_of_the_policy(bf16_products: None, mixed_precision: bool):
    config = rl_settings(loss__kl_penalty=1.0, mixed_precision=mixed_precision)
    learner = Learner(config, objective_of(config), tiny_model())
    dtypes = [model.lm_head.forward_dtype for model in (learner.reference, learner.trainer.model)]
    assert dtypes == [torch.bfloat16 if mixed_precision else torch.float32] * 2


TOKEN_IDS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@st.composite
def records(draw: st.DrawFn) -> list[RolloutRecord]:
    """Generate rollouts of few different tokens with unique log-probabilities; turns extend earlier turns or start over."""
    records, count = [], 0
    for index in range(draw(st.integers(1, 5))):
        turns: list[StepTokens] = []
        for added_ids, completion in draw(
            st.lists(st.tuples(TOKEN_IDS, st.lists(st.integers(0, 3), max_size=4)), max_size=4)
        ):
            prefix = draw(st.sampled_from([[], *(turn.ids for turn in turns)]))
            logprobs = [-float(count + i) for i in range(len(completion))]
            count += len(completion)
            turns.append(StepTokens([*prefix, *added_ids], completion, logprobs))
        records.append(make_rollout(turns, index=index))
    return records


@settings(deadline=None, max_examples=200)
@given(records(), st.booleans(), st.integers(1, 40), st.integers(0, 9))
def test_token_stats_records_the_values_of_every_token(
    recorded: list[RolloutRecord], pack: bool, most: int, count: int
):
    sequences = [
        sequence
        for record in recorded
        for sequence in sequences_from_record(record, [0.5 + i for i in range(len(record.steps))])
    ]
    stats = TokenStats(sequences, count, seed=1)
    for batch in micro_batches(sequences, most, pack=pack):
        stats.add(batch, batch.logprobs, batch.targets.float())
    rollouts = {rollout.rollout_index: rollout for rollout in stats.rollouts()}
    turns_by_rollout = {record.rollout_index: record.steps for record in recorded if record.steps}
    assert rollouts.keys() <= turns_by_rollout.keys() and len(rollouts) == min(count, len(turns_by_rollout))
    for index, rollout in rollouts.items():
        tokens_by_turn = {
            i: step.tokens
            for i, step in enumerate(turns_by_rollout[index])
            if step.tokens and step.tokens.completion_ids
        }
        assert {turn.turn: (turn.logprobs, turn.entropies) for turn in rollout.turns} == {
            i: (tokens.logprobs, [float(id) for id in tokens.completion_ids]) for i, tokens in tokens_by_turn.items()
        }
        assert all(turn.advantage == 0.5 + turn.turn for turn in rollout.turns)


def test_the_choice_of_rollouts_depends_only_on_the_seed():
    sequences = [sequence for i in range(20) for sequence in sequences_from_record(one_turn_record(i), 1.0)]
    chosen = TokenStats(sequences, 3, seed=7).chosen
    assert chosen == TokenStats(sequences[::-1], 3, seed=7).chosen != TokenStats(sequences, 3, seed=8).chosen
    assert TokenStats(sequences, 0, seed=7).rollouts() == []
    assert TokenStats([TrainingSequence([1, 2], [False, True], [0.0, -1.0], [0.0, 1.0])], 3, seed=7).chosen == set()


def one_turn_record(index: int) -> RolloutRecord:
    return make_rollout([StepTokens([1, 2], [3, index], [-0.1, -0.2])], index=index)


def test_a_first_token_without_a_prefix_is_excluded():
    [sequence] = sequences_from_record(make_rollout([StepTokens([], [3, 4], [-0.1, -0.2])]), 1.0)
    stats = TokenStats([sequence], 1, seed=0)
    [batch] = micro_batches([sequence], 10)
    stats.add(batch, torch.tensor([-0.2]), torch.tensor([0.3]))
    assert stats.rollouts() == [TrainedRollout("a", 0, [])]


def test_token_stats_are_rounded_to_six_decimals():
    [sequence] = sequences_from_record(one_turn_record(5), 1.0)
    stats = TokenStats([sequence], 1, seed=0)
    [batch] = micro_batches([sequence], 10)
    stats.add(batch, torch.tensor([-0.12345678, -0.0]), torch.tensor([0.5, 1.0]))
    assert stats.rollouts()[0].turns[0].logprobs == pytest.approx([-0.123457, 0.0], abs=1e-9)


@pytest.mark.broad
def test_two_processes_train_like_one_and_one_resumes_their_checkpoint(tmp_path: Path):
    steps = {"out": str(tmp_path / "whole"), "steps": (0, 6)}
    whole = run_in_process(Job(**steps))
    two = run_with_torchrun(2, Job(**steps | {"out": str(tmp_path / "two")}, save=str(tmp_path / "saved")))
    assert relative_difference(two["gradient"], whole["gradient"]) <= 1e-5
    assert relative_difference(two["weights"], whole["weights"]) <= 1e-5
    assert two["measured"] == pytest.approx(whole["measured"], rel=1e-3)
    assert two["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    resumed = run_in_process(Job(str(tmp_path / "rest"), steps=(6, 8), restore=str(tmp_path / "saved")))
    uninterrupted = run_in_process(Job(str(tmp_path / "longer"), steps=(0, 8)))
    assert relative_difference(resumed["weights"], uninterrupted["weights"]) <= 1e-5


@pytest.mark.slow
def test_mixed_precision_gradients_are_close_to_float32(tmp_path: Path):
    whole = run_in_process(Job(str(tmp_path / "whole")))
    mixed = run_with_torchrun(2, Job(str(tmp_path / "mixed"), config={"mixed_precision": True}))
    assert 1e-6 < relative_difference(mixed["gradient"], whole["gradient"]) < 0.05
    assert all(tensor.dtype == torch.float32 for tensor in mixed["weights"].values())
