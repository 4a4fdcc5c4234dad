"""Pebble nim: take pebbles from heaps; whoever takes the last pebble wins."""

from __future__ import annotations

import functools
import operator
import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You and an opponent take turns. In a turn, a player takes one or more pebbles from one heap. "
    "Whoever takes the last pebble wins. Answer with the heap and the number of pebbles, for example <take>B 2</take>. An illegal move loses."
)
NAMES = "ABCD"
OTHER = {"model": "opponent", "opponent": "model"}
SKILLS = (0.3, 0.6, 0.9)
"""Shares of its moves that an opponent plays perfectly."""


class Nim:
    """A game of nim: the heaps, whose turn it is, and who has lost."""

    def __init__(self, heaps: list[int]):
        self.heaps = list(heaps)
        self.player = "model"
        self.loser: str | None = None

    def take(self, heap: int, count: int) -> None:
        """Play a move for the player whose turn it is; an illegal move ends the game."""
        self.player = OTHER[self.player]
        if heap >= len(self.heaps) or not 1 <= count <= self.heaps[heap]:
            self.loser = self.player
            return
        self.heaps[heap] -= count
        if not any(self.heaps):
            self.loser = self.player

    def moves(self) -> list[tuple[int, int]]:
        return [(heap, count) for heap, size in enumerate(self.heaps) for count in range(1, size + 1)]

    def best_move(self, rng: random.Random) -> tuple[int, int]:
        """Return a move after which the heaps balance each other, or any move if there is none."""
        balance = functools.reduce(operator.xor, self.heaps)
        best = [(heap, size - (size ^ balance)) for heap, size in enumerate(self.heaps) if size ^ balance < size]
        return rng.choice(best or self.moves())

    def show(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in zip(NAMES, self.heaps))


def _answer(move: tuple[int, int]) -> str:
    return f"<take>{NAMES[move[0]]} {move[1]}</take>"


def balancer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play perfectly."""
    return _answer(state["game"].best_move(rng))


def casual(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a random number of pebbles from a random heap."""
    return _answer(rng.choice(state["game"].moves()))


class PebbleNimEnv(vf.MultiTurnEnv):
    """An environment with an opponent that is more or less skilled."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["game"] = Nim(state["info"]["heaps"])

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        game: Nim = state["game"]
        move = re.fullmatch(r"\s*([A-Da-d])\s+([0-9]{1,3})\s*", self.parser.parse_answer(messages) or "")
        if move is None:
            return f"Answer with a heap and a number, for example <take>B 2</take>. The heaps: {game.show()}"
        game.take(NAMES.index(move[1].upper()), int(move[2]))
        if game.loser is None:
            heap, count = self.opponent_move(state)
            game.take(heap, count)
            report = f"Your opponent took {count} from {NAMES[heap]}."
        else:
            report = ""
        if game.loser is not None:
            state["final_env_response"] = f"{report} The game is over.".strip()
            return None
        return f"{report} The heaps: {game.show()}"

    def opponent_move(self, state: vf.State) -> tuple[int, int]:
        """Return the opponent's move, which depends only on the row and the heaps."""
        game, info = state["game"], state["info"]
        rng = random.Random(f"{info['seed']}:{game.heaps}")
        return game.best_move(rng) if rng.random() < info["skill"] else rng.choice(game.moves())


def won(state: vf.State) -> float:
    """Return 1 if the opponent lost."""
    return float(state["game"].loser == "opponent")


def lost(state: vf.State) -> float:
    return float(state["game"].loser == "model")


def is_held_out(heaps: list[int]) -> bool:
    """Return whether heaps are reserved for evaluation, in any order."""
    return zlib.crc32(bytes(sorted(heaps))) % 4 == 0


def _rows(count: int, seed: int, held_out: bool) -> list[dict[str, Any]]:
    rows, index = [], 0
    while len(rows) < count:
        rng = random.Random(f"{seed}:{index}")
        heaps = [rng.randint(1, 7) for _ in range(rng.randint(3, 4))]
        index += 1
        if is_held_out(heaps) != held_out or functools.reduce(operator.xor, heaps) == 0:
            continue
        info = {"heaps": heaps, "skill": rng.choice(SKILLS), "seed": rng.getrandbits(32)}
        rows.append({"question": f"The heaps: {Nim(heaps).show()}", "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 16) -> vf.Environment:
    """Return an environment with games of nim that the first player can win.

    Args:
        num_examples: Number of games for training, and for evaluation.
        seed: Random seed of the games. Training and evaluation never have the same heaps.
        max_turns: Maximum model turns.
    """
    parser = vf.XMLParser(["take"], answer_field="take")
    rubric = vf.Rubric([won], parser=parser)
    rubric.add_metric(lost)
    return PebbleNimEnv(
        dataset=lambda: _rows(num_examples, seed, held_out=False),
        eval_dataset=lambda: _rows(num_examples, seed, held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"balancer": balancer, "casual": casual},
        max_turns=max_turns,
    )
