"""What a training run takes of the machine: memory, time and disk, measured on one micro-batch where that can be."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rove.doctor.findings import FAIL, OK, WARN, Finding, human_bytes, human_seconds
from rove.engine import decoder
from rove.engine.engine import CACHE_BYTES
from rove.models.load import LoadedModel
from rove.models.recompute import checkpoint_activations, checkpointed_layers
from rove.train.batch import Batch, can_pack, micro_batches
from rove.train.config import RLConfig
from rove.train.sequences import TrainingSequence
from rove.train.trainer import token_logprobs

ADAM = 2
"""Tensors AdamW keeps beside each trained weight."""
BACKWARD = 1.5
"""What a backward pass holds at most, measured by what was kept for it: gradients come before all of that is freed."""
KEPT = 2
"""Room for keys and values, measured by those of a step's rollouts: rows are larger than what is in them, and are copied."""
UNSURE = 1.2
"""Memory estimates may be this much too high or too low."""
PROBE = 512
"""Tokens of a made-up micro-batch."""
LONG = 24 * 3600.0
"""Seconds of a run above which it is worth a second thought."""
DRIFT = 0.05
"""Nats between the log-probs of sampler and trainer."""


class Trial(NamedTuple):
    """One micro-batch, trained for a try."""

    tokens: int
    """Computed."""
    seconds: float
    saved: int
    """Bytes kept for its backward pass."""
    drift: float | None
    """Largest difference in nats between the log-probs of the sampler and the trainer; None if nothing was sampled."""


def try_training(config: RLConfig, loaded: LoadedModel, samples: Sequence[TrainingSequence] = ()) -> Trial:
    """Forward and backward pass over the largest micro-batch of these samples, or of a made-up one; no weight changes."""
    model, sampled = loaded.model, bool(samples)
    if not sampled:
        rng = random.Random(0)
        count = min(PROBE, config.micro_batch_tokens, int(getattr(model.config, "max_position_embeddings", PROBE)))
        ids = [rng.randrange(model.config.vocab_size) for _ in range(count)]
        mask = [place > 0 for place in range(count)]
        samples = [TrainingSequence(ids, mask, [0.0] * count, [1.0] * count)]
    batches = micro_batches(samples, config.micro_batch_tokens, model.device, can_pack(model))
    batch = max(batches, key=lambda one: one.ids.numel())
    # While a layer is computed again its activations are there in full: so are those of the last one here.
    again = checkpointed_layers(model)[:-1] if config.activation_checkpointing else []
    saved, logprobs = _pass(model, batch, again)
    started = time.perf_counter()
    _pass(model, batch, again)  # again: the first time much is set up
    seconds = time.perf_counter() - started
    drift = (logprobs - batch.logprobs).abs().max().item() if sampled and len(logprobs) else None
    return Trial(batch.ids.numel(), seconds, saved, drift)


def _pass(model: Any, batch: Batch, again: Sequence[torch.nn.Module]) -> tuple[int, torch.Tensor]:
    """Bytes kept for the backward pass and log-probs of one forward and backward pass, some layers computed `again` in it."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), checkpoint_activations(again):
            logprobs, _ = token_logprobs(model, batch)
        saved = sum(kept.values())  # before any of it is freed
        (-logprobs.mean()).backward()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
    finally:
        model.zero_grad(set_to_none=True)
    return saved, logprobs.detach()


def check_drift(trial: Trial) -> Finding:
    """Whether sampler and trainer agree on how likely the sampled tokens were."""
    drift = trial.drift or 0.0
    seen = f"log-probs differ by at most {drift:.1g}"
    if not drift <= DRIFT:  # nan too
        return Finding(
            WARN, "sampler = trainer", seen, "ratios are off from the first step on: a model type rove knows, fp32"
        )
    return Finding(OK, "sampler = trainer", seen)


def memory_needed(config: RLConfig, loaded: LoadedModel, trial: Trial, longest: int) -> dict[str, float]:
    """Bytes a run takes, by what takes them; `longest` is the length of a rollout in tokens."""
    weights = list(loaded.model.parameters())
    size = sum(p.nbytes for p in weights)
    trained = sum(p.nbytes for p in weights if p.requires_grad)  # an adapter's alone; a copy shares what is not
    copies = size * decoder.supports(loaded.model)
    if config.bf16_sampling:
        copies = (copies + size) / 2
    elif config.max_off_policy_steps > 0:
        copies += trained
    return {
        "weights": float(size),
        "sampler's copies": float(copies),
        "reference model": float(trained) if config.loss.kl_penalty else 0.0,
        "gradients": float(trained),
        "AdamW": float(ADAM * trained),
        "activations": BACKWARD * trial.saved / trial.tokens * max(config.micro_batch_tokens, longest),
        "keys and values": min(float(CACHE_BYTES), KEPT * config.batch_size * longest * position_bytes(loaded.model)),
    }


def position_bytes(model: Any) -> int:
    """Bytes of keys and values that one token takes."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return 2 * heads * size * sum(kind != "conv" for kind in kinds) * model.dtype.itemsize


