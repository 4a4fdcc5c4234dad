"""Commands that repeat a `rove train` run or continue from its model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rove.runs.train_folder import RECIPE, ResultRow, TrainFolder
from rove.viewer.html import utf8_text
from rove.viewer.run_settings import describe_run


def environment_of(folder: TrainFolder) -> str:
    """Return the name of the environment; "" if no stage has recorded it."""
    return next(iter(environment_words(folder)), "")


def environment_words(folder: TrainFolder) -> list[str]:
    """Return the words of a command that name the environment; [] if no stage has recorded it."""
    for stage in folder.stages():
        config = describe_run(stage)["config"]
        if config.get("env"):
            env_dir, env_args = config.get("env_dir"), config.get("env_args")
            # The recipe chooses the number of examples and their seed for each stage.
            chosen = {"num_examples", "seed"}
            args = {name: value for name, value in (env_args or {}).items() if name not in chosen}
            words = [str(config["env"]), *(["--env-dir", str(env_dir)] if env_dir else [])]
            return [*words, *(["-a", msgspec.json.encode(args).decode()] if args else [])]
    return []


def seed_of(folder: TrainFolder) -> int:
    """Return the seed of the stages; 0, the default, if none has recorded one."""
    seeds = [describe_run(stage)["config"].get("seed") for stage in folder.stages()]
    return next((seed for seed in seeds if isinstance(seed, int)), 0)


def model_folder(folder: TrainFolder, row: ResultRow) -> str:
    """Return the folder of a row's model where it is now: the row has the path from the folder in which the run was started."""
    path = folder.path.joinpath(*Path(row.model).parts[-2:])
    return str(path.absolute()) if path.is_dir() else row.model


def command(words: Sequence[str]) -> str:
    """Return the words as a command for a shell."""
    return " ".join(shlex.quote(utf8_text(word)) for word in words)


def repeat_command(folder: TrainFolder, seed: int | None = None, run_dir: str = "runs/again") -> str:
    """Return the command that repeats the run; "" if its recipe is not in the folder.

    Args:
        folder: The folder of all stages.
        seed: Default: the seed of the run.
        run_dir: Folder of the new run.
    """
    recipe = folder.path / RECIPE
    if not recipe.is_file():
        return ""
    seed = seed_of(folder) if seed is None else seed
    # rove refuses options such as --env-dir together with a recipe, which has these settings.
    words = ["rove", "train", environment_of(folder) or "ENV", "--recipe", str(recipe.absolute())]
    return command([*words, *(["--seed", str(seed)] if seed else []), "--run-dir", run_dir])


def continue_command(folder: TrainFolder) -> str:
    """Return the command that continues a run that is not complete; "" if its recipe is not in the folder."""
    return repeat_command(folder, run_dir=str(folder.path.absolute()))


def continue_commands(folder: TrainFolder, row: ResultRow) -> dict[str, str]:
    """Return the commands that continue from a trained model: "play" and "rl"; {} if the environment is not recorded."""
    environment = environment_words(folder)
    if not environment:
        return {}
    model = model_folder(folder, row)
    words = [*environment, "-m", model]
    rl = ["rove", "rl", *words, "--steps", "100"]
    for stage in folder.stages():
        # The settings of the last RL, which also name the held-out examples.
        if describe_run(stage)["kind"] == "rl":
            settings = str((stage.path / "config.toml").absolute())
            rl = ["rove", "rl", "@", settings, "-m", model, "--run-dir", "runs/more-rl"]
    return {"play": command(["rove", "play", *words]), "rl": command(rl)}
