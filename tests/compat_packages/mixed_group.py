"""Two environments as one, each with its rubric."""

import verifiers as vf
from datasets import Dataset


def exact(completion, answer):
    return 1.0 if completion[-1]["content"] == answer else 0.0


def polite(completion):
    return 1.0 if "please" in completion[-1]["content"].lower() else 0.0


def level(info):
    return info.get("level", -1)


def load_environment(**kwargs):
    sums = Dataset.from_list(
        [{"question": f"{a} + {b}?", "answer": str(a + b), "info": {"level": a}} for a, b in [(1, 2), (3, 4)]]
    )
    manners = Dataset.from_list(
        [{"question": "Ask for salt.", "answer": ""}, {"question": "Ask for tea.", "answer": ""}]
    )
    first = vf.SingleTurnEnv(dataset=sums, rubric=vf.Rubric(funcs=[exact, level], weights=[1.0, 0.0]))
    second = vf.SingleTurnEnv(
        dataset=manners, system_prompt="Be polite.", rubric=vf.Rubric(funcs=[polite], weights=[0.5])
    )
    return vf.EnvGroup(envs=[first, second], env_names=["sums", "manners"], **kwargs)
