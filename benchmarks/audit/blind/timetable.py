"""Timetable: when does the next train leave? The departures are only available through a tool."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Find the next train with the tool departures(station). "
    "Then reply with its time of departure and nothing else, for example: 08:15"
)
STATIONS = ("Alder", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Juniper", "Larch", "Maple", "Oak", "Pine", "Rowan")


def departures(station: str, state: vf.State) -> str:
    """Return today's departures from a station, as a list of times and destinations.

    Args:
        station: name of the station
    """
    boards = state["info"]["boards"]
    if station not in boards:
        raise ValueError(f"unknown station; the stations are {', '.join(sorted(boards))}")
    return json.dumps(boards[station])


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the last reply is the right time."""
    last = completion[-1]
    return float(last.role == "assistant" and (last.content or "").strip() == answer)


def traveler(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the departures and pick the next train."""
    start, end, time = re.search(r"from (\w+) to (\w+) after (\d\d:\d\d)", messages[1].content).groups()
    if not state["trajectory"]:
        return vf.tool_call("departures", station=start)
    return min(
        train["time"] for train in json.loads(messages[-1].content) if train["to"] == end and train["time"] > time
    )


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Take the next train, wherever it goes."""
    start, time = re.search(r"from (\w+) to \w+ after (\d\d:\d\d)", messages[1].content).groups()
    if not state["trajectory"]:
        return vf.tool_call("departures", station=start)
    return min(train["time"] for train in json.loads(messages[-1].content) if train["time"] > time)


class TimetableEnv(vf.StatefulToolEnv):
    """An environment with a timetable for each question."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.add_tool(departures, args_to_skip=["state"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _rows(count: int, seed: str, taken: set[str]) -> list[dict[str, Any]]:
    """Return `count` rows whose questions are not in `taken`, and add them to it."""
    rows: list[dict[str, Any]] = []
    index = 0
    while len(rows) < count:
        rng = random.Random(f"{seed}:{index}")
        index += 1
        stations = rng.sample(STATIONS, 5)
        boards = {}
        for station in stations:
            others = [other for other in stations if other != station]
            times = sorted(rng.sample(range(5 * 60, 23 * 60), 16))
            boards[station] = [{"time": _clock(time), "to": rng.choice(others)} for time in times]
        start = stations[0]
        train = rng.choice(boards[start][3:])
        before = max(
            (t["time"] for t in boards[start] if t["to"] == train["to"] and t["time"] < train["time"]), default="05:00"
        )
        earliest, latest = (int(time[:2]) * 60 + int(time[3:]) for time in (before, train["time"]))
        if latest - earliest < 2:
            continue
        time = _clock(rng.randint(earliest + 1, latest - 1))
        question = f"I want to travel from {start} to {train['to']} after {time}. When does the next train leave?"
        if question not in taken:
            taken.add(question)
            rows.append({"question": question, "answer": train["time"], "info": {"boards": boards}})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 5) -> vf.Environment:
    """Return an environment with questions about departures.

    Args:
        num_examples: Number of questions in each dataset; each has its own timetable.
        seed: Random seed of the timetables; evaluation questions do not occur in training.
        max_turns: Maximum model turns.
    """
    taken: set[str] = set()
    eval_rows = _rows(num_examples, f"{seed}:eval", taken)
    return TimetableEnv(
        dataset=_rows(num_examples, f"{seed}:train", taken),
        eval_dataset=eval_rows,
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
        policies={"traveler": traveler, "hasty": hasty},
        max_turns=max_turns,
    )
