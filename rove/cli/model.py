"""`rove model`: create a small model from scratch, or merge an adapter into its base model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console

from rove.cli.clients import needs_train_extra
from rove.cli.common import console_for, hint, print_json, run_async
from rove.cli.options import SETTINGS, examples, json_option, settings, trust_option
from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError
from rove.core.messages import as_messages, text_of
from rove.envs.loading import load_environment
from rove.rollouts.evaluate import all_text, generate

if TYPE_CHECKING:
    from rove.models.load import LoadedModel


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `rove model new`."""

    env: str
    """Environment whose text the tokenizer is trained on."""
    env_args: dict[str, Any] = {}
    """Arguments of the environment."""
    arch: str = "llama"
    """Architecture: llama, lfm2 or qwen3."""
    size: str = "tiny"
    """tiny (0.5 M parameters) or small (4 M)."""
    vocab_size: int = 512
    """Maximum size of the vocabulary."""
    games: int = 300
    """Rollouts of each scripted policy on which the tokenizer is trained."""
    output: str | None = None
    """Folder to write; by default models/ENV-ARCH-SIZE."""
    seed: int = 0
    """Random seed of the weights."""
    env_dir: str | None = None
    """Folder in which the environment is looked up first."""


async def environment_text(config: ModelConfig) -> list[str]:
    """Return texts of the environment: prompts, and rollouts of its scripted policies."""
    env = load_environment(config.env, config.env_dir, **config.env_args)
    texts = [text_of(m) for example in env.get_dataset(1000) for m in as_messages(example["prompt"])]
    for name, policy in env.policies.items():
        texts += all_text(
            await generate(env, ScriptedClient(policy, name), num_examples=config.games, train=True, seed=config.seed)
        )
    return texts


def run_model_new(config: ModelConfig) -> tuple[Path, int, int]:
    """Create and save the model; return its folder, number of parameters and vocabulary size."""
    with needs_train_extra():
        from rove.models.new import new_model
    path = Path(config.output or f"models/{config.env}-{config.arch}-{config.size}")
    check_empty(path)
    texts = run_async(environment_text(config))
    loaded = new_model(texts, config.arch, config.size, config.vocab_size, config.seed)
    save_atomically(loaded, path)
    return path, sum(p.numel() for p in loaded.model.parameters()), len(loaded.tokenizer)


def run_model_merge(adapter: str | Path, path: Path, trust_remote_code: bool = False) -> int:
    """Merge an adapter into its base model and save the result to `path`; return the number of parameters.

    Raises:
        ConfigError: `path` is not empty, or the adapter cannot be loaded.
    """
    with needs_train_extra():
        from rove.models.load import load_adapter
    check_empty(path)
    loaded = load_adapter(adapter, device="cpu", trust_remote_code=trust_remote_code)
    save_atomically(loaded, path)
    return sum(p.numel() for p in loaded.model.parameters())


def check_empty(path: Path) -> None:
    """Refuse a folder that is not empty.

    Raises:
        ConfigError: The folder is not empty.
    """
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; give another --output, or delete it")


def save_atomically(loaded: LoadedModel, path: Path) -> None:
    """Write a model to a temporary folder and rename it, so that an interruption leaves no incomplete model."""
    from rove.models.new import save_new_model

    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    save_new_model(draft, loaded)
    os.replace(draft, path)


def print_model(config: ModelConfig, path: Path, parameters: int, vocabulary: int, console: Console) -> None:
    """Print the new model and a hint."""
    console.print(f"{path}: {config.arch}, {parameters:,} parameters, {vocabulary} tokens; random weights")
    hint(
        console,
        f"evaluate it (untrained): rove eval {config.env} -m {path} -n 20 -r 1 -t 32",
        f"collect data for SFT: rove eval {config.env} -m scripted:NAME --train -n 1000",
    )


@click.group(
    epilog=examples("rove model new --env tictactoe -o models/mine", "rove model merge runs/sft/final -o models/merged")
)
def command() -> None:
    """Create small models from scratch, and merge LoRA adapters."""


@command.command(
    "new",
    context_settings=SETTINGS,
    epilog=examples(
        "rove model new --env tictactoe -o models/mine",
        "rove model new --env tictactoe --arch qwen3 --size small --seed 1",
    ),
)
@click.option("--env", help="Environment whose text the tokenizer is trained on.")
@click.option("--arch", help="Architecture: llama, lfm2 or qwen3.  [default: llama]")
@click.option("--size", help="tiny (0.5 M parameters) or small (4 M).  [default: tiny]")
@click.option("-o", "--output", help="Folder to write.  [default: models/ENV-ARCH-SIZE]")
@click.option("--seed", type=int, help="Random seed of the weights.  [default: 0]")
@json_option
@click.pass_context
def new(ctx: click.Context, as_json: bool, **named: Any) -> None:
    """Train a tokenizer on an environment's text and write an ordinary Hugging Face model folder with random weights."""
    console = console_for(as_json)
    config = settings(ModelConfig, ctx, **named)
    path, parameters, vocabulary = run_model_new(config)
    if as_json:
        print_json({"path": str(path), "parameters": parameters, "vocabulary": vocabulary})
    else:
        print_model(config, path, parameters, vocabulary, console)


@command.command("merge", epilog=examples("rove model merge runs/sft/final -o models/merged"))
@click.argument("adapter")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@trust_option
@json_option
def merge(adapter: str, output: Path, trust_remote_code: bool | None, as_json: bool) -> None:
    """Merge ADAPTER into its base model and write an ordinary Hugging Face model folder.

    ADAPTER is a folder in PEFT's format, such as final/ of a run with --lora.rank; it names its base model.
    """
    console = console_for(as_json)
    parameters = run_model_merge(adapter, output, bool(trust_remote_code))
    if as_json:
        print_json({"path": str(output), "parameters": parameters})
        return
    console.print(f"{output}: {parameters:,} parameters, adapter merged", markup=False, soft_wrap=True)
    hint(console, f"serve it: rove serve {output}")
