"""Reward functions for questions with a known answer.

Each compares the answer in a reply with the right one and returns 1.0 or 0.0. They work in any rubric:

    rubric = rove.Rubric([scorers.numeric], [1.0])

`read_answer` defines where the answer is in a reply. `rove.rubrics.numbers` and `rove.rubrics.choices` define how
numbers and choices are read from the answer.
"""

from __future__ import annotations

import copy
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rove.core.checks import check_values
from rove.core.errors import Error, WorkerError
from rove.core.ranges import PositiveInt, Seconds
from rove.core.records import Scores
from rove.core.state import State
from rove.rubrics.answers import normalized, read_answer, tagged_answer
from rove.rubrics.choices import read_choice
from rove.rubrics.numbers import count_numbers, read_number
from rove.rubrics.parser import Completion, MaybeThinkParser, extract_boxed_answer
from rove.rubrics.rubric import Rubric, RubricGroup
from rove.workers import Workers

REGEX_MEMORY_BYTES = 256 << 20
MAX_REGEX_WORKERS = 2
_TEXT = MaybeThinkParser()


def has_answer_tag(completion: Completion) -> float:
    """Return 1.0 if the last assistant message has an `<answer>` or a `\\boxed{…}`, else 0.0."""
    text = str(_TEXT.parse_answer(completion) or "")
    return float(tagged_answer(text) is not None or extract_boxed_answer(text, strict=True) != "")


def exact(completion: Completion, answer: str) -> float:
    """Return 1.0 if the answer is the right one, ignoring case, white space, formatting and Unicode form.

    Formatting is Markdown or a LaTeX command around the whole answer, and invisible characters. An empty right answer gives 0.
    """
    right = normalized(answer)
    return float(right != "" and normalized(read_answer(completion)) == right)


def numeric(completion: Completion, answer: str, tolerance: float = 1e-6) -> float:
    """Return 1.0 if the number that the answer gives is the right one.

    It is the last number of the answer, if it stands alone: `rove.rubrics.numbers` states the rule. "1,234.5", "$1234.50"
    and "1.2345 × 10^3" are the same number. A comma separates thousands, never decimals.

    Args:
        answer: text with one number; of "reasoning #### 42", the part after the last "####" counts.
        tolerance: largest difference, relative to the right number; 0 is equal only to 0.

    Raises:
        Error: the right answer has no number, or several.
    """
    right = right_number(answer)
    number = read_number(read_answer(completion))
    return float(number is not None and abs(number - right) <= tolerance * abs(right))


def right_number(answer: str) -> float:
    """Return the number of the right answer to a question that `numeric` scores."""
    text = answer.rpartition("####")[2]
    number = read_number(text)
    count = count_numbers(text)
    if number is None or count > 1:
        numbers = f"{count} numbers" if count > 1 else "no number"
        raise Error(
            f"the right answer {answer!r} has {numbers}; the scorer 'numeric' expects one. Use the scorer 'math' for fractions "
            "and expressions, 'exact' for text"
        )
    return number


def choice(completion: Completion, answer: str, choices: Sequence[str] = ()) -> float:
    """Return 1.0 if the reply chooses the right option, by its letter or by its text.

    `rove.rubrics.choices` states which texts choose an option.

    Args:
        answer: letter of the right option.
        choices: texts of the options A, B, C, …; without them only letters count.
    """
    right = answer.strip().upper()
    return float(right != "" and read_choice(read_answer(completion), choices) == right)


def choice_letter(answer: object, choices: Sequence[str]) -> str:
    """Return the letter of the right option.

    Args:
        answer: its letter, its text, or its position as an integer (0 = A).
    """
    letters = string.ascii_uppercase[: len(choices)]
    if isinstance(answer, int) and 0 <= answer < len(choices):
        return letters[answer]
    text = normalized(str(answer))
    texts = [normalized(choice) for choice in choices]
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
            Error: the pattern is empty (it would reward every reply), or not a regular expression.
            WorkerError: the worker process could not be started.
        """
        await self._workers.ensure_started()
        text = read_answer(completion)[: self.max_chars]
        async with self._workers.acquire() as worker:
            try:
                matches = await worker.call("search", self.timeout_seconds, pattern=answer, text=text)
            except WorkerError:  # it took too long, or too much memory
                return 0.0
        if matches is None or not answer.strip():
            raise Error(f"the right answer {answer!r} is not a regular expression; correct it, or use another scorer")
        return float(matches)

    async def teardown(self) -> None:
        """End the worker processes."""
        await self._workers.aclose()


ACCEPTED_ANSWERS = "accepted_answers"
"""Column of a dataset row with its accepted answers, if it has several."""


def accepted_answers(state: State) -> Sequence[str]:
    """Return the accepted answers of a rollout's dataset row; empty if it has only one."""
    row: Any = state.get("input") or {}
    return row.get(ACCEPTED_ANSWERS) or []


class AcceptedAnswersRubric(RubricGroup):
    """Scores a reply against each accepted answer of its row, and keeps the scores with the highest reward.

    Reward functions see one answer at a time as `answer`. Functions over a whole group see only the first answer.
    """

    def __init__(self, rubric: Rubric):
        super().__init__([rubric])

    async def score_rollout(self, state: State) -> Scores:
        """Score one finished rollout; see `Rubric.score_rollout`."""
        answers = accepted_answers(state)
        if not answers:
            return await super().score_rollout(state)
        scores: list[Scores] = []
        for answer in answers:
            view = copy.copy(state)
            view["answer"] = answer
            scores.append(await super().score_rollout(view))
        return max(scores, key=lambda scored: scored.reward)
