"""The request of `rove train`, and a check that a folder's recipe was made for this request."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rove.core.checks import check_fields
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError
from rove.core.plain import Arguments, JsonMapping, JsonObject
from rove.core.ranges import PositiveFloat
from rove.envs.libraries import find_library
from rove.envs.loading import environment_version
from rove.envs.question_files import is_question_file
from rove.runs.provenance import SEAL
from rove.runs.train_folder import LOCK, RECIPE
from rove.stages.naming import file_name

REQUEST, EVIDENCE, ESTIMATE = "request.json", "evidence.json", "estimate.json"
"""Names of files in the folder of all stages."""
HELD_OUT = 0.1
"""Fraction of a file's questions that is used for evaluation only."""
TEMPLATE_SETTINGS = ("chat_template", "template_args")
"""Names of the settings of a chat template."""


class TrainRequest(msgspec.Struct, frozen=True):
    """A request to train: the model, the environment, and their settings."""

    env: str
    """Name of the environment, or a file of questions."""
    model: str | None = None
    """Folder or name of a pretrained model; None for a new model."""
    env_args: Arguments = {}
    """Arguments of the environment."""
    env_dir: str | None = None
    """Folder that is searched first for the environment."""
    chat_template: str | None = None
    """Chat template that replaces the pretrained model's own."""
    template_args: Arguments = {}
    """Variables of the pretrained model's chat template."""
    minutes: PositiveFloat | None = None
    """Time limit of the recipe by its estimate; None for the sizes that rove chooses by the task alone."""
    teacher: str | None = None
    """Model whose rollouts SFT trains on, or "scripted:NAME"; None for the best scripted policy."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def values(self) -> JsonObject:
        """Return the fields."""
        return msgspec.to_builtins(self)

    @property
    def template_settings(self) -> JsonObject:
        """Return the settings of the chat template that are set."""
        return {name: value for name, value in self.values.items() if value and name in TEMPLATE_SETTINGS}

    @property
    def version(self) -> str:
        """The version of the environment for which a recipe is made."""
        return environment_version(self.env, self.env_dir, with_held_out(self.env, self.env_args))

    def folder_name(self, seed: int) -> str:
        """Return the name of the default folder; different requests have different names."""
        model = self.model or ""
        has_plain_names = Path(self.env).name == self.env and Path(model).name == model
        has_defaults = self == TrainRequest(self.env, self.model, env_dir=self.env_dir)
        parts = ["train", file_name(self.env) if find_library(self.env) else Path(self.env).stem]
        if model:
            parts.append(Path(model).name)
        parts.append(f"seed{seed}")
        if not has_plain_names or not has_defaults:
            parts.append(fingerprint(self.values))
        return "-".join(parts)


def check_request(request: TrainRequest, folder: Path) -> None:
    """Check that a folder's recipe was made for the same environment, with the same code, model and arguments.

    Raises:
        ConfigError: The recipe was made for another environment, code, model or arguments.
    """
    path = folder / REQUEST
    if not path.exists():
        return
    recorded = msgspec.json.decode(path.read_bytes())
    current = {**request.values, "version": request.version}
    changed = [name for name in current if recorded.get(name) != current[name]]
    if not changed:
        return
    name = changed[0]
    if name == "version":
        raise ConfigError(
            f"{request.env} has changed since {folder / RECIPE} was made; give another run_dir, "
            "delete the folder, or undo the change"
        )
    raise ConfigError(
        f"{folder / RECIPE} was made with {name} = {recorded.get(name)!r}, but {name} is {current[name]!r} now; "
        "give another run_dir, or change the recipe"
    )


def is_outdated(request: TrainRequest, folder: Path) -> bool:
    """Return whether a folder has only an unedited recipe that was made before the environment's code changed."""
    names = {path.name for path in folder.iterdir()}
    if not names <= {RECIPE, SEAL.format(RECIPE), REQUEST, EVIDENCE, ESTIMATE, LOCK} or REQUEST not in names:
        return False
    # Settings that a user has edited, or stages that have run, must not be lost.
    recorded = msgspec.json.decode((folder / REQUEST).read_bytes())
    recipe = recipe_digest((folder / RECIPE).read_text("utf-8"))
    unedited = {**request.values, "version": recorded.get("version"), "recipe": recipe}
    return recorded == unedited and recorded["version"] != request.version


def recipe_digest(text: str) -> str:
    """Return a digest of a recipe's text, by which rove notices that the recipe was edited."""
    return fingerprint({"text": text})


def with_held_out(env: str, env_args: JsonMapping) -> JsonObject:
    """Return the arguments of an environment; a file of questions gets held-out questions."""
    return {"held_out": HELD_OUT, **env_args} if is_question_file(env) else dict(env_args)
