"""Ending rules: find out how an invented language makes plurals, and write it down as rules."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You are shown words of an invented language with their plurals. Find the rules by which the language makes plurals "
    "from the endings of words. They must hold for all of its words, also for those that you have not seen. Write one rule "
    "per line, as `ending -> new ending`; the first rule whose ending fits is applied. Put them between <rules> and </rules>:\n"
    "<rules>\nan -> anu\nk -> gi\n</rules>"
)
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
RULE = re.compile(r"\s*([a-z]+)\s*->\s*([a-z]+)\s*")

Rules = list[tuple[str, str]]


def read_rules(text: str) -> Rules | None:
    """Return the rules in a text, None if a line is no rule."""
    found = [RULE.fullmatch(line) for line in text.strip().splitlines()]
    return [match.groups() for match in found] if all(found) else None  # type: ignore[union-attr,misc]


def apply(rules: Rules, word: str) -> str | None:
    """Return the plural of a word by the first rule that fits, None if no rule does."""
    for ending, new in rules:
        if word.endswith(ending):
            return word[: len(word) - len(ending)] + new
    return None


def correct(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 if the rules make every plural right."""
    rules = read_rules(parser.parse_answer(completion) or "")
    if not rules:
        return 0.0
    return float(all(apply(rules, word) == plural for word, plural in info["words"]))


def readable(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if there are rules and all can be read."""
    return float(bool(read_rules(parser.parse_answer(completion) or "")))


def linguist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write down the rules of the language."""
    return "<rules>\n" + "\n".join(f"{old} -> {new}" for old, new in state["info"]["rules"]) + "\n</rules>"


def one_rule(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Know only one of the rules."""
    old, new = rng.choice(state["info"]["rules"])
    return f"<rules>\n{old} -> {new}\n</rules>"


def _language(rng: random.Random) -> Rules:
    """Return rules for four endings; a longer ending goes before a shorter one that it includes."""
    vowel, *others = rng.sample(VOWELS, 3)
    before, last = rng.sample(CONSONANTS, 2)
    endings = [before + vowel, vowel, others[0], last]
    return [(end, end[:-1] + rng.choice(VOWELS) + rng.choice(CONSONANTS)) for end in endings]


def _word(rng: random.Random, rules: Rules, ending: str) -> str:
    """Return a word with an ending, to which no earlier rule applies."""
    earlier = [old for old, _ in rules[: [old for old, _ in rules].index(ending)]]
    while True:
        stem = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 2)))
        word = stem + (rng.choice(CONSONANTS) if ending[0] in VOWELS else "") + ending
        if not any(word.endswith(old) for old in earlier):
            return word


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        rules = _language(rng)
        words = sorted({_word(rng, rules, ending) for ending, _ in rules for _ in range(3)})
        rng.shuffle(words)
        pairs = [[word, apply(rules, word)] for word in words]
        question = "\n".join(f"{word}: {plural}" for word, plural in pairs)
        rows.append({"question": question, "info": {"rules": [list(rule) for rule in rules], "words": pairs}})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment in which every row has a language of its own; evaluation has others than training."""
    parser = vf.XMLParser(["rules"], answer_field="rules")
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(readable)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"linguist": linguist, "one_rule": one_rule},
    )
