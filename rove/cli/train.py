"""`rove train` and `rove demo`: run the whole loop with a recipe that rove chooses or that an environment provides."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import msgspec
from rich.console import Console

from rove.cli.common import console_for, hint, print_json
from rove.cli.hacking import run_hacking
from rove.cli.options import (
    confirm_foreign,
    device_option,
    env_args_option,
    env_dir_option,
    examples,
    in_range,
    json_object,
    json_option,
    judge_model_option,
    scorer_option,
    template_options,
)
from rove.core.config import read_toml
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError, needs_train_extra
from rove.core.plain import JsonObject
from rove.core.ranges import NonNegativeInt, PositiveFloat
from rove.models.pretrained import model_path
from rove.stages.exhaustive import exhaustive_table, run_exhaustive, verdict
from rove.stages.naming import RUNS, named_environment, short
from rove.stages.pipeline import Pipeline
from rove.stages.recipe import ExhaustiveConfig, Recipe, RecipeFile, find_recipe, read_recipe
from rove.stages.reporter import ConsoleReporter
from rove.stages.request import TrainRequest
from rove.stages.train_model import SMOKE_NOTE, prepare, run_recipe, show_results
from rove.utils.console import styled

HACKING = "hacking"


def print_plan(path: Path, recipe: Recipe, pipeline: Pipeline, is_given: bool, as_json: bool, console: Console) -> None:
    """Print a recipe and the table of its stages."""
    from rove.stages.diagnoser import EXAMINE, examined_diagnoses
    from rove.stages.plan import plan_table, read_estimate
    from rove.stages.preparation import estimate_recipe

    # The estimate in the folder is for the recipe that rove has chosen, and not for a given file.
    estimate = None if is_given else read_estimate(recipe.folder)
    if estimate is None:
        estimate = estimate_recipe(recipe, pipeline.reporter)
    console.print(path.read_text("utf-8"), soft_wrap=True)
    diagnoses = examined_diagnoses(recipe.folder)
    for diagnosis in diagnoses:
        pipeline.reporter.note(f"diagnosis of {EXAMINE}: {diagnosis}", important=True)
    console.print(plan_table(recipe, estimate))
    for note in pipeline.notes():
        pipeline.reporter.warning(note)
    if as_json:
        values = {"recipe": str(path), "estimate": estimate, "diagnoses": diagnoses}
        print_json(msgspec.to_builtins(values))
    hint(console, "start with this recipe: the same command without --dry-run")


def next_steps(pipeline: Pipeline, path: Path) -> list[str]:
    """Return hints for the end of the output, such as how to see the curves and how to compare the last two stages."""
    recipe, rows = pipeline.recipe, pipeline.rows
    condition = recipe.conditions[0].name
    steps = [f"curves: {recipe.folder}/*/curves.png"]
    if len(rows) > 1:
        first, last = (pipeline.eval_folder(row.name, condition) for row in rows[-2:])
        steps.append(f"compare the last two rows on the same examples: rove compare {first} {last}")
    return [
        *steps,
        f"evaluate the model on the examples of the table: {table_command(recipe, rows[-1].model)}",
        f"change the recipe: edit a copy of {path}, then rove train {recipe.env} --recipe COPY --run-dir FOLDER",
    ]


def table_command(recipe: Recipe, model: str) -> str:
    """Return the command that evaluates a model as the first condition of the table does, on the same examples."""
    config = recipe.conditions[0].config
    options = ["-m", model, "-n", str(config.num_examples), "-r", str(config.rollouts_per_example)]
    if config.max_tokens is not None:
        options += ["-t", str(config.max_tokens)]
    if config.temperature is not None:
        options += ["-T", f"{config.temperature:g}"]
    if config.skip_examples:  # the skipped examples chose the weights
        options += ["--skip_examples", str(config.skip_examples)]
    return f"rove eval {named_environment(config.env, config.env_dir, config.env_args)} {shlex.join(options)}"


@click.command(
    epilog=examples(
        "rove train tictactoe --dry-run      # write and print the recipe",
        "rove train tictactoe",
        "rove train tictactoe --smoke        # check in a minute that everything runs",
        "rove train questions.jsonl --scorer numeric",
        "rove train reverse_text -m smollm2-135m --minutes 15",
        "rove train my_env -m smollm2-135m --teacher gpt-5-mini",
        "rove train tictactoe --recipe mine.toml --run-dir runs/mine",
    )
)
@click.argument("env")
@click.option(
    "-m",
    "--model",
    help="Pretrained model: a folder, or a name that `rove model list` prints.  [default: a new, small model]",
)
@env_args_option
@env_dir_option
@scorer_option
@judge_model_option
@click.option(
    "--recipe", "file", type=click.Path(exists=True), help="Recipe file to use.  [default: rove chooses a recipe]"
)
@click.option(
    "--teacher",
    metavar="MODEL",
    help="Model whose rollouts SFT trains on, named as for `rove eval -m`.  [default: the best scripted policy]",
)
@click.option(
    "--minutes",
    type=in_range(PositiveFloat),
    help="Choose sizes that take at most this long by rove's estimate.  [default: the sizes that the task needs]",
)
@device_option
@template_options
@click.option("--seed", type=in_range(NonNegativeInt), default=0, show_default=True, help="Random seed.")
@click.option(
    "--run-dir",
    type=click.Path(),
    help="Folder for all stages.  [default: runs/train-ENV-seedN, with a hash for ./FILE.py]",
)
@click.option("--dry-run", is_flag=True, help="Only write and print the recipe, with an estimate of time and memory.")
@click.option(
    "--smoke", is_flag=True, help="Use tiny sizes to check that all stages run; the model does not learn the task."
)
@json_option
def train_command(
    env: str,
    model: str | None,
    env_args: str | None,
    env_dir: str | None,
    scorer: str | None,
    judge_model: str | None,
    file: str | None,
    teacher: str | None,
    minutes: float | None,
    device: str | None,
    chat_template: str | None,
    template_args: JsonObject | None,
    seed: int,
    run_dir: str | None,
    dry_run: bool,
    smoke: bool,
    as_json: bool,
) -> None:
    """Train a model in ENV: examine the environment, choose a recipe, then collect data, run SFT and RL, and print results.

    You can stop at any time: repeat the command to continue.
    """
    console = console_for(as_json)
    reporter = ConsoleReporter(console)
    with needs_train_extra():
        from rove.train.worker_group import join_process_group
    ranks = join_process_group(device or "auto")
    scoring = {"scorer": scorer, "judge_model": judge_model}
    args = (json_object(env_args, "-a") or {}) | {name: value for name, value in scoring.items() if value}
    request = TrainRequest(env, model, args, env_dir, chat_template, template_args or {}, minutes, teacher)
    if file:
        in_recipe = {"-m": model, "-a": env_args, "--scorer": scorer, "--judge-model": judge_model}
        in_recipe |= {"--env-dir": env_dir, "--chat-template": chat_template, "--template-args": template_args}
        options = [name for name, value in in_recipe.items() if value]
        if options:
            raise ConfigError(
                f"--recipe and {', '.join(options)}: the recipe contains these settings; remove the options, or change {file}"
            )
    recipe, path = prepare(request, file, run_dir, seed, device or "auto", reporter, confirm_foreign, smoke)
    pipeline = Pipeline(recipe, reporter, ranks)
    if dry_run:
        print_plan(path, recipe, pipeline, bool(file), as_json, console)
        return
    # Of several processes, only the first runs the loop and prints (docs/decisions/ranks.md).
    if not ranks.is_first:
        pipeline.follow()
        return
    result = run_recipe(pipeline, path, smoke)
    if as_json:
        print_json(
            {
                "rows": result.rows,
                "folder": str(recipe.folder),
                "diagnoses": [diagnosis.row for diagnosis in result.diagnoses],
            }
        )
    hint(console, *next_steps(pipeline, path))


@click.command(
    epilog=examples(
        "rove demo tictactoe --smoke   # check in a minute that everything runs",
        "rove demo tictactoe           # train from random weights: minutes on a CPU",
        "rove demo tictactoe --full    # continue until exhaustive evaluation finds no lost game",
        "rove demo hacking             # a model learns to exploit a hole in a grader: three minutes",
        "rove demo quick               # change how a real language model writes: minutes",
    )
)
@click.argument("env")
@click.option(
    "-m",
    "--model",
    help="Initial model: a folder, or a name that `rove model list` prints.  [default: the recipe's model]",
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
    "--run-dir",
    type=click.Path(),
    help="Folder for all stages.  [default: a folder in runs/ named after these arguments]",
)
@click.option("--full", is_flag=True, help="Train until the goals hold in every possible game.")
@click.option(
    "--exhaustive",
    "models",
    multiple=True,
    metavar="MODEL",
    help="Only evaluate MODEL in every possible game; repeatable.",
)
@click.option("--lora", is_flag=True, help="Train LoRA adapters instead of the full model, to save memory.")
@click.option(
    "--smoke", is_flag=True, help="Use tiny sizes to check that all stages run; the model does not learn the task."
)
@json_option
def demo_command(
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
    "hacking": two to three minutes in which a model learns to exploit a hole in a grader, and `rove audit` finds the hole.

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
    flags = {"lora": lora, "smoke": smoke}
    variants = [variant for variant, is_set in flags.items() if is_set]
    path = find_recipe(env, file, model)
    values = read_toml(path)
    confirm_foreign(path, values)
    recipe = read_recipe(path, values, variants)
    console.print(f"recipe {path}", soft_wrap=True)
    if (full or models) and recipe.exhaustive is None:
        raise ConfigError(
            f"the demo of '{recipe.env or env}' has no [exhaustive] table, which --full and --exhaustive need"
        )
    if models and recipe.exhaustive is not None:
        named = {short(name): name for name in models}
        games = print_exhaustive(recipe.env or env, recipe.exhaustive, named, console, device)
        if as_json:
            print_json(games)
        return
    initial = _initial_model(recipe, model, file)
    parts = ["demo", env]
    if file:
        parts.append(Path(file).stem)
    if model:
        parts.append(_file_part(model))
    folder = Path(run_dir) if run_dir else RUNS / "-".join([*parts, f"seed{seed}", *variants])
    _run_demo(recipe, recipe.env or env, folder, seed, initial, full, device, console, smoke, as_json)


def _run_demo(
    file: RecipeFile,
    env: str,
    folder: Path,
    seed: int,
    model: str | None,
    full: bool,
    device: str,
    console: Console,
    smoke: bool,
    as_json: bool,
) -> None:
    """Run all stages of a demo and print its tables."""
    with needs_train_extra():
        from rove.train.worker_group import join_process_group

    recipe = file.complete(env, folder, seed, model, full, device)
    if file.needs and not smoke:
        console.print(f"needs {file.needs}", soft_wrap=True)
    pipeline = Pipeline(recipe, ConsoleReporter(console), join_process_group(device))
    if not pipeline.ranks.is_first:
        pipeline.follow()
        return
    is_complete = pipeline.restore()
    rows = pipeline.rows if is_complete else pipeline.run()
    show_results(pipeline)
    if recipe.answers:
        console.print(pipeline.answers_table())
    result: JsonObject = {"rows": rows, "folder": str(folder)}
    if full and recipe.exhaustive is not None:
        # The last model also has a row with another temperature; the exhaustive evaluation is greedy.
        trained: dict[str, str] = {}
        for row in rows:
            if row.is_trained and row.model not in trained.values():
                trained[row.name] = row.model
        result["exhaustive"] = print_exhaustive(env, recipe.exhaustive, trained, console, device)
    if not is_complete:
        console.print(f"{SMOKE_NOTE if smoke else ''}{pipeline.cost}", soft_wrap=True)
    if as_json:
        print_json(result)
    play = [f"play against it: rove play {env} -m {rows[-1].model}"] if recipe.conditions[0].name else []
    hint(
        console,
        f"curves: {folder}/*/curves.png",
        f"repeat a row: rove eval --overwrite @ {folder}/eval/ROW/config.toml",
        *play,
    )


def _initial_model(recipe: RecipeFile, model: str | None, file: str | None) -> str | None:
    """Return the folder or name of the initial model; None if the recipe creates a new model."""
    model = model or recipe.model.get("name")
    if model is None and not recipe.model:
        raise ConfigError(
            f"{file or 'the recipe'} has no [model] table; name the folder of the initial model: -m FOLDER"
        )
    if model is not None and not (Path(model_path(model)) / "config.json").exists():
        raise ConfigError(f"-m is '{model}'; expected a model folder, but {Path(model) / 'config.json'} does not exist")
    return model


def _file_part(model: str) -> str:
    """Return the part of a folder's name that stands for a model: the model's name and, for a path, a hash of the path."""
    path = Path(model)
    if path.name == model:
        return model
    return f"{path.name}-{fingerprint({'path': str(path.resolve())})}"


def print_exhaustive(
    env: str, config: ExhaustiveConfig, models: dict[str, str], console: Console, device: str
) -> list[JsonObject]:
    """Evaluate models in every possible game, print the table and verdicts, and return the results as JSON."""
    results = {name: run_exhaustive(env, model, config, device) for name, model in models.items()}
    console.print()
    console.print(exhaustive_table(config, results))
    for name, result in results.items():
        console.print(styled(f"{name}: ").append(verdict(result)), soft_wrap=True)
    return list(results.values())
