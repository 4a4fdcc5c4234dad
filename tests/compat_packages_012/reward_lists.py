"""A rubric whose lists of functions and weights are set in `__init__`; one function raises for one row."""

import verifiers as vf
from datasets import Dataset
from verifiers.rubrics.rubric import Rubric


class WordRubric(Rubric):
    def __init__(self, parser=None, **kwargs):
        super().__init__(parser=parser, **kwargs)
        self.reward_funcs = [self.exact, self.length, self.share]
        self.reward_weights = [1.0, 0.5, 0.25]

    def exact(self, completion, answer, **kwargs) -> float:
        return 1.0 if self.parser.parse_answer(completion) == answer else 0.0

    def length(self, completion, **kwargs) -> float:
        return min(1.0, len(completion[-1]["content"]) / 10)

    def share(self, completion, info, **kwargs) -> float:
        return len(completion[-1]["content"]) / info["letters"]


class MoreWordRubric(WordRubric):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.reward_funcs.append(self.lower)
        self.reward_weights.append(2.0)
        self.reward_funcs += [self.upper]
        self.reward_weights += [0.125]

    def lower(self, completion, **kwargs) -> float:
        return float(completion[-1]["content"].islower())

    def upper(self, completion, **kwargs) -> float:
        return float(completion[-1]["content"].isupper())


def load_environment(**kwargs) -> vf.Environment:
    rows = [
        {"question": "Say tea.", "answer": "tea", "info": {"letters": 3}},
        {"question": "Say milk.", "answer": "milk", "info": {"letters": 0}},
        {"question": "Say JAM.", "answer": "JAM", "info": {"letters": 6}},
    ]
    parser = vf.Parser(extract_fn=lambda text: text.strip("."))
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), parser=parser, rubric=MoreWordRubric(parser=parser))
