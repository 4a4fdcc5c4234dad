"""Sampling and training at the same time (`max_off_policy_steps = 1`)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiers import first_quick

from rove.core.errors import ConfigError
from rove.train import rl
from rove.train.collect import RolloutCollector
from tests.train.test_evaluation import envs, table
from tests.train.test_rl import Killed, metrics_of, rollouts_of, settings, train, two_turns, weights_of

__all__ = ["envs"]


def off_policy_settings(**fields: Any) -> Any:
    return settings(**{"steps": 7, "max_off_policy_steps": 1, "checkpoint_every": 4, **fields})


def weight_ages(path: Path) -> list[float]:
    """Return the age of the weights that sampled each step, from the versions in the records."""
    records = rollouts_of(path)
    versions = {
        step: {t.policy_version for r in records if r.step == step for t in step_tokens(r)} for step in range(1, 8)
    }
    assert all(len(step_versions) == 1 for step_versions in versions.values())
    return [step - 1 - step_versions.pop() for step, step_versions in versions.items()]


def step_tokens(record: Any) -> list[Any]:
    return [step.tokens for step in record.steps if step.tokens]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("overlap")
    train(path, off_policy_settings(), two_turns())
    return path


def test_rollouts_are_at_most_one_version_old_and_metrics_record_it(uninterrupted: Path):
    assert weight_ages(uninterrupted) == [0, 1, 1, 1, 0, 1, 1]  # sampling restarts after the checkpoint of step 4
    metrics = metrics_of(uninterrupted)
    assert [m["off_policy/max"] for m in metrics] == weight_ages(uninterrupted)
    assert [m["off_policy/mean"] for m in metrics] == weight_ages(uninterrupted)


def test_the_loss_uses_the_sampling_log_probabilities(uninterrupted: Path):
    for age, m in zip(weight_ages(uninterrupted), metrics_of(uninterrupted), strict=True):
        if age:
            assert m["logprob_diff/max"] > 1e-3
            assert m["ratio/max"] > 1.001
        else:
            assert m["logprob_diff/max"] <= 1e-4


@pytest.mark.broad
def test_max_off_policy_steps_0_is_on_policy(tmp_path: Path):
    train(tmp_path, off_policy_settings(max_off_policy_steps=0), two_turns())
    assert weight_ages(tmp_path) == [0] * 7
    assert {m["off_policy/max"] for m in metrics_of(tmp_path)} == {0}


@pytest.mark.broad
def test_a_step_is_sampled_while_another_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Training of each step waits until the next step is sampled, except before checkpoints and at the end."""
    learn, run = rl.learn, RolloutCollector._run_groups
    sampled = [threading.Event() for _ in range(8)]

    async def watched_run(self: RolloutCollector, step: int, groups: Any) -> Any:
        records = await run(self, step, groups)
        sampled[step].set()
        return records

    def watched_learn(config: Any, step: int, *args: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        if step + 1 not in (4, 7):
            assert sampled[step + 1].wait(timeout=30)
        else:
            assert not sampled[min(step + 1, 7)].wait(timeout=0.1)
        return learn(config, step, *args)

    monkeypatch.setattr(RolloutCollector, "_run_groups", watched_run)
    monkeypatch.setattr(rl, "learn", watched_learn)
    train(tmp_path, off_policy_settings(), two_turns())


@pytest.mark.parametrize("kills", first_quick([[1], [4], [5], [6, 7]]))
def test_a_killed_run_ends_with_the_same_weights(uninterrupted: Path, tmp_path: Path, kills: list[int]):
    for kill_at in kills:
        env = two_turns()
        with pytest.raises(Killed):
            train(tmp_path, off_policy_settings(), env, kill_at)
        assert env.torn_down == 1
    train(tmp_path, off_policy_settings(), two_turns())
    assert weights_of(tmp_path) == weights_of(uninterrupted)
    assert metrics_of(tmp_path) == metrics_of(uninterrupted)
    assert rollouts_of(tmp_path) == rollouts_of(uninterrupted)


@pytest.mark.broad
def test_evaluations_use_the_weights_of_their_step(tmp_path: Path, envs: str):
    config = {"steps": 3, "evaluation": [table(every=1)], "env_dir": envs}
    for name, fields in {"overlap": {}, "plain": {"max_off_policy_steps": 0}}.items():
        train(tmp_path / name, off_policy_settings(**config, **fields), two_turns())
    # With an evaluation after every step nothing is sampled ahead, so both runs are equal.
    names = [n for n in metrics_of(tmp_path / "plain")[0] if n.startswith("eval/")]
    assert names
    for row, other_row in zip(metrics_of(tmp_path / "overlap"), metrics_of(tmp_path / "plain"), strict=True):
        assert [row[name] for name in names] == [other_row[name] for name in names]
    train(tmp_path / "some", off_policy_settings(steps=4, evaluation=[table(every=3)], env_dir=envs), two_turns())
    assert [m["off_policy/max"] for m in metrics_of(tmp_path / "some")] == [0, 1, 1, 0]


def test_a_loss_without_importance_ratios_is_rejected_for_off_policy_training():
    with pytest.raises(ConfigError, match="reinforce, which has no ratio"):
        settings(max_off_policy_steps=2, loss__kind="reinforce").check()


def test_negative_max_off_policy_steps_are_rejected():
    with pytest.raises(ConfigError, match="max_off_policy_steps is -1; expected an integer, 0"):
        settings(max_off_policy_steps=-1).check()


@pytest.mark.broad
@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("ahead", first_quick([0, 1], broad=0))
def test_bf16_sampling_uses_a_rounded_copy_of_the_newest_weights(tmp_path: Path, ahead: int):
    config = off_policy_settings(bf16_sampling=True, max_off_policy_steps=ahead)
    equal = []
    with pytest.MonkeyPatch.context() as patch:
        original_publish = rl._Loop.publish

        def publish(self: rl._Loop, version: int) -> None:
            original_publish(self, version)
            trained, sampled = (
                dict(model.named_parameters()) for model in (self.loaded.model, self.backend.client.engine.model)
            )
            equal.append(all(sampled[name].equal(value.bfloat16()) for name, value in trained.items()))

        patch.setattr(rl._Loop, "publish", publish)
        train(tmp_path / "whole", config, two_turns())
    assert equal and all(equal)
    assert any(1e-4 < m["logprob_diff/max"] < 1 for m in metrics_of(tmp_path / "whole"))
    train(tmp_path / "again", config, two_turns())
    assert weights_of(tmp_path / "whole") == weights_of(tmp_path / "again")
    assert all(
        weight.dtype == torch.float32 for weight in load_file(tmp_path / "whole/final/model.safetensors").values()
    )
