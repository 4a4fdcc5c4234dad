"""Recipes: the settings of all stages of `rove train` and `rove demo`, and the columns of the results table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import tomli_w

from rove.core.checks import Settings
from rove.core.config import convert, merge, read_toml
from rove.core.errors import ConfigError
from rove.core.plain import JsonMapping, JsonObject, JsonValue, is_list, is_object
from rove.core.ranges import NonNegativeInt, PositiveInt
from rove.envs.loading import environment_file
from rove.rollouts.exhaustive import Goals
from rove.stages.clients import is_folder
from rove.stages.evaluation import EvalConfig
from rove.stages.models import ModelConfig
from rove.stages.request import TEMPLATE_SETTINGS

if TYPE_CHECKING:
    from rove.train.config import RLConfig, SFTConfig

FULL = "full"
"""Folder name of the stage that `--full` adds."""
_ROVE = Path(__file__).resolve().parents[1]
SHIPPED = _ROVE / "_configs" if (_ROVE / "_configs").is_dir() else _ROVE.parent / "configs"
"""Folder of the recipes that come with rove: inside the installed package, or next to the package in a checkout."""


class ExhaustiveConfig(Settings, frozen=True, kw_only=True):
    """Settings of the exhaustive evaluation: the `[exhaustive]` table of a demo.toml."""

    values: list[str]
    """Reward functions and metrics (0 or 1) that the table shows."""
    goals: Goals = Goals()
    """Goals that the model should reach."""
    max_tokens: PositiveInt | None = None
    """Maximum tokens per response."""


class Column(Settings, frozen=True, kw_only=True):
    """A column of the results table."""

    title: str
    """Heading of the column."""
    values: list[str]
    """Names of the reward functions or metrics that the column shows, or "reward"."""
    condition: str = ""
    """Name of the condition to show, if there are several."""
    interval: bool = False
    """Show the mean with its 95% interval instead of the mean in percent."""


class BaselineRow(Settings, frozen=True, kw_only=True):
    """A published result that the results table repeats."""

    name: str
    """Name of the row."""
    cells: list[str]
    """Texts of the row, one per column."""


class RLStage(msgspec.Struct, frozen=True):
    """An RL stage of a recipe."""

    name: str
    """Name in the results table."""
    folder: str
    """Name of the stage's folder."""
    config: RLConfig
    """Settings of the stage; the model is filled in once the previous stage has trained it."""


class Condition(msgspec.Struct, frozen=True):
    """A way to evaluate each row of the results table."""

    name: str
    config: EvalConfig
    """Settings of the evaluation; model and run folder are filled in for each row."""
    own_temperature: bool = False
    """Whether the recipe sets the temperature of this condition."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The complete settings of all stages, in one environment and one folder."""

    env: str
    """The environment."""
    env_dir: str | None = None
    """Folder that is searched first for the environment."""
    folder: Path
    """Folder that contains the run folder of each stage."""
    model: str
    """Folder or name of the initial model."""
    new_model: ModelConfig | None = None
    """Settings of the initial model if it has to be created."""
    references: list[str] = []
    """Models or scripted policies that are measured for comparison; by default, the teacher."""
    data: EvalConfig | None = None
    """Settings of the teacher's rollouts; None without an SFT stage."""
    sft: SFTConfig | None = None
    """Settings of SFT."""
    rl: list[RLStage]
    """The RL stages."""
    evaluation: EvalConfig
    """Settings that all conditions share."""
    conditions: list[Condition]
    """Conditions under which each row of the table is evaluated."""
    columns: list[Column]
    """Columns of the table."""
    baseline: list[BaselineRow] = []
    """Published results at the end of the table."""
    exhaustive: ExhaustiveConfig | None = None
    """Settings of the exhaustive evaluation."""
    answers: int = 0
    """Number of questions that are printed at the end with the first and the last model's answers."""
    device: str = "auto"
    """Device of every model that runs on this machine; unless it is "auto", it overrides the devices that the recipe names."""
    template_settings: JsonObject = {}
    """Settings of the initial model's chat template, which trained models keep."""

    @property
    def env_args(self) -> JsonObject:
        """Arguments of the environment in the evaluations."""
        return self.evaluation.env_args

    def evaluation_of(self, config: EvalConfig, model: str, folder: Path, **changes: Any) -> EvalConfig:
        """Return the settings for evaluating `model` in a run folder."""
        if self.device != "auto" and is_folder(model) and config.base_url is None:
            # Only a model folder is computed here; endpoints and scripted policies refuse a device.
            changes["device"] = self.device
        if model == self.model:
            changes.update(self.template_settings)
        return msgspec.structs.replace(config, model=model, run_dir=str(folder), **changes)


