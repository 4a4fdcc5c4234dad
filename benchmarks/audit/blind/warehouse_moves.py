"""Warehouse moves: carry out a transport order with the tools of a warehouse system."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You manage the stock of three depots: north, south and harbor. Carry out the order with the tools, exactly as it is "
    "written, and reply with one sentence when you are done. You can look at a depot with `stock`."
)
DEPOTS = ["north", "south", "harbor"]
ITEMS = ["bolts", "cables", "drills", "filters", "gloves", "hinges", "pumps", "valves"]


def opening_stock(seed: str) -> dict[str, dict[str, int]]:
    """Return what the depots contain in the morning."""
    rng = random.Random(seed)
    return {depot: {item: rng.randint(20, 99) for item in ITEMS} for depot in DEPOTS}


def make_order(seed: str) -> dict[str, Any]:
    """Return a row: an order of one or two transports, and the amounts after it."""
    rng = random.Random(f"{seed}:order")
    amounts = {
        f"{depot}/{item}": count for depot, stock in opening_stock(seed).items() for item, count in stock.items()
    }
    steps, texts = [], []
    for item in rng.sample(ITEMS, rng.randint(1, 2)):
        source, target = rng.sample(DEPOTS, 2)
        here = amounts[f"{source}/{item}"]
        if rng.random() < 0.5:
            count = rng.randint(3, 15)
            texts.append(f"Move {count} {item} from {source} to {target}.")
        else:
            count = rng.randint(3, 15)
            left = here - count
            texts.append(f"Move {item} from {source} to {target} so that exactly {left} {item} are left in {source}.")
        amounts[f"{source}/{item}"] -= count
        amounts[f"{target}/{item}"] += count
        steps.append({"item": item, "source": source, "target": target, "count": count})
    number = seed.split(":", 1)[1].replace(":", " ")
    return {
        "question": f"Order {number}: {' '.join(texts)}",
        "info": {"seed": seed, "steps": steps, "amounts": amounts},
    }


class WarehouseEnv(vf.StatefulToolEnv):
    """An environment with two tools for a warehouse system."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self._mornings: dict[str, dict[str, dict[str, int]]] = {}
        self.add_tool(self.stock, args_to_skip=["depots"])
        self.add_tool(self.move, args_to_skip=["depots"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        seed = state["info"]["seed"]
        if seed not in self._mornings:
            self._mornings[seed] = opening_stock(seed)
        state["depots"] = dict(self._mornings[seed])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "depots": state["depots"]}

    def stock(self, depot: str, depots: dict[str, dict[str, int]]) -> dict[str, int]:
        """List the items in a depot.

        Args:
            depot: north, south or harbor
        """
        if depot not in depots:
            raise ValueError(f"unknown depot {depot}")
        return dict(depots[depot])

    def move(self, item: str, source: str, target: str, count: int, depots: dict[str, dict[str, int]]) -> str:
        """Transport items from one depot to another.

        Args:
            item: what to transport
            source: depot that gives the items
            target: depot that receives the items
            count: number of pieces, at least 1
        """
        if source not in depots or target not in depots or source == target:
            raise ValueError("source and target must be two different depots")
        if item not in ITEMS:
            raise ValueError(f"unknown item {item}")
        if not 1 <= count <= depots[source][item]:
            raise ValueError(f"{source} has {depots[source][item]} {item}")
        depots[source][item] -= count
        depots[target][item] += count
        return f"{source} has {depots[source][item]} {item}, {target} has {depots[target][item]}"


def carried_out(state: vf.State) -> float:
    """1 if every depot contains what it should contain after the order."""
    amounts = {f"{depot}/{item}": count for depot, stock in state["depots"].items() for item, count in stock.items()}
    return float(amounts == state["info"]["amounts"])


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Carries out the order step by step."""
    steps, turn = state["info"]["steps"], len(state["trajectory"])
    return vf.tool_call("move", **steps[turn]) if turn < len(steps) else "The order is done."


def sloppy(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Carries out the first step only, and swaps the depots half of the time."""
    if state["trajectory"]:
        return "Done."
    step = dict(state["info"]["steps"][0])
    if rng.random() < 0.5:
        step["source"], step["target"] = step["target"], step["source"]
    return vf.tool_call("move", **step)


def load_environment(
    num_examples: int = 200, num_eval_examples: int = 80, seed: int = 0, max_turns: int = 8
) -> vf.Environment:
    """Return an environment with transport orders.

    Args:
        num_examples: Orders for training.
        num_eval_examples: Orders for evaluation.
        seed: Random seed of stock and orders.
        max_turns: Maximum model turns.
    """
    env = WarehouseEnv(
        dataset=lambda: [make_order(f"{seed}:train:{index}") for index in range(num_examples)],
        eval_dataset=lambda: [make_order(f"{seed}:eval:{index}") for index in range(num_eval_examples)],
        system_prompt=SYSTEM_PROMPT,
        policies={"clerk": clerk, "sloppy": sloppy},
        max_turns=max_turns,
    )
    env.rubric.add_reward_func(carried_out)
    return env
