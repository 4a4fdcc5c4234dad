"""Knit count: work out stitches for scarves, blankets and hats from a gauge and a pattern repeat."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You help people with knitting. Find the largest number of stitches that is not wider than the piece, that is a whole "
    "number of pattern repeats plus the edge stitches. Write the number in tags, for example <stitches>84</stitches>."
)
TEMPLATES = (
    "My gauge is {gauge} stitches per 10 cm. The {piece} should be {width} cm wide. The pattern repeats every {repeat} "
    "stitches, and there are {edge} edge stitches in total. How many stitches do I cast on?",
    "How many stitches do I need for a {piece} of {width} cm? I knit {gauge} stitches to 10 cm; one repeat is {repeat} "
    "stitches, plus {edge} stitches for the edges.",
    "Pattern: multiple of {repeat} stitches plus {edge}. Gauge: 10 cm = {gauge} stitches. Piece: {piece}, {width} cm. "
    "Number of stitches to cast on?",
)
PIECES = ("scarf", "baby blanket", "shawl", "cushion cover", "hat brim", "table runner")


def whole_number(text: str) -> int | None:
    """Return the number that a text states, or None."""
    text = text.strip().removesuffix("stitches").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the number of stitches is right."""
    return float(parser.parse_answer(completion) == int(answer))


def cast_on(gauge: int, width: int, repeat: int, edge: int) -> int:
    """Return the number of stitches to cast on."""
    fits = gauge * width // 10
    return (fits - edge) // repeat * repeat + edge


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Return rows, each drawn from its own seed."""
    made = []
    for index in range(count):
        rng = random.Random(seed + index)
        numbers = {
            "gauge": rng.randint(14, 34),
            "width": rng.randint(25, 140),
            "repeat": rng.randint(4, 18),
            "edge": rng.randint(2, 9),
        }
        question = TEMPLATES[index % len(TEMPLATES)].format(piece=rng.choice(PIECES), **numbers)
        made.append({"question": question, "answer": str(cast_on(**numbers))})
    return made


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment with knitting sums.

    Args:
        num_examples: Number of questions for training, and for evaluation.
        seed: Random seed of the training questions; the evaluation questions have another.
    """
    parser = vf.XMLParser(["stitches"], answer_field="stitches", extract_fn=whole_number)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed),
        eval_dataset=lambda: rows(num_examples, seed + 100),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
    )
