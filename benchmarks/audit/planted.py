"""Planted defects: does `rove audit` find them, by a check of the right kind, and does it leave clean environments alone?

    python benchmarks/audit/planted.py                      # all environments, up to 60 CPU-seconds each
    python benchmarks/audit/planted.py --set fresh --only percent_quiz

The author of `own` had the list of checks; the authors of `fresh` and `blind` had not seen them. LABELS.json of each folder has
the defects with their sources. Results go to runs/audit_planted/SET/NAME.json; repeat the command to continue.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from rove.audit.auditor import AuditOptions, audit
from rove.audit.report import json_report

HERE = Path(__file__).parent
RUNS = Path("runs") / "audit_planted"
SECONDS = 600.0
"""Time budget of an audit."""
SETS = ("own", "fresh", "blind")
FOUND = ("medium", "high")
"""Severities that count as detected."""


def labels(name: str) -> list[dict[str, Any]]:
    """Return the labels of a set: name, checks that may name the defect, severity."""
    return json.loads((HERE / name / "LABELS.json").read_text())


def result(set_: str, name: str) -> dict[str, Any]:
    """Audit an environment, or return the stored report."""
    path = RUNS / set_ / f"{name}.json"
    if not path.exists():
        report = asyncio.run(audit(name, str(HERE / set_), options=AuditOptions(seconds=SECONDS)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(json_report(report)))
    return json.loads(path.read_text())


def main() -> None:
    """Audit all environments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="*", choices=SETS, default=list(SETS), dest="sets")
    parser.add_argument("--only", nargs="*", help="names of environments")
    args = parser.parse_args()
    console = Console(width=130)
    table = Table("set", "environment", "defect", "found (severity)", "right", "CPU-s", width=130)
    defects = right = clean = accused = 0
    for set_ in args.sets:
        for label in labels(set_):
            if args.only and label["name"] not in args.only:
                continue
            report = result(set_, label["name"])
            serious_findings = [finding for finding in report["findings"] if finding["severity"] in FOUND]
            expected = label["checks"]
            if expected:
                is_right = any(finding["id"] in expected for finding in serious_findings)
                defects, right = defects + 1, right + is_right
            else:
                is_right = not any(finding["severity"] == "high" for finding in serious_findings)
                clean, accused = clean + 1, accused + (not is_right)
            names = ", ".join(f"{finding['id']} ({finding['severity']})" for finding in report["findings"]) or "–"
            expected_text = ", ".join(expected) or "clean"
            table.add_row(
                set_, label["name"], expected_text, names, "yes" if is_right else "NO", f"{report['cpu_seconds']:g}"
            )
            console.print(f"{set_}/{label['name']}: {names}")
    console.print(table)
    console.print(
        f"found {right} of {defects} defects; {accused} of {clean} clean environments with a finding of severity high"
    )


if __name__ == "__main__":
    main()
