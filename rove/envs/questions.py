"""A file of questions and answers as an environment, with a choice of scorers."""

from __future__ import annotations

import functools
import json
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rove.core.config import import_function
from rove.core.digest import digest_files
from rove.core.errors import ConfigError, Error, nearest
from rove.core.messages import Messages, as_messages
from rove.core.plain import Row, is_sequence
from rove.core.state import State
from rove.envs.multi_turn import SingleTurnEnv
from rove.envs.question_files import FileRow, read_rows
from rove.envs.question_split import Split, check_held_out, split_by_content
from rove.rubrics import JudgeRubric, MathRubric, Rubric, scorers
from rove.rubrics.parser import MaybeThinkParser
from rove.rubrics.scorers import ACCEPTED_ANSWERS, AcceptedAnswersRubric, RegexRubric, accepted_answers

QUESTION_COLUMNS = ("question", "prompt")
"""Default columns of the question."""
MAX_SHOWN_CHARS = 100
"""Maximum characters of a value in an error message."""

TAGGED = "Give your final answer as <answer>your answer</answer>."
BOXED = "Give your final answer in \\boxed{}."
LETTER = "Choose one of the options. Give its letter as <answer>letter</answer>."

SCORERS = {
    "exact": (TAGGED, "the answer equals the right one, ignoring case and white space"),
    "numeric": (TAGGED, "the last number in the answer equals the right one"),
    "regex": (TAGGED, "the regular expression in the answer column is found in the answer"),
    "choice": (LETTER, "the letter or the text of the right option"),
    "math": (BOXED, "the answer is mathematically equal to the right one (math-verify)"),
    "judge": ("", "a model judges whether the reply gives the right answer"),
}
"""Scorer: (default system prompt, description)."""


class QuestionsEnv(SingleTurnEnv):
    """A file of questions, each answered once and scored against the answer in its row.

    Scripted policies: `teacher` gives the right answer; `no_answer` says that it does not know the answer.

    Args:
        scorer: "exact", "numeric", "regex", "choice", "math" or "judge", see `rove.rubrics.scorers`; or your own reward function
            as package.module:function.
        question_column: column of the question. Default: "question", else "prompt".
        answer_column: column of the answer; if it is a list, any of its answers is accepted.
        choices_column: for "choice": column of the options, a list or its JSON.
        tolerance: for "numeric": largest difference, relative to the right number; 0 is equal only to 0.
        judge_model: for "judge": a name in endpoints.toml, or a model at `OPENAI_BASE_URL`.
        system_prompt: "" for none. Default: a prompt that requests the format of the scorer.
        held_out: fraction of the different questions that are only for evaluation (0 to below 1). A hash of the question
            chooses them, so rows with equal questions are in the same part. With 0, all rows are used for training and
            evaluation.

    Example:
        env = rove.load_environment("questions.csv", scorer="numeric")
    """

    def __init__(
        self,
        path: str | Path,
        scorer: str = "exact",
        question_column: str | None = None,
        answer_column: str = "answer",
        choices_column: str = "choices",
        tolerance: float = 1e-6,
        judge_model: str = "gpt-4.1-nano",
        system_prompt: str | None = None,
        held_out: float = 0.0,
    ):
        if scorer not in SCORERS and ":" not in scorer:
            expected = f"expected one of {', '.join(SCORERS)}, or package.module:function"
            raise ConfigError(f"scorer is '{scorer}'; {nearest(scorer, SCORERS)}; {expected}")
        check_held_out(held_out)
        rows = read_rows(Path(path))
        if not rows:
            raise ConfigError(f"{path} has no rows; expected questions and answers")
        question = question_column or next((name for name in QUESTION_COLUMNS if name in rows[0].values), "question")
        choices = choices_column if scorer == "choice" else None
        examples = [_example(path, row, question, answer_column, choices, scorer) for row in rows]
        self.split: Split = split_by_content(examples, held_out)
        rubric = _rubric(scorer, tolerance, judge_model)
        if scorer != "judge" and any(ACCEPTED_ANSWERS in example for example in examples):
            rubric = AcceptedAnswersRubric(rubric)
        if system_prompt is None:
            system_prompt, _ = SCORERS.get(scorer, (TAGGED, ""))
        super().__init__(
            dataset=[examples[index] for index in self.split.training],
            eval_dataset=[examples[index] for index in self.split.held_out] or None,
            rubric=rubric,
            system_prompt=system_prompt,
            policies={"teacher": functools.partial(_teacher, scorer), "no_answer": _no_answer},
        )
        self.scorer = scorer
        self.rows = len(examples)
        self.source = digest_files([Path(path)])

    @property
    def description(self) -> str:
        """A one-line description of the questions and the scorer."""
        _, scoring = SCORERS.get(self.scorer, ("", "your reward function"))
        held_out = f" held out of {self.rows:,}" if self.eval_dataset is not None else ""
        repeated = f" ({self.split.repeated:,} rows of the file repeat a question)" if self.split.repeated else ""
        return f"{self.count_examples():,} questions{held_out}{repeated}, scorer '{self.scorer}': {scoring}"

    @property
    def split_description(self) -> str:
        """Description of how the rows are split into training rows and held-out rows."""
        return self.split.description


