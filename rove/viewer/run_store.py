"""A folder of runs: which there are, how each is doing, and what is read of them again and again."""

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
from rove.viewer.index import Index, Progress
from rove.viewer.jsonl_tail import GrowingLines
from rove.viewer.queries import BARS, EVERY, SCANNED, choose, columns, histogram

DEPTH = 6
"""Folders below the first in which runs are looked for: `rl/evaluations/NAME/STEP` is four deep."""
RECENT = 30.0
"""Seconds after its last word for which a run may be called running where locks cannot be seen."""
POINTS = 48
"""Of a small curve."""
NO_RUNS = {"checkpoints", "final", "tensorboard", "wandb", "tokens"}
"""Folders of a run that hold none."""

READ = (
    "config.toml",
    "versions.json",
    "summary.json",
    "stopped.json",
    "rollouts.jsonl",
    "metrics.jsonl",
    "alerts.jsonl",
    FILE,
)
"""Files of a run that are read; tags and notes are written, too, where that is allowed."""

TROUBLE = 300
"""Characters shown of what is wrong with a run."""
WHY = 600
"""Characters of what is told of a run that was stopped; the end of a log may be among it."""
_PASSWORD = re.compile(r"://[^/@\s\"]+@")


class RunStore:
    """The runs in a folder, or the one run that the folder is.

    Args:
        folder: of runs.
        annotate: let people tag runs and rollouts, and write notes; else nothing of a run is ever changed.

    Raises:
        ConfigError: there is no such folder.
    """

    def __init__(self, folder: str | Path, annotate: bool = False):
        folder = Path(folder)
        self.annotate = annotate
        if not folder.is_dir():
            raise ConfigError(f"there is no folder '{folder}'; give the one that holds your runs: rove view RUNS_DIR")
        is_run = os.path.lexists(folder / "config.toml") and not (folder / "config.toml").is_dir()
        self.only = folder.resolve().name if is_run else None
        self.base = folder.resolve().parent if self.only else folder.resolve()
        self._indexes: dict[str, Index] = {}
        self._metrics: dict[str, GrowingLines] = {}
        self._cards: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._lock = Lock()

    def names(self) -> list[str]:
        """Every run, by its path below the folder."""
        start = self.base / self.only if self.only else self.base
        return sorted(_runs_below(start, self.base, DEPTH))

    def run(self, name: str) -> Run:
        """The run of that name.

        Raises:
            ConfigError: there is none, or it lies elsewhere.
            RunError: a file of it is a symbolic link, or no file at all.
        """
        path = self._path(name)
        if path is None:
            raise ConfigError(f"no run '{name[:200]}' here; {nearest(name[:200], self.names())}")
        for file in READ:
            check_regular(path / file)
        return Run(path)

    def _path(self, name: str) -> Path | None:
        parts = name.split("/")
        if "\0" in name or not all(parts) or {".", ".."} & set(parts) or (self.only and parts[0] != self.only):
            return None
        path = self.base.joinpath(*parts)
        try:
            there = os.path.lexists(path / "config.toml") and path.resolve().is_relative_to(self.base)
        except (OSError, ValueError):  # a name too long, a folder that may not be entered
            return None
        return path if there else None

    def index(self, name: str, seconds: float = 0.2) -> tuple[Index, Progress]:
        """The index of a run's rollouts, after reading what is new for about so long."""
        file = self.run(name).path / "rollouts.jsonl"
        with self._lock:
            index = self._indexes.setdefault(name, Index(file))
        return index, index.catch_up(seconds)

    def metrics(self, name: str) -> GrowingLines:
        """The metrics of a run's steps, up to the last that has been written."""
        file = self.run(name).path / "metrics.jsonl"
        with self._lock:
            lines = self._metrics.setdefault(name, GrowingLines(file))
        lines.catch_up()
        return lines

    def tokens(self, name: str, step: int | None) -> list[TrainedRollout]:
        """What the trainer knew of the tokens of some rollouts of a step; [] where nothing was kept, or it cannot be read."""
        run = self.run(name)
        if step is None:
            return []
        try:
            return read_tokens(run.path, step)
        except (RunError, OSError):
            return []

    def close(self) -> None:
        """Close the indexes."""
        for index in self._indexes.values():
            index.close()

    # what is told of a run

    def run_summary(self, name: str) -> dict[str, Any]:
        """One row of the table of runs; `trouble` says what cannot be read of it.

        Raises:
            ConfigError: there is no such run.
        """
        if utf8_text(name) != name:
            return _unreadable(name, ConfigError("the name of its folder is not UTF-8; rename the folder"))
        try:
            card = self._known_card(name)
            msgspec.json.encode(card)
        except ConfigError:
            raise
        except (
            Exception
        ) as error:  # whatever the files of a damaged or hostile run hold: other runs are shown nevertheless
            return _unreadable(name, error)
        return card

    def _known_card(self, name: str) -> dict[str, Any]:
        run = self.run(name)
        stats = [_stat(run.path / file) for file in READ]
        stamp = (status(run), *((stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else None for stat in stats))
        if self._cards.get(name, (None,))[0] != stamp:
            card = self._card(name, run, stamp[0])
            if card.get("reading"):
                return card
            self._cards[name] = stamp, card
        return self._cards[name][1]

    def _card(self, name: str, run: Run, now: str) -> dict[str, Any]:
        card: dict[str, Any] = {"name": name, "status": now, "changed": changed(run.path)}
        content = described(run)
        summary = run.summary()
        card["why"] = why_stopped(run, now)
        card |= {key: content[key] for key in ("kind", "env", "model")}
        card["tags"] = Annotations(run.path).run.tags
        if content["kind"] in ("rl", "sft"):
            return card | self._training_card(name, content)
        return card | self._evaluation_card(name, summary)

    def _training_card(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
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
            "curve": thinned(curve, POINTS),
        }

    def _evaluation_card(self, name: str, summary: Mapping[str, Any] | None) -> dict[str, Any]:
        index, progress = self.index(name, 0.05)
        card: dict[str, Any] = {"measure": "reward", "bad": progress.bad}
        if progress.size:
            [(count, failed)] = index.ask(f"SELECT COUNT(*), COUNT(error) FROM {SCANNED} WHERE {EVERY}")
            card |= {"rollouts": count, "failed": failed, "reading": not progress.done}
            drawn = histogram(index, choose(columns(index), []), "reward")
            card["bars"] = slots(drawn)
        known = summary.get("reward") if summary else None
        card["reward"] = known if isinstance(known, dict) else reward_of(index) if progress.size else None
        return card


def _unreadable(name: str, error: Exception) -> dict[str, Any]:
    """The row of a run whose files cannot be read."""
    told = str(error) if isinstance(error, (Error, OSError)) else f"{type(error).__name__}: {error}"
    card = {"name": utf8_text(name), "kind": "unreadable", "status": "unreadable", "changed": 0.0}
    return {**card, "trouble": utf8_text(told)[:TROUBLE]}


def _runs_below(folder: Path, base: Path, depth: int) -> Iterator[str]:
    try:
        children = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    if folder != base and any(entry.name == "config.toml" and not entry.is_dir() for entry in children):
        yield folder.relative_to(base).as_posix()
    for entry in children:
        if depth and entry.is_dir(follow_symlinks=False) and entry.name not in NO_RUNS and entry.name[0] != ".":
            yield from _runs_below(Path(entry.path), base, depth - 1)


def described(run: Run) -> dict[str, Any]:
    """`kind`, `env`, `model` and the whole `config` of a run, without passwords.

    Raises:
        RunError: its config.toml is not one that rove wrote.
    """
    content = run.config()
    config = _masked(content["config"])
    env = config.get("env") or _first_of(config.get("data")) or ""
    return {"kind": content["kind"], "env": str(env), "model": str(config.get("model") or ""), "config": config}


def _first_of(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _masked(value: Any) -> Any:
    """A setting as it may be shown: a password in an address stays here."""
    if isinstance(value, str):
        return _PASSWORD.sub("://…@", value)
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value


def reward_of(index: Index) -> dict[str, Any]:
    """Mean reward with its interval over examples, of a run that has no summary yet."""
    places: dict[str, int] = {}
    rewards = Column()
    for key, reward in index.ask(f"SELECT example_key, reward FROM {SCANNED} WHERE {EVERY} AND reward IS NOT NULL"):
        rewards.add(places.setdefault(str(key), len(places)), float(reward))  # pyright: ignore[reportArgumentType]
    try:
        return rewards.estimate._asdict()
    except OverflowError as error:
        raise RunError(f"{index.file}: the rewards are too large for a mean ({error})") from error


def slots(drawn: Mapping[str, Any]) -> list[int]:
    """The counts of a histogram at equal distances, empty ones included."""
    counts = [0] * BARS
    width = drawn["high"] / BARS - drawn["low"] / BARS if drawn["bars"] else 0.0
    for bar in drawn["bars"]:  # divided first: a difference may be larger than any number
        counts[min(BARS - 1, round(bar["from"] / width - drawn["low"] / width) if width else 0)] += bar["count"]
    return counts if drawn["bars"] else []


def thinned(values: list[float], most: int) -> list[float]:
    """A curve of at most so many points, each the mean of those it stands for."""
    size = max(1, -(-len(values) // most))
    parts = [values[i : i + size] for i in range(0, len(values), size)]
    return [sum(part) / len(part) for part in parts]


def changed(path: Path) -> float:
    """When something was last written to a run, in seconds since 1970."""
    names = ("rollouts.jsonl", "metrics.jsonl", "summary.json", "config.toml")
    return max((stat.st_mtime for name in names if (stat := _stat(path / name))), default=0.0)


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def status(run: Run) -> str:
    """ "complete", "running" or "stopped"."""
    lock = _stat(run.path / ".lock")
    if lock is not None and _is_locked(lock):
        return "running"
    if (run.path / "summary.json").exists():
        return "complete"
    seen = Path("/proc/locks").exists()
    return "running" if not seen and time.time() - changed(run.path) < RECENT else "stopped"


def why_stopped(run: Run, now: str) -> str:
    """What ended a run that is stopped; "" where it could not say so (`kill -9`, a machine that went down)."""
    return _masked(run.why_stopped())[:WHY] if now == "stopped" else ""


def _is_locked(file: os.stat_result) -> bool:
    """Whether somebody holds a lock on the file; to take one to find out could turn away a run that starts just now."""
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        return any(place in line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines())
    except OSError:
        return False
