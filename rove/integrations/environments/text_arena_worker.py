"""What a worker of `TextArenaEnv` does: it plays one game. The library draws from Python's global generator."""

from __future__ import annotations

import inspect
import re
import socket
import sys
from typing import Any

import textarena  # pyright: ignore[reportMissingImports]
from textarena.envs.registration import ENV_REGISTRY  # pyright: ignore[reportMissingImports]

MOST_PLAYERS = 8


def setup(offline: bool = True) -> dict[str, str]:
    """The ids of the games there are, and the code each is made of: variants have that in common.

    Games that would download something fail at once where that is not wanted.
    """
    if offline:
        for name in ("connect", "connect_ex"):
            setattr(socket.socket, name, _refuse)
        socket.getaddrinfo = _refuse
    known: dict[str, Any] = ENV_REGISTRY
    return {name: str(spec.entry_point) for name, spec in sorted(known.items())}


class Session:
    """One game."""

    def begin(self, game: str, seed: int, num_players: int | None = None) -> dict[str, Any]:
        """Make and reset it; who is to move and what they see (see `_turn`), and how many play.

        Without `num_players`: as few as the game is made for, but two where it is not made for one.
        """
        if num_players is not None:
            self._reset(game, seed, num_players)
        else:
            num_players = self._reset_for_fewest(game, seed)
        return {**self._turn(), "num_players": num_players}

    def act(self, action: str) -> dict[str, Any]:
        """A move of whoever is to move. Once the game is over: the rewards by player, and what is told of them."""
        done, _ = self.game.step(action=action)
        if not done:
            return {**self._turn(), "done": False}
        rewards, told = self.game.close()
        kept = {str(player): _plain(info) for player, info in (told or {}).items()}
        seen = {str(player): self._text(player, log) for player, log in self.base.state.observations.items()}
        # Some games give the reason of an invalid move where its reward belongs.
        rewards = {
            str(player): -1.0 if isinstance(value, str) else float(value) for player, value in (rewards or {}).items()
        }
        return {"done": True, "rewards": rewards, "info": kept, "seen": seen}

    def _reset(self, game: str, seed: int, num_players: int) -> None:
        self._make(game)
        self.game.reset(num_players=num_players, seed=seed)

    def _make(self, game: str) -> None:
        self.game = self.base = textarena.make(game)
        while isinstance(self.base, textarena.Wrapper):  # its wrappers would repeat all that was ever said
            self.base = self.base.env

    def _reset_for_fewest(self, game: str, seed: int) -> int:
        self._make(game)
        alone = "SinglePlayerState(" in inspect.getsource(sys.modules[type(self.base).__module__])
        failure: Exception | None = None
        for number in [1] if alone else range(2, MOST_PLAYERS + 1):
            try:
                self._reset(game, seed, number)
            except Exception as error:
                failure = failure or error
            else:
                return number
        assert failure is not None
        raise failure

    def _turn(self) -> dict[str, Any]:
        player, log = self.base.get_observation()
        return {"player": player, "text": self._text(player, log)}

    def _text(self, player: int, log: Any) -> str:
        """What is new to a player: their own words left out, those of others with who said them."""
        if isinstance(log, str):
            return log
        lines: list[str] = []
        for sender, message, *_ in log or []:
            if sender == textarena.GAME_ID:
                lines.append(message)
            elif sender != player:
                lines.append(f"[{self.base.state.role_mapping.get(sender, f'Player {sender}')}] {message}")
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _plain(info: Any) -> dict[str, Any]:
    """What of a player's info is a text, a number or a bool."""
    return {str(key): value for key, value in dict(info).items() if isinstance(value, (str, int, float, bool))}


def _refuse(*_: Any, **__: Any) -> Any:
    raise OSError("this game wants the network, which workers of TextArenaEnv do not have unless offline=False")
