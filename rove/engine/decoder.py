"""Forward pass of decoder-only models over the tokens of many sequences, of which some are decoded and some are prefilled.

It computes what the model's modules compute, with less overhead: projections of a layer that read the same input are one matrix
product, and only PyTorch's prefill attention pads. The model's parameters remain the source: joined and packed weights are copies
that include the model's PEFT adapter and are rebuilt after an update.

LFM2 has short convolutions in some layers. A convolution needs its layer's inputs at the last L − 1 positions. The
cache holds these inputs for every position, like the values for attention, so a sequence can continue from any position.

Axes: N tokens, H query heads, K key/value heads, d head size, T keys; of convolutions: n tokens of one pool, L kernel length, D
model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import embedding

from rove.engine.batch import Batch, PrefillBatch
from rove.engine.families import FAMILIES
from rove.engine.kv_cache import CacheShape, Pool
from rove.engine.lora import AdapterTokens, adapt
from rove.engine.ops import AttentionHeads, NativeOps, Ops, TorchOps, rotate_qkv
from rove.engine.scheduler import Chunk, Step
from rove.models.attention import attend_chunk
from rove.models.linear import effective_weight, linear, pack_weight


class Convolution(NamedTuple):
    """Weights of a convolution layer."""

    in_proj: torch.Tensor
    """[3 · D, D]: input gates, output gates, input."""
    in_proj_bias: torch.Tensor | None
    kernel: torch.Tensor
    """[L, D] in fp32, oldest position first; a depthwise convolution."""
    bias: torch.Tensor | None
    out_proj: torch.Tensor
    out_proj_bias: torch.Tensor | None

    @staticmethod
    def from_module(module: Any) -> Convolution:
        """Return the weights of a convolution module of transformers."""
        return Convolution(
            in_proj=pack_weight(effective_weight(module.in_proj)),
            in_proj_bias=module.in_proj.bias,
            kernel=module.conv.weight.detach()[:, 0].t().float().contiguous(),
            bias=module.conv.bias,
            out_proj=pack_weight(effective_weight(module.out_proj)),
            out_proj_bias=module.out_proj.bias,
        )


class ConvWindow(NamedTuple):
    """The convolution windows of the tokens of one pool."""

    pool: Pool
    tokens: torch.Tensor
    """[n] indices in the step."""
    rows: torch.Tensor
    """[n, 1] rows in the pool."""
    positions: torch.Tensor
    """[n, L] positions in the window, with the token's own position last; 0 before the start of the sequence."""
    outside: torch.Tensor
    """[n, L, 1] whether a position is before the start of the sequence."""

    @staticmethod
    def from_step(step: Step, length: int, device: torch.device) -> list[ConvWindow]:
        """Return one window per pool; tokens are counted in the order of the step, with decoded sequences first."""
        # Pool → (index in the step, row in the pool, position in the sequence) of each token.
        tokens_by_pool: dict[Pool, list[tuple[int, int, int]]] = {}
        decoded = [Chunk(seq, len(seq.tokens) - 1, 1) for seq in step.decode]
        first_token = 0
        for seq, start, size in [*decoded, *step.chunks]:
            assert seq.slot is not None
            row = seq.slot.index
            pool_tokens = tokens_by_pool.setdefault(seq.slot.pool, [])
            pool_tokens += [(first_token + i, row, start + i) for i in range(size)]
            first_token += size
        windows = []
        for pool, pool_tokens in tokens_by_pool.items():
            tokens, rows, last_positions = torch.tensor(pool_tokens, device=device).T
            positions = last_positions[:, None] + torch.arange(1 - length, 1, device=device)
            outside = (positions < 0)[..., None]
            windows.append(ConvWindow(pool, tokens, rows[:, None], positions.clamp(min=0), outside))
        return windows


