"""Test GymEnv with custom classes and, where Gymnasium is installed, with its text games."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from libraries import requires_library
from tiers import each_row, first_quick
from toy_envs import scripted_client

import rove as vf
from rove.integrations.environments.gym import plain, read_action

gymnasium = requires_library("gymnasium", "rove[gym]")


class Walk:
    """A Gymnasium-style walk on five squares: the seed selects the start, the right end has reward 1."""

    closed = 0

    def __init__(self, length: int = 5):
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict]:
        self.at = 1 + random.Random(seed).randrange(self.length - 2)
        return self.at, {"seed": seed}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        self.at += 1 if action == 1 else -1
        is_end = self.at in (0, self.length - 1)
        return self.at, float(self.at == self.length - 1), is_end, False, {}

    def close(self) -> None:
        type(self).closed += 1


class OldWalk(Walk):
    """The same walk with the API of older Gym versions: no seed, no info, four values per step."""

    def reset(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.at = 2
        return self.at

    def step(self, action: int) -> tuple[int, float, bool, dict]:  # pyright: ignore[reportIncompatibleMethodOverride]
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, info


def walk(env_cls: Any = Walk, **options: Any) -> vf.Environment:
    return vf.GymEnv(env_cls, actions=["left", "right"], num_eval_episodes=4, **options)


def sample(env: vf.Environment, policy: Any, rollouts: int = 1) -> list[vf.RolloutRecord]:
    return env.generate_sync(scripted_client(policy), rollouts_per_example=rollouts)


@pytest.mark.parametrize("env_cls", [Walk, OldWalk])
def test_a_class_with_reset_and_step_is_an_environment(env_cls: Any) -> None:
    closed_before = env_cls.closed
    records = sample(walk(env_cls, obs_to_text=lambda at: f"You stand at {at}."), "right")
    for record in records:
        assert record.scores is not None, record.error
        assert (record.reward, record.stop_condition) == (1.0, "is_done")
        assert record.prompt[-1]["content"].startswith(
            "Play this game.\nAnswer with one action: left, right.\n\nYou stand"
        )
        assert record.completion[-1]["content"] == "You stand at 4.\nThe game is over."
        assert (
            record.scores.metrics["episode_steps"] == len(record.steps) and record.scores.metrics["terminated"] == 1.0
        )
    assert env_cls.closed == closed_before + 4


def test_rollouts_of_a_group_share_a_seed() -> None:
    records = sample(walk(), lambda messages, state, rng: rng.choice(["left", "right"]), rollouts=3)
    prompts = {
        record.example_id: {r.prompt[-1]["content"] for r in records if r.example_id == record.example_id}
        for record in records
    }
    assert all(len(texts) == 1 for texts in prompts.values())
    assert len(set.union(*prompts.values())) > 1
    repeated = sample(walk(), lambda messages, state, rng: rng.choice(["left", "right"]), rollouts=3)
    assert [record.completion for record in repeated] == [record.completion for record in records]
    other_records = sample(walk(seed=1), "right")
    assert [r.info for r in other_records] != [r.info for r in records[::3]]


def test_an_invalid_action_costs_a_turn() -> None:
    responses = iter(["hm", "right", "right", "right"])
    [record] = vf.GymEnv(OldWalk, actions=["left", "right"], num_eval_episodes=1, invalid_penalty=0.3).generate_sync(
        scripted_client(lambda messages, state, rng: next(responses))
    )
    assert record.scores is not None
    assert record.completion[1]["content"] == "Your answer does not name an action. Answer with one of: left, right."
    assert record.scores.rewards == {"episode_return": 1.0, "invalid_actions": 1 / 3}
    assert record.reward == pytest.approx(1.0 - 0.3 / 3)


def test_returns_are_scaled_and_clipped() -> None:
    class Payer(Walk):
        def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
            return 0, [-30.0, 5.0][action], True, False, {}

    env = walk(Payer, reward_range=(-10.0, 10.0))
    assert {record.reward for record in sample(env, "left")} == {0.0}
    [record, *_] = sample(env, "1")
    assert record.scores is not None
    assert (record.reward, record.scores.metrics["raw_return"]) == (0.75, 5.0)
    assert {record.reward for record in sample(walk(Payer), "left")} == {-30.0}


def test_an_episode_that_has_not_ended_earns_nothing_if_rewards_can_be_negative() -> None:
    class Costly(Walk):
        def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
            return 0, -1.0, False, False, {}

    env = walk(Costly, reward_range=(-10.0, 0.0), max_episode_steps=5)
    assert {record.reward for record in sample(env, "left")} == {0.5}  # the limit of steps is its end
    for answer, limits in (("I am not sure", {}), ("left", {"max_turns": 2})):
        records = env.generate_sync(scripted_client(answer), limits=limits)
        assert {record.scores.rewards["episode_return"] for record in records if record.scores} == {0.0}


def test_steps_are_limited_by_max_episode_steps_or_to_100() -> None:
    [record, *_] = sample(walk(make_endless_walk(), max_episode_steps=3), "left")
    assert (record.stop_condition, len(record.steps)) == ("max_turns_reached", 3)
    [record, *_] = sample(walk(make_endless_walk()), "left")
    assert len(record.steps) == 100


def make_endless_walk() -> Any:
    class Endless(Walk):
        def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
            return 0, 0.0, False, False, {}

    return Endless


def test_a_custom_action_parser_and_observation_text_are_used() -> None:
    def parse(text: str) -> int:
        if text not in "<>":
            raise ValueError("say < or >")
        return "<>".index(text)

    responses = iter("!>>>>")
    env = vf.GymEnv(OldWalk, action_parser=parse, obs_to_text=lambda at: "." * at + "x", num_eval_episodes=1)
    [record] = env.generate_sync(scripted_client(lambda messages, state, rng: next(responses)))
    assert record.prompt[-1]["content"] == "Play this game.\n\n\n..x"
    assert [message["content"] for message in record.completion[1::2]] == [
        "say < or >",
        "...x",
        "....x\nThe game is over.",
    ]


def test_a_step_that_raises_fails_its_rollout_and_the_environment_is_closed() -> None:
    class Broken(Walk):
        def step(self, action: int) -> Any:
            raise RuntimeError("a wheel came off")

    closed_before = Broken.closed
    record, *_ = sample(walk(Broken), "left")
    assert record.error is not None
    assert (record.error.phase, record.error.message) == ("env_response", "a wheel came off")
    assert Broken.closed == closed_before + 4


def test_a_slow_step_times_out_and_ends_before_close() -> None:
    log: list[str] = []

    class Slow(Walk):
        def step(self, action: int) -> Any:
            time.sleep(0.3)
            log.append("stepped")
            return super().step(action)

        def close(self) -> None:
            log.append("closed")

    env = vf.GymEnv(Slow, actions=["left", "right"], num_eval_episodes=1)
    [record] = env.generate_sync(scripted_client("right"), limits={"timeout_seconds": 0.1})
    assert record.stop_condition == "timeout_reached"
    assert log == ["stepped", "closed"]


@each_row(
    ("text", "names", "number"),
    [
        ("right", ["left", "right"], 1),
        (" Right. ", ["left", "right"], 1),
        ("1", ["left", "right"], 1),
        ("7", ["left", "right"], None),
        ("1", ["5", "6", "7"], None),
        ("6", ["5", "6", "7"], 1),
        ("left? no: right", ["left", "right"], 1),
        ("<think>left</think> go", ["left", "right"], None),
        ("<think>maybe <action>right</action> but", ["left", "right"], None),
        ("<think>left</think><action>\nright\n</action> not left", ["left", "right"], 1),
        ("bright", ["left", "right"], None),
        ("", ["left", "right"], None),
        ("0", [], None),
        ("pick up", ["pick up", "pick"], 0),
    ],
)
def test_actions_are_read_from_text(text: str, names: Sequence[str], number: int | None) -> None:
    assert read_action(text, names) == number


def test_colors_in_renderings_become_brackets() -> None:
    assert plain("  (Down)\nS\x1b[41mF\x1b[0mFF\n\x1b[35mR\x1b[0m\n") == "S[F]FF\nR"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward_range": (1.0, 1.0)}, "reward_range is"),
        ({"num_eval_episodes": 0}, "num_eval_episodes is 0"),
        ({"max_episode_steps": -1}, "max_episode_steps is -1"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(vf.ConfigError, match=message):
        vf.GymEnv(Walk, **arguments)


def test_actions_without_names_or_numbers_are_an_error() -> None:
    [record] = vf.GymEnv(Walk, num_eval_episodes=1).generate_sync(scripted_client("1"))
    assert record.error is not None and "pass actions= (their names)" in record.error.message


def lake_walker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Walk around the holes of the 4x4 map; always reaches the goal if the ice is not slippery."""
    return {0: "down", 4: "down", 8: "right", 9: "down", 13: "right", 14: "right"}[int(state["gym_env"].unwrapped.s)]


