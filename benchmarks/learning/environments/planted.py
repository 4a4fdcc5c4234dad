"""An easy task with one planted fault, which `rove train` should diagnose."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Count the letter. Answer <answer>number</answer>"
LETTERS = "abcdefgh"
MAX_COUNT = 4
FAULTS = ("", "hidden_state", "no_spread", "reward_error", "shuffled_labels")


def careful(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right number in 80 % of the answers, else a random one."""
    return f"<answer>{state['answer'] if rng.random() < 0.8 else rng.randint(0, MAX_COUNT)}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer with a random number."""
    return f"<answer>{rng.randint(0, MAX_COUNT)}</answer>"


def _rows(count: int, seed: str, fault: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        letter, occurrences = rng.choice(LETTERS), rng.randint(0, MAX_COUNT)
        letters = [letter] * occurrences + rng.choices(LETTERS.replace(letter, ""), k=rng.randint(3, 6))
        rng.shuffle(letters)
        question = "How many?" if fault == "hidden_state" else f"{letter} in {''.join(letters)}"
        answer = rng.randint(0, MAX_COUNT) if fault == "shuffled_labels" else occurrences
        rows.append({"question": question, "answer": str(answer)})
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
        """Return 1 for the right number, unless a fault is planted in the reward."""
        if fault == "reward_error":
            raise ValueError("planted")
        return 1.0 if fault == "no_spread" else float(parser.parse_answer(completion) == answer)

    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", fault),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", fault),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"guesser": guesser, "careful": careful},
    )