def _rubric(scorer: str, tolerance: float, judge_model: str) -> Rubric:
    if scorer == "math":
        return MathRubric()
    if scorer == "regex":
        rubric: Rubric = RegexRubric()
    elif scorer == "judge":
        judge = JudgeRubric(MaybeThinkParser(), judge_model=judge_model)
        judge.add_reward_func(judge.verdict)
        return judge
    elif ":" in scorer:
        rubric = Rubric()
        rubric.add_reward_func(import_function("scorer", scorer))
    else:
        func: Callable[..., float] = getattr(scorers, scorer)
        if scorer == "numeric":
            func = functools.partial(scorers.numeric, tolerance=tolerance)
        rubric = Rubric()
        rubric.add_reward_func(func, name=scorer)
    rubric.add_metric(scorers.has_answer_tag, name="format")
    return rubric


def _teacher(scorer: str, messages: Messages, state: State, rng: object) -> str:
    answer = (accepted_answers(state) or [state["answer"]])[0]
    return f"\\boxed{{{answer}}}" if scorer == "math" else f"<answer>{answer}</answer>"


def _no_answer(messages: Messages, state: State, rng: object) -> str:
    return "I do not know."


def _example(
    path: str | Path, row: FileRow, question_column: str, answer_column: str, choices_column: str | None, scorer: str
) -> Row:
    """Return a dataset row with question, answer as text, and all other columns in `info`.

    Several accepted answers are also listed under `accepted_answers`.
    """
    columns = [column for column in (question_column, answer_column, choices_column) if column is not None]
    for name in columns:
        if _is_blank(row.values.get(name)):
            advice = "fill it in, or remove the row"
            if name not in row.values:
                names = ", ".join(repr(str(column)) for column in row.values)
                advice = f"its columns: {names}. Name other columns in env_args (-a): "
                advice += '{"question_column": "…", "answer_column": "…"}'
            raise ConfigError(f"{path}, {row.position} has no value in the column '{name}'; {advice}")
    question = _question(path, row, question_column)
    answers = _answers(path, row, answer_column)
    example: Row = {"info": {name: value for name, value in row.values.items() if name not in columns}}
    if choices_column is not None:
        options = _options(path, row, choices_column)
        letters = string.ascii_uppercase[: len(options)]
        listed = [f"{letter}) {text}" for letter, text in zip(letters, options, strict=True)]
        if not isinstance(question, str):
            raise ConfigError(f"{path}, {row.position}: the question is a list; with choices, expected a text")
        return {
            "question": "\n".join([question, "", *listed]),
            "answer": _right_letter(path, row, answer_column, options),
            "choices": options,
            **example,
        }
    example["prompt" if isinstance(question, list) else "question"] = question
    example["answer"] = answers[0]
    if len(answers) > 1:
        example[ACCEPTED_ANSWERS] = answers
        if scorer == "judge":  # one request with all of them
            example["answer"] = "any of these: " + "; ".join(answers)
    if scorer == "numeric":
        for answer in answers:
            _check_number(path, row, answer)
    return example


_SPACED_GROUPS = re.compile(r"(?<!\d)\d+(?: \d+)+")


