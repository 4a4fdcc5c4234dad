"""Memory, time and disk that a training run needs, measured on one micro-batch where possible."""

from __future__ import annotations

import mmap
import random
import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rove.core.findings import HIGH, MEDIUM, OK, Finding, Severity
from rove.engine import decoder
from rove.engine.engine import default_cache_bytes
from rove.engine.kv_cache import values_per_position
from rove.models.bf16_layers import mixed_precision
from rove.models.bf16_layers import supports as supports_bf16_layers
from rove.models.linear import has_bf16_products
from rove.models.load import LoadedModel, checkpoint_activations, checkpointed_layers
from rove.train.batch import Batch, can_pack, micro_batches
from rove.train.config import RLConfig, TrainingConfig
from rove.train.sequences import TrainingSequence
from rove.train.trainer import MAX_LOGITS_BYTES, scores_natively, token_logprobs
from rove.utils.systems import physical_memory
from rove.utils.units import human_bytes, human_seconds

ADAM_TENSORS = 2
"""Number of tensors that AdamW stores per trained weight."""
BACKWARD_FACTOR = 1.2
"""Peak memory of a backward pass relative to its saved tensors: gradients are allocated before the saved tensors are freed."""
LOGITS_FACTOR = 2
"""Number of tensors of the size of a micro-batch's logits that exist while PyTorch scores the micro-batch."""
CACHE_FACTOR = 2
"""Size of the key-value cache relative to the tokens of a step's rollouts: rows are padded and copied."""
LAZY_BYTES = 150e6
"""Bytes of libraries that are loaded and initialized only when the model runs: 120 MB of code, and buffers of oneDNN."""
UNCERTAINTY = 1.2
"""Factor by which memory estimates may be wrong."""
SYNTHETIC_TOKENS = 512
"""Number of tokens in a synthetic micro-batch."""
LONG_RUN_S = 24 * 3600.0
"""Duration of a run in seconds above which the doctor warns."""
MAX_DRIFT = 0.05
"""Maximum difference in nats between the log-probabilities of the sampler and the trainer."""
MAX_BF16_DRIFT = 1.0
"""Maximum difference if matrix products are computed in bf16."""
NAMED_PARTS = 3
"""Number of the largest parts of the memory that are named; the other parts are added up."""


class Trial(NamedTuple):
    """Measurements of one forward and backward pass."""

    tokens: int
    """Tokens in the micro-batch, padding included."""
    seconds: float
    saved: int
    """Bytes that the layers save for the backward pass, without the logits."""
    rows: int
    """Number of positions whose logits are computed."""
    drift: float | None
    """Largest difference in nats between the log-probs of the sampler and the trainer; None if nothing was sampled."""


def try_training(config: TrainingConfig, loaded: LoadedModel, samples: Sequence[TrainingSequence] = ()) -> Trial:
    """Run a forward and backward pass over the samples' largest micro-batch, or over a synthetic one; change no weights."""
    model, sampled = loaded.model, bool(samples)
    if not sampled:
        rng = random.Random(0)
        context = int(getattr(model.config, "max_position_embeddings", SYNTHETIC_TOKENS))
        count = min(SYNTHETIC_TOKENS, config.micro_batch_tokens, context)
        ids = [rng.randrange(model.config.vocab_size) for _ in range(count)]
        mask = [position > 0 for position in range(count)]
        samples = [TrainingSequence(ids, mask, [0.0] * count, [1.0] * count)]
    batches = micro_batches(samples, config.micro_batch_tokens, model.device, can_pack(model))
    batch = max(batches, key=lambda candidate: candidate.ids.numel())
    # While a layer is recomputed, all its activations are in memory: so are those of the last layer here.
    recomputed = checkpointed_layers(model)[:-1] if config.activation_checkpointing else []
    with mixed_precision(model) if config.mixed_precision else nullcontext():
        saved, logprobs = _pass(model, batch, recomputed)
        started = time.perf_counter()
        _pass(model, batch, recomputed)  # the first pass includes one-time setup
    seconds = time.perf_counter() - started
    drift = None
    if sampled and len(logprobs):
        drift = (logprobs - batch.logprobs).abs().max().item()
    return Trial(batch.ids.numel(), seconds, saved, len(batch.predicting), drift)


