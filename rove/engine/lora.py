"""LoRA adapters: low-rank changes of a model's projections, chosen per request within one batch.

A projection y = x Wᵀ becomes y + scale · (x Aᵀ) Bᵀ with A [r, in] and B [out, r] of rank r; scale is lora_alpha / r (Hu et al.
2021, https://arxiv.org/abs/2106.09685) or lora_alpha / √r (rsLoRA, https://arxiv.org/abs/2312.03732). W does not change, so
every token may have its own adapter. The files are PEFT's.

Axes: N tokens of a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn.functional import linear

from rove.core.digest import ADAPTER_CONFIG as CONFIG
from rove.core.digest import ADAPTER_TENSORS as TENSORS
from rove.core.errors import ConfigError, nearest, sentence
from rove.core.plain import UNREADABLE, JsonMapping
from rove.engine.families import FAMILIES

IGNORED_SETTINGS = (
    {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"}
    | {"exclude_modules", "layers_pattern", "layers_to_transform"}
    | {"eva_config", "lora_dropout", "megatron_config", "megatron_core", "qalora_group_size", "runtime_config"}
)
"""PEFT settings that do not change what an adapter computes once its tensors exist."""
SUPPORTED_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Initializations that leave the base weights unchanged; PiSSA and similar initializations change them."""

Projection = tuple[int, str]
"""A joined projection of the decoder: layer, and "qkv", "out", "gate_up", "down", "conv_in" or "conv_out"."""
T = TypeVar("T")
_scopes = count(1)


class PeftWeights(NamedTuple):
    """An adapter as PEFT saves it."""

    tensors: Mapping[str, torch.Tensor]
    """[base_model.model.]MODULE.lora_A.weight [r, in] and … .lora_B.weight [out, r]."""
    config: JsonMapping
    """Content of adapter_config.json."""


Source = str | Path | PeftWeights
"""Folder of an adapter, or its content."""


class LowRank(NamedTuple):
    """The change of one projection."""

    a: torch.Tensor
    """[r, in] matrix A."""
    b: torch.Tensor
    """[out, r] matrix B, multiplied by the scale."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] → [..., out]."""
        return linear(linear(x, self.a), self.b)


@dataclass(frozen=True, eq=False)
class Adapter:
    """A loaded adapter."""

    version: int
    """Version of the adapter, recorded with every token sampled with it."""
    parts: Mapping[str, LowRank]
    """The adapter's changes, by module name of the model."""
    joined: Mapping[Projection, LowRank]
    """The adapter's changes, by projection of the decoder."""
    scope: int = field(default_factory=lambda: next(_scopes))
    """Cache scope; keys and values are shared only within a scope (0: the base model)."""


class AdapterTokens(NamedTuple):
    """The tokens of a step that use one adapter."""

    adapter: Adapter
    tokens: torch.Tensor | None
    """Token indices; None means all tokens of the step."""

    @staticmethod
    def from_owners(owners: Iterable[tuple[Adapter | None, int]], device: torch.device) -> list[AdapterTokens]:
        """Group the tokens of a step by adapter, given (adapter, number of tokens) in order."""
        adapter_tokens: dict[Adapter, list[int]] = {}
        total = 0
        for adapter, size in owners:
            if adapter is not None:
                adapter_tokens.setdefault(adapter, []).extend(range(total, total + size))
            total += size
        # Without indices where all tokens have one adapter: gathering and scattering them would copy every activation.
        return [
            AdapterTokens(adapter, None if len(tokens) == total else torch.tensor(tokens, device=device))
            for adapter, tokens in adapter_tokens.items()
        ]


def adapt(y: torch.Tensor, x: torch.Tensor, adapted: Sequence[AdapterTokens], projection: Projection) -> torch.Tensor:
    """Add the changes of the tokens' adapters, in place, to the outputs y [N, out] of a joined projection of x [N, in]."""
    for adapter, tokens in adapted:
        change = adapter.joined.get(projection)
        if change is None:
            continue
        if tokens is None:
            y += change(x)
        else:
            y.index_add_(0, tokens, change(x[tokens]))
    return y


@contextmanager
def adapter_hooks(model: torch.nn.Module, adapter: Adapter | None) -> Iterator[None]:
    """Return a context in which the model's own modules compute with the adapter."""
    parts = adapter.parts if adapter else {}
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _, inputs, y, part=part: y + part(inputs[0]))
        for name, part in parts.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def load_adapter(
    model: object, source: Source, version: int, paired: Callable[[torch.Tensor], torch.Tensor]
) -> Adapter:
    """Load an adapter for a model that the decoder supports, on its device and in its precision.

    Args:
        model: The base model; not changed.
        source: Folder of the adapter, or its tensors and settings.
        version: Version of the adapter, recorded with every token sampled with it.
    """
    weights = source if isinstance(source, PeftWeights) else read_folder(source)
    try:
        parts = _parts(model, weights)
    except re.error as error:
        raise ConfigError(f"the adapter's {CONFIG} has an invalid pattern: {error}") from error
    return Adapter(version, parts, _joined(model, parts, paired))


