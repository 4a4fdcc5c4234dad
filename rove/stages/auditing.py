"""Audit an environment's rewards with progress."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rove.audit.acceptance import accept_findings, read_baseline_file
from rove.audit.auditor import AuditOptions, Learner, audit
from rove.audit.findings import Report, selected
from rove.audit.judge import JudgeModel
from rove.core.errors import ConfigError, needs_train_extra
from rove.core.plain import JsonMapping
from rove.envs.loading import environment_file
from rove.stages.arguments import environment_name, settings_from
from rove.stages.clients import make_client
from rove.stages.naming import run_folder
from rove.stages.reporter import ConsoleReporter, Reporter
from rove.utils.event_loop import outside_event_loop, run_async
from rove.utils.systems import has_folder


def audit_environment(
    env: str,
    *,
    env_dir: str | Path | None = None,
    env_args: JsonMapping | None = None,
    learn: bool = False,
    device: str = "auto",
    judge: str | None = None,
    run_dir: str | Path | None = None,
    baseline: str | Path | None = None,
    reporter: Reporter | None = None,
    **settings: object,
) -> Report:
    """Look for rewards that can be earned without doing the task, like the command `rove audit`.

    Example:
        >>> report = rove.audit_environment("my_task")
        >>> print(report)

    Args:
        env: Name or path of the environment, which runs in a separate process.
        env_dir: Folder in which the environment is looked up first.
        env_args: Arguments of the environment.
        learn: Whether to train a tiny model with RL, and to check whether its reward comes from doing the task.
        device: Device of the tiny model.
        judge: A model that also answers as the environment's judge.
        run_dir: Folder for the tiny model's runs. Default: a folder in runs/ for the environment and the seed.
        baseline: File with accepted findings and the reasons, which `Report.worst` leaves out.
        reporter: Shows progress. Default: the console or the notebook.
        settings: Fields of `rove.audit.auditor.AuditOptions`, such as `seconds=60` or `only=["hedging"]`.

    Raises:
        ConfigError: A setting is unknown or out of range, or there is no such environment or baseline file.
    """
    options = settings_from(AuditOptions, None, settings)
    accepted = [] if baseline is None else read_baseline_file(baseline)
    used = reporter or ConsoleReporter()
    learner = None
    if learn:
        folder = run_folder(run_dir, env, "audit", identity={"env_args": env_args or {}, "seed": options.seed})
        learner = {"folder": folder, "seed": options.seed, "device": device}
    name, folder_of_env = located(environment_name(env), None if env_dir is None else str(env_dir))
    report = outside_event_loop(lambda: run_audit(name, folder_of_env, env_args or {}, options, used, learner, judge))
    accept_findings(report, accepted)
    return report


def located(name: str, env_dir: str | None) -> tuple[str, str | None]:
    """Return the name and the folder of an environment that is given by name or by path: NAME, FOLDER/NAME, FOLDER/NAME.py."""
    path = Path(name)
    is_file = path.suffix == ".py"
    if is_file or (has_folder(name) and (path.is_dir() or path.with_name(f"{path.name}.py").is_file())):
        if env_dir is not None:
            raise ConfigError(
                f"'{name}' is a path, which the folder {env_dir} (--env-dir) cannot change; remove one of them"
            )
        path = path.resolve().parent if path.name == "__init__.py" else path.resolve()
        name = path.stem if is_file else path.name
        # A relative path, because the report's commands to repeat a check contain it.
        env_dir = os.path.relpath(path.parent)
    environment_file(name, env_dir)
    return name, env_dir


def run_audit(
    env: str,
    env_dir: str | None,
    env_args: JsonMapping,
    options: AuditOptions,
    reporter: Reporter,
    learn: JsonMapping | None = None,
    judge: str | None = None,
) -> Report:
    """Audit an environment with progress.

    Args:
        learn: Settings of the learner; None leaves out the check "learned-reward".
        judge: The name of a model that answers as the environment's judge.
    """
    started_checks: set[str] = set()
    judge_model = None if judge is None else JudgeModel(judge, make_client(judge, None))

    async def run(learner: Learner | None, on_check: Callable[[str], None]) -> Report:
        try:
            return await audit(env, env_dir, env_args, options, on_check, learner, judge_model)
        finally:
            if judge_model is not None:
                await judge_model.client.close()

    with reporter.progress(f"audit {env}", len(selected(options.only, options.skip))) as progress:
        # Loading takes seconds, in which the progress line would name no activity.
        progress(0, "starting")

        def on_check(name: str) -> None:
            started_checks.add(name)
            progress(len(started_checks), name)

        learner = None
        if learn is not None:
            with needs_train_extra():
                from rove.audit.learning import LearnOptions, check_learned
            learner = partial(check_learned, options=LearnOptions(**learn), on_progress=progress.step)
        return run_async(run(learner, on_check))
