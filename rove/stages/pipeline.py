"""The whole pipeline in stages: a model, data, SFT, RL, and a table of results. Each stage is a run and can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table

from rove.core.digest import check_saved_model
from rove.core.messages import as_messages, text_of
from rove.core.plain import JsonMapping, JsonObject
from rove.envs.loading import environment_version
from rove.runs.run import Run
from rove.runs.train_folder import COMPLETE, RESULTS, ResultRow, TrainFolder, locked
from rove.stages.clients import SCRIPTED
from rove.stages.completion import check_stages, read_completion, write_completion
from rove.stages.evaluation import EvalConfig, run_eval
from rove.stages.models import model_text, run_model_new
from rove.stages.recipe import FULL, Column, Recipe, RLStage
from rove.stages.reporter import Reporter
from rove.statistics.format import interval, percent
from rove.utils.console import TextTable, styled
from rove.utils.files import atomic_write
from rove.utils.processes import release_memory
from rove.utils.systems import peak_memory

if TYPE_CHECKING:
    from rove.train.config import RLConfig, SFTConfig, TrainingConfig
    from rove.train.worker_group import Ranks

BASE = "base"
SAMPLED = "at T = 1"
"""Suffix in the name of a row that repeats the row before it, but with sampling."""


class Pipeline:
    """The stages of one recipe.

    Args:
        recipe: Complete settings of all stages.
        reporter: Shows progress.
        ranks: The training processes, one of which is this process.
    """

    def __init__(self, recipe: Recipe, reporter: Reporter, ranks: Ranks):
        self.recipe = recipe
        self.reporter = reporter
        self.ranks = ranks
        self.after_step: Callable[[Path, Mapping[str, float], int], None] = lambda folder, metrics, total: None
        """Called after each training step with the stage's folder, the step's metrics, and the maximum number of steps."""
        self.after_stage: Callable[[Path], None] = lambda folder: None
        """Called with the folder of each training stage when it is complete."""
        self.rows: list[ResultRow] = []
        self._notes: list[str] | None = None
        # A resumed run measures only the time since it was started again.
        self._is_continued = (recipe.folder / "data").exists() or (recipe.folder / "rl1").exists()
        self._started, self._cpu = time.time(), time.process_time()

    @property
    def cost(self) -> str:
        """Time and memory since the start, as a sentence."""
        minutes, cpu_minutes = (time.time() - self._started) / 60, (time.process_time() - self._cpu) / 60
        without = "; without stages that were complete before" if self._is_continued else ""
        used = peak_memory()
        memory = f", at most {used / 1e9:.1f} GB of memory" if used else ""
        return f"took {minutes:.1f} minutes, {cpu_minutes:.1f} CPU-minutes{memory}{without}"

    def restore(self) -> bool:
        """Read the results of a complete run with the same recipe; return whether there is one."""
        recipe = self.recipe
        completion = read_completion(recipe)
        if completion is None:
            return False
        self.rows = TrainFolder(recipe.folder).rows()
        for model in dict.fromkeys(row.model for row in self.rows if row.is_trained):
            check_saved_model(model)
        self._notes = completion.notes
        stages = len(recipe.rl) if recipe.sft is None else 1 + len(recipe.rl)
        for _ in range(stages):
            self.ranks.broadcast_continue(False)  # the other processes wait for a decision about each stage
        self.reporter.note(f"{recipe.folder} is complete; delete the folder to train again")
        return True

    def restart(self, recipe: Recipe) -> None:
        """Use another recipe for the next `run`; time and memory count on."""
        self.recipe = recipe
        self.rows, self._notes = [], None

    def run(self) -> list[ResultRow]:
        """Run all stages; return the rows of the results table.

        Raises:
            RunError: Another command trains in the folder, or a stage cannot continue its run.
        """
        with locked(self.recipe.folder):
            return self._run()

    def _run(self) -> list[ResultRow]:
        recipe, say = self.recipe, self.reporter.title
        check_stages(recipe, self._evaluations())
        # The rows are written one by one from now on: a mark of an earlier recipe must not call some of them complete.
        (recipe.folder / COMPLETE).unlink(missing_ok=True)
        if recipe.new_model is not None and not (Path(recipe.model) / "config.json").exists():
            say("Create a new model")
            self.reporter.note(model_text(recipe.new_model, run_model_new(recipe.new_model)))
        else:
            say(f"Start from the model {recipe.model}")
            if recipe.new_model is not None:
                check_saved_model(recipe.model)
        if recipe.data is not None:
            say("Collect rollouts of the teacher")
            self._collect(recipe.data)
            if not recipe.references:
                kind = "script" if recipe.data.model.startswith(SCRIPTED) else recipe.data.model
                self.measure(f"teacher ({kind})", recipe.data.model)
        for reference in recipe.references:
            self.measure(reference, reference)
        self.measure(BASE, recipe.model)
        trained = recipe.model
        if recipe.sft is not None:
            say("SFT on the teacher's best rollouts")
            trained = self._run_sft()
        for stage in recipe.rl:
            if stage.folder == FULL:
                self.measure(f"{self.rows[-1].name} {SAMPLED}", trained, temperature=1.0)
            say(f"{stage.name}: RL on the model's own rollouts")
            trained = self._run_rl(stage, trained)
        is_full = any(stage.folder == FULL for stage in recipe.rl)
        has_temperatures = any(condition.own_temperature for condition in recipe.conditions)
        if recipe.data is not None and not is_full and not has_temperatures:
            self.measure(f"{self.rows[-1].name} {SAMPLED}", trained, temperature=1.0)
        self._write_cards()
        write_completion(recipe, self.notes(), self.cost)
        return self.rows

    def _write_cards(self) -> None:
        """Write the rows of the results table, up to the row of the model, into the card of each trained model."""
        from rove.train.model_card import Measurement, write_card

        version = environment_version(self.recipe.env, self.recipe.env_dir, self.recipe.env_args)
        measurements: list[Measurement] = []
        for row in self.rows:
            for condition, summary in row.conditions.items():
                estimates = {**summary["functions"], "reward": summary["reward"]}
                measurements.append(Measurement(row.name, version, condition, estimates))
            config = self._config_of(row)
            if config is not None:
                run = Run(Path(row.model).parent)
                # A recipe does not name the model of an RL stage, which is the result of the stage before.
                config = msgspec.structs.replace(config, model=run.config()["config"]["model"])
                write_card(Path(row.model), run, config, run.summary() or {}, measurements, row.name, self.notes())

    def _config_of(self, row: ResultRow) -> RLConfig | SFTConfig | None:
        """Return the settings of the stage that trained the model of a row; None for another model."""
        if row.name == "+ SFT":
            return self.recipe.sft
        stages = [stage for stage in self.recipe.rl if row.name == f"+ {stage.name}"]
        return stages[0].config if stages else None

    def _collect(self, config: EvalConfig) -> None:
        """Collect the teacher's rollouts, unless SFT has begun on them: failed ones would run again, and change its data."""
        folder = self.recipe.folder
        if Run(folder / "data").summary() is None or not (folder / "sft" / "config.toml").exists():
            self._evaluate(config)

    def _evaluations(self) -> dict[Path, EvalConfig]:
        """Return the settings of the teacher's rollouts and of the table's first rows by their run folders."""
        recipe = self.recipe
        evaluations: dict[Path, EvalConfig] = {}
        if recipe.data is not None:
            evaluations[recipe.folder / "data"] = recipe.data
        for row in (*recipe.references, BASE):
            for condition in recipe.conditions:
                evaluations[self.eval_folder(row, condition.name)] = condition.config
        return evaluations

    def _run_sft(self) -> str:
        """Run SFT and measure its model; return the model's folder."""
        from rove.stages.sft import run_sft

        assert self.recipe.sft is not None
        folder = self.recipe.folder / "sft"
        result = run_sft(
            self.recipe.sft, self.reporter, ranks=self.ranks, watch=partial(self.after_step, folder), repeat_hint=""
        )
        # Sampling and training of the next stage need the memory of this one's optimizer and caches.
        release_memory()
        self.measure("+ SFT", str(result.model))
        self.after_stage(folder)
        return str(result.model)

    def _run_rl(self, stage: RLStage, model: str) -> str:
        """Run an RL stage from a model, and measure the trained model; return its folder."""
        from rove.stages.rl import run_rl

        folder = self.recipe.folder / stage.folder
        config = msgspec.structs.replace(stage.config, model=model)
        result = run_rl(config, self.reporter, ranks=self.ranks, watch=partial(self.after_step, folder), repeat_hint="")
        release_memory()
        self.measure(f"+ {stage.name}", str(result.model))
        self.after_stage(folder)
        return str(result.model)

    def follow(self) -> None:
        """In a process other than the first, train together with the first process, stage by stage."""
        from rove.models.load import load_model
        from rove.train.rl import follow_rl
        from rove.train.sft import follow_sft

        trained = self.recipe.model
        if self.recipe.sft is not None:
            # The first process skips stages that are complete; the others follow its decision.
            if self.ranks.broadcast_continue():
                follow_sft(self.recipe.sft, load_model(trained, "cpu"), self.ranks)
            trained = str(self.recipe.folder / "sft" / "final")
        for stage in self.recipe.rl:
            config = msgspec.structs.replace(stage.config, model=trained)
            if self.ranks.broadcast_continue():
                follow_rl(config, load_model(config.model, "cpu"), self.ranks)
            trained = str(self.recipe.folder / stage.folder / "final")

    def measure(self, name: str, model: str, **changes: Any) -> None:
        """Evaluate a model under every condition and add a row to the results table."""
        summaries: dict[str, JsonObject] = {}
        for condition in self.recipe.conditions:
            folder = self.eval_folder(name, condition.name)
            config = self.recipe.evaluation_of(condition.config, model, folder, **changes)
            summaries[condition.name] = self._evaluate(config, f"{name} {condition.name}".strip())
        self.rows.append(ResultRow(name, model, summaries))
        # After each row, so that the viewer shows the table of a run that is not complete.
        atomic_write(self.recipe.folder / RESULTS, msgspec.json.encode(self.rows))

    def eval_folder(self, row: str, condition: str) -> Path:
        """Return the run folder of a row's evaluation."""
        return TrainFolder(self.recipe.folder).evaluation_folder(row, condition)

    def _evaluate(self, config: EvalConfig, title: str = "") -> JsonObject:
        result, _ = run_eval(config, self.reporter, title)
        release_memory()
        return result.to_dict()

    def notes(self) -> list[str]:
        """Return notes on a second start, and on stages whose weights are selected by examples that the results table reports."""
        if self._notes is None:
            self._notes = [*TrainFolder(self.recipe.folder).start_notes(), *self._compare_examples()]
        return self._notes

    def _compare_examples(self) -> list[str]:
        """Compare the examples, and return the notes that `notes` caches."""
        from rove.train.held_out import overlap_note, shared_note

        recipe = self.recipe
        configs: dict[str, TrainingConfig] = {stage.folder: stage.config for stage in recipe.rl}
        if recipe.sft is not None:
            configs = {"sft": recipe.sft, **configs}
        tables = [condition.config for condition in recipe.conditions]
        notes: list[str] = []
        for name, config in configs.items():
            for table in tables:
                note = overlap_note(config.keep_best, config.evaluation, config.seed, table)
                if note is not None:
                    notes.append(f"{name}: {note}")
        if notes:
            return list(dict.fromkeys(notes))
        # The same examples choose the weights in every stage of most recipes; comparing them loads the environment twice.
        compared: set[bytes] = set()
        for config in configs.values():
            selections = [(held_out.env, held_out.env_args, held_out.num_examples) for held_out in config.evaluation]
            for table in tables:
                key = msgspec.json.encode((selections, table.env_args, table.num_examples, table.skip_examples))
                if key in compared:
                    continue
                compared.add(key)
                note = shared_note(config.keep_best, config.evaluation, table, recipe.env_dir)
                if note is not None:
                    notes.append(note)
        return list(dict.fromkeys(notes))

    def answers_table(self) -> Table:
        """Return a table of the first questions of the evaluation, with the answers of the first and the last model."""
        names = [row.name for row in self.rows if row.name in (BASE, self.rows[-1].name)]
        condition = self.recipe.conditions[0].name
        by_row = [
            {record.example_id: record for record in Run(self.eval_folder(name, condition)).rollouts()}
            for name in names
        ]
        table = Table(title="answers to the same questions", width=98, show_lines=True)
        table.add_column("question", ratio=2)
        for name in names:
            table.add_column(name, ratio=4)
        # A question that one of the models failed to answer shows no comparison. An overlong prompt gets no answer either.
        answered = [
            {key for key, record in records.items() if record.completion and not record.error} for records in by_row
        ]
        common = answered[0].intersection(*answered[1:])
        for example_id in sorted(common)[: self.recipe.answers]:
            records = [records[example_id] for records in by_row]
            table.add_row(
                text_of(as_messages(records[0].prompt)[-1]),
                *(text_of(as_messages(record.completion)[-1]) for record in records),
            )
        return table


