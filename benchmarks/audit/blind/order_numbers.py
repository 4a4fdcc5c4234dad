"""Order numbers: find all order numbers in a message to a shop."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "List all order numbers in the message, in the order in which they appear. An order number is two capital letters, a "
    'dash and five digits. Reply with a JSON array of strings and nothing else, for example ["KT-20417"]. If there is no '
    "order number, reply with []."
)
GREETINGS = ["Hello,", "Hi there,", "Good morning,", "Dear team,", "To whom it may concern,"]
WITH_NUMBER = [
    "I am still waiting for {}.",
    "The box of {} was open when it arrived.",
    "Please send {} to my new address.",
    "Order {} has the wrong size.",
    "Can I still add something to {}?",
]
OTHER = [
    "My customer number is {d6}.",
    "You can call me at 555-{d4}.",
    "I paid {d3} euros on the {day}th.",
    "The parcel label says {L}{d7}.",
    "The ticket of your support is #{d5}.",
    "The invoice has the number {d4}/{L}.",
]


def other_sentence(rng: random.Random) -> str:
    values = {f"d{n}": "".join(rng.choices("0123456789", k=n)) for n in range(3, 8)}
    return rng.choice(OTHER).format(**values, day=rng.randint(4, 20), L=rng.choice("ABCDEFGH"))


def make_row(rng: random.Random) -> dict[str, Any]:
    count = rng.choices([0, 1, 2, 3], [3, 4, 3, 2])[0]
    numbers = ["".join(rng.choices("BCDFGHKLMNPRST", k=2)) + f"-{rng.randint(10000, 99999)}" for _ in range(count)]
    sentences = [rng.choice(WITH_NUMBER).format(number) for number in numbers]
    for _ in range(rng.randint(2, 3)):
        sentences.insert(rng.randint(0, len(sentences)), other_sentence(rng))
    return {"question": " ".join([rng.choice(GREETINGS), *sentences]), "answer": json.dumps(numbers)}


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the reply is the array of all order numbers."""
    try:
        reply = json.loads(str(completion[-1].content or ""))
    except (ValueError, RecursionError):
        return 0.0
    return float(reply == json.loads(answer))


def is_json(completion: vf.Messages) -> float:
    """Return 1 if the reply is JSON."""
    try:
        json.loads(str(completion[-1].content or ""))
    except (ValueError, RecursionError):
        return 0.0
    return 1.0


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """List all order numbers."""
    return str(state["answer"])


def first_only(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """List only the first order number."""
    return json.dumps(json.loads(state["answer"])[:1])


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment of messages to a shop.

    Args:
        num_examples: Number of messages in each dataset.
        seed: Random seed of the messages.
    """
    rubric = vf.Rubric([correct])
    rubric.add_metric(is_json)
    return vf.SingleTurnEnv(
        dataset=lambda: [make_row(random.Random(f"{seed}:train:{index}")) for index in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"{seed}:eval:{index}")) for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"clerk": clerk, "first_only": first_only},
    )
