"""Station names: which stop comes a few stations later?"""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer with the name of the station: <answer>station</answer>"
STATIONS = [
    "Ashford", "Bell's Corner", "Brackwater", "Castle Hill", "Dunmore", "East-Haven", "Elm Park", "Fairlight", "Glenside",
    "King's Gate", "Larkfield", "Little-Weston", "Marlow", "Mill Lane", "North-Quay", "Oakridge", "Port-Alden", "Queensbury",
    "Ravensworth", "St. Bride", "St. Olave", "Stonebridge", "Thornbury", "Upper-Kell", "Waterside", "Wexley",
]  # fmt: skip
STOPS = 10


def cleaned(text: str) -> str:
    """Return a text in small letters, without punctuation and doubled spaces."""
    return " ".join(re.sub(r"[^a-z0-9 ]", "", text.lower()).split())


def passenger(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Follow the line; leave at any stop in 15 % of the answers."""
    return f"<answer>{state['answer'] if rng.random() < 0.85 else rng.choice(state['info']['stops'])}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right station, whatever its capital letters and punctuation."""
    return float(cleaned(parser.parse_answer(completion) or "") == answer.lower())


def _row(rng: random.Random) -> dict[str, Any]:
    stops = rng.sample(STATIONS, STOPS)
    start, further = rng.randrange(3), rng.randint(2, 6)
    question = (
        f"The train stops at these stations, in this order: {', '.join(stops)}. "
        f"You get on at {stops[start]} and get off at the stop number {further} after it. Where do you get off?"
    )
    return {"question": question, "answer": stops[start + further], "info": {"stops": stops}}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [_row(rng) for _ in range(count)]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one line and one journey per example.

    Args:
        num_examples: Number of journeys.
        seed: Random seed of the dataset; evaluation lines differ from training lines.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"passenger": passenger},
    )
