"""Needle: facts hidden in a long text, which the model explores with Python code and sub-models."""

from __future__ import annotations

import random
import re
from itertools import product
from typing import Any

import rove as vf

COLORS = "amber azure black blue brown copper golden green grey ivory olive orange pink purple red silver violet white".split()  # noqa: SIM905
ANIMALS = "badger crane eagle fox heron hare ibex jackal lynx marten newt otter owl raven seal stork tapir wolf".split()  # noqa: SIM905
TOWNS = "Aldern Birka Corvey Drumm Esk Farrow Gault Harrick Issel Jarrow Kell Lorne Marsk Norden Oster Perrin".split()  # noqa: SIM905
PEOPLE = "Ada Bela Cato Dora Egon Fenna Gero Hilde Ivo Jonna Karl Lena Milo Nele Otto Pia Ralf Suse Till Uta".split()  # noqa: SIM905
WORDINGS = {
    "code": [
        "The code of the {of} is {what}.",
        "{what} is the code that opens the cage of the {of}.",
        "To find the {of}, you have to enter {what}.",
    ],
    "seen": [
        "On day {what} the {of} was seen.",
        "A traveler saw the {of} on day {what}.",
        "The {of} was back on day {what}.",
    ],
    "home": ["The {of} lives in {what}.", "{what} is where the {of} sleeps.", "In {what} people feed the {of}."],
    "keeper": [
        "The gatekeeper of {of} is {what}.",
        "{what} guards the gate of {of}.",
        "To enter {of}, you have to see {what}.",
    ],
    "weight": [
        "The {of} weighs {what} pounds.",
        "The scale showed {what} pounds for the {of}.",
        "{what} pounds is the weight of the {of}.",
    ],
}
"""Sentence templates for each kind of fact; no sentence fits the templates of two kinds."""
FILLERS = [
    "{person} walked from {town} to {other} in {n} hours and never mentioned it.",
    "In {town} it rained for {n} days.",
    "{person} counted {n} {color} doors and went home.",
    "No one in {town} remembers the winter of {n}.",
    "A letter from {other} reached {person} with {n} stamps on it.",
    "The road to {town} is {n} miles long, and {person} knows every one of them.",
    "{person} painted the {color} {animal} on a wall, {n} times.",
    "People say that {person} of {town} owned {n} books, all of them {color}.",
]
"""Templates of sentences that state no fact."""
LEVELS = ("code", "seen", "keeper", "weight")
PIECE_CHARS = 20_000
"""Approximate length of a piece that the policy `recursive` passes to a sub-model, in characters."""

COPY_REQUEST = "Copy every sentence that contains one of these: "
"""Request of the policy `recursive` to a sub-model; the words to look for follow."""

Fact = tuple[str, str, str]
"""Kind, subject (a creature or town), and value."""


