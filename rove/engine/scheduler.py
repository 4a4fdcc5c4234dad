"""What the engine computes next: a plain function of who waits, who runs and what memory holds, never of the clock.

So the same requests in the same order are computed in the same batches, and rounding errors are the same from run to run.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rove.engine.kv_cache import KVCache, Slot, copy_row
from rove.engine.lora import Adapter

MIN_COPIED_TOKENS = 16
"""Shared tokens from which on a copy, or waiting for a neighbour's prefill, beats computing them."""
RESERVED_POSITIONS = 64
"""Positions reserved for what a sequence will say; those who say more move to a larger row."""


@dataclass(eq=False)
class SequenceState:
    """One request under way."""

    arrival: int
    """Order of arrival."""
    tokens: list[int]
    """The prompt and what has been sampled."""
    max_tokens: int
    """Most tokens to sample."""
    request: Any = None
    """Whoever asked; the scheduler does not look at it."""
    adapter: Adapter | None = None
    """None = the model as it is."""
    prompt_length: int = field(init=False)
    slot: Slot | None = None

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are not computed yet; once it is computed, the last one's logits give the next."""
        return len(self.tokens) - (self.slot.filled if self.slot else 0)

    @property
    def scope(self) -> int:
        """Whose keys and values are of use to it."""
        return self.adapter.scope if self.adapter else 0

    @property
    def remaining_tokens(self) -> int:
        """Tokens it may still sample."""
        return self.max_tokens - (len(self.tokens) - self.prompt_length)


class Chunk(NamedTuple):
    """The next `size` tokens of a sequence that is being read in."""

    seq: SequenceState
    start: int
    size: int


class Step(NamedTuple):
    """One forward pass: one token of each row of `decode`, and these chunks."""

    decode: list[SequenceState]
    chunks: list[Chunk]


class Scheduler:
    """Decides who runs. First come, first served; who has come waits only for memory, or for a neighbour who is computing
    what he needs too. When memory runs out while sequences grow, the last to come gives his up and is computed again later.

    Args:
        cache: where keys and values are.
        max_batch: most sequences under way.
        chunk: most tokens read in by one step; a long prompt is read in pieces, so that nobody waits long for his next token.
    """

    def __init__(self, cache: KVCache, max_batch: int, chunk: int):
        self.cache, self.max_batch, self.chunk = cache, max_batch, chunk
        self.waiting: list[SequenceState] = []
        self.running: list[SequenceState] = []

    def submit(self, row: SequenceState) -> None:
        """Queue a request."""
        insort(self.waiting, row, key=lambda row: row.arrival)

    def plan(self) -> Step:
        """Make room, admit who fits, and say what to compute; an empty step when there is nothing to do."""
        self._grow_slots()
        self._admit()
        pending = [(row, row.pending) for row in self.running]
        decode = [row for row, count in pending if count == 1]
        left = max(self.chunk - len(decode), self.chunk // 4, 1)
        chunks = []
        for row, count in pending:
            if count > 1 and left:
                assert row.slot is not None
                size = min(count, left)
                chunks.append(Chunk(row, row.slot.filled, size))
                left -= size
        return Step(decode, chunks)

    def complete(self, step: Step) -> list[SequenceState]:
        """Take note that a step was computed; returns the rows whose next token can be sampled, in the step's order."""
        for row in step.decode:
            assert row.slot is not None
            row.slot.filled += 1
        for row, _, size in step.chunks:
            assert row.slot is not None
            row.slot.filled += size
        return [*step.decode, *(row for row, _, _ in step.chunks if not row.pending)]

    def finish(self, rows: Sequence[SequenceState]) -> None:
        """These have ended or were given up; what was computed for them is kept for whoever continues them."""
        gone = set(rows)
        self.waiting = [row for row in self.waiting if row not in gone]
        self.running = [row for row in self.running if row not in gone]
        for row in rows:
            if row.slot is not None:
                self.cache.retire(row.slot, row.tokens)
                row.slot = None

    def mark_outdated(self) -> None:
        """The weights have changed: who runs goes on with the keys and values he has, which become of no use to others."""
        for row in self.running:
            assert row.slot is not None
            self.cache.mark_outdated(row.slot)

    def drop_all(self) -> list[SequenceState]:
        """Give up everybody and free what they had (a step failed, so it may be half written)."""
        rows = [*self.running, *self.waiting]
        for row in rows:
            if row.slot is not None:
                self.cache.free(row.slot)
                row.slot = None
        self.running, self.waiting = [], []
        return rows

    def _grow_slots(self) -> None:
        full = [row for row in self.running if row.slot and len(row.tokens) > row.slot.pool.capacity]
        for row in full:
            while row.slot is not None and len(row.tokens) > row.slot.pool.capacity:
                larger = self.cache.grow(row.slot, len(row.tokens))
                if larger is None:
                    self._preempt(self.running[-1])
                else:
                    if larger is not row.slot and not larger.outdated:
                        self.cache.index.add(row.tokens[: row.prompt_length], larger, row.scope)
                    row.slot = larger

    def _preempt(self, row: SequenceState) -> None:
        assert row.slot is not None
        self.cache.free(row.slot)
        row.slot = None
        self.running.remove(row)
        self.submit(row)

    def _admit(self) -> None:
        held = []
        expected = min(len(self.waiting), self.max_batch - len(self.running))
        for i, row in enumerate(self.waiting):
            if len(self.running) >= self.max_batch:
                held += self.waiting[i:]
                break
            source, usable, promised = self._find_prefix(row)
            if promised >= usable + MIN_COPIED_TOKENS:
                held.append(row)
                continue
            row.slot = self._allocate(row, source, usable, expected)
            if row.slot is None:
                held += self.waiting[i:]
                break
            row.slot.target, row.slot.scope = len(row.tokens), row.scope
            self.cache.index.add(row.tokens, row.slot, row.scope)
            insort(self.running, row, key=lambda row: row.arrival)
        self.waiting = held

    def _find_prefix(self, row: SequenceState) -> tuple[Slot | None, int, int]:
        """The slot that holds the longest beginning of a row's tokens, how much of it, and the most that one will hold."""
        best, usable, promised = None, 0, 0
        for shared, slot in self.cache.index.nearest(row.tokens, row.scope):
            shared = min(shared, len(row.tokens) - 1)  # the last one's logits are needed in any case
            if min(shared, slot.filled) > usable:
                best, usable = slot, min(shared, slot.filled)
            promised = max(promised, min(shared, slot.target))
        return best, usable, promised

    def _allocate(self, row: SequenceState, source: Slot | None, usable: int, expected: int) -> Slot | None:
        length = len(row.tokens) + min(row.remaining_tokens, RESERVED_POSITIONS)
        slot = None
        if source in self.cache.reusable and source.filled == usable:
            self.cache.reuse(source)
            slot = self.cache.grow(source, len(row.tokens))
            if slot is None:  # it goes back where it was
                self.cache.retire(source, row.tokens)
        else:
            slot = self.cache.allocate(length, source, expected)
            if slot is not None and source is not None and usable >= MIN_COPIED_TOKENS:
                copy_row(source, slot, usable)
                slot.share_prefix(source, usable)
        if slot is None and not self.running:  # then what is kept must give way, even that which would have helped
            slot = self.cache.allocate(length, None, expected)
        return slot
