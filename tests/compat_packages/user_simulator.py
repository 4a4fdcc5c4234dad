"""The environment asks the model by itself, ends with a last word, and rewards turns."""

import verifiers as vf
from datasets import Dataset
from verifiers.types import TrajectoryStep


class SimulatedUserEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["mood"] = 0

    async def add_trajectory_step(self, state, trajectory_step: TrajectoryStep):
        trajectory_step["extras"]["number"] = len(state["trajectory"])
        trajectory_step["reward"] = 0.5 * len(state["trajectory"])
        await super().add_trajectory_step(state, trajectory_step)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs) -> vf.Messages:
        asked = [vf.SystemMessage(content="You are a customer."), vf.UserMessage(content=messages[-1].content or "")]
        response = await self.get_model_response(state, asked)
        said = response.message.content
        state["mood"] += len(said)
        if "thanks" in said.lower():
            state["final_env_response"] = [vf.UserMessage(content=said)]
        return [{"role": "user", "content": said}]


def load_environment(**kwargs):
    def mood(state):
        return state["mood"] / 100

    def turns(state):
        return sum(step["reward"] for step in state["trajectory"]) + sum(
            s["extras"]["number"] for s in state["trajectory"]
        )

    def last_is_user(completion):
        return float(completion[-1]["role"] == "user")

    def tokens(state):
        return state["usage"]["output_tokens"]

    rows = [{"question": "Sell a bike.", "answer": ""}, {"question": "Sell a boat.", "answer": ""}]
    rubric = vf.Rubric(funcs=[mood, turns, last_is_user, tokens], weights=[1, 0.1, 0.1, 0])
    return SimulatedUserEnv(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=3, **kwargs)
