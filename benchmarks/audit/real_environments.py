"""Audit environments that others wrote, and write docs/audit_report.md with a judgment of each finding.

    python benchmarks/audit/real_environments.py                 # about 15 CPU-minutes; repeat the command to continue
    python benchmarks/audit/real_environments.py --only Nim-v0 --again
    python benchmarks/audit/real_environments.py --report        # write the page from the results that there are

`real_environments.toml` lists the environments and the judgments. Packages are cloned from their public repositories.
Results go to runs/audit_real/NAME.json.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rove.audit.findings import CHECKS
from rove.integrations.known_defects import known_defects
from rove.statistics.intervals import proportion_interval
from rove.utils.markdown import table_lines

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNS = Path("runs") / "audit_real"
LIST = HERE / "real_environments.toml"
PAGE = ROOT / "docs" / "audit_report.md"
NUM_EXAMPLES = {"TextArena": 20}
"""Examples of a source; a game of TextArena is played in a separate process, so 60 games take minutes per policy."""
DEFAULT_NUM_EXAMPLES = 60
SECONDS = 3600.0
"""Time budget of an audit, in seconds of wall time."""


class Task(NamedTuple):
    """An environment to audit."""

    source: str
    name: str
    """Name in the report."""
    version: str
    env: str
    """Argument of `rove audit`."""
    env_dir: Path
    env_args: dict[str, Any]


def tasks(listed: dict[str, Any]) -> Iterator[Task]:
    """Yield all environments of the list."""
    libraries = HERE / "libraries"
    version = importlib.metadata.version("reasoning-gym")
    for family in listed["reasoning-gym"]["families"]:
        yield Task("reasoning-gym", family, version, "reasoning_gym_family", libraries, {"family": family})
    version = importlib.metadata.version("textarena")
    for game in listed["textarena"]["games"]:
        yield Task("TextArena", game, version, "text_arena_game", libraries, {"game": game})
    for repository, paths in listed["packages"].items():
        facts = listed["repositories"][repository]
        for path in map(Path, paths):
            folder = RUNS / "repositories" / repository / path.parent
            yield Task("verifiers v0", path.name, facts["commit"][:8], path.name, folder, {})


def clone(repository: str, facts: dict[str, str], paths: list[str]) -> None:
    """Check out some folders of a repository, unless they are there already."""
    folder = RUNS / "repositories" / repository
    if all((folder / path).exists() for path in paths):
        return
    folder.mkdir(parents=True, exist_ok=True)
    commands = (
        ("clone", "--quiet", "--no-checkout", "--filter=blob:none", facts["url"], "."),
        ("checkout", "--quiet", facts["commit"], "--", *paths),
    )
    for command in commands:
        subprocess.run(["git", *command], cwd=folder, check=True)


def audit(task: Task, file: Path) -> None:
    """Run `rove audit` as its users do, and write its report."""
    command = [sys.executable, "-m", "rove", "audit", task.env, "--env-dir", str(task.env_dir)]
    command += ["-a", json.dumps(task.env_args)] if task.env_args else []
    command += ["-n", str(NUM_EXAMPLES.get(task.source, DEFAULT_NUM_EXAMPLES)), "--seconds", str(SECONDS)]
    subprocess.run([*command, "-o", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


class JudgedFinding(NamedTuple):
    """A finding of severity medium or high, and the judgment of it."""

    task: Task
    finding: dict[str, Any]
    holds: bool | None
    """Whether the finding is true; None if it has not been judged yet."""
    reason: str


def judged(task: Task, report: dict[str, Any], judgments: Sequence[dict[str, Any]]) -> Iterator[JudgedFinding]:
    """Yield the findings of severity medium or high of an environment with their judgments."""
    for finding in report["findings"]:
        if finding["severity"] not in ("high", "medium"):
            continue
        holds, reason = None, "not judged yet"
        for judgment in judgments:
            is_of_task = judgment["environment"] in (task.name, task.source)
            is_of_check = judgment["check"] == finding["id"] and judgment.get("text", "") in finding["text"]
            if is_of_task and is_of_check:
                holds, reason = judgment["holds"], judgment["reason"]
                break
        yield JudgedFinding(task, finding, holds, reason)


def not_checked(report: dict[str, Any]) -> list[str]:
    """Return the checks that matter and were not done, and those that were not selected; only --learn does the last one."""
    left_out = [check for check in CHECKS if check not in report["checks"] and check != "learned-reward"]
    return [*report["unchecked"], *left_out]


def share(rows: Sequence[JudgedFinding]) -> str:
    """Return the share of true findings with its 95% interval."""
    decisions = [float(row.holds) for row in rows if row.holds is not None]
    if not decisions:
        return "–"
    low, high = proportion_interval(decisions)
    return f"{sum(decisions):.0f} of {len(decisions)} ({sum(decisions) / len(decisions):.2f} [{low:.2f}, {high:.2f}])"


def page(listed: dict[str, Any]) -> str:
    """Return the page with all results that there are."""
    reports: list[tuple[Task, dict[str, Any]]] = []
    missing: list[str] = []
    for task in tasks(listed):
        file = RUNS / f"{task.name}.json"
        if file.exists():
            reports.append((task, json.loads(file.read_text())))
        else:
            missing.append(task.name)
    rows = [row for task, report in reports for row in judged(task, report, listed["judgment"])]
    other_rows = [row for row in rows if row.finding["id"] != "seed-shift"]
    accused = {row.task.name for row in rows if row.holds is False}
    seconds = [report["cpu_seconds"] for _, report in reports]
    today = datetime.datetime.now(datetime.UTC)
    lines = [
        "# Audit of environments by others",
        "",
        f"`python benchmarks/audit/real_environments.py` wrote this page on {today:%Y-%m-%d} with rove "
        f"{importlib.metadata.version('rove')}. It audits {len(reports)} environments that others wrote: "
        "families of reasoning-gym, games of TextArena against an opponent that moves at random, and packages for verifiers v0 "
        "from public repositories. Each finding of severity medium or high was judged by reading the environment's code: "
        "it holds if a policy can do what the finding says and the designer cannot have wanted it. The "
        "judgments are in `benchmarks/audit/real_environments.toml`.",
        "",
        f"- True findings: {share(rows)}; without `seed-shift`, which has one cause in all families: {share(other_rows)}.",
        f"- Environments with a false finding: {len(accused)} of {len(reports)} ({', '.join(sorted(accused)) or 'none'}).",
        f"- CPU-seconds per environment: {min(seconds):g} to {max(seconds):g}.",
    ]
    if missing:
        lines.append(f"- Not audited yet: {', '.join(missing)}.")
    lines += ["", "## Findings of severity medium or high", ""]
    verdicts = {True: "true", False: "**false**", None: "?"}
    cells = [
        (
            row.task.name,
            row.finding["severity"],
            row.finding["id"],
            row.finding["text"],
            verdicts[row.holds],
            row.reason,
        )
        for row in rows
    ]
    lines += table_lines(("environment", "severity", "check", "finding", "holds", "reason in the code"), cells)
    lines += ["", "## Defects that were known", ""]
    lines += ["A defect counts as found if the environment has a true finding other than `seed-shift`.", ""]
    with_true_finding = {row.task.name for row in other_rows if row.holds}
    defect_rows: list[tuple[str, ...]] = []
    for task, _ in reports:
        defects = [defect for defect in known_defects() if defect.task == task.name]
        result = "found" if task.name in with_true_finding else "not found"
        defect_rows += [(task.name, defect.text, result) for defect in defects]
    lines += table_lines(("environment", "defect", "audit"), defect_rows)
    lines += ["", "## Environments", ""]
    facts = [
        (
            task.source,
            task.name,
            task.version,
            f"{report['rollouts']:,}",
            f"{report['cpu_seconds']:g}",
            str(len(report["checks"]) - len(report["skipped"])),
            ", ".join(not_checked(report)),
        )
        for task, report in reports
    ]
    lines += table_lines(("source", "name", "version", "rollouts", "CPU-s", "checks done", "not checked"), facts)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Audit, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of environments")
    parser.add_argument("--again", action="store_true", help="audit also what has a result")
    parser.add_argument("--report", action="store_true", help="write the page only")
    args = parser.parse_args()
    listed = tomllib.loads(LIST.read_text())
    RUNS.mkdir(parents=True, exist_ok=True)
    if not args.report:
        for repository, facts in listed["repositories"].items():
            clone(repository, facts, listed["packages"][repository])
    for task in tasks(listed):
        file = RUNS / f"{task.name}.json"
        is_chosen = not args.only or task.name in args.only
        if args.report or not is_chosen or (file.exists() and not args.again):
            continue
        audit(task, file)
        values = json.loads(file.read_text()) if file.exists() else {"findings": [], "cpu_seconds": 0}
        names = ", ".join(f"{row['id']} ({row['severity']})" for row in values["findings"]) or "no findings"
        print(f"{task.source} / {task.name}: {names}; {values['cpu_seconds']:g} CPU-s", flush=True)
    # without paths of this machine
    PAGE.write_text(page(listed).replace(f"{ROOT}/", ""), encoding="utf-8")


if __name__ == "__main__":
    main()
