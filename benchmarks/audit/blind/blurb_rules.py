"""Product blurbs under formal rules: write a short advertisement that follows every rule of the brief."""

from __future__ import annotations

import random
import re
from typing import Any, Callable

import rove as vf

SYSTEM_PROMPT = "You write product blurbs for a catalogue. Follow every rule in the brief. Reply with the blurb only."
PRODUCTS = [
    "folding lamp",
    "walnut desk",
    "wool blanket",
    "steel kettle",
    "garden hose",
    "travel mug",
    "bread knife",
    "oak stool",
    "rain jacket",
    "camping stove",
    "linen towel",
    "desk fan",
    "bike bell",
    "ink pen",
    "wall clock",
    "paper tray",
    "shoe rack",
    "tea pot",
    "yoga mat",
    "hand drill",
]
AUDIENCES = ["students", "commuters", "gardeners", "new parents", "retirees", "hikers", "small offices", "cooks"]
KEYWORDS = ["durable", "handmade", "lightweight", "warranty", "repairable", "compact", "washable", "quiet"]
OPENERS = ["Meet", "Finally", "Imagine", "Behold"]
CLOSERS = ["Order yours today.", "Available now.", "Made to last.", "See it in store."]


class Checker:
    """Decides whether a text follows a rule; a rule has a kind and a value."""

    def __init__(self) -> None:
        self.table: dict[str, Callable[[str, Any], bool]] = {
            "keyword": lambda text, value: re.search(rf"\b{re.escape(value)}\b", text, re.I) is not None,
            "opening": lambda text, value: text.startswith(value),
            "closing": lambda text, value: text.endswith(value),
            "min_words": lambda text, value: len(text.split()) >= value,
            "bullets": lambda text, value: len(re.findall(r"^- \S", text, re.M)) == value,
            "title": lambda text, value: re.match(r"<<[^<>\n]+>>\n", text) is not None,
            "sentence_count": lambda text, value: len(re.findall(r"[.!?](?:\s|$)", text)) == value,
            "paragraph_count": lambda text, value: len([p for p in text.split("\n\n") if p.strip()]) == value,
        }

    def follows(self, text: str, rule: dict[str, Any]) -> bool:
        check = self.table.get(rule["kind"])
        if check is not None and not check(text, rule["value"]):
            return False
        return True


RULES: dict[str, tuple[str, Callable[[random.Random], Any]]] = {
    "keyword": ("Use the word '{}'.", lambda rng: rng.choice(KEYWORDS)),
    "opening": ("Begin with the word '{}'.", lambda rng: rng.choice(OPENERS)),
    "ending": ("End with exactly: {}", lambda rng: rng.choice(CLOSERS)),
    "min_words": ("Write at least {} words.", lambda rng: rng.randrange(20, 70, 5)),
    "bullets": (
        "Include exactly {} bullet points, each on a line that begins with '- '.",
        lambda rng: rng.randint(2, 4),
    ),
    "bold": ("Put exactly {} phrases in **bold**.", lambda rng: rng.randint(1, 3)),
    "price": ("State the price as '{} EUR'.", lambda rng: rng.randint(9, 99)),
    "question": ("Ask the reader exactly {} questions.", lambda rng: rng.randint(1, 2)),
}


class BlurbRubric(vf.Rubric):
    def __init__(self) -> None:
        super().__init__()
        self.checker = Checker()
        self.add_reward_func(self.rules_followed, weight=1.0)
        self.add_metric(self.words)

    def rules_followed(self, completion: vf.Messages, info: dict[str, Any]) -> float:
        """Share of the rules that the blurb follows; a blurb must name the product."""
        text = str(completion[-1].content or "").strip()
        if info["product"] not in text.lower():
            return 0.0
        passed = [self.checker.follows(text, rule) for rule in info["rules"]]
        return sum(passed) / len(passed)

    def words(self, completion: vf.Messages) -> float:
        return float(len(str(completion[-1].content or "").split()))


def make_row(rng: random.Random) -> dict[str, Any]:
    product, audience = rng.choice(PRODUCTS), rng.choice(AUDIENCES)
    kinds = rng.sample(sorted(RULES), 3)
    rules = [{"kind": kind, "value": RULES[kind][1](rng)} for kind in kinds]
    lines = [f"- {RULES[rule['kind']][0].format(rule['value'])}" for rule in rules]
    brief = f"Write a blurb for a {product}, aimed at {audience}.\nRules:\n" + "\n".join(lines)
    return {"question": brief, "info": {"product": product, "rules": rules}}


def make_split(count: int, name: str, skip: set[str] | None = None) -> list[dict[str, Any]]:
    rng, found = random.Random(name), {}
    while len(found) < count:
        row = make_row(rng)
        if row["question"] not in (skip or set()):
            found[row["question"]] = row
    return list(found.values())


def copywriter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Fill a template so that it follows all rules."""
    rules = {rule["kind"]: rule["value"] for rule in state["info"]["rules"]}
    parts = [f"{rules.get('opening', 'This')} is a {state['info']['product']} for everyday use."]
    if "keyword" in rules:
        parts.append(f"It is {rules['keyword']}.")
    if "price" in rules:
        parts.append(f"It costs {rules['price']} EUR.")
    parts += [f"It comes in a **colour {i}** too." for i in range(rules.get("bold", 0))]
    parts += ["Why wait?"] * rules.get("question", 0)
    text = " ".join(parts)
    while len(text.split()) < rules.get("min_words", 0):
        text += " You will be glad to have it at home and on the road."
    text += "".join(f"\n- good point {i}" for i in range(rules.get("bullets", 0)))
    return text + ("\n" + rules["ending"] if "ending" in rules else "")


def rambler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Praise the product and ignore the rules."""
    return f"The {state['info']['product']} is a fine thing to own."


def load_environment(num_train: int = 500, num_eval: int = 120, seed: int = 3) -> vf.Environment:
    """Return the environment.

    Args:
        num_train: Number of training briefs.
        num_eval: Number of evaluation briefs.
        seed: Random seed of the briefs.
    """
    evaluation = make_split(num_eval, f"{seed}-eval")
    held_out = {row["question"] for row in evaluation}
    return vf.SingleTurnEnv(
        dataset=lambda: make_split(num_train, f"{seed}-train", held_out),
        eval_dataset=evaluation,
        system_prompt=SYSTEM_PROMPT,
        rubric=BlurbRubric(),
        policies={"copywriter": copywriter, "rambler": rambler},
    )
