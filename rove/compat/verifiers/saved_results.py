"""Results that `evaluate(save_results=True)` saves in a folder, from which a later run resumes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rove.compat.verifiers.messages import plain
from rove.compat.verifiers.types import RolloutOutput
from rove.core.errors import excerpt
from rove.core.plain import UNREADABLE
from rove.utils.files import atomic_write

_RESUMED_SETTINGS = ("env_id", "model", "rollouts_per_example", "shuffle", "shuffle_seed")
_RESULTS_FILE, _METADATA_FILE = "results.jsonl", "metadata.json"


def saved_outputs(folder: Path, metadata: Mapping[str, Any]) -> list[Any]:
    """Return the outputs that an earlier run saved in a folder; none if it has no results."""
    if not (folder / _RESULTS_FILE).is_file():
        return []
    try:
        saved = _read_object((folder / _METADATA_FILE).read_text(encoding="utf-8"))
        lines = _complete_lines((folder / _RESULTS_FILE).read_text(encoding="utf-8"))
        outputs = [RolloutOutput(_read_object(line)) for line in lines if line.strip()]
        num_saved = saved.get("num_examples") or 0
        if not isinstance(num_saved, int):
            raise ValueError(f"num_examples is {excerpt(num_saved)}; expected an integer")
    # The folder is never overwritten: it may hold the results of another run.
    except (OSError, ValueError, *UNREADABLE) as error:
        raise ValueError(f"{folder} has results that cannot be read ({error}); choose another results_path") from error
    saved = {"shuffle": False, **saved}  # v0's own files may lack it
    different = [name for name in _RESUMED_SETTINGS if saved.get(name) != metadata[name]]
    if different:
        pairs = ", ".join(f"{name} {saved.get(name)!r} instead of {metadata[name]!r}" for name in different)
        raise ValueError(f"{folder} has results with {pairs}; choose another results_path")
    if num_saved > metadata["num_examples"]:
        raise ValueError(
            f"{folder} has results of {num_saved} examples, and this run has only {metadata['num_examples']}; "
            "choose another results_path, or at least as many examples"
        )
    return outputs


def _complete_lines(text: str) -> list[str]:
    """Return the lines of a file, without a last line that a killed process left incomplete."""
    # Not `splitlines`, which also splits at characters that a JSON string may contain, such as U+2028.
    *lines, last_line = text.split("\n")
    with suppress(ValueError, *UNREADABLE):
        json.loads(last_line)
        lines.append(last_line)
    return lines


def _read_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{excerpt(value)}; expected a JSON object")
    return value


def without_saved(groups: Sequence[list[Any]], outputs: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return the groups without rollouts that the outputs already contain."""
    num_saved = Counter(output["example_id"] for output in outputs)
    remaining = []
    # With independent scoring, several groups of one rollout belong to the same example.
    for group in groups:
        example_id = group[0]["example_id"]
        num_finished = min(num_saved[example_id], len(group))
        num_saved[example_id] -= num_finished
        if group[num_finished:]:
            remaining.append(group[num_finished:])
    return remaining


def write_results(results: Mapping[str, Any], folder: Path) -> None:
    """Write `results.jsonl` and `metadata.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / _RESULTS_FILE, _as_lines(results["outputs"]))
    metadata = json.dumps(plain(results["metadata"]), default=str, indent=2)
    atomic_write(folder / _METADATA_FILE, metadata.encode())


def append_outputs(outputs: Sequence[Any], folder: Path) -> None:
    """Append outputs to `results.jsonl`."""
    with (folder / _RESULTS_FILE).open("ab") as file:
        file.write(_as_lines(outputs))


def _as_lines(outputs: Sequence[Any]) -> bytes:
    lines: list[str] = []
    for output in outputs:
        row = plain(output)
        row.pop("trajectory", None)  # as in v0; it repeats the conversation for every turn
        lines.append(json.dumps(row, default=str))
    return "".join(f"{line}\n" for line in lines).encode()
