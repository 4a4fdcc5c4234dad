"""`rove demo`: the whole loop in one environment; each stage is a rove command and can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

import rove
from rove.cli.clients import make_client, needs_train_extra
from rove.cli.common import RUNS, console_for, hint, print_json, print_warnings, run_async, short
from rove.cli.hacking import run_hacking
from rove.cli.options import confirm_foreign, device_option, examples, in_range, json_option
from rove.cli.pipeline import ExhaustiveConfig, Pipeline, Recipe, answers_table, results_table
from rove.core.config import convert, merge, read_toml
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError
from rove.core.messages import as_messages, text_of
from rove.core.protocols import Client, SamplingParams
from rove.core.ranges import NonNegativeInt
from rove.envs.loading import environment_file, load_environment
from rove.games.exhaustive import ExhaustiveGame, Goals, Line, as_exhaustive_game, play_all_games, summarize, values_of
from rove.models.pretrained import model_path
from rove.utils.console import styled

_ROVE = Path(rove.__file__).resolve().parent
SHIPPED = _ROVE / "_configs" if (_ROVE / "_configs").is_dir() else _ROVE.parent / "configs"
"""Recipes that come with rove: inside the installed package, or in a checkout next to it."""


def load_recipe(
    name: str, variants: Sequence[str] = (), file: str | Path | None = None, model: str | None = None
) -> Recipe:
    """Load a recipe.

    Args:
        name: Environment, or a recipe that comes with rove: configs/NAME.toml.
        variants: Tables of the recipe that change the others, in this order: "lora", "smoke".
        file: Recipe file; one that does not exist here may be a recipe that comes with rove: configs/NAME.toml. Default: next to
            the environment's module, `demo-MODEL.toml` if there is one for the initial model, else `demo.toml`.
        model: Initial model.

    Raises:
        ConfigError: There is no such file, it is not a recipe, or it has no such variant.
    """
    path = find_recipe(name, file, model)
    values = read_toml(path)
    confirm_foreign(path, values)
    for variant in variants:
        if not isinstance(values.get(variant), dict):
            raise ConfigError(f"--{variant} needs a [{variant}] table, which {path} does not have")
        for key, over in values[variant].items():
            old = values.get(key)
            tables = [table for table in (old if isinstance(old, list) else [old]) if isinstance(table, dict)]
            if not tables or not isinstance(over, dict):
                values[key] = over
                continue
            for table in tables:
                merge(table, over)
    return convert(Recipe, values)


def find_recipe(name: str, given: str | Path | None, model: str | None) -> Path:
    """Return the file of a recipe; arguments as for `load_recipe`.

    Raises:
        ConfigError: There is no such file.
    """
    shipped = {f"configs/{recipe.name}": recipe for recipe in sorted(SHIPPED.glob("*.toml"))}
    if given is None:
        own = shipped.get(f"configs/{name}.toml")
        if own is not None and "env" in read_toml(own):
            return own
        folder = environment_file(name).parent
        files = [folder / f"demo-{Path(model).name}.toml"] if model else []
        file = next((file for file in files if file.exists()), folder / "demo.toml")
        if not file.exists():
            others = [other.stem.removeprefix("demo-") for other in sorted(folder.glob("demo-*.toml"))]
            known = "; there is one for: " + ", ".join(f"rove demo {name} -m {other}" for other in others)
            raise ConfigError(f"environment '{name}' has no demo: {file} does not exist{known if others else ''}")
        return file
    if Path(given).exists():
        return Path(given)
    if str(given) not in shipped:
        raise ConfigError(f"no recipe: {given} does not exist; rove comes with {', '.join(shipped)}")
    return shipped[str(given)]


HACKING = "hacking"
SMOKE_NOTE = "smoke test: the figures above mean nothing; "


@click.command(
    epilog=examples(
        "rove demo tictactoe --smoke   # check in a minute that everything runs",
        "rove demo tictactoe           # train from random weights: minutes on a CPU",
        "rove demo tictactoe --full    # continue until exhaustive evaluation finds no lost game",
        "rove demo hacking             # a model learns to use the hole of a grader: three minutes",
        "rove demo quick               # change how a real language model writes: minutes",
    )
)
@click.argument("env")
@click.option(
    "-m", "--model", help="Initial model: a folder or a name of `rove model list`.  [default: that of the recipe]"
)
@click.option(
    "--recipe",
    "file",
    type=click.Path(),
    help="Recipe file, or the name of one that comes with rove.  [default: the environment's demo-MODEL.toml or demo.toml]",
)
@device_option
@click.option("--seed", type=in_range(NonNegativeInt), default=0, show_default=True, help="Random seed.")
@click.option(
    "--run-dir", type=click.Path(), help="Folder for all stages.  [default: one in runs/ for these arguments]"
)
@click.option("--full", is_flag=True, help="Train until the goals hold in every possible game.")
@click.option(
    "--exhaustive",
    "models",
    multiple=True,
    metavar="MODEL",
    help="Only evaluate MODEL in every possible game; repeatable.",
)
@click.option("--lora", is_flag=True, help="Train LoRA adapters instead of the full model: less memory.")
@click.option("--smoke", is_flag=True, help="Use tiny sizes: checks that everything runs, learns nothing.")
@json_option
def command(
    env: str,
    model: str | None,
    file: str | None,
    device: str | None,
    seed: int,
    run_dir: str | None,
    full: bool,
    models: tuple[str, ...],
    lora: bool,
    smoke: bool,
    as_json: bool,
) -> None:
    """Run the whole loop in ENV: a model, the teacher's rollouts, SFT, RL, and a table of results.

    ENV is an environment that has a recipe, "quick": three minutes of RL that change how a real language model writes, or
    "hacking": two to three minutes in which a model learns to use the hole of a grader, and `rove audit` finds it.

    You can stop at any time: repeat the command to continue.
    """
    console = console_for(as_json)
    device = device or "auto"
    if env == HACKING:
        with needs_train_extra():
            results = run_hacking(
                Path(run_dir) if run_dir else RUNS / f"demo-hacking-seed{seed}", seed, console, device
            )
        if as_json:
            print_json(results)
        return
    variants = [variant for variant, given in (("lora", lora), ("smoke", smoke)) if given]
    recipe = load_recipe(env, variants, file, model)
    console.print(f"recipe {find_recipe(env, file, model)}", markup=False, soft_wrap=True)
    name = "-".join(["demo", env, *([Path(file).stem] if file else []), *([_file_part(model)] if model else [])])
    env = recipe.env or env
    if (full or models) and recipe.exhaustive is None:
        raise ConfigError(f"the demo of '{env}' has no [exhaustive] table, which --full and --exhaustive need")
    if models:
        results = evaluate_exhaustively(env, recipe, {short(name): name for name in models}, console, device)
        if as_json:
            print_json(results)
        return
    model = _initial_model(recipe, model, file)
    with needs_train_extra():
        from rove.train.worker_group import join_process_group

    folder = Path(run_dir) if run_dir else RUNS / "-".join([name, f"seed{seed}", *variants])
    if recipe.needs and not smoke:
        console.print(f"needs {recipe.needs}", markup=False, soft_wrap=True)
    demo = Pipeline(env, recipe, folder, seed, console, join_process_group(device), model, full, device)
    if not demo.ranks.is_first:
        demo.follow()
        return
    shown = demo_results(demo)
    console.print(f"{SMOKE_NOTE if smoke else ''}{demo.cost}", soft_wrap=True)
    if as_json:
        print_json(shown)
    play = [f"play against it: rove play {env} -m {shown['rows'][-1]['model']}"] if recipe.conditions[0]["name"] else []
    hint(
        console,
        f"curves: {folder}/*/curves.png",
        f"repeat a row: rove eval --overwrite @ {folder}/eval/ROW/config.toml",
        *play,
    )


def _initial_model(recipe: Recipe, model: str | None, file: str | None) -> str | None:
    """Return the folder or name of the initial model; None if the recipe makes a new one.

    Raises:
        ConfigError: There is no initial model.
    """
    model = model or recipe.model.get("name")
    if model is None and not recipe.model:
        raise ConfigError(
            f"{file or 'the recipe'} has no [model] table; name the folder of the initial model: -m FOLDER"
        )
    if model is not None and not (Path(model_path(model)) / "config.json").exists():
        raise ConfigError(f"-m is '{model}'; expected a model folder, but {Path(model) / 'config.json'} does not exist")
    return model


def _file_part(model: str) -> str:
    """Return the part of a folder's name that stands for a model: its name, and for a path a hash of it."""
    path = Path(model)
    return path.name if path.name == model else f"{path.name}-{fingerprint({'path': str(path.resolve())})}"


