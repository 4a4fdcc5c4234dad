"""One optimizer step over micro-batches, for SFT and RL.

Axes: M trained tokens, R positions that predict them, V vocabulary.
"""

# Many functions of torch have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from inspect import signature
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from rove.core.errors import Error, RunError
from rove.models.bf16_layers import mixed_precision
from rove.models.kernels import pointers, run_rows, softmax_kernels
from rove.models.linear import FastLinear, fast_product, use_fast_linear
from rove.models.load import (
    LoadedModel,
    checkpoint_activations,
    checkpointed_layers,
    clone_model,
    default_threads,
    is_large,
)
from rove.runs.run import Run
from rove.train.batch import Batch
from rove.train.callbacks import OnProgress, counted, ignore
from rove.train.config import TrainingConfig
from rove.train.losses import Loss, LossTokens, clipped_tokens
from rove.train.sequences import TrainingSequence
from rove.train.sharding import full_tensor, is_sharded, shard_model
from rove.train.worker_group import SINGLE_PROCESS, Ranks
from rove.utils.processes import keep_freed_memory

FILE = "bad_batch.msgpack"
SKIPPED_METRIC = "optim/skipped"
"""Metric that is 1 for a skipped step, else 0."""


class NonFiniteBatch(msgspec.Struct, frozen=True):
    """The batch with a non-finite loss or gradient at which training stopped."""

    step: int
    reason: str
    samples: list[TrainingSequence]


def consecutive_skips(history: Sequence[Mapping[str, float]]) -> int:
    """Return the number of skipped steps at the end of the history; steps without training data do not count."""
    tried = [row[SKIPPED_METRIC] for row in history if SKIPPED_METRIC in row]
    return sum(1 for _ in takewhile(bool, reversed(tried)))


def step_unless_non_finite(
    train: Callable[[], dict[str, float]],
    samples: Sequence[TrainingSequence],
    run: Run,
    history: Sequence[Mapping[str, float]],
    most: int,
) -> dict[str, float]:
    """Return the metrics of `train`, or only the skip metric if the step had to be skipped.

    Args:
        train: Function that takes the step, or raises TrainingError and leaves weights and optimizer unchanged.
        run: Run folder, where the last batch is saved if training stops.
    """
    try:
        # 0 is written too: a resumed run counts the steps that were skipped last from its metrics.
        return {**train(), SKIPPED_METRIC: 0.0}
    except TrainingError as error:
        skipped = consecutive_skips(history) + 1
        if skipped < most:
            return {SKIPPED_METRIC: 1.0}
        step = int(history[-1]["step"]) + 1 if history else 1
        run.write_bytes(FILE, msgspec.msgpack.encode(NonFiniteBatch(step, str(error), list(samples))))
        raise TrainingError(
            f"step {step}: {error}. Training stops after {skipped} skipped steps in a row (max_non_finite_steps = {most}); "
            f"the last batch is in {run.path / FILE}. Lower the learning rate, or look for rewards and log-probabilities in "
            "the batch that are not numbers"
        ) from error


def read_non_finite_batch(path: str | Path) -> NonFiniteBatch:
    """Return the batch at which a run stopped."""
    file = Path(path) / FILE
    if not file.exists():
        raise RunError(f"{path} has no {FILE}: training did not stop at a step that is not finite")
    return msgspec.msgpack.decode(file.read_bytes(), type=NonFiniteBatch)


MAX_LOGITS_BYTES = 1 << 28
"""Maximum memory for the logits of a packed batch at any time, and for the tensors that are computed from the logits of a padded
batch."""
_AUTOGRAD_BYTES = 8
"""Bytes per logit of `_gather_logprobs`: autograd keeps more than one fp32 tensor of the size of the logits."""
LARGE_VOCABULARY = 4096
"""Minimum size of a vocabulary for `_TokenScores`. Logits of a smaller vocabulary cost little; autograd scores them, so that
older runs resume bit for bit."""
BETAS = (0.9, 0.95)
"""Decay rates of AdamW's moments. As is usual for language models, the second is lower than PyTorch's 0.999."""
MAXIMA = ("ratio_max", "difference_max")
SUMS: tuple[str, ...] = ("tokens", "loss", "entropy", "ratio", "kl", "clipped", *MAXIMA)
OnBatch = Callable[[Batch, torch.Tensor, torch.Tensor], None]
"""Called with each batch and the log-probabilities and entropies [M] of its trained tokens."""


