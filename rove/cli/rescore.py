"""`rove rescore`: the rollouts of a run, scored with the rubric as it is now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from rove.cli.common import console_for, hint, json_object, print_json, progress, run_async, run_folder, short
from rove.cli.eval import Watch
from rove.cli.tables import counts_line, summary_table
from rove.clients.scripted import ScriptedClient
from rove.core.config import merge
from rove.core.errors import ConfigError
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.rollouts.rescore import CONCURRENT, rescore, rescored_identity, settings_of
from rove.runs.run import Run


def environment_of(source: Run, env_args: dict[str, Any] | None, env_dir: str | None) -> Environment:
    """The environment of a run as it is now.

    Args:
        env_args: they go over the arguments it had.
        env_dir: where it lies. Default: where it lay.

    Raises:
        ConfigError: it had no name to find it by, or cannot be loaded.
        RunError: it is not the run of an evaluation.
    """
    config = settings_of(source)
    if not config.get("env"):
        raise ConfigError(f"the environment of {source.path} has no name to load it by; call rove.rescore from Python")
    args = merge(dict(config.get("env_args", {})), env_args or {})
    return load_environment(config["env"], env_dir or config.get("env_dir"), **args)


def print_rescored(summary: dict[str, Any], env: Environment, source: Run, into: Path, console: Console) -> None:
    """The table, the counts, what was left out, and what to do next."""
    told = summary["rescored"]
    console.print(summary_table(summary, f"{env.env_id} · {source.path}, rescored"))
    console.print(counts_line(summary), soft_wrap=True)
    if told["failed"]:
        console.print(f"left out: {told['failed']} rollouts that had failed; `rove eval` runs them again")
    if told["gone"]:
        console.print(f"[yellow]left out: {told['gone']} rollouts of examples that the dataset has no more[/yellow]")
    hint(console, f"what has changed: rove compare {source.path} {into}")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-a", "--env-args", help="Environment arguments as JSON, over those of RUN.")
@click.option("--into", "--run-dir", "into", help="The new run folder.  [default: runs/ENV--MODEL--rescored--hash]")
@click.option("--env-dir", help="Where the environment lies.  [default: as for RUN]")
@click.option("-c", "--max-concurrent", type=click.IntRange(min=1), default=CONCURRENT, show_default=True)
@click.option("--max-scoring", type=click.IntRange(min=1), help="Rollouts scored at a time.  [default: as many as run]")
@click.option("--overwrite", is_flag=True, help="Throw away what the new folder holds.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    run: Path,
    env_args: str | None,
    into: str | None,
    env_dir: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Score the rollouts of RUN again with its environment's rubric as it is now, without asking the model again.

    Every rollout is played again with its recorded answers, so that the rubric finds all it may read. Where the environment
    no longer shows the model what it did, the rollout fails instead of being scored. Repeat the command to continue.
    """
    console = console_for(as_json)
    source = Run(run)
    env = environment_of(source, json_object(env_args, "-a"), env_dir)
    model = settings_of(source).get("model", "")
    folder = run_folder(into, env.env_id, model, "rescored", identity=rescored_identity(env, source))
    with source, progress(console, f"{env.env_id} · {short(model)}, rescored", len(source.kept())) as tell:
        watch = Watch(tell, console, ScriptedClient(lambda *_: ""))
        summary = run_async(rescore(env, source, into=folder, on_record=watch, **options))
    if as_json:
        print_json({**summary, "run": str(folder)})
    else:
        print_rescored(summary, env, source, folder, console)
    if not summary["scored"]:
        ctx.exit(1)
