"""The run folder: one format for evaluation, data, SFT and RL.

runs/<name>/
  config.toml      the resolved configuration; its identity determines whether a run can be resumed
  versions.json    versions of the software that wrote the run
  rollouts.jsonl   one line per finished rollout, appended and flushed
  metrics.jsonl    one line per training step
  alerts.jsonl     one line per training alert: step, name, message
  limits.jsonl     changes of the concurrency limit of an endpoint, with the reason
  tokens/          <step>.json: the trainer's per-token log-probabilities and entropies of some rollouts of the step
  bad_batch.msgpack  the training sequences at which training stopped because of non-finite steps
  stopped.json     why the run ended early, its progress and the command that resumes it; deleted on resume
  summary.json     written when the run is complete
  annotations.jsonl  users' tags and notes, one line per change (see `rove.runs.annotations`)
  checkpoints/     <step>/ folders and best/: Hugging Face model folders with the trainer's state
  evaluations/     <name>/<step>/ run folders of evaluations during training
  final/           the trained model as a Hugging Face folder

The folder is untrusted input: rove opens only regular files, never through a symbolic link, and checks their content.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import platform
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple, TypeVar

import msgspec
import tomli_w

from rove.core.digest import differences, plain, write_checksums
from rove.core.errors import Error, RunError, end_reason
from rove.core.plain import UNREADABLE, JsonObject
from rove.core.records import Outcome, RolloutRecord, Usage
from rove.runs.files import RunFiles
from rove.runs.provenance import SEAL, is_own, seal
from rove.runs.schema import decoded, decoded_row
from rove.runs.serialization import RolloutKey, decode_outcome, decode_place, decode_record, encode_record
from rove.utils.files import (
    atomic_replace,
    atomic_write,
    check_tree,
    create_folders,
    is_text,
    open_regular,
    read_regular,
    recover_folders,
    remove,
    truncate_torn_line,
)
from rove.utils.systems import can_lock, lock_file

OWNED = (
    "rollouts.jsonl",
    "metrics.jsonl",
    "alerts.jsonl",
    "limits.jsonl",
    "loggers.json",
    "tensorboard",
    "wandb",
    "tokens",
    "vllm",
    "bad_batch.msgpack",
    "stopped.json",
    "summary.json",
    "annotations.jsonl",
    "versions.json",
    "report.html",
    "curves.png",
    "checkpoints",
    "evaluations",
    "final",
    "config.toml",
)
"""Files and folders of a run folder, in the order in which `--overwrite` deletes them: config.toml, which marks a run folder,
comes last, so that an interrupted deletion can be repeated."""

NO_RESULTS = ("config.toml", SEAL.format("config.toml"), "versions.json", ".lock")
"""Files of a run folder that hold no results."""
PACKAGES = ("rove", "torch", "transformers", "tokenizers", "aiohttp", "msgspec")
"""Packages whose versions are recorded."""

T = TypeVar("T")


class Line(NamedTuple):
    """One line of rollouts.jsonl."""

    number: int
    """Position of the line in the file, counted from 0."""
    offset: int
    """Position of the line in bytes."""
    failed: bool


def are_consecutive(lines: Sequence[Line]) -> bool:
    """Return whether lines are adjacent: a group that is scored together is written together, unless it was interrupted."""
    numbers = [line.number for line in lines]
    return not numbers or max(numbers) - min(numbers) + 1 == len(numbers)


class Progress(msgspec.Struct, frozen=True):
    """Progress of a training run at a checkpoint; resuming truncates both files to these sizes."""

    step: Annotated[int, msgspec.Meta(ge=0)]
    rollouts_bytes: Annotated[int, msgspec.Meta(ge=0)]
    metrics_bytes: Annotated[int, msgspec.Meta(ge=0)]
    state: JsonObject
    metrics_digest: str
    """Digest of metrics.jsonl, whose rows have no checksums."""


class Run(RunFiles):
    """A run folder, open for reading and, after `start`, for appending."""

    def __init__(self, path: str | Path):
        super().__init__(path)
        self.resume_command = ""
        """Shell command that resumes the run, written to stopped.json. "" if there is none."""
        self._files: dict[str, BinaryIO] = {}
        self._lock: BinaryIO | None = None
        self._created: list[Path] = []

    def start(
        self, kind: str, config: Mapping[str, object], identity: Mapping[str, object], overwrite: bool = False
    ) -> bool:
        """Open the folder for writing; return whether this resumes a run with the same identity.

        Args:
            kind: "eval", "sft" or "rl".
            config: The resolved configuration, recorded for reference.
            identity: The part of the configuration that must not change on resume.
            overwrite: Delete the existing run first.

        Raises:
            RunError: Another process writes to the folder, or the folder holds a run with another identity or other files.
        """
        if not is_text(str(self.path)):
            raise RunError(
                f"the folder name {str(self.path)!a} is not text in UTF-8; rename the folder, or give another one"
            )
        self._created = create_folders(self.path)
        self._refuse_foreign()
        self._acquire()  # before anything is deleted or written
        if overwrite:
            self._refuse_to_delete_inputs(config)
            for name in OWNED:
                remove(self.path / name)
        self._check_files()
        current: JsonObject = {"kind": kind, "identity": plain(identity), "config": plain(config)}
        is_resumed = self._has_same_identity(kind, current["identity"])
        self.write_bytes("config.toml", tomli_w.dumps(current).encode())
        seal(self.path / "config.toml")
        (self.path / "stopped.json").unlink(missing_ok=True)
        self._add_versions()
        # What a kill of the last process may have left: half a line, and a folder between two renames.
        for name in ("rollouts.jsonl", "metrics.jsonl", "alerts.jsonl"):
            truncate_torn_line(self.path / name)
        for folder in (self.path, self.path / "checkpoints"):
            recover_folders(folder)
        return is_resumed

    def _has_same_identity(self, kind: str, identity: JsonObject) -> bool:
        """Return whether the folder holds a run with this identity; refuse the results of a run with another one."""
        file = self.path / "config.toml"
        if not file.exists():
            return False
        recorded = self.config()
        recorded_identity = {"kind": recorded["kind"], **recorded["identity"]}
        changes = differences(recorded_identity, {"kind": kind, **identity})
        if changes and not self._is_unused():
            self.close()
            advice = self._overwrite_advice(recorded["kind"])
            lines = "\n  ".join(changes)
            if (self.path / SEAL.format(file.name)).exists() and not is_own(file):
                advice = f"{file} is damaged, was edited, or is from another machine: its seal is invalid\n{advice}"
            raise RunError(f"{self.path} holds a different run; differences:\n  {lines}\n{advice}")
        return not changes

    def _refuse_to_delete_inputs(self, config: Mapping[str, object]) -> None:
        """Raise a `RunError` if `overwrite` would delete the model or the data that the new run needs."""
        for name in ("model", "data"):
            value = config.get(name)
            if not isinstance(value, str) or not value:
                continue
            path = Path(value).expanduser()
            if path.exists() and path.resolve().is_relative_to(self.path.resolve()):
                self.close()
                raise RunError(
                    f"the {name} {value} is in the run folder {self.path}, which --overwrite would delete; pass another "
                    "--run-dir (run_dir in Python)"
                )

    def _is_unused(self) -> bool:
        """Return whether the folder holds only settings."""
        results = [self.path / name for name in OWNED if name not in NO_RESULTS]
        return not any(path.is_dir() or (path.exists() and path.stat().st_size) for path in results)

    def _overwrite_advice(self, kind: str) -> str:
        """Return advice on how to start a different run than the one in the folder."""
        with suppress(RunError):  # a damaged line may belong to a scored rollout
            lines = self.ledger()[0].values()
            if kind == "eval" and lines and all(line.failed for line in lines):
                advice = "pass --overwrite to delete it, or another --run-dir (overwrite and run_dir in Python)"
                return f"All rollouts of the old run failed: {advice}"
        return "Pass another --run-dir, or --overwrite to delete the old run (run_dir and overwrite in Python)"

    def _refuse_foreign(self) -> None:
        """Refuse a folder that is neither empty nor a run folder."""
        names = sorted(child.name for child in self.path.iterdir() if not child.name.startswith("."))
        if not names:
            return
        try:
            self.config()
        except RunError as error:
            raise RunError(
                f"{self.path} is not a run folder and not empty (it has {', '.join(names[:4])}); pass another --run-dir "
                f"(run_dir in Python)\n{error}"
            ) from error

    def _check_files(self) -> None:
        """Refuse links, pipes and devices in places where rove writes; other libraries write to the excluded folders."""
        for path in self.path.iterdir():
            name = path.name.removeprefix(".").removesuffix(".draft").removesuffix(".old")
            if name in OWNED and name not in ("tensorboard", "wandb", "vllm"):
                check_tree(path)

    def _add_versions(self) -> None:
        """Record the current software versions, unless they are recorded already."""
        recorded, current = self.versions(), versions_here()
        if current not in recorded:
            self.write_json("versions.json", [*recorded, current])

    def _acquire(self) -> None:
        if not can_lock():
            return
        # The kernel releases the lock when the process ends, however it ends. The file stays: deleting it would be a race.
        self._lock = open_regular(self.path / ".lock", "ab")
        try:
            lock_file(self._lock, wait=False)
        except OSError as error:
            self._lock.close()
            self._lock = None
            raise RunError(
                f"another process is writing to {self.path}; wait for it, or pass another --run-dir (run_dir in Python)"
            ) from error

    def close(self) -> None:
        """Close the files and release the lock."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._lock is not None:
            end_early(self.path, error, self._created, self.resume_command)
        self.close()

    def append_rollout(self, record: RolloutRecord, line: bytes | None = None) -> None:
        """Write a finished rollout. After the call, the rollout is kept even if the process is killed.

        Args:
            record: The rollout.
            line: The encoded line of the rollout, if it exists already.
        """
        self._append("rollouts.jsonl", encode_record(record) if line is None else line)

    def append_metrics(self, metrics: Mapping[str, object]) -> None:
        """Write the metrics of a step."""
        self._append("metrics.jsonl", msgspec.json.encode(metrics))

    def append_alert(self, alert: Mapping[str, object]) -> None:
        """Write an alert, with the `step` at which it started."""
        self._append("alerts.jsonl", msgspec.json.encode(alert))

    def append_limit(self, change: Mapping[str, object]) -> None:
        """Write a change of the concurrency limit."""
        self._append("limits.jsonl", msgspec.json.encode(change))

    def _append(self, name: str, line: bytes) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = open_regular(self.path / name, "ab")
        file.write(line + b"\n")
        file.flush()  # no fsync: only a crash of the machine can lose it now, and rollouts can be repeated

    def rollouts(self) -> Iterator[RolloutRecord]:
        """Yield every rollout, oldest first, except an incomplete last line.

        Raises:
            RunError: A line is damaged.
        """
        return self._decoded_lines(decode_record)

    def outcomes(self) -> Iterator[Outcome]:
        """Yield every rollout without its texts, oldest first; faster than `rollouts`, whose errors it raises, too."""
        return self._decoded_lines(decode_outcome)

    def _decoded_lines(self, decode: Callable[[bytes], T]) -> Iterator[T]:
        for number, line in enumerate(self.lines_of("rollouts.jsonl"), start=1):
            try:
                decoded_line = decode(line)
            except RunError as error:
                raise RunError(f"{self.path / 'rollouts.jsonl'}, line {number}: {error}") from error
            yield decoded_line

    def ledger(self) -> tuple[dict[RolloutKey, Line], Usage]:
        """Return the last line of every rollout, and the token usage of all lines, including failed attempts."""
        lines: dict[RolloutKey, Line] = {}
        usage = Usage()
        offset = 0
        for number, line in enumerate(self.lines_of("rollouts.jsonl")):
            try:
                rollout = decode_place(line)
            except RunError as error:
                file = self.path / "rollouts.jsonl"
                raise RunError(
                    f"{file}, line {number + 1}: {error}\nDelete that line; rove then repeats the rollout"
                ) from error
            usage = usage + rollout.usage
            # A failed rollout is repeated on resume, so the last line of a rollout counts.
            lines[rollout.key] = Line(number, offset, rollout.failed)
            offset += len(line) + 1
        return lines, usage

    def scored_lines(self) -> dict[RolloutKey, Line]:
        """Return the last line of every rollout that was scored."""
        return {key: line for key, line in self.ledger()[0].items() if not line.failed}

    def record_at(self, offset: int) -> RolloutRecord:
        """Return the rollout whose line starts at an offset."""
        return self._decoded_at(offset, decode_record)

    def outcome_at(self, offset: int) -> Outcome:
        """Return the rollout whose line starts at an offset, without its texts."""
        return self._decoded_at(offset, decode_outcome)

    def _decoded_at(self, offset: int, decode: Callable[[bytes], T]) -> T:
        file = self._files.get("reading")
        if file is None:
            file = self._files["reading"] = open_regular(self.path / "rollouts.jsonl")
        file.seek(offset)
        try:
            return decode(file.readline()[:-1])
        except RunError as error:
            raise RunError(f"{self.path / 'rollouts.jsonl'}, the line at byte {offset:,}: {error}") from error

    def finished(self) -> Iterator[RolloutRecord]:
        """Return the last record of every rollout that was scored, oldest first."""
        counted = {line.number for line in self.scored_lines().values()}
        return (record for number, record in enumerate(self.rollouts()) if number in counted)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file of the folder atomically."""
        atomic_write(self.path / name, content)

    def write_json(self, name: str, value: object) -> None:
        """Write a value as indented JSON, atomically."""
        self.write_bytes(name, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")

    def finish(self, summary: Mapping[str, object]) -> None:
        """Write the summary, which marks the run as complete."""
        self.write_json("summary.json", summary)

    def reopen(self) -> None:
        """Delete the summary, which marks the run as incomplete."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def save_checkpoint(self, name: str, write: Callable[[Path], None], progress: Progress | None = None) -> Path:
        """Write checkpoint `name` with checksums, atomically: `write` fills a draft folder, which is then renamed.

        Raises:
            RunError: The folder cannot be written, for example because the disk is full.
        """
        target = self.path / "checkpoints" / name
        with _saving(target) as draft:
            write(draft)
            if progress is not None:
                (draft / "progress.json").write_bytes(msgspec.json.encode(progress))
            write_checksums(draft)  # a resumed run skips a checkpoint that was damaged on disk
        return target

    def save_final(self, write: Callable[[Path], None]) -> Path:
        """Write the trained model with checksums to `final/`, atomically.

        Raises:
            RunError: The folder cannot be written, for example because the disk is full.
        """
        target = self.path / "final"
        with _saving(target) as draft:
            write(draft)
            write_checksums(draft)
        return target

    def progress(self, step: int, state: Mapping[str, object]) -> Progress:
        """Return the current progress of the run."""
        rollouts, metrics = self.path / "rollouts.jsonl", self.path / "metrics.jsonl"
        content = metrics.read_bytes() if metrics.exists() else b""
        return Progress(step, _size_of(rollouts), len(content), dict(state), digest_of_metrics(content))

    def last_checkpoint(self) -> tuple[Path, Progress] | None:
        """Return the newest checkpoint from which training can resume.

        Raises:
            RunError: See `progress_of`.
        """
        for checkpoint in self.checkpoints():
            if (checkpoint / "progress.json").exists():
                return checkpoint, self.progress_of(checkpoint)
        return None

    def checkpoints(self) -> list[Path]:
        """Return the numbered checkpoints, newest first."""
        numbered = [path for path in (self.path / "checkpoints").glob("*") if path.name.isdecimal()]
        return sorted(numbered, key=lambda path: int(path.name), reverse=True)

    def progress_of(self, checkpoint: Path) -> Progress:
        """Return the progress of the run at a checkpoint.

        Raises:
            RunError: progress.json is missing or damaged.
        """
        file = checkpoint / "progress.json"
        if not file.exists():
            raise RunError(f"{file.name} is missing")
        return msgspec.convert(decoded(file, read_regular(file), Progress), Progress)

    def prune_checkpoints(self, keep: int) -> None:
        """Delete all numbered checkpoints except the `keep` newest."""
        for path in self.checkpoints()[keep:]:
            shutil.rmtree(path)

    def cut(self, progress: Progress | None) -> None:
        """Delete the rollouts, metrics, alerts, tokens and evaluations newer than `progress` (None: all of them)."""
        step = progress.step if progress is not None else 0
        alerts = list(self.lines_of("alerts.jsonl"))
        if alerts:
            remaining = [line + b"\n" for line in alerts if _step_of(line) <= step]
            self.write_bytes("alerts.jsonl", b"".join(remaining))
        for path in [*self.path.glob("evaluations/*/*"), *self.path.glob("tokens/*.json")]:
            if path.stem.isdecimal() and int(path.stem) > step:
                remove(path)
        sizes = {"rollouts.jsonl": 0, "metrics.jsonl": 0}
        if progress is not None:
            sizes = {"rollouts.jsonl": progress.rollouts_bytes, "metrics.jsonl": progress.metrics_bytes}
        for name, size in sizes.items():
            self.truncate(name, size)

    def truncate(self, name: str, size: int) -> None:
        """Delete what a file has beyond its first `size` bytes."""
        open_file = self._files.pop(name, None)
        if open_file is not None:
            open_file.close()
        file = self.path / name
        if file.exists() and file.stat().st_size > size:
            os.truncate(file, size)


