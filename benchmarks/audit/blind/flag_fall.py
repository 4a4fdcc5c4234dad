"""Flag fall: find out whose flag falls first from the thinking times of a chess game."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You are a chess arbiter. White moves first, and the players alternate. While a player thinks, only that player's clock "
    "runs. The increment is added to the clock after each move. A flag falls as soon as the clock of the player who is "
    "thinking reaches zero. The log may go on after that. Whose flag falls first? Answer <flag>white</flag> or "
    "<flag>black</flag>."
)
SIDES = ("white", "black")


def clock(seconds: int) -> str:
    """Return a time as a chess clock shows it."""
    return f"{seconds // 60}:{seconds % 60:02d}"


def first_flag(budgets: tuple[int, int], increment: int, times: list[int]) -> tuple[int, int] | None:
    """Return whose flag falls first (0 or 1) and at which half-move, or None."""
    left = list(budgets)
    for ply, seconds in enumerate(times):
        side = ply % 2
        left[side] -= seconds
        if left[side] <= 0:
            return side, ply
        left[side] += increment
    return None


def game(rng: random.Random, loser: int) -> dict[str, Any]:
    """Return a game in which the flag of the given side falls first, a few moves before the log ends."""
    loser_has_more = rng.random() < 0.5
    while True:
        budgets = rng.randrange(120, 361, 15), rng.randrange(120, 361, 15)
        increment, moves = rng.choice((0, 2, 3, 5)), rng.randint(6, 11)
        slowest = rng.randint(40, 90), rng.randint(40, 90)
        times = [rng.randint(8, slowest[ply % 2]) for ply in range(2 * moves)]
        if budgets[0] == budgets[1] or (budgets[loser] > budgets[1 - loser]) != loser_has_more:
            continue
        fallen = first_flag(budgets, increment, times)
        if fallen is not None and fallen[0] == loser and fallen[1] >= 6:
            break
    log = [f"{n + 1}. white {times[2 * n]} s, black {times[2 * n + 1]} s" for n in range(moves)]
    start = f"White starts with {clock(budgets[0])}, Black with {clock(budgets[1])}; increment {increment} s."
    return {"question": "\n".join([start, *log]), "answer": SIDES[loser]}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    """Return games, half of them lost by each side."""
    losers = [index % 2 for index in range(count)]
    random.Random(f"{seed}:order").shuffle(losers)
    return [game(random.Random(f"{seed}:{index}"), loser) for index, loser in enumerate(losers)]


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the side is right."""
    return float((parser.parse_answer(completion) or "").strip().lower() == answer)


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Return an environment with the clocks of chess games.

    Args:
        num_examples: Number of games for training, and for evaluation.
        seed: Random seed of the games.
    """
    parser = vf.XMLParser(["flag"], answer_field="flag")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
    )
