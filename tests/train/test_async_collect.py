"""Asynchronous collection: which groups are started, when they are trained, and what is saved when a run stops."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import rove as vf
from rove.core.errors import RunError
from rove.core.protocols import Request, Response
from rove.core.records import StepTokens, Usage
from rove.models.load import trainable_parameters
from rove.runs.run import Run
from rove.train.async_collect import AsyncCollector, TimeAverage
from rove.train.collect import CollectedStep
from rove.train.config import RLConfig
from rove.train.rl import _Loop
from tests.train.test_evaluation import envs, table
from tests.train.test_rl import Killed, letters, metrics_of, rollouts_of, settings, train, two_turns, weights_of

__all__ = ["envs"]

GROUP_SIZE, GROUPS = 2, 3


def collector_settings(**fields: Any) -> Any:
    """Return settings with three groups of two rollouts per step."""
    defaults = {"batch_size": GROUP_SIZE * GROUPS, "rollouts_per_example": GROUP_SIZE, "max_off_policy_steps": 2}
    return settings(**{**defaults, "steps": 8, "checkpoint_every": 3, **fields})


class SimulatedClient:
    """A client whose responses take `passes(request)` iterations of the event loop instead of real time."""

    max_concurrent = 99

    def __init__(self, passes: Callable[[Request], int] = lambda request: 1):
        self.passes = passes
        self.version = 0
        self.in_flight = self.peak_in_flight = 0

    async def respond(self, request: Request) -> Response:
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        version = self.version
        try:
            for _ in range(self.passes(request)):
                await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        text = f"{'aA'[request.seed % 2]}"
        return Response(vf.AssistantMessage(text), Usage(1, 1), tokens=StepTokens([1], [2], [-0.5], version))

    async def close(self) -> None: ...


def letters_env(count: int = 5, reward: Any = letters) -> vf.Environment:
    rubric = vf.Rubric()
    rubric.add_reward_func(reward, weight=1.0, name="letters")
    return vf.SingleTurnEnv(dataset=[{"question": f"say {n}"} for n in range(count)], rubric=rubric)


def new_collector(
    config: RLConfig, client: SimulatedClient, run: Run, env: vf.Environment, step: int = 0, state: Any = None
) -> AsyncCollector:
    max_staleness = config.max_off_policy_steps
    return AsyncCollector(config, env, client, run, max_staleness=max_staleness, step=step, state=state or {})


async def collect(
    path: Path,
    config: Any,
    client: SimulatedClient,
    env: vf.Environment | None = None,
    start: int = 0,
    stop: int | None = None,
    state: Any = None,
    learning: Callable[[int], int] = lambda step: 2,
) -> tuple[list[CollectedStep], Any]:
    """Collect the steps of a run and return them with the collector state after the last one.

    The trainer takes `learning(step)` iterations of the event loop per step.
    """
    collected: list[CollectedStep] = []
    with Run(path) as run:
        run.start("rl", {}, {})
        client.version = start
        collector = new_collector(config, client, run, env or letters_env(), start, state)
        saved_state = collector.state()
        try:
            for step in range(start, config.steps if stop is None else stop):
                collected.append(await collector.take(step))
                for _ in range(learning(step)):
                    await asyncio.sleep(0)
                client.version = step + 1
                collector.use_version(step + 1)
                saved_state = msgspec.json.decode(msgspec.json.encode(collector.state()))
                saved_state["bytes"] = (path / "rollouts.jsonl").stat().st_size
        finally:
            await collector.close()
    return collected, saved_state


def example_ids(steps: list[CollectedStep]) -> list[int]:
    return [r.example_id for step in steps for r in step.records if r.rollout_index == 0]


def max_token_ages(steps: list[CollectedStep]) -> list[int]:
    """Return the age in policy versions of the oldest token of each step."""
    ages = []
    for collected in steps:
        step = collected.records[0].step
        assert step is not None and {r.step for r in collected.records} == {step}
        ages.append(
            max(step - 1 - turn.tokens.policy_version for r in collected.records for turn in r.steps if turn.tokens)
        )
    return ages


def assert_complete(path: Path, steps: list[CollectedStep], config: Any) -> None:
    """Assert that each group is complete, in one step, under a unique key, and stored in the run folder."""
    for step in steps:
        assert len(step.records) % GROUP_SIZE == 0
        keys = Counter(record.example_key for record in step.records)
        assert set(keys.values()) == {GROUP_SIZE}
    seeds = Counter(record.seed for step in steps for record in step.records)
    assert set(seeds.values()) == {1}
    stored = Counter((r.step, r.example_key, r.rollout_index) for r in rollouts_of(path))
    assert stored == Counter((r.step, r.example_key, r.rollout_index) for step in steps for r in step.records)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.sampled_from([1, 30]), st.integers(0, 12), st.integers(1, 7))
def test_no_rollout_is_lost_repeated_or_too_old_at_any_speed(
    tmp_path_factory: pytest.TempPathFactory, seed: int, most: int, slow: int, learning: int, rows: int
):
    path, rng = tmp_path_factory.mktemp("collector"), random.Random(seed)
    config = collector_settings(max_off_policy_steps=most)
    client = SimulatedClient(lambda request: rng.choice([0, 1, 2, 5, 5 * slow]))
    collected, _ = asyncio.run(
        collect(path, config, client, letters_env(rows), learning=lambda step: rng.randrange(learning + 1))
    )
    assert [len(collected_step.records) for collected_step in collected] == [GROUP_SIZE * GROUPS] * config.steps
    assert max(max_token_ages(collected)) <= most
    assert client.peak_in_flight <= config.batch_size
    assert_complete(path, collected, config)
    assert sorted(example_ids(collected)) == sorted(i % rows for i in range(config.steps * GROUPS))


async def test_finished_groups_are_trained_first_and_a_slow_group_before_its_limit(tmp_path: Path):
    """The first group does not finish: other groups are trained before it, until the last step that may train it waits."""
    release = asyncio.Event()

    class SlowClient(SimulatedClient):
        async def respond(self, request: Request) -> Response:
            response = await super().respond(request)
            if "say 0" in request.messages[-1]["content"] and self.version == 0:
                await release.wait()
            return response

    client, config = SlowClient(), collector_settings(steps=4)
    with Run(tmp_path) as run:
        run.start("rl", {}, {})
        collector = new_collector(config, client, run, letters_env(50))
        first = [await collector.take(0)]
        collector.use_version(1)
        first.append(await collector.take(1))
        collector.use_version(2)
        assert example_ids(first) == [1, 2, 3, 4, 5, 6]
        waiting = asyncio.create_task(collector.take(2))
        for _ in range(300):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert len(collector.running) == 1  # step 3 has all its groups; nothing is collected that would become too old
        release.set()
        third = await waiting
        assert example_ids([third])[0] == 7 and 0 in example_ids([third])
        assert third.metrics["queue/late"] == 1
        assert third.metrics["queue/ended"] == 3
        await collector.close()
    assert max_token_ages([*first, third]) == [0, 1, 2]


async def test_no_group_is_started_while_a_full_step_waits_for_the_trainer(tmp_path: Path):
    client, config = SimulatedClient(), collector_settings(max_off_policy_steps=50, steps=100)
    with Run(tmp_path) as run:
        run.start("rl", {}, {})
        collector = new_collector(config, client, run, letters_env())
        await collector.take(0)
        for _ in range(500):
            await asyncio.sleep(0)
        assert not collector.running
        assert len(list(run.rollouts())) <= 3 * config.batch_size
        await collector.close()


async def test_repeated_examples_get_unique_keys_and_examples_keep_their_order(tmp_path: Path):
    collected, _ = await collect(
        tmp_path, collector_settings(max_off_policy_steps=4), SimulatedClient(), letters_env(2)
    )
    assert_complete(tmp_path, collected, None)
    names = {record.example_key for collected_step in collected for record in collected_step.records}
    assert any("@" in name for name in names) and any("#2" in name for name in names)
    curriculum = collector_settings(curriculum__column="info.level", steps=4)
    rows = [{"question": f"q{n}", "info": {"level": -n}} for n in range(12)]
    rubric = vf.Rubric()
    rubric.add_reward_func(letters, weight=1.0)
    collected, _ = await collect(
        tmp_path / "c", curriculum, SimulatedClient(), vf.SingleTurnEnv(dataset=rows, rubric=rubric)
    )
    assert [sorted(example_ids([collected_step])) for collected_step in collected] == [
        [9, 10, 11],
        [6, 7, 8],
        [3, 4, 5],
        [0, 1, 2],
    ]


async def test_dynamic_sampling_does_not_count_zero_advantage_groups(tmp_path: Path):
    def reward(completion: vf.Messages, info: dict[str, Any], state: vf.State) -> float:
        return 0.5 if state["input"]["example_id"] % 2 else float(state["seed"] % 1000)

    config = collector_settings(filter__dynamic_sampling_rounds=2, steps=5)
    collected, _ = await collect(tmp_path, config, SimulatedClient(), letters_env(8, reward))
    for collected_step in collected:
        assert collected_step.metrics["groups/all"] - collected_step.metrics["groups/zero_spread"] == GROUPS
        assert collected_step.metrics["groups/resampled"] == collected_step.metrics["groups/zero_spread"]
    assert sum(collected_step.metrics["groups/resampled"] for collected_step in collected) >= 10
    collected, _ = await collect(tmp_path / "flat", config, SimulatedClient(), letters_env(8, lambda completion: 0.5))
    assert {collected_step.metrics["groups/all"] for collected_step in collected} == {
        3.0 * GROUPS
    }  # they count after the last round
    assert_complete(tmp_path / "flat", collected, config)


async def test_a_failed_rollout_affects_no_other_and_a_step_of_failures_raises(tmp_path: Path):
    def failing_reward(completion: vf.Messages, state: vf.State) -> float:
        if state["input"]["example_id"] == 1 or always_fails:
            raise ValueError("not today")
        return letters(completion)

    always_fails = False
    collected, _ = await collect(
        tmp_path / "some", collector_settings(), SimulatedClient(), letters_env(5, failing_reward)
    )
    assert (
        sum(collected_step.metrics["rollouts/failed"] for collected_step in collected)
        == GROUP_SIZE * example_ids(collected).count(1)
        > 0
    )
    assert_complete(tmp_path / "some", collected, None)
    always_fails = True
    with pytest.raises(RunError, match=r"every rollout of step 1 failed.*not today"):
        await collect(tmp_path / "all", collector_settings(), SimulatedClient(), letters_env(5, failing_reward))
    assert all(record.error for record in rollouts_of(tmp_path / "all"))


async def test_an_error_inside_the_collector_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    append = Run.append_rollout

    def append_until_full(self: Run, record: Any) -> None:
        calls.append(1)
        if len(calls) > 9:
            raise OSError("no space left")
        append(self, record)

    monkeypatch.setattr(Run, "append_rollout", append_until_full)
    with pytest.raises(OSError, match="no space left"):
        await collect(tmp_path, collector_settings(), SimulatedClient())


async def test_cancellation_stops_all_tasks_and_keeps_finished_rollouts(tmp_path: Path):
    client = SimulatedClient(lambda request: 10**6 if request.seed % 2 else 1)
    task = asyncio.create_task(collect(tmp_path, collector_settings(), client))
    for _ in range(100):
        await asyncio.sleep(0)
    earlier_tasks = asyncio.all_tasks()
    assert client.in_flight > 0 and len(earlier_tasks) > 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled() and client.in_flight == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert {record.step for record in rollouts_of(tmp_path)} == {1}
    assert 0 < len(rollouts_of(tmp_path)) < GROUP_SIZE * GROUPS  # finished members of incomplete groups


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 6), st.integers(0, 1))
def test_a_resumed_collector_repeats_no_finished_rollout(
    tmp_path_factory: pytest.TempPathFactory, seed: int, stop: int, rows: int, resample: int
):
    path, rng = tmp_path_factory.mktemp("collector"), random.Random(seed)
    config = collector_settings(filter__dynamic_sampling_rounds=resample)
    client = SimulatedClient(lambda request: rng.choice([1, 2, 3, 40]))
    first, saved_state = asyncio.run(collect(path, config, client, letters_env(rows), stop=stop))
    with (path / "rollouts.jsonl").open("r+b") as file:  # as resuming from the checkpoint after that step does
        file.truncate(saved_state.pop("bytes"))
    finished = [r for r in rollouts_of(path) if (r.step or 0) > stop]
    resumed, _ = asyncio.run(collect(path, config, client, letters_env(rows), start=stop, state=saved_state))
    collected = [*first, *resumed]
    assert_complete(path, collected, config)
    assert max(max_token_ages(collected)) <= config.max_off_policy_steps
    tokens_by_rollout = {
        (r.step, r.seed): [turn.tokens for turn in r.steps]
        for collected_step in resumed
        for r in collected_step.records
    }
    assert all(
        tokens_by_rollout[record.step, record.seed] == [turn.tokens for turn in record.steps] for record in finished
    )
    if not resample:
        assert sorted(example_ids(collected)) == sorted(i % rows for i in range(config.steps * GROUPS))


def test_time_average_weights_values_by_duration(monkeypatch: pytest.MonkeyPatch):
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    average = TimeAverage()
    for seconds, value in ((1.0, 4), (3.0, 2)):
        clock[0] += seconds
        average.set(value)
    clock[0] += 4.0
    assert average.mean() == (0 * 1 + 4 * 3 + 2 * 4) / 8
    clock[0] += 1.0
    assert average.mean() == 2


# Training with a model


class DelayedEnv(vf.MultiTurnEnv):
    """An environment that responds with a delay, much longer for some rollouts."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        await asyncio.sleep(0.05 if state["seed"] % 5 == 0 else 0.001)
        return "you say"


