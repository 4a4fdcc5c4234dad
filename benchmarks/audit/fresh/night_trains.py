"""Night trains: how many minutes does a journey take?"""

from __future__ import annotations

import datetime
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Work out how long the journey takes from departure to arrival. All times are those of one time zone.\n"
    "Answer <answer>minutes</answer>, a whole number."
)
TOWNS = (
    "Aldern Birka Corvey Drumm Esk Farrow Gault Harrick Issel Jarrow Kell Lorne Marsk Norden Oster Perrin Quill Rosk "
    "Selm Tarn Ulm Varn Wessel Yarrow"
).split()
START = datetime.datetime(2024, 1, 1)


def spoken(moment: datetime.datetime) -> str:
    """Return a moment as in "Tuesday 5 March at 22:40"."""
    return f"{moment:%A} {moment.day} {moment:%B at %H:%M}"


def whole_number(text: str) -> int | None:
    """Return the number that a text stands for; "1,250" and "95 minutes" are numbers."""
    found = re.fullmatch(r"\s*([0-9][0-9,]{0,9})\s*(?:min|mins|minutes)?\.?\s*", text)
    return int(found[1].replace(",", "")) if found else None


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right number of minutes."""
    return float(parser.parse_answer(completion) == int(answer))


def close(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the number is at most an hour off."""
    minutes = parser.parse_answer(completion)
    return float(minutes is not None and abs(minutes - int(answer)) <= 60)


def conductor(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Know the timetable by heart."""
    return f"<answer>{state['answer']}</answer>"


def sleeper(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Be an hour off in half of all journeys."""
    return f"<answer>{int(state['answer']) + rng.choice((0, 60))}</answer>"


def _journey(rng: random.Random) -> tuple[datetime.datetime, list[int], datetime.datetime]:
    """Return departure, the minutes of every leg and stop on the way, and arrival."""
    departure = START + datetime.timedelta(days=rng.randrange(364), minutes=rng.randrange(18 * 60, 24 * 60))
    parts = [rng.randint(150, 720)]
    for _ in range(rng.randint(0, 3)):
        parts += [rng.randint(10, 90), rng.randint(150, 600)]
    return departure, parts, departure + datetime.timedelta(minutes=sum(parts))


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        departure, parts, arrival = _journey(rng)
        start, end, *via = rng.sample(TOWNS, 2 + len(parts) // 2)
        question = f"A night train leaves {start} on {spoken(departure)}"
        if via:
            question += f", stops in {' and '.join(via)}"
        question += f" and arrives in {end} on {spoken(arrival)}. How many minutes does the journey take?"
        minutes = (arrival - departure).seconds // 60
        rows.append({"question": question, "answer": str(minutes), "info": {"stops": len(via)}})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about journeys.

    Args:
        num_examples: Number of journeys in each dataset.
        seed: Random seed; the journeys for evaluation are drawn apart from those for training.
    """
    parser = vf.XMLParser(["answer"], extract_fn=whole_number)
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(close)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"conductor": conductor, "sleeper": sleeper},
    )
