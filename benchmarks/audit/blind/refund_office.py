"""Refund office: work out what a customer of a web shop gets back, and pay it."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You process returns for a web shop. Look up the order and the return policy of its category, work out the refund in cents "
    "and pay it with pay_refund. The refund is the price of the returned pieces, minus the restocking fee (a percentage of that "
    "price, rounded down to whole cents), minus the fixed return shipping cost if the customer pays it. Then confirm the amount."
)
CATEGORIES = ["shoes", "lamps", "toys", "tools", "books", "luggage"]
REASONS = {"damaged": "It arrived damaged.", "size": "It does not fit.", "mind": "I changed my mind."}


def refund_due(info: dict[str, Any]) -> int:
    """Return the refund in cents."""
    order, policy = info["order"], info["policies"][info["order"]["category"]]
    value = order["price_cents"] * info["returned"]
    if info["reason"] == "damaged":
        return value
    days = order["days_since_delivery"]
    percent = policy["restocking_fee_percent"] if days <= policy["free_days"] else policy["late_fee_percent"]
    shipping = policy["return_shipping_cents"] if info["reason"] == "mind" else 0
    return max(0, value - value * percent // 100 - shipping)


class RefundEnv(vf.StatefulToolEnv):
    """An environment with an order, return policies, and a till."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (self.get_order, self.get_policy, self.pay_refund):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["paid"] = None

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    def get_order(self, number: str, state: vf.State) -> dict[str, Any]:
        """Show an order.

        Args:
            number: The order's number, such as R-10423.
        """
        order = state["info"]["order"]
        if number != order["number"]:
            raise ValueError(f"there is no order {number}")
        return order

    def get_policy(self, category: str, state: vf.State) -> dict[str, Any]:
        """Show the return policy of a category.

        Damaged goods are refunded in full. The restocking fee applies within the free days, the late fee after them.
        Customers pay the return shipping only if they changed their mind.
        """
        policies = state["info"]["policies"]
        if category not in policies:
            raise ValueError(f"there is no category {category}; known: {', '.join(policies)}")
        return policies[category]

    def pay_refund(self, number: str, cents: int, state: vf.State) -> str:
        """Pay a refund.

        Args:
            number: The order's number.
            cents: The amount in cents.
        """
        if number != state["info"]["order"]["number"]:
            raise ValueError(f"there is no order {number}")
        if state["paid"] is not None:
            raise ValueError("the refund has been paid already")
        due = refund_due(state["info"])
        if cents != due:
            raise ValueError(f"ledger check failed: {cents} booked, {due} due")
        state["paid"] = cents
        return "paid"


def paid_right(state: vf.State) -> float:
    """Return 1 if the right refund was paid."""
    return float(state["paid"] == refund_due(state["info"]))


def _rows(count: int, seed: str, numbers: range) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for number in rng.sample(numbers, count):
        policies = {
            category: {
                "free_days": rng.choice([7, 14, 21, 30]),
                "restocking_fee_percent": rng.choice([0, 5, 8, 10]),
                "late_fee_percent": rng.choice([15, 20, 35, 50]),
                "return_shipping_cents": rng.randint(290, 990),
            }
            for category in CATEGORIES
        }
        pieces = rng.randint(1, 5)
        order = {
            "number": f"R-{number}",
            "category": rng.choice(CATEGORIES),
            "pieces": pieces,
            "price_cents": rng.randint(1200, 19999),
            "days_since_delivery": rng.randint(1, 45),
        }
        returned, reason = rng.randint(1, pieces), rng.choice(list(REASONS))
        text = f"Hello, I am sending back {returned} of {pieces} pieces of order {order['number']}. {REASONS[reason]}"
        rows.append(
            {
                "question": text,
                "answer": "",
                "info": {"order": order, "policies": policies, "returned": returned, "reason": reason},
            }
        )
    return rows


def load_environment(num_examples: int = 250, seed: int = 0, max_turns: int = 10) -> vf.Environment:
    """Return an environment with returns to a web shop.

    Args:
        num_examples: Number of returns for training and for evaluation.
        seed: Random seed of the returns.
        max_turns: Maximum model turns.
    """
    return RefundEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", range(10000, 60000)),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", range(60000, 99999)),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([paid_right]),
        max_turns=max_turns,
    )