class RecipeFile(Settings, frozen=True, kw_only=True):
    """A `demo.toml` or `recipe.toml`. Tables of stages hold only the settings that differ from the defaults of their command."""

    env: str | None = None
    """Environment; by default, the environment on the command line."""
    env_dir: str | None = None
    """Folder that is searched first for the environment."""
    references: list[str] = []
    """Models or scripted policies that are measured for comparison; by default, the teacher."""
    needs: str = ""
    """Time and memory that the demo needs; printed at its start."""
    model: JsonObject = {}
    """`name` of the initial model, with `chat_template` and `template_args` if they are set, or the settings of a new model.
    Without this table, `-m` names the model."""
    data: JsonObject = {}
    """Settings of the teacher's rollouts; without this table, there is no teacher and no SFT stage."""
    sft: JsonObject = {}
    """Settings of SFT on the teacher's rollouts."""
    rl: list[JsonObject]
    """Settings of the RL stages; each has a `name`."""
    full: JsonObject = {}
    """Settings of the RL stage that `--full` adds; its evaluations are exhaustive, with the goals of `exhaustive`."""
    exhaustive: ExhaustiveConfig | None = None
    """Settings of the exhaustive evaluation that `--exhaustive` and `--full` show."""
    evaluation: JsonObject
    """Settings of the evaluations of each row of the results table."""
    conditions: tuple[JsonObject, ...] = ({"name": ""},)
    """Conditions for evaluating each row: a name, and settings that differ from `evaluation`. Default: one condition without a
    name."""
    columns: list[Column]
    """Columns of the results table."""
    baseline: list[BaselineRow] = []
    """Published results that the results table repeats."""
    answers: NonNegativeInt = 0
    """Number of the evaluation's questions that are printed at the end with the first and the last model's answers."""
    lora: JsonObject = {}
    """Settings that `--lora` changes, by stage; they train an adapter instead of the full model."""
    smoke: JsonObject = {}
    """Settings that `--smoke` changes, by stage; they make all sizes tiny."""

    def complete(
        self,
        env: str,
        folder: Path,
        seed: int = 0,
        model: str | None = None,
        full: bool = False,
        device: str = "auto",
    ) -> Recipe:
        """Return the complete settings of all stages.

        Args:
            env: Name of the environment.
            folder: Folder that contains the run folder of each stage.
            seed: Random seed of all stages.
            model: Folder or name of the initial model. Default: the file's model, else a new model.
            full: Whether to add the stage `full`.
            device: Device of every model that runs on this machine; unless it is "auto", it overrides the devices in the file.

        Raises:
            ConfigError: A setting is unknown or out of range, or settings contradict each other.
        """
        settings: JsonObject = {}
        if model is None:
            model = self.model.get("name")
            settings = {name: self.model[name] for name in TEMPLATE_SETTINGS if name in self.model}
        initial = model or str(folder / "model")
        shared: JsonObject = {} if self.env_dir is None else {"env_dir": self.env_dir}
        on_device: JsonObject = {} if device == "auto" else {"device": device}
        evaluated: JsonObject = {"env": env, "model": initial, **shared}
        stages = [(f"rl{number}", table) for number, table in enumerate(self.rl, start=1)]
        if full:
            stages.append((FULL, self._full_stage(env)))
        new_model = {"env": env, "output": initial, "seed": seed, **shared, **self.model}
        recipe = Recipe(
            env=env,
            env_dir=self.env_dir,
            folder=folder,
            model=initial,
            new_model=convert(ModelConfig, new_model) if model is None else None,
            references=self.references,
            data=self._data({**evaluated, "seed": seed}, folder, on_device),
            sft=self._sft({"model": initial, "seed": seed, **shared, **settings}, folder, on_device),
            rl=[
                _rl_stage(name, {**evaluated, "seed": seed, **settings}, table, folder, on_device)
                for name, table in stages
            ],
            evaluation=convert(EvalConfig, {**evaluated, **self.evaluation}),
            conditions=[self._condition(table, evaluated) for table in self.conditions],
            columns=self.columns,
            baseline=self.baseline,
            exhaustive=self.exhaustive,
            answers=self.answers,
            device=device,
            template_settings=settings,
        )
        # All stages before the first one runs: a wrong setting of the last would otherwise show after hours.
        if recipe.sft is not None:
            recipe.sft.check()
        for stage in recipe.rl:
            stage.config.check()
        return recipe

    def _data(self, defaults: JsonMapping, folder: Path, on_device: JsonMapping) -> EvalConfig | None:
        if not self.data:
            return None
        # The seed of the command counts, so that runs with several seeds differ in their data too.
        values = {**defaults, "run_dir": str(folder / "data"), **self.data, "seed": defaults["seed"]}
        is_local = is_folder(str(values["model"])) and values.get("base_url") is None
        return convert(EvalConfig, {**values, **on_device} if is_local else values)

    def _sft(self, defaults: JsonMapping, folder: Path, on_device: JsonMapping) -> SFTConfig | None:
        from rove.train.config import SFTConfig

        if not self.data:
            return None
        # The results table compares the model with the scripted policies, so SFT need not.
        folders = {"data": str(folder / "data"), "run_dir": str(folder / "sft"), "final_eval_rollouts": 0}
        return convert(SFTConfig, {**folders, **defaults, **self.sft, **on_device})

    def _condition(self, table: JsonMapping, defaults: JsonMapping) -> Condition:
        changes = {name: value for name, value in table.items() if name != "name"}
        values = merge(msgspec.to_builtins(self.evaluation), changes)
        return Condition(table["name"], convert(EvalConfig, {**defaults, **values}), "temperature" in changes)

    def _full_stage(self, env: str) -> JsonObject:
        """Return the table `full`: training ends as soon as the goals of the exhaustive evaluation are reached."""
        assert self.exhaustive is not None
        every_game = {"env": env, "kind": "exhaustive", "goals": msgspec.to_builtins(self.exhaustive.goals)}
        return {**self.full, "evaluation": [{**every_game, **table} for table in self.full["evaluation"]]}


