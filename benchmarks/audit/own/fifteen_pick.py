"""Fifteen pick: take numbers in turn; whoever first holds three that sum to 15 wins."""

from __future__ import annotations

import functools
import itertools
import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You and an opponent take numbers from 1 to 9 in turn, each number once. Whoever first holds three numbers that sum to "
    "15 wins. A win counts 1, a draw 0.5. Answer <take>number</take>"
)
CARELESS = 0.4
Hand = tuple[int, ...]


def wins(hand: Hand) -> bool:
    """Return whether three numbers of a hand sum to 15."""
    return any(sum(three) == 15 for three in itertools.combinations(hand, 3))


def free(mine: Hand, theirs: Hand) -> list[int]:
    """Return the numbers that nobody holds."""
    return [number for number in range(1, 10) if number not in mine + theirs]


@functools.cache
def value(mine: Hand, theirs: Hand) -> int:
    """Return 1, 0 or -1: what the player to move can reach; `theirs` was just extended."""
    if wins(theirs):
        return -1
    return max((-value(theirs, tuple(sorted((*mine, n)))) for n in free(mine, theirs)), default=0)


def best(mine: Hand, theirs: Hand, rng: random.Random) -> int:
    """Return one of the best numbers to take."""
    worth = {n: -value(theirs, tuple(sorted((*mine, n)))) for n in free(mine, theirs)}
    return rng.choice([n for n in worth if worth[n] == max(worth.values())])


def expert(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take one of the best numbers."""
    return f"<take>{best(tuple(sorted(state['mine'])), tuple(sorted(state['theirs'])), rng)}</take>"


def show(mine: list[int], theirs: list[int]) -> str:
    """Return the position as the model sees it."""
    return f"You: {' '.join(map(str, mine))}. Opponent: {' '.join(map(str, theirs))}."


class FifteenPickEnv(vf.MultiTurnEnv):
    """An environment with an opponent that is careless in four of ten moves."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(mine=list(state["info"]["mine"]), theirs=list(state["info"]["theirs"]), result=0.0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        mine, theirs, taken = state["mine"], state["theirs"], self.parser.parse_answer(messages) or ""
        if taken not in map(str, free(tuple(mine), tuple(theirs))):
            state["final_env_response"] = "You cannot take that. You lose."
            return None
        mine.append(int(taken))
        if not wins(tuple(mine)) and len(mine) + len(theirs) < 9:
            rng, left = random.Random(f"{state['info']['seed']}:{mine}"), free(tuple(mine), tuple(theirs))
            careful = best(tuple(sorted(theirs)), tuple(sorted(mine)), rng)
            theirs.append(rng.choice(left) if rng.random() < CARELESS else careful)
            if not wins(tuple(theirs)) and len(mine) + len(theirs) < 9:
                return show(mine, theirs)
        state["result"] = 1.0 if wins(tuple(mine)) else 0.0 if wins(tuple(theirs)) else 0.5
        state["final_env_response"] = {1.0: "You win.", 0.5: "Draw."}.get(state["result"], "You lose.")
        return None


def result(state: vf.State) -> float:
    """Return 1 for a win, 0.5 for a draw, else 0."""
    return state["result"]


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng, rows = random.Random(seed), dict[str, dict[str, Any]]()
    while len(rows) < count:
        a, b, c, d = rng.sample(range(1, 10), 4)
        text, split = show([a, b], [c, d]), zlib.crc32(bytes([*sorted([a, b]), *sorted([c, d])])) % 2 == 1
        if split == evaluation and value(tuple(sorted([a, b])), tuple(sorted([c, d]))) >= 0:
            rows[text] = {"question": text, "info": {"mine": [a, b], "theirs": [c, d], "seed": f"{seed}:{text}"}}
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one position per example, none of them lost; those for evaluation differ from the others."""
    parser = vf.XMLParser(["take"], answer_field="take")
    data = {"dataset": lambda: _rows(num_examples, f"{seed}:train", False)}
    data["eval_dataset"] = lambda: _rows(num_examples, f"{seed}:eval", True)
    rubric = vf.Rubric([result], parser=parser)
    options = {"system_prompt": SYSTEM_PROMPT, "parser": parser, "rubric": rubric, "policies": {"expert": expert}}
    return FifteenPickEnv(**data, **options, max_turns=4)
