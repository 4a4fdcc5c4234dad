"""Ticket desk: an assistant finds a support ticket and changes its fields."""

from __future__ import annotations

import random
from typing import Any, Literal

import rove as vf

SYSTEM_PROMPT = (
    "You work at a support desk. Find the ticket with the tools, change exactly what the request says, "
    "and reply 'done' at the end."
)
PEOPLE = ["Anouk", "Bashir", "Chiara", "Dov", "Elin", "Femi"]
VALUES = {
    "status": ["open", "waiting", "solved", "closed"],
    "priority": ["low", "normal", "high", "urgent"],
    "assignee": PEOPLE,
}
THINGS = ["printer", "VPN", "laptop", "badge reader", "mailbox", "phone", "projector", "scanner", "calendar", "backup"]
TROUBLES = [
    "is very slow",
    "does not start",
    "shows an error",
    "asks for a password",
    "loses its settings",
    "is offline",
]
CUSTOMERS = ["Harbor Cafe", "Elm School", "City Museum", "Nordic Bank", "Lake Hotel", "Old Mill Bakery"]


def make_tickets(seed: int, count: int) -> dict[str, dict[str, str]]:
    """Return the tickets in the system, by id."""
    rng = random.Random(seed)
    subjects = [f"{thing} {trouble}" for thing in THINGS for trouble in TROUBLES]
    pairs = rng.sample([(subject, customer) for subject in subjects for customer in CUSTOMERS], count)
    tickets = {}
    for number, (subject, customer) in enumerate(pairs, start=1001):
        fields = {field: rng.choice(values) for field, values in VALUES.items()}
        tickets[f"T{number}"] = {"subject": subject, "customer": customer, **fields}
    return tickets


def done(state: vf.State) -> float:
    """Return 1 if the ticket has the requested values and no other ticket was changed."""
    info = state["info"]
    ticket = state["tickets"][info["ticket"]]
    right = all(ticket[field] == value for field, value in info["changes"].items())
    return float(right and state["updated"] <= {info["ticket"]})


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Search for the ticket, make all changes, and finish."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("search", customer=info["customer"])
    changes = list(info["changes"].items())
    if turn <= len(changes):
        field, value = changes[turn - 1]
        return vf.tool_call("update", ticket=info["ticket"], field=field, value=value)
    return "done"


def beginner(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Change a random ticket of the customer."""
    info, turn = state["info"], len(state["trajectory"])
    same = [key for key, ticket in state["tickets"].items() if ticket["customer"] == info["customer"]]
    if turn == 0:
        field, value = next(iter(info["changes"].items()))
        return vf.tool_call("update", ticket=rng.choice(same), field=field, value=value)
    return "done"


class TicketEnv(vf.StatefulToolEnv):
    """An environment with a small ticket system."""

    def __init__(self, tickets: dict[str, dict[str, str]], **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.tickets = tickets
        self.add_tool(self.search, args_to_skip=["state"])
        self.add_tool(self.update, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["tickets"] = dict(self.tickets)
        state["updated"] = set()

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    def search(self, customer: str, state: vf.State) -> list[str]:
        """List the tickets of a customer, with their ids."""
        return [f"{key}: {t['subject']}" for key, t in state["tickets"].items() if t["customer"] == customer]

    def update(self, ticket: str, field: Literal["status", "priority", "assignee"], value: str, state: vf.State) -> str:
        """Change one field of a ticket."""
        if ticket not in state["tickets"]:
            raise ValueError(f"there is no ticket {ticket}")
        if value not in VALUES[field]:
            raise ValueError(f"{field} must be one of {', '.join(VALUES[field])}")
        state["tickets"][ticket][field] = value
        state["updated"].add(ticket)
        return f"{ticket}: {field} is now {value}"


def _rows(tickets: dict[str, dict[str, str]], ids: list[str], per_ticket: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for key in ids:
        rng = random.Random(f"{seed}:{key}")
        ticket = tickets[key]
        for fields in rng.sample(
            [["status"], ["priority"], ["status", "assignee"], ["priority", "assignee"]], per_ticket
        ):
            changes = {field: rng.choice([v for v in VALUES[field] if v != ticket[field]]) for field in fields}
            wish = " and ".join(f"set the {field} to {value}" for field, value in changes.items())
            question = f'The ticket of {ticket["customer"]} about "{ticket["subject"]}": please {wish}.'
            info = {"ticket": key, "customer": ticket["customer"], "changes": changes}
            rows.append({"question": question, "answer": "", "info": info})
    random.Random(seed).shuffle(rows)
    return rows


def load_environment(num_tickets: int = 160, seed: int = 3, max_turns: int = 8) -> vf.Environment:
    """Return an environment with requests to a support desk.

    Args:
        num_tickets: Number of tickets in the system; a quarter of them is used for evaluation.
        seed: Random seed of the tickets and requests.
        max_turns: Maximum model turns.
    """
    tickets = make_tickets(seed, num_tickets)
    ids = sorted(tickets)
    held_out = ids[::4]
    return TicketEnv(
        tickets,
        dataset=_rows(tickets, [key for key in ids if key not in held_out], 2, f"{seed}:train"),
        eval_dataset=_rows(tickets, held_out, 2, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([done]),
        policies={"clerk": clerk, "beginner": beginner},
        max_turns=max_turns,
    )
