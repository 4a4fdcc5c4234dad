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
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn.functional import linear

from rove.core.digest import ADAPTER_CONFIG as CONFIG
from rove.core.digest import ADAPTER_TENSORS as TENSORS
from rove.core.errors import ConfigError, nearest
from rove.core.plain import JsonMapping
from rove.engine.families import FAMILIES

IGNORED_SETTINGS = {
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
}
"""PEFT settings that do not change what an adapter computes once its tensors exist."""
SUPPORTED_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Initializations that leave the base weights unchanged; PiSSA and similar ones change them."""

Projection = tuple[int, str]
"""A joined projection of the decoder: layer, and "qkv", "out", "gate_up", "down", "conv_in" or "conv_out"."""
T = TypeVar("T")


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
    """[r, in]"""
    b: torch.Tensor
    """[out, r], multiplied by the scale."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] → [..., out]."""
        return linear(linear(x, self.a), self.b)


@dataclass(frozen=True, eq=False)
class Adapter:
    """A loaded adapter."""

    version: int
    """Recorded with every token sampled with it."""
    parts: Mapping[str, LowRank]
    """Changes by module name of the model."""
    joined: Mapping[Projection, LowRank]
    """Changes by projection of the decoder."""
    scope: int = field(default_factory=partial(next, count(1)))
    """Cache scope; keys and values are shared only within a scope (0: the base model)."""


class AdapterTokens(NamedTuple):
    """The tokens of a step that use one adapter."""

    adapter: Adapter
    tokens: torch.Tensor | None
    """Token indices; None: all."""

    @staticmethod
    def from_owners(owners: Iterable[tuple[Adapter | None, int]], device: torch.device) -> list[AdapterTokens]:
        """Group the tokens of a step by adapter, given (adapter, number of tokens) in order."""
        places: dict[Adapter, list[int]] = {}
        total = 0
        for adapter, size in owners:
            if adapter is not None:
                places.setdefault(adapter, []).extend(range(total, total + size))
            total += size
        return [
            AdapterTokens(adapter, None if len(own) == total else torch.tensor(own, device=device))
            for adapter, own in places.items()
        ]


