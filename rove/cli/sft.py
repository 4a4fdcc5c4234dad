"""`rove sft`: fine-tune a model on filtered rollouts, then compare it with the scripted policies."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.table import Table

from rove.cli.clients import embedded, needs_train_extra
from rove.cli.common import (
    CURVES,
    ProgressDisplay,
    alert_printer,
    console_for,
    hint,
    print_best_step,
    print_json,
    progress,
    run_async,
    run_folder,
)
from rove.cli.options import SETTINGS, json_object, settings, trust_option
from rove.cli.settings_help import all_settings
from rove.cli.tables import curves_table
from rove.cli.training import begin, draw, identity_of
from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError, Error
from rove.envs.environment import Environment
from rove.envs.questions import is_question_file
from rove.remote.loading import Isolation, looking_at
from rove.rubrics import JudgeRubric, RubricGroup
from rove.runs.run import Run
from rove.viewer.format import interval

if TYPE_CHECKING:
    from rove.core.protocols import Client
    from rove.train.placement import PolicyResult
    from rove.train.sft import SFTConfig
    from rove.train.worker_group import Ranks


BOOKKEEPING = {
    "trust_remote_code",
    "threads",
    "env",
    "env_args",
    "env_dir",
    "final_eval_rollouts",
    "run_dir",
    "loggers",
    "alerts",
}


def run_sft(
    config: SFTConfig, console: Console, overwrite: bool = False, ranks: Ranks | None = None
) -> tuple[Path, Run]:
    """Fine-tune, with progress; continued at the last checkpoint. Returns the final model's folder and the run."""
    from rove.train.sft import train_sft
    from rove.train.worker_group import SINGLE_PROCESS

    config.check()
    ranks = ranks or SINGLE_PROCESS
    data = Run(config.data)
    data.config()
    identity = identity_of(config, BOOKKEEPING, data=_data_identity(data))
    run = Run(run_folder(config.run_dir, "sft", config.model, identity=identity))
    with run:
        loaded = begin(run, "sft", config, identity, overwrite, console, ranks, lambda: warnings_of(config, data))
        if loaded is None:
            return run.path / "final", run
        words = {"loss": "–", "validation_loss": "–"}
        with progress(console, "sft") as tell:

            def on_step(step: int, total: int, metrics: Mapping[str, float]) -> None:
                words.update({name: f"{metrics[name]:.4f}" for name in words if name in metrics})
                tell(step, f"loss {words['loss']}  validation {words['validation_loss']}", total)

            final = train_sft(
                config,
                data.finished(),
                loaded,
                run,
                on_step,
                on_alert=alert_printer(console),
                on_progress=tell.step,
                ranks=ranks,
            )
        draw(run)
        place_model(config, final, data, run, console)
    return final, run


def warnings_of(config: SFTConfig, data: Run) -> list[str]:
    """Return warnings about measuring on examples that are trained on."""
    from rove.train.contamination import find_overlaps

    least = -math.inf if config.min_reward is None else config.min_reward
    learnt = {one.example_key for one in data.outcomes() if one.reward is not None and one.reward >= least}
    single = ["all rollouts are of one example: validation_loss is measured on the example that is trained on"]
    if not config.evaluation:
        return single * (len(learnt) == 1)
    found = [one for one in find_overlaps(config.evaluation, config.env_dir, learnt) if one.shared]
    advice = "play what is learnt from with rove eval --train"
    return [*single * (len(learnt) == 1), *(f"evaluation {one}; {advice}" for one in found)]


def _data_identity(data: Run) -> str:
    """The data's folder, and how much it holds: a run is not continued on other data than it was started on."""
    file = data.path / "rollouts.jsonl"
    return f"{data.path.resolve()}#{file.stat().st_size if file.exists() else 0}"