@gymnasium
def test_frozen_lake_can_be_solved_by_a_scripted_policy() -> None:
    env = vf.GymEnv("FrozenLake-v1", {"is_slippery": False}, num_eval_episodes=2)
    for record in sample(env, lake_walker):
        assert (record.reward, record.stop_condition, len(record.steps)) == (1.0, "is_done", 6)
        assert record.prompt[-1]["content"].endswith("[S]FFF\nFHFH\nFFFH\nHFFG")
        assert record.completion[1]["content"] == "SFFF\n[F]HFH\nFFFH\nHFFG"
    assert {record.reward for record in sample(env, "left then down? no: DOWN.\n<action>2</action>")} <= {0.0, 1.0}
    assert env.max_turns == 100


@gymnasium
@pytest.mark.parametrize(
    ("name", "message"),
    first_quick(
        [
            ("FrozenLake8x8-v1", "left, down, right, up"),
            ("CliffWalking-v1", "x  C  C"),
            ("CliffWalkingSlippery-v1", "x  C  C"),
            ("Taxi-v4", "Passenger: at "),
            ("Blackjack-v1", "The dealer shows"),
        ],
    ),
)
def test_text_games_run_with_a_random_policy(name: str, message: str) -> None:
    env = vf.GymEnv(name, num_eval_episodes=5)
    records = env.generate_sync(vf.ScriptedClient(env.policies["random"]), rollouts_per_example=2)
    assert [record.error for record in records] == [None] * 10
    assert all(message in record.prompt[-1]["content"] and "\x1b" not in str(record.completion) for record in records)
    assert all(0.0 <= (record.reward or 0.0) <= 1.0 for record in records)


