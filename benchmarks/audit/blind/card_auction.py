"""Card auction: two players bid their cards for prizes (a small game of Goofspiel)."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

CARDS = list(range(1, 8))
SYSTEM_PROMPT = (
    "You and a rival each hold the cards 1 to 7. In each round, a prize from 1 to 7 points is on the table and both bid one "
    "card at the same time. The higher card takes the prize; with equal cards nobody gets it. Bid cards are gone. "
    "The player with more points at the end wins. Reply with your card, for example <bid>4</bid>. "
    "An invalid bid loses the game."
)


class AuctionEnv(vf.MultiTurnEnv):
    """A game of seven rounds against a rival who bids in random order."""

    def __init__(self, seed: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.seed = seed

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        rng = random.Random(self.seed)
        state.update(mine=0, theirs=0, hand=list(CARDS), invalid=False, over=False)
        state["rival_bids"] = rng.sample(CARDS, len(CARDS))

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        bid = (self.parser.parse_answer(messages) or "").strip()
        number = len(CARDS) - len(state["hand"])
        if not (bid.isascii() and bid.isdigit() and int(bid) in state["hand"]):
            state["invalid"] = True
            state["final_env_response"] = "Invalid bid. You lose."
            return None
        mine, theirs, prizes = int(bid), state["rival_bids"][number], state["info"]["prizes"]
        state["hand"].remove(mine)
        if mine > theirs:
            state["mine"] += prizes[number]
        elif theirs > mine:
            state["theirs"] += prizes[number]
        news = f"You bid {mine}, the rival {theirs}. You have {state['mine']} points, the rival {state['theirs']}."
        if not state["hand"]:
            state["over"] = True
            state["final_env_response"] = f"{news} The game is over."
            return None
        return f"{news}\nPrize: {prizes[number + 1]}. Your cards: {' '.join(map(str, state['hand']))}"


def outcome(state: vf.State) -> float:
    """Return 1 for a win, 0.5 for a draw, 0 for a loss or an unfinished game."""
    if state["invalid"] or not state["over"] or state["mine"] < state["theirs"]:
        return 0.0
    return 1.0 if state["mine"] > state["theirs"] else 0.5


def matcher(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Bid the card that equals the prize."""
    number = len(CARDS) - len(state["hand"])
    return f"<bid>{state['info']['prizes'][number]}</bid>"


def any_card(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Bid a random card."""
    return f"<bid>{rng.choice(state['hand'])}</bid>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    orders: set[tuple[int, ...]] = set()
    rng = random.Random(seed)
    while len(orders) < 2 * count:
        orders.add(tuple(rng.sample(CARDS, len(CARDS))))
    rows = []
    for number, prizes in enumerate(sorted(orders), start=1):
        info = {"prizes": list(prizes), "seed": rng.getrandbits(32)}
        question = f"Game {number}. Prize: {prizes[0]}. Your cards: {' '.join(map(str, CARDS))}"
        rows.append({"question": question, "info": info})
    rng.shuffle(rows)
    return rows


def load_environment(num_examples: int = 300, seed: int = 11) -> vf.Environment:
    """Return an environment with card auctions.

    Args:
        num_examples: Number of games in each dataset; the order of the prizes is different in each game.
        seed: Random seed of the games.
    """
    rows = _rows(num_examples, str(seed))
    parser = vf.XMLParser(["bid"], answer_field="bid")
    return AuctionEnv(
        seed,
        dataset=rows[:num_examples],
        eval_dataset=rows[num_examples:],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([outcome], parser=parser),
        policies={"matcher": matcher, "any_card": any_card},
        max_turns=len(CARDS),
    )
