"""Load and save Hugging Face causal language models with their tokenizer."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.logging import disable_progress_bar

from rove.core.digest import ADAPTER_CONFIG, adapter_base, check_base, digest_model
from rove.core.errors import ConfigError, missing_train_package
from rove.models import attention
from rove.models.chat_templates import limit_chat_templates
from rove.models.device import choose_device
from rove.models.folder_check import check_folder
from rove.models.linear import use_fast_linear
from rove.models.older_releases import read_small_files, save_model, save_tokenizer
from rove.models.pretrained import check_model_type, model_path
from rove.models.recompute import use_recomputing_layers
from rove.models.templates import adapter_template, end_of_turn, read_args, use_template, write_settings
from rove.models.weights import cast_files, file_dtypes, folder_hint
from rove.rendering.renderer import Renderer
from rove.rendering.template_settings import OWN_TEMPLATE, TemplateSettings

if TYPE_CHECKING:
    from rove.models.adapter import Adapter

LARGE_MODEL_PARAMETERS = 50_000_000
"""Models with at least this many parameters use all threads that PyTorch would use by default, and keep fewer activations."""
PYTORCH_THREADS = torch.get_num_threads()
"""PyTorch's default number of threads: the physical cores that this process may use, or `OMP_NUM_THREADS`."""


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformers model, in order; [] if none is a `GradientCheckpointingLayer`."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def checkpointed_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformers model that support activation checkpointing, in order."""
    layers = decoder_layers(model)
    if not layers:
        raise ConfigError(
            f"activation_checkpointing is on, but {type(model).__name__} has no layer that supports it; turn it off"
        )
    return layers


