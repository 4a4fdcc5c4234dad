"""Read a bus timetable and find the first bus that fits."""

from __future__ import annotations

import csv
import io
import random
import re
from dataclasses import dataclass

import rove as vf

STOPS_CSV = """line,stops,minutes
A,Harbour>Market>Library>Clinic>Depot,0>6>11>19>27
B,Station>Market>School>Clinic,0>4>12>21
C,Depot>School>Library>Harbour,0>8>15>26
D,Station>Park>Library>Museum>Depot,0>5>13>18>30
E,Museum>Market>Park>Harbour,0>7>12>24
"""
PROMPT = (
    "Name the bus that arrives first: its line, and the time at which it leaves your stop. Form: Answer: A 09:15\n"
    "If no bus fits, reply: Answer: none\nThe last line of your reply must be the answer."
)
ANSWER = re.compile(r"Answer: (none|[A-E] \d\d:\d\d)")


@dataclass(frozen=True)
class Line:
    name: str
    offsets: dict[str, int]


def lines() -> list[Line]:
    found = []
    for record in csv.DictReader(io.StringIO(STOPS_CSV)):
        minutes = map(int, record["minutes"].split(">"))
        found.append(Line(record["line"], dict(zip(record["stops"].split(">"), minutes))))
    return found


LINES = lines()


def clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def first_bus(departures, origin, target, earliest, latest):
    """Return (line, departure at the origin) of the bus that arrives first, or None. Departures are at each first stop."""
    options = []
    for line in LINES:
        if origin not in line.offsets or target not in line.offsets:
            continue
        if line.offsets[origin] >= line.offsets[target]:
            continue
        for start in departures[line.name]:
            leave, arrive = start + line.offsets[origin], start + line.offsets[target]
            if leave >= earliest and arrive <= latest:
                options.append((arrive, leave, line.name))
    arrivals = sorted(option[0] for option in options)
    if len(arrivals) > 1 and arrivals[0] == arrivals[1]:
        raise LookupError("two buses arrive at the same time")
    if not options:
        return None
    _, leave, name = min(options)
    return name, leave


def make(rng):
    stops = sorted({stop for line in LINES for stop in line.offsets})
    while True:
        departures = {line.name: sorted(rng.sample(range(7 * 60, 11 * 60, 5), 3)) for line in LINES}
        origin, target = rng.sample(stops, 2)
        earliest = rng.randrange(7 * 60, 10 * 60, 5)
        try:
            best = first_bus(departures, origin, target, earliest, earliest + 110)
        except LookupError:
            continue
        if best is None and rng.random() < 0.65:
            continue
        break
    table = "\n".join(
        f"Line {line.name}: "
        + ", ".join(f"{stop} +{offset}" for stop, offset in line.offsets.items())
        + " | starts "
        + " ".join(map(clock, departures[line.name]))
        for line in LINES
    )
    question = (
        f"{table}\n(+n: minutes after the start of the line; buses run in this direction only.)\n"
        f"You are at {origin} from {clock(earliest)} and must be at {target} by {clock(earliest + 110)}, "
        "without changing buses. Which bus do you take?"
    )
    return question, best


def row(rng):
    question, best = make(rng)
    return {"question": question, "answer": "none" if best is None else f"{best[0]} {clock(best[1])}"}


def right(completion, answer):
    """1 if the last line is the answer in the required form."""
    text = str(completion[-1].content or "").rstrip()
    match = ANSWER.fullmatch(text.rsplit("\n", 1)[-1].strip())
    return float(match is not None and match[1] == answer)


def form(completion):
    text = str(completion[-1].content or "").rstrip()
    return float(ANSWER.fullmatch(text.rsplit("\n", 1)[-1].strip()) is not None)


def timetable_reader(messages, state, rng):
    return f"I compared the arrival times.\nAnswer: {state['answer']}"


def optimist(messages, state, rng):
    """Take the first departure of a random line."""
    starts = re.findall(r"Line (\w):.*?starts (\d\d:\d\d)", messages[-1].content)
    return "Answer: {} {}".format(*rng.choice(starts))


def load_environment(num_examples: int = 250, seed: int = 0) -> vf.Environment:
    def split(name):
        return [row(random.Random(f"bus:{seed}:{name}:{i}")) for i in range(num_examples)]

    rubric = vf.Rubric([right])
    rubric.add_metric(form)
    return vf.SingleTurnEnv(
        dataset=lambda: split("train"),
        eval_dataset=lambda: split("eval"),
        system_prompt=PROMPT,
        rubric=rubric,
        policies={"timetable_reader": timetable_reader, "optimist": optimist},
    )
