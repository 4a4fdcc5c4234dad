from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest
from fakes import make_rollout
from run_folders import make_record
from tiers import first_quick

import rove as vf
from rove.core.errors import ConfigError, RunError
from rove.core.records import REWARD_ERRORS, RolloutRecord, Scores
from rove.runs.run import Run
from rove.server.proxy import Access
from rove.train.collect import RolloutCollector, check_rewards, rollout_metrics
from tests.train.test_rl import Killed, letters, metrics_of, rollouts_of, settings, train, weights_of

LEVELS = [3, 1, 2, 0] * 4


class MixedRewardEnv(vf.SingleTurnEnv):
    """An environment in which multiples of 4 score 1, other even examples 0, and odd examples vary."""

    def __init__(self, zero_advantages: bool = True, count: int = 16):
        def reward(completion: vf.Messages, info: dict[str, Any]) -> float:
            number = info["number"]
            return float(number % 4 == 0) if zero_advantages and number % 2 == 0 else letters(completion)

        rubric = vf.Rubric()
        rubric.add_reward_func(reward, weight=1.0)
        rows = [{"question": f"say {n}", "level": LEVELS[n], "info": {"number": n}} for n in range(count)]
        super().__init__(dataset=rows, rubric=rubric)


def examples_by_step(path: Path) -> list[list[int]]:
    """Return the example id of each group, by step."""
    records = rollouts_of(path)
    steps = range(1, max(r.step or 0 for r in records) + 1)
    return [[r.example_id for r in records if r.step == step and r.rollout_index == 0] for step in steps]


def metric_values(path: Path, name: str) -> list[float]:
    return [m[name] for m in metrics_of(path)]


def test_dynamic_sampling_replaces_zero_advantage_groups(tmp_path: Path):
    train(tmp_path / "plain", settings(steps=2), MixedRewardEnv())
    train(tmp_path / "once", settings(steps=2, filter__dynamic_sampling_rounds=1), MixedRewardEnv())
    train(tmp_path / "often", settings(steps=2, filter__dynamic_sampling_rounds=9), MixedRewardEnv())
    assert [len(step) for step in examples_by_step(tmp_path / "plain")] == [4, 4]
    assert metric_values(tmp_path / "plain", "groups/resampled") == [0, 0]
    assert metric_values(tmp_path / "once", "groups/rounds") == [1, 1]
    for name in ("plain", "once", "often"):
        for m, step in zip(metrics_of(tmp_path / name), examples_by_step(tmp_path / name), strict=True):
            assert m["groups/all"] == len(step) == 4 + m["groups/resampled"]
    for m in metrics_of(tmp_path / "often"):
        assert m["groups/all"] - m["groups/zero_spread"] == 4  # the batch is full
        assert 1 < m["groups/rounds"] <= 9
    drawn = [i for step in examples_by_step(tmp_path / "often") for i in sorted(step)]
    assert sorted(drawn) == sorted(
        i % 16 for i in range(len(drawn))
    )  # each step continues where the previous one ended


def test_keys_within_a_step_are_unique_for_repeated_examples(tmp_path: Path):
    train(tmp_path, settings(steps=1, filter__dynamic_sampling_rounds=9), MixedRewardEnv(count=3))
    keys = Counter((r.example_key, r.rollout_index) for r in rollouts_of(tmp_path))
    assert set(keys.values()) == {1}
    assert len({r.seed for r in rollouts_of(tmp_path)}) == len(rollouts_of(tmp_path))


def test_dynamic_sampling_stops_after_the_maximum_number_of_rounds(tmp_path: Path):
    rubric = vf.Rubric()
    rubric.add_reward_func(lambda completion: 0.5, weight=1.0, name="half")
    env = vf.SingleTurnEnv(dataset=[{"question": "say"}], rubric=rubric)
    train(tmp_path, settings(steps=1, filter__dynamic_sampling_rounds=2), env)
    [m] = metrics_of(tmp_path)
    assert (m["groups/rounds"], m["groups/resampled"], m["groups/zero_spread"]) == (2, 8, 12)


V0_ENVIRONMENT = """
import rove.compat.verifiers as vf

def letters(completion):
    return len(completion[-1].content)

def broken(completion):
    return completion[-1].key

def load_environment(funcs):
    rows = [{"question": f"say {n}"} for n in range(4)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[globals()[name] for name in funcs]))
"""


def load_v0_environment(folder: Path, *funcs: str) -> vf.Environment:
    """Load an environment written for verifiers v0, where a reward function that raises counts as 0.0."""
    (folder / "raises.py").write_text(V0_ENVIRONMENT)
    return vf.load_environment("raises", folder, funcs=list(funcs))


