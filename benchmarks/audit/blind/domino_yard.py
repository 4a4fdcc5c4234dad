"""Domino yard: players lay dominoes on a small board, one upright and one flat, until one of them cannot move."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import rove as vf

SIZE = 4
SYSTEM_PROMPT = (
    "You lay upright dominoes, each on a free square and the free square below it; the opponent lays flat ones. Whoever "
    "cannot lay a domino loses; an illegal move loses as well. Answer with your upper square: <lay>6</lay>"
)
CELLS = SIZE * SIZE


def moves(board: int, upright: bool) -> list[int]:
    """Return the first squares of all legal dominoes; taken squares are bits of `board`."""
    found = []
    for square in range(CELLS):
        second = square + (SIZE if upright else 1)
        inside = second < CELLS and (upright or second % SIZE)
        if inside and not board >> square & 1 and not board >> second & 1:
            found.append(square)
    return found


def lay(board: int, square: int, upright: bool) -> int:
    return board | 1 << square | 1 << square + (SIZE if upright else 1)


@functools.cache
def wins(board: int, upright: bool) -> bool:
    """Return whether the player to move wins with best play."""
    return any(not wins(lay(board, square, upright), not upright) for square in moves(board, upright))


def show(board: int) -> str:
    squares = [" #" if board >> square & 1 else f"{square:2d}" for square in range(CELLS)]
    return "\n".join(" ".join(squares[row : row + SIZE]) for row in range(0, CELLS, SIZE))


def planner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play a winning move if there is one."""
    legal = moves(state["board"], True)
    best = [square for square in legal if not wins(lay(state["board"], square, True), False)]
    return f"<lay>{rng.choice(best or legal)}</lay>"


def scatter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play any legal move."""
    return f"<lay>{rng.choice(moves(state['board'], True))}</lay>"


class DominoYardEnv(vf.MultiTurnEnv):
    """An environment of games against an opponent that plays random legal moves."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["board"] = state["info"]["board"]
        state["winner"] = None

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text = (self.parser.parse_answer(messages) or "").strip()
        legal = moves(state["board"], True)
        if not (text.isascii() and text.isdigit() and int(text) in legal):
            return self.end(state, "opponent", "Illegal move. You lose.")
        state["board"] = lay(state["board"], int(text), True)
        answers = moves(state["board"], False)
        if not answers:
            return self.end(state, "model", "I cannot move. You win.")
        rng = random.Random(f"{state['info']['seed']}:{state['board']}")
        square = rng.choice(answers)
        state["board"] = lay(state["board"], square, False)
        if not moves(state["board"], True):
            return self.end(state, "opponent", f"I take {square} and {square + 1}. You cannot move and lose.")
        return f"I take {square} and {square + 1}.\n{show(state['board'])}"

    def end(self, state: vf.State, winner: str, text: str) -> None:
        state["winner"] = winner
        state["final_env_response"] = f"{text}\n{show(state['board'])}"


def won(state: vf.State) -> float:
    """Return 1 for a win."""
    return float(state["winner"] == "model")


@functools.cache
def boards() -> list[int]:
    """Return the starting boards, shuffled: five squares are taken, and one of the first moves wins."""
    found = []
    for taken in itertools.combinations(range(CELLS), 5):
        board = sum(1 << square for square in taken)
        winning = sum(not wins(lay(board, square, True), False) for square in moves(board, True))
        if winning == 1 and len(moves(board, True)) >= 6:
            found.append(board)
    random.Random("boards").shuffle(found)
    return found


def rows(count: int, seed: str, starts: list[int]) -> list[dict[str, Any]]:
    made = []
    for index in range(count):
        board = random.Random(f"{seed}:{index}").choice(starts)
        made.append({"question": show(board), "info": {"board": board, "seed": f"{seed}:{index}"}})
    return made


def load_environment(num_examples: int = 400, num_eval_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment of games that the model can win from the start.

    Args:
        num_examples: Number of training games.
        num_eval_examples: Number of evaluation games.
        seed: Random seed of the starting boards and of the opponent's moves.
    """
    parser = vf.XMLParser(["lay"], answer_field="lay")
    return DominoYardEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train", boards()[::2]),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}:eval", boards()[1::2]),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([won], parser=parser),
        policies={"planner": planner, "scatter": scatter},
        max_turns=8,
    )
