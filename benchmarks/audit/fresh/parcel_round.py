"""Parcel round: a courier on a small grid brings parcels to the depot, one at a time."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SIZE = 5
STEPS = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}
TAKEN, DELIVERED = 1, 3
"""Points for a parcel that is taken up, and for one that is delivered."""
SYSTEM_PROMPT = (
    f"You are a courier on a grid of {SIZE} by {SIZE} squares; x grows to the east, y to the south. Bring all parcels to "
    "the depot. You can carry one parcel at a time. Your moves: north, south, west, east (one square), take (the parcel "
    "on your square), drop (what you carry; on the depot this delivers it). Answer <move>one move</move>"
)
Square = tuple[int, int]


class ParcelEnv(vf.MultiTurnEnv):
    """Moves the courier, until everything is delivered or time is up."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state.update(at=tuple(info["start"]), carries=False, points=0, delivered=0)
        state["parcels"] = [tuple(square) for square in info["parcels"]]

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        move = (self.parser.parse_answer(messages) or "").lower()
        result = self._play(state, move)
        if state["delivered"] == len(state["info"]["parcels"]):
            state["final_env_response"] = "All parcels are delivered."
            return None
        return f"{result}\n{view(state)}"

    def _play(self, state: vf.State, move: str) -> str:
        at, depot = state["at"], tuple(state["info"]["depot"])
        if move in STEPS:
            x, y = at[0] + STEPS[move][0], at[1] + STEPS[move][1]
            if not (0 <= x < SIZE and 0 <= y < SIZE):
                return "That is beyond the edge."
            state["at"] = (x, y)
            return f"You go {move}."
        if move == "take" and not state["carries"] and at in state["parcels"]:
            state["parcels"].remove(at)
            state["carries"] = True
            state["points"] += TAKEN
            return "You take the parcel."
        if move == "drop" and state["carries"]:
            state["carries"] = False
            if at == depot:
                state["delivered"] += 1
                state["points"] += DELIVERED
                return "Delivered."
            state["parcels"].append(at)
            return "You put the parcel down."
        return "That is not possible here."


def view(state: vf.State) -> str:
    """Return what the courier knows."""
    parcels = ", ".join(map(str, state["parcels"])) or "none"
    carries = "a parcel" if state["carries"] else "nothing"
    return f"You are at {state['at']} and carry {carries}. Parcels: {parcels}. Depot: {tuple(state['info']['depot'])}."


def progress(state: vf.State) -> float:
    """Return the share of the points of a complete round."""
    return min(1.0, state["points"] / ((TAKEN + DELIVERED) * len(state["info"]["parcels"])))


def delivered(state: vf.State) -> float:
    """Return the share of parcels in the depot."""
    return state["delivered"] / len(state["info"]["parcels"])


def distance(a: Square, b: Square) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def courier(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Fetch the nearest parcel and bring it to the depot."""
    at, depot = state["at"], tuple(state["info"]["depot"])
    goal = depot if state["carries"] else min(state["parcels"], key=lambda square: distance(at, square))
    if at == goal:
        return f"<move>{'drop' if state['carries'] else 'take'}</move>"
    nearer = [m for m, (x, y) in STEPS.items() if distance((at[0] + x, at[1] + y), goal) < distance(at, goal)]
    return f"<move>{nearer[0]}</move>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        squares = rng.sample([(x, y) for x in range(SIZE) for y in range(SIZE)], 4)
        start, depot, *parcels = squares
        info = {"start": list(start), "depot": list(depot), "parcels": [list(square) for square in parcels]}
        listed = ", ".join(map(str, parcels))
        rows.append({"question": f"You are at {start}. Parcels: {listed}. Depot: {depot}.", "info": info})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 40) -> vf.Environment:
    """Return rounds with two parcels; the seed draws the rounds for training and for evaluation apart."""
    parser = vf.XMLParser(["move"], answer_field="move")
    rubric = vf.Rubric([progress], parser=parser)
    rubric.add_metric(delivered)
    return ParcelEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"courier": courier},
        max_turns=max_turns,
    )
