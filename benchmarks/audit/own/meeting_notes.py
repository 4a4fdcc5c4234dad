"""Meeting notes: find who booked which room in a list of bookings."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer from the bookings, with the first name only: <answer>name</answer>"
NAMES = (
    "Adele Bruno Carla Dmitri Esther Farid Greta Hugo Irene Jonas Katya Leon Maren Nils Olga Pavel Quentin Rosa Stefan Tilda "
    "Ulrich Vera Walter Yara"
).split()
ROOMS = "Birch Cedar Elm Hazel Maple Oak Pine Willow".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday".split()
BOOKINGS = 9


def reader(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Find the line in the bookings; take a wrong line in 20 % of the answers."""
    lines = messages[-1].content.split("\n")[:BOOKINGS]
    names = [line.split(": ")[1].split()[0] for line in lines]
    return f"<answer>{state['answer'] if rng.random() < 0.8 else rng.choice(names)}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right name."""
    return float(parser.parse_answer(completion) == answer)


def _row(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(NAMES, BOOKINGS)
    places = rng.sample([(day, room) for day in DAYS for room in ROOMS], BOOKINGS)
    hours = [rng.randint(8, 17) for _ in names]
    lines = [
        f"{day}, {hour}:00: {name} has the room {room} for {rng.randint(2, 12)} people."
        for name, (day, room), hour in zip(names, places, hours)
    ]
    target = rng.randrange(BOOKINGS)
    day, room = places[target]
    question = "\n".join([*lines, f"Who has the room {room} on {day}?"])
    return {"question": question, "answer": names[target]}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [_row(rng) for _ in range(count)]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with nine bookings and one question per example.

    Args:
        num_examples: Number of questions.
        seed: Random seed of the dataset; evaluation bookings differ from training bookings.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"reader": reader},
    )
