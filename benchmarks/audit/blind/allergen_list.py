# Which of the fourteen declarable allergens does a recipe contain?
import random

import rove as vf

# ingredient -> allergen (None if it has none)
PANTRY = {
    "wheat flour": "gluten",
    "barley": "gluten",
    "breadcrumbs": "gluten",
    "spaghetti": "gluten",
    "couscous": "gluten",
    "butter": "milk",
    "cream": "milk",
    "yoghurt": "milk",
    "egg yolks": "eggs",
    "boiled eggs": "eggs",
    "cod": "fish",
    "anchovies": "fish",
    "prawns": "crustaceans",
    "crab": "crustaceans",
    "mussels": "molluscs",
    "squid": "molluscs",
    "peanut butter": "peanuts",
    "almonds": "nuts",
    "hazelnuts": "nuts",
    "tofu": "soy",
    "edamame": "soy",
    "celeriac": "celery",
    "mustard seeds": "mustard",
    "tahini": "sesame",
    "white wine": "sulphites",
    "dried apricots": "sulphites",
    "lupin flakes": "lupin",
    "rice": None,
    "tomatoes": None,
    "olive oil": None,
    "carrots": None,
    "potatoes": None,
    "lentils": None,
    "chicken": None,
    "onion": None,
    "garlic": None,
    "spinach": None,
    "lemon": None,
    "honey": None,
}
BASES = ["wheat flour", "breadcrumbs", "spaghetti", "couscous", "barley"]
DISHES = ["salad", "soup", "stew", "bowl", "platter", "pot"]
SYSTEM = (
    "Name the declarable allergens in the recipe. The groups are: celery, crustaceans, eggs, fish, gluten, lupin, milk, "
    "molluscs, mustard, nuts, peanuts, sesame, soy, sulphites. Answer in one line: Allergens: a, b, c"
)


def read(text):
    """The listed items, in lower case."""
    lines = [l for l in (text or "").splitlines() if l.strip().lower().startswith("allergens:")]
    if not lines:
        return []
    listed = lines[-1].split(":", 1)[1].rstrip(" .")
    return [item.strip().lower() for item in listed.split(",") if item.strip()]


def f1(completion, answer):
    """Harmonic mean of precision and recall."""
    gold = answer.split(", ")
    listed = read(completion[-1].content)
    hits = len([item for item in listed if item in gold])
    if hits == 0:
        return 0.0
    precision, recall = hits / len(listed), min(hits / len(gold), 1.0)
    return 2 * precision * recall / (precision + recall)


def exact(completion, answer):
    return float(sorted(read(completion[-1].content)) == answer.split(", "))


def recipe(rng):
    safe = [k for k, v in PANTRY.items() if v is None]
    risky = [k for k, v in PANTRY.items() if v not in (None, "gluten")]
    items = rng.sample(risky, rng.randint(2, 4)) + rng.sample(safe, rng.randint(2, 4))
    if rng.random() < 0.65:
        items.append(rng.choice(BASES))
    rng.shuffle(items)
    gold = sorted({PANTRY[i] for i in items if PANTRY[i]})
    amounts = ", ".join(f"{rng.choice([20, 50, 100, 150, 200])} g {i}" for i in items)
    title = f"{rng.choice(safe).capitalize()} {rng.choice(DISHES)}"
    return {"question": f"{title}. Ingredients: {amounts}.", "answer": ", ".join(gold)}


def dietician(messages, state, rng):
    return f"Allergens: {state['answer']}"


def forgetful(messages, state, rng):
    items = state["answer"].split(", ")
    return "Allergens: " + ", ".join(items[: max(1, len(items) - 1)])


def load_environment(num_examples=300, seed=11):
    rubric = vf.Rubric([f1])
    rubric.add_metric(exact)
    make = lambda split: [recipe(random.Random(f"{seed}.{split}.{i}")) for i in range(num_examples)]
    return vf.SingleTurnEnv(
        dataset=lambda: make("train"),
        eval_dataset=lambda: make("test"),
        system_prompt=SYSTEM,
        rubric=rubric,
        policies={"dietician": dietician, "forgetful": forgetful},
    )
