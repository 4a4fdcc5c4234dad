"""Find out, for files of questions, whether an evaluation asks questions that the model was trained on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rove.core.errors import RunError
from rove.core.plain import JsonMapping, JsonObject, is_object
from rove.envs.dataset import content_key
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.models.pretrained import model_path
from rove.runs.run import Run
from rove.stages.clients import is_folder


def trained_note(model: str, file: str, env_args: JsonMapping, env: Environment, count: int) -> str | None:
    """Return a note if an evaluation includes questions that the model's training run used; None if not.

    Only a run with the same file is found; the run's folder is the folder that contains the model.

    Args:
        model: The model that is evaluated.
        file: The file of questions.
        env_args: The arguments of the environment.
        env: The environment that is loaded with them.
        count: Number of questions from the start of the dataset; all if < 0.
    """
    if not is_folder(model):
        return None
    trained = _training_arguments(Path(model_path(model)).expanduser(), Path(file))
    if trained is None:
        return None
    held_out = {"held_out": trained["held_out"]} if "held_out" in trained else {}
    other_arguments = {name: value for name, value in env_args.items() if name != "held_out"}
    training_env = load_environment(file, None, **other_arguments, **held_out)
    training_keys = {content_key(row) for row in training_env.examples(train=True)}
    keys = [content_key(row) for row in env.examples(count)]
    shared = sum(key in training_keys for key in keys)
    if not shared:
        return None
    advice = (
        f"the environment's argument held_out = {held_out['held_out']} leaves them out"
        if held_out
        else "use other questions"
    )
    return (
        f"{shared:,} of the {len(keys):,} questions were used to train {model}, so its reward may be too high; {advice}"
    )


def _training_arguments(model: Path, file: Path) -> JsonObject | None:
    """Return the arguments with which a file of questions was loaded to train a model; None if it was not used."""
    for folder in (model.parent, model.parent.parent):
        with suppress(RunError, OSError):
            recorded = Run(folder).config()
            config = recorded["config"]
            if recorded["kind"] == "sft":  # the run with the teacher's rollouts names the file
                config = Run(config["data"]).config()["config"]
            arguments = config.get("env_args", {})
            is_same_file = Path(str(config.get("env"))).resolve() == file.resolve()
            return arguments if is_same_file and is_object(arguments) else None
    return None
