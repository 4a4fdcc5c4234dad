"""A conversation that is not a line: old turns are cut from the prompt, and the completion is rendered by hand."""

import verifiers as vf
from datasets import Dataset
from verifiers.utils.message_utils import concat_messages


class WindowEnv(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [vf.UserMessage(content=f"Line {len(state['trajectory'])}, please.")]

    async def get_prompt_messages(self, state):
        if not state["trajectory"]:
            return state["prompt"]
        last = state["trajectory"][-1]["completion"]
        reply = await self.env_response(last, state)
        return concat_messages([state["prompt"], last, reply])

    async def render_completion(self, state):
        state["completion"] = concat_messages([step["completion"] for step in state["trajectory"]])


def load_environment(**kwargs):
    def lines(completion):
        return float(len(completion))

    def longest_prompt(state):
        return max(len(step["prompt"]) for step in state["trajectory"])

    rows = [{"question": "A poem, line by line.", "answer": ""}, {"question": "A list, line by line.", "answer": ""}]
    return WindowEnv(
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[lines, longest_prompt], weights=[1.0, 0.0]),
        max_turns=3,
        **kwargs,
    )
