"""Bus departures: find a departure in the timetable of a stop."""

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer the question with the timetable of the stop. Reply with the time as HH:MM in tags, for example <answer>14:05</answer>."
STOPS = ["Castle", "Fair", "Harbor", "Hospital", "Library", "Mill", "Stadium", "University"]


def clock(minutes):
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def departures(stop: str, state):
    """Return the departures of a stop, each with its time and line.

    Args:
        stop: name of the stop
    """
    timetable = state["info"]["timetable"]
    if stop not in timetable:
        raise ValueError(f"unknown stop; there are {', '.join(sorted(timetable))}")
    return timetable[stop]


def correct(completion, answer, parser):
    """1 if the last message gives the right time."""
    last = completion[-1]
    return float(last.role == "assistant" and parser.parse_answer([last]) == answer)


class BusEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.add_tool(departures, args_to_skip=["state"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}


def make_timetable(rng):
    timetable = {}
    for stop in rng.sample(STOPS, 4):
        times = sorted(rng.sample(range(6 * 60, 22 * 60), 24))
        timetable[stop] = [{"time": clock(time), "line": rng.randint(1, 4)} for time in times]
    return timetable


def make_row(rng):
    timetable = make_timetable(rng)
    while True:
        stop, line = rng.choice(sorted(timetable)), rng.randint(1, 4)
        after = clock(rng.randrange(6 * 60, 20 * 60))
        later = [entry["time"] for entry in timetable[stop] if entry["line"] == line and entry["time"] > after]
        if later:
            break
    question = f"When does the next bus of line {line} leave the stop {stop} after {after}?"
    return {"question": question, "answer": later[0], "info": {"timetable": timetable}}


def load_environment(num_examples: int = 120, seed: int = 0) -> vf.Environment:
    """Questions about timetables.

    Args:
        num_examples: Number of questions in each dataset; each has a timetable of its own.
        seed: Random seed of the timetables.
    """
    parser = vf.XMLParser(["answer"])
    return BusEnv(
        dataset=lambda: [make_row(random.Random(f"{seed}:train:{index}")) for index in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"{seed}:eval:{index}")) for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        max_turns=5,
    )