def adapt(y: torch.Tensor, x: torch.Tensor, adapted: Sequence[AdapterTokens], place: Projection) -> torch.Tensor:
    """Add to the outputs y [N, out] of a joined projection of x [N, in], in place, what the adapters of the tokens change."""
    for adapter, tokens in adapted:
        change = adapter.joined.get(place)
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
        model.get_submodule(name).register_forward_hook(lambda _, given, y, part=part: y + part(given[0]))
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
        version: Recorded with every token sampled with it.
    """
    given = source if isinstance(source, PeftWeights) else read_folder(source)
    try:
        parts = _parts(model, given)
    except re.error as error:
        raise ConfigError(f"the adapter's {CONFIG} has an invalid pattern: {error}") from error
    return Adapter(version, parts, _joined(model, parts, paired))


def find_adapter(adapters: Mapping[str, Adapter], name: str) -> Adapter:
    """Return the adapter of this name."""
    if name not in adapters:
        raise ConfigError(f"no adapter '{name}' is loaded; {nearest(name, adapters)}. Load it with load_adapter")
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
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
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
        """Return the rank of A and B."""
        return _by_pattern(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """Return the factor of the product of A and B."""
        rank = self.rank(module)
        return _by_pattern(self.alpha_pattern, module, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def _by_pattern(patterns: Mapping[str, T], module: str, default: T) -> T:
    """Return the value of the first pattern that matches the end of a module's name, as PEFT does."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _check_config(given: object) -> _Config:
    if not isinstance(given, Mapping):
        raise ConfigError(f"the adapter's {CONFIG} holds {type(given).__name__}; expected a JSON object")
    settings = {name: value for name, value in given.items() if value is not None}
    if settings.get("peft_type") != "LORA":
        raise ConfigError(f"the adapter's peft_type is {settings.get('peft_type')!r}; expected 'LORA'")
    try:
        config = msgspec.convert(settings, _Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the adapter's {CONFIG}: {error}; expected the settings that PEFT writes") from error
    more = {
        name: settings[name]
        for name in sorted(settings.keys() - {*_Config.__struct_fields__, *IGNORED_SETTINGS})
        if settings[name]
    }
    if config.bias != "none":
        more["bias"] = config.bias
    if config.init_lora_weights not in SUPPORTED_INITS:
        more["init_lora_weights"] = config.init_lora_weights
    if more:
        unsupported = ", ".join(f"{name} = {value!r}" for name, value in more.items())
        raise ConfigError(
            f"the adapter has {unsupported}; expected a plain LoRA of linear layers: train it without this, or merge it "
            "into the model with PEFT and load the merged model"
        )
    if min([config.r, *config.rank_pattern.values()]) < 1:
        raise ConfigError(f"the adapter's ranks are {config.r} and {config.rank_pattern}; expected 1 or more")
    return config


def projections(model: Any) -> dict[Projection, list[str]]:
    """Return the decoder's joined projections and the names of the modules that each consists of, in order."""
    names = FAMILIES[model.config.model_type]
    places: dict[Projection, list[str]] = {}
    for i, layer in enumerate(model.model.layers):
        if hasattr(layer, "conv"):
            inside = {"conv_in": ["conv.in_proj"], "conv_out": ["conv.out_proj"]}
        else:
            queries = [f"self_attn.{letter}_proj" for letter in "qkv"]
            inside = {"qkv": queries, "out": [f"self_attn.{names.out}"]}
        inside["gate_up"] = [f"{names.mlp}.{names.gate}", f"{names.mlp}.{names.up}"]
        inside["down"] = [f"{names.mlp}.{names.down}"]
        places |= {(i, kind): [f"model.layers.{i}.{name}" for name in own] for kind, own in inside.items()}
    return places


def _parts(model: Any, given: PeftWeights) -> dict[str, LowRank]:
    config = _check_config(given.config)
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in given.tensors.items():
        found = re.fullmatch(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)\.weight", key)
        if found is None:
            raise ConfigError(
                f"the adapter has a tensor '{key}'; expected MODULE.lora_A.weight and MODULE.lora_B.weight alone: biases, "
                "embeddings and whole modules are not supported"
            )
        pairs.setdefault(found[1], {})[found[2]] = tensor
    modules = [name for own in projections(model).values() for name in own]
    for name in pairs:
        if name not in modules:
            can = ", ".join(sorted({module.rpartition(".")[2] for module in modules}))
            raise ConfigError(
                f"the adapter changes '{name}', which is not a projection of this model's layers; expected one of {can}, in "
                f"layers 0 to {len(model.model.layers) - 1}: is it an adapter of another model?"
            )
    _check_targets(config.target_modules, list(pairs))
    return {name: _low_rank(model.get_submodule(name).weight, name, pair, config) for name, pair in pairs.items()}


def _check_targets(targets: list[str] | str, modules: Sequence[str]) -> None:
    """Check that the modules with tensors are those named in the settings; otherwise the files belong to different adapters."""

    def matches(target: str, module: str) -> bool:
        return module == target or module.endswith(f".{target}")

    if isinstance(targets, str):
        outside = [m for m in modules if targets != "all-linear" and not re.fullmatch(targets, m)]
        empty = [] if modules else [targets]
    else:
        outside = [m for m in modules if not any(matches(target, m) for target in targets)]
        empty = [target for target in targets if not any(matches(target, m) for m in modules)]
    if outside:
        raise ConfigError(
            f"the adapter has tensors of '{outside[0]}', which target_modules {targets} does not name; expected {CONFIG} and "
            f"{TENSORS} of one adapter"
        )
    if empty:
        raise ConfigError(
            f"the adapter has no tensors for {empty[:5]} of its target_modules; expected {CONFIG} and {TENSORS} of one adapter"
        )


def _low_rank(weight: torch.Tensor, name: str, pair: Mapping[str, torch.Tensor], config: _Config) -> LowRank:
    missing = {"A", "B"} - pair.keys()
    if missing:
        raise ConfigError(f"the adapter has no {name}.lora_{missing.pop()}.weight; expected both lora_A and lora_B")
    rank, (out, into) = config.rank(name), weight.shape
    got, wanted = [tuple(pair[letter].shape) for letter in "AB"], [(rank, into), (out, rank)]
    if got != wanted:
        raise ConfigError(
            f"the adapter's lora_A and lora_B of '{name}' have the shapes {got[0]} and {got[1]}; expected {wanted[0]} and "
            f"{wanted[1]} for this model and r = {rank}: is it an adapter of another model?"
        )
    b = pair["B"].detach().float() * config.scale(name)
    a = (
        pair["A"].detach().to(weight.device, weight.dtype, copy=True)
    )  # copy: the caller may continue to train this tensor
    return LowRank(a, b.to(weight.device, weight.dtype))


def _joined(
    model: Any, parts: Mapping[str, LowRank], paired: Callable[[torch.Tensor], torch.Tensor]
) -> dict[Projection, LowRank]:
    """Join the changes of every joined projection: A matrices stacked, B matrices block-diagonal."""
    made = {}
    for place, names in projections(model).items():
        own = [parts[name] for name in names if name in parts]
        if not own:
            continue
        a = torch.cat([part.a for part in own])
        sizes = [model.get_submodule(name).weight.shape[0] for name in names]
        b = a.new_zeros(sum(sizes), len(a))
        row = column = 0
        for name, size in zip(names, sizes, strict=True):
            if name in parts:
                block = parts[name].b
                turns = name.endswith(("q_proj", "k_proj"))
                b[row : row + size, column : column + block.shape[1]] = paired(block) if turns else block
                column += block.shape[1]
            row += size
        made[place] = LowRank(a, b)
    return made
