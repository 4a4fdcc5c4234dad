"""Sort readings: put the readings of an instrument into ascending order."""

import json
import random

import rove as vf

SYSTEM_PROMPT = (
    "Sort the readings in ascending order. Copy every reading as it is. "
    "Answer with a JSON list in <answer> tags, for example <answer>[0.5, 2, 3.1]</answer>."
)
INSTRUMENTS = {
    "pH meter": (0, 14),
    "thermometer (°C)": (-40, 120),
    "barometer (kPa)": (85, 108),
    "salinometer (g/kg)": (1, 42),
    "voltmeter (V)": (-24, 24),
}
PRECISION = 1


def readings_of(text):
    """Return the list of numbers in a reply, or None."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        return None
    return values


def sorted_right(completion, answer, parser):
    """1 for the right list."""
    return float(parser.parse_answer(completion) == json.loads(answer))


def make_row(rng):
    instrument = rng.choice(sorted(INSTRUMENTS))
    low, high = INSTRUMENTS[instrument]
    decimals = rng.choice([0, 1, 2]) if high - low > 30 else rng.choice([1, 2])
    values = set()
    count = rng.randint(5, 9)
    while len(values) < count:
        values.add(round(rng.uniform(low, high), decimals))
    shown = rng.sample(sorted(values), len(values))
    expected = [round(value, PRECISION) for value in sorted(values)]
    return {
        "question": f"Readings of a {instrument}: " + ", ".join(f"{value:g}" for value in shown),
        "answer": json.dumps(expected),
        "info": {"instrument": instrument, "count": count},
    }


def rows(count, split, seed):
    return [make_row(random.Random(f"{split}/{seed}/{index}")) for index in range(count)]


def load_environment(num_examples: int = 500, seed: int = 0):
    """Return an environment in which the model sorts numbers.

    Args:
        num_examples: Number of lists for training, and for evaluation.
        seed: Random seed of the lists.
    """
    parser = vf.XMLParser(["answer"], extract_fn=readings_of)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, "train", seed),
        eval_dataset=lambda: rows(num_examples, "eval", seed),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([sorted_right], parser=parser),
    )
