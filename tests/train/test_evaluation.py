from __future__ import annotations

import json
import math
import ntpath
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from commands import write_environment
from fakes import tiny_model
from flat_settings import with_tables
from tiers import each_row, first_quick

import rove.train.evaluation as evaluation
from rove.core.config import convert
from rove.core.errors import ConfigError, RunError
from rove.models.load import load_model
from rove.runs.run import Run
from rove.train.config import EvaluationConfig, Goal, RLConfig, check_evaluations
from rove.train.evaluation import Best, best_of, count_falls, stop_reason
from rove.train.learner import Learner
from tests.train.test_loggers import Fake
from tests.train.test_rl import Killed, metrics_of, settings, train, two_turns, weights_of
from tests.train.test_sft import learnable_rollouts
from tests.train.test_sft import settings as sft_settings
from tests.train.test_sft import train as train_sft

SOURCE = """
import rove as vf

def letters(completion):
    text = completion[-1]["content"]
    if BROKEN:
        raise ValueError("no letters today")
    return sum("a" <= c <= "z" for c in text) / max(1, len(text))

def size(completion):
    return float(len(completion[-1]["content"]))

def load_environment(num_examples: int = 6, word: str = "say"):
    rubric = vf.Rubric([letters], [1.0])
    rubric.add_reward_func(size, weight=0.0)
    rows = [{"question": f"{word} {n}"} for n in range(num_examples)]
    return vf.SingleTurnEnv(dataset=[{"question": "train"}], eval_dataset=rows, rubric=rubric)
"""


@pytest.fixture(scope="module")
def envs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("environments")
    write_environment(folder, "heldout_letters", SOURCE.replace("BROKEN", "False"))
    write_environment(folder, "heldout_broken", SOURCE.replace("BROKEN", "True"))
    return str(folder)


def table(**fields: Any) -> EvaluationConfig:
    return convert(
        EvaluationConfig, with_tables({"env": "heldout_letters", "name": "let", "every": 2, "max_tokens": 4, **fields})
    )


def with_evaluations(envs: str, *tables: EvaluationConfig, **fields: Any) -> RLConfig:
    return settings(evaluation=list(tables or [table()]), env_dir=envs, **fields)


def metric_by_step(path: Path, name: str) -> dict[int, float]:
    return {m["step"]: m[name] for m in metrics_of(path) if name in m}


REWARD = "eval/let/reward/mean"
LOW, HIGH = "eval/let/reward/interval_low", "eval/let/reward/interval_high"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, envs: str) -> Path:
    path = tmp_path_factory.mktemp("evaluated")
    train(path, with_evaluations(envs, keep_best=REWARD), two_turns())
    return path


@pytest.mark.broad
def test_evaluations_run_every_n_steps_and_after_the_last_step(uninterrupted: Path):
    rewards = metric_by_step(uninterrupted, REWARD)
    assert list(rewards) == [2, 4, 5]
    for name in (
        "reward/interval_low",
        "reward/interval_high",
        "reward/letters",
        "metrics/size",
        "length/mean",
        "truncated",
        "failed",
    ):
        assert list(metric_by_step(uninterrupted, f"eval/let/{name}")) == [2, 4, 5]
    assert metric_by_step(uninterrupted, "eval/let/failed") == {2: 0.0, 4: 0.0, 5: 0.0}


def test_each_evaluation_is_saved_as_a_run_on_the_evaluation_rows(uninterrupted: Path):
    for step, reward in metric_by_step(uninterrupted, REWARD).items():
        run = Run(uninterrupted / "evaluations" / "let" / str(step))
        records = list(run.rollouts())
        assert len(records) == 6
        assert {str(r.prompt[-1]["content"])[:3] for r in records} == {"say"}
        assert {r.temperature for r in records} == {0.0}
        assert {s.tokens.policy_version for r in records for s in r.steps if s.tokens} == {step}
        summary = run.summary()
        assert summary is not None
        assert summary["reward"]["mean"] == reward


