"""My task: add two numbers. Describe your own task here."""

from __future__ import annotations

import itertools
import random
from typing import Any

import rove as vf


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A scripted policy that is always right: rove eval my_task -m scripted:oracle."""
    return f"<answer>{state['answer']}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A weak policy, which answers with a random sum. `rove train` needs a good and a weak policy."""
    return f"<answer>{rng.randrange(100) + rng.randrange(100)}</answer>"


# Training and evaluation questions are disjoint.
PAIRS = random.Random("split").sample(list(itertools.product(range(100), range(100))), k=10_000)
HELD_OUT, TRAINED = PAIRS[:2_000], PAIRS[2_000:]


def _rows(pairs: list[tuple[int, int]], count: int, seed: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed).sample(pairs, min(count, len(pairs)))
    return [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in chosen]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with questions that have one right answer: at most 8,000 for training, 2,000 others for evaluation.

    Args:
        num_examples: Number of questions.
        seed: Random seed that chooses them.
    """
    parser = vf.XMLParser(["answer"])

    def correct(completion: vf.Messages, answer: str) -> float:
        """Return 1 if the answer in the tags is the right one."""
        return float(parser.parse_answer(completion) == answer)

    rubric = vf.Rubric([correct], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(TRAINED, num_examples, seed),
        eval_dataset=lambda: _rows(HELD_OUT, num_examples, seed),
        system_prompt="Answer the question. Write the result in <answer> tags, for example <answer>42</answer>.",
        rubric=rubric,
        policies={"oracle": oracle, "guesser": guesser},
    )
