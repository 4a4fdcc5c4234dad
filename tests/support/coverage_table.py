"""Run the quick tests with coverage.py and print the line and branch coverage of each package: `make coverage`.

The interpreters that tests start are measured too, unless a test replaces PYTHONPATH. Forks are not: worker processes end with
`os._exit`, which saves nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "coverage"
"""Folder of the installed package coverage and of its measurements."""
CONFIG = f"""
[run]
branch = true
parallel = true
source = {ROOT / "rove"}
data_file = {FOLDER / "data" / "coverage"}
"""
START = "import coverage\ncoverage.process_startup()\n"
"""Each interpreter runs this file when it starts."""


def measure(arguments: list[str]) -> int:
    """Run the quick tests of the given paths, by default all; return the exit status of pytest."""
    (FOLDER / "data").mkdir()
    (FOLDER / "coverage.ini").write_text(CONFIG)
    (FOLDER / "sitecustomize.py").write_text(START)
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "COVERAGE_PROCESS_START": str(FOLDER / "coverage.ini"),
    }
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-n", "2", "--dist", "loadfile"]
    return subprocess.run([*pytest, *arguments], cwd=ROOT, env=environment, check=False).returncode


def report() -> dict[str, Counter[str]]:
    """Return the counts of coverage.py summed per package."""
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    coverage = [sys.executable, "-m", "coverage"]
    config = f"--rcfile={FOLDER / 'coverage.ini'}"
    subprocess.run([*coverage, "combine", config, "--quiet"], cwd=ROOT, env=environment, check=True)
    out = FOLDER / "coverage.json"
    subprocess.run([*coverage, "json", config, "--quiet", "-o", str(out)], cwd=ROOT, env=environment, check=True)
    packages: dict[str, Counter[str]] = {}
    for name, file in json.loads(out.read_text())["files"].items():
        parts = Path(name).parts
        package = parts[1] if len(parts) > 2 else "rove"
        numbers = {key: value for key, value in file["summary"].items() if isinstance(value, int)}
        packages.setdefault(package, Counter()).update(numbers)
    return packages


def table(packages: dict[str, Counter[str]]) -> str:
    """Return one line per package, and one for all of them."""
    row = "{:<14} {:>8} {:>8} {:>9} {:>9}".format
    lines = [row("package", "lines", "run", "branches", "taken")]
    total = Counter[str]()
    for counts in packages.values():
        total.update(counts)
    for package, counts in [*sorted(packages.items()), ("all", total)]:
        lines_run = counts["covered_lines"] / max(1, counts["num_statements"])
        branches_taken = counts["covered_branches"] / max(1, counts["num_branches"])
        lines.append(
            row(package, counts["num_statements"], f"{lines_run:.1%}", counts["num_branches"], f"{branches_taken:.1%}")
        )
    return "\n".join(lines)


if __name__ == "__main__":
    status = measure(sys.argv[1:])
    print("\n" + table(report()))
    sys.exit(status)
