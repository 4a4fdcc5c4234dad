"""A folder of runs: their names, summaries and cached readers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from threading import Event, Lock, Thread

import msgspec

from rove.core.errors import ConfigError, Error, RunError, nearest
from rove.core.masking import without_secrets
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.runs.annotations import FILE, Annotations
from rove.runs.layout import EVALUATIONS, is_train_folder
from rove.runs.metrics import HELD_OUT_REWARD
from rove.runs.run import Run
from rove.runs.token_stats import TrainedRollout, read_tokens
from rove.runs.train_folder import TrainFolder
from rove.statistics import Column
from rove.statistics.summary import TOLERANCE
from rove.utils.files import check_regular
from rove.utils.systems import can_see_locks, is_locked
from rove.viewer.html import utf8_text
from rove.viewer.index import Index, JsonlTail, Progress
from rove.viewer.queries import (
    CURRENT_ROLLOUTS,
    NUM_BARS,
    TABLE_SCAN,
    columns,
    histogram,
    parse_filter,
    prepare,
    reward_range,
)
from rove.viewer.run_settings import describe_run, flat
from rove.viewer.train_commands import environment_of
from rove.viewer.train_table import kept_model, reward_of

SEARCH_DEPTH = 6
"""Maximum depth of the search for runs: `rl/evaluations/NAME/STEP` has a depth of four."""
RUNNING_WINDOW_S = 30.0
"""Seconds for which a run counts as running after its last write if locks are not visible."""
SPARKLINE_POINTS = 48
"""Maximum number of points of a small curve."""
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
"""Files of a run that are read; with `annotate`, tags and notes are also written."""

MAX_OPEN_INDEXES = 64
"""Maximum number of indexes whose databases are open; each takes a file descriptor."""
MIN_PREPARED_ROLLOUTS = 20_000
"""Minimum number of rollouts in a run whose columns are read in advance."""
PREPARE_PAUSE_S = 0.01
"""Pause between columns in seconds, during which waiting requests can use the index."""
MAX_ROW_VALUES = 200
"""Maximum number of settings, and of metrics, of a run that the table of runs can show."""
MAX_TROUBLE_CHARS = 300
"""Maximum characters shown of an error in a run's files."""
MAX_REASON_CHARS = 600
"""Maximum characters shown of a stop reason, which may contain the end of a log."""


