"""Mini golf: choose a club for each stroke until the ball is in the hole."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Play the hole with as few strokes as possible. Each club moves the ball exactly its length towards the hole; a "
    "ball that rolls too far lies behind the hole, and the next stroke goes back. The ball is in when the distance is 0. "
    "Answer with the name of a club: <club>putter</club>"
)
CLUBS = ("putter", "wedge", "iron", "driver")


def strokes_needed(distance: int, clubs: dict[str, int]) -> dict[int, int]:
    """Return distance → strokes from the start, for all distances that can be reached."""
    strokes, queue = {distance: 0}, deque([distance])
    while queue:
        here = queue.popleft()
        for length in clubs.values():
            there = abs(here - length)
            if there not in strokes:
                strokes[there] = strokes[here] + 1
                queue.append(there)
    return strokes


def best_club(distance: int, clubs: dict[str, int]) -> str:
    """Return the first club of a shortest way to the hole."""
    return min(clubs, key=lambda club: strokes_needed(abs(distance - clubs[club]), clubs).get(0, 99))


class MiniGolfEnv(vf.MultiTurnEnv):
    """An environment with one hole per example."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(distance=state["info"]["distance"], strokes=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        club, clubs = self.parser.parse_answer(messages), state["info"]["clubs"]
        if club not in clubs:
            state["final_env_response"] = "There is no such club. The hole is over."
            return None
        state["strokes"] += 1
        state["distance"] = abs(state["distance"] - clubs[club])
        if state["distance"] == 0:
            state["final_env_response"] = f"In the hole after {state['strokes']} strokes."
            return None
        if state["strokes"] >= 2 * state["info"]["par"]:
            state["final_env_response"] = "Too many strokes. The hole is over."
            return None
        return f"{state['distance']} m"


def card(state: vf.State) -> float:
    """Return 1 for par or better, falling to 0 at twice par; 0 without a stroke."""
    if state["strokes"] == 0:
        return 0.0
    par = state["info"]["par"]
    return max(0.0, min(1.0, (2 * par - state["strokes"]) / par))


def strokes(state: vf.State) -> float:
    return float(state["strokes"])


def caddie(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play a shortest way to the hole."""
    return f"<club>{best_club(state['distance'], state['info']['clubs'])}</club>"


def beginner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play a random club."""
    return f"<club>{rng.choice(sorted(state['info']['clubs']))}</club>"


def _rows(count: int, seed: str, taken: set[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    index = 0
    while len(rows) < count:
        rng = random.Random(f"{seed}:{index}")
        index += 1
        lengths = (rng.randint(2, 6), rng.randint(8, 14), rng.randint(17, 26), rng.randint(31, 45))
        clubs, distance = dict(zip(CLUBS, lengths)), rng.randint(20, 120)
        par = strokes_needed(distance, clubs).get(0, 0)
        if not 3 <= par <= 6:
            continue
        bag = ", ".join(f"{club} {length} m" for club, length in clubs.items())
        question = f"Clubs: {bag}. Par {par}. The hole is {distance} m away."
        if question not in taken:
            taken.add(question)
            rows.append({"question": question, "info": {"distance": distance, "clubs": clubs, "par": par}})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model plays mini golf.

    Args:
        num_examples: Number of holes in each dataset.
        seed: Random seed of the holes; holes of the evaluation do not occur in training.
    """
    taken: set[str] = set()
    eval_rows = _rows(num_examples, f"{seed}:eval", taken)
    parser = vf.XMLParser(["club"], answer_field="club")
    rubric = vf.Rubric([card], parser=parser)
    rubric.add_metric(strokes)
    return MiniGolfEnv(
        dataset=_rows(num_examples, f"{seed}:train", taken),
        eval_dataset=eval_rows,
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"caddie": caddie, "beginner": beginner},
        max_turns=12,
    )
