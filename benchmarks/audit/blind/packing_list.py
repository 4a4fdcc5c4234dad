"""Packing list: collect the gear of a hiking group from a depot."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Collect the gear for the group from its depot. find(item) tells the shelf of an item and how many are free; "
    "take(item, shelf, count) takes them. Take exactly what is on the list. Reply without a call when you are done."
)
TOWNS = ("Alm", "Brack", "Corrie", "Dale", "Esk", "Fell", "Glen", "Holm", "Isel", "Jarrow", "Keld", "Lorton")
ITEMS = ("tent", "rope", "stove", "lantern", "sleeping mat", "water bag", "first-aid kit", "ice axe")


def build_depots(seed: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Return town → item → shelf and number of free pieces."""
    depots = {}
    for town in TOWNS:
        rng = random.Random(f"{seed}:{town}")
        shelves = rng.sample([f"{letter}{number}" for letter in "ABCD" for number in range(1, 7)], len(ITEMS))
        depots[town] = {item: {"shelf": shelf, "free": rng.randint(8, 14)} for item, shelf in zip(ITEMS, shelves)}
    return depots


def find(item: str, state: vf.State) -> str:
    """Find an item in the depot.

    Args:
        item: name of the item
    """
    depot = state["depot"]
    if item not in depot:
        raise ValueError(f"the depot has no {item!r}")
    return json.dumps(depot[item])


def take(item: str, shelf: str, count: int, state: vf.State) -> str:
    """Take pieces of an item from its shelf.

    Args:
        item: name of the item
        shelf: shelf on which the item is
        count: how many pieces
    """
    entry = state["depot"].get(item)
    if entry is None or entry["shelf"] != shelf:
        raise ValueError(f"there is no {item!r} on shelf {shelf}")
    if not 1 <= count <= entry["free"]:
        raise ValueError(f"cannot take {count}, {entry['free']} are free")
    entry["free"] -= count
    state["taken"][item] = state["taken"].get(item, 0) + count
    return f"Took {count} x {item}."


def packed(state: vf.State) -> float:
    """Return 1 if exactly the gear on the list was taken."""
    return float(state["taken"] == state["info"]["needs"])


def quartermaster(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Find each item, then take it."""
    needs = list(state["info"]["needs"].items())
    turn = len(state["trajectory"])
    if turn == 2 * len(needs):
        return "All packed."
    item, count = needs[turn // 2]
    if turn % 2 == 0:
        return vf.tool_call("find", item=item)
    return vf.tool_call("take", item=item, shelf=json.loads(messages[-1].content)["shelf"], count=count)


def careless(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Pack only the first item of the list."""
    return quartermaster(messages, state, rng) if len(state["trajectory"]) < 2 else "That should do."


class PackingListEnv(vf.StatefulToolEnv):
    """An environment with one depot per town."""

    def __init__(self, depots: dict[str, dict[str, dict[str, Any]]], **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.depots = depots
        for tool in (find, take):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["depot"] = dict(self.depots[state["info"]["town"]])
        state["taken"] = {}

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        town = rng.choice(TOWNS)
        needs = {item: rng.randint(1, 4) for item in rng.sample(ITEMS, 3)}
        gear = ", ".join(f"{number} x {item}" for item, number in needs.items())
        days, people = rng.randint(2, 9), rng.randint(2, 12)
        question = f"{people} hikers, {days} days, depot {town}. List: {gear}."
        rows.append({"question": question, "info": {"town": town, "needs": needs}})
    return rows


def load_environment(num_examples: int = 200, seed: int = 0, max_turns: int = 10) -> vf.Environment:
    """Return an environment in which the model packs for hiking groups.

    Args:
        num_examples: Number of groups in each dataset.
        seed: Random seed of the depots and lists; evaluation lists are drawn separately.
        max_turns: Maximum model turns.
    """
    return PackingListEnv(
        build_depots(seed),
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([packed]),
        policies={"quartermaster": quartermaster, "careless": careless},
        max_turns=max_turns,
    )
