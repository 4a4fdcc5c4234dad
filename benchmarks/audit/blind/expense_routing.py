"""Expense routing: decide who has to approve an expense."""

import random

import rove as vf

SYSTEM_PROMPT = """Decide where an expense goes. Apply the first rule that fits:
1. no receipt and more than $25: reject
2. category "travel" and more than $500: finance
3. more than $1,000: finance
4. category "gift", or more than $200: manager
5. everything else: auto
Reply with exactly <route>auto</route>, <route>manager</route>, <route>finance</route> or <route>reject</route>."""
ROUTES = ("auto", "manager", "finance", "reject")
CATEGORIES = {
    "travel": ["train ticket", "hotel", "rental car", "parking"],
    "office": ["paper", "monitor", "chair", "headset"],
    "gift": ["flowers", "book", "wine"],
    "training": ["workshop", "online course", "textbook"],
}


def route(category, cents, receipt):
    if not receipt and cents > 2500:
        return "reject"
    if (category == "travel" and cents > 50000) or cents > 100000:
        return "finance"
    return "manager" if category == "gift" or cents > 20000 else "auto"


def correct(parser, completion, answer) -> float:
    """1 for the right route, written exactly as asked."""
    return float(parser.parse_answer(completion) == answer)


def make_row(rng, evaluation):
    category = rng.choice(sorted(CATEGORIES) + ["office", "travel"])
    cents = int(10 ** rng.uniform(2.7, 5.1)) // 4 * 4 + (3 if evaluation else rng.randint(0, 2))
    receipt = rng.random() < 0.8
    text = (
        f"Item: {rng.choice(CATEGORIES[category])}\nCategory: {category}\nAmount: ${cents / 100:,.2f}\n"
        f"Receipt: {'yes' if receipt else 'no'}"
    )
    return {
        "question": text,
        "answer": route(category, cents, receipt),
        "info": {"category": category, "cents": cents, "receipt": receipt},
    }


def auditor(messages, state, rng):
    """Apply all rules."""
    return f"<route>{route(**state['info'])}</route>"


def newcomer(messages, state, rng):
    """Look at the amount only."""
    return f"<route>{route('office', state['info']['cents'], True)}</route>"


def load_environment(num_examples: int = 800, seed: int = 0) -> vf.Environment:
    """Expenses from $5 to $1,260."""
    parser = vf.XMLParser(["route"], answer_field="route")
    return vf.SingleTurnEnv(
        dataset=lambda: [make_row(random.Random(f"{seed}:t:{i}"), False) for i in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"{seed}:e:{i}"), True) for i in range(num_examples // 4)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"auditor": auditor, "newcomer": newcomer},
    )