class RunStore:
    """The runs in a folder, or a single run.

    Args:
        annotate: Allow tags and notes; otherwise runs are never changed.

    Example:
        >>> store = RunStore("runs")  # doctest: +SKIP
        >>> [store.run_summary(name) for name in store.names()]  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, annotate: bool = False):
        folder = Path(folder)
        self.annotate = annotate
        if folder.is_file():
            raise ConfigError(f"'{folder}' is a file; expected a folder of runs: rove view RUNS_DIR")
        if not folder.is_dir():
            raise ConfigError(f"no folder '{folder}'; expected a folder of runs: rove view RUNS_DIR")
        is_run = os.path.lexists(folder / "config.toml") and not (folder / "config.toml").is_dir()
        is_single = is_run or is_train_folder(os.listdir(folder))
        self.only = folder.resolve().name if is_single else None
        self.base = folder.resolve().parent if self.only else folder.resolve()
        self._indexes: dict[str, Index] = {}
        """Indexes by name, the most recently used last."""
        self._settings_stamps: dict[str, tuple[int, ...]] = {}
        self._metrics: dict[str, JsonlTail] = {}
        self._summaries: dict[str, tuple[JsonValue, JsonObject]] = {}
        self._lock = Lock()
        self._prepared: dict[str, Thread] = {}
        self._closing = Event()

    def names(self) -> list[str]:
        """Return the names of all runs: their paths below the folder."""
        start = self.base / self.only if self.only else self.base
        return sorted(_runs_below(start, self.base, SEARCH_DEPTH))

    def train_folder(self, name: str) -> TrainFolder | None:
        """Return the folder of `rove train` of that name; None if the name is that of a single run."""
        path = self.run(name).path
        return TrainFolder(path) if is_train_folder(os.listdir(path)) else None

    def training_of(self, name: str) -> str:
        """Return the name of the `rove train` run whose folder contains a run; "" if there is none."""
        for parent in PurePosixPath(name).parents:
            path = self._path(str(parent))
            if path is not None and is_train_folder(os.listdir(path)):
                return str(parent)
        return ""

    def evaluation_index(self, folder: Path) -> Index:
        """Return the complete index of an evaluation inside a folder of `rove train`."""
        name = folder.resolve().relative_to(self.base).as_posix()
        index, progress = self.index(name, 5.0)
        if not progress.done:
            raise RunError(f"{folder} is still being read; reload the page")
        return index

    def run(self, name: str) -> Run:
        """Return the run with this name."""
        path = self._path(name)
        if path is None:
            raise ConfigError(f"no run '{name[:200]}' here; {nearest(name[:200], self.names())}")
        for file in READ_FILES:
            check_regular(path / file)
        return Run(path)

    def _path(self, name: str) -> Path | None:
        parts = name.split("/")
        if "\0" in name or not all(parts) or {".", ".."} & set(parts):
            return None
        if self.only and parts[0] != self.only:
            return None
        path = self.base.joinpath(*parts)
        try:
            is_run = os.path.lexists(path / "config.toml") or is_train_folder(os.listdir(path))
            there = is_run and path.resolve().is_relative_to(self.base)
        except (OSError, ValueError):  # an overlong name, or a folder without access
            return None
        return path if there else None

    def index(self, name: str, seconds: float = 0.2) -> tuple[Index, Progress]:
        """Return the index of a run's rollouts after reading new lines for about `seconds`."""
        run = self.run(name)
        with self._lock:
            index = self._indexes.pop(name, None) or Index(run.path / "rollouts.jsonl")
            self._indexes[name] = index
            stamp = _file_stamp(run.path / "config.toml")
            if self._settings_stamps.get(name) != stamp:  # also after `--overwrite`
                index.pass_threshold = _pass_threshold(run)
                self._settings_stamps[name] = stamp
            unused = list(self._indexes.values())[:-MAX_OPEN_INDEXES]
        if unused:
            unused[-1].release()  # those before it are closed already
        return index, index.catch_up(seconds)

    def prepare(self, name: str) -> None:
        """Read the columns of a large run in the background, once, so that its first facets and histograms are fast."""
        # The first read of a column takes more than 50 ms for 100,000 rollouts (docs/decisions/viewer.md).
        index, progress = self.index(name)
        with self._lock:
            if name in self._prepared or not progress.done or progress.stamp[1] < MIN_PREPARED_ROLLOUTS:
                return
            thread = self._prepared[name] = Thread(target=self._prepare, args=(index,), daemon=True)
        thread.start()

    def _prepare(self, index: Index) -> None:
        with suppress(RunError):  # the run has just been deleted
            for _ in prepare(index):
                if self._closing.wait(PREPARE_PAUSE_S):
                    return

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
        self._closing.set()
        for thread in self._prepared.values():
            thread.join()
        for index in self._indexes.values():
            index.close()

    def run_summary(self, name: str) -> JsonObject:
        """Return a row of the table of runs; `trouble` says which of the run's files cannot be read."""
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

    def _cached_summary(self, name: str) -> dict[str, object]:
        folder = self.train_folder(name)
        if folder is not None:
            return self._train_summary(name, folder)
        run = self.run(name)
        stamp = (status(run), *(_file_stamp(run.path / file) for file in READ_FILES))
        if self._summaries.get(name, (None,))[0] != stamp:
            row = self._summarize(name, run, stamp[0])
            if row.get("reading"):
                return row
            self._summaries[name] = stamp, row
        return self._summaries[name][1]

    def _summarize(self, name: str, run: Run, current_status: str) -> JsonObject:
        row: dict[str, object] = {"name": name, "status": current_status, "changed": last_changed(run.path)}
        content = describe_run(run)
        summary = run.summary()
        row["why"] = stop_reason(run, current_status)
        row |= {key: content[key] for key in ("kind", "env", "model")}
        settings = list(flat(content["config"]))[:MAX_ROW_VALUES]
        row["values"] = {f"setting.{name}": value for name, value in settings}
        row["tags"] = Annotations(run.path).run.tags
        if content["kind"] in ("rl", "sft"):
            details = self._training_summary(name, content)
        else:
            details = self._evaluation_summary(name, summary)
        details["values"] = row["values"] | {f"metric.{key}": value for key, value in details["values"].items()}
        return row | details

    def _training_summary(self, name: str, content: JsonMapping) -> JsonObject:
        rows = self.metrics(name).rows
        main = "reward/mean" if content["kind"] == "rl" else "loss"
        curve = [row[main] for row in rows if isinstance(row.get(main), (int, float))]
        recent_names: set[str] = set().union(*rows[-200:])
        held_out = sorted(name for name in recent_names if HELD_OUT_REWARD.fullmatch(name))
        last = {name: next(row[name] for row in reversed(rows) if name in row) for name in held_out}
        return {
            "reward": {"mean": curve[-1] if curve else None, "low": None, "high": None, "caveat": None},
            "measure": main,
            "held_out": last,
            "steps": int(rows[-1].get("step", len(rows))) if rows else 0,
            "planned": content["config"].get("steps"),
            "curve": downsampled(curve, SPARKLINE_POINTS),
            "range": [min(0.0, *curve), max(0.0, *curve)] if curve else [0.0, 1.0],
            "values": _numbers(rows[-1] if rows else {}),
        }

    def _train_summary(self, name: str, folder: TrainFolder) -> JsonObject:
        """Return the row of a `rove train` run: the reward of the kept model, and the rewards of all training stages."""
        trained_model = kept_model(folder.rows())
        stages = folder.stages()
        changed = max((last_changed(stage.path) for stage in stages), default=folder.path.stat().st_mtime)
        curve: list[float] = []
        for stage in stages:
            rows = self.metrics(f"{name}/{stage.path.name}").rows
            held_out = sorted(key for key in set().union(*rows) if HELD_OUT_REWARD.fullmatch(key))
            curve += [row[held_out[0]] for row in rows if held_out and isinstance(row.get(held_out[0]), (int, float))]
        conditions = trained_model.row.conditions if trained_model else {}
        held_out_rewards = {
            f"eval/{key}": reward_of(trained_model.row, key)["mean"] for key in conditions if trained_model and key
        }
        return {
            "name": name,
            "kind": "train",
            "status": train_status(folder),
            "why": "",
            "changed": changed,
            "env": environment_of(folder),
            "model": trained_model.row.model if trained_model else "",
            "measure": "reward",
            "reward": trained_model.reward if trained_model else None,
            "held_out": held_out_rewards,
            "stages": len(stages),
            "curve": downsampled(curve, SPARKLINE_POINTS),
            "tags": Annotations(folder.path).run.tags,
            "values": {},
        }

    def _evaluation_summary(self, name: str, summary: Mapping[str, object] | None) -> JsonObject:
        index, progress = self.index(name, 0.05)
        row: dict[str, object] = {"measure": "reward", "bad": progress.bad, "values": _estimates(summary)}
        if progress.size:
            counts = f"COUNT(*), COUNT(error), SUM(reward >= {index.pass_threshold - TOLERANCE!r})"
            [(count, failed, passed)] = index.query(f"SELECT {counts} FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS}")
            row |= {"rollouts": count, "failed": failed, "passed": passed or 0, "reading": not progress.done}
            histogram_data = histogram(index, parse_filter(columns(index), []), "reward")
            row |= {"bars": bar_heights(histogram_data), "range": reward_range(index)}
        estimate = summary.get("reward") if summary else None
        if not isinstance(estimate, dict):
            estimate = mean_reward(index) if progress.size else None
        row["reward"] = estimate
        return row


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the finite numbers among some values."""
    numbers: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, (int, float)) and abs(value) < 1e300 and len(numbers) < MAX_ROW_VALUES:
            numbers[key] = value
    return numbers


def _estimates(summary: Mapping[str, object] | None) -> dict[str, float]:
    """Return the means of an evaluation's scores and of pass@k."""
    values: JsonObject = {}
    for kind, prefix in (("functions", ""), ("pass@k", "pass@"), ("pass^k", "pass^")):
        estimates = (summary or {}).get(kind)
        for name, estimate in (estimates if isinstance(estimates, dict) else {}).items():
            values[f"{prefix}{name}"] = estimate.get("mean") if isinstance(estimate, dict) else None
    return _numbers(values)


