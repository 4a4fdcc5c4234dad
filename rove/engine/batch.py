"""Tensors of one step: first the decoded tokens, pool by pool, then the prefill chunks.

Axes: N tokens of the step, B sequences of one pool, n tokens of the longest chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import NamedTuple

import torch

from rove.engine.kv_cache import CacheShape, Pool, Slot
from rove.engine.lora import AdapterTokens
from rove.engine.scheduler import Chunk, Step

KEYS_MULTIPLE = 32
"""The number of keys that attention reads is a multiple of this number: otherwise, with a new length for every token, oneDNN
would compile a new matrix product each time. In 16 bits, whole rows are read, because PyTorch copies slices before it
multiplies."""
MAX_SCORES = 1 << 24
"""Maximum number of attention scores computed at once during prefill."""


def _rounded_keys(pool: Pool, length: int) -> int:
    """Return `length` rounded up to a multiple of `KEYS_MULTIPLE`, at most the length of a row."""
    return min(pool.capacity, -(-length // KEYS_MULTIPLE) * KEYS_MULTIPLE)


class Piece(NamedTuple):
    """The next tokens of a sequence."""

    slot: Slot
    start: int
    """Position of the first token."""
    size: int


@dataclass
class DecodeBatch:
    """Tokens of one pool (B) that attend one by one, each after its key and value are cached. Tokens of one sequence are
    adjacent.
    """

    pool: Pool
    tokens: slice
    """Slice of the step."""
    rows: torch.Tensor
    """[B] rows in the pool."""
    positions: torch.Tensor
    """[B] positions of the tokens."""
    sources: torch.Tensor
    """[B] rows with the same content in the first `shared_prefixes` positions. All sequences of a group read the prefix from
    the same row, which then stays in the processor cache."""
    shared_prefixes: torch.Tensor
    """[B] number of these shared positions."""
    longest: int
    """Length of the longest sequence, including its last token."""
    starts: list[int]
    """Index of the first token of each sequence, within the B tokens."""

    @staticmethod
    def from_pieces(pieces: Sequence[Piece], first_token: int) -> DecodeBatch:
        """Build the batch of pieces of one pool; `first_token` is the index of the pool's first token in the step."""
        group_sources: dict[int, Slot] = {}
        for slot, _, _ in pieces:
            if slot.prefix_group:
                source = group_sources.get(slot.prefix_group)
                # The member with the longest shared prefix can serve all others, whose prefixes are parts of it.
                if source is None or slot.shared_prefix > source.shared_prefix:
                    group_sources[slot.prefix_group] = slot
        slots, firsts, sizes = zip(*pieces, strict=True)
        indices = [slot.index for slot in slots]
        sources = [group_sources[slot.prefix_group].index if slot.prefix_group else slot.index for slot in slots]
        shared_prefixes = [slot.shared_prefix for slot in slots]
        ends = list(accumulate(sizes))
        starts = [end - size for end, size in zip(ends, sizes, strict=True)]
        # One tensor and one transfer for all four columns: a step costs 20 µs of Python per row already (benchmarks/LOG.md).
        columns = torch.tensor((indices, firsts, sources, shared_prefixes), dtype=torch.long)
        if ends[-1] > len(pieces):  # a piece has several tokens: repeat its columns, and count its positions up
            repeats = torch.tensor(sizes)
            columns = columns.repeat_interleave(repeats, 1)
            offsets_in_piece = torch.arange(ends[-1]) - torch.tensor(starts).repeat_interleave(repeats)
            columns[1] += offsets_in_piece
        pool = slots[0].pool
        longest = max(first + size for first, size in zip(firsts, sizes, strict=True))
        tokens = slice(first_token, first_token + ends[-1])
        return DecodeBatch(pool, tokens, *columns.to(pool.shape.device), longest=longest, starts=starts)

    @cached_property
    def addresses(self) -> list[int]:
        """Addresses of `rows`, `positions`, `sources` and `shared_prefixes`; each is contiguous."""
        return [column.data_ptr() for column in (self.rows, self.positions, self.sources, self.shared_prefixes)]

    @cached_property
    def num_keys(self) -> int:
        """Number of keys read per row."""
        if self.pool.shape.dtype != torch.float32:
            return self.pool.capacity
        return _rounded_keys(self.pool, self.longest)

    @cached_property
    def bias(self) -> torch.Tensor | None:
        """[B, keys] −∞ for keys after the token, else 0; None if every key is visible."""
        hidden = torch.arange(self.num_keys, device=self.rows.device) > self.positions[:, None]
        if not hidden.any():
            return None
        bias = torch.zeros(hidden.shape, dtype=self.pool.shape.dtype, device=hidden.device)
        return bias.masked_fill_(hidden, float("-inf"))


