"""Three heaps: the game of Nim; whoever takes the last object wins."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You play a game with three heaps, A, B and C. In each turn, take one or more objects from one heap. Whoever takes the "
    "last object wins. An illegal move loses. Answer with a heap and a number, such as <move>B 2</move>."
)
HEAPS = "ABC"
SKILL = 0.75  # share of the opponent's moves that are perfect


def best_move(heaps: list[int]) -> tuple[int, int] | None:
    """Return a move that leaves a lost position, or None if there is none."""
    total = heaps[0] ^ heaps[1] ^ heaps[2]
    for index, size in enumerate(heaps):
        if size ^ total < size:
            return index, size - (size ^ total)
    return None


def any_move(heaps: list[int], rng: random.Random) -> tuple[int, int]:
    """Return a random legal move."""
    index = rng.choice([index for index, size in enumerate(heaps) if size])
    return index, rng.randint(1, heaps[index])


def show(heaps: list[int]) -> str:
    return ", ".join(f"{name}: {size}" for name, size in zip(HEAPS, heaps))


def _write(move: tuple[int, int]) -> str:
    return f"<move>{HEAPS[move[0]]} {move[1]}</move>"


def expert(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Make the best move."""
    return _write(best_move(state["heaps"]) or any_move(state["heaps"], rng))


def beginner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Make any legal move."""
    return _write(any_move(state["heaps"], rng))


class HeapsEnv(vf.MultiTurnEnv):
    """An environment with an opponent that sometimes makes a random move."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["heaps"] = list(state["info"]["heaps"])
        state["won"] = False

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        heaps = state["heaps"]
        found = re.findall(r"<move>\s*([ABC])\s*,?\s*(\d{1,2})\s*</move>", messages[-1].content or "")
        move = (HEAPS.index(found[-1][0]), int(found[-1][1])) if found else None
        if move is None or not 1 <= move[1] <= heaps[move[0]]:
            return self.end(state, False, "That is not a legal move. You lose.")
        heaps[move[0]] -= move[1]
        if not any(heaps):
            return self.end(state, True, "You took the last object. You win.")
        rng = random.Random(f"{state['info']['seed']}:{heaps}")
        perfect = best_move(heaps) if rng.random() < SKILL else None
        index, count = perfect or any_move(heaps, rng)
        heaps[index] -= count
        if not any(heaps):
            return self.end(state, False, f"I take {count} from {HEAPS[index]} and win.")
        return f"I take {count} from {HEAPS[index]}. {show(heaps)}"

    def end(self, state: vf.State, won: bool, message: str) -> None:
        """End the game."""
        state["won"] = won
        state["final_env_response"] = message


def won(state: vf.State) -> float:
    """Return 1 for a win."""
    return float(state["won"])


def _rows(count: int, seed: int, evaluation: bool) -> list[dict[str, Any]]:
    positions = [
        [a, b, c] for a in range(1, 12) for b in range(1, 12) for c in range(1, 12) if a ^ b ^ c and a + b + c >= 8
    ]
    chosen = [heaps for heaps in positions if (sum(sorted(heaps)[i] * 7**i for i in range(3)) % 4 == 0) == evaluation]
    rng = random.Random(f"{seed}:{evaluation}")
    rows = []
    for heaps in rng.sample(chosen, min(count, len(chosen))):
        info = {"heaps": heaps, "seed": f"{seed}:{rng.randrange(10**6)}"}
        rows.append({"question": f"{show(heaps)}. It is your turn.", "info": info})
    return rows


def load_environment(num_train: int = 600, num_eval: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with Nim; no position of the evaluation is a position of the training, in any order.

    Args:
        num_train, num_eval: Maximum number of games.
        seed: Random seed of the positions and of the opponent.
    """
    return HeapsEnv(
        dataset=lambda: _rows(num_train, seed, False),
        eval_dataset=lambda: _rows(num_eval, seed, True),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([won]),
        policies={"expert": expert, "beginner": beginner},
        max_turns=34,
    )
