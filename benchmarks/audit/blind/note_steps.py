"""Note steps: count semitones up or down from a note."""

from __future__ import annotations

import random
import re
import string
import zlib
from typing import Any

import rove as vf

NOTES = ["C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B"]
SYSTEM_PROMPT = (
    "You are a music teacher. Name notes with sharps, never with flats: C, C#, D, D#, E, F, F#, G, G#, A, A#, B. "
    "Think first if you like, then write only the note in tags, for example <note>F#</note>."
)
MAX_STEPS = 14


def normalize(text: str) -> str:
    """Lower-case a text, and remove punctuation, articles and extra white space."""
    text = "".join(char for char in text.lower() if char not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the note is right."""
    reply = parser.parse_answer(completion)
    return float(reply is not None and normalize(reply) == normalize(answer))


def move(note: str, steps: int) -> str:
    """Return the note that is a number of semitones higher, or lower if the number is negative."""
    return NOTES[(NOTES.index(note) + steps) % len(NOTES)]


def pianist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Count correctly."""
    return f"<note>{move(state['info']['start'], state['info']['steps'])}</note>"


def beginner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Count three semitones too far."""
    return f"<note>{move(state['info']['start'], state['info']['steps'] + 3)}</note>"


def is_held_out(start: str, steps: int) -> bool:
    return zlib.crc32(f"{start}:{steps}".encode()) % 4 == 0


def rows(seed: str, held_out: bool) -> list[dict[str, Any]]:
    """Return one row for each start and number of steps of a split, in random order."""
    made = []
    for start in NOTES:
        for steps in [*range(-MAX_STEPS, 0), *range(1, MAX_STEPS + 1)]:
            if is_held_out(start, steps) != held_out:
                continue
            unit = "semitone" if abs(steps) == 1 else "semitones"
            question = f"Which note is {abs(steps)} {unit} {'above' if steps > 0 else 'below'} {start}?"
            made.append({"question": question, "answer": move(start, steps), "info": {"start": start, "steps": steps}})
    random.Random(seed).shuffle(made)
    return made


def load_environment(seed: int = 0) -> vf.Environment:
    """Return an environment about intervals; a quarter of all questions is reserved for evaluation.

    Args:
        seed: Random seed of the order of the questions.
    """
    parser = vf.XMLParser(["note"], answer_field="note")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(f"{seed}:train", held_out=False),
        eval_dataset=lambda: rows(f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([exact_match], parser=parser),
        policies={"pianist": pianist, "beginner": beginner},
    )
