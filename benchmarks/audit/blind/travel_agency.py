"""Travel agency: find out what a customer wants by asking, then book it."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

OPTIONS = {
    "city": ["Porto", "Ghent", "Turin", "Bergen", "Split", "Krakow"],
    "month": ["March", "April", "May", "June", "September", "October"],
    "hotel": ["hostel", "guesthouse", "boutique", "resort", "apartment"],
    "transport": ["train", "bus", "plane", "ferry", "car"],
    "meals": ["none", "breakfast", "half board", "full board", "vegan"],
}
SYSTEM_PROMPT = (
    "You are a travel agent. Find out what the customer wants. Each turn, ask about one thing, <ask>city</ask>, or book the trip, "
    "which ends the conversation:\n<book>city=Porto; month=May; hotel=hostel; transport=bus; meals=none</book>\n"
    + "\n".join(f"{slot}: {', '.join(values)}" for slot, values in OPTIONS.items())
)
SENTENCES = {
    "city": ["We would love to see {}.", "My partner insists on {}.", "Not {other} again. {} this time, please."],
    "month": ["{} suits us.", "We cannot travel in {other}, but {} is fine.", "Our holidays are in {}."],
    "hotel": ["Hotel type: {}.", "Last year we had {other}. Now we want {}.", "I am thinking of {}."],
    "transport": ["By {}.", "I get sick on any {other}, so by {}.", "We prefer the {}."],
    "meals": ["Meals: {}.", "Not {other}; {}, please.", "For meals, {}."],
}
NAMES = ["Ms. Abbot", "Mr. Castro", "Mrs. Duval", "Mr. Eklund", "Ms. Farkas", "Mr. Gallo", "Mrs. Horak", "Ms. Ibsen"]
ASK = re.compile(r"<ask>\s*(\w+)\s*</ask>")
BOOK = re.compile(r"<book>(.*?)</book>", re.DOTALL)
PART, ALL_RIGHT = 0.16, 0.2


def read_booking(text: str) -> dict[str, str]:
    """Return the slots of a booking; a slot that is given twice is left out."""
    booking: dict[str, str] = {}
    for part in text.split(";"):
        slot, _, value = (piece.strip() for piece in part.partition("="))
        booking[slot] = "" if slot in booking else value
    return booking


class AgencyEnv(vf.MultiTurnEnv):
    """An environment with a customer who answers questions."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(booking=None, asked=[])

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text = str(messages[-1]["content"] or "")
        asks, books = ASK.findall(text), BOOK.findall(text)
        if len(asks) + len(books) != 1:
            return "Sorry, please do one thing at a time."
        if books:
            state["booking"] = read_booking(books[0])
            state["final_env_response"] = "Thank you, goodbye."
            return None
        slot = asks[0].lower()
        if slot not in OPTIONS:
            return "I do not know what you mean."
        state["asked"].append(slot)
        return state["info"]["replies"][slot]


def wishes_met(state: vf.State) -> float:
    """Return 0.16 for each wish that the booking meets, and 0.2 more if it meets all of them."""
    booking, wishes = state["booking"] or {}, state["info"]["wishes"]
    met = sum(booking.get(slot) == wish for slot, wish in wishes.items())
    return PART * met + ALL_RIGHT * (met == len(wishes))


def questions_asked(state: vf.State) -> float:
    """Return the number of questions."""
    return float(len(state["asked"]))


def _book(choices: dict[str, str]) -> str:
    return f"<book>{'; '.join(f'{slot}={value}' for slot, value in choices.items())}</book>"


def attentive(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Ask about everything, then book what the customer wants."""
    turn = len(state["trajectory"])
    return f"<ask>{list(OPTIONS)[turn]}</ask>" if turn < len(OPTIONS) else _book(state["info"]["wishes"])


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Ask about the city only and guess the rest."""
    if not state["trajectory"]:
        return "<ask>city</ask>"
    return _book(
        {slot: rng.choice(values) for slot, values in OPTIONS.items()} | {"city": state["info"]["wishes"]["city"]}
    )


def _rows(count: int, seed: str, first_file: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for index in range(count):
        wishes = {slot: rng.choice(values) for slot, values in OPTIONS.items()}
        replies = {}
        for slot, wish in wishes.items():
            other = rng.choice([value for value in OPTIONS[slot] if value != wish])
            replies[slot] = rng.choice(SENTENCES[slot]).format(wish, other=other)
        text = f"File {first_file + index}. {rng.choice(NAMES)}: Hello, we would like to book a trip for {rng.randint(2, 6)} people."
        rows.append({"question": text, "answer": "", "info": {"wishes": wishes, "replies": replies}})
    return rows


def load_environment(num_examples: int = 250, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with customers of a travel agency.

    Args:
        num_examples: Number of customers for training and for evaluation.
        seed: Random seed of the customers.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([wishes_met])
    rubric.add_metric(questions_asked)
    return AgencyEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 1),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 50001),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"attentive": attentive, "hasty": hasty},
        max_turns=max_turns,
    )