def hidden(rng: random.Random, kind: str) -> tuple[str, str, list[Fact], list[str]]:
    """Return question, answer, facts to hide (needed ones, then decoys), and the subjects of the question."""
    creatures = rng.sample([f"{color} {animal}" for color, animal in product(COLORS, ANIMALS)], 60)
    subject, decoy_creatures = creatures[0], creatures[1:]
    towns = rng.sample(TOWNS, len(TOWNS))
    codes = rng.sample(range(10_000, 100_000), 60)
    decoys: list[Fact] = [
        ("code", creature, str(code)) for creature, code in zip(decoy_creatures[:30], codes, strict=False)
    ]
    decoys += [("seen", rng.choice(decoy_creatures), str(day)) for day in rng.sample(range(2, 100), 30)]
    weights = rng.sample(range(10, 999), 30)
    decoys += [("weight", creature, str(n)) for creature, n in zip(decoy_creatures[20:50], weights, strict=True)]
    homes = [("home", creature, rng.choice(towns)) for creature in decoy_creatures[:15]]
    keepers = [("keeper", town, person) for town, person in zip(towns, rng.sample(PEOPLE, len(TOWNS)), strict=True)]
    decoys += [*homes, *keepers[1:]]
    if kind == "code":
        code = str(codes[-1])
        return f"What is the code of the {subject}?", code, [(kind, subject, code), *decoys], [subject]
    if kind == "seen":
        days = rng.sample(range(2, 100), rng.randint(3, 15))
        sightings: list[Fact] = [(kind, subject, str(day)) for day in days]
        return f"On how many days was the {subject} seen?", str(len(days)), [*sightings, *decoys], [subject]
    if kind == "keeper":
        town, person = keepers[0][1:]
        question = f"Who is the gatekeeper of the town in which the {subject} lives?"
        return question, person, [("home", subject, town), keepers[0], *decoys], [subject]
    heaviest, *lighter = decoy_creatures[50:54]
    weights = sorted(rng.sample(range(10, 999), 4), reverse=True)
    facts = [(kind, creature, str(n)) for creature, n in zip([heaviest, *lighter], weights, strict=True)]
    subjects = sorted([heaviest, *lighter])
    question = f"Which of these creatures weighs the most: the {', the '.join(subjects)}?"
    return question, heaviest, [*facts, *decoys], subjects


def sentence_of(fact: Fact, rng: random.Random) -> str:
    """Return a fact as a sentence."""
    kind, subject, value = fact
    sentence = rng.choice(WORDINGS[kind]).format(of=subject, what=value)
    return sentence[0].upper() + sentence[1:]


def haystack(state: vf.State) -> str:
    """Return the text of a row: about `length` characters, in paragraphs."""
    info = state["info"]
    rng = random.Random(f"{info['seed']}:text")
    needles = [sentence_of(fact, rng) for fact in hidden(random.Random(info["seed"]), info["kind"])[2]]
    sentences, num_missing = [], info["length"] - sum(map(len, needles))
    while num_missing > 0:
        names = {
            "person": rng.choice(PEOPLE),
            "town": rng.choice(TOWNS),
            "other": rng.choice(TOWNS),
            "n": rng.randint(2, 99),
        }
        names |= {"color": rng.choice(COLORS), "animal": rng.choice(ANIMALS)}
        sentences.append(rng.choice(FILLERS).format(**names))
        num_missing -= len(sentences[-1]) + 1
    for needle in needles:
        sentences.insert(rng.randint(0, len(sentences)), needle)
    starts = range(0, len(sentences), 12)
    return "\n\n".join(" ".join(sentences[start : start + 12]) for start in starts)


def correct(state: vf.State, answer: str) -> float:
    """Return 1 if the variable `answer` holds the answer, ignoring case and a full stop."""
    return float(state["final_answer"].strip().strip(".").casefold() == answer.casefold())


# Scripted policies


def _pattern(kind: str, of: str) -> str:
    """Return a regular expression that matches every wording of a fact; its groups capture the value."""
    patterns = [re.escape(words.format(of=of, what="@")).replace("@", "(\\w+)") for words in WORDINGS[kind]]
    return "(?i)" + "|".join(patterns)


FIND = "import re\ndef find(pattern): return [next(filter(None, found)) for found in re.findall(pattern, notes)]\n"
READY = "\nanswer['ready'] = True"


def _program(kind: str, subjects: list[str]) -> str:
    """Return a program that finds the answer in the text `notes`."""
    matches = f"find({_pattern(kind, subjects[0])!r})"
    if kind == "code":
        return f"{FIND}answer['content'] = {matches}[0]{READY}"
    if kind == "seen":
        return f"{FIND}answer['content'] = len({matches}){READY}"
    if kind == "keeper":
        home_pattern, keeper_pattern = _pattern("home", subjects[0]), _pattern("keeper", "TOWN")
        matches = f"find({keeper_pattern!r}.replace('TOWN', home))"
        return f"{FIND}home = find({home_pattern!r})[0]\nanswer['content'] = {matches}[0]{READY}"
    patterns = {of: _pattern(kind, of) for of in subjects}
    return f"{FIND}all = {patterns!r}\nanswer['content'] = max(all, key=lambda of: int(find(all[of])[0])){READY}"


