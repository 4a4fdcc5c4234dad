"""`rove sft`: learn from filtered rollouts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from rove.cli.clients import needs_train_extra
from rove.cli.common import (
    CURVES,
    SETTINGS,
    alert_printer,
    console_for,
    hint,
    json_object,
    print_json,
    progress,
    run_folder,
    settings,
    tell_goal,
    trust_option,
)
from rove.cli.placement import place_model
from rove.cli.settings_help import all_settings
from rove.cli.tables import curves_table
from rove.cli.training import begin, draw, identity_of
from rove.runs.run import Run

if TYPE_CHECKING:
    from rove.train.config import SFTConfig
    from rove.train.worker_group import Ranks

BOOKKEEPING = {
    "trust_remote_code",
    "threads",
    "env",
    "env_args",
    "env_dir",
    "final_eval_rollouts",
    "run_dir",
    "loggers",
    "alerts",
}


def run_sft(
    config: SFTConfig, console: Console, overwrite: bool = False, ranks: Ranks | None = None
) -> tuple[Path, Run]:
    """Fine-tune, with progress; continued at the last checkpoint. Returns the final model's folder and the run."""
    from rove.train.sft import train_sft
    from rove.train.worker_group import SINGLE_PROCESS

    config.check()
    ranks = ranks or SINGLE_PROCESS
    data = Run(config.data)
    data.config()
    identity = identity_of(config, BOOKKEEPING, data=_data_identity(data))
    run = Run(run_folder(config.run_dir, "sft", config.model, identity=identity))
    with run:
        loaded = begin(run, "sft", config, identity, overwrite, console, ranks, lambda: warnings_of(config, data))
        if loaded is None:
            return run.path / "final", run
        words = {"loss": "–", "validation_loss": "–"}
        with progress(console, "sft") as tell:

            def on_step(step: int, total: int, metrics: Mapping[str, float]) -> None:
                words.update({name: f"{metrics[name]:.4f}" for name in words if name in metrics})
                tell(step, f"loss {words['loss']}  validation {words['validation_loss']}", total)

            final = train_sft(
                config,
                data.finished(),
                loaded,
                run,
                on_step,
                on_alert=alert_printer(console),
                on_progress=tell.step,
                ranks=ranks,
            )
        draw(run)
        place_model(config, final, data, run, console)
    return final, run


def warnings_of(config: SFTConfig, data: Run) -> list[str]:
    """Return warnings about measuring on examples that are trained on."""
    from rove.train.contamination import find_overlaps

    least = -math.inf if config.min_reward is None else config.min_reward
    learnt = {one.example_key for one in data.outcomes() if one.reward is not None and one.reward >= least}
    single = ["all rollouts are of one example: validation_loss is measured on the example that is trained on"]
    if not config.evaluation:
        return single * (len(learnt) == 1)
    found = [one for one in find_overlaps(config.evaluation, config.env_dir, learnt) if one.shared]
    advice = "play what is learnt from with rove eval --train"
    return [*single * (len(learnt) == 1), *(f"evaluation {one}; {advice}" for one in found)]


def _data_identity(data: Run) -> str:
    """The data's folder, and how much it holds: a run is not continued on other data than it was started on."""
    file = data.path / "rollouts.jsonl"
    return f"{data.path.resolve()}#{file.stat().st_size if file.exists() else 0}"


def print_sft(final: Path, run: Run, console: Console) -> None:
    """The curves, and what to do next."""
    metrics = run.metrics()
    held_out = sorted({n for m in metrics for n in m if n.startswith("eval/") and n.endswith("/reward/mean")})
    names = ["loss", "validation_loss", *held_out, "entropy/all/mean", "optim/grad_norm"]
    console.print(curves_table(metrics, names, "SFT"))
    summary = run.summary() or {}
    console.print(f"{summary.get('conversations')} conversations, {summary.get('steps')} steps")
    tell_goal(run, console)
    env = summary.get("placement", {}).get("env", "ENV")
    hint(
        console,
        f"curves: {run.path / CURVES}",
        f"evaluate it: rove eval {env} -m {final}",
        f"train it further: rove rl {env} -m {final}",
    )


@click.command(
    epilog=all_settings("rove.train.config", "SFTConfig"),
    context_settings=SETTINGS,
    options_metavar="[OPTIONS] [@ FILE] [--KEY VALUE]...",
)
@click.option("--data", help="Run folder whose rollouts are learnt from.")
@click.option("-m", "--model", help="Model folder to start from.")
@trust_option
@click.option("--min-reward", type=float, help="Leave out rollouts below this reward.")
@click.option("--epochs", type=int, help="Most passes over the data.  [default: 10]")
@click.option("--batch-size", type=int, help="Conversations per step.  [default: 32]")
@click.option("--learning-rate", type=float, help="Peak learning rate.  [default: 0.001]")
@click.option("--env", help="Evaluate the trained model in this environment.  [default: that of --data]")
@click.option("-a", "--env-args", help="Arguments of this environment as JSON, over those of --data.")
@click.option(
    "--final-eval-rollouts",
    type=int,
    help="Rollouts of the trained model, and of each scripted policy, after training; 0 = none.  [default: 64]",
)
@click.option("--run-dir", help="The run folder.  [default: runs/sft--MODEL--hash]")
@click.option("--overwrite", is_flag=True, help="Throw an earlier run of this folder away.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, overwrite: bool, env_args: str | None, **named: Any) -> None:
    """Fine-tune MODEL on the rollouts of a run that pass the filter, to the minimum of the validation loss.

    Then compare it with the scripted policies of the environment.

    Every setting can also be given as @ file.toml or --key value. Repeat the command to continue a stopped run.
    """
    with needs_train_extra():
        from rove.models.load import load_model
        from rove.train.config import SFTConfig
        from rove.train.sft import follow_sft
        from rove.train.worker_group import join_process_group
    console = console_for(as_json)
    config, ranks = settings(SFTConfig, ctx, env_args=json_object(env_args, "-a"), **named), join_process_group()
    if not ranks.is_first:
        if ranks.broadcast_continue():
            follow_sft(config, load_model(config.model, "cpu", trust_remote_code=config.trust_remote_code), ranks)
        return
    final, run = run_sft(config, console, overwrite, ranks)
    if as_json:
        print_json({**(run.summary() or {}), "model": str(final)})
    else:
        print_sft(final, run, console)
