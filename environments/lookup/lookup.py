"""Lookup: the answer to each question is only available through a tool."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Find the room of this person. First call lookup(who=NAME), then answer(room=ROOM)."
NAMES = "Ada Ben Cleo Emil Gus Kim Nora Otto".split()  # noqa: SIM905
ROOMS = "attic barn cellar garden hall kitchen loft study".split()  # noqa: SIM905
GUESS_PROB, SECOND_LOOKUP_PROB = 0.5, 0.85
"""Probability that the policy `novice` guesses, and probability that it otherwise looks up a second name."""


def lookup(who: str, state: vf.State) -> str:
    """Return the room in which a person is."""
    rooms = state["info"]["rooms"]
    if who not in rooms:
        raise ValueError("there is no person of that name")
    if "answered" not in state:  # calls after `answer` in the same turn do not count
        state["looked_up"].append(who)
    return rooms[who]


def answer(room: str, state: vf.State) -> str:
    """Submit the room as the final answer."""
    state.setdefault("answered", room)
    return "Answer submitted."


def correct(state: vf.State, answer: str) -> float:
    """Return 1 if the answer is the right room and the model looked it up before answering."""
    return looked_up(state) * float(state.get("answered") == answer)


def looked_up(state: vf.State) -> float:
    """Return 1 if the right name was looked up."""
    return float(state["info"]["who"] in state["looked_up"])


def answered(state: vf.State) -> float:
    """Return 1 if the model called `answer`."""
    return float("answered" in state)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Look up the name, then answer."""
    if state["trajectory"]:
        return vf.tool_call("answer", room=messages[-1].content)
    return vf.tool_call("lookup", who=state["info"]["who"])


def novice(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Guess in half of the rollouts; in most others, look up a second name and answer with that person's room."""
    turn = len(state["trajectory"])
    if turn == 0 and rng.random() < GUESS_PROB:
        return vf.tool_call("answer", room=ROOMS[0])
    if turn == 1 and rng.random() < SECOND_LOOKUP_PROB:
        return vf.tool_call("lookup", who=rng.choice([name for name in NAMES if name != state["info"]["who"]]))
    return solver(messages, state, rng)


class LookupEnv(vf.StatefulToolEnv):
    """An environment with two tools that use the rollout's state; the second ends the rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(lookup, args_to_skip=["state"])
        self.add_tool(answer, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["looked_up"] = []
        functions = [tool["function"] for tool in state["tools"]]  # only the names, which saves tokens for a tiny model
        state["tools"] = [{"type": "function", "function": {"name": function["name"]}} for function in functions]

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    @vf.stop
    def has_answered(self, state: vf.State) -> bool:
        """Stop after a call of `answer`."""
        return "answered" in state


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        person = rng.choice(NAMES)
        rooms = {name: rng.choice(ROOMS) for name in NAMES}
        rows.append({"question": person, "answer": rooms[person], "info": {"who": person, "rooms": rooms}})
    return rows


def load_environment(num_examples: int = 1000, seed: int = 0, max_turns: int = 4) -> vf.Environment:
    """Return an environment whose answers are in a table that only a tool can read.

    Args:
        num_examples: Number of questions; each has its own table.
        seed: Random seed of the dataset; evaluation questions differ from training questions.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([correct])
    rubric.add_metric(looked_up)
    rubric.add_metric(answered)
    return LookupEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"solver": solver, "novice": novice},
        max_turns=max_turns,
    )
