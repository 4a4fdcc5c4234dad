"""Chomp biscuit: two players bite a rectangular biscuit; whoever takes the burnt corner loses."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Chomp: a biscuit has rows and columns, numbered from 1. A bite at row,column removes that square and all squares below "
    "it and to its right. Square 1,1 is burnt: whoever takes it loses. You bite first, then the other player, in turns. A "
    "bite at a square that is gone, or a reply without a bite, loses at once. Reply with <bite>2,3</bite>."
)

Biscuit = tuple[int, ...]
"""Number of squares left in every row, from top to bottom."""


def squares(biscuit: Biscuit) -> list[tuple[int, int]]:
    """Return all squares that are left."""
    return [(row, column) for row, length in enumerate(biscuit, 1) for column in range(1, length + 1)]


def bite(biscuit: Biscuit, row: int, column: int) -> Biscuit:
    """Return the biscuit after a bite."""
    return tuple(min(length, column - 1) if index >= row else length for index, length in enumerate(biscuit, 1))


@functools.cache
def wins(biscuit: Biscuit) -> bool:
    """Return whether the player to move can win."""
    return any(not wins(bite(biscuit, *square)) for square in squares(biscuit) if square != (1, 1))


def show(biscuit: Biscuit) -> str:
    """Return the biscuit as the model sees it."""
    return "\n".join(f"row {row}: {'#' * length or '-'}" for row, length in enumerate(biscuit, 1))


def opponent_bite(biscuit: Biscuit, seed: int) -> tuple[int, int]:
    """Return a random bite; the other player never misses a win and takes the burnt corner last."""
    rng = random.Random(f"{seed}:{biscuit}")
    options = [square for square in squares(biscuit) if square != (1, 1)]
    winning = [square for square in options if squares(bite(biscuit, *square)) == [(1, 1)]]
    return rng.choice(winning or options or [(1, 1)])


def won(state: vf.State) -> float:
    """Return 1 if the other player had to take the burnt corner."""
    return float(state["result"] == "won")


def foul(state: vf.State) -> float:
    """Return 1 if the game ended with a bite that is not allowed."""
    return float(state["result"] == "foul")


def expert(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Leave a lost position if there is one."""
    biscuit = state["biscuit"]
    options = [square for square in squares(biscuit) if square != (1, 1)]
    best = [square for square in options if not wins(bite(biscuit, *square))] or options or [(1, 1)]
    row, column = rng.choice(best)
    return f"<bite>{row},{column}</bite>"


def nibbler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Bite anywhere."""
    row, column = rng.choice(squares(state["biscuit"]))
    return f"<bite>{row},{column}</bite>"


class ChompEnv(vf.MultiTurnEnv):
    """A game against a player who bites at random."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(biscuit=(state["info"]["columns"],) * state["info"]["rows"], result="")

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        found = re.fullmatch(r"\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*", self.parser.parse_answer(messages) or "")
        square = (int(found[1]), int(found[2])) if found else None
        if square not in squares(state["biscuit"]):
            return self._end(state, "foul", "That is not allowed. You lose.")
        state["biscuit"] = bite(state["biscuit"], *square)
        if square == (1, 1):
            return self._end(state, "lost", "You took the burnt corner. You lose.")
        reply = opponent_bite(state["biscuit"], state["info"]["seed"])
        state["biscuit"] = bite(state["biscuit"], *reply)
        if reply == (1, 1):
            return self._end(state, "won", "I have to take the burnt corner. You win.")
        return f"I bite at {reply[0]},{reply[1]}.\n{show(state['biscuit'])}"

    def _end(self, state: vf.State, result: str, text: str) -> None:
        state["result"] = result
        state["final_env_response"] = text


def _rows(count: int, seed: str, parity: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        info = {"rows": rng.randrange(3, 6), "columns": rng.randrange(4, 7), "seed": 2 * rng.getrandbits(24) + parity}
        biscuit = (info["columns"],) * info["rows"]
        question = f"Table {info['seed']}.\n{show(biscuit)}\nYour bite?"
        rows.append({"question": question, "answer": "", "info": info})
    return rows


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment of games of Chomp.

    Args:
        num_examples: Number of games in each dataset; training has even tables, and evaluation has odd ones.
        seed: Random seed of the games.
    """
    parser = vf.XMLParser(["bite"], answer_field="bite")
    rubric = vf.Rubric([won], parser=parser)
    rubric.add_metric(foul)
    return ChompEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 0),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"expert": expert, "nibbler": nibbler},
        max_turns=30,
    )
