"""A game in the synchronous form: `env_response` returns a pair and ends the game, `is_completed` reads the state."""

from typing import Any

import verifiers as vf
from datasets import Dataset
from verifiers.types import Messages, State


class QuestionsEnv(vf.MultiTurnEnv):
    def setup_state(self, state: State, **kwargs) -> State:
        state["hints"] = 0
        state["checks"] = 0
        return state

    def is_completed(self, messages: Messages, state: State, **kwargs: Any) -> bool:
        state["checks"] += 1
        return bool(state.get("found")) or "I give up" in messages[-1]["content"]

    def env_response(self, messages: Messages, state: State, **kwargs: Any) -> tuple[Messages, State]:
        assert "tool_calls" not in messages[-1]
        if state["answer"] in messages[-1]["content"]:
            state["found"] = True
            return [{"role": "user", "content": f"Yes, it is {state['answer']}."}], state
        state["hints"] += 1
        return [{"role": "user", "content": f"No. Hint {state['hints']}."}], state


def found(state, **kwargs) -> float:
    return float(bool(state.get("found")))


def turns(state, **kwargs) -> float:
    return float(state["turn"])


def checks(state, **kwargs) -> float:
    return float(state["checks"])


def words(state, **kwargs) -> float:
    return float(sum(len(r.choices[0].message.content.split()) for r in state["responses"]))


def messages(completion, **kwargs) -> float:
    return float(len(completion))


def finished(state, **kwargs) -> float:
    return float(all(response.choices[0].finish_reason == "stop" for response in state["responses"]))


def load_environment(**kwargs) -> vf.Environment:
    rows = [
        {"question": f"Guess the {kind}.", "answer": word}
        for kind, word in (("pet", "cat"), ("tree", "oak"), ("sea", "Azov"))
    ]
    rubric = vf.Rubric(
        funcs=[found, turns, checks, words, messages, finished], weights=[1.0, -0.01, 0.001, 0.0001, 0.5, 0.25]
    )
    return QuestionsEnv(dataset=Dataset.from_list(rows), rubric=rubric)
