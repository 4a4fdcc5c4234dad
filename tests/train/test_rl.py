from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from fakes import make_rollout, tiny_model
from flat_settings import with_tables
from tiers import each_row, first_quick

import rove as vf
from rove.core.config import convert
from rove.core.errors import ConfigError, RunError
from rove.core.records import RolloutRecord, StepTokens, Timing
from rove.models.load import LoadedModel, load_model
from rove.runs.run import Run
from rove.runs.token_stats import TrainedRollout, read_tokens
from rove.train.collect import plan_groups, training_sequences
from rove.train.config import RLConfig
from rove.train.learner import Learner
from rove.train.rl import train_rl
from rove.train.trainer import Trainer, lr_scale

ROWS = [{"question": f"say {n}"} for n in range(4)]


def letters(completion: vf.Messages) -> float:
    """Return the fraction of lowercase letters in the assistant messages."""
    text = "".join(m["content"] for m in completion if m["role"] == "assistant")
    return sum("a" <= c <= "z" for c in text) / max(1, len(text))


def one_turn(reward: Any = letters) -> vf.Environment:
    rubric = vf.Rubric()
    rubric.add_reward_func(reward, weight=1.0, name="letters")
    return vf.SingleTurnEnv(dataset=ROWS, rubric=rubric)


class TwoTurns(vf.MultiTurnEnv):
    """An environment with two turns, so that rollouts use a KV cache and a growing prompt."""

    torn_down = 0

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        return "you say"

    @vf.teardown
    def count(self) -> None:
        self.torn_down += 1


def two_turns() -> TwoTurns:
    rubric = vf.Rubric()
    rubric.add_reward_func(letters, weight=1.0)
    return TwoTurns(dataset=ROWS, rubric=rubric, max_turns=2)


def settings(**fields: Any) -> RLConfig:
    defaults: dict[str, Any] = {
        "env": "letters",
        "model": "models/new",
        "steps": 5,
        "batch_size": 16,
        "rollouts_per_example": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "max_tokens": 4,
        "checkpoint_every": 2,
        "threads": 1,
    }
    return convert(RLConfig, with_tables({**defaults, **fields}))


class Killed(Exception):
    """Simulates `kill -9`."""


def train(path: Path, config: RLConfig, env: vf.Environment, kill_at: int | None = None) -> LoadedModel:
    """Train like a new process: with a new model and a run folder that may exist."""
    loaded = tiny_model()

    def on_step(step: int, metrics: Any) -> None:
        if step == kill_at:
            raise Killed

    with Run(path) as run:
        run.start("rl", {}, {})
        asyncio.run(train_rl(config, env, loaded, run, on_step))
    return loaded


def weights_of(path: Path) -> bytes:
    return (path / "final" / "model.safetensors").read_bytes()


def rollouts_of(path: Path) -> list[RolloutRecord]:
    """Return the saved rollouts without their times."""
    records = []
    for record in Run(path).rollouts():
        steps = [msgspec.structs.replace(step, seconds=0.0) for step in record.steps]
        records.append(msgspec.structs.replace(record, steps=steps, timing=Timing()))
    return records


def tokens_of(path: Path) -> list[list[TrainedRollout]]:
    return [read_tokens(path, step) for step in range(1, 6)]


def metrics_of(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in m.items() if not k.startswith("time/")} for m in Run(path).metrics()]


