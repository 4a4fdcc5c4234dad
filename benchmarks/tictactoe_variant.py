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


def rubric(parser: vf.XMLParser, format_weight: float) -> vf.Rubric:
    """That of tic-tac-toe, with another weight of the format; it is still measured where that is 0."""
    made = vf.Rubric(parser=parser)
    made.add_reward_func(tictactoe.win, weight=1.0)
    made.add_reward_func(parser.get_format_reward_func(), weight=format_weight, name="format")
    made.add_reward_func(tictactoe.invalid_move, weight=-0.1)
    return made


def load_environment(format_weight: float = 0.2, first_best: bool = False, **options: Any) -> vf.Environment:
    """Tic-tac-toe, changed.

    Args:
        format_weight: of the format in the reward.
        first_best: O always takes the first of its best moves, not one of them by chance.
        options: those of tictactoe.
    """
    env = vf.load_environment("tictactoe", **options)
    env.rubric = rubric(env.parser, format_weight)
    if first_best:
        env.__class__ = FirstBest
    return env