def convolve(
    layer: int, weights: Convolution, x: torch.Tensor, windows: list[ConvWindow], adapted: Sequence[AdapterTokens] = ()
) -> torch.Tensor:
    """Write the inputs of a convolution layer to the cache, and return its output [N, D] for the normed x [N, D].

    Products are summed in fp32, as PyTorch's 16-bit convolutions do.
    """
    projected = adapt(linear(x, weights.in_proj, weights.in_proj_bias), x, adapted, (layer, "conv_in"))
    input_gate, output_gate, x = projected.chunk(3, dim=-1)
    x = input_gate * x
    mixed = torch.empty_like(x)
    for pool, tokens, rows, positions, outside in windows:
        # The cache keeps the inputs of all positions, not of the last L − 1: docs/decisions/convolution_cache.md.
        inputs = pool.values[layer][:, 0]
        inputs[rows[:, 0], positions[:, -1]] = x[tokens]
        window = inputs[rows, positions].masked_fill_(outside, 0)
        total = (window.float() * weights.kernel).sum(1)
        if weights.bias is not None:
            total = total + weights.bias
        mixed[tokens] = total.to(x.dtype)
    gated = output_gate * mixed
    return adapt(linear(gated, weights.out_proj, weights.out_proj_bias), gated, adapted, (layer, "conv_out"))


ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Types of rotary embeddings whose angles depend only on the position."""


class _Attention(NamedTuple):
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    head_norm: torch.Tensor | None
    """[H + K, d] weights of the query and key norms."""
    out: torch.Tensor
    out_bias: torch.Tensor | None
    rotates: bool
    """Whether the layer has rotary embeddings (SmolLM3 has layers without)."""


class _Layer(NamedTuple):
    norm: torch.Tensor
    mixer: _Attention | Convolution
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def supports(model: Any) -> bool:
    """Return whether `Decoder` computes exactly what this model defines."""
    config = model.config
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope_parameters = getattr(config, "rope_parameters", None) or {}
    if config.model_type not in FAMILIES or rope_parameters.get("rope_type", "default") not in ROPES:
        return False
    if not layer_types <= {"full_attention", "conv"}:
        return False
    # Mistral has no `layer_types`: a window in its config applies to all layers.
    if config.model_type == "mistral" and getattr(config, "sliding_window", None) is not None:
        return False
    return not getattr(config, "mlp_bias", False) and _activation(config) in ("silu", "gelu", "gelu_pytorch_tanh")


def _activation(config: object) -> str:
    return getattr(config, "hidden_act", "silu")  # LFM2 has no choice


class Decoder:
    """The forward pass of one model."""

    def __init__(self, model: Any, native: bool = True):
        config = model.config
        self.model = model
        self.names = FAMILIES[config.model_type]
        queries = config.num_attention_heads
        keys = getattr(config, "num_key_value_heads", None) or queries
        size = getattr(config, "head_dim", None) or config.hidden_size // queries
        eps = getattr(config, self.names.eps)
        self.heads = AttentionHeads(queries, keys, size, eps)
        self.ops = self._ops(native, eps)
        self.gemma = config.model_type == "gemma"
        self.kernel = getattr(config, "conv_L_cache", 0)
        kinds = getattr(config, "layer_types", None) or []
        self.shape = CacheShape(
            config.num_hidden_layers,
            keys,
            size,
            model.dtype,
            model.device,
            frozenset(i for i, kind in enumerate(kinds) if kind == "conv"),
            config.hidden_size,
            self.ops.block,
        )
        self._parameters = list(model.parameters())
        self._versions: tuple[tuple[int, int], ...] = ()
        self._layers: list[_Layer] = []
        self._norm = self._head = torch.empty(0)
        self._rotations = torch.zeros(0, size // 2, dtype=torch.complex64, device=model.device)
        self._no_rotation = self._rotations

    def _ops(self, native: bool, eps: float) -> Ops:
        activation, embeddings = _activation(self.model.config), self.model.get_input_embeddings().weight
        mlp = getattr(self.model.model.layers[0], self.names.mlp)
        mlp_width = getattr(mlp, self.names.up).weight.shape[0]
        widths = [embeddings.shape[1], mlp_width]
        ops = NativeOps.create(self.heads, eps, activation, widths, embeddings) if native else None
        return ops or TorchOps(self.heads, eps, activation)

    def refresh(self, force: bool = False) -> None:
        """Rebuild the joined weights if a parameter changed, or with `force` (fused optimizers do not increment version
        counters).
        """
        versions = tuple((p.data_ptr(), p._version) for p in self._parameters)
        if force or versions != self._versions:
            with torch.inference_mode():
                self._layers = [self._join_layer(layer) for layer in self.model.model.layers]
                self._norm = self._norm_weight(getattr(self.model.model, self.names.last_norm))
                self._head = pack_weight(self.model.lm_head.weight)
            self._versions = versions

    def release(self) -> None:
        """Free the joined weights; `refresh` builds them again."""
        self._layers, self._head, self._versions = [], torch.empty(0), ()

    def _join_layer(self, layer: Any) -> _Layer:
        names, mlp = self.names, getattr(layer, self.names.mlp)
        mixer = Convolution.from_module(layer.conv) if hasattr(layer, "conv") else self._join_attention(layer.self_attn)
        gate_up = [effective_weight(getattr(mlp, name)) for name in (names.gate, names.up)]
        return _Layer(
            norm=self._norm_weight(getattr(layer, names.mixer_norm)),
            mixer=mixer,
            mlp_norm=self._norm_weight(getattr(layer, names.mlp_norm)),
            gate_up=pack_weight(torch.cat(gate_up)),
            down=pack_weight(effective_weight(getattr(mlp, names.down))),
        )

    def _join_attention(self, attention: Any) -> _Attention:
        names = self.names
        rotated = [attention.q_proj, attention.k_proj]
        weights = [self.interleave_halves(effective_weight(projection)) for projection in rotated]
        weights.append(effective_weight(attention.v_proj))
        qkv_bias = None
        if attention.q_proj.bias is not None:
            biases = [self.interleave_halves(projection.bias) for projection in rotated]
            qkv_bias = torch.cat([*biases, attention.v_proj.bias])
        head_norm = None
        if hasattr(attention, names.query_norm):
            # The norm's weights per head are reordered like the heads that they multiply.
            query_norm = self.interleave_halves(self._norm_weight(getattr(attention, names.query_norm)))
            key_norm = self.interleave_halves(self._norm_weight(getattr(attention, names.key_norm)))
            head_norm = torch.cat([query_norm.expand(self.heads.queries, -1), key_norm.expand(self.heads.keys, -1)])
        out = getattr(attention, names.out)
        return _Attention(
            qkv=pack_weight(torch.cat(weights)),
            qkv_bias=qkv_bias,
            head_norm=head_norm,
            out=pack_weight(effective_weight(out)),
            out_bias=out.bias,
            rotates=bool(getattr(attention, "use_rope", True)),
        )

    def interleave_halves(self, weight: torch.Tensor) -> torch.Tensor:
        """Reorder the outputs of each head from (first half, second half) to pairs, so that a rotation is one complex product.

        Queries and keys are reordered alike, so their dot products do not change.
        """
        heads = weight.view(-1, 2, self.heads.size // 2, *weight.shape[1:])
        return heads.transpose(1, 2).reshape(weight.shape)

    def _norm_weight(self, norm: Any) -> torch.Tensor:
        # Gemma stores its norm weights minus 1, and adds the 1 in fp32.
        weight = norm.weight.float() + 1 if self.gemma else norm.weight.detach()
        return weight if self.ops.norm_dtype is None else weight.to(self.ops.norm_dtype)

    def _extend_rotations(self, max_position: int) -> None:
        """Compute the rotations of positions up to twice `max_position`, so that this call is rarely needed."""
        if max_position < len(self._rotations):
            return
        positions = torch.arange(max(256, 2 * max_position), device=self.shape.device)[None]
        cos, sin = self.model.model.rotary_emb(torch.zeros(1, device=self.shape.device), positions)
        half = self.heads.size // 2
        self._rotations = torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())
        self._no_rotation = torch.ones_like(self._rotations)

    def __call__(self, step: Step) -> torch.Tensor:
        """Compute a step: fill the cache and return logits [rows, V].

        There is a row for the last token of every decoded sequence and of every chunk, in the order of the step.
        """
        batch = Batch.from_step(step, self.shape, self.ops.takes_any_rows)
        x = embedding(batch.ids, self.model.model.embed_tokens.weight)
        if self.gemma:
            # Rounded to the model's type first, as transformers does.
            x = x * torch.tensor(self.model.config.hidden_size**0.5, dtype=x.dtype)
        self._extend_rotations(batch.max_position)
        windows = ConvWindow.from_step(step, self.kernel, self.shape.device) if self.shape.conv_layers else []
        adapters = batch.adapter_tokens
        # Each residual is added by the norm that follows it: one pass over memory instead of two.
        residual = None
        for i, layer in enumerate(self._layers):
            normed = self.ops.add_norm(x, residual, layer.norm)
            if isinstance(layer.mixer, Convolution):
                residual = convolve(i, layer.mixer, normed, windows, adapters)
            else:
                residual = self._attend(i, layer.mixer, normed, batch)
            normed = self.ops.add_norm(x, residual, layer.mlp_norm)
            gate_up = adapt(linear(normed, layer.gate_up), normed, adapters, (i, "gate_up"))
            gated = self.ops.gate(gate_up)
            residual = adapt(linear(gated, layer.down), gated, adapters, (i, "down"))
        if batch.logit_tokens is not None:
            x = x[batch.logit_tokens]
            if residual is not None:
                residual = residual[batch.logit_tokens]
        return linear(self.ops.add_norm(x, residual, self._norm), self._head, self.model.lm_head.bias)

    def _attend(self, i: int, layer: _Attention, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        qkv = adapt(linear(x, layer.qkv, layer.qkv_bias), x, batch.adapter_tokens, (i, "qkv"))
        qkv = qkv.view(len(x), -1, self.heads.size)
        angles = self._rotations if layer.rotates else self._no_rotation
        out = qkv.new_empty(len(x), self.heads.queries, self.heads.size)
        for part in batch.decode:
            self.ops.attend(i, qkv[part.tokens], layer.head_norm, angles, part, out[part.tokens])
        if batch.prefill:
            first = batch.decode_tokens
            prefill_angles = angles[batch.prefill_positions]
            query, key, value = rotate_qkv(qkv[first:], self.heads, layer.head_norm, prefill_angles)
            for part in batch.prefill:
                self._prefill(i, part, query, key, value, out[first:])
        flat = out.flatten(1)
        return adapt(linear(flat, layer.out, layer.out_bias), flat, batch.adapter_tokens, (i, "out"))

    def _prefill(
        self, i: int, part: PrefillBatch, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Write the keys and values of chunks to the cache, and the attention outputs of their tokens to `out`."""
        pool = part.pool
        pool.write(i, part.rows, part.positions, key[part.token_indices], value[part.token_indices])
        queries = query[part.padded_tokens]
        if part.starts_at_zero:  # `key` holds all keys already: reading them from the cache would copy its rows
            padded_out = attend_chunk(queries, key[part.padded_tokens], value[part.padded_tokens])
        else:
            # The pool keeps keys in blocks [R, K, blocks, d, positions per block]; attention takes them as [R, K, positions, d].
            keys = pool.first_keys(i, part.num_keys)[part.slots].transpose(-1, -2).flatten(2, 3)
            keys = keys[:, :, : part.num_keys]  # the last block may hold more positions
            values = pool.values[i][:, :, : part.num_keys][part.slots]
            padded_out = attend_chunk(queries, keys, values, part.starts)
        out[part.token_indices] = padded_out.flatten(0, 1)[part.padded_indices]
