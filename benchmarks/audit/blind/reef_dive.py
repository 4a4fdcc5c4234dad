"""Reef dive: find two wrecks on a sea chart with a limited number of dives."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SIZE, LENGTHS, MAX_DIVES = 6, (3, 2), 14
SYSTEM_PROMPT = (
    f"Two wrecks, {LENGTHS[0]} and {LENGTHS[1]} squares long, lie in straight lines on a chart with {SIZE} rows A to F and "
    f"{SIZE} columns 1 to 6. You have {MAX_DIVES} dives. Answer <dive>B4</dive>"
)
SQUARE = re.compile(r"([A-F])([1-6])")
WATERS = [
    "North Bank",
    "Gull Shoal",
    "Amber Reef",
    "Long Ledge",
    "Seal Rocks",
    "Kelp Bay",
    "Twin Stacks",
    "Old Passage",
]


def place_wrecks(rng: random.Random) -> list[list[str]]:
    """Return the squares of each wreck; wrecks do not overlap."""
    wrecks: list[list[str]] = []
    for length in LENGTHS:
        while True:
            row, column, down = rng.randrange(SIZE), rng.randrange(SIZE), rng.random() < 0.5
            cells = [(row + step * down, column + step * (not down)) for step in range(length)]
            names = ["ABCDEF"[r] + str(c + 1) for r, c in cells if r < SIZE and c < SIZE]
            if len(names) == length and not any(name in wreck for wreck in wrecks for name in names):
                wrecks.append(names)
                break
    return wrecks


def chart(dives: dict[str, bool]) -> str:
    lines = ["  1 2 3 4 5 6"]
    for row in "ABCDEF":
        squares = [f"{row}{column}" for column in range(1, SIZE + 1)]
        lines.append(f"{row} " + " ".join(".x"[dives[name]] if name in dives else "~" for name in squares))
    return "\n".join(lines)


class ReefDiveEnv(vf.MultiTurnEnv):
    """An environment that reports after each dive whether it hit a wreck."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        rng = random.Random(state["info"].get("seed", 0))
        state["wrecks"] = place_wrecks(rng)
        state["dives"] = {}

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        left = MAX_DIVES - len(state["trajectory"])
        match = SQUARE.fullmatch((self.parser.parse_answer(messages) or "").strip().upper())
        if match is None:
            text = "That square is not on the chart."
        else:
            square = match[0]
            hit = any(square in wreck for wreck in state["wrecks"])
            state["dives"][square] = hit
            text = f"{square}: {'wreck' if hit else 'sand'}"
        if found(state) == 1.0:
            state["final_env_response"] = f"{text}\nBoth wrecks found."
            return None
        return f"{text}\n{chart(state['dives'])}\n{left} dives left"


def squares_found(state: vf.State) -> float:
    """Return the share of wreck squares that were found."""
    squares = [square for wreck in state["wrecks"] for square in wreck]
    return sum(square in state["dives"] for square in squares) / len(squares)


def found(state: vf.State) -> float:
    """Return 1 if both wrecks were found completely."""
    return float(all(square in state["dives"] for wreck in state["wrecks"] for square in wreck))


def rows(count: int, seed: str, first: int) -> list[dict[str, Any]]:
    made = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        info = {"water": rng.choice(WATERS), "chart": first + index, "chart_seed": rng.getrandbits(32)}
        made.append({"question": f"Chart {info['chart']}, {info['water']}\n{chart({})}", "info": info})
    return made


def load_environment(num_examples: int = 400, num_eval_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment of charts with hidden wrecks.

    Args:
        num_examples: Number of training charts.
        num_eval_examples: Number of evaluation charts.
        seed: Random seed of the charts.
    """
    parser = vf.XMLParser(["dive"], answer_field="dive")
    return ReefDiveEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train", 1001),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}:eval", 5001),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([squares_found, found], [0.5, 0.5], parser=parser),
        max_turns=MAX_DIVES,
    )
