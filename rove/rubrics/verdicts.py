"""Verdicts of judges: what one said in so many words, what several say together, how far they agree."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from rove.core.errors import InvalidModelResponseError

SHOWN = 200
"""Characters of a judge's words that an error quotes."""
MAX_BRACES = 100
"""Opening braces of a reply, the last ones, at which a JSON object is looked for that ends the reply."""
_LABEL = r"(?:(?<!\w)(?:verdict|grade|score|rating|judge?ment|final answer)|^[^\w\n]*answer)"
_MARKS = r"[ \t*_`\"']*"
# "Answer: no doubt about it", "Grade: A-" and "Score: 1.5" say something else than their beginning.
_NO_MORE = r"(?![\w+-])(?![^\S\n]+\w)(?!/\D)(?![.,]\d)"
_QUOTED = r"\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|`[^`\n]+`|(?<!\w)'[^'\n]*'(?!\w)"
_DECODER = json.JSONDecoder()
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


def read_verdict(text: str, choices: Sequence[str], cut_off: bool = False, judged: str = "", lowest: str = "") -> str:
    """Return the choice that a judge's reply states. Case is ignored, except for a choice of one letter ("a" is a word).

    A reply that is one JSON object with a "verdict" (or one in a code fence), or only a choice, states its verdict. Any
    other reply states it in its last statement. A statement is

    - a labelled choice ("Verdict: no");
    - a choice alone on the last line, or alone on the first;
    - a JSON object with a "verdict" at the beginning or the end of the reply.

    Quotations are not statements: block quotes, code fences, text in quotation marks or backticks other than a choice
    alone, and, unless the reply is nothing else, a JSON object or a labelled choice within a line that the judged
    response contains as well. Text before a closing `</think>` or after an opening `<think>` is ignored.

    Args:
        text: the reply of the judge.
        choices: the possible verdicts.
        cut_off: the reply was cut off at its token limit; only a JSON object at its beginning then counts.
        judged: the response that was judged.
        lowest: the choice with the lowest value. If the reply has quotations of this choice and nothing else, they count: a
            response must not make its own bad verdict unreadable. "" = never.

    Raises:
        InvalidModelResponseError: the reply has no such statement, or the last one is not a choice. An unreadable
            judgment is not a "no".
    """
    said = text.rpartition("</think>")[2].partition("<think>")[0].strip()
    found = _whole(said, choices, cut_off)
    if found is None:
        statements = _in_json(said, choices, judged, cut_off)
        if not cut_off:
            statements += _in_words(said, choices, judged)
        if not statements and lowest:
            quoted = _in_json(said, choices, "", cut_off) + ([] if cut_off else _in_words(said, choices, ""))
            statements = quoted if {one.choice for one in quoted} == {lowest} else []
        found = max(statements, key=lambda one: one.position).choice if statements else None
    if found:
        return found
    expected = ", ".join(repr(choice) for choice in choices)
    raise InvalidModelResponseError(f"no verdict in {text[:SHOWN]!r}; expected one of {expected}")


class _Statement(NamedTuple):
    """A place in a judge's reply where it states a verdict."""

    position: int
    """Index of its first character."""
    choice: str | None
    """None if it is not one of the choices."""


def _choice(words: str, choices: Sequence[str]) -> str | None:
    """The choice that words are, and nothing else."""
    bare = words.strip(_EDGES)
    if bare in choices:
        return bare
    return next((one for one in choices if len(one) > 1 and one.casefold() == bare.casefold()), None)


def _whole(said: str, choices: Sequence[str], cut_off: bool) -> str | None:
    """Return the verdict of a reply that is one JSON object or one choice; "" if the object has another verdict."""
    content = _unfenced(said)
    value, end = _object_at(content, 0)
    if value is not None and end == len(content):
        return _choice(value, choices) or ""
    if cut_off:
        return None
    if end == 0 and content.startswith("{") and content.endswith("}"):  # almost JSON, such as {'verdict': 'no'}
        named = re.findall(r"""["']?verdict["']?\s*:\s*["']?([^"',}\n]*)""", content)
        return (_choice(named[0], choices) or "") if len(set(named)) == 1 else ""
    return _choice(said, choices)


