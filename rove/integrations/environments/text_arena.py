"""Games of TextArena, each in its own process; docs/decisions/workers.md explains why."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rove.clients.scripted import ScriptedClient
from rove.core.checks import check_values
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, nearest
from rove.core.messages import AssistantMessage, Messages, UserMessage, text_of
from rove.core.model_roles import query
from rove.core.plain import JsonObject, Row
from rove.core.protocols import Client, ScriptedPolicy
from rove.core.ranges import PositiveInt, Seconds
from rove.core.state import State
from rove.envs.environment import cleanup, teardown
from rove.envs.multi_turn import MultiTurnEnv
from rove.integrations import require_library
from rove.integrations.known_defects import warn_of_known_defects
from rove.rubrics import Rubric
from rove.workers import Workers

WORKER = Path(__file__).with_name("text_arena_worker.py")
SYSTEM_PROMPT = "You are playing a text game. Answer with your move in the format that the game asks for, such as [4]."
QUOTED_MOVE = re.compile(r"'(\[[^\[\]'\n]{1,40}\])'")
FORMAT = re.compile(r"(?i:format):? '(\[[^\[\]'\n]{1,40}\])'")
"""A move with names in place of values, as in "format: '[pile quantity]'"."""
MOVE = re.compile(r"\[[\w ,.:-]{1,40}\]")
PLAYER = re.compile(r"\[(Player \d+|GAME)\]")
"""A player's name, such as "[Player 0]", which precedes the player's words."""
MEMORY_BYTES = 2 << 30
"""Memory that a game may allocate."""


def random_bracket(messages: Messages, state: State, rng: random.Random) -> str:
    """Choose a move in brackets: one that the last message lists ("Available Moves: '[0]', '[2]'"), or else one that any message
    has shown. In games that do not list the possible moves, it may be impossible.

    The choice depends only on the messages and the example, so that all rollouts of a group meet the same opponent.
    """
    message = text_of(messages[-1])
    observations = [text_of(earlier) for earlier in messages if earlier.role == "user"]
    moves = _moves_in(message) or _moves_in("\n".join(observations)) or ["[0]"]
    return random.Random(f"{state['info']['seed']}:{message}").choice(moves)


def _moves_in(text: str) -> list[str]:
    """Return the quoted moves of the last line that has any, or else all texts in brackets; no names of players, and no forms of
    moves.
    """
    forms = FORMAT.findall(text)
    # A message may repeat an earlier list, before the move that shortened it.
    for line in reversed(text.splitlines()):
        moves = [move for move in QUOTED_MOVE.findall(line) if move not in forms]
        if moves:
            return moves
    bracketed = [move for move in MOVE.findall(text) if move not in forms and not PLAYER.fullmatch(move)]
    return list(dict.fromkeys(bracketed))


class TextArenaEnv(MultiTurnEnv):
    """A TextArena game: each model turn is a move, and the response describes what has happened since.

    Each game runs in its own process, since the library uses Python's global random generator and some games hang: a call that
    takes longer than `call_seconds` fails its rollout with a `WorkerError`. All rollouts of a group have the same game and the
    same position in it. The reward `game_reward` is the game's reward for the model: with several players, −1…1 is
    scaled to 0…1; with one, it is clipped to 0…1. It is 0 if the game did not end. Metrics: `raw_reward`, `finished`,
    `invalid_move` (the model lost by an invalid move). State key: `game` (rewards and TextArena's info about the
    players, after the end).

        env = rove.TextArenaEnv("TicTacToe-v0", num_train_examples=100)

    Args:
        game: id of the game, such as "TicTacToe-v0".
        num_train_examples, num_eval_examples: games in the datasets; without evaluation games, evaluation uses the training
            games.
        feedback_fn: text of the game → text for the model. Default: unchanged.
        seed: seed of the games.
        num_players: default: the minimum for the game.
        opponent: the other players: a client, whose messages are recorded in the record's `model_roles`, or a scripted policy.
            Default: a random move in the brackets that the game has shown (`random_bracket`).
        call_seconds: time limit of one call of the game.
        offline: whether network access is refused to games.
        python: interpreter of another virtual environment with TextArena; this environment then does not need the
            library.
        Everything else: see `MultiTurnEnv`. The default of `max_turns` is 100.

    Raises:
        ConfigError: TextArena is not installed, or an argument is out of range.
    """

    def __init__(
        self,
        game: str,
        num_train_examples: int = 1000,
        num_eval_examples: int = 0,
        feedback_fn: Callable[[str], str] = str,
        seed: int = 0,
        num_players: int | None = None,
        opponent: Client | ScriptedPolicy | None = None,
        call_seconds: float = 10.0,
        offline: bool = True,
        python: str | None = None,
        **kwargs: Any,
    ):
        self.num_train_examples, self.num_players, self.call_seconds = num_train_examples, num_players, call_seconds
        check_values(self, num_train_examples=PositiveInt, num_players=PositiveInt | None, call_seconds=Seconds)
        if python is None:
            require_library("textarena", "textarena", type(self).__name__)
        warn_of_known_defects("textarena", game)
        self.game, self.feedback_fn = game, feedback_fn
        self.workers = Workers(WORKER, {"offline": offline}, python=python, memory_bytes=MEMORY_BYTES, name="textarena")
        if not isinstance(opponent, Client):
            opponent = ScriptedClient(opponent or random_bracket, "opponent")
        self.opponent_client: Client = opponent
        rubric = Rubric([game_reward])
        for metric in (raw_reward, finished, invalid_move):
            rubric.add_metric(metric)
        policies = {"random": random_bracket}
        defaults = {"max_turns": 100, "rubric": rubric, "system_prompt": SYSTEM_PROMPT, "policies": policies}
        evaluated = (lambda: self._rows(num_eval_examples, f"{seed}:eval")) if num_eval_examples else None
        super().__init__(
            dataset=lambda: self._rows(num_train_examples, f"{seed}:train"),
            eval_dataset=evaluated,
            **{**defaults, **kwargs},
        )

    def _rows(self, count: int, seed: str) -> Iterator[Row]:
        for position in range(count):
            # The lower bits seed the game, and the upper ones choose the model's position in it.
            number = derive_seed(seed, position)
            info = {"seed": number % (1 << 31), "seat": number >> 32}
            yield {"question": f"Play {self.game}.", "info": info}

    async def setup_state(self, state: State, **kwargs: Any) -> None:
        """Begin the game, and let the players before the model move."""
        await self.workers.ensure_started()
        if self.game not in self.workers.setup_result:
            raise ConfigError(f"TextArena has no game '{self.game}'; {nearest(self.game, self.workers.setup_result)}")
        worker = await self.workers.open()
        state.update(worker=worker, game=None, views={})
        info = {"game": self.game, "seed": state["info"]["seed"], "num_players": self.num_players}
        first = await worker.call("begin", self.call_seconds, **info)
        state["player"] = state["info"]["seat"] % first["num_players"]
        state["num_players"] = first["num_players"]
        turn = await self._advance_to_model(state, first)
        state["prompt"] = [*state["prompt"][:-1], UserMessage(turn)]

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> str:
        """Make the model's move, then the others'."""
        turn = await state["worker"].call("act", self.call_seconds, action=text_of(messages[-1]))
        return await self._advance_to_model(state, turn)

    async def _advance_to_model(self, state: State, turn: JsonObject) -> str:
        """Let the other players move; return the model's observation at its next move, or at the end of the game."""
        while not turn.get("done") and turn["player"] != state["player"]:
            move = await self._opponent_move(state, turn["player"], turn["text"])
            turn = await state["worker"].call("act", self.call_seconds, action=move)
        if not turn.get("done"):
            return self.feedback_fn(turn["text"])
        state["game"] = turn
        # At the end no player has the next turn, so the worker returns the observations of all players.
        observation = self.feedback_fn(turn["observations"].get(str(state["player"]), ""))
        state["final_env_response"] = f"{observation}\nThe game is over.".lstrip("\n")
        return state["final_env_response"]

    async def _opponent_move(self, state: State, player: int, text: str) -> str:
        view: Messages = state["views"].setdefault(player, [])
        view.append(UserMessage(text))
        answer = text_of(await query(state, view, self.opponent_client, role=f"player {player}"))
        view.append(AssistantMessage(answer))
        return answer

    @cleanup
    def end_game(self, state: State) -> None:
        """End the game's process."""
        if "worker" in state:
            state["worker"].close()

    @teardown
    async def end_workers(self) -> None:
        """End the fork server of the games' processes."""
        await self.workers.aclose()


def raw_reward(state: State) -> float:
    """The game's reward for the model."""
    return float(state["game"]["rewards"].get(str(state["player"]), 0.0)) if state["game"] else 0.0


def game_reward(state: State) -> float:
    """The reward, scaled to 0…1; 0 if the game did not end."""
    if not state["game"]:
        return 0.0
    raw = raw_reward(state)
    return min(max(raw if state["num_players"] == 1 else (raw + 1) / 2, 0.0), 1.0)


def finished(state: State) -> float:
    """1 if the game ended."""
    return float(state["game"] is not None)


def invalid_move(state: State) -> float:
    """1 if the model lost by an invalid move."""
    info = state["game"]["info"].get(str(state["player"]), {}) if state["game"] else {}
    return float(bool(info.get("invalid_move")))
