"""Dataset rows as files: JSON lines, CSV, Parquet, or a folder for Hugging Face's `datasets`.

Rows are streamed into a temporary file in the same folder, which is renamed when it is complete.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from rove.core.errors import ConfigError, InfraError, RunError, nearest
from rove.core.messages import text_of
from rove.core.plain import MessageDict, Row, is_list, is_mapping
from rove.core.records import RolloutRecord, Scores
from rove.rollouts.filters import Filter, merged_metrics
from rove.runs.annotations import Annotations
from rove.runs.run import RolloutKey, Run
from rove.utils.files import atomic_replace, remove
from rove.utils.systems import rename

NUM_CHECKED = 100
"""Number of rollouts on which a filter is tried before anything is written."""


def dataset_row(record: RolloutRecord, scores: Scores) -> Row:
    """Return a scored rollout as a dataset row. `metrics` has every function of the rubric; `tools` has the tools of
    the prompt. In completion mode, `prompt` and `completion` are texts.
    """
    return {
        "prompt": _text_or_messages(record, record.prompt),
        "completion": _text_or_messages(record, record.completion),
        "reward": scores.reward,
        "answer": record.answer,
        "info": record.info,
        "metrics": merged_metrics(scores),
        **({"tools": record.tools} if record.tools else {}),
    }


def _text_or_messages(record: RolloutRecord, messages: list[MessageDict]) -> str | list[MessageDict]:
    # A text row: SFT on messages would render the chat template, which the model has not seen in the rollout.
    if record.is_text:
        return "".join(map(text_of, messages))
    return [dict(message) for message in messages]


class RunRows:
    """Rows of the scored rollouts of a run that pass a filter, read from disk each time they are iterated.

    The rollouts come from `Run.finished()`. Memory grows by a few numbers per rollout, never by texts.

    Args:
        passes: Whether to include a rollout. Default: include all scored rollouts.
        tags: Include only rollouts with at least one of these tags (see `rove view --annotate`). Default: all.
    """

    def __init__(
        self, run: Run, passes: Filter | None = None, tags: Collection[str] = (), not_tags: Collection[str] = ()
    ):
        run.config()
        self._run = run
        self._passes = passes
        lines, _ = run.ledger()
        self._line_numbers = {line.number for line in lines.values() if not line.failed}
        self.scored = len(self._line_numbers)
        """Number of scored rollouts, before the filter."""
        self.failed = len(lines) - self.scored
        """Number of failed rollouts."""
        if not self._line_numbers:
            raise RunError(f"{run.path} has no scored rollouts ({self.failed} failed)")
        if tags or not_tags:
            tags_of = _tags(run, (*tags, *not_tags))
            for key, line in lines.items():
                rollout_tags = tags_of.get(key, set())
                is_tagged = not tags or not rollout_tags.isdisjoint(tags)
                if not is_tagged or not rollout_tags.isdisjoint(not_tags):
                    self._line_numbers.discard(line.number)
        if passes is not None:
            for record in islice(self._records(), NUM_CHECKED):
                passes(record)

    def _records(self) -> Iterator[RolloutRecord]:
        return (record for number, record in enumerate(self._run.rollouts()) if number in self._line_numbers)

    def __iter__(self) -> Iterator[Row]:
        for record in self._records():
            if record.scores is not None and (self._passes is None or self._passes(record)):
                yield {
                    **dataset_row(record, record.scores),
                    "example_id": record.example_id,
                    "rollout_index": record.rollout_index,
                    "stop_condition": record.stop_condition,
                }


def _tags(run: Run, requested: Collection[str]) -> dict[RolloutKey, set[str]]:
    """Return the tags of every tagged rollout; raise an error if a requested tag is unknown."""
    annotations = Annotations(run.path)
    annotations.check()
    run_tags = annotations.tags()
    for tag in requested:
        if tag not in run_tags:
            raise ConfigError(f"no rollout of {run.path} is tagged '{tag}'; {nearest(tag, run_tags)}")
    return {key: set(annotation.tags) for key, annotation in annotations.rollouts.items()}


ROW_GROUP = 1000
"""Maximum number of rows in memory while a file with columns is written."""
COLUMNS = (
    "prompt",
    "completion",
    "answer",
    "reward",
    "info",
    "metrics",
    "example_id",
    "rollout_index",
    "stop_condition",
)


def write_rows(rows: Iterable[Row], path: Path, form: str = "jsonl") -> int:
    """Write rows to a file or a folder, which appears only when complete; return the number of rows.

    In the forms parquet and hf-dir, `info` (and `tools`, if there are any) is JSON text, because a column has one type but the
    info of every row may have another structure; rove reads it back as a dict. CSV has a column `metrics.NAME` for each reward
    function and metric. In CSV, a prompt or completion of one text message is stored as this text, and any other as JSON
    messages.

    Args:
        path: The file or folder, which is replaced if it exists; a folder is replaced only if it holds a dataset.
    """
    check_target(path, form)
    if next(iter(rows), None) is None:
        raise ConfigError("no rollout passes the filter; nothing was written")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _draft(path) as draft:
        return FORMATS[form].write(rows, draft)


def check_target(path: Path, form: str) -> None:
    """Raise an error before any work if the target could not be written."""
    if FORMATS[form].needs_datasets:
        _hf("datasets", form)
    if form != "hf-dir" and path.is_dir():
        raise ConfigError(f"{path} is a folder; give a file for --to {form}")
    if form == "hf-dir" and path.exists() and not (path / "dataset_info.json").exists():
        raise ConfigError(f"{path} is there already and no dataset; give another folder")


def push(path: Path, name: str) -> str:
    """Upload a dataset folder to the Hugging Face Hub, where a new dataset is private; return its address."""
    check_name(name)
    datasets = _hf("datasets", "hf-dir")
    try:
        datasets.load_from_disk(str(path)).push_to_hub(name, private=True)
    except Exception as error:  # the network, the Hub and their libraries raise many types
        raise InfraError(f"{path} is written, but could not be uploaded as {name}: {error}") from error
    return f"https://huggingface.co/datasets/{name}"


def check_name(name: str) -> None:
    """Refuse a name that a dataset on the Hub cannot have."""
    owner, _, dataset = name.partition("/")
    has_valid_characters = all(character.isalnum() or character in "-_." for character in owner + dataset)
    if not owner or not dataset or not has_valid_characters:
        raise ConfigError(f"--push takes OWNER/NAME, got '{name}'")


@contextmanager
def _draft(path: Path) -> Generator[Path]:
    """Yield a temporary path that becomes `path` if the block succeeds and is deleted if it fails."""
    draft = path.with_name(f".{path.name}.draft")
    remove(draft)
    try:
        yield draft
        if draft.is_dir():
            atomic_replace(draft, path)
        else:
            rename(draft, path)
    finally:
        remove(draft)


def _hf(module: str, form: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--to {form} needs '{error.name}': install rove's hf extra (pip install 'rove[hf]'), or use --to jsonl"
        ) from error


# One writer per form: rows and the path of a draft → the number of rows.


def _write_jsonl(rows: Iterable[Row], draft: Path) -> int:
    count = 0
    with draft.open("wb") as file:
        for row in rows:
            file.write(msgspec.json.encode(_columns(row)) + b"\n")
            count += 1
    return count


def _write_csv(rows: Iterable[Row], draft: Path) -> int:
    metrics: dict[str, None] = {}  # in the order in which they appear
    has_tools = False
    for row in rows:  # a separate pass, because the head comes first and no pass holds all rows
        metrics.update(dict.fromkeys(row["metrics"]))
        has_tools = has_tools or "tools" in row
    head = [name for name in COLUMNS if name != "metrics"]
    head += [f"metrics.{name}" for name in metrics]
    if has_tools:
        head.append("tools")
    count = 0
    with draft.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.DictWriter(file, head)
        writer.writeheader()
        for row in rows:
            cells = {name: _cell(value) for name, value in _columns(row).items() if name != "metrics"}
            for name, value in row["metrics"].items():
                cells[f"metrics.{name}"] = value
            writer.writerow(cells)
            count += 1
    return count


def _cell(value: object) -> object:
    """Return a value that fits into one cell: texts and numbers unchanged, one text message as its text, other values as JSON."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if is_list(value) and len(value) == 1 and isinstance(value[0], dict):
        message = cast(MessageDict, value[0])
        if message.keys() == {"role", "content"} and isinstance(message["content"], str):
            return message["content"]
    return msgspec.json.encode(value).decode()


