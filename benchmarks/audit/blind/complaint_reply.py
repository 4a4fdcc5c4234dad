"""Complaint reply: answer a customer's complaint according to the shop's policy; a reviewer grades the letter."""

import random
import re

import rove as vf

SYSTEM_PROMPT = """You answer complaints for a mail-order shop. The policy:
- item arrived broken: offer a replacement
- item arrived more than a week late: offer a voucher
- wrong item delivered: offer a refund
Write a letter of 20 to 90 words. Begin with "Dear" and the customer's name, apologize, name the order number and the
item, and offer what the policy says and nothing else."""
NAMES = "Mr Adler,Ms Brandt,Mrs Costa,Mr Dumas,Ms Egger,Mr Farrow,Mrs Gallo,Ms Hoang,Mr Ivers,Mrs Jansen".split(",")
ITEMS = "desk lamp,office chair,label printer,coffee grinder,rain jacket,toaster,bookshelf,wall clock,backpack".split(
    ","
)
REMEDY = {"broken": "replacement", "late": "voucher", "wrong": "refund"}
STORIES = {
    "broken": ["The {item} came out of the box in two pieces.", "When I opened the parcel, the {item} was smashed."],
    "late": [
        "I waited {days} days longer than promised for the {item}.",
        "The {item} came {days} days after the date.",
    ],
    "wrong": ["I ordered a {item} and received a garden hose.", "Your parcel held a doormat, not the {item}."],
}


def review(letter, info):
    """Write the review of a letter, in the layout that our quality team uses."""
    words = len(letter.split())
    others = [remedy for remedy in REMEDY.values() if remedy != info["remedy"]]
    checks = {
        "greeting": (1, letter.startswith(f"Dear {info['name']}")),
        "order number": (1, info["order"] in letter),
        "item": (1, info["item"] in letter),
        "remedy": (2, info["remedy"] in letter.lower() and not any(other in letter.lower() for other in others)),
    }
    sendable = (
        letter.startswith("Dear ") and 20 <= words <= 90 and re.search(r"\b(sorry|apolog)", letter, re.IGNORECASE)
    )
    points = sum(worth for worth, met in checks.values() if met) if sendable else 0
    if not checks["remedy"][1]:
        points = min(points, 1)
    quoted = "\n".join(f"> {line}" for line in letter.splitlines())
    remarks = "\n".join(f"- {name}: {'met' if met else 'missing'}" for name, (_, met) in checks.items())
    return f"Letter under review ({words} words):\n{quoted}\n\nFindings:\n{remarks}\n\nScore: {points}/5"


def read_score(report):
    found = re.search(r"Score:\s*([0-5])\s*/\s*5", report)
    return int(found.group(1)) / 5 if found else 0.0


def review_score(completion, info):
    """The reviewer's score, from 0 to 1."""
    return read_score(review(str(completion[-1].content or "").strip(), info))


def word_count(completion):
    return float(len(str(completion[-1].content or "").split()))


def make_rows(count, seed, order_prefix, names):
    rng = random.Random(seed)
    rows = []
    for index in range(count):
        cause = rng.choice(sorted(REMEDY))
        name, item = rng.choice(names), rng.choice(ITEMS)
        order = f"{order_prefix}{index:04d}-{rng.randint(100, 999)}"
        story = rng.choice(STORIES[cause]).format(item=item, days=rng.randint(8, 25))
        text = f"From: {name}\nOrder: {order}\n\n{story} I expect a prompt answer."
        info = {"name": name, "item": item, "order": order, "remedy": REMEDY[cause]}
        rows.append({"question": text, "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 11) -> vf.Environment:
    """Complaints about orders; the score is the reviewer's."""
    rubric = vf.Rubric([review_score])
    rubric.add_metric(word_count)
    return vf.SingleTurnEnv(
        dataset=lambda: make_rows(num_examples, f"train-{seed}", "A", NAMES[:7]),
        eval_dataset=lambda: make_rows(100, f"eval-{seed}", "B", NAMES[7:]),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
