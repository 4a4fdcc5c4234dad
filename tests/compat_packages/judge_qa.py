"""Answers graded by a judge, whose words a reward function reads."""

import os

import verifiers as vf
from datasets import Dataset
from openai import AsyncOpenAI

ROWS = [
    {"question": "Who wrote Faust?", "answer": "Goethe"},
    {"question": "Capital of France?", "answer": "Paris"},
    {"question": "Largest planet?", "answer": "Jupiter"},
]


def load_environment(
    judge_model: str = "judge",
    judge_base_url: str = "http://localhost",
    judge_api_key_var: str = "JUDGE_API_KEY",
    **kwargs,
):
    client = AsyncOpenAI(base_url=judge_base_url, api_key=os.getenv(judge_api_key_var, "EMPTY"))
    rubric = vf.JudgeRubric(
        judge_client=client,
        judge_model=judge_model,
        judge_sampling_args={"max_tokens": 5, "temperature": 0.0},
    )

    async def judged(judge, prompt, completion, answer, state, **kwargs):
        said = await judge(prompt, completion, answer, state)
        again = await judge(prompt, completion, answer, state)
        assert said == again
        return 1.0 if "yes" in said.lower() else 0.0

    async def own_prompt(judge_client, judge_model, completion):
        said = await judge_client.chat.completions.create(
            model=judge_model, messages=[{"role": "user", "content": f"Polite? {completion[-1]['content']}"}]
        )
        return float(said.choices[0].message.content.startswith("yes"))

    rubric.add_reward_func(judged, weight=1.0)
    rubric.add_reward_func(own_prompt, weight=0.25)
    return vf.SingleTurnEnv(dataset=Dataset.from_list(ROWS), rubric=rubric, **kwargs)