def demo_results(demo: Pipeline) -> dict[str, Any]:
    """Run all stages, print the tables, and return the results as JSON."""
    rows, recipe, console = demo.run(), demo.recipe, demo.console
    console.print()
    console.print(results_table(recipe, rows, recipe.evaluation["num_examples"]))
    print_warnings(console, demo.notes())
    if recipe.answers:
        console.print(answers_table(demo, recipe.answers))
    shown: dict[str, Any] = {"rows": rows, "folder": str(demo.folder)}
    if demo.full:
        trained = {row["name"]: row["model"] for row in rows if row["name"].startswith("+ ")}
        shown["exhaustive"] = evaluate_exhaustively(demo.env, recipe, trained, console, demo.device)
    return shown


def evaluate_exhaustively(
    env: str, recipe: Recipe, models: dict[str, str], console: Console, device: str = "auto"
) -> list[dict[str, Any]]:
    """Evaluate models in every possible game, print the table and verdicts, and return the results as JSON."""
    config = recipe.exhaustive
    assert config is not None
    results = {name: run_exhaustive(env, model, config, device) for name, model in models.items()}
    console.print()
    console.print(exhaustive_table(config, results))
    for name, result in results.items():
        console.print(styled(f"{name}: ").append(verdict(result)), soft_wrap=True)
    return list(results.values())


