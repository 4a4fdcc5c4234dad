"""The run folder: one format for evaluation, data, SFT and RL, owned by this module alone.

runs/<name>/
  config.toml      the resolved configuration; its identity decides whether a run may be continued
  versions.json    what wrote it
  rollouts.jsonl   one line per finished rollout, appended and flushed
  metrics.jsonl    one line per training step
  alerts.jsonl     one line per alert of a training run: its step, its name, what is wrong
  limits.jsonl     how many requests an endpoint was given at once, and why that changed
  tokens/          <step>.json: the trainer's log-probabilities and entropies, token by token, of some of the step's rollouts
  bad_batch.msgpack  the samples at which training stopped because its steps were not finite
  stopped.json     what ended the run early: the reason, how much is done, the command that resumes; deleted on resume
  summary.json     written when the run is complete
  annotations.jsonl  tags and notes that people gave it, one line per change (see `rove.runs.annotations`)
  checkpoints/     <step>/ folders and best/, each an ordinary Hugging Face folder and the trainer's state beside it
  evaluations/     <name>/<step>/ of a training run: what was measured on held-out examples, each a run folder
  final/           the trained model, an ordinary Hugging Face folder

The folder may come from a stranger: only regular files are opened, never through a symbolic link, and what they hold is checked.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
import tomli_w

from rove.core.digest import differences, plain
from rove.core.errors import RunError
from rove.core.records import Outcome, RolloutRecord, Usage
from rove.runs.files import RunFiles
from rove.runs.schema import decoded, decoded_row
from rove.runs.serialization import decode_outcome, decode_place, decode_record, encode_record
from rove.runs.unfinished import NO_RESULTS, end_early
from rove.runs.upgrade import OLD_FILES
from rove.runs.versions import versions_here
from rove.utils.files import (
    atomic_replace,
    atomic_write,
    check_tree,
    create_folders,
    open_regular,
    read_regular,
    recover_folders,
    remove,
    truncate_torn_line,
)

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder are not noticed there
    fcntl = None

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
"""What a run folder consists of, the file that makes it one last."""

RolloutKey = tuple[int | None, str, int]
"""Training step (None outside of RL), example key, sibling."""


class Line(NamedTuple):
    """One line of rollouts.jsonl."""

    number: int
    offset: int
    """Bytes before it."""
    failed: bool


def are_consecutive(lines: Sequence[Line]) -> bool:
    """Whether these lines follow each other: what is scored together is written together, or was cut short."""
    numbers = [line.number for line in lines]
    return not numbers or max(numbers) - min(numbers) + 1 == len(numbers)


class Progress(msgspec.Struct, frozen=True):
    """How far a training run had come at a checkpoint; resuming cuts both files back to these sizes."""

    step: Annotated[int, msgspec.Meta(ge=0)]
    rollouts_bytes: Annotated[int, msgspec.Meta(ge=0)]
    metrics_bytes: Annotated[int, msgspec.Meta(ge=0)]
    state: dict[str, Any] = {}


class Run(RunFiles):
    """One run folder, open for reading and, after `start`, for appending."""

    def __init__(self, path: str | Path):
        super().__init__(path)
        self.resume_command = ""
        """Shell command that resumes the run; kept in stopped.json. "" if there is none."""
        self._files: dict[str, BinaryIO] = {}
        self._lock: BinaryIO | None = None
        self._created: list[Path] = []

    def start(self, kind: str, config: Mapping[str, Any], identity: Mapping[str, Any], overwrite: bool = False) -> bool:
        """Open the folder for writing; True when it continues an earlier run of the same identity.

        Args:
            kind: "eval", "sft" or "rl".
            config: the whole resolved configuration, kept for people.
            identity: the part of it that must not change when the run is continued.
            overwrite: throw away what is there.

        Raises:
            RunError: another process writes here, the folder holds a run of another identity, or something that is no run.
        """
        self._created = create_folders(self.path)
        self._refuse_foreign()
        self._acquire()
        file = self.path / "config.toml"
        if overwrite:
            self._clear()
        self._check_files()
        mine = {"kind": kind, "identity": plain(identity), "config": plain(config)}
        changes = []
        if continued := file.exists():
            theirs = self.config()
            changes = differences({"kind": theirs["kind"], **theirs["identity"]}, {"kind": kind, **mine["identity"]})
            if changes and not self._is_unused():
                self.close()
                differs, advice = (
                    "\n  ".join(changes),
                    "Give another --run-dir, or --overwrite to throw the old one away",
                )
                raise RunError(f"{self.path} holds a different run; what differs:\n  {differs}\n{advice}")
        self.write_bytes("config.toml", tomli_w.dumps(mine).encode())
        (self.path / "stopped.json").unlink(missing_ok=True)
        self._add_versions()
        for name, old in OLD_FILES.items():
            if (self.path / old).is_file() and not (self.path / name).exists():
                (self.path / old).rename(self.path / name)
        for name in ("rollouts.jsonl", "metrics.jsonl", "alerts.jsonl"):
            truncate_torn_line(self.path / name)
        for folder in (self.path, self.path / "checkpoints"):
            recover_folders(folder)
        return continued and not changes

    def _is_unused(self) -> bool:
        """Whether nothing but settings was kept here."""
        kept = [self.path / name for name in OWNED if name not in NO_RESULTS]
        return not any(path.is_dir() or (path.exists() and path.stat().st_size) for path in kept)

    def _refuse_foreign(self) -> None:
        """Never write into, or empty, a folder that somebody else fills."""
        there = [child.name for child in self.path.iterdir() if not child.name.startswith(".")]
        if not there:
            return
        try:
            self.config()
        except RunError as error:
            raise RunError(
                f"{self.path} is no run folder and not empty (it has {', '.join(sorted(there)[:4])}); give another --run-dir\n"
                f"{error}"
            ) from error

    def _check_files(self) -> None:
        """Refuse links, pipes and devices wherever rove writes; other libraries write into the folders that are left out."""
        for path in self.path.iterdir():
            name = path.name.removeprefix(".").removesuffix(".draft").removesuffix(".old")
            if name in OWNED and name not in ("tensorboard", "wandb", "vllm"):
                check_tree(path)

    def _add_versions(self) -> None:
        """Remember every set of versions that has written here, the first one first."""
        known, now = self.versions(), versions_here()
        if now not in known:
            self.write_json("versions.json", [*known, now])

    def _acquire(self) -> None:
        if fcntl is None:
            return
        self._lock = open_regular(self.path / ".lock", "ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            self._lock = None
            raise RunError(
                f"another process is writing to {self.path}; wait for it, or give another --run-dir"
            ) from error

    def _clear(self) -> None:
        for name in OWNED:
            remove(self.path / name)

    def close(self) -> None:
        """Close the files and let others write."""
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

    # rollouts and metrics: append-only, one line each

    def append_rollout(self, record: RolloutRecord) -> None:
        """Keep a finished rollout: once this returns, killing the process does not lose it."""
        self._append("rollouts.jsonl", encode_record(record))

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Keep one step's metrics."""
        self._append("metrics.jsonl", msgspec.json.encode(metrics))

    def append_alert(self, alert: Mapping[str, Any]) -> None:
        """Keep an alert, which has the `step` at which it started."""
        self._append("alerts.jsonl", msgspec.json.encode(alert))

    def append_limit(self, change: Mapping[str, Any]) -> None:
        """Keep a change of how many requests may be under way."""
        self._append("limits.jsonl", msgspec.json.encode(change))

    def _append(self, name: str, line: bytes) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = open_regular(self.path / name, "ab")
        file.write(line + b"\n")
        file.flush()

    def rollouts(self) -> Iterator[RolloutRecord]:
        """Every rollout kept so far, oldest first. A torn last line is left out."""
        for line in self.lines_of("rollouts.jsonl"):
            yield decode_record(line)

    def outcomes(self) -> Iterator[Outcome]:
        """Every rollout kept so far without its texts, oldest first: quick, for statistics."""
        for line in self.lines_of("rollouts.jsonl"):
            yield decode_outcome(line)

    def ledger(self) -> tuple[dict[RolloutKey, Line], Usage]:
        """The line that counts of every rollout, its last, and what all lines used (a failed try was paid for, too)."""
        lines: dict[RolloutKey, Line] = {}
        usage = Usage()
        offset = 0
        for number, line in enumerate(self.lines_of("rollouts.jsonl")):
            try:
                place = decode_place(line)
            except RunError as error:
                file = self.path / "rollouts.jsonl"
                raise RunError(
                    f"{file}, line {number + 1}: {error}\nDelete that line; its rollout is run again"
                ) from error
            usage = usage + place.usage
            lines[place.key] = Line(number, offset, place.failed)
            offset += len(line) + 1
        return lines, usage

    def scored_lines(self) -> dict[RolloutKey, Line]:
        """The lines that count of the rollouts that were scored."""
        return {key: line for key, line in self.ledger()[0].items() if not line.failed}

    def record_at(self, offset: int) -> RolloutRecord:
        """The rollout whose line starts there."""
        return decode_record(self._line_at(offset))

    def outcome_at(self, offset: int) -> Outcome:
        """The same without its texts."""
        return decode_outcome(self._line_at(offset))

    def _line_at(self, offset: int) -> bytes:
        file = self._files.get("reading")
        if file is None:
            file = self._files["reading"] = open_regular(self.path / "rollouts.jsonl")
        file.seek(offset)
        return file.readline()[:-1]

    def finished(self) -> Iterator[RolloutRecord]:
        """The records that count of the rollouts that were scored, oldest first."""
        counted = {line.number for line in self.scored_lines().values()}
        return (record for number, record in enumerate(self.rollouts()) if number in counted)

    # whole files: written beside and renamed, so that a reader never sees half of one

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file of the folder whole."""
        atomic_write(self.path / name, content)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as indented JSON."""
        self.write_bytes(name, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary: the run is complete."""
        self.write_json("summary.json", summary)

    def reopen(self) -> None:
        """Take the summary away: there is more to do."""
        (self.path / "summary.json").unlink(missing_ok=True)

    # checkpoints

    def save_checkpoint(self, name: str, write: Callable[[Path], None], progress: Progress | None = None) -> Path:
        """Write checkpoint `name` whole or not at all: `write` fills a draft folder, which is then renamed."""
        target = self.path / "checkpoints" / name
        draft = target.with_name(f".{name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        write(draft)
        if progress is not None:
            (draft / "progress.json").write_bytes(msgspec.json.encode(progress))
        atomic_replace(draft, target)
        return target

    def save_final(self, write: Callable[[Path], None]) -> Path:
        """Write the trained model to `final/`, whole or not at all."""
        draft, target = self.path / ".final.draft", self.path / "final"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        write(draft)
        atomic_replace(draft, target)
        return target

    def progress(self, step: int, state: Mapping[str, Any]) -> Progress:
        """How far the run has come now."""
        sizes = [(self.path / name) for name in ("rollouts.jsonl", "metrics.jsonl")]
        rollouts, metrics = (file.stat().st_size if file.exists() else 0 for file in sizes)
        return Progress(step, rollouts, metrics, dict(state))

    def last_checkpoint(self) -> tuple[Path, Progress] | None:
        """The newest checkpoint that training can be resumed from.

        Raises:
            RunError: see `progress_of`.
        """
        newest = next((path for path in self.checkpoints() if (path / "progress.json").exists()), None)
        return None if newest is None else (newest, self.progress_of(newest))

    def checkpoints(self) -> list[Path]:
        """The numbered checkpoints, the newest first."""
        found = [path for path in (self.path / "checkpoints").glob("*") if path.name.isdecimal()]
        return sorted(found, key=lambda path: int(path.name), reverse=True)

    def progress_of(self, checkpoint: Path) -> Progress:
        """How far the run had come at a checkpoint.

        Raises:
            RunError: progress.json is missing or damaged.
        """
        file = checkpoint / "progress.json"
        if not file.exists():
            raise RunError(f"{file.name} is missing")
        return msgspec.convert(decoded(file, read_regular(file), Progress), Progress)

    def prune_checkpoints(self, keep: int) -> None:
        """Delete all numbered checkpoints but the `keep` newest."""
        for path in self.checkpoints()[keep:]:
            shutil.rmtree(path)

    def cut(self, progress: Progress | None) -> None:
        """Drop the rollouts, metrics, alerts, tokens and evaluations newer than `progress` (all of them when None)."""
        step = progress.step if progress is not None else 0
        if alerts := list(self.lines_of("alerts.jsonl")):
            self.write_bytes("alerts.jsonl", b"".join(line + b"\n" for line in alerts if _step_of(line) <= step))
        for path in [*self.path.glob("evaluations/*/*"), *self.path.glob("tokens/*.json")]:
            if path.stem.isdecimal() and int(path.stem) > step:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        sizes = {"rollouts.jsonl": 0, "metrics.jsonl": 0}
        if progress is not None:
            sizes = {"rollouts.jsonl": progress.rollouts_bytes, "metrics.jsonl": progress.metrics_bytes}
        for name, size in sizes.items():
            open_file = self._files.pop(name, None)
            if open_file is not None:
                open_file.close()
            file = self.path / name
            if file.exists() and file.stat().st_size > size:
                os.truncate(file, size)


def _step_of(line: bytes) -> float:
    """The step of an alert; infinite where the line is damaged."""
    try:
        return decoded_row(line).get("step", math.inf)
    except RunError:
        return math.inf
