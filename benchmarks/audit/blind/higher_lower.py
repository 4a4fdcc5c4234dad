"""Higher or lower: guess whether the next card is higher or lower; the first wrong guess ends the game."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

NUM_CARDS = 13
NUM_GUESSES = 8
SYSTEM_PROMPT = (
    f"A deck has one card of each value from 1 to {NUM_CARDS}. Guess whether the next card is higher or lower than the last "
    f"one: <guess>higher</guess> or <guess>lower</guess>. The game ends at the first wrong guess, or after {NUM_GUESSES} "
    "right ones."
)


class HigherLowerEnv(vf.MultiTurnEnv):
    """An environment in which cards are turned over until a guess is wrong."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["streak"] = 0

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess = (self.parser.parse_answer(messages) or "").lower()
        deck, turn = state["info"]["deck"], state["streak"]
        truth = "higher" if deck[turn + 1] > deck[turn] else "lower"
        if guess != truth:
            state["final_env_response"] = f"The next card is {deck[turn + 1]}. The game is over."
            return None
        state["streak"] += 1
        if state["streak"] == NUM_GUESSES:
            state["final_env_response"] = f"The next card is {deck[turn + 1]}. You reached the end."
            return None
        return f"Right. Cards so far: {' '.join(str(card) for card in deck[: turn + 2])}"


def streak(state: vf.State) -> float:
    """Return the number of right guesses as a share of the possible number."""
    return state["streak"] / NUM_GUESSES


def card_counter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess what is more likely, given the cards that are left."""
    seen = state["info"]["deck"][: state["streak"] + 1]
    left = [card for card in range(1, NUM_CARDS + 1) if card not in seen]
    higher = sum(card > seen[-1] for card in left)
    return f"<guess>{'higher' if 2 * higher > len(left) else 'lower'}</guess>"


def optimist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Always guess that the next card is higher."""
    return "<guess>higher</guess>"


def make_row(index: int, seed: str) -> dict[str, Any]:
    deck = list(range(1, NUM_CARDS + 1))
    random.Random(f"{seed}:{index}").shuffle(deck)
    return {"question": f"Cards so far: {deck[0]}", "info": {"deck": deck[: NUM_GUESSES + 1]}}


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Return an environment of card games.

    Args:
        num_examples: Number of decks in each dataset.
        seed: Random seed of the decks.
    """
    parser = vf.XMLParser(["guess"], answer_field="guess")
    return HigherLowerEnv(
        dataset=lambda: [make_row(index, f"{seed}:train") for index in range(num_examples)],
        eval_dataset=lambda: [make_row(index, f"{seed}:eval") for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([streak], parser=parser),
        policies={"card_counter": card_counter, "optimist": optimist},
        max_turns=NUM_GUESSES,
    )
