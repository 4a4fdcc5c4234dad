"""Worker of `TextArenaEnv`: runs one game. The library uses Python's global random generator."""

from __future__ import annotations

import inspect
import re
import socket
import sys
from typing import Any

import textarena  # pyright: ignore[reportMissingImports]
from textarena.envs.registration import ENV_REGISTRY  # pyright: ignore[reportMissingImports]

MAX_PLAYERS = 8


def setup(offline: bool = True) -> dict[str, str]:
    """Return the ids of the games, and the code of each game; variants share code.

    With `offline`, games that need a download fail immediately.
    """
    if offline:
        for name in ("connect", "connect_ex"):
            setattr(socket.socket, name, _refuse)
        socket.getaddrinfo = _refuse
    registry: dict[str, Any] = ENV_REGISTRY
    return {name: str(spec.entry_point) for name, spec in sorted(registry.items())}


class Session:
    """One game."""

    def begin(self, game: str, seed: int, num_players: int | None = None) -> dict[str, object]:
        """Create and reset the game; return the first turn (see `_turn`) and the number of players.

        `num_players` defaults to the game's minimum, but at least two for games that are not for one player.
        """
        if num_players is not None:
            self._reset(game, seed, num_players)
        else:
            num_players = self._reset_for_fewest(game, seed)
        return {**self._turn(), "num_players": num_players}

    def act(self, action: str) -> dict[str, Any]:
        """Make a move. Return the next turn or, at the end of the game, the rewards, info and observations by player."""
        done, _ = self.game.step(action=action)
        if not done:
            return {**self._turn(), "done": False}
        reward_of, info_of = self.game.close()
        infos = {str(player): _plain(info) for player, info in (info_of or {}).items()}
        observations = {str(player): self._text(player, log) for player, log in self.base.state.observations.items()}
        rewards: dict[str, float] = {}
        for player, reward in (reward_of or {}).items():
            # Some games return the reason of an invalid move instead of its reward.
            rewards[str(player)] = -1.0 if isinstance(reward, str) else float(reward)
        return {"done": True, "rewards": rewards, "info": infos, "observations": observations}

    def _reset(self, game: str, seed: int, num_players: int) -> None:
        self._make(game)
        self.game.reset(num_players=num_players, seed=seed)

    def _make(self, game: str) -> None:
        self.game = self.base = textarena.make(game)
        while isinstance(self.base, textarena.Wrapper):  # its wrappers would repeat the whole history
            self.base = self.base.env

    def _reset_for_fewest(self, game: str, seed: int) -> int:
        self._make(game)
        # TextArena does not say how many players a game needs: its code shows whether it is for one, and `reset` raises an
        # exception for a wrong number.
        is_for_one = "SinglePlayerState(" in inspect.getsource(sys.modules[type(self.base).__module__])
        failure: Exception | None = None
        for num_players in [1] if is_for_one else range(2, MAX_PLAYERS + 1):
            try:
                self._reset(game, seed, num_players)
            except Exception as error:
                failure = failure or error
            else:
                return num_players
        assert failure is not None
        raise failure

    def _turn(self) -> dict[str, object]:
        player, log = self.base.get_observation()
        return {"player": player, "text": self._text(player, log)}

    def _text(self, player: int, log: Any) -> str:
        """Return the messages that are new to a player, with the names of the senders and without the player's own messages."""
        if isinstance(log, str):
            return log
        lines: list[str] = []
        for sender, message, *_ in log or []:
            if sender == textarena.GAME_ID:
                lines.append(message)
            elif sender != player:
                name = self.base.state.role_mapping.get(sender, f"Player {sender}")
                lines.append(f"[{name}] {message}")
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _plain(info: Any) -> dict[str, Any]:
    """Return the entries of a player's info that are strings, numbers or booleans."""
    items = dict(info).items()
    return {str(key): value for key, value in items if isinstance(value, (str, int, float, bool))}


def _refuse(*_: object, **__: Any) -> Any:
    raise OSError("this game needs network access, which TextArenaEnv refuses unless offline=False")
