"""Flea market: haggle with a seller over the price of an item."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You want to buy an item at a flea market, for as little as possible and never for more than it is worth to you. Each turn, "
    "write one action: <action>offer 42</action> (whole euros), <action>accept</action> to pay what the seller asks, or "
    "<action>leave</action>. The seller packs up after eight offers."
)
ITEMS = [
    "brass lamp",
    "oil painting",
    "set of chairs",
    "old camera",
    "wool carpet",
    "record player",
    "tea service",
    "wall clock",
    "leather suitcase",
    "garden bench",
    "typewriter",
    "mirror",
    "sewing machine",
    "chess set",
    "violin",
    "globe",
]
OFFER = re.compile(r"offer (\d+)")
MAX_OFFERS = 8


class Seller:
    """A seller who moves from the asking price toward the buyer's offers, but not below a limit."""

    def __init__(self, asking: int, limit: int, flexibility: float):
        self.asking, self.limit, self.flexibility = asking, limit, flexibility

    def hear(self, offer: int) -> bool:
        """Return whether the seller takes an offer; otherwise lower the asking price."""
        if offer >= self.asking:
            return True
        gap = self.asking - offer
        self.asking = max(self.limit, self.asking - max(1, round(self.flexibility * gap)))
        return offer >= self.asking


class MarketEnv(vf.MultiTurnEnv):
    """An environment in which the model is the buyer."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state["seller"] = Seller(info["asking"], info["limit"], info["flexibility"])
        state.update(price=None, offers=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        action = (self.parser.parse_answer(messages) or "").strip().lower()
        seller, offer = state["seller"], OFFER.fullmatch(action)
        if action == "accept":
            return self._deal(state, seller.asking)
        if action == "leave":
            state["final_env_response"] = "You leave."
            return None
        state["offers"] += 1
        if offer and int(offer[1]) > 0 and seller.hear(int(offer[1])):
            return self._deal(state, int(offer[1]))
        if state["offers"] >= MAX_OFFERS:
            state["final_env_response"] = "The seller packs up."
            return None
        if not offer or int(offer[1]) == 0:
            return f"Sorry, I did not understand that. I ask {seller.asking} euros."
        return f"Hm. I could let you have it for {seller.asking} euros."

    def _deal(self, state: vf.State, price: int) -> None:
        state["price"] = price
        state["final_env_response"] = f"Sold for {price} euros."


def surplus(state: vf.State) -> float:
    """Return the buyer's share of the possible gain: 1 at the seller's limit, 0 at the item's worth or without a deal."""
    price, info = state["price"], state["info"]
    if price is None:
        return 0.0
    return max(0.0, (info["worth"] - price) / (info["worth"] - info["limit"]))


def _rows(count: int, seed: str, worths: range) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        worth = rng.choice(worths)
        limit = math.ceil(worth * rng.uniform(0.35, 0.75))
        asking = round(limit * rng.uniform(1.5, 2.4))
        text = f"Seller: This {rng.choice(ITEMS)} costs {asking} euros.\n(It is worth {worth} euros to you.)"
        info = {"worth": worth, "limit": limit, "asking": asking, "flexibility": round(rng.uniform(0.16, 0.3), 3)}
        rows.append({"question": text, "answer": "", "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment with sellers of different firmness.

    Args:
        num_examples: Number of items for training and for evaluation.
        seed: Random seed of the items.
    """
    parser = vf.XMLParser(["action"], answer_field="action")
    return MarketEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", range(40, 900, 2)),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", range(41, 900, 2)),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([surplus], parser=parser),
        max_turns=MAX_OFFERS + 1,
    )
