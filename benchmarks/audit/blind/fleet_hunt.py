"""Fleet hunt: find two hidden ships on a small sea with a limited number of shots."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SIZE = 6
LENGTHS = (3, 2)
NUM_SHOTS = 14
LETTERS = "ABCDEF"
SYSTEM_PROMPT = (
    f"Two ships, of {LENGTHS[0]} and {LENGTHS[1]} squares, are hidden on a sea of {SIZE} by {SIZE} squares. Rows are A to F, "
    f"columns 1 to {SIZE}. You have {NUM_SHOTS} shots. Reply with a square: <shot>B4</shot>. Half of the points are for "
    "hits, the other half for sunk ships."
)
SQUARES = [f"{letter}{column}" for letter in LETTERS for column in range(1, SIZE + 1)]


def placements(length: int) -> list[tuple[str, ...]]:
    """Return all ways to place a ship."""
    found = []
    for row in range(SIZE):
        for first in range(SIZE - length + 1):
            found.append(tuple(f"{LETTERS[row]}{first + k + 1}" for k in range(length)))
            found.append(tuple(f"{LETTERS[first + k]}{row + 1}" for k in range(length)))
    return found


def layouts() -> list[list[list[str]]]:
    """Return all ways to place both ships without a common square."""
    return [[list(a), list(b)] for a in placements(LENGTHS[0]) for b in placements(LENGTHS[1]) if not set(a) & set(b)]


def row_counts(ships: list[list[str]]) -> str:
    """Return how many squares of ships each row has."""
    squares = [square for ship in ships for square in ship]
    return ", ".join(f"{letter} {sum(square[0] == letter for square in squares)}" for letter in LETTERS)


class FleetEnv(vf.MultiTurnEnv):
    """An environment in which every turn is a shot at a square."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["hits"], state["misses"], state["num_shots"] = [], [], 0

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        square = (self.parser.parse_answer(messages) or "").upper()
        ships = state["info"]["ships"]
        state["num_shots"] += 1
        if square not in SQUARES:
            text = "That is not a square of this sea."
        elif square in state["hits"] or square in state["misses"]:
            text = "You have shot there before."
        elif not any(square in ship for ship in ships):
            state["misses"].append(square)
            text = "A miss."
        else:
            state["hits"].append(square)
            ship = next(ship for ship in ships if square in ship)
            text = "A hit: the ship sinks." if set(ship) <= set(state["hits"]) else "A hit."
        if all(set(ship) <= set(state["hits"]) for ship in ships):
            state["final_env_response"] = f"{text} You found the whole fleet."
            return None
        if state["num_shots"] == NUM_SHOTS:
            state["final_env_response"] = f"{text} You have no shots left."
            return None
        return f"{text} Shots left: {NUM_SHOTS - state['num_shots']}."


def hits(state: vf.State) -> float:
    """Return the share of the ships' squares that were hit."""
    return len(state["hits"]) / sum(LENGTHS)


def sunk(state: vf.State) -> float:
    """Return the share of the ships that were sunk."""
    ships = state["info"]["ships"]
    return sum(set(ship) <= set(state["hits"]) for ship in ships) / len(ships)


def gunner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Shoot at the square that is part of the most layouts that fit everything seen so far."""
    counts = row_counts(state["info"]["ships"])
    fitting = [
        squares
        for layout in layouts()
        if row_counts(layout) == counts
        for squares in [{square for ship in layout for square in ship}]
        if set(state["hits"]) <= squares and not squares & set(state["misses"])
    ]
    shot = set(state["hits"]) | set(state["misses"])
    left = [square for square in SQUARES if square not in shot]
    return f"<shot>{max(left, key=lambda square: sum(square in squares for squares in fitting))}</shot>"


def sprayer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Shoot at random squares."""
    return f"<shot>{rng.choice(SQUARES)}</shot>"


def split(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return training and evaluation rows in random order; a quarter of the row counts are reserved for evaluation."""
    rng = random.Random(f"{seed}:fleets")
    fleets = layouts()
    rng.shuffle(fleets)
    counts = sorted({row_counts(ships) for ships in fleets})
    reserved = set(rng.sample(counts, len(counts) // 4))
    train, held_out = [], []
    for ships in fleets:
        shown = row_counts(ships)
        row = {"question": f"Squares of ships in each row: {shown}. Your first shot?", "info": {"ships": ships}}
        (held_out if shown in reserved else train).append(row)
    return train, held_out


def load_environment(num_examples: int = 300, num_eval_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment of hidden fleets.

    Args:
        num_examples: Largest number of training fleets.
        num_eval_examples: Largest number of evaluation fleets; their row counts do not occur in training.
        seed: Random seed that chooses the fleets.
    """
    train, held_out = split(seed)
    parser = vf.XMLParser(["shot"], answer_field="shot")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(hits, weight=0.5)
    rubric.add_reward_func(sunk, weight=0.5)
    return FleetEnv(
        dataset=train[:num_examples],
        eval_dataset=held_out[:num_eval_examples],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"gunner": gunner, "sprayer": sprayer},
        max_turns=NUM_SHOTS,
    )
