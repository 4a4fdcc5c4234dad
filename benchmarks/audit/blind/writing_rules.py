"""Writing rules: write a text that follows rules that a program can check."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Write a text that follows all rules of the user. Reply with the text only."
WORDS = """
    harbor lantern meadow winter engine carpet violin market bridge candle garden museum island pepper rocket saddle
    temple valley window zipper anchor basket castle donkey falcon goblet hammer jacket kettle ladder magnet needle
    orange parrot quarry ribbon spider tunnel walnut yogurt
""".split()
ENDINGS = ["That is all.", "See you tomorrow.", "Nothing else matters.", "We will be back soon."]


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z']+", text)


def keywords(text: str, words: list[str]) -> bool:
    """Return whether all words are in the text."""
    present = {word.lower() for word in _words(text)}
    return all(word in present for word in words)


def min_words(text: str, count: int) -> bool:
    """Return whether the text has at least so many words."""
    return len(_words(text)) >= count


def lowercase(text: str) -> bool:
    """Return whether the text has no capital letters."""
    return text == text.lower()


def no_comma(text: str) -> bool:
    """Return whether the text has no commas."""
    return "," not in text


def bullets(text: str, count: int) -> bool:
    """Return whether exactly so many lines are bullet points."""
    return sum(line.lstrip().startswith(("- ", "* ")) for line in text.splitlines()) == count


def ending(text: str, phrase: str) -> bool:
    """Return whether the text ends with the phrase."""
    return text.rstrip().endswith(phrase)


CHECKS: dict[str, Callable[..., bool]] = {
    "keywords:include": keywords,
    "length:min_words": min_words,
    "change_case:lowercase": lowercase,
    "punctuation:no_comma": no_comma,
    "format:bullets": bullets,
    "startend:ending": ending,
}


def follows(text: str, rule: dict[str, Any]) -> bool:
    """Return whether a text follows one rule."""
    check = CHECKS.get(rule["id"])
    return check(text, **rule["arguments"]) if check else True


def all_rules(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if the text follows all rules."""
    text = (completion[-1].content or "").strip()
    return float(all(follows(text, rule) for rule in info["rules"]))


def share_of_rules(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return the share of rules that the text follows."""
    text = (completion[-1].content or "").strip()
    return sum(follows(text, rule) for rule in info["rules"]) / len(info["rules"])


def _rules(rng: random.Random) -> list[tuple[str, str, dict[str, Any]]]:
    chosen = sorted(rng.sample(WORDS, rng.randint(3, 5)))
    count = rng.randint(20, 60)
    rules: list[tuple[str, str, dict[str, Any]]] = [
        ("keywords:existence", f"Use each of these words at least once: {', '.join(chosen)}.", {"words": chosen}),
        ("length:min_words", f"Write at least {count} words.", {"count": count}),
    ]
    style = rng.randrange(4)
    if style == 0:
        rules.append(("change_case:lowercase", "Use lowercase letters only.", {}))
    elif style == 1:
        rules.append(("punctuation:no_comma", "Do not use any commas.", {}))
    elif style == 2:
        number = rng.randint(2, 5)
        text = f"Include exactly {number} bullet points, each on a line that begins with '- '."
        rules.append(("format:bullets", text, {"count": number}))
    else:
        phrase = rng.choice(ENDINGS)
        rules.append(("startend:ending", f"End with this exact sentence: {phrase}", {"phrase": phrase}))
    return rules


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rules = _rules(random.Random(f"{seed}:{index}"))
        question = "\n".join(f"{number}. {text}" for number, (_, text, _) in enumerate(rules, start=1))
        info = {"rules": [{"id": id, "arguments": arguments} for id, _, arguments in rules]}
        rows.append({"question": question, "info": info})
    return rows


def load_environment(num_train: int = 500, num_eval: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment whose rules are checked by a program.

    Args:
        num_train, num_eval: Number of rows.
        seed: Random seed of the rules.
    """
    rubric = vf.Rubric([all_rules])
    rubric.add_metric(share_of_rules)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_train, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_eval, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