def sleeping_env() -> vf.Environment:
    rubric = vf.Rubric()
    rubric.add_reward_func(letters, weight=1.0)
    return DelayedEnv(dataset=[{"question": f"say {n}"} for n in range(4)], rubric=rubric, max_turns=2)


def async_settings(**fields: Any) -> Any:
    return settings(**{"steps": 9, "max_off_policy_steps": 3, "checkpoint_every": 3, "max_tokens": 8, **fields})


@pytest.mark.broad
def test_every_token_is_trained_with_the_version_that_sampled_it(tmp_path: Path):
    train(tmp_path, async_settings(), sleeping_env())
    rows = metrics_of(tmp_path)
    assert len(rows) == 9
    assert all(0 <= m["off_policy/mean"] <= m["off_policy/max"] <= 3 for m in rows)
    assert max(m["off_policy/max"] for m in rows) >= 1
    assert all(0 <= m["idle/trainer"] <= 1 and 0 <= m["idle/sampler"] <= 1 for m in rows)
    records = rollouts_of(tmp_path)
    assert Counter(r.step for r in records) == dict.fromkeys(range(1, 10), 16)
    mixed = 0
    for record in records:
        for step in record.steps:
            assert step.tokens is not None
            versions = [version for version, _ in step.tokens.versions]
            assert versions == sorted(versions) and versions[-1] < (record.step or 0)
            mixed += len(versions) > 1
    sampled_versions = {version for r in records for s in r.steps if s.tokens for version, _ in s.tokens.versions}
    assert len(sampled_versions) > 4