def _is_blank(value: object) -> bool:
    """Return whether a value is missing: null, an empty or blank text, an empty list, or not a number."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (is_sequence(value) and not value)


def _question(path: str | Path, row: FileRow, column: str) -> str | list[Any]:
    """Return a question as text, or as a list of messages."""
    value = row.values[column]
    if is_sequence(value):
        try:
            messages = list(as_messages(value))
        except (Error, TypeError) as error:
            raise ConfigError(
                f"{path}, {row.position}: the column '{column}' is not a list of messages: {error}"
            ) from error
        _check_contents(path, row, column, messages)
        return messages
    return _text(path, row, column, value, "a text or a list of messages")


def _check_contents(path: str | Path, row: FileRow, column: str, messages: Messages) -> None:
    """Raise ConfigError if a message's content is neither text nor a list of parts; only assistant messages may lack content."""
    for message in messages:
        content = message.get("content")
        if content is None and message["role"] == "assistant":
            continue
        if not isinstance(content, (str, list, tuple)):
            raise ConfigError(
                f"{path}, {row.position}: the column '{column}' has a message with the role '{message['role']}' and the content "
                f"{_short(content)}; expected a text or a list of parts"
            )


def _answers(path: str | Path, row: FileRow, column: str) -> list[str]:
    """Return the distinct accepted answers of a row, in order."""
    value = row.values[column]
    listed = list(value) if is_sequence(value) else [value]
    if any(_is_blank(answer) for answer in listed):
        raise ConfigError(f"{path}, {row.position}: the answers are {value!r}; expected no empty answer among them")
    expected = "a text, a number, or a list of accepted answers"
    return list(dict.fromkeys(_text(path, row, column, answer, expected) for answer in listed))


def _text(path: str | Path, row: FileRow, column: str, value: object, expected: str) -> str:
    """Return a value as text; JSON's true and false keep their spelling."""
    if isinstance(value, bool):
        return str(value).lower()
    cell: object = value  # the name whose type the check does not narrow to unknown items
    if isinstance(value, (dict, list, tuple, bytes)):
        kind = type(cell).__name__
        raise ConfigError(
            f"{path}, {row.position}: the column '{column}' is a {kind}: {_short(cell)}; expected {expected}"
        )
    return str(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def _check_number(path: str | Path, row: FileRow, answer: str) -> None:
    """Raise ConfigError if an answer is not clearly one number: "1 234" may be one number or two."""
    if groups := _SPACED_GROUPS.search(answer.rpartition("####")[2]):
        joined = groups[0].replace(" ", "")
        raise ConfigError(
            f"{path}, {row.position}: the answer {answer!r} may be one number or several; write {joined} if it is one"
        )
    try:
        scorers.right_number(answer)
    except Error as error:
        raise ConfigError(f"{path}, {row.position}: {error}") from None


def _options(path: str | Path, row: FileRow, column: str) -> list[str]:
    """Return the texts of the options, which are given as a list or as its JSON text."""
    value = row.values[column]
    try:
        options = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        options = None
    most = len(string.ascii_uppercase)
    if not is_sequence(options) or not 2 <= len(options) <= most or any(map(_is_blank, options)):
        raise ConfigError(
            f"{path}, {row.position}: the choices are {_short(value)}; expected a list of 2 to {most} options, "
            'or its JSON such as ["red", "green"]'
        )
    texts = [_text(path, row, column, option, "a list of texts or numbers") for option in options]
    normalized = [unicodedata.normalize("NFC", " ".join(text.split())) for text in texts]
    repeated = [text for text, count in Counter(normalized).items() if count > 1]
    if repeated:
        raise ConfigError(
            f"{path}, {row.position}: the choices contain {repeated[0]!r} twice; expected different options"
        )
    return texts


def _right_letter(path: str | Path, row: FileRow, column: str, options: Sequence[str]) -> str:
    value = row.values[column]
    if is_sequence(value):
        value = list(value)
        if len(value) != 1:
            raise ConfigError(
                f"{path}, {row.position}: the answers are {_short(value)}; the scorer 'choice' expects one right option per "
                "question"
            )
        value = value[0]
    if isinstance(value, bool):
        value = str(value).lower()
    is_ambiguous = isinstance(value, int) and str(value) in options and options.index(str(value)) != value
    if is_ambiguous:
        raise ConfigError(
            f"{path}, {row.position}: the answer {value} is the text of one option and the position of another; give the letter "
            'of the right option, or its text in quotation marks: "' + str(value) + '"'
        )
    try:
        return scorers.choice_letter(value, options)
    except ValueError as error:
        raise ConfigError(f"{path}, {row.position}: {error}") from None
