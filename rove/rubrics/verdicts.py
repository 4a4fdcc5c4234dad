"""Read verdicts out of judges' replies, combine them, and measure agreement."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import NamedTuple

from rove.core.errors import InvalidModelResponseError
from rove.rubrics.quotations import (
    CLOSING_TAG,
    OPENING_TAG,
    REASONING_TAG,
    JudgedText,
    SqueezedText,
    plain,
    sentences,
    without_quotations,
)
from rove.rubrics.verdict_json import object_at, objects_in
from rove.utils.patterns import lazy_pattern

MAX_QUOTED_CHARS = 200
"""Characters of a judge's reply in an error message."""
STRONG, WEAK = 2, 1
"""Strength of a statement: a label, a tag, double brackets or JSON; anything else."""

_STRONG_LABEL = r"(?:overall|total)(?:\s+(?:score|rating|grade))?|verdict|grade|score|rating|judge?ment"
_WEAK_LABEL = r"final answer|decision|conclusion|assessment|evaluation|result|(?<=^)answer"
_LABEL = rf"(?<![\w])(?:(?P<strong>{_STRONG_LABEL})|(?P<weak>{_WEAK_LABEL}))(?!\w)"
_SCALE_NOTE = r"(?:[ \t]*\((?=[^()\n]*\d)[^()\n]*\))?"  # "Score (1-10): 7"
_SEPARATOR = r"[ \t*_`\"']*(?P<separator>[:=]|->|→|⇒|\s[-–—](?=\s)|\bis\b|(?=\n))"
_LABELED = lazy_pattern(_LABEL + _SCALE_NOTE + _SEPARATOR, re.IGNORECASE | re.MULTILINE)
_ANY_LABEL = lazy_pattern(_LABEL, re.IGNORECASE | re.MULTILINE)
# The content contains no second opening, because each opening would otherwise search the rest of the text.
_TAGGED = lazy_pattern(r"<(verdict|grade|score|rating|judge?ment)>((?:(?!</?\1>).)*)</\1>", re.IGNORECASE | re.DOTALL)
_BRACKETED = lazy_pattern(r"\[\[((?:(?!\[\[|\]\]).)*)\]\]")
_BOXED = lazy_pattern(r"\\boxed\s*\{((?:[^{}\n]|\{[^{}\n]*\})*)\}")