def _rl_stage(name: str, defaults: JsonMapping, table: JsonMapping, folder: Path, on_device: JsonMapping) -> RLStage:
    from rove.train.config import RLConfig

    values = {key: value for key, value in table.items() if key != "name"}
    config = convert(RLConfig, {**defaults, "run_dir": str(folder / name), **values, **on_device})
    return RLStage(table["name"], name, config)


def load_recipe(
    name: str, variants: Sequence[str] = (), file: str | Path | None = None, model: str | None = None
) -> RecipeFile:
    """Load the recipe of an environment's demo, or a recipe that comes with rove.

    Args:
        name: Environment, or a recipe that comes with rove: configs/NAME.toml.
        variants: Tables of the recipe that change its other tables, applied in the order "lora", "smoke".
        file: Recipe file; if there is no such file, it may be a recipe that comes with rove: configs/NAME.toml.
            Default: the file `demo-MODEL.toml` for the initial model next to the environment's module, if there is one,
            else `demo.toml`.
        model: Initial model.

    Raises:
        ConfigError: There is no such file, the file is not a recipe, or the recipe has no such variant.
    """
    path = find_recipe(name, file, model)
    return read_recipe(path, read_toml(path), variants)


SMOKE: JsonObject = {
    "data": {"num_examples": 60, "rollouts_per_example": 1},
    "sft": {"epochs": 1, "batch_size": 16, "validate_every": 2},
    "rl": {"steps": 2, "batch_size": 16, "rollouts_per_example": 4},
    "evaluation": {"num_examples": 8},
}
"""Tiny sizes of `--smoke` for recipes without a [smoke] table."""


