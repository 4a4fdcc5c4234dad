"""Everyday engineering estimates with units."""

import csv
import io
import random
import re

import rove as vf

FACTORS = """\
topic,item,factor,unit
trip,a diesel car,0.17,kg CO2
trip,a coach,0.03,kg CO2
trip,a small plane,0.24,kg CO2
trip,a motor scooter,0.07,kg CO2
power,a fridge,0.12,kWh
power,a fan heater,1.5,kWh
power,a laptop,0.06,kWh
power,a dishwasher,0.9,kWh
pour,a garden tap,0.6,m3
pour,a fire hose,28,m3
pour,a canal pump,95,m3
speed,a cyclist,18,km
speed,a barge,9,km
speed,a courier van,42,km
"""

TEMPLATES = {
    "trip": "{item} emits {factor} kg CO2 per passenger and km. How many kg CO2 do {b} passengers emit on a trip of {a} km?",
    "power": "{item} draws {factor} kW. How many kWh do {b} such devices use in {a} hours?",
    "pour": "{item} delivers {factor} m3 per hour. How many m3 do {b} of them deliver in {a} hours?",
    "speed": "{item} covers {factor} km per hour. How many km does it cover in {a} stretches of {b} hours each?",
}

SYSTEM = "Solve the problem. You may show short working. End with the result and its unit, for example: = 42.5 kWh"


def last_number(text):
    found = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return float(found[-1]) if found else None


def close(completion, answer):
    """Full marks if the result is within half a percent."""
    value = last_number(str(completion[-1].content or ""))
    target = float(answer.split()[0])
    return float(value is not None and abs(value - target) <= 0.005 * abs(target))


def build(split, count):
    table = list(csv.DictReader(io.StringIO(FACTORS)))
    seen, rows, rng = set(), [], random.Random(f"footprint-{split}")
    while len(rows) < count:
        entry = rng.choice(table)
        a, b = rng.randint(3, 60), rng.randint(2, 9)
        if (a % 5 == 0) != (split == "eval") or (entry["item"], a, b) in seen:
            continue
        seen.add((entry["item"], a, b))
        value = round(float(entry["factor"]) * a * b, 2)
        text = TEMPLATES[entry["topic"]].format(a=a, b=b, **entry)
        rows.append({"question": text[0].upper() + text[1:], "answer": f"{value:g} {entry['unit']}"})
    return rows


def load_environment(train_size: int = 400, eval_size: int = 100) -> vf.Environment:
    """Estimates; the number of hours or km is a multiple of five in evaluation only."""
    return vf.SingleTurnEnv(
        dataset=lambda: build("train", train_size),
        eval_dataset=lambda: build("eval", eval_size),
        system_prompt=SYSTEM,
        rubric=vf.Rubric([close]),
    )
