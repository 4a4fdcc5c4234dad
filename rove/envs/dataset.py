"""Read dataset rows by position, from any source, as late as possible."""

from __future__ import annotations

import codecs
import hashlib
import json
import random
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec

from rove.core.errors import ConfigError, short_repr
from rove.core.messages import Messages, SystemMessage, UserMessage, as_messages
from rove.core.plain import UNREADABLE, JsonMapping, Row, is_list, is_mapping

DatasetSource = Any
"""A list of dicts, a Hugging Face Dataset, a .jsonl path, a generator, or a zero-argument function returning one of these."""


_END = object()
MAX_REPEATS = 2000
"""Number of draws in a row without a new row after which `draw_rows` ends."""


def _encode_as_text(value: object) -> str:
    """Return the text of a value without a JSON form. A text with a memory address is refused, because it would differ in every
    process.
    """
    if isinstance(value, (set, frozenset)):  # the order of its elements differs between processes
        return str(sorted(map(repr, cast("set[object]", value))))
    text = str(value)
    if re.search(r" at 0x[0-9a-f]+", text):
        raise ConfigError(f"a dataset row holds {text}, which cannot be hashed; expected JSON values")
    return text


_KEY_ENCODER = json.JSONEncoder(sort_keys=True, default=_encode_as_text)


class Rows:
    """Dataset rows by position.

    A source that is a function is called at first use, a generator is advanced only as far as needed, and for a file, only line
    offsets are kept in memory.
    """

    def __init__(self, source: DatasetSource):
        self._source = source
        self._rows: Sequence[Mapping[str, Any]] | None = None
        self._pending: Iterator[JsonMapping] | None = None
        self._failure: Exception | None = None

    def first(self, n: int = -1) -> Iterator[JsonMapping]:
        """Yield the first `n` rows (all if n < 0)."""
        if self._rows is None:
            self._open()
        assert self._rows is not None
        position = 0
        while n < 0 or position < n:
            if position >= len(self._rows) and not self._pull():
                return
            yield self._rows[position]
            position += 1

    def count(self, n: int = -1) -> int | None:
        """Return the number of rows that `first` yields; None for all rows of an unfinished generator."""
        if self._rows is None:
            self._open()
        assert self._rows is not None
        if self._pending is not None and n < 0:
            return None
        while self._pending is not None and len(self._rows) < n and self._pull():
            pass
        return len(self._rows) if n < 0 else min(n, len(self._rows))

    def _pull(self) -> bool:
        """Read one more row from the generator; return False at its end."""
        if self._failure is not None:  # after an exception, a generator looks exhausted
            raise self._failure
        if self._pending is None:
            return False
        try:
            row = next(self._pending, _END)
        except Exception as error:
            self._failure = error
            raise
        if row is _END:
            self._pending = None
            return False
        assert isinstance(self._rows, list)
        self._rows.append(_check_row(row, len(self._rows)))
        return True

    def _open(self) -> None:
        source: Any = self._source() if callable(self._source) else self._source
        kind = type(source).__name__
        if isinstance(source, (str, Path)):
            source = JsonLines(Path(source))
        if isinstance(source, Iterable) and not isinstance(source, Sized):
            self._rows, self._pending = [], iter(cast(Iterable[JsonMapping], source))
        elif isinstance(source, JsonLines) or _is_hugging_face(source):  # read on access, and never copied
            self._rows = cast(Sequence[JsonMapping], source)
        elif isinstance(source, Iterable) and not isinstance(source, Mapping):
            rows = enumerate(cast(Iterable[object], source))
            self._rows = [_check_row(row, position) for position, row in rows]
        else:
            raise ConfigError(
                f"a dataset cannot be a {kind}; give a list of dicts, a Hugging Face Dataset, a .jsonl path, "
                "a generator, or a function that returns one of these"
            )


def _is_hugging_face(source: object) -> bool:
    return hasattr(source, "column_names") and not isinstance(source, Mapping)


def _check_row(row: object, position: int) -> JsonMapping:
    if not is_mapping(row):
        raise ConfigError(f"dataset row {position} is a {type(row).__name__}, expected a dict: {row!r}")
    return row


EXPECTED_ROW = '{"question": "1 + 1", "answer": "2"}'
"""A line of a dataset file, for error messages."""


class JsonLines(Sequence[Row]):
    """The rows of a JSONL file, read on access; only line offsets are kept in memory.

    A byte-order mark at the beginning and empty lines are skipped.
    """

    def __init__(self, path: Path):
        if not path.is_file():
            raise ConfigError(f"dataset file {path} does not exist")
        # Arrays, because lists of Python integers take four times the memory.
        self._starts = array("Q")
        self._lines = array("Q")
        self._file = path.open("rb")
        start = 0
        for number, line in enumerate(self._file, start=1):
            content = line
            if number == 1:
                check_no_utf16(path, line)
                content = line.removeprefix(codecs.BOM_UTF8)
            if content.strip():
                _check_line(path, number, content)  # now, so that a damaged line is reported before any work is lost
                self._starts.append(start + len(line) - len(content))
                self._lines.append(number)
            start += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, position: Any) -> Any:
        index: int = position
        self._file.seek(self._starts[index])
        return msgspec.json.decode(self._file.readline(), type=Row)

    def line_number(self, position: int) -> int:
        """Return the number of the line of a row, counted from 1."""
        return self._lines[position]


