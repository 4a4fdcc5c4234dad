"""Create a small new model for an environment, and merge adapters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rove.clients.scripted import ScriptedClient
from rove.core.checks import Settings
from rove.core.digest import write_checksums
from rove.core.errors import ConfigError, needs_train_extra
from rove.core.messages import as_messages, text_of
from rove.core.plain import Arguments
from rove.core.ranges import Fraction, NonNegativeInt, PositiveInt
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.rollouts.evaluate import conversation_texts, generate
from rove.stages.arguments import name_and_environment, settings_from
from rove.stages.naming import named_environment
from rove.stages.reporter import ConsoleReporter, Reporter
from rove.utils.event_loop import outside_event_loop, run_async
from rove.utils.systems import rename

if TYPE_CHECKING:
    from rove.models.load import LoadedModel


class ModelConfig(Settings, frozen=True, kw_only=True):
    """Settings of `rove model new`."""

    env: str
    """Environment whose text the tokenizer is trained on."""
    env_args: Arguments = {}
    """Arguments of the environment."""
    arch: str = "llama"
    """Architecture: llama, lfm2 or qwen3."""
    size: str = "tiny"
    """Size: tiny (0.5 M parameters; lfm2: 0.7 M) or small (4 M)."""
    init: str = "random"
    """Initial weights: random, or recall for layers that can find and copy symbols of the prompt (only for arch lfm2 and size
    tiny)."""
    vocab_size: PositiveInt = 512
    """Maximum size of the vocabulary."""
    word_share: Fraction = 0.05
    """A word becomes a single token if at least this share of the rollouts contain it; other words are spelled."""
    games: PositiveInt = 300
    """Number of rollouts of each scripted policy on which the tokenizer is trained."""
    output: str | None = None
    """Folder to write; by default, models/ENV-ARCH-SIZE."""
    seed: NonNegativeInt = 0
    """Random seed of the weights."""
    env_dir: str | None = None
    """Folder in which the environment is looked up first."""


class NewModel(NamedTuple):
    """A new model: the result of `rove.new_model`."""

    path: Path
    """Folder of the model."""
    parameters: int
    """Number of parameters."""
    vocabulary: int
    """Number of tokens in the vocabulary."""
    policies: list[str]
    """Names of the environment's scripted policies."""


def new_model(
    env: str | Environment,
    output: str | Path | None = None,
    config: ModelConfig | None = None,
    *,
    reporter: Reporter | None = None,
    **settings: object,
) -> NewModel:
    """Train a tokenizer on an environment's text, and write a small new model as a Hugging Face model folder.

    Example:
        >>> model = rove.new_model("tictactoe", "models/mine", size="tiny")
        >>> rove.sft(model.path, "runs/teacher")

    Args:
        env: Name of an environment, or an environment.
        output: Folder to write. Default: models/ENV-ARCH-SIZE.
        config: All settings. Default: the defaults of `rove model new`.
        reporter: Shows the result. Default: the console or the notebook.
        settings: Single settings, such as `arch="qwen3"` or `seed=1`; they override the settings in `config`.

    Raises:
        ConfigError: A setting is unknown or out of range, there is no such environment, or the folder is not empty.
    """
    name, loaded = name_and_environment(env)
    arguments = {"env": name, "output": None if output is None else str(output), **settings}
    used = settings_from(ModelConfig, config, arguments)
    model = outside_event_loop(lambda: run_model_new(used, loaded))
    (reporter or ConsoleReporter()).note(model_text(used, model))
    return model


async def environment_texts(env: Environment, config: ModelConfig) -> list[str]:
    """Return a text per rollout of the environment's scripted policies; the environment's prompts if it has no policies."""
    texts: list[str] = []
    async with env.used_in_run():  # a teardown after the first policy would end what the others need
        for name, policy in env.policies.items():
            client = ScriptedClient(policy, name)
            records = await generate(env, client, num_examples=config.games, train=True, seed=config.seed)
            texts += conversation_texts(records)
    if texts:
        return texts
    prompts = [as_messages(row["prompt"]) for row in env.get_dataset(1000)]
    return ["\n".join(map(text_of, prompt)) for prompt in prompts]


def run_model_new(config: ModelConfig, env: Environment | None = None) -> NewModel:
    """Create and save the model; `env` is the environment if it is loaded already."""
    with needs_train_extra():
        from rove.models.from_scratch import new_model as create
    path = Path(config.output or f"models/{config.env}-{config.arch}-{config.size}")
    check_empty(path)
    if env is None:
        env = load_environment(config.env, config.env_dir, **config.env_args)
    texts = run_async(environment_texts(env, config))
    loaded = create(texts, config.arch, config.size, config.vocab_size, config.seed, config.word_share, config.init)
    save_atomically(loaded, path)
    parameters = sum(weights.numel() for weights in loaded.model.parameters())
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
    return sum(weights.numel() for weights in loaded.model.parameters())


def check_empty(path: Path) -> None:
    """Refuse a folder that is not empty, and a file.

    Raises:
        ConfigError: The folder is not empty, or the path is a file.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; expected a folder: give another --output")
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; give another --output, or delete it")


def save_atomically(loaded: LoadedModel, path: Path) -> None:
    """Write a model with checksums to a temporary folder and rename it, so that an interruption leaves no incomplete model."""
    # In the same folder, so that renaming does not cross file systems.
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    loaded.save_final(draft)
    write_checksums(draft)
    rename(draft, path)


def model_text(config: ModelConfig, model: NewModel) -> str:
    """Return a line about a new model."""
    weights = "random weights" if config.init == "random" else f"{config.init} layers and random embeddings"
    return (
        f"{model.path}: {config.arch}, {model.parameters:,} parameters, {model.vocabulary} tokens; "
        f"{weights} of seed {config.seed}"
    )


def show_model(config: ModelConfig, model: NewModel, reporter: Reporter) -> None:
    """Print a line about a new model, and the commands that evaluate it and collect data for its SFT."""
    reporter.note(model_text(config, model))
    teacher, names = "MODEL", "MODEL is a teacher, such as an endpoint"
    if model.policies:
        teacher, names = "scripted:NAME", f"NAME is {' or '.join(model.policies)}"
    env = named_environment(config.env, config.env_dir, config.env_args)
    reporter.hints(
        f"evaluate it (untrained): rove eval {env} -m {model.path} -n 20 -r 1 -t 32",
        f"collect data for SFT: rove eval {env} -m {teacher} --train -n 1000; {names}",
    )
