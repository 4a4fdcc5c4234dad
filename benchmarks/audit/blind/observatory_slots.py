"""Observatory slots: the model books time at a public telescope."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You book time at a public observatory. See which hours of the night are taken, then book the earliest free hour that "
    "suits the visitor's object. Say in one sentence what you have booked."
)
HOURS = ("20:00", "21:00", "22:00", "23:00", "00:00", "01:00", "02:00", "03:00")
OBJECTS = (
    "the Owl Nebula",
    "the Double Cluster",
    "the moons of Jupiter",
    "the Ring Nebula",
    "Saturn",
    "the Sombrero Galaxy",
    "the Whirlpool Galaxy",
    "Albireo",
    "the Crab Nebula",
    "Uranus",
    "the Beehive Cluster",
    "Neptune",
)
TRAINED_MONTHS = ("January", "February", "March", "April", "September", "October")
HELD_OUT_MONTHS = ("November", "December")


def booked_right(state: vf.State, answer: str) -> float:
    """Return 1 if exactly the right hour was booked."""
    return float(state["booked"] == [answer])


def refused(state: vf.State) -> float:
    """Return the number of bookings that failed."""
    return float(state["refused"])


class ObservatoryEnv(vf.StatefulToolEnv):
    """An environment with the calendar of an observatory."""

    calendar: dict[str, set[str]] = {}

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(self.taken_hours)
        self.add_tool(self.book, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        self.calendar.setdefault(state["info"]["night"], set(state["info"]["taken"]))
        state.update(booked=[], refused=0)

    def taken_hours(self, night: str) -> list[str]:
        """Return the hours of a night that are already taken.

        Args:
            night: day and month, such as "4 March"
        """
        if night not in self.calendar:
            raise ValueError("the observatory is closed in this night")
        return [hour for hour in HOURS if hour in self.calendar[night]]

    def book(self, night: str, hour: str, state: vf.State) -> str:
        """Book the telescope.

        Args:
            night: day and month, such as "4 March"
            hour: full hour, such as "21:00"
        """
        if night != state["info"]["night"] or hour not in HOURS or hour in self.calendar[night]:
            state["refused"] += 1
            raise ValueError(f"{hour} on {night} is not available")
        self.calendar[night].add(hour)
        state["booked"].append(hour)
        return f"Booked {hour} on {night}."

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state} if tool_name == "book" else tool_args


def _rows(count: int, seed: str, months: tuple[str, ...]) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    nights = [f"{day} {month}" for month in months for day in range(1, 31 if month != "February" else 29)]
    rng.shuffle(nights)
    rows = []
    for night in nights[:count]:
        rises = rng.randrange(0, 5)
        taken = {hour for hour in HOURS if rng.random() < 0.55}
        free = [hour for hour in HOURS[rises:] if hour not in taken]
        if not free:
            free = [rng.choice(HOURS[rises:])]
            taken.discard(free[0])
        question = (
            f"A visitor wants to see {rng.choice(OBJECTS)} in the night of {night}. It stands high enough from {HOURS[rises]} "
            f"on. The hours of a night are {', '.join(HOURS)}."
        )
        info = {"night": night, "taken": sorted(taken)}
        rows.append({"question": question, "answer": free[0], "info": info})
    return rows


def load_environment(num_examples: int = 150, seed: int = 0, max_turns: int = 5) -> vf.Environment:
    """Return an environment in which hours at a telescope are booked.

    Args:
        num_examples: Maximum number of nights in each dataset; the evaluation has 60 nights of other months.
        seed: Random seed of the nights.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([booked_right])
    rubric.add_metric(refused)
    return ObservatoryEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", TRAINED_MONTHS),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", HELD_OUT_MONTHS),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        max_turns=max_turns,
    )
