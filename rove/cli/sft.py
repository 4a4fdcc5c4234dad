"""`rove sft`: fine-tune a model on filtered rollouts, then compare it with the scripted policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rove.cli.common import console_for, hint, print_json
from rove.cli.options import (
    SETTINGS,
    device_option,
    examples,
    help_all_option,
    in_range,
    json_object,
    json_option,
    overwrite_option,
    settings,
    template_options,
    trust_option,
)
from rove.core.errors import needs_train_extra
from rove.core.ranges import FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt
from rove.stages.reporter import ConsoleReporter
from rove.stages.results import CURVES, TrainingResult, ending_lines
from rove.stages.sft import run_sft

if TYPE_CHECKING:
    from rove.train.config import SFTConfig
    from rove.train.sft_preview import SFTPreview


def print_sft(result: TrainingResult, console: Console) -> None:
    """Print the curves and hints."""
    console.print(result.table)
    summary = result.run.summary() or {}
    console.print(f"{summary.get('conversations')} conversations, {summary.get('steps')} steps")
    if "truncated_tokens" in summary:
        text = f"{summary['truncated_tokens']:,} tokens beyond max_length were not trained on; rove sft --dry-run shows details"
        console.print(text, style="yellow")
    for line in ending_lines(result.run):
        console.print(line, soft_wrap=True)
    env = summary.get("placement", {}).get("env", "ENV")
    hint(
        console,
        f"curves: {result.run.path / CURVES}",
        f"evaluate it: rove eval {env} -m {result.model}",
        f"train it further: rove rl {env} -m {result.model}",
    )


def print_preview(preview: SFTPreview, console: Console) -> None:
    """Print what would be trained on; ⟦…⟧ marks the trained tokens, with and without color."""
    for number, conversation in enumerate(preview.shown, start=1):
        for pieces in conversation.sequences:
            console.print(f"conversation {number}  {conversation.origin}", style="bold")
            text = Text()
            for piece in pieces:
                marked = (f"⟦{piece.text}⟧", "green") if piece.is_trained else (piece.text, None)
                text.append(*marked)
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
    console.print(f"chat template: {preview.template}", soft_wrap=True)
    if preview.adapter:
        console.print(preview.adapter)


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
@template_options
@click.option("--min-reward", type=in_range(FiniteFloat), help="Train only on rollouts with at least this reward.")
@click.option(
    "--loss-on",
    type=click.Choice(["all", "last", "completion"]),
    help="Train on all assistant messages, on each conversation's last one, or on those in the completion.  [default: all]",
)
@click.option(
    "--max-length",
    type=in_range(PositiveInt),
    help="Maximum tokens per sequence; see --overlong.  [default: the model's context]",
)
@click.option("--epochs", type=in_range(PositiveInt), help="Maximum passes over the data.  [default: 10]")
@click.option("--batch-size", type=in_range(PositiveInt), help="Conversations per step.  [default: 32]")
@click.option("--learning-rate", type=in_range(PositiveFloat), help="Peak learning rate.  [default: 0.001]")
@click.option("--env", help="Evaluate the trained model in this environment.  [default: the environment of --data]")
@click.option("-a", "--env-args", help="Environment arguments as a JSON object; they override the arguments of --data.")
@click.option(
    "--final-eval-rollouts",
    type=in_range(NonNegativeInt),
    help="Evaluation rollouts after training for the trained model and for each scripted policy; 0 = none.  [default: 64]",
)
@click.option("--run-dir", help="The run folder.  [default: runs/sft--MODEL--hash]")
@overwrite_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only show three conversations, with the trained tokens marked, and the size of the data.",
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
        from rove.train.config import SFTConfig
        from rove.train.initial_model import load_initial
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
        loaded = load_initial(config, "cpu")
        preview = preview_sft(config, loaded, data)
        if as_json:
            print_json(msgspec.to_builtins(preview))
        else:
            print_preview(preview, console)
        return
    ranks = join_process_group(config.device)
    if not ranks.is_first:
        if ranks.broadcast_continue():
            follow_sft(config, load_initial(config, "cpu"), ranks)
        return
    result = run_sft(config, ConsoleReporter(console), overwrite, ranks)
    if as_json:
        print_json({**(result.run.summary() or {}), "model": str(result.model)})
    else:
        print_sft(result, console)