_OPENING = r"(?:[\s*_`\"'“”‘’«»$\[(<{]|\\(?:boxed|text|textbf|mathrm|mathbf)\s*\{|\\[(\[])*"
_CLOSING = r"(?:[*_`\"'“”‘’«»$\])>}]|\\[)\]])*+"
_ZEROS = r"(?:(?<=\d)\.0+)?"  # 8.0 is 8
# At most nine digits: Python refuses to convert a number of more than 4,300.
_SCALE = r"(?:\s*(?:/|out of|of)\s*[*_`]*(?P<top>\d{1,9})(?!\w|[.,]\d))?(?:\s+(?:points?|stars?))?"
# "no doubt", "A-", "1.5", "8%" and "yes?" mean something else than their beginning.
_VALUE_END = r"(?=\s*$|\s*\n|[.,;:!。、！](?!\d)|\s*[—–(]|\s+-\s)"
_EDGES = " \t\r\n.,:;!\"'`*_#“”‘’„«»…。、！"
_EDGE_MARKS = lazy_pattern(r"^(?:[-*•]\s+)?")
_WRAPPED = lazy_pattern(
    r"\$+(?P<a>[^$]+)\$+|\\\((?P<b>.*)\\\)|\\(?:boxed|text|textbf|mathrm|mathbf)\s*\{(?P<c>.*)\}|\[(?P<d>[^\]]*|\[[^\]]*\])\]"
    r"|\((?P<e>[^()]*)\)|<(?P<tag>\w+)>(?P<f>.*)</(?P=tag)>",
    re.DOTALL,
)
_WORD_BEFORE = lazy_pattern(r"([^\W_][\w'’]*)(?:-|[ \t*_`\"']*)$")
# A label after any other word is that of a part ("Style score: 3") or of another verdict ("The response's verdict: yes").
_NO_QUALIFIER = lazy_pattern(
    r"the|my|a|this|our|final|overall|total|whole|new|revised|corrected|updated|first|second|initial|reflection|thought|look"
    r"|consideration|reconsideration|review|now|then|so|thus|hence|therefore|accordingly|actually|finally|and|but",
    re.IGNORECASE,
)
_RETRACTION = lazy_pattern(
    r"\b(?:i (?:was|am) (?:wrong|mistaken)|i (?:have )?mis(?:read|judged|took)|i (?:made|have made) (?:a|an) (?:mistake|error)"
    r"|i take (?:that|this|it) back|i (?:change|revise|correct|reconsider)|scratch that|on (?:reflection|second thought)"
    r"|correction:|wait)\b",
    re.IGNORECASE,
)
_TAKEN_BACK = lazy_pattern(
    r"\bi (?:was|am) (?:wrong|mistaken)|\btake (?:that|this|it) back|\bscratch that|\bi mis(?:read|judged|took)",
    re.IGNORECASE,
)
_MAX_WRAPPERS = 20
"""Maximum layers of marks around a choice that are removed; each layer takes time in proportion to the text."""
_MAX_WORD_CHARS = 100
"""Maximum characters before a label in which the preceding word is searched for."""
# "I agree" and "A fair reply" name no choice; "I is possible" and "A or B" do.
_PRONOUN_OR_ARTICLE = lazy_pattern(
    r"(?<!\w)[AI](?=['’](?:m|d|ll|ve)\b"
    r"|[ \t]+(?!(?:is|was|or|and|nor|if|instead|rather|seems|fits|because|since)\b)[a-z])"
)
_MAX_SHORT_WORDS = 3
_NEAR_WORDS = 3
"""If another choice occurs within this many words after a verdict, there are two verdicts."""
_MAX_NEAR_CHARS = 500
"""Characters after a value in which the next words are read, so that a long line takes time in proportion to its length."""


