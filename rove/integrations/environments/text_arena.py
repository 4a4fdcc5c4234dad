"""The games of TextArena, each in a process of its own."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rove.clients.scripted import ScriptedClient, ScriptedPolicy
from rove.core.config import check_positive
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, nearest
from rove.core.messages import AssistantMessage, Messages, UserMessage, text_of
from rove.core.model_roles import query
from rove.core.protocols import Client
from rove.core.state import State
from rove.envs.environment import cleanup, teardown
from rove.envs.multi_turn import MultiTurnEnv
from rove.integrations.environments.libraries import require_library
from rove.rubrics import Rubric
from rove.workers import Worker, Workers

WORKER = Path(__file__).with_name("text_arena_worker.py")
SYSTEM_PROMPT = "You play a text game. Answer with your move, in the form that the game asks for, such as [4]."
MEMORY = 2 << 30
"""Bytes that a game may take."""


def random_bracket(messages: Messages, state: State, rng: random.Random) -> str:
    """A move in the brackets that the game showed last ("Available Moves: '[0]', '[2]'"): the same for the same words in the
    same example, so that siblings meet the same opponent."""
    shown = text_of(messages[-1])
    moves = re.findall(r"'(\[[^\[\]'\n]{1,40}\])'", shown) or re.findall(r"\[[\w ,.:-]{1,40}\]", shown)
    return random.Random(f"{state['info']['seed']}:{shown}").choice(moves or ["[0]"])


class TextArenaEnv(MultiTurnEnv):
    """A game of TextArena: every turn of the model is a move, and what is new since then the reply.

    Each game runs in a process of its own, since the library draws from Python's global generator, and some games never
    come back: a call that takes longer than `call_seconds` fails its rollout with a `WorkerError`. The siblings of a group
    play the same game in the same role. The reward `game_reward` is the model's own: with several players −1…1 brought to
    0…1, alone cut to 0…1; 0 where the game did not end. Metrics: `raw_reward`, `finished`, `invalid_move` (the game was
    lost by one). In the state: `game` (rewards and what TextArena tells of the players, once it is over).

    Args:
        game: its id, such as "TicTacToe-v0".
        num_train_examples, num_eval_examples: games in the datasets; without evaluation games the training games are
            evaluated.
        feedback_fn: what a game says → what the model reads. Default: the same.
        seed: of the games.
        num_players: default: as few as the game is made for.
        opponent: who plays the other roles: a client, whose words are kept in the record's `roles`, or a scripted player.
            Default: a move from the brackets that the game has shown (`random_bracket`).
        call_seconds: wall time of one call of the game.
        offline: whether games that want the network are refused it.
        python: interpreter of another virtual environment, which has TextArena; this one needs not have it then.
        Everything else: see `MultiTurnEnv`. `max_turns` is 100 unless given.

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
        check_positive(self, "num_train_examples", "num_players", "call_seconds")
        if python is None:
            require_library("textarena", "textarena", type(self).__name__)
        self.game, self.feedback_fn = game, feedback_fn
        self.workers = Workers(WORKER, {"offline": offline}, python=python, memory_bytes=MEMORY, name="textarena")
        opponent = opponent or random_bracket
        self.opponent_client: Client = (
            opponent if isinstance(opponent, Client) else ScriptedClient(opponent, "opponent")
        )
        rubric = Rubric([game_reward])
        for metric in (raw_reward, finished, invalid_move):
            rubric.add_metric(metric)
        defaults = {"max_turns": 100, "rubric": rubric, "system_prompt": SYSTEM_PROMPT}
        defaults |= {"policies": {"random": random_bracket}}
        evaluated = (lambda: self._rows(num_eval_examples, f"{seed}:eval")) if num_eval_examples else None
        super().__init__(
            dataset=lambda: self._rows(num_train_examples, f"{seed}:train"),
            eval_dataset=evaluated,
            **{**defaults, **kwargs},
        )

    def _rows(self, count: int, seed: str) -> Iterator[dict[str, Any]]:
        for position in range(count):
            number = derive_seed(seed, position)
            yield {"question": f"Play {self.game}.", "info": {"seed": number % (1 << 31), "role": number >> 32}}

    async def setup_state(self, state: State, **kwargs: Any) -> None:
        """Begin the game, and let others move who are before the model."""
        await self.workers.ensure_started()
        if self.game not in self.workers.setup_result:
            raise ConfigError(f"TextArena has no game '{self.game}'; {nearest(self.game, self.workers.setup_result)}")
        worker = await self.workers.open()
        state.update(worker=worker, game=None, views={})
        info = {"game": self.game, "seed": state["info"]["seed"], "num_players": self.num_players}
        begun = await worker.call("begin", self.call_seconds, **info)
        state["role"] = state["info"]["role"] % begun["num_players"]
        state["num_players"] = begun["num_players"]
        told = await self._until_our_turn(state, begun)
        state["prompt"] = [*state["prompt"][:-1], UserMessage(told)]

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> str:
        """Make the model's move, then the others'."""
        worker: Worker = state["worker"]
        return await self._until_our_turn(
            state, await worker.call("act", self.call_seconds, action=text_of(messages[-1]))
        )

    async def _until_our_turn(self, state: State, told: dict[str, Any]) -> str:
        """What the model reads when it is to move; where the game ends before, what it reads then is the last word."""
        while not told.get("done") and told["player"] != state["role"]:
            move = await self._ask_other(state, told["player"], told["text"])
            told = await state["worker"].call("act", self.call_seconds, action=move)
        if not told.get("done"):
            return self.feedback_fn(told["text"])
        state["game"] = told
        last = self.feedback_fn(told["seen"].get(str(state["role"]), ""))
        state["final_env_response"] = f"{last}\nThe game is over.".lstrip("\n")
        return state["final_env_response"]

    async def _ask_other(self, state: State, player: int, text: str) -> str:
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
        """End the process that the games' processes come from."""
        await self.workers.aclose()


def raw_reward(state: State) -> float:
    """What the game gave the model."""
    return float(state["game"]["rewards"].get(str(state["role"]), 0.0)) if state["game"] else 0.0


def game_reward(state: State) -> float:
    """The same, brought to 0…1; 0 where the game did not end."""
    if not state["game"]:
        return 0.0
    raw = raw_reward(state)
    return min(max(raw if state["num_players"] == 1 else (raw + 1) / 2, 0.0), 1.0)


def finished(state: State) -> float:
    """1 where the game came to its end."""
    return float(state["game"] is not None)


def invalid_move(state: State) -> float:
    """1 where the model lost by a move that was none."""
    info = state["game"]["info"].get(str(state["role"]), {}) if state["game"] else {}
    return float(bool(info.get("invalid_move")))
