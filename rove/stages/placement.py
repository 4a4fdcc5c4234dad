"""Compare a model after SFT with the scripted policies of its environment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from rich.table import Table

from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError, Error
from rove.core.plain import Arguments, is_object
from rove.envs.dataset import example_key
from rove.envs.environment import Environment
from rove.envs.libraries import find_library
from rove.envs.question_files import is_question_file
from rove.remote.isolation import Isolation
from rove.remote.loading import temporary_environment
from rove.rubrics import JudgeRubric
from rove.runs.provenance import is_own, risky_settings
from rove.runs.run import Run
from rove.stages.clients import embedded
from rove.stages.reporter import Reporter, TaskProgress
from rove.statistics.format import interval
from rove.utils.event_loop import run_async
from rove.utils.systems import has_folder

if TYPE_CHECKING:
    from rove.core.protocols import Client
    from rove.train.config import SFTConfig
    from rove.train.policy_comparison import PolicyResult
    from rove.train.sft_data import SFTData


class EvaluationTarget(NamedTuple):
    """The environment in which the trained model is evaluated."""

    env: str
    env_args: Arguments
    env_dir: str | None
    isolation: Isolation


def evaluation_target(config: SFTConfig, data: Run | None) -> EvaluationTarget:
    """Return the environment of the settings, else the environment of the data.

    The data may come from an untrusted source, so its environment is loaded only by name, without its `env_dir` and interpreter.
    Text arguments are allowed only in data that this user's rove wrote, because texts can name code or commands.

    Raises:
        ConfigError: The data does not name an environment, or names an environment that might be downloaded.
    """
    if config.env is not None:
        return EvaluationTarget(config.env, config.env_args, config.env_dir, Isolation())
    if data is None:
        raise ConfigError("a file of messages names no environment; give --env ENV")
    recorded = data.config().get("config", {})
    env, env_args = recorded.get("env"), recorded.get("env_args", {})
    if not isinstance(env, str) or not env or not is_object(env_args):
        raise ConfigError(f"{data.path} does not name its environment; give --env ENV")
    # A name with an owner would be installed from a hub, and the data may come from others. `risky_settings` reports names
    # with a library, which can contain the address of a server.
    is_path = has_folder(env) or env.endswith(".py")
    if is_path and not is_question_file(env) and find_library(env) is None:
        raise ConfigError(f"the environment of {data.path} is '{env}', which is loaded only on request: --env {env}")
    settings_file = data.path / "config.toml"
    risky = risky_settings({"env": env, "env_args": env_args})
    if risky and not is_own(settings_file):
        raise ConfigError(
            f"{settings_file} was not written by rove for you, and sets {', '.join(risky)}; its environment is loaded only on "
            f"request: --env {env}, with the arguments that you trust in -a"
        )
    table = recorded.get("isolation")
    isolation = Isolation(on=is_object(table) and table.get("enabled") is True)
    return EvaluationTarget(env, {**env_args, **config.env_args}, config.env_dir, isolation)


def place_model(config: SFTConfig, final: Path, data: SFTData, run: Run, reporter: Reporter) -> None:
    """Evaluate the trained model and the scripted policies; show a table of the results, and store them in the run's summary.

    An error is shown as one line and not raised, because training has succeeded.
    """
    if not config.final_eval_rollouts or (data.run is None and config.env is None):
        return
    try:
        target = evaluation_target(config, data.run)
        names, keys = _survey(config, target)
        rows = _measure_all(config, target, final, data, names, reporter)
    # The model is trained and saved: an environment that cannot be loaded must not make the run fail.
    except (Error, OSError) as error:
        advice = f"evaluate it: rove eval ENV -m {shlex.quote(str(final))}; --final-eval-rollouts 0 skips this"
        reporter.note(f"not evaluated: {error}\n{advice}")
        return
    from rove.train.policy_comparison import learned_only_format, placement_text

    model, policies = rows[0], rows[1:]
    text = placement_text(model, policies)
    trained = data.example_keys
    shared = sum(key in trained for key in keys)
    only_format = learned_only_format(model, policies)
    placement = {
        "env": target.env,
        "env_args": target.env_args,
        "text": text,
        "learned_only_format": only_format,
        "rows": msgspec.to_builtins(rows),
        "trained_examples": shared,
    }
    run.finish({**(run.summary() or {}), "placement": placement})
    reporter.table(placement_table(rows, f"{target.env}: after SFT, {model.scored} rollouts, greedy"))
    if shared:
        warning = (
            f"{shared} of the {len(keys)} examples in this table are also in the training data, so the model may score higher on "
            "them; collect data with rove eval --train, or evaluate other examples with -a"
        )
        reporter.note(warning, important=True)
    reporter.note(text, important=only_format)


def _survey(config: SFTConfig, target: EvaluationTarget) -> tuple[list[str], list[str]]:
    """Return the names of the environment's scripted policies, and the keys of the examples to evaluate."""
    with temporary_environment(target.env, target.env_dir, target.env_args, target.isolation) as env:
        # With --env, the user has asked for this environment, judge included.
        if config.env is None:
            _refuse_judges(env, target)
        return sorted(env.policies), [example_key(row) for row in env.examples(config.final_eval_rollouts)]