def results_table(recipe: Recipe, rows: list[ResultRow]) -> Table:
    """Return the results table: measured rows, then the published baseline."""
    conditions = [condition.name for condition in recipe.conditions if condition.name]
    examples, per_example = recipe.evaluation.num_examples, recipe.evaluation.rollouts_per_example
    amount = f"{examples * per_example} rollouts" if examples > 0 else "rollouts of all examples"
    title = f"{amount} per row"
    if not all(column.interval for column in recipe.columns):
        title += "; in %"
    if conditions:
        title += "; " + ", then ".join(conditions)
    # One column for lengths: the last condition, which is greedy, shows what the model itself prefers to write.
    title += f"; tokens per rollout, truncated rollouts: {conditions[-1]}" if conditions else ""
    table = TextTable(title=title, width=98)
    table.add_column("model", overflow="fold")  # a cut name of a policy could not be used
    for column in recipe.columns:
        table.add_column(column.title, justify="right")
    table.add_column("tokens", justify="right")
    for row in rows:
        cells = [_cell(row.conditions[column.condition], column) for column in recipe.columns]
        summary = row.conditions[recipe.conditions[-1].name]
        share = summary.get("truncation_share")
        truncated = "–" if share is None else f"{percent(share)}%"
        table.add_row(row.name, *cells, f"{_tokens(row, summary)}\n{truncated}")
    if recipe.baseline:
        table.add_section()
        table.add_row(styled(("published baseline", "dim")))
    for published in recipe.baseline:
        table.add_row(*(styled((cell, "dim")) for cell in (published.name, *published.cells)))
    return table