@pytest.mark.broad
@pytest.mark.parametrize("loss", first_quick(["cispo", "grpo"], broad=0))
def test_the_reward_rises(tmp_path: Path, loss: str):
    train(
        tmp_path,
        settings(steps=12, batch_size=64, rollouts_per_example=16, loss__kind=loss, checkpoint_every=99),
        one_turn(),
    )
    rewards = [m["reward/mean"] for m in metrics_of(tmp_path)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2


def test_every_step_trains_on_policy(tmp_path: Path):
    train(tmp_path, settings(temperature=1.25), two_turns())
    for m in metrics_of(tmp_path):
        assert m["ratio/mean"] == pytest.approx(1, abs=1e-5)
        assert m["logprob_diff/max"] <= 1e-4
        assert m["tokens"] > 0
    for record in rollouts_of(tmp_path):
        assert record.step is not None
        assert {step.tokens.policy_version for step in record.steps if step.tokens} == {record.step - 1}
        assert record.temperature == 1.25


@pytest.mark.broad
def test_mismatch_metrics_come_from_the_first_of_several_updates(tmp_path: Path):
    train(tmp_path, settings(num_iterations=2), two_turns())
    for m in metrics_of(tmp_path):
        assert m["logprob_diff/max"] <= 1e-4
        assert m["mismatch_kl/all/mean"] <= 1e-8
    assert max(m["ratio/max"] for m in metrics_of(tmp_path)) > 1.001


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rl")
    train(path, settings(), two_turns())
    return path


@pytest.mark.broad
def test_the_kl_penalty_limits_the_distance_from_the_initial_model(tmp_path: Path):
    initial, distances = torch.cat([p.flatten() for p in tiny_model().model.parameters()]), []
    for penalty in (0.0, 10.0):
        config = settings(steps=3, loss__kl_penalty=penalty, checkpoint_every=99)
        loaded = train(tmp_path / str(penalty), config, two_turns())
        distances.append((torch.cat([p.flatten() for p in loaded.model.parameters()]) - initial).norm().item())
    assert distances[1] < distances[0]


@pytest.mark.slow
def test_a_run_with_a_reference_and_several_updates_resumes_exactly(tmp_path: Path):
    config = settings(loss__kl_penalty=1.0, num_iterations=2)
    train(tmp_path / "whole", config, two_turns())
    with pytest.raises(Killed):
        train(tmp_path / "killed", config, two_turns(), kill_at=3)
    train(tmp_path / "killed", config, two_turns())
    assert weights_of(tmp_path / "killed") == weights_of(tmp_path / "whole")


@pytest.mark.broad
@pytest.mark.parametrize(
    "overrides", first_quick([{}, {"max_off_policy_steps": 1}], broad=0), ids=["in step", "playing ahead"]
)
def test_a_run_with_a_synced_reference_resumes_exactly(tmp_path: Path, overrides: dict[str, Any]):
    """The checkpoint of step 3 has the reference of step 2; the checkpoint of step 6 has the reference synced in that step."""
    config = settings(loss__kl_penalty=1.0, loss__sync_reference_every=2, steps=7, checkpoint_every=3, **overrides)
    train(tmp_path / "whole", config, two_turns())
    for kill_at in (4, 7):
        with pytest.raises(Killed):
            train(tmp_path / "killed", config, two_turns(), kill_at)
    train(tmp_path / "killed", config, two_turns())
    assert weights_of(tmp_path / "killed") == weights_of(tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")


@pytest.mark.broad
def test_the_reference_equals_the_model_at_the_last_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    matches: list[list[bool]] = []  # by step: whether the reference equals each version so far
    versions: list[torch.Tensor] = []

    def flat(model: Any) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    original_update = Learner.update

    def update(self: Learner, *arguments: Any) -> Any:
        versions.append(flat(self.trainer.model))
        matches.append([torch.equal(flat(self.reference), version) for version in versions])
        return original_update(self, *arguments)

    monkeypatch.setattr(Learner, "update", update)
    train(tmp_path, settings(loss__kl_penalty=1.0, loss__sync_reference_every=2), two_turns())
    assert [equal.index(True) for equal in matches] == [0, 0, 2, 2, 4]
    assert [sum(equal) for equal in matches] == [1] * 5


@pytest.mark.parametrize("kills", first_quick([[1], [2], [3, 4], [5]]))
def test_a_killed_run_ends_with_exactly_the_same_weights(uninterrupted: Path, tmp_path: Path, kills: list[int]):
    for kill_at in kills:
        env = two_turns()
        with pytest.raises(Killed):
            train(tmp_path, settings(), env, kill_at)
        assert env.torn_down == 1
        assert not (tmp_path / "final").exists()
    train(tmp_path, settings(), two_turns())
    assert weights_of(tmp_path) == weights_of(uninterrupted)
    assert metrics_of(tmp_path) == metrics_of(uninterrupted)
    assert rollouts_of(tmp_path) == rollouts_of(uninterrupted)
    assert tokens_of(tmp_path) == tokens_of(uninterrupted)


@pytest.mark.broad
def test_token_stats_of_some_rollouts_are_saved_without_changing_training(uninterrupted: Path, tmp_path: Path):
    records = {(r.step, r.example_key, r.rollout_index): r for r in rollouts_of(uninterrupted)}
    for step, rollouts in enumerate(tokens_of(uninterrupted), start=1):
        assert len(rollouts) == 8
        for rollout in rollouts:
            steps = records[step, rollout.example_key, rollout.rollout_index].steps
            assert [turn.turn for turn in rollout.turns] == [0, 1]
            for turn in rollout.turns:
                tokens = steps[turn.turn].tokens
                assert tokens is not None and len(turn.entropies) == len(turn.logprobs)
                assert turn.logprobs == pytest.approx(tokens.logprobs, abs=1e-4)  # all rollouts are on-policy here
                assert turn.advantage != 0 and min(turn.entropies) > 0
    train(tmp_path, settings(log_token_stats=0), two_turns())
    assert not (tmp_path / "tokens").exists()
    assert weights_of(tmp_path) == weights_of(uninterrupted)
    assert metrics_of(tmp_path) == metrics_of(uninterrupted)


@pytest.mark.broad
def test_a_step_killed_between_sampling_and_training_is_sampled_again(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []
    step = Trainer.step

    def kill_in_training(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise Killed
        return step(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "step", kill_in_training)
    with pytest.raises(Killed):
        train(tmp_path, settings(), two_turns())
    assert (len(rollouts_of(tmp_path)), len(metrics_of(tmp_path))) == (4 * 16, 3)
    monkeypatch.undo()
    train(tmp_path, settings(), two_turns())
    assert weights_of(tmp_path) == weights_of(uninterrupted)
    assert rollouts_of(tmp_path) == rollouts_of(uninterrupted)


def test_a_finished_run_is_not_changed(uninterrupted: Path):
    weights, metrics = weights_of(uninterrupted), Run(uninterrupted).metrics()
    loaded = train(uninterrupted, settings(), two_turns())
    assert (weights_of(uninterrupted), Run(uninterrupted).metrics()) == (weights, metrics)
    final = load_model(uninterrupted / "final", device="cpu").model.state_dict()
    assert all(torch.equal(final[name], tensor) for name, tensor in loaded.model.state_dict().items())


def test_old_checkpoints_are_deleted(uninterrupted: Path):
    assert sorted(p.name for p in (uninterrupted / "checkpoints").iterdir()) == ["4", "5"]


@pytest.mark.broad
def test_another_seed_gives_other_weights(uninterrupted: Path, tmp_path: Path):
    train(tmp_path, settings(seed=1), two_turns())
    assert weights_of(tmp_path) != weights_of(uninterrupted)


def test_micro_batches_change_only_rounding(uninterrupted: Path, tmp_path: Path):
    train(tmp_path, settings(steps=1, micro_batch_tokens=1), two_turns())
    small, whole = metrics_of(tmp_path)[0], metrics_of(uninterrupted)[0]
    assert small["optim/grad_norm"] == pytest.approx(whole["optim/grad_norm"], rel=1e-4)
    assert small["tokens"] == whole["tokens"]


def test_a_step_with_only_zero_advantage_groups_trains_nothing(tmp_path: Path):
    loaded = train(tmp_path, settings(steps=2), one_turn(lambda completion: 0.5))
    fresh = tiny_model().model.state_dict()
    assert all(torch.equal(fresh[name], tensor) for name, tensor in loaded.model.state_dict().items())
    for m in metrics_of(tmp_path):
        assert (m["groups/all"], m["groups/zero_spread"]) == (4.0, 4.0)
        assert "loss" not in m


def test_a_step_in_which_every_rollout_failed_raises_with_the_cause(tmp_path: Path):
    def broken(completion: vf.Messages) -> float:
        raise KeyError("the answer key is lost")

    with pytest.raises(RunError, match=r"every rollout of step 1 failed.*letters.*the answer key is lost"):
        train(tmp_path, settings(), one_turn(broken))
    assert all(record.error is not None for record in rollouts_of(tmp_path))


def test_failed_rollouts_do_not_affect_others(tmp_path: Path):
    def sometimes_fails(completion: vf.Messages, state: vf.State) -> float:
        if state["seed"] % 3 == 0:
            raise ValueError("not today")
        return letters(completion)

    train(tmp_path, settings(steps=2), one_turn(sometimes_fails))
    failed = [sum(r.error is not None for r in rollouts_of(tmp_path) if r.step == step) for step in (1, 2)]
    assert 0 < sum(failed) < 32
    metrics = metrics_of(tmp_path)
    assert [m["rollouts/failed"] for m in metrics] == failed
    for step, m in enumerate(metrics, start=1):
        rewards = [r.reward for r in rollouts_of(tmp_path) if r.step == step and r.reward is not None]
        assert m["reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
        assert m["tokens"] > 0


TURN = [StepTokens([1], [2, 3], [-0.1, -0.2])]


def make_group(*rewards: float | None, key: str = "a", **fields: Any) -> list[RolloutRecord]:
    return [make_rollout(TURN, reward, key=key, index=i, **fields) for i, reward in enumerate(rewards)]


def last_advantages(records: list[RolloutRecord], truncated: str = "keep") -> list[float]:
    return [sequence.advantages[-1] for rollout in training_sequences(records, truncated)[0] for sequence in rollout]


def test_advantages_are_relative_to_the_group_mean():
    records = [*make_group(1.0, 0.0, key="a"), *make_group(4.0, 2.0, 3.0, key="b")]
    assert last_advantages(records) == pytest.approx([0.5, -0.5, 1.0, -1.0, 0.0])


def test_training_sequences_do_not_depend_on_the_order_of_rollouts():
    records = [*make_group(1.0, 0.0, key="a"), *make_group(4.0, 2.0, 3.0, key="b", example_id=1)]
    assert training_sequences(records[::-1]) == training_sequences(records)


def test_zero_advantage_groups_are_excluded_and_counted():
    sequences, counts = training_sequences(
        [*make_group(1.0, 1.0, key="a"), *make_group(1.0, 0.0, key="b"), *make_group(1.0, key="c")]
    )
    assert len(sequences) == 2
    assert (counts["groups/all"], counts["groups/zero_spread"], counts["groups/too_few"]) == (3.0, 1.0, 1.0)


def test_failed_rollouts_are_excluded_from_the_group_mean():
    records = make_group(1.0, None, 0.0, None)
    assert last_advantages(records) == [0.5, -0.5]
    assert training_sequences(records)[1]["rollouts/failed"] == 2.0
    too_few = training_sequences(make_group(1.0, None, None))
    assert (too_few[0], too_few[1]["groups/zero_spread"], too_few[1]["groups/too_few"]) == ([], 0.0, 1.0)


@pytest.mark.parametrize(
    ("truncated", "expected"), [("keep", [0.5, -0.5, 0.0]), ("zero", [2 / 3, -1 / 3, -1 / 3]), ("mask", [0.5, -0.5])]
)
def test_truncated_rollouts_are_kept_zeroed_or_masked(truncated: str, expected: list[float]):
    records = [*make_group(1.0, 0.0), make_rollout(TURN, 0.5, index=2, is_truncated=True)]
    assert last_advantages(records, truncated) == pytest.approx(expected)
    assert training_sequences(records, truncated)[1]["rollouts/truncated"] == 1.0


def test_the_learning_rate_warms_up_and_decays_to_its_final_fraction():
    scales = [lr_scale(step, 100, 10, 0.1) for step in range(100)]
    assert scales[0] == pytest.approx(0.1)
    assert scales[:10] == sorted(scales[:10])
    assert scales[9:] == sorted(scales[9:], reverse=True)
    assert scales[99] == pytest.approx(0.1, abs=1e-12)
    assert lr_scale(4, 5, 0, 0.0) == lr_scale(5, 5, 0, 0.0) == 0.0
    assert lr_scale(0, 1, 0, 0.1) == 1.0
    assert [lr_scale(step, 5, 0, 1.0) for step in range(5)] == [1.0] * 5


def test_the_scheduled_learning_rate_is_the_one_used(uninterrupted: Path):
    config = settings()
    assert [m["optim/lr"] for m in metrics_of(uninterrupted)] == pytest.approx(
        [1e-2 * lr_scale(step, 5, config.warmup_steps, config.final_lr_fraction) for step in range(5)]
    )


def test_steps_go_through_the_dataset_with_unique_seeds(tmp_path: Path):
    train(
        tmp_path, settings(batch_size=12, steps=4), one_turn()
    )  # three groups of four per step; four examples in total
    steps = [[r for r in rollouts_of(tmp_path) if r.step == step] for step in range(1, 5)]
    assert [sorted(r.example_id for r in step) for step in steps] == [
        [0] * 4 + [1] * 4 + [2] * 4,
        [0] * 4 + [1] * 4 + [3] * 4,
        [0] * 4 + [2] * 4 + [3] * 4,
        [1] * 4 + [2] * 4 + [3] * 4,
    ]
    assert len({r.seed for step in steps for r in step}) == 48
    assert [m["examples/drawn"] for m in metrics_of(tmp_path)] == [3, 6, 9, 12]


def test_an_example_drawn_twice_in_a_step_has_two_groups():
    example = one_turn().get_dataset()[0]
    groups = plan_groups([example] * 4, 4, 0, 0)
    assert len({make_group[0].key for make_group in groups}) == 4
    assert plan_groups([example] * 5, 4, 0, 0)[:4] == groups
    assert len({plan_groups([example], 4, 0, step)[0][0].seed for step in range(4)}) == 4


@each_row(
    ("wrong", "message"),
    [
        ({"rollouts_per_example": 1}, "rollouts_per_example"),
        ({"batch_size": 18}, "multiple"),
        ({"truncated": "drop"}, "keep, zero or mask"),
        ({"temperature": 0.0}, "temperature"),
        ({"steps": 0}, "steps is 0; expected an integer, 1 or more"),
        ({"loss__kind": "ppo"}, "no loss"),
        ({"loss__max_ratio": 0.2}, "max_ratio"),
        ({"gamma": 1.5}, "gamma"),
        ({"loss__kl_penalty": 1.0, "loss__sync_reference_every": 0}, "sync_reference_every is 0"),
        ({"loss__sync_reference_every": 5}, "kl_penalty is 0"),
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        settings(**wrong).check()


def test_prompts_beyond_the_context_are_counted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    rows = [{"question": "hi", "answer": ""}, {"question": "long " * 2000, "answer": ""}]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[letters]))
    train(tmp_path, settings(steps=2), env)
    overlong = [record for record in rollouts_of(tmp_path) if record.stop_condition == "prompt_too_long"]
    assert overlong and not any(record.steps for record in overlong)
    notes = [record.getMessage() for record in caplog.records if "did not fit" in record.getMessage()]
    first_step = [record for record in overlong if record.step == 1]
    assert len(notes) == 1
    assert notes[0].startswith(f"step 1: {len(first_step)} of ")
    assert f"context of 1024 tokens, {len(first_step)} of them before the first response" in notes[0]
