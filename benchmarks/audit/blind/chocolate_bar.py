"""Chomp: two players bite off a chocolate bar; whoever has to eat the bottom left square loses."""

import functools
import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "A chocolate bar has columns of different heights. A move names a square as column,row (from 1); it and all squares "
    "above and to the right are eaten. Whoever eats square 1,1 loses. Answer <bite>column,row</bite>. "
    "A square that does not exist loses the game."
)


def bite(bar, column, row):
    """Return the heights of the columns after a bite."""
    return tuple(h for h in (min(h, row - 1) if c >= column else h for c, h in enumerate(bar, 1)) if h)


def squares(bar):
    return [(column, row) for column, height in enumerate(bar, 1) for row in range(1, height + 1)]


@functools.cache
def wins(bar):
    """Return whether the player to move can win; whoever finds no chocolate has won."""
    return not bar or any(not wins(bite(bar, *square)) for square in squares(bar))


def best(bar, rng):
    good = [square for square in squares(bar) if not wins(bite(bar, *square))]
    return rng.choice(good or squares(bar))


def show(bar):
    lines = [" ".join("#" if height >= row else "." for height in bar) for row in range(max(bar), 0, -1)]
    return "\n".join(lines) + f"\nHeights: {' '.join(map(str, bar))}"


def read_square(text):
    match = re.fullmatch(r"\s*(\d)\s*,\s*(\d)\s*", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


class ChompEnv(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(bar=tuple(state["info"]["bar"]), won=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        square, bar = self.parser.parse_answer(messages), state["bar"]
        if square not in squares(bar):
            return self.end(state, False, "There is no such square. You lose.")
        bar = bite(bar, *square)
        if not bar:
            return self.end(state, False, "You ate square 1,1. You lose.")
        rng = random.Random(f"{state['info']['seed']}:{bar}")
        move = rng.choice(squares(bar))
        bar = bite(bar, *move)
        if not bar:
            return self.end(state, True, "Your opponent ate square 1,1. You win.")
        state["bar"] = bar
        return f"Your opponent bites {move[0]},{move[1]}.\n{show(bar)}"

    def end(self, state, won, message):
        state["won"] = won
        state["final_env_response"] = message
        return None


def win(state) -> float:
    """1 for a win."""
    return float(state["won"])


def expert(messages, state, rng):
    """Play perfectly."""
    column, row = best(state["bar"], rng)
    return f"<bite>{column},{row}</bite>"


def nibbler(messages, state, rng):
    """Bite anywhere."""
    column, row = rng.choice(squares(state["bar"]))
    return f"<bite>{column},{row}</bite>"


def make_rows(count, seed, evaluation):
    rows, index = [], 0
    while len(rows) < count:
        rng = random.Random(f"{seed}:{index}")
        index += 1
        bar = sorted((rng.randint(1, 5) for _ in range(rng.randint(3, 5))), reverse=True)
        held_out = zlib.crc32(str(bar).encode()) % 4 == 0
        if held_out == evaluation and wins(tuple(bar)):
            rows.append({"question": show(bar), "info": {"bar": bar, "seed": rng.getrandbits(32)}})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Bars that the first player can win, against an opponent that bites at random.

    Args:
        num_examples: number of games for training; a third as many for evaluation, with other bars.
        seed: random seed of the games.
    """
    parser = vf.XMLParser(["bite"], answer_field="bite", extract_fn=read_square)
    return ChompEnv(
        dataset=lambda: make_rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: make_rows(num_examples // 3, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([win], parser=parser),
        policies={"expert": expert, "nibbler": nibbler},
        max_turns=25,
    )
