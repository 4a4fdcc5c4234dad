"""Depot robot: drive a robot through a small depot, pick up a parcel, and bring it to the dock."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import rove as vf

SIZE = 5
STEPS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
SYSTEM_PROMPT = (
    "Drive the robot R to the parcel P, then to the dock D. Shelves # block the way. The robot picks up the parcel when it "
    "reaches it. Answer <go>north</go>, <go>south</go>, <go>west</go> or <go>east</go>"
)
Cell = tuple[int, int]


def neighbors(cell: Cell, shelves: set[Cell]) -> list[Cell]:
    around = [(cell[0] + row, cell[1] + column) for row, column in STEPS.values()]
    return [
        (row, column)
        for row, column in around
        if 0 <= row < SIZE and 0 <= column < SIZE and (row, column) not in shelves
    ]


def distances(goal: Cell, shelves: set[Cell]) -> dict[Cell, int]:
    """Return the number of steps to a goal from every cell that can reach it."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for near in neighbors(cell, shelves):
            if near not in found:
                found[near] = found[cell] + 1
                queue.append(near)
    return found


def make_depot(rng: random.Random) -> dict[str, Any]:
    cells = [(row, column) for row in range(SIZE) for column in range(SIZE)]
    while True:
        chosen = rng.sample(cells, 8)
        robot, parcel, dock, shelves = chosen[0], chosen[1], chosen[2], set(chosen[3:])
        reach = distances(parcel, shelves)
        if robot in reach and dock in reach and reach[robot] + reach[dock] >= 5:
            return {"robot": robot, "parcel": parcel, "dock": dock, "shelves": sorted(shelves)}


def show(robot: Cell, parcel: Cell | None, dock: Cell, shelves: set[Cell]) -> str:
    looks = {**{cell: "#" for cell in shelves}, dock: "D"}
    if parcel is not None:
        looks[parcel] = "P"
    looks[robot] = "R"
    return "\n".join(" ".join(looks.get((row, column), ".") for column in range(SIZE)) for row in range(SIZE))


def _go(state: vf.State, target: Cell) -> str:
    step = (target[0] - state["robot"][0], target[1] - state["robot"][1])
    return f"<go>{next(name for name, delta in STEPS.items() if delta == step)}</go>"


def planner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a shortest way."""
    reach = distances(state["goal"], state["shelves"])
    near = neighbors(state["robot"], state["shelves"])
    return _go(state, min(near, key=lambda cell: reach[cell]))


def wanderer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a random direction."""
    return f"<go>{rng.choice(list(STEPS))}</go>"


class DepotEnv(vf.MultiTurnEnv):
    """An environment in which the model moves the robot one cell per turn."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state.update(
            robot=tuple(info["robot"]),
            parcel=tuple(info["parcel"]),
            dock=tuple(info["dock"]),
            shelves={tuple(cell) for cell in info["shelves"]},
            goal=tuple(info["parcel"]),
            progress=0,
            delivered=False,
        )

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        delta = STEPS.get((self.parser.parse_answer(messages) or "").strip().lower())
        if delta is None:
            return f"Unknown direction.\n{self.view(state)}"
        target = (state["robot"][0] + delta[0], state["robot"][1] + delta[1])
        if target not in neighbors(state["robot"], state["shelves"]):
            return f"The way is blocked.\n{self.view(state)}"
        reach = distances(state["goal"], state["shelves"])
        if reach[target] < reach[state["robot"]]:
            state["progress"] += 1
        state["robot"] = target
        if target != state["goal"]:
            return self.view(state)
        if state["parcel"] is None:
            state["delivered"] = True
            state["final_env_response"] = "Delivered."
            return None
        state.update(parcel=None, goal=state["dock"])
        return f"Parcel on board.\n{self.view(state)}"

    def view(self, state: vf.State) -> str:
        return show(state["robot"], state["parcel"], state["dock"], state["shelves"])


def delivered(state: vf.State) -> float:
    """Return 1 if the parcel is at the dock."""
    return float(state["delivered"])


def progress(state: vf.State) -> float:
    """Return how many steps brought the robot closer to its goal."""
    return float(state["progress"])


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    made = []
    for index in range(count):
        depot = make_depot(random.Random(f"{seed}:{index}"))
        shelves = set(depot["shelves"])
        made.append({"question": show(depot["robot"], depot["parcel"], depot["dock"], shelves), "info": depot})
    return made


def load_environment(
    num_examples: int = 400, num_eval_examples: int = 150, seed: int = 0, max_turns: int = 40
) -> vf.Environment:
    """Return an environment of depots.

    Args:
        num_examples: Number of training depots.
        num_eval_examples: Number of evaluation depots.
        seed: Random seed of the depots.
        max_turns: Maximum number of moves.
    """
    parser = vf.XMLParser(["go"], answer_field="go")
    rubric = vf.Rubric([delivered, progress], [1.0, 0.1], parser=parser)
    return DepotEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"planner": planner, "wanderer": wanderer},
        max_turns=max_turns,
    )
