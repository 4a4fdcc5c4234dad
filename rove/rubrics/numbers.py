"""Read the number that a text gives as its answer.

The last number of a text is its answer, if it stands alone. Signs, currency marks, separators of thousands, percent signs,
units, Markdown, LaTeX, quotation marks and brackets belong to it or do not change it. It does not stand alone

- within another expression: a power, product, sum, root, range, time, date, formula, identifier, ordinal, decimal comma or
  version ("2^10", "square root of 2", "5-6", "12:30", "H2O", "3,14"); a plain fraction counts as the number that it
  equals;
- in a list or next to an alternative ("5, 6", "5 and 6", "5 or 6");
- if the text denies it or takes it back ("not 22", "22 or maybe not").

Then the text has no number, except that a number before a denied one counts: "22, not 23".
"""

from __future__ import annotations

import math
import re
import unicodedata

from rove.rubrics.answers import INVISIBLE, TAKEN_BACK
from rove.utils.patterns import lazy_pattern

MAX_CHARS = 2_000
"""Maximum characters at the end of a text that are read, because denied numbers make reading take quadratic time."""
MAX_DENIAL_CHARS = 60
"""Characters before a number in which it may be denied."""
_PLAIN_NUMBER = (
    r"(?:\d{1,3}(?:[, ]\d{3})+(?!\d|\s*/\s*\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|(?<![\w.])\.\d+(?:[eE][-+]?\d+)?"
)
_NUMBER = lazy_pattern(
    rf"(?P<mantissa>{_PLAIN_NUMBER})\s*[×x]\s*10\s*\^\s*\(?(?P<exponent>[-+]?\d+)\)?"
    r"|(?<![\d.,])(?:(?P<whole>\d+)\s+)?(?P<above>\d+)\s*/\s*(?P<below>\d+)(?!\d|\s*[.,/]\d)"
    rf"|(?P<plain>{_PLAIN_NUMBER})"
)
_SCALES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "万": 1e4, "亿": 1e8}
_SCALE = lazy_pattern(rf"\s*({'|'.join(_SCALES)})", re.IGNORECASE)

_LETTER = "A-Za-zÀ-ɏͰ-ϿЀ-ӿ"
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_UNIT_WITH_PARTS = (
    r"(?:hours?|hrs?|h|minutes?|mins?|feet|foot|ft|pounds?|lbs?|dollars?|euros?|years?|months?|weeks?|days?)"
)

_SIGN = lazy_pattern(r"([-+])(\s*)$")
_OPERAND_BEFORE_SIGN = lazy_pattern(rf"(?:[\w)\]%°!]|[\d)\]%°!]\s+|(?:^|[^{_LETTER}])[b-zB-HJ-Z]\s+)$")
_JOINED_BEFORE = lazy_pattern(
    rf"[{_LETTER}_\d]$"  # an identifier: H2O, GPT4
    r"|\d[.,:]$"  # a version, a decimal comma, a time
    rf"|[{_LETTER}\d)_]\($"  # an argument: f(5)
    r"|[×÷*/^+±≤≥≠√]\s*\(?$"
    r"|\d\s*[x<>]\s*$|\d\s+:\s+$"
    rf"|(?<![{_LETTER}])(?i:(?:sin|cos|tan|log|ln|lg|exp|sqrt|twice|(?:root|square|cube|factorial|reciprocal|half)\s+of)\s+$)"
    r"|[\w)]\s*[<>]\s*=?\s*$"  # an inequality; a ">" at the beginning of a line is a quotation in Markdown
)
_JOINED_AFTER = lazy_pattern(
    rf"(?:st|nd|rd|th)(?![{_LETTER}])"  # an ordinal
    r"|(?:sin|cos|tan|log|ln|pi|sqrt|exp)(?![a-z])|\s+(?:squared|cubed|factorial)\b"
    r"|[A-Zbceikn-rt-z](?<![CFJLNVW])(?![A-Za-z])"  # a variable or a factor: 5x, 5k; "5m" and "5 kg" have a unit
    r"|[Α-ΡΣ-Ψα-λν-ω√(_]"
    r"|\s*[\^×÷*+±<>≤≥≠]|\s*/\s*(?:[\d(]|[xyzn]\b)|\s*-\s*(?:\d|[A-Za-z]\b)|\s+[xyz]\b|\s+:\s+\d"
)
_LINK = lazy_pattern(
    r"\s+|\s*[?;/&]\s*|\s*\.{2,}\s*|\s*-\s*|—"
    r"|\s*%?\s*,?\s*(?:and|or|to|through|until|till|by|in|of|out of|over|per|times|plus|minus|vs\.?|versus"
    r"|multiplied by|divided by|to the power of|mod|modulo)\s+(?:the\s+)?",
    re.IGNORECASE,
)
_COMMA = lazy_pattern(r"\s*,\s*")
_ALTERNATIVE = lazy_pattern(
    r"\b(?:or|nor|maybe|perhaps|possibly|alternatively|either)\b[^.,;:!?\n]{0,30}$", re.IGNORECASE
)
_LISTED = lazy_pattern(r"\s*[\w ]{0,20},?\s+and\s+", re.IGNORECASE)
_END = lazy_pattern(r"[\s)\]}.!\"]*$")
_DENIED = lazy_pattern(
    r"(?:\b(?:not|never|neither|nor|no longer|cannot|rather than|instead of|other than|except|(?:anything|everything|all) but)"
    r"|n't)\s+(?:(?:be|equals?|equal to|is|exactly|just|simply|about|the (?:number|answer)|[a-z]\s*=)\s*)*$",
    re.IGNORECASE,
)
_ASIDE = lazy_pattern(
    r"(?<=\d)(?P<unit>\s*%?(?:\s+(?!(?:is|are|was|be|equals)\b)[^\W\d]+){0,2})\s+\([^()]*\)(?=\W*$)", re.IGNORECASE
)


