"""As packages for 0.1.2 to 0.1.7 were written: is_completed, pairs from env_response, a task column, state["turn"]."""

import verifiers as vf
from datasets import Dataset
from verifiers.types import Messages, State


class DebateEnv(vf.MultiTurnEnv):
    async def setup_state(self, state: State, **kwargs) -> State:
        state["points"] = 0
        return state

    async def is_completed(self, messages: Messages, state: State, **kwargs) -> bool:
        if await super().is_completed(messages, state, **kwargs):
            return True
        return bool(messages) and "agreed" in str(messages[-1]["content"]).lower()

    async def env_response(self, messages: Messages, state: State, **kwargs) -> tuple[Messages, State]:
        state["points"] += len(messages[-1]["content"].split())
        return [{"role": "user", "content": f"Turn {state['turn']}: convince me more."}], state


def load_environment(**kwargs):
    def points(state, **kwargs):
        return state["points"] / 10

    def by_task(task, completion, **kwargs):
        return 1.0 if task == "short" and len(completion) < 3 else 0.0

    rubric = vf.Rubric(funcs=[points, by_task], weights=[1.0, 0.5])
    rows = [
        {"question": "Cats or dogs?", "answer": "", "task": "short"},
        {"question": "Tea or coffee?", "answer": "", "task": "long"},
    ]
    return DebateEnv(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=3, **kwargs)
