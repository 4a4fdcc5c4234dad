"""Rollouts without end: who is started, who is trained when, what is left when it stops."""

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
from rove.train.rl import _Loop
from tests.train.test_evaluation import envs, table
from tests.train.test_rl import Killed, letters, metrics_of, rollouts_of, settings, train, two_turns, weights_of

__all__ = ["envs"]

SIBLINGS, GROUPS = 2, 3


def streaming(**fields: Any) -> Any:
    """Steps of three pairs of siblings."""
    defaults = {"batch_size": SIBLINGS * GROUPS, "rollouts_per_example": SIBLINGS, "max_off_policy_steps": 2}
    return settings(**{**defaults, "steps": 8, "checkpoint_every": 3, **fields})


class Answers:
    """A client whose answers take as many passes of the event loop as `passes` says, and no clock."""

    max_concurrent = 99

    def __init__(self, passes: Callable[[Request], int] = lambda request: 1):
        self.passes = passes
        self.version = 0
        self.busy = self.most = 0

    async def respond(self, request: Request) -> Response:
        self.busy += 1
        self.most = max(self.most, self.busy)
        version = self.version
        try:
            for _ in range(self.passes(request)):
                await asyncio.sleep(0)
        finally:
            self.busy -= 1
        said = f"{'aA'[request.seed % 2]}"
        return Response(vf.AssistantMessage(said), Usage(1, 1), tokens=StepTokens([1], [2], [-0.5], version))

    async def close(self) -> None: ...


def asks(count: int = 5, reward: Any = letters) -> vf.Environment:
    rubric = vf.Rubric()
    rubric.add_reward_func(reward, weight=1.0, name="letters")
    return vf.SingleTurnEnv(dataset=[{"question": f"say {n}"} for n in range(count)], rubric=rubric)


async def play(
    path: Path,
    config: Any,
    client: Answers,
    env: vf.Environment | None = None,
    start: int = 0,
    stop: int | None = None,
    state: Any = None,
    learning: Callable[[int], int] = lambda step: 2,
) -> tuple[list[CollectedStep], Any]:
    """The steps of a run whose trainer takes so many passes of the event loop; all of them, and the state before the last."""
    made: list[CollectedStep] = []
    with Run(path) as run:
        run.start("rl", {}, {})
        client.version = start
        collector = AsyncCollector(config, env or asks(), client, run, step=start, state=state or {})
        left = collector.state()
        try:
            for step in range(start, config.steps if stop is None else stop):
                made.append(await collector.take(step))
                for _ in range(learning(step)):
                    await asyncio.sleep(0)
                client.version = step + 1
                collector.use_version(step + 1)
                left = msgspec.json.decode(msgspec.json.encode(collector.state()))
                left["bytes"] = (path / "rollouts.jsonl").stat().st_size
        finally:
            await collector.close()
    return made, left


def examples(made: list[CollectedStep]) -> list[int]:
    return [r.example_id for one in made for r in one.records if r.rollout_index == 0]


def oldest(made: list[CollectedStep]) -> list[int]:
    """How many versions behind its step each step's oldest token is."""
    ages = []
    for one in made:
        step = one.records[0].step
        assert step is not None and {r.step for r in one.records} == {step}
        ages.append(max(step - 1 - turn.tokens.policy_version for r in one.records for turn in r.steps if turn.tokens))
    return ages


def check_all_is_there(path: Path, made: list[CollectedStep], config: Any) -> None:
    """Every group is in one step, whole, under a name of its own; what was handed out is what the run folder has."""
    for one in made:
        assert len(one.records) % SIBLINGS == 0
        keys = Counter(record.example_key for record in one.records)
        assert set(keys.values()) == {SIBLINGS}
    seeds = Counter(record.seed for one in made for record in one.records)
    assert set(seeds.values()) == {1}
    kept = Counter((r.step, r.example_key, r.rollout_index) for r in rollouts_of(path))
    assert kept == Counter((r.step, r.example_key, r.rollout_index) for one in made for r in one.records)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.sampled_from([1, 30]), st.integers(0, 12), st.integers(1, 7))
def test_whatever_takes_however_long_nothing_is_lost_repeated_or_too_old(
    tmp_path_factory: pytest.TempPathFactory, seed: int, most: int, slow: int, learning: int, rows: int
):
    path, rng = tmp_path_factory.mktemp("collector"), random.Random(seed)
    config = streaming(max_off_policy_steps=most)
    client = Answers(lambda request: rng.choice([0, 1, 2, 5, 5 * slow]))
    made, _ = asyncio.run(play(path, config, client, asks(rows), learning=lambda step: rng.randrange(learning + 1)))
    assert [len(one.records) for one in made] == [SIBLINGS * GROUPS] * config.steps
    assert max(oldest(made)) <= most
    assert client.most <= config.batch_size
    check_all_is_there(path, made, config)
    assert sorted(examples(made)) == sorted(i % rows for i in range(config.steps * GROUPS))


