"""Market haggle: buy one thing at a flea market for as little money as possible."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You are the buyer at a flea market. Negotiate with the seller in short messages. Name your offer as a number, or write "
    "ACCEPT to buy at the seller's current price. The seller leaves after six of your messages. You score 0 without a deal, and "
    "up to 1 the closer the price is to the seller's secret lowest price. Never pay more than the thing is worth to you."
)
THINGS = [
    "radio",
    "guitar",
    "carpet",
    "mirror",
    "clock",
    "camera",
    "lamp",
    "vase",
    "typewriter",
    "globe",
    "telescope",
    "chair",
]
NUMBER = re.compile(r"\d+")
MAX_MESSAGES = 6
REFUSALS = ["That is too little.", "I cannot go that low.", "You must be joking.", "Come on, look at the quality."]


def make_row(seed: str) -> dict[str, Any]:
    rng = random.Random(seed)
    lowest = rng.randint(30, 150)
    asking = lowest + rng.randint(40, 120)
    worth = asking + rng.randint(0, 30)
    thing = rng.choice(THINGS)
    question = f"Seller: This fine {thing} costs {asking}. (It is worth {worth} to you.)"
    return {"question": question, "info": {"seed": seed, "lowest": lowest, "asking": asking, "worth": worth}}


class HaggleEnv(vf.MultiTurnEnv):
    """An environment with a scripted seller who comes down as far as the buyer comes up.

    Bids below half of the asking price do not move the seller.
    """

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        rng = random.Random(f"{info['seed']}:seller")
        # The seller keeps a margin above the lowest price for a first-class bargain.
        margin = rng.uniform(0.15, 0.4)
        state["target"] = round(info["lowest"] + margin * (info["asking"] - info["lowest"]))
        state.update(price=info["asking"], best_bid=info["asking"] // 2, paid=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text = messages[-1]["content"] or ""
        turn = len(state["trajectory"])
        if "ACCEPT" in text:
            return self.sell(state, state["price"])
        offers = [int(number[:6]) for number in NUMBER.findall(text)]
        if not offers:
            return self.refuse(state, turn)
        bid = max(offers)
        if bid >= state["price"] or bid >= state["target"]:
            return self.sell(state, offers[-1])
        if bid > state["best_bid"]:
            step = min(bid - state["best_bid"], 0.5 * (state["price"] - max(state["target"], bid)))
            state["price"] = round(state["price"] - step)
            state["best_bid"] = bid
        return self.refuse(state, turn)

    def sell(self, state: vf.State, price: int) -> None:
        state["paid"] = price
        state["final_env_response"] = f"Seller: Sold for {price}!"

    def refuse(self, state: vf.State, turn: int) -> str | None:
        if turn >= MAX_MESSAGES:
            state["final_env_response"] = "Seller: I have other customers. Goodbye."
            return None
        refusal = random.Random(f"{state['info']['seed']}:{turn}").choice(REFUSALS)
        return f"Seller: {refusal} I can give it to you for {state['price']}."


def saved(state: vf.State) -> float:
    """The share of the way from the buyer's own value down to the seller's lowest price."""
    info, paid = state["info"], state["paid"]
    if paid is None or paid > info["worth"]:
        return 0.0
    return max(0.0, min(1.0, (info["worth"] - paid) / (info["worth"] - info["lowest"])))


def deal(state: vf.State) -> float:
    return float(state["paid"] is not None)


def haggler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Begins low and raises the offer in small steps."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == MAX_MESSAGES - 1:
        return "All right, ACCEPT."
    return f"I offer {round(info['asking'] * (0.5 + 0.07 * turn))}."


def tourist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Buys at once in most cases."""
    return "ACCEPT" if rng.random() < 0.7 else f"How about {round(state['info']['asking'] * 0.9)}?"


def load_environment(num_examples: int = 300, num_eval_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with negotiations about a price.

    Args:
        num_examples: Negotiations for training.
        num_eval_examples: Negotiations for evaluation.
        seed: Random seed of the prices and of the sellers.
    """
    rubric = vf.Rubric([saved])
    rubric.add_metric(deal)
    return HaggleEnv(
        dataset=lambda: [make_row(f"{seed}:train:{index}") for index in range(num_examples)],
        eval_dataset=lambda: [make_row(f"{seed}:eval:{index}") for index in range(num_eval_examples)],
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"haggler": haggler, "tourist": tourist},
        max_turns=MAX_MESSAGES,
    )
