"""Read the option that a text chooses.

A text chooses an option if it is

1. the option's text, or its letter: "B", "(b)", "option B", in any Markdown, LaTeX or quotation marks;
2. the letter followed by a mark or by the option's text: "B) green", "B - green", "B (green)", "B green", "B: it is green",
   unless more letters with marks follow ("A) no B) yes"), or the text is that of another option;
3. a sentence that names it: "the answer is …" followed by 1. or 2., "I choose B", "B is correct", or, if no other option is
   named, "option B" or "(B)".

An option that is denied ("not B", "B is wrong", "I doubt option B") is not chosen. If a text offers several options ("B
or C", "A-D", "A, maybe B"), none of them is chosen.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence

from rove.rubrics.answers import INVISIBLE, TAKEN_BACK, normalized
from rove.utils.patterns import lazy_pattern

MAX_CHARS = 2_000
"""Characters at the end of a text in which an option is looked for."""
_EDGES = " \t\r\n.,;:!?\"'“”„«»‘’…"
_WORDS_IN_BRACKETS = lazy_pattern(r"[(\[{]([^\d,()\[\]{}]*)[)\]}]")  # with digits or commas they may be an interval
_NOUN = r"(?:option|choice|answer|letter)"
_STATED = lazy_pattern(
    r"\b(?:answer|option|choice|solution)(?:\s+letter)?\s*(?:\s(?:is|should be|would be|must be|will be)\b|[:=])\s*:?\s*"
    r"|\b(?:i(?:'d|'ll| would| will)?\s+)(?:(?:choose|pick|select|say|chose|picked|selected)|go with)\s+",
    re.IGNORECASE,
)
_MENTION = lazy_pattern(
    rf"\b(?i:{_NOUN})\s+\(?([A-Za-z])\b\)?|\(([A-Za-z])\)|(?<![\w'’])([A-Z])"
    r"(?=\s+(?:is|must be|seems|would be)\s+(?:the\s+|my\s+)?(?:\w+ly\s+|most\s+)?(?:correct|right|best|true|only|answer)\b)"
    r"|\b(?i:it\s+(?:is|must be|has to be|should be)|it's|think|maybe|probably|definitely|surely)\s+"
    r"\(?([A-HJ-Z])\)?(?=[.!?,;]|\s*$)"
)
_MARKED_LETTER = lazy_pattern(r"(?<![\w'’])(?:[A-Z][.):](?=\s|$)|[a-z]\)(?=\s)|\([A-Za-z]\))")
_DENIED_BEFORE = lazy_pattern(
    r"(?:\b(?:not|never|neither|nor|cannot|except|rather than|instead of|other than|over|unlike)"
    r"|\b(?:anything|everything|all) but|n't)"
    r"(?:\s+(?:be|is|the|a|an|to|choose|pick|select|correct|right|answer|option|choice))*\s*\(?$",
    re.IGNORECASE,
)
_DENIED_AFTER = lazy_pattern(
    r"\)?[^.;\n]{0,40}?\b(?:is|are|was|seems|can|could|would|must|does)(?:\s+(?:clearly|definitely|also|be))*"
    r"(?:\s+not|n't|not|\s+(?:wrong|incorrect|false|impossible|out|too))\b",
    re.IGNORECASE,
)
_CLAUSE_END = lazy_pattern(
    r"[.,;:!?]|\b(?:but|so|hence|thus|therefore|then|instead|rather|because|since|unlike|over|than)\b", re.IGNORECASE
)
_DENIAL = lazy_pattern(
    r"n't\b|\b(?:not|never|no(?!\s+(?:doubt|question))|neither|nor|cannot|without|except|wrong|incorrect|false|impossible"
    r"|unlikely|less|mistake|trap|makes no sense|rul\w+ out|fails?|(?<!no )doubt\w*|disagree\w*|reject\w*|eliminat\w*|exclud\w*"
    r"|discard\w*|dismiss\w*|avoid\w*|forget|contradict\w*)\b",
    re.IGNORECASE,
)
_AFFIRMED = lazy_pattern(
    r"\)?\s+(?:is|must be|seems|would be)\s+(?:the\s+)?(?:correct|right|best|true)\b", re.IGNORECASE
)
_OTHERS_AFTER = lazy_pattern(
    r"\W*(?:or|and|nor|/|&|,)\W*(?:(?:maybe|perhaps|possibly|option|also|even)\s+)*\(?"
    r"(?:[A-HJ-Z]|I(?!['’]|\s+[a-z])|[a-z]\))(?!\w)"  # "I think" is no option
    r"|\s*[-–]\s*\(?[A-Z]\)?[\s.]*$"
)
_OTHER_BEFORE = lazy_pattern(r"(?:\b(?i:or)|(?<![\w'’])\(?[A-Z]\)?\s*[,/&])\s*$")
_END_OF_STATEMENT = lazy_pattern(
    r"(?<=[\w)])[.;](?:\s|$)|,?\s+(?:not|because|since|as|over|rather than|instead of)\s", re.IGNORECASE
)
_DENIED_STATEMENT = lazy_pattern(
    r"\b(?:not|n't|never)\s+(?:that\s+)?(?:the\s+)?(?:correct\s+|right\s+)?$", re.IGNORECASE
)
_REJECTED = lazy_pattern(r"\W*(?:no|not|wrong|incorrect|false)\b", re.IGNORECASE)


def read_choice(text: str, choices: Sequence[str]) -> str:
    """Return the letter of the option that a text chooses; "" if it chooses none (see the top of this module).

    Args:
        choices: texts of the options A, B, C, …, Z, AA, AB, …; without them only letters count. Options after Z are chosen by
            their texts only.
    """
    if letter := _option_with_text(text, choices):
        return letter
    plain = _plain(text[-MAX_CHARS:])
    letters = string.ascii_uppercase[: len(choices)] if choices else string.ascii_uppercase
    letter = _leading_letter(plain, choices) or _stated_letter(plain, choices) or _mentioned_letter(plain)
    return letter if letter and letter in letters else ""


def _option_with_text(text: str, choices: Sequence[str]) -> str:
    """Return the letter of the only option with a text; marks at its ends count only if two options differ in them."""
    for key in (normalized, _bare):
        stated = key(text)
        texts = [key(choice) for choice in choices]
        if stated and texts.count(stated) == 1:
            alphabets, position = divmod(texts.index(stated), len(string.ascii_uppercase))
            first_letter = string.ascii_uppercase[alphabets - 1] if alphabets else ""
            return first_letter + string.ascii_uppercase[position]
    return ""


def _bare(text: str) -> str:
    text = normalized(text).strip(_EDGES)
    words = _WORDS_IN_BRACKETS.fullmatch(text)
    return normalized((words[1] if words else text).strip(_EDGES))


def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKC", INVISIBLE.sub("", text))
    text = re.sub(r"\\(?:text|math|operatorname|boxed|fbox)\w*\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\(?:[()\[\] ,;:!]|q?quad\b)", " ", text)
    return " ".join(re.sub(r"[*`$#{}]|__", "", text).split())


def _leading_letter(text: str, choices: Sequence[str]) -> str:
    """Return the letter with which a text begins, if the text names this option (rules 1 and 2)."""
    text = re.sub(r"(?<=[\"'“”«»’])[.,;:!?]+$", "", text).strip("\"'“”„«»‘’ ")
    named = re.match(rf"(?:the\s+)?(?:{_NOUN})\s+(?=\(?[A-Za-z]\b)", text, re.IGNORECASE)
    text = text[named.end() :] if named else text
    match = re.match(r"[(\[]?([A-Za-z])(?![\w'’])[)\]]?", text)
    if match is None:
        return ""
    letter, remainder = match[1].upper(), text[match.end() :]
    if not remainder.strip(_EDGES + ")]"):
        return letter
    is_marked = re.match(r"[.:)\]]|\s*[-–—(,:=→]", remainder) or match[0][-1] in ")]"
    after_mark = re.sub(r"^[\s.:)\]–—,=→-]+", "", remainder)
    in_parentheses = re.sub(r"^[\s.:]*\((.*)\)[\s.]*$", r"\1", remainder)
    option = _option_with_text(after_mark, choices) or _option_with_text(in_parentheses, choices)
    if option:  # "A. Paris" chooses nothing if Paris is option B
        return letter if option == letter else ""
    has_others = _MARKED_LETTER.search(remainder) or _OTHERS_AFTER.match(remainder)
    is_denied = _REJECTED.match(remainder) or TAKEN_BACK.search(remainder) or _DENIED_AFTER.match(remainder)
    if not is_marked or has_others or is_denied:
        return ""
    # "a - the first one" may begin with the article.
    is_letter = match[1].isupper() or match[0][-1] in ")]" or remainder[0] in ".:)]"
    return letter if is_letter else ""


def _stated_letter(text: str, choices: Sequence[str]) -> str:
    """Return the letter that follows the last "the answer is" (rule 3)."""
    statements = list(_STATED.finditer(text))
    if not statements:
        return ""
    remainder = text[statements[-1].end() :]
    if re.match(r"not\b", remainder, re.IGNORECASE):  # "not B but C"
        correction = re.search(r"\bbut\s+(?:rather\s+)?", remainder)
        remainder = remainder[correction.end() :] if correction else ""
    text_before = text[: statements[-1].start()]
    if TAKEN_BACK.search(remainder) or _DENIED_STATEMENT.search(text_before):
        return ""
    first = _END_OF_STATEMENT.split(remainder, maxsplit=1)[0]
    if letter := _option_with_text(remainder, choices) or _option_with_text(first, choices):
        return letter
    match = re.match(rf"(?:{_NOUN}\s+)?\(?([A-Za-z])(?![\w'’])", first, re.IGNORECASE)
    if match and match[1].islower() and first[match.end() :].strip(_EDGES + ")"):
        return ""
    return _leading_letter(first, choices)


def _mentioned_letter(text: str) -> str:
    """Return the only letter that a text names as an option and does not deny (rule 3)."""
    letters: set[str] = set()
    for mention in _MENTION.finditer(text):
        text_before = text[: mention.start()][-60:]
        text_after = text[mention.end() :][:80]
        if _OTHERS_AFTER.match(text_after) or _OTHER_BEFORE.search(text_before):
            return ""
        if _is_denied(text_before, text_after):
            continue
        if _REJECTED.match(text_after) or TAKEN_BACK.search(text_after):
            return ""
        letters.add(next(group for group in mention.groups() if group).upper())
    return letters.pop() if len(letters) == 1 else ""


def _is_denied(text_before: str, text_after: str) -> bool:
    if _DENIED_BEFORE.search(text_before) or _DENIAL.search(_CLAUSE_END.split(text_before)[-1]):
        return True
    if _AFFIRMED.match(text_after):
        return False
    return bool(_DENIED_AFTER.match(text_after) or _DENIAL.search(_CLAUSE_END.split(text_after, maxsplit=1)[0]))