def _unreadable(name: str, error: Exception) -> dict[str, object]:
    """Return the row of an unreadable run."""
    message = str(error) if isinstance(error, (Error, OSError)) else f"{type(error).__name__}: {error}"
    row = {"name": utf8_text(name), "kind": "unreadable", "status": "unreadable", "changed": 0.0}
    return {**row, "trouble": utf8_text(message)[:MAX_TROUBLE_CHARS]}


def _runs_below(folder: Path, base: Path, depth: int) -> Iterator[str]:
    try:
        children = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    names = [entry.name for entry in children if entry.name != "config.toml" or not entry.is_dir()]
    if folder != base and ("config.toml" in names or is_train_folder(names)):
        yield folder.relative_to(base).as_posix()
    for entry in children:
        if depth and entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED_FOLDERS and entry.name[0] != ".":
            yield from _runs_below(Path(entry.path), base, depth - 1)


def _pass_threshold(run: Run) -> float:
    """Return the minimum reward of a passed rollout; 1 if the run's settings do not specify it."""
    try:
        value = describe_run(run)["config"].get("pass_threshold")
    except (RunError, OSError):
        return 1.0
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else 1.0


def mean_reward(index: Index) -> JsonObject:
    """Return the mean reward with its interval over examples, for a run without a summary."""
    positions: dict[str, int] = {}
    rewards = Column()
    for key, reward in index.query(
        f"SELECT example_key, reward FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL"
    ):
        rewards.add(positions.setdefault(str(key), len(positions)), float(reward))  # pyright: ignore[reportArgumentType]
    try:
        return msgspec.structs.asdict(rewards.estimate)
    except OverflowError as error:
        raise RunError(f"{index.file}: the rewards are too large for a mean ({error})") from error


