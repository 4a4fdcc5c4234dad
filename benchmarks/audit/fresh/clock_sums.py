"""Clock sums: what time is it some hours and minutes later, or earlier?"""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer with a time of the 24-hour clock, as <answer>HH:MM</answer>"
DAY = 24 * 60


def clock(minutes: int) -> str:
    """Return minutes since midnight as a time."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def read_clock(text: str) -> int | None:
    """Return the minutes since midnight of a time, None if it is none."""
    found = re.fullmatch(r"\s*([0-9]{1,2}):([0-9]{2})\s*", text)
    if not found or int(found[1]) > 23 or int(found[2]) > 59:
        return None
    return int(found[1]) * 60 + int(found[2])


def duration(minutes: int) -> str:
    """Return a duration in words."""
    hours, rest = divmod(minutes, 60)
    parts = [f"{n} {unit}{'' if n == 1 else 's'}" for n, unit in ((hours, "hour"), (rest, "minute")) if n]
    return " and ".join(parts)


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right time."""
    return float(parser.parse_answer(completion) == read_clock(answer))


def readable(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if the answer is a time."""
    return float(parser.parse_answer(completion) is not None)


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Know the time."""
    return f"<answer>{state['answer']}</answer>"


def forgetful(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Forget to carry an hour, every other time."""
    minutes = read_clock(state["answer"]) or 0
    return f"<answer>{clock((minutes - rng.choice((0, 60))) % DAY)}</answer>"


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(seed + index)
        start, length = rng.randrange(DAY), rng.randint(25, 11 * 60)
        later = rng.random() < 0.5
        end = (start + length if later else start - length) % DAY
        word = "later" if later else "earlier"
        place = rng.choice(("at the station", "in the office", "at the harbour", "in the kitchen"))
        question = f"The clock {place} shows {clock(start)}. What did or will it show {duration(length)} {word}?"
        rows.append({"question": question, "answer": clock(end), "info": {"later": later}})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with sums of times and durations.

    Args:
        num_examples: Number of questions in each dataset.
        seed: Random seed of the questions.
    """
    parser = vf.XMLParser(["answer"], extract_fn=read_clock)
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(readable)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, seed),
        eval_dataset=lambda: _rows(num_examples, seed + 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"oracle": oracle, "forgetful": forgetful},
    )
