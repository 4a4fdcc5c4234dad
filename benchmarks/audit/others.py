"""Sets that others have labeled: does `rove audit` find their defects, and does it leave their healthy environments alone?

    python -m venv build/envdoctor && build/envdoctor/bin/pip install rl-envdoctor==0.1.0
    PYTHONPATH=build/envdoctor/lib/python3.11/site-packages python benchmarks/audit/others.py

The zoo of rl-envdoctor has 15 defective specimens and 8 healthy ones, of five to nine rows each. Any finding of the severity
counts as detected; a specimen's own label says which defect its author meant. Results go to runs/audit_others/NAME.json;
repeat the command to continue.
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

from rove.audit.auditor import audit
from rove.audit.report import json_report

LIBRARIES = Path(__file__).parent / "libraries"
RUNS = Path("runs") / "audit_others"
GATES = {"high": ("high",), "medium": ("high", "medium")}
"""Gate → severities that count as detected."""


def result(specimen: str) -> dict[str, Any]:
    """Audit a specimen, or return the stored report."""
    path = RUNS / f"{specimen}.json"
    if not path.exists():
        report = asyncio.run(audit("envdoctor_specimen", str(LIBRARIES), {"specimen": specimen}))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(json_report(report)))
    return json.loads(path.read_text())


def main() -> None:
    """Audit the specimens, and print a table and the counts at each gate."""
    from envdoctor.zoo import SPECIMENS  # an optional library

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of specimens")
    only = parser.parse_args().only
    console = Console(width=130)
    table = Table("specimen", "label", "findings (severity)", "CPU-s", width=130)
    counts = {(gate, is_healthy): 0 for gate in GATES for is_healthy in (True, False)}
    totals = {True: 0, False: 0}
    for specimen in SPECIMENS:
        if only and specimen.name not in only:
            continue
        report = result(specimen.name)
        severities = {finding["severity"] for finding in report["findings"]}
        for gate, counted in GATES.items():
            counts[gate, specimen.healthy] += not severities.isdisjoint(counted)
        totals[specimen.healthy] += 1
        names = ", ".join(f"{finding['id']} ({finding['severity']})" for finding in report["findings"]) or "–"
        table.add_row(specimen.name, specimen.expects or "healthy", names, f"{report['cpu_seconds']:g}")
    console.print(table)
    for gate in GATES:
        found, accused = counts[gate, False], counts[gate, True]
        console.print(
            f"gate {gate}: {found} of {totals[False]} defects, {accused} of {totals[True]} healthy ones accused"
        )


if __name__ == "__main__":
    main()
