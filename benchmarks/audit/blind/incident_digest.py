"""Incident digest: condense the log of a pumping station into a few sentences that a supervisor can trust."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

MAX_WORDS = 40
SYSTEM_PROMPT = (
    "You write the shift digest of a pumping station. Report every ALARM of the log in one sentence each, with its time, "
    f"the unit, and the reading. Write plain sentences, at most {MAX_WORDS} words in total."
)
UNITS = ["P1", "P2", "P3", "P4", "V1", "V2", "V3", "T1", "T2"]
READINGS = [("pressure", "bar", 2, 9), ("temperature", "C", 40, 95), ("flow", "l/s", 5, 60), ("level", "cm", 80, 400)]
FACT = re.compile(r"\b\d{1,2}:\d{2}\b|\b[PVT]\d\b|\b\d+(?:\.\d+)?\b")


def make_row(rng: random.Random) -> dict[str, Any]:
    minute, lines, alarms = rng.randrange(300, 700), [], []
    count = rng.randint(8, 11)
    marked = set(rng.sample(range(count), 3))
    for index in range(count):
        minute += rng.randint(4, 40)
        name, measure, low, high = rng.choice(READINGS)
        event = {
            "time": f"{minute // 60:02d}:{minute % 60:02d}",
            "unit": rng.choice(UNITS),
            "reading": str(rng.randint(low, high)),
            "name": name,
            "measure": measure,
        }
        kind = "ALARM" if index in marked else "info"
        lines.append(f"{event['time']} {kind} {event['unit']} {name} {event['reading']} {measure}")
        if index in marked:
            alarms.append({**event, "line": lines[-1]})
    return {"question": "\n".join(lines), "answer": "", "info": {"alarms": alarms}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}/{index}")) for index in range(count)]


class DigestJudge:
    """Checks a digest sentence by sentence against the alarms that it reports."""

    def __init__(self, alarms: list[dict[str, str]]):
        self.alarms = alarms
        self.lines = [set(FACT.findall(alarm["line"])) for alarm in alarms]

    def claims(self, digest: str) -> list[set[str]]:
        """Return the facts of each sentence that states any: times, units, and readings."""
        sentences = re.split(r"(?<=[.!?;])\s+|\n+", digest)
        facts = [set(FACT.findall(sentence)) for sentence in sentences]
        return [found for found in facts if found]

    def supported(self, claim: set[str]) -> bool:
        """Return whether one alarm has all facts of the claim."""
        return any(claim <= line for line in self.lines)

    def faithfulness(self, digest: str) -> float:
        """Return the share of claims that the alarms support."""
        claims = self.claims(digest)
        unsupported = [claim for claim in claims if not self.supported(claim)]
        return 1.0 - len(unsupported) / max(1, len(claims))

    def coverage(self, digest: str) -> float:
        """Return the share of alarms that a sentence reports with time, unit, and reading."""
        claims = self.claims(digest)
        wanted = [{alarm["time"], alarm["unit"], alarm["reading"]} for alarm in self.alarms]
        return sum(any(facts <= claim for claim in claims) for facts in wanted) / len(wanted)


def _digest(completion: vf.Messages) -> str | None:
    text = str(completion[-1]["content"] or "").strip()
    return text if text and len(text.split()) <= MAX_WORDS else None


def faithful(completion: vf.Messages, info: dict[str, Any]) -> float:
    digest = _digest(completion)
    return 0.0 if digest is None else DigestJudge(info["alarms"]).faithfulness(digest)


def complete(completion: vf.Messages, info: dict[str, Any]) -> float:
    digest = _digest(completion)
    return 0.0 if digest is None else DigestJudge(info["alarms"]).coverage(digest)


def reporter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Report each alarm in one sentence."""
    alarms = state["info"]["alarms"]
    return " ".join(f"{a['time']}: {a['unit']} {a['name']} alarm at {a['reading']} {a['measure']}." for a in alarms)


def muddler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Report the alarms with the reading of another line."""
    alarms = state["info"]["alarms"]
    other = alarms[1:] + alarms[:1]
    return " ".join(
        f"{a['time']}: {a['unit']} {b['name']} alarm at {b['reading']} {b['measure']}." for a, b in zip(alarms, other)
    )


def load_environment(num_examples: int = 300, num_eval_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Return an environment in which logs are condensed and a rule-based judge checks the digests.

    Args:
        num_examples: Number of training logs.
        num_eval_examples: Number of evaluation logs.
        seed: Random seed of the logs.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}/train"),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}/eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([faithful, complete], [0.5, 0.5]),
        policies={"reporter": reporter, "muddler": muddler},
    )
