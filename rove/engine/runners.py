"""Two ways to compute next-token logits for rows that come and go: together and fast, or through the model's own cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from rove.core.errors import ConfigError
from rove.engine.decoder import Decoder
from rove.engine.families import FAMILIES
from rove.engine.kv_cache import KVCache
from rove.engine.lora import Adapter, Source, load_adapter
from rove.engine.scheduler import Scheduler, SequenceState


class Runner(Protocol):
    """Computes one step after another."""

    computed_tokens: int
    """Tokens put through the model so far."""

    def submit(self, row: SequenceState) -> None:
        """Queue a row.

        Raises:
            ConfigError: it can never fit in memory.
        """
        ...

    def active(self) -> list[SequenceState]:
        """Everybody who waits or runs."""
        ...

    def step(self) -> tuple[list[SequenceState], torch.Tensor]:
        """Compute something; returns rows whose next token is due and their logits [rows, V]. They must then either be given
        that token (appended to `tokens`) or be finished."""
        ...

    def finish(self, rows: Sequence[SequenceState]) -> None:
        """These have ended or were given up."""
        ...

    def drop_all(self) -> list[SequenceState]:
        """Give up everybody, keeping nothing; returns them."""
        ...

    def clear_cache(self, release: bool = False) -> None:
        """Drop what is kept of ended rows (the weights may have changed), with `release` also the memory it took."""
        ...

    def weights_changed(self) -> None:
        """The weights have changed: who is being decoded goes on with what was computed for him, and nobody else does."""
        ...

    def load_adapter(self, source: Source, version: int) -> Adapter:
        """An adapter for rows to come.

        Raises:
            ConfigError: it does not fit, or this runner has none.
        """
        ...

    def drop_adapter(self, adapter: Adapter) -> None:
        """Drop what is kept of ended rows with this adapter; none is under way."""
        ...


def _check_fits(row: SequenceState, fits: bool, position_bytes: int, budget: int) -> None:
    if not fits:
        need = (row.prompt_length + row.max_tokens) * position_bytes
        raise ConfigError(
            f"a request of {row.prompt_length} prompt tokens and max_tokens {row.max_tokens} needs up to {need / 2**20:.4g} MiB "
            f"of keys and values, the engine has {budget / 2**20:.4g} MiB: lower max_tokens, shorten the prompt, or give the "
            "engine more cache_bytes"
        )


class FastRunner:
    """All rows in one forward pass per step, from one cache.

    Args:
        model: one that the decoder supports.
        max_batch: most rows under way.
        cache_bytes: most memory for keys and values, those of ended rows included.
        chunk: most prompt tokens read in by one step.
        native: use kernels compiled for this processor, where they can be had.
    """

    def __init__(self, model: Any, max_batch: int, cache_bytes: int, chunk: int, native: bool = True):
        self.decoder = Decoder(model, native)
        self.cache = KVCache(self.decoder.shape, cache_bytes, max_batch)
        self.scheduler = Scheduler(self.cache, max_batch, chunk)
        self.computed_tokens = 0
        self._changed = True

    def submit(self, row: SequenceState) -> None:  # noqa: D102
        fits = self.cache.fits(row.prompt_length + row.max_tokens)
        _check_fits(row, fits, self.cache.shape.position_bytes, self.cache.budget)
        self.scheduler.submit(row)

    def active(self) -> list[SequenceState]:  # noqa: D102
        return [*self.scheduler.running, *self.scheduler.waiting]

    def step(self) -> tuple[list[SequenceState], torch.Tensor]:  # noqa: D102
        self.decoder.refresh(self._changed)
        self._changed = False
        step = self.scheduler.plan()
        if not self.decoder.ops.takes_any_rows:
            for pool in self.cache.pools.values():
                pool.make_contiguous(
                    [row.slot for row in step.decode if row.slot is not None and row.slot.pool is pool]
                )
        step.decode.sort(key=_place)
        logits = self.decoder(step)
        self.computed_tokens += len(step.decode) + sum(chunk.size for chunk in step.chunks)
        ready = self.scheduler.complete(step)
        if len(ready) < len(logits):
            last = [*step.decode, *(chunk.seq for chunk in step.chunks)]
            due = [i for i, row in enumerate(last) if row.pending == 0]
            logits = logits[torch.tensor(due, dtype=torch.long, device=logits.device)]
        return ready, logits

    def finish(self, rows: Sequence[SequenceState]) -> None:  # noqa: D102
        self.scheduler.finish(rows)

    def drop_all(self) -> list[SequenceState]:  # noqa: D102
        rows = self.scheduler.drop_all()
        self.cache.clear()
        return rows

    def clear_cache(self, release: bool = False) -> None:  # noqa: D102
        self.cache.clear(release)
        self._changed = True

    def weights_changed(self) -> None:  # noqa: D102
        self.clear_cache()
        self.scheduler.mark_outdated()

    def load_adapter(self, source: Source, version: int) -> Adapter:  # noqa: D102
        return load_adapter(self.decoder.model, source, version, self.decoder.interleave_halves)

    def drop_adapter(self, adapter: Adapter) -> None:  # noqa: D102
        self.cache.clear(scope=adapter.scope)


def _place(row: SequenceState) -> tuple[int, int]:
    assert row.slot is not None
    return row.slot.pool.capacity, row.slot.index


@dataclass(eq=False)
class _Group:
    """Rows whose prompts had one length, in a cache of the model's own making."""

    rows: list[SequenceState]
    cache: Any = None
    gone: set[SequenceState] = field(default_factory=set)


