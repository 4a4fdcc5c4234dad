"""`rove rl`: train a model in an environment with reinforcement learning."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from rove.cli.clients import needs_train_extra
from rove.cli.common import (
    CURVES,
    alert_printer,
    console_for,
    environment_args,
    hint,
    print_best_step,
    print_json,
    print_warnings,
    progress,
    run_async,
    run_folder,
)
from rove.cli.environments import hub_option
from rove.cli.options import (
    SETTINGS,
    device_option,
    env_args_option,
    env_dir_option,
    examples,
    in_range,
    isolated_option,
    json_object,
    json_option,
    overwrite_option,
    ray_option,
    settings,
    trust_option,
)
from rove.cli.settings_help import help_all_option
from rove.cli.tables import curves_table, rollout_text
from rove.cli.training import Watch, begin, draw, identity_of
from rove.core.findings import HIGH, Finding
from rove.core.ranges import IntFrom2, PositiveFloat, PositiveInt
from rove.core.records import RolloutRecord
from rove.envs.loading import environment_version
from rove.remote.loading import open_environment
from rove.runs.metrics import zero_advantage_share
from rove.runs.run import Run

if TYPE_CHECKING:
    from rove.train.config import RLConfig
    from rove.train.worker_group import Ranks

BOOKKEEPING = {  # settings that a resumed run may change: they do not affect what it learns, beyond rounding
    "trust_remote_code",
    "device",
    "threads",
    "micro_batch_tokens",
    "activation_checkpointing",
    "vllm",
    "env_dir",
    "run_dir",
    "checkpoint_every",
    "keep_checkpoints",
    "loggers",
    "alerts",
    "show_every",
    "log_token_stats",
}


def run_rl(
    config: RLConfig,
    console: Console,
    overwrite: bool = False,
    ranks: Ranks | None = None,
    watch: Watch | None = None,
) -> tuple[Path, Run]:
    """Train with progress, from the last checkpoint if there is one; return the final model's folder and the run.

    Args:
        config: Settings.
        console: Shows progress.
        overwrite: Whether to discard an earlier run in the folder.
        ranks: The training processes.
        watch: Called with the metrics of every step, and the number of steps.
    """
    from rove.train.rl import train_rl
    from rove.train.settings_checks import start_warnings
    from rove.train.worker_group import SINGLE_PROCESS

    config.check()
    ranks = ranks or SINGLE_PROCESS
    env = open_environment(config.env, config.env_dir, config.env_args, config.environment_isolation)
    identity = identity_of(config, BOOKKEEPING, env=environment_version(config.env, config.env_dir, config.env_args))
    run = Run(run_folder(config.run_dir, config.env, "rl", config.model, identity=identity))
    with run:
        loaded = begin(
            run, "rl", config, identity, overwrite, console, ranks, lambda: map(str, start_warnings(config, env))
        )
        if loaded is None:
            return run.path / "final", run
        resumed = run.last_checkpoint()
        if resumed is None and config.max_tokens >= loaded.context:
            text = f"max_tokens is {config.max_tokens}, but the model's context is {loaded.context} tokens, prompt included"
            print_warnings(console, [str(Finding("context", text))])

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            report(step, _status(metrics))
            if watch is not None:
                watch(metrics, config.steps)

        def on_sample(step: int, record: RolloutRecord) -> None:
            console.print(rollout_text(record, f"step {step}"), markup=False, soft_wrap=True)

        if config.backend == "vllm" and not config.vllm.urls:
            logs = run.path / "vllm"
            console.print(f"starting vLLM, which takes a minute or two; logs: {logs}", markup=False, soft_wrap=True)
        done = resumed[1].step if resumed else 0
        with progress(console, f"rl {config.env}", config.steps, done) as report:
            final = run_async(
                train_rl(
                    config,
                    env,
                    loaded,
                    run,
                    on_step,
                    on_alert=alert_printer(console),
                    on_sample=on_sample,
                    on_progress=report.step,
                    ranks=ranks,
                )
            )
        draw(run)
    return final, run


def _status(metrics: Mapping[str, float]) -> str:
    parts = [f"reward {metrics['reward/mean']:.3f}"]
    parts += [
        f"{n.split('/', 1)[1]} {v:.2f}" for n, v in metrics.items() if n.startswith("reward/") and n != "reward/mean"
    ]
    measured = {n: v for n, v in metrics.items() if n.startswith("eval/")}
    parts += [f"{n} {v:.3f}" for n, v in measured.items() if n.endswith(("/reward/mean", "/missed"))]
    entropy = metrics.get("entropy/all/mean")  # missing if every group has zero advantage
    parts.append(f"entropy {'–' if entropy is None else format(entropy, '.3f')}")
    parts.append(f"zero-advantage groups {metrics['groups/zero_spread']:.0f}/{metrics['groups/all']:.0f}")
    return "  ".join(parts)


def print_rl(config: RLConfig, final: Path, run: Run, console: Console) -> None:
    """Print the curves, a warning if the reward did not increase, and hints."""
    from rove.train.evaluation import flat_reward

    metrics = run.metrics()
    console.print(curves_table(metrics, f"RL in {config.env}"))
    print_best_step(run, console)
    expects_no_gain = config.keep_best or config.curriculum.column  # rewards of harder examples need not increase
    expects_no_gain = expects_no_gain or config.filter.skips_examples
    steps = [row for row in metrics if row["step"]]  # without the measurement of the initial weights
    finding = None
    if zero_advantage_share(*steps) == 1:
        text = "nothing was learned: in every step all groups had zero advantage"
        finding = Finding("zero_advantage_groups", text, HIGH, "see what `rove doctor` suggests")
    elif not expects_no_gain:
        finding = flat_reward([row["reward/mean"] for row in steps])
    if finding is not None:
        print_warnings(console, [str(finding)])
    env, model = environment_args(config), shlex.quote(str(final))
    hint(
        console,
        f"curves: {run.path / CURVES}",
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
    "--loss", help="cispo, grpo, dapo, dr_grpo, gspo, reinforce, or package.module:function.  [default: cispo]"
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
        from rove.models.load import load_model
        from rove.train.config import RLConfig
        from rove.train.rl import follow_rl
        from rove.train.worker_group import join_process_group
    console = console_for(as_json)
    config = settings(RLConfig, ctx, bare="env", env_args=json_object(env_args, "-a"), **named)
    ranks = join_process_group(config.device)
    if not ranks.is_first:
        if ranks.broadcast_continue():
            follow_rl(config, load_model(config.model, "cpu", trust_remote_code=config.trust_remote_code), ranks)
        return
    final, run = run_rl(config, console, overwrite, ranks)
    if as_json:
        print_json({**(run.summary() or {}), "model": str(final)})
    else:
        print_rl(config, final, run, console)
