"""Write rollouts and run folders for tests of code that reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from rove.core.records import ErrorInfo, RolloutRecord, Scores, TrajectoryStep, Usage
from rove.runs.run import Run
from rove.runs.serialization import CHECKSUM_BYTES

FAILURE = ErrorInfo("model", "InfraError", "no answer", "Traceback: line 1", ["HTTP 500", "HTTP 502"])


def make_record(example: int = 0, rollout: int = 0, win: float | None = 1.0, **fields: Any) -> RolloutRecord:
    """Return a rollout of one turn with the scores `win` and 0.2 for its format, or a failed one if `win` is None."""
    prompt = [{"role": "user", "content": f"question {example}"}]
    completion = [{"role": "assistant", "content": f"answer {rollout}"}] if win is not None else []
    result = RolloutRecord(
        example_key=f"key{example}",
        example_id=example,
        rollout_index=rollout,
        seed=0,
        prompt=prompt,
        completion=completion,
        answer=str(example),
        info={"level": example},
        steps=[TrajectoryStep(prompt, completion)] if completion else [],
        stop_condition="answered" if win is not None else None,
        is_truncated=False,
        scores=None if win is None else make_scores(win),
        error=FAILURE if win is None else None,
        usage=Usage(10, 5),
    )
    return msgspec.structs.replace(result, **fields)


def edit_line(line: bytes, old: bytes, new: bytes) -> bytes:
    """Return a line of rollouts.jsonl with some bytes replaced and without its checksum, as after an edit by hand."""
    end = b"\n" if line.endswith(b"\n") else b""
    content = line.removesuffix(end)[:-CHECKSUM_BYTES] + b"}"
    return content.replace(old, new) + end


def make_scores(win: float, **metrics: float) -> Scores:
    """Return scores of a rubric with two reward functions and the metric `length`."""
    return Scores(win + 0.2, {"win": win, "format": 1.0}, {"win": 1.0, "format": 0.2}, {"length": 3.0, **metrics})


def write_run_folder(path: Path, records: Iterable[RolloutRecord], kind: str = "eval", **config: Any) -> Run:
    """Write a run folder with these rollouts and without a summary."""
    run = Run(path)
    with run:
        run.start(kind, {"env": "quiz", "model": "someone/model", **config}, {})
        for rollout in records:
            run.append_rollout(rollout)
    return run
