"""One optimizer step over micro-batches, the same for SFT and RL.

Axes: B rows, T positions, N trained tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from rove.errors import Error
from rove.train.batch import Batch
from rove.train.losses import Loss

SUMS: tuple[str, ...] = ("tokens", "loss", "entropy", "ratio", "kl", "ratio_max", "difference_max")


class TrainingError(Error):
    """Training cannot go on: the loss or the gradient is not a number."""


def token_logprobs(model: Any, batch: Batch, entropy_gradient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy [N] of the batch's trained tokens, under each row's sampling temperature, in fp32.

    Without `entropy_gradient` the entropy is only measured, which keeps several [N, V] tensors out of the backward pass.
    """
    logits = model(input_ids=batch.ids, use_cache=False).logits
    target = batch.mask[:, 1:]
    temperature = batch.temperature[:, None].expand_as(target)[target]
    logprobs = (logits[:, :-1][target].float() / temperature[:, None]).log_softmax(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, batch.ids[:, 1:][target][:, None])[:, 0], entropy


class Trainer:
    """A model and its optimizer (AdamW on fp32 weights).

    Args:
        model: the model, trained in place.
        learning_rate: peak; `step` may scale it.
        max_grad_norm: the gradient's norm is cut to this.
        weight_decay: on matrices only.
        betas: of AdamW.
    """

    def __init__(
        self,
        model: Any,
        learning_rate: float,
        max_grad_norm: float = 1.0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
    ):
        self.model = model
        self.learning_rate = learning_rate
        self.max_grad_norm = max_grad_norm
        parameters = [p for p in model.parameters() if p.requires_grad]
        decayed = {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay}
        plain = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
        self.optimizer = torch.optim.AdamW([decayed, plain], lr=learning_rate, betas=betas, fused=True)

    def accumulate(
        self, batches: Sequence[Batch], loss: Loss, divisor: float, entropy_bonus: float = 0.0
    ) -> dict[str, float]:
        """Add the gradient of Σ loss / `divisor` over all batches; how they are cut does not change it.

        Returns:
            sums over the trained tokens, to be divided by their number.
        """
        sums = dict.fromkeys(SUMS, 0.0)
        for batch in batches:
            logprobs, entropy = token_logprobs(self.model, batch, entropy_gradient=entropy_bonus != 0)
            target = batch.mask[:, 1:]
            sampler, advantages = batch.logprobs[:, 1:][target], batch.advantages[:, 1:][target]
            total = (loss(logprobs, sampler, advantages) - entropy_bonus * entropy).sum() / divisor
            total.backward()
            _measure(sums, total.item() * divisor, entropy.detach(), logprobs.detach() - sampler)
        return sums

    def step(
        self, batches: Sequence[Batch], loss: Loss, divisor: float, entropy_bonus: float = 0.0, lr_scale: float = 1.0
    ) -> dict[str, float]:
        """One optimizer step.

        Returns:
            `loss`, `entropy/all/mean`, `ratio/mean` and `ratio/max` (π/μ against the sampler), `mismatch_kl/all/mean` (its k3
            estimate of KL(μ‖π)), `logprob_diff/max`, `optim/grad_norm`, `optim/lr`, `tokens`.

        Raises:
            TrainingError: the gradient is not finite; the weights are left as they were.
        """
        self.optimizer.zero_grad(set_to_none=True)
        sums = self.accumulate(batches, loss, divisor, entropy_bonus)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm).item()
        if not math.isfinite(norm):
            raise TrainingError(
                f"the gradient's norm is {norm}: lower the learning rate, or resume from an earlier checkpoint"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * lr_scale
        self.optimizer.step()
        tokens = max(1.0, sums["tokens"])
        return {
            "loss": sums["loss"] / tokens,
            "entropy/all/mean": sums["entropy"] / tokens,
            "ratio/mean": sums["ratio"] / tokens,
            "ratio/max": sums["ratio_max"],
            "mismatch_kl/all/mean": sums["kl"] / tokens,
            "logprob_diff/max": sums["difference_max"],
            "optim/grad_norm": norm,
            "optim/lr": self.learning_rate * lr_scale,
            "tokens": sums["tokens"],
        }

    @torch.no_grad()
    def mean_loss(self, batches: Sequence[Batch], loss: Loss) -> float:
        """Mean loss per trained token, without training (validation)."""
        total = tokens = 0.0
        for batch in batches:
            logprobs, _ = token_logprobs(self.model, batch)
            target = batch.mask[:, 1:]
            total += loss(logprobs, batch.logprobs[:, 1:][target], batch.advantages[:, 1:][target]).sum().item()
            tokens += len(logprobs)
        return total / max(1.0, tokens)


@torch.no_grad()
def _measure(sums: dict[str, float], loss: float, entropy: torch.Tensor, difference: torch.Tensor) -> None:
    """Add a batch to the sums; `difference` [N] = log π − log μ of its trained tokens."""
    if not len(difference):
        return
    ratio = difference.exp()
    sums["tokens"] += len(difference)
    sums["loss"] += loss
    sums["entropy"] += entropy.sum().item()
    sums["ratio"] += ratio.sum().item()
    sums["kl"] += (ratio - 1 - difference).sum().item()
    sums["ratio_max"] = max(sums["ratio_max"], ratio.max().item())
    sums["difference_max"] = max(sums["difference_max"], difference.abs().max().item())


def lr_scale(step: int, steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Factor of the learning rate: a linear rise to 1, and a linear fall to `final_fraction` at the last step."""
    warm = min(1.0, (step + 1) / max(1, warmup_steps))
    return warm * (1 - (1 - final_fraction) * step / steps)