def read_number(text: str) -> float | None:
    """Return the number that a text gives as its answer; None if it gives none (see the top of this module)."""
    # The last number decides: to search for the right one anywhere would reward lists (docs/decisions/answers.md).
    plain = _without_aside(_plain_text(text[-MAX_CHARS:]))
    denied: list[float | None] = []
    while True:
        numbers = list(_NUMBER.finditer(plain))
        if not numbers:
            return None
        text_before = plain[: numbers[-1].start()]
        unsigned = _unsigned(text_before)
        denial = _DENIED.search(unsigned, max(0, len(unsigned) - MAX_DENIAL_CHARS))
        if denial is None:
            break
        denied.append(_value(numbers[-1], text_before, ""))  # "22, not 23": the number before it counts
        plain = plain[: denial.start()]
    value = _stand_alone(plain, numbers)
    return None if value in denied else value


def count_numbers(text: str) -> int:
    """Return the number of numbers in a text. A fraction counts as two; scientific notation counts as one."""
    numbers = list(_NUMBER.finditer(_plain_text(text)))
    return len(numbers) + sum(number["above"] is not None for number in numbers)


def _stand_alone(text: str, numbers: list[re.Match[str]]) -> float | None:
    number = numbers[-1]
    text_before, text_after = text[: number.start()], text[number.end() :]
    unsigned = _unsigned(text_before)
    is_operation = unsigned != text_before and _OPERAND_BEFORE_SIGN.search(unsigned[-20:]) is not None
    if is_operation or _JOINED_BEFORE.search(unsigned[-20:]) or _JOINED_AFTER.match(text_after):
        return None
    if len(numbers) > 1 and _is_linked(text, numbers, len(unsigned), text_after):
        return None
    if TAKEN_BACK.search(text_after):
        return None
    return _value(number, text_before, text_after)


def _is_linked(text: str, numbers: list[re.Match[str]], start: int, text_after: str) -> bool:
    """Return whether the number before the last one belongs to the same range, list, date or quantity."""
    previous = numbers[-2]
    between = text[previous.end() : start]
    is_alternative = _ALTERNATIVE.search(between[-80:]) is not None
    if is_alternative and _value(previous, "", between) == _value(numbers[-1], "", text_after):
        return False  # the same in other words: "180 rings, or 180 years"
    if is_alternative or _LINK.fullmatch(between):
        return True
    if _COMMA.fullmatch(between) and _END.match(text_after):
        return True
    if len(numbers) > 2 and _LISTED.fullmatch(between):
        gap = text[numbers[-3].end() : previous.start()]
        return re.fullmatch(r"\s*[\w ]{0,20},\s*", gap) is not None
    before_previous = text[: previous.start()][-12:]
    month_before = re.search(rf"\b{_MONTH}\s+$", before_previous, re.IGNORECASE)
    if re.fullmatch(rf"(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH},?\s+", between, re.IGNORECASE):
        return True
    if month_before and re.fullmatch(r"(?:st|nd|rd|th)?,?\s+", between):
        return True
    has_parts = re.fullmatch(rf"\s*{_UNIT_WITH_PARTS},?\s+(?:and\s+)?", between, re.IGNORECASE)
    return has_parts is not None and re.match(rf"\s*[{_LETTER}]+[\s.!]*$", text_after) is not None


def _unsigned(text_before: str) -> str:
    """Return the text before a number, without the number's sign; "--" counts as a dash."""
    sign = _SIGN.search(text_before)
    if sign is None:
        return text_before
    unsigned = text_before[: sign.start()]
    return text_before if unsigned.endswith("-") else unsigned


