"""Parcel tracker: find out with tools in which city a customer's parcel is."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Use the tools, then answer <city>name of the city</city>"
FIRST = "Ada Boris Clara Dario Elena Felix Gina Henrik Ida Jasper Klara Luca".split()
LAST = "Abel Berg Costa Dahl Ekman Fuchs Grant Holm Ivers Jansen Kurz Lind".split()
CITIES = "Basel Cork Dover Essen Ghent Izmir Kyoto Leeds Malmo Nantes Oslo Porto Quito Riga Split Turin".split()
PARCELS = 6


def find_parcel(customer: str, data: dict[str, Any]) -> str:
    """Return the number of a customer's parcel; `customer` is the first and last name."""
    if customer not in data["parcels"]:
        raise ValueError("no customer has that name")
    return data["parcels"][customer]


def find_depot(parcel: str, data: dict[str, Any]) -> str:
    """Return the depot where the parcel with a number was last seen."""
    if parcel not in data["depots"]:
        raise ValueError("no parcel has that number")
    return data["depots"][parcel]


def find_city(depot: str, data: dict[str, Any]) -> str:
    """Return the city of a depot."""
    if depot not in data["cities"]:
        raise ValueError("no depot has that name")
    return data["cities"][depot]


def tracker(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Ask for the parcel, its depot and the depot's city."""
    steps = [("find_parcel", "customer"), ("find_depot", "parcel"), ("find_city", "depot")]
    turn = len(state["trajectory"])
    if turn == len(steps):
        return f"<city>{messages[-1].content}</city>"
    name, argument = steps[turn]
    value = messages[-1].content if turn else state["info"]["customer"]
    function = {"name": name, "arguments": json.dumps({argument: value})}
    return vf.AssistantMessage(None, tool_calls=[{"id": f"call_{turn}", "type": "function", "function": function}])


class ParcelTrackerEnv(vf.StatefulToolEnv):
    """An environment whose tools read the tables of the rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        for tool in (find_parcel, find_depot, find_city):
            self.add_tool(tool, args_to_skip=["data"])

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: vf.State, **kwargs: Any) -> Any:
        return {**tool_args, "data": state["info"]}


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right city in the last message."""
    return float(completion[-1]["role"] == "assistant" and parser.parse_answer(completion) == answer)


def _rows(count: int, seed: str, lasts: list[str]) -> list[dict[str, Any]]:
    rows, rng = [], random.Random(seed)
    for _ in range(count):
        customers = rng.sample([f"{first} {last}" for first in FIRST for last in lasts], PARCELS)
        numbers = list(map(str, rng.sample(range(100_000, 999_999), PARCELS)))
        depots = [f"D{number}" for number in rng.sample(range(100, 999), PARCELS)]
        tables = {"parcels": dict(zip(customers, numbers)), "depots": dict(zip(numbers, depots))}
        cities = dict(zip(depots, rng.sample(CITIES, PARCELS)))
        info = {"customer": customers[0], **tables, "cities": cities}
        question = f"In which city is the parcel of {customers[0]}? Today is day {rng.randint(1, 9999)}."
        rows.append({"question": question, "answer": cities[depots[0]], "info": info})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with tables of its own for every example; evaluation has other customers than training."""
    parser = vf.XMLParser(["city"], answer_field="city")
    return ParcelTrackerEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", LAST[:8]),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", LAST[8:]),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"tracker": tracker},
        max_turns=6,
    )
