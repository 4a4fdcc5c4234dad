"""Three heaps: take stones from heaps against an impatient opponent; who takes the last stone wins."""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "There are three heaps of stones, A, B and C. You and your opponent take turns; you begin. Each turn takes one or more stones "
    "from one heap. Who takes the last stone wins; an illegal move loses. Answer for example <take>B 3</take>"
)
MOVE = re.compile(r"([ABC]) (\d+)")

Heaps = dict[str, int]


def winning_move(heaps: Heaps) -> tuple[str, int] | None:
    """Return a move that leaves a nim-sum of zero, if there is one."""
    total = heaps["A"] ^ heaps["B"] ^ heaps["C"]
    for heap, stones in heaps.items():
        if stones ^ total < stones:
            return heap, stones - (stones ^ total)
    return None


def any_move(heaps: Heaps, rng: random.Random) -> tuple[str, int]:
    """Return a random move."""
    heap = rng.choice([heap for heap, stones in heaps.items() if stones])
    return heap, rng.randint(1, heaps[heap])


def opponent_move(heaps: Heaps, seed: int) -> tuple[str, int]:
    """Return the opponent's move: take the last heap if only one is left, otherwise any move, chosen by seed and position."""
    left = [heap for heap, stones in heaps.items() if stones]
    if len(left) == 1:
        return left[0], heaps[left[0]]
    return any_move(heaps, random.Random(f"{seed}:{heaps}"))


def show(heaps: Heaps) -> str:
    """Return the heaps as text."""
    return ", ".join(f"{heap}: {stones}" for heap, stones in heaps.items())


def expert(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Leave a nim-sum of zero."""
    heap, count = winning_move(state["heaps"]) or any_move(state["heaps"], rng)
    return f"<take>{heap} {count}</take>"


def beginner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Make any legal move."""
    heap, count = any_move(state["heaps"], rng)
    return f"<take>{heap} {count}</take>"


class HeapsEnv(vf.MultiTurnEnv):
    """An environment in which the model plays against a scripted opponent."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(heaps=dict(state["info"]["heaps"]), winner=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        match = MOVE.fullmatch((self.parser.parse_answer(messages) or "").strip())
        heaps = state["heaps"]
        if not match or not 1 <= int(match[2]) <= heaps[match[1]]:
            return self._end(state, "opponent", "That is not a legal move. You lose.")
        heaps[match[1]] -= int(match[2])
        if not any(heaps.values()):
            return self._end(state, "model", "You win.")
        heap, count = opponent_move(heaps, state["info"]["seed"])
        heaps[heap] -= count
        if not any(heaps.values()):
            return self._end(state, "opponent", f"I take {count} from {heap}. You lose.")
        return f"I take {count} from {heap}.\n{show(heaps)}"

    def _end(self, state: vf.State, winner: str, text: str) -> None:
        state["winner"], state["final_env_response"] = winner, text


def won(state: vf.State) -> float:
    """Return 1 for a win."""
    return float(state["winner"] == "model")


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    while len(rows) < count:
        heaps = {heap: rng.randint(3, 20) for heap in "ABC"}
        text = show(heaps)
        if text not in seen and winning_move(heaps) and (zlib.crc32(text.encode()) % 5 == 0) == held_out:
            seen.add(text)
            rows.append({"question": text, "answer": "", "info": {"heaps": heaps, "seed": rng.getrandbits(32)}})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment with games that the model can win.

    Args:
        num_examples: Number of games for training and for evaluation.
        seed: Random seed of the games.
    """
    parser = vf.XMLParser(["take"], answer_field="take")
    return HeapsEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([won], parser=parser),
        policies={"expert": expert, "beginner": beginner},
        max_turns=45,
    )
