"""Bid duel: six prizes, six cards each; the higher card takes the prize. The rival has one of four habits."""

import itertools
import random
import zlib

import rove as vf

HABITS = ["copy", "proud", "shy", "mixed"]
ORDERS = list(itertools.permutations(range(1, 7)))


def text(state):
    cards = " ".join(str(card) for card in state["mine"])
    last = f"rival bid {state['last']}; " if state["last"] else ""
    return f"{last}points {state['points']} to {state['rival_points']}; prize {state['prizes'][0]}; cards {cards}"


def make(rng):
    order, habit = rng.choice(ORDERS), rng.choice(HABITS)
    info = {"prizes": list(order), "habit": habit, "luck": rng.randint(1, 10) if habit == "mixed" else 0}
    return {"question": f"points 0 to 0; prize {order[0]}; cards 1 2 3 4 5 6", "info": info}


def rows(count, seed, held_out):
    """Return different rows; a third of all orders of the prizes is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = str(row["info"])
        if key not in seen and (zlib.crc32(str(row["info"]["prizes"]).encode()) % 3 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


class BidEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["prizes"] = list(state["info"]["prizes"])
        state["mine"], state["theirs"] = [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]
        state["points"] = state["rival_points"] = state["last"] = 0
        state["cheated"] = False

    def rival_card(self, state):
        habit, cards, prize = state["info"]["habit"], state["theirs"], state["prizes"][0]
        if habit == "mixed":
            habit = random.Random(f"{state['info']}:{cards}").choice(["copy", "proud", "shy"])
        if habit == "copy":
            return min(cards, key=lambda card: (abs(card - prize), card))
        return cards[-1] if habit == "proud" else cards[0]

    async def env_response(self, messages, state, **kwargs):
        bid = self.parser.parse_answer(messages)
        if bid not in [str(card) for card in state["mine"]]:
            state["cheated"] = True
            state["final_env_response"] = "You do not have this card. You lose."
            return
        theirs, prize = self.rival_card(state), state["prizes"][0]
        state["points"] += prize if int(bid) > theirs else 0
        state["rival_points"] += prize if theirs > int(bid) else 0
        state["mine"] = [card for card in state["mine"] if card != int(bid)]
        state["theirs"] = [card for card in state["theirs"] if card != theirs]
        state["prizes"], state["last"] = state["prizes"][1:], theirs
        if not state["prizes"]:
            state["final_env_response"] = f"The end: {state['points']} to {state['rival_points']}."
            return
        return text(state)


def won(state):
    """1 for more points than the rival, 0.5 for as many."""
    if state["cheated"] or state["prizes"]:
        return 0.0
    return 1.0 if state["points"] > state["rival_points"] else 0.5 if state["points"] == state["rival_points"] else 0.0


def fair(messages, state, rng):
    """Bid the card that is nearest to the prize; ignore the rival."""
    *_, prize, cards = messages[-1].content.split("; ")
    prize, cards = int(prize.split()[1]), [int(card) for card in cards.split()[1:]]
    return f"<bid>{min(cards, key=lambda card: (abs(card - prize), -card))}</bid>"


def gambler(messages, state, rng):
    """Bid any card of the hand."""
    return f"<bid>{rng.choice(messages[-1].content.split('cards ')[1].split())}</bid>"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with a rival of one of four habits."""
    parser = vf.XMLParser(["bid"], answer_field="bid")
    return BidEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="The higher card wins the prize. Bid each card once: <bid>card</bid>",
        parser=parser,
        rubric=vf.Rubric([won], parser=parser),
        policies={"fair": fair, "gambler": gambler},
        max_turns=6,
    )