def run_exhaustive(env_id: str, model: str, config: ExhaustiveConfig, device: str = "auto") -> dict[str, Any]:
    """Evaluate a model's greedy policy in every possible game; return the result as `--json` shows it.

    Raises:
        ConfigError: There is no such model or environment, or it does not support exhaustive evaluation.
    """
    env = load_environment(env_id)
    game = as_exhaustive_game(env)

    sampling = SamplingParams.from_args({"temperature": 0.0, "max_tokens": config.max_tokens})

    async def play(client: Client) -> list[Line]:
        try:
            return await play_all_games(env, client, sampling, model)
        finally:
            await client.close()

    lines = run_async(play(make_client(model, env, device=device)))
    result = summarize(env, lines)
    shown = [_line_as_json(line, _failed_goals(game, line, config.goals)) for line in lines]
    failed, missed = [line for line in shown if line["failed"]], [one.text for one in config.goals.missed(result)]
    return {"model": model, **msgspec.to_builtins(result), "missed": missed, "failed_lines": failed}


def _failed_goals(game: ExhaustiveGame, line: Line, goals: Goals) -> list[str]:
    """Return the goals that one game violates."""
    values = values_of(line.record)
    failed = {name: True for name in goals.never if values[name]}
    for step in line.record.steps:
        seen = game.check_answer(as_messages(step.prompt), text_of(step.completion[0]))
        failed |= {name: True for name in goals.checks if not seen.get(name, True)}
    return list(failed)


def _line_as_json(line: Line, failed: Sequence[str]) -> dict[str, Any]:
    return {
        "opening": line.record.info,
        "replies": list(line.replies),
        "answers": [text_of(step.completion[0]) for step in line.record.steps],
        "probability": line.probability,
        "failed": failed,
    }


def exhaustive_table(config: ExhaustiveConfig, results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with a column per model."""
    table = Table(title="every possible game, greedy", title_justify="left")
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right", overflow="fold")
    shown = list(results.values())
    table.add_row("games", *(str(result["lines"]) for result in shown))
    for name in config.values:
        table.add_row(f"  {name}", *(str(result["counts"][name]) for result in shown))
    table.add_section()
    for name in dict.fromkeys(name for result in shown for name in result["checks"]):
        checks = [result["checks"].get(name, {"seen": 0, "total": 0}) for result in shown]
        table.add_row(name, *(f"{check['seen']}/{check['total']}" for check in checks))
    table.add_section()
    table.add_row(styled(("exact means against a random opponent, %", "dim")))
    for name in config.values:
        table.add_row(f"  {name}", *(f"{100 * result['expected'][name]:.2f}" for result in shown))
    return table


def verdict(result: Mapping[str, Any]) -> Text:
    """Return whether the model reached all goals, and which it missed."""
    missed = result["missed"]
    if missed:
        return styled((f"goals missed: {'; '.join(missed)}", "yellow"))
    return styled(("all goals reached", "green"))
