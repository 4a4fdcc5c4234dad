"""Prize bids: both players hold the cards 1 to 6 and bid for six prizes; the higher card takes the prize."""

import random

import rove as vf

SYSTEM_PROMPT = (
    "You and your opponent each hold the cards 1 to 6. In every round a prize worth 1 to 6 points is offered, both bid one "
    "card, the higher card takes the prize, and both cards are gone. If the cards are equal, nobody gets the prize. "
    "Collect more points than your opponent. Reply <bid>card</bid>"
)
CARDS = range(1, 7)


def opponent_bid(prize, hand, nerve):
    """High prizes are worth a high card; for the others, any of the lower cards will do."""
    hand = sorted(hand)
    if prize > nerve:
        return hand[-1]
    return random.choice(hand[: max(1, len(hand) - 1)])


def matcher(messages, state, rng):
    """Bid one more than the prize is worth, or the lowest card for the highest prize."""
    prize, hand = state["prizes"][state["round"]], state["hand"]
    wanted = prize + 1 if prize < 6 else 1
    return f"<bid>{min(hand, key=lambda card: (abs(card - wanted), card))}</bid>"


def any_card(messages, state, rng):
    """Bid any card."""
    return f"<bid>{rng.choice(state['hand'])}</bid>"


class BidsEnv(vf.MultiTurnEnv):
    """Six rounds against a scripted opponent."""

    async def setup_state(self, state, **kwargs):
        state.update(round=0, prizes=state["info"]["prizes"], hand=list(CARDS), other=list(CARDS), points=0, lost=0)

    async def env_response(self, messages, state, **kwargs):
        bid = self.parser.parse_answer(messages)
        if not (bid or "").isdecimal() or int(bid) not in state["hand"]:
            state["points"] = 0
            state["lost"] = sum(CARDS)
            state["final_env_response"] = "You do not have this card. You lose all prizes."
            return None
        prize, bid = state["prizes"][state["round"]], int(bid)
        other = opponent_bid(prize, state["other"], state["info"]["nerve"])
        state["hand"].remove(bid)
        state["other"].remove(other)
        if bid > other:
            state["points"] += prize
        elif other > bid:
            state["lost"] += prize
        state["round"] += 1
        line = f"Your opponent bid {other}. You have {state['points']} points, your opponent has {state['lost']}."
        if state["round"] == len(state["prizes"]):
            state["final_env_response"] = line
            return None
        hand = " ".join(map(str, state["hand"]))
        return f"{line}\nThe next prize is worth {state['prizes'][state['round']]}. Your cards: {hand}"


def won(state):
    """1 for more points than the opponent, 0.5 for as many."""
    if state["points"] == state["lost"]:
        return 0.5
    return float(state["points"] > state["lost"])


def points(state):
    """Points of the model."""
    return float(state["points"])


def rows(count, seed, held_out):
    made = []
    rng = random.Random(seed)
    orders = set()
    while len(made) < count:
        prizes = rng.sample(CARDS, 6)
        is_held_out = (prizes[0] * 7 + prizes[1] * 3 + prizes[2]) % 4 == 0
        if is_held_out != held_out or tuple(prizes) in orders:
            continue
        orders.add(tuple(prizes))
        info = {"prizes": prizes, "nerve": rng.choice([3, 4])}
        question = f"The first prize is worth {prizes[0]}. Your cards: 1 2 3 4 5 6"
        made.append({"question": question, "info": info})
    return made


def load_environment(num_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Games with different orders of the prizes, at most 150 for training and for evaluation."""
    parser = vf.XMLParser(["bid"], answer_field="bid")
    rubric = vf.Rubric([won], parser=parser)
    rubric.add_metric(points)
    return BidsEnv(
        dataset=lambda: rows(min(num_examples, 150), f"{seed}:train", False),
        eval_dataset=lambda: rows(min(num_examples, 150), f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"matcher": matcher, "any_card": any_card},
        max_turns=6,
    )
