"""Day after: which date follows a date?"""

import datetime
import random
import zlib

import rove as vf

MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November"]
MONTHS += ["December"]


def text(date):
    return f"{date.day} {MONTHS[date.month - 1]} {date.year}"


def make(rng):
    while True:
        date = datetime.date(1900, 1, 1) + datetime.timedelta(rng.randrange(73_000))
        if date.day >= 28 or rng.random() < 0.5:  # more ends of months
            break
    return {"question": text(date), "answer": text(date + datetime.timedelta(1))}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all questions is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = row["question"]
        if key not in seen and (zlib.crc32(key.encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


def correct(completion, answer, parser):
    """1 if the date in the tags is right."""
    return float(parser.parse_answer(completion) == answer)


def calendar_policy(messages, state, rng):
    """Always right."""
    return f"<date>{state['answer']}</date>"


def random_day(messages, state, rng):
    """A random day of the same month."""
    _, month, year = messages[-1].content.split()
    return f"<date>{rng.randint(1, 28)} {month} {year}</date>"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with dates from 1900 to 2099."""
    parser = vf.XMLParser(["date"], answer_field="date")
    rubric = vf.Rubric([correct], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.1, name="format")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Which day is next? Answer <date>day month year</date>",
        parser=parser,
        rubric=rubric,
        policies={"calendar": calendar_policy, "random_day": random_day},
    )
