"""Incident summaries: sum up a report in one or two sentences; a model judges whether all key facts are there."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

MOST_WORDS = 50
SYSTEM_PROMPT = (
    "Sum up the incident report in one or two sentences: who did what, where and when, and what came of it. Use at most "
    f"{MOST_WORDS} words."
)
JUDGE_PROMPT = """\
You check summaries of incident reports.

Report:
{question}

Facts that a good summary has to state:
{answer}

Answer "yes" if the summary below states all of these facts, in whatever words, and nothing that the report contradicts. \
Otherwise answer "no". Answer with this one word.

Summary:
{response}"""
PEOPLE = (
    "Ines Haller, Jakob Lund, Mira Costa, Tomas Berg, Olga Reiss, Peter Nwosu, Lena Ortiz, Hugo Stein, Ruth Adler, "
    "Emil Sand, Nadia Petrov, Karl Voss, Sofia Marek, Ivan Dahl, Clara Weiss, Bruno Falk"
).split(", ")
PLACES = (
    "the north gate, loading bay 2, the paint shop, the canteen, the boiler room, warehouse 5, the test laboratory, "
    "the staff car park, the cold store, the packing hall, the server room, the roof terrace"
).split(", ")
EVENTS = {
    "backed a forklift into a shelf": "The shelf was emptied and has to be replaced.",
    "spilled four litres of solvent": "The floor was closed off for the rest of the shift.",
    "left a water tap running overnight": "Two pallets of cardboard were soaked.",
    "pulled the fire alarm by mistake": "The building was evacuated for twenty minutes.",
    "slipped on a wet step": "A sprained wrist was treated by the first-aider.",
    "locked the only key inside": "A locksmith opened the door in the afternoon.",
    "overloaded a socket with two heaters": "The power was out on the whole floor until noon.",
    "dropped a crate of glass bottles": "Nobody was hurt, but the passage was blocked.",
}
FILLERS = (
    "The weather was dry and the light was good.",
    "The shift had started as usual.",
    "Nobody else was close by at that moment.",
    "The supervisor was told within a few minutes.",
    "Photographs were taken and added to the file.",
    "A similar case was last noted two years ago.",
    "The form was signed by both people present.",
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday".split()


async def accepted(
    verdict: Any, prompt: vf.Messages, completion: vf.Messages, answer: str, state: vf.State, parser: vf.Parser
) -> float:
    """Return the verdict of the judge; 0 for a summary that is too long."""
    if len((parser.parse_answer(completion) or "").split()) > MOST_WORDS:
        return 0.0
    return await verdict(prompt, completion, answer, state)


def writer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """State all facts."""
    return state["answer"]


def opener(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Repeat the first sentence of the report."""
    return messages[-1].content.split(". ")[0] + "."


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        who, where, what = rng.choice(PEOPLE), rng.choice(PLACES), rng.choice(sorted(EVENTS))
        when = f"{rng.choice(DAYS)} at {rng.randint(6, 20)}:{rng.choice(('05', '20', '35', '50'))}"
        result = EVENTS[what]
        fillers = rng.sample(FILLERS, 4)
        report = " ".join(
            [
                f"This report is about {where}.",
                fillers[0],
                f"The event took place on {when}.",
                fillers[1],
                f"According to two witnesses, {who} {what}.",
                *fillers[2:],
                result,
            ]
        )
        rows.append({"question": report, "answer": f"On {when}, {who} {what} ({where}). {result}"})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0, judge: Any = "gpt-4.1-nano") -> vf.Environment:
    """Return an environment whose summaries are judged by a model.

    Args:
        num_examples: Number of reports in each dataset.
        seed: Random seed; the reports for evaluation are drawn apart from those for training.
        judge: A client, or the name of a model in endpoints.toml or at `OPENAI_BASE_URL`.
    """
    judge_options: dict[str, Any] = {"judge_model": judge} if isinstance(judge, str) else {"judge_client": judge}
    rubric = vf.JudgeRubric(parser=vf.MaybeThinkParser(), judge_prompt=JUDGE_PROMPT, **judge_options)
    rubric.add_reward_func(accepted)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"writer": writer, "opener": opener},
    )