def verdict_form(choices: Sequence[str]) -> dict[str, object]:
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

    A reply that consists of one JSON object, one choice or one labeled choice states it, in any form below. Otherwise
    the last statement counts. These are statements:

    - a labeled choice: "Verdict: no", "**Score:** 8/10", "GRADE: (C)";
    - a choice in a tag, double brackets or a box: `<verdict>no</verdict>`, `[[A]]`, `\\boxed{no}`;
    - a JSON object with a "verdict" (or one "grade", "score", "rating" or "judgment");
    - a choice alone on the first or last line, or as the first or last sentence: "No. It gives 5.";
    - the first word of a reply of one sentence: "No, it gives 5."

    A reply is unreadable, and no earlier statement is used, if the last statement has another form ("Verdict: surely
    yes"), names two choices, is about a part ("Style score: 3") or is taken back, or if statements without a label
    disagree with others.

    Text that the judge quotes is not a statement: text in quotation marks, block quotes and code fences; a line or sentence that
    is also a line or sentence of the judged text; a labeled choice, box, tag or JSON object that the judged text contains.
    Reasoning is left out only where the reply begins with `<think>`, or has only a closing tag because the chat template
    wrote the opening one. In the second case, a verdict before the tag must not differ from the one after it.

    Args:
        is_truncated: the reply ended at its token limit; only a JSON object at its beginning then counts.
        lowest: the choice with the lowest value. If the reply only quotes this choice, the quotation counts: a
            response must not make its own bad verdict unreadable. "" = never.
    """
    choice = _Reader(choices, JudgedText(judged), lowest).read(plain(text), is_truncated)
    if choice is not None:
        return choice
    expected = ", ".join(repr(choice) for choice in choices)
    raise InvalidModelResponseError(f"no verdict in {text[:MAX_QUOTED_CHARS]!r}; expected one of {expected}")


class _Statement(NamedTuple):
    """A position in a judge's reply where it states a verdict, or tries to."""

    start: int
    end: int
    choice: str | None
    """The stated choice; None if the statement names none of the choices."""
    strength: int
    is_quoted: bool = False
    """Whether the statement also occurs in the judged text."""


class _Reader:
    """Reads the verdict of one reply."""

    def __init__(self, choices: Sequence[str], judged: JudgedText, lowest: str):
        self._exact = _unique((plain(choice), choice) for choice in choices)
        words = [choice for choice in choices if len(choice) > 1]  # "a" is a word, and no choice A
        self._folded = _unique((plain(choice).casefold(), choice) for choice in words)
        self._judged = judged
        self._lowest = lowest
        numbers = [int(name) for name in self._exact if re.fullmatch("[0-9]+", name)]
        self._top = max(numbers, default=None)
        names = "|".join(re.escape(name) for name in sorted(self._exact, key=len, reverse=True))
        choice = rf"{_OPENING}(?P<choice>{names}){_ZEROS}(?!\w){_CLOSING}"
        self._value = re.compile(rf"{choice}{_SCALE}{_CLOSING}{_VALUE_END}", re.IGNORECASE)
        self._word = re.compile(rf"(?<!\w)(?:{names})(?!\w)", re.IGNORECASE)

    def read(self, reply: str, is_truncated: bool) -> str | None:
        """Return the verdict of a plain text; None if it is unreadable."""
        pieces = _without_reasoning(reply)
        if len(pieces) > 1 and self._judged.has_reasoning_tag:  # a quoted tag ends no reasoning
            return self._read_statements("\n".join(pieces))
        if not pieces:
            return None
        if is_truncated:
            fence = re.match(r"```\w*\s*", pieces[0])
            first = object_at(pieces[0], fence.end() if fence else 0)
            return None if first is None or first.verdict is None else self._choice(first.verdict)
        choice = self._read_piece(pieces[-1])
        for piece in pieces[:-1]:
            if self._own_statement(piece) not in (None, choice):
                return None
        return choice

    def _read_piece(self, reply: str) -> str | None:
        content = _unfenced(reply)
        whole = object_at(content, 0)
        if whole is not None and whole.end == len(content):
            return None if whole.verdict is None else self._choice(whole.verdict)
        if whole is None and content.startswith("{") and content.endswith("}"):
            return None  # broken JSON: which of its texts are quotations is unknown
        choice = self._choice(content)
        if choice is not None:
            return choice
        return self._read_statements(reply)

    def _read_statements(self, reply: str) -> str | None:
        statements = self._statements(reply)
        unquoted = [statement for statement in statements if not statement.is_quoted]
        labels = [statement for statement in statements if statement.strength == STRONG]
        if len(labels) == 1:
            [label] = labels
            remainder = reply[: label.start] + reply[label.end :]
            if not remainder.strip(_EDGES + "()[]{}$"):
                unquoted = labels  # a reply that consists only of labels is not a quotation
        if not unquoted:
            # A response must not remove its own bad verdict by quoting it (docs/decisions/quoted_verdicts.md).
            quoted = {statement.choice for statement in statements}
            return self._lowest if self._lowest and quoted == {self._lowest} else None
        own_words = _blanked(reply, [(quote.start, quote.end) for quote in statements if quote.is_quoted])
        return self._decide(unquoted, reply, own_words)

    def _own_statement(self, piece: str) -> str | None:
        """Return the verdict of a piece that is followed by another, if more than its first word states a verdict."""
        statements = self._statements(piece, is_last=False)
        unquoted = [statement.choice for statement in statements if not statement.is_quoted]
        stated = [choice for choice in unquoted if choice is not None]
        return stated[-1] if stated else self._choice(piece)

    def _decide(self, statements: Sequence[_Statement], reply: str, own_words: str) -> str | None:
        """Return the choice of the last statement; None if the statement has no choice, is disputed or is taken back."""
        # The last statement or none: an earlier verdict may be one that the judge has taken back in words that cannot be
        # read. A failed rollout is visible, a wrong reward is not (docs/decisions/quoted_verdicts.md).
        last = max(statements, key=lambda statement: (statement.start, statement.strength))
        if last.choice is None:
            return None
        for statement in statements:
            if statement.choice in (None, last.choice):
                continue
            between = own_words[statement.end : last.start]
            is_near = len(between.split(maxsplit=_NEAR_WORDS)) <= _NEAR_WORDS and not re.search(r"[.!?。\n]", between)
            if last.strength == WEAK or is_near:
                return None
        is_taken_back = self._is_taken_back(own_words[last.end :], reply[last.end :], last.choice)
        return None if is_taken_back else last.choice

    def _statements(self, reply: str, is_last: bool = True) -> list[_Statement]:
        statements: list[_Statement] = []
        objects = list(objects_in(reply))
        for verdict_object in objects:
            if verdict_object.verdict is not None:
                statements.append(
                    self._in_object(reply, verdict_object.start, verdict_object.end, verdict_object.verdict)
                )
        text = _blanked(reply, [(verdict_object.start, verdict_object.end) for verdict_object in objects])
        text = without_quotations(text, lambda part: self._choice(part) is not None)
        statements += self._labeled(text, reply)
        statements += self._marked(text)
        text = _blanked(text, [(statement.start, statement.end) for statement in statements])
        return [*statements, *self._alone(text, reply, is_last)]

    def _in_object(self, reply: str, start: int, end: int, verdict: str) -> _Statement:
        """Return the statement of a JSON object, which counts at the beginning or the end of a reply or alone on its lines."""
        text_before, text_after = reply[:start], reply[end:]
        line_before = text_before.rpartition("\n")[2]
        line_after = text_after.partition("\n")[0]
        is_alone = not line_before.strip(_EDGES) and not line_after.strip(_EDGES)
        is_edge = not re.sub(r"```\w*", "", text_before).strip(_EDGES) or not text_after.strip(_EDGES)
        choice = self._choice(verdict) if is_alone or is_edge else None
        return _Statement(start, end, choice, STRONG, self._judged.contains(reply[start:end]))

    def _labeled(self, text: str, reply: str) -> Iterator[_Statement]:
        """Yield the statements of labels, such as "Verdict: no"; `text` is the reply with blanks in place of quotations."""
        # Prepared once: a line may have thousands of labels, and each of them is compared with the rest of the line.
        squeezed_reply, choices = SqueezedText(reply), self._named_choices(text)
        for label in _LABELED.finditer(text):
            line_end = text.find("\n", label.end())
            line_end = len(text) if line_end < 0 else line_end
            # The reply decides: a line with a quotation is blank in `text`, but it is not empty.
            is_empty = not reply[label.end() : line_end].strip(" \t*_`#")
            if is_empty:  # the value is on the next line that is not empty
                following = re.compile(r"\s*[^\n]*").match(text, line_end)
                line_end = following.end() if following else line_end
            value = self._value.match(text, label.end(), line_end)
            end = line_end
            choice: str | None = None
            if value:
                end = value.end()
                choice = self._value_of(value, text[end : min(line_end, end + _MAX_NEAR_CHARS)])
            strength = STRONG if label["strong"] else WEAK
            # "Verdict: surely yes" states a verdict that cannot be read; an earlier statement must not count instead.
            is_explicit = label["separator"] in (":", "=") and not is_empty and strength == STRONG
            next_choice = bisect_left(choices, label.end())
            names_choice = next_choice < len(choices) and choices[next_choice] < line_end
            if choice is None and not is_explicit and not names_choice:
                continue
            has_quotation = reply[label.end() : end] != text[label.end() : end]
            if has_quotation or self._is_part(text, label):
                choice = None
            quoted = self._judged.contains_squeezed(squeezed_reply.part(label.start(), end))
            yield _Statement(label.start(), end, choice, strength, quoted)

    def _value_of(self, value: re.Match[str], remainder: str) -> str | None:
        """Return the choice that a value names, unless it is on another scale, in doubt, or next to another choice."""
        top = value["top"]
        if top is not None and int(top) != self._top:
            return None
        choice = self._choice(value["choice"])
        line = _PRONOUN_OR_ARTICLE.sub(" ", remainder.partition("\n")[0])
        near = " ".join(re.findall(r"[\w'’+-]+", line)[:_NEAR_WORDS])
        named = [self._choice(word[0]) for word in self._word.finditer(near)]
        is_disputed = not {None, choice}.issuperset(named)
        return None if is_disputed else choice

    def _is_part(self, text: str, label: re.Match[str]) -> bool:
        """Return whether the word before a label qualifies it."""
        text_before = text[text.rfind("\n", 0, label.start()) + 1 : label.start()]
        word = _WORD_BEFORE.search(text_before[-_MAX_WORD_CHARS:])
        if word is None or _NO_QUALIFIER.fullmatch(word[1]):
            return False
        is_marker = label[0].strip(" :=*").isupper() and not word[1].isupper()  # "After that GRADE: C"
        return not is_marker

    def _marked(self, text: str) -> Iterator[_Statement]:
        for pattern, strength in ((_TAGGED, STRONG), (_BRACKETED, STRONG), (_BOXED, WEAK)):
            for mark in pattern.finditer(text):
                choice = self._choice(mark[mark.lastindex or 0])
                if choice is not None or pattern is not _BOXED:  # a box may have a number of the explanation
                    is_quoted = self._judged.contains_marks(mark[0])
                    yield _Statement(mark.start(), mark.end(), choice, strength, is_quoted)

    def _alone(self, text: str, reply: str, is_last: bool) -> Iterator[_Statement]:
        """Yield choices alone on the first or last line, or as its first or last sentence."""
        lines: list[re.Match[str]] = []
        for line in re.finditer(r"[^\n]+", reply):
            if self._judged.has_line(line[0]):
                yield _Statement(line.start(), line.end(), self._choice(line[0]), WEAK, is_quoted=True)
            elif text[line.start() : line.end()].strip(_EDGES).strip():  # some control characters count as spaces
                lines.append(line)
        if not lines:
            return
        first, last = lines[0], lines[-1]
        first_sentence = (first.start(), first.start() + len(sentences(first[0])[0]))
        last_sentence = (last.end() - len(sentences(last[0])[-1]), last.end())
        for start, end in (first.span(), first_sentence, last.span(), last_sentence):
            part = text[start:end]
            is_line = (start, end) in (first.span(), last.span())
            choice = self._choice(part) if part == reply[start:end] else None
            if choice is not None and (is_line or (len(choice) > 1 and not choice.isdigit())):  # "1." begins an item
                yield _Statement(start, end, choice, WEAK, self._judged.has_line(part))
        if is_last and len(lines) == 1 and len(sentences(first[0])) == 1:
            yield from self._first_word(text[first.start() : first.end()], first.start())

    def _first_word(self, line: str, start: int) -> Iterator[_Statement]:
        """Yield the choice that begins a reply of one sentence."""
        value = self._value.match(line)
        if value is None or value["top"] is not None:
            return
        choice = self._value_of(value, line[value.end() :])
        text_after = line[value.end() :].lstrip()[:1]
        allowed = ",;:—–-(!、" if choice and not choice.isdigit() else ",;—("
        is_word = choice is not None and (len(choice) > 1 or choice.isdigit() or choice not in "AIaio")
        if choice is not None and is_word and text_after and text_after in allowed:
            yield _Statement(start, start + value.end(), choice, WEAK)

    def _is_taken_back(self, remainder: str, rest_with_quotations: str, choice: str) -> bool:
        """Return whether text after a statement takes it back, or names another choice after a label or in a few words.

        A hesitating judge may repeat a line of the response as its new verdict; then neither of the two verdicts
        counts.
        """
        remainder = without_quotations(remainder, lambda part: False)
        unquoted = [part for part in sentences(remainder) if not self._judged.has_line(part)]
        joined = "\n".join(unquoted)
        if _TAKEN_BACK.search(joined):
            return True
        if _RETRACTION.search(joined) and self._named_choices(rest_with_quotations, excluded=choice):
            return True
        for part in unquoted:
            label = _ANY_LABEL.search(part)
            if label is not None and self._named_choices(part[label.end() :], excluded=choice):
                return True
            if len(re.findall(r"\w+", part)) <= _MAX_SHORT_WORDS and self._is_at_edge(part, choice):
                return True
        return False

    def _is_at_edge(self, sentence: str, choice: str) -> bool:
        """Return whether a sentence begins or ends with another choice."""
        words = re.findall(r"\w+", _PRONOUN_OR_ARTICLE.sub(" ", sentence))
        named = [self._choice(word) for word in (words[:1] + words[-1:])]
        return not {None, choice}.issuperset(named)

    def _named_choices(self, text: str, excluded: str = "") -> list[int]:
        """Return where a text contains a choice other than `excluded` as a word ("I" and "A" are also ordinary words)."""
        positions: list[int] = []
        for word in self._word.finditer(text):
            choice = self._choice(word[0])
            if choice is not None and choice not in (excluded, "A", "I"):
                positions.append(word.start())
        return positions

    def _choice(self, words: str) -> str | None:
        """Return the choice that a text consists of, with or without marks around it."""
        for _ in range(_MAX_WRAPPERS):
            stripped = words.strip()
            bare = _EDGE_MARKS.sub("", stripped).strip(_EDGES)
            for name in (stripped, bare):
                choice = self._exact.get(name) or self._folded.get(name.casefold())
                if choice is not None:
                    return choice
            wrapped = _WRAPPED.fullmatch(bare)
            if wrapped is None:
                return self._scaled(bare)
            words = next(wrapped[name] for name in "abcdef" if wrapped[name] is not None)
        return None

    def _scaled(self, words: str) -> str | None:
        """Return the choice of "8.0", and of "8/10" or "8 out of 10" if 10 is the highest choice."""
        if re.fullmatch(r"\d+\.0+", words):
            return self._exact.get(words.partition(".")[0])
        value = self._value.fullmatch(words)
        if value is None or value["top"] is None or int(value["top"]) != self._top:
            return None
        return self._exact.get(value["choice"])


def _blanked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text of the same length with spaces in place of some parts, which may overlap.

    Args:
        spans: Start and end of each part.
    """
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        start = max(done, start)
        if start < end:
            pieces += [text[done:start], re.sub(r"[^\n]", " ", text[start:end])]
            done = end
    return "".join([*pieces, text[done:]])


def _unique(pairs: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Return choices by spelling, without spellings that two choices share."""
    listed = list(pairs)
    counts = Counter(name for name, _ in listed)
    return {name: choice for name, choice in listed if counts[name] == 1}


def _without_reasoning(reply: str) -> list[str]:
    """Return the parts of a reply after its reasoning, which think tags separate; empty ones are left out."""
    reply = reply.strip()
    while OPENING_TAG.match(reply):
        closing = CLOSING_TAG.search(reply)
        if closing is None:  # unfinished reasoning
            return []
        reply = reply[closing.end() :].strip()
    tags = list(REASONING_TAG.finditer(without_quotations(reply, lambda part: False)))
    starts = [0, *(tag.end() for tag in tags)]
    ends = [*(tag.start() for tag in tags), len(reply)]
    pieces = [reply[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return [piece for piece in pieces if piece.strip(_EDGES)]


def _unfenced(reply: str) -> str:
    """Return the content of a code fence that spans the whole text; return any other text unchanged."""
    fenced = re.fullmatch(r"```\w*\n(.*)\n\s*```", reply, flags=re.DOTALL)
    return fenced[1].strip() if fenced and "```" not in fenced[1] else reply


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
    counts = Counter(chain.from_iterable(panels))
    by_chance = math.fsum((count / counts.total()) ** 2 for count in counts.values())
    sizes = set(map(len, panels))
    kappa = math.nan
    if len(counts) > 1 and len(sizes) == 1:
        kappa = (share - by_chance) / (1 - by_chance)
    return Agreement(len(panels), share, kappa)