class SlowRunner:
    """Rows with prompts of one length together, through the model's own modules and cache: right for any architecture.

    Nothing is shared or kept. One group after another takes a step.

    Args:
        model: any causal language model.
        max_batch: most rows under way.
        cache_bytes: most memory for keys and values, counted as if every layer had them.
    """

    def __init__(self, model: Any, max_batch: int, cache_bytes: int):
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.model, self.max_batch, self.budget = model, max_batch, cache_bytes
        self.position_bytes = 2 * config.num_hidden_layers * heads * size * model.dtype.itemsize
        self.waiting: list[SequenceState] = []
        self.groups: list[_Group] = []
        self.computed_tokens = 0

    def submit(self, row: SequenceState) -> None:  # noqa: D102
        _check_fits(row, self._bytes(row) <= self.budget, self.position_bytes, self.budget)
        self.waiting.append(row)

    def _bytes(self, row: SequenceState) -> int:
        return (row.prompt_length + row.max_tokens) * self.position_bytes

    def active(self) -> list[SequenceState]:  # noqa: D102
        return [*(row for group in self.groups for row in group.rows if row not in group.gone), *self.waiting]

    def _admit(self) -> None:
        under_way = [row for group in self.groups for row in group.rows]
        used, room = sum(map(self._bytes, under_way)), self.max_batch - len(under_way)
        by_length: dict[int, list[SequenceState]] = {}
        while self.waiting and room and used + self._bytes(self.waiting[0]) <= self.budget:
            row = self.waiting.pop(0)
            used, room = used + self._bytes(row), room - 1
            by_length.setdefault(len(row.tokens), []).append(row)
        self.groups += [_Group(rows) for rows in by_length.values()]

    def step(self) -> tuple[list[SequenceState], torch.Tensor]:  # noqa: D102
        self._admit()
        group = self.groups.pop(0)
        self.groups.append(group)
        new = [row.tokens if group.cache is None else row.tokens[-1:] for row in group.rows]
        ids = torch.tensor(new, device=self.model.device)
        out = self.model(input_ids=ids, past_key_values=group.cache, use_cache=True, logits_to_keep=1)
        group.cache = out.past_key_values
        self.computed_tokens += ids.numel()
        alive = [i for i, row in enumerate(group.rows) if row not in group.gone]
        return [group.rows[i] for i in alive], out.logits[:, -1][torch.tensor(alive, device=out.logits.device)]

    def finish(self, rows: Sequence[SequenceState]) -> None:  # noqa: D102
        gone = set(rows)
        self.waiting = [row for row in self.waiting if row not in gone]
        for group in self.groups:
            group.gone |= gone & set(group.rows)
            self._shrink(group)
        self.groups = [group for group in self.groups if len(group.gone) < len(group.rows)]

    def _shrink(self, group: _Group) -> None:
        """Take ended rows out of the batch where the cache can; else they are computed along and ignored."""
        if group.gone and group.cache is None:
            group.rows = [row for row in group.rows if row not in group.gone]
            group.gone = set()

    def drop_all(self) -> list[SequenceState]:  # noqa: D102
        rows = self.active()
        self.waiting, self.groups = [], []
        return rows

    def clear_cache(self, release: bool = False) -> None:
        """Nothing is kept."""

    def weights_changed(self) -> None:
        """Nothing is shared."""

    def load_adapter(self, source: Source, version: int) -> Adapter:
        """There are no adapters here."""
        raise ConfigError(
            f"{self.model.config.model_type} has no fast path in rove's engine, and adapters need it; expected a model of "
            f"{', '.join(FAMILIES)}: merge the adapter into the model with PEFT, and load that"
        )

    def drop_adapter(self, adapter: Adapter) -> None:
        """Nothing is kept."""
