"""Walk home: walk over a field to a house."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Walk to the house. Answer <step>north, south, east or west</step>"
STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
FARTHEST, MAX_STEPS = 4, 8


def show(house: list[int]) -> str:
    """Return where the house is, seen from the walker."""
    east, north = house
    sides = ((abs(east), "east" if east > 0 else "west"), (abs(north), "north" if north > 0 else "south"))
    return f"The house is {' and '.join(f'{far} {side}' for far, side in sides if far)}."


def walker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a step toward the house; any step in 5 % of the turns."""
    east, north = state["house"]
    good = [step for step, (x, y) in STEPS.items() if x * east + y * north > 0]
    return f"<step>{rng.choice(list(STEPS) if rng.random() < 0.05 else good)}</step>"


class WalkHomeEnv(vf.MultiTurnEnv):
    """An environment that shows after every step where the house is."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(house=list(state["info"]["house"]))

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        x, y = STEPS.get(self.parser.parse_answer(messages), (0, 0))
        state["house"] = [state["house"][0] - x, state["house"][1] - y]
        if any(state["house"]) and len(state["trajectory"]) < MAX_STEPS:
            return show(state["house"])
        state["final_env_response"] = "It is night." if any(state["house"]) else "You are at home."
        return None


def distance(house: list[int]) -> int:
    """Return the number of steps to the house."""
    return sum(map(abs, house))


def progress(state: vf.State, info: dict[str, Any]) -> float:
    """Return the share of the way that is done at the end; steps away from the house take it back."""
    return max(0.0, 1 - distance(state["house"]) / distance(info["house"]))


def arrived(state: vf.State) -> float:
    """Return 1 for a walk that ends at the house."""
    return float(not any(state["house"]))


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng, span = random.Random(seed), range(-FARTHEST, FARTHEST + 1)
    houses = [[x, y] for x in span for y in span if 2 <= distance([x, y]) <= 6]
    numbers = rng.sample(range(10 + evaluation, 9999, 2), count)
    rows = []
    for number in numbers:
        house = rng.choice(houses)
        rows.append({"question": f"Walk {number}. {show(house)}", "info": {"house": house}})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with one walk per example; the reward is half for progress, half for the arrival, 0 to 1.

    Args:
        num_examples: Number of walks.
        seed: Random seed of the dataset; evaluation walks differ from training walks.
    """
    parser = vf.XMLParser(["step"], answer_field="step")
    return WalkHomeEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([progress, arrived], [0.5, 0.5], parser=parser),
        policies={"walker": walker},
        max_turns=MAX_STEPS,
    )
