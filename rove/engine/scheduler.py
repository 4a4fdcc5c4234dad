"""Continuous batching: choose the sequences to compute in the next forward pass.

The plan is a function of the waiting sequences, the running sequences and the cache, never of the clock. So the same requests in
the same order are computed in the same batches, and rounding errors repeat from run to run (docs/decisions/waves.md).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rove.engine.kv_cache import KVCache, Slot, copy_row
from rove.engine.lora import Adapter

MIN_COPIED_TOKENS = 16
"""A sequence copies a shared prefix of at least this many tokens, or waits for it, instead of computing it again."""
OVERTAKEN_BATCHES = 4
"""At most `OVERTAKEN_BATCHES * max_batch` later sequences may overtake a sequence."""
RESERVED_POSITIONS = 64
"""Number of positions reserved for the completion at admission; a longer completion moves to a larger row."""


@dataclass(eq=False)
class SequenceState:
    """A request in the scheduler: its tokens and where their keys and values are."""

    arrival: int
    """Order of arrival."""
    tokens: list[int]
    """Prompt and sampled tokens."""
    max_tokens: int
    """Maximum tokens to sample."""
    request: Any = None
    """The caller's data; the scheduler does not read it."""
    adapter: Adapter | None = None
    """LoRA adapter; None means the base model."""
    prompt_length: int = field(init=False)
    slot: Slot | None = None
    priority: tuple[int, int, int] = (0, 0, 0)
    """Order of admission, decided when the sequence is submitted or preempted: the smallest first."""

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def pending(self) -> int:
        """Number of tokens whose keys and values are not computed yet. The logits of the last of these tokens give the next
        token.
        """
        return len(self.tokens) - (self.slot.filled if self.slot else 0)

    @property
    def scope(self) -> int:
        """Cache scope: prefixes are shared only between sequences of one adapter (0: the base model)."""
        return self.adapter.scope if self.adapter else 0

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be sampled."""
        return self.max_tokens - (len(self.tokens) - self.prompt_length)


class Chunk(NamedTuple):
    """The next `size` tokens of a prompt that is being prefilled."""

    seq: SequenceState
    start: int
    size: int


class Step(NamedTuple):
    """One forward pass: one token of each sequence in `decode`, and the prefill chunks."""

    decode: list[SequenceState]
    chunks: list[Chunk]


class Scheduler:
    """Scheduler with chunked prefill, prefix reuse and preemption.

    Preempted sequences are admitted first. Next come sequences that continue a reusable sequence, the latest first, as far as
    they arrived together (within four batches). In the order of arrival, each of them would evict the slot that the next
    sequence needs, because the earliest slots are evicted first. All other sequences follow in the order of arrival. A sequence
    waits for its turn, for memory, or for a running sequence that is computing a prefix that both need. If memory runs out
    while sequences grow, the sequence that arrived last is preempted: its slot is freed, and the sequence is computed again
    later.

    Args:
        chunk: Maximum prompt tokens per step. Long prompts are prefilled in chunks so that running sequences keep their latency.
    """

    def __init__(self, cache: KVCache, max_batch: int, chunk: int):
        self.cache, self.max_batch, self.chunk = cache, max_batch, chunk
        self.waiting: list[SequenceState] = []
        self.running: list[SequenceState] = []
        self._first_arrival = 0
        """Arrival of the first sequence since the scheduler was last empty; a resumed process did not have any earlier
        sequences."""

    def submit(self, seq: SequenceState) -> None:
        """Queue a sequence."""
        source, usable, _ = self._find_prefix(seq)
        continues_slot = source in self.cache.reusable and source.filled == usable
        if not self.running and not self.waiting:
            self._first_arrival = seq.arrival
        # With a cache for 1.2 times all conversations, this order prefilled 55,500 tokens; the order of arrival alone, in which
        # each conversation evicted the next one's slot, 378,000. Blocks bound how long a new sequence can be overtaken.
        block = (seq.arrival - self._first_arrival) // (OVERTAKEN_BATCHES * self.max_batch)
        if continues_slot and usable >= MIN_COPIED_TOKENS:
            seq.priority = (block, 0, -seq.arrival)
        else:
            seq.priority = (block, 1, seq.arrival)
        self._queue(seq)

    def _queue(self, seq: SequenceState) -> None:
        insort(self.waiting, seq, key=lambda seq: seq.priority)

    def plan(self) -> Step:
        """Grow slots, admit waiting sequences and return the next step; the step is empty if there is no work."""
        self._grow_slots()
        self._admit()
        pending = [(seq, seq.pending) for seq in self.running]
        decode = [seq for seq, count in pending if count == 1]
        # Decoding counts against the budget, but a quarter is left for prefill: else a full batch would starve new prompts.
        budget = max(self.chunk - len(decode), self.chunk // 4, 1)
        chunks = []
        for seq, count in pending:
            if count > 1 and budget:
                assert seq.slot is not None
                size = min(count, budget)
                chunks.append(Chunk(seq, seq.slot.filled, size))
                budget -= size
        return Step(decode, chunks)

    def complete(self, step: Step) -> list[SequenceState]:
        """Record that `step` was computed; return the sequences whose next token can be sampled, in the order of the step."""
        for seq in step.decode:
            assert seq.slot is not None
            seq.slot.filled += 1
        for seq, _, size in step.chunks:
            assert seq.slot is not None
            seq.slot.filled += size
        return [*step.decode, *(seq for seq, _, _ in step.chunks if not seq.pending)]

    def finish(self, seqs: Sequence[SequenceState]) -> None:
        """Remove ended or cancelled sequences; their slots stay in the cache for requests that continue them."""
        ended = set(seqs)
        self.waiting = [seq for seq in self.waiting if seq not in ended]
        self.running = [seq for seq in self.running if seq not in ended]
        for seq in seqs:
            if seq.slot is not None:
                self.cache.retire(seq.slot, seq.tokens)
                seq.slot = None

    def mark_outdated(self) -> None:
        """Record new weights: running sequences keep their keys and values, but no other sequence may reuse them."""
        for seq in self.running:
            assert seq.slot is not None
            self.cache.mark_outdated(seq.slot)

    def drop_all(self) -> list[SequenceState]:
        """Remove all sequences and free their slots. Called after a failed step, whose cache entries may be incomplete."""
        seqs = [*self.running, *self.waiting]
        for seq in seqs:
            if seq.slot is not None:
                self.cache.free(seq.slot)
                seq.slot = None
        self.running, self.waiting = [], []
        return seqs

    def _grow_slots(self) -> None:
        for seq in list(self.running):  # preemption changes the list
            # It may take the slot of this very sequence, which then waits and leaves the loop.
            while seq.slot is not None and len(seq.tokens) > seq.slot.pool.capacity:
                larger = self.cache.grow(seq.slot, len(seq.tokens))
                if larger is None:
                    self._preempt(self.running[-1])
                else:
                    # Keys computed with older weights must not be offered to new sequences (docs/decisions/async.md).
                    if not larger.outdated:
                        self.cache.index.add(seq.tokens[: seq.prompt_length], larger, seq.scope)
                    seq.slot = larger

    def _preempt(self, seq: SequenceState) -> None:
        assert seq.slot is not None
        self.cache.free(seq.slot)
        seq.slot = None
        self.running.remove(seq)
        seq.priority = (-1, 0, seq.arrival)  # before all others
        self._queue(seq)

    def _admit(self) -> None:
        postponed = []
        expected = min(len(self.waiting), self.max_batch - len(self.running))
        for i, seq in enumerate(self.waiting):
            if len(self.running) >= self.max_batch:
                postponed += self.waiting[i:]
                break
            source, usable, promised = self._find_prefix(seq)
            # A running sequence is computing this prefix: wait and copy it instead of computing it twice.
            if promised >= usable + MIN_COPIED_TOKENS:
                postponed.append(seq)
                continue
            seq.slot = self._allocate(seq, source, usable, expected)
            if seq.slot is None:
                postponed += self.waiting[i:]
                break
            # The whole prompt enters the index at once: sequences that arrive during its prefill wait for it and copy it.
            seq.slot.target, seq.slot.scope = len(seq.tokens), seq.scope
            self.cache.index.add(seq.tokens, seq.slot, seq.scope)
            insort(self.running, seq, key=lambda seq: seq.arrival)
        self.waiting = postponed

    def _find_prefix(self, seq: SequenceState) -> tuple[Slot | None, int, int]:
        """Return the slot with the longest computed prefix of a sequence, its length, and the longest prefix that any slot
        will hold.
        """
        best, usable, promised = None, 0, 0
        for shared, slot in self.cache.index.nearest(seq.tokens, seq.scope):
            shared = min(shared, len(seq.tokens) - 1)  # the last token is always computed: its logits are needed
            if min(shared, slot.filled) > usable:
                best, usable = slot, min(shared, slot.filled)
            promised = max(promised, min(shared, slot.target))
        return best, usable, promised

    def _allocate(self, seq: SequenceState, source: Slot | None, usable: int, expected: int) -> Slot | None:
        length = len(seq.tokens) + min(seq.remaining_tokens, RESERVED_POSITIONS)
        slot = None
        # A finished sequence that this one continues, such as the last turn: take over its slot without copying.
        if source in self.cache.reusable and source.filled == usable:
            self.cache.reuse(source)
            slot = self.cache.grow(source, len(seq.tokens))
            if slot is None:  # no memory to grow: put it back
                self.cache.retire(source, seq.tokens)
        else:
            slot = self.cache.allocate(length, source, expected)
            if slot is not None and source is not None and usable >= MIN_COPIED_TOKENS:
                copy_row(source, slot, usable)
                slot.share_prefix(source, usable)
        # No running sequence will free memory later: evict even the slot with the shared prefix
        if slot is None and not self.running:
            slot = self.cache.allocate(length, None, expected)
        return slot
