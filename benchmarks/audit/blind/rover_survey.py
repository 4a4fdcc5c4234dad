"""Rover survey: drive a rover around the rocks of a small map to the landing site of a probe."""

import random
from collections import deque

import rove as vf

SIZE = 7
STEPS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
SYSTEM_PROMPT = (
    "Drive the rover (R) to the probe (P). Rocks (#) block the way. In each turn, answer with one direction: "
    "<drive>north</drive>, <drive>south</drive>, <drive>west</drive> or <drive>east</drive>."
)
ARRIVAL, PROGRESS = 1.0, 0.03


def neighbors(cell, rocks):
    row, column = cell
    for name, (down, right) in STEPS.items():
        other = (row + down, column + right)
        if 0 <= other[0] < SIZE and 0 <= other[1] < SIZE and other not in rocks:
            yield name, other


def distances(goal, rocks):
    """The number of steps to the goal from every cell that can reach it."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for _, other in neighbors(cell, rocks):
            if other not in found:
                found[other] = found[cell] + 1
                queue.append(other)
    return found


def show(rover, probe, rocks):
    cells = {probe: "P", rover: "R"}
    rows = []
    for row in range(SIZE):
        rows.append(
            " ".join(cells.get((row, column), "#" if (row, column) in rocks else ".") for column in range(SIZE))
        )
    return "\n".join(rows)


class RoverEnv(vf.MultiTurnEnv):
    """The rover moves one cell per turn; each turn shows the map."""

    async def setup_state(self, state, **kwargs):
        info = state["info"]
        state["rocks"] = {tuple(cell) for cell in info["rocks"]}
        state["rover"], state["probe"] = tuple(info["rover"]), tuple(info["probe"])
        state["distance"] = distances(state["probe"], state["rocks"])
        state["progress"] = 0
        state["arrived"] = False

    async def env_response(self, messages, state, **kwargs):
        direction = (self.parser.parse_answer(messages) or "").strip().lower()
        options = dict(neighbors(state["rover"], state["rocks"]))
        if direction not in options:
            return "The rover cannot go there.\n" + show(state["rover"], state["probe"], state["rocks"])
        before, state["rover"] = state["rover"], options[direction]
        if state["distance"][state["rover"]] < state["distance"][before]:
            state["progress"] += 1
        if state["rover"] == state["probe"]:
            state["arrived"] = True
            state["final_env_response"] = "The rover has reached the probe."
            return None
        return show(state["rover"], state["probe"], state["rocks"])


def arrived(state):
    """1 if the rover reached the probe."""
    return float(state["arrived"])


def progress(state):
    """The number of steps that brought the rover closer to the probe."""
    return float(state["progress"])


def make_map(rng):
    while True:
        cells = [(row, column) for row in range(SIZE) for column in range(SIZE)]
        rng.shuffle(cells)
        rover, probe, rocks = cells[0], cells[1], set(cells[2 : 2 + rng.randint(8, 14)])
        if 4 <= distances(probe, rocks).get(rover, 0) <= 10:
            return rover, probe, rocks


def rows(count, seed, split):
    made = []
    for index in range(count):
        rover, probe, rocks = make_map(random.Random(f"{seed}/{split}/{index}"))
        info = {"rover": list(rover), "probe": list(probe), "rocks": [list(cell) for cell in sorted(rocks)]}
        made.append({"question": show(rover, probe, rocks), "info": info})
    return made


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 30):
    """Return an environment with maps of 7 by 7 cells.

    Args:
        num_examples: Number of maps for training, and for evaluation.
        seed: Random seed of the maps.
        max_turns: Maximum number of steps.
    """
    parser = vf.XMLParser(["drive"], answer_field="drive")
    return RoverEnv(
        dataset=lambda: rows(num_examples, seed, "train"),
        eval_dataset=lambda: rows(num_examples, seed, "eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([arrived, progress], [ARRIVAL, PROGRESS], parser=parser),
        max_turns=max_turns,
    )
