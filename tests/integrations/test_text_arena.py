"""Test TextArenaEnv: games in separate processes, opponents, rewards and errors."""

from __future__ import annotations

import random
import re
import sys

import pytest
from libraries import SharedHostMixin, requires_library, shared_host  # noqa: F401  a fixture
from toy_envs import scripted_client

import rove as vf
from rove.core.state import State
from rove.integrations.environments.text_arena import TextArenaEnv, random_bracket

library = requires_library("textarena", "rove[textarena]")


class SharedHostTextArena(SharedHostMixin, TextArenaEnv):
    """A TextArenaEnv whose workers share one fork server."""


def sample(env: vf.Environment, policy: object = random_bracket, rollouts: int = 1) -> list[vf.RolloutRecord]:
    client = policy if isinstance(policy, vf.Client) else scripted_client(policy)  # pyright: ignore[reportArgumentType]
    return env.generate_sync(client, rollouts_per_example=rollouts)


def last_free_square(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    return re.findall(r"\[\d\]", messages[-1].content)[-1]


@library
def test_the_model_takes_both_positions_of_a_game() -> None:
    records = sample(SharedHostTextArena("TicTacToe-v0", 8), rollouts=2)
    assert [record.error for record in records] == [None] * 16
    assert {frozenset(record.model_roles) for record in records} == {frozenset({"player 0"}), frozenset({"player 1"})}
    for record in records:
        assert record.scores is not None
        raw = record.scores.metrics["raw_reward"]
        assert record.reward == (raw + 1) / 2 and record.scores.metrics["finished"] == 1.0
        assert record.completion[-1]["content"].endswith("The game is over.")
        assert "three in a row" not in str(record.completion)  # each message has only the new text


@library
def test_rollouts_of_a_group_have_the_same_game() -> None:
    env = SharedHostTextArena("Minesweeper-v0", 3)
    groups = [sample(env, "[0 0]", rollouts=3) for _ in range(2)]
    assert [record.completion for record in groups[0]] == [record.completion for record in groups[1]]
    by_row = {i: {str(r.completion) for r in groups[0] if r.example_id == i} for i in range(3)}
    assert all(len(texts) == 1 for texts in by_row.values()) and len(set.union(*by_row.values())) == 3


@pytest.mark.broad
@library
def test_the_fork_server_ends_with_the_run() -> None:
    env = TextArenaEnv("TicTacToe-v0", 1)
    assert sample(env)[0].error is None and env.workers._server is None


@library
def test_concurrent_games_are_independent() -> None:
    """TextArena uses the global random generator of its process."""
    env = SharedHostTextArena("Blackjack-v0", 12)
    concurrent = env.generate_sync(scripted_client("[Hit]"), max_concurrent=12)
    sequential = env.generate_sync(scripted_client("[Hit]"), max_concurrent=1)
    assert [r.completion for r in concurrent] == [r.completion for r in sequential]
    state = random.getstate()
    env.generate_sync(scripted_client("[Stand]"))
    assert random.getstate() == state and "textarena" not in sys.modules


@library
def test_opponents_see_the_game_from_their_position() -> None:
    prompt_roles: list[list[str]] = []

    def opponent(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
        prompt_roles.append([message.role for message in messages])
        return last_free_square(messages, state, rng)

    [record] = sample(SharedHostTextArena("TicTacToe-v0", 1, opponent=opponent), last_free_square)
    [steps] = record.model_roles.values()
    assert len(steps) == len(prompt_roles) >= 2 and prompt_roles[1] == ["user", "assistant", "user"]
    [record] = sample(SharedHostTextArena("TicTacToe-v0", 1, opponent=scripted_client("no move at all")))
    assert (record.reward, record.scores and record.scores.metrics["raw_reward"]) == (1.0, 1.0)


@library
def test_the_second_invalid_move_loses_the_game() -> None:
    [record] = sample(SharedHostTextArena("TicTacToe-v0", 1), "I pass")
    assert record.scores is not None and len(record.steps) == 2
    assert (record.reward, record.scores.metrics["invalid_move"]) == (0.0, 1.0)


@library
def test_an_unfinished_game_has_zero_reward() -> None:
    [record] = sample(SharedHostTextArena("TicTacToe-v0", 1, max_turns=1))
    assert record.scores is not None
    assert (record.reward, record.scores.metrics["finished"], record.stop_condition) == (0.0, 0.0, "max_turns_reached")


@library
def test_feedback_fn_changes_the_text() -> None:
    [record] = sample(SharedHostTextArena("TicTacToe-v0", 1, feedback_fn=str.upper))
    assert "AVAILABLE MOVES" in record.prompt[-1]["content"] and "Available" not in str(record.completion)


@pytest.mark.broad
@library
def test_a_hanging_game_fails_its_rollout() -> None:
    """With one player that never makes a move, this game waits forever for the others."""
    [record] = sample(SharedHostTextArena("PublicGoodsGame-v0", 1, num_players=1, call_seconds=3.0), "[X]")
    assert record.error is not None
    assert record.error.type == "WorkerError" and "did not end within 3 s" in record.error.message


@library
def test_network_access_is_refused() -> None:
    [record] = sample(SharedHostTextArena("Wordle-v0", 1), "[crane]")
    assert record.error is not None
    assert (record.error.phase, record.error.type) == ("setup_state", "LookupError") and "nltk" in record.error.message


@library
def test_an_unknown_game_is_reported() -> None:
    [record] = sample(SharedHostTextArena("TicTacTo-v0", 1))
    assert record.error is not None
    assert (record.error.type, record.error.phase) == ("ConfigError", "setup_state")
    assert "did you mean 'TicTacToe" in record.error.message


@library
def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(vf.ConfigError, match="num_players is 0"):
        SharedHostTextArena("TicTacToe-v0", num_players=0)


@pytest.mark.broad
def test_random_moves_are_chosen_from_the_text() -> None:
    def move(text: str, seed: int = 1) -> str:
        return random_bracket([vf.UserMessage(text)], State(input={"info": {"seed": seed}}), random.Random(0))

    text = "[Player 1] moved. Available Moves: '[0]', '[2]', '[b 3]'"
    assert {move(text, seed) for seed in range(30)} == {"[0]", "[2]", "[b 3]"}
    assert move(text) == move(text) and move("use [up] or [down]") in ("[up]", "[down]") and move("say it") == "[0]"


@pytest.mark.parametrize(
    ("texts", "moves"),
    [
        (["Available Moves: '[0]', '[2]'", "[Player 0] [7]\nAvailable Moves: '[0]', '[2]'"], {"[0]", "[2]"}),
        (["Available Moves: '[0]', '[2]'\n[Player 0] [0]\nAvailable Moves: '[2]'"], {"[2]"}),
        (["For example: '[col 4]' or '[col 1]'.", "[Player 1] [col 3]\nThe board:"], {"[col 3]"}),
        (["For example: '[col 4]' or '[col 1]'.", "Expected format: '[col x]'."], {"[col 4]", "[col 1]"}),
        (["No move is shown."], {"[0]"}),
    ],
)
def test_the_random_opponent_makes_moves_and_repeats_no_names(texts: list[str], moves: set[str]) -> None:
    messages: vf.Messages = [vf.SystemMessage("Answer in a form such as [4]."), *map(vf.UserMessage, texts)]
    states = [State({"info": {"seed": seed}}) for seed in range(40)]
    assert {random_bracket(messages, state, random.Random(0)) for state in states} == moves
