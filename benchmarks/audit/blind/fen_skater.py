"""Fen skater: the model skates over a frozen fen, past three flags and on to the hut."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SIZE = 7
STEPS = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}
MAX_TURNS = 30
SYSTEM_PROMPT = (
    f"You skate on a frozen fen of {SIZE} by {SIZE} squares. x grows to the east, y to the south, both from 0. Skate past "
    f"the three flags and then to the hut, in at most {MAX_TURNS} moves. The run ends at the hut. Reply with one move, "
    "<move>north</move>, <move>south</move>, <move>east</move> or <move>west</move>."
)

Square = tuple[int, int]


def view(state: vf.State) -> str:
    """Return the situation as the model sees it."""
    flags = ", ".join(f"({x}, {y})" for x, y in state["flags"])
    (x, y), (hut_x, hut_y) = state["square"], state["hut"]
    return f"You are at ({x}, {y}). Flags: {flags}. Hut: ({hut_x}, {hut_y}). Flags passed: {state['passed']}."


def flags_passed(state: vf.State) -> float:
    """Return the number of flags that were passed."""
    return float(state["passed"])


def arrived(state: vf.State) -> float:
    """Return 1 if the skater reached the hut."""
    return float(state["square"] == state["hut"])


def falls(state: vf.State) -> float:
    """Return the number of replies without a possible move."""
    return float(state["falls"])


def route(square: Square, goal: Square, hut: Square) -> list[str]:
    """Return a shortest way to a goal that enters the hut only if it is the goal."""
    ways: dict[Square, list[str]] = {square: []}
    queue = [square]
    for x, y in queue:
        for move, (dx, dy) in STEPS.items():
            end = (x + dx, y + dy)
            free = 0 <= end[0] < SIZE and 0 <= end[1] < SIZE and (end != hut or hut == goal)
            if free and end not in ways:
                ways[end] = [*ways[x, y], move]
                queue.append(end)
    return ways.get(goal, ["north"])


def racer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Skate to the nearest flag that is left, and at the end to the hut."""
    left = state.setdefault("plan", list(state["flags"]))
    if state["square"] in left:
        left.remove(state["square"])
    ways = [route(state["square"], goal, state["hut"]) for goal in left or [state["hut"]]]
    return f"<move>{min(ways, key=len)[0]}</move>"


def drifter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Skate anywhere."""
    return f"<move>{rng.choice(list(STEPS))}</move>"


class FenEnv(vf.MultiTurnEnv):
    """An environment on a grid that ends at the hut."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state.update(
            square=tuple(info["start"]),
            hut=tuple(info["hut"]),
            flags=[tuple(flag) for flag in info["flags"]],
            passed=0,
            falls=0,
        )

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        move = (self.parser.parse_answer(messages) or "").strip().lower()
        (x, y), step = state["square"], STEPS.get(move)
        if step is None or not (0 <= x + step[0] < SIZE and 0 <= y + step[1] < SIZE):
            state["falls"] += 1
            return f"You fall on the ice. {view(state)}"
        state["square"] = (x + step[0], y + step[1])
        if state["square"] in state["flags"]:
            state["passed"] += 1
        if state["square"] == state["hut"]:
            state["final_env_response"] = f"You are in the hut. {view(state)}"
            return None
        return view(state)


def _rows(count: int, seed: str, column: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        start = (column + 2 * rng.randrange(3), rng.randrange(SIZE))
        squares = [(x, y) for x in range(SIZE) for y in range(SIZE) if (x, y) != start]
        hut, *flags = rng.sample(squares, 4)
        info = {"start": start, "hut": hut, "flags": flags}
        first = {"square": start, "hut": hut, "flags": flags, "passed": 0}
        rows.append({"question": view(vf.State(first)), "answer": "", "info": info})
    return rows


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment of runs over the ice.

    Args:
        num_examples: Number of runs in each dataset; they start in odd columns in training and in even ones in evaluation.
        seed: Random seed of the runs.
    """
    parser = vf.XMLParser(["move"], answer_field="move")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(arrived, weight=1.0)
    rubric.add_reward_func(flags_passed, weight=0.25)
    rubric.add_metric(falls)
    return FenEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 1),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 0),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"racer": racer, "drifter": drifter},
        max_turns=MAX_TURNS,
    )
