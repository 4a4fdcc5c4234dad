"""Warehouse: move goods between halls, or decline a request that cannot be fulfilled."""

from __future__ import annotations

import copy
import random
from typing import Any, Literal

import rove as vf

SYSTEM_PROMPT = (
    "You run a warehouse with the tools. Fulfil the request exactly and change nothing else. If the hall does not have "
    "enough pieces, or does not stock the item at all, move nothing and call decline with the reason. "
    "Finish with a short message to the customer."
)
HALLS = ["A", "B", "C", "D"]
ITEMS = ["ladders", "buckets", "ropes", "helmets", "drills", "lamps", "gloves", "crates", "pumps", "hoses"]
REASONS = ["not enough pieces", "not in stock"]


def settled(state: vf.State) -> float:
    """Return 1 if the stock is as requested and the request was declined exactly if it had to be."""
    info = state["info"]
    return float(state["stock"] == info["expected"] and state["declined"] == info["reason"])


def foreman(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Check the stock, then move or decline."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("list_stock", hall=info["source"])
    if turn == 1 and info["reason"]:
        return vf.tool_call("decline", reason=info["reason"])
    if turn == 1:
        return vf.tool_call(
            "move", item=info["item"], source=info["source"], target=info["target"], pieces=info["pieces"]
        )
    return "Your request has been handled."


def eager(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Move as many pieces as there are and never decline."""
    info = state["info"]
    if state["trajectory"]:
        return "Moved."
    there = state["stock"][info["source"]].get(info["item"], 0)
    pieces = max(1, min(info["pieces"], there))
    return vf.tool_call("move", item=info["item"], source=info["source"], target=info["target"], pieces=pieces)


class WarehouseEnv(vf.StatefulToolEnv):
    """An environment with the stock of four halls."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (self.list_stock, self.move, self.decline):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["stock"] = copy.deepcopy(state["info"]["stock"])
        state["declined"] = None

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    def list_stock(self, hall: Literal["A", "B", "C", "D"], state: vf.State) -> dict[str, int]:
        """Return the pieces of each item in a hall."""
        return dict(state["stock"][hall])

    def move(
        self,
        item: str,
        source: Literal["A", "B", "C", "D"],
        target: Literal["A", "B", "C", "D"],
        pieces: int,
        state: vf.State,
    ) -> str:
        """Move pieces of an item from one hall to another."""
        there = state["stock"][source].get(item, 0)
        if pieces < 1:
            raise ValueError("pieces must be 1 or more")
        if pieces > there:
            raise ValueError(f"hall {source} has {there} {item}")
        state["stock"][source][item] -= pieces
        state["stock"][target][item] = state["stock"][target].get(item, 0) + pieces
        return f"Moved {pieces} {item} from {source} to {target}."

    def decline(self, reason: Literal["not enough pieces", "not in stock"], state: vf.State) -> str:
        """Decline the request."""
        state["declined"] = reason
        return "The request is declined."


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        stock = {hall: {item: rng.randint(3, 60) for item in rng.sample(ITEMS, 6)} for hall in HALLS}
        source, target = rng.sample(HALLS, 2)
        roll = rng.random()
        if roll < 0.15:
            item = rng.choice([item for item in ITEMS if item not in stock[source]])
            pieces, reason = rng.randint(1, 30), REASONS[1]
        else:
            item = rng.choice(sorted(stock[source]))
            there = stock[source][item]
            short = roll < 0.3
            pieces, reason = (there + rng.randint(1, 15), REASONS[0]) if short else (rng.randint(1, there), None)
        expected = copy.deepcopy(stock)
        if reason is None:
            expected[source][item] -= pieces
            expected[target][item] = expected[target].get(item, 0) + pieces
        question = (
            f"Order {rng.randint(10_000, 99_999)}: please move {pieces} {item} from hall {source} to hall {target}."
        )
        info = {"stock": stock, "expected": expected, "reason": reason}
        info.update(item=item, source=source, target=target, pieces=pieces)
        rows.append({"question": question, "answer": "", "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with requests to a warehouse.

    Args:
        num_examples: Number of requests in each dataset; each has its own stock.
        seed: Random seed of the datasets.
        max_turns: Maximum model turns.
    """
    return WarehouseEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([settled]),
        policies={"foreman": foreman, "eager": eager},
        max_turns=max_turns,
    )
