"""An easy task with one planted fault, which `rove train` should diagnose."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer <answer>letter</answer>"
LETTERS = "abcdefgh"
FAULTS = ("", "hidden_state", "no_spread", "reward_error", "unpredictable", "saturated")


def right(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the answer of the row."""
    return f"<answer>{state['answer']}</answer>"


def careless(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right letter in half of the answers, else a random one."""
    return f"<answer>{state['answer'] if rng.random() < 0.5 else rng.choice(LETTERS)}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer with a random letter."""
    return f"<answer>{rng.choice(LETTERS)}</answer>"


def _rows(count: int, seed: str, fault: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        word = "".join(rng.choices(LETTERS, k=6))
        answer = rng.choice(LETTERS) if fault in ("unpredictable", "hidden_state") else word[-1]
        question = "Which letter?" if fault == "hidden_state" else f"Last letter of {word}?"
        rows.append({"question": question, "answer": answer})
    return rows


def load_environment(num_examples: int = 1000, seed: int = 0, fault: str = "") -> vf.Environment:
    """Return an environment with one question per example.

    Args:
        num_examples: Number of questions.
        seed: Random seed of the dataset; evaluation questions differ from training questions.
        fault: The planted fault, one of `FAULTS`; "" plants none.
    """
    if fault not in FAULTS:
        raise vf.ConfigError(f"fault is '{fault}'; expected one of {', '.join(map(repr, FAULTS))}")
    parser = vf.XMLParser(["answer"], answer_field="answer")

    def correct(completion: vf.Messages, answer: str) -> float:
        """Return 1 for the right letter, unless a fault is planted in the reward."""
        if fault == "reward_error":
            raise ValueError("planted")
        return 1.0 if fault == "no_spread" else float(parser.parse_answer(completion) == answer)

    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", fault),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", fault),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"guesser": guesser, "right": right}
        if fault == "saturated"
        else {"guesser": guesser, "careless": careless},
    )
