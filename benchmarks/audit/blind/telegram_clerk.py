"""Telegram clerk: the model shortens a customer's message to a telegram, in which every word costs money."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You are a telegraph clerk. Write the customer's message as a telegram. It must name the person, the day, the hour, "
    "the town and the object that are valid now, and nothing that the customer has changed. Every word costs: up to "
    "eight words are ideal, and twenty or more are worthless. Keep the customer's own words for the names and the hour. Reply "
    "with the telegram only."
)
PEOPLE = "Agatha Bruno Cosima Dorian Elvira Fergus Greta Horace Ilsa Jasper Kasimir Lavinia".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
TOWNS = "Trieste Bergen Porto Leuven Krakow Galway Aarhus Utrecht Ostend Malmo".split()
THINGS = "cello microscope ledger globe saddle barometer kayak loom typewriter lantern".split()
TRAINED_OPENINGS = (
    "Oh dear, where do I begin, my thoughts are all over the place this morning.",
    "Good day, I have never sent one of these before, so do bear with me, please.",
    "It is rather urgent, although I would not want to frighten anybody with it.",
)
HELD_OUT_OPENINGS = (
    "My aunt always said that I talk too much, and I am afraid that she was right.",
    "Please take this down exactly, I will try to speak as slowly as I can manage.",
)
FREE_WORDS, WORTHLESS_WORDS = 8, 20


def tokens(text: str) -> list[str]:
    """Return the words of a telegram; punctuation separates words, except in an hour such as 6:15, 06:15 or 6.15."""
    found = re.findall(r"[0-9]{1,2}[:.][0-9]{2}|[a-z0-9]+", text.lower())
    return [word.replace(".", ":").removeprefix("0") if ":" in word or "." in word else word for word in found]


def brevity(count: int) -> float:
    """Return 1 for at most `FREE_WORDS` words, falling to 0 at `WORTHLESS_WORDS`."""
    return min(1.0, max(0.0, (WORTHLESS_WORDS - count) / (WORTHLESS_WORDS - FREE_WORDS)))


def faithful(completion: vf.Messages, info: dict[str, Any], parser: vf.Parser) -> float:
    """Return 1 if the telegram names all that is valid and nothing that has been changed."""
    used = set(tokens(parser.parse_answer(completion) or ""))
    return float(used.issuperset(info["valid"]) and used.isdisjoint(info["changed"]))


def telegram(completion: vf.Messages, info: dict[str, Any], parser: vf.Parser) -> float:
    """Return the brevity of a faithful telegram, else 0."""
    return faithful(completion, info, parser) * brevity(len(tokens(parser.parse_answer(completion) or "")))


def words_used(completion: vf.Messages, parser: vf.Parser) -> float:
    return float(len(tokens(parser.parse_answer(completion) or "")))


def terse(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write the valid words only."""
    return " ".join(state["info"]["valid"]).upper() + " STOP"


def chatty(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write polite sentences, sometimes with the old day."""
    person, day, hour, town, thing = state["info"]["valid"]
    if rng.random() < 0.3:
        day = state["info"]["changed"][0]
    return f"My dear friend, {person} arrives in {town} on {day} at {hour} and brings the {thing}."


def _rows(count: int, seed: str, openings: tuple[str, ...]) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        person, (day, old_day), (town, old_town) = rng.choice(PEOPLE), rng.sample(DAYS, 2), rng.sample(TOWNS, 2)
        thing, old_thing = rng.sample(THINGS, 2)
        hour = f"{rng.randrange(6, 23)}:{rng.choice(('00', '15', '30', '45'))}"
        plan = [f"it was going to be {old_town} on {old_day}", f"we had agreed on {old_day}, and on {old_town}"]
        now = [f"but now it is {town}, on {day} at {hour}", f"but it has become {day} at {hour}, in {town}"]
        carried = [
            f"and {person} will bring the {thing} and not the {old_thing}",
            f"and instead of the {old_thing} {person} is to carry the {thing}",
        ]
        message = f"{rng.choice(openings)} You see, {rng.choice(plan)}, {rng.choice(now)}, {rng.choice(carried)}, which I hope is no trouble."
        valid = [person.lower(), day.lower(), hour, town.lower(), thing]
        changed = [old_day.lower(), old_town.lower(), old_thing]
        rows.append({"question": message, "answer": " ".join(valid), "info": {"valid": valid, "changed": changed}})
    return rows


def load_environment(num_examples: int = 250, seed: int = 0) -> vf.Environment:
    """Return an environment of messages to be shortened.

    Args:
        num_examples: Number of messages in each dataset; training and evaluation use different openings.
        seed: Random seed of the messages.
    """
    rubric = vf.Rubric([telegram], parser=vf.MaybeThinkParser())
    rubric.add_metric(faithful)
    rubric.add_metric(words_used)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", TRAINED_OPENINGS),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", HELD_OUT_OPENINGS),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"terse": terse, "chatty": chatty},
    )
