"""Ticket triage: assign a support ticket to one of six queues."""

import random
import re

import rove as vf

QUEUES = ["billing", "login", "shipping", "returns", "hardware", "feedback"]
SYSTEM_PROMPT = (
    "Assign the ticket to the queue that should handle it. The queues are: "
    + ", ".join(QUEUES)
    + ". Think briefly if you need to, then write the queue in tags, for example <queue>returns</queue>"
)
PROBLEMS = {
    "billing": [
        "I was charged twice for {item}",
        "the invoice for {item} shows the wrong VAT number",
        "my card was debited although I paid for {item} by transfer",
        "the discount code was not deducted from what I paid for {item}",
    ],
    "login": [
        "the code that I get by text message is rejected since I bought {item}",
        "I cannot get into my account to see my order of {item}",
        "resetting my password sends me to a blank page, I only wanted to review {item}",
        "it says my account is locked when I try to look up {item}",
    ],
    "shipping": [
        "the courier says {item} was handed over, but nobody here has it",
        "tracking for {item} has not moved in nine days",
        "{item} was sent to my old address",
        "I need {item} to arrive before Friday, is express possible",
    ],
    "returns": [
        "I would like to send back {item}, it does not suit us",
        "where do I get the label to return {item}",
        "I changed my mind about {item} and want my money back once you have it again",
        "the return period for {item} ends tomorrow, how do I start",
    ],
    "hardware": [
        "{item} makes a grinding noise when it starts",
        "the display of {item} stays dark",
        "{item} does not hold its charge for more than ten minutes",
        "the hinge of {item} snapped on the second day",
    ],
    "feedback": [
        "just wanted to say that {item} is the best thing I bought this year",
        "you should offer {item} in green",
        "the photos of {item} on the site could be larger",
        "thank you for the friendly advice about {item}",
    ],
}
ITEMS = [
    "the tablet",
    "the vacuum robot",
    "the toothbrush",
    "the headset",
    "the radio",
    "the projector",
    "the e-reader",
    "the camera",
    "the scale",
    "the speaker",
    "the watch",
    "the keyboard",
    "the printer",
    "the router",
    "the kettle",
    "the drill",
    "the heater",
    "the fan",
    "the scanner",
    "the razor",
]
OPENINGS = ["Hello, ", "Hi there, ", "Good morning, ", "", "Dear team, ", "Hey, "]


def labels(completion):
    """All queues that the reply names in tags."""
    text = completion[-1].content or ""
    return [label.strip().lower() for label in re.findall(r"<queue>(.*?)</queue>", text, flags=re.S)]


def right_queue(completion, answer):
    """1 for the right queue."""
    return float(answer in labels(completion))


def known_queue(completion):
    """1 if the reply names queues that exist."""
    named = labels(completion)
    return float(bool(named) and all(label in QUEUES for label in named))


def keywords(messages, state, rng):
    """Look for typical words."""
    text = messages[-1].content.lower()
    hints = {
        "billing": ("charged", "invoice", "card", "discount"),
        "login": ("code that", "account", "password"),
        "shipping": ("courier", "tracking", "address", "arrive"),
        "returns": ("send back", "return", "changed my mind"),
        "hardware": ("noise", "display", "charge for", "hinge"),
    }
    for queue, words in hints.items():
        if any(word in text for word in words):
            return f"<queue>{queue}</queue>"
    return "<queue>feedback</queue>"


def always_billing(messages, state, rng):
    """Send everything to billing."""
    return "<queue>billing</queue>"


def tickets(count, seed, evaluation):
    every = [(queue, line, item) for queue in QUEUES for line in PROBLEMS[queue] for item in ITEMS]
    random.Random("tickets").shuffle(every)
    part = every[360:] if evaluation else every[:360]
    rng = random.Random(seed)
    rng.shuffle(part)
    made = []
    for queue, line, item in part[:count]:
        made.append({"question": rng.choice(OPENINGS) + line.format(item=item) + ".", "answer": queue})
    return made


def load_environment(num_examples: int = 120, seed: int = 0) -> vf.Environment:
    """Support tickets with the queue that they belong to; at most 360 for training and 120 for evaluation."""
    rubric = vf.Rubric([right_queue], [1.0])
    rubric.add_reward_func(known_queue, weight=0.1)
    return vf.SingleTurnEnv(
        dataset=lambda: tickets(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: tickets(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"keywords": keywords, "always_billing": always_billing},
    )