@pytest.mark.parametrize("off_policy", [0, 1, 2])
def test_a_reward_function_that_always_raises_ends_the_run_in_step_1(tmp_path: Path, off_policy: int):
    config = settings(steps=2, max_tokens=2, max_off_policy_steps=off_policy)
    with pytest.raises(
        RunError, match=r"step 1 .*: broken raised in every rollout, .* 0.0: .*key.*\. Fix the function"
    ):
        train(tmp_path / "run", config, load_v0_environment(tmp_path, "letters", "broken"))
    assert len(rollouts_of(tmp_path / "run")) >= config.batch_size
    assert metrics_of(tmp_path / "run") == []


def record_with_errors(*names: str, **fields: Any) -> RolloutRecord:
    """Return a scored rollout in which the named reward functions raised an error."""
    weights = {"right": 1.0, "tidy": 0.2}
    errors = {REWARD_ERRORS: dict.fromkeys(names, "KeyError: key")} if names else {}
    return make_record(scores=Scores(0.0, dict.fromkeys(weights, 0.0), weights, extras=errors), **fields)


def test_a_reward_function_that_always_raises_is_an_error_in_step_1_only():
    failed_rollout = make_record(win=None)
    with pytest.raises(RunError, match="right raised in every rollout, which counts as 0.0: KeyError: key"):
        check_rewards([record_with_errors("right", "tidy"), failed_rollout, record_with_errors("right")], 1)
    check_rewards([record_with_errors("right"), record_with_errors("right")], 2)
    check_rewards([record_with_errors("right"), record_with_errors("tidy"), record_with_errors()], 1)
    check_rewards([record_with_errors("metric"), failed_rollout], 1)
    check_rewards([failed_rollout], 1)


def test_a_reward_function_that_raises_in_only_one_environment_is_no_error():
    other_scores = Scores(1.0, {"other": 1.0}, {"other": 1.0})
    check_rewards([record_with_errors("right", env_id="a"), make_record(scores=other_scores, env_id="b")], 1)
    check_rewards([record_with_errors("right", env_id="a"), record_with_errors(env_id="b")], 1)


@pytest.mark.broad
@pytest.mark.parametrize("steps", first_quick([2, 0], broad=0))
def test_an_agent_that_sets_its_own_temperature_is_rejected(tmp_path: Path, steps: int):
    async def agent(access: Access, state: vf.State) -> None:
        async with openai.AsyncOpenAI(base_url=access.base_url, api_key=access.api_key, max_retries=0) as sdk:
            await sdk.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "say"}], temperature=0.25
            )

    rubric = vf.Rubric([letters])
    rows = [{"question": f"say {n}"} for n in range(4)]
    env = vf.AgentEnv(agent, dataset=rows, rubric=rubric, agent_sampling=["temperature"])
    with pytest.raises(RunError, match=r"the agent requests temperature = 0.25, .* samples with temperature = 1.0"):
        train(tmp_path / "own", settings(steps=1, max_off_policy_steps=steps), env)
    train(
        tmp_path / "run", settings(steps=1, max_off_policy_steps=steps), vf.AgentEnv(agent, dataset=rows, rubric=rubric)
    )
    assert {record.temperature for record in rollouts_of(tmp_path / "run")} == {1.0}


@pytest.mark.broad
def test_examples_that_always_fail_or_succeed_are_skipped(tmp_path: Path):
    config = settings(steps=8, filter__hard_threshold=0.0, filter__easy_threshold=1.0)
    train(tmp_path, config, MixedRewardEnv())
    steps = examples_by_step(tmp_path)
    assert {i for step in steps[:4] for i in step} == set(range(16))
    assert all(i % 2 for step in steps[4:] for i in step)
    assert sum(metric_values(tmp_path, "examples/skipped")[:4]) == 0
    assert sum(metric_values(tmp_path, "examples/skipped")[4:]) >= 8


@pytest.mark.broad
def test_skipped_examples_are_tried_again_after_the_difficulty_window(tmp_path: Path):
    train(
        tmp_path,
        settings(steps=12, filter__hard_threshold=0.0, filter__difficulty_window=5, max_tokens=2),
        MixedRewardEnv(),
    )
    first, later = examples_by_step(tmp_path)[4:5], examples_by_step(tmp_path)[5:]
    assert all(i % 4 != 2 for step in first for i in step)
    assert any(i % 4 == 2 for step in later for i in step)


