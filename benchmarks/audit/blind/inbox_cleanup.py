"""Inbox cleanup: archive the messages that a rule names and leave the others in the inbox."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You look after a mailbox. Archive exactly the messages that the request describes; all others stay in the inbox. "
    "Use list_messages to see the inbox and archive to move messages. Then reply without a tool call."
)
KINDS = {
    "newsletter": ["Weekly design digest", "Your city this month", "Ten gardening tips", "Product news"],
    "invoice": ["Invoice for hosting", "Invoice 4471", "Electricity bill", "Receipt and invoice"],
    "meeting": ["Meeting moved", "Agenda for the board", "Minutes of the call", "Invitation: planning"],
    "personal": ["Photos of the trip", "Dinner at ours?", "Thank you!", "New phone number"],
}
SENDERS = ["anna@lake.example", "shop@mill.example", "team@harbor.example", "office@stone.example"]
OWNERS = ["alvarez", "bauer", "chen", "dufour", "evans", "fischer"]
MONTHS = ["January", "February", "March", "April", "May", "June"]


def make_row(rng: random.Random) -> dict[str, Any]:
    inbox = []
    for number in range(1, 13):
        kind = rng.choice(list(KINDS))
        inbox.append(
            {
                "id": number,
                "kind": kind,
                "subject": rng.choice(KINDS[kind]),
                "sender": rng.choice(SENDERS),
                "month": rng.randrange(len(MONTHS)),
            }
        )
    kind, month = rng.choice(list(KINDS)), rng.randrange(2, 5)
    targets = [mail["id"] for mail in inbox if mail["kind"] == kind and mail["month"] < month]
    owner = f"{rng.choice(OWNERS)}.{rng.randint(100, 9999)}"
    question = f"Mailbox of {owner}: please archive every {kind} message that arrived before {MONTHS[month]}."
    return {"question": question, "info": {"inbox": inbox, "targets": targets}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    index = 0
    while len(made) < count:
        row = make_row(random.Random(f"{seed}/{index}"))
        index += 1
        if 2 <= len(row["info"]["targets"]) <= 5:
            made.append(row)
    return made


def list_messages(state: vf.State) -> str:
    """List the messages of the inbox: number, month, kind, sender, and subject."""
    return "\n".join(
        f"{mail['id']} | {MONTHS[mail['month']]} | {mail['kind']} | {mail['sender']} | {mail['subject']}"
        for mail in state["info"]["inbox"]
        if mail["id"] not in state["archived"]
    )


def archive(ids: list[int], state: vf.State) -> str:
    """Move messages from the inbox to the archive.

    Args:
        ids: Numbers of the messages.
    """
    known = {mail["id"] for mail in state["info"]["inbox"]}
    unknown = [number for number in ids if number not in known]
    if unknown:
        raise ValueError(f"no such message: {unknown[0]}")
    state["archived"].update(ids)
    return f"{len(set(ids))} archived, {len(known - state['archived'])} left in the inbox"


def request_done(state: vf.State, info: dict[str, Any]) -> float:
    """Return 1 if the request was carried out."""
    return float(all(number in state["archived"] for number in info["targets"]))


def num_archived(state: vf.State) -> float:
    """Return how many messages were archived."""
    return float(len(state["archived"]))


class InboxEnv(vf.StatefulToolEnv):
    """An environment with a mailbox of its own for each rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(parallel_calls=False, max_threads=0, **kwargs)
        self.add_tool(list_messages, args_to_skip=["state"])
        self.add_tool(archive, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["archived"] = set()

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def load_environment(num_examples: int = 300, num_eval_examples: int = 120, seed: int = 0) -> vf.Environment:
    """Return an environment with mailboxes and requests.

    Args:
        num_examples: Number of training requests.
        num_eval_examples: Number of evaluation requests.
        seed: Random seed of the mailboxes.
    """
    rubric = vf.Rubric([request_done])
    rubric.add_metric(num_archived)
    return InboxEnv(
        dataset=lambda: rows(num_examples, f"{seed}/train"),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}/eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        max_turns=6,
    )
