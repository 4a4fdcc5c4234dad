"""Garden quote: work out what a garden center charges, with tools for prices and discounts."""

import random

import rove as vf

SYSTEM_PROMPT = (
    "Work out what the customer pays. list_price shows the price of a product in cents, discount shows how many percent a "
    "customer gets off. Products: bench, fern, gravel, hose, lantern, pot, rake, rose, soil, spade, trellis, tulip. Submit the "
    "amount in cents with submit; you can submit only once."
)
PRODUCTS = ["bench", "fern", "gravel", "hose", "lantern", "pot", "rake", "rose", "soil", "spade", "trellis", "tulip"]
CUSTOMERS = [
    "Amber Court",
    "Bluebell School",
    "Corner Cafe",
    "Dove House",
    "Elm Street 9",
    "Ferry Hotel",
    "Grange Farm",
    "Hill Clinic",
    "Ivy Cottage",
    "Juniper Hall",
]


class QuoteEnv(vf.StatefulToolEnv):
    """Every rollout has its own price list."""

    def __init__(self, **kwargs):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (self.list_price, self.discount, self.submit):
            self.add_tool(tool, args_to_skip=["state"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}

    def list_price(self, product: str, state: vf.State) -> int:
        """Show the price of one product in cents.

        Args:
            product: name of the product
        """
        prices = state["info"]["prices"]
        if product not in prices:
            raise ValueError(f"unknown product {product!r}; expected one of {', '.join(sorted(prices))}")
        return prices[product]

    def discount(self, customer: str, state: vf.State) -> int:
        """Show the discount of a customer in percent.

        Args:
            customer: name of the customer
        """
        if customer not in CUSTOMERS:
            raise ValueError(f"unknown customer {customer!r}; expected one of {', '.join(CUSTOMERS)}")
        return state["info"]["discounts"][customer]

    def submit(self, cents: int, state: vf.State) -> str:
        """Submit what the customer pays.

        Args:
            cents: the amount in cents
        """
        if "submitted" in state:
            raise ValueError("an amount was already submitted")
        if cents < 0:
            raise ValueError("the amount must not be negative")
        state["submitted"] = cents
        return "Submitted."

    @vf.stop
    def has_submitted(self, state) -> bool:
        """Stop after the submission."""
        return "submitted" in state


def correct(state):
    """1 for the right amount."""
    return float(state.get("submitted") == state["info"]["total"])


def submitted(state):
    """1 if any amount was submitted."""
    return float("submitted" in state)


def rows(count, seed):
    made = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        prices = {product: 20 * rng.randint(10, 400) for product in PRODUCTS}
        discounts = {customer: rng.choice([0, 5, 10, 15, 20]) for customer in CUSTOMERS}
        customer = rng.choice(CUSTOMERS)
        order = {product: rng.randint(1, 9) for product in rng.sample(PRODUCTS, rng.randint(1, 3))}
        total = sum(prices[product] * number for product, number in order.items()) * (100 - discounts[customer]) // 100
        text = ", ".join(f"{number} x {product}" for product, number in order.items())
        question = f"{customer} orders {text} (order {seed.split(':')[-1][0].upper()}{index + 1:04}). What does {customer} pay?"
        made.append({"question": question, "info": {"prices": prices, "discounts": discounts, "total": total}})
    return made


def load_environment(num_examples: int = 250, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Orders with one to three products.

    Args:
        num_examples: Number of orders for training, and for evaluation.
        seed: Random seed of the prices, discounts and orders.
        max_turns: Maximum replies.
    """
    rubric = vf.Rubric([correct])
    rubric.add_metric(submitted)
    return QuoteEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        max_turns=max_turns,
    )
