"""`rove model`: download a pretrained model, create a small one from scratch, or merge an adapter into its base model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from rove.cli.common import console_for, hint, print_json
from rove.cli.options import (
    SETTINGS,
    env_args_option,
    env_dir_option,
    examples,
    json_object,
    json_option,
    setting_range,
    settings,
    trust_option,
)
from rove.core.errors import needs_train_extra
from rove.models.pretrained import CATALOG, get_model, models_folder
from rove.stages.clients import show_device
from rove.stages.models import ModelConfig, run_model_merge, run_model_new, show_model
from rove.stages.reporter import ConsoleReporter


@click.group(
    epilog=examples(
        "rove model get smollm2-135m",
        "rove model new tictactoe -o models/mine",
        "rove model merge runs/sft/final -o models/merged",
    )
)
def command() -> None:
    """Download pretrained models, create small ones from scratch, and merge LoRA adapters."""


@command.command("list", epilog=examples("rove model list"))
@json_option
def list_models(as_json: bool) -> None:
    """List the pretrained models that `rove model get` downloads by name."""
    rows = [
        {"name": name, "downloaded": (models_folder() / name).is_dir(), **msgspec.to_builtins(model)}
        for name, model in CATALOG.items()
    ]
    if as_json:
        print_json(rows)
        return
    console = console_for(as_json)
    table = Table("name", "parameters", "download", "on disk", "license", "")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['parameters'] / 1e6:.0f} M",
            f"{row['download_mb']} MB",
            f"{row['folder_mb']} MB" if row["downloaded"] else "no",
            row["license"],
            row["description"],
        )
    console.print(table)
    hint(console, "download one: rove model get NAME", "others: rove model get hf:ORG/NAME, or a .gguf file")


@command.command(
    "get",
    epilog=examples(
        "rove model get smollm2-135m",
        "rove model get hf:Qwen/Qwen3-0.6B",
        "rove model get downloads/some.gguf -o models/some",
    ),
)
@click.argument("source")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write.  [default: rove's cache]")
@json_option
def get(source: str, output: Path | None, as_json: bool) -> None:
    """Download a pretrained model: a name that `rove model list` prints, hf:ORG/NAME, or a GGUF file to convert.

    Other commands then accept the model's name: -m NAME.
    """
    console = console_for(as_json)
    with needs_train_extra():
        from rove.models.gguf import convert_gguf
    if catalog_entry := CATALOG.get(source):
        console.print(
            f"{catalog_entry.description}: {catalog_entry.parameters / 1e6:.0f} M parameters, license {catalog_entry.license}, "
            f"{catalog_entry.download_mb} MB to download, {catalog_entry.folder_mb} MB on disk"
        )
    with ConsoleReporter(console).working(f"downloading and converting {source}"):
        path = get_model(source, output, convert=convert_gguf)
    if as_json:
        print_json({"path": str(path)})
        return
    console.print(f"{path} is ready", soft_wrap=True)
    name = source if catalog_entry and output is None else path
    hint(
        console,
        f"evaluate it: rove eval short_sentences -m {name} -n 20 -r 1 --max-tokens 40",
        f"serve it: rove serve -m {name}",
    )


@command.command(
    "new",
    context_settings=SETTINGS,
    options_metavar="ENV [OPTIONS] [--KEY VALUE]...",
    epilog=examples(
        "rove model new tictactoe -o models/mine",
        "rove model new tictactoe --arch qwen3 --size small --seed 1",
    ),
)
@click.option("--env", help="Environment whose text the tokenizer is trained on.")
@click.option("--arch", help="Architecture: llama, lfm2 or qwen3.  [default: llama]")
@click.option("--size", help="Size: tiny (0.5 M parameters; lfm2: 0.7 M) or small (4 M).  [default: tiny]")
@click.option(
    "--init", help="Initial weights: random, or recall for layers that can copy from the prompt.  [default: random]"
)
@env_args_option
@env_dir_option
@click.option(
    "--games",
    type=setting_range(ModelConfig, "games"),
    help="Rollouts of each policy for the tokenizer.  [default: 300]",
)
@click.option("-o", "--output", help="Folder to write.  [default: models/ENV-ARCH-SIZE]")
@click.option("--seed", type=setting_range(ModelConfig, "seed"), help="Random seed of the weights.  [default: 0]")
@json_option
@click.pass_context
def new(ctx: click.Context, env_args: str | None, as_json: bool, **named: Any) -> None:
    """Train a tokenizer on an environment's text and write a small new model as an ordinary Hugging Face model folder."""
    console = console_for(as_json)
    config = settings(ModelConfig, ctx, bare="env", env_args=json_object(env_args, "-a"), **named)
    model = run_model_new(config)
    if as_json:
        print_json({"path": str(model.path), "parameters": model.parameters, "vocabulary": model.vocabulary})
    else:
        show_model(config, model, ConsoleReporter(console))


@command.command("merge", epilog=examples("rove model merge runs/sft/final -o models/merged"))
@click.argument("adapter")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@trust_option
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="Device on which the weights are merged: auto, cpu, cuda, cuda:N or mps.",
)
@json_option
def merge(adapter: str, output: Path, trust_remote_code: bool | None, device: str, as_json: bool) -> None:
    """Merge ADAPTER into its base model and write an ordinary Hugging Face model folder.

    ADAPTER is a folder in PEFT's format, such as final/ of a run with --lora.rank; it names its base model.
    """
    console = console_for(as_json)
    show_device(device, ConsoleReporter(console))
    parameters = run_model_merge(adapter, output, bool(trust_remote_code), device)
    if as_json:
        print_json({"path": str(output), "parameters": parameters})
        return
    console.print(f"{output}: {parameters:,} parameters, adapter merged", soft_wrap=True)
    hint(console, f"serve it: rove serve -m {output}")
