"""Grid courier: carry a parcel through a town of blocked and free squares."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import rove as vf

SIZE = 8
SYSTEM_PROMPT = (
    "You are the courier C on a map. Bring the parcel to the house H. Squares marked # are blocked. "
    "In each turn, reply with one step: <step>north</step>, south, east or west. North is up."
)
STEPS = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}
Square = tuple[int, int]


def distances(blocked: set[Square], goal: Square) -> dict[Square, int]:
    """Return the number of steps from each square to the goal."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        row, column = queue.popleft()
        for down, right in STEPS.values():
            square = (row + down, column + right)
            if square not in found and square not in blocked and 0 <= min(square) and max(square) < SIZE:
                found[square] = found[row, column] + 1
                queue.append(square)
    return found


def draw(blocked: set[Square], goal: Square, at: Square) -> str:
    """Return the map."""
    signs = {**dict.fromkeys(blocked, "#"), goal: "H", at: "C"}
    return "\n".join("".join(signs.get((row, column), ".") for column in range(SIZE)) for row in range(SIZE))


class CourierEnv(vf.MultiTurnEnv):
    """A map on which the model moves until it arrives."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        blocked, goal = {tuple(square) for square in info["blocked"]}, tuple(info["goal"])
        state.update(blocked=blocked, goal=goal, at=tuple(info["start"]), closer=0)
        state["distances"] = distances(blocked, goal)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        step = (self.parser.parse_answer(messages) or "").strip().lower()
        if step not in STEPS:
            return "Please reply with one step, for example <step>north</step>."
        square = (state["at"][0] + STEPS[step][0], state["at"][1] + STEPS[step][1])
        if square not in state["distances"]:
            return f"You cannot go there.\n{draw(state['blocked'], state['goal'], state['at'])}"
        if state["distances"][square] < state["distances"][state["at"]]:
            state["closer"] += 1
        state["at"] = square
        if square == state["goal"]:
            state["final_env_response"] = "You have delivered the parcel."
            return None
        return draw(state["blocked"], state["goal"], square)


def delivered(state: vf.State) -> float:
    """Return 1 if the parcel was delivered."""
    return float(state["at"] == state["goal"])


def progress(state: vf.State) -> float:
    """Return the number of steps that brought the courier closer to the house."""
    return float(state["closer"])


def navigator(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a shortest path."""
    row, column = state["at"]
    known = state["distances"]
    best = min(STEPS, key=lambda step: known.get((row + STEPS[step][0], column + STEPS[step][1]), 999))
    return f"<step>{best}</step>"


def wanderer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a random step."""
    return f"<step>{rng.choice(sorted(STEPS))}</step>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    squares = [(row, column) for row in range(SIZE) for column in range(SIZE)]
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        while True:
            blocked = set(rng.sample(squares, rng.randint(8, 16)))
            goal = rng.choice([square for square in squares if square not in blocked])
            far = [square for square, steps in distances(blocked, goal).items() if 5 <= steps <= 10]
            if far:
                break
        start = rng.choice(sorted(far))
        info = {"blocked": sorted(map(list, blocked)), "goal": list(goal), "start": list(start)}
        rows.append({"question": draw(blocked, goal, start), "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 32) -> vf.Environment:
    """Return an environment with parcels to deliver.

    Args:
        num_examples: Number of maps in each dataset.
        seed: Random seed of the maps.
        max_turns: Maximum steps.
    """
    parser = vf.XMLParser(["step"], answer_field="step")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(delivered, weight=1.0)
    rubric.add_reward_func(progress, weight=0.1)
    return CourierEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"navigator": navigator, "wanderer": wanderer},
        max_turns=max_turns,
    )