def _check_line(path: Path, number: int, content: bytes) -> None:
    try:
        msgspec.json.decode(content, type=Row)
    except UNREADABLE as error:
        try:
            text = content.decode()  # newer decoders of JSON do not name the byte
        except UnicodeDecodeError as encoding_error:
            reject_bytes(path, number, encoding_error)
        raise ConfigError(
            f"{path}, line {number}: {error}; expected a JSON object, such as {EXPECTED_ROW}, but the line is "
            f"{short_repr(text.strip())}"
        ) from error


def check_no_utf16(path: Path, start: bytes) -> None:
    """Raise ConfigError if a file begins with the byte-order mark of UTF-16."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{path} is in UTF-16; expected UTF-8: iconv -f UTF-16 -t UTF-8 {path.name} > FILE")


def reject_bytes(path: Path, line: int, error: UnicodeDecodeError) -> NoReturn:
    """Raise ConfigError for bytes of a line that are not UTF-8."""
    byte = error.object[error.start]
    raise ConfigError(
        f"{path}, line {line}: the byte 0x{byte:02x} is not UTF-8; save the file in the encoding UTF-8, for example: "
        f"iconv -f WINDOWS-1252 -t UTF-8 {path.name} > FILE"
    ) from error


def build_example(
    row: JsonMapping,
    index: int,
    system_prompt: str | None = None,
    few_shot: Sequence[JsonMapping] | None = None,
    message_type: str = "chat",
) -> Row:
    """Convert a row to the input of a rollout: `prompt`, `answer`, `info`, `example_id`, and every other column.

    Args:
        index: position of the row; becomes `example_id`.
        system_prompt: first message, unless the row's prompt has a system message.
        message_type: with "completion" the prompt is the text of the row's `prompt` or `question`.
    """
    example = dict(row)
    name = next((name for name in ("prompt", "question") if row.get(name) is not None), None)
    if name is None:
        raise ConfigError(f"dataset row {index} has neither 'prompt' nor 'question'; its columns are {sorted(row)}")
    content: Any = row[name]
    if message_type == "completion":
        if not isinstance(content, str):
            kind = type(content).__name__
            raise ConfigError(f"dataset row {index}: '{name}' is a {kind}; message_type 'completion' needs a text")
        example["prompt"] = content
    else:
        if name == "question":
            if not (isinstance(content, str) or is_list(content)):
                raise ConfigError(
                    f"dataset row {index}: 'question' is {content!r}; expected a text or a list of content parts"
                )
            content = [*(few_shot or []), UserMessage(content)]
        prompt: Messages = as_messages(content)
        if system_prompt and (not prompt or prompt[0].role != "system"):
            prompt = [SystemMessage(system_prompt), *prompt]
        example["prompt"] = prompt
    answer = row.get("answer")
    example["answer"] = "" if answer is None else str(answer)
    example["info"] = _info(row.get("info"), index)
    example["example_id"] = index
    return example


def _info(value: object, index: int) -> dict[str, object]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value) if value else {}
        except UNREADABLE as error:
            raise ConfigError(f"dataset row {index}: 'info' is text but not JSON: {error}") from error
    if value is None:
        return {}
    if not is_mapping(value):
        raise ConfigError(f"dataset row {index}: 'info' is a {type(value).__name__}, expected a dict or its JSON")
    return dict(value)


def example_key(example: Mapping[str, object]) -> str:
    """Return a hash of the content of an example (prompt, answer, info), independent of its position."""
    content = _KEY_ENCODER.encode([example["prompt"], example["answer"], example["info"]])
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def content_key(row: Mapping[str, object]) -> str:
    """Return a hash of what a row asks: prompt and answer or, without an answer, prompt and `info`.

    With an answer, `info` is left out, because it may hold a number that differs in every row. In games, only `info` differs.
    """
    prompt = row.get("prompt") or row.get("question")
    answer = row.get("answer")
    distinction = row.get("info") if answer in (None, "") else str(answer)
    content = _KEY_ENCODER.encode([prompt, distinction])
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def draw_rows(
    make_row: Callable[[random.Random], Row], count: int, seed: int, *, held_out: bool, share: float = 0.2
) -> list[Row]:
    """Return at most `count` different rows for training, or for evaluation if `held_out`.

    A hash of its content (the question with the answer or, without an answer, with `info`) decides whether a row is held out,
    so no row is used for both, whatever the seeds are. There are fewer rows if 2,000 draws in a row give no new one.

    Args:
        make_row: Function that returns one row, drawn with the random generator that it receives.
        count: Maximum number of rows.
        seed: Seed of the random generator.
        held_out: Whether the rows are for evaluation.
        share: Share of all possible rows that is held out, between 0 and 1.

    Example:
        >>> def make_row(rng):
        ...     number = rng.randrange(100)
        ...     return {"question": f"{number} + 1?", "answer": str(number + 1)}
        >>> training = draw_rows(make_row, 1000, seed=0, held_out=False)
        >>> evaluation = draw_rows(make_row, 1000, seed=7, held_out=True)
        >>> len(training) + len(evaluation)
        100
    """
    if count < 0:  # elsewhere -1 stands for all rows, but here nothing says how many there are
        raise ConfigError(f"count is {count}; expected 0 or more")
    if not 0 < share < 1:
        raise ConfigError(f"share is {share}; expected a number between 0 and 1")
    rng = random.Random(seed)
    rows: dict[str, Row] = {}
    repeats = 0
    while len(rows) < count and repeats < MAX_REPEATS:
        row = make_row(rng)
        key = content_key(row)
        is_held_out = int(key, 16) < share * 16 ** len(key)
        repeats += 1
        if is_held_out == held_out and key not in rows:
            rows[key] = row
            repeats = 0
    return list(rows.values())
