"""Heap game: Nim with three heaps against an opponent who moves at random. Whoever takes the last stone wins."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You play Nim with three heaps A, B and C. Take any number of stones, at least one, from one heap per turn. Whoever takes the "
    "last stone wins. Reply with the heap and the number, for example <move>B 2</move>. A move that is not allowed loses the game."
)
MOVE = re.compile(r"\s*([ABC])\s+([1-9])\s*")
LARGEST = 7

Heaps = list[int]


def legal_moves(heaps: Heaps) -> list[tuple[int, int]]:
    return [(index, count) for index, size in enumerate(heaps) for count in range(1, size + 1)]


def opponent_move(heaps: Heaps, seed: str) -> tuple[int, int]:
    """Return the opponent's move: any legal one, drawn from the game's seed and the position."""
    return random.Random(f"{seed}:{heaps}").choice(legal_moves(heaps))


def show(heaps: Heaps) -> str:
    return " ".join(f"{name}: {size}" for name, size in zip("ABC", heaps, strict=True))


def best_move(heaps: Heaps) -> tuple[int, int] | None:
    """Return a move after which the opponent is lost, if there is one."""
    total = heaps[0] ^ heaps[1] ^ heaps[2]
    for index, size in enumerate(heaps):
        if size ^ total < size:
            return index, size - (size ^ total)
    return None


def say(move: tuple[int, int]) -> str:
    return f"<move>{'ABC'[move[0]]} {move[1]}</move>"


class HeapEnv(vf.MultiTurnEnv):
    """An environment with one game of Nim per example; the model moves first."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(heaps=list(state["info"]["heaps"]), winner=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        match = MOVE.fullmatch(self.parser.parse_answer(messages) or "")
        heaps = state["heaps"]
        move = ("ABC".index(match[1]), int(match[2])) if match else None
        if move not in legal_moves(heaps):
            return self.end(state, "opponent", "That move is not allowed. You lose.")
        heaps[move[0]] -= move[1]
        if not any(heaps):
            return self.end(state, "model", "You took the last stone. You win.")
        index, count = opponent_move(heaps, state["info"]["seed"])
        heaps[index] -= count
        report = f"Opponent: {'ABC'[index]} {count}"
        if not any(heaps):
            return self.end(state, "opponent", f"{report}\nThe opponent took the last stone. You lose.")
        return f"{report}\n{show(heaps)}"

    def end(self, state: vf.State, winner: str, text: str) -> None:
        state["winner"] = winner
        state["final_env_response"] = text


def won(state: vf.State) -> float:
    """1 for a win."""
    return float(state["winner"] == "model")


def expert(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Plays a winning move if there is one, and otherwise any move."""
    return say(best_move(state["heaps"]) or rng.choice(legal_moves(state["heaps"])))


def dabbler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Plays any move."""
    return say(rng.choice(legal_moves(state["heaps"])))


def _rows(seed: int, evaluation: bool) -> list[dict[str, Any]]:
    kinds = list(itertools.combinations_with_replacement(range(1, LARGEST + 1), 3))
    random.Random(f"{seed}:split").shuffle(kinds)
    kinds = kinds[:20] if evaluation else kinds[20:]
    openings = sorted({heaps for kind in kinds for heaps in itertools.permutations(kind)})
    random.Random(f"{seed}:order").shuffle(openings)
    return [
        {"question": show(list(heaps)), "info": {"heaps": list(heaps), "seed": f"{seed}:{heaps}"}} for heaps in openings
    ]


def load_environment(seed: int = 0) -> vf.Environment:
    """Return an environment with games of Nim.

    Args:
        seed: Random seed of the split and of the opponent.
    """
    parser = vf.XMLParser(["move"], answer_field="move")
    return HeapEnv(
        dataset=lambda: _rows(seed, evaluation=False),
        eval_dataset=lambda: _rows(seed, evaluation=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([won], parser=parser),
        policies={"expert": expert, "dabbler": dabbler},
        max_turns=3 * LARGEST,
    )
