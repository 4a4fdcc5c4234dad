"""Estimate the time and memory of a recipe, and show its stages."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.table import Table

from rove.doctor.estimate import Estimate, Workload, estimate
from rove.models.from_scratch import new_model
from rove.models.load import LoadedModel
from rove.runs.train_folder import RECIPE
from rove.stages.examination import Examination
from rove.stages.recipe import Recipe
from rove.stages.request import ESTIMATE, REQUEST, recipe_digest
from rove.utils.event_loop import run_async
from rove.utils.units import counted, human_bytes, human_seconds


def estimate_stages(recipe: Recipe, examination: Examination, pretrained: LoadedModel | None) -> Estimate:
    """Return the time and memory that a recipe with one RL stage needs on this machine."""
    evidence, rollouts = examination.evidence, 0
    if recipe.data is not None:
        rollouts = recipe.data.num_examples * recipe.data.rollouts_per_example
    # SFT trains on the good share of the best policy's rollouts; see `choose`.
    good_share = evidence.teacher.good_share if evidence.policies else 1.0
    work = Workload(
        rollouts=examination.conversations,
        turns=evidence.turns,
        data_rollouts=rollouts,
        conversations=round(rollouts * good_share),
        untrained_turns=evidence.untrained_turns,
        environment_seconds=evidence.rollout_seconds,
        teacher_seconds=evidence.teacher_seconds,
        setup_seconds=evidence.setup_seconds,
        conditions=len(recipe.conditions),
        table_rollouts=len(recipe.conditions) * recipe.evaluation.num_examples * recipe.evaluation.rollouts_per_example,
        teacher_rows=1 if evidence.policies and evidence.teacher.is_model else 0,
    )
    # The time depends on the shape of the model, not on its weights.
    model = pretrained
    if model is None:
        assert recipe.new_model is not None
        shape = recipe.new_model
        model = new_model(
            examination.texts, shape.arch, shape.size, vocab_size=shape.vocab_size, word_share=shape.word_share
        )
    return run_async(estimate(recipe.rl[0].config, recipe.sft, model, work))


def read_estimate(folder: Path) -> Estimate | None:
    """Return the estimate of a folder's recipe; None if there is no estimate, or the recipe was edited."""
    if not (folder / ESTIMATE).exists() or not (folder / REQUEST).exists():
        return None
    made_for = msgspec.json.decode((folder / REQUEST).read_bytes())
    if made_for.get("recipe") != recipe_digest((folder / RECIPE).read_text("utf-8")):
        return None
    return msgspec.json.decode((folder / ESTIMATE).read_bytes(), type=Estimate)


def plan_table(recipe: Recipe, estimate: Estimate | None) -> Table:
    """Return a table of the stages of a recipe, with their maximum time if there is an estimate."""
    rows: list[tuple[str, str, float | None]] = []
    if recipe.data is not None and recipe.sft is not None:
        data, sft = recipe.data, recipe.sft
        text = f"rollouts of {data.model} for {_examples(data.num_examples)}, {data.rollouts_per_example} per example"
        rows.append(("data", text, estimate and estimate.data))
        until = "" if sft.target is None else f", until the sampled reward is {sft.target:.3f}"
        steps = f"{estimate.sft_steps:,} steps" if estimate else f"{sft.epochs} epochs"
        text = f"up to {steps} of {sft.batch_size:,} rollouts{until}"
        rows.append(("SFT", text, estimate and estimate.sft_steps * estimate.sft_step))
    for stage in recipe.rl:
        rl = stage.config
        text = f"up to {rl.steps:,} steps of {rl.batch_size:,} rollouts, {rl.rollouts_per_example} per example"
        rows.append((stage.name, text, estimate and estimate.initial + estimate.rl_steps * estimate.rl_step))
    text = f"{_examples(recipe.evaluation.num_examples)} per row and condition"
    rows.append(("results", text, estimate and estimate.table))
    if estimate:
        # Stages end early: half of 36 runs of new models took 27% to 59% of these steps (benchmarks/RESULTS.md).
        usual_share = "; most runs take a quarter to two thirds of the time" if recipe.new_model and recipe.sft else ""
        rows.append(("total", f"{human_bytes(estimate.memory)} of memory{usual_share}", estimate.most))
    table = Table("stage", "what", *(["maximum time"] if estimate else []))
    for name, text, seconds in rows:
        table.add_row(name, text, *([] if seconds is None else [human_seconds(seconds)]))
    return table


def _examples(count: int) -> str:
    return "all examples" if count < 0 else counted(count, "example")
