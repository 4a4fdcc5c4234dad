"""The whole loop in stages: a model, data, SFT, RL, and a table of results. Each stage is a command and can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table

from rove.cli.clients import is_folder
from rove.cli.eval import run_eval
from rove.cli.model import ModelConfig, print_model, run_model_new
from rove.cli.suite import EvalConfig
from rove.core.checks import Settings
from rove.core.config import convert, merge
from rove.core.messages import as_messages, text_of
from rove.core.ranges import NonNegativeInt, PositiveInt
from rove.games.exhaustive import Goals
from rove.runs.run import Run
from rove.statistics.format import interval, percent
from rove.utils.console import styled
from rove.utils.processes import peak_memory, release_memory

if TYPE_CHECKING:
    from rove.train.config import RLConfig, SFTConfig
    from rove.train.worker_group import Ranks

FULL = "full"
"""Folder of the stage that `--full` adds."""
BASE = "base"
SAMPLED = "the same at T = 1"


class ExhaustiveConfig(Settings, frozen=True, kw_only=True):
    """Settings of the exhaustive evaluation: the `[exhaustive]` table of a demo.toml."""

    values: list[str]
    """Reward functions and metrics (0 or 1) that the table shows."""
    goals: Goals = Goals()
    """Goals that the model should reach."""
    max_tokens: PositiveInt | None = None
    """Maximum tokens per response."""


class Recipe(Settings, frozen=True, kw_only=True):
    """A `demo.toml` or `recipe.toml`: the settings of each stage, and the columns of the results table."""

    env: str | None = None
    """Environment; by default the one on the command line."""
    env_dir: str | None = None
    """Folder that is searched first for the environment."""
    references: list[str] = []
    """Models or scripted policies that are measured for comparison; by default the teacher."""
    needs: str = ""
    """Time and memory that the demo needs; printed at its start."""
    model: dict[str, Any] = {}
    """`name` of the initial model, or the settings of a new one with random weights; without them, `-m` names the model."""
    data: dict[str, Any] = {}
    """Settings of the teacher's rollouts; without them, there is no teacher and no SFT stage."""
    sft: dict[str, Any] = {}
    rl: list[dict[str, Any]]
    full: dict[str, Any] = {}
    """Settings of the RL stage that `--full` adds; its evaluations are exhaustive, with the goals of `exhaustive`."""
    exhaustive: ExhaustiveConfig | None = None
    """Settings of the exhaustive evaluation that `--exhaustive` and `--full` show."""
    evaluation: dict[str, Any]
    conditions: tuple[dict[str, Any], ...] = ({"name": ""},)
    """Evaluations of each row: a name, and settings that differ from `evaluation`. Default: one without a name."""
    columns: list[dict[str, Any]]
    """Columns of the results table: a title, reward functions or metrics (or "reward"), and the condition, if there are several.
    With `interval = true`, a cell shows the mean with its 95% interval, else the means in percent."""
    baseline: list[dict[str, Any]] = []
    answers: NonNegativeInt = 0
    """Questions of the evaluation that are printed at the end with the first and the last model's answers."""
    lora: dict[str, Any] = {}
    """What `--lora` changes: settings by stage, which train an adapter instead of the full model."""
    smoke: dict[str, Any] = {}
    """What `--smoke` changes: tiny sizes."""


