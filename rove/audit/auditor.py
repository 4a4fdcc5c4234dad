"""Run the checks of an audit, each protected from the other checks and from the environment."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rove.audit.answer_checks import can_compare_variants, check_hedging, check_monotonicity, check_own_answer
from rove.audit.baseline import Baseline, measure_baseline, visible_share
from rove.audit.call_checks import (
    check_listed_items,
    check_many_calls,
    check_needed_calls,
    check_row_values,
    check_values_of_results,
    has_policy_with_calls,
)
from rove.audit.data_checks import (
    check_contradictions,
    check_copied_numbers,
    check_leaks,
    check_round_trip,
    check_same_rows,
    check_seed_shift,
)
from rove.audit.findings import CHECKS, FAILED, Report, selected, shortened
from rove.audit.game_checks import (
    check_blind_games,
    check_copied_moves,
    check_moves_of_other_rows,
    check_redone_steps,
    check_repeated_actions,
    check_stalling,
)
from rove.audit.grader_checks import (
    HASH_SEED,
    LOG_NAME,
    check_determinism,
    check_execution,
    check_injection,
    check_parser,
    check_robustness,
    check_worker_failures,
)
from rove.audit.guard import IMPORTS_VARIABLE, events
from rove.audit.judge import Judge, JudgeModel, judge_server
from rove.audit.leak_checks import check_message_leaks, shown_to_all
from rove.audit.order_checks import check_order, check_refused_forms
from rove.audit.overlap_checks import check_overlap
from rove.audit.power import visible_shares
from rove.audit.replay_checks import (
    check_equal_rows,
    check_fixed_moves,
    check_moves_of_similar_rows,
    check_repeatable_rewards,
)
from rove.audit.replies import LOG_VARIABLE
from rove.audit.reward_checks import check_blind_replies, check_length, check_statistics
from rove.audit.search import search
from rove.audit.source_texts import check_source_texts
from rove.audit.subject import OUT_OF_TIME, Inconclusive, OutOfTime, RolloutsFail, Subject, reward_of
from rove.audit.tool_checks import (
    check_all_items,
    check_changed_data,
    check_error_leaks,
    check_paid_calls,
    check_values_of_errors,
    check_wrong_answers_after_calls,
)
from rove.core.checks import Settings
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, error_text
from rove.core.findings import Finding, Severity
from rove.core.plain import JsonMapping
from rove.core.ranges import NonNegativeInt, PositiveInt, Seconds
from rove.envs.loading import environment_file
from rove.remote import IsolatedEnv
from rove.workers.import_alias import active_import_alias

GUARD = "rove.audit.guard:install"
"""Function that each worker calls before it loads the environment."""
PLURALS = {"file": "files", "process": "processes", "connection": "connections"}
Learner = Callable[[Subject, Baseline, Callable[[], IsolatedEnv]], AsyncIterator[Finding]]
"""(the environment, its baseline, a function that opens it again) → findings; see `rove.audit.learning` (needs torch)."""
ROWS_SECONDS = 120.0
"""Time limit in seconds for reading the rows in a separate process."""
NO_ANSWERS = "rows have no answers that a reply can give"
DATA_CHECKS = {"data-overlap", "contradictory-rows", "row-round-trip", "answer-leak", "determinism", "seed-shift"}
"""Checks that read the dataset in separate processes."""


class AuditOptions(Settings, frozen=True, kw_only=True):
    """Settings of an audit."""

    num_examples: PositiveInt = 60
    """Maximum number of examples per policy."""
    only: tuple[str, ...] = ()
    """Checks to do; all if empty."""
    skip: tuple[str, ...] = ()
    """Checks to leave out."""
    seconds: Seconds = 600.0
    """Time budget in seconds of wall time; the learner gets an additional budget of the same size."""
    hang_seconds: Seconds = 10.0
    """Kill the environment when it is unresponsive for this many seconds."""
    start_seconds: Seconds = 120.0
    """Time limit for loading the environment."""
    seed: NonNegativeInt = 0
    """Random seed of the audit."""


async def audit(
    env: str,
    env_dir: str | None = None,
    env_args: JsonMapping | None = None,
    options: AuditOptions = AuditOptions(),  # noqa: B008  frozen
    on_check: Callable[[str], None] = lambda name: None,
    learner: Learner | None = None,
    judge: JudgeModel | None = None,
) -> Report:
    """Audit an environment in worker processes; return a report.

    Nothing that the environment does ends the audit: an exception, a crash or a hang is a finding. A time budget that is used
    up before the first check is a finding, too.

    Args:
        learner: Function that does the check "learned-reward"; by default, the check is left out.
        judge: A model for the environment's judge, into which the check "judge-injection" also tries to inject instructions.
    """
    checks = selected(options.only, options.skip)
    file, line = _source(env, env_dir)
    report = Report(
        env=env,
        env_args=dict(env_args or {}),
        env_dir=env_dir,
        file=file,
        line=line,
        num_examples=options.num_examples,
        seed=options.seed,
        judge=judge.name if judge else "",
        checks=[name for name in CHECKS if name in checks],
    )
    times_at_start = os.times()
    with _folder_of(env, env_args or {}, options.seed) as folder:
        await _Auditor(report, env_dir, options, folder, on_check, learner, judge).run()
    report.findings.sort(key=lambda finding: finding.severity, reverse=True)
    times_at_end = os.times()
    # Times of this process and of its ended children; the fifth value is the wall time.
    report.cpu_seconds = round(sum(times_at_end[:4]) - sum(times_at_start[:4]), 1)
    return report


@contextmanager
def _folder_of(env: str, env_args: JsonMapping, seed: int) -> Iterator[Path]:
    """Create an empty folder, and delete it at the end of the block.

    Some replies create a file in this folder if they are executed. These replies contain the folder's path, and rewards may
    depend on every character of a reply. Therefore, all audits of an environment with the same seed use the same folder name,
    except for concurrent audits.
    """
    name = f"rove-audit-{derive_seed(env, sorted(map(str, env_args.items())), seed):016x}"
    for number in itertools.count(1):
        folder = Path(tempfile.gettempdir()) / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # never used: another user may have made it
            continue
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return


class _Auditor:
    """One audit; fills a report."""

    def __init__(
        self,
        report: Report,
        env_dir: str | None,
        options: AuditOptions,
        folder: Path,
        on_check: Callable[[str], None],
        learner: Learner | None,
        judge: JudgeModel | None,
    ):
        self.report = report
        self.env_dir = env_dir
        self.options = options
        self.folder = folder
        self.on_check = on_check
        self.learner = learner
        self.judge_model = judge
        self.deadline = time.monotonic() + options.seconds
        self.file = Path(report.file).resolve() if report.file else None
        self.begun: set[str] = set()
        """Checks that have begun."""
        self.judge = Judge()
        self.variables = {LOG_VARIABLE: str(folder / LOG_NAME)}
        """Additional environment variables of the workers."""
        alias = active_import_alias()
        if alias is not None:
            self.variables[IMPORTS_VARIABLE] = alias.setup

    async def run(self) -> None:
        """Do all checks."""
        self.on_check("load")
        async with judge_server(self.judge) as variables:
            self.variables |= variables
            try:
                await self._check(self._open({}))
            except OutOfTime:  # before the first check
                text = f"the time budget of {self.options.seconds:g} s (--seconds) was used up before the first check"
                self._stop(text)
            except Exception as error:  # any error that the environment raises when it is loaded or torn down
                self._stop(_text(error))

    def _stop(self, text: str) -> None:
        """Add a finding of the check "load", and list checks that have not begun as not done."""
        self.report.findings.append(Finding("load", text))
        # A check that was left out before the failure keeps its own reason.
        for name in self.report.checks:
            if name not in {*self.begun, "load"}:
                self.report.skipped.setdefault(name, "the check 'load' failed")

    async def _check(self, env: IsolatedEnv) -> None:
        subject = Subject(env, self.options.num_examples, self.deadline, self.file)
        async with env.used_in_run():  # one worker for all measurements
            await subject.read_rows()
            self.judge.replies = subject.replies  # the scripted judge looks up whether a reply is right
            base = await measure_baseline(subject)
            if subject.records and all(record.error is not None for record in subject.records):
                raise RolloutsFail(f"every rollout fails; the first: {subject.error_text(subject.records[0])}")
            self.report.floor = base.floor.name
            self.report.visible_share = visible_share(len(base.floor.scored))
            await self._behavior(subject, base)
        await self._data(subject)
        await self._do("side-effects", _as_async(_side_effects(events(self.folder / LOG_NAME))))
        self.report.rollouts, self.report.rewards = subject.rollouts, subject.rewards
        not_clean = {*self.report.skipped, *(finding.id for finding in self.report.findings)}
        clean = [name for name in self.report.checks if name not in not_clean]
        self.report.visible_shares = visible_shares(clean, len(base.floor.scored))

    async def _behavior(self, subject: Subject, base: Baseline) -> None:
        # A rollout may have several turns although the scripted policies, or right answers, need one.
        is_game = base.is_multi_turn or base.is_retried or base.has_tools
        no_own = _no_own_answers(subject, base, is_game)
        # The scripted judge accepts any reply that contains the answer, so variants of the answer mean little.
        judged = "the scripted judge decides" if self.judge.calls else ""
        no_variants = judged if can_compare_variants(base) else no_own or judged
        only_single = "only for single turns" if base.is_multi_turn and not base.has_tools else ""
        # first, since a grader that hangs on some reply uses up the time of the other checks
        await self._do("grader-robustness", check_robustness(subject, base))
        await self._do("blind-reply", check_blind_replies(subject, base, bool(self.judge.calls)), only_single)
        await self._do("blind-reply", check_source_texts(subject, base), only_single)
        await self._do("hedging", check_hedging(subject, base), no_own or judged)
        await self._do("own-answer", check_own_answer(subject, base, is_cheap=not self.judge.calls), no_own)
        await self._do("monotonicity", check_monotonicity(subject, base), no_variants)
        await self._do("length", check_length(subject, base), only_single)
        await self._games(subject, base, is_game)
        await self._do("data-overlap", check_moves_of_similar_rows(subject, base))
        await self._do("answer-leak", check_message_leaks(subject, base))
        await self._tools(subject, base)
        # after the tools, whose results may show a form
        if not judged:  # else the check would count as left out, although the own answers were checked
            await self._do("own-answer", check_refused_forms(subject, base), no_variants)
        await self._do("execution", check_execution(subject, base, self.folder))
        await self._do("parser-agreement", check_parser(subject, base, self._parse), no_own or judged)
        # The scripted judge's verdicts depend on the replies that earlier rollouts have added.
        depends_on_judge = "rewards depend on a judge" if self.judge.calls else ""
        await self._do("determinism", check_determinism(subject, base, self._open), depends_on_judge)
        no_judge = "" if self.judge.calls else "the environment queries no judge"
        await self._do("judge-injection", check_injection(subject, base), no_judge)
        if self.judge_model is not None:
            await self._do("judge-injection", self._inject_into_model(self.judge_model, subject, base), no_judge)
        serious_ids = {finding.id for finding in self.report.findings if finding.severity >= Severity.MEDIUM}
        # The search is the most expensive check, and would find again what these two have found.
        is_known = not serious_ids.isdisjoint(("blind-reply", "blind-game"))
        no_search = judged if subject.answers else ""
        if is_known:
            no_search = "a reply without the answer is known already"
        await self._do("policy-search", search(subject, base, self.options.seed), no_search)
        await self._do("reward-order", check_order(base))
        await self._do("reward-statistics", check_statistics(subject, base, bool(self.judge.calls)))
        if self.learner is None:
            await self._do("learned-reward", _as_async([]), "only with --learn")
        else:
            has_judge = "the environment queries a judge" if self.judge.calls else ""
            # On a busy machine the other checks left it too little time, and minutes of training ended without a result.
            started = time.monotonic()
            subject.deadline = started + self.options.seconds
            await self._do("learned-reward", self.learner(subject, base, lambda: self._open({})), has_judge)
            self.deadline += time.monotonic() - started
        # A policy of a later check may have ended the worker, too; one such finding is enough.
        severities = [finding.severity for finding in self.report.findings if finding.id == "grader-robustness"]
        if Severity.HIGH not in severities:
            await self._do("grader-robustness", check_worker_failures(subject))

    async def _games(self, subject: Subject, base: Baseline, is_game: bool) -> None:
        """Do the checks of several turns."""
        # An environment that ends at an idle reply has no moves that could be repeated.
        if any(len(record.steps) > 1 for record in base.idle.records) and not base.has_tools:
            await self._do("blind-game", check_repeatable_rewards(subject, base))
        if not is_game:
            await self._do("blind-game", check_blind_games(subject, base), "only for several turns")
            return
        await self._do("blind-game", check_repeated_actions(subject, base))
        await self._do("blind-game", check_copied_moves(subject, base))
        await self._do("blind-game", check_redone_steps(subject, base))
        await self._do("blind-game", check_stalling(subject, base))
        await self._do("blind-game", check_blind_games(subject, base))
        await self._do("blind-game", check_moves_of_other_rows(subject, base))
        await self._do("blind-game", check_fixed_moves(subject, base, self.options.seed))
        await self._do("blind-game", check_equal_rows(subject, base, self.options.seed))

    async def _tools(self, subject: Subject, base: Baseline) -> None:
        """Do the checks of tools."""
        no_tools = "" if base.has_tools else "the environment has no tools"
        await self._do("paid-calls", check_paid_calls(subject, base), no_tools)
        no_policy = "" if has_policy_with_calls(base) else "no scripted policy does the task with tools"
        await self._do("needed-calls", check_needed_calls(subject, base), no_tools or no_policy)
        if base.has_tools:
            await self._do("paid-calls", check_wrong_answers_after_calls(subject, base))
            await self._do("paid-calls", check_changed_data(subject, base))
            await self._do("paid-calls", check_all_items(subject, base))
            await self._do("answer-leak", check_error_leaks(subject, base))
            await self._do("answer-leak", check_values_of_errors(subject, base))
            await self._do("answer-leak", check_values_of_results(subject, base))
            await self._do("blind-game", check_row_values(subject, base))
            await self._do("blind-game", check_many_calls(subject, base))
            await self._do("blind-game", check_listed_items(subject, base))

    async def _inject_into_model(self, judge: JudgeModel, subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
        """Yield findings with a model as the judge, in a new worker, so that no verdicts of the scripted judge are cached."""
        judged_subject = Subject(self._open({}), subject.count, subject.deadline)
        self.judge.model = judge
        try:
            async with judged_subject.env.used_in_run():
                async for finding in check_injection(judged_subject, base, judge.name):
                    yield finding
        finally:
            self.judge.model = None
        subject.rollouts += judged_subject.rollouts

    async def _data(self, subject: Subject) -> None:
        """Do the checks of the dataset. A process that reads the rows starts only for a selected check."""
        if DATA_CHECKS.isdisjoint(self.report.checks):
            return
        args = self.report.env_args
        rows = await asyncio.to_thread(self._in_process, args)
        if isinstance(rows, str):
            for name in sorted(DATA_CHECKS):
                await self._do(name, _as_async([]), rows)
            return
        self.report.contacted, self.report.known_defects = rows["contacted"], rows["known_defects"]
        train, evaluation = rows["train"], rows["eval"]
        all_rows = [*train, *evaluation]
        await self._do("data-overlap", _as_async(check_overlap(train, evaluation, rows["has_both"])))
        await self._do("contradictory-rows", _as_async(check_contradictions(all_rows)))
        await self._do("contradictory-rows", _as_async(check_copied_numbers(all_rows)))
        is_anything_paid = any(reward_of(record) > 0 for record in subject.records)
        await self._do("row-round-trip", _as_async(check_round_trip(all_rows, is_anything_paid)))
        await self._do("answer-leak", _as_async(check_leaks(evaluation or train, shown_to_all(subject.records[0]))))
        if "determinism" in self.report.checks:
            repeated = await asyncio.to_thread(self._in_process, args, {"PYTHONHASHSEED": HASH_SEED})
            if not isinstance(repeated, str):
                await self._do(
                    "determinism", _as_async(check_same_rows(all_rows, [*repeated["train"], *repeated["eval"]]))
                )
        if "seed-shift" not in self.report.checks:
            return
        if "seed" not in rows["arguments"]:
            await self._do("seed-shift", _as_async([]), "the environment has no argument 'seed'")
            return
        seed = args.get("seed", 0)
        if not isinstance(seed, int):
            await self._do("seed-shift", _as_async([]), f"the argument 'seed' is {seed!r}, which is not an integer")
            return
        next_seed = {**args, "seed": seed + 1}
        shifted = await asyncio.to_thread(self._in_process, next_seed)
        if isinstance(shifted, str):
            await self._do("seed-shift", _as_async([]), shifted)
        else:
            shifted_rows = shifted["train"] or shifted["eval"]
            await self._do("seed-shift", _as_async(check_seed_shift(train or evaluation, shifted_rows)))

    async def _do(self, name: str, findings: AsyncIterator[Finding], reason: str = "") -> None:
        """Do a check if it is selected, unless there is a reason not to."""
        if name not in self.report.checks:
            return
        if reason:
            self.report.skipped[name] = reason
            return
        self.begun.add(name)
        self.on_check(name)
        try:
            async for finding in findings:
                self.report.findings.append(finding)
        except (OutOfTime, Inconclusive) as error:
            self.report.skipped[name] = str(error)
        except Exception as error:  # an error of the environment must not stop the other checks
            self.report.skipped[name] = f"{FAILED}{_text(error)}"

    def _open(self, variables: Mapping[str, str]) -> IsolatedEnv:
        return IsolatedEnv(
            self.report.env,
            self.report.env_args,
            self.env_dir,
            start_seconds=self.options.start_seconds,
            hang_seconds=self.options.hang_seconds,
            prepare=GUARD,
            variables={**self.variables, **variables},
        )

    def _parse(self, replies: list[str]) -> list[str] | None:
        """Return the answers that the environment's parser reads; None if it has no parser."""
        answers = self._in_process(self.report.env_args, replies=replies)
        return None if isinstance(answers, str) else answers

    def _in_process(
        self, env_args: Mapping[str, object], variables: Mapping[str, str] | None = None, **options: object
    ) -> Any:
        """Run `rove.audit.rows` in a separate process, and return its reply, or an error as a text."""
        request = json.dumps(
            {"env": self.report.env, "env_dir": self.env_dir, "env_args": env_args, **options}
        ).encode()
        seconds = min(ROWS_SECONDS, self.deadline - time.monotonic())
        if seconds <= 0:
            return OUT_OF_TIME
        try:
            done = subprocess.run(
                [sys.executable, "-m", "rove.audit.rows"],
                input=request,
                capture_output=True,
                timeout=seconds,
                check=False,
                env={**os.environ, **self.variables, **(variables or {})},
            )
        except subprocess.TimeoutExpired:
            return f"the rows were not read within {seconds:.3g} s"
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
            return f"the rows cannot be read: {shortened(lines[-1], 300)}"
        return json.loads(done.stdout)


