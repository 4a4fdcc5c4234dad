"""Thoughts before the answer, info as JSON, a reward function that fails, one that takes everything."""

import json
import re

import verifiers as vf
from datasets import Dataset


def load_environment(**kwargs):
    parser = vf.ThinkParser(extract_fn=lambda text: re.sub(r"[^0-9]", "", text))

    def in_range(parser, completion, info):
        said = parser.parse_answer(completion)
        return 1.0 if said and info["low"] <= int(said) <= info["high"] else 0.0

    def fails(answer):
        return 1.0 / len(answer)

    def everything(**kwargs):
        return float(len({"prompt", "completion", "answer", "state", "info", "parser", "hint", "task"} & kwargs.keys()))

    rubric = vf.Rubric(funcs=[in_range, fails, everything], weights=[1.0, 0.5, 0.01], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2)
    rows = [
        {"question": "Even?", "answer": "", "info": json.dumps({"low": 2, "high": 4}), "hint": "small"},
        {"question": "Odd?", "answer": "ab", "info": json.dumps({"low": 5, "high": 7}), "hint": "large"},
        {"question": "None?", "answer": "abc", "info": json.dumps({"low": 0, "high": 9}), "hint": "any"},
    ]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), parser=parser, rubric=rubric, **kwargs)
