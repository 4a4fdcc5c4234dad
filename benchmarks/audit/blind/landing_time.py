"""Landing time: convert a departure, a flight duration, and two time zones into a local landing time."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Compute the local time at which the flight lands. Answer <time>HH:MM</time> with a 24-hour clock."
ZONES = {
    "Lisbon": 0, "Oslo": 60, "Athens": 120, "Nairobi": 180, "Dubai": 240, "Karachi": 300, "Delhi": 330, "Dhaka": 360,
    "Hanoi": 420, "Perth": 480, "Osaka": 540, "Halifax": -240, "Toronto": -300, "Chicago": -360, "Denver": -420,
}  # fmt: skip
CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def offset(city: str) -> str:
    minutes = ZONES[city]
    return f"UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def clock(minutes: int) -> str:
    minutes %= 24 * 60
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def make_row(rng: random.Random) -> dict[str, Any]:
    start, end = rng.sample(list(ZONES), 2)
    departure, duration = rng.randrange(0, 1440, 5), rng.randrange(75, 960, 5)
    question = (
        f"A flight leaves {start} ({offset(start)}) at {clock(departure)} local time and takes {duration // 60} h "
        f"{duration % 60:02d} min. When does it land in {end} ({offset(end)})?"
    )
    answer = clock(departure - ZONES[start] + duration + ZONES[end])
    return {"question": question, "answer": answer, "info": {"unshifted": clock(departure + duration)}}


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    return [make_row(random.Random(seed + index)) for index in range(count)]


def on_time(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right time; a missing leading zero does not matter."""
    match = CLOCK.fullmatch((parser.parse_answer(completion) or "").strip())
    return float(match is not None and f"{int(match[1]):02d}:{match[2]}" == answer)


def navigator(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right time."""
    return f"<time>{state['answer']}</time>"


def stay_at_home(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Ignore the time zones."""
    return f"<time>{state['info']['unshifted']}</time>"


def load_environment(num_examples: int = 500, num_eval_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with landing times.

    Args:
        num_examples: Number of training questions.
        num_eval_examples: Number of evaluation questions.
        seed: Random seed of the questions.
    """
    parser = vf.XMLParser(["time"], answer_field="time")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed),
        eval_dataset=lambda: rows(num_eval_examples, seed + 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([on_time], parser=parser),
        policies={"navigator": navigator, "stay_at_home": stay_at_home},
    )
