"""Campanology quiz: terms of English bell ringing, with four definitions to choose from."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import rove as vf

SYSTEM_PROMPT = "Choose the definition of the bell-ringing term. Reply with one letter, as <choice>A</choice>."
LETTERS = "ABCD"


class Entry(NamedTuple):
    """A term of the glossary with its short gloss and its definition."""

    term: str
    gloss: str
    definition: str


GLOSSARY = [
    Entry(
        "backstroke",
        "the pull on the tail of the rope",
        "the half of the ringing cycle in which the ringer pulls the tail end of the rope, after the handstroke",
    ),
    Entry(
        "handstroke",
        "the pull on the sally",
        "the half of the ringing cycle in which the ringer pulls the woollen grip of the rope and lets it rise",
    ),
    Entry(
        "sally",
        "the woollen grip of the rope",
        "the thick tufted woollen part woven into the rope, which the ringer catches once in every cycle",
    ),
    Entry(
        "stay",
        "the wooden post on the headstock",
        "the upright ash post on the headstock that lets a bell rest just past the balance with its mouth upward",
    ),
    Entry(
        "slider",
        "the bar that stops the stay",
        "the pivoted wooden bar below the bell against which the stay comes to rest when the bell is set",
    ),
    Entry(
        "headstock",
        "the beam on which a bell hangs",
        "the heavy beam to which the crown of a bell is bolted and whose ends turn in the bearings",
    ),
    Entry(
        "clapper",
        "the striker inside a bell",
        "the iron striker hung inside a bell that swings and hits the soundbow once at every stroke",
    ),
    Entry(
        "soundbow",
        "the thick rim of a bell",
        "the thickest part of a bell close to its lip, which is where the clapper makes contact",
    ),
    Entry(
        "tenor",
        "the heaviest bell",
        "the heaviest and lowest-sounding bell of a ring, which often covers at the end of every row",
    ),
    Entry(
        "treble",
        "the lightest bell",
        "the lightest and highest-sounding bell of a ring, which is the first bell to sound in rounds",
    ),
    Entry(
        "rounds",
        "ringing down the scale",
        "the starting order of a ring of bells, in which they sound from the lightest to the heaviest",
    ),
    Entry(
        "plain hunt",
        "the simplest moving pattern",
        "the pattern in which each bell moves one place at a time from the front to the back and returns",
    ),
    Entry(
        "dodge",
        "a step back in the path",
        "the movement in which a bell steps back one place for one blow before it resumes its earlier direction",
    ),
    Entry(
        "lead",
        "ringing first in the row",
        "the position of the bell that sounds first in a row, normally held for two consecutive blows",
    ),
    Entry(
        "call change",
        "a change called by the conductor",
        "a swap of two neighbouring bells that takes place only when the conductor names them aloud",
    ),
    Entry(
        "conductor",
        "the one who makes the calls",
        "the ringer who makes the calls, keeps the others on their paths, and checks that the ringing is true",
    ),
    Entry(
        "bob",
        "a call at the lead end",
        "a call that makes three or more bells vary their usual work so that new rows can be reached",
    ),
    Entry(
        "single",
        "a call that swaps two bells",
        "a call that makes just two bells exchange their work and so reverses the parity of the rows",
    ),
    Entry(
        "touch",
        "a piece shorter than a peal",
        "a piece of true ringing with calls that starts and ends in rounds and is shorter than a quarter peal",
    ),
    Entry(
        "quarter peal",
        "about 1,250 changes",
        "a performance of at least 1,250 changes rung without a break, which takes about three quarters of an hour",
    ),
    Entry(
        "peal",
        "about 5,000 changes",
        "a performance of at least 5,000 changes rung without a break, which takes around three hours on a medium ring",
    ),
    Entry(
        "extent",
        "every possible row once",
        "the complete set of rows on a given number of bells, each of them rung exactly once and none repeated",
    ),
    Entry(
        "method",
        "a named pattern of changes",
        "a named pattern that tells every bell its place in each row and is learned as a line and not as numbers",
    ),
    Entry(
        "blue line",
        "the drawn path of a bell",
        "the path of one bell through a method, drawn as a line on paper so that the ringer can memorise it",
    ),
    Entry(
        "place notation",
        "a code of the fixed places",
        "the compact code of a method that lists for every change the positions in which bells do not move",
    ),
    Entry(
        "covering",
        "ringing last in every row",
        "the work of a bell that sounds last in every row while the others change in front of it",
    ),
    Entry(
        "ropesight",
        "seeing whom to follow",
        "the skill of telling from the movement of all the ropes which bell to follow at the next blow",
    ),
    Entry(
        "raising",
        "swinging a bell up",
        "the swinging of a bell in ever wider arcs until it stands mouth upward and full circles can begin",
    ),
    Entry(
        "lowering",
        "swinging a bell down",
        "the ringing of a bell in ever smaller arcs until it hangs mouth downward and is safe to leave",
    ),
    Entry(
        "half-muffled",
        "with one leather pad",
        "fitted with a leather pad on one side of the clapper so that every other blow sounds like an echo",
    ),
    Entry(
        "steeple keeper",
        "the one who looks after the bells",
        "the officer of a tower who greases the bearings, mends the ropes, and looks after the whole installation",
    ),
    Entry(
        "garter hole",
        "the hole for the rope in the wheel",
        "the hole in the sole of the wheel through which the rope passes before it is tied off at the spokes",
    ),
    Entry(
        "grandsire",
        "a method with two hunt bells",
        "an old method in which two bells hunt plainly and the others make thirds at the end of each lead",
    ),
    Entry(
        "cartwheeling",
        "ringing with a broken stay",
        "letting a bell turn over and over in the same direction because nothing is left to hold it at the balance",
    ),
    Entry(
        "firing",
        "all bells at once",
        "the striking of all the bells of a ring at the same moment, which is done on purpose at weddings",
    ),
    Entry(
        "open leads",
        "a pause before handstrokes",
        "the custom of leaving a gap of one blow before every handstroke lead so that the rows can be told apart",
    ),
]


def chosen(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the letter is right."""
    return float((parser.parse_answer(completion) or "").strip().upper() == answer)


def _rows(entries: list[Entry], count: int, seed: str) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        entry = entries[len(rows) % len(entries)]
        others = rng.sample([other for other in entries if other is not entry], len(LETTERS) - 1)
        options = [entry.definition, *(other.gloss for other in others)]
        rng.shuffle(options)
        listing = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=True))
        answer = LETTERS[options.index(entry.definition)]
        question = f"What does '{entry.term}' mean?\n{listing}"
        if all(row["question"] != question for row in rows):
            rows.append({"question": question, "answer": answer})
    rng.shuffle(rows)
    return rows


def load_environment(num_examples: int = 120, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about bell ringing.

    Args:
        num_examples: Number of questions in each dataset; a third of the terms occurs only in the evaluation.
        seed: Random seed of the options and of their order.
    """
    parser = vf.XMLParser(["choice"], answer_field="choice")
    held_out = GLOSSARY[::3]
    trained = [entry for entry in GLOSSARY if entry not in held_out]
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(trained, num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(held_out, num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([chosen], parser=parser),
    )
