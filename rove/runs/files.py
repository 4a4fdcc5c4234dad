"""Read the files of a run folder, which may be damaged or made by a stranger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rove.core.errors import RunError
from rove.runs.schema import Config, Stopped, Summary, decoded, decoded_row
from rove.runs.upgrade import OLD_FILES, upgrade_config, upgrade_summary
from rove.utils.files import open_regular, read_lines, read_regular


class RunFiles:
    """The files of a run folder, opened for reading only.

    Symbolic links, pipes and devices are never opened, and what the files hold is checked: every method raises a RunError that
    names the file where it is something else than rove writes.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def summary(self) -> dict[str, Any] | None:
        """The summary of a completed run; None while it is not complete.

        Raises:
            RunError: it is damaged, or has values of other types than rove writes.
        """
        summary = self._json("summary.json", Summary, None)
        return summary and upgrade_summary(summary)

    def versions(self) -> list[dict[str, str]]:
        """The sets of versions that have written here, the first one first.

        Raises:
            RunError: versions.json is damaged.
        """
        return self._json("versions.json", list[dict[str, str]], [])

    def why_stopped(self) -> str:
        """What ended the run before it was complete; "" where nothing did, or it could not say so."""
        return self._json("stopped.json", Stopped, {"why": ""})["why"]

    def _json(self, name: str, expected: Any, otherwise: Any) -> Any:
        file = self.path / name
        return decoded(file, read_regular(file), expected) if os.path.lexists(file) else otherwise

    def config(self) -> dict[str, Any]:
        """What `start` was given: `kind`, `identity`, `config`.

        Raises:
            RunError: the folder is not a run, or its config.toml is damaged.
        """
        file = self.path / "config.toml"
        if not os.path.lexists(file):
            raise RunError(f"{self.path} is not a run folder: it has no config.toml")
        try:
            return upgrade_config(decoded(file, read_regular(file), Config, msgspec.toml.decode))
        except RunError as error:
            raise RunError(f"{self.path} is not a run folder: its config.toml cannot be read ({error})") from error

    def metrics(self) -> list[dict[str, Any]]:
        """Every step's metrics kept so far, oldest first.

        Raises:
            RunError: a line is damaged.
        """
        return self._rows("metrics.jsonl")

    def alerts(self) -> list[dict[str, Any]]:
        """Every alert kept so far, oldest first; see `metrics`."""
        return self._rows("alerts.jsonl")

    def _rows(self, name: str) -> list[dict[str, Any]]:
        rows = []
        for number, line in enumerate(self.lines_of(name), start=1):
            try:
                rows.append(decoded_row(line))
            except RunError as error:
                raise RunError(f"{self.path / name}, line {number}: {error}") from error
        return rows

    def lines_of(self, name: str) -> Iterator[bytes]:
        """Yield the complete lines of a file of the folder, without their newlines; none where there is no file."""
        file = self.path / name
        if name in OLD_FILES and not os.path.lexists(file):
            file = self.path / OLD_FILES[name]
        if os.path.lexists(file):
            with open_regular(file) as lines:
                yield from (line[:-1] for line in read_lines(lines) if line.endswith(b"\n"))
