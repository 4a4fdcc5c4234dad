"""Seat booking: find a seat on a train that suits a passenger, and book it."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You book seats on trains. Look at the seats of the train, then book the one free seat with the lowest number that "
    "the passenger asks for. Call book once; it ends the conversation."
)
NUM_TRAIN, NUM_EVAL, NUM_SEATS = 60, 16, 30
WISHES = list(product(("window", "aisle"), ("table", "no table"), ("quiet", "family")))


def make_plan(rng: random.Random) -> dict[int, dict[str, Any]]:
    """Return the seats of a train; each kind of seat is free at least once."""
    kinds = [*WISHES, *(rng.choice(WISHES) for _ in range(NUM_SEATS - len(WISHES)))]
    taken = [False] * len(WISHES) + [rng.random() < 0.4 for _ in range(NUM_SEATS - len(WISHES))]
    seats = list(zip(kinds, taken))
    rng.shuffle(seats)
    return {
        number: {"place": place, "table": table, "zone": zone, "free": not is_taken}
        for number, ((place, table, zone), is_taken) in enumerate(seats, start=1)
    }


def train_name(index: int) -> str:
    return f"{('IC', 'RE', 'EC', 'NJ')[index % 4]} {200 + 7 * index}"


PLANS = {train_name(index): make_plan(random.Random(f"plan:{index}")) for index in range(NUM_TRAIN + NUM_EVAL)}


def suits(seat: dict[str, Any], wish: tuple[str, str, str]) -> bool:
    return (seat["place"], seat["table"], seat["zone"]) == tuple(wish)


FIRST = {
    train: {
        wish: next(number for number, seat in plan.items() if seat["free"] and suits(seat, wish)) for wish in WISHES
    }
    for train, plan in PLANS.items()
}


def seats(train: str, state: vf.State) -> str:
    """List the free seats of a train.

    Args:
        train: name of the train, such as "IC 200"
    """
    if train != state["info"]["train"]:
        raise ValueError(f"the passenger does not travel on '{train}'")
    free = [f"{number}: {s['place']}, {s['table']}, {s['zone']}" for number, s in state["plan"].items() if s["free"]]
    return "\n".join(free) or "The train is full."


def book(seat: int, state: vf.State) -> str:
    """Book a seat.

    Args:
        seat: number of the seat
    """
    if seat not in state["plan"]:
        raise ValueError(f"there is no seat {seat}")
    if not state["plan"][seat]["free"]:
        raise ValueError(f"seat {seat} is taken")
    if state["booked"] is None:
        state["plan"][seat]["free"] = False
        state["booked"] = seat
    return f"Seat {state['booked']} is booked."


def right_seat(state: vf.State, answer: str) -> float:
    """Return 1 if the right seat was booked."""
    return float(state["booked"] == int(answer))


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look at the seats, then book the first one that suits."""
    if not state["trajectory"]:
        return vf.tool_call("seats", train=state["info"]["train"])
    wanted = ", ".join(state["info"]["wish"])
    listed = [line.partition(": ") for line in str(messages[-1].content).split("\n")]
    matching = [int(number) for number, _, kind in listed if kind == wanted]
    return vf.tool_call("book", seat=matching[0]) if matching else "There is no such seat."


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Book any free seat."""
    if not state["trajectory"]:
        return vf.tool_call("seats", train=state["info"]["train"])
    numbers = [line.partition(": ")[0] for line in str(messages[-1].content).split("\n")]
    chosen = rng.choice(numbers)
    return vf.tool_call("book", seat=int(chosen)) if chosen.isdigit() else "The train is full."


class SeatEnv(vf.StatefulToolEnv):
    """An environment with the seat plan of one train per rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(seats, args_to_skip=["state"])
        self.add_tool(book, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["plan"] = dict(PLANS[state["info"]["train"]])
        state["booked"] = None

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    @vf.stop
    def has_booked(self, state: vf.State) -> bool:
        """Stop after the booking."""
        return state["booked"] is not None


def rows(indices: range, seed: str) -> list[dict[str, Any]]:
    """Return one row for each train and wish, in random order."""
    made = []
    for index in indices:
        train = train_name(index)
        for wish in WISHES:
            place, table, zone = wish
            answer = FIRST[train][wish]
            question = f"Please book a seat on {train}: {place}, {table}, in the {zone} zone."
            made.append({"question": question, "answer": str(answer), "info": {"train": train, "wish": list(wish)}})
    random.Random(seed).shuffle(made)
    return made


def load_environment(seed: int = 0, max_turns: int = 5) -> vf.Environment:
    """Return an environment in which the model books seats; training and evaluation have different trains.

    Args:
        seed: Random seed of the order of the rows.
        max_turns: Maximum model turns.
    """
    return SeatEnv(
        dataset=rows(range(NUM_TRAIN), f"{seed}:train"),
        eval_dataset=rows(range(NUM_TRAIN, NUM_TRAIN + NUM_EVAL), f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([right_seat]),
        policies={"clerk": clerk, "hasty": hasty},
        max_turns=max_turns,
    )
