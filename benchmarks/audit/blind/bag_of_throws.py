"""Bag of throws: rock, paper, scissors against an opponent who draws each throw from a bag."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

BEATS = {"rock": "scissors", "paper": "rock", "scissors": "paper"}
COPIES = 3
NUM_ROUNDS = COPIES * len(BEATS)
SYSTEM_PROMPT = (
    f"Play {NUM_ROUNDS} rounds of rock, paper, scissors. Your opponent has a bag with {COPIES} cards of each kind, draws "
    "one card per round and does not put it back. Count the cards. Reply with <throw>rock</throw>, <throw>paper</throw> or "
    "<throw>scissors</throw>."
)


def shuffled_bag(rng: random.Random) -> list[str]:
    """Return the opponent's cards in the order in which they are drawn."""
    bag = sorted(BEATS) * COPIES
    rng.shuffle(bag)
    return bag


class BagEnv(vf.MultiTurnEnv):
    """An environment of several rounds against a bag of cards."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["bag"] = shuffled_bag(random.Random(state["info"].get("game_seed", 0)))
        state["drawn"] = []
        state["wins"] = 0

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        throw = (self.parser.parse_answer(messages) or "").lower()
        card = state["bag"][len(state["drawn"])]
        state["drawn"].append(card)
        if throw not in BEATS:
            result = "That is no throw. You lose this round."
        elif BEATS[throw] == card:
            state["wins"] += 1
            result = "You win this round."
        else:
            result = "A tie." if throw == card else "You lose this round."
        text = f"Your opponent drew {card}. {result}"
        if len(state["drawn"]) == NUM_ROUNDS:
            state["final_env_response"] = text
            return None
        return f"{text} Round {len(state['drawn']) + 1} of {NUM_ROUNDS}."


def rounds_won(state: vf.State) -> float:
    """Return the share of the rounds that were won."""
    return state["wins"] / NUM_ROUNDS


def counter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play what beats the most cards that are left in the bag."""
    left = {kind: COPIES - state["drawn"].count(kind) for kind in BEATS}
    most = max(left.values())
    return f"<throw>{rng.choice([throw for throw in sorted(BEATS) if left[BEATS[throw]] == most])}</throw>"


def gambler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play a random throw."""
    return f"<throw>{rng.choice(sorted(BEATS))}</throw>"


def make_row(index: int, seed: str) -> dict[str, Any]:
    rng = random.Random(f"{seed}:{index}")
    return {"question": f"Round 1 of {NUM_ROUNDS}.", "info": {"seed": rng.getrandbits(32)}}


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment of games.

    Args:
        num_examples: Number of games in each dataset; each has a seed of its own.
        seed: Random seed of the games.
    """
    parser = vf.XMLParser(["throw"], answer_field="throw")
    return BagEnv(
        dataset=lambda: [make_row(index, f"{seed}:train") for index in range(num_examples)],
        eval_dataset=lambda: [make_row(index, f"{seed}:eval") for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([rounds_won], parser=parser),
        policies={"counter": counter, "gambler": gambler},
        max_turns=NUM_ROUNDS,
    )
