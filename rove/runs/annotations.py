"""Annotations of a run: tags of the run and its rollouts, and notes on rollouts, in annotations.jsonl.

Each line is a change; the current annotations result from applying all lines in order. Lines are written independently of the
process that writes rollouts, so a run can be annotated while it is in progress.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from rove.core.errors import ConfigError, RunError
from rove.core.plain import UNREADABLE
from rove.runs.serialization import RolloutKey
from rove.utils.files import open_regular, read_lines, truncate_torn_line
from rove.utils.systems import lock_file

FILE = "annotations.jsonl"
MAX_TAG_CHARS = 40
MAX_NOTE_CHARS = 20_000
MAX_TAGS_PER_CHANGE = 50


class RolloutId(msgspec.Struct, frozen=True):
    """Identifies a rollout by values that stay the same when it is repeated."""

    example_key: str
    rollout_index: int
    step: int | None = None

    @property
    def key(self) -> RolloutKey:
        """The same values as a dict key."""
        return self.step, self.example_key, self.rollout_index


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of annotations by a user.

    Example:
        >>> annotate(Path("runs/a"), Change(add=["interesting"], rollout=RolloutId("f00d", 0)))
    """

    add: list[str] = []
    """Tags to add."""
    remove: list[str] = []
    """Tags to remove; tags that the rollout does not have are ignored."""
    note: str | None = None
    """New note; "" deletes the note, None leaves it unchanged."""
    rollout: RolloutId | None = None
    """The rollout; None = the whole run."""
    at: float = 0.0
    """Time in seconds since 1970."""

    def __post_init__(self) -> None:
        if len(self.add) + len(self.remove) > MAX_TAGS_PER_CHANGE:
            raise ValueError(
                f"{len(self.add) + len(self.remove)} tags in one change; expected at most {MAX_TAGS_PER_CHANGE}"
            )
        for tag in (*self.add, *self.remove):
            if not 0 < len(tag) <= MAX_TAG_CHARS or tag != tag.strip() or not tag.isprintable():
                raise ValueError(
                    f"a tag is {tag[: 2 * MAX_TAG_CHARS]!r}; expected 1 to {MAX_TAG_CHARS} visible characters "
                    "without leading or trailing spaces"
                )
        if len(self.note or "") > MAX_NOTE_CHARS:
            raise ValueError(f"the note has {len(self.note or ''):,} characters; expected at most {MAX_NOTE_CHARS:,}")
        if self.note is not None and self.rollout is None:
            raise ValueError("a run cannot have a note, only tags; set `rollout` to annotate a rollout")


class Annotation(NamedTuple):
    """The current annotations of a run or of a rollout."""

    tags: tuple[str, ...] = ()
    """Tags, oldest first."""
    note: str = ""

    def apply(self, change: Change) -> Annotation:
        """Return the annotations after a change."""
        remaining = [tag for tag in self.tags if tag not in change.remove]
        tags = dict.fromkeys([*remaining, *change.add])  # without duplicates, in this order
        note = self.note if change.note is None else change.note
        return Annotation(tuple(tags), note)


class Annotations:
    """The current annotations of a run, which are read again when the file has changed."""

    def __init__(self, folder: Path):
        self.file = folder / FILE
        self.run = Annotation()
        self.rollouts: dict[RolloutKey, Annotation] = {}
        """Annotations of the rollouts that have any."""
        self.bad: list[tuple[int, str]] = []
        """Numbers of invalid lines, counted from 1, with the reasons."""
        self.stamp: tuple[int, ...] = ()
        """A value that changes when the file's contents change."""
        self.reload()

    def reload(self) -> None:
        """Read the file again if it has changed; an incomplete last line is ignored."""
        try:
            with open_regular(self.file) as lines:
                status = os.fstat(lines.fileno())
                # The size as well: two changes within the clock's resolution have the same time.
                stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
                if stamp != self.stamp:
                    self._read(read_lines(lines))
                    self.stamp = stamp
        except FileNotFoundError:
            self.run, self.rollouts, self.bad, self.stamp = Annotation(), {}, [], ()

    def _read(self, lines: Iterable[bytes]) -> None:
        annotations: dict[RolloutKey | None, Annotation] = {}
        bad: list[tuple[int, str]] = []
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):  # another process is writing it
                break
            try:
                change = msgspec.json.decode(line, type=Change)
            except UNREADABLE as error:
                bad.append((number, str(error)))
                continue
            key = change.rollout.key if change.rollout else None
            annotations[key] = annotations.get(key, Annotation()).apply(change)
        self.run = annotations.pop(None, Annotation())
        self.rollouts = {}
        for key, annotation in annotations.items():
            if key is not None and annotation != Annotation():
                self.rollouts[key] = annotation
        self.bad = bad

    def tags(self) -> list[str]:
        """Return the tags of all rollouts in alphabetical order."""
        tags: set[str] = set()
        for annotation in self.rollouts.values():
            tags.update(annotation.tags)
        return sorted(tags)

    def check(self) -> None:
        """Check that every line could be read."""
        if self.bad:
            number, reason = self.bad[0]
            raise RunError(f"{self.file}, line {number}: not an annotation: {reason}\nDelete or correct that line")


def annotate(folder: Path, change: Change) -> None:
    """Write a change to disk."""
    if not change.add and not change.remove and change.note is None:
        raise ConfigError("the change is empty; pass tags to add or remove, or a note")
    line = msgspec.json.encode(msgspec.structs.replace(change, at=change.at or time.time()))
    with open_regular(folder / FILE, "ab") as file:
        lock_file(file)
        truncate_torn_line(folder / FILE)  # an incomplete line was never acknowledged
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())  # unlike a rollout, a person's note cannot be repeated
