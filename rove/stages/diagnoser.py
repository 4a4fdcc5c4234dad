"""Diagnose, while training runs, why a stage does not improve the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rove.core.errors import Error
from rove.core.findings import Finding
from rove.runs.run import Run
from rove.runs.train_folder import DIAGNOSES, Diagnosis, TrainFolder
from rove.stages.examination import read_evidence
from rove.stages.pipeline import Pipeline
from rove.stages.request import EVIDENCE
from rove.stages.results import ending_lines
from rove.stages.second_start import PlateauError
from rove.statistics.compare import Difference, compare
from rove.train.diagnosis import (
    SAMPLED_REWARD,
    Task,
    after_rl,
    after_sft,
    during_rl,
    during_sft,
    is_on_plateau,
    is_refuted,
    is_stuck,
    with_teacher_data,
)
from rove.train.drift import has_grown, measurements_of
from rove.train.initial_model import load_initial
from rove.train.teacher_data import measure_token_classes, unseen_answers
from rove.utils.files import atomic_write

EXAMINE = "examine"
"""Stage name of the diagnoses before training."""
SAME_FALL_STEPS = 30
"""A collapse within this many steps after a diagnosed sudden fall of the reward counts as the same fall."""


def examined_diagnoses(folder: Path) -> list[Finding]:
    """Return the diagnoses of the environment before training; none if it was not examined."""
    path = folder / EVIDENCE
    return read_evidence(path).diagnoses if path.exists() else []


class Diagnoser:
    """Looks for reasons why a stage does not improve the model, prints them and stores them.

    Args:
        pipeline: The stages.
        starts_again: Whether to raise a `PlateauError` if SFT stops improving before it has learned the task.
    """

    def __init__(self, pipeline: Pipeline, starts_again: bool = False):
        self.pipeline = pipeline
        self.starts_again = starts_again
        self.folder = folder = pipeline.recipe.folder
        self.reporter = pipeline.reporter
        self.task: Task | None = None
        """The diagnosed task; None if there are no scripted policies to compare the model with."""
        self.diagnoses: list[Diagnosis] = []
        """The diagnoses that still apply, from all stages."""
        self._history: tuple[Path, list[dict[str, float]]] | None = None
        path = folder / EVIDENCE
        if not path.exists():
            return
        evidence = read_evidence(path)
        for diagnosis in TrainFolder(folder).diagnoses():
            if diagnosis.stage != EXAMINE:  # a resumed training stage may not see the reason again
                self.diagnoses.append(diagnosis)
        self._report(EXAMINE, evidence.diagnoses)
        if evidence.policies:
            self.task = evidence.task

    def after_step(self, stage: Path, metrics: Mapping[str, float], total: int) -> None:
        """Diagnose a training stage that has not ended."""
        if self.task is None:
            return
        if self._history is None or self._history[0] != stage:
            self._history = stage, Run(stage).metrics()[:-1]  # `metrics` is its last row
        history = self._history[1]
        history.append(dict(metrics))
        step = int(metrics["step"])
        if stage.name != "sft":
            if SAMPLED_REWARD in metrics:
                self._withdraw_refuted(stage.name, history, self.task)
            self._report(stage.name, during_rl(history, self.task, steps=total), step, total)
        elif is_stuck(history, total, self.task):
            findings = during_sft(history, self._with_data(self.task))
            self._report(stage.name, findings, step, total)
            # Another start does not help against a known cause, such as a hidden state.
            if self.starts_again and not findings and is_on_plateau(history, self.task):
                raise PlateauError(
                    f"after {step} steps, SFT hardly improves, and is hardly better than {self.task.start_name}"
                )
        elif self.task.has_learned(history):
            self._withdraw(stage.name)

    def after_stage(self, stage: Path) -> None:
        """Print how a training stage ended, and diagnose the stage."""
        for line in ending_lines(Run(stage)):
            self.reporter.note(line)
        if self.task is None:
            return
        if stage.name != "sft":
            self._judge_kept_weights(stage)
            self._judge_gain(stage, self.task)
            return
        recipe = self.pipeline.recipe
        config = recipe.sft
        assert recipe.data is not None
        assert config is not None
        # The teacher's rollouts of the results table are of held-out examples.
        held_out = self.pipeline.eval_folder(recipe.data.model, recipe.conditions[0].name)
        with self.reporter.working("measuring the losses of the teacher's tokens"):
            classes = measure_token_classes(stage / "final", Run(config.data), Run(held_out), config.min_reward)
        history = Run(stage).metrics()
        if self.task.has_learned(history):  # the process may have been killed before it withdrew them
            self._withdraw(stage.name)
        findings = after_sft(history, classes, self._with_data(self.task), config.target)
        if any(finding.id == "memorized" for finding in findings):
            # Whether answers are new is computed only now, because it reads all responses of the training data.
            unseen = unseen_answers(Run(config.data), Run(held_out), config.min_reward)
            self.task = msgspec.structs.replace(self.task, unseen=unseen)
            findings = after_sft(history, classes, self.task, config.target)
        self._report(stage.name, findings, len(history), len(history))

    def _with_data(self, task: Task) -> Task:
        """Return the task, completed with facts from the teacher's rollouts, which are read only once."""
        if task.token_entropy is None:
            config = self.pipeline.recipe.sft
            assert config is not None
            renderer = load_initial(config, "cpu").renderer
            task = self.task = with_teacher_data(task, renderer, Run(config.data), config.min_reward)
        return task

    def _judge_kept_weights(self, stage: Path) -> None:
        """Withdraw `drift` if the weights that RL keeps are from before the growth of the responses."""
        run = Run(stage)
        best = (run.summary() or {}).get("best")
        measurements = {measurement.step: measurement for measurement in measurements_of(run.metrics(), SAMPLED_REWARD)}
        if best is None or best["step"] not in measurements or 0 not in measurements:
            return
        if not has_grown(measurements[0], measurements[best["step"]]):
            self._withdraw(stage.name, "drift", f"the kept weights are those of step {best['step']}, before the growth")

    def _judge_gain(self, stage: Path, task: Task) -> None:
        """Diagnose an RL stage that has no other diagnosis and has not raised the reward of the results table."""
        run = Run(stage)
        history = run.metrics()
        is_diagnosed = any(row.stage == stage.name and row.id != "no_gain" for row in self.diagnoses)
        gains = [] if is_diagnosed else self._gains()
        findings: list[Finding] = []
        if gains and all(gain.direction <= 0 for gain in gains):
            findings = after_rl(history, task, gains[0])
        if not findings:
            self._withdraw(stage.name, "no_gain", "the stage was trained again")
            return
        self._report(stage.name, findings, int(history[-1]["step"]), int(run.config()["config"]["steps"]))

    def _gains(self) -> list[Difference]:
        """Return the difference between the rewards of the last two rows of the results table under each condition; [] if they
        cannot be compared.
        """
        if len(self.pipeline.rows) < 2:
            return []
        old_name, new_name = (row.name for row in self.pipeline.rows[-2:])
        gains: list[Difference] = []
        try:
            for condition in self.pipeline.recipe.conditions:
                old, new = (self.pipeline.eval_folder(row, condition.name) for row in (old_name, new_name))
                gains.append(compare(old, new).main)
        except Error:  # rows without scored rollouts, or whose rollouts were not saved
            return []
        return gains

    def _withdraw_refuted(self, stage: str, history: Sequence[Mapping[str, float]], task: Task) -> None:
        """Remove the diagnoses of an RL stage that its newest held-out measurement refutes."""
        kinds = [diagnosis.id for diagnosis in self.diagnoses if diagnosis.stage == stage]
        for kind in kinds:
            if is_refuted(kind, history, task):
                self._withdraw(stage, kind, "the newest held-out measurement refutes it")

    def _withdraw(self, stage: str, kind: str | None = None, reason: str = "the reward has risen since") -> None:
        """Remove the diagnoses of a stage that no longer apply; by default, diagnoses of every kind."""
        of_stage = [diagnosis for diagnosis in self.diagnoses if diagnosis.stage == stage]
        wrong = [diagnosis for diagnosis in of_stage if kind in (None, diagnosis.id)]
        for diagnosis in wrong:
            self.diagnoses.remove(diagnosis)
            text = f"the diagnosis of {stage} ({diagnosis.id}) no longer applies: {reason}"
            self.reporter.note(text, important=True)
        if wrong:
            self._save()

    def print_all(self) -> None:
        """Print the diagnoses of all stages, and the RL stages that changed nothing."""
        for diagnosis in self.diagnoses:
            self._print(diagnosis)
        for stage in self.pipeline.recipe.rl:
            best = (Run(self.folder / stage.folder).summary() or {}).get("best")
            if best is not None and best["step"] == 0:
                text = f"{stage.name} changed nothing: no evaluation was better than the one before its first step"
                self.reporter.note(text, important=True)

    def _print(self, diagnosis: Diagnosis) -> None:
        self.reporter.note(f"diagnosis of {diagnosis.stage}: {diagnosis}", important=True)

    def _save(self) -> None:
        rows = [diagnosis.row for diagnosis in self.diagnoses]
        atomic_write(self.folder / DIAGNOSES, msgspec.json.encode(rows))

    def _report(self, stage: str, findings: Sequence[Finding], step: int = 0, steps: int = 0) -> None:
        """Print and store the new ones of these findings, which were made after `step` of at most `steps` steps."""
        steps_by_id = {diagnosis.id: diagnosis.step for diagnosis in self.diagnoses if diagnosis.stage == stage}
        reported = set(steps_by_id)
        sudden_fall = steps_by_id.get("learning_rate")
        if sudden_fall is not None and step - sudden_fall <= SAME_FALL_STEPS:
            reported.add("collapse")
        new = [finding for finding in findings if finding.id not in reported]
        for finding in new:
            values = msgspec.to_builtins(finding)
            diagnosis = msgspec.convert({**values, "stage": stage, "step": step, "steps": steps}, Diagnosis)
            self.diagnoses.append(diagnosis)
            self._print(diagnosis)
        if new or not (self.folder / DIAGNOSES).exists():
            self._save()