@pytest.mark.parametrize(
    ("options", "mixes"),
    [
        ({}, True),
        ({"curriculum__stratify": "level", "curriculum__shuffle": True}, True),
        ({"curriculum__column": "level"}, False),
    ],
)
def test_a_column_determines_the_examples_of_a_step(tmp_path: Path, options: dict[str, Any], mixes: bool):
    train(tmp_path, settings(steps=4, max_tokens=2, **options), MixedRewardEnv(zero_advantages=False))
    levels = [sorted(LEVELS[i] for i in step) for step in examples_by_step(tmp_path)]
    assert levels == ([[0, 1, 2, 3]] * 4 if mixes else [[0] * 4, [1] * 4, [2] * 4, [3] * 4])


@pytest.mark.broad
def test_the_number_of_quantiles_changes_the_order(tmp_path: Path):
    for bins in (2, 4):
        options = {"curriculum__stratify": "level", "curriculum__stratify_bins": bins}
        train(tmp_path / str(bins), settings(steps=4, max_tokens=2, **options), MixedRewardEnv(zero_advantages=False))
    assert examples_by_step(tmp_path / "2") != examples_by_step(tmp_path / "4")


def test_a_shuffled_run_has_another_order(tmp_path: Path):
    train(tmp_path, settings(steps=4, max_tokens=2, curriculum__shuffle=True), MixedRewardEnv(zero_advantages=False))
    flat = [i for step in examples_by_step(tmp_path) for i in step]
    assert sorted(flat) == list(range(16))
    assert [sorted(step) for step in examples_by_step(tmp_path)] != [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
    ]


ALL_OPTIONS = {
    "filter__dynamic_sampling_rounds": 2,
    "filter__hard_threshold": 0.0,
    "filter__difficulty_window": 3,
    "curriculum__shuffle": True,
    "curriculum__stratify": "level",
}


@pytest.mark.broad
@pytest.mark.parametrize(
    "options",
    first_quick(
        [
            ALL_OPTIONS,
            {"curriculum__column": "level", "filter__dynamic_sampling_rounds": 1, "filter__easy_threshold": 1.0},
        ],
        broad=0,
    ),
)
def test_a_killed_run_draws_the_same_examples_and_ends_with_the_same_weights(tmp_path: Path, options: dict[str, Any]):
    config = settings(steps=7, **options)
    train(tmp_path / "whole", config, MixedRewardEnv())
    for kill_at in (1, 3, 6):
        with pytest.raises(Killed):
            train(tmp_path / "killed", config, MixedRewardEnv(), kill_at)
    train(tmp_path / "killed", config, MixedRewardEnv())
    assert weights_of(tmp_path / "killed") == weights_of(tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")
    assert rollouts_of(tmp_path / "killed") == rollouts_of(tmp_path / "whole")


def test_invalid_settings_are_rejected_before_training(tmp_path: Path):
    for wrong, message in (
        ({"filter__dynamic_sampling_rounds": -1}, "dynamic_sampling_rounds is -1"),
        ({"filter__hard_threshold": 1.0, "filter__easy_threshold": 0.0}, "hard_threshold is 1.0"),
        ({"filter__difficulty_window": 0}, "difficulty_window"),
        ({"curriculum__stratify": "a", "curriculum__column": "b"}, "leave one of them out"),
        ({"curriculum__stratify_bins": 0}, "stratify_bins"),
    ):
        with pytest.raises(ConfigError, match=message):
            settings(**wrong).check()
    with pytest.raises(ConfigError, match="no column 'lvl'"):
        train(tmp_path, settings(curriculum__stratify="lvl"), MixedRewardEnv())
    with pytest.raises(ConfigError, match="no rows"):
        train(tmp_path, settings(), vf.SingleTurnEnv(dataset=[]))


def test_metrics_are_averaged_over_the_rollouts_that_have_them() -> None:
    a = make_rollout(scores=Scores(1.0, {"win": 1.0, "form": 0.5}, {}, {"turns": 2.0}))
    b = make_rollout(scores=Scores(0.0, {"form": 0.0}, {}, {"turns": 4.0, "length": 7.0}))
    metrics = rollout_metrics([b, a])
    assert (metrics["reward/win"], metrics["reward/form"]) == (1.0, 0.25)
    assert (metrics["metrics/turns"], metrics["metrics/length"]) == (3.0, 7.0)


def test_the_environments_stops_end_training_responses(tmp_path: Path):
    env = MixedRewardEnv()
    env.sampling_args = {"stop": ["X"], "top_p": 0.5, "max_tokens": 99}
    config = settings()
    with Run(tmp_path) as run:
        run.start("rl", {}, {})
        sampling = RolloutCollector(config, env, vf.ScriptedClient(lambda messages, state, rng: "X"), run).sampling
    assert (sampling.stop, sampling.max_tokens, sampling.top_p) == (["X"], 4, vf.SamplingParams().top_p)
