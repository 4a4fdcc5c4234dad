"""Parcel form: read a customer's letter, then answer the clerk's questions about the parcel one by one."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Read the customer's letter. Then fill in the form: answer each question with one word or number from the letter, and "
    "nothing else. Write no if the letter does not mention an extra service."
)
NAMES = ["Ingrid", "Tomas", "Leila", "Pavel", "Noor", "Felix", "Marta", "Kofi", "Yuki", "Ramon"]
CITIES = ["Bergen", "Porto", "Ghent", "Krakow", "Turin", "Malmo", "Graz", "Nantes", "Split", "Cork"]
GOODS = ["books", "shoes", "toys", "tea", "candles", "plates", "tools", "cloth"]
FIELDS = {
    "recipient": "Who is the recipient?",
    "city": "Which city does the parcel go to?",
    "goods": "What is in the parcel?",
    "weight": "How many kilograms does it weigh?",
    "sender": "Who is the sender?",
    "insurance": "Is insurance requested (yes or no)?",
}


def make_row(rng: random.Random) -> dict[str, Any]:
    sender, recipient, other = rng.sample(NAMES, 3)
    home, city = rng.sample(CITIES, 2)
    insured, weight, goods = rng.random() < 0.15, rng.randint(1, 19), rng.choice(GOODS)
    sentences = [
        f"My name is {sender} and I live in {home}.",
        f"Please send my {goods} to {recipient} in {city}.",
        f"The parcel weighs {weight} kg.",
        f"{other} will bring it to your counter on Friday.",
    ]
    if insured:
        sentences.append("I would like to have it insured.")
    first, rest = sentences[0], sentences[1:]
    rng.shuffle(rest)
    form = {"recipient": recipient, "city": city, "goods": goods, "weight": str(weight), "sender": sender}
    form["insurance"] = "yes" if insured else "no"
    order = rng.sample(list(FIELDS), len(FIELDS))
    letter = " ".join([first, *rest])
    return {"question": f"{letter}\n\n{FIELDS[order[0]]}", "info": {"form": form, "order": order}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def tidy(text: Any) -> str:
    """Return a reply without case, surrounding space, and a full stop."""
    return str(text or "").strip().rstrip(".").strip().lower()


class ParcelFormEnv(vf.MultiTurnEnv):
    """An environment that asks one question per turn."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["filled"] = {}

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        order = state["info"]["order"]
        turn = len(state["filled"])
        state["filled"][order[turn]] = tidy(messages[-1]["content"])
        if turn + 1 < len(order):
            return FIELDS[order[turn + 1]]
        state["final_env_response"] = "Thank you, the form is complete."
        return None


def fields_right(state: vf.State, info: dict[str, Any]) -> float:
    """Return the share of the form that is right."""
    form = info["form"]
    return sum(state["filled"].get(field) == value.lower() for field, value in form.items()) / len(form)


def load_environment(num_examples: int = 300, num_eval_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Return an environment with letters and forms.

    Args:
        num_examples: Number of training letters.
        num_eval_examples: Number of evaluation letters.
        seed: Random seed of the letters.
    """
    return ParcelFormEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([fields_right]),
        max_turns=len(FIELDS),
    )
