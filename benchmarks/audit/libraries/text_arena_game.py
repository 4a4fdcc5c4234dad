"""A game of TextArena as an environment with a name, for `rove audit`."""

from __future__ import annotations

import rove as vf


def load_environment(
    game: str = "TicTacToe-v0", num_train_examples: int = 100, num_eval_examples: int = 100, seed: int = 0
) -> vf.Environment:
    """Return games against an opponent of random moves.

    Args:
        game: id of the game.
        num_train_examples, num_eval_examples: games.
        seed: seed of the games.
    """
    return vf.TextArenaEnv(game, num_train_examples, num_eval_examples, seed=seed, max_turns=40)
