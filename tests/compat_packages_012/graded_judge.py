"""A subclass of JudgeRubric with the default client, whose `judge` and reward functions are synchronous methods."""

import re

import verifiers as vf
from datasets import Dataset
from verifiers.rubrics.judge_rubric import JudgeRubric

GRADE_PROMPT = "Grade {response} against {answer} for {question}"


class GradeRubric(JudgeRubric):
    def __init__(self, **kwargs):
        super().__init__(judge_model="grade", judge_prompt=GRADE_PROMPT, **kwargs)
        self.reward_funcs = [self.grade, self.cached]
        self.reward_weights = [0.1, 0.0]

    def judge(self, prompt, completion, answer, state, **kwargs) -> str:
        return super().judge(prompt, completion, answer, state, **kwargs).strip()

    def grade(self, prompt, completion, answer, state, **kwargs) -> float:
        found = re.search(r"(\d+)/10", self.judge(prompt, completion, answer, state))
        return float(found.group(1)) if found else 0.0

    def cached(self, state, **kwargs) -> float:
        return float(len(state["judge_response"]))


def load_environment(**kwargs) -> vf.Environment:
    rows = [{"question": f"Summarize {n} words.", "answer": str(n)} for n in (3, 9, 40)]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=GradeRubric())
