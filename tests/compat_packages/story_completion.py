"""Raw texts to continue, for completion endpoints."""

import verifiers as vf
from datasets import Dataset


class StoryEnv(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return "And then?" if len(state["trajectory"]) < 2 else ""


def load_environment(**kwargs):
    def length(completion):
        return sum(len(m["content"]) for m in completion if m["role"] == "assistant") / 100

    def kinds(completion):
        return float([m["role"] for m in completion].count("text"))

    rows = [{"prompt": "Once upon a time", "answer": "end"}, {"prompt": "It was dark", "answer": "light"}]
    return StoryEnv(
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[length, kinds], weights=[1.0, 0.0]),
        max_turns=2,
        message_type="completion",
        **kwargs,
    )
