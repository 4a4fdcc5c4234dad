"""Card to JSON: turn an index card into one JSON object."""

import json
import random

import rove as vf

SYSTEM_PROMPT = (
    "Turn the index card into a JSON object. Reply with the object only, without a code block and without any other text. It "
    'has exactly these keys: "name" (text), "born" (whole number), "city" (text) and "member" (true or false). For example: '
    '{"name": "Edith Crane", "born": 1931, "city": "Hull", "member": false}'
)
KEYS = ["name", "born", "city", "member"]
FIRST = [
    "Anna",
    "Bela",
    "Cyril",
    "Doris",
    "Emil",
    "Flora",
    "Georg",
    "Hanna",
    "Igor",
    "Jutta",
    "Karl",
    "Lena",
    "Milo",
    "Nora",
]
LAST = [
    "Abel",
    "Brandt",
    "Corti",
    "Dorn",
    "Engel",
    "Falk",
    "Grimm",
    "Heller",
    "Iversen",
    "Jung",
    "Kern",
    "Lund",
    "Moll",
]
CITIES = [
    "Bergen",
    "Cadiz",
    "Dublin",
    "Essen",
    "Faro",
    "Ghent",
    "Haifa",
    "Izmir",
    "Jena",
    "Kyoto",
    "Lyon",
    "Malmo",
    "Nantes",
]
CARDS = [
    "{name}, born in {born}. Lives in {city}. {note}",
    "Name: {name} / Year of birth: {born} / City: {city} / {note}",
    "{city}. {name} ({born}). {note}",
    "{note} {name} from {city}, year of birth {born}.",
]
NOTES = {
    True: ["Has been a member since spring.", "Paid the member's fee.", "Member card no. {0}."],
    False: ["Left the society.", "Is not a member yet.", "Membership was refused (file {0})."],
}


def exact(completion, answer):
    """1 if the reply is an object with the right values, and nothing else."""
    try:
        given = json.loads(completion[-1].content or "")
    except ValueError:
        return 0.0
    if not isinstance(given, dict) or sorted(given) != sorted(KEYS):
        return 0.0
    right = json.loads(answer)
    return float(all(type(given[key]) is type(right[key]) and given[key] == right[key] for key in KEYS))


def is_object(completion):
    """1 if the reply is a JSON object."""
    try:
        return float(isinstance(json.loads(completion[-1].content or ""), dict))
    except ValueError:
        return 0.0


def secretary(messages, state, rng):
    """Writes the right object."""
    return state["answer"]


def chatty(messages, state, rng):
    """Writes the right object into a code block, after a greeting."""
    return f"Here is your object:\n```json\n{state['answer']}\n```"


def optimist(messages, state, rng):
    """Believes that everybody is a member."""
    return json.dumps({**json.loads(state["answer"]), "member": True})


def rows(count, seed):
    made = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        card = {
            "name": f"{rng.choice(FIRST)} {rng.choice(LAST)}",
            "born": rng.randint(1920, 2004),
            "city": rng.choice(CITIES),
            "member": rng.random() < 0.5,
        }
        note = rng.choice(NOTES[card["member"]]).format(rng.randint(100, 999))
        made.append({"question": rng.choice(CARDS).format(note=note, **card), "answer": json.dumps(card)})
    return made


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Index cards of a society; the reply must be one JSON object."""
    rubric = vf.Rubric([exact])
    rubric.add_metric(is_object)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"secretary": secretary, "chatty": chatty, "optimist": optimist},
    )
