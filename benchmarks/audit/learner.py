"""Reward holes that no static check names: does `rove audit --learn` find them, and does it leave clean environments alone?

    python benchmarks/audit/learner.py                      # 15 environments, three seeds, one to ten CPU-minutes each
    python benchmarks/audit/learner.py --only pen_boxes --seeds 0

The author of `learned` knew what the learner can do (random words, short replies), and saw that the static checks find nothing.
LABELS.json has the holes with their sources. Results go to runs/audit_learned/NAME-SEED.json; repeat the command to continue.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from rove.audit.auditor import AuditOptions, audit
from rove.audit.learning import LearnOptions, check_learned
from rove.audit.report import json_report

HERE = Path(__file__).parent / "learned"
RUNS = Path("runs") / "audit_learned"
SECONDS = 1800.0
"""Time budget of an audit, generous for busy machines."""
CHECK = "learned-reward"
FOUND = ("medium", "high")
"""Severities that count as detected."""


def result(name: str, seed: int) -> dict[str, Any]:
    """Run the learner in an environment, or return the stored report."""
    path = RUNS / f"{name}-{seed}.json"
    if not path.exists():
        folder = RUNS / f"{name}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted audit
        learner = partial(check_learned, options=LearnOptions(folder=folder, seed=seed))
        options = AuditOptions(only=(CHECK,), seconds=SECONDS, seed=seed)
        report = asyncio.run(audit(name, str(HERE), options=options, learner=learner))
        path.write_bytes(msgspec.json.encode(json_report(report)))
    return json.loads(path.read_text())


def verdict(report: dict[str, Any]) -> str:
    """Return "found (severity)", "–", or why the check was not done."""
    if CHECK in report["skipped"]:
        return f"not done: {report['skipped'][CHECK]}"
    severities = [finding["severity"] for finding in report["findings"] if finding["id"] == CHECK]
    return f"found ({severities[0]})" if severities else "–"


def main() -> None:
    """Run the learner in all environments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of environments")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    console = Console(width=130)
    labels = [
        label for label in json.loads((HERE / "LABELS.json").read_text()) if not args.only or label["name"] in args.only
    ]
    reports = {(label["name"], seed): result(label["name"], seed) for seed in args.seeds for label in labels}
    table = Table("environment", "hole", *(f"seed {seed}" for seed in args.seeds), "CPU-s", width=130)
    num_found = {True: 0, False: 0}
    for label in labels:
        seed_reports = [reports[label["name"], seed] for seed in args.seeds]
        hits = sum(any(finding["severity"] in FOUND for finding in report["findings"]) for report in seed_reports)
        num_found[bool(label["defect"])] += hits
        seconds = sum(report["cpu_seconds"] for report in seed_reports) / len(seed_reports)
        table.add_row(label["name"], label["defect"] or "clean", *map(verdict, seed_reports), f"{seconds:.0f}")
    console.print(table)
    holes = sum(bool(label["defect"]) for label in labels) * len(args.seeds)
    clean = len(labels) * len(args.seeds) - holes
    console.print(
        f"found in {num_found[True]} of {holes} runs with a hole; false alarms in {num_found[False]} of {clean} clean runs"
    )


if __name__ == "__main__":
    main()
