"""Meeting actions: list who does what by when after a team meeting."""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Read the transcript of a meeting and list the action items that the team agreed on, one per line, in the form\n"
    "NAME: task, DAY\n"
    "Leave out ideas that were rejected, tasks that were cancelled, and work that is already done."
)
NAMES = ["Ines", "Marek", "Joanna", "Pavel", "Amina", "Felix", "Greta", "Hugo", "Leila", "Oscar"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
TASKS = [
    "send the budget draft",
    "call the printer",
    "update the price list",
    "book the training room",
    "test the new form",
    "write to the landlord",
    "collect the survey results",
    "order new badges",
    "check the fire exits",
    "prepare the demo",
    "translate the leaflet",
    "renew the license",
    "clean up the shared drive",
    "invite the speakers",
    "compare the offers",
    "fix the projector",
    "photograph the samples",
    "plan the farewell party",
]
CHAT = [
    "The coffee machine is making that noise again.",
    "Let us keep this short today.",
    "Numbers look better than last month.",
    "Sorry, I was on mute.",
    "Has anybody seen the blue folder?",
    "The heating should be fixed by now.",
]
WORD = re.compile(r"[a-z]+")


class CoverageJudge:
    """Judges whether the items that a secretary wrote down are covered by a reply."""

    def __init__(self, ignored: frozenset[str] = frozenset({"the", "to", "up", "by", "new"})):
        self.ignored = ignored

    def words(self, text: str) -> set[str]:
        return set(WORD.findall(text.lower())) - self.ignored

    def covered(self, item: dict[str, str], reply: str) -> bool:
        """Return whether one line of the reply has the person, the task and the day of an item."""
        needed = self.words(f"{item['who']} {item['task']} {item['day']}")
        return any(needed <= self.words(line) for line in reply.splitlines())

    def score(self, items: list[dict[str, str]], reply: str) -> float:
        return sum(self.covered(item, reply) for item in items) / len(items)


JUDGE = CoverageJudge()


def coverage(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return the judge's score of the reply."""
    return JUDGE.score(info["items"], str(completion[-1].content or ""))


def secretary(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """List all items."""
    return "\n".join(f"{item['who']}: {item['task']}, {item['day']}" for item in state["info"]["items"])


def forgetful(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """List one item."""
    item = rng.choice(state["info"]["items"])
    return f"{item['who']}: {item['task']}, {item['day']}"


def _row(rng: random.Random) -> dict[str, Any]:
    people = rng.sample(NAMES, rng.randint(3, 5))
    tasks = rng.sample(TASKS, 6)
    items, blocks = [], []
    for task in tasks[: rng.randint(2, 4)]:
        who, day = rng.choice(people), rng.choice(DAYS)
        items.append({"who": who, "task": task, "day": day})
        blocks.append(
            rng.choice(
                [
                    [f"{who}: I will {task} by {day}."],
                    [f"{who}: I can {task}, you will have it on {day}.", "Chair: Good."],
                ]
            )
        )
    for task in tasks[len(items) :]:
        who, other, day = rng.choice(people), rng.choice(people), rng.choice(DAYS)
        blocks.append(
            rng.choice(
                [
                    [f"{who}: Should I {task} by {day}?", "Chair: No, not this month."],
                    [
                        f"{who}: I was going to {task} on {day}.",
                        f"{other}: That is no longer needed.",
                        "Chair: Then we drop it.",
                    ],
                    [f"{who}: You asked me to {task}. I did that on {day}.", "Chair: Thanks, done then."],
                ]
            )
        )
    blocks += [[f"{rng.choice(people)}: {line}"] for line in rng.sample(CHAT, 2)]
    rng.shuffle(blocks)
    return {"question": "\n".join(line for block in blocks for line in block), "answer": "", "info": {"items": items}}


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 5 == 0) == held_out:
            rows.append(row)
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment that asks for the action items of meetings.

    Args:
        num_examples: Number of transcripts for training and for evaluation.
        seed: Random seed of the transcripts.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([coverage]),
        policies={"secretary": secretary, "forgetful": forgetful},
    )
