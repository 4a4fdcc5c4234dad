"""Read verdicts out of judges' replies, combine them, and measure agreement."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from rove.core.errors import InvalidModelResponseError

MAX_QUOTED_CHARS = 200
"""Characters of a judge's reply in an error message."""
MAX_BRACES = 100
"""Opening braces, counted from the end, at which a final JSON object is searched for."""
_LABEL = r"(?:(?<!\w)(?:verdict|grade|score|rating|judge?ment|final answer)|^[^\w\n]*answer)"
_MARKS = r"[ \t*_`\"']*"
# "Answer: no doubt about it", "Grade: A-" and "Score: 1.5" mean something else than their beginning.
_NO_MORE = r"(?![\w+-])(?![^\S\n]+\w)(?!/\D)(?![.,]\d)"
_QUOTED = r"\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|`[^`\n]+`|(?<!\w)'[^'\n]*'(?!\w)"
_DECODER = json.JSONDecoder()
_EDGES = " \t\r\n.,:;!\"'`*_"


def verdict_form(choices: Sequence[str]) -> dict[str, Any]:
    """Return a `response_format` for replies of the form {"verdict": one of the choices}."""
    schema = {
        "type": "object",
        "properties": {"verdict": {"type": "string", "enum": list(choices)}},
        "required": ["verdict"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}


def read_verdict(
    text: str, choices: Sequence[str], is_truncated: bool = False, judged: str = "", lowest: str = ""
) -> str:
    """Return the choice that a judge's reply states. Case is ignored, except for a choice of one letter ("a" is a word).

    A reply that is one JSON object with a "verdict" (or one in a code fence), or only a choice, states its verdict.
    Any other reply states it in its last statement. A statement is

    - a labeled choice ("Verdict: no");
    - a choice alone on the last line, or alone on the first;
    - a JSON object with a "verdict" at the beginning or the end of the reply.

    Quotations are not statements: block quotes, code fences, text in quotation marks or backticks other than a choice
    alone, and, unless the reply is only that, a JSON object or a labeled choice within a line that the judged
    response contains as well. Text before a closing `</think>` or after an opening `<think>` is ignored.

    Args:
        text: reply of the judge.
        choices: possible verdicts.
        is_truncated: the reply ended at its token limit; only a JSON object at its beginning then counts.
        judged: the response that was judged.
        lowest: the choice with the lowest value. If the reply only quotes this choice, the quotation counts: a
            response must not make its own bad verdict unreadable. "" = never.

    Raises:
        InvalidModelResponseError: the reply has no statement, or the last one is not a choice. An unreadable judgment
            is not a "no".
    """
    reply = text.rpartition("</think>")[2].partition("<think>")[0].strip()
    found = _whole(reply, choices, is_truncated)
    if found is None:
        statements = _in_json(reply, choices, judged, is_truncated)
        if not is_truncated:
            statements += _in_words(reply, choices, judged)
        if not statements and lowest:
            quoted = _in_json(reply, choices, "", is_truncated) + (
                [] if is_truncated else _in_words(reply, choices, "")
            )
            statements = quoted if {one.choice for one in quoted} == {lowest} else []
        found = max(statements, key=lambda one: one.position).choice if statements else None
    if found:
        return found
    expected = ", ".join(repr(choice) for choice in choices)
    raise InvalidModelResponseError(f"no verdict in {text[:MAX_QUOTED_CHARS]!r}; expected one of {expected}")


class _Statement(NamedTuple):
    """A position in a judge's reply where it states a verdict."""

    position: int
    """Index of its first character."""
    choice: str | None
    """None if it is not one of the choices."""


def _choice(words: str, choices: Sequence[str]) -> str | None:
    """Return the choice that a text consists of."""
    bare = words.strip(_EDGES)
    if bare in choices:
        return bare
    return next((one for one in choices if len(one) > 1 and one.casefold() == bare.casefold()), None)


def _whole(reply: str, choices: Sequence[str], is_truncated: bool) -> str | None:
    """Return the verdict of a reply that is one JSON object or one choice; "" if the object has another verdict."""
    content = _unfenced(reply)
    value, end = _object_at(content, 0)
    if value is not None and end == len(content):
        return _choice(value, choices) or ""
    if is_truncated:
        return None
    if end == 0 and content.startswith("{") and content.endswith("}"):  # almost JSON, such as {'verdict': 'no'}
        named = re.findall(r"""["']?verdict["']?\s*:\s*["']?([^"',}\n]*)""", content)
        return (_choice(named[0], choices) or "") if len(set(named)) == 1 else ""
    return _choice(reply, choices)


def _in_words(reply: str, choices: Sequence[str], judged: str) -> list[_Statement]:
    """Return the statements in words, outside of quotations."""
    own = _without_quotations(reply, choices)
    options = "|".join(re.escape(choice) for choice in sorted(choices, key=len, reverse=True))
    label = rf"{_LABEL}{_MARKS}(?::|=|\n|\bis\b)[\s*_`\"']*({options}){_NO_MORE}"
    labeled = [
        found
        for found in re.finditer(label, own, flags=re.IGNORECASE | re.MULTILINE)
        if not _is_quoted_in_line(own, found, judged)
    ]
    # Where the judge has a statement that the response does not contain, a repeated one is a quotation.
    labeled = [found for found in labeled if _squeezed(found[0]) not in _squeezed(judged)] or labeled
    statements = [_Statement(found.start(), _choice(found[1], choices)) for found in labeled]
    lines = [line for line in re.finditer(r"[^\n]+", own) if line[0].strip(_EDGES)]
    if lines:
        statements += [_Statement(-1, _choice(lines[0][0], choices))]
        is_repeated = statements[-1].choice is not None and lines[-1][0].strip() in map(str.strip, judged.splitlines())
        if not is_repeated:
            statements += [_Statement(lines[-1].start(), _choice(lines[-1][0], choices))]
    return [statement for statement in statements if statement.choice is not None]


def _in_json(reply: str, choices: Sequence[str], judged: str, is_truncated: bool) -> list[_Statement]:
    """Return the verdict of the JSON object that begins the reply and of the one that ends it."""
    content = reply.rstrip("` \t\r\n*")  # a closing code fence
    first = re.match(r"(?:```\w*\s*)?(?=\{)", content)
    places = {first.end()} if first else set()
    if not is_truncated:
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


def _unfenced(reply: str) -> str:
    """Return the content of the code fence that the whole text is; any other text as it is."""
    found = re.fullmatch(r"```\w*\n(.*)\n\s*```", reply, flags=re.DOTALL)
    return found[1].strip() if found and "```" not in found[1] else reply


def _without_quotations(reply: str, choices: Sequence[str]) -> str:
    """Return a text of the same length with spaces in place of what it quotes, except for a choice alone."""

    def blank(found: re.Match[str]) -> str:
        is_choice = "\n" not in found[0].strip() and _choice(found[0], choices) is not None
        return found[0] if is_choice else re.sub(r"[^\n]", " ", found[0])

    text = re.sub(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", blank, reply, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^[ \t]*>.*$", blank, text, flags=re.MULTILINE)
    return re.sub(_QUOTED, blank, text)


def _is_quoted_in_line(text: str, found: re.Match[str], judged: str) -> bool:
    """Return whether a labeled choice is part of a longer line and also occurs in the judged response."""
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
    return bool(line.strip(_EDGES)) and _squeezed(found[0]) in _squeezed(judged)


def _squeezed(text: str) -> str:
    """Return a text in lower case without white space and marks, to compare a quotation with what it quotes."""
    return re.sub(r"[\s*_`\"':=]+", "", text).casefold()


def leading(verdicts: Sequence[str]) -> list[str]:
    """Return the most frequent verdicts: one, or several after a tie, in order of appearance."""
    counts = Counter(verdicts)
    most = max(counts.values())
    return [verdict for verdict, count in counts.items() if count == most]


def combined(verdicts: Sequence[str], choices: Mapping[str, float], combine: str) -> float:
    """Return the value of several verdicts: by "majority" (a tie is the mean of the tied ones), or their "mean"."""
    counted = leading(verdicts) if combine == "majority" else verdicts
    return math.fsum(choices[verdict] for verdict in counted) / len(counted)


class Agreement(NamedTuple):
    """Agreement of judges over many judgments."""

    judgments: int
    """Number of judgments by two or more judges."""
    share: float
    """Mean share of pairs of judges with the same verdict; nan without judgments."""
    kappa: float
    """Fleiss' kappa: 1 = perfect, 0 = as by chance; nan if all verdicts are equal or the number of judges varies."""


def agreeing_pairs(verdicts: Sequence[str]) -> float:
    """Return the share of pairs of judges with the same verdict; 1.0 without pairs."""
    pairs = list(combinations(verdicts, 2))
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 1.0


def agreement(judgments: Sequence[Sequence[str]]) -> Agreement:
    """Return the agreement over judgments; those of a single judge are ignored."""
    panels = [verdicts for verdicts in judgments if len(verdicts) > 1]
    if not panels:
        return Agreement(0, math.nan, math.nan)
    share = math.fsum(map(agreeing_pairs, panels)) / len(panels)
    counts = Counter(verdict for verdicts in panels for verdict in verdicts)
    by_chance = math.fsum((count / counts.total()) ** 2 for count in counts.values())
    comparable = len(counts) > 1 and len({len(verdicts) for verdicts in panels}) == 1
    return Agreement(len(panels), share, (share - by_chance) / (1 - by_chance) if comparable else math.nan)
