"""A ToolEnv with a ToolRubric, which counts calls, beside a reward function."""

import verifiers as vf
from datasets import Dataset


def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return number * 2


def halve(number: int) -> float:
    """Halve a number.

    Args:
        number: The number.
    """
    return number / 2


def right(completion, answer, **kwargs) -> float:
    return float(answer in completion[-1]["content"])


def load_environment(**kwargs) -> vf.Environment:
    rows = [
        {"question": "Double 4.", "answer": "8"},
        {"question": "Halve 9.", "answer": "4.5"},
        {"question": "Double x.", "answer": "8"},
    ]
    rubric = vf.ToolRubric(tools=[double, halve])
    rubric.add_reward_func(right)
    rubric.reward_weights[0] = -0.125
    return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[double, halve], rubric=rubric, max_turns=3)
