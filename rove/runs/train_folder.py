"""The folder of `rove train` and `rove demo`: a run folder per stage and per evaluation, and the files about all of them."""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from rove.core.errors import RunError
from rove.core.findings import Finding
from rove.core.plain import UNREADABLE, JsonObject
from rove.runs.layout import COMPLETE, DIAGNOSES, EVALUATIONS, RECIPE, RESULTS
from rove.runs.run import Run
from rove.utils.files import open_regular, read_regular
from rove.utils.systems import lock_file

T = TypeVar("T")

LOCK = ".train_lock"
"""File that a command locks while it makes the recipe or trains; the folder of a single run has another one."""
FIRST_START = "first_start"
"""Folder that keeps the model, the SFT and the evaluation of a start on which a second one has followed."""
RECALL_LINE = 'init = "recall"'
"""Line of the recipe of a second start."""


class ResultRow(msgspec.Struct, frozen=True):
    """A row of the results table."""

    name: str
    model: str
    """Folder or name of the model that was evaluated."""
    conditions: dict[str, JsonObject]
    """Condition → summary of its evaluation."""

    @property
    def is_trained(self) -> bool:
        """Whether the row shows a model after a training stage."""
        return self.name.startswith("+ ")


class Diagnosis(Finding, frozen=True, omit_defaults=True, kw_only=True):
    """A finding about a stage of `rove train`: the reason why it does not improve the model."""

    stage: str
    """The stage: "sft", "rl1", …, or "examine" for the environment before training."""
    steps: int
    """Maximum number of steps of the stage; `step` is the step after which it was diagnosed."""

    @property
    def row(self) -> JsonObject:
        """The diagnosis as a row of `diagnoses.json`."""
        origin = {"stage": self.stage, "step": self.step, "steps": self.steps}
        return origin | msgspec.to_builtins(self)


class Completion(msgspec.Struct, frozen=True):
    """The content of `complete.json`."""

    identity: JsonObject = {}
    """The recipe and the versions with which the rows of `results.json` were measured."""
    notes: list[str] = []
    """Notes about the table."""
    cost: str = ""
    """Time and memory, as a sentence."""


class TrainFolder:
    """The folder of one `rove train`.

    Args:
        path: The folder; see `rove.runs.layout.is_train_folder`.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @property
    def is_complete(self) -> bool:
        """Whether all stages and evaluations are complete."""
        return (self.path / COMPLETE).exists()

    def rows(self) -> list[ResultRow]:
        """Return the rows of the results table that have been measured.

        Raises:
            RunError: The file is damaged.
        """
        return _read(self.path / RESULTS, list[ResultRow], [])

    def completion(self) -> Completion:
        """Return the record of a complete run; it is empty until then.

        Raises:
            RunError: The file is damaged.
        """
        return _read(self.path / COMPLETE, Completion, Completion())

    def start_notes(self) -> list[str]:
        """Return a note about the first start if the run has started again."""
        # The recipe is the last file that a second start writes: without its line, the first start is still to be repeated.
        has_recipe = (self.path / RECIPE).is_file()
        if not has_recipe or RECALL_LINE not in read_regular(self.path / RECIPE).decode(errors="replace"):
            return []
        if not (self.path / FIRST_START).is_dir():
            return []
        return [
            f"this is the second model of the run: SFT of the first one (random weights, kept in {FIRST_START}) stopped "
            "improving before it had learned the task; the second one has layers that can find and copy parts of the prompt"
        ]

    def diagnoses(self) -> list[Diagnosis]:
        """Return the diagnoses, oldest first.

        Raises:
            RunError: The file is damaged.
        """
        file = self.path / DIAGNOSES
        try:
            return _read(file, list[Diagnosis], [])
        except KeyError as error:
            raise RunError(f"{file}: unknown finding {error}; delete the file") from error

    def stages(self) -> list[Run]:
        """Return the runs of data, SFT, and RL that have begun, in their order."""
        numbered = [path.name for path in self.path.iterdir() if re.fullmatch(r"rl\d+", path.name)]
        numbered.sort(key=lambda name: int(name[2:]))
        names = ["data", "sft", "rl", *numbered, "full"]
        return [Run(self.path / name) for name in names if (self.path / name / "config.toml").is_file()]

    def evaluation_folder(self, row: str, condition: str) -> Path:
        """Return the run folder of an evaluation in the results table."""
        # `\w` without the underscore: letters and digits of any script.
        name = re.sub(r"[\W_]+", "-", f"{row}-{condition}").strip("-")
        return self.path / EVALUATIONS / name


@contextmanager
def locked(folder: Path, attempts: int = 1) -> Generator[None]:
    """Return a context manager in which no other command writes a recipe, or trains, in a folder.

    Args:
        attempts: How many times to try, every tenth of a second; the processes that train together may write a recipe at the
            same time.

    Raises:
        RunError: Another command does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The file stays: deleting it would be a race.
    with open_regular(folder / LOCK, "ab") as file:
        for attempt in range(1, attempts + 1):
            try:
                lock_file(file, wait=False)
                break
            except OSError as error:
                if attempt == attempts:
                    raise RunError(
                        f"another command trains in {folder}; wait for it, or give another --run-dir (run_dir in Python)"
                    ) from error
            time.sleep(0.1)
        yield


def _read(file: Path, kind: type[T], default: T) -> T:
    """Return the content of a JSON file; `default` if there is no file."""
    try:
        return msgspec.json.decode(read_regular(file), type=kind)
    except FileNotFoundError:
        return default
    except (OSError, *UNREADABLE) as error:
        raise RunError(f"{file} cannot be read: {error}; delete it and repeat the command") from error
