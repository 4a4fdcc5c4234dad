"""Train a model in an environment with reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rove.core.errors import needs_train_extra
from rove.core.findings import HIGH, Finding
from rove.envs.environment import Environment
from rove.envs.loading import environment_version
from rove.remote.loading import open_environment
from rove.runs.metrics import zero_advantage_share
from rove.runs.run import Run
from rove.stages.arguments import name_and_environment, settings_from
from rove.stages.identity import REPEAT_HINT, REPEAT_HINT_IN_PYTHON, Watch, begin, identity_of, noting_interruption
from rove.stages.naming import run_folder
from rove.stages.reporter import ConsoleReporter, Reporter
from rove.stages.results import TrainingResult, draw
from rove.statistics.trend import flat_reward
from rove.utils.event_loop import outside_event_loop, run_async

if TYPE_CHECKING:
    from rove.train.config import RLConfig
    from rove.train.worker_group import Ranks

BOOKKEEPING = {"vllm", "checkpoint_every", "keep_checkpoints", "show_every", "log_token_stats"}
"""Settings that may change when an RL run is resumed, in addition to the settings that may change in every stage."""


def rl(
    model: str | Path | None = None,
    env: str | Environment | None = None,
    config: RLConfig | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    **settings: object,
) -> TrainingResult:
    """Train a model in an environment with RL, which compares the rewards of the rollouts within each group.

    A run that was stopped continues from its last checkpoint; a complete run is not repeated.

    Example:
        >>> result = rove.rl("runs/sft/final", "tictactoe", steps=100, max_tokens=32)

    Args:
        model: Initial model: a folder, or a name that `rove model list` prints. May be in `config`.
        env: Name of an environment, or an environment. May be in `config`. The evaluations of a run name their environments.
        config: All settings. Default: the defaults of `rove rl`.
        overwrite: Whether to discard an earlier run in the folder.
        reporter: Shows progress. Default: the console or the notebook.
        settings: Single settings, such as `steps=100` or `loss={"kind": "grpo"}`; they override the settings in `config`.

    Raises:
        ConfigError: A setting is unknown, out of range, or contradicts another; or there is no such model or environment.
        RunError: The run folder cannot be used, or every rollout of a step failed.
        TrainingError: The loss or the gradient was not finite in too many consecutive steps.
    """
    with needs_train_extra():
        from rove.train.config import RLConfig

    name, loaded = (None, None) if env is None else name_and_environment(env)
    arguments = {
        "model": None if model is None else str(model),
        "env": name,
        "env_args": None if loaded is None else loaded.env_args,
        **settings,
    }
    used = settings_from(RLConfig, config, arguments)
    return outside_event_loop(
        lambda: run_rl(used, reporter or ConsoleReporter(), overwrite, env=loaded, repeat_hint=REPEAT_HINT_IN_PYTHON)
    )


def run_rl(
    config: RLConfig,
    reporter: Reporter,
    overwrite: bool = False,
    ranks: Ranks | None = None,
    watch: Watch | None = None,
    env: Environment | None = None,
    repeat_hint: str = REPEAT_HINT,
) -> TrainingResult:
    """Train with progress, from the last checkpoint if there is one.

    Args:
        ranks: The training processes. Default: this process alone.
        env: The environment, if it is loaded already. Default: the environment that the settings name.
        repeat_hint: Advice on how to train again, shown if the run is complete.
    """
    from rove.train.initial_model import check_template
    from rove.train.learner import describe_lora
    from rove.train.rl import train_rl
    from rove.train.settings_checks import start_warnings
    from rove.train.worker_group import SINGLE_PROCESS

    # Before the environment is loaded and a run folder is created, which takes longer and leaves traces.
    config.check()
    ranks = ranks or SINGLE_PROCESS
    if env is None:
        version: object = environment_version(config.env, config.env_dir, config.env_args)
        env = open_environment(config.env, config.env_dir, config.env_args, config.environment_isolation)
    else:  # without a source, it was not loaded by name, so its arguments and rubric count
        version = env.identity["env"] if env.source else env.identity
    check_template(config, lambda renderer: renderer.check_environment(env, train=True))
    identity = identity_of(config, BOOKKEEPING, env=version)
    run = Run(run_folder(config.run_dir, config.env, "rl", config.model, identity=identity))
    with run, noting_interruption(run, reporter, "checkpoint_every", config.checkpoint_every):
        start = begin(
            run, "rl", config, identity, overwrite, reporter, ranks, lambda: start_warnings(config, env), repeat_hint
        )
        if start is None:
            return TrainingResult(run.path / "final", run)
        context = start.loaded.context
        if not start.step and config.max_tokens >= context:
            text = f"max_tokens is {config.max_tokens}, but the model's context is {context} tokens, prompt included"
            reporter.warning(str(Finding("context", text)))

        coverage = describe_lora(config, start.loaded)
        if coverage:
            reporter.note(coverage)

        held_out: dict[str, float] = {}  # the last evaluations, which decide when RL ends; most steps have none

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            held_out.update(_held_out_of(metrics))
            progress(step, _status({**metrics, **held_out}))
            if watch is not None:
                watch(metrics, config.steps)

        # Otherwise the progress bar would stand still without a reason.
        if config.backend == "vllm" and not config.vllm.urls:
            logs = run.path / "vllm"
            reporter.note(f"starting vLLM, which takes a minute or two; logs: {logs}")
        with reporter.progress(f"rl {config.env}", config.steps, start.step) as progress:
            final = run_async(
                train_rl(
                    config,
                    env,
                    start.loaded,
                    run,
                    on_step,
                    on_alert=lambda alert: reporter.note(f"step {alert.step}: {alert}", important=True),
                    on_sample=lambda step, record: reporter.sample(record, f"step {step}"),
                    on_progress=progress.step,
                    ranks=ranks,
                )
            )
        draw(run)
    return TrainingResult(final, run)


def _held_out_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the results of the evaluations after a step; {} for most steps."""
    return {
        name: value
        for name, value in metrics.items()
        if name.startswith("eval/") and name.endswith(("/reward/mean", "/missed"))
    }


def _status(metrics: Mapping[str, float]) -> str:
    """Return the metrics of a step for the line below the progress bar."""
    parts = [f"reward {metrics['reward/mean']:.3f}"]
    for name, value in metrics.items():
        if name.startswith("reward/") and name != "reward/mean":
            parts.append(f"{name.removeprefix('reward/')} {value:.2f}")
    parts += [f"{name} {value:.3f}" for name, value in _held_out_of(metrics).items()]
    entropy = metrics.get("entropy/all/mean")  # missing if every group has zero advantage
    parts.append("entropy –" if entropy is None else f"entropy {entropy:.3f}")
    parts.append(f"zero-advantage groups {metrics['groups/zero_spread']:.0f}/{metrics['groups/all']:.0f}")
    return "  ".join(parts)


def progress_finding(config: RLConfig, metrics: list[dict[str, float]]) -> Finding | None:
    """Return a finding if the model learned nothing, or if the reward did not rise although it should have."""
    steps = [row for row in metrics if row["step"]]  # without the measurement of the initial weights
    # A flat reward would be the consequence, so it is not reported as well.
    if zero_advantage_share(*steps) == 1:
        text = "nothing was learned: in every step all groups had zero advantage"
        return Finding("zero_advantage_groups", text, HIGH, "see what `rove doctor` suggests")
    # Rewards of harder examples need not increase.
    expects_no_gain = config.keep_best or config.curriculum.column or config.filter.skips_examples
    return None if expects_no_gain else flat_reward([row["reward/mean"] for row in steps])
