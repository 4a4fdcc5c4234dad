"""Verdicts of judges: what one said in so many words, what several say together, how far they agree."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from rove.errors import InvalidModelResponseError

SHOWN = 200
"""Characters of a judge's words that an error quotes."""
_LABEL = r"(?:(?<!\w)(?:verdict|grade|score|rating|judge?ment|final answer)|^[^\w\n]*answer)"
_MARKS = r"[ \t*_`\"']*"
# "Answer: no doubt about it", "Grade: A-" and "Score: 1.5" say something else than their beginning.
_NO_MORE = r"(?![\w+-])(?![^\S\n]+\w)(?!/\D)(?![.,]\d)"
_EDGES = " \t\r\n.,:;!\"'`*_"


def verdict_form(choices: Sequence[str]) -> dict[str, Any]:
    """A `response_format` that makes an endpoint answer {"verdict": one of the choices}."""
    schema = {
        "type": "object",
        "properties": {"verdict": {"type": "string", "enum": list(choices)}},
        "required": ["verdict"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}


def read_verdict(text: str, choices: Sequence[str], cut_off: bool = False) -> str:
    """The choice that a judge's words come down to, whatever the case of its letters; a choice of one letter is meant as
    it is written, as "a" is a word.

    Read as JSON with a "verdict" (also inside a code fence), as nothing but a choice, as one alone on the last line, as a
    labelled one ("Verdict: no", the last where there are several), or as one alone on the first line. Choices that other
    words name do not count, nor what is thought: all before a closing `</think>`, and all after an opening one.

    Args:
        cut_off: the judge was stopped before its end: only a whole JSON object counts.

    Raises:
        InvalidModelResponseError: none of these; an unreadable judgment is not a "no".
    """
    said = text.rpartition("</think>")[2].partition("<think>")[0].strip()
    told = _in_json(said)
    found = _choice(told, choices) if told is not None else None
    if told is None and not cut_off:
        found = _in_words(said, choices)
    if found is not None:
        return found
    expected = ", ".join(repr(choice) for choice in choices)
    raise InvalidModelResponseError(f"no verdict in {text[:SHOWN]!r}; expected one of {expected}")


def _choice(words: str, choices: Sequence[str]) -> str | None:
    """The choice that words are, and nothing else."""
    bare = words.strip(_EDGES)
    if bare in choices:
        return bare
    return next((one for one in choices if len(one) > 1 and one.casefold() == bare.casefold()), None)


def _in_words(said: str, choices: Sequence[str]) -> str | None:
    """The choice that stands where a verdict does."""
    lines = [line for line in said.splitlines() if line.strip(_EDGES)] or [""]
    options = "|".join(re.escape(choice) for choice in sorted(choices, key=len, reverse=True))
    label = rf"{_LABEL}{_MARKS}(?::|=|\n|\bis\b)[\s*_`\"']*({options}){_NO_MORE}"
    labelled = re.findall(label, said, flags=re.IGNORECASE | re.MULTILINE)
    places = [said, lines[-1], *reversed(labelled), lines[0]]
    return next((found for place in places if (found := _choice(place, choices)) is not None), None)


def _in_json(said: str) -> str | None:
    """The "verdict" of a JSON object; None where there is no such object."""
    found = re.search(r"\{.*\}", said, flags=re.DOTALL)
    try:
        value = msgspec.json.decode(found[0]) if found else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    return str(value["verdict"]) if isinstance(value, dict) and "verdict" in value else None


def leading(verdicts: Sequence[str]) -> list[str]:
    """The verdict that most judges gave; several after a tie, in the order in which they came."""
    counts = Counter(verdicts)
    most = max(counts.values())
    return [verdict for verdict, count in counts.items() if count == most]


def combined(verdicts: Sequence[str], choices: Mapping[str, float], combine: str) -> float:
    """What a panel's verdicts are worth: by "majority" (a tie is the mean of those in it), or their "mean"."""
    counted = leading(verdicts) if combine == "majority" else verdicts
    return math.fsum(choices[verdict] for verdict in counted) / len(counted)


class Agreement(NamedTuple):
    """How far judges agree over many judgments."""

    judgments: int
    """Of two judges or more."""
    share: float
    """Of the pairs of judges that gave the same verdict: the mean over judgments. nan without any."""
    kappa: float
    """Fleiss' kappa: 1 = always, 0 = no more than their habits make likely. nan where all verdicts are the same one, or
    the judgments are not all of equally many judges."""


def agreeing_pairs(verdicts: Sequence[str]) -> float:
    """The share of the pairs of judges that gave the same verdict; 1.0 where there is no pair."""
    pairs = list(combinations(verdicts, 2))
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 1.0


def agreement(judgments: Sequence[Sequence[str]]) -> Agreement:
    """How far judges agree, by the verdicts of each judgment; those of a single judge say nothing and are left out."""
    panels = [verdicts for verdicts in judgments if len(verdicts) > 1]
    if not panels:
        return Agreement(0, math.nan, math.nan)
    share = math.fsum(map(agreeing_pairs, panels)) / len(panels)
    counts = Counter(verdict for verdicts in panels for verdict in verdicts)
    by_chance = math.fsum((count / counts.total()) ** 2 for count in counts.values())
    comparable = len(counts) > 1 and len({len(verdicts) for verdicts in panels}) == 1
    return Agreement(len(panels), share, (share - by_chance) / (1 - by_chance) if comparable else math.nan)