def _in_words(said: str, choices: Sequence[str], judged: str) -> list[_Statement]:
    """Return the statements in words, outside of quotations."""
    own = _without_quotations(said, choices)
    options = "|".join(re.escape(choice) for choice in sorted(choices, key=len, reverse=True))
    label = rf"{_LABEL}{_MARKS}(?::|=|\n|\bis\b)[\s*_`\"']*({options}){_NO_MORE}"
    labelled = [
        found
        for found in re.finditer(label, own, flags=re.IGNORECASE | re.MULTILINE)
        if not _is_quoted_in_line(own, found, judged)
    ]
    # Where the judge has a statement that the response does not contain, a repeated one is a quotation.
    labelled = [found for found in labelled if _squeezed(found[0]) not in _squeezed(judged)] or labelled
    statements = [_Statement(found.start(), _choice(found[1], choices)) for found in labelled]
    lines = [line for line in re.finditer(r"[^\n]+", own) if line[0].strip(_EDGES)]
    if lines:
        statements += [_Statement(-1, _choice(lines[0][0], choices))]
        is_repeated = statements[-1].choice is not None and lines[-1][0].strip() in map(str.strip, judged.splitlines())
        if not is_repeated:
            statements += [_Statement(lines[-1].start(), _choice(lines[-1][0], choices))]
    return [statement for statement in statements if statement.choice is not None]


def _in_json(said: str, choices: Sequence[str], judged: str, cut_off: bool) -> list[_Statement]:
    """Return the verdict of the JSON object that begins the reply and of the one that ends it."""
    content = _unfenced_end(said)
    first = re.match(r"(?:```\w*\s*)?(?=\{)", content)
    places = {first.end()} if first else set()
    if not cut_off:
        braces = [found.start() for found in re.finditer(r"\{", content)][-MAX_BRACES:]
        places |= {start for start in braces if _object_at(content, start)[1] == len(content)}
    read = [(start, *_object_at(content, start)) for start in places]
    return [
        _Statement(start, _choice(verdict, choices))
        for start, verdict, end in read
        if verdict is not None and _squeezed(content[start:end]) not in _squeezed(judged)
    ]


def _object_at(text: str, start: int) -> tuple[str | None, int]:
    """Return the "verdict" of the JSON object at an index of a text, None without one, and the index of its end."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start
    return (str(value["verdict"]) if isinstance(value, dict) and "verdict" in value else None), end


def _unfenced(said: str) -> str:
    """Return the content of the code fence that the whole text is; any other text as it is."""
    found = re.fullmatch(r"```\w*\n(.*)\n\s*```", said, flags=re.DOTALL)
    return found[1].strip() if found and "```" not in found[1] else said


def _unfenced_end(said: str) -> str:
    """Return a text without white space and a closing code fence at its end."""
    return said.rstrip("` \t\r\n*")


def _without_quotations(said: str, choices: Sequence[str]) -> str:
    """Return a text of the same length with spaces in place of what it quotes, except for a choice alone."""

    def blank(found: re.Match[str]) -> str:
        is_choice = "\n" not in found[0].strip() and _choice(found[0], choices) is not None
        return found[0] if is_choice else re.sub(r"[^\n]", " ", found[0])

    text = re.sub(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", blank, said, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^[ \t]*>.*$", blank, text, flags=re.MULTILINE)
    return re.sub(_QUOTED, blank, text)


def _is_quoted_in_line(text: str, found: re.Match[str], judged: str) -> bool:
    """Whether a labelled choice is only a part of its line and stands in the judged response as well."""
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
    return bool(line.strip(_EDGES)) and _squeezed(found[0]) in _squeezed(judged)


def _squeezed(text: str) -> str:
    """Return a text in lower case without white space and marks, to compare a quotation with what it quotes."""
    return re.sub(r"[\s*_`\"':=]+", "", text).casefold()


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