class Pipeline:
    """The stages of one recipe in one folder.

    Args:
        env: Name of the environment.
        recipe: Settings of all stages.
        folder: Contains the run folder of each stage.
        seed: Random seed of all stages.
        console: Shows progress.
        ranks: The training processes, one of which is this process.
        model: Folder of the initial model; None creates the recipe's new model.
        full: Whether to run the recipe's `full` stage.
        device: Device of every model; unless it is "auto", it overrides the devices that the recipe names.
    """

    def __init__(
        self,
        env: str,
        recipe: Recipe,
        folder: Path,
        seed: int,
        console: Console,
        ranks: Ranks,
        model: str | None = None,
        full: bool = False,
        device: str = "auto",
    ):
        self.env = env
        self.recipe = recipe
        self.folder = folder
        self.seed = seed
        self.console = console
        self.ranks = ranks
        self.is_new = model is None
        self.model = model or str(folder / "model")
        self.full = full
        self.device = device
        self._device = {} if device == "auto" else {"device": device}
        self.after_step: Callable[[Path, Mapping[str, float], int], None] = lambda folder, metrics, total: None
        """Called after each training step with the stage's folder, the step's metrics, and the maximum number of steps."""
        self.after_stage: Callable[[Path], None] = lambda folder: None
        """Called with the folder of each training stage when it is complete."""
        self.rows: list[dict[str, Any]] = []
        self._is_continued = (folder / "data").exists() or (folder / "rl1").exists()
        self._started, self._cpu = time.time(), time.process_time()

    @property
    def cost(self) -> str:
        """Time and memory since the start, as a sentence."""
        minutes, cpu_minutes = (time.time() - self._started) / 60, (time.process_time() - self._cpu) / 60
        without = "; without stages that were complete before" if self._is_continued else ""
        used = peak_memory()
        memory = f", at most {used / 1e9:.1f} GB of memory" if used else ""
        return f"took {minutes:.1f} minutes, {cpu_minutes:.1f} CPU-minutes{memory}{without}"

    def check(self) -> None:
        """Check the settings of all stages, before the first one starts.

        Raises:
            ConfigError: A setting is unknown, or one of training is out of its range.
        """
        if self.is_new:
            self._model_config()
        if self.recipe.data:
            self.eval_config(self.folder / "data", self.recipe.data)
        for condition in self.recipe.conditions:
            self.eval_config(self.folder, {**self._row_values(condition), "model": self.model})
        if self.recipe.data:
            self.sft_config().check()
        for folder, stage in self.stages():
            self.rl_config(folder, stage, self.model).check()

    def notes(self) -> list[str]:
        """Return notes on stages whose weights are chosen by examples that the results table reports."""
        from rove.train.held_out import overlap_note

        stages = [(folder, self.rl_config(folder, stage, self.model)) for folder, stage in self.stages()]
        configs = [*([("sft", self.sft_config())] if self.recipe.data else []), *stages]
        notes: list[str] = []
        for name, config in configs:
            for condition in self.recipe.conditions:
                table = self.eval_config(self.folder, {**self._row_values(condition), "model": self.model})
                note = overlap_note(config.keep_best, config.evaluation, config.seed, table)
                if note is not None and f"{name}: {note}" not in notes:
                    notes.append(f"{name}: {note}")
        return notes

    def run(self) -> list[dict[str, Any]]:
        """Check all settings and run all stages; return the rows of the results table."""
        from rove.cli.rl import run_rl
        from rove.cli.sft import run_sft

        self.check()
        if self.is_new:
            self._say("Create a new model with random weights")
            self._new_model()
        else:
            self._say(f"Start from the model {self.model}")
        trained = self.model
        if self.recipe.data:
            teacher = self.recipe.data["model"]
            self._say("Collect rollouts of the teacher")
            self._eval(self.folder / "data", {**self.recipe.data, "seed": self.seed})
            if not self.recipe.references:
                self.measure(f"teacher ({'script' if teacher.startswith('scripted:') else teacher})", teacher)
        for reference in self.recipe.references:
            self.measure(reference, reference)
        self.measure(BASE, self.model)
        if self.recipe.data:
            self._say("SFT on the teacher's best rollouts")
            watch = partial(self.after_step, self.folder / "sft")
            trained = str(run_sft(self.sft_config(), self.console, ranks=self.ranks, watch=watch)[0])
            release_memory()
            self.measure("+ SFT", trained)
            self.after_stage(self.folder / "sft")
        for folder, stage in self.stages():
            if folder == FULL:
                self.measure(SAMPLED, trained, temperature=1.0)
            self._say(f"{stage['name']}: RL on the model's own rollouts")
            config, watch = self.rl_config(folder, stage, trained), partial(self.after_step, self.folder / folder)
            trained = str(run_rl(config, self.console, ranks=self.ranks, watch=watch)[0])
            release_memory()
            self.measure(f"+ {stage['name']}", trained)
            self.after_stage(self.folder / folder)
        if not self.full and self.recipe.data and not any("temperature" in one for one in self.recipe.conditions):
            self.measure(SAMPLED, trained, temperature=1.0)
        (self.folder / "results.json").write_bytes(msgspec.json.encode(self.rows))
        return self.rows

    def follow(self) -> None:
        """Train as one of the other processes, stage by stage, together with the first."""
        from rove.models.load import load_model
        from rove.train.rl import follow_rl
        from rove.train.sft import follow_sft

        trained = self.model
        if self.recipe.data:
            if self.ranks.broadcast_continue():
                follow_sft(self.sft_config(), load_model(self.model, "cpu"), self.ranks)
            trained = str(self.folder / "sft" / "final")
        for folder, stage in self.stages():
            config = self.rl_config(folder, stage, trained)
            if self.ranks.broadcast_continue():
                follow_rl(config, load_model(config.model, "cpu"), self.ranks)
            trained = str(self.folder / folder / "final")

    def sft_config(self) -> SFTConfig:
        """Return the settings of the SFT stage."""
        from rove.train.config import SFTConfig

        given = {"data": str(self.folder / "data"), "model": self.model, "seed": self.seed, "final_eval_rollouts": 0}
        given |= self._env_dir
        return convert(SFTConfig, {"run_dir": str(self.folder / "sft"), **given, **self.recipe.sft, **self._device})

    def rl_config(self, folder: str, stage: dict[str, Any], model: str) -> RLConfig:
        """Return the settings of an RL stage."""
        from rove.train.config import RLConfig

        values = {key: value for key, value in stage.items() if key != "name"}
        given = {"env": self.env, "model": model, "seed": self.seed, "run_dir": str(self.folder / folder)}
        return convert(RLConfig, {**given, **self._env_dir, **values, **self._device})

    @property
    def _env_dir(self) -> dict[str, Any]:
        return {} if self.recipe.env_dir is None else {"env_dir": self.recipe.env_dir}

    def stages(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the RL stages, each with the name of its folder."""
        stages = [(f"rl{number}", stage) for number, stage in enumerate(self.recipe.rl, start=1)]
        return [*stages, (FULL, self._full_stage())] if self.full else stages

    def measure(self, name: str, model: str, **over: Any) -> None:
        """Evaluate a model under every condition and add a row to the results table."""
        seen: dict[str, dict[str, Any]] = {}
        for condition in self.recipe.conditions:
            label = condition["name"]
            values = merge(self._row_values(condition), {"model": model, **over})
            seen[label] = self._eval(self.eval_folder(name, label), values, f"{name} {label}".strip())
        self.rows.append({"name": name, "model": model, "conditions": seen})

    def eval_folder(self, row: str, condition: str) -> Path:
        """Return the run folder of a row's evaluation."""
        return self.folder / "eval" / "".join(c if c.isalnum() else "-" for c in f"{row}-{condition}").strip("-")

    def _full_stage(self) -> dict[str, Any]:
        """Return the recipe's `full` stage, which ends as soon as the goals of the exhaustive evaluation are reached."""
        assert self.recipe.exhaustive is not None
        lines = {
            "env": self.env,
            "kind": "exhaustive",
            "goals": msgspec.to_builtins(self.recipe.exhaustive.goals),
        }
        return {**self.recipe.full, "evaluation": [{**lines, **table} for table in self.recipe.full["evaluation"]]}

    def _say(self, text: str) -> None:
        self.console.print(f"\n{text}", style="bold")

    def _row_values(self, condition: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of an evaluation under a condition, without the model."""
        over = {name: value for name, value in condition.items() if name != "name"}
        return merge(msgspec.to_builtins(self.recipe.evaluation), over)

    def _model_config(self) -> ModelConfig:
        given = {"env": self.env, "output": self.model, "seed": self.seed, **self._env_dir}
        return convert(ModelConfig, {**given, **self.recipe.model})

    def eval_config(self, folder: Path, values: Mapping[str, Any]) -> EvalConfig:
        """Return the settings of an evaluation in this recipe's environment."""
        is_local = is_folder(str(values.get("model", ""))) and values.get("base_url") is None
        device = self._device if is_local else {}
        return convert(EvalConfig, {"env": self.env, "run_dir": str(folder), **self._env_dir, **values, **device})

    def _new_model(self) -> None:
        if not (Path(self.model) / "config.json").exists():
            config = self._model_config()
            print_model(config, run_model_new(config), self.console)

    def _eval(self, folder: Path, values: dict[str, Any], title: str = "") -> dict[str, Any]:
        summary, _ = run_eval(self.eval_config(folder, values), self.console, title)
        release_memory()
        return summary


def results_table(recipe: Recipe, rows: list[dict[str, Any]], games: int) -> Table:
    """Return the results table: measured rows, then the published baseline."""
    conditions = [condition["name"] for condition in recipe.conditions if condition["name"]]
    percents = [] if all(column.get("interval") for column in recipe.columns) else ["in %"]
    title = "; ".join([f"{games} rollouts per row", *percents, *([", then ".join(conditions)] if conditions else [])])
    table = Table(title=title, width=98)
    table.add_column("model")
    for column in recipe.columns:
        table.add_column(column["title"], justify="right")
    for row in rows:
        table.add_row(row["name"], *(_cell(row["conditions"][c.get("condition", "")], c) for c in recipe.columns))
    if recipe.baseline:
        table.add_section()
        table.add_row(styled(("published baseline", "dim")))
    for row in recipe.baseline:
        table.add_row(*(styled((cell, "dim")) for cell in (row["name"], *row["cells"])))
    return table


def _cell(summary: dict[str, Any], column: Mapping[str, Any]) -> str:
    means = {"reward": summary["reward"], **summary["functions"]}
    shown = [means.get(name) or {} for name in column["values"]]
    if not column.get("interval"):
        return "/".join(percent(one.get("mean")) for one in shown)
    return " / ".join(_mean_with_interval(one) for one in shown)


def _mean_with_interval(value: Mapping[str, Any]) -> str:
    if not value:
        return "–"
    limits = interval(value).rstrip("*")  # not ± half its width: intervals of shares are not symmetric
    return f"{value['mean']:.3f}" + ("" if limits == "–" else f"\n{limits}")  # equal values have no interval


def answers_table(pipeline: Pipeline, count: int) -> Table:
    """Return the first questions of the evaluation with the answers of the first and of the last model."""
    rows = [row["name"] for row in pipeline.rows if row["name"] in (BASE, pipeline.rows[-1]["name"])]
    condition = pipeline.recipe.conditions[0]["name"]
    by_row = [
        {record.example_id: record for record in Run(pipeline.eval_folder(row, condition)).rollouts()} for row in rows
    ]
    table = Table(title="answers to the same questions", width=98, show_lines=True)
    table.add_column("question", ratio=2)
    for row in rows:
        table.add_column(row, ratio=4)
    answered = [{key for key, record in records.items() if record.error is None} for records in by_row]
    for example_id in sorted(set.intersection(*answered))[:count]:
        records = [records[example_id] for records in by_row]
        table.add_row(
            text_of(as_messages(records[0].prompt)[-1]),
            *(text_of(as_messages(record.completion)[-1]) for record in records),
        )
    return table
