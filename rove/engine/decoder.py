"""A forward pass for plain decoder models, over tokens of many sequences at once: some being decoded, some being read in.

The same arithmetic as the model's own modules, with less around it: the projections of a layer that read the same input are
one matrix product, and no token is padded, but by PyTorch's attention over what is read in. The model's weights stay the
truth: the joined and packed ones are copies, made again after an update. An adapter of PEFT inside the model is added to them.

Axes: N tokens, H query heads, K key/value heads, G = H / K, d head size, T keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn.functional import embedding

from rove.engine.batch import Batch, Read
from rove.engine.convolution import Convolution, Window, convolve
from rove.engine.families import FAMILIES
from rove.engine.kv_cache import Shape
from rove.engine.lora import adapt
from rove.engine.native import NativeOps
from rove.engine.ops import Heads, Ops, TorchOps, turned
from rove.engine.scheduler import Step
from rove.models.attention import attend_chunk
from rove.models.linear import effective_weight, linear, pack_weight

ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles depend on the position alone."""


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
        native: use kernels compiled for this processor, where they can be had.
    """

    def __init__(self, model: Any, native: bool = True):
        config = model.config
        self.model = model
        self.names = FAMILIES[config.model_type]
        queries = config.num_attention_heads
        keys = getattr(config, "num_key_value_heads", None) or queries
        size = getattr(config, "head_dim", None) or config.hidden_size // queries
        eps = getattr(config, self.names.eps)
        self.heads = Heads(queries, keys, size, eps)
        self.ops = self._ops(native, eps)
        self.gemma = config.model_type == "gemma"
        self.kernel = getattr(config, "conv_L_cache", 0)
        kinds = getattr(config, "layer_types", None) or []
        self.shape = Shape(
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
        self._turns = torch.zeros(0, size // 2, dtype=torch.complex64, device=model.device)
        self._still = self._turns

    def _ops(self, native: bool, eps: float) -> Ops:
        activation, weights = _activation(self.model.config), self.model.get_input_embeddings().weight
        mlp = getattr(self.model.model.layers[0], self.names.mlp)
        widths = [weights.shape[1], getattr(mlp, self.names.up).weight.shape[0]]
        ops = NativeOps.of(self.heads, eps, activation, widths, weights) if native else None
        return ops or TorchOps(self.heads, eps, activation)

    def refresh(self, force: bool = False) -> None:
        """Join the weights again if any of them was changed since, or if told to (fused optimizers leave no trace)."""
        versions = tuple((p.data_ptr(), p._version) for p in self._parameters)
        if force or versions != self._versions:
            with torch.inference_mode():
                self._layers = [self._join(layer) for layer in self.model.model.layers]
                self._norm = self._norm_weight(getattr(self.model.model, self.names.last_norm))
                self._head = pack_weight(self.model.lm_head.weight)
            self._versions = versions

    def _join(self, layer: Any) -> _Layer:
        names, mlp = self.names, getattr(layer, self.names.mlp)
        return _Layer(
            norm=self._norm_weight(getattr(layer, names.mixer_norm)),
            mixer=Convolution.of(layer.conv) if hasattr(layer, "conv") else self._join_attention(layer.self_attn),
            mlp_norm=self._norm_weight(getattr(layer, names.mlp_norm)),
            gate_up=pack_weight(torch.cat([effective_weight(getattr(mlp, name)) for name in (names.gate, names.up)])),
            down=pack_weight(effective_weight(getattr(mlp, names.down))),
        )

    def _join_attention(self, attention: Any) -> _Attention:
        names = self.names
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        weights = [self.paired(effective_weight(p)) for p in projections[:2]] + [effective_weight(projections[2])]
        bias = None
        if attention.q_proj.bias is not None:
            bias = torch.cat([self.paired(p.bias) for p in projections[:2]] + [projections[2].bias])
        head_norm = None
        if hasattr(attention, names.query_norm):
            norms = ((names.query_norm, self.heads.queries), (names.key_norm, self.heads.keys))
            head_norm = torch.cat(
                [self.paired(self._norm_weight(getattr(attention, name))).expand(heads, -1) for name, heads in norms]
            )
        out = getattr(attention, names.out)
        return _Attention(
            qkv=pack_weight(torch.cat(weights)),
            qkv_bias=bias,
            head_norm=head_norm,
            out=pack_weight(effective_weight(out)),
            out_bias=out.bias,
            rotates=bool(getattr(attention, "use_rope", True)),
        )

    def paired(self, weight: torch.Tensor) -> torch.Tensor:
        """Reorder each head's outputs from (first halves, second halves) to pairs, so that a rotation is one complex product.

        Queries and keys are reordered alike, which leaves their products as they were.
        """
        heads = weight.view(-1, 2, self.heads.size // 2, *weight.shape[1:])
        return heads.transpose(1, 2).reshape(weight.shape)

    def _norm_weight(self, norm: Any) -> torch.Tensor:
        weight = norm.weight.float() + 1 if self.gemma else norm.weight.detach()
        return weight if self.ops.norm_dtype is None else weight.to(self.ops.norm_dtype)

    def _reach(self, most: int) -> None:
        """Work out the angles of positions up to `most`."""
        if most < len(self._turns):
            return
        every = torch.arange(max(256, 2 * most), device=self.shape.device)[None]
        cos, sin = self.model.model.rotary_emb(torch.zeros(1, device=self.shape.device), every)
        half = self.heads.size // 2
        self._turns = torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())
        self._still = torch.ones_like(self._turns)

    def __call__(self, step: Step) -> torch.Tensor:
        """Compute a step: fills the cache, and returns the logits [rows, V] after the last token of every decoded row and of
        every chunk, in the step's order (decoded rows first)."""
        batch = Batch.of(step, self.shape, self.ops.anywhere)
        x = embedding(batch.ids, self.model.model.embed_tokens.weight)
        if self.gemma:
            x = x * torch.tensor(self.model.config.hidden_size**0.5, dtype=x.dtype)
        self._reach(batch.most)
        windows = Window.of(step, self.kernel, self.shape.device) if self.shape.convolutions else []
        more = None
        for i, layer in enumerate(self._layers):
            normed = self.ops.add_norm(x, more, layer.norm)
            if isinstance(layer.mixer, Convolution):
                more = convolve(i, layer.mixer, normed, windows, batch.adapted)
            else:
                more = self._attend(i, layer.mixer, normed, batch)
            normed = self.ops.add_norm(x, more, layer.mlp_norm)
            both = adapt(linear(normed, layer.gate_up), normed, batch.adapted, (i, "gate_up"))
            gated = self.ops.gate(both)
            more = adapt(linear(gated, layer.down), gated, batch.adapted, (i, "down"))
        if batch.last is not None:
            x, more = x[batch.last], more if more is None else more[batch.last]
        return linear(self.ops.add_norm(x, more, self._norm), self._head, self.model.lm_head.bias)

    def _attend(self, i: int, layer: _Attention, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        qkv = adapt(linear(x, layer.qkv, layer.qkv_bias), x, batch.adapted, (i, "qkv"))
        qkv = qkv.view(len(x), -1, self.heads.size)
        angles = self._turns if layer.rotates else self._still
        seen = qkv.new_empty(len(x), self.heads.queries, self.heads.size)
        for part in batch.decoded:
            self.ops.attend(i, qkv[part.tokens], layer.head_norm, angles, part, seen[part.tokens])
        if batch.read:
            first = batch.count
            turns = angles[batch.positions]
            query, key, value = turned(qkv[first:], self.heads, layer.head_norm, turns)
            for part in batch.read:
                self._read(i, part, query, key, value, seen[first:])
        flat = seen.flatten(1)
        return adapt(linear(flat, layer.out, layer.out_bias), flat, batch.adapted, (i, "out"))

    def _read(
        self, i: int, part: Read, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Put keys and values of chunks into the cache, and write what each token sees to `out`."""
        pool = part.pool
        pool.write(i, part.rows, part.places, key[part.where], value[part.where])
        if part.fresh:
            seen = attend_chunk(query[part.tokens], key[part.tokens], value[part.tokens])
        else:
            keys = pool.keys_to(i, part.keys)[part.slots].transpose(-1, -2).flatten(2, 3)
            values = pool.values[i][:, :, : part.keys][part.slots]
            seen = attend_chunk(query[part.tokens], keys[:, :, : part.keys], values, part.starts)
        out[part.where] = seen.flatten(0, 1)[part.back]
