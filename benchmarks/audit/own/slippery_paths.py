"""Slippery paths: walk to the hut on a map where one step in ten goes another way."""

from __future__ import annotations

import random
import zlib
from collections import deque
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Walk from @ to the hut H without falling into a pit P. The paths are slippery: one step in ten goes in a random "
    "direction. Answer <step>north, south, east or west</step>"
)
SIZE, PITS, MAX_STEPS, SLIP = 5, 5, 20, 0.1
STEPS = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}


def after(square: list[int], step: str) -> list[int]:
    """Return the square after a step; the border stops it."""
    return [min(SIZE - 1, max(0, at + by)) for at, by in zip(square, STEPS[step])]


def distances(hut: list[int], pits: list[list[int]]) -> dict[tuple[int, ...], int]:
    """Return the number of steps to the hut from every square that can reach it."""
    known, queue = {tuple(hut): 0}, deque([hut])
    while queue:
        square = queue.popleft()
        for step in STEPS:
            near = after(square, step)
            if near not in pits and tuple(near) not in known:
                known[tuple(near)] = known[tuple(square)] + 1
                queue.append(near)
    return known


def show(square: list[int], hut: list[int], pits: list[list[int]]) -> str:
    """Return the map as text."""
    signs = {**{tuple(pit): "P" for pit in pits}, tuple(hut): "H", tuple(square): "@"}
    return "\n".join(" ".join(signs.get((row, column), ".") for column in range(SIZE)) for row in range(SIZE))


def walker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a shortest path from wherever the walker stands."""
    known = distances(state["info"]["hut"], state["info"]["pits"])
    return f"<step>{min(STEPS, key=lambda step: known.get(tuple(after(state['square'], step)), 99))}</step>"


class SlipperyPathsEnv(vf.MultiTurnEnv):
    """An environment that shows the map after every step."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(square=state["info"]["start"], arrived=False, luck=random.Random(state["seed"]))

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        step, info, luck = self.parser.parse_answer(messages), state["info"], state["luck"]
        if step in STEPS:
            state["square"] = after(state["square"], luck.choice(list(STEPS)) if luck.random() < SLIP else step)
        state["arrived"], fell = state["square"] == info["hut"], state["square"] in info["pits"]
        if not state["arrived"] and not fell and len(state["trajectory"]) < MAX_STEPS:
            return show(state["square"], info["hut"], info["pits"])
        state["final_env_response"] = "You are there." if state["arrived"] else "You fell." if fell else "It is night."
        return None


def arrived(state: vf.State) -> float:
    """Return 1 for a walk that ended at the hut."""
    return float(state["arrived"])


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng, squares = random.Random(seed), [[row, column] for row in range(SIZE) for column in range(SIZE)]
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        start, hut, *pits = rng.sample(squares, 2 + PITS)
        text = show(start, hut, pits)
        if distances(hut, pits).get(tuple(start), 0) >= 4 and (zlib.crc32(text.encode()) % 2 == 1) == evaluation:
            rows.setdefault(text, {"question": text, "info": {"start": start, "hut": hut, "pits": pits}})
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one map per example; every rollout slips at steps of its own. Args as in all examples."""
    parser = vf.XMLParser(["step"], answer_field="step")
    return SlipperyPathsEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([arrived], parser=parser),
        policies={"walker": walker},
        max_turns=MAX_STEPS,
    )
