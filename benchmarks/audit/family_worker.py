"""Audit families of reasoning-gym one after the other in this process; see `survey.py`.

An audit by `rove audit` starts five processes, which import the library. With over a hundred families that costs more than the
checks. This process prints a JSON line after each part of an audit; if a family hangs or ends it, the survey starts another one.

    python benchmarks/audit/family_worker.py chain_sum gcd
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from rove import load_environment
from rove.audit.answer_checks import check_hedging, check_monotonicity, check_own_answer
from rove.audit.auditor import AuditOptions
from rove.audit.baseline import measure_baseline
from rove.audit.data_checks import check_leaks, check_seed_shift
from rove.audit.findings import Report
from rove.audit.grader_checks import check_execution, check_parser, check_robustness
from rove.audit.overlap_checks import check_overlap
from rove.audit.report import json_report
from rove.audit.reward_checks import check_blind_replies
from rove.audit.rows import facts, parsed
from rove.audit.subject import Subject
from rove.core.findings import Finding

NAME = "reasoning_gym_family"
FOLDER = str(Path(__file__).parent / "libraries")
MEMORY_BYTES = 4 << 30
OPTIONS = AuditOptions(num_examples=20, seconds=1800.0)
ROWS = 40


async def audit_family(family: str, out: int) -> None:
    """Audit a family; write a line after each part."""
    args: dict[str, Any] = {"family": family, "num_examples": ROWS}
    report = Report(env=family, env_args=args)
    began = time.process_time()

    async def do(check: AsyncIterator[Finding]) -> None:
        report.findings += [finding async for finding in check]

    def write(part: str) -> None:
        report.cpu_seconds = round(time.process_time() - began, 1)
        os.write(out, msgspec.json.encode({"name": family, "part": part, **json_report(report)}) + b"\n")

    write("begin")
    subject = Subject(load_environment(NAME, FOLDER, **args), OPTIONS.num_examples, time.monotonic() + OPTIONS.seconds)
    await subject.read_rows()
    base = await measure_baseline(subject)
    await do(check_blind_replies(subject, base))
    if base.own is not None:
        for check in (check_hedging, check_own_answer, check_monotonicity):
            await do(check(subject, base))
        await do(check_parser(subject, base, lambda replies: parsed(NAME, FOLDER, args, replies)))
    report.rewards, report.rollouts = subject.rewards, subject.rollouts
    write("rewards")
    rows, reseeded_rows = facts(NAME, FOLDER, args), facts(NAME, FOLDER, {**args, "seed": 1})
    report.findings += check_overlap(rows["train"], rows["eval"], rows["has_both"])
    report.findings += check_leaks(rows["eval"])
    report.findings += check_seed_shift(rows["train"], reseeded_rows["train"])
    write("rows")
    with tempfile.TemporaryDirectory(prefix="rove-audit-") as folder:
        await do(check_execution(subject, base, Path(folder)))
    write("execution")
    await do(check_robustness(subject, base))
    report.rollouts = subject.rollouts
    write("end")


def main() -> None:
    """Audit the families of the command line."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = os.dup(1)
    os.dup2(2, 1)  # what the library prints
    for family in sys.argv[1:]:
        try:
            asyncio.run(audit_family(family, out))
        except Exception as error:  # a family that needs a download, for example
            text = f"{type(error).__name__}: {error}"[:300]
            os.write(out, msgspec.json.encode({"name": family, "part": "end", "error": text}) + b"\n")


if __name__ == "__main__":
    main()
