"""A mix of three easy families of reasoning-gym; the scripted policies answer from the row's reference answer."""

from __future__ import annotations

import random

import rove as vf

SYSTEM_PROMPT = "Give your final answer between <answer> and </answer>."
FAMILIES = [
    {"name": "chain_sum", "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}},
    {"name": "gcd", "config": {"min_value": 1, "max_value": 30}},
    {"name": "letter_counting", "config": {"min_words": 3, "max_words": 5}},
]


def careful(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right answer in 80 % of the cases, else a random number below 20."""
    return f"<answer>{state['answer'] if rng.random() < 0.8 else rng.randrange(20)}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer with a random number below 20."""
    return f"<answer>{rng.randrange(20)}</answer>"


def load_environment(num_examples: int = 2000, seed: int = 0) -> vf.Environment:
    """Return an environment with one task per example.

    Args:
        num_examples: Number of training tasks.
        seed: Random seed of the dataset; evaluation tasks differ from training tasks.
    """
    return vf.ReasoningGymEnv(
        FAMILIES,
        num_train_examples=num_examples,
        num_eval_examples=min(num_examples, 1000),
        seed=seed,
        system_prompt=SYSTEM_PROMPT,
        partial_credit=False,
        policies={"careful": careful, "guesser": guesser},
    )
