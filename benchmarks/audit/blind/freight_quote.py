"""Freight quote: an assistant looks up rates and surcharges and submits the price of a shipment."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You quote freight prices. Price = base fee of the zone + weight in kg x rate of the zone + all surcharges that apply.\n"
    "Look up the numbers with the tools, then call submit_quote with the price in euros."
)
ZONES = ["north", "south", "coast", "alpine", "island"]
SURCHARGES = ["fragile", "refrigerated", "oversize", "hazardous", "express", "weekend"]


def zone_rate(zone: str, state: vf.State) -> dict[str, float]:
    """Return the base fee and the rate per kg of a zone."""
    zones = state["info"]["zones"]
    if zone not in zones:
        raise ValueError(f"unknown zone; the zones are {', '.join(zones)}")
    return zones[zone]


def surcharge(kind: str, state: vf.State) -> float:
    """Return the surcharge for one kind of shipment."""
    surcharges = state["info"]["surcharges"]
    if kind not in surcharges:
        raise ValueError(f"unknown surcharge; there are {', '.join(surcharges)}")
    return surcharges[kind]


def submit_quote(price: float, state: vf.State) -> str:
    """Submit the price to the booking system, which validates and stores it.

    Args:
        price: price in euros
    """
    due = state["info"]["price"]
    if abs(price - due) > 0.005:
        raise ValueError(f"validation failed: quoted {price:.2f}, rate card {due:.2f}; please correct the quote")
    state["accepted"] = True
    return "Quote stored."


def accepted(state: vf.State) -> float:
    """Return 1 if the booking system has stored a quote."""
    return float(state["accepted"])


def agent(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Look everything up, then submit the price."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("zone_rate", zone=info["zone"])
    if turn <= len(info["kinds"]):
        return vf.tool_call("surcharge", kind=info["kinds"][turn - 1])
    return vf.tool_call("submit_quote", price=info["price"])


def careless(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Leave out the surcharges, and give up when the quote is refused."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("zone_rate", zone=info["zone"])
    if turn == 1:
        zone = info["zones"][info["zone"]]
        return vf.tool_call("submit_quote", price=round(zone["base"] + info["weight"] * zone["per_kg"], 2))
    return "I could not store the quote."


class FreightEnv(vf.StatefulToolEnv):
    """An environment with two look-up tools and one that stores the quote."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (zone_rate, surcharge, submit_quote):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["accepted"] = False

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    @vf.stop
    def stored(self, state: vf.State) -> bool:
        """Stop when the quote is stored."""
        return bool(state.get("accepted"))


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        zones = {z: {"base": rng.randint(20, 90) / 2, "per_kg": rng.randint(10, 80) / 20} for z in ZONES}
        surcharges = {kind: rng.randint(10, 120) / 4 for kind in SURCHARGES}
        zone, weight = rng.choice(ZONES), rng.randint(12, 480)
        kinds = rng.sample(SURCHARGES, rng.randint(1, 3))
        price = zones[zone]["base"] + weight * zones[zone]["per_kg"] + sum(surcharges[kind] for kind in kinds)
        question = f"Please quote a shipment of {weight} kg to the {zone} zone. It is {' and '.join(kinds)}."
        info = {"zones": zones, "surcharges": surcharges, "zone": zone, "weight": weight, "kinds": kinds}
        rows.append({"question": question, "answer": f"{price:.2f}", "info": {**info, "price": round(price, 2)}})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment in which an assistant quotes freight prices.

    Args:
        num_examples: Number of shipments in each dataset; each has its own rate card.
        seed: Random seed of the datasets.
        max_turns: Maximum model turns.
    """
    return FreightEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([accepted]),
        policies={"agent": agent, "careless": careless},
        max_turns=max_turns,
    )
