"""Mathematics with the MathRubric that 0.1.2 had, and the format reward of its ThinkParser."""

import verifiers as vf
from datasets import Dataset
from verifiers.rubrics.math_rubric import MathRubric
from verifiers.utils.data_utils import THINK_BOXED_SYSTEM_PROMPT, extract_boxed_answer

ROWS = [
    {"question": "What is 1/2 + 1/4?", "answer": "\\frac{3}{4}"},
    {"question": "What is 2^5?", "answer": "32"},
    {"question": "Solve 2x = 4.", "answer": "x=2"},
    {"question": "What is 7 * 6?", "answer": "42"},
]


def load_environment(**kwargs) -> vf.Environment:
    parser = vf.ThinkParser(extract_fn=extract_boxed_answer)
    rubric = MathRubric(parser=None)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2)
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(ROWS), system_prompt=THINK_BOXED_SYSTEM_PROMPT, parser=parser, rubric=rubric
    )
