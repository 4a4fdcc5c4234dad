"""Activation checkpointing: recompute the activations of layers in the backward pass (Chen et al. 2016, arXiv 1604.06174)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rove.core.errors import ConfigError


def checkpointed_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformers model that support activation checkpointing, in order.

    Raises:
        ConfigError: There are none.
    """
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"activation_checkpointing is on, but {type(model).__name__} has no layer that supports it; turn it off"
        )
    return layers


@contextmanager
def checkpoint_activations(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Return a context in which these layers do not keep activations for the backward pass.

    transformers' own switch is not used: it works in training mode only, disables the cache of a model that also samples, and is
    copied along with the model.
    """
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