def _measure_all(
    config: SFTConfig, target: EvaluationTarget, final: Path, data: SFTData, names: list[str], reporter: Reporter
) -> list[PolicyResult]:
    """Return the result of the trained model, followed by the results of the scripted policies."""
    from rove.train.policy_comparison import turn_limit

    with reporter.progress(f"{target.env} after SFT", 1 + len(names)) as progress:
        client = embedded(str(final), device=config.device)
        limit = turn_limit(client.renderer, data.conversations if data.run is None else data.run.finished())
        rows = [_measure(config, target, client, "the trained model", limit, progress)]
        for name in names:
            progress(len(rows), _reward_of(rows[-1]))
            rows.append(_measure(config, target, None, name, limit, progress))
        progress(len(rows), _reward_of(rows[0]))
    return rows


def _reward_of(row: PolicyResult) -> str:
    """Return a text with the name of a policy or model and its reward."""
    return f"{row.name}: reward {row.reward:.3f}"


def _measure(
    config: SFTConfig,
    target: EvaluationTarget,
    client: Client | None,
    name: str,
    max_tokens: int,
    progress: TaskProgress,
) -> PolicyResult:
    """Evaluate a client, or the scripted policy `name`, in a freshly loaded environment."""
    from rove.train.policy_comparison import measure_policy

    # Loaded for each measurement, because `evaluate` tears the environment down.
    with temporary_environment(target.env, target.env_dir, target.env_args, target.isolation) as env:
        if client is None:
            client = ScriptedClient(env.policies[name], name)
            name = f"scripted:{name}"
        measurement = measure_policy(
            env,
            client,
            name,
            config.final_eval_rollouts,
            max_tokens=max_tokens,
            seed=config.seed,
            on_progress=progress.step,
        )
        return run_async(measurement)


def _refuse_judges(env: Environment, target: EvaluationTarget) -> None:
    """Refuse an environment with judge models, which may cost money."""
    if any(isinstance(rubric, JudgeRubric) for rubric in env.rubric.components):
        raise ConfigError(
            f"'{target.env}' uses a judge model, which may cost money; --env {target.env} evaluates in it anyway"
        )


def placement_table(rows: list[PolicyResult], title: str) -> Table:
    """Return the table, ordered by reward; the first of `rows` is the trained model's."""
    table = Table(title=title)
    table.add_column("")
    for column in ("reward", "95% interval", "format", " + ".join(rows[0].task_names) or "task"):
        table.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: -row.reward):
        table.add_row(
            row.name,
            f"{row.reward:.3f}",
            interval({"low": row.low, "high": row.high}),
            "–" if row.format is None else f"{row.format:.3f}",
            f"{row.task:.3f}",
            style="bold" if row is rows[0] else None,
        )
    return table