def functions_without_column(recipe: Recipe, rows: list[ResultRow]) -> list[str]:
    """Return the reward functions for which a table of rewards with intervals has no room."""
    if not rows or not any("reward" in column.values for column in recipe.columns):
        return []
    column_values = {value for column in recipe.columns for value in column.values}
    summaries = rows[-1].conditions.values()
    weights = {name: function.get("weight") for summary in summaries for name, function in summary["functions"].items()}
    return [name for name, weight in weights.items() if weight and name not in column_values]


def _cell(summary: JsonObject, column: Column) -> str:
    means = {**summary["functions"], "reward": summary["reward"]}  # a function may be named reward, too
    values: list[JsonMapping] = [means.get(name) or {} for name in column.values]
    if not column.interval:
        return "/".join(percent(value.get("mean")) for value in values)
    return " / ".join(_mean_with_interval(value) for value in values)


def _tokens(row: ResultRow, summary: JsonMapping) -> str:
    """Return the mean number of tokens in the responses of a rollout; "–" for a scripted policy, which has no tokenizer."""
    tokens = summary.get("tokens_per_rollout", {}).get("completion")
    if tokens is None or row.model.startswith(SCRIPTED):
        return "–"
    return f"{tokens:.1f}"


def _mean_with_interval(value: JsonMapping) -> str:
    if not value:
        return "–"
    limits = interval(value).rstrip("*")  # not ± half its width: intervals of shares are not symmetric
    mean = f"{value['mean']:.3f}"
    return mean if limits == "–" else f"{mean}\n{limits}"  # equal values have no interval
