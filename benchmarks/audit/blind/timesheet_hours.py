"""Timesheet hours: add up the working hours of a week of clock times."""

import random
import re

import rove as vf

SYSTEM_PROMPT = (
    "You check timesheets. Add up the time worked in the week (breaks are not paid). "
    "Reply with the total in hours as a decimal number, for example: 31.5"
)
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
NAMES = ["Amira", "Boris", "Carla", "Deng", "Elin", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Luca"]


def clock(minutes):
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def first_sentence(text):
    """Models like to explain themselves after the number; keep only what comes first."""
    return re.split(r"[.!?\n]", text.strip(), maxsplit=1)[0]


def read_hours(text):
    found = re.search(r"\d+(?:\.\d+)?", first_sentence(text))
    return float(found.group()) if found else None


def right_total(completion, answer):
    """1 if the reply starts with the right number of hours."""
    return float(read_hours(str(completion[-1].content or "")) == float(answer))


def make_row(rng, name):
    lines, total = [], 0
    for day in sorted(rng.sample(range(5), rng.randint(3, 5))):
        start = rng.randrange(7 * 60, 10 * 60, 30)
        end = start + rng.randrange(4 * 60, 10 * 60, 30)
        rest = rng.choice([0, 30, 60])
        total += end - start - rest
        lines.append(f"{DAYS[day]}: {clock(start)}-{clock(end)}, break {rest} min")
    sheet = "\n".join(lines)
    return {"question": f"Timesheet of {name}\n{sheet}\nHow many hours in total?", "answer": f"{total / 60:g}"}


def make_rows(count, split, seed):
    rows = []
    names = NAMES[:9] if split == "train" else NAMES[9:]
    for index in range(count):
        rng = random.Random(f"{seed}/{split}/{index}")
        rows.append(make_row(rng, rng.choice(names)))
    return rows


def load_environment(num_examples: int = 500, seed: int = 7) -> vf.Environment:
    return vf.SingleTurnEnv(
        dataset=make_rows(num_examples, "train", seed),
        eval_dataset=make_rows(150, "eval", seed),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([right_total]),
    )
