"""`rove rl`: train a model in an environment with reinforcement learning."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from rove.cli.common import console_for, hint, print_json
from rove.cli.environments import hub_option
from rove.cli.options import (
    SETTINGS,
    device_option,
    env_args_option,
    env_dir_option,
    examples,
    help_all_option,
    in_range,
    isolated_option,
    json_object,
    json_option,
    overwrite_option,
    ray_option,
    settings,
    template_options,
    trust_option,
)
from rove.core.errors import needs_train_extra
from rove.core.ranges import IntFrom2, PositiveFloat, PositiveInt
from rove.stages.naming import environment_args
from rove.stages.reporter import ConsoleReporter
from rove.stages.results import CURVES, TrainingResult, ending_lines
from rove.stages.rl import progress_finding, run_rl

if TYPE_CHECKING:
    from rove.train.config import RLConfig


def print_rl(config: RLConfig, result: TrainingResult, console: Console) -> None:
    """Print the curves, a warning if the reward did not increase, and hints."""
    console.print(result.table)
    for line in ending_lines(result.run):
        console.print(line, soft_wrap=True)
    finding = progress_finding(config, result.metrics)
    if finding is not None:
        console.print(str(finding), style="yellow", soft_wrap=True)
    env, model = environment_args(config), shlex.quote(str(result.model))
    hint(
        console,
        f"curves: {result.run.path / CURVES}",
        f"evaluate it: rove eval {env} -m {model} -n 200 -r 1 -T 0",
        f"play against it: rove play {env} -m {model}",
    )


def _config_type() -> type[RLConfig]:
    with needs_train_extra():
        from rove.train.config import RLConfig
    return RLConfig


@click.command(
    epilog=examples(
        "rove rl tictactoe -m models/mine --steps 200",
        "rove rl tictactoe -m runs/sft/final --learning-rate 1e-4 -t 64",
        "rove rl @ rl.toml --steps 400           # settings from a file, one overridden",
        "torchrun --nproc-per-node 2 -m rove rl @ rl.toml",
        note="rove rl --help-all lists every setting.",
    ),
    context_settings=SETTINGS,
    options_metavar="[ENV] [OPTIONS] [@ FILE] [--KEY VALUE]...",
)
@click.option("-m", "--model", help="Initial model: a folder, or a name that `rove model list` prints.")
@trust_option
@device_option
@template_options
@env_args_option
@env_dir_option
@click.option("--steps", type=in_range(PositiveInt), help="Optimizer steps.  [default: 100]")
@click.option("--batch-size", type=in_range(PositiveInt), help="Rollouts per optimizer step.  [default: 256]")
@click.option(
    "-r", "--rollouts-per-example", type=in_range(IntFrom2), help="Rollouts per example: the group size.  [default: 8]"
)
@click.option("--learning-rate", type=in_range(PositiveFloat), help="Peak learning rate.  [default: 0.0003]")
@click.option("-T", "--temperature", type=in_range(PositiveFloat), help="Sampling temperature.  [default: 1]")
@click.option("-t", "--max-tokens", type=in_range(PositiveInt), help="Maximum tokens per response.  [default: 512]")
@click.option(
    "--loss", help="Loss: cispo, grpo, dapo, dr_grpo, gspo, reinforce, or package.module:function.  [default: cispo]"
)
@isolated_option
@hub_option
@ray_option
@click.option("--run-dir", help="The run folder.  [default: runs/ENV--rl--MODEL--hash]")
@overwrite_option
@json_option
@help_all_option(_config_type)
@click.pass_context
def command(ctx: click.Context, as_json: bool, env_args: str | None, overwrite: bool, **named: Any) -> None:
    """Train MODEL in ENV with reinforcement learning, which compares the rewards of the rollouts within each group.

    Give any setting as --KEY VALUE or in a TOML file: @ FILE. Repeat the command to continue a stopped run.
    """
    with needs_train_extra():
        from rove.train.config import RLConfig
        from rove.train.initial_model import load_initial
        from rove.train.rl import follow_rl
        from rove.train.worker_group import join_process_group
    console = console_for(as_json)
    config = settings(RLConfig, ctx, bare="env", env_args=json_object(env_args, "-a"), **named)
    ranks = join_process_group(config.device)
    if not ranks.is_first:
        if ranks.broadcast_continue():
            follow_rl(config, load_initial(config, "cpu"), ranks)
        return
    result = run_rl(config, ConsoleReporter(console), overwrite, ranks)
    if as_json:
        print_json({**(result.run.summary() or {}), "model": str(result.model)})
    else:
        print_rl(config, result, console)