@contextmanager
def checkpoint_activations(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Return a context in which these layers do not keep activations for the backward pass.

    transformers' own switch is not used: it works only in training mode, disables the cache of a model that also samples, and
    is copied along with the model.
    """
    # A layer may already have its own `forward`, such as that of `bf16_layers`.
    forwards = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer, forward in zip(layers, forwards, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


# rove shows its own progress.
disable_progress_bar()

M = TypeVar("M", bound=nn.Module)


class LoadedModel(NamedTuple):
    """A model, its tokenizer, and the renderer of its chat template."""

    model: Any
    tokenizer: Any
    renderer: Renderer
    name: str = ""
    """Identity of the model's weights (see `digest_model`); "" if the model was not loaded from a folder."""
    adapter: Adapter | None = None
    """The adapter that is trained and saved; None if the whole model is."""
    file_dtypes: Mapping[str, torch.dtype] | None = None
    """Type of each weight in the folder from which the model was loaded, by the names in the folder. The loaded weights are
    fp32."""
    small_files: Mapping[str, bytes] | None = None
    """Configuration files in the folder from which the model was loaded; see `rove.models.older_releases`."""

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and completion."""
        return context_of(self.model)

    @property
    def vocab_size(self) -> int:
        """Number of tokens that have embeddings; a tokenizer may have more."""
        return int(self.model.config.get_text_config().vocab_size)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the weights (not copies) that `save` writes, under the model's own names, with tied weights under each name."""
        return self.model.state_dict() if self.adapter is None else self.adapter.tensors()

    def save(self, path: Path) -> None:
        """Write a Hugging Face model folder, or an adapter folder in PEFT format."""
        if self.adapter is None:
            save_model(self.model, path, self.small_files)
            save_tokenizer(self.tokenizer, path, self.small_files)
        else:
            self.adapter.save(path)
        write_settings(path, self.renderer.settings, is_adapter=self.adapter is not None)
        _make_readable(path)

    def save_final(self, path: Path) -> None:
        """Write the result of training like `save`, but with weights of the same types as in the folder from which the model
        was loaded.
        """
        self.save(path)
        if self.adapter is None and self.file_dtypes:
            cast_files(path, self.file_dtypes)
            _make_readable(path)


def _make_readable(folder: Path) -> None:
    """Let users who can read a model's configuration also read its weights, which safetensors makes readable by the
    owner only.
    """
    mode = next(folder.glob("*config.json")).stat().st_mode & 0o777
    for file in folder.glob("*.safetensors"):
        file.chmod(mode)


def context_of(model: Any) -> int:
    """Return the maximum number of tokens from the model's config; a very large number if it is not specified."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 30))


def load_model(
    path: str | Path,
    device: str = "auto",
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    chat_template: str | None = None,
    template_args: Mapping[str, object] | None = None,
) -> LoadedModel:
    """Load a model for sampling and training.

    For an adapter folder, load the base model with the adapter merged into it; the base may be an adapter, too.

    Args:
        path: Folder, name in `rove model list`, or name of a Hugging Face hub model in the local cache.
        device: "auto" (CUDA if available, else the CPU), "cpu", "cuda", "cuda:N", or "mps"; see `rove.models.device`.
        dtype: Type of the weights.
        trust_remote_code: Whether to run the Python files named in the model's `auto_map`.
        chat_template: Chat template that replaces the model's own: "chatml", or the path of a Jinja file.
        template_args: Variables of the chat template in every conversation, such as {"enable_thinking": False}. They are added
            to the variables with which rove trained the model, unless `chat_template` is given.

    Raises:
        ConfigError: There is no model, the settings of the chat template do not fit it, an adapter's base is missing, or the
            model needs its own Python files and `trust_remote_code` is false, or the device is not available.

    Example:
        loaded = load_model("models/tiny")
        client = EngineClient.from_model(loaded)
    """
    path = model_path(path)
    chosen = choose_device(device)  # before the weights are read
    check_model(path)
    args = template_args or {}
    if adapter_base(path) is not None:
        return load_adapter(path, device, dtype, trust_remote_code, chat_template, args)
    folder = Path(path).expanduser()
    path = folder if folder.is_dir() else path
    limit_chat_templates()
    options: dict[str, object] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        if folder.is_dir():
            check_folder(folder, trust_remote_code)
        # First: the settings of the template may not fit it, and reading the weights takes longer.
        tokenizer, settings = load_tokenizer(path, trust_remote_code, chat_template, args)
        loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True, **options)
        model, report = loaded
        _check_complete(path, set(report["missing_keys"]), sorted(report["unexpected_keys"]))
        prepared = prepare(model.to(chosen), tokenizer, settings)
    except BaseException as error:  # of a damaged folder, transformers and tokenizers raise errors of all kinds
        is_rust_panic = type(error).__name__ == "PanicException"  # of tokenizers, not an `Exception`
        if isinstance(error, ConfigError) or not (isinstance(error, Exception) or is_rust_panic):
            raise
        if not trust_remote_code and "trust_remote_code" in str(error):
            raise ConfigError(
                f"the model '{path}' needs its own Python code ({', '.join(remote_code(path))}); rove does not run "
                "it: read the code and, if you trust it, add --trust-remote-code (in a settings file and for load_model: "
                "trust_remote_code = true)"
            ) from error
        raise ConfigError(
            f"cannot load a model from '{path}': {type(error).__name__}: {error}; check its config.json, weights and tokenizer "
            "files, or download it again"
        ) from error
    source = folder_of(path)
    return prepared._replace(
        name=digest_model(path), file_dtypes=file_dtypes(source), small_files=read_small_files(source)
    )


def _check_complete(path: str | Path, missing: Set[str], unexpected: Sequence[str]) -> None:
    """Check that the weight files have all weights of the model; transformers would draw missing ones at random.

    Args:
        missing: Names of weights that the model has and the files lack. Tied weights are not missing.
        unexpected: Names of weights that the files have and the model lacks.
    """
    if not missing:
        return
    message = (
        f"the weight files of '{path}' lack '{min(missing)}', one of {len(missing):,} missing weights of the model"
    )
    for name in unexpected:
        parts = name.split(".")
        for count in range(1, len(parts)):
            if ".".join(parts[count:]) in missing:
                prefix = ".".join(parts[:count]) + "."
                raise ConfigError(
                    f"{message}; they have '{name}' with the prefix '{prefix}', which a wrapper such as torch.compile, "
                    "DataParallel or PEFT adds: save the model inside the wrapper, or remove the prefix from the names"
                )
    further = f"; they have '{unexpected[0]}', which the model lacks" if unexpected else ""
    raise ConfigError(f"{message}{further}; expected all of them: save or download a complete model")


def load_tokenizer(
    path: str | Path, trust_remote_code: bool, chat_template: str | None, args: Mapping[str, object]
) -> tuple[Any, TemplateSettings]:
    """Return the tokenizer of a model with the chat template of the settings."""
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    if chat_template is None:  # the variables that the model was trained with belong to its own template
        args = {**read_args(folder_of(path)), **args}
    return tokenizer, use_template(tokenizer, str(path), chat_template, args)


def folder_of(path: str | Path) -> Path:
    """Return the folder of a model: `path` itself, or the model's folder in the local Hugging Face cache."""
    folder = Path(path).expanduser()
    config = None if folder.is_dir() else _cached_config(str(path))
    return folder if config is None else config.parent


def remote_code(path: str | Path) -> list[str]:
    """Return the Python files named in `auto_map` of a model's configuration files.

    A file of another hub repository is "OWNER/REPO: FILE".
    """
    files: dict[str, None] = {}
    for name in ("config.json", "tokenizer_config.json"):
        file = Path(path) / name if Path(path).is_dir() else try_to_load_from_cache(str(path), name)
        if not isinstance(file, (str, Path)) or not Path(file).is_file():
            continue
        auto_map = json.loads(Path(file).read_bytes()).get("auto_map", {})
        entries = auto_map.values() if isinstance(auto_map, dict) else [auto_map]
        references: list[object] = []
        for entry in entries:  # a class, or a list of the slow and the fast one for tokenizers
            references += entry if isinstance(entry, list) else [entry]
        for reference in references:
            if isinstance(reference, str):
                repository, _, class_path = reference.rpartition("--")
                module = class_path.rpartition(".")[0] + ".py"
                files[f"{repository}: {module}" if repository else module] = None
    return list(files)


def check_model(path: str | Path) -> None:
    """Check that a model or an adapter exists and that its type is supported, without reading its weights."""
    folder = Path(model_path(path)).expanduser()
    if adapter_base(folder) is not None:
        return
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json{folder_hint(folder)}")
    if not folder.is_dir() and not is_cached(str(path)):
        raise ConfigError(
            f"no model '{path}': expected a folder, a name of `rove model list`, or the name of a model in the local Hugging "
            "Face cache"
        )
    check_model_type(path, folder_of(folder if folder.is_dir() else path) / "config.json")


def is_cached(name: str) -> bool:
    """Return whether the local Hugging Face cache has a model, without network access."""
    return _cached_config(name) is not None


def _cached_config(name: str) -> Path | None:
    """Return the configuration of a model in the local Hugging Face cache; None if the cache does not have the model."""
    try:
        file = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # a path, which no model on the hub is named by
        return None
    return Path(file) if isinstance(file, str) else None


def load_adapter(
    path: str | Path,
    device: str = "auto",
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    chat_template: str | None = None,
    template_args: Mapping[str, object] | None = None,
) -> LoadedModel:
    """Load the base model of an adapter with the adapter merged into it; see `load_model` for the arguments."""
    check_peft()
    from rove.models.adapter import merge_adapter

    folder = Path(path).expanduser()
    base = adapter_base(folder)
    if base is None:
        raise ConfigError(f"{folder} is not an adapter: it has no {ADAPTER_CONFIG}{folder_hint(folder)}")
    chat_template, args = settings_with_adapter(folder, chat_template, template_args or {})
    try:
        loaded = load_model(base, device, dtype, trust_remote_code, chat_template, args)
    except ConfigError as error:
        raise ConfigError(
            f"the base model of the adapter in {folder}: {error}; set base_model_name_or_path in {folder / ADAPTER_CONFIG}"
        ) from error
    check_base(folder, base)
    merge_adapter(loaded.model, folder)
    return loaded._replace(name=digest_model(folder))


def settings_with_adapter(
    folder: Path, chat_template: str | None, args: Mapping[str, object]
) -> tuple[str | None, Mapping[str, object]]:
    """Return settings of the template, completed with the settings of an adapter's training, unless `chat_template` is given."""
    if chat_template is not None:
        return chat_template, args
    return adapter_template(folder), {**read_args(folder), **args}


def check_peft() -> None:
    """Check that PEFT is installed."""
    if find_spec("peft") is None:
        raise missing_train_package("peft", "a LoRA adapter (lora.rank, or a model folder with an adapter)")


def trainable_parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the trained parameters by name: all parameters, or only an adapter's."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def clone_model(model: M) -> M:
    """Return a copy of a model. The copy has its own trained weights and shares the frozen weights."""
    # `deepcopy` takes what it has copied already from this dict: frozen weights count as copies of themselves.
    frozen = {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}
    return copy.deepcopy(model, frozen)


def disable_adapters(model: Any) -> None:
    """Make a model compute without its adapter from now on."""
    for layer in model.modules():
        if hasattr(layer, "get_delta_weight"):
            layer.enable_adapters(False)


def copy_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy weights into a model: all of its parameters, or only the `trainable_parameters`.

    A tied parameter may appear under each of its names, as in a `state_dict()`, if the tensors are equal. Buffers of a
    `state_dict()` may be included or missing.
    """
    weights = _without_tied(model, weights)
    parameters = dict(model.named_parameters())
    targets = {name: tensor for name, tensor in _without_tied(model, model.state_dict()).items() if name in weights}
    is_partial = weights.keys() == trainable_parameters(model).keys()
    missing = set() if is_partial else parameters.keys() - weights.keys()
    wrong = missing | (weights.keys() - targets.keys())
    if wrong:
        raise ConfigError(f"weights do not match the model: {sorted(wrong)[:5]} …")
    misshapen = [name for name, tensor in targets.items() if weights[name].shape != tensor.shape]
    if misshapen:
        raise ConfigError(f"weights do not match the model: other shapes of {misshapen[:5]}")
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(weights[name])


def _without_tied(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights without additional names of tied parameters, such as `lm_head.weight`."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if names[id(parameter)] != name:
            tied[name] = names[id(parameter)]
    for name, first in tied.items():
        if name in weights and first in weights and not _are_equal(weights[name], weights[first]):
            raise ConfigError(
                f"weights '{name}' and '{first}' differ, but the model ties them: expected equal tensors; leave '{name}' out, "
                "or load a model with tie_word_embeddings=False"
            )
    return {name: weight for name, weight in weights.items() if tied.get(name) not in weights}


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b:
        return True
    return a.shape == b.shape and torch.equal(a, b.to(a))


def load_for_sampling(
    path: str | Path,
    trust_remote_code: bool = False,
    device: str = "auto",
    chat_template: str | None = None,
    template_args: Mapping[str, object] | None = None,
) -> LoadedModel:
    """Load a model for sampling, with a suitable number of threads."""
    loaded = load_model(
        path,
        device,
        trust_remote_code=trust_remote_code,
        chat_template=chat_template,
        template_args=template_args,
    )
    torch.set_num_threads(default_threads(loaded.model))
    return loaded


def default_threads(model: nn.Module) -> int:
    """Return the number of PyTorch threads for a model: PyTorch's own default for large models, else at most half of the cores.

    More threads do not help small models, and OpenMP's spinning threads stall if any other process is busy.
    """
    if is_large(model):
        return PYTORCH_THREADS
    # PyTorch's default respects OMP_NUM_THREADS and the cores that this process may use; `cpu_count` does not.
    return max(1, min(PYTORCH_THREADS, (os.cpu_count() or 1) // 2))


def is_large(model: nn.Module) -> bool:
    """Return whether a model has `LARGE_MODEL_PARAMETERS` or more."""
    return sum(parameter.numel() for parameter in model.parameters()) >= LARGE_MODEL_PARAMETERS


def prepare(model: Any, tokenizer: Any, settings: TemplateSettings = OWN_TEMPLATE) -> LoadedModel:
    """Install rove's attention and layers in a model where they apply, and create its renderer.

    Args:
        settings: Settings of the chat template. The tokenizer already has the template of the settings.
    """
    if attention.is_plain(model.config):
        model.set_attn_implementation(attention.NAME)
    use_fast_linear(model)
    if model.config.model_type == "lfm2":
        # Here, because it reads transformers' module of LFM2, which other models do not need.
        from rove.models.convolution import use_packed_convolutions

        use_packed_convolutions(model)
    if is_large(model):
        use_recomputing_layers(model)
    model.eval()
    return LoadedModel(model, tokenizer, _renderer_with_stop_ids(model, tokenizer, settings))


def _renderer_with_stop_ids(model: Any, tokenizer: Any, settings: TemplateSettings) -> Renderer:
    """Return a model's renderer, and add the tokens that end turns in its template to the model's generation config."""
    stop_ids: list[int] = []
    eos = model.generation_config.eos_token_id if model.generation_config else None
    if eos is not None:  # one id, or several: Llama 3 ends a turn with another token than a text
        stop_ids += [eos] if isinstance(eos, int) else eos
    renderer = Renderer(tokenizer, stop_ids, settings)
    end = None if settings.chat_template is None else end_of_turn(tokenizer, settings)
    if end is not None and end not in renderer.end_ids:  # written after the last message only
        renderer = Renderer(tokenizer, [*stop_ids, end], settings)
    added_ids = set(renderer.stop_ids.difference(stop_ids))
    if end != tokenizer.eos_token_id:
        added_ids.discard(tokenizer.eos_token_id)
    if added_ids and model.generation_config:  # so that other programs stop there, too, and rove with the saved model
        model.generation_config.eos_token_id = [*stop_ids, *sorted(added_ids)]
    return renderer