def _python(code: str) -> vf.AssistantMessage:
    return vf.tool_call("python", code=code)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Search the whole text with regular expressions."""
    info = state["info"]
    return _python("notes = context\n" + _program(info["kind"], info["about"]))


def recursive(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Let sub-models copy the relevant sentences of each piece, then search the copies; also act as the sub-model."""
    if messages[0].role != "system":
        words, _, piece = messages[0].content.partition("\n\n")
        search_words = words.removeprefix(COPY_REQUEST).split(", ")
        sentences = re.split(r"(?<=\.)\s+", piece)
        return " ".join(sentence for sentence in sentences if any(word in sentence.casefold() for word in search_words))
    info = state["info"]
    search_words = [*info["about"], "gate", "to enter"] if info["kind"] == "keeper" else info["about"]
    if len(messages) > 2:
        return _python(_program(info["kind"], info["about"]))
    return _python(
        f"pieces = ['']\nfor part in context.split('\\n\\n'):\n    if len(pieces[-1]) > {PIECE_CHARS}: pieces.append('')\n"
        f"    pieces[-1] += part + '\\n\\n'\nask = {COPY_REQUEST + ', '.join(search_words)!r}\n"
        "notes = ' '.join(llm_batch([f'{ask}\\n\\n{piece}' for piece in pieces]))\nlen(pieces), len(notes)"
    )


def novice(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Guess without reading the text."""
    info = state["info"]
    guess = {"code": str(rng.randint(10_000, 99_999)), "seen": str(rng.randint(3, 15)), "keeper": rng.choice(PEOPLE)}
    return _python(f"answer['content'] = {guess.get(info['kind'], rng.choice(info['about']))!r}{READY}")


def _rows(count: int, seed: str, levels: range, length: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        kind = LEVELS[random.Random(f"{seed}:{index}:level").choice(levels) - 1]
        question, answer, _, subjects = hidden(random.Random(f"{seed}:{index}"), kind)
        info = {"kind": kind, "about": subjects, "seed": f"{seed}:{index}", "length": length}
        rows.append({"question": question, "answer": answer, "info": info})
    return rows


def load_environment(
    num_examples: int = 1000,
    seed: int = 0,
    length: int = 200_000,
    min_level: int = 1,
    max_level: int = 4,
    max_turns: int = 8,
    max_depth: int = 1,
    max_sub_calls: int = 50,
    train_sub_calls: bool = False,
    unsafe: bool = False,
) -> vf.Environment:
    """Return an environment with questions about facts hidden in a long text.

    Args:
        num_examples: Number of questions; each has its own text.
        seed: Random seed of the dataset; evaluation questions differ from training questions.
        length: Approximate number of characters of a text.
        min_level, max_level: Difficulty: 1 = find a fact, 2 = count facts, 3 = combine two facts, 4 = compare four facts.
        max_turns: Maximum model turns, not counting sub-calls.
        max_depth, max_sub_calls, train_sub_calls: See `rove.RLMEnv`.
        unsafe: Run code even if this machine cannot isolate it; see docs/sandbox.md.
    """
    if not 1 <= min_level <= max_level <= len(LEVELS):
        raise vf.ConfigError(
            f"min_level is {min_level}, max_level {max_level}; need 1 <= min_level <= max_level <= {len(LEVELS)}"
        )
    levels = range(min_level, max_level + 1)
    return vf.RLMEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", levels, length),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", levels, length),
        context=haystack,
        rubric=vf.Rubric([correct]),
        policies={"solver": solver, "recursive": recursive, "novice": novice},
        max_turns=max_turns,
        max_depth=max_depth,
        max_sub_calls=max_sub_calls,
        train_sub_calls=train_sub_calls,
        unsafe=unsafe,
    )
