"""Funicular timetable: the model works out departures of mountain railways."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer with a time on the 24-hour clock, as <time>14:05</time>."
TRAINED_LINES = ("Ebnerjoch", "Rauhspitz", "Mont Gravel", "Colle Vecchio", "Sankt Ulla", "Petit Druz")
HELD_OUT_LINES = ("Hochgrindel", "Alpe Serena", "Bec d'Aile")


def clock(minutes: int) -> str:
    """Return a time of day for its minutes since midnight."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def read_time(text: str) -> int | None:
    """Return the minutes since midnight of a time such as 9:05 or 09:05."""
    found = re.fullmatch(r"([0-9]{1,2}):([0-9]{2})", text.strip())
    return int(found[1]) * 60 + int(found[2]) if found else None


def on_time(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the time is right."""
    return float(parser.parse_answer(completion) == read_time(answer))


def stationmaster(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Calculate the departure."""
    text = messages[-1].content
    hour, minute, headway = map(int, re.search(r"at (\d+):(\d+) and then one every (\d+)", text).groups())
    number = int(re.search(r"car number (\d+)", text)[1])
    return f"<time>{clock(hour * 60 + minute + headway * (number - 1))}</time>"


def tourist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Count one car too many in most cases."""
    answer = stationmaster(messages, state, rng)
    if rng.random() < 0.3:
        return answer
    minutes = read_time(re.search(r">(.*)<", answer)[1])
    headway = int(re.search(r"every (\d+)", messages[-1].content)[1])
    return f"<time>{clock(minutes + headway)}</time>"


def _rows(count: int, seed: int, split: str, lines: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(hash((split, seed, index)))
        line, start, headway, number = (
            rng.choice(lines),
            rng.randrange(330, 600),
            rng.randrange(7, 40),
            rng.randrange(3, 15),
        )
        question = (
            f"The {line} funicular sends its first car at {clock(start)} and then one every {headway} minutes. "
            f"When does car number {number} leave?"
        )
        rows.append({"question": question, "answer": clock(start + headway * (number - 1))})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment about departures of funiculars.

    Args:
        num_examples: Number of questions in each dataset; training and evaluation use different lines.
        seed: Random seed of the timetables.
    """
    parser = vf.XMLParser(["time"], answer_field="time", extract_fn=read_time)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, seed, "train", TRAINED_LINES),
        eval_dataset=lambda: _rows(num_examples, seed, "eval", HELD_OUT_LINES),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([on_time], parser=parser),
        policies={"stationmaster": stationmaster, "tourist": tourist},
    )
