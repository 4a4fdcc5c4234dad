"""`rove model new`: a small model from scratch; `rove model merge`: an adapter and its base as one model."""

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
from rove.cli.options import SETTINGS, settings, trust_option
from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError
from rove.core.messages import as_messages, text_of
from rove.envs.loading import load_environment
from rove.rollouts.evaluate import all_text, generate

if TYPE_CHECKING:
    from rove.models.load import LoadedModel


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a new model."""

    env: str
    """Environment whose text the tokenizer is trained on."""
    env_args: dict[str, Any] = {}
    arch: str = "llama"
    """llama, lfm2 or qwen3."""
    size: str = "tiny"
    """tiny or small."""
    vocab_size: int = 512
    """Most tokens."""
    games: int = 300
    """Rollouts of every scripted policy the tokenizer sees."""
    output: str | None = None
    """Folder to write; models/ENV-ARCH-SIZE when not given."""
    seed: int = 0
    env_dir: str | None = None


async def environment_text(config: ModelConfig) -> list[str]:
    """What is said in the environment: its prompts, and rollouts of the players it ships."""
    env = load_environment(config.env, config.env_dir, **config.env_args)
    texts = [text_of(m) for example in env.get_dataset(1000) for m in as_messages(example["prompt"])]
    for name, player in env.policies.items():
        texts += all_text(
            await generate(env, ScriptedClient(player, name), num_examples=config.games, train=True, seed=config.seed)
        )
    return texts


def run_model_new(config: ModelConfig) -> tuple[Path, int, int]:
    """Make and save the model; returns its folder, its parameters and its vocabulary."""
    with needs_train_extra():
        from rove.models.new import new_model
    path = Path(config.output or f"models/{config.env}-{config.arch}-{config.size}")
    check_empty(path)
    texts = run_async(environment_text(config))
    loaded = new_model(texts, config.arch, config.size, config.vocab_size, config.seed)
    save_whole(loaded, path)
    return path, sum(p.numel() for p in loaded.model.parameters()), len(loaded.tokenizer)


def run_model_merge(adapter: str | Path, path: Path, trust_remote_code: bool = False) -> int:
    """Write an adapter's base with the adapter merged into its weights to `path`; returns its parameters.

    Raises:
        ConfigError: there is something at `path`, no adapter in the other folder, or it cannot be loaded.
    """
    with needs_train_extra():
        from rove.models.load import load_adapter
    check_empty(path)
    loaded = load_adapter(adapter, device="cpu", trust_remote_code=trust_remote_code)
    save_whole(loaded, path)
    return sum(p.numel() for p in loaded.model.parameters())


def check_empty(path: Path) -> None:
    """Refuse a folder with something in it.

    Raises:
        ConfigError: it is one.
    """
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; give another --output, or delete it")


def save_whole(loaded: LoadedModel, path: Path) -> None:
    """Write a model beside its place and rename it: a kill leaves no half model behind."""
    from rove.models.new import save_new_model

    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    save_new_model(draft, loaded)
    os.replace(draft, path)


def print_model(config: ModelConfig, path: Path, parameters: int, vocabulary: int, console: Console) -> None:
    """What was made, and what to do with it."""
    console.print(f"{path}: {config.arch}, {parameters:,} parameters, {vocabulary} tokens; random weights")
    hint(console, f"it knows nothing yet: rove eval {config.env} -m {path} -n 20 -r 1 -t 32")


@click.group()
def command() -> None:
    """Make small models from scratch, and one of an adapter and its base."""


@command.command("new", context_settings=SETTINGS)
@click.option("--env", help="Environment whose text the tokenizer is trained on.")
@click.option("--arch", help="llama, lfm2 or qwen3.  [default: llama]")
@click.option("--size", help="tiny (0.5 M parameters) or small (4 M).  [default: tiny]")
@click.option("-o", "--output", help="Folder to write.  [default: models/ENV-ARCH-SIZE]")
@click.option("--seed", type=int, help="Of the random weights.  [default: 0]")
@click.option("--json", "as_json", is_flag=True, help="Print what was made as JSON.")
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


@command.command("merge")
@click.argument("adapter")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print what was made as JSON.")
def merge(adapter: str, output: Path, trust_remote_code: bool | None, as_json: bool) -> None:
    """Write the base of ADAPTER, with it merged into the weights, as an ordinary Hugging Face model folder.

    ADAPTER is a folder in PEFT's format, like final/ of a run with --lora.rank; its base is the model that is named there.
    """
    console = console_for(as_json)
    parameters = run_model_merge(adapter, output, bool(trust_remote_code))
    if as_json:
        print_json({"path": str(output), "parameters": parameters})
        return
    console.print(f"{output}: {parameters:,} parameters, the adapter's change in them", markup=False, soft_wrap=True)
    hint(console, f"serve it: rove serve {output}")