class TrainingError(Error):
    """Training cannot continue: the loss or the gradient is not finite."""


def token_logprobs(model: Any, batch: Batch, entropy_gradient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies of the trained tokens at the sampling temperature, both [M] in fp32.

    Without `entropy_gradient` the entropy is only measured, so several [R, V] tensors are not kept for the backward
    pass. A sharded model gathers its weights for this function, as it does for its own methods.
    """
    if is_sharded(model):
        return model.score(batch, entropy_gradient)
    return _score(model, batch, entropy_gradient)


def _score(model: Any, batch: Batch, entropy_gradient: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if batch.packing is None:
        logits = _padded_logits(model, batch)
        gather = partial(_gather_logprobs, entropy_gradient=entropy_gradient)
        return _in_chunks(gather, logits, batch, _AUTOGRAD_BYTES * logits.shape[1])
    # Only the logits of trained tokens are computed: with a large vocabulary, each takes far more memory than a hidden state.
    output = model.model(input_ids=batch.ids, position_ids=batch.positions, use_cache=False, packing=batch.packing)
    hidden = output.last_hidden_state[0].index_select(0, batch.predicting)
    return _score_in_chunks(model.lm_head, hidden, batch, entropy_gradient)


def _padded_logits(model: Any, batch: Batch) -> torch.Tensor:
    """Return the logits [R, V] that predict the trained tokens of a padded batch."""
    all_logits_bytes = 4 * batch.ids.numel() * model.config.get_text_config().vocab_size
    # Smaller batches compute all logits, so that older runs resume bit for bit: a product's rounding depends on its rows.
    is_large_row = len(batch.ids) == 1 and all_logits_bytes > MAX_LOGITS_BYTES
    if is_large_row and "logits_to_keep" in signature(model.forward).parameters:
        return model(input_ids=batch.ids, use_cache=False, logits_to_keep=batch.predicting).logits[0]
    return model(input_ids=batch.ids, use_cache=False).logits.flatten(0, 1).index_select(0, batch.predicting)


@torch.no_grad()
def frozen_logprobs(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return log-probabilities [M] of the trained tokens without gradients."""
    return token_logprobs(model, batch)[0]


def _score_in_chunks(
    head: Any, hidden: torch.Tensor, batch: Batch, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies [M] as `token_logprobs` does, from hidden states [R, width].

    At most `MAX_LOGITS_BYTES` of logits are in memory: chunks are recomputed in the backward pass.
    """
    fused = scores_natively(head)

    def score_chunk(hidden: torch.Tensor, temperature: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> Any:
        if fused:
            return _TokenScores.apply(
                hidden,
                head.weight,
                temperature,
                rows,
                targets,
                entropy_gradient,
                head.forward_dtype,
                head.backward_dtype,
            )
        return _gather_logprobs(head(hidden), temperature, rows, targets, entropy_gradient)

    bytes_per_logit = head.forward_dtype.itemsize if fused else _AUTOGRAD_BYTES
    return _in_chunks(score_chunk, hidden, batch, bytes_per_logit * head.weight.shape[0])


def _in_chunks(
    score_chunk: Callable[..., Any], values: torch.Tensor, batch: Batch, row_bytes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies [M] of `score_chunk`, called with parts of the batch.

    Args:
        score_chunk: (values of some positions, their temperatures, `rows`, `targets`) → log-probabilities and entropies.
        values: [R, …] hidden states or logits.
        row_bytes: Memory that `score_chunk` needs per position. A chunk needs at most `MAX_LOGITS_BYTES`.
    """
    size = max(1, MAX_LOGITS_BYTES // row_bytes)
    if len(values) <= size:
        return score_chunk(values, batch.temperature, batch.rows, batch.targets)
    # `rows` does not decrease, so the tokens of a chunk of positions are adjacent.
    firsts = torch.arange(0, len(values), size, device=values.device)
    starts: list[int] = firsts.tolist()
    edges: list[int] = [*torch.searchsorted(batch.rows, firsts).tolist(), len(batch.rows)]
    logprobs: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    # Split instead of sliced: the gradient of each slice would have the size of all values.
    for number, (start, part) in enumerate(zip(starts, values.split(size), strict=True)):
        tokens = slice(edges[number], edges[number + 1])
        positions = slice(start, start + size)
        chunk: Any = checkpoint(
            score_chunk,
            part,
            batch.temperature[positions],
            batch.rows[tokens] - start,
            batch.targets[tokens],
            use_reentrant=False,
        )
        logprobs.append(chunk[0])
        entropies.append(chunk[1])
    return torch.cat(logprobs), torch.cat(entropies)


def scores_natively(head: torch.nn.Module) -> bool:
    """Return whether `_TokenScores` computes the log-probabilities of a language model head."""
    return (
        type(head) is FastLinear
        and head.out_features >= LARGE_VOCABULARY
        and softmax_kernels(head.forward_dtype) is not None
    )


class _TokenScores(torch.autograd.Function):
    """Compute `_gather_logprobs` of hidden [R, width] times weight [V, width] on a CPU.

    It reads the logits [R, V] less often than autograd would, and keeps only one tensor of their size, which is overwritten
    with their gradient. The product has the type `forward_dtype`; all sums are in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        temperature: torch.Tensor,
        rows: torch.Tensor,
        targets: torch.Tensor,
        entropy_gradient: bool,
        forward_dtype: torch.dtype,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = fast_product(hidden.to(forward_dtype), weight.to(forward_dtype))
        count, vocab = logits.shape
        scale = temperature.reciprocal()
        lse, entropy = torch.empty_like(scale), torch.empty_like(scale)
        library: Any = softmax_kernels(forward_dtype)
        run_rows(count, partial(library.softmax, *pointers(logits, scale, lse, entropy), vocab))
        targets_index = rows * vocab + targets
        chosen = logits.view(-1).index_select(0, targets_index).float() * scale.index_select(0, rows)
        ctx.save_for_backward(hidden, weight, scale, lse, entropy, rows, targets_index, logits)
        ctx.dtype = dtype
        ctx.library = library
        entropy = entropy.index_select(0, rows)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen - lse.index_select(0, rows), entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, scale, lse, entropy, rows, targets_index, logits = ctx.saved_tensors
        row_scale = scale.index_select(0, rows)
        grad, entropy_grad = grads[0] * row_scale, grads[1] * row_scale
        factor = -torch.zeros_like(lse).index_add_(0, rows, grad)
        slope = torch.zeros_like(lse).index_add_(0, rows, entropy_grad)
        # The target's gradient, grad * (1 - p), in fp32: the difference of two bf16 numbers would lose it where p is near 1.
        flat = logits.view(-1)
        unique: tuple[torch.Tensor, torch.Tensor] = torch.unique(targets_index, return_inverse=True)
        chosen, order = unique
        row = chosen // logits.shape[1]
        logprobs = flat[chosen].float() * scale[row] - lse[row]
        targets_grad = logprobs.exp() * (factor[row] - slope[row] * (logprobs + entropy[row]))
        targets_grad.index_add_(0, order, grad)
        # The kernel writes the gradient over the logits, which are the largest tensor here.
        arguments = pointers(logits, scale, lse, entropy, factor, slope)
        run_rows(len(lse), partial(ctx.library.softmax_gradient, *arguments, logits.shape[1]))
        flat[chosen] = targets_grad.to(logits.dtype)
        logits_grad = logits.to(ctx.dtype)
        hidden_grad = weight_grad = None
        if ctx.needs_input_grad[0]:
            hidden_grad = (logits_grad @ weight.to(ctx.dtype)).to(hidden.dtype)
        if ctx.needs_input_grad[1]:
            weight_grad = (logits_grad.t() @ hidden.to(ctx.dtype)).to(weight.dtype)
        return hidden_grad, weight_grad, None, None, None, None, None, None


def _gather_logprobs(
    logits: torch.Tensor, temperature: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    # The sampler divided by the temperature; without it, the probabilities of trainer and sampler would differ.
    logprobs = (logits.float() / temperature[:, None]).log_softmax(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    targets_index = rows * logprobs.shape[1] + targets
    return logprobs.flatten().index_select(0, targets_index), entropy.index_select(0, rows)


class Trainer:
    """A model and its optimizer (AdamW on fp32 weights).

    Args:
        learning_rate: Peak learning rate; `step` may scale it.
        mixed_precision: Compute layers in bf16, if model and device support it.
        ranks: Processes that train together; if there are several, the model is sharded.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        learning_rate: float,
        max_grad_norm: float = 1.0,
        weight_decay: float = 0.0,
        activation_checkpointing: bool = False,
        mixed_precision: bool = False,
        ranks: Ranks = SINGLE_PROCESS,
        on_progress: OnProgress = ignore,
    ):
        self.on_progress = on_progress
        self.model = model
        self.ranks = ranks
        self.mixed_precision = mixed_precision
        self.recomputed = checkpointed_layers(model) if activation_checkpointing else []
        self.learning_rate = learning_rate
        self.max_grad_norm = max_grad_norm
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Only matrices decay: the scales of norms and biases should not shrink.
        matrices = [parameter for parameter in parameters if parameter.ndim > 1]
        vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
        decayed: dict[str, Any] = {"params": matrices, "weight_decay": weight_decay}
        plain: dict[str, Any] = {"params": vectors, "weight_decay": 0.0}
        self.optimizer = torch.optim.AdamW([decayed, plain], lr=learning_rate, betas=BETAS, fused=True)

    def reset_optimizer(self) -> None:
        """Set the moments of AdamW to zero, as before the first step."""
        for state in self.optimizer.state.values():
            for moment in state.values():
                moment.zero_()

    def training_precision(self, model: torch.nn.Module) -> AbstractContextManager[object]:
        """Return a context in which a model's layers compute in this trainer's precision."""
        return mixed_precision(model) if self.mixed_precision else nullcontext()

    def accumulate(
        self,
        batches: Sequence[Batch],
        loss: Loss,
        divisor: float,
        entropy_bonus: float = 0.0,
        on_batch: OnBatch | None = None,
    ) -> dict[str, float]:
        """Add the gradient of Σ loss / `divisor` over all batches. The result does not depend on how the batches are cut or
        distributed.

        Args:
            batches: Batches of this process; every process has the same number.
            divisor: Number of trained tokens in all batches of all processes.

        Returns:
            Sums over the trained tokens of all processes.
        """
        sums = dict.fromkeys(SUMS, 0.0)
        with self.training_precision(self.model):
            for batch in counted(batches, "micro-batches", self.on_progress):
                with checkpoint_activations(self.recomputed):
                    logprobs, entropy = token_logprobs(self.model, batch, entropy_gradient=entropy_bonus != 0)
                tokens = loss_tokens(batch)
                objective = batch.weights * loss(logprobs, tokens) - entropy_bonus * entropy
                total = objective.sum() / divisor
                (total * self.ranks.size).backward()  # FSDP averages gradients over processes; the sum is needed
                sums["clipped"] += clipped_tokens(loss, logprobs.detach(), tokens).sum().item()
                if on_batch is not None:
                    on_batch(batch, logprobs.detach(), entropy.detach())
                _measure(sums, total.item() * divisor, entropy.detach(), logprobs.detach() - batch.logprobs)
        return self.ranks.total(sums, MAXIMA)

    def step(
        self,
        batches: Sequence[Batch],
        loss: Loss,
        divisor: float,
        entropy_bonus: float = 0.0,
        lr_scale: float = 1.0,
        on_batch: OnBatch | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step.

        Returns:
            `loss`, `entropy/all/mean`, `ratio/mean` and `ratio/max` (π/μ relative to the sampler), `ratio/clipped` (share of
            the tokens), `mismatch_kl/all/mean` (its k3 estimate of KL(μ‖π)), `logprob_diff/max`, `optim/grad_norm`, `optim/lr`,
            `tokens`.
        """
        # A step that was interrupted may have left gradients.
        self.optimizer.zero_grad(set_to_none=True)
        sums = self.accumulate(batches, loss, divisor, entropy_bonus, on_batch)
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)).item()
        # One step with a number that is not finite would destroy all weights and the moments of the optimizer.
        if not (math.isfinite(norm) and math.isfinite(sums["loss"])):
            # Weights and moments stay as they were, so the step can be skipped.
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainingError(f"the sum of the loss is {sums['loss']} and the gradient's norm {norm}")
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * lr_scale
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # sampling needs the memory
        tokens = max(1.0, sums["tokens"])
        return {
            "loss": sums["loss"] / tokens,
            "entropy/all/mean": sums["entropy"] / tokens,
            "ratio/mean": sums["ratio"] / tokens,
            "ratio/max": sums["ratio_max"],
            "ratio/clipped": sums["clipped"] / tokens,
            "mismatch_kl/all/mean": sums["kl"] / tokens,
            "logprob_diff/max": sums["difference_max"],
            "optim/grad_norm": norm,
            "optim/lr": self.learning_rate * lr_scale,
            "tokens": sums["tokens"],
        }

    @torch.no_grad()
    def mean_loss(self, batches: Sequence[Batch], loss: Loss) -> float:
        """Return the mean loss per trained token, without training (validation)."""
        sums = {"loss": 0.0, "tokens": 0.0}
        with self.training_precision(self.model):
            for batch in counted(batches, "validation micro-batches", self.on_progress):
                logprobs, _ = token_logprobs(self.model, batch)
                sums["loss"] += loss(logprobs, loss_tokens(batch)).sum().item()
                sums["tokens"] += len(logprobs)
        # A mean of the processes' means would weigh tokens differently.
        sums = self.ranks.total(sums)
        return sums["loss"] / max(1.0, sums["tokens"])


def make_trainer(
    config: TrainingConfig, loaded: LoadedModel, ranks: Ranks = SINGLE_PROCESS, on_progress: OnProgress = ignore
) -> Trainer:
    """Return the trainer for the settings of a run. Also set the number of threads and replace linear layers as the settings
    require.

    A single process trains the model itself; several processes train shards of a copy.
    """
    torch.set_num_threads(config.threads or default_threads(loaded.model))
    if is_large(loaded.model):
        keep_freed_memory()
    # Several processes convert in FSDP; docs/decisions/bf16_training.md is about one process.
    bf16 = config.mixed_precision and ranks.size == 1
    use_fast_linear(loaded.model, config.bf16_backward or bf16, bf16)
    return Trainer(
        shard_copy(loaded.model, ranks, config.mixed_precision),
        config.learning_rate,
        config.max_grad_norm,
        config.weight_decay,
        activation_checkpointing=config.activation_checkpointing,
        mixed_precision=bf16,
        ranks=ranks,
        on_progress=on_progress,
    )


def shard_copy(model: Any, ranks: Ranks, mixed_precision: bool = False) -> Any:
    """Return a copy of a model sharded over the processes; the model itself for a single process."""
    if ranks.size == 1:
        return model
    parts = clone_model(model)
    shard_model(parts, ranks, _score, mixed_precision)
    return parts


def loss_tokens(batch: Batch) -> LossTokens:
    """Return the inputs of a loss for a batch."""
    return LossTokens(batch.logprobs, batch.advantages, batch.sequence_index, batch.old, batch.reference)


@torch.no_grad()
def _measure(sums: dict[str, float], loss: float, entropy: torch.Tensor, difference: torch.Tensor) -> None:
    """Add a batch to the sums; `difference` [M] = log π − log μ of its trained tokens."""
    # A batch that only fills up a process has no trained token, and no maximum.
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
    """Return the factor of the learning rate: linear warmup times linear decay to `final_fraction`.

    Args:
        step: Number of the step, from 0; the decay ends at `steps` − 1.
        steps: Number of steps of the run. In a run of one step, the rate does not decay.
        final_fraction: Factor at the last step; 1 keeps the rate constant.
    """
    warmup = min(1.0, (step + 1) / max(1, warmup_steps))
    progress = min(1.0, step / max(1, steps - 1))
    return warmup * (1.0 - (1.0 - final_fraction) * progress)
