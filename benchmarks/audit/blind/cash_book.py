"""Cash book: keep the balance of an account during a conversation."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You keep the cash book of a small shop. The user reports one event per message. After each one, reply with the new "
    "balance in dollars, such as <balance>120.50</balance>. A wrong balance ends the conversation."
)
MAX_EVENTS = 8


def balance(text: str) -> int | None:
    """Return the only balance of a reply, in cents."""
    found = re.findall(r"<balance>(.*?)</balance>", text, re.DOTALL)
    number = re.fullmatch(r"\$?\s*(-?)\s*\$?\s*([\d,]+)(?:\.(\d{1,2}))?", found[0].strip()) if len(found) == 1 else None
    if not number:
        return None
    digits = number.group(2).replace(",", "")
    if not digits.isascii() or not digits or len(digits) > 12:
        return None
    cents = int(digits) * 100 + int((number.group(3) or "").ljust(2, "0"))
    return -cents if number.group(1) else cents


class CashBookEnv(vf.MultiTurnEnv):
    """An environment that reports the events one by one, as long as the balance is right."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["right"] = 0

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        events, balances = state["info"]["events"], state["info"]["balances"]
        if balance(messages[-1].content or "") != balances[state["right"]]:
            state["final_env_response"] = "That is not the balance. We stop here."
            return None
        state["right"] += 1
        if state["right"] == len(events):
            state["final_env_response"] = "Thank you, that was all for today."
            return None
        return events[state["right"]]


def kept(state: vf.State) -> float:
    """Return the share of the events after which the balance was right."""
    return state["right"] / len(state["info"]["events"])


def complete(state: vf.State) -> float:
    """Return 1 if every balance was right."""
    return float(kept(state) == 1)


def _money(cents: int) -> str:
    return f"${cents / 100:,.2f}"


def _event(rng: random.Random) -> tuple[str, int]:
    cents, count = rng.randint(350, 9000), rng.randint(2, 9)
    return rng.choice(
        [
            (f"We sold goods for {_money(cents)}.", cents),
            (f"We sold {count} boxes at {_money(cents)} each.", count * cents),
            (f"We paid a bill of {_money(cents)}.", -cents),
            (f"We bought {count} rolls of tape at {_money(cents // 10)} each.", -count * (cents // 10)),
            (f"A customer brought back {count} items and got {_money(cents // 4)} for each.", -count * (cents // 4)),
        ]
    )


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        total = rng.randint(60_000, 250_000)
        question, events, balances = f"Good morning! There are {_money(total)} in the cash book.", [], []
        for _ in range(rng.randint(4, MAX_EVENTS)):
            text, change = _event(rng)
            total += change
            events.append(text)
            balances.append(total)
        rows.append({"question": f"{question} {events[0]}", "info": {"events": events, "balances": balances}})
    return rows


def load_environment(num_train: int = 400, num_eval: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with conversations about a cash book.

    Args:
        num_train, num_eval: Number of conversations.
        seed: Random seed of the events.
    """
    rubric = vf.Rubric([kept])
    rubric.add_metric(complete)
    return CashBookEnv(
        dataset=lambda: _rows(num_train, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_eval, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        max_turns=MAX_EVENTS,
    )
