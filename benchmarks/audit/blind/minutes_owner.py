"""Minutes: read the minutes of a meeting and say who has an action item."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Read the minutes and answer with a name only. The first name, the last name or both are fine."
FIRST = "Aisha Bruno Carla Dmitri Elena Farid Greta Hiro Ines Jonas Katya Liam Mirela Nadia Oscar Priya".split()
LAST = (
    "Abbott Bergman Castillo Dunne Eriksen Fontana Gruber Hassan Ivanov Jansen Kowalski Lindqvist Moreau Novak".split()
)
TASKS = [
    "book the venue for the spring event",
    "send the revised budget to the board",
    "call the supplier about the late delivery",
    "update the safety handbook",
    "write the job advertisement",
    "compare the three insurance offers",
    "repair the projector in room 4",
    "draft the newsletter",
    "order new badges",
    "check the fire extinguishers",
    "prepare the survey for visitors",
    "translate the leaflet",
    "renew the software licences",
    "collect feedback from the interns",
]
TOPICS = ["Budget", "Events", "Building", "Staff", "Website", "Visitors"]
SKIPPED = {"the", "a", "an", "mr", "mrs", "ms", "dr", "it", "is", "s"}


def words(text: str) -> set[str]:
    """Return the words of a name, without titles, articles and punctuation."""
    return set(re.findall(r"[a-z]+", text.lower())) - SKIPPED


def names_owner(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the reply is the owner's name, whole or in part."""
    reply = str(completion[-1].content or "").strip()
    if not reply:
        return 0.0
    return float(words(reply) <= words(answer))


def _minutes(rng: random.Random) -> tuple[str, str, str]:
    people = [f"{f} {n}" for f, n in zip(rng.sample(FIRST, 5), rng.sample(LAST, 5))]
    tasks = rng.sample(TASKS, 5)
    owners = rng.sample(people, 5)
    lines = [f"Present: {', '.join(people)}", f"Chair: {rng.choice(people)}"]
    for topic, task, owner in zip(rng.sample(TOPICS, 5), tasks, owners):
        other = rng.choice([person for person in people if person != owner])
        lines.append(
            rng.choice(
                [
                    f"{topic}: {other} reported on the last month. {owner} will {task}.",
                    f"{topic}: {other} offered to {task}, but has no time before June, so {owner} will do it.",
                    f"{topic}: after a discussion opened by {other}, it was agreed that {owner} should {task}.",
                ]
            )
        )
    chosen = rng.randrange(5)
    return "\n".join(lines), tasks[chosen], owners[chosen]


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        minutes, task, owner = _minutes(random.Random(f"{seed}:{index}"))
        rows.append({"question": f"{minutes}\n\nWho has to {task}?", "answer": owner})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about the minutes of meetings.

    Args:
        num_examples: Number of questions in each dataset.
        seed: Random seed of the datasets.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([names_owner]),
    )
