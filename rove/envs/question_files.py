"""Read the rows of a file of questions."""

from __future__ import annotations

import csv
import importlib
import io
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rove.core.errors import ConfigError
from rove.envs.dataset import JsonLines, check_no_utf16, reject_bytes

MAX_PARQUET_ROWS = 10_000_000
"""Maximum number of rows of a Parquet file, all of which are read into memory."""
SUFFIXES = (".jsonl", ".ndjson", ".csv", ".parquet")
OTHER_SUFFIXES = {
    ".json": "write one JSON object per line as .jsonl (jq -c '.[]' FILE)",
    ".tsv": "separate the columns by commas and name it .csv",
    ".txt": "write one JSON object per line as .jsonl",
    ".yaml": "write one JSON object per line as .jsonl",
    ".yml": "write one JSON object per line as .jsonl",
    ".xlsx": "save the sheet as CSV in UTF-8",
    ".xls": "save the sheet as CSV in UTF-8",
    ".ods": "save the sheet as CSV in UTF-8",
    ".arrow": "save it as .parquet",
    ".feather": "save it as .parquet",
    ".gz": "unpack it",
    ".zip": "unpack it",
    ".zst": "unpack it",
}
"""Suffixes of other data files, and advice on how to make a file of questions from them."""
OTHER_DELIMITERS = (";", "\t", "|")
MAX_FIELD_CHARS = 2**31 - 1
"""The longest field that the csv module can be told to read on every platform."""


class FileRow(NamedTuple):
    """A row of a file of questions."""

    position: str
    """The row's position, for messages: "row 3 (line 5)"."""
    values: Mapping[str, object]


def is_question_file(env_id: str) -> bool:
    """Return whether an environment name is the name of a data file, such as a file of questions."""
    suffix = Path(env_id).suffix.lower()
    return suffix in SUFFIXES or suffix in OTHER_SUFFIXES


def check_question_file(path: Path) -> None:
    """Raise ConfigError if the file does not exist or has another form."""
    forms = ", ".join(SUFFIXES)
    advice = OTHER_SUFFIXES.get(path.suffix.lower())
    if advice is not None:
        raise ConfigError(f"'{path}' is a {path.suffix} file; a file of questions is one of {forms}: {advice}")
    if path.is_dir():
        raise ConfigError(f"'{path}' is a folder; expected a file of questions, or the name or file of an environment")
    if not path.is_file():
        raise ConfigError(f"no file '{path}'; an environment that ends in {forms} is a file of questions")


def read_rows(path: Path) -> list[FileRow]:
    """Return the rows of a file of questions."""
    check_question_file(path)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return list(_read_csv(path))
    if suffix == ".parquet":
        numbered = enumerate(read_parquet(path), start=1)
        return [FileRow(f"row {number}", values) for number, values in numbered]
    rows = JsonLines(path)
    positions = [_position(index + 1, rows.line_number(index)) for index in range(len(rows))]
    return [FileRow(position, values) for position, values in zip(positions, rows, strict=True)]


def _position(row: int, line: int) -> str:
    return f"row {row} (line {line})"


def _read_csv(path: Path) -> Iterator[FileRow]:
    content = path.read_bytes()
    check_no_utf16(path, content[:2])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reject_bytes(path, content.count(b"\n", 0, error.start) + 1, error)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    header: list[str] | None = None
    unnamed: set[int] = set()
    count = 0
    try:
        with _long_fields():
            for fields in reader:
                if not fields:
                    continue
                if header is None:
                    header = [name.strip() for name in fields]
                    _check_columns(path, f"line {reader.line_num}", header)
                    unnamed = {index for index, name in enumerate(header) if not name}
                    continue
                count += 1
                position = _position(count, reader.line_num)
                yield FileRow(position, _csv_values(path, position, header, fields, unnamed))
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: this is not a CSV file: {error}") from error


def _csv_values(
    path: Path, position: str, header: Sequence[str], fields: Sequence[str], unnamed: set[int]
) -> dict[str, object]:
    """Return the values of a line by column; None for columns that it does not reach."""
    if len(fields) > len(header):
        raise ConfigError(
            f"{path}, {position} has {len(fields)} fields, more fields than the header {list(header)}; quote fields that contain "
            'a comma: "1,234"'
        )
    reached = [index for index in unnamed if index < len(fields)]
    filled = [index for index in reached if fields[index].strip()]
    if filled:
        raise ConfigError(f"{path}, {position}: column {filled[0] + 1} has a value but no name; name it in the header")
    values: dict[str, object] = {name: None for name in header if name}
    for name, field in zip(header, fields, strict=False):
        if name:
            values[name] = field
    return values


def _check_columns(path: Path, position: str, names: Sequence[str]) -> None:
    """Raise ConfigError if two columns have the same name, or another character than a comma separates the columns of a CSV
    file.
    """
    counts = Counter(filter(None, names))  # columns without a name may repeat
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise ConfigError(
            f"{path}, {position}: the column '{repeated[0]}' is there twice; rename or delete one of them"
        )
    if len(names) > 1:
        return
    for delimiter in OTHER_DELIMITERS:
        if any(delimiter in name for name in names):
            raise ConfigError(
                f"{path}, {position}: the header {names[0]!r} has no comma; separate the columns by commas instead of "
                f"{delimiter!r}"
            )


@contextmanager
def _long_fields() -> Generator[None]:
    """Return a context in which the csv module reads fields of any length; its limit of 131,072 characters is global."""
    previous_limit = csv.field_size_limit(MAX_FIELD_CHARS)
    try:
        yield
    finally:
        csv.field_size_limit(previous_limit)


def read_parquet(path: Path) -> list[dict[str, object]]:
    """Return the rows of a Parquet file."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            f"reading {path} needs the package 'pyarrow', which is not installed: pip install 'rove[hf]', or convert the "
            "file to .jsonl"
        ) from error
    try:
        stated = parquet.read_metadata(path)
        groups = [stated.row_group(number).num_rows for number in range(stated.num_row_groups)]
        # pyarrow reserves memory for as many rows as the file claims to have.
        if sum(groups) != stated.num_rows:
            raise ConfigError(
                f"{path} is damaged: it states {stated.num_rows:,} rows, and its parts have {sum(groups):,}"
            )
        if stated.num_rows > MAX_PARQUET_ROWS:
            raise ConfigError(f"{path} has {stated.num_rows:,} rows; expected at most {MAX_PARQUET_ROWS:,}")
        table = parquet.read_table(path)
        names, rows = table.column_names, table.to_pylist()
    except ConfigError:
        raise
    except (OSError, ValueError, TypeError, LookupError, MemoryError, NotImplementedError) as error:  # pyarrow's errors
        raise ConfigError(f"{path} is not a Parquet file: {error}") from error
    _check_columns(path, "schema", names)
    return rows
