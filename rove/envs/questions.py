"""A file of questions and answers as an environment, with a choice of scorers."""

from __future__ import annotations

import csv
import functools
import importlib
import json
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rove.core.config import import_function
from rove.core.digest import digest_files
from rove.core.errors import ConfigError, Error, nearest
from rove.core.messages import Messages
from rove.core.state import State
from rove.envs.dataset import JsonLines
from rove.envs.multi_turn import SingleTurnEnv
from rove.parsers.parser import MaybeThinkParser
from rove.rubrics import JudgeRubric, MathRubric, Rubric, scorers
from rove.rubrics.scorers import RegexRubric

SUFFIXES = (".jsonl", ".csv", ".parquet")
QUESTION_COLUMNS = ("question", "prompt")
"""Default columns of the question."""

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

    Scripted policies: `teacher` gives the right answer, `no_answer` does not know it.

    Args:
        path: a .jsonl, .csv or .parquet file.
        scorer: "exact", "numeric", "regex", "choice", "math" or "judge", see `rove.rubrics.scorers`; or your own reward function
            as package.module:function.
        question_column: column of the question. Default: "question", else "prompt".
        answer_column: column of the answer.
        choices_column: for "choice": column of the options, a list or its JSON.
        tolerance: for "numeric": largest difference, relative to the right number; 0 is equal only to 0.
        judge_model: for "judge": a name in endpoints.toml, or a model at `OPENAI_BASE_URL`.
        system_prompt: "" for none. Default: a prompt that requests the format of the scorer.
        held_out: fraction of the rows, chosen at random, that are only for evaluation (0 to below 1). With 0, all rows are for
            both.

    Raises:
        ConfigError: the file cannot be read, a column, question or answer is missing, or the scorer is unknown.

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
            known = f"expected one of {', '.join(SCORERS)}, or package.module:function"
            raise ConfigError(f"scorer is '{scorer}'; {nearest(scorer, SCORERS)}; {known}")
        if not 0 <= held_out < 1:
            raise ConfigError(f"held_out is {held_out}; expected a fraction from 0 to below 1")
        rows = list(_read_rows(Path(path)))
        if not rows:
            raise ConfigError(f"{path} has no rows; expected questions and answers")
        question = question_column or next((name for name in QUESTION_COLUMNS if name in rows[0]), "question")
        columns = [question, answer_column, *([choices_column] if scorer == "choice" else [])]
        examples = [_example(path, number, row, columns) for number, row in enumerate(rows, start=1)]
        if scorer == "numeric":
            _check_numbers(path, examples)
        evaluation = _held_out(examples, held_out)
        super().__init__(
            dataset=[row for index, row in enumerate(examples) if index not in evaluation],
            eval_dataset=[examples[index] for index in sorted(evaluation)] if evaluation else None,
            rubric=_rubric(scorer, tolerance, judge_model),
            system_prompt=SCORERS.get(scorer, (TAGGED, ""))[0] if system_prompt is None else system_prompt,
            policies={"teacher": functools.partial(_teacher, scorer), "no_answer": _no_answer},
        )
        self.scorer = scorer
        self.rows = len(examples)
        self.source = digest_files([Path(path)])

    @property
    def description(self) -> str:
        """A one-line description of questions and scorer."""
        what = SCORERS.get(self.scorer, ("", "your reward function"))[1]
        held_out = f" held out of {self.rows:,}" if self.eval_dataset is not None else ""
        return f"{self.count_examples():,} questions{held_out}, scorer '{self.scorer}': {what}"


def is_question_file(env_id: str) -> bool:
    """Return whether an environment name is that of a file of questions."""
    return Path(env_id).suffix.lower() in SUFFIXES


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


def _held_out(rows: Sequence[Any], fraction: float) -> frozenset[int]:
    """Return the positions of the rows that are only for evaluation: at least one, and not all, of two or more."""
    if not fraction or len(rows) < 2:
        return frozenset()
    count = min(len(rows) - 1, max(1, round(fraction * len(rows))))
    return frozenset(random.Random(0).sample(range(len(rows)), count))


def _teacher(scorer: str, messages: Messages, state: State, rng: Any) -> str:
    return f"\\boxed{{{state['answer']}}}" if scorer == "math" else f"<answer>{state['answer']}</answer>"


def _no_answer(messages: Messages, state: State, rng: Any) -> str:
    return "I do not know."


def _example(path: str | Path, number: int, row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return a dataset row with question, answer as text, and all other columns in `info`."""
    for name in columns:
        if row.get(name) in (None, ""):
            found = ", ".join(str(column) for column in row)
            raise ConfigError(
                f"{path}, row {number} has no value in the column '{name}'; its columns: {found}. Name other columns with "
                '-a \'{"question_column": "…", "answer_column": "…"}\''
            )
    question, answer, *choices = (row[name] for name in columns)
    info = {name: value for name, value in row.items() if name not in columns}
    if choices:
        options = _options(path, number, choices[0])
        try:
            answer = scorers.choice_letter(answer, options)
        except ValueError as error:
            raise ConfigError(f"{path}, row {number}: {error}") from None
        listed = zip(string.ascii_uppercase, options, strict=False)
        question = "\n".join([str(question), "", *(f"{letter}) {text}" for letter, text in listed)])
        return {"question": question, "answer": answer, "choices": options, "info": info}
    prompt = {"prompt": question} if isinstance(question, list) else {"question": str(question)}
    return {**prompt, "answer": str(answer), "info": info}


def _check_numbers(path: str | Path, examples: Sequence[Mapping[str, Any]]) -> None:
    for number, example in enumerate(examples, start=1):
        try:
            scorers.right_number(example["answer"])
        except Error as error:
            raise ConfigError(f"{path}, row {number}: {error}") from None


def _options(path: str | Path, number: int, value: Any) -> list[str]:
    try:
        options = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        options = None
    if not isinstance(options, (list, tuple)) or not 2 <= len(options) <= len(string.ascii_uppercase):
        raise ConfigError(
            f"{path}, row {number}: the choices are {value!r}; expected a list of 2 to {len(string.ascii_uppercase)} options, "
            'or its JSON such as ["red", "green"]'
        )
    return [str(option) for option in options]


def check_question_file(path: Path) -> None:
    """Raise ConfigError if there is no such file."""
    if not path.is_file():
        raise ConfigError(f"no file '{path}'; an environment that ends in {', '.join(SUFFIXES)} is a file of questions")


def _read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    check_question_file(path)
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        return iter(JsonLines(path))
    return iter(_read_csv(path) if suffix == ".csv" else _read_parquet(path))


def _read_csv(path: Path) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in (reader := csv.DictReader(file, strict=True)):
                if None in row:
                    raise ConfigError(
                        f"{path}, line {reader.line_num} has more fields than the header {reader.fieldnames}; quote fields "
                        'that contain a comma: "1,234"'
                    )
                rows.append(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a CSV file in UTF-8: {error} (after {len(rows)} rows)") from error
    return rows


def _read_parquet(path: Path) -> list[Mapping[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            f"reading {path} needs the package 'pyarrow', which is not installed: pip install 'rove[hf]', or convert the "
            "file to .jsonl"
        ) from error
    try:
        return parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors or OSErrors
        raise ConfigError(f"{path} is not a Parquet file: {error}") from error
