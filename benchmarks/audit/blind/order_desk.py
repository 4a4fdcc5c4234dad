"""Order desk: change the quantities in customers' orders with the tools of a shop."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You work at the order desk of a shop. Look at the order, make the change that the customer asks for, and confirm it "
    "in one sentence."
)
ITEMS = ["blue mug", "desk lamp", "door mat", "paper fan", "tea tin", "wall clock", "wool scarf"]


def get_order(order_id: str, state: vf.State) -> dict[str, Any]:
    """Return the items of an order and their quantities.

    Args:
        order_id: number of the order
    """
    if order_id not in state["orders"]:
        raise ValueError(f"there is no order {order_id}")
    return state["orders"][order_id]["items"]


def set_quantity(order_id: str, item: str, quantity: int, state: vf.State) -> str:
    """Set the quantity of an item in an order.

    Args:
        order_id: number of the order
        item: name of the item
        quantity: new quantity, 0 or more
    """
    if order_id not in state["orders"]:
        raise ValueError(f"there is no order {order_id}")
    items = state["orders"][order_id]["items"]
    if item not in items:
        raise ValueError(f"order {order_id} has no {item}")
    if quantity < 0:
        raise ValueError("the quantity must be 0 or more")
    items[item] = quantity
    return f"{item}: {quantity}"


def order_is_right(state: vf.State, info: dict[str, Any]) -> float:
    """Return 1 if the order has the quantities that the customer asked for."""
    return float(state["orders"][info["order_id"]]["items"] == info["expected"])


def assistant(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Look at the order, change the quantity, confirm."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("get_order", order_id=info["order_id"])
    if turn == 1:
        quantity = state["orders"][info["order_id"]]["items"][info["item"]] + info["change"]
        return vf.tool_call("set_quantity", order_id=info["order_id"], item=info["item"], quantity=max(0, quantity))
    return "I have changed your order."


def careless(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Set the quantity to the number in the message without a look at the order."""
    info = state["info"]
    if state["trajectory"]:
        return "Done."
    return vf.tool_call("set_quantity", order_id=info["order_id"], item=info["item"], quantity=abs(info["change"]))


class OrderDeskEnv(vf.StatefulToolEnv):
    """An environment with the orders of a shop."""

    def __init__(self, orders: dict[str, dict[str, Any]], **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.orders = orders
        self.add_tool(get_order, args_to_skip=["state"])
        self.add_tool(set_quantity, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        await super().setup_state(state, **kwargs)
        state["orders"] = dict(self.orders)

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def make_order(rng: random.Random) -> dict[str, Any]:
    return {"items": {item: rng.randint(4, 12) for item in rng.sample(ITEMS, rng.randint(2, 4))}}


def make_row(order_id: str, order: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    item = rng.choice(sorted(order["items"]))
    change = rng.choice([-3, -2, -1, 1, 2, 3, 4, 5])
    wish = f"add {change} more" if change > 0 else f"take {-change} out"
    question = f"This is about order {order_id}. Please {wish}: {item}."
    expected = {**order["items"], item: order["items"][item] + change}
    info = {"order_id": order_id, "item": item, "change": change, "expected": expected}
    return {"question": question, "info": info}


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment of orders to change.

    Args:
        num_examples: Number of customers in each dataset; every customer has an order of their own.
        seed: Random seed of the orders.
    """
    rng = random.Random(f"{seed}:orders")
    ids = [str(number) for number in rng.sample(range(10000, 100000), 2 * num_examples)]
    orders = {order_id: make_order(rng) for order_id in ids}
    rows = [make_row(order_id, order, rng) for order_id, order in orders.items()]
    return OrderDeskEnv(
        orders,
        dataset=rows[:num_examples],
        eval_dataset=rows[num_examples:],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([order_is_right]),
        policies={"assistant": assistant, "careless": careless},
        max_turns=6,
    )
