"""Garden stall: grow a cabbage, and deliver it to the customer."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Grow a cabbage and deliver it to the customer's house. Plant, water and harvest, in this order, then name the house; there "
    "is one delivery. Answer <do>plant, water, harvest or a house</do>"
)
HOUSES = ("oak", "elm", "fir", "ash", "yew")
NEXT = {"plant": "empty", "water": "planted", "harvest": "watered"}
AFTER = {"plant": "planted", "water": "watered", "harvest": "empty"}
MAX_TURNS = 9


def gardener(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Grow one cabbage and deliver it; take any house in 5 % of the games."""
    if state["cabbages"] == 0:
        return f"<do>{next(work for work, bed in NEXT.items() if bed == state['bed'])}</do>"
    return f"<do>{rng.choice(HOUSES) if rng.random() < 0.05 else state['info']['customer']}</do>"


class GardenStallEnv(vf.MultiTurnEnv):
    """An environment that shows the bed after each action."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(bed="empty", cabbages=0, harvests=0, delivered=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        action = self.parser.parse_answer(messages) or ""
        if action in HOUSES and state["cabbages"]:
            state["delivered"] = action == state["info"]["customer"]
            state["final_env_response"] = "Thank you." if state["delivered"] else "Wrong house."
            return None
        if NEXT.get(action) == state["bed"]:
            state["bed"] = AFTER[action]
            state["harvests"] += action == "harvest"
            state["cabbages"] += action == "harvest"
            reply = f"The bed is {state['bed']}. Cabbages: {state['cabbages']}."
        else:
            reply = "Nothing happens."
        if len(state["trajectory"]) < MAX_TURNS:
            return reply
        state["final_env_response"] = f"{reply} The day is over."
        return None


def delivered(state: vf.State) -> float:
    """Return 1 for a delivery to the right house."""
    return float(state["delivered"])


def harvests(state: vf.State) -> float:
    """Return the number of harvests: a step on the way to a delivery."""
    return float(state["harvests"])


def _row(rng: random.Random) -> dict[str, Any]:
    houses = rng.sample(HOUSES, len(HOUSES))
    known = rng.randrange(len(houses))
    customer = rng.choice([place for place in range(len(houses)) if place != known])
    side, distance = ("left" if customer < known else "right"), abs(customer - known)
    question = f"Houses: {' '.join(houses)}. Customer: {distance} {side} of {houses[known]}."
    return {"question": question, "info": {"customer": houses[customer]}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with one customer per example. The reward is 1 for the delivery and 0.25 per harvest.

    Args:
        num_examples: Number of customers, at most 1000.
        seed: Random seed of the dataset; evaluation customers differ from training customers.
    """
    parser = vf.XMLParser(["do"], answer_field="do")
    rubric = vf.Rubric([delivered, harvests], [1.0, 0.25], parser=parser)
    rubric.add_metric(delivered, name="orders_done")
    return GardenStallEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"gardener": gardener},
        max_turns=MAX_TURNS,
    )
