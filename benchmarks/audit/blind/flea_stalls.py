"""Flea market: buy an item from a seller who gives way step by step."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = """You are a buyer at a flea market. Pay as little as you can. In each turn, write one of these:
<offer>PRICE</offer> to make an offer; the seller takes it, names another price, or leaves
<accept>PRICE</accept> to buy at the seller's current price
Prices are whole euros. The seller leaves if you make an offer that is an insult, if you do not raise your offer, or after
six rounds. Without a deal, you get nothing."""
ITEMS = "lamp,clock,guitar,mirror,typewriter,bicycle,camera,armchair,record player,painting".split(",")
ROUNDS = 6


def parse(text: str) -> tuple[str, int] | None:
    """Return the last action and its price."""
    found = re.findall(r"<(offer|accept)>\s*(\d{1,6})\s*</\1>", text)
    return (found[-1][0], int(found[-1][1])) if found else None


def patient(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Begin at half of the price, raise the offer in equal steps, and accept at the end."""
    ask, turn = state["ask"], len(state["trajectory"])
    if turn == ROUNDS - 1:
        return f"<accept>{ask}</accept>"
    start = state["info"]["ask"] * 0.5
    offer = max(round(start * (1 + 0.1 * turn)), (state["offer"] or 0) + 1)
    return f"<accept>{ask}</accept>" if offer >= ask else f"<offer>{offer}</offer>"


def shy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Accept the seller's first or second price."""
    ask = state["ask"]
    if state["trajectory"] or rng.random() < 0.5:
        return f"<accept>{ask}</accept>"
    return f"<offer>{round(ask * 0.8)}</offer>"


class FleaMarketEnv(vf.MultiTurnEnv):
    """An environment with a seller whose lowest price is not known to the buyer."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(ask=state["info"]["ask"], offer=None, price=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        action = parse(messages[-1].content or "")
        if action is None:
            return self.end(state, None, "The seller does not understand you and leaves.")
        kind, price = action
        if kind == "accept":
            return self.end(state, price, f"The {state['info']['item']} is yours for {price} euros.")
        return self.answer_offer(state, price)

    def answer_offer(self, state: vf.State, offer: int) -> str | None:
        lowest, last = state["info"]["lowest"], state["offer"]
        if offer < 0.6 * lowest or (last is not None and offer <= last):
            return self.end(state, None, "The seller shakes her head and leaves.")
        if offer >= state["ask"]:
            return self.end(state, state["ask"], f"Sold for {state['ask']} euros.")
        raised = offer - last if last is not None else 0.05 * state["info"]["ask"]
        step = state["info"]["steps"][len(state["trajectory"]) - 1] * min(1.0, raised / (0.05 * state["info"]["ask"]))
        state["offer"] = offer
        state["ask"] = max(lowest, offer, round(state["ask"] - step * (state["ask"] - lowest)))
        if len(state["trajectory"]) == ROUNDS:
            return self.end(state, None, "The market closes, and the seller leaves.")
        return f"I can give it to you for {state['ask']} euros."

    def end(self, state: vf.State, price: int | None, message: str) -> None:
        """End the rollout with a deal at this price, or without a deal."""
        state["price"] = price
        state["final_env_response"] = message


def saving(state: vf.State) -> float:
    """Return the buyer's share of the difference between the first and the lowest price; 0 without a deal."""
    if state["price"] is None:
        return 0.0
    ask, lowest = state["info"]["ask"], state["info"]["lowest"]
    return min(1.0, max(0.0, (ask - state["price"]) / (ask - lowest)))


def deal(state: vf.State) -> float:
    """Return 1 if there was a deal."""
    return float(state["price"] is not None)


def _row(seed: int, split: str, index: int) -> dict[str, Any]:
    rng = random.Random(f"{seed}:{split}:{index}")
    item = ITEMS[index % len(ITEMS)]
    ask = 80 + index // len(ITEMS) * 12 + rng.randrange(6) * 2 + (split == "eval")
    lowest = round(ask * rng.uniform(0.55, 0.75))
    steps = [round(rng.uniform(0.1, 0.4), 2) for _ in range(ROUNDS)]
    question = f"This {item} costs {ask} euros. Are you interested?"
    return {"question": question, "info": {"item": item, "ask": ask, "lowest": lowest, "steps": steps}}


def load_environment(num_train: int = 500, num_eval: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model haggles.

    Args:
        num_train, num_eval: Number of negotiations.
        seed: Random seed of the items, the prices, and the seller's steps.
    """
    rubric = vf.Rubric([saving])
    rubric.add_metric(deal)
    return FleaMarketEnv(
        dataset=lambda: [_row(seed, "train", index) for index in range(num_train)],
        eval_dataset=lambda: [_row(seed, "eval", index) for index in range(num_eval)],
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"patient": patient, "shy": shy},
        max_turns=ROUNDS,
    )
