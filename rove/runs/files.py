"""Read the files of a run folder, which may be damaged or untrusted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rove.core.errors import RunError
from rove.core.plain import JsonObject, JsonValue
from rove.runs.layout import runs_hint
from rove.runs.schema import Config, Stopped, Summary, decoded, decoded_row
from rove.utils.files import open_regular, read_lines, read_regular


class RunFiles:
    """The files of a run folder, opened for reading only.

    Symbolic links, pipes and devices are never opened. Every method checks the content and raises a RunError that names the
    file if rove did not write it.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def summary(self) -> JsonObject | None:
        """Return the summary of a completed run; None if it is incomplete.

        Raises:
            RunError: The file is damaged or has values of unexpected types.
        """
        return self._json("summary.json", Summary, None)

    def versions(self) -> list[dict[str, str]]:
        """Return the software versions that have written to the folder, oldest first.

        Raises:
            RunError: versions.json is damaged.
        """
        return self._json("versions.json", list[dict[str, str]], [])

    def why_stopped(self) -> str:
        """Return why the run ended early; "" if it did not end early or the reason was not recorded."""
        return self._json("stopped.json", Stopped, {"why": ""})["why"]

    def _json(self, name: str, expected: object, default: object) -> JsonValue:
        file = self.path / name
        return decoded(file, read_regular(file), expected) if os.path.lexists(file) else default

    def config(self) -> JsonObject:
        """Return the arguments of `Run.start`: `kind`, `identity`, `config`.

        Raises:
            RunError: The folder is not a run, or its config.toml is damaged.
        """
        file = self.path / "config.toml"
        if not os.path.lexists(self.path):
            raise RunError(f"{self.path} is not a run folder: it does not exist")
        if not os.path.lexists(file):
            raise RunError(f"{self.path} is not a run folder: it has no config.toml{runs_hint(self.path)}")
        try:
            return decoded(file, read_regular(file), Config, msgspec.toml.decode)
        except RunError as error:
            raise RunError(f"{self.path} is not a run folder: its config.toml cannot be read ({error})") from error

    def metrics(self) -> list[JsonObject]:
        """Return the metrics of every step, oldest first. Step 0 is a measurement of the initial weights.

        Raises:
            RunError: A line is damaged.
        """
        return self._rows("metrics.jsonl")

    def alerts(self) -> list[JsonObject]:
        """Return every alert, a finding with its `step`, oldest first; see `metrics`."""
        return self._rows("alerts.jsonl")

    def _rows(self, name: str) -> list[JsonObject]:
        rows: list[JsonObject] = []
        for number, line in enumerate(self.lines_of(name), start=1):
            try:
                rows.append(decoded_row(line))
            except RunError as error:
                raise RunError(f"{self.path / name}, line {number}: {error}") from error
        return rows

    def lines_of(self, name: str) -> Iterator[bytes]:
        """Yield the complete lines of a file of the folder, without newlines; none if the file does not exist."""
        file = self.path / name
        if os.path.lexists(file):
            with open_regular(file) as lines:
                # Another process may be writing the last line.
                yield from (line[:-1] for line in read_lines(lines) if line.endswith(b"\n"))