def _write_parquet(rows: Iterable[Row], draft: Path) -> int:
    parquet = _hf("pyarrow.parquet", "parquet")
    schema = _schema(rows)
    with parquet.ParquetWriter(draft, schema) as writer:
        return _write_tables(rows, schema, writer)


def _write_folder(rows: Iterable[Row], draft: Path) -> int:
    pyarrow, datasets = _hf("pyarrow", "hf-dir"), _hf("datasets", "hf-dir")
    schema = _schema(rows)
    stream = draft.with_name(f"{draft.name}.arrow")
    silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    remove(stream)
    try:
        with pyarrow.OSFile(str(stream), "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
            count = _write_tables(rows, schema, writer)
        datasets.Dataset.from_file(str(stream)).save_to_disk(str(draft))
    finally:
        remove(stream)
        if not silent:
            datasets.enable_progress_bars()
    return count


class Format(NamedTuple):
    """A format of datasets."""

    write: Callable[[Iterable[Row], Path], int]
    suffix: str
    """File name suffix; "" for a folder."""
    load: str
    """Python expression that loads a file or folder; {} stands for its path."""
    needs_datasets: bool = False
    """Whether the package `datasets` is needed to write this format."""


FORMATS = {
    "jsonl": Format(_write_jsonl, ".jsonl", 'datasets.load_dataset("json", data_files="{}")'),
    "csv": Format(_write_csv, ".csv", 'datasets.load_dataset("csv", data_files="{}")'),
    "parquet": Format(_write_parquet, ".parquet", 'datasets.load_dataset("parquet", data_files="{}")', True),
    "hf-dir": Format(_write_folder, "", 'datasets.load_from_disk("{}")', True),
}
"""The formats of `rove export --to`. A new format needs only an entry here and its `write` function."""


# Columns: one type for all rows, found by reading all of them once


def _write_tables(rows: Iterable[Row], schema: Any, writer: Any) -> int:
    pyarrow = _hf("pyarrow", "parquet")
    count = 0
    for batch in _batches(rows):
        writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
        count += len(batch)
    return count


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    source = (_flat(row) for row in rows)
    while batch := list(islice(source, ROW_GROUP)):
        yield batch


def _flat(row: Row) -> Row:
    """Return a row whose columns have the same types in all rows."""
    flat = _columns(row)
    for name in ("prompt", "completion"):
        if not isinstance(row[name], str):
            flat[name] = [_with_text(message) for message in row[name]]
    for name in ("info", "tools"):
        if name in row:
            flat[name] = msgspec.json.encode(row[name]).decode()
    return flat


def _columns(row: Row) -> Row:
    tools = {"tools": row["tools"]} if "tools" in row else {}
    return {name: row[name] for name in COLUMNS} | tools


def _with_text(message: dict[str, object]) -> dict[str, object]:
    content = message.get("content")
    if is_list(content):
        if any(is_mapping(part) and part.get("type") != "text" for part in content):
            raise ConfigError(
                "a message has images or other parts that are not text, which columns cannot hold: use --to jsonl"
            )
        return {**message, "content": text_of(message)}
    return message


def _schema(rows: Iterable[Row]) -> Any:
    pyarrow = _hf("pyarrow", "parquet")
    fixed = {"answer": pyarrow.string(), "stop_condition": pyarrow.string()}
    schema = pyarrow.schema([])
    try:
        for batch in _batches(rows):
            batch_schema = pyarrow.Table.from_pylist(batch).schema
            schema = pyarrow.unify_schemas([schema, batch_schema], promote_options="permissive")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError) as error:
        raise ConfigError(f"these rows do not fit into columns ({error}): use --to jsonl") from error
    fields: list[Any] = []
    for field in schema:
        if pyarrow.types.is_struct(field.type) and not field.type.num_fields:
            continue  # Parquet cannot hold a struct without fields, which `metrics` is if no row has any
        fields.append(field.with_type(fixed.get(field.name, field.type)))
    return pyarrow.schema(fields)
