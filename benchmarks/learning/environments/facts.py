"""Facts: find one of eight facts in a short text."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer from the text: <answer>number</answer>"
ANIMALS = "badger beaver bison crane eagle falcon ferret fox hare heron lynx magpie marten mole moose otter".split()
FACTS = 8


def reader(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right number in 80 % of the answers, else a random number of the text."""
    numbers = state["info"]["numbers"]
    return f"<answer>{state['answer'] if rng.random() < 0.8 else rng.choice(numbers)}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer with a random number of the text."""
    return f"<answer>{rng.choice(state['info']['numbers'])}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right number."""
    return float(parser.parse_answer(completion) == answer)


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        animals = rng.sample(ANIMALS, FACTS)
        numbers = [str(rng.randint(10, 99)) for _ in animals]
        text = " ".join(f"The {animal} has {number}." for animal, number in zip(animals, numbers))
        target = rng.randrange(FACTS)
        question = f"{text} How many does the {animals[target]} have?"
        rows.append({"question": question, "answer": numbers[target], "info": {"numbers": numbers}})
    return rows


def load_environment(num_examples: int = 2000, seed: int = 0) -> vf.Environment:
    """Return an environment with one text and one question per example.

    Args:
        num_examples: Number of questions.
        seed: Random seed of the dataset; evaluation texts differ from training texts.
    """
    parser = vf.XMLParser(["answer"], answer_field="answer")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(correct, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"reader": reader, "guesser": guesser},
    )