async def test_who_ends_first_is_trained_first_and_a_straggler_in_time(tmp_path: Path):
    """The first group takes for ever: others go before it until its last step, which waits for it."""
    release = asyncio.Event()

    class Slow(Answers):
        async def respond(self, request: Request) -> Response:
            made = await super().respond(request)
            if "say 0" in request.messages[-1]["content"] and self.version == 0:
                await release.wait()
            return made

    client, config = Slow(), streaming(steps=4)
    with Run(tmp_path) as run:
        run.start("rl", {}, {})
        collector = AsyncCollector(config, asks(50), client, run, step=0, state={})
        first = [await collector.take(0)]
        collector.use_version(1)
        first.append(await collector.take(1))
        collector.use_version(2)
        assert examples(first) == [1, 2, 3, 4, 5, 6]
        waiting = asyncio.create_task(collector.take(2))
        for _ in range(300):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert (
            len(collector.running) == 1
        )  # and for step 3 all are there: no more is played than can be trained in time
        release.set()
        third = await waiting
        assert examples([third])[0] == 7 and 0 in examples([third])
        assert third.metrics["queue/late"] == 1
        assert third.metrics["queue/ended"] == 3
        await collector.close()
    assert oldest([*first, third]) == [0, 1, 2]


async def test_while_a_step_waits_for_the_trainer_no_group_is_started(tmp_path: Path):
    client, config = Answers(), streaming(max_off_policy_steps=50, steps=100)
    with Run(tmp_path) as run:
        run.start("rl", {}, {})
        collector = AsyncCollector(config, asks(), client, run, step=0, state={})
        await collector.take(0)
        for _ in range(500):
            await asyncio.sleep(0)
        assert not collector.running
        assert len(list(run.rollouts())) <= 3 * config.batch_size
        await collector.close()


async def test_keys_that_meet_are_told_apart_and_examples_come_in_their_order(tmp_path: Path):
    made, _ = await play(tmp_path, streaming(max_off_policy_steps=4), Answers(), asks(2))
    check_all_is_there(tmp_path, made, None)
    names = {record.example_key for one in made for record in one.records}
    assert any("@" in name for name in names) and any("#2" in name for name in names)
    curriculum = streaming(curriculum="info.level", steps=4)
    rows = [{"question": f"q{n}", "info": {"level": -n}} for n in range(12)]
    rubric = vf.Rubric()
    rubric.add_reward_func(letters, weight=1.0)
    made, _ = await play(tmp_path / "c", curriculum, Answers(), vf.SingleTurnEnv(dataset=rows, rubric=rubric))
    assert [sorted(examples([one])) for one in made] == [[9, 10, 11], [6, 7, 8], [3, 4, 5], [0, 1, 2]]


async def test_groups_without_spread_take_no_places_where_they_are_replaced(tmp_path: Path):
    def reward(completion: vf.Messages, info: dict[str, Any], state: vf.State) -> float:
        return 0.5 if state["input"]["example_id"] % 2 else float(state["seed"] % 1000)

    config = streaming(dynamic_sampling_rounds=2, steps=5)
    made, _ = await play(tmp_path, config, Answers(), asks(8, reward))
    for one in made:
        assert one.metrics["groups/all"] - one.metrics["groups/zero_spread"] == GROUPS
        assert one.metrics["groups/resampled"] == one.metrics["groups/zero_spread"]
    assert sum(one.metrics["groups/resampled"] for one in made) >= 10
    made, _ = await play(tmp_path / "flat", config, Answers(), asks(8, lambda completion: 0.5))
    assert {one.metrics["groups/all"] for one in made} == {3.0 * GROUPS}  # and then they do
    check_all_is_there(tmp_path / "flat", made, config)


async def test_one_failed_rollout_hurts_no_other_and_a_step_of_failures_raises(tmp_path: Path):
    def moody(completion: vf.Messages, state: vf.State) -> float:
        if state["input"]["example_id"] == 1 or always:
            raise ValueError("not today")
        return letters(completion)

    always = False
    made, _ = await play(tmp_path / "some", streaming(), Answers(), asks(5, moody))
    assert sum(one.metrics["rollouts/failed"] for one in made) == SIBLINGS * examples(made).count(1) > 0
    check_all_is_there(tmp_path / "some", made, None)
    always = True
    with pytest.raises(RunError, match=r"every rollout of step 1 failed.*not today"):
        await play(tmp_path / "all", streaming(), Answers(), asks(5, moody))
    assert all(record.error for record in rollouts_of(tmp_path / "all"))


async def test_what_breaks_in_the_collector_itself_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    plain = Run.append_rollout

    def full(self: Run, record: Any) -> None:
        calls.append(1)
        if len(calls) > 9:
            raise OSError("no space left")
        plain(self, record)

    monkeypatch.setattr(Run, "append_rollout", full)
    with pytest.raises(OSError, match="no space left"):
        await play(tmp_path, streaming(), Answers())


