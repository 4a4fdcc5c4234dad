"""Bid cards: a bidding game for prize cards, in which each player plays every bid card once."""

import random
import zlib
from typing import Any

import rove as vf

CARDS = 7
SYSTEM_PROMPT = (
    f"There are prize cards 1 to {CARDS}, turned up one at a time in random order. You and your opponent each hold bid cards "
    f"1 to {CARDS} and bid one per prize at the same time; each bid card can be played once. The higher bid takes the prize; "
    "equal bids discard it. The higher sum of prizes wins. Answer <bid>card</bid>. A card that you do not hold loses "
    "the game."
)


def show(state):
    prize = state["info"]["prizes"][state["round"]]
    hand = " ".join(map(str, state["hand"]))
    return f"Score {state['score'][0]}:{state['score'][1]}. Prize: {prize}. Your hand: {hand}"


class BidCardsEnv(vf.MultiTurnEnv):
    def __init__(self, seed: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.seed = seed

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        hand = list(range(1, CARDS + 1))
        state.update(hand=hand, opponent_hand=list(hand), score=[0, 0], round=0)
        state["opponent_rng"] = random.Random(self.seed)
        state["prompt"] = [*state["prompt"][:-1], vf.UserMessage(f"{state['prompt'][-1].content}\n{show(state)}")]

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text = (self.parser.parse_answer(messages) or "").strip()
        if text not in map(str, state["hand"]):
            state["score"] = [0, CARDS * (CARDS + 1) // 2]
            state["final_env_response"] = "You do not hold this card. You lose."
            return None
        bid = int(text)
        other = self.opponent_bid(state)
        state["hand"].remove(bid)
        state["opponent_hand"].remove(other)
        prize = state["info"]["prizes"][state["round"]]
        if bid != other:
            state["score"][0 if bid > other else 1] += prize
        state["round"] += 1
        outcome = f"You bid {bid}, your opponent {other}."
        if state["round"] == CARDS:
            state["final_env_response"] = f"{outcome} Final score {state['score'][0]}:{state['score'][1]}."
            return None
        return f"{outcome}\n{show(state)}"

    def opponent_bid(self, state):
        """Shuffle the remaining cards and play the first."""
        cards = list(state["opponent_hand"])
        state["opponent_rng"].shuffle(cards)
        return cards[0]


def won(state) -> float:
    """1 for a win, 0.5 for a tie."""
    mine, other = state["score"]
    return 1.0 if mine > other else 0.5 if mine == other else 0.0


def points(state) -> float:
    return float(state["score"][0])


def matcher(messages, state, rng):
    """Bid the value of the prize."""
    return f"<bid>{state['info']['prizes'][state['round']]}</bid>"


def shuffler(messages, state, rng):
    """Bid a random card."""
    return f"<bid>{rng.choice(state['hand'])}</bid>"


def make_rows(count, seed, evaluation):
    rows, index = [], 0
    while len(rows) < count:
        rng = random.Random(f"{seed}:{index}")
        index += 1
        prizes = rng.sample(range(1, CARDS + 1), CARDS)
        if (zlib.crc32(str(prizes).encode()) % 4 == 0) == evaluation:
            rows.append(
                {
                    "question": f"Game {'RT'[evaluation]}{rng.randint(10000, 99999)}",
                    "info": {"prizes": prizes, "seed": rng.getrandbits(32)},
                }
            )
    return rows


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Games against an opponent that bids at random."""
    parser = vf.XMLParser(["bid"], answer_field="bid")
    rubric = vf.Rubric([won], parser=parser)
    rubric.add_metric(points)
    return BidCardsEnv(
        seed=seed,
        dataset=lambda: make_rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: make_rows(num_examples // 2, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"matcher": matcher, "shuffler": shuffler},
        max_turns=CARDS,
    )