def print_sft(final: Path, run: Run, console: Console) -> None:
    """The curves, and what to do next."""
    metrics = run.metrics()
    held_out = sorted({n for m in metrics for n in m if n.startswith("eval/") and n.endswith("/reward/mean")})
    names = ["loss", "validation_loss", *held_out, "entropy/all/mean", "optim/grad_norm"]
    console.print(curves_table(metrics, names, "SFT"))
    summary = run.summary() or {}
    console.print(f"{summary.get('conversations')} conversations, {summary.get('steps')} steps")
    print_best_step(run, console)
    env = summary.get("placement", {}).get("env", "ENV")
    hint(
        console,
        f"curves: {run.path / CURVES}",
        f"evaluate it: rove eval {env} -m {final}",
        f"train it further: rove rl {env} -m {final}",
    )


@click.command(
    epilog=all_settings("rove.train.sft", "SFTConfig"),
    context_settings=SETTINGS,
    options_metavar="[OPTIONS] [@ FILE] [--KEY VALUE]...",
)
@click.option("--data", help="Run folder whose rollouts are learnt from.")
@click.option("-m", "--model", help="Model folder to start from.")
@trust_option
@click.option("--min-reward", type=float, help="Leave out rollouts below this reward.")
@click.option("--epochs", type=int, help="Most passes over the data.  [default: 10]")
@click.option("--batch-size", type=int, help="Conversations per step.  [default: 32]")
@click.option("--learning-rate", type=float, help="Peak learning rate.  [default: 0.001]")
@click.option("--env", help="Evaluate the trained model in this environment.  [default: that of --data]")
@click.option("-a", "--env-args", help="Arguments of this environment as JSON, over those of --data.")
@click.option(
    "--final-eval-rollouts",
    type=int,
    help="Rollouts of the trained model, and of each scripted policy, after training; 0 = none.  [default: 64]",
)
@click.option("--run-dir", help="The run folder.  [default: runs/sft--MODEL--hash]")
@click.option("--overwrite", is_flag=True, help="Throw an earlier run of this folder away.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, overwrite: bool, env_args: str | None, **named: Any) -> None:
    """Fine-tune MODEL on the rollouts of a run that pass the filter, to the minimum of the validation loss.

    Then compare it with the scripted policies of the environment.

    Every setting can also be given as @ file.toml or --key value. Repeat the command to continue a stopped run.
    """
    with needs_train_extra():
        from rove.models.load import load_model
        from rove.train.sft import SFTConfig, follow_sft
        from rove.train.worker_group import join_process_group
    console = console_for(as_json)
    config, ranks = settings(SFTConfig, ctx, env_args=json_object(env_args, "-a"), **named), join_process_group()
    if not ranks.is_first:
        if ranks.broadcast_continue():
            follow_sft(config, load_model(config.model, "cpu", trust_remote_code=config.trust_remote_code), ranks)
        return
    final, run = run_sft(config, console, overwrite, ranks)
    if as_json:
        print_json({**(run.summary() or {}), "model": str(final)})
    else:
        print_sft(final, run, console)


class Place(NamedTuple):
    """The environment that a model is measured in."""

    env: str
    env_args: dict[str, Any]
    env_dir: str | None
    isolation: Isolation


def place_of(config: SFTConfig, data: Run) -> Place:
    """Return the environment of the settings, else that of the data.

    The folder of data may come from others: its environment is loaded by name alone, without its `env_dir` and interpreter.

    Raises:
        ConfigError: the data does not name one, or one that may have to be downloaded.
    """
    if config.env is not None:
        return Place(config.env, config.env_args, config.env_dir, Isolation())
    told = data.config().get("config", {})
    env, env_args = told.get("env"), told.get("env_args", {})
    if not isinstance(env, str) or not env or not isinstance(env_args, dict):
        raise ConfigError(f"{data.path} does not name its environment; give --env ENV")
    if "/" in env and not is_question_file(env):
        raise ConfigError(
            f"the environment of {data.path} is '{env}', which is loaded only if you name it: --env {env}"
        )
    return Place(env, {**env_args, **config.env_args}, config.env_dir, Isolation(on=told.get("isolated") is True))


def place_model(config: SFTConfig, final: Path, data: Run, run: Run, console: Console) -> None:
    """Measure the trained model and the scripted policies; print a table, and keep it in the run's summary.

    What goes wrong is one line, and no error: the model is trained.
    """
    if not config.final_eval_rollouts:
        return
    try:
        place = place_of(config, data)
        rows = _measure_all(config, place, final, data, console)
    except (Error, OSError) as error:
        advice = f"evaluate it: rove eval ENV -m {shlex.quote(str(final))}; --final-eval-rollouts 0 skips this"
        console.print(f"not evaluated: {error}\n{advice}", markup=False, soft_wrap=True)
        return
    from rove.train.placement import learned_only_format, placement_text

    model, policies = rows[0], rows[1:]
    text = placement_text(model, policies)
    found = {
        "env": place.env,
        "env_args": place.env_args,
        "text": text,
        "learned_only_format": learned_only_format(model, policies),
        "rows": msgspec.to_builtins(rows),
    }
    run.finish({**(run.summary() or {}), "placement": found})
    console.print(placement_table(rows, f"{place.env}: after SFT, {model.scored} rollouts, greedy"))
    console.print(text, style="yellow" if found["learned_only_format"] else None, markup=False, soft_wrap=True)


def _measure_all(config: SFTConfig, place: Place, final: Path, data: Run, console: Console) -> list[PolicyResult]:
    """Return the rows: the model's first, then one per scripted policy."""
    from rove.engine.client import EngineClient
    from rove.train.placement import turn_limit

    with looking_at(place.env, place.env_dir, place.env_args, place.isolation) as env:
        if config.env is None:
            _refuse_judges(env, place)
        players = sorted(env.policies)
    with progress(console, f"{place.env} after SFT", 1 + len(players)) as tell:
        client = embedded(str(final))
        assert isinstance(client, EngineClient)
        limit = turn_limit(client.renderer, data.finished())
        rows = [_measure(config, place, client, "the trained model", limit, tell)]
        for name in players:
            tell(len(rows), f"reward {rows[-1].reward:.3f}")
            rows.append(_measure(config, place, None, name, limit, tell))
        tell(len(rows), f"reward {rows[0].reward:.3f}")
    return rows


def _measure(
    config: SFTConfig, place: Place, client: Client | None, name: str, max_tokens: int, tell: ProgressDisplay
) -> PolicyResult:
    """Measure a client, or the scripted policy of that name, in an environment that is loaded for it."""
    from rove.train.placement import measure_policy

    with looking_at(place.env, place.env_dir, place.env_args, place.isolation) as env:
        one = client or ScriptedClient(env.policies[name], name)
        shown = name if client else f"scripted:{name}"
        rollouts = config.final_eval_rollouts
        limits: dict[str, Any] = {"max_tokens": max_tokens, "seed": config.seed, "on_progress": tell.step}
        return run_async(measure_policy(env, one, shown, rollouts, **limits))


def _refuse_judges(env: Environment, place: Place) -> None:
    """Refuse an environment that asks judges, which may cost money."""
    rubrics = env.rubric.rubrics if isinstance(env.rubric, RubricGroup) else [env.rubric]
    if any(isinstance(rubric, JudgeRubric) for rubric in rubrics):
        raise ConfigError(f"'{place.env}' asks a judge model, which may cost money; --env {place.env} evaluates in it")


def placement_table(rows: list[PolicyResult], title: str) -> Table:
    """Return the table, the best reward first; the first of `rows` is the model's."""
    table = Table(title=title)
    table.add_column("")
    for column in ("reward", "95 % interval", "format", " + ".join(rows[0].task_names) or "task"):
        table.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: -row.reward):
        shown = "–" if row.format is None else f"{row.format:.3f}"
        cells = (f"{row.reward:.3f}", interval({"low": row.low, "high": row.high}), shown, f"{row.task:.3f}")
        table.add_row(row.name, *cells, style="bold" if row is rows[0] else None)
    return table
