"""Conlang: translate English sentences into Velan, a small constructed language."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

ANIMALS = {
    "fox": "rilo", "bear": "matu", "crow": "keso", "wolf": "dano", "hare": "lipe", "goat": "sumi", "frog": "boka",
}  # fmt: skip
VERBS = {"see": "tor", "follow": "pel", "hear": "vin", "help": "gam", "find": "zul", "fear": "hes"}
PAST = {"see": "saw", "follow": "followed", "hear": "heard", "help": "helped", "find": "found", "fear": "feared"}
PLURALS = {"fox": "foxes", "wolf": "wolves"}
GLOSSARY = ", ".join(f"{english} = {velan}" for english, velan in (ANIMALS | VERBS).items())
SYSTEM_PROMPT = (
    f"Translate into Velan. Words: {GLOSSARY}. The order is object, verb, subject. There are no articles. The plural of a "
    "noun ends in -n (rilon = foxes). The past of a verb ends in -a, the present in -e. Example: 'The fox sees the "
    "bears.' = 'matun tore rilo'. Reply with the translation only."
)


def normal(text: str) -> str:
    """Return the words in lowercase, without punctuation."""
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the translation is right."""
    return float(normal(completion[-1].content or "") == answer)


def translator(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right translation."""
    return state["answer"]


def english_order(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Translate every word, but keep the English order."""
    return " ".join(reversed(state["answer"].split()))


def _noun(animal: str, plural: bool) -> tuple[str, str]:
    english = PLURALS.get(animal, f"{animal}s") if plural else animal
    return english, ANIMALS[animal] + ("n" if plural else "")


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    rng = random.Random(seed)
    for _ in range(count):
        subject, target = rng.sample(sorted(ANIMALS), 2)
        verb, past, plural = rng.choice(sorted(VERBS)), rng.random() < 0.5, rng.random() < 0.5
        subject_english, subject_velan = _noun(subject, False)
        target_english, target_velan = _noun(target, plural)
        verb_english = PAST[verb] if past else f"{verb}s"
        rows.append(
            {
                "question": f"The {subject_english} {verb_english} the {target_english}.",
                "answer": f"{target_velan} {VERBS[verb]}{'a' if past else 'e'} {subject_velan}",
            }
        )
    return rows


def load_environment(num_train: int = 1000, num_eval: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with short translations.

    Args:
        num_train, num_eval: Number of sentences.
        seed: Random seed of the sentences.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_train, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_eval, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
        policies={"translator": translator, "english_order": english_order},
    )