def _smoke_table(values: JsonMapping) -> JsonObject:
    """Return the [smoke] table for a recipe without one: tiny sizes for the recipe's sections."""
    table = {name: dict(sizes) for name, sizes in SMOKE.items() if name in values}
    for name in ("sft", "rl"):
        for stage in _tables(values.get(name)):
            for held_out in _tables(stage.get("evaluation")):
                held_out |= {"num_examples": 8, "every": 2}
    return table


def _tables(value: JsonValue) -> list[JsonObject]:
    """Return the tables in a value that is a table or a list of tables; values of another type are left to the check of the
    whole recipe.
    """
    values: list[Any] = value if is_list(value) else [value]
    return [item for item in values if is_object(item)]


def read_recipe(path: Path, values: JsonObject, variants: Sequence[str] = ()) -> RecipeFile:
    """Return a recipe from the values of a file, changed by its tables `variants`.

    Raises:
        ConfigError: The values are not a recipe, or the recipe has no such variant.
    """
    if "smoke" in variants and "smoke" not in values:
        values["smoke"] = _smoke_table(values)
    for variant in variants:
        if not is_object(values.get(variant)):
            raise ConfigError(f"--{variant} needs a [{variant}] table, which {path} does not have")
        for key, changes in values[variant].items():
            current: JsonValue = values.get(key)
            tables: list[Any] = current if is_list(current) else [current]
            if is_object(changes) and all(is_object(table) for table in tables):
                for table in tables:
                    merge(table, changes)
            else:
                values[key] = changes
    return convert(RecipeFile, values, advice="; rove train ENV --dry-run writes a complete recipe")


def find_recipe(name: str, file: str | Path | None, model: str | None) -> Path:
    """Return the file of a recipe; see `load_recipe` for the arguments.

    Raises:
        ConfigError: There is no such file.
    """
    shipped = {f"configs/{recipe.name}": recipe for recipe in sorted(SHIPPED.glob("*.toml"))}
    if file is None:
        of_name = shipped.get(f"configs/{name}.toml")
        if of_name is not None and "env" in read_toml(of_name):
            return of_name
        return _find_demo(name, model)
    if Path(file).exists():
        return Path(file)
    if str(file) not in shipped:
        raise ConfigError(f"no recipe: {file} does not exist; rove comes with {', '.join(shipped)}")
    return shipped[str(file)]


def _find_demo(name: str, model: str | None) -> Path:
    folder = environment_file(name).parent
    if model is not None:
        # A large pretrained model needs other settings than a small new one.
        of_model = folder / f"demo-{Path(model).name}.toml"
        if of_model.exists():
            return of_model
    demo = folder / "demo.toml"
    if demo.exists():
        return demo
    message = f"environment '{name}' has no demo: {demo} does not exist"
    models = [path.stem.removeprefix("demo-") for path in sorted(folder.glob("demo-*.toml"))]
    if models:
        commands = ", ".join(f"rove demo {name} -m {of_model}" for of_model in models)
        message += f"; there is one for: {commands}"
    raise ConfigError(message)


class Section(msgspec.Struct, frozen=True):
    """A table, or a list of tables, of a recipe file; a section without a name holds the settings at the top of the file."""

    name: str
    values: Any
    reason: str = ""
    """Reason for these values, written as a comment in the file."""


def as_toml(sections: Sequence[Section], comment: str) -> str:
    """Return a recipe as the text of a TOML file."""
    parts = ["".join(f"# {line}\n" for line in comment.splitlines())]
    for section in sections:
        reason = "".join(f"# {line}\n" for line in section.reason.splitlines())
        values = {section.name: section.values} if section.name else section.values
        text = tomli_w.dumps(values)
        if is_list(section.values) and not text.startswith("[["):  # an array after a table would be part of it
            tables: list[JsonObject] = section.values
            text = "\n".join(f"[[{section.name}]]\n{tomli_w.dumps(table)}" for table in tables)
        parts.append(reason + text)
    return "\n".join(parts)
