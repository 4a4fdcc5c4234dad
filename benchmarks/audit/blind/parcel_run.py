"""Parcel run: a courier finds the way through a town with blocked streets."""

from __future__ import annotations

import random
import zlib
from collections import deque
from typing import Any

import rove as vf

SIZE = 7
SYSTEM_PROMPT = (
    "You are C, a courier in a town of 7 x 7 blocks. Bring the parcel to T. # is a blocked street. Each turn, move one block: "
    "<move>north</move>, south, east or west. North is up."
)
MOVES = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}

Place = tuple[int, int]


def distances(walls: set[Place], target: Place) -> dict[Place, int]:
    """Return the number of moves to the target from every place that can reach it."""
    found = {target: 0}
    queue = deque([target])
    while queue:
        row, column = queue.popleft()
        for down, right in MOVES.values():
            place = (row + down, column + right)
            if place not in found and place not in walls and 0 <= place[0] < SIZE and 0 <= place[1] < SIZE:
                found[place] = found[row, column] + 1
                queue.append(place)
    return found


def show(courier: Place, target: Place, walls: set[Place]) -> str:
    """Return the map as text."""
    signs = {**dict.fromkeys(walls, "#"), target: "T", courier: "C"}
    return "\n".join(" ".join(signs.get((row, column), ".") for column in range(SIZE)) for row in range(SIZE))


class ParcelEnv(vf.MultiTurnEnv):
    """An environment in which the courier moves until the parcel is delivered."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state["walls"] = {tuple(place) for place in info["walls"]}
        state["courier"], state["target"] = tuple(info["courier"]), tuple(info["target"])
        state["distances"] = distances(state["walls"], state["target"])
        state["closer"] = 0

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        move = (self.parser.parse_answer(messages) or "").strip().lower()
        if move not in MOVES:
            return f"Write north, south, east or west in <move> tags.\n{self._map(state)}"
        down, right = MOVES[move]
        place = (state["courier"][0] + down, state["courier"][1] + right)
        if place not in state["distances"]:
            return f"You cannot go there.\n{self._map(state)}"
        if state["distances"][place] < state["distances"][state["courier"]]:
            state["closer"] += 1
        state["courier"] = place
        if place == state["target"]:
            state["final_env_response"] = "The parcel is delivered."
            return None
        return self._map(state)

    def _map(self, state: vf.State) -> str:
        return show(state["courier"], state["target"], state["walls"])


def delivered(state: vf.State) -> float:
    """Return 1 if the parcel was delivered."""
    return float(state["courier"] == state["target"])


def progress(state: vf.State) -> float:
    """Return the number of moves that brought the parcel closer to its target."""
    return float(state["closer"])


def local(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a shortest way."""
    row, column = state["courier"]
    options = [m for m, (down, right) in MOVES.items() if (row + down, column + right) in state["distances"]]
    return f"<move>{min(options, key=lambda m: state['distances'][row + MOVES[m][0], column + MOVES[m][1]])}</move>"


def stranger(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Wander about."""
    return f"<move>{rng.choice(list(MOVES))}</move>"


def _town(rng: random.Random) -> dict[str, Any] | None:
    places = [(row, column) for row in range(SIZE) for column in range(SIZE)]
    chosen = rng.sample(places, 14)
    courier, target, walls = chosen[0], chosen[1], chosen[2:]
    steps = distances(set(walls), target).get(courier)
    return {"courier": courier, "target": target, "walls": walls} if steps is not None and 4 <= steps <= 10 else None


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        town = _town(rng)
        if town is None:
            continue
        text = show(town["courier"], town["target"], set(town["walls"]))
        if (zlib.crc32(text.encode()) % 5 == 0) == held_out:
            rows.append({"question": text, "answer": "", "info": town})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 40) -> vf.Environment:
    """Return an environment with deliveries.

    Args:
        num_examples: Number of towns for training and for evaluation.
        seed: Random seed of the towns.
        max_turns: Maximum moves.
    """
    parser = vf.XMLParser(["move"], answer_field="move")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(delivered, weight=1.0)
    rubric.add_reward_func(progress, weight=0.1)
    return ParcelEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"local": local, "stranger": stranger},
        max_turns=max_turns,
    )
