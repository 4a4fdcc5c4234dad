"""Modular arithmetic: the remainder of a sum of two numbers below 100."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Compute the remainder. Answer <answer>number</answer>"
MODULUS = 7


def careful(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right remainder in 80 % of the answers, else a random one."""
    return f"<answer>{state['answer'] if rng.random() < 0.8 else rng.randrange(MODULUS)}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer with a random remainder."""
    return f"<answer>{rng.randrange(MODULUS)}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right remainder."""
    return float(parser.parse_answer(completion) == answer)


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    pairs = [(a, b) for a in range(100) for b in range(100) if ((17 * a + 31 * b) % 10 == 0) == evaluation]
    chosen = random.Random(seed).choices(pairs, k=count)
    return [{"question": f"{a:02} + {b:02} mod {MODULUS}", "answer": str((a + b) % MODULUS)} for a, b in chosen]


def load_environment(num_examples: int = 2000, seed: int = 0) -> vf.Environment:
    """Return an environment with one sum per example.

    Args:
        num_examples: Number of sums.
        seed: Random seed of the dataset. A tenth of all pairs of numbers is for evaluation only, whatever the seed.
    """
    parser = vf.XMLParser(["answer"], answer_field="answer")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(correct, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"careful": careful, "guesser": guesser},
    )