@pytest.mark.broad
def test_evaluations_do_not_change_the_trained_weights(uninterrupted: Path, tmp_path: Path):
    train(tmp_path, settings(), two_turns())
    last = "checkpoints/5/model.safetensors"
    assert (tmp_path / last).read_bytes() == (uninterrupted / last).read_bytes()


@pytest.mark.broad
@pytest.mark.parametrize("kills", first_quick([[1], [2], [3, 4], [5]], broad=0))
def test_a_killed_run_ends_with_the_same_weights_and_measurements(
    uninterrupted: Path, tmp_path: Path, envs: str, kills: list[int]
):
    config = with_evaluations(envs, keep_best=REWARD)
    for kill_at in kills:
        with pytest.raises(Killed):
            train(tmp_path, config, two_turns(), kill_at)
    train(tmp_path, config, two_turns())
    assert weights_of(tmp_path) == weights_of(uninterrupted)
    assert metrics_of(tmp_path) == metrics_of(uninterrupted)
    best = "checkpoints/best/model.safetensors"
    assert (tmp_path / best).read_bytes() == (uninterrupted / best).read_bytes()


@pytest.mark.broad
def test_an_interrupted_evaluation_is_repeated(
    uninterrupted: Path, tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch
):
    config = with_evaluations(envs, keep_best=REWARD)
    append, count = Run.append_rollout, [0]

    def kill_in_evaluation(self: Run, record: Any, line: bytes | None = None) -> None:
        append(self, record, line)
        if "evaluations" in str(self.path):
            count[0] += 1
            if count[0] == 9:  # during the second evaluation
                raise Killed

    monkeypatch.setattr(Run, "append_rollout", kill_in_evaluation)
    with pytest.raises(Killed):
        train(tmp_path, config, two_turns())
    assert (tmp_path / "evaluations" / "let" / "4").exists()
    monkeypatch.undo()
    train(tmp_path, config, two_turns())
    assert metrics_of(tmp_path) == metrics_of(uninterrupted)
    assert len(list(Run(tmp_path / "evaluations" / "let" / "4").rollouts())) == 6


def test_evaluation_settings_are_applied(uninterrupted: Path, tmp_path: Path, envs: str):
    tables = [
        table(name="few", num_examples=3),
        table(name="many", rollouts_per_example=3, temperature=1.0),
        table(name="word", env_args={"word": "hello"}),
        table(name="long", max_tokens=9, every=5),
        table(name="", every=1),
    ]
    train(tmp_path, with_evaluations(envs, *tables), two_turns())
    records = {t.label: list(Run(tmp_path / "evaluations" / t.label / "5").rollouts()) for t in tables}
    assert {name: len(rollouts) for name, rollouts in records.items()} == {
        "few": 3,
        "many": 18,
        "word": 6,
        "long": 6,
        "heldout_letters": 6,
    }
    assert {r.temperature for r in records["many"]} == {1.0}
    assert {str(r.prompt[-1]["content"])[:5] for r in records["word"]} == {"hello"}
    assert max(r.usage.completion_tokens for r in records["long"]) > 4
    assert [len(metric_by_step(tmp_path, f"eval/{n}/reward/mean")) for n in ("long", "heldout_letters")] == [1, 5]
    assert metric_by_step(tmp_path, "eval/heldout_letters/reward/mean")[2] == metric_by_step(uninterrupted, REWARD)[2]


def test_the_final_weights_are_those_of_the_best_evaluation(uninterrupted: Path):
    rewards = metric_by_step(uninterrupted, REWARD)
    best = max(rewards, key=lambda step: (rewards[step], step))
    summary = json.loads((uninterrupted / "summary.json").read_text())
    assert summary["best"] == {"metric": REWARD, "value": rewards[best], "step": best}
    best_weights = load_model(uninterrupted / "checkpoints" / "best", device="cpu").model.state_dict()
    final = load_model(uninterrupted / "final", device="cpu").model.state_dict()
    assert all(torch.equal(best_weights[name], tensor) for name, tensor in final.items())


def patch_rewards(monkeypatch: pytest.MonkeyPatch, values: dict[int, float]) -> None:
    """Make evaluations return these rewards by step."""

    async def evaluate(self: Any, step: int, config: EvaluationConfig) -> dict[str, float]:
        return {"reward/mean": values[step]}

    monkeypatch.setattr(evaluation.HeldOutEvaluations, "_rollouts", evaluate)


