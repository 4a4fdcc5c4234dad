"""Training rows and evaluation rows from files, for environments of libraries whose rows have a column `prompt`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rove.core.errors import ConfigError
from rove.core.plain import Row
from rove.envs.question_files import FileRow, read_rows
from rove.envs.question_split import Split, check_held_out, split_by_content

HELD_OUT = 0.1
"""Default fraction of the different prompts that are only for evaluation."""


class RowFiles(NamedTuple):
    """Training rows and evaluation rows."""

    training: list[Row]
    evaluation: list[Row] | None
    """None if the training rows are also for evaluation."""
    split: Split


def read_row_files(
    data: str, eval_data: str | None, held_out: float, convert: Callable[[str, FileRow], Row]
) -> RowFiles:
    """Read rows of a file, and evaluation rows from another file or a part of it.

    Args:
        data, eval_data: .jsonl, .csv or .parquet.
        held_out: Fraction of the different prompts in `data` that are only for evaluation, if there is no `eval_data`.
        convert: Checks a row of a file, whose path is the first argument, and returns a row of the dataset.

    Raises:
        ConfigError: A file has no rows, or `held_out` is out of range.
    """
    check_held_out(held_out)
    rows = _read(data, convert)
    if eval_data is not None:
        return RowFiles(rows, _read(eval_data, convert), split_by_content(_questions(rows), 0.0))
    split = split_by_content(_questions(rows), held_out)
    evaluation = [rows[index] for index in split.held_out]
    return RowFiles([rows[index] for index in split.training], evaluation or None, split)


def _read(path: str, convert: Callable[[str, FileRow], Row]) -> list[Row]:
    rows = [convert(path, row) for row in read_rows(Path(path))]
    if not rows:
        raise ConfigError(f"{path} has no rows; expected rows with the column 'prompt'")
    return rows


def _questions(rows: Sequence[Row]) -> list[Row]:
    """Return the prompts as the split reads them: a text is a question, and messages are a prompt."""
    return [{"question" if isinstance(row["prompt"], str) else "prompt": row["prompt"]} for row in rows]
