"""`rove model`: download a pretrained model, create a small one from scratch, or merge an adapter into its base model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.table import Table

from rove.cli.clients import needs_train_extra, print_device
from rove.cli.common import console_for, hint, named_environment, print_json, run_async, working
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
from rove.clients.scripted import ScriptedClient
from rove.core.checks import Settings
from rove.core.errors import ConfigError
from rove.core.messages import as_messages, text_of
from rove.core.ranges import Fraction, NonNegativeInt, PositiveInt
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.models.pretrained import CATALOG, get_model, models_folder
from rove.rollouts.evaluate import conversation_texts, generate

if TYPE_CHECKING:
    from rove.models.load import LoadedModel


class ModelConfig(Settings, frozen=True, kw_only=True):
    """Settings of `rove model new`."""

    env: str
    """Environment whose text the tokenizer is trained on."""
    env_args: dict[str, Any] = {}
    """Arguments of the environment."""
    arch: str = "llama"
    """Architecture: llama, lfm2 or qwen3."""
    size: str = "tiny"
    """tiny (0.5 M parameters) or small (4 M)."""
    vocab_size: PositiveInt = 512
    """Maximum size of the vocabulary."""
    word_share: Fraction = 0.05
    """Minimum share of the rollouts with a word that becomes one token; other words are spelled."""
    games: PositiveInt = 300
    """Rollouts of each scripted policy on which the tokenizer is trained."""
    output: str | None = None
    """Folder to write; by default models/ENV-ARCH-SIZE."""
    seed: NonNegativeInt = 0
    """Random seed of the weights."""
    env_dir: str | None = None
    """Folder in which the environment is looked up first."""


class NewModel(NamedTuple):
    """What `rove model new` made."""

    path: Path
    parameters: int
    vocabulary: int
    """Number of tokens."""
    policies: list[str]
    """Names of the environment's scripted policies."""


async def environment_texts(env: Environment, config: ModelConfig) -> list[str]:
    """Return a text per rollout of the environment's scripted policies, or its prompts if it has none."""
    texts: list[str] = []
    for name, policy in env.policies.items():
        texts += conversation_texts(
            await generate(env, ScriptedClient(policy, name), num_examples=config.games, train=True, seed=config.seed)
        )
    return texts or ["\n".join(map(text_of, as_messages(one["prompt"]))) for one in env.get_dataset(1000)]


def run_model_new(config: ModelConfig) -> NewModel:
    """Create and save the model."""
    with needs_train_extra():
        from rove.models.from_scratch import new_model
    path = Path(config.output or f"models/{config.env}-{config.arch}-{config.size}")
    check_empty(path)
    env = load_environment(config.env, config.env_dir, **config.env_args)
    texts = run_async(environment_texts(env, config))
    loaded = new_model(texts, config.arch, config.size, config.vocab_size, config.seed, config.word_share)
    save_atomically(loaded, path)
    parameters = sum(p.numel() for p in loaded.model.parameters())
    return NewModel(path, parameters, len(loaded.tokenizer), sorted(env.policies))


def run_model_merge(adapter: str | Path, path: Path, trust_remote_code: bool = False, device: str = "cpu") -> int:
    """Merge an adapter into its base model and save the result to `path`; return the number of parameters.

    Raises:
        ConfigError: `path` is not empty, or the adapter cannot be loaded.
    """
    with needs_train_extra():
        from rove.models.load import load_adapter
    check_empty(path)
    loaded = load_adapter(adapter, device, trust_remote_code=trust_remote_code)
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
    from rove.models.from_scratch import save_new_model

    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    save_new_model(draft, loaded)
    os.replace(draft, path)


def print_model(config: ModelConfig, made: NewModel, console: Console) -> None:
    """Print the new model and a hint."""
    console.print(
        f"{made.path}: {config.arch}, {made.parameters:,} parameters, {made.vocabulary} tokens; "
        f"random weights of seed {config.seed}",
        markup=False,
        soft_wrap=True,
    )
    teacher, names = "MODEL", "MODEL is a teacher, such as an endpoint"
    if made.policies:
        teacher, names = "scripted:NAME", f"NAME is {' or '.join(made.policies)}"
    env = named_environment(config.env, config.env_dir, config.env_args)
    hint(
        console,
        f"evaluate it (untrained): rove eval {env} -m {made.path} -n 20 -r 1 -t 32",
        f"collect data for SFT: rove eval {env} -m {teacher} --train -n 1000; {names}",
    )


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
    """Download a pretrained model: a name of `rove model list`, hf:ORG/NAME, or a GGUF file to convert.

    A named model then works everywhere: -m NAME.
    """
    console = console_for(as_json)
    with needs_train_extra():
        from rove.models.gguf import convert_gguf
    if known := CATALOG.get(source):
        console.print(
            f"{known.description}: {known.parameters / 1e6:.0f} M parameters, license {known.license}, "
            f"{known.download_mb} MB to download, {known.folder_mb} MB on disk"
        )
    with working(console, f"downloading and converting {source}"):
        path = get_model(source, output, convert=convert_gguf)
    if as_json:
        print_json({"path": str(path)})
        return
    console.print(f"{path} is ready", markup=False, soft_wrap=True)
    name = source if known and output is None else path
    hint(
        console,
        f"evaluate it: rove eval short_sentences -m {name} -n 20 -r 1 --max-tokens 40",
        f"serve it: rove serve -m {name}",
    )


@command.command(
    "new",
    context_settings=SETTINGS,
    epilog=examples(
        "rove model new tictactoe -o models/mine",
        "rove model new tictactoe --arch qwen3 --size small --seed 1",
    ),
)
@click.option("--env", help="Environment whose text the tokenizer is trained on.")
@click.option("--arch", help="Architecture: llama, lfm2 or qwen3.  [default: llama]")
@click.option("--size", help="tiny (0.5 M parameters) or small (4 M).  [default: tiny]")
@env_args_option
@env_dir_option
@click.option("-o", "--output", help="Folder to write.  [default: models/ENV-ARCH-SIZE]")
@click.option("--seed", type=setting_range(ModelConfig, "seed"), help="Random seed of the weights.  [default: 0]")
@json_option
@click.pass_context
def new(ctx: click.Context, env_args: str | None, as_json: bool, **named: Any) -> None:
    """Train a tokenizer on an environment's text and write an ordinary Hugging Face model folder with random weights."""
    console = console_for(as_json)
    config = settings(ModelConfig, ctx, bare="env", env_args=json_object(env_args, "-a"), **named)
    made = run_model_new(config)
    if as_json:
        print_json({"path": str(made.path), "parameters": made.parameters, "vocabulary": made.vocabulary})
    else:
        print_model(config, made, console)


@command.command("merge", epilog=examples("rove model merge runs/sft/final -o models/merged"))
@click.argument("adapter")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@trust_option
@click.option("--device", default="cpu", show_default=True, help="Device that merges: auto, cpu, cuda, cuda:N or mps.")
@json_option
def merge(adapter: str, output: Path, trust_remote_code: bool | None, device: str, as_json: bool) -> None:
    """Merge ADAPTER into its base model and write an ordinary Hugging Face model folder.

    ADAPTER is a folder in PEFT's format, such as final/ of a run with --lora.rank; it names its base model.
    """
    console = console_for(as_json)
    print_device(device, console)
    parameters = run_model_merge(adapter, output, bool(trust_remote_code), device)
    if as_json:
        print_json({"path": str(output), "parameters": parameters})
        return
    console.print(f"{output}: {parameters:,} parameters, adapter merged", markup=False, soft_wrap=True)
    hint(console, f"serve it: rove serve -m {output}")
