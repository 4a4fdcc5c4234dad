"""Cipher notes: decipher a note whose letters were shifted; every word that is right counts."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Decipher the note. Each letter was replaced by the one so many places after it in the alphabet as you are told; after "
    "z follows a. Answer <answer>the note</answer> with all of its words in their order."
)
WORDS = """
    apple arrow autumn baker beach bear bell bird boat book bread bridge brook brush cabin candle castle cat cedar chair
    cheese cherry cloud clover coast coin copper corn cottage crow crown dawn deer door dove dream duck dust eagle earth
    echo evening falcon farm feather field fire fish flame flute forest fox frost garden gate ghost glass goat gold goose
    grape grass harbor hare hawk heart hill honey horse house island ivy jar kettle king kite lake lamp lantern leaf
    lemon letter light lion maple market meadow melon mill mirror moon mountain mouse music needle nest night oak ocean
    olive orange owl paper path peach pearl pepper piano plum pond poppy queen rabbit rain raven ribbon river road robin
    rock roof rope rose sail salt sand shadow sheep shell ship silver sky smoke snow song spoon spring star stone storm
    stream summer swan table tea thunder tiger tower train tree tulip valley velvet village violin water wheat window
    winter wolf wood wool
""".split()


def shifted(text: str, places: int) -> str:
    """Return a text with every letter moved so many places on."""
    return "".join(chr((ord(c) - 97 + places) % 26 + 97) if "a" <= c <= "z" else c for c in text)


def words_of(text: str | None) -> list[str]:
    """Return the words of a text in lower case, without full stops and commas."""
    return (text or "").lower().replace(".", " ").replace(",", " ").split()


def words_right(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the share of words that are right in their place; 0 unless there are as many words as in the note."""
    given, wanted = words_of(parser.parse_answer(completion)), words_of(answer)
    if len(given) != len(wanted):
        return 0.0
    return sum(mine == theirs for mine, theirs in zip(given, wanted)) / len(wanted)


def exact(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if every word is right."""
    return float(words_right(completion, answer, parser) == 1)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Shift all letters back."""
    info = state["info"]
    return f"<answer>{shifted(info['note'], -info['places'])}</answer>"


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Shift every word back, some of them one place too far."""
    info = state["info"]
    words = [shifted(word, -info["places"] - (rng.random() < 0.3)) for word in info["note"].split()]
    return f"<answer>{' '.join(words)}</answer>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        note, places = " ".join(rng.sample(WORDS, rng.randint(4, 8))), rng.randint(1, 25)
        hidden = shifted(note, places)
        letters = "1 place" if places == 1 else f"{places} places"
        question = f"Shifted by {letters}: {hidden}"
        rows.append({"question": question, "answer": note, "info": {"note": hidden, "places": places}})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with notes of four to eight words.

    Args:
        num_examples: Number of notes in each dataset.
        seed: Random seed; the notes for evaluation are drawn apart from those for training.
    """
    parser = vf.XMLParser(["answer"])
    rubric = vf.Rubric([words_right], parser=parser)
    rubric.add_metric(exact)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"solver": solver, "hasty": hasty},
    )
