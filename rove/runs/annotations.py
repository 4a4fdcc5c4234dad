"""What people say of a run: tags of the run and of its rollouts, and notes on rollouts, in annotations.jsonl of its folder.

A line is a change; all of them in their order are what is said now. A line is appended and flushed, and needs nothing of
whoever makes the rollouts, so that a run can be annotated while it goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from rove.core.errors import ConfigError, RunError
from rove.utils.files import heal, open_regular, read_lines

try:
    import fcntl
except ImportError:  # Windows: two people who annotate at the very same moment are not noticed there
    fcntl = None

FILE = "annotations.jsonl"
LONGEST_TAG = 40
"""Characters of a tag."""
LONGEST_NOTE = 20_000
"""Characters of a note."""
MOST = 50
"""Tags added or removed by one change."""

Place = tuple[int | None, str, int]
"""A rollout: training step (None outside of RL), example key, sibling."""


class Subject(msgspec.Struct, frozen=True):
    """A rollout by the values that are the same however often it is repeated."""

    example_key: str
    rollout_index: int
    step: int | None = None

    @property
    def place(self) -> Place:
        """As a key."""
        return self.step, self.example_key, self.rollout_index


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person has changed.

    Raises:
        ValueError: a tag is empty, longer than LONGEST_TAG, or has spaces around it or characters that cannot be seen; a note is
            too long, or is of a whole run.
    """

    add: list[str] = []
    """Tags."""
    remove: list[str] = []
    """Tags; those that are not there are left out."""
    note: str | None = None
    """Takes the place of the one before, "" leaves none; None: nothing was said of it."""
    rollout: Subject | None = None
    """None: the run as a whole."""
    at: float = 0.0
    """When, in seconds since 1970."""

    def __post_init__(self) -> None:
        if len(self.add) + len(self.remove) > MOST:
            raise ValueError(f"{len(self.add) + len(self.remove)} tags at once; expected {MOST} at most")
        for tag in (*self.add, *self.remove):
            if not 0 < len(tag) <= LONGEST_TAG or tag != tag.strip() or not tag.isprintable():
                raise ValueError(
                    f"a tag is {tag[: 2 * LONGEST_TAG]!r}; expected 1 to {LONGEST_TAG} visible characters, no space at either end"
                )
        if len(self.note or "") > LONGEST_NOTE:
            raise ValueError(f"a note has {LONGEST_NOTE:,} characters at most, this one {len(self.note or ''):,}")
        if self.note is not None and self.rollout is None:
            raise ValueError("a note is written on a rollout; a run has tags only")


class Said(NamedTuple):
    """What is said of a run, or of a rollout."""

    tags: tuple[str, ...] = ()
    """The oldest first."""
    note: str = ""

    def after(self, change: Change) -> Said:
        """The same once something has been changed."""
        left = [tag for tag in self.tags if tag not in change.remove]
        return Said(tuple(dict.fromkeys([*left, *change.add])), self.note if change.note is None else change.note)


class Annotations:
    """What is said now, read again when the file has changed.

    Args:
        folder: of the run; nothing need have been said of it yet.
    """

    def __init__(self, folder: Path):
        self.file = folder / FILE
        self.run = Said()
        self.rollouts: dict[Place, Said] = {}
        """Only those of which something is said."""
        self.bad: list[tuple[int, str]] = []
        """Lines that are no annotations, counted from 1, and why."""
        self.stamp: tuple[int, ...] = ()
        """Differs where the contents do."""
        self.catch_up()

    def catch_up(self) -> None:
        """Read what is new; a last line without its end is being written, or was torn."""
        try:
            with open_regular(self.file) as lines:
                found = os.fstat(lines.fileno())
                stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
                if stamp != self.stamp:
                    self._read(read_lines(lines))
                    self.stamp = stamp
        except FileNotFoundError:
            self.run, self.rollouts, self.bad, self.stamp = Said(), {}, [], ()

    def _read(self, lines: Iterable[bytes]) -> None:
        said: dict[Place | None, Said] = {}
        bad = []
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                change = msgspec.json.decode(line, type=Change)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                bad.append((number, str(error)))
                continue
            place = change.rollout.place if change.rollout else None
            said[place] = said.get(place, Said()).after(change)
        self.run = said.pop(None, Said())
        self.rollouts = {place: one for place, one in said.items() if place is not None and one != Said()}
        self.bad = bad

    def tags(self) -> list[str]:
        """The tags of rollouts, in the order of the alphabet."""
        return sorted({tag for said in self.rollouts.values() for tag in said.tags})

    def check(self) -> None:
        """Refuse to go on without a line that cannot be read.

        Raises:
            RunError: there is one.
        """
        if self.bad:
            number, why = self.bad[0]
            raise RunError(f"{self.file}, line {number}: not an annotation: {why}\nDelete that line, or mend it")


def annotate(folder: Path, change: Change) -> None:
    """Keep a change: once this returns, killing the process does not lose it.

    Raises:
        ConfigError: nothing is changed.
        RunError: annotations.jsonl is something other than a regular file.
        OSError: nothing can be written there.
    """
    if not change.add and not change.remove and change.note is None:
        raise ConfigError("nothing to change; give tags to add or to remove, or a note")
    line = msgspec.json.encode(msgspec.structs.replace(change, at=change.at or time.time()))
    with open_regular(folder / FILE, "ab") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        heal(folder / FILE)  # what was torn was never confirmed to anybody
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
