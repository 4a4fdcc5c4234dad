"""Audit environments that nobody who works on rove wrote, and write docs/audit_report.md with a judgment of each finding.

    python benchmarks/audit/real_environments.py                 # about 15 CPU-minutes; repeat the command to continue
    python benchmarks/audit/real_environments.py --only Nim-v0 --again
    python benchmarks/audit/real_environments.py --report        # write the page from the results that there are

`real_environments.toml` lists the environments and the judgments. Packages are cloned from their public repositories.
Results go to runs/audit_real/NAME.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNS = Path("runs") / "audit_real"
LIST = HERE / "real_environments.toml"
NUM_EXAMPLES = {"TextArena": 20}
"""Examples of a source; a game of TextArena is played in a process of its own, so that 60 take minutes per policy."""
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


if __name__ == "__main__":
    main()
