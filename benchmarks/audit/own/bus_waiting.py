"""Bus waiting: how long until the next bus leaves?"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "How many minutes do you wait for the next bus? Answer <minutes>number</minutes>"
EVALUATION_SEED = 1_000_000


def clock(minutes: int) -> str:
    """Return a time of the day."""
    return f"{minutes // 60}:{minutes % 60:02}"


def commuter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Count on from the first bus; take the bus before in 20 % of the answers."""
    info = state["info"]
    since = (info["arrival"] - info["first"]) % info["every"]
    return f"<minutes>{since if rng.random() < 0.2 else -since % info['every']}</minutes>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right number of minutes."""
    return float(parser.parse_answer(completion) == answer)


def _row(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    first, every = rng.randint(4 * 60, 7 * 60), rng.randint(17, 59)
    arrival = rng.randint(8 * 60, 22 * 60)
    question = (
        f"The first bus leaves at {clock(first)}, then one every {every} minutes. You arrive at {clock(arrival)}."
    )
    info = {"first": first, "every": every, "arrival": arrival}
    return {"question": question, "answer": str((first - arrival) % every), "info": info}


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one timetable per example.

    Args:
        num_examples: Number of timetables.
        seed: Random seed of the dataset; evaluation timetables differ from training timetables.
    """
    parser = vf.XMLParser(["minutes"], answer_field="minutes")
    return vf.SingleTurnEnv(
        dataset=lambda: [_row(seed + index) for index in range(num_examples)],
        eval_dataset=lambda: [_row(EVALUATION_SEED + seed + index) for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"commuter": commuter},
    )
