"""Sets that others have labeled: does `rove audit` find their defects, and does it leave their healthy environments alone?

    python -m venv build/peers && build/peers/bin/pip install rl-envdoctor==0.1.0 rewardlint==0.1.0 falsepass==0.11.0
    PYTHONPATH=build/peers/lib/python3.11/site-packages python benchmarks/audit/others.py

| set | specimens | labels |
|---|---|---|
| rl-envdoctor | its zoo: 15 defective and 8 healthy rewards, of five to nine rows each | in the zoo |
| rewardlint | its five reference verifiers on products of two numbers | its docstrings: two can be gamed, three cannot |
| falsepass | its demonstration environment | one planted defect |

gradecheck 0.1.0 has no cases of its own. Any finding of the severity counts as detected; a specimen's own label says which defect
its author meant. Results go to runs/audit_others/NAME.json; repeat the command to continue.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from rove import compat
from rove.audit.auditor import audit
from rove.audit.report import json_report

LIBRARIES = Path(__file__).parent / "libraries"
RUNS = Path("runs") / "audit_others"
GATES = {"high": ("high",), "medium": ("high", "medium")}
"""Gate → severities that count as detected."""
VERIFIERS = {
    "exact_match": "",
    "boxed_exact": "",
    "robust_match": "",
    "substring_match": "the answer may be anywhere in the reply",
    "last_number": "a number that is dismissed counts as the answer",
}
"""Reference verifiers of rewardlint → the defect by its docstring; "" for a healthy one."""


class Specimen(NamedTuple):
    """An environment with a label."""

    set: str
    name: str
    defect: str
    """What its author meant; "" for a healthy one."""
    env: str
    env_dir: Path
    env_args: dict[str, Any]


def specimens() -> Iterator[Specimen]:
    """Yield the specimens of the packages that are installed."""
    if importlib.util.find_spec("envdoctor"):
        from envdoctor.zoo import SPECIMENS  # an optional library

        for chosen in SPECIMENS:
            args = {"specimen": chosen.name}
            yield Specimen("rl-envdoctor", chosen.name, chosen.expects or "", "envdoctor_specimen", LIBRARIES, args)
    if importlib.util.find_spec("rewardlint"):
        for name, defect in VERIFIERS.items():
            yield Specimen("rewardlint", name, defect, "rewardlint_verifier", LIBRARIES, {"verifier": name})
    package = importlib.util.find_spec("falsepass")
    if package is not None and package.origin is not None:
        demo = Path(package.origin).parent / "_demo"
        yield Specimen("falsepass", "falsepass_toy_env", "answer in reply", "falsepass_toy_env", demo, {})


def result(specimen: Specimen) -> dict[str, Any]:
    """Audit a specimen, or return the stored report."""
    path = RUNS / f"{specimen.name}.json"
    if not path.exists():
        report = asyncio.run(audit(specimen.env, str(specimen.env_dir), specimen.env_args))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(json_report(report)))
    return json.loads(path.read_text())


def main() -> None:
    """Audit the specimens, and print a table and the counts of each set at each gate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of sets and specimens")
    only = parser.parse_args().only
    compat.install_fallback()  # falsepass's environment imports verifiers
    console = Console(width=130)
    table = Table("set", "specimen", "label", "findings (severity)", "CPU-s", width=130)
    detected: dict[tuple[str, str, bool], int] = {}
    totals: dict[tuple[str, bool], int] = {}
    for specimen in specimens():
        if only and specimen.name not in only and specimen.set not in only:
            continue
        report = result(specimen)
        severities = {finding["severity"] for finding in report["findings"]}
        is_healthy = not specimen.defect
        for gate, counted in GATES.items():
            key = specimen.set, gate, is_healthy
            detected[key] = detected.get(key, 0) + (not severities.isdisjoint(counted))
        totals[specimen.set, is_healthy] = totals.get((specimen.set, is_healthy), 0) + 1
        names = ", ".join(f"{finding['id']} ({finding['severity']})" for finding in report["findings"]) or "–"
        label = specimen.defect or "healthy"
        table.add_row(specimen.set, specimen.name, label, names, f"{report['cpu_seconds']:g}")
    console.print(table)
    for set_ in dict.fromkeys(set_ for set_, _ in totals):
        for gate in GATES:
            num_detected, accused = detected.get((set_, gate, False), 0), detected.get((set_, gate, True), 0)
            defects, healthy = totals.get((set_, False), 0), totals.get((set_, True), 0)
            console.print(
                f"{set_}, gate {gate}: {num_detected} of {defects} defects, {accused} of {healthy} healthy ones accused"
            )


if __name__ == "__main__":
    main()
