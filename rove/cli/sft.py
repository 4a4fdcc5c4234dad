"""`rove sft`: fine-tune a model on filtered rollouts, then compare it with the scripted policies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rove.cli.clients import embedded, needs_train_extra
from rove.cli.common import (
    CURVES,
    ProgressDisplay,
    alert_printer,
    console_for,
    hint,
    print_best_step,
    print_json,
    progress,
    run_async,
    run_folder,
)
from rove.cli.options import (
    SETTINGS,
    device_option,
    examples,
    in_range,
    json_object,
    json_option,
    overwrite_option,
    settings,
    trust_option,
)
from rove.cli.settings_help import help_all_option
from rove.cli.tables import curves_table
from rove.cli.training import Watch, begin, draw, identity_of
from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError, Error
from rove.core.ranges import FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt
from rove.envs.dataset import example_key
from rove.envs.environment import Environment
from rove.envs.question_files import is_question_file
from rove.remote.loading import Isolation, temporary_environment
from rove.rubrics import JudgeRubric, RubricGroup
from rove.runs.provenance import is_own, risky_settings
from rove.runs.run import Run
from rove.viewer.format import interval

if TYPE_CHECKING:
    from rove.core.protocols import Client
    from rove.train.config import SFTConfig
    from rove.train.policy_comparison import PolicyResult
    from rove.train.sft_data import SFTData, SFTSource
    from rove.train.sft_preview import SFTPreview
    from rove.train.worker_group import Ranks


BOOKKEEPING = {  # settings that a resumed run may change: they do not affect what it learns, beyond rounding
    "trust_remote_code",
    "device",
    "threads",
    "micro_batch_tokens",
    "activation_checkpointing",
    "env",
    "env_args",
    "env_dir",
    "final_eval_rollouts",
    "run_dir",
    "loggers",
    "alerts",
}


def run_sft(
    config: SFTConfig,
    console: Console,
    overwrite: bool = False,
    ranks: Ranks | None = None,
    watch: Watch | None = None,
    source: SFTSource | None = None,
) -> tuple[Path, Run]:
    """Fine-tune with progress, from the last checkpoint if there is one; return the final model's folder and the run.

    Args:
        config: Settings.
        console: Shows progress.
        overwrite: Whether to discard an earlier run in the folder.
        ranks: The training processes.
        watch: Called with the metrics of every step, and the maximum number of steps.
        source: Data in memory. Default: `config.data`.
    """
    from rove.train.sft import train_sft
    from rove.train.sft_data import SFTData
    from rove.train.worker_group import SINGLE_PROCESS

    config.check()
    ranks = ranks or SINGLE_PROCESS
    data = SFTData(config.data if source is None else source, config)
    # "all" is left out, because runs of older versions do not have the setting.
    bookkeeping = BOOKKEEPING | ({"loss_on"} if config.loss_on == "all" else set())
    identity = identity_of(config, bookkeeping, data=data.identity)
    run = Run(run_folder(config.run_dir, "sft", config.model, identity=identity))
    with run:
        loaded = begin(run, "sft", config, identity, overwrite, console, ranks, lambda: warnings_of(config, data))
        if loaded is None:
            return run.path / "final", run
        losses = {"loss": "–", "validation_loss": "–"}
        resumed = run.last_checkpoint()
        with progress(console, "sft", done=resumed[1].step if resumed else 0) as report:

            def on_step(step: int, total: int, metrics: Mapping[str, float]) -> None:
                losses.update({name: f"{metrics[name]:.4f}" for name in losses if name in metrics})
                report(step, f"loss {losses['loss']}  validation {losses['validation_loss']}", total)
                if watch is not None:
                    watch(metrics, total)

            final = train_sft(
                config,
                data,
                loaded,
                run,
                on_step,
                on_alert=alert_printer(console),
                on_progress=report.step,
                ranks=ranks,
            )
        draw(run)
        place_model(config, final, data, run, console)
    return final, run


def warnings_of(config: SFTConfig, data: SFTData) -> list[str]:
    """Return warnings about evaluating on training examples."""
    from rove.train.contamination import find_overlaps

    trained = data.example_keys
    single = ["all conversations are of one example: validation_loss is measured on the training example"]
    if not config.evaluation:
        return single * (len(trained) == 1)
    found = [one for one in find_overlaps(config.evaluation, config.env_dir, trained) if one.shared]
    advice = "collect training data with rove eval --train"
    return [*single * (len(trained) == 1), *(f"evaluation {one}; {advice}" for one in found)]


def print_sft(final: Path, run: Run, console: Console) -> None:
    """Print the curves and hints."""
    metrics = run.metrics()
    held_out = sorted({n for m in metrics for n in m if n.startswith("eval/") and n.endswith("/reward/mean")})
    names = ["loss", "validation_loss", *held_out, "entropy/all/mean", "optim/grad_norm"]
    console.print(curves_table(metrics, names, "SFT"))
    summary = run.summary() or {}
    console.print(f"{summary.get('conversations')} conversations, {summary.get('steps')} steps")
    if "truncated_tokens" in summary:
        text = f"{summary['truncated_tokens']:,} tokens beyond max_length were not trained on; rove sft --dry-run shows details"
        console.print(text, style="yellow")
    print_best_step(run, console)
    env = summary.get("placement", {}).get("env", "ENV")
    hint(
        console,
        f"curves: {run.path / CURVES}",
        f"evaluate it: rove eval {env} -m {final}",
        f"train it further: rove rl {env} -m {final}",
    )


def print_preview(preview: SFTPreview, console: Console) -> None:
    """Print what would be trained on; ⟦…⟧ marks the trained tokens, with and without color."""
    for number, conversation in enumerate(preview.shown, start=1):
        for pieces in conversation.sequences:
            console.print(f"conversation {number}  {conversation.place}", style="bold")
            text = Text()
            for piece in pieces:
                text.append(
                    f"⟦{piece.text}⟧" if piece.is_trained else piece.text, "green" if piece.is_trained else None
                )
            console.print(text, soft_wrap=True)
            console.print()
    table = Table(title=f"SFT data: {preview.data}", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    lengths = f"{preview.min_tokens:,} / {preview.median_tokens:,.0f} / {preview.max_tokens:,}"
    rows = {
        "conversations to train on": f"{preview.training:,}",
        "conversations for validation": f"{preview.validation:,}",
        "sequences": f"{preview.sequences:,}",
        "tokens per sequence (min / median / max)": lengths,
        "tokens": f"{preview.tokens:,}",
        "trained tokens": f"{preview.trained_tokens:,} ({preview.trained_tokens / preview.tokens:.0%})",
        f"truncated tokens (beyond {preview.max_length:,})": f"{preview.truncated_tokens:,}",
        **{f"left out: {reason}": f"{count:,}" for reason, count in preview.dropped.items()},
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def _config_type() -> type[SFTConfig]:
    with needs_train_extra():
        from rove.train.config import SFTConfig
    return SFTConfig


@click.command(
    epilog=examples(
        "rove sft --data runs/teacher -m models/mine --min-reward 1",
        "rove sft --data runs/teacher -m models/mine --epochs 3 --lora.rank 8",
        "rove sft --data chats.jsonl -m models/mine --dry-run",
        "rove sft @ sft.toml",
        note="rove sft --help-all lists every setting.",
    ),
    context_settings=SETTINGS,
    options_metavar="[OPTIONS] [@ FILE] [--KEY VALUE]...",
)
@click.option("--data", help="Run folder, or file of messages (.jsonl, .json, .ndjson, .parquet), to train on.")
@click.option("-m", "--model", help="Initial model: a folder, or a name that `rove model list` prints.")
@trust_option
@device_option
@click.option("--min-reward", type=in_range(FiniteFloat), help="Leave out rollouts below this reward.")
@click.option(
    "--loss-on",
    type=click.Choice(["all", "last", "completion"]),
    help="Train on all assistant messages, the last of each conversation, or those of the completion.  [default: all]",
)
@click.option(
    "--max-length",
    type=in_range(PositiveInt),
    help="Truncate longer sequences at the end, in tokens.  [default: the model's context]",
)
@click.option("--epochs", type=in_range(PositiveInt), help="Maximum passes over the data.  [default: 10]")
@click.option("--batch-size", type=in_range(PositiveInt), help="Conversations per step.  [default: 32]")
@click.option("--learning-rate", type=in_range(PositiveFloat), help="Peak learning rate.  [default: 0.001]")
@click.option("--env", help="Evaluate the trained model in this environment.  [default: that of --data]")
@click.option("-a", "--env-args", help="Environment arguments as a JSON object; they override those of --data.")
@click.option(
    "--final-eval-rollouts",
    type=in_range(NonNegativeInt),
    help="Rollouts of the trained model and of each scripted policy after training; 0 = none.  [default: 64]",
)
@click.option("--run-dir", help="The run folder.  [default: runs/sft--MODEL--hash]")
@overwrite_option
@click.option(
    "--dry-run", is_flag=True, help="Show three conversations with the trained tokens, and counts; do not train."
)
@json_option
@help_all_option(_config_type)
@click.pass_context
def command(
    ctx: click.Context, as_json: bool, overwrite: bool, dry_run: bool, env_args: str | None, **named: Any
) -> None:
    """Fine-tune MODEL on the rollouts of a run, or on a file of messages, and evaluate the result.

    Training stops when the validation loss no longer falls. Give any setting as --KEY VALUE or in a TOML file: @ FILE. Repeat the
    command to continue a stopped run.
    """
    with needs_train_extra():
        from rove.models.load import load_model
        from rove.train.config import SFTConfig
        from rove.train.sft import follow_sft
        from rove.train.sft_data import SFTData
        from rove.train.worker_group import join_process_group
    console = console_for(as_json)
    config = settings(SFTConfig, ctx, env_args=json_object(env_args, "-a"), **named)
    if dry_run:
        from rove.train.sft_preview import preview_sft

        config.check()
        data = SFTData(config.data, config)
        data.conversations  # noqa: B018  errors in the data come before the model is loaded
        loaded = load_model(config.model, "cpu", trust_remote_code=config.trust_remote_code)
        preview = preview_sft(config, loaded, data)
        print_json(msgspec.to_builtins(preview)) if as_json else print_preview(preview, console)
        return
    ranks = join_process_group(config.device)
    if not ranks.is_first:
        if ranks.broadcast_continue():
            follow_sft(config, load_model(config.model, "cpu", trust_remote_code=config.trust_remote_code), ranks)
        return
    final, run = run_sft(config, console, overwrite, ranks)
    if as_json:
        print_json({**(run.summary() or {}), "model": str(final)})
    else:
        print_sft(final, run, console)


class EvaluationTarget(NamedTuple):
    """The environment in which the trained model is evaluated."""

    env: str
    env_args: dict[str, Any]
    env_dir: str | None
    isolation: Isolation


def evaluation_target(config: SFTConfig, data: Run | None) -> EvaluationTarget:
    """Return the environment of the settings, else that of the data.

    The data may come from others, so its environment is loaded by name only, without its `env_dir` and interpreter. Data that
    this user's rove did not write must not have arguments that are texts: they can name code or commands.

    Raises:
        ConfigError: The data does not name an environment, or names one that might be downloaded.
    """
    if config.env is not None:
        return EvaluationTarget(config.env, config.env_args, config.env_dir, Isolation())
    if data is None:
        raise ConfigError("a file of messages names no environment; give --env ENV")
    recorded = data.config().get("config", {})
    env, env_args = recorded.get("env"), recorded.get("env_args", {})
    if not isinstance(env, str) or not env or not isinstance(env_args, dict):
        raise ConfigError(f"{data.path} does not name its environment; give --env ENV")
    if "/" in env and not is_question_file(env):
        raise ConfigError(f"the environment of {data.path} is '{env}', which is loaded only on request: --env {env}")
    settings_file = data.path / "config.toml"
    risky = risky_settings({"env": env, "env_args": env_args})
    if risky and not is_own(settings_file):
        raise ConfigError(
            f"{settings_file} was not written by rove for you, and sets {', '.join(risky)}; its environment is loaded only on "
            f"request: --env {env}, with the arguments that you trust in -a"
        )
    table = recorded.get("isolation")
    isolation = Isolation(on=isinstance(table, dict) and table.get("enabled") is True)
    return EvaluationTarget(env, {**env_args, **config.env_args}, config.env_dir, isolation)


def place_model(config: SFTConfig, final: Path, data: SFTData, run: Run, console: Console) -> None:
    """Evaluate the trained model and the scripted policies; print a table, and store it in the run's summary.

    An error is printed as one line and not raised, since training has succeeded.
    """
    if not config.final_eval_rollouts or (data.run is None and config.env is None):
        return
    try:
        target = evaluation_target(config, data.run)
        names, keys = _survey(config, target)
        rows = _measure_all(config, target, final, data, names, console)
    except (Error, OSError) as error:
        advice = f"evaluate it: rove eval ENV -m {shlex.quote(str(final))}; --final-eval-rollouts 0 skips this"
        console.print(f"not evaluated: {error}\n{advice}", markup=False, soft_wrap=True)
        return
    from rove.train.policy_comparison import learned_only_format, placement_text

    model, policies = rows[0], rows[1:]
    text = placement_text(model, policies)
    trained = data.example_keys
    shared = sum(key in trained for key in keys)
    found = {
        "env": target.env,
        "env_args": target.env_args,
        "text": text,
        "learned_only_format": learned_only_format(model, policies),
        "rows": msgspec.to_builtins(rows),
        "trained_examples": shared,
    }
    run.finish({**(run.summary() or {}), "placement": found})
    console.print(placement_table(rows, f"{target.env}: after SFT, {model.scored} rollouts, greedy"))
    if shared:
        warning = (
            f"{shared} of the {len(keys)} examples in this table are also in the training data, so the model may score higher on "
            "them; collect data with rove eval --train, or evaluate other examples with -a"
        )
        console.print(warning, style="yellow", markup=False, soft_wrap=True)
    console.print(text, style="yellow" if found["learned_only_format"] else None, markup=False, soft_wrap=True)


def _survey(config: SFTConfig, target: EvaluationTarget) -> tuple[list[str], list[str]]:
    """Return the names of the environment's scripted policies, and the keys of the examples that are evaluated."""
    with temporary_environment(target.env, target.env_dir, target.env_args, target.isolation) as env:
        if config.env is None:
            _refuse_judges(env, target)
        return sorted(env.policies), [example_key(row) for row in env.examples(config.final_eval_rollouts)]