def _pass(model: Any, batch: Batch, recomputed: Sequence[torch.nn.Module]) -> tuple[int, torch.Tensor]:
    """Run one forward and backward pass; return the bytes that layers save for it, and the log-probabilities."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    weight_shapes: set[tuple[int, ...]] = set()
    if torch.is_autocast_enabled(model.device.type):
        weight_shapes = {tuple(sorted(p.shape)) for p in model.parameters() if p.ndim > 1}
    storages: dict[int, int] = {}
    vocabulary = model.get_output_embeddings().weight.shape[0]

    def record_storage(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # Under autocast, copies of the weights are saved; they do not grow with the tokens.
        is_copy = tensor.dtype == torch.bfloat16 and tuple(sorted(tensor.shape)) in weight_shapes
        is_logits = tensor.shape[-1:] == (vocabulary,)  # `_logits_bytes` counts them
        if storage.data_ptr() not in weights and not is_copy and not is_logits:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    try:
        with (
            torch.autograd.graph.saved_tensors_hooks(record_storage, lambda tensor: tensor),
            checkpoint_activations(recomputed),
        ):
            logprobs, _ = token_logprobs(model, batch)
        saved = sum(storages.values())  # before any of it is freed
        (-logprobs.mean()).backward()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
    finally:
        model.zero_grad(set_to_none=True)
    return saved, logprobs.detach()


def computed_tokens(micro_batch_tokens: int, loaded: LoadedModel, sequences: Sequence[TrainingSequence]) -> int:
    """Return the number of tokens that training on these sequences computes; common prefixes count once."""
    batches = micro_batches(sequences, micro_batch_tokens, pack=can_pack(loaded.model))
    return sum(batch.ids.numel() for batch in batches)


def check_drift(trial: Trial, in_bf16: bool = False) -> Finding:
    """Check whether sampler and trainer compute the same probabilities of the sampled tokens.

    Args:
        in_bf16: Whether settings let the trainer or the sampler compute in bf16.
    """
    drift = trial.drift or 0.0
    difference = f"log-probs differ by at most {drift:.1g}"
    if not drift <= (MAX_BF16_DRIFT if in_bf16 else MAX_DRIFT):  # NaN fails too
        return Finding("logprob_mismatch", difference)
    if in_bf16:
        return Finding(
            "logprob_mismatch", difference, OK, "usual in bf16; the importance ratio of the loss corrects it"
        )
    return Finding("logprob_mismatch", difference, OK)


def memory_needed(
    config: RLConfig, loaded: LoadedModel, trial: Trial, longest: int, tokens: int | None = None, libraries: int = 0
) -> dict[str, float]:
    """Return the bytes that a run needs at its peak, by purpose.

    A synchronous run alternates between sampling and training, and frees the memory of each phase before the next one. The peak
    is in one of the two phases, and what only the other phase needs counts as 0.

    Args:
        loaded: The model, with its adapter if one is trained.
        tokens: Computed tokens of a training step. Default: enough to fill a micro-batch.
    """
    filled = max(config.micro_batch_tokens, longest)
    if tokens:
        filled = min(filled, tokens)
    weights = list(loaded.model.parameters())
    size = sum(p.nbytes for p in weights)
    trained = sum(p.nbytes for p in weights if p.requires_grad)  # with LoRA, the adapter only
    in_bf16 = config.bf16_sampling and has_bf16_products(loaded.model.device)
    own_weights = trained if config.max_off_policy_steps > 0 else 0
    keys_and_values = CACHE_FACTOR * config.batch_size * longest * position_bytes(loaded.model)
    # The decoder joins projections into its own copies of the weights.
    joined = size if decoder.supports(loaded.model) else 0
    sampling = {
        "joined weights": joined / 2 if in_bf16 else float(joined),
        "keys and values": min(float(default_cache_bytes(loaded.model.device)), keys_and_values),
    }
    # On CPUs, only some models keep bf16 copies of their weights; on GPUs, autocast makes them (docs/decisions/bf16_training.md).
    copies_weights = supports_bf16_layers(loaded.model) or loaded.model.device.type == "cuda"
    training = {
        "gradients": float(trained),
        "activations": BACKWARD_FACTOR * trial.saved / trial.tokens * filled,
        "logits": _logits_bytes(loaded.model, filled, filled * trial.rows / trial.tokens),
        "buffers of the output head": _head_buffers(loaded.model),
        "bf16 copies of the weights": size / 2 if config.mixed_precision and copies_weights else 0.0,
    }
    if config.max_off_policy_steps == 0:
        if sum(sampling.values()) <= sum(training.values()):
            sampling = dict.fromkeys(sampling, 0.0)
        else:
            training = dict.fromkeys(training, 0.0)
    return {
        "Python and its libraries": libraries + LAZY_BYTES if libraries else 0.0,
        "weights": float(size),
        "sampler's weights": size / 2 if in_bf16 else float(own_weights),
        "reference model": float(trained) if config.loss.kl_penalty else 0.0,
        "AdamW": float(ADAM_TENSORS * trained),
        **sampling,
        **training,
    }


def _logits_bytes(model: Any, tokens: float, rows: float) -> float:
    """Return the bytes of logits and tensors of their size for a micro-batch whose `rows` positions are scored."""
    head = model.get_output_embeddings()
    vocabulary = head.weight.shape[0]
    if not can_pack(model):  # computes the logits of all positions, then selects those of trained tokens
        return 4.0 * LOGITS_FACTOR * vocabulary * (tokens + rows)
    if not scores_natively(head):
        return LOGITS_FACTOR * min(MAX_LOGITS_BYTES / 2, 4.0 * vocabulary * rows)
    forward_bytes = head.forward_dtype.itemsize
    converted = 0.0
    if head.backward_dtype != head.forward_dtype:  # the backward pass converts the logits
        converted = head.backward_dtype.itemsize / forward_bytes
    return (1 + converted) * min(MAX_LOGITS_BYTES, forward_bytes * vocabulary * rows)


def _head_buffers(model: Any) -> float:
    """Return the bytes of the copies of the output head that a micro-batch needs.

    A matrix product packs the weight. A trained weight's gradient is computed whole before it is added to the gradients of
    earlier micro-batches; the gradient of a tied embedding is computed separately.
    """
    head = model.get_output_embeddings().weight
    embedding = model.get_input_embeddings().weight
    copies = 2 if head is embedding and head.requires_grad else 1
    return float(head.nbytes * copies)


def position_bytes(model: Any) -> int:
    """Return the size of the keys and values of one token in bytes."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    num_attention_layers = sum(kind != "conv" for kind in kinds)  # convolutions keep no keys and values
    return values_per_position(config) * num_attention_layers * model.dtype.itemsize