def bar_heights(histogram_data: JsonMapping) -> dict[str, object]:
    """Return a histogram as `low`, `high`, and `counts` in bars of equal width, empty ones included."""
    if not histogram_data["bars"]:
        return {"low": 0.0, "high": 0.0, "counts": []}
    low, high = histogram_data["low"], histogram_data["high"]
    counts = [0] * NUM_BARS
    width = high / NUM_BARS - low / NUM_BARS  # divide first: the difference may overflow
    for bar in histogram_data["bars"]:
        position = min(NUM_BARS - 1, round(bar["from"] / width - low / width) if width else 0)
        counts[position] += bar["count"]
    return {"low": low, "high": high, "counts": counts if width else [sum(counts)]}


def downsampled(values: list[float], max_points: int) -> list[float]:
    """Return a curve of at most `max_points` points; each point is the mean of a part of the values."""
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


def _file_stamp(file: Path) -> tuple[int, ...]:
    """Return a value that changes when a file's contents change; () if the file cannot be read."""
    stat = _stat(file)
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else ()


def status(run: Run) -> str:
    """Return "complete", "running" or "stopped"."""
    lock = _stat(run.path / ".lock")
    if lock is not None and is_locked(lock):
        return "running"
    if (run.path / "summary.json").exists():
        return "complete"
    return "running" if not can_see_locks() and time.time() - last_changed(run.path) < RUNNING_WINDOW_S else "stopped"


def train_status(folder: TrainFolder) -> str:
    """Return "complete", "running" or "stopped" for a `rove train` run: it runs while one of its stages or evaluations does."""
    if folder.is_complete:
        return "complete"
    evaluations = folder.path / EVALUATIONS
    runs = [*folder.stages(), *(Run(path) for path in evaluations.glob("*") if path.is_dir())]
    return "running" if any(status(run) == "running" for run in runs) else "stopped"


def stop_reason(run: Run, current_status: str) -> str:
    """Return why a stopped run ended; "" if it could not record the reason (`kill -9`, power failure)."""
    return without_secrets(run.why_stopped())[:MAX_REASON_CHARS] if current_status == "stopped" else ""
