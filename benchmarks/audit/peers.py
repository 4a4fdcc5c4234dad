"""Other audit tools on the planted environments, side by side with `rove audit`.

    python3 -m venv build/peers
    build/peers/bin/pip install falsepass gradecheck rewardprobe rewardlint datasets aiohttp msgspec rich click tomli-w simpleeval
    python benchmarks/audit/planted.py          # first: the results of rove
    python benchmarks/audit/peers.py --python build/peers/bin/python

`peer_worker.py` runs each tool in a process of its own, with rove's verifiers v0 API in place of the library. Results go to
runs/audit_peers/TOOL/SET/NAME.json; repeat the command to continue. rlenv-audit has no checks of its own that run without an
agent, and rewardlint tests single functions of a completion and a reference; falsepass runs it where a reference can be replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from planted import FOUND, HERE, SETS, labels
from planted import RUNS as PLANTED
from rich.console import Console
from rich.table import Table

RUNS = Path("runs") / "audit_peers"
ROOT = HERE.parents[1]
SECONDS = 180.0
"""Time limit of a tool on one environment."""
TOOLS = ("falsepass", "gradecheck", "rewardprobe")
KINDS: dict[str, dict[str, tuple[str, ...]]] = {
    "falsepass": {
        "blind-reply": ("P3", "P4", "P5", "P6", "P7", "A1", "S1"),
        "hedging": ("P5", "P9", "P14", "P15", "S3"),
        "own-answer": ("P1", "P2", "P12 conflicting_labels"),
        "monotonicity": ("P6", "P7", "P13", "P17", "S1"),
        "grader-robustness": ("P10", "P13", "errors"),
        "judge-injection": ("P8",),
        "determinism": ("P11", "T4"),
        "data-overlap": ("P12 duplicate_prompt", "P12 near_duplicate_prompt"),
        "answer-leak": ("T8",),
        "blind-game": ("T5", "T6", "S1"),
        "policy-search": ("S1",),
        "length": ("P9",),
        "parser-agreement": ("P14",),
    },
    "gradecheck": {
        "blind-reply": ("empty-completion", "prompt-echo", "garbage", "format-only", "flattery"),
        "judge-injection": ("flattery",),
        "answer-leak": ("answer-leak",),
    },
    "rewardprobe": {
        "blind-reply": (
            *("empty", "whitespace", "random_tokens", "echo_prompt", "constant_output", "format_only", "common_prefix"),
        ),
        "hedging": ("multiple_tags", "duplicate_answers", "answer_in_reasoning"),
        "own-answer": ("ground_truth", "format_variation"),
        "monotonicity": ("regex_greediness",),
        "grader-robustness": ("malformed_xml", "none_handling"),
        "determinism": ("determinism", "state_leak", "stale_state"),
        "reward-statistics": ("reward_range", "signal_variance"),
        "blind-game": ("tool_skip", "tool_spam", "early_termination"),
        "parser-agreement": ("multiple_tags", "answer_in_reasoning"),
    },
}
"""Tool → check of rove → the tool's names for findings of that kind."""


def result(python: str, tool: str, set_: str, name: str) -> dict[str, Any]:
    """Run a tool on an environment, or return the stored result."""
    path = RUNS / tool / set_ / f"{name}.json"
    if not path.exists():
        command = [python, str(HERE / "peer_worker.py"), tool, set_, name]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "shim")])
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=SECONDS, check=False, env={**os.environ, "PYTHONPATH": paths}
            )
            outcome = json.loads(done.stdout or b'{"alarms": [], "strict": false, "failed": true, "note": "no output"}')
        except subprocess.TimeoutExpired:
            outcome = {
                "alarms": ["errors"],
                "strict": True,
                "note": f"no result in {SECONDS:g} s",
                "cpu_seconds": SECONDS,
            }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(outcome))
    return json.loads(path.read_text())


def rove_result(set_: str, name: str) -> dict[str, Any]:
    """Return the stored result of `planted.py` in the same form."""
    report = json.loads((PLANTED / set_ / f"{name}.json").read_text())
    alarms = [finding["id"] for finding in report["findings"] if finding["severity"] in FOUND]
    is_high = any(finding["severity"] == "high" for finding in report["findings"])
    return {"alarms": alarms, "strict": is_high, "cpu_seconds": report["cpu_seconds"]}


def has_kind(tool: str, checks: list[str], alarms: list[str]) -> bool:
    """Return whether an alarm names the right kind of defect."""
    names = {name for check in checks for name in KINDS.get(tool, {}).get(check, ())}
    return bool(set(checks if tool == "rove audit" else names) & set(alarms))


def main() -> None:
    """Run the tools and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", default="build/peers/bin/python", help="interpreter of the tools' virtual environment"
    )
    python = parser.parse_args().python
    console = Console(width=120)
    table = Table(width=120)
    for title in (
        *("tool", "defects: an alarm of the right kind", "defects: any alarm", "defects: own gate fails"),
        *("clean: any alarm", "clean: own gate fails", "not audited", "CPU-s"),
    ):
        table.add_column(title)
    for tool in ("rove audit", *TOOLS):
        kind = any_alarm = gate = clean_alarm = clean_gate = failed = 0
        seconds = 0.0
        for set_ in SETS:
            for label in labels(set_):
                is_rove = tool == "rove audit"
                outcome = rove_result(set_, label["name"]) if is_rove else result(python, tool, set_, label["name"])
                seconds += outcome.get("cpu_seconds", 0)
                failed += bool(outcome.get("failed"))
                if label["checks"]:
                    kind += has_kind(tool, label["checks"], outcome["alarms"])
                    any_alarm, gate = any_alarm + bool(outcome["alarms"]), gate + outcome["strict"]
                else:
                    clean_alarm, clean_gate = clean_alarm + bool(outcome["alarms"]), clean_gate + outcome["strict"]
        table.add_row(tool, *map(str, (kind, any_alarm, gate, clean_alarm, clean_gate, failed)), f"{seconds:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
