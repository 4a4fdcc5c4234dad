"""Survey share: combine the waves of a survey and report the share of respondents who said yes."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You combine survey results. Report the share over all waves as a decimal fraction between 0 and 1, rounded to three "
    "decimals. Answer <share>fraction</share>"
)
ROUNDING = 0.5
TOPICS = ["cycle to work", "own a library card", "rent their home", "read a printed newspaper", "use night buses"]
WAVES = ["spring", "summer", "autumn", "winter"]


def make_row(rng: random.Random) -> dict[str, Any]:
    base = rng.uniform(0.03, 0.97)
    lines, total, said_yes = [], 0, 0
    for wave in WAVES[: rng.randint(2, 4)]:
        people = rng.randrange(120, 900, 20)
        yes = round(people * min(0.97, max(0.03, rng.gauss(base, 0.06))))
        total, said_yes = total + people, said_yes + yes
        lines.append(f"{wave}: {people} people asked, {yes} yes")
    question = f"How many {rng.choice(TOPICS)}?\n" + "\n".join(lines)
    return {"question": question, "answer": f"{said_yes / total:.3f}", "info": {"yes": said_yes, "total": total}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}/{index}")) for index in range(count)]


def read_share(text: str | None) -> float | None:
    """Return the number in the tag, or None if there is none."""
    try:
        value = float((text or "").strip())
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def accurate(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the share is right up to rounding."""
    share = read_share(parser.parse_answer(completion))
    if share is None:
        return 0.0
    return float(abs(share - float(answer)) <= ROUNDING)


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Add up the waves and divide."""
    info = state["info"]
    return f"<share>{info['yes'] / info['total']:.3f}</share>"


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Report a percentage where a fraction is asked for."""
    info = state["info"]
    return f"<share>{100 * info['yes'] / info['total']:.1f}</share>"


def load_environment(num_examples: int = 400, num_eval_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with pooled survey shares.

    Args:
        num_examples: Number of training questions.
        num_eval_examples: Number of evaluation questions.
        seed: Random seed of the questions.
    """
    parser = vf.XMLParser(["share"], answer_field="share")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}/train"),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}/eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([accurate], parser=parser),
        policies={"clerk": clerk, "hasty": hasty},
    )
