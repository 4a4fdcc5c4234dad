"""Book the seat that a passenger wants."""

import functools
import random
from typing import Any

import rove as vf

LETTERS = "ABCDEF"
KIND = {"A": "window", "B": "middle", "C": "aisle", "D": "aisle", "E": "middle", "F": "window"}


class Cabin:
    """The seats of a flight; `free` is the set of seats that can be booked."""

    def __init__(self, flight: str):
        rng = random.Random(f"cabin {flight}")
        self.rows = rng.randint(8, 14)
        self.exit_row = rng.randint(3, self.rows - 2)
        every = [f"{row}{letter}" for row in range(1, self.rows + 1) for letter in LETTERS]
        self.free = set(rng.sample(every, rng.randint(12, 26)))

    def plan(self) -> str:
        lines = []
        for row in range(1, self.rows + 1):
            seats = "".join(letter if f"{row}{letter}" in self.free else "-" for letter in LETTERS)
            lines.append(f"{row:>2} {seats[:3]} {seats[3:]}" + (" exit" if row == self.exit_row else ""))
        return "\n".join(lines)

    def book(self, seat: str) -> None:
        if seat not in self.free:
            raise ValueError(f"seat {seat} is not free")
        self.free.remove(seat)


@functools.lru_cache(maxsize=None)
def cabin(flight: str) -> Cabin:
    return Cabin(flight)


def wanted(plan: Cabin, wish: dict[str, Any]) -> list[str]:
    """All free seats that fit, the frontmost first."""
    fits = [
        seat
        for seat in plan.free
        if KIND[seat[-1]] == wish["kind"]
        and (wish["half"] == "any" or (int(seat[:-1]) <= plan.rows // 2) == (wish["half"] == "front"))
        and not (wish["no_exit"] and int(seat[:-1]) == plan.exit_row)
    ]
    return sorted(fits, key=lambda seat: (int(seat[:-1]), seat[-1]))


class SeatEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any):
        super().__init__(parallel_calls=False, **kwargs)
        self.add_tool(self.seat_plan, args_to_skip=["state"])
        self.add_tool(self.book_seat, args_to_skip=["state"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["booked"] = None

    async def seat_plan(self, flight: str, state: vf.State) -> str:
        """Show the seats of a flight: a letter is a free seat, - a taken one."""
        if flight != state["info"]["flight"]:
            raise ValueError(f"no flight {flight} today")
        return cabin(flight).plan()

    async def book_seat(self, flight: str, seat: str, state: vf.State) -> str:
        """Book a seat, for example 7C. A booking is final."""
        if flight != state["info"]["flight"]:
            raise ValueError(f"no flight {flight} today")
        if state["booked"]:
            raise ValueError("the passenger already has a seat")
        cabin(flight).book(seat)
        state["booked"] = seat
        return f"booked {seat} on {flight}"


def right_seat(state: vf.State, answer: str) -> float:
    return float(state["booked"] == answer)


def booked_any(state: vf.State) -> float:
    return float(state["booked"] is not None)


def sentence(flight: str, wish: dict[str, Any]) -> str:
    text = f"Book me a seat on {flight}: {wish['kind']}"
    if wish["half"] != "any":
        text += f", in the {wish['half']} half"
    if wish["no_exit"]:
        text += ", not in the exit row"
    return text + ". As far to the front as possible; in the same row, the first letter."


def make_rows(count: int, split: str) -> list[dict[str, Any]]:
    rng = random.Random(f"seats {split}")
    rows, number = [], {"train": 1000, "eval": 5000}[split]
    while len(rows) < count:
        number += 1
        flight = f"{rng.choice(['RK', 'TN', 'VO'])}{number}"
        wish = {
            "kind": rng.choice(["window", "aisle", "middle"]),
            "half": rng.choice(["front", "back", "any"]),
            "no_exit": rng.random() < 0.4,
        }
        fits = wanted(cabin(flight), wish)
        if fits:
            row = {"question": sentence(flight, wish), "answer": fits[0], "info": {"flight": flight, "wish": wish}}
            rows.append(row)
    return rows


def clerk(messages, state, rng):
    """Look at the plan, then book the right seat."""
    turn, info = len(state["trajectory"]), state["info"]
    if turn == 0:
        return vf.tool_call("seat_plan", flight=info["flight"])
    if turn == 1:
        return vf.tool_call("book_seat", flight=info["flight"], seat=state["answer"])
    return "Your seat is booked."


def careless(messages, state, rng):
    """Book any free seat of the right kind."""
    turn, info = len(state["trajectory"]), state["info"]
    if turn == 0:
        return vf.tool_call("seat_plan", flight=info["flight"])
    if turn == 1:
        free = []
        for line in messages[-1].content.splitlines():
            row, *blocks = line.split()
            free += [row + letter for letter in "".join(blocks[:2]) if KIND.get(letter) == info["wish"]["kind"]]
        return vf.tool_call("book_seat", flight=info["flight"], seat=rng.choice(free or ["1A"]))
    return "Your seat is booked."


def load_environment(num_train: int = 240, num_eval: int = 80, max_turns: int = 5) -> vf.Environment:
    rubric = vf.Rubric([right_seat])
    rubric.add_metric(booked_any)
    return SeatEnv(
        dataset=lambda: make_rows(num_train, "train"),
        eval_dataset=lambda: make_rows(num_eval, "eval"),
        system_prompt="You book seats for an airline. Look at the seat plan before you book, then confirm.",
        rubric=rubric,
        policies={"clerk": clerk, "careless": careless},
        max_turns=max_turns,
    )