@pytest.mark.slow
def test_the_reward_rises_in_asynchronous_training(tmp_path: Path):
    config = async_settings(steps=14, batch_size=64, rollouts_per_example=16, checkpoint_every=99, max_tokens=4)
    train(tmp_path, config, sleeping_env())
    rewards = [m["reward/mean"] for m in metrics_of(tmp_path)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2


@pytest.mark.parametrize(
    "kill_at",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(5, marks=pytest.mark.broad),
        pytest.param(8, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_and_trains_every_rollout_once(tmp_path: Path, kill_at: int):
    with pytest.raises(Killed):
        train(tmp_path, async_settings(), sleeping_env(), kill_at)
    assert not (tmp_path / "final").exists()
    train(tmp_path, async_settings(), sleeping_env())
    assert weights_of(tmp_path)
    assert [m["step"] for m in metrics_of(tmp_path)] == list(range(1, 10))
    assert max(m["off_policy/max"] for m in metrics_of(tmp_path)) <= 3
    records = rollouts_of(tmp_path)
    assert Counter(r.step for r in records) == dict.fromkeys(range(1, 10), 16)
    assert len({r.seed for r in records}) == len(records)
    assert Counter(r.example_id for r in records) == dict.fromkeys(range(4), 36)


@pytest.mark.slow
@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize(
    "overrides",
    [{"lora__rank": 2}, {"bf16_sampling": True}, {"loss__kl_penalty": 1.0, "loss__sync_reference_every": 2}],
    ids=str,
)
def test_the_sampler_receives_new_weights_during_generation(
    tmp_path: Path, overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    equal: list[bool] = []
    busy: list[int] = []
    original_publish = _Loop.publish

    def publish(self: _Loop, version: int) -> None:
        engine: Any = self.backend.client.engine
        busy.append(len(engine._runner.active()))
        original_publish(self, version)
        weights, sampled = trainable_parameters(self.loaded.model), trainable_parameters(engine.model)
        equal.append(all(sampled[name].equal(weight.to(sampled[name].dtype)) for name, weight in weights.items()))

    monkeypatch.setattr(_Loop, "publish", publish)
    train(tmp_path, async_settings(steps=6, **overrides), sleeping_env())
    assert len(equal) == 7 and all(equal)
    assert any(busy)
    first = metrics_of(tmp_path)[0]
    assert first["off_policy/max"] == 0 and first["logprob_diff/max"] < (0.2 if "bf16_sampling" in overrides else 1e-4)


@pytest.mark.broad
def test_evaluations_use_the_weights_of_their_step_while_rollouts_continue(tmp_path: Path, envs: str):
    train(tmp_path, async_settings(steps=4, evaluation=[table(every=2)], env_dir=envs), two_turns())
    for step in (2, 4):
        [folder] = tmp_path.glob(f"evaluations/*/{step}")
        versions = {v for r in Run(folder).rollouts() for s in r.steps if s.tokens for v, _ in s.tokens.versions}
        assert versions == {step}
