"""Frozen lake: walk over a random map from the start to the goal without falling into a hole."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import rove as vf

SYSTEM_PROMPT = "You are @. Walk to G; H is a hole. Answer <move>left, right, up or down</move>"
SIZE = 4
MAX_STEPS = 10
MOVES = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}

Square = tuple[int, int]


def after(square: Square, move: str) -> Square:
    """Return the square after a move; the border stops it."""
    down, right = MOVES[move]
    return min(SIZE - 1, max(0, square[0] + down)), min(SIZE - 1, max(0, square[1] + right))


def distances(holes: set[Square], goal: Square) -> dict[Square, int]:
    """Return the number of moves to the goal from every square that can reach it."""
    known, queue = {goal: 0}, deque([goal])
    while queue:
        square = queue.popleft()
        for move in MOVES:
            near = after(square, move)
            if near not in holes and near not in known:
                known[near] = known[square] + 1
                queue.append(near)
    return known


def show(square: Square, holes: set[Square], goal: Square) -> str:
    """Return the map as text."""
    signs = {**dict.fromkeys(holes, "H"), goal: "G", square: "@"}
    return "\n".join(" ".join(signs.get((row, column), ".") for column in range(SIZE)) for row in range(SIZE))


def walker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Follow a shortest path in 75 % of the moves, else move at random."""
    known = distances(state["holes"], state["goal"])
    best = min(MOVES, key=lambda move: known.get(after(state["square"], move), 99))
    return f"<move>{best if rng.random() < 0.75 else rng.choice(list(MOVES))}</move>"


def wanderer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Move at random."""
    return f"<move>{rng.choice(list(MOVES))}</move>"


class FrozenLakeEnv(vf.MultiTurnEnv):
    """An environment that shows the map after every move."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state.update(square=tuple(info["start"]), goal=tuple(info["goal"]), holes={tuple(one) for one in info["holes"]})
        state["result"] = ""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        move = self.parser.parse_answer(messages)
        if move in MOVES:
            state["square"] = after(state["square"], move)
        if state["square"] == state["goal"]:
            state["result"] = "goal"
        elif state["square"] in state["holes"]:
            state["result"] = "hole"
        if not state["result"] and len(state["trajectory"]) < MAX_STEPS:
            return show(state["square"], state["holes"], state["goal"])
        state["final_env_response"] = {"goal": "You reached the goal.", "hole": "You fell."}.get(
            state["result"], "Too many moves."
        )
        return None


def reached(state: vf.State) -> float:
    """Return 1 if the goal was reached."""
    return float(state["result"] == "goal")


def fell(state: vf.State) -> float:
    """Return 1 after a fall into a hole."""
    return float(state["result"] == "hole")


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        squares = [(row, column) for row in range(SIZE) for column in range(SIZE)]
        while True:
            start, goal, *holes = rng.sample(squares, 6)
            known = distances(set(holes), goal)
            if 2 <= known.get(start, 0) <= MAX_STEPS - 2:
                break
        rows.append({"question": show(start, set(holes), goal), "info": {"start": start, "goal": goal, "holes": holes}})
    return rows


def load_environment(num_examples: int = 2000, seed: int = 0) -> vf.Environment:
    """Return an environment with one random map of 4 × 4 squares and four holes per example.

    Args:
        num_examples: Number of maps.
        seed: Random seed of the dataset; evaluation maps differ from training maps.
    """
    parser = vf.XMLParser(["move"], answer_field="move")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(reached, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    rubric.add_metric(fell)
    return FrozenLakeEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"walker": walker, "wanderer": wanderer},
        max_turns=MAX_STEPS,
    )
