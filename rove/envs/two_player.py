"""Two-player games: environments whose other role can be given to a person or to a search over all moves."""

from __future__ import annotations

import copy
from typing import Protocol, TypeVar, runtime_checkable

from rove.core.renderings import Rendering


class Opponent(Protocol):
    """Chooses the moves of the other role in a two-player environment; set by `rove play`."""

    async def __call__(self, view: str, legal: list[str], board: Rendering | None = None) -> str:
        """Return one of the legal moves. `view` is a text, `board` the same position as a rendering if there is one."""
        ...


@runtime_checkable
class TwoPlayer(Protocol):
    """An environment that may have a second role."""

    two_player: bool
    """Whether it consults `opponent`, if set, for the moves of the other role."""
    opponent: Opponent | None


GameEnv = TypeVar("GameEnv", bound=TwoPlayer)


def env_with_opponent(env: GameEnv, opponent: Opponent | None) -> GameEnv:
    """Return a shallow copy of an environment with another opponent; rollouts of the original keep theirs."""
    copied = copy.copy(env)
    copied.opponent = opponent
    return copied