def find_adapter(adapters: Mapping[str, Adapter], name: str) -> Adapter:
    """Return the adapter of this name."""
    if name not in adapters:
        raise ConfigError(
            f"no adapter '{name}' is loaded; {sentence(nearest(name, adapters))} Load it with load_adapter"
        )
    return adapters[name]


def read_folder(path: str | Path) -> PeftWeights:
    """Read a folder written by PEFT's `save_pretrained`; tensors are on the CPU."""
    folder = Path(path).expanduser()
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder} is not an adapter: it has no {name}; expected a folder with {CONFIG} and {TENSORS}, as written by "
                "PEFT's save_pretrained"
            )
    try:
        config = msgspec.json.decode((folder / CONFIG).read_bytes())
        return PeftWeights(load_file(folder / TENSORS), config)
    except (OSError, SafetensorError, *UNREADABLE) as error:
        raise ConfigError(f"the adapter in {folder} cannot be read ({error}); save or copy it again") from error


class _Config(msgspec.Struct):
    """The settings that define what an adapter computes."""

    r: int
    lora_alpha: float
    peft_type: str
    target_modules: list[str] | str = "all-linear"
    use_rslora: bool = False
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    bias: str = "none"
    init_lora_weights: bool | str | None = True

    def rank(self, module: str) -> int:
        """Return the rank of the matrices A and B of a module."""
        return _by_pattern(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """Return the factor by which the product of A and B is multiplied."""
        rank = self.rank(module)
        alpha = _by_pattern(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def _by_pattern(patterns: Mapping[str, T], module: str, default: T) -> T:
    """Return the value of the first pattern that matches the end of a module's name, as PEFT does."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _check_config(content: object) -> _Config:
    if not isinstance(content, Mapping):
        raise ConfigError(f"the adapter's {CONFIG} holds {type(content).__name__}; expected a JSON object")
    settings = {name: value for name, value in content.items() if value is not None}
    if settings.get("peft_type") != "LORA":
        raise ConfigError(f"the adapter's peft_type is {settings.get('peft_type')!r}; expected 'LORA'")
    try:
        config = msgspec.convert(settings, _Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the adapter's {CONFIG}: {error}; expected the settings that PEFT writes") from error
    # An unknown setting that is on may change what the adapter computes, as `use_dora` does: refuse it instead of ignoring it.
    unknown = settings.keys() - {*_Config.__struct_fields__, *IGNORED_SETTINGS}
    unsupported = {name: settings[name] for name in sorted(unknown) if settings[name]}
    if config.bias != "none":
        unsupported["bias"] = config.bias
    if config.init_lora_weights not in SUPPORTED_INITS:
        unsupported["init_lora_weights"] = config.init_lora_weights
    if unsupported:
        listed = ", ".join(f"{name} = {value!r}" for name, value in unsupported.items())
        raise ConfigError(
            f"the adapter has {listed}; expected a plain LoRA of linear layers: train it without this, or merge it "
            "into the model with PEFT and load the merged model"
        )
    if min([config.r, *config.rank_pattern.values()]) < 1:
        raise ConfigError(f"the adapter's ranks are {config.r} and {config.rank_pattern}; expected 1 or more")
    return config


def projections(model: Any) -> dict[Projection, list[str]]:
    """Return the decoder's joined projections and the names of the modules that each consists of, in order."""
    names = FAMILIES[model.config.model_type]
    joined: dict[Projection, list[str]] = {}
    for i, layer in enumerate(model.model.layers):
        if hasattr(layer, "conv"):
            modules = {"conv_in": ["conv.in_proj"], "conv_out": ["conv.out_proj"]}
        else:
            qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
            modules = {"qkv": qkv, "out": [f"self_attn.{names.out}"]}
        modules["gate_up"] = [f"{names.mlp}.{names.gate}", f"{names.mlp}.{names.up}"]
        modules["down"] = [f"{names.mlp}.{names.down}"]
        for kind, module_names in modules.items():
            joined[i, kind] = [f"model.layers.{i}.{name}" for name in module_names]
    return joined


def _parts(model: Any, weights: PeftWeights) -> dict[str, LowRank]:
    config = _check_config(weights.config)
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in weights.tensors.items():
        match = re.fullmatch(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)\.weight", key)
        if match is None:
            raise ConfigError(
                f"the adapter has a tensor '{key}'; expected MODULE.lora_A.weight and MODULE.lora_B.weight alone: biases, "
                "embeddings and whole modules are not supported"
            )
        pairs.setdefault(match[1], {})[match[2]] = tensor
    modules = set(chain.from_iterable(projections(model).values()))
    for name in pairs:
        if name not in modules:
            listed = ", ".join(sorted({module.rpartition(".")[2] for module in modules}))
            raise ConfigError(
                f"the adapter changes '{name}', which is not a projection of this model's layers; expected one of {listed}, in "
                f"layers 0 to {len(model.model.layers) - 1}: is it an adapter of another model?"
            )
    _check_targets(config.target_modules, list(pairs), [name for name, _ in model.named_modules()])
    return {name: _low_rank(model.get_submodule(name).weight, name, pair, config) for name, pair in pairs.items()}


def _check_targets(targets: list[str] | str, modules: Sequence[str], model_modules: Sequence[str]) -> None:
    """Check that the settings name exactly the modules with tensors; if not, the files are from different adapters.

    Targets that no module of the model matches are fine: with a list for several families, PEFT ignores them, too.

    Args:
        modules: Modules with tensors.
        model_modules: All modules of the model.
    """

    def matches_any(target: str, names: Sequence[str]) -> bool:
        return any(name == target or name.endswith(f".{target}") for name in names)

    if isinstance(targets, str):
        pattern = ".*" if targets == "all-linear" else targets
        unnamed = [module for module in modules if not re.fullmatch(pattern, module)]
        missing = [] if modules else [targets]
    else:
        endings = tuple(f".{target}" for target in targets)
        unnamed = [module for module in modules if not f".{module}".endswith(endings)]
        applicable = [target for target in targets if matches_any(target, model_modules)]
        missing = [target for target in applicable if not matches_any(target, modules)]
    if unnamed:
        raise ConfigError(
            f"the adapter has tensors of '{unnamed[0]}', which target_modules {targets} does not name; expected {CONFIG} and "
            f"{TENSORS} of one adapter"
        )
    if missing:
        raise ConfigError(
            f"the adapter has no tensors for {missing[:5]} of its target_modules; expected {CONFIG} and {TENSORS} of one adapter"
        )


def _low_rank(weight: torch.Tensor, name: str, pair: Mapping[str, torch.Tensor], config: _Config) -> LowRank:
    missing = {"A", "B"} - pair.keys()
    if missing:
        raise ConfigError(f"the adapter has no {name}.lora_{missing.pop()}.weight; expected both lora_A and lora_B")
    rank, (outputs, inputs) = config.rank(name), weight.shape
    shape_a, shape_b = tuple(pair["A"].shape), tuple(pair["B"].shape)
    if (shape_a, shape_b) != ((rank, inputs), (outputs, rank)):
        raise ConfigError(
            f"the adapter's lora_A and lora_B of '{name}' have the shapes {shape_a} and {shape_b}; expected "
            f"{(rank, inputs)} and {(outputs, rank)} for this model and r = {rank}: is it an adapter of another model?"
        )
    # Scaled in fp32, rounded once: a bf16 product would be rounded twice. A is copied: the caller may continue to train it.
    b = pair["B"].detach().float() * config.scale(name)
    a = pair["A"].detach().to(weight.device, weight.dtype, copy=True)
    return LowRank(a, b.to(weight.device, weight.dtype))


def _joined(
    model: Any, parts: Mapping[str, LowRank], paired: Callable[[torch.Tensor], torch.Tensor]
) -> dict[Projection, LowRank]:
    """Join the changes of every joined projection: A matrices stacked, B matrices block-diagonal."""
    joined = {}
    for projection, names in projections(model).items():
        changes = [parts[name] for name in names if name in parts]
        if not changes:
            continue
        a = torch.cat([change.a for change in changes])
        sizes = [model.get_submodule(name).weight.shape[0] for name in names]
        b = a.new_zeros(sum(sizes), len(a))
        row = column = 0
        for name, size in zip(names, sizes, strict=True):
            if name in parts:
                block = parts[name].b
                rank = block.shape[1]
                # The decoder has the halves of rotated heads interleaved, so the adapter's outputs must be, too.
                is_rotated = name.endswith(("q_proj", "k_proj"))
                b[row : row + size, column : column + rank] = paired(block) if is_rotated else block
                column += rank
            row += size
        joined[projection] = LowRank(a, b)
    return joined
