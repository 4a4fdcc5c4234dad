"""Train a model in any environment: examine the environment, choose a recipe, run all stages, and diagnose stages that do not
improve the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rove.core.config import read_toml
from rove.core.errors import ConfigError, needs_train_extra
from rove.core.plain import JsonMapping
from rove.runs.provenance import check_own, seal
from rove.runs.run import Run
from rove.runs.train_folder import RECIPE, RESULTS, Diagnosis, ResultRow, TrainFolder
from rove.stages.arguments import environment_name
from rove.stages.naming import RUNS
from rove.stages.pipeline import Pipeline, functions_without_column, results_table
from rove.stages.recipe import Recipe, read_recipe
from rove.stages.reporter import ConsoleReporter, Reporter
from rove.stages.request import EVIDENCE, TrainRequest, check_request, is_outdated
from rove.stages.results import held_out_rewards
from rove.utils.event_loop import outside_event_loop
from rove.utils.files import atomic_write
from rove.utils.notebook import ShownAsText, data_frame, image
from rove.utils.processes import release_memory

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingTypeStubs]

    from rove.utils.figure import NotebookFigure

CheckFile = Callable[[Path, JsonMapping], None]
"""Function that refuses settings files that this user's rove did not write: (file, its values) → None; see
`rove.runs.provenance.check_own`."""


RECALL_PAGE = "docs/decisions/recall_layers.md"
SMOKE_NOTE = "smoke test: the figures above mean nothing; "


@dataclass(frozen=True)
class PipelineResult(ShownAsText):
    """The result of `rove.train_model`.

    Example:
        >>> result = rove.train_model("tictactoe")
        >>> result.model  # the folder of the trained model
        >>> result.table  # every model's rewards on the same held-out examples
    """

    recipe: Recipe
    """The settings of all stages."""
    rows: list[ResultRow]
    """The rows of the results table: scripted policies, the initial model, and the model after each stage."""
    diagnoses: list[Diagnosis] = field(default_factory=list[Diagnosis])
    """Reasons why stages did not improve the model, as far as rove found any."""

    @property
    def model(self) -> Path:
        """Folder of the trained model."""
        trained = [row.model for row in self.rows if row.name.startswith("+ ")]
        return Path(trained[-1] if trained else self.recipe.model)

    @property
    def runs(self) -> dict[str, Run]:
        """The run of each training stage: "sft", "rl1", …"""
        names = ["sft"] if self.recipe.sft is not None else []
        names += [stage.folder for stage in self.recipe.rl]
        return {name: Run(self.recipe.folder / name) for name in names}

    @property
    def table(self) -> Table:
        """The results table."""
        return results_table(self.recipe, self.rows)

    def __str__(self) -> str:
        """Return the results table."""
        return str(self.table)

    def to_pandas(self) -> DataFrame:
        """Return a `pandas.DataFrame` with a row per model and condition: reward and metrics with their 95% intervals.

        Raises:
            ConfigError: pandas is not installed.
        """
        rows: list[JsonMapping] = []
        for row in self.rows:
            for condition, summary in row.conditions.items():
                rows.append({"name": row.name, "model": row.model, "condition": condition, **_flat(summary)})
        return data_frame(rows)

    def plot(self) -> NotebookFigure:
        """Return a matplotlib figure with the rewards during training, one panel per stage."""
        from rove.utils.figure import NotebookFigure

        runs = self.runs
        figure: Any = NotebookFigure(figsize=(5 * max(1, len(runs)), 3.4))
        for position, (name, run) in enumerate(runs.items(), start=1):
            axis = figure.add_subplot(1, len(runs), position)
            metrics = run.metrics()
            measured = ["loss", "validation_loss"] if name == "sft" else ["reward/mean"]
            for metric in [*measured, *held_out_rewards(metrics)]:
                points = [(row["step"], row[metric]) for row in metrics if metric in row]
                if points:
                    axis.plot(*zip(*points, strict=True), label=metric)
            axis.set_title(name)
            axis.set_xlabel("step")
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
        figure.tight_layout()
        return figure

    def _repr_html_(self) -> str:
        """Show the rewards during training as an image in notebooks."""
        return image(self.plot())


def _flat(summary: JsonMapping) -> dict[str, float]:
    values = {**summary["functions"], "reward": summary["reward"]}
    flat: dict[str, float] = {}
    for name, value in values.items():
        flat |= {name: value["mean"], f"{name}/low": value["low"], f"{name}/high": value["high"]}
    return flat


def train_model(
    env: str,
    model: str | Path | None = None,
    *,
    env_args: Mapping[str, object] | None = None,
    env_dir: str | Path | None = None,
    scorer: str | None = None,
    recipe: str | Path | None = None,
    device: str = "auto",
    seed: int = 0,
    run_dir: str | Path | None = None,
    dry_run: bool = False,
    smoke: bool = False,
    reporter: Reporter | None = None,
    chat_template: str | None = None,
    template_args: Mapping[str, object] | None = None,
    minutes: float | None = None,
    teacher: str | Path | None = None,
) -> PipelineResult:
    """Train a model in any environment: examine the environment, choose a recipe, then run data, SFT and RL.

    Stages that are complete are not repeated: call the function again to continue after an interruption.

    Example:
        >>> result = rove.train_model("tictactoe")

    Args:
        env: Name of the environment, or a file of questions and answers.
        model: Pretrained model: a folder, or a name that `rove model list` prints. Default: a new, small model.
        env_args: Arguments of the environment.
        env_dir: Folder that is searched first for the environment.
        scorer: Scorer for a file of questions: "exact", "numeric", …; the same as the scorer in `env_args`.
        recipe: Recipe file to use. Default: rove chooses a recipe.
        device: Device of the models.
        seed: Random seed of all stages (≥ 0).
        run_dir: Folder of all stages. Default: runs/train-ENV-seedN; with `env_args`, the name has a part for them.
        dry_run: Whether to only choose the recipe and write it to the folder. The result then has the recipe and no rows; the
            command `rove train ENV --dry-run` also estimates time and memory.
        smoke: Whether to use tiny sizes, in a separate folder, to check that all stages run; the model does not learn the task.
        reporter: Shows progress. Default: the console or the notebook.
        chat_template: Chat template that replaces the pretrained model's own: "chatml", or the path of a Jinja file.
        template_args: Variables of the chat template, such as {"enable_thinking": False}.
        teacher: Model whose rollouts SFT trains on: a name in endpoints.toml or at OpenAI, a folder, or "scripted:NAME". Not with
            `recipe`. Default: the best scripted policy.
        minutes: Time limit (> 0): rove chooses sizes that take at most this long by its estimate. Not with `recipe`. Default:
            the sizes that the task needs.

    Raises:
        ConfigError: There is no such environment or model, its policies give no data to learn from, or the recipe does not fit.
        RunError: A run folder cannot be used, or every rollout of a step failed.
        TrainingError: The loss or the gradient was not finite in too many consecutive steps.
    """
    request = TrainRequest(
        environment_name(env),
        model=None if model is None else str(model),
        env_args=dict(env_args or {}) | ({} if scorer is None else {"scorer": scorer}),
        env_dir=None if env_dir is None else str(env_dir),
        chat_template=chat_template,
        template_args=dict(template_args or {}),
        minutes=minutes,
        teacher=None if teacher is None else str(teacher),
    )
    used_reporter = reporter or ConsoleReporter()

    def run() -> PipelineResult:
        with needs_train_extra():
            from rove.train.worker_group import SINGLE_PROCESS

        complete, path = prepare(request, recipe, run_dir, seed, device, used_reporter, check_own, smoke)
        if dry_run:
            return PipelineResult(complete, [])
        return run_recipe(Pipeline(complete, used_reporter, SINGLE_PROCESS), path, smoke)

    return outside_event_loop(run)


def prepare(
    request: TrainRequest,
    file: str | Path | None,
    run_dir: str | Path | None,
    seed: int,
    device: str,
    reporter: Reporter,
    check_file: CheckFile,
    smoke: bool = False,
) -> tuple[Recipe, Path]:
    """Return the recipe for a request, and the recipe's file: `file`, or else the file in the run folder, which is
    written if necessary.

    Raises:
        ConfigError: The recipe was made for another request, or the file is not a recipe.
    """
    with needs_train_extra():
        from rove.stages.preparation import write_recipe

    if request.template_settings and request.model is None:
        setting = next(iter(request.template_settings))
        raise ConfigError(
            f"{setting} is set, but a new model has its own template; name a pretrained model, or leave it out"
        )
    for setting in ("minutes", "teacher"):
        if file and request.values[setting] is not None:
            raise ConfigError(
                f"{setting} and a recipe: the recipe decides this already; leave it out, or change {file}"
            )
    name = request.folder_name(seed)
    folder = Path(run_dir) if run_dir else RUNS / (f"{name}-smoke" if smoke else name)
    if (folder / "config.toml").exists():
        raise ConfigError(f"{folder} is the folder of a single run; give another run_dir for the stages of rove train")
    path = Path(file) if file else folder / RECIPE
    if file and not path.is_file():
        raise ConfigError(f"the recipe {path} does not exist; leave it out, and rove chooses one")
    is_new = not path.exists() or (not file and is_outdated(request, folder))
    if is_new:
        write_recipe(request, folder, reporter, device)
    elif not file:
        check_request(request, folder)
    reporter.note(f"{'new' if is_new else 'existing'} recipe {path}")
    values = read_toml(path)
    check_file(path, values)
    recipe = read_recipe(path, values, ["smoke"] if smoke else [])
    if recipe.env not in (None, request.env):
        raise ConfigError(
            f"{path} is a recipe for '{recipe.env}', but the environment is '{request.env}'; give '{recipe.env}'"
        )
    return recipe.complete(request.env, folder, seed, device=device), path


def run_recipe(pipeline: Pipeline, file: Path, smoke: bool = False) -> PipelineResult:
    """Run all stages of a recipe with diagnoses, and show the results table.

    Args:
        pipeline: The stages to run.
        file: File of the recipe; the run folder gets a copy, so that the run can be read and repeated without the original.
        smoke: Whether the sizes are tiny, so that figures and diagnoses are meaningless.
    """
    from rove.stages.diagnoser import Diagnoser
    from rove.stages.second_start import PlateauError, may_start_again, start_again

    recipe, reporter = pipeline.recipe, pipeline.reporter
    if pipeline.restore():
        show_results(pipeline)
        diagnoses = TrainFolder(recipe.folder).diagnoses()
        for diagnosis in diagnoses:
            reporter.note(f"diagnosis of {diagnosis.stage}: {diagnosis}", important=True)
        return PipelineResult(recipe, pipeline.rows, diagnoses)
    _begin_folder(recipe, file, reporter)
    if not smoke:
        _show_plan(recipe, reporter)
    may_repeat = not smoke and pipeline.ranks.size == 1 and may_start_again(recipe, file)
    diagnoser = Diagnoser(pipeline, may_repeat)
    if not smoke:
        pipeline.after_step, pipeline.after_stage = diagnoser.after_step, diagnoser.after_stage
    rows: list[ResultRow] | None = None
    text = ""
    try:
        rows = pipeline.run()
    except PlateauError as reason:
        text = f"{reason}: starting again with layers that can find and copy parts of the prompt ({RECALL_PAGE})"
    if rows is None:
        # Here, because the exception keeps the model and the optimizer of the first start in memory.
        release_memory()
        if may_start_again(recipe, file):  # else the recipe was edited meanwhile, and the first start continues
            reporter.note(text, important=True)
            pipeline.restart(start_again(recipe))
        return run_recipe(pipeline, file)
    # Not before: the stages refuse a recipe that contradicts what has run, and the folder's own recipe must not be lost then.
    _keep_recipe(file, recipe.folder)
    show_results(pipeline)
    reporter.note(f"{SMOKE_NOTE if smoke else ''}{pipeline.cost}")
    if not smoke:
        diagnoser.print_all()
    return PipelineResult(recipe, rows, diagnoser.diagnoses)


def _begin_folder(recipe: Recipe, file: Path, reporter: Reporter) -> None:
    """Write the recipe and the evidence, which diagnoses need, unless the folder has them."""
    from rove.stages.preparation import write_evidence

    if not (recipe.folder / RECIPE).exists():
        _keep_recipe(file, recipe.folder)
    if not (recipe.folder / EVIDENCE).exists():  # the recipe was given
        write_evidence(recipe, reporter)


def _show_plan(recipe: Recipe, reporter: Reporter) -> None:
    """Show the stages with their maximum time, if rove has chosen the recipe and estimated its time."""
    from rove.stages.plan import plan_table, read_estimate

    estimate = read_estimate(recipe.folder)
    if estimate is not None:
        reporter.table(plan_table(recipe, estimate))


def _keep_recipe(file: Path, folder: Path) -> None:
    recipe_file, text = folder / RECIPE, file.read_bytes()
    if recipe_file.exists() and recipe_file.read_bytes() == text:
        return
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(recipe_file, text)
    seal(recipe_file)


def show_results(pipeline: Pipeline) -> None:
    """Show the results table and notes about it."""
    pipeline.reporter.note("")
    pipeline.reporter.table(results_table(pipeline.recipe, pipeline.rows))
    missing = functions_without_column(pipeline.recipe, pipeline.rows)
    if missing:
        pipeline.reporter.note(
            f"not in the table: {', '.join(missing)}; {pipeline.recipe.folder / RESULTS} has all values"
        )
    for note in pipeline.notes():
        pipeline.reporter.warning(note)
