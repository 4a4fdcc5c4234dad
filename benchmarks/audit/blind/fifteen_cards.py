"""Fifteen cards: take cards from one to nine in turns; three of your cards that add up to fifteen win."""

from __future__ import annotations

import functools
import random
import zlib
from itertools import combinations, permutations
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Nine cards from 1 to 9 lie on the table. You and a rival take turns, one card each. Whoever first holds three cards "
    "that add up to 15 wins; if no card is left, the game is a draw. Each player has taken one card already, and it is "
    "your turn. Answer <take>card</take>."
)
CARDS = range(1, 10)
POINTS = {"you": 1.0, "rival": 0.0}
DRAW_POINTS = 0.5


def has_fifteen(cards: tuple[int, ...]) -> bool:
    return any(sum(three) == 15 for three in combinations(cards, 3))


@functools.cache
def value(mine: frozenset[int], other: frozenset[int]) -> int:
    """Return 1, 0 or -1: the result with best play for the player who is to move and holds `mine`."""
    if has_fifteen(tuple(other)):
        return -1
    free = set(CARDS) - mine - other
    if not free:
        return 0
    return max(-value(other, mine | {card}) for card in free)


def best_cards(mine: frozenset[int], other: frozenset[int]) -> list[int]:
    """Return the best cards to take."""
    values = {card: -value(other, mine | {card}) for card in sorted(set(CARDS) - mine - other)}
    return [card for card in values if values[card] == max(values.values())]


class FifteenEnv(vf.MultiTurnEnv):
    """An environment with a rival whose strength the row sets."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state.update(yours=[info["yours"]], rivals=[info["rivals"]], winner=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text = (self.parser.parse_answer(messages) or "").strip()
        card = int(text) if len(text) == 1 and text in "123456789" else 0
        if card not in self.free(state):
            return self.finish(state, "You cannot take that card. The game is over.")
        state["yours"].append(card)
        if has_fifteen(tuple(state["yours"])):
            state["winner"] = "you"
            return self.finish(state, "You win.")
        if not self.free(state):
            return self.finish(state, "Draw.")
        card = self.rival_card(state)
        state["rivals"].append(card)
        if has_fifteen(tuple(state["rivals"])):
            state["winner"] = "rival"
            return self.finish(state, f"The rival takes {card} and wins.")
        if not self.free(state):
            return self.finish(state, "Draw.")
        return f"The rival takes {card}.\n{show(state['yours'], state['rivals'])}"

    def free(self, state: vf.State) -> list[int]:
        return [card for card in CARDS if card not in state["yours"] and card not in state["rivals"]]

    def rival_card(self, state: vf.State) -> int:
        info = state["info"]
        rng = random.Random(f"{info['seed']}:{sorted(state['yours'])}:{sorted(state['rivals'])}")
        if rng.random() < info["strength"]:
            return rng.choice(best_cards(frozenset(state["rivals"]), frozenset(state["yours"])))
        return rng.choice(self.free(state))

    def finish(self, state: vf.State, news: str) -> None:
        state["final_env_response"] = news


def points(state: vf.State) -> float:
    """Return 1 for a win, 0.5 for a draw, and 0 for a loss."""
    return POINTS.get(state["winner"], DRAW_POINTS)


def won(state: vf.State) -> float:
    return float(state["winner"] == "you")


def lost(state: vf.State) -> float:
    return float(state["winner"] == "rival")


def show(yours: list[int], rivals: list[int]) -> str:
    """Return the cards as the model sees them."""
    free = [card for card in CARDS if card not in yours and card not in rivals]
    lines = ("You", yours), ("Rival", rivals), ("Table", free)
    return "\n".join(f"{name}: {' '.join(map(str, cards))}" for name, cards in lines)


def expert(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a best card."""
    return f"<take>{rng.choice(best_cards(frozenset(state['yours']), frozenset(state['rivals'])))}</take>"


def guest(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take any card from the table."""
    free = [card for card in CARDS if card not in state["yours"] and card not in state["rivals"]]
    return f"<take>{rng.choice(free)}</take>"


OPENINGS = list(permutations(CARDS, 2))


def is_held_out(opening: tuple[int, int]) -> bool:
    return zlib.crc32(str(opening).encode()) % 4 == 0


def rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    openings = [opening for opening in OPENINGS if is_held_out(opening) == held_out]
    made = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        yours, rivals = rng.choice(openings)
        info = {"yours": yours, "rivals": rivals, "seed": rng.getrandbits(32), "strength": rng.uniform(0.6, 1.0)}
        made.append({"question": show([yours], [rivals]), "info": info})
    return made


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Return an environment with games; a quarter of the openings is reserved for evaluation.

    Args:
        num_examples: Number of games for training, and for evaluation.
        seed: Random seed of the games.
    """
    parser = vf.XMLParser(["take"], answer_field="take")
    rubric = vf.Rubric([points], parser=parser)
    for metric in (won, lost):
        rubric.add_metric(metric)
    return FifteenEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"expert": expert, "guest": guest},
        max_turns=4,
    )
