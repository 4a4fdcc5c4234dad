"""Knight moves: which squares can a knight reach?"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write all squares that the white knight can move to; it cannot move to squares of white pawns. "
    "Answer <squares>squares such as a1 b2, in any order</squares>"
)
JUMPS = [(1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2)]
SQUARE = re.compile("[a-h][1-8]")


def name(square: tuple[int, int]) -> str:
    """Return the name of a square that is given by file and rank, 0 to 7."""
    return f"{'abcdefgh'[square[0]]}{square[1] + 1}"


def square(text: str) -> tuple[int, int]:
    """Return the file and rank of a square, 0 to 7."""
    return "abcdefgh".index(text[0]), int(text[1]) - 1


def player(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Look at all eight jumps; overlook one in 30 % of the answers."""
    squares = state["answer"].split()
    if rng.random() < 0.3:
        squares.remove(rng.choice(squares))
    return f"<squares>{' '.join(squares)}</squares>"


def correct(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for exactly the right squares."""
    words = (parser.parse_answer(completion) or "").replace(",", " ").split()
    if not all(SQUARE.fullmatch(word) for word in words):
        return 0.0
    return float(sorted({square(word) for word in words}) == info["targets"])


def _row(rng: random.Random) -> dict[str, Any]:
    squares = [(file, rank) for file in range(8) for rank in range(8)]
    knight = rng.choice(squares)
    around = [(knight[0] + x, knight[1] + y) for x, y in JUMPS]
    pawns = rng.sample([one for one in squares if one != knight and 0 < one[1] < 7], 7)
    targets = sorted(one for one in around if one in squares and one not in pawns)
    question = f"White: knight {name(knight)}, pawns {' '.join(map(name, sorted(pawns)))}."
    return {
        "question": question,
        "answer": " ".join(map(name, targets)),
        "info": {"knight": knight, "targets": targets},
    }


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if row["answer"] and (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one knight and seven pawns per example.

    Args:
        num_examples: Number of positions.
        seed: Random seed of the dataset; evaluation positions differ from training positions.
    """
    parser = vf.XMLParser(["squares"], answer_field="squares")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"player": player},
    )
