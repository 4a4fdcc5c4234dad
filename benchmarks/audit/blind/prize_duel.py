"""Prize duel: a bidding card game (Goofspiel) against a scripted opponent.

Both players have the cards 1 to 7. In each round a prize card is turned up, both players play one card, and the higher card
wins the prize; equal cards win nothing.
"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You play a bidding game. You and the opponent each hold the cards 1 to 7. In every round you both play one card; the higher "
    "card wins the prize. Each card can be played once. Reply with <card>N</card>. A card that you do not hold loses the game."
)
CARDS = list(range(1, 8))


class DuelEnv(vf.MultiTurnEnv):
    """An environment with one game per example."""

    def __init__(self, seed: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.rng = random.Random(seed)

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        prizes = state["info"]["prizes"]
        state.update(prizes=prizes, hand=list(CARDS), other=list(CARDS), own_points=0, other_points=0, forfeit=False)

    def opponent_card(self, prize: int, hand: list[int]) -> int:
        """Play the card closest to the prize most of the time, and otherwise any card."""
        if self.rng.random() < 0.4:
            return self.rng.choice(hand)
        return min(hand, key=lambda card: (abs(card - prize), card))

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text = (self.parser.parse_answer(messages) or "").strip()
        card = int(text) if text in map(str, state["hand"]) else None
        if card is None:
            state["forfeit"] = True
            state["final_env_response"] = "You do not hold that card. The game is lost."
            return None
        turn = len(CARDS) - len(state["hand"])
        prize = state["prizes"][turn]
        answer = self.opponent_card(prize, state["other"])
        state["hand"].remove(card)
        state["other"].remove(answer)
        if card > answer:
            state["own_points"] += prize
        elif answer > card:
            state["other_points"] += prize
        report = f"Opponent played {answer}. Points: you {state['own_points']}, opponent {state['other_points']}."
        if not state["hand"]:
            state["final_env_response"] = report
            return None
        return f"{report}\n{show(state['prizes'][turn + 1], state['hand'], state['other'])}"


def show(prize: int, hand: list[int], other: list[int]) -> str:
    """Return the position as the model sees it."""
    return f"Prize: {prize}. Your cards: {' '.join(map(str, hand))}. Opponent's cards: {' '.join(map(str, other))}."


def opening(prizes: tuple[int, ...]) -> str:
    """Return the first message of a game."""
    return f"The prizes of this game, in order: {' '.join(map(str, prizes))}.\n{show(prizes[0], CARDS, CARDS)}"


def outcome(state: vf.State) -> float:
    """1 for a win, 0.5 for a tie, 0 for a loss."""
    if state["forfeit"] or state["hand"]:
        return 0.0
    own, other = state["own_points"], state["other_points"]
    return 1.0 if own > other else 0.5 if own == other else 0.0


def load_environment(num_examples: int = 300, num_eval_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with bidding games.

    Args:
        num_examples: Games for training.
        num_eval_examples: Games for evaluation.
        seed: Random seed of the prizes and of the opponent.
    """
    orders: dict[tuple[int, ...], None] = {}
    rng = random.Random(f"{seed}:prizes")
    while len(orders) < num_examples + num_eval_examples:
        orders[tuple(rng.sample(CARDS, len(CARDS)))] = None
    rows = [{"question": opening(prizes), "info": {"prizes": list(prizes)}} for prizes in orders]
    parser = vf.XMLParser(["card"], answer_field="card")
    return DuelEnv(
        seed,
        dataset=rows[num_eval_examples:],
        eval_dataset=rows[:num_eval_examples],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([outcome], parser=parser),
        max_turns=len(CARDS),
    )