@pytest.mark.broad
def test_training_stops_when_evaluations_no_longer_improve(tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch):
    patch_rewards(monkeypatch, {1: 0.1, 2: 0.5, 3: 0.5, 4: 0.4, 5: 0.9})
    tables = [table(every=1), table(name="rare", every=99)]
    train(tmp_path, with_evaluations(envs, *tables, keep_best=REWARD, patience=2), two_turns())
    assert list(metric_by_step(tmp_path, REWARD)) == [1, 2, 3, 4]
    assert metric_by_step(tmp_path, "eval/rare/reward/mean") == {4: 0.4}  # all evaluations run after the last step
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["steps"], summary["best"]["step"]) == (4, 3)
    assert "has not been better than 0.5 for 2 measurements" in summary["stopped"]
    weights = weights_of(tmp_path)
    (tmp_path / "summary.json").unlink()
    train(tmp_path, with_evaluations(envs, *tables, keep_best=REWARD, patience=2), two_turns())
    assert weights_of(tmp_path) == weights


@pytest.mark.parametrize("off_policy", [0, 1, 2])
def test_training_stops_at_the_time_limit_and_evaluates(
    tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch, off_policy: int
):
    """Rollouts that have been collected ahead are discarded, and the newest weights are evaluated."""
    patch_rewards(monkeypatch, {1: 0.1})
    limits = {"keep_best": REWARD, "max_minutes": 1e-6, "max_off_policy_steps": off_policy, "checkpoint_every": 99}
    config = with_evaluations(envs, table(every=99), **limits)
    train(tmp_path, config, two_turns())
    assert metric_by_step(tmp_path, REWARD) == {1: 0.1}
    if off_policy < 2:
        assert len(list(Run(tmp_path).rollouts())) == config.batch_size
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["steps"], summary["best"]["step"]) == (1, 1)
    assert "max_minutes is 1e-06" in summary["stopped"]


@pytest.mark.parametrize("kill", ["before the checkpoint", "before the best weights are saved"])
def test_the_best_weights_are_never_those_of_discarded_steps(
    tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch, kill: str
):
    """Replayed steps have other rewards, as they may with max_off_policy_steps = 2."""
    config = with_evaluations(envs, table(every=1), keep_best=REWARD, checkpoint_every=99, keep_checkpoints=9)
    patch_rewards(monkeypatch, {1: 0.5, 2: 0.4, 3: 0.9})
    save, saved = Run.save_checkpoint, []

    def save_checkpoint(self: Run, name: str, *arguments: Any) -> Path:
        saved.append(name)
        if saved == ["1", "best", "3", "best"]:
            raise Killed
        return save(self, name, *arguments)

    monkeypatch.setattr(Run, "save_checkpoint", save_checkpoint)
    with pytest.raises(Killed):
        train(tmp_path, config, two_turns(), kill_at=3 if kill == "before the checkpoint" else None)
    best = 1 if kill == "before the checkpoint" else 3
    expected = (tmp_path / "checkpoints" / str(best) / "model.safetensors").read_bytes()
    patch_rewards(monkeypatch, {2: 0.3, 3: 0.2, 4: 0.1, 5: 0.1})
    train(tmp_path, config, two_turns())
    assert weights_of(tmp_path) == expected
    assert json.loads((tmp_path / "summary.json").read_text())["best"]["step"] == best


REWARDS_WITH_FALL = {0: 0.5, 1: 0.6, 2: 0.1, 3: 0.3, 4: 0.7, 5: 0.65}


