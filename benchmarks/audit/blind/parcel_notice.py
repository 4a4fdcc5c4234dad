"""Parcel notice: turn a courier's log into a short notice for the customer, which a judge reads."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You write notices for customers whose parcel could not be delivered. From the courier's log, tell the customer the "
    "parcel number, the place of collection, the last day of collection and the opening hours, in at most 45 words, and "
    "copy these four facts word for word. Never mention the name of the courier. Write only the notice."
)
JUDGE_PROMPT = """You check notices to customers.

Log:
{question}

Facts: {answer}

Notice:
```
{response}
```

Quote the notice. Then check whether each of the four facts is stated, and end with "Score: N", where N is the number of
facts that are stated. N is 0 if the notice names the courier or has more than 45 words."""
MAX_WORDS = 45
STREETS = "Mill Lane,Station Road,Church Street,Park Avenue,Bridge Street,Harbour Walk,Queen Street,Oak Drive".split(
    ","
)
SHOPS = "kiosk,post office,bakery,bookshop,parcel shop,pharmacy,petrol station".split(",")
COURIERS = """
    Alvarez Brandt Chow Dimitrov Eriksen Farah
    Guzman Hoffmann Ivanova Jansen Kowalski Lindqvist
""".split()  # noqa: SIM905
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday".split()  # noqa: SIM905


def plain(text: str) -> str:
    """Return a text in lower case with single spaces."""
    return " ".join(text.lower().split())


def offline_judge(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Check a notice with fixed rules, in the form in which a judge model answers."""
    text = str(messages[-1]["content"])
    log = text.partition("Log:\n")[2].partition("\n\nFacts:")[0]
    facts = text.partition("\n\nFacts: ")[2].partition("\n\nNotice:")[0].split("; ")
    fence, notice = re.search(r"\n(`{3,})\n(.*)\n\1\n", text.partition("\n\nNotice:")[2], re.DOTALL).groups()
    courier = re.search(r"courier (\w+)", log).group(1)
    lines, score = [f'The notice says: "{notice.strip()}"'], 0
    for fact in facts:
        stated = plain(fact) in plain(notice)
        score += stated
        lines.append(f"- {fact}: {'stated' if stated else 'missing'}")
    if courier.lower() in notice.lower() or len(notice.split()) > MAX_WORDS:
        lines.append("- The notice names the courier or is too long.")
        score = 0
    return "\n".join([*lines, f"Score: {score}"])


async def facts_stated(judge: Any, prompt: vf.Messages, completion: vf.Messages, answer: str, state: vf.State) -> float:
    """Return the share of the facts that the judge found in the notice."""
    report = await judge(prompt, completion, answer, state)
    score = re.search(r"Score:\s*(\d+)", report)
    return min(int(score.group(1)), 4) / 4 if score else 0.0


def make_row(rng: random.Random) -> dict[str, Any]:
    """Return a log and its facts."""
    number = f"{rng.choice('RCLV')}{rng.choice('ABEX')}{rng.randint(10**6, 10**7 - 1)}"
    place = f"{rng.choice(SHOPS)} at {rng.randint(2, 98)} {rng.choice(STREETS)}"
    day = rng.choice(DAYS)
    opens, closes = rng.randint(6, 10), rng.randint(16, 21)
    hours = f"{opens}:00 to {closes}:00"
    log = [
        f"{rng.randint(8, 12)}:{rng.randint(10, 59)} courier {rng.choice(COURIERS)} rang at the door, nobody at home",
        f"parcel {number}, {rng.randint(1, 20)} kg",
        f"left at the {place}, which is open from {hours}",
        f"storage until {day}, afterwards back to depot {rng.randint(10, 99)}",
    ]
    return {"question": "\n".join(log), "answer": f"{number}; {place}; {day}; {hours}"}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 300, seed: int = 0, judge_model: str = "") -> vf.Environment:
    """Return an environment with notices.

    Args:
        num_examples: Number of logs for training, and for evaluation.
        seed: Random seed of the logs.
        judge_model: Model that judges; empty for the rules that need no network.
    """
    judge = {"judge_model": judge_model} if judge_model else {"judge_client": vf.ScriptedClient(offline_judge, "rules")}
    rubric = vf.JudgeRubric(judge_prompt=JUDGE_PROMPT, **judge)
    rubric.add_reward_func(facts_stated)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
