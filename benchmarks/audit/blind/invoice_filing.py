"""Invoice filing: add up the lines of an invoice, add the tax and file the total."""

import random

import rove as vf

SYSTEM_PROMPT = (
    "You file invoices. Read the lines and the tax rate of the invoice, work out the total with tax, rounded to cents, "
    "and file it. Then say that you are done."
)
GOODS = ["bolts", "cable", "gloves", "hinges", "nails", "paint", "pipes", "planks", "screws", "tiles", "washers"]


def get_lines(state):
    """Return the lines of the invoice: goods, quantity and price of one piece in cents."""
    return state["info"]["lines"]


def get_tax_rate(state):
    """Return the tax rate of the invoice in percent."""
    return state["info"]["tax"]


def file_total(total: float, state):
    """File the invoice with its total.

    Args:
        total: total with tax in euros, for example 118.25
    """
    due = state["info"]["total"]
    if not abs(total - due) <= 0.005:
        raise ValueError(f"invoice {state['info']['number']} not filed: total is {total:.2f}, should be {due:.2f}")
    state["filed"] = True
    return "Filed."


def filed(state):
    """1 if the invoice is filed with the right total."""
    return float(state["filed"])


class InvoiceEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (get_lines, get_tax_rate, file_total):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state, **kwargs):
        await super().setup_state(state, **kwargs)
        state["filed"] = False

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}

    @vf.stop
    def is_filed(self, state):
        return state["filed"]


def make_row(number, rng):
    lines = [
        {"goods": goods, "quantity": rng.randint(2, 40), "cents": rng.randint(15, 2400)}
        for goods in rng.sample(GOODS, rng.randint(3, 6))
    ]
    tax = rng.choice([5, 7, 10, 19, 20, 25])
    net = sum(line["quantity"] * line["cents"] for line in lines)
    total = (net * (100 + tax) + 50) // 100 / 100
    info = {"number": number, "lines": lines, "tax": tax, "total": total}
    return {"question": f"Please file invoice {number}.", "info": info}


def load_environment(num_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Invoices to file.

    Args:
        num_examples: Number of invoices in each dataset.
        seed: Random seed of the invoices.
    """
    rng = random.Random(f"invoices {seed}")
    numbers = rng.sample(range(100000, 1000000), 2 * num_examples)
    rows = [make_row(number, rng) for number in numbers]
    return InvoiceEnv(
        dataset=rows[:num_examples],
        eval_dataset=rows[num_examples:],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([filed]),
        max_turns=8,
    )
