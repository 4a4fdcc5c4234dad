"""Hall program: questions about the program of a conference day."""

from __future__ import annotations

import random
import re
import string
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer the question about the program. Give only what is asked for: a name, a time such as 14:30, a language, or the letter "
    "of a hall. Write it in tags, for example <answer>Lena Ortiz</answer> or <answer>C</answer>."
)
FIRST = ["Lena", "Tomas", "Aiko", "Brigid", "Omar", "Priya", "Sven", "Chloe", "Diego", "Yara", "Mateo", "Ruth"]
LAST = ["Ortiz", "Keller", "Tanaka", "Walsh", "Haddad", "Nair", "Lund", "Moreau", "Silva", "Novak", "Ferri", "Adeyemi"]
TOPICS = [
    "Rivers and Cities",
    "The Cost of Sleep",
    "Teaching Fractions",
    "Bees on Rooftops",
    "A History of Salt",
    "Night Trains",
    "Reading with Toddlers",
    "Soil under Stress",
    "The Quiet Office",
    "Maps for Everyone",
    "An Atlas of Smells",
    "Repairing Radios",
    "Wind and Birds",
    "Small Town Theaters",
    "The Last Glaciers",
]
LANGUAGES = ["English", "Spanish", "French", "German", "Portuguese"]
HALLS = "ABCD"
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> str:
    """Lower text and remove punctuation, articles and extra whitespace, as in SQuAD."""
    text = "".join(char for char in text.lower() if char not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", text).split())


def exact_match(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the normalized answers are equal."""
    predicted = normalize(parser.parse_answer(completion) or "")
    if not predicted:
        return 0.0
    return float(predicted == normalize(answer))


def _program(rng: random.Random) -> list[dict[str, str]]:
    count = rng.randint(4, 6)
    speakers = [f"{first} {last}" for first, last in zip(rng.sample(FIRST, count), rng.sample(LAST, count))]
    minutes = sorted(rng.sample(range(9 * 60, 18 * 60, 15), count))
    return [
        {
            "title": title,
            "speaker": speaker,
            "time": f"{start // 60:02}:{start % 60:02}",
            "hall": rng.choice(HALLS),
            "language": rng.choice(LANGUAGES),
        }
        for title, speaker, start in zip(rng.sample(TOPICS, count), speakers, minutes)
    ]


def _row(rng: random.Random) -> dict[str, Any]:
    program = _program(rng)
    lines = []
    for talk in program:
        if rng.random() < 0.5:
            lines.append(
                f"At {talk['time']}, {talk['speaker']} speaks about “{talk['title']}” in hall {talk['hall']}, in {talk['language']}."
            )
        else:
            lines.append(
                f"“{talk['title']}” ({talk['language']}): {talk['speaker']}, hall {talk['hall']}, begins at {talk['time']}."
            )
    rng.shuffle(lines)
    talk = rng.choice(program)
    question, field = rng.choice(
        [
            (f"Who speaks about “{talk['title']}”?", "speaker"),
            (f"When does the talk of {talk['speaker']} begin?", "time"),
            (f"In which hall is “{talk['title']}”?", "hall"),
            (f"In which language does {talk['speaker']} speak?", "language"),
        ]
    )
    return {"question": " ".join(lines) + f"\n\n{question}", "answer": talk[field], "info": {"kind": field}}


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 5 == 0) == held_out:
            rows.append(row)
    return rows


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about conference programs.

    Args:
        num_examples: Number of questions for training and for evaluation; each has its own program.
        seed: Random seed of the programs.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([exact_match], parser=parser),
    )
