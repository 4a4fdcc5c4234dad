"""Reward functions for questions with a known answer.

Each compares the answer in a reply with the right one and returns 1.0 or 0.0. They work in any rubric:

    rubric = rove.Rubric([scorers.numeric], [1.0])

`read_answer` defines where in a reply the answer is.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Sequence
from pathlib import Path

from rove.core.checks import check_values
from rove.core.errors import Error, WorkerError
from rove.core.ranges import PositiveInt, Seconds
from rove.parsers.parser import Completion, MaybeThinkParser, XMLParser, extract_boxed_answer
from rove.rubrics.rubric import Rubric
from rove.workers import Workers

REGEX_MEMORY_BYTES = 256 << 20
MAX_REGEX_WORKERS = 2
_TAGGED = XMLParser(["answer"])
_TEXT = MaybeThinkParser()
_LABEL = re.compile(r"(?:final )?answer\s*:\s*", re.IGNORECASE)
_THOUSANDS = "[,_'\u00a0\u2009\u202f]"
_NUMBER = re.compile(
    rf"(?:(?<![\w)])[-+])?(?:\d{{1,3}}(?:{_THOUSANDS}\d{{3}})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
    r"|(?:(?<![\w)])[-+])?\.\d+"
)
_LETTER = re.compile(r"\(?([A-Za-z])(?:\)|[.:](?=\s|$)|$)")
_NAMED_LETTER = re.compile(r"\b(?i:answer|option|choice)(?i:\s+is)?\s*:?\s*(?:\(([A-Za-z])\)|([A-Z])\b)")


def read_answer(completion: Completion) -> str:
    """Return the answer in the last assistant message, without surrounding white space.

    It is the content of the last `<answer>…</answer>`; without one, of the last `\\boxed{…}`; without one, the last line
    that is not empty, without a leading "Answer:". A leading `<think>…</think>` is ignored. "" if there is no answer.
    """
    text = str(_TEXT.parse_answer(completion) or "")
    tagged = _TAGGED.parse_answer(text)
    if tagged is not None:
        return str(tagged).strip()
    boxed = extract_boxed_answer(text, strict=True).strip()
    if boxed:
        return boxed
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    label = _LABEL.match(lines[-1])
    return lines[-1][label.end() :] if label else lines[-1]


def has_answer_tag(completion: Completion) -> float:
    """Return 1.0 if the last assistant message has an `<answer>` or a `\\boxed{…}`, else 0.0."""
    text = str(_TEXT.parse_answer(completion) or "")
    return float(_TAGGED.parse_answer(text) is not None or extract_boxed_answer(text, strict=True) != "")


def exact(completion: Completion, answer: str) -> float:
    """Return 1.0 if the answer is the right one, ignoring case and runs of white space."""
    return float(_normalized(read_answer(completion)) == _normalized(answer))


def numeric(completion: Completion, answer: str, tolerance: float = 1e-6) -> float:
    """Return 1.0 if the last number in the answer is the right one.

    "1,234.5", "$1234.50" and "1.2345e3" are the same number. A comma separates thousands, never decimals.

    Args:
        answer: text with one number; of "reasoning #### 42", the part after the last "####" counts.
        tolerance: largest difference, relative to the right number (absolute if that is below 1).

    Raises:
        Error: the right answer has no number, or several.
    """
    right = right_number(answer)
    given = _last_number(read_answer(completion))
    return float(given is not None and abs(given - right) <= tolerance * max(1.0, abs(right)))


def right_number(answer: str) -> float:
    """Return the number of the right answer to a question that `numeric` scores.

    Raises:
        Error: the answer has no number, or several ("1/2", "2^10").
    """
    text = answer.rpartition("####")[2]
    number = _last_number(text)
    count = len(_NUMBER.findall(text))
    if number is None or count > 1:
        found = f"{count} numbers" if count > 1 else "no number"
        raise Error(
            f"the right answer {answer!r} has {found}; the scorer 'numeric' expects one. Use the scorer 'math' for fractions "
            "and expressions, 'exact' for text"
        )
    return number


def choice(completion: Completion, answer: str, choices: Sequence[str] = ()) -> float:
    """Return 1.0 if the reply chooses the right option, by its letter or by its text.

    Args:
        answer: letter of the right option.
        choices: texts of the options A, B, C, …; without them only letters count.
    """
    return float(_chosen_letter(read_answer(completion), choices) == answer.strip().upper())


def choice_letter(answer: object, choices: Sequence[str]) -> str:
    """Return the letter of the right option.

    Args:
        answer: its letter, its text, or its position as an integer (0 = A).
        choices: texts of the options.

    Raises:
        ValueError: it is none of these.
    """
    letters = string.ascii_uppercase[: len(choices)]
    if isinstance(answer, int) and 0 <= answer < len(choices):
        return letters[answer]
    text = _normalized(str(answer))
    texts = [_normalized(one) for one in choices]
    if texts.count(text) == 1:
        return letters[texts.index(text)]
    if len(text) == 1 and text.upper() in letters:
        return text.upper()
    if text.isascii() and text.isdigit() and int(text) < len(choices):
        return letters[int(text)]
    raise ValueError(f"the answer {answer!r} is none of the choices {list(choices)}, nor a letter or a position of one")


class RegexRubric(Rubric):
    """Rewards replies whose answer matches the regular expression in `answer` (function `regex`, weight 1).

    `re.search` runs in a worker process, because a pattern such as `(a+)+$` can take exponential time. A search that
    takes too long scores 0. Anchor the pattern with `^…$` to match the whole answer.

    Args:
        timeout_seconds: wall time of one search.
        max_chars: characters of the answer that are searched.

    Raises:
        ConfigError: a limit is not above 0.
    """

    def __init__(self, timeout_seconds: float = 2.0, max_chars: int = 20_000):
        super().__init__()
        self.timeout_seconds = timeout_seconds
        self.max_chars = max_chars
        check_values(self, timeout_seconds=Seconds, max_chars=PositiveInt)
        program = Path(__file__).with_name("regex_worker.py")
        self._workers = Workers(program, max_workers=MAX_REGEX_WORKERS, memory_bytes=REGEX_MEMORY_BYTES, name="regex")
        self.add_reward_func(self.regex)

    async def regex(self, completion: Completion, answer: str) -> float:
        """Return 1.0 if the pattern `answer` is found in the answer of the reply, else 0.0.

        Raises:
            Error: the pattern is not a regular expression.
            WorkerError: the worker process could not be started.
        """
        await self._workers.ensure_started()
        text = read_answer(completion)[: self.max_chars]
        async with self._workers.acquire() as worker:
            try:
                found = await worker.call("search", self.timeout_seconds, pattern=answer, text=text)
            except WorkerError:  # it took too long, or too much memory
                return 0.0
        if found is None:
            raise Error(f"the right answer {answer!r} is not a regular expression; correct it, or use another scorer")
        return float(found)

    async def teardown(self) -> None:
        """End the worker processes."""
        await self._workers.aclose()


def _normalized(text: str) -> str:
    return " ".join(text.split()).casefold()


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text.replace("\u2212", "-"))  # the minus sign of typeset text
    value = float(re.sub(_THOUSANDS, "", found[-1])) if found else math.nan
    return value if math.isfinite(value) else None


def _chosen_letter(text: str, choices: Sequence[str]) -> str:
    texts = [_normalized(one) for one in choices]
    if texts.count(_normalized(text)) == 1:
        return string.ascii_uppercase[texts.index(_normalized(text))]
    if found := _LETTER.match(text.strip("*_ ")):
        return found[1].upper()
    named = _NAMED_LETTER.findall(text)
    return "".join(named[-1]).upper() if named else ""
