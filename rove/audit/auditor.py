"""Run the checks of an audit, each protected from the others and from the environment."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rove.audit.baseline import Baseline, measure_baseline
from rove.audit.data_checks import check_leaks, check_overlap, check_round_trip, check_same_rows, check_seed_shift
from rove.audit.findings import Finding, Report, Severity, selected, shortened
from rove.audit.game_checks import check_blind_games, check_message_leaks, shown_to_all
from rove.audit.grader_checks import (
    HASH_SEED,
    check_determinism,
    check_execution,
    check_injection,
    check_parser,
    check_robustness,
)
from rove.audit.guard import LOG_VARIABLE, events
from rove.audit.judge import Judge, judge_server
from rove.audit.reward_checks import (
    check_blind_replies,
    check_hedging,
    check_length,
    check_monotonicity,
    check_own_answer,
    check_statistics,
)
from rove.audit.search import search
from rove.audit.subject import Measured, OutOfTime, Subject
from rove.core.config import check_positive
from rove.core.errors import ConfigError, Error
from rove.envs.loading import environment_arguments
from rove.remote import IsolatedEnv

GUARD = "rove.audit.guard:install"
ROWS_SECONDS = 120.0
"""Time limit for reading the rows in a process of their own."""


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an audit.

    Raises:
        ConfigError: A value is not positive.
    """

    num_examples: int = 60
    """Examples per policy."""
    only: tuple[str, ...] = ()
    """Checks to do; all if empty."""
    skip: tuple[str, ...] = ()
    """Checks to leave out."""
    seconds: float = 600.0
    """Time budget."""
    hang_seconds: float = 10.0
    """Kill the environment when it is unresponsive for this many seconds."""
    start_seconds: float = 120.0
    """Time limit for loading the environment."""
    seed: int = 0
    """Random seed of the search."""

    def __post_init__(self) -> None:
        check_positive(self, "num_examples", "seconds", "hang_seconds", "start_seconds")


async def audit(
    env: str,
    env_dir: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    options: AuditOptions = AuditOptions(),  # noqa: B008  frozen
    on_progress: Callable[[str], None] = lambda what: None,
) -> Report:
    """Audit an environment in worker processes; return what was found.

    Nothing that the environment does ends the audit: an exception, a crash or a hang is a finding.

    Args:
        env, env_dir, env_args: As for `load_environment`.
        options: Settings.
        on_progress: Called with the name of what is measured.

    Raises:
        ConfigError: An unknown check.
    """
    checks = selected(options.only, options.skip)
    report = Report(env=env, env_args=dict(env_args or {}))
    started, before = time.monotonic(), os.times()
    with tempfile.TemporaryDirectory(prefix="rove-audit-") as name:
        auditor = _Auditor(env, env_dir, dict(env_args or {}), options, checks, report, Path(name), on_progress)
        auditor.deadline = started + options.seconds
        await auditor.run()
    report.findings.sort(key=lambda finding: -finding.severity)
    after = os.times()
    report.cpu_seconds = round(sum(after[:4]) - sum(before[:4]), 1)
    return report


