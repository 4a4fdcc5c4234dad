"""Fuel stops: choose the cheapest petrol station within reach, with the prices behind a tool."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Choose the station with the lowest price per liter among those that the car can still reach. "
    "Look up prices with price(station), then call choose(station). Reply without a call when you are done."
)
NAMES = (
    "Aral Nord",
    "Birchway",
    "Crossroads",
    "Delta Fuel",
    "Eastgate",
    "Ford Bridge",
    "Greenhill",
    "Hilltop",
    "Inn Valley",
    "Junction 9",
    "Kestrel",
    "Lakeside",
    "Millers",
    "Northstar",
    "Old Toll",
    "Pinewood",
    "Quarry Road",
    "Riverside",
)


def price(station: str, state: vf.State) -> str:
    """Look up the price per liter of a station.

    Args:
        station: name of the station
    """
    prices = state["info"]["prices"]
    if station not in prices:
        raise ValueError(f"there is no station {station!r} on this road")
    return f"{prices[station]:.3f}"


def choose(station: str, state: vf.State) -> str:
    """Choose the station at which to stop.

    Args:
        station: name of the station
    """
    prices, best = state["info"]["prices"], state["answer"]
    if station not in prices:
        raise ValueError(f"there is no station {station!r} on this road")
    state["chosen"] = station
    if station == best:
        return f"Stop planned: {station} at {prices[station]:.3f}."
    if state["info"]["distances"][station] > state["info"]["reach"]:
        return f"Stop planned: {station}. Warning: out of reach; {best} is within reach."
    extra = 45 * (prices[station] - prices[best])
    return f"Stop planned: {station} at {prices[station]:.3f}. For 45 liters, that is {extra:.2f} more than at {best}."


def best_stop(state: vf.State) -> float:
    """Return 1 if the cheapest station within reach is chosen at the end."""
    return float(state.get("chosen") == state["answer"])


def planner(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look up all stations within reach, then choose."""
    info = state["info"]
    names = [name for name, distance in info["distances"].items() if distance <= info["reach"]]
    turn = len(state["trajectory"])
    if turn < len(names):
        return vf.tool_call("price", station=names[turn])
    if turn == len(names):
        seen = [message.content for message in messages if message.role == "tool"]
        return vf.tool_call("choose", station=min(zip(map(float, seen), names))[1])
    return f"We stop at {state['chosen']}."


def nearest(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Choose the first station on the road."""
    if state["trajectory"]:
        return "Done."
    distances = state["info"]["distances"]
    return vf.tool_call("choose", station=min(distances, key=distances.get))


class FuelStopsEnv(vf.StatefulToolEnv):
    """An environment with stations along a road."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (price, choose):
            self.add_tool(tool, args_to_skip=["state"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        names = rng.sample(NAMES, rng.randint(6, 9))
        kilometers = sorted(rng.sample(range(15, 420), len(names)))
        distances = dict(zip(names, kilometers))
        reach = rng.randint(kilometers[3], kilometers[-1])
        prices = {name: cents / 1000 for name, cents in zip(names, rng.sample(range(1559, 1999, 10), len(names)))}
        best = min((name for name in names if distances[name] <= reach), key=prices.get)
        road = ", ".join(f"{name} (km {distance})" for name, distance in distances.items())
        question = f"The fuel lasts for {reach} km. Stations on the road: {road}."
        rows.append(
            {"question": question, "answer": best, "info": {"distances": distances, "prices": prices, "reach": reach}}
        )
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 12) -> vf.Environment:
    """Return an environment in which the model looks up prices and chooses a station.

    Args:
        num_examples: Number of roads in each dataset.
        seed: Random seed of the roads; evaluation roads are drawn separately.
        max_turns: Maximum model turns.
    """
    return FuelStopsEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([best_stop]),
        policies={"planner": planner, "nearest": nearest},
        max_turns=max_turns,
    )
