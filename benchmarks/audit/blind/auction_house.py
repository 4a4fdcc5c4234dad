"""Auction house: bid against a rival for six lots, one sealed bid per lot."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You buy antiques for a shop. There are six lots. For each, you see the estimate in the catalogue and what the lot is "
    "worth to you. You and a rival each write one sealed bid; the higher bid wins and pays what it bid, and the rival wins "
    "a tie. The rival bids between 50 and 110 percent of the estimate. Your profit is the worth of the lots that you win "
    "minus what you pay. Answer <bid>number</bid> in whole euros, or <bid>0</bid> to pass."
)
LOTS = (
    "oak chair", "brass lamp", "pocket watch", "tea set", "oil painting", "music box", "globe", "chess table", "mirror",
    "violin", "silk fan", "sewing box", "stamp album", "tin train", "ink stand", "wall clock",
)  # fmt: skip
NUM_LOTS = 6


def rival_bid(lot: dict[str, Any], seed: int) -> int:
    """Return the bid of the rival, which is the same for the same lot of the same auction."""
    rng = random.Random(hash((lot["name"], lot["estimate"], seed)))
    return round(lot["estimate"] * rng.uniform(0.5, 1.1))


def show(lot: dict[str, Any], number: int) -> str:
    return f"Lot {number} of {NUM_LOTS}: {lot['name']}, estimate {lot['estimate']}, worth {lot['worth']} to you."


class AuctionEnv(vf.MultiTurnEnv):
    """An environment with an auction of several lots."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(profit=0, possible=0, num_sold=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        info, number = state["info"], state["num_sold"]
        lot = info["lots"][number]
        text = (self.parser.parse_answer(messages) or "").strip()
        bid = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0
        rival = rival_bid(lot, info["seed"])
        state["possible"] += max(0, lot["worth"] - rival - 1)
        if bid > rival:
            state["profit"] += lot["worth"] - bid
            news = f"You win at {bid}; the rival bid {rival}."
        else:
            news = f"The rival wins at {rival}."
        state["num_sold"] = number + 1
        if number + 1 == NUM_LOTS:
            state["final_env_response"] = f"{news} Your profit is {state['profit']}."
            return None
        return f"{news}\n{show(info['lots'][number + 1], number + 2)}"


def profit_share(state: vf.State) -> float:
    """Return the profit as a share of what was possible, from 0 to 1."""
    return min(1.0, max(0.0, state["profit"] / max(1, state["possible"])))


def lots_sold(state: vf.State) -> float:
    return float(state["num_sold"])


def _current(messages: vf.Messages) -> tuple[int, int]:
    words = str(messages[-1].content).split("\n")[-1].replace(",", "").split()
    return int(words[words.index("estimate") + 1]), int(words[words.index("worth") + 1])


def dealer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Bid what promises the highest mean profit."""
    estimate, worth = _current(messages)
    low, high = estimate // 2, estimate * 11 // 10
    return f"<bid>{max(0, min((low + worth) // 2, high + 1))}</bid>"


def enthusiast(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Bid nearly the full worth."""
    return f"<bid>{_current(messages)[1] * 95 // 100}</bid>"


def make_row(rng: random.Random) -> dict[str, Any]:
    """Return an auction."""
    lots = []
    for name in rng.sample(LOTS, NUM_LOTS):
        estimate = rng.randint(40, 400)
        lots.append({"name": name, "estimate": estimate, "worth": round(estimate * rng.uniform(0.7, 1.6))})
    return {"question": show(lots[0], 1), "info": {"lots": lots, "seed": rng.getrandbits(32)}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment with auctions.

    Args:
        num_examples: Number of auctions for training, and for evaluation.
        seed: Random seed of the auctions.
    """
    parser = vf.XMLParser(["bid"], answer_field="bid")
    rubric = vf.Rubric([profit_share], parser=parser)
    rubric.add_metric(lots_sold)
    return AuctionEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"dealer": dealer, "enthusiast": enthusiast},
        max_turns=NUM_LOTS,
    )
