"""Utility helpdesk: serve the customers of a water company according to its rules."""

from __future__ import annotations

import copy
import random
from typing import Any, Literal

import rove as vf

SYSTEM_PROMPT = """You are the helpdesk of a water company. Rules:
- Look at the account before you do anything.
- A plan can be changed only if the account has no overdue bill. Tell the customer the monthly price of the new plan.
- If a customer reports a leak, open a ticket with the topic "leak" and tell the customer its number.
- Answer questions about the balance from the account.
- Refuse everything else, and say why."""
PRICES = {"basic": 14, "family": 23, "garden": 31, "business": 58}
NAMES = "Abel Bruna Casimir Delia Edda Ferran Gitta Hiro Ilse Janko Kamala Lennart Mirja Nuno Olga Pavel".split()  # noqa: SIM905


def get_account(state: vf.State) -> dict[str, Any]:
    """Return the customer's account."""
    return state["account"]


def change_plan(plan: Literal["basic", "family", "garden", "business"], state: vf.State) -> str:
    """Change the plan of the customer's account.

    Args:
        plan: the new plan
    """
    state["account"]["plan"] = plan
    return f"The plan is now {plan}, {PRICES[plan]} euros per month."


def open_ticket(topic: str, state: vf.State) -> str:
    """Open a ticket for the technicians.

    Args:
        topic: what it is about, in one word
    """
    state["account"]["tickets"].append(topic.lower())
    return f"Ticket {state['info']['next_ticket']} is open."


def resolved(state: vf.State, completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if the account is as it should be and the customer was told what they need to know."""
    last = completion[-1] if completion else None
    text = str(last.content or "") if last is not None and last.role == "assistant" else ""
    told = all(fact in text for fact in info["must_tell"])
    return float(state["account"] == info["expected_account"] and told)


def agent(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Follow the rules."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("get_account")
    if turn == 1 and info["kind"] == "change":
        return vf.tool_call("change_plan", plan=info["plan"])
    if turn == 1 and info["kind"] == "leak":
        return vf.tool_call("open_ticket", topic="leak")
    return {
        "change": f"Your new plan costs {PRICES[info['plan']]} euros per month.",
        "leak": f"The number of your ticket is {info['next_ticket']}.",
        "balance": f"Your balance is {state['account']['balance']} euros.",
        "overdue": "I cannot change your plan while a bill is overdue.",
    }[info["kind"]]


def eager(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Change the plan of every customer without a look at the account."""
    if state["trajectory"]:
        return messages[-1].content
    return vf.tool_call("change_plan", plan=state["info"]["plan"])


class HelpdeskEnv(vf.StatefulToolEnv):
    """An environment with one customer's account."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (get_account, change_plan, open_ticket):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        await super().setup_state(state, **kwargs)
        state["account"] = copy.deepcopy(state["info"]["account"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def make_row(rng: random.Random) -> dict[str, Any]:
    kind = rng.choices(["change", "leak", "balance", "overdue"], [25, 20, 25, 30])[0]
    name, number = rng.choice(NAMES), rng.randint(100000, 999999)
    plan, other = rng.sample(sorted(PRICES), 2)
    overdue = kind == "overdue" or (kind == "leak" and rng.random() < 0.3)
    account = {
        "name": name,
        "number": number,
        "plan": plan,
        "balance": -rng.randint(20, 300) if overdue else rng.randint(0, 90),
        "overdue": overdue,
        "tickets": [],
    }
    expected, must_tell, ticket = copy.deepcopy(account), [], str(rng.randint(3000, 9999))
    wish = {
        "change": f"please move me to the {other} plan.",
        "overdue": f"please move me to the {other} plan.",
        "leak": "there is water on the pavement in front of my house.",
        "balance": "what is my balance?",
    }[kind]
    if kind == "change":
        expected["plan"] = other
        must_tell = [str(PRICES[other])]
    elif kind == "leak":
        expected["tickets"] = ["leak"]
        must_tell = [ticket]
    info = {"kind": kind, "plan": other, "account": account, "next_ticket": ticket}
    info |= {"expected_account": expected, "must_tell": must_tell}
    return {"question": f"This is {name}, customer number {number}: {wish}", "info": info}


def load_environment(num_examples: int = 240, seed: int = 0) -> vf.Environment:
    """Return an environment of customers who write to the helpdesk.

    Args:
        num_examples: Number of customers in each dataset.
        seed: Random seed of the customers.
    """
    return HelpdeskEnv(
        dataset=lambda: [make_row(random.Random(f"{seed}:train:{index}")) for index in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"{seed}:eval:{index}")) for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([resolved]),
        policies={"agent": agent, "eager": eager},
        max_turns=6,
    )
