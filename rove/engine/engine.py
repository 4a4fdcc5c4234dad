"""The embedded engine: samples many conversations together from a transformers model in this process.

Requests that arrive while the event loop is busy form one wave: their prompts are prefilled (equal ones once), then all
rows are decoded together, finished rows leaving the batch. Keys and values of a finished turn are kept, so that the next
turn of its conversation pays only for its new tokens. Waves run on the event loop's own thread: with one model on few cores
there is nothing to overlap, and the order of everything stays the same from run to run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rove.engine.kv_cache import BatchCache, KVStore
from rove.engine.sampling import sample
from rove.errors import ConfigError, ModelError, OverlongPromptError
from rove.protocols import Generation, Sampling

logger = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 512
CACHE_BYTES = 2 << 30
"""Counted in positions, a cache that suits a tiny model fills a machine: one of a 0.6 B model takes 0.2 MB."""
QUIET_PASSES = 4
"""Passes of the event loop without a new request before a wave starts: code between two model turns needs a few."""


@dataclass(eq=False)
class _Row:
    """One request under way."""

    prompt: list[int]
    known: int
    temperature: float
    max_tokens: int
    seed: int
    future: asyncio.Future[Generation]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Engine:
    """Batched sampling with log-probabilities from a transformers model; an `InferenceEngine`.

    Args:
        model: a causal language model prepared by `rove.models.load`.
        stop_ids: tokens that end a generation.
        max_batch: most rows decoded together.
        max_cached_tokens: positions of finished turns kept for their next turn; by default what fits in `CACHE_BYTES`.
    """

    def __init__(self, model: Any, stop_ids: Sequence[int], max_batch: int = 256, max_cached_tokens: int | None = None):
        self.model = model
        self.stop_ids = frozenset(stop_ids)
        self.max_batch = max_batch
        self.policy_version = 0
        self.context = int(getattr(model.config, "max_position_embeddings", 1 << 30))
        self._pending: list[_Row] = []
        self._runner: asyncio.Task[None] | None = None
        self._cached = _has_only_attention(model)
        if max_cached_tokens is None:
            max_cached_tokens = CACHE_BYTES // self._new_cache(1, 1).kv.nbytes if self._cached else 0
        self._store = KVStore(max_cached_tokens)
        if not self._cached:
            logger.info("%s has layers without a fast path: prompts are recomputed every turn", model.config.model_type)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, seed: int = 0, known: int = 0
    ) -> Generation:
        """Sample a continuation.

        Args:
            prompt_ids: the prompt.
            sampling: temperature (default 1) and max_tokens (default 512); anything else is refused.
            seed: of this request's own random stream; the same request with the same weights gets the same tokens.
            known: length of the leading part of the prompt that this engine has seen before (0: none).

        Raises:
            OverlongPromptError: the prompt leaves no room in the model's context.
            ConfigError: a sampling argument the embedded engine does not have, or an empty prompt.
        """
        _refuse_unsupported(sampling)
        if len(prompt_ids) == 0:
            raise ConfigError("the prompt has no tokens; a model needs at least one to start from")
        room = self.context - len(prompt_ids)
        if room < 1:
            raise OverlongPromptError(f"the prompt has {len(prompt_ids)} tokens, the model's context {self.context}")
        row = _Row(
            prompt=list(prompt_ids),
            known=min(known, len(prompt_ids) - 1),  # the last one's logits are needed in any case
            temperature=1.0 if sampling.temperature is None else sampling.temperature,
            max_tokens=min(sampling.max_tokens or DEFAULT_MAX_TOKENS, room),
            seed=seed % (1 << 63),  # what an int64 tensor holds
            future=asyncio.get_running_loop().create_future(),
        )
        self._pending.append(row)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._serve())
        return await row.future

    def score(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each of `ids[1:]` given what precedes it."""
        tokens = torch.tensor([list(ids)], device=self.model.device)
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, use_cache=False).logits[0, :-1].float() / temperature
        return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0].tolist()

    def update_weights(self, version: int, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Take new weights and forget what was computed with the old ones.

        Args:
            version: written on every token sampled from now on.
            weights: parameter name → tensor, copied in place; None when they were changed in place already.

        Raises:
            ConfigError: names or shapes do not match the model's.
        """
        if weights is not None:
            parameters = dict(self.model.named_parameters())
            if parameters.keys() != weights.keys():
                raise ConfigError(f"weights do not match the model: {sorted(parameters.keys() ^ weights.keys())[:5]} …")
            misshapen = [name for name, parameter in parameters.items() if weights[name].shape != parameter.shape]
            if misshapen:
                raise ConfigError(f"weights do not match the model: other shapes of {misshapen[:5]}")
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(weights[name])
        self.policy_version = version
        self._store.clear()

    async def _serve(self) -> None:
        while self._pending:
            quiet = 0
            while quiet < QUIET_PASSES and len(self._pending) < self.max_batch:
                waiting = len(self._pending)
                await asyncio.sleep(0)
                quiet = quiet + 1 if len(self._pending) == waiting else 0
            wave = [row for row in self._pending[: self.max_batch] if not row.future.cancelled()]
            del self._pending[: self.max_batch]
            try:
                self._run_wave(wave)
            except Exception as error:
                for row in wave:
                    if not row.future.done():
                        row.future.set_exception(error)

    @torch.inference_mode()
    def _run_wave(self, wave: list[_Row]) -> None:
        if self._cached:
            if wave:
                self._decode(*self._prefill(wave))
        else:
            for batch in _by_length(wave):
                self._decode_uncached(batch)

    def _prefill(self, wave: list[_Row]) -> tuple[list[_Row], BatchCache, torch.Tensor]:
        """Prompts into one cache; returns the rows in the cache's order, the cache, and each row's next-token logits."""
        stored = {id(row): self._store.take(row.prompt[: row.known]) for row in wave if row.known}
        fresh = [row for row in wave if stored.get(id(row)) is None]
        going_on = [row for row in wave if stored.get(id(row)) is not None]
        rows = fresh + going_on
        unique: dict[tuple[int, ...], int] = {}
        order = [unique.setdefault(tuple(row.prompt), len(unique)) for row in fresh]
        longest = max(len(row.prompt) for row in rows)
        cache = self._new_cache(len(rows), longest + min(64, max(row.max_tokens for row in rows)))
        logits = []
        if fresh:
            prompts = [list(prompt) for prompt in unique]
            part = self._new_cache(len(prompts), max(map(len, prompts)))
            last = self._forward_prompts(part, prompts, [0] * len(prompts))
            which = torch.tensor(order, device=self.model.device)
            cache.kv[:, :, : len(fresh), :, : part.kv.shape[4]] = part.kv.index_select(2, which)
            cache.used = part.used
            logits.append(last[which])
        if going_on:
            part = cache.rows(len(fresh), len(rows))
            for i, row in enumerate(going_on):
                kept = stored[id(row)]
                assert kept is not None
                part.kv[:, :, i, :, : row.known] = kept
            logits.append(
                self._forward_prompts(part, [r.prompt[r.known :] for r in going_on], [r.known for r in going_on])
            )
            if part.kv.shape[4] > cache.kv.shape[4]:
                cache._grow(part.kv.shape[4] - cache.kv.shape[4])
                cache.kv[:, :, len(fresh) :, :, : part.kv.shape[4]] = part.kv
        return rows, cache, torch.cat(logits)

    def _new_cache(self, rows: int, capacity: int) -> BatchCache:
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return BatchCache(config.num_hidden_layers, rows, heads, size, capacity, self.model.dtype, self.model.device)

    def _forward_prompts(self, cache: BatchCache, prompts: list[list[int]], offsets: list[int]) -> torch.Tensor:
        """Run each row's new tokens through the model; returns the logits [B, V] after each row's last one."""
        device = self.model.device
        longest = max(map(len, prompts))
        ids = torch.tensor([p + [0] * (longest - len(p)) for p in prompts], device=device)
        positions = torch.tensor(offsets, device=device)[:, None] + torch.arange(longest, device=device)
        mask = cache.place(positions)
        ends = torch.tensor([len(p) - 1 for p in prompts], device=device)
        needed, where = ends.unique(return_inverse=True)
        out = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=needed,
        )
        return out.logits[torch.arange(len(prompts), device=device), where]

    def _decode(self, rows: list[_Row], cache: BatchCache, logits: torch.Tensor) -> None:
        """Sample until every row has ended, dropping ended rows from the batch when a quarter of it has."""
        device = self.model.device
        lengths = torch.tensor([len(row.prompt) for row in rows], device=device)
        seeds = torch.tensor([row.seed for row in rows], device=device)
        temperature = torch.tensor([row.temperature for row in rows], device=device)
        alive = list(range(len(rows)))
        position = torch.zeros_like(seeds)
        while True:
            ids, logprobs = _sample(logits, temperature, seeds, position)
            alive = self._take(rows, alive, ids.tolist(), logprobs.tolist(), cache)
            if not alive:
                return
            if len(alive) <= 0.75 * len(rows):
                keep = torch.tensor(alive, device=device)
                cache.keep(keep)
                rows = [rows[i] for i in alive]
                ids, lengths, seeds, temperature, position = (
                    x[keep] for x in (ids, lengths, seeds, temperature, position)
                )
                alive = list(range(len(rows)))
            positions = lengths[:, None]
            mask = cache.place(positions)
            logits = self.model(
                input_ids=ids[:, None],
                position_ids=positions,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1]
            lengths = lengths + 1
            position = position + 1

    def _take(
        self, rows: list[_Row], alive: list[int], ids: list[int], logprobs: list[float], cache: BatchCache
    ) -> list[int]:
        """Give each living row its sampled token; finish those that end; return those that go on."""
        going_on = []
        for i in alive:
            row = rows[i]
            if self._ended(row, ids[i], logprobs[i]):
                done = row.prompt + row.ids[:-1]
                self._store.put(done, cache.kv[:, :, i, :, : len(done)].clone())
            else:
                going_on.append(i)
        return going_on

    def _ended(self, row: _Row, token: int, logprob: float) -> bool:
        row.ids.append(token)
        row.logprobs.append(logprob)
        stopped = token in self.stop_ids
        if not stopped and len(row.ids) < row.max_tokens:
            return False
        if not row.future.done():
            reason = "stop" if stopped else "length"
            row.future.set_result(Generation(row.ids, row.logprobs, reason, self.policy_version))
        return True

    def _decode_uncached(self, rows: list[_Row]) -> None:
        """Prompts of one length through the model's own cache: right for any architecture, without reuse between turns."""
        device = self.model.device
        ids = torch.tensor([row.prompt for row in rows], device=device)
        seeds = torch.tensor([row.seed for row in rows], device=device)
        temperature = torch.tensor([row.temperature for row in rows], device=device)
        cache, alive = None, set(range(len(rows)))
        for position in range(max(row.max_tokens for row in rows)):
            out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            sampled, logprobs = _sample(out.logits[:, -1], temperature, seeds, torch.full_like(seeds, position))
            values = list(zip(sampled.tolist(), logprobs.tolist(), strict=True))
            alive -= {i for i in alive if self._ended(rows[i], *values[i])}
            if not alive:
                return
            ids = sampled[:, None]


def _has_only_attention(model: Any) -> bool:
    """Whether every layer is plain full attention over all that came before, in rove's attention function."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    ours = getattr(config, "_attn_implementation", None) == "rove"
    return ours and kinds == {"full_attention"} and config.model_type in {"llama", "qwen2", "qwen3", "mistral"}


def _sample(
    logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, position: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    ids, logprobs = sample(logits, temperature, seeds, position)
    if not bool(torch.isfinite(logprobs).all()):
        raise ModelError(
            "the model's probabilities are not finite numbers: its weights are damaged, or training diverged"
        )
    return ids, logprobs


def _by_length(rows: list[_Row]) -> Iterator[list[_Row]]:
    lengths: dict[int, list[_Row]] = {}
    for row in rows:
        lengths.setdefault(len(row.prompt), []).append(row)
    yield from lengths.values()


def _refuse_unsupported(sampling: Sampling) -> None:
    given = [name for name in ("top_p", "stop") if getattr(sampling, name) is not None] + sorted(sampling.extra)
    if given:
        raise ConfigError(f"the embedded engine does not have {', '.join(given)}; it has temperature and max_tokens")
