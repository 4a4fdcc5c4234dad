"""Bracket check: is a string of brackets balanced?"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Decide whether the brackets are balanced: every bracket is closed by one of its kind, in the right order. "
    "Answer <verdict>yes</verdict> or <verdict>no</verdict>"
)
PAIRS = {"(": ")", "[": "]", "{": "}"}


def balanced(text: str) -> bool:
    stack: list[str] = []
    for symbol in text:
        if symbol in PAIRS:
            stack.append(PAIRS[symbol])
        elif not stack or stack.pop() != symbol:
            return False
    return not stack


def draw(rng: random.Random, pairs: int) -> str:
    """Return a balanced string."""
    text, stack, left = "", [], pairs
    while left or stack:
        if left and (not stack or rng.random() < 0.55):
            symbol = rng.choice(list(PAIRS))
            stack.append(PAIRS[symbol])
            text, left = text + symbol, left - 1
        else:
            text += stack.pop()
    return text


def spoil(text: str, rng: random.Random) -> str:
    """Return an unbalanced string with the same brackets in another order."""
    while True:
        symbols = list(text)
        first, second = rng.sample(range(len(symbols)), 2)
        symbols[first], symbols[second] = symbols[second], symbols[first]
        if not balanced("".join(symbols)):
            return "".join(symbols)


def rows(count: int, seed: str, parity: int) -> list[dict[str, Any]]:
    """Return questions; strings with one parity of their checksum are for training, the others for evaluation."""
    rng, made, seen = random.Random(seed), [], set()
    while len(made) < count:
        text, good = draw(rng, rng.randint(4, 9)), rng.random() < 0.5
        if not good:
            text = spoil(text, rng)
        if text in seen or sum((i + 1) * ord(c) for i, c in enumerate(text)) % 2 != parity:
            continue
        seen.add(text)
        made.append({"question": " ".join(text), "answer": "yes" if good else "no"})
    return made


def right_verdict(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right verdict."""
    return float((parser.parse_answer(completion) or "").strip().lower() == answer)


def load_environment(num_examples: int = 600, num_eval_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment of yes/no questions about brackets.

    Args:
        num_examples: Number of training questions.
        num_eval_examples: Number of evaluation questions.
        seed: Random seed of the questions.
    """
    parser = vf.XMLParser(["verdict"], answer_field="verdict")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train", 0),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([right_verdict], parser=parser),
    )
