"""Builders, columns as arguments, class objects, a rubric class, a parser class, ids that are texts."""

import verifiers as vf
from datasets import Dataset
from verifiers.rubrics.rubric import Rubric


class LastLine(vf.Parser):
    def __init__(self):
        super().__init__()

    def parse_answer(self, completion):
        said = self.get_assistant_messages(completion)
        return said[-1]["content"].strip().split("\n")[-1] if said else None


class Graded(Rubric):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_reward_func(self.right)
        self.add_reward_func(self.hard, weight=0.5)
        self.add_class_object("bonus_table", {"easy": 0.1, "hard": 1.0})

    def right(self, parser, completion, answer):
        return 1 if parser.parse_answer(completion) == answer else 0

    async def hard(self, difficulty, bonus_table, src_id="none", unknown=3):
        return bonus_table[difficulty] + len(src_id) + unknown


def penalty(completion):
    return -float(completion[-1].get("content", "").count("!"))


def load_environment(num_train: int = 2, **kwargs):
    def rows(count, tag):
        return Dataset.from_list(
            [
                {
                    "example_id": f"{tag}{i}",
                    "question": f"Last line {i}?",
                    "answer": f"l{i}",
                    "difficulty": ("easy", "hard")[i % 2],
                }
                for i in range(count)
            ]
        )

    parser = LastLine()
    shouting = vf.Rubric(funcs=[penalty], weights=[0.2], parser=parser)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_train, "t"),
        eval_dataset=lambda: rows(3, "e"),
        parser=parser,
        rubric=vf.RubricGroup(rubrics=[Graded(parser=parser), shouting]),
        sampling_args={"temperature": 0.7, "extra_body": {"top_k": 5}},
        **kwargs,
    )
