"""Two ways to compute next-token logits: batched with the embedded decoder, or through the model's own modules."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from rove.core.errors import ConfigError
from rove.engine.decoder import Decoder
from rove.engine.families import FAMILIES
from rove.engine.kv_cache import KVCache, values_per_position
from rove.engine.lora import Adapter, Source, load_adapter
from rove.engine.scheduler import Scheduler, SequenceState


class Runner(Protocol):
    """Computes steps for sequences that join and leave."""

    computed_tokens: int
    """Number of tokens computed so far."""

    def submit(self, seq: SequenceState) -> None:
        """Queue a sequence."""
        ...

    def active(self) -> list[SequenceState]:
        """Return all waiting and running sequences."""
        ...

    def step(self) -> tuple[list[SequenceState], torch.Tensor]:
        """Compute a step; return the sequences whose next token is due, and their logits [rows, V].

        For each sequence, the caller appends the sampled token to its `tokens`, or finishes the sequence.
        """
        ...

    def finish(self, seqs: Sequence[SequenceState]) -> None:
        """Remove ended or cancelled sequences."""
        ...

    def drop_all(self) -> list[SequenceState]:
        """Remove all sequences, clear their cache and return them."""
        ...

    def clear_cache(self, release: bool = False) -> None:
        """Drop the cache of ended sequences (the weights may have changed); with `release`, also free all memory whose
        content the next step can rebuild.
        """
        ...

    def weights_changed(self) -> None:
        """Record new weights: running sequences continue with their cache, but no other sequence may reuse it."""
        ...

    def load_adapter(self, source: Source, version: int) -> Adapter:
        """Load an adapter."""
        ...

    def drop_adapter(self, adapter: Adapter) -> None:
        """Drop the cache of this adapter's ended sequences; no sequence of the adapter may be running."""
        ...


def _check_fits(seq: SequenceState, fits: bool, position_bytes: int, budget: int) -> None:
    if not fits:
        need = (seq.prompt_length + seq.max_tokens) * position_bytes
        raise ConfigError(
            f"a request of {seq.prompt_length} prompt tokens and max_tokens {seq.max_tokens} needs up to {need / 2**20:.4g} MiB "
            f"of keys and values, the engine has {budget / 2**20:.4g} MiB: lower max_tokens, shorten the prompt, or give the "
            "engine more cache_bytes"
        )


class FastRunner:
    """All sequences in one forward pass per step, with a shared KV cache.

    Args:
        chunk: Maximum prompt tokens per step.
    """

    def __init__(self, model: Any, max_batch: int, cache_bytes: int, chunk: int, native: bool = True):
        self.decoder = Decoder(model, native)
        self.cache = KVCache(self.decoder.shape, cache_bytes, max_batch)
        self.scheduler = Scheduler(self.cache, max_batch, chunk)
        self.computed_tokens = 0
        self._changed = True

    def submit(self, seq: SequenceState) -> None:  # noqa: D102
        fits = self.cache.fits(seq.prompt_length + seq.max_tokens)
        _check_fits(seq, fits, self.cache.shape.position_bytes, self.cache.budget)
        self.scheduler.submit(seq)

    def active(self) -> list[SequenceState]:  # noqa: D102
        return [*self.scheduler.running, *self.scheduler.waiting]

    def step(self) -> tuple[list[SequenceState], torch.Tensor]:  # noqa: D102
        self.decoder.refresh(self._changed)
        self._changed = False
        step = self.scheduler.plan()
        if not self.decoder.ops.takes_any_rows:
            slots = [slot for seq in step.decode if (slot := seq.slot) is not None]
            for pool in self.cache.pools.values():
                pool.make_contiguous([slot for slot in slots if slot.pool is pool])
        # The rows of a pool are computed together, and PyTorch's attention needs them in the order of the pool.
        step.decode.sort(key=_pool_position)
        logits = self.decoder(step)
        self.computed_tokens += len(step.decode) + sum(chunk.size for chunk in step.chunks)
        ready = self.scheduler.complete(step)
        if len(ready) < len(logits):  # a prompt that is prefilled in parts samples no token yet
            computed = [*step.decode, *(chunk.seq for chunk in step.chunks)]
            ready_rows = [row for row, seq in enumerate(computed) if seq.pending == 0]
            logits = logits[torch.tensor(ready_rows, dtype=torch.long, device=logits.device)]
        return ready, logits

    def finish(self, seqs: Sequence[SequenceState]) -> None:  # noqa: D102
        self.scheduler.finish(seqs)

    def drop_all(self) -> list[SequenceState]:  # noqa: D102
        seqs = self.scheduler.drop_all()
        self.cache.clear()
        return seqs

    def clear_cache(self, release: bool = False) -> None:  # noqa: D102
        self.cache.clear(release)
        if release:
            self.decoder.release()
        self._changed = True

    def weights_changed(self) -> None:  # noqa: D102
        self.clear_cache()
        self.scheduler.mark_outdated()

    def load_adapter(self, source: Source, version: int) -> Adapter:  # noqa: D102
        return load_adapter(self.decoder.model, source, version, self.decoder.interleave_halves)

    def drop_adapter(self, adapter: Adapter) -> None:  # noqa: D102
        self.cache.clear(scope=adapter.scope)


