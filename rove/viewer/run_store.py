"""A folder of runs: their names, summaries and cached readers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from rove.core.errors import ConfigError, Error, RunError, nearest
from rove.runs.annotations import FILE, Annotations
from rove.runs.run import Run
from rove.runs.token_stats import TrainedRollout, read_tokens
from rove.statistics import Column
from rove.utils.files import check_regular
from rove.viewer.html import utf8_text
from rove.viewer.index import Index, JsonlTail, Progress
from rove.viewer.queries import CURRENT_ROLLOUTS, NUM_BARS, TABLE_SCAN, columns, histogram, parse_filter

SEARCH_DEPTH = 6
"""Depth of the search for runs: `rl/evaluations/NAME/STEP` is four deep."""
RUNNING_WINDOW_S = 30.0
"""Without visible locks, a run counts as running for this time after its last write."""
SPARKLINE_POINTS = 48
"""Points of a small curve."""
SKIPPED_FOLDERS = {"checkpoints", "final", "tensorboard", "wandb", "tokens"}
"""Folders of a run that contain no runs."""

READ_FILES = (
    "config.toml",
    "versions.json",
    "summary.json",
    "stopped.json",
    "rollouts.jsonl",
    "metrics.jsonl",
    "alerts.jsonl",
    FILE,
)
"""Files of a run that are read; with `annotate` tags and notes are also written."""

MAX_TROUBLE_CHARS = 300
"""Characters shown of an error in a run's files."""
MAX_REASON_CHARS = 600
"""Characters shown of a stop reason, which may contain the end of a log."""
_PASSWORD = re.compile(r"://[^/@\s\"]+@")


