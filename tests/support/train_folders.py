"""Write a folder of `rove train` for tests of code that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from run_folders import make_record, write_run_folder

from rove.core.records import RolloutRecord
from rove.runs.run import Run
from rove.runs.train_folder import COMPLETE, DIAGNOSES, RECIPE, RESULTS, ResultRow, TrainFolder
from rove.statistics import Tally

NUM_EXAMPLES = 60
DIAGNOSIS = {"id": "collapse", "text": "the entropy fell", "stage": "rl1", "step": 3, "steps": 9}


def write_train_folder(
    path: Path, scripts: Mapping[str, int] = MappingProxyType({}), solved: int = 57, best_step: int = 2
) -> TrainFolder:
    """Write a complete run of SFT and RL, in which SFT solves the first 10 of 60 questions.

    Args:
        scripts: Names of scripted policies, each with the number of questions that it solves.
        solved: Number of questions that the model solves after RL; the last three have level 2.
        best_step: Step of each stage whose weights are kept.
    """
    folder = TrainFolder(path)
    rows: list[ResultRow] = []
    solved_by = {f"scripted:{name}": count for name, count in scripts.items()} | {
        "base": 0,
        "+ SFT": 10,
        "+ RL": solved,
    }
    for name, count in solved_by.items():
        stage = {"base": "model", "+ SFT": "sft/final", "+ RL": "rl1/final"}.get(name)
        run = write_run_folder(
            folder.evaluation_folder(name, "greedy"), [_graded(i, i < count) for i in range(NUM_EXAMPLES)]
        )
        tally = Tally()
        for outcome in run.outcomes():
            tally.add(outcome)
        rows.append(ResultRow(name, str(path / stage) if stage else name, {"greedy": tally.result().to_dict()}))
    _stage(
        path / "sft",
        "sft",
        {"data": str(path / "data"), "seed": 3},
        [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}],
        best_step,
    )
    held_out = {"reward/mean": 0.5, "eval/greedy/reward/mean": 0.8}
    _stage(
        path / "rl1", "rl", {"env": "quiz", "steps": 9}, [{"step": 1, **held_out}, {"step": 2, **held_out}], best_step
    )
    (path / RESULTS).write_bytes(msgspec.json.encode(rows))
    (path / DIAGNOSES).write_bytes(msgspec.json.encode([DIAGNOSIS]))
    (path / RECIPE).write_text('env = "quiz"\n', encoding="utf-8")
    (path / COMPLETE).write_bytes(
        msgspec.json.encode({"identity": {}, "notes": ["a note"], "cost": "took 2.0 minutes"})
    )
    return folder


def _graded(example: int, is_right: bool) -> RolloutRecord:
    rollout = make_record(example, win=float(is_right), info={"level": example // 20})
    reply = f"answer {example}" if is_right else "no idea"
    return msgspec.structs.replace(rollout, completion=[{"role": "assistant", "content": reply}])


def _stage(path: Path, kind: str, config: dict[str, object], metrics: list[dict[str, float]], best_step: int) -> Run:
    run = Run(path)
    with run:
        run.start(kind, config, {})
        for row in metrics:
            run.append_metrics(row)
        best = {"metric": "eval/greedy/reward/mean", "value": 0.8, "step": best_step}
        run.finish({"steps": len(metrics), "best": best, "stopped": "the reward has reached its target"})
    return run
