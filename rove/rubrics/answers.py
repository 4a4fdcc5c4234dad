"""Find the final answer in a reply, and compare texts regardless of their formatting."""

from __future__ import annotations

import re
import unicodedata

from rove.rubrics.parser import Completion, MaybeThinkParser, extract_boxed_answer
from rove.utils.patterns import lazy_pattern

INVISIBLE = lazy_pattern("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
"""Characters that show nothing: zero-width spaces and joiners, marks of direction, byte-order marks."""
TAKEN_BACK = lazy_pattern(
    r"^\W*or\b(?!\s+so\b)"
    r"|\bor\s+(?:maybe|perhaps|possibly|probably|not|no|never|none|neither|else|is|was|another|something)\b"
    r"|(?:^|\b(?:maybe|perhaps|possibly|probably|surely|certainly|definitely|but|rather|or)|[,.;:?!(—-])\s*not\W*$"
    r"|^\W*(?:is|was)(?:\s+not\b|n't\b|\s+(?:wrong|incorrect|false|impossible)\b)"
    r"|\b(?:it|that|this|which|answer)(?:\s?'?s|\s+(?:is|was|can|could|may|might|must|would))\s*"
    r"(?:(?:not|n't)\b(?:\W*$|\s+(?:right|correct|true|it|possible|be|the\b.{0,20}\banswer))|(?:wrong|incorrect|false|impossible)\b)"
    r"|(?:^|[?.!,;:(—-])\s*no\b(?:[,.!)\s—-]*$|[,.!])"
    r"|\b(?:kidding|never\s?mind|scratch that|take (?:it|that) back|wait,? no|on second thought)\b",
    re.IGNORECASE,
)
"""Phrases after an answer that take it back: "or maybe not", "is wrong", "no, wait", "but that is not right"."""
MAX_AFTER_CHARS = 200
"""Characters after a labeled line in which the label's answer may be taken back."""
MAX_WRAPPERS = 8
"""Maximum layers of nested formatting that are removed; each layer takes time in proportion to the text."""
_TEXT = MaybeThinkParser()
_TAG = lazy_pattern(r"<\s*(/?)\s*answer(?:\s[^<>]*)?>", re.IGNORECASE)
_LABEL = lazy_pattern(
    r"[\s#>*_`]*(?:(?:my|the|so|correct|final|right)\s+){0,3}answer[\s*_`]*[:：][*_`]*\s*", re.IGNORECASE
)
_HASHES = lazy_pattern(r"\s*####\s*(?=\W{0,3}\d)")
_ONLY_MARKS = lazy_pattern(r"\s*(?:```\w*|~~~\w*|\$\$|\\\[|\\\]|[-*_=]{3,})\s*")
_WRAPPERS = [(mark, mark) for mark in ("**", "__", "*", "_", "`", "$$", "$")] + [("\\(", "\\)"), ("\\[", "\\]")]
_ELEMENT = lazy_pattern(r"<(?P<name>answer|b|strong|i|em|code)\s*>(?P<inner>[^<>]*)</(?P=name)\s*>", re.IGNORECASE)
_COMMAND = lazy_pattern(
    r"\\(?:boxed|fbox|text|textbf|textit|textrm|texttt|textsf|mathrm|mathbf|mathit|mathsf|operatorname)\s*\{"
)


def read_answer(completion: Completion) -> str:
    """Return the final answer in the last assistant message, without the formatting around it. "" if there is none.

    The answer is the first of these that the response contains after the reasoning (see
    `rove.rubrics.parser.visible_response`):

    1. the content of the last `<answer>…</answer>`, in any case; a `\\boxed{…}` in it counts;
    2. the content of the last `\\boxed{…}`;
    3. the text after the last "Answer:", "Final answer:" or, before a number, "####" at the beginning of a line, unless the
       next words take it back;
    4. the last line that is not empty.
    """
    text = str(_TEXT.parse_answer(completion) or "")
    tagged = tagged_answer(text)
    answer = text if tagged is None else tagged
    boxed = extract_boxed_answer(answer, strict=True).strip()
    if boxed:
        return unwrapped(boxed)
    if tagged is None:
        return unwrapped(_last_line(text))
    answer = unwrapped(answer)
    label = _LABEL.match(answer)
    return unwrapped(answer[label.end() :]) if label else answer


def tagged_answer(text: str) -> str | None:
    """Return the content of the last complete `<answer>…</answer>`; of nested ones, the innermost. None without such a tag."""
    start: int | None = None
    content: str | None = None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            content, start = text[start : tag.start()], None
    return content


def unwrapped(text: str) -> str:
    """Return a text without white space, invisible characters, Markdown and LaTeX commands that enclose all of it."""
    text = INVISIBLE.sub("", text).strip()
    for _ in range(MAX_WRAPPERS):
        inner = (_inner(text) or "").strip()
        if not inner:
            break
        text = inner
    return text


def normalized(text: str) -> str:
    """Return a normalized text: texts that differ only in formatting, case, white space or Unicode form become equal."""
    composed = unicodedata.normalize("NFC", unwrapped(text)).casefold()
    return " ".join(unicodedata.normalize("NFC", composed).split())


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if not _ONLY_MARKS.fullmatch(line)]
    lines = [line for line in lines if line]
    for number, line in reversed(list(enumerate(lines))):
        label = _LABEL.match(line) or _HASHES.match(line)
        if label is None:
            continue
        following = " ".join(lines[number + 1 :])
        if TAKEN_BACK.search(following[:MAX_AFTER_CHARS]):  # a hedge has no answer (docs/decisions/answers.md)
            break
        remainder = line[label.end() :]
        if remainder:
            return _without_closing_marks(line[: label.end()], remainder)
        if number + 1 < len(lines):
            return lines[number + 1]
    return lines[-1] if lines else ""


def _without_closing_marks(label: str, remainder: str) -> str:
    """Return the rest of a labeled line without the closing marks of those that the label opens: "**Answer: Paris**"."""
    for mark in ("**", "__", "*", "_", "`"):
        if label.lstrip(" #>").startswith(mark):
            return remainder if label.count(mark) > 1 else remainder.removesuffix(mark)
    return remainder


def _inner(text: str) -> str | None:
    """Return what a text encloses in one pair of marks or one LaTeX command; None if it does not."""
    for opening, closing in _WRAPPERS:
        is_enclosed = text.startswith(opening) and text.endswith(closing)
        if is_enclosed and len(text) > len(opening) + len(closing):
            inner = text[len(opening) : -len(closing)]
            if opening not in inner and closing not in inner:
                return inner
    command = _COMMAND.match(text)
    if command and text.endswith("}"):
        inner = text[command.end() : -1]
        return inner if _is_balanced(inner) else None
    if element := _ELEMENT.fullmatch(text):
        return element["inner"]
    return None


def _is_balanced(text: str) -> bool:
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0
