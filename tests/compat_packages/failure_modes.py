"""Errors of the library's own, a context that is full, answers cut off, a tool error that ends the rollout."""

import verifiers as vf
from datasets import Dataset


class StrictError(Exception):
    pass


def check(value: int) -> str:
    """Check a value."""
    if value < 0:
        raise StrictError("negative")
    return "fine"


class FailingEnv(vf.ToolEnv):
    async def setup_state(self, state, **kwargs):
        if "setup" in state["prompt"][-1]["content"]:
            raise vf.InfraError("no room")
        return await super().setup_state(state)

    @vf.cleanup(priority=1)
    async def note(self, state):
        state["cleaned"] = True


def load_environment(**kwargs):
    def cleaned(state):
        return float(state.get("cleaned", False))

    def failed(state):
        return float(state["error"] is not None)

    questions = ["Fail in setup.", "Check -1.", "Check 1.", "Too long.", "Cut off."]
    return FailingEnv(
        dataset=Dataset.from_list([{"question": q, "answer": ""} for q in questions]),
        tools=[check],
        stop_errors=[StrictError],
        rubric=vf.Rubric(funcs=[cleaned, failed], weights=[1.0, 0.0]),
        max_turns=3,
        **kwargs,
    )
