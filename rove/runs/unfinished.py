"""Run folders of runs that ended early: what stopped.json says, and the removal of a folder without results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from rove.core.errors import end_reason
from rove.utils.files import atomic_write

NO_RESULTS = ("config.toml", "versions.json", ".lock")
"""Files of a run folder that hold no results."""


def end_early(folder: Path, error: BaseException, created: Sequence[Path], resume_command: str = "") -> None:
    """Leave a run folder as its run ended: with stopped.json, or not at all if the run failed before its first result.

    Args:
        folder: the run folder.
        error: what ended the run; after an interruption the folder stays.
        created: the folders that were created for the run, the run folder first; [] if it existed before.
        resume_command: shell command that resumes the run; "" if there is none.
    """
    with suppress(OSError):  # the disk may be full
        if not (isinstance(error, Exception) and remove_without_results(created)):
            report = stopped_report(folder, error, resume_command)
            atomic_write(folder / "stopped.json", msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def stopped_report(folder: Path, error: BaseException, resume_command: str = "") -> dict[str, Any]:
    """Return the content of stopped.json.

    Args:
        folder: the run folder.
        error: what ended the run.
        resume_command: shell command that resumes it; "" if there is none.

    Returns:
        `why`; `rollouts`, their number; `step`, the last training step; `resume`, the command.
    """
    report: dict[str, Any] = {"why": end_reason(error)}
    with suppress(OSError, msgspec.MsgspecError):  # a damaged file must not hide the reason
        report["rollouts"] = _lines(folder / "rollouts.jsonl")[0]
        if last := _lines(folder / "metrics.jsonl")[1]:
            report["step"] = msgspec.json.decode(last, type=dict).get("step")
    return report | ({"resume": resume_command} if resume_command else {})


def remove_without_results(created: Sequence[Path]) -> bool:
    """Delete a run folder that holds nothing but settings, and its parents if they are empty then.

    Args:
        created: the folders that were created for the run, the run folder first; [] if it existed before.

    Returns:
        whether the run folder was deleted.
    """
    if not created or not {child.name for child in created[0].iterdir()} <= {*NO_RESULTS}:
        return False
    for file in created[0].iterdir():
        file.unlink()
    created[0].rmdir()
    with suppress(OSError):  # a parent that is not empty stays
        for folder in created[1:]:
            folder.rmdir()
    return True


def _lines(file: Path) -> tuple[int, bytes]:
    """Return the number of complete lines of a file, and the last of them; (0, b"") if it does not exist."""
    count, last = 0, b""
    if file.exists():
        with file.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    count, last = count + 1, line
    return count, last
