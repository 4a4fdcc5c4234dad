"""Letter details: find one detail in a letter from a customer."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Read the letter and answer the question with the detail alone, as it stands in the letter: <answer>detail</answer>"
)
FIRST = "Anna Boris Clara David Elena Felix Greta Henri Irene Jonas Karin Louis Maria Niels Olga Paul".split()
LAST = "Abel Brandt Conrad Dorn Engel Fuchs Gruber Horn Illing Jansen Keller Lorenz Moser Nagel Opitz Pohl".split()
THINGS = "kettle, desk lamp, garden hose, toaster, wall clock, suitcase, hair dryer, bread knife, tent, radio".split(
    ", "
)
TOWNS = "Aldern Birka Corvey Drumm Esk Farrow Gault Harrick Issel Jarrow Kell Lorne".split()
MONTHS = "January February March April May June July August September October November December".split()
QUESTIONS = {
    "order": "What is the order number?",
    "customer": "What is the customer number?",
    "thing": "Which article is the letter about?",
    "name": "What is the full name of the person who writes?",
    "town": "Which town was the parcel sent to?",
    "bought": "On which date was the article ordered?",
    "arrived": "On which date did the parcel arrive?",
    "price": "What did the article cost, in euros?",
}
OPENINGS = (
    "Dear Sir or Madam,\n\nI am writing about a {thing} that I ordered from you on {bought} (order {order}).",
    "Hello,\n\non {bought} I ordered a {thing}; the order number is {order}.",
    "Good morning,\n\nmy order {order} of {bought} was a {thing}.",
)
MIDDLES = (
    "The parcel reached me in {town} on {arrived}, but the box was damaged. I had paid {price} euros.",
    "For {price} euros I had expected better: it was sent to {town}, arrived on {arrived} and does not work.",
    "It came to {town} on {arrived}. For an article at {price} euros the finish is poor.",
)
CLOSINGS = (
    "My customer number is {customer}. Please tell me what to do.\n\nYours sincerely,\n{name}",
    "You will find me under the customer number {customer}.\n\nKind regards\n{name}",
)


def plain(text: str) -> str:
    """Return a text in lower case, without an article, a currency, a full stop and spare white space."""
    text = " ".join(text.lower().split()).strip(".")
    return re.sub(r"^(a|an|the) |^€ ?| ?(€|euros?)$", "", text)


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the answer is the detail and nothing else."""
    given = parser.parse_answer(completion)
    return float(given is not None and plain(given) == plain(answer))


def reader(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Find the detail."""
    return f"<answer>{state['answer']}</answer>"


def skimmer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer with the first number of the letter."""
    return f"<answer>{re.search(r'[0-9]+', messages[-1].content)[0]}</answer>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        first, month = rng.randint(1, 20), rng.randrange(12)
        details = {
            "order": str(rng.randint(100_000, 999_999)),
            "customer": str(rng.randint(10_000, 99_999)),
            "thing": rng.choice(THINGS),
            "name": f"{rng.choice(FIRST)} {rng.choice(LAST)}",
            "town": rng.choice(TOWNS),
            "bought": f"{first} {MONTHS[month]}",
            "arrived": f"{first + rng.randint(2, 8)} {MONTHS[month]}",
            "price": f"{rng.randint(12, 180)}.{rng.choice(('49', '50', '90', '95'))}",
        }
        parts = [rng.choice(OPENINGS), rng.choice(MIDDLES), rng.choice(CLOSINGS)]
        letter = "\n\n".join(part.format(**details) for part in parts)
        detail = rng.choice(sorted(QUESTIONS))
        rows.append(
            {"question": f"{letter}\n\n---\n{QUESTIONS[detail]}", "answer": details[detail], "info": {"detail": detail}}
        )
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with letters; a seed draws those for evaluation apart from those for training."""
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"reader": reader, "skimmer": skimmer},
    )
