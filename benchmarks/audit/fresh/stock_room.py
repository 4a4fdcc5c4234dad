"""Stock room: move goods between shelves with tools."""

from __future__ import annotations

import json
import random
from typing import Any, Literal

import rove as vf

SYSTEM_PROMPT = "You work in a stock room. Do what you are told with the tools, then say that it is done."
SHELVES = ("north", "east", "south", "west")
ITEMS = (
    "anchors, axes, baskets, bells, boots, brooms, buckets, cables, candles, chains, chisels, clamps, files, gloves, "
    "hammers, helmets, hinges, hoses, ladders, lamps, locks, nails, paddles, pipes, planks, pumps, ropes, sacks, saws, "
    "screws, shovels, spades, tarps, tents, tongs, wires"
).split(", ")
Stock = dict[str, dict[str, int]]


def count(item: str, stock: Stock) -> dict[str, int]:
    """Say how many of an item there are on each shelf."""
    if item not in stock:
        raise ValueError(f"there are no {item} here")
    return stock[item]


def move(
    item: str,
    number: int,
    source: Literal["north", "east", "south", "west"],
    target: Literal["north", "east", "south", "west"],
    stock: Stock,
) -> str:
    """Move some of an item from one shelf, the source, to another, the target."""
    shelves = count(item, stock)
    if number < 1 or shelves[source] < number:
        raise ValueError(f"{number} cannot be moved, there are {shelves[source]} {item} on the shelf {source}")
    shelves[source] -= number
    shelves[target] += number
    return f"moved {number} {item}"


def correct(state: vf.State, info: dict[str, Any]) -> float:
    """Return 1 if both shelves hold what they should."""
    shelves = state["stock"][info["item"]]
    return float(all(shelves[shelf] == number for shelf, number in info["expected"].items()))


def worker(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Do what is asked."""
    if state["trajectory"]:
        return "It is done."
    arguments = json.dumps({name: state["info"][name] for name in ("item", "number", "source", "target")})
    call = {"id": "call_1", "type": "function", "function": {"name": "move", "arguments": arguments}}
    return vf.AssistantMessage(None, tool_calls=[call])


class StockEnv(vf.StatefulToolEnv):
    """Gives every rollout the stock that the room has in the morning."""

    def __init__(self, stock: Stock, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.stock = stock
        for tool in (count, move):
            self.add_tool(tool, args_to_skip=["stock"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["stock"] = self.stock.copy()

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "stock": state["stock"]}


def _rows(count: int, seed: str, numbers: list[int], stock: Stock) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    items = rng.sample(ITEMS, len(ITEMS))
    orders: list[tuple[str, str, str, int]] = []
    while len(orders) < min(count, 3000):
        item = items[len(orders) % len(items)]
        order = (item, *rng.sample(SHELVES, 2), rng.choice(numbers))
        if order not in orders:
            orders.append(order)
    rows = []
    for item, source, target, number in orders:
        expected = {source: stock[item][source] - number, target: stock[item][target] + number}
        info = {"item": item, "source": source, "target": target, "number": number, "expected": expected}
        question = f"Move {number} {item} from the shelf {source} to the shelf {target}."
        rows.append({"question": question, "info": info})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with a stock room; the orders for evaluation have other numbers than those for training.

    Args:
        num_examples: Number of orders in each dataset.
        seed: Random seed of the stock and the orders.
        max_turns: Maximum model turns.
    """
    rng = random.Random(f"{seed}:stock")
    stock = {item: {shelf: rng.randint(20, 60) for shelf in SHELVES} for item in ITEMS}
    return StockEnv(
        stock,
        dataset=_rows(num_examples, f"{seed}:train", list(range(1, 20, 2)), stock),
        eval_dataset=_rows(num_examples, f"{seed}:eval", list(range(2, 20, 2)), stock),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
        policies={"worker": worker},
        max_turns=max_turns,
    )
