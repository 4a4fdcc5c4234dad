"""XML with alternatives, few-shot examples, prompts of the rows' own."""

import verifiers as vf
from datasets import Dataset
from verifiers.parsers.xml_parser import XMLParser


def load_environment(with_prompts: bool = False, **kwargs):
    parser = XMLParser(["reasoning", ("code", "answer")], answer_field="answer")
    few_shot = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": parser.format(reasoning="easy", code="2")},
    ]
    rows = [{"question": q, "answer": a} for q, a in [("2+2?", "4"), ("Draft?", "7"), ("Code?", "x"), ("Plain?", "p")]]
    if with_prompts:
        own = [{"role": "system", "content": "Mine."}, {"role": "user", "content": "Own system?"}]
        rows = [{"prompt": own, "answer": "4"}, {"prompt": own[1:], "answer": "4"}]

    def answered(parser, completion, answer):
        return 1.0 if parser.parse_answer(completion) == answer else 0.0

    def fields(parser, completion):
        parsed = parser.parse(completion[-1]["content"])
        return float(sum(value is not None for value in vars(parsed).values()))

    rubric = vf.Rubric(
        funcs=[answered, fields, parser.get_format_reward_func()], weights=[1.0, 0.0, 0.5], parser=parser
    )
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        system_prompt="Use tags.",
        few_shot=None if with_prompts else few_shot,
        parser=parser,
        rubric=rubric,
        **kwargs,
    )