class _Auditor:
    """One audit."""

    deadline: float

    def __init__(
        self,
        env: str,
        env_dir: str | None,
        env_args: dict[str, Any],
        options: AuditOptions,
        checks: frozenset[str],
        report: Report,
        folder: Path,
        on_progress: Callable[[str], None],
    ):
        self.name = env
        self.env_dir = env_dir
        self.env_args = env_args
        self.options = options
        self.checks = checks
        self.report = report
        self.folder = folder
        self.on_progress = on_progress
        self.judge = Judge()
        self.judge_port = 0
        self.variables: dict[str, str] = {}
        """Environment variables of the workers."""

    async def run(self) -> None:
        """Do all checks."""
        log = self.folder / "events.log"
        async with judge_server(self.judge) as self.variables:
            self.judge_port = int(self.variables["OPENAI_BASE_URL"].split(":")[2].split("/")[0])
            rows = await asyncio.to_thread(self._rows, self.env_args)
            try:
                env = self._open({LOG_VARIABLE: str(log)}, GUARD)
            except ConfigError as error:
                self._add(Finding(check="load", severity=Severity.HIGH, text=shortened(str(error), 600)))
                return
            await self._check(env, rows, log)

    async def _check(self, env: IsolatedEnv, rows: dict[str, Any] | str, log: Path) -> None:
        """Do all checks of an environment that has loaded."""
        subject = Subject(env, self.options.num_examples, self.deadline, self.on_progress)
        async with env.used_in_run():  # one worker for all measurements
            try:
                await subject.read_rows()
                self.judge.replies = subject.replies
                base = await measure_baseline(subject)
            except Exception as error:  # whatever the environment raises
                self._add(Finding(check="load", severity=Severity.HIGH, text=f"no rollouts: {_text(error)}"))
                return
            await self._behavior(subject, base)
            await self._data(rows, subject)
        if "side-effects" in self.checks:
            self._collect("side-effects", _side_effects(events(log), self.judge_port))
        self.report.rollouts = subject.rollouts

    async def _behavior(self, subject: Subject, base: Baseline) -> None:
        """Do the checks that need rollouts."""
        await self._do(
            "blind-reply", check_blind_replies(subject, base), base.is_multi_turn and "games: see blind-game"
        )
        needs_own = base.own is None and "rows have no answers that a reply can give"
        await self._do("hedging", check_hedging(subject, base), needs_own)
        await self._do("own-answer", check_own_answer(subject, base), needs_own)
        await self._do("monotonicity", check_monotonicity(subject, base), needs_own)
        await self._do("length", check_length(subject, base), base.is_multi_turn and "only for single turns")
        await self._do(
            "blind-game", check_blind_games(subject, base), not base.is_multi_turn and "only for several turns"
        )
        await self._do("answer-leak", check_message_leaks(subject, base))
        await self._do("grader-robustness", check_robustness(subject, base))
        await self._do("execution", check_execution(subject, base, self.folder))
        await self._do("parser-agreement", check_parser(subject, base, self._parse), needs_own)
        await self._do("determinism", check_determinism(subject, base, self._open))
        no_judge = not self.judge.calls and "the environment queries no judge"
        await self._do("judge-injection", check_injection(subject, base), no_judge)
        found = {finding.check for finding in self.report.findings if finding.severity >= Severity.MEDIUM}
        known = bool(found & {"blind-reply", "blind-game"}) and "a reply without the answer is known already"
        await self._do("policy-search", search(subject, base, self.options.seed), known)
        await self._do("reward-statistics", check_statistics(subject, base))

    async def _data(self, rows: dict[str, Any] | str, subject: Subject) -> None:
        """Do the checks of the dataset."""
        if isinstance(rows, str):
            self.report.skipped |= {
                name: rows for name in ("data-overlap", "row-round-trip", "seed-shift") if name in self.checks
            }
            return
        train, evaluation = rows["train"], rows["eval"]
        self._collect("data-overlap", check_overlap(train, evaluation))
        again = await asyncio.to_thread(self._in_process, self.env_args, {"PYTHONHASHSEED": HASH_SEED})
        if "determinism" in self.checks and not isinstance(again, str):
            self._collect("determinism", check_same_rows([*train, *evaluation], [*again["train"], *again["eval"]]))
        self._collect("row-round-trip", check_round_trip([*train, *evaluation]))
        shown = "\n".join(dict.fromkeys(_flat(subject)))
        self._collect("answer-leak", check_leaks(evaluation or train, shown))
        if "seed-shift" in self.checks:
            if "seed" not in environment_arguments(self.name, self.env_dir):
                self.report.skipped["seed-shift"] = "the environment has no argument 'seed'"
                return
            others = await asyncio.to_thread(
                self._rows, {**self.env_args, "seed": int(self.env_args.get("seed", 0)) + 1}
            )
            if isinstance(others, str):
                self.report.skipped["seed-shift"] = others
            else:
                self._collect("seed-shift", check_seed_shift(train or evaluation, others["train"] or others["eval"]))

    async def _do(self, name: str, findings: AsyncIterator[Finding], reason: str | bool = False) -> None:
        """Do a check that needs rollouts, unless there is a reason not to."""
        if name not in self.checks:
            return
        if reason:
            self.report.skipped[name] = str(reason)
            return
        try:
            async for finding in findings:
                self._add(finding)
        except OutOfTime as error:
            self.report.skipped[name] = str(error)
        except Exception as error:  # whatever the environment raises must not stop the other checks
            self.report.skipped[name] = f"failed: {_text(error)}"

    def _collect(self, name: str, findings: Iterable[Finding]) -> None:
        if name in self.checks:
            for finding in findings:
                self._add(finding)

    def _add(self, finding: Finding) -> None:
        self.report.findings.append(finding)

    def _open(self, variables: dict[str, str], prepare: str = "") -> IsolatedEnv:
        return IsolatedEnv(
            self.name,
            self.env_args,
            self.env_dir,
            start_seconds=self.options.start_seconds,
            hang_seconds=self.options.hang_seconds,
            prepare=prepare,
            variables={**self.variables, **variables},
        )

    def _rows(self, env_args: dict[str, Any]) -> dict[str, Any] | str:
        """Return facts about the rows, or why they cannot be read."""
        return self._in_process(env_args)

    def _parse(self, replies: list[str]) -> list[str] | None:
        """Return what the environment's parser reads; None if it has none."""
        found = self._in_process(self.env_args, replies=replies)
        return None if isinstance(found, str) else found

    def _in_process(self, env_args: dict[str, Any], variables: Mapping[str, str] = {}, **more: Any) -> Any:
        """Return the reply of `rove.audit.rows`, or an error as a text."""
        request = json.dumps({"env": self.name, "env_dir": self.env_dir, "env_args": env_args, **more}).encode()
        command, environ = [sys.executable, "-m", "rove.audit.rows"], {**os.environ, **self.variables, **variables}
        try:
            done = subprocess.run(
                command, input=request, capture_output=True, timeout=ROWS_SECONDS, check=False, env=environ
            )
        except subprocess.TimeoutExpired:
            return f"the rows were not read within {ROWS_SECONDS:g} s"
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            return f"the rows cannot be read: {shortened(lines[-1] if lines else 'no output', 300)}"
        return json.loads(done.stdout)


def _flat(subject: Subject) -> Iterable[str]:
    return shown_to_all([Measured("", subject.seen[:3])])


def _side_effects(found: dict[str, list[str]], judge_port: int) -> Iterable[Finding]:
    for kind, all_texts in found.items():
        texts = [text for text in all_texts if not (kind == "connection" and f", {judge_port})" in text)]
        if not texts:
            continue
        yield Finding(
            check="side-effects",
            severity=Severity.MEDIUM,
            text=f"rollouts leave or use {len(texts)} {kind}{'es' if kind == 'process' else 's'} outside: {', '.join(texts[:3])}",
        )


def _text(error: Exception) -> str:
    text = " ".join(str(error).split())
    return shortened(text if isinstance(error, Error) else f"{type(error).__name__}: {text}", 300)