@dataclass
class PrefillBatch:
    """Prefill chunks of one pool, computed together. Token indices count from the first prefill token of the step."""

    pool: Pool
    slots: torch.Tensor
    """[B] rows in the pool."""
    padded_tokens: torch.Tensor
    """[B, n] token indices; padding repeats the first token."""
    padded_indices: torch.Tensor
    """[tokens] index of each token in the flattened [B · n]."""
    token_indices: torch.Tensor
    """[tokens] token indices without padding."""
    rows: torch.Tensor
    """[tokens] row of each token."""
    positions: torch.Tensor
    """[tokens] position of each token."""
    starts: torch.Tensor
    """[B] position of the first token of each chunk."""
    num_keys: int
    starts_at_zero: bool
    """Whether all chunks start at position 0, so that attention needs no cached keys."""

    @staticmethod
    def from_chunks(chunks: Sequence[Chunk], offsets: Sequence[int]) -> PrefillBatch:
        """Build the batch of chunks whose tokens start at `offsets`."""
        slots = [slot for chunk in chunks if (slot := chunk.seq.slot) is not None]
        pool, longest = slots[0].pool, max(chunk.size for chunk in chunks)
        padded_tokens: list[list[int]] = []
        padded_indices: list[int] = []
        token_indices: list[int] = []
        rows: list[int] = []
        positions: list[int] = []
        for i, (slot, (_, start, size), offset) in enumerate(zip(slots, chunks, offsets, strict=True)):
            tokens = range(offset, offset + size)
            # Outputs of padding are dropped (`padded_indices`), so any valid index serves as padding.
            padded_tokens.append([*tokens, *[offset] * (longest - size)])
            padded_indices += range(i * longest, i * longest + size)
            token_indices += tokens
            rows += [slot.index] * size
            positions += range(start, start + size)

        def tensor(values: Sequence[object]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.long, device=pool.shape.device)

        return PrefillBatch(
            pool,
            slots=tensor([slot.index for slot in slots]),
            padded_tokens=tensor(padded_tokens),
            padded_indices=tensor(padded_indices),
            token_indices=tensor(token_indices),
            rows=tensor(rows),
            positions=tensor(positions),
            starts=tensor([chunk.start for chunk in chunks]),
            num_keys=_rounded_keys(pool, max(chunk.start + chunk.size for chunk in chunks)),
            starts_at_zero=all(chunk.start == 0 for chunk in chunks),
        )


@dataclass
class Batch:
    """Tensors of one step."""

    ids: torch.Tensor
    """[N] token ids."""
    max_position: int
    """Largest position."""
    logit_tokens: torch.Tensor | None
    """Tokens whose logits are needed; None means all tokens."""
    decode_tokens: int
    """Number of decoded tokens."""
    decode: list[DecodeBatch]
    prefill: list[PrefillBatch]
    prefill_positions: torch.Tensor
    """[N − decode_tokens] positions of the prefill tokens."""
    adapter_tokens: list[AdapterTokens]
    """Tokens of each adapter; empty if only the base model is used."""

    @staticmethod
    def from_step(step: Step, shape: CacheShape, one_by_one: bool) -> Batch:
        """Build the tensors of a step whose decoded sequences are sorted by pool.

        With `one_by_one`, prefill tokens also attend one by one (with native kernels, that is faster than a padded matrix
        product).
        """
        decode = [Piece(slot, len(seq.tokens) - 1, 1) for seq in step.decode if (slot := seq.slot) is not None]
        chunks = [Piece(slot, start, size) for seq, start, size in step.chunks if (slot := seq.slot) is not None]
        ids = [seq.tokens[-1] for seq in step.decode]
        for seq, start, size in step.chunks:
            ids += seq.tokens[start : start + size]
        pieces = [*decode, *chunks]
        max_position = max(start + size for _, start, size in pieces) - 1
        ends = list(accumulate(size for _, _, size in pieces))
        decode_batches: list[DecodeBatch] = []
        count = 0
        for _, pool_pieces in groupby(pieces if one_by_one else decode, key=lambda piece: piece.slot.pool.capacity):
            decode_batches.append(DecodeBatch.from_pieces(list(pool_pieces), count))
            count = decode_batches[-1].tokens.stop
        prefill_batches: list[PrefillBatch] = []
        positions: list[int] = []
        if not one_by_one:
            offsets: dict[Chunk, int] = {}
            prefilled = 0
            for chunk in step.chunks:
                offsets[chunk] = prefilled
                prefilled += chunk.size
                positions += range(chunk.start, chunk.start + chunk.size)
            for group in _similar_chunks(step.chunks, shape.kv_heads):
                prefill_batches.append(PrefillBatch.from_chunks(group, [offsets[chunk] for chunk in group]))

        def tensor(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.long, device=shape.device)

        # The output head is the largest product of a small model: it runs on the last token of each piece alone.
        logit_tokens = None if len(pieces) == len(ids) else tensor([end - 1 for end in ends])
        owners = [(seq.adapter, 1) for seq in step.decode]
        owners += [(chunk.seq.adapter, chunk.size) for chunk in step.chunks]
        return Batch(
            tensor(ids),
            max_position,
            logit_tokens,
            count,
            decode_batches,
            prefill_batches,
            tensor(positions),
            AdapterTokens.from_owners(owners, shape.device),
        )


def _similar_chunks(chunks: Sequence[Chunk], heads: int) -> Iterator[list[Chunk]]:
    """Group chunks of one pool and similar length, so that at most half of a row is padding."""

    def kind(chunk: Chunk) -> tuple[int, bool]:
        assert chunk.seq.slot is not None
        return chunk.seq.slot.pool.capacity, chunk.start == 0

    group: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: (*kind(chunk), -chunk.size)):
        if group:
            capacity, _ = kind(chunk)
            scores = (len(group) + 1) * heads * group[0].size * capacity
            is_much_shorter = chunk.size * 2 < group[0].size
            if kind(group[0]) != kind(chunk) or is_much_shorter or scores > MAX_SCORES:
                yield group
                group = []
        group.append(chunk)
    if group:
        yield group
