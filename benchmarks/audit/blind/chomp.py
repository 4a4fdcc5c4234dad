"""Chomp: take turns eating a bar of chocolate whose last square is poisoned.

A bar is a tuple of row lengths that never increase. Eating square (r, c) removes it and everything below and to the right.
Square (1, 1), at the top left, is poisoned: whoever eats it loses.
"""

import functools
import random
import re
import zlib
from itertools import product

import rove as vf

Bar = tuple[int, ...]
MOVE = re.compile(r"eat\s*(\d)\s*,\s*(\d)", re.I)


def bite(bar: Bar, r: int, c: int) -> Bar:
    return tuple(n for n in (min(n, c - 1) if i >= r else n for i, n in enumerate(bar, 1)) if n)


def squares(bar: Bar) -> list[tuple[int, int]]:
    return [(r, c) for r, n in enumerate(bar, 1) for c in range(1, n + 1)]


@functools.cache
def winning_bites(bar: Bar) -> tuple[tuple[int, int], ...]:
    """The bites that leave a lost position to the other player."""
    return tuple(s for s in squares(bar) if s != (1, 1) and not winning_bites(bite(bar, *s)))


def show(bar: Bar) -> str:
    return "\n".join(
        f"{r}: " + " ".join("x" if (r, c) == (1, 1) else "o" for c in range(1, n + 1)) for r, n in enumerate(bar, 1)
    )


def opponent_bite(bar: Bar, seed: str, skill: float) -> tuple[int, int]:
    rng = random.Random(f"{seed}/{bar}")
    safe = [s for s in squares(bar) if s != (1, 1)]
    good = winning_bites(bar)
    if good and rng.random() < skill:
        return rng.choice(good)
    return rng.choice(safe) if safe else (1, 1)


class ChompEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["bar"] = tuple(state["info"]["bar"])
        state["outcome"] = "unfinished"

    async def env_response(self, messages, state, **kwargs):
        found = MOVE.findall(str(messages[-1].content or ""))
        square = (int(found[-1][0]), int(found[-1][1])) if found else None
        if square not in squares(state["bar"]):
            return self.over(state, "illegal", "There is no such square. You lose.")
        if square == (1, 1):
            return self.over(state, "lost", "You ate the poison. You lose.")
        bar = bite(state["bar"], *square)
        reply = opponent_bite(bar, state["info"]["seed"], state["info"]["skill"])
        if reply == (1, 1):
            return self.over(state, "won", "I have to eat the poison. You win.")
        state["bar"] = bite(bar, *reply)
        return f"I eat {reply[0]},{reply[1]}.\n{show(state['bar'])}"

    def over(self, state, outcome, message):
        state["outcome"] = outcome
        state["final_env_response"] = message


def won(state):
    return float(state["outcome"] == "won")


def illegal(state):
    return float(state["outcome"] == "illegal")


def bars(evaluation: bool) -> list[Bar]:
    """All bars of up to five rows of up to six squares in which the first player can win."""
    every = {
        tuple(n for n in lengths if n)
        for lengths in product(range(7), repeat=5)
        if list(lengths) == sorted(lengths, reverse=True)
    }
    usable = sorted(bar for bar in every if sum(bar) >= 8 and len(bar) > 1 and winning_bites(bar))
    return [bar for bar in usable if (zlib.crc32(repr(bar).encode()) % 4 == 0) == evaluation]


def rows(count: int, seed: int, evaluation: bool):
    rng, pool = random.Random(f"chomp {seed} {evaluation}"), bars(evaluation)
    for i in range(count):
        bar = rng.choice(pool)
        yield {
            "question": show(bar),
            "info": {"bar": list(bar), "seed": f"{seed}-{evaluation}-{i}", "skill": rng.choice([0.5, 0.75, 0.9])},
        }


def master(messages, state, rng):
    r, c = rng.choice(winning_bites(state["bar"]) or squares(state["bar"]))
    return f"eat {r},{c}"


def nibbler(messages, state, rng):
    """Eat a random square, not the poison unless it is the last."""
    r, c = rng.choice(squares(state["bar"])[1:] or [(1, 1)])
    return f"eat {r},{c}"


def load_environment(num_train: int = 400, num_eval: int = 120, seed: int = 0, max_turns: int = 16) -> vf.Environment:
    rubric = vf.Rubric([won])
    rubric.add_metric(illegal)
    return ChompEnv(
        dataset=lambda: list(rows(num_train, seed, False)),
        eval_dataset=lambda: list(rows(num_eval, seed, True)),
        system_prompt=(
            "We share a bar of chocolate; x is poisoned, and whoever eats it loses. Eating a square also removes all squares "
            "below it, to its right, and below those. You begin. Say: eat ROW,COLUMN (both counted from 1)."
        ),
        rubric=rubric,
        policies={"master": master, "nibbler": nibbler},
        max_turns=max_turns,
    )
