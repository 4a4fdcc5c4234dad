"""A judge that reward functions call without `await`, through the rubric and through its client."""

import verifiers as vf
from datasets import Dataset
from openai import OpenAI

ROWS = [
    {"question": "Capital of France?", "answer": "Paris"},
    {"question": "Capital of Peru?", "answer": "Lima"},
    {"question": "Capital of Chad?", "answer": "N'Djamena"},
]


def load_environment(judge_base_url: str, **kwargs) -> vf.Environment:
    parser = vf.XMLParser(["think", "answer"])
    rubric = vf.JudgeRubric(
        parser=parser, judge_client=OpenAI(base_url=judge_base_url, api_key="EMPTY"), judge_model="judge"
    )

    def judged(prompt, completion, answer, state, **kwargs) -> float:
        reply = rubric.judge(prompt, completion, answer, state, **kwargs)
        return 1.0 if "yes" in reply.lower() else 0.0

    def polite(completion, **kwargs) -> float:
        asked = f"Polite? {completion[-1]['content']}"
        reply = rubric.judge_client.chat.completions.create(
            model=rubric.judge_model, messages=[{"role": "user", "content": asked}]
        )
        return float(reply.choices[0].message.content == "yes")

    rubric.add_reward_func(judged, weight=1.0)
    rubric.add_reward_func(polite, weight=0.25)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.5)
    return vf.SingleTurnEnv(dataset=Dataset.from_list(ROWS), parser=parser, rubric=rubric, system_prompt="Use tags.")
