"""Herbarium loans: the model is the registrar of a herbarium and handles requests for pressed plants."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You are the registrar of a herbarium. Handle the request with the tools, then tell the visitor what you have done.\n"
    "Rules: A type specimen never leaves the house. A sheet that is out on loan cannot be lent again. A borrower with "
    "overdue sheets gets nothing. No loan is longer than 90 days. If a rule forbids the loan, record nothing."
)
GENERA = "Carex Salix Rubus Festuca Hieracium Potentilla Saxifraga Euphrasia Alchemilla Draba".split()
EPITHETS = "alpina montana palustris repens hirsuta glauca minor sylvatica arenaria pallida".split()
TRAINED_NAMES = "Amsel Brandl Corti Dvorak Eklund Farkas Gruber Holub Ivers Jansky Kovar Lindt".split()
HELD_OUT_NAMES = "Moravec Nadler Ostrow Pichler Quist Riedl Sommer Tichy".split()
MAX_DAYS = 90


def look_up_sheet(sheet: str, state: vf.State) -> dict[str, Any]:
    """Return the catalogue entry of a sheet.

    Args:
        sheet: number of the sheet, such as "H-2041"
    """
    if sheet not in state["info"]["sheets"]:
        raise ValueError("there is no such sheet")
    return state["info"]["sheets"][sheet]


def look_up_borrower(name: str, state: vf.State) -> dict[str, Any]:
    """Return the card of a borrower.

    Args:
        name: family name
    """
    if name not in state["info"]["borrowers"]:
        raise ValueError("there is no such borrower")
    return state["info"]["borrowers"][name]


def record_loan(sheet: str, name: str, days: int, state: vf.State) -> str:
    """Enter a loan in the register.

    Args:
        sheet: number of the sheet
        name: family name of the borrower
        days: length of the loan
    """
    state["register"].append([sheet, name, days])
    return "The loan has been entered."


def register_right(state: vf.State) -> float:
    """Return 1 if the register is as it should be at the end."""
    return float(state["register"] == state["info"]["expected"])


def entries(state: vf.State) -> float:
    return float(len(state["register"]))


def registrar(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look up the sheet and the borrower, then follow the rules."""
    request, turn = state["info"]["request"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("look_up_sheet", sheet=request[0])
    if turn == 1:
        return vf.tool_call("look_up_borrower", name=request[1])
    if turn == 2:
        sheet, borrower = (json.loads(message.content) for message in messages if message.role == "tool")
        if sheet["type"] or sheet["on_loan"] or borrower["overdue"] or request[2] > MAX_DAYS:
            return "I am sorry, this loan is not possible."
        return vf.tool_call("record_loan", sheet=request[0], name=request[1], days=request[2])
    return "The loan is in the register."


def obliging(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Record every loan without looking anything up."""
    if state["trajectory"]:
        return "With pleasure."
    sheet, name, days = state["info"]["request"]
    return vf.tool_call("record_loan", sheet=sheet, name=name, days=days)


class HerbariumEnv(vf.StatefulToolEnv):
    """An environment with a catalogue, a card index and a register."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (look_up_sheet, look_up_borrower, record_loan):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["register"] = []

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _rows(count: int, seed: str, names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        sheets = {}
        for number in rng.sample(range(1000, 9999), 4):
            plant = f"{rng.choice(GENERA)} {rng.choice(EPITHETS)}"
            sheets[f"H-{number}"] = {"plant": plant, "type": rng.random() < 0.25, "on_loan": rng.random() < 0.25}
        borrowers = {name: {"overdue": rng.choice((0, 0, 0, rng.randrange(1, 5)))} for name in rng.sample(names, 4)}
        sheet, name, days = (
            rng.choice(list(sheets)),
            rng.choice(list(borrowers)),
            rng.choice((14, 21, 30, 45, 60, 90, 100, 120)),
        )
        entry = sheets[sheet]
        allowed = not entry["type"] and not entry["on_loan"] and borrowers[name]["overdue"] == 0 and days <= MAX_DAYS
        expected = [[sheet, name, days]] if allowed else []
        info = {"sheets": sheets, "borrowers": borrowers, "request": [sheet, name, days], "expected": expected}
        question = f"{name} would like to borrow sheet {sheet} for {days} days."
        rows.append({"question": question, "answer": "", "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with requests for loans.

    Args:
        num_examples: Number of requests in each dataset; training and evaluation have different borrowers.
        seed: Random seed of the requests.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([register_right])
    rubric.add_metric(entries)
    return HerbariumEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", TRAINED_NAMES),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", HELD_OUT_NAMES),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"registrar": registrar, "obliging": obliging},
        max_turns=max_turns,
    )
