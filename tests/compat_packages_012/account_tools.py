"""A StatefulToolEnv in the old form: `update_tool_args(tool_args, messages, state)`."""

import verifiers as vf
from datasets import Dataset
from verifiers.envs.stateful_tool_env import StatefulToolEnv
from verifiers.types import Messages, State


def deposit(amount: int, account: str = "") -> str:
    """Put money into the account.

    Args:
        amount: How much.
        account: Whose.
    """
    return f"{account}: {amount} in"


class AccountEnv(StatefulToolEnv):
    def update_tool_args(self, tool_args: dict, messages: Messages, state: State, **kwargs) -> dict:
        state["calls"] = state.get("calls", 0) + 1
        return {**tool_args, "account": f"{state['info']['owner']}-{len(messages)}-{state['calls']}"}


def tools_said(completion, answer, **kwargs) -> float:
    return float([m["content"] for m in completion if m["role"] == "tool"] == answer.split("|"))


def calls(state, **kwargs) -> float:
    return float(state.get("calls", 0))


def load_environment(**kwargs) -> vf.Environment:
    rows = [
        {"question": "Put 5 in.", "answer": "ann-2-1: 5 in", "info": {"owner": "ann"}},
        {"question": "Put 7 in twice.", "answer": "bob-2-1: 7 in|bob-2-2: 7 in", "info": {"owner": "bob"}},
        {"question": "Nothing.", "answer": "", "info": {"owner": "eve"}},
    ]
    rubric = vf.Rubric(funcs=[tools_said, calls], weights=[1.0, 0.1])
    return AccountEnv(dataset=Dataset.from_list(rows), tools=[deposit], rubric=rubric)
