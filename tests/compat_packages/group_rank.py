"""Rewards of whole groups, recognised by the names of their arguments or by what they return."""

import verifiers as vf
from datasets import Dataset


def shortest(completions: list, answers) -> list[float]:
    lengths = [len(c[-1]["content"]) for c in completions]
    return [1.0 if length == min(lengths) else 0.0 for length in lengths]


async def different(states, infos, **kwargs):
    texts = [state["completion"][-1]["content"] for state in states]
    return [1.0 / texts.count(text) for text in texts]


def broken(prompts):
    raise KeyError("not this one")


def alone(completion, bonus):
    return bonus * len(completion)


def load_environment(**kwargs):
    rubric = vf.Rubric(funcs=[shortest, different, broken], weights=[1.0, 0.5, 2.0])
    rubric.add_reward_func(alone, weight=0.1)
    rows = [{"question": "Say something.", "answer": "a", "bonus": 2}, {"question": "Sing.", "answer": "b", "bonus": 3}]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric, **kwargs)