class RunStore:
    """The runs in a folder, or a single run.

    Args:
        folder: Folder of runs, or of one run.
        annotate: Allow tags and notes; otherwise runs are never changed.

    Raises:
        ConfigError: The folder does not exist.

    Example:
        >>> store = RunStore("runs")  # doctest: +SKIP
        >>> [store.run_summary(name) for name in store.names()]  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, annotate: bool = False):
        folder = Path(folder)
        self.annotate = annotate
        if not folder.is_dir():
            raise ConfigError(f"no folder '{folder}'; expected a folder of runs: rove view RUNS_DIR")
        is_run = os.path.lexists(folder / "config.toml") and not (folder / "config.toml").is_dir()
        self.only = folder.resolve().name if is_run else None
        self.base = folder.resolve().parent if self.only else folder.resolve()
        self._indexes: dict[str, Index] = {}
        self._metrics: dict[str, JsonlTail] = {}
        self._summaries: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._lock = Lock()

    def names(self) -> list[str]:
        """Return the names of all runs: their paths below the folder."""
        start = self.base / self.only if self.only else self.base
        return sorted(_runs_below(start, self.base, SEARCH_DEPTH))

    def run(self, name: str) -> Run:
        """Return the run of that name.

        Raises:
            ConfigError: There is no such run inside the folder.
            RunError: One of its files is a symbolic link or not a regular file.
        """
        path = self._path(name)
        if path is None:
            raise ConfigError(f"no run '{name[:200]}' here; {nearest(name[:200], self.names())}")
        for file in READ_FILES:
            check_regular(path / file)
        return Run(path)

    def _path(self, name: str) -> Path | None:
        parts = name.split("/")
        if "\0" in name or not all(parts) or {".", ".."} & set(parts) or (self.only and parts[0] != self.only):
            return None
        path = self.base.joinpath(*parts)
        try:
            there = os.path.lexists(path / "config.toml") and path.resolve().is_relative_to(self.base)
        except (OSError, ValueError):  # an overlong name, or a folder without access
            return None
        return path if there else None

    def index(self, name: str, seconds: float = 0.2) -> tuple[Index, Progress]:
        """Return the index of a run's rollouts after reading new lines for about `seconds`."""
        file = self.run(name).path / "rollouts.jsonl"
        with self._lock:
            index = self._indexes.setdefault(name, Index(file))
        return index, index.catch_up(seconds)

    def metrics(self, name: str) -> JsonlTail:
        """Return the rows of metrics.jsonl up to the last complete line."""
        file = self.run(name).path / "metrics.jsonl"
        with self._lock:
            lines = self._metrics.setdefault(name, JsonlTail(file))
        lines.catch_up()
        return lines

    def tokens(self, name: str, step: int | None) -> list[TrainedRollout]:
        """Return the trainer's token statistics of a step; [] if there are none or they cannot be read."""
        run = self.run(name)
        if step is None:
            return []
        try:
            return read_tokens(run.path, step)
        except (RunError, OSError):
            return []

    def close(self) -> None:
        """Close all indexes."""
        for index in self._indexes.values():
            index.close()

    # summaries

    def run_summary(self, name: str) -> dict[str, Any]:
        """Return a row of the table of runs; `trouble` says which of its files cannot be read.

        Raises:
            ConfigError: There is no such run.
        """
        if utf8_text(name) != name:
            return _unreadable(name, ConfigError("the folder name is not UTF-8; rename the folder"))
        try:
            row = self._cached_summary(name)
            msgspec.json.encode(row)
        except ConfigError:
            raise
        except Exception as error:  # a damaged or hostile run must not hide the other runs
            return _unreadable(name, error)
        return row

    def _cached_summary(self, name: str) -> dict[str, Any]:
        run = self.run(name)
        stats = [_stat(run.path / file) for file in READ_FILES]
        stamp = (status(run), *((stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else None for stat in stats))
        if self._summaries.get(name, (None,))[0] != stamp:
            row = self._summarize(name, run, stamp[0])
            if row.get("reading"):
                return row
            self._summaries[name] = stamp, row
        return self._summaries[name][1]

    def _summarize(self, name: str, run: Run, now: str) -> dict[str, Any]:
        row: dict[str, Any] = {"name": name, "status": now, "changed": last_changed(run.path)}
        content = describe_run(run)
        summary = run.summary()
        row["why"] = stop_reason(run, now)
        row |= {key: content[key] for key in ("kind", "env", "model")}
        row["tags"] = Annotations(run.path).run.tags
        if content["kind"] in ("rl", "sft"):
            return row | self._training_summary(name, content)
        return row | self._evaluation_summary(name, summary)

    def _training_summary(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        rows = self.metrics(name).rows
        main = "reward/mean" if content["kind"] == "rl" else "loss"
        curve = [row[main] for row in rows if isinstance(row.get(main), (int, float))]
        held_out = sorted(key for row in rows[-200:] for key in row if re.fullmatch(r"eval/.*/reward/mean", key))
        last = {key: next(row[key] for row in reversed(rows) if key in row) for key in dict.fromkeys(held_out)}
        return {
            "reward": {"mean": curve[-1] if curve else None, "low": None, "high": None, "caveat": None},
            "measure": main,
            "held_out": last,
            "steps": int(rows[-1].get("step", len(rows))) if rows else 0,
            "planned": content["config"].get("steps"),
            "curve": downsampled(curve, SPARKLINE_POINTS),
        }

    def _evaluation_summary(self, name: str, summary: Mapping[str, Any] | None) -> dict[str, Any]:
        index, progress = self.index(name, 0.05)
        row: dict[str, Any] = {"measure": "reward", "bad": progress.bad}
        if progress.size:
            [(count, failed)] = index.query(f"SELECT COUNT(*), COUNT(error) FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS}")
            row |= {"rollouts": count, "failed": failed, "reading": not progress.done}
            histogram_data = histogram(index, parse_filter(columns(index), []), "reward")
            row["bars"] = bar_heights(histogram_data)
        known = summary.get("reward") if summary else None
        row["reward"] = known if isinstance(known, dict) else mean_reward(index) if progress.size else None
        return row


def _unreadable(name: str, error: Exception) -> dict[str, Any]:
    """Return the row of an unreadable run."""
    message = str(error) if isinstance(error, (Error, OSError)) else f"{type(error).__name__}: {error}"
    row = {"name": utf8_text(name), "kind": "unreadable", "status": "unreadable", "changed": 0.0}
    return {**row, "trouble": utf8_text(message)[:MAX_TROUBLE_CHARS]}


def _runs_below(folder: Path, base: Path, depth: int) -> Iterator[str]:
    try:
        children = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    if folder != base and any(entry.name == "config.toml" and not entry.is_dir() for entry in children):
        yield folder.relative_to(base).as_posix()
    for entry in children:
        if depth and entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED_FOLDERS and entry.name[0] != ".":
            yield from _runs_below(Path(entry.path), base, depth - 1)


def describe_run(run: Run) -> dict[str, Any]:
    """Return `kind`, `env`, `model` and the whole `config` of a run, without passwords.

    Raises:
        RunError: rove did not write its config.toml.
    """
    content = run.config()
    config = _masked(content["config"])
    env = config.get("env") or _first_of(config.get("data")) or ""
    return {"kind": content["kind"], "env": str(env), "model": str(config.get("model") or ""), "config": config}


def _first_of(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _masked(value: Any) -> Any:
    """Return a setting with passwords in URLs masked."""
    if isinstance(value, str):
        return _PASSWORD.sub("://…@", value)
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value


def mean_reward(index: Index) -> dict[str, Any]:
    """Return the mean reward with its interval over examples, for a run without a summary."""
    places: dict[str, int] = {}
    rewards = Column()
    for key, reward in index.query(
        f"SELECT example_key, reward FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL"
    ):
        rewards.add(places.setdefault(str(key), len(places)), float(reward))  # pyright: ignore[reportArgumentType]
    try:
        return rewards.estimate._asdict()
    except OverflowError as error:
        raise RunError(f"{index.file}: the rewards are too large for a mean ({error})") from error


def bar_heights(histogram_data: Mapping[str, Any]) -> list[int]:
    """Return the counts of a histogram in bars of equal width, including empty ones."""
    counts = [0] * NUM_BARS
    width = histogram_data["high"] / NUM_BARS - histogram_data["low"] / NUM_BARS if histogram_data["bars"] else 0.0
    for bar in histogram_data["bars"]:  # divide first: the difference may overflow
        counts[min(NUM_BARS - 1, round(bar["from"] / width - histogram_data["low"] / width) if width else 0)] += bar[
            "count"
        ]
    return counts if histogram_data["bars"] else []


def downsampled(values: list[float], max_points: int) -> list[float]:
    """Return a curve of at most `max_points` points, each the mean of its part."""
    size = max(1, -(-len(values) // max_points))
    parts = [values[i : i + size] for i in range(0, len(values), size)]
    return [sum(part) / len(part) for part in parts]


def last_changed(path: Path) -> float:
    """Return when a file of the run was last written, in seconds since 1970."""
    names = ("rollouts.jsonl", "metrics.jsonl", "summary.json", "config.toml")
    return max((stat.st_mtime for name in names if (stat := _stat(path / name))), default=0.0)


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def status(run: Run) -> str:
    """Return "complete", "running" or "stopped"."""
    lock = _stat(run.path / ".lock")
    if lock is not None and _is_locked(lock):
        return "running"
    if (run.path / "summary.json").exists():
        return "complete"
    locks_visible = Path("/proc/locks").exists()
    return "running" if not locks_visible and time.time() - last_changed(run.path) < RUNNING_WINDOW_S else "stopped"


def stop_reason(run: Run, now: str) -> str:
    """Return why a stopped run ended; "" if it could not record it (`kill -9`, power failure)."""
    return _masked(run.why_stopped())[:MAX_REASON_CHARS] if now == "stopped" else ""


def _is_locked(file: os.stat_result) -> bool:
    """Return whether a process holds a lock on the file. Trying to lock it could make a starting run fail."""
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        return any(place in line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines())
    except OSError:
        return False