def _value(number: re.Match[str], text_before: str, text_after: str) -> float | None:
    if number["above"] is not None:
        below = float(number["below"])
        if below == 0:
            return None
        value = float(number["above"]) / below + float(number["whole"] or 0)
    elif number["mantissa"] is not None:
        mantissa = re.sub("[, ]", "", number["mantissa"])
        value = float(f"{mantissa}e{number['exponent']}")
    else:
        value = float(re.sub("[, ]", "", number["plain"]))
    if scale := _SCALE.match(text_after):
        value *= _SCALES[scale[1].lower()]
    if not math.isfinite(value):
        return None
    sign = text_before.removeprefix(_unsigned(text_before))
    return -value if sign.startswith("-") else value


def _without_aside(text: str) -> str:
    """Return a text without a parenthesis at its end that repeats a number in other words: "0.25 (or 25%)"."""
    aside = _ASIDE.search(text)
    return text[: aside.end("unit")] if aside else text


_SUPERSCRIPTS = {ord(mark): plain for mark, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True)}
_MARKS: list[tuple[str, str]] = [
    (r"[\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d]", "-"),
    (r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2 "),
    (r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2 "),
    (r"\\sqrt\s*\[[^\]]*\]", "√"),
    (r"\\(?:text|math|operatorname|boxed|fbox)\w*\s*", ""),
    (r"\{,\}", ","),
    (r"\\!", ""),
    (r"\\(?:[,;: ()\[\]]|q?quad\b|left\b|right\b|displaystyle\b)|~", " "),
    (r"\^\s*\{?\s*(?:\\circ|∘)\s*\}?|\\degree(?![A-Za-z])", "°"),
    (r"\\(?:times|cdot)(?![A-Za-z])|[·⋅✕]", "×"),
    (r"\\div(?![A-Za-z])", "÷"),
    (r"\\pm(?![A-Za-z])", "±"),
    (r"\\(?:approx|simeq|sim)(?![A-Za-z])", "≈"),
    (r"\\leq?(?:slant)?(?![A-Za-z])", "≤"),
    (r"\\geq?(?:slant)?(?![A-Za-z])", "≥"),
    (r"\\neq?(?![A-Za-z])", "≠"),
    (r"\\(?:to|rightarrow|Rightarrow|implies|longrightarrow)(?![A-Za-z])|[-=]>|[→⇒]", "="),
    (r"\\pi(?![A-Za-z])", "π"),
    (r"\\([$%&#_])", r"\1"),
    (r"\\[A-Za-z]+", "√"),  # any other command makes a formula
    (r"[{]", "("),
    (r"[}]", ")"),
    (r"([-+])\s*\(\s*(?=[\d.,]+\s*\))", r"\1"),  # -(5)
    (r"</?[A-Za-z][^<>]*>", " "),
    (rf"(?<![{_LETTER}])(?:US|AU|CA|NZ|HK|SG|NT|[ACRS])?\$|[€£¥₹₩₽₺₫₪฿₴₦₱¢]", ""),
    (r"\b(?:USD|EUR|GBP|JPY|CNY|RMB|INR|CHF|AUD|CAD|Rs\.?)\s*(?=[-+]?\s?\d)", ""),
    (r"(?<=\d)['’_](?=\d{3}(?!\d))", ","),
    (r"(?<=[\w)])\*\*(?=[\d(-])|\s\*\*\s", "^"),
    (r"(?<=[\d)])\*(?=[\d(])|(?<=\S)[ \t]\*[ \t]", " × "),
    (r"\*|`|__|#", ""),
    (r"[‘’]", "'"),
    (r"[\"“”„«»]|(?<![A-Za-z])'|'(?![A-Za-z])", " "),
    (rf"(?<=[{_LETTER}])\s*\^\s*\(?-?\d+\)?", ""),  # the exponent of a unit: m^2
    (r"(?i:\b(?:minus|negative)\s+)\(?\s*(?=\.?\d)", " - "),
]
_MARK_PATTERNS = [(lazy_pattern(pattern), replacement) for pattern, replacement in _MARKS]


def _plain_text(text: str) -> str:
    """Return a text without Markdown, LaTeX, quotation marks and currency marks, and with one form of each sign."""
    text = INVISIBLE.sub("", text)
    # Before NFKC, which would make 10² the number 102.
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda power: "^" + power[0].translate(_SUPERSCRIPTS), text)
    text = re.sub(r"[¼½¾⅐-⅞]", lambda fraction: f" {fraction[0]}", text)
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/")
    for pattern, replacement in _MARK_PATTERNS:
        text = pattern.sub(replacement, text)
    return text.strip()
