"""Brief judge: summarize a local news item; an offline judge scores the summary from 0 to 10."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Summarize the news item in one or two sentences and at most 40 words. Say who did what, where, when, and for how "
    "much money."
)
JUDGE_PROMPT = """You review summaries of news items.

News item:
{question}

Facts that a good summary states:
{answer}

Summary:
{response}

Write a short review. Then write a line "Score: N" with N from 0 (useless) to 10 (complete and brief)."""
MAX_WORDS = 40
PEOPLE = (
    "Ines Falk,Omar Reyes,Greta Holm,Paul Adair,Lena Sorek,Tomas Brandt,Nadia Quill,Hugo Varga,Mira Stone,Evan Lund"
)
TOWNS = "Ashford,Birchwood,Calder,Dunmore,Elmhurst,Fairview,Glenrock,Harwick,Ivydale,Kingsley"
PROJECTS = "library,bridge,swimming pool,bus station,school kitchen,market hall,fire station,town museum"
MONTHS = "January March April June July September October December"
FILLERS = [
    "The weather stayed dry during the event.",
    "The baker on the square gave every guest a fresh roll and a cup of hot chocolate.",
    "Some people came on foot, others used the free bus that the town had rented for the day.",
    "Neighbors brought cake and coffee.",
    "A brass band from the next valley played two songs.",
    "Several visitors asked about parking.",
    "The plans had been discussed for many years.",
    "A photographer took pictures of the crowd.",
    "The council will meet again next week.",
    "Children waved small paper flags.",
]


def _words(text: str) -> set[str]:
    text = re.sub(r"(?<=\d),(?=\d)|(?<=\d)(?:st|nd|rd|th)\b", "", text.lower())
    return set(re.findall(r"\w+", text))


def offline_judge(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Stand in for a judge model: check which facts a summary states and how long it is."""
    text = messages[-1]["content"]
    facts = text.split("Facts that a good summary states:\n")[1].split("\n\nSummary:\n")[0].strip("`\n ").split("; ")
    summary = text.split("\n\nSummary:\n", 1)[1].rsplit("\n\nWrite a short review.", 1)[0].strip("`\n ")
    present = _words(summary)
    num_stated = sum(_words(fact) <= present for fact in facts)
    num_words = len(summary.split())
    score = 2 * num_stated if num_words <= MAX_WORDS else num_stated // 2
    style = "sentences" if num_words >= 10 and summary.endswith(".") else "notes instead of sentences"
    return (
        f'The summary reads: "{summary}"\nIt states {num_stated} of {len(facts)} facts in {num_words} words. It consists '
        f"of {style}.\nScore: {score if style == 'sentences' else score // 2}"
    )


async def quality(judge: Any, prompt: vf.Messages, completion: vf.Messages, answer: str, state: vf.State) -> float:
    """Return the judge's score, from 0 to 1."""
    review = await judge(prompt, completion, answer, state)
    found = re.search(r"Score:\s*(\d{1,2})", review)
    return min(10, int(found.group(1))) / 10 if found else 0.0


def num_words(completion: vf.Messages) -> float:
    """Return the number of words of the summary."""
    return float(len((completion[-1].content or "").split()))


def _row(seed: str) -> dict[str, Any]:
    rng = random.Random(seed)
    person, guest = rng.sample(PEOPLE.split(","), 2)
    town, origin = rng.sample(TOWNS.split(","), 2)
    project, old = rng.sample(PROJECTS.split(","), 2)
    date, earlier = (f"{rng.randint(1, 28)} {month}" for month in rng.sample(MONTHS.split(), 2))
    cost, fund = rng.randint(21, 95) * 10_000, rng.randint(1, 9) * 1000
    sentences = [
        f"Mayor {person} opened the new {project} in {town} on {date}.",
        f"The construction cost {cost:,} dollars.",
        f"{guest} from {origin} gave a speech and donated {fund:,} dollars to the choir.",
        f"The old {old} had closed on {earlier}.",
    ]
    body = [*sentences, *rng.sample(FILLERS, 7)]
    rng.shuffle(body)
    return {"question": " ".join(body), "answer": "; ".join([person, project, town, date, f"{cost:,}"])}


def load_environment(num_train: int = 400, num_eval: int = 150, seed: int = 0) -> vf.Environment:
    """Return an environment with news items and a judge that needs no network.

    Args:
        num_train, num_eval: Number of news items.
        seed: Random seed of the news items.
    """
    rubric = vf.JudgeRubric(judge_client=vf.ScriptedClient(offline_judge, "offline-judge"), judge_prompt=JUDGE_PROMPT)
    rubric.add_reward_func(quality)
    rubric.add_metric(num_words)
    return vf.SingleTurnEnv(
        dataset=lambda: [_row(f"{seed}:train:{index}") for index in range(num_train)],
        eval_dataset=lambda: [_row(f"{seed}:eval:{index}") for index in range(num_eval)],
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
