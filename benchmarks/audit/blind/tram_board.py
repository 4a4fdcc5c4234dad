"""Tram board: find the next departure on the board of a tram stop."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer questions about trams. The tool departures shows the board of a stop. Reply with the time only, as HH:MM in tags: "
    "<time>09:05</time>"
)
STOPS = ["Harbor", "Town Hall", "Museum", "Stadium", "Hospital", "Market", "University", "Old Mill"]
LINES = ["1", "2", "4", "7", "9"]


def clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def make_row(rng: random.Random) -> dict[str, Any]:
    boards = {}
    for stop in rng.sample(STOPS, 4):
        times = sorted(rng.sample(range(360, 1380), 16))
        boards[stop] = [{"time": clock(time), "line": rng.choice(LINES)} for time in times]
    while True:
        stop, entry = rng.choice(list(boards)), rng.randrange(16)
        line, hour, minute = boards[stop][entry]["line"], *map(int, boards[stop][entry]["time"].split(":"))
        after = clock(max(300, hour * 60 + minute - rng.randint(1, 90)))
        upcoming = [item for item in boards[stop] if item["time"] > after]
        later = [item["time"] for item in upcoming if item["line"] == line]
        if upcoming[0]["line"] != line:
            break
    question = f"When does the first tram of line {line} after {after} leave {stop}?"
    info = {"boards": boards, "stop": stop, "line": line, "after": after}
    return {"question": question, "answer": later[0], "info": info}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def departures(stop: str, boards: dict[str, Any]) -> str:
    """Show the board of a stop: one departure per line, with its time and the line of the tram.

    Args:
        stop: Name of the stop.
    """
    if stop not in boards:
        raise ValueError(f"no board for {stop}; there are boards for {', '.join(boards)}")
    return "\n".join(f"{entry['time']} line {entry['line']}" for entry in boards[stop])


def right_time(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the last reply has exactly the right time in its tags."""
    last = completion[-1]
    return float(last["role"] == "assistant" and parser.parse_answer([last]) == answer)


def rider(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the board and find the departure."""
    info = state["info"]
    if not state["trajectory"]:
        return vf.tool_call("departures", stop=info["stop"])
    entries = [entry.split(" line ") for entry in str(messages[-1].content).splitlines()]
    return f"<time>{next(time for time, line in entries if line == info['line'] and time > info['after'])}</time>"


def tourist(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the board but take the next tram of any line."""
    info = state["info"]
    if not state["trajectory"]:
        return vf.tool_call("departures", stop=info["stop"])
    times = [entry.split(" line ")[0] for entry in str(messages[-1].content).splitlines()]
    return f"<time>{next(time for time in times if time > info['after'])}</time>"


class TramEnv(vf.StatefulToolEnv):
    """An environment whose boards are part of the question and visible only through the tool."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.add_tool(departures, args_to_skip=["boards"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "boards": state["info"]["boards"]}


def load_environment(num_examples: int = 300, num_eval_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about departures.

    Args:
        num_examples: Number of training questions.
        num_eval_examples: Number of evaluation questions.
        seed: Random seed of the boards.
    """
    parser = vf.XMLParser(["time"], answer_field="time")
    return TramEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([right_time], parser=parser),
        policies={"rider": rider, "tourist": tourist},
        max_turns=5,
    )
