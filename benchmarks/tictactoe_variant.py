"""Tic-tac-toe with a different reward or opponent: two deliberate mistakes that `study.py` tests.

The variant uses only the public API of the environment: it builds a new rubric and overrides the opponent in a subclass.
"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

vf.load_environment("tictactoe")  # makes the module importable
import tictactoe  # noqa: E402


class FirstBestMoveEnv(tictactoe.TicTacToeEnv):
    """Tic-tac-toe whose opponent always chooses the first of several best moves; its random moves are unchanged."""

    async def _opponent_plays(self, state: vf.State, board: str) -> str:
        info = state["info"]
        if random.Random(f"{info['seed']}:{board}").random() < info["random_move_prob"]:
            return await super()._opponent_plays(state, board)
        return tictactoe.place(board, tictactoe.best_moves(board, "O")[0], "O")


def without_format_reward(parser: vf.Parser) -> vf.Rubric:
    """Return the rubric of tic-tac-toe with the format as a metric instead of a reward."""
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(tictactoe.win, weight=1.0)
    rubric.add_reward_func(tictactoe.invalid_move, weight=-0.1)
    rubric.add_metric(parser.get_format_reward_func(), name="format")
    for metric in (tictactoe.won, tictactoe.drawn, tictactoe.lost):
        rubric.add_metric(metric)
    return rubric


def load_environment(format_reward: bool = True, first_best: bool = False, **options: Any) -> vf.Environment:
    """Return tic-tac-toe with these changes.

    Args:
        format_reward: Whether the format is part of the reward.
        first_best: Whether the opponent always chooses the first of its best moves instead of a random one.
        options: Options of tictactoe.
    """
    env = vf.load_environment("tictactoe", **options)
    if not format_reward:
        env.rubric = without_format_reward(env.parser)
    if first_best:
        env.__class__ = FirstBestMoveEnv
    return env
