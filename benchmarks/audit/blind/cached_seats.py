"""Seat booking: book a seat in a train that meets a passenger's wishes."""

from __future__ import annotations

import functools
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You work at a ticket desk. Look at the free seats of the train and book one that meets all wishes of the passenger. "
    "A booking cannot be undone. When you are finished, reply without a tool call."
)
NAMES = ["Abara", "Brandt", "Castellano", "Demir", "Eklund", "Fofana", "Grieg", "Haddad", "Ilic", "Jansen"]
COACHES, ROWS, COLUMNS = ["11", "12", "13"], range(1, 6), {"A": "window", "B": "middle", "C": "aisle"}
FEATURES = ["quiet", "table", "family"]


def draw_plan(train: str) -> dict[str, dict[str, Any]]:
    """Return the seats of a train: position, feature of the coach, and the passenger or None."""
    rng = random.Random(train)
    features = rng.sample(FEATURES, len(COACHES))
    plan: dict[str, dict[str, Any]] = {}
    for coach, feature in zip(COACHES, features):
        for row in ROWS:
            for column, position in COLUMNS.items():
                taken = "occupied" if rng.random() < 0.6 else None
                plan[f"{coach}-{row}{column}"] = {"position": position, "feature": feature, "passenger": taken}
    return plan


@functools.lru_cache(maxsize=2048)
def seat_plan(train: str) -> dict[str, dict[str, Any]]:
    """Return the plan of a train that is on sale."""
    return draw_plan(train)


def free_seats(coach: str, plan: dict[str, dict[str, Any]]) -> str:
    """List the free seats of a coach with their position and the coach's feature.

    Args:
        coach: Number of the coach: 11, 12 or 13.
    """
    if coach not in COACHES:
        raise ValueError(f"there is no coach {coach}; the coaches are {', '.join(COACHES)}")
    seats = [(name, seat) for name, seat in plan.items() if name.startswith(f"{coach}-") and not seat["passenger"]]
    lines = [f"{name} {seat['position']} {seat['feature']}" for name, seat in seats]
    return "\n".join(lines) or "no free seats"


def book(seat: str, passenger: str, plan: dict[str, dict[str, Any]]) -> str:
    """Book a free seat for a passenger.

    Args:
        seat: Name of the seat, for example 11-3A.
        passenger: Surname of the passenger.
    """
    if seat not in plan:
        raise ValueError(f"there is no seat {seat}")
    if plan[seat]["passenger"]:
        raise ValueError(f"seat {seat} is taken")
    plan[seat]["passenger"] = passenger
    return f"{seat} booked for {passenger}"


def booked(state: vf.State, info: dict[str, Any]) -> float:
    """Return 1 if the passenger has exactly one seat and it meets the wishes."""
    seats = [seat for seat in state["plan"].values() if seat["passenger"] == info["passenger"]]
    return float(len(seats) == 1 and (seats[0]["position"], seats[0]["feature"]) == (info["position"], info["feature"]))


class SeatBookingEnv(vf.StatefulToolEnv):
    """An environment with two tools that share the seat plan of the train."""

    def __init__(self, **kwargs: Any):
        super().__init__(parallel_calls=False, max_threads=0, **kwargs)
        self.add_tool(free_seats, args_to_skip=["plan"])
        self.add_tool(book, args_to_skip=["plan"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["plan"] = seat_plan(state["info"]["train"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "plan": state["plan"]}


def make_row(train: str) -> dict[str, Any]:
    rng = random.Random(f"wish {train}")
    free = [seat for seat in draw_plan(train).values() if not seat["passenger"]]
    seat, name = rng.choice(free), rng.choice(NAMES)
    question = (
        f"Train {rng.randint(10000, 99999)}, coaches {', '.join(COACHES)}. "
        f"Passenger {name} would like: {seat['position']} seat, {seat['feature']} coach."
    )
    info = {"train": train, "passenger": name, "position": seat["position"], "feature": seat["feature"]}
    return {"question": question, "info": info}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(f"{seed} {index}") for index in range(count)]


def agent(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look through the coaches until a seat fits, then book it."""
    info, turn = state["info"], len(state["trajectory"])
    last = str(messages[-1].content) if turn else ""
    if " booked for " in last:
        return "Done."
    for line in last.splitlines():
        if line.endswith(f" {info['position']} {info['feature']}"):
            return vf.tool_call("book", seat=line.split()[0], passenger=info["passenger"])
    if turn < len(COACHES):
        return vf.tool_call("free_seats", coach=COACHES[turn])
    return "There is no such seat."


def careless(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Book the first free seat of coach 11."""
    turn = len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("free_seats", coach="11")
    if turn == 1 and messages[-1].content != "no free seats":
        return vf.tool_call("book", seat=str(messages[-1].content).split()[0], passenger=state["info"]["passenger"])
    return "Done."


def load_environment(num_examples: int = 300, num_eval_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Return an environment in which seats are booked with tools.

    Args:
        num_examples: Number of training requests.
        num_eval_examples: Number of evaluation requests.
        seed: Random seed of the trains.
    """
    return SeatBookingEnv(
        dataset=lambda: rows(num_examples, f"{seed} train"),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed} eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([booked]),
        policies={"agent": agent, "careless": careless},
        max_turns=8,
    )