def _measure_all(
    config: SFTConfig, target: EvaluationTarget, final: Path, data: SFTData, names: list[str], console: Console
) -> list[PolicyResult]:
    """Return the results: the trained model's first, then those of the scripted policies."""
    from rove.engine.client import EngineClient
    from rove.train.policy_comparison import turn_limit

    with progress(console, f"{target.env} after SFT", 1 + len(names)) as report:
        client = embedded(str(final), device=config.device)
        assert isinstance(client, EngineClient)
        limit = turn_limit(client.renderer, data.conversations if data.run is None else data.run.finished())
        rows = [_measure(config, target, client, "the trained model", limit, report)]
        for name in names:
            report(len(rows), f"reward {rows[-1].reward:.3f}")
            rows.append(_measure(config, target, None, name, limit, report))
        report(len(rows), f"reward {rows[0].reward:.3f}")
    return rows


def _measure(
    config: SFTConfig,
    target: EvaluationTarget,
    client: Client | None,
    name: str,
    max_tokens: int,
    report: ProgressDisplay,
) -> PolicyResult:
    """Evaluate a client, or the scripted policy of that name, in a freshly loaded environment."""
    from rove.train.policy_comparison import measure_policy

    with temporary_environment(target.env, target.env_dir, target.env_args, target.isolation) as env:
        policy = client or ScriptedClient(env.policies[name], name)
        shown = name if client else f"scripted:{name}"
        rollouts = config.final_eval_rollouts
        limits: dict[str, Any] = {"max_tokens": max_tokens, "seed": config.seed, "on_progress": report.step}
        return run_async(measure_policy(env, policy, shown, rollouts, **limits))


def _refuse_judges(env: Environment, target: EvaluationTarget) -> None:
    """Refuse an environment with judge models, which may cost money."""
    rubrics = env.rubric.rubrics if isinstance(env.rubric, RubricGroup) else [env.rubric]
    if any(isinstance(rubric, JudgeRubric) for rubric in rubrics):
        raise ConfigError(
            f"'{target.env}' uses a judge model, which may cost money; --env {target.env} evaluates in it anyway"
        )


def placement_table(rows: list[PolicyResult], title: str) -> Table:
    """Return the table, ordered by reward; the first of `rows` is the trained model's."""
    table = Table(title=title)
    table.add_column("")
    for column in ("reward", "95% interval", "format", " + ".join(rows[0].task_names) or "task"):
        table.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: -row.reward):
        shown = "–" if row.format is None else f"{row.format:.3f}"
        cells = (f"{row.reward:.3f}", interval({"low": row.low, "high": row.high}), shown, f"{row.task:.3f}")
        table.add_row(row.name, *cells, style="bold" if row is rows[0] else None)
    return table
