"""Needle: facts hidden in a long text, which the model explores with Python code and sub-models."""

from __future__ import annotations

import json
import random
import re
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
        "Whoever looks for the {of} has to enter {what}.",
    ],
    "seen": [
        "On day {what} the {of} was seen.",
        "Somebody saw the {of} on day {what}.",
        "Day {what} brought the {of} back.",
    ],
    "home": ["The {of} lives in {what}.", "{what} is where the {of} sleeps.", "In {what} people feed the {of}."],
    "keeper": [
        "The keeper of {of} is {what}.",
        "{what} keeps the gate of {of}.",
        "To enter {of} you have to ask {what}.",
    ],
    "weight": [
        "The {of} weighs {what} pounds.",
        "At {what} pounds the {of} was put back.",
        "{what} pounds: so heavy is the {of}.",
    ],
}
"""Sentence templates for each kind of fact; no sentence fits the templates of two kinds."""
FILLERS = [
    "{person} walked from {town} to {other} in {n} hours and said nothing of it.",
    "In {town} it rained for {n} days.",
    "{person} counted {n} {color} doors and went home.",
    "Nobody in {town} remembers the winter of {n}.",
    "A letter from {other} reached {person} with {n} stamps on it.",
    "The road to {town} is {n} miles long, and {person} knows each of them.",
    "{person} painted the {color} {animal} on a wall, {n} times.",
    "They say that {person} of {town} owned {n} books, all of them {color}.",
]
"""Templates of sentences that state no fact."""
LEVELS = ("code", "seen", "keeper", "weight")
PIECE_CHARS = 20_000
"""Approximate length of a piece that the policy `recursive` passes to a sub-model, in characters."""

Fact = tuple[str, str, str]
"""Kind, subject (a creature or town), and value."""


def hidden(rng: random.Random, kind: str) -> tuple[str, str, list[Fact], list[str]]:
    """Return question, answer, facts to hide (needed ones, then decoys), and the subjects of the question."""
    creatures = rng.sample([f"{color} {animal}" for color in COLORS for animal in ANIMALS], 60)
    of, others = creatures[0], creatures[1:]
    towns = rng.sample(TOWNS, len(TOWNS))
    codes = rng.sample(range(10_000, 100_000), 60)
    decoys: list[Fact] = [("code", creature, str(code)) for creature, code in zip(others[:30], codes, strict=False)]
    decoys += [("seen", rng.choice(others), str(day)) for day in rng.sample(range(2, 100), 30)]
    weights = rng.sample(range(10, 999), 30)
    decoys += [("weight", creature, str(n)) for creature, n in zip(others[20:50], weights, strict=True)]
    homes = [("home", creature, rng.choice(towns)) for creature in others[:15]]
    keepers = [("keeper", town, person) for town, person in zip(towns, rng.sample(PEOPLE, len(TOWNS)), strict=True)]
    decoys += [*homes, *keepers[1:]]
    if kind == "code":
        return f"What is the code of the {of}?", str(codes[-1]), [(kind, of, str(codes[-1])), *decoys], [of]
    if kind == "seen":
        days = rng.sample(range(2, 100), rng.randint(3, 15))
        return (
            f"On how many days was the {of} seen?",
            str(len(days)),
            [*((kind, of, str(day)) for day in days), *decoys],
            [of],
        )
    if kind == "keeper":
        town, person = keepers[0][1:]
        question = f"Who keeps the town that the {of} lives in?"
        return question, person, [("home", of, town), keepers[0], *decoys], [of]
    heaviest, *rest = others[50:54]
    weights = sorted(rng.sample(range(10, 999), 4), reverse=True)
    facts = [(kind, creature, str(n)) for creature, n in zip([heaviest, *rest], weights, strict=True)]
    subjects = sorted([heaviest, *rest])
    return f"Which weighs most: the {', the '.join(subjects)}?", heaviest, [*facts, *decoys], subjects


def sentence_of(fact: Fact, rng: random.Random) -> str:
    """Return a fact as a sentence."""
    kind, of, what = fact
    sentence = rng.choice(WORDINGS[kind]).format(of=of, what=what)
    return sentence[0].upper() + sentence[1:]


def haystack(state: vf.State) -> str:
    """Return the text of a row: about `length` characters, in paragraphs."""
    info = state["info"]
    rng = random.Random(f"{info['seed']}:text")
    needles = [sentence_of(fact, rng) for fact in hidden(random.Random(info["seed"]), info["kind"])[2]]
    sentences, left = [], info["length"] - sum(map(len, needles))
    while left > 0:
        names = {
            "person": rng.choice(PEOPLE),
            "town": rng.choice(TOWNS),
            "other": rng.choice(TOWNS),
            "n": rng.randint(2, 99),
        }
        names |= {"color": rng.choice(COLORS), "animal": rng.choice(ANIMALS)}
        sentences.append(rng.choice(FILLERS).format(**names))
        left -= len(sentences[-1]) + 1
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


def _program(kind: str, about: list[str]) -> str:
    """Return a program that finds the answer in the text `notes`."""
    found = f"find({_pattern(kind, about[0])!r})"
    if kind == "code":
        return f"{FIND}answer['content'] = {found}[0]{READY}"
    if kind == "seen":
        return f"{FIND}answer['content'] = len({found}){READY}"
    if kind == "keeper":
        home_pattern, keeper_pattern = _pattern("home", about[0]), _pattern("keeper", "TOWN")
        found = f"find({keeper_pattern!r}.replace('TOWN', home))"
        return f"{FIND}home = find({home_pattern!r})[0]\nanswer['content'] = {found}[0]{READY}"
    patterns = {of: _pattern(kind, of) for of in about}
    return f"{FIND}all = {patterns!r}\nanswer['content'] = max(all, key=lambda of: int(find(all[of])[0])){READY}"


def _python(code: str) -> vf.AssistantMessage:
    function = {"name": "python", "arguments": json.dumps({"code": code})}
    return vf.AssistantMessage(None, tool_calls=[{"id": "call_1", "type": "function", "function": function}])


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Search the whole text with regular expressions."""
    info = state["info"]
    return _python("notes = context\n" + _program(info["kind"], info["about"]))


def recursive(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Let sub-models copy the relevant sentences of each piece, then search the copies; also act as the sub-model."""
    if messages[0].role != "system":
        words, _, piece = messages[0].content.partition("\n\n")
        wanted = words.removeprefix("Copy what has one of these: ").split(", ")
        sentences = re.split(r"(?<=\.)\s+", piece)
        return " ".join(one for one in sentences if any(word in one.casefold() for word in wanted))
    info = state["info"]
    wanted = [*info["about"], "keep", "to enter"] if info["kind"] == "keeper" else info["about"]
    if len(messages) > 2:
        return _python(_program(info["kind"], info["about"]))
    return _python(
        f"pieces = ['']\nfor part in context.split('\\n\\n'):\n    if len(pieces[-1]) > {PIECE_CHARS}: pieces.append('')\n"
        f"    pieces[-1] += part + '\\n\\n'\nask = {'Copy what has one of these: ' + ', '.join(wanted)!r}\n"
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
        question, answer, _, about = hidden(random.Random(f"{seed}:{index}"), kind)
        info = {"kind": kind, "about": about, "seed": f"{seed}:{index}", "length": length}
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
