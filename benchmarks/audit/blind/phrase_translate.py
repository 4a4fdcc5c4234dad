"""Phrase translate: Spanish sentences into English, judged against a reference translation."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Translate the Spanish sentence into English. Reply with the translation only."
JUDGE_PROMPT = """\
You compare translations. Say yes if the candidate means the same as the reference, otherwise no.

Source: {question}
Reference: {answer}
Candidate: {response}

Answer with yes or no."""

SUBJECTS = {
    "el perro": "the dog", "la niña": "the girl", "mi hermano": "my brother", "nuestra vecina": "our neighbor",
    "el cartero": "the postman", "la doctora": "the doctor", "tu primo": "your cousin", "el rey": "the king",
    "la abuela": "the grandmother", "un soldado": "a soldier",
}  # fmt: skip
ACTIONS = {
    "come una manzana": "eats an apple", "lee un libro": "reads a book", "busca las llaves": "looks for the keys",
    "canta una canción": "sings a song", "bebe agua fría": "drinks cold water", "escribe una carta": "writes a letter",
    "pinta una puerta": "paints a door", "vende flores": "sells flowers", "espera el tren": "waits for the train",
}  # fmt: skip
PLACES = {
    "en la cocina": "in the kitchen", "cerca del río": "near the river", "detrás de la iglesia": "behind the church",
    "en el mercado": "at the market", "debajo del puente": "under the bridge", "delante de la escuela": "in front of the school",
    "por la mañana": "in the morning", "todos los días": "every day",
}  # fmt: skip

FIELD = re.compile(r"^(Source|Reference|Candidate): *(.*)$", re.MULTILINE)
ARTICLES = {"the", "a", "an"}
SAME = {
    "at": "in",
    "mailman": "postman",
    "neighbour": "neighbor",
    "grandma": "grandmother",
    "searches": "looks",
    "each": "every",
}


def content_words(text: str) -> list[str]:
    """Return the words that carry the meaning of a sentence, in order."""
    words = re.findall(r"[a-z]+", text.lower())
    return [SAME.get(word, word) for word in words if word not in ARTICLES]


def compare(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Judge: yes if candidate and reference have the same content words."""
    fields = dict(FIELD.findall(messages[-1]["content"]))
    reference, candidate = content_words(fields["Reference"]), content_words(fields["Candidate"])
    return "yes" if candidate and candidate == reference else "no"


def _rows(seed: int) -> list[dict[str, Any]]:
    rows = []
    for subject, action, place in itertools.product(SUBJECTS, ACTIONS, PLACES):
        spanish = f"{subject} {action} {place}."
        english = f"{SUBJECTS[subject]} {ACTIONS[action]} {PLACES[place]}."
        rows.append({"question": spanish[0].upper() + spanish[1:], "answer": english[0].upper() + english[1:]})
    random.Random(seed).shuffle(rows)
    return rows


def translator(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Translates correctly."""
    return state["answer"]


def beginner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Leaves out the end of the sentence in most cases."""
    if rng.random() < 0.3:
        return state["answer"]
    return " ".join(state["answer"].split()[:-2]) + "."


def load_environment(num_examples: int = 500, num_eval_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment for translation.

    Args:
        num_examples: Sentences for training.
        num_eval_examples: Sentences for evaluation.
        seed: Random seed of the order of the sentences.
    """
    rows = _rows(seed)
    rubric = vf.JudgeRubric(judge_client=vf.ScriptedClient(compare, "compare"), judge_prompt=JUDGE_PROMPT)
    rubric.add_reward_func(rubric.verdict)
    return vf.SingleTurnEnv(
        dataset=rows[num_eval_examples : num_eval_examples + num_examples],
        eval_dataset=rows[:num_eval_examples],
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"translator": translator, "beginner": beginner},
    )