def _pool_position(seq: SequenceState) -> tuple[int, int]:
    assert seq.slot is not None
    return seq.slot.pool.capacity, seq.slot.index


WITHOUT_CACHE = frozenset({"bamba", "recurrent_gemma"})
"""Model types whose cache is not used. Recurrent Gemma keeps the state of a sequence in its modules, where another group would
overwrite it; Bamba computes different log-probabilities with and without its cache (transformers 5.24)."""


@dataclass(eq=False)
class _Group:
    """Sequences whose prompts have equal length, with one cache of the model's own type."""

    seqs: list[SequenceState]
    cache: Any = None
    ended: set[SequenceState] = field(default_factory=set)


class SlowRunner:
    """Computes batches of sequences with prompts of equal length through the model's own modules and cache; works for
    any architecture.

    No prefixes are shared. The groups take turns, one step each. Models without a cache compute whole sequences in each step.

    Args:
        cache_bytes: Maximum memory for keys and values, counted as if every layer had them.
    """

    def __init__(self, model: Any, max_batch: int, cache_bytes: int):
        config = model.config.get_text_config()
        self.model, self.max_batch, self.budget = model, max_batch, cache_bytes
        self.position_bytes = config.num_hidden_layers * values_per_position(config) * model.dtype.itemsize
        self.use_cache = config.model_type not in WITHOUT_CACHE
        # transformers 5 renames the argument in one family after the other.
        takes_cache = "cache" in inspect.signature(model.forward).parameters
        self.cache_argument = "cache" if takes_cache else "past_key_values"
        self.waiting: list[SequenceState] = []
        self.groups: list[_Group] = []
        self.computed_tokens = 0

    def submit(self, seq: SequenceState) -> None:  # noqa: D102
        _check_fits(seq, self._bytes(seq) <= self.budget, self.position_bytes, self.budget)
        self.waiting.append(seq)

    def _bytes(self, seq: SequenceState) -> int:
        return (seq.prompt_length + seq.max_tokens) * self.position_bytes

    def active(self) -> list[SequenceState]:  # noqa: D102
        running: list[SequenceState] = []
        for group in self.groups:
            running += [seq for seq in group.seqs if seq not in group.ended]
        return [*running, *self.waiting]

    def _admit(self) -> None:
        # Ended sequences count, too: the cache of their group keeps their rows until the whole group has ended.
        rows = used = 0
        for group in self.groups:
            rows += len(group.seqs)
            used += sum(map(self._bytes, group.seqs))
        by_length: dict[int, list[SequenceState]] = {}
        while self.waiting and rows < self.max_batch and used + self._bytes(self.waiting[0]) <= self.budget:
            seq = self.waiting.pop(0)
            used += self._bytes(seq)
            rows += 1
            by_length.setdefault(len(seq.tokens), []).append(seq)
        self.groups += [_Group(seqs) for seqs in by_length.values()]

    def step(self) -> tuple[list[SequenceState], torch.Tensor]:  # noqa: D102
        self._admit()
        group = self.groups.pop(0)
        self.groups.append(group)
        new = [seq.tokens if group.cache is None else seq.tokens[-1:] for seq in group.seqs]
        ids = torch.tensor(new, device=self.model.device)
        cache = {self.cache_argument: group.cache}
        out = self.model(input_ids=ids, use_cache=self.use_cache, logits_to_keep=1, **cache)
        # Mamba models return it as `cache`. Without a cache, the next step computes the whole sequences again.
        group.cache = getattr(out, "past_key_values", None)
        if group.cache is None:
            group.cache = getattr(out, "cache", None)
        self.computed_tokens += ids.numel()
        rows = [row for row, seq in enumerate(group.seqs) if seq not in group.ended]
        logits = out.logits[:, -1]
        return [group.seqs[row] for row in rows], logits[torch.tensor(rows, device=logits.device)]

    def finish(self, seqs: Sequence[SequenceState]) -> None:  # noqa: D102
        ended = set(seqs)
        self.waiting = [seq for seq in self.waiting if seq not in ended]
        for group in self.groups:
            group.ended |= ended & set(group.seqs)
            if group.ended and group.cache is None:  # rows cannot be removed from a cache, but there is none yet
                group.seqs = [seq for seq in group.seqs if seq not in group.ended]
                group.ended = set()
        self.groups = [group for group in self.groups if len(group.ended) < len(group.seqs)]

    def drop_all(self) -> list[SequenceState]:  # noqa: D102
        seqs = self.active()
        self.waiting, self.groups = [], []
        return seqs

    def clear_cache(self, release: bool = False) -> None:
        """Do nothing: no cache outlives its sequences."""

    def weights_changed(self) -> None:
        """Do nothing: no cache is shared."""

    def load_adapter(self, source: Source, version: int) -> Adapter:
        """Raise: adapters need the fast path."""
        raise ConfigError(
            f"{self.model.config.model_type} has no fast path in rove's engine, and adapters need it; expected a model of "
            f"{', '.join(FAMILIES)}: merge the adapter into the model with PEFT, and load that"
        )

    def drop_adapter(self, adapter: Adapter) -> None:
        """Do nothing: there are no adapters."""
