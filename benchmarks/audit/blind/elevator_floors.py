"""Elevator floors: follow an elevator through a tall building with a deep basement and name the floor where it stops."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "The ground floor is 0, floors below it are negative. Work out where the elevator stops and answer with the "
    "number of the floor in tags, for example <answer>12</answer>."
)
LOWEST, HIGHEST = -30, 60


def normalize(text: str) -> str:
    """Return the text in lower case, without punctuation and spaces, so that "Floor 12." equals "12"."""
    text = re.sub(r"[^a-z0-9]", "", text.lower())
    return text.removeprefix("floor")


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the floor is right."""
    reply = parser.parse_answer(completion)
    return float(reply is not None and normalize(reply) == normalize(answer))


def rider(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Name the right floor."""
    return f"<answer>{state['answer']}</answer>"


def sleeper(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Miss the last move of the elevator."""
    return f"<answer>{state['info']['stops'][-2]}</answer>"


def make_row(rng: random.Random) -> dict[str, Any]:
    """Return one ride of three to five moves."""
    floor = rng.randint(-8, 12)
    sentences, stops = [f"An elevator starts at floor {floor}."], [floor]
    for _ in range(rng.randint(3, 5)):
        by = rng.choice([step for step in range(-17, 18) if abs(step) > 1 and LOWEST <= floor + step <= HIGHEST])
        floor += by
        stops.append(floor)
        sentences.append(f"It goes {'up' if by > 0 else 'down'} {abs(by)} floors.")
    return {
        "question": " ".join([*sentences, "At which floor does it stop?"]),
        "answer": str(floor),
        "info": {"stops": stops},
    }


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment of elevator rides.

    Args:
        num_examples: Number of rides in each dataset.
        seed: Random seed of the rides.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"rider": rider, "sleeper": sleeper},
    )
