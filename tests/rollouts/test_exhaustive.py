"""Tests of exhaustive evaluation over the game tree: lines, exact probabilities, and goals."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import random
from fractions import Fraction
from typing import Any

import pytest
from toy_envs import Talk, scripted_client

import rove as vf
from rove.core.protocols import Request, Response
from rove.rollouts.exhaustive import ExhaustiveResult, Goals, Line, play_all_games, summarize, values_of
from rove.rollouts.groups import RolloutError

GREEDY = vf.SamplingParams(temperature=0.0)


def game() -> Any:
    return vf.load_environment("tictactoe")


def evaluate_all_lines(client: vf.Client, env: Any = None) -> list[Line]:
    return asyncio.run(play_all_games(env or game(), client, GREEDY))


def exhaustive_result(policy: str) -> ExhaustiveResult:
    env = game()
    return summarize(env, evaluate_all_lines(scripted_client(env.policies[policy]), env))


def first_best(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    ttt: Any = importlib.import_module("tictactoe")
    return f"<think>.</think><move>{ttt.best_moves(state['board'], 'X')[0]}</move>"


def first_free(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    return f"<think>.</think><move>{state['board'].index('.')}</move>"


def solve_by_recursion(choose: Any, board: str, to_move: str) -> tuple[int, dict[str, Fraction]]:
    """Return the number of lines below a board and the probabilities of their ends, by recursion over boards."""
    ttt: Any = importlib.import_module("tictactoe")
    end = ttt.result(board)
    if end is not None:
        return 1, {end: Fraction(1)}
    if to_move == "X":
        return solve_by_recursion(choose, ttt.place(board, choose(board), "X"), "O")
    line_count, probabilities = 0, dict.fromkeys(("X", "O", "draw"), Fraction(0))
    free = ttt.free_squares(board)
    for square in free:
        lines_below, ends_below = solve_by_recursion(choose, ttt.place(board, square, "O"), "X")
        line_count += lines_below
        for end, probability in ends_below.items():
            probabilities[end] += probability / len(free)
    return line_count, probabilities


@pytest.mark.broad
@pytest.mark.parametrize("name", ["first best", "first free"])
def test_lines_and_probabilities_match_a_recursion_over_the_rules(name: str):
    env = game()
    ttt: Any = importlib.import_module("tictactoe")
    player, choose = {
        "first best": (first_best, lambda board: ttt.best_moves(board, "X")[0]),
        "first free": (first_free, lambda board: board.index(".")),
    }[name]
    result = summarize(env, evaluate_all_lines(scripted_client(player), env))
    (lines_x, ends_x), (lines_o, ends_o) = (solve_by_recursion(choose, ttt.EMPTY, side) for side in "XO")
    assert result.lines == lines_x + lines_o
    for metric, end in {"won": "X", "drawn": "draw", "lost": "O"}.items():
        exact = (ends_x.get(end, Fraction(0)) + ends_o.get(end, Fraction(0))) / 2
        assert result.expected[metric] == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.broad
def test_a_perfect_policy_loses_no_line():
    result = exhaustive_result("optimal")
    assert result.counts["lost"] == result.counts["invalid_move"] == 0
    assert result.counts["won"] + result.counts["drawn"] == result.lines > 500
    assert all(check.taken == check.total > 0 for check in result.checks.values())
    assert (
        result.checks["wins in one taken"].total == result.counts["won"]
    )  # a game is won by taking a win in one, once
    assert sum(result.expected[name] for name in ("won", "drawn")) == pytest.approx(1)


@pytest.mark.broad
def test_a_policy_that_misses_forks_loses_some_lines():
    result = exhaustive_result("teacher")
    assert 0 < result.counts["lost"] < 50
    assert 0 < result.expected["lost"] < 0.02
    assert result.checks["wins in one taken"].taken == result.checks["wins in one taken"].total
    assert result.checks["moves that do not lose"].taken < result.checks["moves that do not lose"].total


def test_invalid_moves_are_counted():
    env = game()
    lines = evaluate_all_lines(scripted_client("<think>.</think><move>4</move>"), env)
    result = summarize(env, lines)
    assert result.counts["lost"] == result.counts["invalid_move"] == result.lines
    assert result.counts["won"] == 0
    assert all(line.record.stop_condition == "max_turns_reached" for line in lines)


@pytest.mark.broad
def test_missed_goals_are_listed_and_summed():
    goals = Goals(never=["lost", "invalid_move"], expected={"won": 0.93}, checks={"moves that do not lose": 1.0})
    teacher, optimal = exhaustive_result("teacher"), exhaustive_result("optimal")
    lines, won, moves = goals.missed(teacher)
    assert (lines.amount, lines.text) == (teacher.counts["lost"], f"lost in {teacher.counts['lost']} games")
    assert won.amount == pytest.approx(93 - 100 * teacher.expected["won"])
    check = teacher.checks["moves that do not lose"]
    assert moves.amount == check.total - check.taken > 0
    assert moves.text == f"moves that do not lose {check.taken} of {check.total}, goal 100%"
    assert [goal.text.split()[0] for goal in goals.missed(optimal)] == ["won"]  # the optimal policy does not set traps
    assert Goals(never=["lost"], checks={"wins in one taken": 0.99}).missed(optimal) == []
    assert Goals().missed(teacher) == []


@pytest.mark.broad
def test_a_check_that_never_occurred_is_missed_and_unknown_metrics_are_rejected():
    result = exhaustive_result("optimal")
    [missed] = Goals(checks={"wins in two": 0.9}).missed(result)
    assert missed.text == "wins in two 0 of 1, goal 90%"
    with pytest.raises(vf.ConfigError, match="unknown reward function or metric 'loss'; did you mean 'lost'"):
        Goals(never=["loss"]).missed(result)
    with pytest.raises(vf.ConfigError, match="did you mean 'won'"):
        Goals(expected={"wonn": 0.9}).missed(result)


@pytest.mark.broad
def test_every_line_occurs_once_and_is_played_to_its_end():
    env = game()
    lines = evaluate_all_lines(scripted_client(env.policies["random"]), env)
    assert len({(line.opening, line.replies) for line in lines}) == len(lines)
    assert lines == sorted(lines, key=lambda line: (line.opening, line.replies))
    assert sum(line.probability for line in lines) == pytest.approx(1)
    for line, next_line in itertools.pairwise(lines):
        assert line.opening != next_line.opening or next_line.replies[: len(line.replies)] != line.replies
    for line in lines:
        values = values_of(line.record)
        assert values["won"] + values["drawn"] + values["lost"] == 1
        assert len(line.record.steps) == values["num_turns"]
    assert env.opponent is None


@pytest.mark.broad
def test_equal_conversations_are_sent_once():
    requests: list[str] = []

    class CountingClient:
        max_concurrent = 8

        async def respond(self, request: Request) -> Response:
            requests.append(str(request.messages))
            await asyncio.sleep(0)
            return await inner.respond(request)

        async def close(self) -> None: ...

    env = game()
    inner = scripted_client(env.policies["random"])
    result = summarize(env, evaluate_all_lines(CountingClient(), env))
    assert len(requests) == len(set(requests)) == result.conversations


def test_an_environment_without_openings_is_refused():
    with pytest.raises(vf.ConfigError, match="does not support exhaustive evaluation"):
        evaluate_all_lines(scripted_client("x"), Talk(turns=1))


def test_an_exception_in_the_policy_aborts_the_evaluation():
    def broken(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
        raise ValueError("no idea")

    env = game()
    with pytest.raises(RolloutError, match="no idea"):
        evaluate_all_lines(scripted_client(broken), env)
    assert env.opponent is None