def memory_free(device: torch.device) -> int | None:
    """Bytes that may still be allocated where the model is; None where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free.append(1024 * int(line.split()[1]))
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit and used and limit[0].isdigit():
        free.append(int(limit[0]) - int(used[0]))
    if not free and "SC_PHYS_PAGES" in os.sysconf_names:
        free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(free, default=None)


def check_memory(needed: dict[str, float], free: int | None) -> Finding:
    """Whether a run fits into memory, the weights that are loaded already counted as free."""
    total = sum(needed.values())
    largest = sorted(needed, key=lambda name: -needed[name])[:2]
    parts = ", ".join(f"{name} {human_bytes(needed[name])}" for name in largest)
    if free is None:
        return Finding(OK, "memory", f"about {human_bytes(total)} ({parts})")
    there = free + needed["weights"]
    seen = f"about {human_bytes(total)} ({parts}) of {human_bytes(there)}"
    advice = "a smaller --micro_batch_tokens, --activation_checkpointing, --lora.rank 8; else a smaller model or a larger machine"
    if total > UNSURE * there:
        return Finding(FAIL, "memory", seen, advice)
    if UNSURE * total > there:
        return Finding(WARN, "memory", seen, f"tight: {advice}")
    return Finding(OK, "memory", seen)


def check_time(config: RLConfig, sampling: float, training: float) -> Finding:
    """How long a run takes; seconds of sampling and training per step."""
    step = sampling + training
    seen = (
        f"about {human_seconds(step)} a step ({human_seconds(sampling)} sampling), "
        f"{human_seconds(step * config.steps)} in all"
    )
    if step * config.steps > LONG:
        return Finding(WARN, "time", seen, "fewer --steps, shorter rollouts, a smaller model or a faster machine")
    if step * config.checkpoint_every > 3600:
        advice = f"a stop may cost {human_seconds(step * config.checkpoint_every)}: a smaller --checkpoint_every"
        return Finding(WARN, "time", seen, advice)
    return Finding(OK, "time", seen, "longer rollouts, as models learn to write them, take longer")


def check_disk(config: RLConfig, needed: dict[str, float], rollout_bytes: float, folder: Path) -> Finding:
    """Whether checkpoints and rollouts fit on the disk that `folder` is, or will be, on."""
    while not folder.exists():
        folder = folder.parent
    saved = needed["gradients"]  # are as large as the weights that are trained
    one = saved + needed["AdamW"]
    if config.loss.sync_reference_every is not None:
        one += needed["reference model"]
    # A new one is there before the oldest goes, and at the end the final weights.
    checkpoints = one * (config.keep_checkpoints + 1) + saved
    rollouts = rollout_bytes * config.batch_size * config.steps
    free = shutil.disk_usage(folder).free
    parts = f"checkpoints {human_bytes(checkpoints)}" + (f", rollouts {human_bytes(rollouts)}" if rollouts else "")
    seen = f"{parts}; {human_bytes(free)} free"
    if checkpoints + rollouts > free:
        return Finding(FAIL, "disk", seen, "--keep_checkpoints 1, another --run-dir, or make room")
    if UNSURE * (checkpoints + rollouts) > free:
        return Finding(WARN, "disk", seen, "tight: --keep_checkpoints 1, another --run-dir, or make room")
    return Finding(OK, "disk", seen)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
