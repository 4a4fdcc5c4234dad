"""Exam quiz: multiple-choice questions about the periodic table."""

from __future__ import annotations

import random
import re
import string
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer the multiple-choice question. Finish with the letter of your choice, for example: Answer: C"
ELEMENTS = [
    ("hydrogen", "H", 1),
    ("helium", "He", 2),
    ("lithium", "Li", 3),
    ("beryllium", "Be", 4),
    ("boron", "B", 5),
    ("carbon", "C", 6),
    ("nitrogen", "N", 7),
    ("oxygen", "O", 8),
    ("fluorine", "F", 9),
    ("neon", "Ne", 10),
    ("sodium", "Na", 11),
    ("magnesium", "Mg", 12),
    ("aluminium", "Al", 13),
    ("silicon", "Si", 14),
    ("phosphorus", "P", 15),
    ("sulfur", "S", 16),
    ("chlorine", "Cl", 17),
    ("argon", "Ar", 18),
    ("potassium", "K", 19),
    ("calcium", "Ca", 20),
    ("scandium", "Sc", 21),
    ("titanium", "Ti", 22),
    ("vanadium", "V", 23),
    ("chromium", "Cr", 24),
    ("manganese", "Mn", 25),
    ("iron", "Fe", 26),
    ("cobalt", "Co", 27),
    ("nickel", "Ni", 28),
    ("copper", "Cu", 29),
    ("zinc", "Zn", 30),
    ("gallium", "Ga", 31),
    ("germanium", "Ge", 32),
    ("arsenic", "As", 33),
    ("selenium", "Se", 34),
    ("bromine", "Br", 35),
    ("krypton", "Kr", 36),
    ("rubidium", "Rb", 37),
    ("strontium", "Sr", 38),
    ("yttrium", "Y", 39),
    ("zirconium", "Zr", 40),
    ("silver", "Ag", 47),
    ("cadmium", "Cd", 48),
    ("tin", "Sn", 50),
    ("antimony", "Sb", 51),
    ("iodine", "I", 53),
    ("xenon", "Xe", 54),
    ("caesium", "Cs", 55),
    ("barium", "Ba", 56),
    ("tungsten", "W", 74),
    ("platinum", "Pt", 78),
    ("gold", "Au", 79),
    ("mercury", "Hg", 80),
    ("lead", "Pb", 82),
    ("bismuth", "Bi", 83),
]
LETTERS = "ABCD"


def normalize(text: str) -> str:
    """Lower the text and remove punctuation, articles and extra white space."""
    text = "".join(" " if char in string.punctuation else char for char in text.lower())
    text = re.sub(r"\b(a|an|the)\b", " ", text)
    return " ".join(text.split())


def choice(completion: vf.Messages) -> str | None:
    """Return the last option letter that the reply names."""
    named = [word for word in normalize(str(completion[-1].content or "")).split() if word in LETTERS.lower()]
    return named[-1] if named else None


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 for the right option."""
    return float(choice(completion) == answer.lower())


def answered(completion: vf.Messages) -> float:
    """Return 1 if the reply names an option."""
    return float(choice(completion) is not None)


def _question(kind: str, index: int, rng: random.Random) -> dict[str, Any]:
    name, symbol, number = ELEMENTS[index]
    others = [ELEMENTS[i] for i in rng.sample([i for i in range(len(ELEMENTS)) if i != index], 3)]
    if kind == "symbol":
        text, right, wrong = f"Which symbol stands for {name}?", symbol, [other[1] for other in others]
    elif kind == "name":
        text, right, wrong = f"Which element has the symbol {symbol}?", name, [other[0] for other in others]
    else:
        text, right, wrong = f"What is the atomic number of {name}?", str(number), [str(other[2]) for other in others]
    options = [right, *wrong]
    rng.shuffle(options)
    lines = [f"{letter}) {option}" for letter, option in zip(LETTERS, options)]
    return {"question": "\n".join([text, *lines]), "answer": LETTERS[options.index(right)]}


def _rows(count: int, seed: int, part: str) -> list[dict[str, Any]]:
    every = [(kind, index) for kind in ("symbol", "name", "number") for index in range(len(ELEMENTS))]
    random.Random("exam").shuffle(every)
    chosen = every[:96] if part == "train" else every[96:]
    rng = random.Random(f"{seed}:{part}")
    return [_question(kind, index, rng) for kind, index in rng.sample(chosen, min(count, len(chosen)))]


def load_environment(num_examples: int = 96, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about chemical elements.

    Args:
        num_examples: Number of questions, at most 96 for training and 66 for evaluation.
        seed: Random seed of the selection and of the order of the options.
    """
    rubric = vf.Rubric([correct])
    rubric.add_metric(answered)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, seed, "train"),
        eval_dataset=lambda: _rows(num_examples, seed, "eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
