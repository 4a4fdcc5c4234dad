"""Goofspiel: bid cards for prizes. In each round, both players play one of their cards; the higher card takes the prize.

Both players have the cards 1 to 7. The prizes 1 to 7 come in random order. If both cards are equal, nobody gets the prize.
"""

from __future__ import annotations

import random
import zlib
from itertools import permutations
from typing import Any

import rove as vf

CARDS = tuple(range(1, 8))
SYSTEM_PROMPT = (
    "You play Goofspiel with the cards 1 to 7. In each round, a prize is shown, and both players play one card of their "
    "hand at the same time. The higher card wins the prize; equal cards win nothing. Every card can be played once. "
    "The player with the larger sum of prizes wins. Answer <card>4</card>"
)


def matching(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play the card that equals the prize."""
    return f"<card>{state['prizes'][state['round']]}</card>"


def random_card(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play any card."""
    return f"<card>{rng.choice(state['hand'])}</card>"


class GoofspielEnv(vf.MultiTurnEnv):
    """An environment in which the model plays against an opponent that plays its cards in a random order."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        order = list(CARDS)
        random.Random(info.get("seed", 0)).shuffle(order)
        state.update(
            prizes=info["prizes"],
            opponent_cards=order,
            hand=list(CARDS),
            round=0,
            points=0,
            opponent_points=0,
            finished=False,
        )

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text = (self.parser.parse_answer(messages) or "").strip()
        if text not in [str(card) for card in state["hand"]]:
            state["final_env_response"] = "You do not have this card. You lose."
            return None
        card, other = int(text), state["opponent_cards"][state["round"]]
        prize = state["prizes"][state["round"]]
        state["hand"].remove(card)
        state["round"] += 1
        if card > other:
            state["points"] += prize
        elif other > card:
            state["opponent_points"] += prize
        report = f"Your opponent played {other}. You have {state['points']}, your opponent {state['opponent_points']}."
        if state["round"] == len(CARDS):
            state["finished"] = True
            state["final_env_response"] = report
            return None
        hand = " ".join(map(str, state["hand"]))
        return f"{report}\nPrize {state['prizes'][state['round']]}. Your hand: {hand}"


def won(state: vf.State) -> float:
    """Return 1 for a win, 0.5 for a draw, 0 otherwise."""
    if not state["finished"]:
        return 0.0
    return 1.0 if state["points"] > state["opponent_points"] else 0.5 * (state["points"] == state["opponent_points"])


def margin(state: vf.State) -> float:
    """Return the difference of the points."""
    return float(state["points"] - state["opponent_points"])


def is_held_out(prizes: tuple[int, ...]) -> bool:
    """Return whether an order of the prizes is reserved for evaluation."""
    return zlib.crc32(bytes(prizes)) % 5 == 0


def _rows(count: int, seed: int, held_out: bool) -> list[dict[str, Any]]:
    rng = random.Random(f"{seed}:{held_out}")
    orders = [prizes for prizes in permutations(CARDS) if is_held_out(prizes) == held_out]
    rows = []
    for prizes in rng.sample(orders, count):
        info = {"prizes": list(prizes), "opponent_seed": rng.getrandbits(32)}
        rows.append({"question": f"Prize {prizes[0]}. Your hand: {' '.join(map(str, CARDS))}", "info": info})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with games of Goofspiel.

    Args:
        num_examples: Number of games for training, and for evaluation (at most 900).
        seed: Random seed of the prizes and of the opponent.
    """
    parser = vf.XMLParser(["card"], answer_field="card")
    rubric = vf.Rubric([won], parser=parser)
    rubric.add_metric(margin)
    return GoofspielEnv(
        dataset=lambda: _rows(num_examples, seed, held_out=False),
        eval_dataset=lambda: _rows(num_examples, seed, held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"matching": matching, "random_card": random_card},
        max_turns=len(CARDS),
    )