@gymnasium
@pytest.mark.parametrize("name", ["CliffWalking-v1", "Taxi-v4", "Blackjack-v1"])
def test_text_games_pay_nothing_for_answers_without_an_action(name: str) -> None:
    records = vf.GymEnv(name, num_eval_episodes=2).generate_sync(
        scripted_client("I am not sure"), limits={"max_turns": 20}
    )
    assert [record.scores.rewards["episode_return"] for record in records if record.scores] == [0.0, 0.0]


@gymnasium
def test_cliff_walking_that_is_cut_off_earns_nothing() -> None:
    for env in (
        vf.GymEnv("CliffWalking-v1", num_eval_episodes=1, max_episode_steps=13),
        vf.GymEnv("CliffWalking-v1", {"max_episode_steps": 13}, num_eval_episodes=1),
    ):
        [record] = sample(env, "left")
        assert (record.reward, len(record.steps)) == (0.0, 13)


@gymnasium
def test_taxi_can_be_solved_by_a_scripted_policy() -> None:
    def driver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
        """Drive to the next landmark through row 2, which has no walls."""
        row, column, passenger, goal = state["gym_env"].unwrapped.decode(state["gym_env"].unwrapped.s)
        landmarks = [(0, 0), (0, 4), (4, 0), (4, 3)]
        target = landmarks[passenger] if passenger < 4 else landmarks[goal]
        if (row, column) == target:
            return "pickup" if passenger < 4 else "dropoff"
        if column == target[1]:
            return "south" if row < target[0] else "north"
        if row != 2:
            return "south" if row < 2 else "north"
        return "east" if column < target[1] else "west"

    records = sample(vf.GymEnv("Taxi-v4", num_eval_episodes=6), driver)
    assert all(record.scores is not None and record.scores.metrics["raw_return"] > 0 for record in records)


@gymnasium
def test_an_unknown_gymnasium_environment_is_reported() -> None:
    with pytest.raises(vf.ConfigError, match="Gymnasium has no environment 'FrozenLike-v1'"):
        vf.GymEnv("FrozenLike-v1")
