"""Airline desk: handle a passenger's request with tools, within the rules of the airline."""

from __future__ import annotations

import copy
import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = """You work at the service desk of an airline. Handle the passenger's request with the tools. Rules:
- Cancel a reservation only if its fare is flexible or it was booked at most one day ago.
- Move a reservation to another flight only if its fare is not basic and the new flight has a free seat.
- Add bags only up to three per reservation.
- Never change a reservation that belongs to somebody else.
If a request is against the rules, refuse it and change nothing. Finish with a short reply to the passenger."""
NAMES = [
    "Nora Field",
    "Jonas Brix",
    "Carla Mendes",
    "Idris Cole",
    "Mina Sato",
    "Paul Adler",
    "Zoe Lambert",
    "Emre Kaya",
]
ROUTES = [("Oslo", "Rome"), ("Lisbon", "Vienna"), ("Dublin", "Athens"), ("Prague", "Madrid"), ("Zurich", "Riga")]
FARES = ["basic", "basic", "standard", "flexible"]


def get_reservation(code: str, state: vf.State) -> dict[str, Any]:
    """Show a reservation.

    Args:
        code: The reservation's code of six letters and digits.
    """
    return _find(state["db"], code)


def search_flights(origin: str, destination: str, state: vf.State) -> list[dict[str, Any]]:
    """List the flights between two cities with their free seats."""
    return [
        flight for flight in state["db"]["flights"].values() if (flight["from"], flight["to"]) == (origin, destination)
    ]


def cancel_reservation(code: str, state: vf.State) -> str:
    """Cancel a reservation and refund its price."""
    _find(state["db"], code)["status"] = "cancelled"
    return "cancelled"


def change_flight(code: str, flight: str, state: vf.State) -> str:
    """Move a reservation to another flight.

    Args:
        code: The reservation's code.
        flight: The number of the new flight.
    """
    reservation = _find(state["db"], code)
    if flight not in state["db"]["flights"]:
        raise ValueError("there is no flight with that number")
    reservation["flight"] = flight
    return f"moved to {flight}"


def add_bags(code: str, count: int, state: vf.State) -> str:
    """Add bags to a reservation."""
    reservation = _find(state["db"], code)
    reservation["bags"] += count
    return f"{reservation['bags']} bags"


def _find(db: dict[str, Any], code: str) -> dict[str, Any]:
    if code not in db["reservations"]:
        raise ValueError("there is no reservation with that code")
    return db["reservations"][code]


def is_permitted(db: dict[str, Any], request: dict[str, Any]) -> bool:
    """Return whether the rules permit a request."""
    reservation = db["reservations"][request["code"]]
    if reservation["name"] != request["name"]:
        return False
    if request["kind"] == "cancel":
        return reservation["fare"] == "flexible" or reservation["booked_days_ago"] <= 1
    if request["kind"] == "change":
        return reservation["fare"] != "basic" and db["flights"][request["flight"]]["seats"] > 0
    return reservation["bags"] + request["count"] <= 3


def fulfil(db: dict[str, Any], request: dict[str, Any]) -> None:
    """Carry out a request."""
    reservation = db["reservations"][request["code"]]
    if request["kind"] == "cancel":
        reservation["status"] = "cancelled"
    elif request["kind"] == "change":
        reservation["flight"] = request["flight"]
    else:
        reservation["bags"] += request["count"]


def database_matches(state: vf.State) -> float:
    """Return 1 if the database is in the state that the rules require."""
    expected = copy.deepcopy(state["info"]["db"])
    if is_permitted(expected, state["info"]["request"]):
        fulfil(expected, state["info"]["request"])
    return float(state["db"] == expected)


def agent(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look at the reservation, then follow the rules."""
    request, turn = state["info"]["request"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("get_reservation", code=request["code"])
    if turn > 1 or not is_permitted(state["info"]["db"], request):
        return "Your request has been handled." if turn > 1 else "I am sorry, our rules do not permit that."
    return _call(request)


def obliging(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Do whatever the passenger asks for."""
    return "Done." if state["trajectory"] else _call(state["info"]["request"])


def _call(request: dict[str, Any]) -> vf.AssistantMessage:
    if request["kind"] == "cancel":
        return vf.tool_call("cancel_reservation", code=request["code"])
    if request["kind"] == "change":
        return vf.tool_call("change_flight", code=request["code"], flight=request["flight"])
    return vf.tool_call("add_bags", code=request["code"], count=request["count"])


class AirlineEnv(vf.StatefulToolEnv):
    """An environment with the airline's tools; each rollout has its own database."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (get_reservation, search_flights, cancel_reservation, change_flight, add_bags):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["db"] = copy.deepcopy(state["info"]["db"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _row(rng: random.Random) -> dict[str, Any]:
    flights = {}
    for origin, destination in ROUTES:
        for number in rng.sample(range(100, 1000), 3):
            flights[f"RV{number}"] = {
                "number": f"RV{number}",
                "from": origin,
                "to": destination,
                "day": rng.randint(1, 30),
                "seats": rng.choice([0, 2, 9]),
            }
    reservations = {}
    for name in rng.sample(NAMES, 5):
        code = "".join(rng.choice("ABCDEFGHKLMNPQRSTUVWXYZ23456789") for _ in range(6))
        reservations[code] = {
            "code": code,
            "name": name,
            "flight": rng.choice(list(flights)),
            "fare": rng.choice(FARES),
            "booked_days_ago": rng.choice([0, 1, 3, 8, 20, 45]),
            "bags": rng.randint(0, 3),
            "status": "booked",
        }
    code = rng.choice(list(reservations))
    reservation = reservations[code]
    name = reservation["name"] if rng.random() < 0.85 else rng.choice([n for n in NAMES if n != reservation["name"]])
    kind = rng.choice(["cancel", "change", "bags"])
    request: dict[str, Any] = {"kind": kind, "code": code, "name": name}
    text = f"Hello, my name is {name}, my reservation is {code}."
    if kind == "cancel":
        text += " Please cancel it and give me my money back."
    elif kind == "change":
        old = flights[reservation["flight"]]
        others = [f for f in flights.values() if (f["from"], f["to"]) == (old["from"], old["to"]) and f is not old]
        request["flight"] = rng.choice(others)["number"]
        text += f" I would like to fly on {request['flight']} instead, from {old['from']} to {old['to']}."
    else:
        request["count"] = rng.randint(1, 3)
        text += f" I want to take {request['count']} more bag{'s' if request['count'] > 1 else ''}."
    return {
        "question": text,
        "answer": "",
        "info": {"db": {"reservations": reservations, "flights": flights}, "request": request},
    }


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 5 == 0) == held_out:
            rows.append(row)
    return rows


def load_environment(num_examples: int = 200, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with requests of passengers.

    Args:
        num_examples: Number of requests for training and for evaluation; each has its own database.
        seed: Random seed of the requests.
        max_turns: Maximum model turns.
    """
    return AirlineEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([database_matches]),
        policies={"agent": agent, "obliging": obliging},
        max_turns=max_turns,
    )
