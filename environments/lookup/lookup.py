"""Look up, then answer: what the question asks for is nowhere but in what a tool says."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Look the room up, then answer."
NAMES = "Ada Ben Cleo Emil Gus Kim Nora Otto".split()  # noqa: SIM905
LETTERS, DIGITS = "BCDGKLMP", "12345678"


def look_up(name: str, state: vf.State) -> str:
    """Somebody's room."""
    rooms = state["info"]["rooms"]
    if name not in rooms:
        raise ValueError("nobody has that name")
    if "answered" not in state:  # calls of the turn that answered may follow
        state["looked_up"].append(name)
    return rooms[name]


def answer(value: str, state: vf.State) -> str:
    """The last word."""
    state.setdefault("answered", value)
    return "done"


def correct(state: vf.State, answer: str) -> float:
    """1 for the right room, if it was looked up before."""
    return looked_up(state) * float(state.get("answered") == answer)


def looked_up(state: vf.State) -> float:
    """1 when the room asked for was looked up, whatever came of it."""
    return float(state["info"]["of"] in state["looked_up"])


def answered(state: vf.State) -> float:
    """1 when it called `answer`."""
    return float("answered" in state)


def _call(tool: str, **arguments: str) -> vf.AssistantMessage:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": tool, "type": "function", "function": function}])


def _room(rng: random.Random) -> str:
    return rng.choice(LETTERS) + rng.choice(DIGITS)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Looks up, then answers."""
    if state["trajectory"]:
        return _call("answer", value=messages[-1].content)
    return _call("look_up", name=state["info"]["of"])


def novice(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Looks up the room of the one who asks (55 %) or the right one (35 %), or guesses."""
    if state["trajectory"]:
        return _call("answer", value=messages[-1].content)
    plan = rng.random()
    if plan < 0.1:
        return _call("answer", value=_room(rng))
    return _call("look_up", name=state["info"]["of" if plan < 0.45 else "by"])


class LookupEnv(vf.StatefulToolEnv):
    """Two tools, which know the rollout's state; the second ends it."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(look_up, args_to_skip=["state"])
        self.add_tool(answer, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["looked_up"] = []
        functions = [tool["function"] for tool in state["tools"]]  # names alone: a tiny model reads fewer tokens
        state["tools"] = [{"type": "function", "function": {"name": function["name"]}} for function in functions]

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    @vf.stop
    def has_answered(self, state: vf.State) -> bool:
        """`answer` was called."""
        return "answered" in state


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        by, of = rng.sample(NAMES, 2)
        rooms = {name: _room(rng) for name in NAMES}
        info = {"by": by, "of": of, "rooms": rooms}
        rows.append({"question": f"{by} asks: where is {of}?", "answer": rooms[of], "info": info})
    return rows


def load_environment(num_examples: int = 1000, seed: int = 0, max_turns: int = 4) -> vf.Environment:
    """Questions whose answers are in a table that only a tool can see.

    Args:
        num_examples: questions in the dataset; each has a table of its own.
        seed: of the dataset; the evaluation questions are drawn apart from the training questions.
        max_turns: most model turns.
    """
    rubric = vf.Rubric([correct])
    rubric.add_metric(looked_up)
    rubric.add_metric(answered)
    return LookupEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        players={"solver": solver, "novice": novice},
        max_turns=max_turns,
    )
