"""Sheet repair: find the wrong totals in a spreadsheet, and correct them."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You look after a spreadsheet. Column A holds articles, column B quantities, column C prices in cents, and column D "
    "the product of B and C. Columns A to C are right; some totals in column D are wrong. Correct these cells and leave "
    "all others as they are. You earn a part of the points for each corrected cell and lose as much for each cell that "
    "was right and is wrong afterwards. When you are done, reply without a call."
)
ARTICLES = """
    flour sugar butter eggs milk yeast salt
    honey raisins almonds cocoa oats rice lentils vinegar
""".split()  # noqa: SIM905


def cell_name(cell: str) -> str:
    """Return the name of a cell in capital letters.

    Raises:
        ValueError: it is not the name of a cell.
    """
    name = cell.strip().upper()
    if not re.fullmatch(r"[A-D][1-9][0-9]?", name):
        raise ValueError(f"'{cell}' is not a cell; cells have names such as D3")
    return name


def read_sheet(state: vf.State) -> str:
    """Return the whole sheet, one row per line."""
    sheet = state["sheet"]
    numbers = sorted({int(name[1:]) for name in sheet})
    lines = [f"{number}: " + " | ".join(str(sheet[f"{column}{number}"]) for column in "ABCD") for number in numbers]
    return "\n".join(["row: A | B | C | D", *lines])


def set_cell(cell: str, value: int, state: vf.State) -> str:
    """Write a number into a cell of the sheet.

    Args:
        cell: name of the cell, such as "D3"
        value: the number
    """
    name = cell_name(cell)
    if name not in state["sheet"]:
        raise ValueError(f"the sheet has no cell {name}")
    state["sheet"][name] = value
    return f"{name} is now {value}."


def repaired(state: vf.State, info: dict[str, Any]) -> float:
    """Return the share of the wrong cells that are right now, less the share that was damaged; at least 0."""
    before, right, now = info["sheet"], info["right"], state["sheet"]
    broken = [name for name in right if before[name] != right[name]]
    fixed = sum(now[name] == right[name] for name in broken)
    damaged = sum(now[name] != right[name] for name in right if name not in broken)
    return max(0.0, (fixed - damaged) / len(broken))


def all_right(state: vf.State, info: dict[str, Any]) -> float:
    """Return 1 if the whole sheet is right."""
    return float(state["sheet"] == info["right"])


class SheetEnv(vf.StatefulToolEnv):
    """An environment with a spreadsheet for each rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(read_sheet, args_to_skip=["state"])
        self.add_tool(set_cell, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["sheet"] = dict(state["info"]["sheet"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def make_row(rng: random.Random) -> dict[str, Any]:
    """Return a sheet with two to four wrong totals."""
    names = rng.sample(ARTICLES, rng.randint(6, 10))
    right: dict[str, Any] = {}
    for number, name in enumerate(names, start=1):
        quantity, price = rng.randint(2, 30), rng.randint(15, 900)
        right |= {f"A{number}": name, f"B{number}": quantity, f"C{number}": price, f"D{number}": quantity * price}
    sheet = dict(right)
    for number in rng.sample(range(1, len(names) + 1), rng.randint(2, 4)):
        sheet[f"D{number}"] += rng.choice((-1, 1)) * rng.choice((10, 100, right[f"C{number}"]))
    question = f"Please repair the sheet of our bakery. It has {len(names)} rows."
    return {"question": question, "info": {"sheet": sheet, "right": right}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with spreadsheets that need a repair.

    Args:
        num_examples: Number of sheets for training, and for evaluation.
        seed: Random seed of the sheets.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([repaired])
    rubric.add_metric(all_right)
    return SheetEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        max_turns=max_turns,
    )
