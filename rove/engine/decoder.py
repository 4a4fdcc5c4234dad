"""A forward pass for plain decoder models, over tokens of many sequences at once: some being decoded, some being read in.

The same arithmetic as the model's own modules, with less around it: the projections of a layer that read the same input are
one matrix product, and no token is padded but in the attention of what is read in. The model's weights stay the truth: the
joined ones are copies, made again after an update.

Axes: N tokens, H query heads, K key/value heads, G = H / K, d head size, T keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import embedding, rms_norm

from rove.engine.convolution import Convolution, Window, convolve
from rove.engine.families import FAMILIES
from rove.engine.kv_cache import Pool, Shape
from rove.engine.scheduler import Chunk, Step
from rove.models.attention import attend_chunk, attend_decode
from rove.models.linear import linear

ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles depend on the position alone."""
KEYS_STEP = 32
"""Attention reads this many keys more or less: a new length every token would compile a new matrix product every token. In
16 bits it reads whole rows: PyTorch copies pieces of them before it multiplies, which costs more than the empty end."""
SCORES = 1 << 24
"""Most attention scores computed at once while reading in."""


class _Attention(NamedTuple):
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    head_norm: torch.Tensor | None
    """[H + K, d]: of queries and keys."""
    out: torch.Tensor
    out_bias: torch.Tensor | None
    rotates: bool
    """Whether queries and keys are turned by their positions."""


