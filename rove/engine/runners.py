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
from rove.engine.lora import Adapter, Source, load
from rove.engine.scheduler import Row, Scheduler


class Runner(Protocol):
    """Computes one step after another."""

    computed: int
    """Tokens put through the model so far."""

    def submit(self, row: Row) -> None:
        """Queue a row.

        Raises:
            ConfigError: it can never fit in memory.
        """
        ...

    def rows(self) -> list[Row]:
        """Everybody who waits or runs."""
        ...

    def step(self) -> tuple[list[Row], torch.Tensor]:
        """Compute something; returns rows whose next token is due and their logits [rows, V]. They must then either be given
        that token (appended to `tokens`) or be finished."""
        ...

    def finish(self, rows: Sequence[Row]) -> None:
        """These have ended or were given up."""
        ...

    def drop_all(self) -> list[Row]:
        """Give up everybody, keeping nothing; returns them."""
        ...

    def forget(self, release: bool = False) -> None:
        """Drop what is kept of ended rows (the weights may have changed), with `release` also the memory it took."""
        ...

    def outdate(self) -> None:
        """The weights have changed: who is being decoded goes on with what was computed for him, and nobody else does."""
        ...

    def load(self, source: Source, version: int) -> Adapter:
        """An adapter for rows to come.

        Raises:
            ConfigError: it does not fit, or this runner has none.
        """
        ...

    def drop(self, adapter: Adapter) -> None:
        """Drop what is kept of ended rows with this adapter; none is under way."""
        ...


def _check_fits(row: Row, fits: bool, position_bytes: int, budget: int) -> None:
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
        self.computed = 0
        self._changed = True

    def submit(self, row: Row) -> None:  # noqa: D102
        fits = self.cache.can_ever_hold(row.prompt_length + row.max_tokens)
        _check_fits(row, fits, self.cache.shape.bytes, self.cache.budget)
        self.scheduler.submit(row)

    def rows(self) -> list[Row]:  # noqa: D102
        return [*self.scheduler.running, *self.scheduler.waiting]

    def step(self) -> tuple[list[Row], torch.Tensor]:  # noqa: D102
        self.decoder.refresh(self._changed)
        self._changed = False
        step = self.scheduler.plan()
        if not self.decoder.ops.anywhere:
            for pool in self.cache.pools.values():
                pool.arrange([row.slot for row in step.decode if row.slot is not None and row.slot.pool is pool])
        step.decode.sort(key=_place)
        logits = self.decoder(step)
        self.computed += len(step.decode) + sum(chunk.size for chunk in step.chunks)
        ready = self.scheduler.done(step)
        if len(ready) < len(logits):
            last = [*step.decode, *(chunk.row for chunk in step.chunks)]
            due = [i for i, row in enumerate(last) if row.pending == 0]
            logits = logits[torch.tensor(due, dtype=torch.long, device=logits.device)]
        return ready, logits

    def finish(self, rows: Sequence[Row]) -> None:  # noqa: D102
        self.scheduler.finish(rows)

    def drop_all(self) -> list[Row]:  # noqa: D102
        rows = self.scheduler.drop_all()
        self.cache.forget()
        return rows

    def forget(self, release: bool = False) -> None:  # noqa: D102
        self.cache.forget(release)
        self._changed = True

    def outdate(self) -> None:  # noqa: D102
        self.forget()
        self.scheduler.outdate()

    def load(self, source: Source, version: int) -> Adapter:  # noqa: D102
        return load(self.decoder.model, source, version, self.decoder.paired)

    def drop(self, adapter: Adapter) -> None:  # noqa: D102
        self.cache.forget(scope=adapter.scope)


def _place(row: Row) -> tuple[int, int]:
    assert row.slot is not None
    return row.slot.pool.capacity, row.slot.index


@dataclass(eq=False)
class _Group:
    """Rows whose prompts had one length, in a cache of the model's own making."""

    rows: list[Row]
    cache: Any = None
    gone: set[Row] = field(default_factory=set)


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
        self.waiting: list[Row] = []
        self.groups: list[_Group] = []
        self.computed = 0

    def submit(self, row: Row) -> None:  # noqa: D102
        _check_fits(row, self._bytes(row) <= self.budget, self.position_bytes, self.budget)
        self.waiting.append(row)

    def _bytes(self, row: Row) -> int:
        return (row.prompt_length + row.max_tokens) * self.position_bytes

    def rows(self) -> list[Row]:  # noqa: D102
        return [*(row for group in self.groups for row in group.rows if row not in group.gone), *self.waiting]

    def _admit(self) -> None:
        under_way = [row for group in self.groups for row in group.rows]
        used, room = sum(map(self._bytes, under_way)), self.max_batch - len(under_way)
        by_length: dict[int, list[Row]] = {}
        while self.waiting and room and used + self._bytes(self.waiting[0]) <= self.budget:
            row = self.waiting.pop(0)
            used, room = used + self._bytes(row), room - 1
            by_length.setdefault(len(row.tokens), []).append(row)
        self.groups += [_Group(rows) for rows in by_length.values()]

    def step(self) -> tuple[list[Row], torch.Tensor]:  # noqa: D102
        self._admit()
        group = self.groups.pop(0)
        self.groups.append(group)
        new = [row.tokens if group.cache is None else row.tokens[-1:] for row in group.rows]
        ids = torch.tensor(new, device=self.model.device)
        out = self.model(input_ids=ids, past_key_values=group.cache, use_cache=True, logits_to_keep=1)
        group.cache = out.past_key_values
        self.computed += ids.numel()
        alive = [i for i, row in enumerate(group.rows) if row not in group.gone]
        return [group.rows[i] for i in alive], out.logits[:, -1][torch.tensor(alive, device=out.logits.device)]

    def finish(self, rows: Sequence[Row]) -> None:  # noqa: D102
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

    def drop_all(self) -> list[Row]:  # noqa: D102
        rows = self.rows()
        self.waiting, self.groups = [], []
        return rows

    def forget(self, release: bool = False) -> None:
        """Nothing is kept."""

    def outdate(self) -> None:
        """Nothing is shared."""

    def load(self, source: Source, version: int) -> Adapter:
        """There are no adapters here."""
        raise ConfigError(
            f"{self.model.config.model_type} has no fast path in rove's engine, and adapters need it; expected a model of "
            f"{', '.join(FAMILIES)}: merge the adapter into the model with PEFT, and load that"
        )

    def drop(self, adapter: Adapter) -> None:
        """Nothing is kept."""
