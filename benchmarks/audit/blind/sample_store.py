"""Sample store: move tubes between the racks of a freezer until every tube is where the request wants it."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You look after the tubes in a freezer. Use list_rack(rack) to see the tubes of a rack and move(tube, rack) to move "
    "one. A rack holds at most six tubes. Reply without a call when the request is done."
)
RACKS = ("A", "B", "C", "D")
CAPACITY = 6
KINDS = ("plasma", "serum", "saliva", "tissue", "urine")


def build_store(seed: str) -> dict[str, list[str]]:
    """Return the tubes of each rack."""
    rng = random.Random(seed)
    tubes = [f"{rng.choice(KINDS)}-{number}" for number in rng.sample(range(100, 1000), rng.randint(8, 12))]
    racks: dict[str, list[str]] = {rack: [] for rack in RACKS}
    for tube in tubes:
        rack = rng.choice([rack for rack in RACKS if len(racks[rack]) < 4])
        racks[rack].append(tube)
    return racks


@functools.lru_cache(maxsize=4096)
def store_of(seed: str) -> dict[str, list[str]]:
    """Return the store of a request."""
    return build_store(seed)


def list_rack(rack: str, store: dict[str, list[str]]) -> str:
    """List the tubes of a rack.

    Args:
        rack: A, B, C, or D
    """
    if rack not in store:
        raise ValueError(f"there is no rack {rack!r}; the racks are {', '.join(store)}")
    return ", ".join(store[rack]) or "empty"


def move(tube: str, rack: str, store: dict[str, list[str]]) -> str:
    """Move a tube into a rack.

    Args:
        tube: label of the tube, for example serum-120
        rack: A, B, C, or D
    """
    if rack not in store:
        raise ValueError(f"there is no rack {rack!r}; the racks are {', '.join(store)}")
    source = next((name for name, tubes in store.items() if tube in tubes), None)
    if source is None:
        raise ValueError(f"there is no tube {tube!r}")
    if source != rack and len(store[rack]) >= CAPACITY:
        raise ValueError(f"rack {rack} is full")
    store[source].remove(tube)
    store[rack].append(tube)
    return f"{tube}: {source} -> {rack}"


def _layout(store: dict[str, list[str]]) -> dict[str, str]:
    return {tube: rack for rack, tubes in store.items() for tube in tubes}


def in_place(state: vf.State) -> float:
    """Return 1 if every tube is where it should be; tubes that are not part of the request must stay where they were."""
    return float(_layout(state["store"]) == state["info"]["goal"])


def curator(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Move each tube of the request, then stop."""
    question = state["prompt"][-1]["content"]
    moves = re.findall(r"(\w+-\d+) into rack (\w)", question)
    turn = len(state["trajectory"])
    if turn < len(moves):
        tube, rack = moves[turn]
        return vf.tool_call("move", tube=tube, rack=rack)
    return "Done."


def forgetful(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Stop half of the time before the last tube has been moved."""
    turn = len(state["trajectory"])
    if turn and rng.random() < 0.5:
        return "Done."
    return curator(messages, state, rng)


class SampleStoreEnv(vf.StatefulToolEnv):
    """An environment whose tools change the store of the rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(list_rack, args_to_skip=["store"])
        self.add_tool(move, args_to_skip=["store"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["store"] = store_of(state["info"]["seed"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "store": state["store"]}


def _row(seed: str) -> dict[str, Any]:
    rng = random.Random(f"request {seed}")
    goal = _layout(build_store(seed))
    requests = []
    for tube in rng.sample(sorted(goal), rng.randint(1, 2)):
        target = rng.choice([rack for rack in RACKS if rack != goal[tube]])
        requests.append(f"{tube} into rack {target}")
        goal[tube] = target
    return {"question": f"Please put {' and '.join(requests)}.", "info": {"seed": seed, "goal": goal}}


def load_environment(num_examples: int = 200, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment in which the model moves tubes.

    Args:
        num_examples: Number of requests for training, and for evaluation.
        seed: Random seed of the stores and requests.
        max_turns: Maximum model turns.
    """
    return SampleStoreEnv(
        dataset=lambda: [_row(f"{seed}:train:{index}") for index in range(num_examples)],
        eval_dataset=lambda: [_row(f"{seed}:eval:{index}") for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([in_place]),
        policies={"curator": curator, "forgetful": forgetful},
        max_turns=max_turns,
    )
