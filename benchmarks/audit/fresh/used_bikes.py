"""Used bikes: buy a bicycle from a seller who has a lowest price in mind."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You want to buy a used bicycle for as little as you can. In every turn you may make an offer, accept the seller's "
    "price or walk away: <move>offer 150</move>, <move>accept</move> or <move>leave</move>. The seller has a lowest "
    "price that you do not know, and loses patience after some time."
)
BIKES = "city bike,mountain bike,racing bike,folding bike,touring bike,cargo bike,child's bike,tandem".split(",")
COLORS = "red,blue,green,black,white,silver,yellow,orange".split(",")


def read_move(text: str) -> tuple[str, int]:
    """Return the kind of a move, "" if it is none, and its price."""
    found = re.fullmatch(r"\s*(?:offer\s+([0-9]{1,6})(?:\s+euros?)?|(accept|leave))\s*", text.lower())
    if not found:
        return "", 0
    return ("offer", int(found[1])) if found[1] else (found[2], 0)


class BikeEnv(vf.MultiTurnEnv):
    """Plays the seller."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(ask=state["info"]["list_price"], offers=[state["info"]["list_price"]], paid=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        kind, price = self.parser.parse_answer(messages) or ("", 0)
        info, offers = state["info"], state["offers"]
        if kind == "accept":
            return self._sold(state, offers[-1])
        if kind == "leave":
            state["final_env_response"] = "The seller wishes you a good day."
            return None
        if kind != "offer":
            return f"The seller did not understand you. The price is still {state['ask']} euros."
        offers.append(price)
        if price >= state["ask"] or (price >= info["lowest"] and len(offers) > info["patience"]):
            return self._sold(state, min(price, state["ask"]))
        if price < info["lowest"] * 0.7:
            return f'"That is far too little. It costs {state["ask"]} euros."'
        ask = max(info["lowest"], round((2 * state["ask"] + price) / 3))
        if ask < state["ask"]:
            state["ask"] = ask
            offers.append(ask)
            return f'"Let us say {ask} euros."'
        return f'"I cannot go lower than {ask} euros."'

    def _sold(self, state: vf.State, price: int) -> None:
        state["paid"] = price
        state["final_env_response"] = "It is a deal. The bicycle is yours."


def saving(state: vf.State) -> float:
    """Return how far the price was brought from the list price (0) to the lowest (1); 0 without a deal."""
    if state["paid"] is None:
        return 0.0
    high, low = state["info"]["list_price"], state["info"]["lowest"]
    return min(1.0, max(0.0, (high - state["paid"]) / (high - low)))


def bought(state: vf.State) -> float:
    """Return 1 if there was a deal."""
    return float(state["paid"] is not None)


def haggler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Offer a little less than the seller asks, and give in at the end."""
    turn = len(state["trajectory"])
    if turn >= 5:
        return f"<move>offer {state['ask']}</move>"
    return f"<move>offer {round(state['ask'] * (0.75 + 0.04 * turn))}</move>"


def spender(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Pay the list price."""
    return "<move>accept</move>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        price = rng.randint(120, 900)
        info = {"list_price": price, "lowest": round(price * rng.uniform(0.55, 0.85)), "patience": rng.randint(3, 7)}
        bike, color = rng.choice(BIKES), rng.choice(COLORS)
        rows.append({"question": f'Seller: "This {color} {bike} costs {price} euros."', "info": info})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with a bicycle and a seller per row.

    Args:
        num_examples: Number of bicycles in each dataset.
        seed: Random seed; the bicycles for evaluation are drawn apart from those for training.
        max_turns: Maximum moves of the buyer.
    """
    parser = vf.XMLParser(["move"], answer_field="move", extract_fn=read_move)
    rubric = vf.Rubric([saving], parser=parser)
    rubric.add_metric(bought)
    return BikeEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"haggler": haggler, "spender": spender},
        max_turns=max_turns,
    )
