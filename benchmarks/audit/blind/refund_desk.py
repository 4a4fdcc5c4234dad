"""Refund desk: a chat with a customer who wants money back."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You work at the help desk of a shop. The rules for refunds:\n"
    "- Within 30 days of the purchase, the price is refunded in full if the article is unopened.\n"
    "- Within 30 days, half of the price is refunded if the article is opened but works.\n"
    "- A faulty article is refunded in full within 180 days.\n"
    "- Gift cards, and anything else, are not refunded.\n"
    "Find out what you need, decide, tell the customer, and close the chat. End each message with one action:\n"
    "<action>ask date</action>, <action>ask condition</action>, <action>ask price</action>, "
    "<action>refund AMOUNT</action>, <action>refuse</action> or <action>close</action>."
)
ARTICLES = (
    "kettle",
    "radio",
    "desk lamp",
    "puzzle",
    "yarn set",
    "board game",
    "gift card",
    "headset",
    "toaster",
    "clock",
)
CONDITIONS = {
    "unopened": "I have not even opened it.",
    "opened": "I have used it once. It works.",
    "faulty": "It does not work, it was broken from the start.",
}


def due(article: str, condition: str, days: int, cents: int) -> int:
    """Return the refund in cents."""
    if article == "gift card":
        return 0
    if condition == "faulty":
        return cents if days <= 180 else 0
    if days > 30:
        return 0
    return cents if condition == "unopened" else cents // 2


class RefundEnv(vf.MultiTurnEnv):
    """An environment with a scripted customer."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(ledger=[], decision=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        info, action = state["info"], (self.parser.parse_answer(messages) or "").strip().lower()
        refund = re.fullmatch(r"refund (\d{1,5})(?:\.(\d\d))?", action)
        if action == "ask date":
            return f"I bought it {info['days']} days ago."
        if action == "ask condition":
            return CONDITIONS[info["condition"]]
        if action == "ask price":
            return f"It was {info['cents'] / 100:.2f}."
        if refund:
            state["ledger"].append(int(refund.group(1)) * 100 + int(refund.group(2) or 0))
            state["decision"] = "refund"
            return "Thank you, that is kind."
        if action == "refuse":
            state["decision"] = "refuse"
            return "That is a pity."
        if action == "close":
            state["final_env_response"] = "The chat is closed."
            return None
        return "Sorry, I did not understand that."


def ledger_matches(state: vf.State) -> float:
    """Return 1 if the refunds in the ledger are those that are due."""
    expected = state["info"]["due"]
    return float(state["ledger"] == ([expected] if expected else []))


def make_row(rng: random.Random) -> dict[str, Any]:
    """Return a customer."""
    article, condition = rng.choice(ARTICLES), rng.choice(sorted(CONDITIONS))
    if article == "gift card":
        condition = "unopened"
    days = rng.choice([rng.randint(2, 30), rng.randint(32, 175), rng.randint(185, 400)])
    cents = 2 * rng.randint(400, 4500)
    info = {"article": article, "condition": condition, "days": days, "cents": cents}
    question = rng.choice([
        f"Hello, I would like to return a {article}.",
        f"Good morning! I want my money back for a {article}.",
        f"Hi, can you refund a {article} to me?",
    ])  # fmt: skip
    return {"question": question, "info": {**info, "due": due(article, condition, days, cents)}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 400, seed: int = 0, max_turns: int = 7) -> vf.Environment:
    """Return an environment with chats about refunds.

    Args:
        num_examples: Number of customers for training, and for evaluation.
        seed: Random seed of the customers.
        max_turns: Maximum messages of the model.
    """
    parser = vf.XMLParser(["action"], answer_field="action")
    return RefundEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([ledger_matches], parser=parser),
        max_turns=max_turns,
    )
