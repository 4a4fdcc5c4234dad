"""Run every test target of the Makefile once and print how many tests passed, failed and were skipped, and why: `make test-all`.

A failing target does not stop the others. The exit status is the highest of all targets. Each target's output is kept in
build/test-all.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

TARGETS = (
    "test",
    "test-broad",
    "test-slow",
    "test-real",
    "test-models",
    "test-ray",
    "test-mcp",
    "test-integrations",
    "test-trainers",
    "test-clients",
    "test-pythons",
    "test-notebook",
)
LOGS = Path("build/test-all")
SUMMARY = re.compile(r"^(?:=+ )?(?:\d+ \w+, )*\d+ \w+ in [\d.]+s")
"""The last line of a pytest run, for example "3 failed, 8959 passed, 18 skipped, 59 warnings in 2056.48s"."""
COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] \S+: (.*)$")
RED = re.compile(r"^(?:FAILED|ERROR) .+$")


@dataclass
class Outcome:
    """The results in the output of a target, which may run pytest several times."""

    target: str
    status: int = 0
    seconds: float = 0.0
    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    skip_reasons: Counter[str] = field(default_factory=Counter)
    failed_tests: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Add the results in a line of the output."""
        if skip := SKIPPED.match(line):
            self.skip_reasons[skip[2]] += int(skip[1])
        elif RED.match(line):
            self.failed_tests.append(line)
        elif SUMMARY.match(line):
            self.runs += 1
            for number, word in COUNT.findall(line):
                self.counts[word.removesuffix("s") if word.startswith("error") else word] += int(number)


def run_target(target: str) -> Outcome:
    """Run a target, print its output, and write it to a file."""
    outcome = Outcome(target)
    started = time.monotonic()
    command = ["make", "--no-print-directory", target]
    with (LOGS / f"{target}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            log.write(line)
            outcome.read(line.rstrip("\n"))
        outcome.status = process.wait()
    outcome.seconds = time.monotonic() - started
    return outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table, the skipped tests with their reasons, and the names of the tests that failed."""
    row = "{:<18} {:>6} {:>7} {:>7} {:>7} {:>8} {:>5} {:>8}".format
    lines = [row("target", "status", "passed", "failed", "errors", "skipped", "runs", "minutes")]
    for outcome in outcomes:
        counts = outcome.counts
        lines.append(
            row(
                outcome.target,
                outcome.status,
                counts["passed"],
                counts["failed"],
                counts["error"],
                counts["skipped"],
                outcome.runs,
                f"{outcome.seconds / 60:.1f}",
            )
        )
    for outcome in outcomes:
        lines += [f"{outcome.target}: skipped {number}: {reason}" for reason, number in outcome.skip_reasons.items()]
        lines += [f"{outcome.target}: {name}" for name in outcome.failed_tests]
        if outcome.status and not outcome.failed_tests:
            lines.append(f"{outcome.target}: ended with status {outcome.status}; see {LOGS / outcome.target}.log")
    return "\n".join(lines)


def main(targets: Sequence[str]) -> int:
    """Run the targets and print the table; return the highest exit status."""
    LOGS.mkdir(parents=True, exist_ok=True)
    outcomes = [run_target(target) for target in targets]
    print("\n" + table(outcomes))
    return max(abs(outcome.status) for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or TARGETS))