@contextmanager
def _saving(target: Path) -> Generator[Path]:
    """Yield an empty draft folder, which replaces `target` at the end.

    Raises:
        RunError: Writing the draft failed. Libraries raise many types of errors when a disk is full.
    """
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
    except Error:
        raise
    except Exception as error:
        shutil.rmtree(draft, ignore_errors=True)  # a partial model may fill the disk for the files that follow
        raise RunError(
            f"{target} cannot be saved: {type(error).__name__}: {error}\nMake room on the disk if it is full, then repeat the "
            "command: the run continues after its last checkpoint"
        ) from error
    atomic_replace(draft, target)


def digest_of_metrics(content: bytes) -> str:
    """Return the digest of the rows of metrics.jsonl at a checkpoint."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _step_of(line: bytes) -> float:
    """Return the step of an alert; infinite if the line is damaged."""
    try:
        return decoded_row(line).get("step", math.inf)
    except RunError:
        return math.inf


def versions_here() -> dict[str, str]:
    """Return the versions of Python, the platform and the installed `PACKAGES`, by name."""
    versions = {"python": sys.version.split()[0], "platform": platform.platform()}
    for package in PACKAGES:
        version = _version_of(package)
        if version is not None:
            versions[package] = version
    return versions


@functools.cache  # reading the metadata of six packages takes 10 ms, longer than the rest of starting a run
def _version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def end_early(folder: Path, error: BaseException, created: Sequence[Path], resume_command: str = "") -> None:
    """Write stopped.json, or delete the folder if the run failed before its first result.

    Args:
        folder: The run folder.
        error: The exception that ended the run; an interruption never deletes the folder.
        created: The folders that were created for the run, the run folder first; [] if it existed before.
        resume_command: Shell command that resumes the run; "" if there is none.
    """
    with suppress(OSError):  # the disk may be full
        if isinstance(error, Exception) and remove_without_results(created):
            return
        report = stopped_report(folder, error, resume_command)
        atomic_write(folder / "stopped.json", msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def stopped_report(folder: Path, error: BaseException, resume_command: str = "") -> dict[str, object]:
    """Return the content of stopped.json.

    Args:
        folder: The run folder.
        error: The exception that ended the run.
        resume_command: Shell command that resumes the run; "" if there is none.

    Returns:
        The reason (`why`), the number of `rollouts`, the last training `step`, and the command `resume`.
    """
    report: dict[str, object] = {"why": end_reason(error)}
    with suppress(OSError, *UNREADABLE):  # a damaged file must not hide the reason
        report["rollouts"], _ = _count_lines(folder / "rollouts.jsonl")
        _, last_row = _count_lines(folder / "metrics.jsonl")
        if last_row:
            report["step"] = msgspec.json.decode(last_row, type=JsonObject).get("step")
    if resume_command:
        report["resume"] = resume_command
    return report


def remove_without_results(created: Sequence[Path]) -> bool:
    """Delete a run folder that holds only settings, and its parents if they become empty.

    Args:
        created: The folders that were created for the run, the run folder first; [] if it existed before.

    Returns:
        Whether the run folder was deleted.
    """
    if not created or not {child.name for child in created[0].iterdir()} <= {*NO_RESULTS}:
        return False
    for file in created[0].iterdir():
        file.unlink()
    created[0].rmdir()
    with suppress(OSError):  # a parent that is not empty stays
        for folder in created[1:]:
            folder.rmdir()
    return True


def _count_lines(file: Path) -> tuple[int, bytes]:
    """Return the number of complete lines of a file, and the last complete line; (0, b"") if the file does not exist."""
    count, last = 0, b""
    if file.exists():
        with file.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    count, last = count + 1, line
    return count, last
