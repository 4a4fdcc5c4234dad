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

from rove.annotations import FILE, Annotations
from rove.errors import ConfigError, RunError, nearest
from rove.runs import Run
from rove.statistics import Column
from rove.trained_tokens import TrainedRollout, file_of, read_tokens
from rove.viewer.growing import GrowingLines
from rove.viewer.index import Index, Progress
from rove.viewer.queries import BARS, EVERY, SCANNED, choose, columns, histogram

DEPTH = 6
"""Folders below the first in which runs are looked for: `rl/evaluations/NAME/STEP` is four deep."""
RECENT = 30.0
"""Seconds after its last word for which a run may be called running where locks cannot be seen."""
POINTS = 48
"""Of a small curve."""
NO_RUNS = {"checkpoints", "final", "tensorboard", "wandb", "tokens"}
"""Folders of a run that hold none."""

TOKENS = 1 << 26
"""Bytes of a file in tokens/ that is still read."""

READ = (
    "config.toml",
    "versions.json",
    "summary.json",
    "stopped.json",
    "rollouts.jsonl",
    "metrics.jsonl",
    "alarms.jsonl",
    FILE,
)
"""Files of a run that are read; tags and notes are written, too, where that is allowed."""

WHY = 600
"""Characters of what is told of a run that was stopped; the end of a log may be among it."""
_PASSWORD = re.compile(r"://[^/@\s\"]+@")


class Shelf:
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
        self.only = folder.resolve().name if (folder / "config.toml").is_file() else None
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
        """
        path = self._path(name)
        if path is None:
            raise ConfigError(f"no run '{name[:200]}' here; {nearest(name[:200], self.names())}")
        return Run(path)

    def _path(self, name: str) -> Path | None:
        parts = name.split("/")
        if "\0" in name or not all(parts) or {".", ".."} & set(parts) or (self.only and parts[0] != self.only):
            return None
        path = self.base.joinpath(*parts)
        try:
            there = (path / "config.toml").is_file() and all(self._is_ours(path / name) for name in READ)
        except (OSError, ValueError):  # a name too long, a folder that may not be entered
            return None
        return path if there else None

    def _is_ours(self, file: Path) -> bool:
        """Whether it is an ordinary file below the folder, or not there; a link may lead elsewhere, a pipe never end."""
        return file.resolve().is_relative_to(self.base) and (file.is_file() or not file.exists())

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
        file = file_of(run.path, step)
        if not self._is_ours(file) or (file.exists() and file.stat().st_size > TOKENS):
            return []
        try:
            return read_tokens(run.path, step)
        except RunError:
            return []

    def close(self) -> None:
        """Close the indexes."""
        for index in self._indexes.values():
            index.close()

    # what is told of a run

    def card(self, name: str) -> dict[str, Any]:
        """One row of the table of runs; `trouble` says what cannot be read of it."""
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
        try:
            content = described(run)
            summary = run.summary()
            card["why"] = why_stopped(run, now)
        except (RunError, msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
            return {**card, "kind": "unreadable", "status": "unreadable", "trouble": str(error)[:300]}
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


def _runs_below(folder: Path, base: Path, depth: int) -> Iterator[str]:
    try:
        children = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    if folder != base and any(entry.name == "config.toml" and entry.is_file() for entry in children):
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
    if not isinstance(content.get("kind"), str) or not isinstance(content.get("config"), dict):
        raise RunError(f"{run.path}/config.toml is not one that rove wrote")
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
    return rewards.estimate._asdict()


def slots(drawn: Mapping[str, Any]) -> list[int]:
    """The counts of a histogram at equal distances, empty ones included."""
    counts = [0] * BARS
    width = (drawn["high"] - drawn["low"]) / BARS if drawn["bars"] else 0.0
    for bar in drawn["bars"]:
        counts[min(BARS - 1, round((bar["from"] - drawn["low"]) / width) if width else 0)] += bar["count"]
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