async def test_when_it_is_stopped_nothing_goes_on_and_what_has_ended_is_kept(tmp_path: Path):
    client = Answers(lambda request: 10**6 if request.seed % 2 else 1)
    task = asyncio.create_task(play(tmp_path, streaming(), client))
    for _ in range(100):
        await asyncio.sleep(0)
    before = asyncio.all_tasks()
    assert client.busy > 0 and len(before) > 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled() and client.busy == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert {record.step for record in rollouts_of(tmp_path)} == {1}
    assert 0 < len(rollouts_of(tmp_path)) < SIBLINGS * GROUPS  # single siblings of groups that were given up


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 6), st.integers(0, 1))
def test_a_resumed_collector_plays_what_is_left_and_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, seed: int, stop: int, rows: int, resample: int
):
    path, rng = tmp_path_factory.mktemp("collector"), random.Random(seed)
    config = streaming(dynamic_sampling_rounds=resample)
    client = Answers(lambda request: rng.choice([1, 2, 3, 40]))
    first, left = asyncio.run(play(path, config, client, asks(rows), stop=stop))
    with (path / "rollouts.jsonl").open("r+b") as file:  # as the checkpoint after that step would
        file.truncate(left.pop("bytes"))
    kept = [r for r in rollouts_of(path) if (r.step or 0) > stop]
    rest, _ = asyncio.run(play(path, config, client, asks(rows), start=stop, state=left))
    made = [*first, *rest]
    check_all_is_there(path, made, config)
    assert max(oldest(made)) <= config.max_off_policy_steps
    played = {(r.step, r.seed): [turn.tokens for turn in r.steps] for one in rest for r in one.records}
    assert all(played[k.step, k.seed] == [turn.tokens for turn in k.steps] for k in kept)
    if not resample:
        assert sorted(examples(made)) == sorted(i % rows for i in range(config.steps * GROUPS))


def test_a_level_knows_its_mean_over_time(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    level = TimeAverage()
    for seconds, value in ((1.0, 4), (3.0, 2)):
        now[0] += seconds
        level.set(value)
    now[0] += 4.0
    assert level.mean() == (0 * 1 + 4 * 3 + 2 * 4) / 8
    now[0] += 1.0
    assert level.mean() == 2


# with a model that learns


class Sleeps(vf.MultiTurnEnv):
    """Answers late, some rollouts much later than others."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        await asyncio.sleep(0.05 if state["seed"] % 5 == 0 else 0.001)
        return "you say"


def sleeps() -> vf.Environment:
    rubric = vf.Rubric()
    rubric.add_reward_func(letters, weight=1.0)
    return Sleeps(dataset=[{"question": f"say {n}"} for n in range(4)], rubric=rubric, max_turns=2)


def learning(**fields: Any) -> Any:
    return settings(**{"steps": 9, "max_off_policy_steps": 3, "checkpoint_every": 3, "max_tokens": 8, **fields})


@pytest.mark.broad
def test_every_token_is_trained_with_the_version_that_sampled_it(tmp_path: Path):
    train(tmp_path, learning(), sleeps())
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
    seen = {version for r in records for s in r.steps if s.tokens for version, _ in s.tokens.versions}
    assert len(seen) > 4


@pytest.mark.slow
def test_the_reward_rises(tmp_path: Path):
    config = learning(steps=14, batch_size=64, rollouts_per_example=16, checkpoint_every=99, max_tokens=4)
    train(tmp_path, config, sleeps())
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
def test_a_killed_run_goes_on_and_trains_everything_once(tmp_path: Path, kill_at: int):
    with pytest.raises(Killed):
        train(tmp_path, learning(), sleeps(), kill_at)
    assert not (tmp_path / "final").exists()
    train(tmp_path, learning(), sleeps())
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
    "more", [{"lora_rank": 2}, {"bf16_sampling": True}, {"kl_penalty": 1.0, "sync_reference_every": 2}], ids=str
)
def test_whatever_plays_takes_its_weights_in_flight(
    tmp_path: Path, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    equal: list[bool] = []
    busy: list[int] = []
    plain = _Loop.publish

    def publish(self: _Loop, version: int) -> None:
        engine: Any = self.backend.client.engine
        busy.append(len(engine._runner.active()))
        plain(self, version)
        weights, sampled = trainable_parameters(self.loaded.model), trainable_parameters(engine.model)
        equal.append(all(sampled[name].equal(weight.to(sampled[name].dtype)) for name, weight in weights.items()))

    monkeypatch.setattr(_Loop, "publish", publish)
    train(tmp_path, learning(steps=6, **more), sleeps())
    assert len(equal) == 7 and all(equal)
    assert any(busy)
    first = metrics_of(tmp_path)[0]
    assert first["off_policy/max"] == 0 and first["logprob_diff/max"] < (0.2 if "bf16_sampling" in more else 1e-4)


@pytest.mark.broad
def test_evaluations_have_the_weights_of_their_step_while_rollouts_go_on(tmp_path: Path, envs: str):
    train(tmp_path, learning(steps=4, evaluation=[table(every=2)], env_dir=envs), two_turns())
    for step in (2, 4):
        [folder] = tmp_path.glob(f"evaluations/*/{step}")
        versions = {v for r in Run(folder).rollouts() for s in r.steps if s.tokens for v, _ in s.tokens.versions}
        assert versions == {step}
