"""Single turn, boxed answers, a MathRubric."""

import verifiers as vf
from datasets import Dataset
from verifiers.utils.data_utils import BOXED_SYSTEM_PROMPT, extract_boxed_answer

PROBLEMS = [("What is 1/2 + 1/4?", "3/4"), ("What is 2^5?", "32"), ("Solve x + 3 = 5.", "2"), ("What is 7 * 6?", "42")]


def load_environment(system_prompt: str = BOXED_SYSTEM_PROMPT, **kwargs) -> vf.Environment:
    def build():
        return Dataset.from_list([{"question": q, "answer": a} for q, a in PROBLEMS])

    parser = vf.MaybeThinkParser(extract_fn=extract_boxed_answer)
    rubric = vf.MathRubric(parser=parser)

    def words(completion, parser):
        return float(len(str(parser.parse_answer(completion)).split()))

    rubric.add_metric(words)
    return vf.SingleTurnEnv(eval_dataset=build, system_prompt=system_prompt, parser=parser, rubric=rubric, **kwargs)
