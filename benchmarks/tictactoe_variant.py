"""Tic-tac-toe with another reward or another opponent: two of the mistakes that `study.py` makes on purpose.

Made from the environment as any user would make it: the rubric is built again, the opponent is a subclass.
"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

vf.load_environment("tictactoe")  # now it is a module like any other
import tictactoe  # noqa: E402


class FirstBest(tictactoe.TicTacToeEnv):
    """O plays random squares as ever, but of several best moves always the first."""

    async def _opponent_plays(self, state: vf.State, board: str) -> str:
        info = state["info"]
        if random.Random(f"{info['seed']}:{board}").random() < info["random_move_prob"]:
            return await super()._opponent_plays(state, board)
        return tictactoe.place(board, tictactoe.best_moves(board, "O")[0], "O")


def without_format_reward(parser: vf.Parser) -> vf.Rubric:
    """The rubric of tic-tac-toe, in which the format is measured but not rewarded."""
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(tictactoe.win, weight=1.0)
    rubric.add_reward_func(tictactoe.invalid_move, weight=-0.1)
    rubric.add_metric(parser.get_format_reward_func(), name="format")
    for metric in (tictactoe.won, tictactoe.drawn, tictactoe.lost):
        rubric.add_metric(metric)
    return rubric


def load_environment(format_reward: bool = True, first_best: bool = False, **options: Any) -> vf.Environment:
    """Tic-tac-toe, changed.

    Args:
        format_reward: whether the format is part of the reward.
        first_best: O always takes the first of its best moves, not one of them by chance.
        options: those of tictactoe.
    """
    env = vf.load_environment("tictactoe", **options)
    if not format_reward:
        env.rubric = without_format_reward(env.parser)
    if first_best:
        env.__class__ = FirstBest
    return env
