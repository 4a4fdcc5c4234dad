"""`rove demo hacking`: a model learns to exploit a hole in a grader; with the exact grader, it does not."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from rove.audit.auditor import AuditOptions
from rove.audit.findings import Report
from rove.audit.report import json_report
from rove.cli.common import hint
from rove.core.config import convert
from rove.core.plain import JsonObject
from rove.stages.auditing import run_audit
from rove.stages.evaluation import EvalConfig, run_eval
from rove.stages.reporter import WIDTH, ConsoleReporter

ENV = "sums"
GRADERS = {"anywhere": "accepts the sum anywhere in the reply", "exact": "accepts the sum and nothing else"}
CHECKS = ("blind-reply", "hedging", "learned-reward")
STAGES = {"sft": "before RL", "rl": "after RL"}
LEARN: JsonObject = {"steps": 60, "max_tokens": 64, "learning_rate": 5e-4, "second_phase": False}
"""Settings of the learner. The table compares the models before and after the first phase of RL."""
EVALUATION: JsonObject = {"num_examples": 56, "rollouts_per_example": 8, "temperature": 1.0}
"""Settings of each evaluation, which uses held-out sums."""


def run_hacking(folder: Path, seed: int, console: Console, device: str = "auto") -> JsonObject:
    """Audit both graders of `sums` with the learner, evaluate what it learned, and print the table.

    Returns:
        `reports` and `rows` of the table as JSON values.
    """
    reporter = ConsoleReporter(console)
    reports: dict[str, Report] = {}
    rows: list[JsonObject] = []
    for grader, meaning in GRADERS.items():
        console.print(f"\nAudit the grader '{grader}': {meaning}", style="bold", soft_wrap=True)
        args, runs = {"grader": grader}, folder / grader
        learn = {**LEARN, "folder": runs, "seed": seed, "device": device}
        reports[grader] = run_audit(ENV, None, args, AuditOptions(only=CHECKS, seed=seed), reporter, learn)
        for finding in reports[grader].findings:
            console.print(f"  {finding.severity.value}: {finding.text}", soft_wrap=True)
        if not reports[grader].findings:
            console.print("  no findings")
        rows += [_row(grader, stage, runs, console, device) for stage in STAGES]
    console.print()
    console.print(_table(rows))
    a, b = (folder / grader / "eval-rl" for grader in GRADERS)
    hint(
        console,
        f"the reward rises and right answers do not: rove view {folder}",
        f"both models, question by question: rove compare {a} {b} --value exact",
        f'the fix is one argument: rove audit {ENV} -a \'{{"grader": "exact"}}\' --learn',
    )
    return {"reports": [json_report(report) for report in reports.values()], "rows": rows, "folder": str(folder)}


def _row(grader: str, stage: str, runs: Path, console: Console, device: str) -> JsonObject:
    """Evaluate the learner's model after a stage; return the row of the table."""
    settings = {"env": ENV, "env_args": {"grader": grader}, "model": str(runs / stage / "final"), "device": device}
    output = {"run_dir": str(runs / f"eval-{stage}"), "overwrite": True}
    config = convert(EvalConfig, {**settings, **EVALUATION, **output, "max_tokens": LEARN["max_tokens"]})
    result, _ = run_eval(config, ConsoleReporter(console), f"{grader}, {STAGES[stage]}")
    summary = result.to_dict()
    return {"grader": grader, "model": STAGES[stage], "reward": summary["reward"], **summary["functions"]}


def _table(rows: list[JsonObject]) -> Table:
    """Return a table of rewards and true accuracies."""
    table = Table(title="sums: what RL learns from each grader", width=WIDTH)
    for title in ("grader", "model", "reward", "right answers", "numbers per reply"):
        table.add_column(title, justify="left" if title in ("grader", "model") else "right")
    for row in rows:
        values = [row["reward"], row["exact"], row["numbers_per_reply"]]
        table.add_row(row["grader"], row["model"], *(f"{value['mean']:.3f}" for value in values))
    return table