def test_a_fall_restores_the_best_weights_and_lowers_the_learning_rate(
    tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    patch_rewards(monkeypatch, REWARDS_WITH_FALL)
    fields = {"keep_best": REWARD, "keep_checkpoints": 9, "learning_rate": 1e-3, "final_lr_fraction": 1.0}
    config = with_evaluations(envs, table(every=1), lr_backoff=0.5, warmup_steps=0, **fields)
    train(tmp_path, config, two_turns())
    assert metric_by_step(tmp_path, REWARD) == REWARDS_WITH_FALL
    rates = metric_by_step(tmp_path, "optim/lr")
    assert rates == pytest.approx({1: 1e-3, 2: 1e-3, 3: 5e-4, 4: 2.5e-4, 5: 2.5e-4})
    weights = {
        name: (tmp_path / "checkpoints" / name / "model.safetensors").read_bytes() for name in ("2", "3", "4", "best")
    }
    assert weights["2"] == weights["3"] != weights["4"] == weights["best"]
    assert (
        "fell to 0.1 at step 2: training continues from the best weights with 0.5 times the learning rate"
        in caplog.text
    )
    assert json.loads((tmp_path / "summary.json").read_text())["best"]["step"] == 4


@pytest.mark.broad
def test_after_a_fall_a_synced_reference_is_reset_to_the_best_model(
    tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch
):
    equal: dict[int, bool] = {}
    update = Learner.update

    def recorded_update(self: Learner, step: int, *arguments: Any) -> Any:
        models = (self.trainer.model, self.reference)
        equal[step] = torch.equal(*(torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models))
        return update(self, step, *arguments)

    monkeypatch.setattr(Learner, "update", recorded_update)
    patch_rewards(monkeypatch, REWARDS_WITH_FALL)
    fields = {"keep_best": REWARD, "loss__kl_penalty": 1.0, "loss__sync_reference_every": 99, "warmup_steps": 0}
    train(tmp_path, with_evaluations(envs, table(every=1), lr_backoff=0.5, **fields), two_turns())
    assert equal == {0: True, 1: False, 2: True, 3: True, 4: False}  # steps 2 and 3 follow a fall


@pytest.mark.broad
@pytest.mark.parametrize("kills", first_quick([[2, 3, 4], [1], [2], [3]], broad=0))
def test_a_killed_run_with_falls_ends_with_the_same_weights(
    tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch, kills: list[int]
):
    patch_rewards(monkeypatch, REWARDS_WITH_FALL)
    config = with_evaluations(envs, table(every=1), keep_best=REWARD, lr_backoff=0.5, checkpoint_every=4)
    train(tmp_path / "whole", config, two_turns())
    for kill_at in kills:
        with pytest.raises(Killed):
            train(tmp_path / "killed", config, two_turns(), kill_at)
    train(tmp_path / "killed", config, two_turns())
    assert weights_of(tmp_path / "killed") == weights_of(tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")


@pytest.mark.broad
def test_the_initial_weights_can_be_the_best(tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch):
    patch_rewards(monkeypatch, {0: 0.5, 1: 0.4, 2: 0.4, 3: 0.4, 4: 0.4, 5: 0.4})
    library = Fake("wandb")
    monkeypatch.setitem(sys.modules, "wandb", library)
    fields = {"keep_best": REWARD, "lr_backoff": 0.5, "loggers": ["wandb"]}
    train(tmp_path, with_evaluations(envs, table(every=1), **fields), two_turns())
    assert [call[0] for kind, call in library.calls if kind == "log"] == [0, 1, 2, 3, 4, 5]
    assert json.loads((tmp_path / "summary.json").read_text())["best"]["step"] == 0
    final, initial = load_model(tmp_path / "final", device="cpu").model, tiny_model().model
    assert all(torch.equal(tensor, initial.state_dict()[name]) for name, tensor in final.state_dict().items())


def test_nothing_is_trained_if_the_initial_model_reaches_the_target(
    tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch
):
    patch_rewards(monkeypatch, {0: 0.8})
    train(tmp_path, with_evaluations(envs, table(every=1), keep_best=REWARD, target=0.75, lr_backoff=0.5), two_turns())
    assert metric_by_step(tmp_path, REWARD) == {0: 0.8}
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 0


def test_training_stops_when_the_target_is_reached(tmp_path: Path, envs: str, monkeypatch: pytest.MonkeyPatch):
    patch_rewards(monkeypatch, {1: 0.1, 2: 0.3, 3: 0.8, 4: 0.4, 5: 0.9})
    train(tmp_path, with_evaluations(envs, table(every=1), keep_best=REWARD, target=0.75), two_turns())
    assert list(metric_by_step(tmp_path, REWARD)) == [1, 2, 3]
    assert "has reached 0.75" in json.loads((tmp_path / "summary.json").read_text())["stopped"]


@pytest.mark.broad
def test_sft_evaluates_keeps_the_best_weights_and_can_be_resumed(tmp_path: Path, envs: str):
    config = sft_settings(evaluation=[table(every=3)], env_dir=envs, keep_best=REWARD, patience=99)
    train_sft(tmp_path / "whole", config, learnable_rollouts())
    rewards = metric_by_step(tmp_path / "whole", REWARD)
    assert list(rewards) == [3, 6, 9, 12, 15, 16]
    best = max(rewards, key=lambda step: (rewards[step], step))
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["best"] == {"metric": REWARD, "value": rewards[best], "step": best}
    for kill_at in (4, 7, 15):
        with pytest.raises(Killed):
            train_killed(tmp_path / "killed", config, kill_at)
    train_sft(tmp_path / "killed", config, learnable_rollouts())
    assert weights_of(tmp_path / "killed") == weights_of(tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")
    best_weights = (tmp_path / "whole" / "checkpoints" / "best" / "model.safetensors").read_bytes()
    assert weights_of(tmp_path / "whole") == best_weights


def train_killed(path: Path, config: Any, kill_at: int) -> None:
    import tests.train.test_sft as test_train_sft

    try:
        train_sft(path, config, learnable_rollouts(), kill_at)
    except test_train_sft.Killed as error:
        raise Killed from error


@pytest.mark.broad
def test_sft_stops_at_a_validation_loss_target(tmp_path: Path):
    train_sft(tmp_path / "whole", sft_settings(), learnable_rollouts())
    losses = metric_by_step(tmp_path / "whole", "validation_loss")
    train_sft(tmp_path / "target", sft_settings(target=losses[8] + 1e-9), learnable_rollouts())
    assert list(metric_by_step(tmp_path / "target", "validation_loss")) == [4, 8]


FLIP_ENV = """
import rove as vf

def won(state):
    return float(state["call"] == state["side"])

def wordy(completion):
    return float(len(completion[0]["content"]))

class Flip(vf.MultiTurnEnv):
    two_player = True

    async def env_response(self, messages, state, **kwargs):
        if BROKEN:
            raise ValueError("the coin is gone")
        state["call"] = "heads" if len(messages[-1]["content"]) % 2 else "tails"
        state["side"] = await self.opponent("you toss", ["heads", "tails", "edge"])
        state["final_env_response"] = state["side"]
        return None

    def openings(self):
        return [{"question": "call"}, {"question": "call it"}]

    def check_answer(self, messages, answer):
        return {"called": bool(answer), "waits": False}

def load_environment():
    rubric = vf.Rubric([won], [2.0])
    rubric.add_metric(wordy)
    return Flip(dataset=[{"question": "call"}], rubric=rubric, max_turns=1)
"""


@pytest.fixture(scope="module")
def games(envs: str) -> str:
    write_environment(Path(envs), "heldout_flip", FLIP_ENV.replace("BROKEN", "False"))
    write_environment(Path(envs), "heldout_lost_coin", FLIP_ENV.replace("BROKEN", "True"))
    return envs


def exhaustive_table(**fields: Any) -> EvaluationConfig:
    goals = {"expected": {"won": 0.5}, "checks": {"waits": 1.0}}
    return table(**{"env": "heldout_flip", "name": "flip", "kind": "exhaustive", "goals": goals, **fields})


MISSED_METRIC = "eval/flip/missed"


@pytest.mark.broad
def test_exhaustive_evaluation_computes_exact_metrics(tmp_path: Path, games: str):
    train(tmp_path, with_evaluations(games, exhaustive_table(), keep_best=MISSED_METRIC), two_turns())
    metrics = {
        name: metric_by_step(tmp_path, f"eval/flip/{name}")
        for name in ("lines", "lines/won", "checks/called", "missed")
    }
    assert metrics["lines"] == dict.fromkeys([2, 4, 5], 6.0)
    assert metrics["lines/won"] == dict.fromkeys([2, 4, 5], 2.0)  # each call is correct for one of the three sides
    assert metrics["checks/called"] == dict.fromkeys([2, 4, 5], 1.0)
    assert metrics["missed"][2] == pytest.approx(
        100 * (0.5 - 1 / 3) + 2
    )  # percent, plus two responses that did not wait
    assert metric_by_step(tmp_path, "eval/flip/reward/mean")[5] == pytest.approx(2 / 3)
    assert metric_by_step(tmp_path, "eval/flip/reward/won")[5] == pytest.approx(1 / 3)
    assert metric_by_step(tmp_path, "eval/flip/metrics/wordy")[5] > 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best"] == {
        "metric": MISSED_METRIC,
        "value": metrics["missed"][5],
        "step": 5,
    }  # the last of equal values


@pytest.mark.broad
def test_a_run_with_exhaustive_evaluation_stops_at_its_target_and_resumes(tmp_path: Path, games: str):
    config = with_evaluations(
        games, exhaustive_table(every=3, goals={"expected": {"won": 0.3}}), keep_best=MISSED_METRIC, target=0
    )
    train(tmp_path / "whole", config, two_turns())
    assert list(metric_by_step(tmp_path / "whole", MISSED_METRIC)) == [3]
    assert f"{MISSED_METRIC} has reached 0" in json.loads((tmp_path / "whole" / "summary.json").read_text())["stopped"]
    for kill_at in (2, 3):
        with pytest.raises(Killed):
            train(tmp_path / "killed", config, two_turns(), kill_at)
    train(tmp_path / "killed", config, two_turns())
    assert weights_of(tmp_path / "killed") == weights_of(tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")


def test_an_environment_without_exhaustive_support_is_rejected_before_training(tmp_path: Path, envs: str):
    with pytest.raises(ConfigError, match="'heldout_letters' does not support exhaustive evaluation"):
        train(tmp_path, with_evaluations(envs, table(kind="exhaustive")), two_turns())
    assert metrics_of(tmp_path) == []


def test_a_failed_exhaustive_evaluation_ends_training_with_the_cause(tmp_path: Path, games: str):
    config = with_evaluations(games, exhaustive_table(env="heldout_lost_coin"))
    with pytest.raises(RunError, match="evaluation 'flip' after step 2: a rollout failed.*the coin is gone"):
        train(tmp_path, config, two_turns())


def rows(*values: float | None, metric: str = REWARD) -> list[dict[str, float]]:
    return [{"step": i, **({} if v is None else {metric: v})} for i, v in enumerate(values, start=1)]


def test_best_of_returns_the_last_of_equal_values_and_counts_from_the_first():
    assert best_of(rows(None, 0.5, None, 0.7, 0.7, 0.6), Goal(REWARD)) == Best(5, 0.7, 2)
    assert best_of(rows(3.0, 2.0, 2.5, metric="validation_loss"), Goal("validation_loss")) == Best(2, 2.0, 1)
    assert best_of(rows(None), Goal(REWARD)) is None
    assert best_of(rows(1.0), Goal()) is None


def test_of_equal_measurements_the_shortest_responses_can_be_kept():
    length = "eval/easy/length/mean"
    history = rows(0.5, 1.0, 1.0, 1.0, 0.9, metric="eval/easy/reward/mean")
    for row, value in zip(history, [9.0, 11.0, 10.0, 10.0, 8.0], strict=True):
        row[length] = value
    goal = Goal("eval/easy/reward/mean", equal_best="shortest")
    assert best_of(history, goal) == Best(4, 1.0, 3)
    assert best_of(history[:3], goal) == Best(3, 1.0, 1)
    assert best_of(history[:2], goal) == Best(2, 1.0, 0)
    assert best_of(history, Goal("eval/easy/reward/mean")) == Best(4, 1.0, 3)
    # Longer training is better, so the last of the short ones is kept; without measured lengths, the last of all.
    assert best_of(rows(1.0, 1.0, metric="eval/easy/reward/mean"), goal) == Best(2, 1.0, 1)


def test_of_equal_measurements_a_drift_of_many_small_steps_is_not_kept():
    history = rows(*[1.0] * 20, metric="eval/easy/reward/mean")
    for step, row in enumerate(history):
        row["eval/easy/length/mean"] = 10.0 * 1.03**step
    assert best_of(history, Goal("eval/easy/reward/mean", equal_best="shortest")) == Best(2, 1.0, 19)


def test_count_falls_counts_significant_drops():
    def count(*values: float | None, half_width: float = 0.0) -> int:
        history = [
            {**row, **({} if len(row) == 1 else {LOW: row[REWARD] - half_width, HIGH: row[REWARD] + half_width})}
            for row in rows(*values)
        ]
        return count_falls(history, Goal(REWARD))

    assert count(0.5, None, 0.4, 0.5, 0.3) == 2  # two falls
    assert count(0.5, 0.46, 0.6, 0.55) == 0  # drops of less than a tenth
    assert count(0.5, 0.4, half_width=0.06) == 0  # the intervals overlap
    assert count(-0.5, -0.6) == 1
    assert count_falls(rows(0.5, 0.1), Goal()) == 0


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_loss_that_is_not_finite_is_not_the_best(value: Any):
    """Files store it as null."""
    rows = [{"step": float(step), "validation_loss": loss} for step, loss in enumerate((1.0, 0.9, value), start=1)]
    goal = Goal("validation_loss", patience=9)
    best = best_of(rows, goal)
    assert best is not None and (best.step, best.value) == (2, 0.9)
    assert stop_reason(rows, goal) is None


def test_stop_reason_counts_the_seconds_of_all_steps():
    sft_step = {"step": 1.0, "time/step": 20.0, "time/evaluation": 25.0}
    overlapping_step = {"step": 2.0, "time/sampling": 99.0, "time/training": 5.0, "time/step": 6.0}
    rl_step = {"step": 3.0, "time/sampling": 5.0, "time/training": 3.0, "time/sync": 1.0}
    history = [sft_step, overlapping_step, rl_step]  # 60 seconds
    assert stop_reason(history, Goal(max_minutes=1.0)) is not None
    assert stop_reason(history, Goal(max_minutes=1.01)) is None


@pytest.mark.parametrize(
    ("num_zero_advantage", "first", "stops"), [(96, 0.5, True), (90, 0.5, False), (96, 1.0, False)]
)
def test_stop_reason_if_hardly_any_group_is_left_to_learn_from(num_zero_advantage: int, first: float, stops: bool):
    groups = {"groups/all": 100.0, "groups/zero_spread": float(num_zero_advantage)}
    history: list[dict[str, float]] = [{"step": 0.0, REWARD: first}]
    for step in range(1, 61):
        history.append({"step": float(step), **groups})
        if step % 10 == 0:
            history[-1][REWARD] = 1.0 if first < 1 else 0.9
    assert (stop_reason(history, Goal(REWARD, patience=15)) is not None) is stops
    assert stop_reason(history[:50], Goal(REWARD, patience=15)) is None
    assert stop_reason(history, Goal(REWARD)) is None


def test_stop_reason_depends_on_patience_and_target():
    history = rows(0.5, 0.4, None, 0.3)
    assert stop_reason(history, Goal(REWARD)) is None
    assert stop_reason(history, Goal(REWARD, patience=3)) is None
    assert stop_reason(history, Goal(REWARD, patience=2)) is not None
    losses = [{**row, "validation_loss": loss} for row, loss in zip(history, [0.9, 0.8, 0.7, 0.7])]
    assert stop_reason(losses, Goal(REWARD, patience=2)) is None
    assert "has not been better than 0.5 for 2" in (stop_reason(losses, Goal(REWARD, patience=1)) or "")
    broken = [{**row, "validation_loss": math.nan} for row in history]
    assert stop_reason(broken, Goal(REWARD, patience=2)) is not None
    flat = [{**row, "validation_loss": 0.9 - 1e-9 * row["step"]} for row in history]
    assert stop_reason(flat, Goal(REWARD, patience=2)) is not None
    assert stop_reason(history, Goal(REWARD, target=0.6)) is None
    assert stop_reason(history, Goal(REWARD, target=0.5)) is not None
    assert stop_reason(rows(0.5, metric="validation_loss"), Goal("validation_loss", target=0.4)) is None


def test_an_evaluation_whose_rollouts_all_fail_ends_training_with_the_cause(tmp_path: Path, envs: str):
    with pytest.raises(RunError, match=r"every rollout of evaluation 'let' after step 2 failed.*no letters today"):
        train(tmp_path, with_evaluations(envs, table(env="heldout_broken")), two_turns())


def test_an_unknown_keep_best_metric_is_an_error_at_the_first_evaluation(tmp_path: Path, envs: str):
    config = with_evaluations(envs, keep_best="eval/let/reward/leters")
    with pytest.raises(ConfigError, match="did you mean 'eval/let/reward/letters'"):
        train(tmp_path, config, two_turns())


@each_row(
    ("wrong", "message"),
    [
        ({"num_examples": 0}, "num_examples is 0; expected an integer, 1 or more, or -1"),
        ({"rollouts_per_example": 0}, "rollouts_per_example is 0; expected an integer, 1 or more"),
        ({"temperature": -1.0}, "temperature is -1.0; expected a number, 0 or more"),
        ({"every": 0}, "every is 0; expected an integer, 1 or more"),
        ({"max_tokens": 0}, "max_tokens is 0; expected an integer, 1 or more"),
        ({"name": "../up"}, "letters, digits"),
        ({"goals": {"never": ["lost"]}}, "evaluation 'let' has goals, which need a kind"),
    ],
)
def test_invalid_tables_are_rejected(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        settings(evaluation=[table(**wrong)]).check()


@each_row(
    ("wrong", "message"),
    [
        ({"keep_best": "eval/lex/reward/mean"}, f"did you mean '{REWARD}'"),
        ({"patience": 3}, "patience is 3, but keep_best is not set"),
        ({"target": 0.5}, "target is 0.5, but keep_best is not set"),
        ({"keep_best": REWARD, "patience": 0}, "patience is 0; expected an integer, 1 or more"),
        ({"keep_best": REWARD, "lr_backoff": 0.0}, "lr_backoff is 0.0; expected a number, more than 0 and less than 1"),
        ({"lr_backoff": 0.5}, "lr_backoff is 0.5, but keep_best is None; expected eval/NAME/reward/mean"),
        (
            {"keep_best": REWARD, "lr_backoff": 0.5, "max_off_policy_steps": 2},
            "max_off_policy_steps 2; lr_backoff needs 0 or 1",
        ),
    ],
)
def test_invalid_goals_are_rejected(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        settings(evaluation=[table()], **wrong).check()
    with pytest.raises(ConfigError, match="does not measure"):
        sft_settings(keep_best="reward/mean").check()


def test_two_tables_with_the_same_name_are_rejected():
    with pytest.raises(ConfigError, match="two evaluations are named 'let'"):
        check_evaluations([table(), table()])


def test_names_that_are_one_folder_on_windows_are_rejected_there(monkeypatch: pytest.MonkeyPatch):
    tables = [table(name="let"), table(name="LET")]
    check_evaluations(tables)
    monkeypatch.setattr(os.path, "normcase", ntpath.normcase)
    with pytest.raises(ConfigError, match="two evaluations are named 'LET'"):
        check_evaluations(tables)


def test_a_missing_environment_is_rejected_before_training(tmp_path: Path):
    with pytest.raises(ConfigError, match="no environment 'nowhere'"):
        train(tmp_path, settings(evaluation=[table(env="nowhere")]), two_turns())
    assert metrics_of(tmp_path) == []


def test_evaluation_tables_are_read_from_toml():
    text = (
        'env = "e"\nmodel = "m"\n[[evaluation]]\nenv = "me/letters@1"\nevery = 3\n[[evaluation]]\nenv = "b"\nname = "x"'
    )
    config = convert(RLConfig, msgspec.toml.decode(text))
    assert [(e.label, e.every) for e in config.evaluation] == [("letters", 3), ("x", 10)]
