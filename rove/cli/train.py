"""`rove train`: train a model in any environment, with a recipe chosen from what the environment shows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from rove.cli.clients import needs_train_extra
from rove.cli.common import RUNS, console_for, hint, print_json, run_async, working
from rove.cli.options import env_args_option, examples, json_object, json_option
from rove.cli.pipeline import Pipeline, Recipe, results_table
from rove.core.config import convert, read_toml
from rove.envs.loading import environment_arguments, load_environment
from rove.utils.files import atomic_write
from rove.utils.processes import peak_memory

RECIPE = "recipe.toml"
"""File name of the recipe in the folder of all stages."""
HELD_OUT = 0.1
"""Fraction of a file's questions that is used for evaluation only."""


def write_recipe(env: str, env_dir: str | None, env_args: dict[str, Any], path: Path, console: Console) -> None:
    """Examine an environment and write the recipe for it."""
    with needs_train_extra():
        from rove.train.recipe import as_toml, choose, examine
    arguments = environment_arguments(env, env_dir)
    if "held_out" in arguments:  # a file of questions
        env_args = {"held_out": HELD_OUT, **env_args}
    loaded = load_environment(env, env_dir, **env_args)
    with working(console, f"running the scripted policies of {env}"):
        evidence = run_async(examine(loaded, arguments))
    sections = choose(env, env_args, evidence)
    if env_dir is not None:
        sections[0].values["env_dir"] = env_dir
    comment = f"Recipe of `rove train {env}`. Change any line, then: rove train {env} --recipe {path}"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, as_toml(sections, comment).encode())


@click.command(
    epilog=examples(
        "rove train tictactoe --dry-run      # show the recipe and what it needs",
        "rove train tictactoe",
        "rove train questions.jsonl --scorer numeric",
        "rove train tictactoe --recipe runs/train-tictactoe-seed0/recipe.toml",
    )
)
@click.argument("env")
@env_args_option
@click.option("--env-dir", help="Folder that is searched first for the environment.")
@click.option("--scorer", help="For a file of questions: exact, numeric, choice, …, or package.module:function.")
@click.option("--recipe", "file", type=click.Path(exists=True), help="Recipe file to use.  [default: choose one]")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option("--run-dir", type=click.Path(), help="Folder for all stages.  [default: runs/train-ENV-seedN]")
@click.option("--dry-run", is_flag=True, help="Only write and print the recipe.")
@json_option
def command(
    env: str,
    env_args: str | None,
    env_dir: str | None,
    scorer: str | None,
    file: str | None,
    seed: int,
    run_dir: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train a model in ENV: examine the environment, choose a recipe, then collect data, run SFT and RL, and print results.

    You can stop at any time: repeat the command to continue.
    """
    console = console_for(as_json)
    with needs_train_extra():
        from rove.train.worker_group import join_process_group
    folder = Path(run_dir) if run_dir else RUNS / f"train-{Path(env).stem}-seed{seed}"
    path = Path(file) if file else folder / RECIPE
    if not path.exists():
        given = {"scorer": scorer} if scorer else {}
        write_recipe(env, env_dir, given | (json_object(env_args, "-a") or {}), path, console)
    console.print(f"recipe {path}", markup=False, soft_wrap=True)
    if dry_run:
        console.print(path.read_text(), markup=False, soft_wrap=True)
        return
    recipe = convert(Recipe, read_toml(path))
    started, cpu = time.time(), time.process_time()
    pipeline = Pipeline(env, recipe, folder, seed, console, join_process_group())
    if not pipeline.ranks.is_first:
        pipeline.follow()
        return
    rows = pipeline.run()
    console.print()
    console.print(results_table(recipe, rows, recipe.evaluation["num_examples"]))
    minutes, cpu_minutes = (time.time() - started) / 60, (time.process_time() - cpu) / 60
    console.print(
        f"took {minutes:.1f} minutes, {cpu_minutes:.1f} CPU-minutes, at most {peak_memory() / 1e9:.1f} GB of memory; "
        "without stages that were complete before",
        soft_wrap=True,
    )
    if as_json:
        print_json({"rows": rows, "folder": str(folder)})
    hint(
        console,
        f"curves: {folder}/*/curves.png",
        f"change the recipe: edit a copy of {path}, then rove train {env} --recipe COPY --run-dir FOLDER",
    )