def resident_memory() -> int:
    """Return the bytes of memory that this process uses now; 0 if /proc is unavailable."""
    lines = _lines("/proc/self/statm")
    return int(lines[0].split()[1]) * mmap.PAGESIZE if lines else 0


def memory_free(device: torch.device) -> int | None:
    """Return the free memory of the model's device in bytes; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free.append(1024 * int(line.split()[1]))
    limit = _lines("/sys/fs/cgroup/memory.max")
    used = _lines("/sys/fs/cgroup/memory.current")
    if limit and used and limit[0].isdigit():
        free.append(int(limit[0]) - int(used[0]))
    return min(free, default=physical_memory())


def check_memory(needed: dict[str, float], free: int | None) -> Finding:
    """Check whether a run fits into memory; loaded weights count as free."""
    total = sum(needed.values())
    largest = sorted(needed, key=lambda name: -needed[name])[:NAMED_PARTS]
    named_sizes = {name: needed[name] for name in largest}
    named_sizes["other"] = total - sum(named_sizes.values())
    parts = ", ".join(f"{name} {human_bytes(size)}" for name, size in named_sizes.items() if size > 0.005 * total)
    if free is None:
        return Finding("memory", f"about {human_bytes(total)} ({parts})", OK)
    available = free + needed["weights"] + needed.get("Python and its libraries", 0)
    usage = f"about {human_bytes(total)} ({parts}) of {human_bytes(available)} free"
    return Finding("memory", usage, _severity(total, available))


def check_time(steps: int, checkpoint_every: int, sampling: float, training: float) -> Finding:
    """Estimate the duration of a run from the seconds of sampling and training per step."""
    step = sampling + training
    duration = (
        f"about {human_seconds(step)} per step ({human_seconds(sampling)} sampling), "
        f"{human_seconds(step * steps)} in total"
    )
    if step * steps > LONG_RUN_S:
        return Finding("time", duration)
    if step * checkpoint_every > 3600:
        duration += f"; an interruption may cost {human_seconds(step * checkpoint_every)}"
        return Finding("time", duration, remedy="lower checkpoint_every")
    return Finding("time", duration, OK, "more if rollouts become longer during training")


def check_disk(config: RLConfig, needed: dict[str, float], rollout_bytes: float, folder: Path) -> Finding:
    """Check whether checkpoints and rollouts fit on the disk of `folder`."""
    while not folder.exists():
        folder = folder.parent
    saved = needed["AdamW"] / ADAM_TENSORS  # the size of the trained weights
    checkpoint = saved + needed["AdamW"]
    if config.loss.sync_reference_every is not None:
        checkpoint += needed["reference model"]
    # A new checkpoint is written before the oldest is deleted; the final weights are written at the end.
    checkpoints = checkpoint * (config.keep_checkpoints + 1) + saved
    rollouts = rollout_bytes * config.batch_size * config.steps
    free = shutil.disk_usage(folder).free
    parts = f"checkpoints {human_bytes(checkpoints)}"
    if rollouts:
        parts += f", rollouts {human_bytes(rollouts)}"
    usage = f"{parts}; {human_bytes(free)} free"
    return Finding("disk", usage, _severity(checkpoints + rollouts, free, certain=1.0))


def _severity(needed: float, available: float, certain: float = UNCERTAINTY) -> Severity:
    """Return the severity of needing `needed` bytes; the check fails if they exceed `certain` times the available bytes."""
    if needed > certain * available:
        return HIGH
    return MEDIUM if UNCERTAINTY * needed > available else OK


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
