"""Audit every environment that rove can load without a network, and write benchmarks/reports/audit_report.md.

    python benchmarks/audit/survey.py                     # at most 30 CPU-minutes; repeat the command to continue
    python benchmarks/audit/survey.py --only TextArena
    python benchmarks/audit/survey.py --report            # write the page from the results that there are

Results go to runs/audit_survey/results.jsonl, a line per environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from survey_page import page

from rove import compat
from rove.audit.auditor import AuditOptions, audit
from rove.audit.report import json_report

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNS = Path("runs") / "audit_survey"
PAGE = ROOT / "benchmarks" / "reports" / "audit_report.md"
GAMES = (
    *("TicTacToe-v0", "ConnectFour-v0", "Othello-v0", "Breakthrough-v0", "KuhnPoker-v0", "PigDice-v0", "Nim-v0"),
    *(
        "IteratedPrisonersDilemma-v0",
        "IteratedRockPaperScissors-v0",
        "Blackjack-v0",
        "GuessTheNumber-v0",
        "Mastermind-v0",
    ),
    *("FrozenLake-v0", "TowerOfHanoi-v0", "Bandit-v0", "Secretary-v0", "ThreeCardMonte-v0", "LightsOut-v0"),
)
"""Two-player and one-player games that are played offline."""
PART_CPU_SECONDS, PART_SECONDS = 20.0, 1800.0
"""Time limits of a part of a family's audit: CPU time, and time."""


class Task(NamedTuple):
    """An environment to audit."""

    source: str
    name: str
    """Name in the report."""
    env: str
    env_dir: str | None
    env_args: dict[str, Any]
    options: AuditOptions


def tasks() -> Iterator[Task]:
    """Yield all environments."""
    options = AuditOptions(num_examples=30, seconds=900.0)
    for name in sorted(folder.name for folder in (ROOT / "environments").iterdir() if folder.is_dir()):
        yield Task("rove", name, name, str(ROOT / "environments"), {}, options)
    for file in sorted((ROOT / "tests" / "compat_packages").glob("*.py")):
        yield Task("v0 packages", file.stem, file.stem, str(file.parent), {}, options)
    games = AuditOptions(num_examples=6, only=("blind-game", "reward-statistics"), seconds=900.0)
    for game in GAMES:
        yield Task("TextArena", game, "text_arena_game", str(HERE / "libraries"), {"game": game}, games)


def families() -> list[str]:
    """Return the names of reasoning-gym's families."""
    code = "from reasoning_gym.factory import DATASETS; print(*sorted(DATASETS))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def facts() -> dict[str, Any]:
    """Return facts about the rows of all families, computed once in one process; see `row_facts.py`."""
    path = RUNS / "rows.json"
    if not path.exists():
        done = subprocess.run([sys.executable, HERE / "row_facts.py"], stdout=subprocess.PIPE, check=True)
        path.write_bytes(done.stdout)
    return json.loads(path.read_text())


def results() -> list[dict[str, Any]]:
    """Return the latest result of each environment."""
    path = RUNS / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    latest = {(result["source"], result["name"]): result for result in map(json.loads, lines)}
    return sorted(latest.values(), key=lambda result: (result["source"], result["name"]))


def audit_families(names: list[str]) -> Iterator[dict[str, Any]]:
    """Audit families of reasoning-gym in a worker; one that hangs or ends it is reported, and another worker goes on."""
    while names:
        command = [sys.executable, str(HERE / "family_worker.py"), *names]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
            last: dict[str, Any] = {}
            for line in _lines(worker):
                last = json.loads(line)
                if last["part"] == "end":
                    names.remove(last["name"])
                    yield last
            worker.kill()
        if last and last["part"] != "end":
            names.remove(last["name"])
            is_reply = last["part"] == "execution"
            cause = "a strange reply hangs the grader" if is_reply else "a part of the audit needs too much time"
            text = f"{cause}: the process was ended after {PART_CPU_SECONDS:g} CPU-s"
            finding = {
                "check": "grader-robustness" if is_reply else "load",
                "severity": "high" if is_reply else "info",
                "text": text,
            }
            last["findings"].append(finding)
            yield last
        elif not last:
            raise RuntimeError(f"the worker ended at once: {' '.join(command[:2])}")


def _lines(worker: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield a worker's lines until it ends, or uses too much time for one."""
    assert worker.stdout is not None
    unfinished_line, used, since = b"", cpu_seconds(worker.pid), time.monotonic()
    while True:
        if select.select([worker.stdout], [], [], 2.0)[0]:
            piece = os.read(worker.stdout.fileno(), 1 << 20)
            if not piece:
                return
            *lines, unfinished_line = (unfinished_line + piece).split(b"\n")
            yield from lines
            used, since = cpu_seconds(worker.pid), time.monotonic()
        elif cpu_seconds(worker.pid) - used > PART_CPU_SECONDS or time.monotonic() - since > PART_SECONDS:
            return


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Audit, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="sources and names")
    parser.add_argument("--again", action="store_true", help="audit also what has a result")
    parser.add_argument("--report", action="store_true", help="write the page only")
    args = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    compat.install_fallback()  # the v0 packages import verifiers
    console = Console(width=120)
    done = {(result["source"], result["name"]) for result in results()}

    def is_due(source: str, name: str) -> bool:
        is_chosen = not args.only or not {source, name}.isdisjoint(args.only)
        return is_chosen and not args.report and (args.again or (source, name) not in done)

    def keep(source: str, line: dict[str, Any]) -> None:
        with (RUNS / "results.jsonl").open("ab") as file:
            file.write(msgspec.json.encode({"source": source, **line}) + b"\n")
        findings = (
            ", ".join(f"{finding['id']} ({finding['severity']})" for finding in line.get("findings", []))
            or "no findings"
        )
        console.print(
            f"{source} / {line['name']}: {line.get('error') or findings}; {line.get('cpu_seconds', 0):g} CPU-s"
        )

    for line in audit_families([family for family in families() if is_due("reasoning-gym", family)]):
        keep("reasoning-gym", line)
    for task in tasks():
        if is_due(task.source, task.name):
            report = asyncio.run(audit(task.env, task.env_dir, task.env_args, task.options))
            keep(task.source, {"name": task.name, **json_report(report)})
    # without paths of this machine
    text = page(results(), facts()).replace(f"{ROOT}/", "").replace(sys.executable, "python")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
