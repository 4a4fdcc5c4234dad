"""`rove model new`: a small model from scratch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from rove.cli.answerers import needs_train_extra
from rove.cli.common import SETTINGS, console_for, hint, print_json, run_async, settings
from rove.clients.scripted import ScriptedClient
from rove.envs.loading import load_environment
from rove.errors import ConfigError
from rove.evaluate import all_text, generate
from rove.messages import as_messages, text_of


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
    """Rollouts of every scripted player the tokenizer sees."""
    output: str | None = None
    """Folder to write; models/ENV-ARCH-SIZE when not given."""
    seed: int = 0
    env_dir: str | None = None


async def environment_text(config: ModelConfig) -> list[str]:
    """What is said in the environment: its prompts, and rollouts of the players it ships."""
    env = load_environment(config.env, config.env_dir, **config.env_args)
    texts = [text_of(m) for example in env.get_dataset(1000) for m in as_messages(example["prompt"])]
    for name, player in env.players.items():
        texts += all_text(
            await generate(env, ScriptedClient(player, name), num_examples=config.games, train=True, seed=config.seed)
        )
    return texts


def run_model_new(config: ModelConfig) -> tuple[Path, int, int]:
    """Make and save the model; returns its folder, its parameters and its vocabulary."""
    with needs_train_extra():
        from rove.models.new import new_model, save_new_model
    path = Path(config.output or f"models/{config.env}-{config.arch}-{config.size}")
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; give another --output, or delete it")
    texts = run_async(environment_text(config))
    loaded = new_model(texts, config.arch, config.size, config.vocab_size, config.seed)
    draft = path.with_name(f".{path.name}.draft")  # renamed when it is whole: a kill leaves no half model behind
    shutil.rmtree(draft, ignore_errors=True)
    save_new_model(draft, loaded)
    os.replace(draft, path)
    return path, sum(p.numel() for p in loaded.model.parameters()), len(loaded.tokenizer)


def print_model(config: ModelConfig, path: Path, parameters: int, vocabulary: int, console: Console) -> None:
    """What was made, and what to do with it."""
    console.print(f"{path}: {config.arch}, {parameters:,} parameters, {vocabulary} tokens; random weights")
    hint(console, f"it knows nothing yet: rove eval {config.env} -m {path} -n 20 -r 1 -t 32")


@click.group()
def command() -> None:
    """Make small models from scratch."""


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