class _Layer(NamedTuple):
    norm: torch.Tensor
    mixer: _Attention | Convolution
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def supports(model: Any) -> bool:
    """Whether `Decoder` computes what this model means."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.model_type not in FAMILIES or rope not in ROPES or not kinds <= {"full_attention", "conv"}:
        return False
    if config.model_type == "mistral" and getattr(config, "sliding_window", None) is not None:
        return False
    return not getattr(config, "mlp_bias", False) and _activation(config) in ("silu", "gelu", "gelu_pytorch_tanh")


def _activation(config: Any) -> str:
    return getattr(config, "hidden_act", "silu")  # LFM2 has no choice


class Decoder:
    """The forward pass of one model.

    Args:
        model: a transformers model that `supports` accepts.
    """

    def __init__(self, model: Any):
        config = model.config
        self.model = model
        self.names = FAMILIES[config.model_type]
        self.heads = config.num_attention_heads
        self.kv_heads = getattr(config, "num_key_value_heads", None) or self.heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = getattr(config, self.names.eps)
        self.gemma = config.model_type == "gemma"
        self.kernel = getattr(config, "conv_L_cache", 0)
        kinds = getattr(config, "layer_types", None) or []
        self.shape = Shape(
            config.num_hidden_layers,
            self.kv_heads,
            self.size,
            model.dtype,
            model.device,
            frozenset(i for i, kind in enumerate(kinds) if kind == "conv"),
            config.hidden_size,
        )
        self._parameters = list(model.parameters())
        self._versions: tuple[tuple[int, int], ...] = ()
        self._layers: list[_Layer] = []
        self._turns = torch.zeros(0, self.size // 2, dtype=torch.complex64, device=model.device)

    def refresh(self, force: bool = False) -> None:
        """Join the weights again if any of them was changed since, or if told to (fused optimizers leave no trace)."""
        versions = tuple((p.data_ptr(), p._version) for p in self._parameters)
        if force or versions != self._versions:
            with torch.inference_mode():
                self._layers = [self._join(layer) for layer in self.model.model.layers]
            self._versions = versions

    def _join(self, layer: Any) -> _Layer:
        names, mlp = self.names, getattr(layer, self.names.mlp)
        return _Layer(
            norm=self._norm_weight(getattr(layer, names.mixer_norm)),
            mixer=Convolution.of(layer.conv) if hasattr(layer, "conv") else self._join_attention(layer.self_attn),
            mlp_norm=self._norm_weight(getattr(layer, names.mlp_norm)),
            gate_up=torch.cat([getattr(mlp, names.gate).weight, getattr(mlp, names.up).weight]),
            down=getattr(mlp, names.down).weight.detach(),
        )

    def _join_attention(self, attention: Any) -> _Attention:
        names = self.names
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        weights = [self._paired(p.weight) for p in projections[:2]] + [projections[2].weight]
        bias = None
        if attention.q_proj.bias is not None:
            bias = torch.cat([self._paired(p.bias) for p in projections[:2]] + [projections[2].bias])
        head_norm = None
        if hasattr(attention, names.query_norm):
            norms = ((names.query_norm, self.heads), (names.key_norm, self.kv_heads))
            head_norm = torch.cat(
                [self._paired(getattr(attention, name).weight).expand(heads, -1) for name, heads in norms]
            )
        out = getattr(attention, names.out)
        return _Attention(
            qkv=torch.cat(weights),
            qkv_bias=bias,
            head_norm=head_norm,
            out=out.weight.detach(),
            out_bias=out.bias,
            rotates=bool(getattr(attention, "use_rope", True)),
        )

    def _paired(self, weight: torch.Tensor) -> torch.Tensor:
        """Reorder each head's outputs from (first halves, second halves) to pairs, so that a rotation is one complex product.

        Queries and keys are reordered alike, which leaves their products as they were.
        """
        heads = weight.view(-1, 2, self.size // 2, *weight.shape[1:])
        return heads.transpose(1, 2).reshape(weight.shape)

    def _norm_weight(self, norm: Any) -> torch.Tensor:
        return norm.weight.float() + 1 if self.gemma else norm.weight.detach()

    def _rotations(self, positions: torch.Tensor, most: int) -> torch.Tensor:
        if most >= len(self._turns):
            rotary = self.model.model.rotary_emb
            every = torch.arange(max(256, 2 * most), device=positions.device)[None]
            cos, sin = rotary(torch.zeros(1, device=positions.device), every)
            self._turns = torch.complex(cos[0, :, : self.size // 2], sin[0, :, : self.size // 2])
        return self._turns[positions][:, None]

    def __call__(self, step: Step) -> torch.Tensor:
        """Compute a step: fills the cache, and returns the logits [rows, V] after the last token of every decoded row and of
        every chunk, in the step's order (decoded rows first)."""
        batch = Batch.of(step, self.shape)
        x = embedding(batch.ids, self.model.model.embed_tokens.weight)
        if self.gemma:
            x = x * torch.tensor(self.model.config.hidden_size**0.5, dtype=x.dtype)
        turns = self._rotations(batch.positions, batch.most)
        windows = Window.of(step, self.kernel, self.shape.device) if self.shape.convolutions else []
        for i, layer in enumerate(self._layers):
            x = self._layer(i, layer, x, turns, batch, windows)
        x = self._norm(x[batch.last], self._norm_weight(getattr(self.model.model, self.names.last_norm)))
        head = self.model.lm_head
        return linear(x, head.weight, head.bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.gemma:
            return rms_norm(x.float(), x.shape[-1:], weight, self.eps).to(x.dtype)
        return rms_norm(x, x.shape[-1:], weight, self.eps)

    def _layer(
        self, i: int, layer: _Layer, x: torch.Tensor, turns: torch.Tensor, batch: Batch, windows: list[Window]
    ) -> torch.Tensor:
        normed = self._norm(x, layer.norm)
        if isinstance(layer.mixer, Convolution):
            x = x + convolve(i, layer.mixer, normed, windows)
        else:
            x = x + self._attend(i, layer.mixer, normed, turns, batch)
        gate, up = linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return x + linear(self._act(gate) * up, layer.down)

    def _attend(self, i: int, layer: _Attention, x: torch.Tensor, turns: torch.Tensor, batch: Batch) -> torch.Tensor:
        turned = self.heads + self.kv_heads
        qkv = linear(x, layer.qkv, layer.qkv_bias).view(len(x), -1, self.size)
        qk, value = qkv[:, :turned], qkv[:, turned:]
        if layer.head_norm is not None:
            qk = rms_norm(qk, (self.size,), None, self.eps) * layer.head_norm
        turn = turns if layer.rotates else 1.0
        pairs = torch.view_as_complex(qk.float().unflatten(-1, (-1, 2)).contiguous())
        query = torch.view_as_real(pairs[:, : self.heads] * (turn * self.size**-0.5)).flatten(-2).to(x.dtype)
        key = torch.view_as_real(pairs[:, self.heads :] * turn).flatten(-2).to(x.dtype)
        seen = batch.attend(i, query, key, value)
        return linear(seen.flatten(1), layer.out, layer.out_bias)

    def _act(self, x: torch.Tensor) -> torch.Tensor:
        kind = _activation(self.model.config)
        if kind == "silu":
            return torch.nn.functional.silu(x)
        return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_pytorch_tanh" else "none")


@dataclass
class _Decoded:
    """The rows of a pool that are decoded, one token each."""

    pool: Pool
    start: int
    rows: torch.Tensor
    positions: torch.Tensor
    keys: int
    bias: torch.Tensor | None
    """[B, T] −∞ on what a row does not see, else 0; None when all see everything."""


@dataclass
class _Read:
    """Chunks of a pool, attended to together."""

    pool: Pool
    slots: torch.Tensor
    tokens: torch.Tensor
    """[B, n] where their tokens are in the step; padded with any."""
    back: torch.Tensor
    """Where the step's tokens are in the flattened [B · n]."""
    where: torch.Tensor
    """The step's tokens."""
    starts: torch.Tensor
    keys: int
    fresh: bool
    """All start at position 0."""


@dataclass
class Batch:
    """The tensors of one step."""

    ids: torch.Tensor
    positions: torch.Tensor
    most: int
    last: torch.Tensor
    decoded: list[_Decoded]
    read: list[_Read]
    writes: list[tuple[Pool, slice, torch.Tensor, torch.Tensor]]

    @staticmethod
    def of(step: Step, shape: Shape) -> Batch:
        """Lay a step out; its decoded rows must be in the order of pools and slots."""
        device = shape.device
        ids = [row.tokens[-1] for row in step.decode]
        positions = [len(row.tokens) - 1 for row in step.decode]
        last = list(range(len(ids)))
        none = torch.empty(0)
        batch = Batch(none, none, 0, none, [], [], [])
        start = 0
        while start < len(step.decode):
            slot = step.decode[start].slot
            assert slot is not None
            count = slot.pool.decoding
            batch._add_decoded(slot.pool, start, positions[start : start + count], device)
            start += count
        offsets = {}
        for chunk in step.chunks:
            offsets[chunk] = len(ids)
            ids += chunk.row.tokens[chunk.start : chunk.start + chunk.size]
            positions += range(chunk.start, chunk.start + chunk.size)
            last.append(len(ids) - 1)
        heads = shape.heads
        for group in _groups(step.chunks, heads):
            batch._add_read(group, [offsets[chunk] for chunk in group], device)
        batch.ids, batch.positions, batch.last = (torch.tensor(x, device=device) for x in (ids, positions, last))
        batch.most = max(positions)
        return batch

    def _add_decoded(self, pool: Pool, start: int, positions: list[int], device: torch.device) -> None:
        most = max(positions) + 1
        keys = pool.capacity
        if pool.shape.dtype == torch.float32:
            keys = min(keys, -(-most // KEYS_STEP) * KEYS_STEP)
        places = torch.tensor(positions, device=device)
        bias = None
        if min(positions) + 1 < keys:
            hidden = torch.arange(keys, device=device) > places[:, None]
            bias = torch.zeros(hidden.shape, dtype=pool.shape.dtype, device=device).masked_fill_(hidden, float("-inf"))
        rows = torch.arange(pool.first, pool.first + len(positions), device=device)
        self.decoded.append(_Decoded(pool, start, rows, places, keys, bias))
        self.writes.append((pool, slice(start, start + len(positions)), rows, places))

    def _add_read(self, chunks: Sequence[Chunk], offsets: Sequence[int], device: torch.device) -> None:
        longest = max(chunk.size for chunk in chunks)
        slots = [chunk.row.slot for chunk in chunks]
        assert slots[0] is not None
        pool = slots[0].pool
        indices = [slot.index for slot in slots if slot is not None]
        tokens = [[*range(o, o + c.size), *[o] * (longest - c.size)] for c, o in zip(chunks, offsets, strict=True)]
        back = [b * longest + i for b, chunk in enumerate(chunks) for i in range(chunk.size)]
        where = [o + i for chunk, o in zip(chunks, offsets, strict=True) for i in range(chunk.size)]
        keys = max(chunk.start + chunk.size for chunk in chunks)
        self.read.append(
            _Read(
                pool,
                torch.tensor(indices, device=device),
                torch.tensor(tokens, device=device),
                torch.tensor(back, device=device),
                torch.tensor(where, device=device),
                torch.tensor([chunk.start for chunk in chunks], device=device),
                min(pool.capacity, -(-keys // KEYS_STEP) * KEYS_STEP),
                all(chunk.start == 0 for chunk in chunks),
            )
        )
        for index, chunk, offset in zip(indices, chunks, offsets, strict=True):
            places = torch.arange(chunk.start, chunk.start + chunk.size, device=device)
            row = torch.tensor([index], device=device)
            self.writes.append((pool, slice(offset, offset + chunk.size), row, places))

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Write the keys and values [N, K, d]; what each query [N, H, d], scaled already, sees: [N, H, d]."""
        for pool, tokens, rows, places in self.writes:
            pool.keys[layer][rows, :, :, places] = key[tokens]
            pool.values[layer][rows, :, places] = value[tokens]
        whole = self.decoded[0].pool.decoding == len(query) if len(self.decoded) == 1 else False
        out = None if whole else torch.empty_like(query)
        for part in self.decoded:
            pool, count = part.pool, len(part.rows)
            keys = pool.keys[layer][pool.first : pool.first + count, :, :, : part.keys]
            values = pool.values[layer][pool.first : pool.first + count, :, : part.keys]
            seen = attend_decode(query[part.start : part.start + count], keys, values, part.bias)
            if out is None:
                return seen
            out[part.start : part.start + count] = seen
        assert out is not None
        for part in self.read:
            seen = self._read(layer, part, query, key, value)
            out[part.where] = seen.flatten(0, 1)[part.back]
        return out

    def _read(
        self, layer: int, part: _Read, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        if part.fresh:
            return attend_chunk(query[part.tokens], key[part.tokens], value[part.tokens])
        keys = part.pool.keys[layer][:, :, :, : part.keys][part.slots]
        values = part.pool.values[layer][:, :, : part.keys][part.slots]
        return attend_chunk(query[part.tokens], keys.transpose(-1, -2), values, part.starts)


def _groups(chunks: Sequence[Chunk], heads: int) -> Iterator[list[Chunk]]:
    """Chunks of one pool and of similar length, so that little is padded."""

    def kind(chunk: Chunk) -> tuple[int, bool]:
        assert chunk.row.slot is not None
        return chunk.row.slot.pool.capacity, chunk.start == 0

    group: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: (*kind(chunk), -chunk.size)):
        if group:
            scores = (len(group) + 1) * heads * group[0].size * kind(chunk)[0]
            if kind(group[0]) != kind(chunk) or chunk.size * 2 < group[0].size or scores > SCORES:
                yield group
                group = []
        group.append(chunk)
    if group:
        yield group