def _no_own_answers(subject: Subject, base: Baseline, is_game: bool) -> str:
    """Return why the rows' own answers cannot be tried; "" if they can."""
    if base.right_answer is not None:
        return ""
    if subject.answers:
        return "the rows' own answers earn no more than wrong answers"
    return "rows of a task with several turns have no answers" if is_game else NO_ANSWERS


def _source(env: str, env_dir: str | None) -> tuple[str, int]:
    """Return the file of an environment and the line of its `load_environment` (1 if unknown); "" for an unknown environment.

    The path is relative to this folder if the file is in it, so that reports can be shared.
    """
    try:
        file = environment_file(env, env_dir)
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.suffix == ".py" else []
    except (ConfigError, OSError):
        return "", 1
    file = file.resolve()
    path = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    for number, line in enumerate(lines, start=1):
        if line.startswith("def load_environment("):
            return str(path), number
    return str(path), 1


async def _as_async(findings: Iterable[Finding]) -> AsyncIterator[Finding]:
    """Yield the findings of a check without rollouts as an asynchronous iterator, for `_do`."""
    for finding in findings:
        yield finding


def _side_effects(events_by_kind: Mapping[str, list[str]]) -> Iterable[Finding]:
    for kind, texts in events_by_kind.items():
        yield Finding(
            id="side-effects",
            text=f"rollouts use {len(texts)} {PLURALS[kind]} outside of their process: {', '.join(texts[:3])}",
        )


def _text(error: Exception) -> str:
    return shortened(" ".join(error_text(error).split()), 300)
