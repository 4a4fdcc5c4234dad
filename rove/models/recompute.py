"""Activation checkpointing: layers whose insides are computed again in the backward pass instead of being kept for it
(Chen et al., arXiv 1604.06174).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rove.core.errors import ConfigError


def checkpointed_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a transformers model whose activations need not be kept, in order.

    Raises:
        ConfigError: it has none that transformers says can be computed again.
    """
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"activation_checkpointing: no layer of a {type(model).__name__} can be computed again; turn it off"
        )
    return layers


@contextmanager
def checkpoint_activations(layers: Sequence[nn.Module]) -> Iterator[None]:
    """What these layers compute in this block with gradients, a backward pass computes again, from what went into them.

    transformers' own switch is left alone: it works in training mode only, turns off the caches of a model that samples too,
    and would be copied along with it.
    """
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
