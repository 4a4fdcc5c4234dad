"""Embedded engine: batched sampling from a transformers model in this process.

Requests join and leave between steps of one token (`rove.engine.scheduler`). Steps run on the event loop's thread and yield
between steps, so timeouts, tools and judges run in between. Batches depend on the order of requests and never on the clock, so
results repeat from run to run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from rove.core.errors import ConfigError, ModelError
from rove.core.protocols import Generation, OnToken, SamplingParams, Token, available_tokens
from rove.engine import decoder, lora, sampler
from rove.engine.constraints import Constraint, constraint_for, grammar_of
from rove.engine.grammar_check import GrammarChecker
from rove.engine.runners import FastRunner, Runner, SlowRunner
from rove.engine.sampler import Sampler, score_tokens
from rove.engine.scheduler import SequenceState
from rove.engine.stop_checker import StopChecker
from rove.models.load import context_of, copy_weights
from rove.models.weights import read_weights
from rove.rendering.renderer import Renderer


@dataclass(eq=False)
class GenerationRequest:
    """A request in the engine: its parameters, and the tokens sampled so far."""

    sampling: SamplingParams
    seed: int
    future: asyncio.Future[Generation]
    on_token: OnToken | None
    stop_checker: StopChecker
    constraint: Constraint | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    version_spans: list[tuple[int, int]] = field(default_factory=list)
    """(version of the weights, number of tokens) in order. Does not include the tokens sampled since the last weight update."""

    def close_version_span(self, version: int) -> None:
        """Attribute the tokens sampled since the last weight update to `version`."""
        new_tokens = len(self.ids) - sum(count for _, count in self.version_spans)
        if new_tokens and self.version_spans and self.version_spans[-1][0] == version:
            new_tokens += self.version_spans.pop()[1]
        if new_tokens:
            self.version_spans.append((version, new_tokens))

    def generation(self, version: int) -> Generation:
        """Return the result after the last token; `version` is the version of the weights that sampled this token."""
        checker = self.stop_checker
        self.close_version_span(version)
        return Generation(
            self.ids,
            self.logprobs,
            checker.reason or "stop",
            self.version_spans[0][0],
            top_logprobs=self.top_logprobs or None,
            text=checker.text if self.sampling.stop else None,
            stopped_by=checker.stopped_by,
            version_spans=self.version_spans if len(self.version_spans) > 1 else [],
        )


logger = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 512
CACHE_BYTES = 2 << 30
"""Default size of the KV cache. It is in bytes because a position takes 0.2 MB in a 0.6 B model and far less in a tiny one."""
GPU_CACHE_FRACTION, FREE_FRACTION = 0.25, 0.5
"""On an NVIDIA GPU, the KV cache may take a quarter of the memory, but at most half of the free memory, if this is more than
`CACHE_BYTES`."""
CHUNK_TOKENS, GPU_CHUNK_TOKENS = 1024, 2048
"""Maximum number of prompt tokens per step: enough for efficient matrix products, few enough for a low latency of running
requests."""
QUIET_PASSES = 4
"""Number of event loop passes without a new request before the next step; code between two model turns needs a few passes."""

PromptScores = tuple[list[float], list[list[tuple[int, float]]]]


def default_cache_bytes(device: torch.device) -> int:
    """Return the default size of the KV cache on a device."""
    if device.type != "cuda":
        return CACHE_BYTES
    free, total = torch.cuda.mem_get_info(device)
    return max(CACHE_BYTES, int(min(GPU_CACHE_FRACTION * total, FREE_FRACTION * free)))


class Engine:
    """Batched sampling with log-probabilities from a transformers model; an `InferenceEngine`.

    Args:
        max_batch: Maximum number of concurrent requests; further requests wait.
        cache_bytes: Maximum memory for the keys and values of running requests and of ended requests that may be
            continued. Default: see `default_cache_bytes`.
        chunk: Maximum prompt tokens per step. Default: 1,024, or 2,048 on an NVIDIA GPU.
        renderer: Renderer of the model; needed for stop strings and structured output.
        native: On a CPU, use C kernels if a compiler is available.
        in_flight_updates: Accept new weights while requests are running; the requests continue with the new weights.

    Example:
        engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids), renderer=loaded.renderer)
        generation = await engine.generate(prompt_ids, SamplingParams(temperature=0.7, max_tokens=64), seed=1)
    """

    def __init__(
        self,
        model: Any,
        stop_ids: Sequence[int],
        max_batch: int = 256,
        cache_bytes: int | None = None,
        chunk: int | None = None,
        renderer: Renderer | None = None,
        native: bool = True,
        in_flight_updates: bool = False,
    ):
        self.model = model
        self.in_flight_updates = in_flight_updates
        self.stop_ids = frozenset(stop_ids)
        self.renderer = renderer
        self.max_batch = max_batch
        self.policy_version = 0
        config = model.config.get_text_config()
        self.context = context_of(model)
        self.vocab = int(config.vocab_size)
        self._reset_sampler()
        self.check_grammars = False
        """Whether structured outputs are compiled in a worker process first, as a server for untrusted requests must."""
        self._grammar_checker: GrammarChecker | None = None
        self._scoring: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._scoring = weakref.WeakKeyDictionary()
        self._adapters: dict[str, lora.Adapter] = {}
        if cache_bytes is None:
            cache_bytes = default_cache_bytes(model.device)
        self._cache_bytes = cache_bytes
        if chunk is None:
            chunk = GPU_CHUNK_TOKENS if model.device.type == "cuda" else CHUNK_TOKENS
        self._num_requests = 0
        self._task: asyncio.Task[None] | None = None
        self.is_fast = decoder.supports(model)
        """Whether the model has the fast path: token-level batching and prefix reuse."""
        self._runner: Runner
        if self.is_fast:
            self._runner = FastRunner(model, max_batch, cache_bytes, chunk, native)
        else:
            self._runner = SlowRunner(model, max_batch, cache_bytes)
            logger.info(
                "%s has no fast path in rove's engine: prompts are recomputed every turn and batched "
                "only with prompts of equal length",
                config.model_type,
            )

    @property
    def computed_tokens(self) -> int:
        """Number of tokens computed so far."""
        return self._runner.computed_tokens

    @property
    def adapters(self) -> list[str]:
        """Names of the loaded adapters, in the order of their first loading."""
        return list(self._adapters)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int = 0,
        on_token: OnToken | None = None,
        adapter: str | None = None,
    ) -> Generation:
        """Sample a continuation.

        Args:
            prompt_ids: Prompt tokens. A prefix that is still in the cache is not computed again.
            sampling: Sampling parameters except `extra` (default: temperature 1, max_tokens 512; max_tokens 0 generates no
                tokens). `rove.engine.sampler` documents their order.
            seed: Seed of the request's random stream; equal requests with equal weights return equal tokens.
            on_token: Called on the event loop with every sampled token.
            adapter: Name of a loaded adapter; None means the base model. Requests with different adapters run in one batch but
                share no cache.
        """
        lora_adapter = None if adapter is None else lora.find_adapter(self._adapters, adapter)
        min_new_tokens = 0 if sampling.max_tokens == 0 else 1
        max_new_tokens = available_tokens(prompt_ids, self.vocab, self.context, min_new_tokens=min_new_tokens)
        _check_sampling(sampling, self.vocab, self.renderer is not None)
        constraint = await self._constraint_for(sampling)
        request, max_tokens = self._new_request(prompt_ids, sampling, seed, on_token, max_new_tokens, constraint)
        scored = None
        # Not for every request: a call of `_score_prompt`, which enters inference mode, took 2 to 3% of sampling.
        if sampling.prompt_logprobs is not None:
            lock = self._scoring.setdefault(asyncio.get_running_loop(), asyncio.Lock())
            async with lock:  # one prompt per pass of the event loop: other requests are answered in between
                scored = self._score_prompt(prompt_ids, sampling, lora_adapter)
                await asyncio.sleep(0)
        if max_tokens == 0:
            version = self.policy_version if lora_adapter is None else lora_adapter.version
            return _with_prompt_logprobs(Generation([], [], "length", version), scored, sampling)
        self._runner.submit(SequenceState(self._num_requests, list(prompt_ids), max_tokens, request, lora_adapter))
        self._num_requests += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())
        return _with_prompt_logprobs(await request.future, scored, sampling)

    async def _constraint_for(self, sampling: SamplingParams) -> Constraint | None:
        if self.renderer is None:
            return None
        tokenizer, stop_ids = self.renderer.tokenizer, sorted(self.stop_ids)
        if not self.check_grammars:
            return constraint_for(sampling, tokenizer, stop_ids)
        grammar = grammar_of(sampling)
        if grammar is None:
            return None
        if self._grammar_checker is None:
            self._grammar_checker = GrammarChecker(tokenizer, stop_ids)
        await self._grammar_checker.check(grammar)
        return await asyncio.to_thread(constraint_for, sampling, tokenizer, stop_ids)

    def _new_request(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        on_token: OnToken | None,
        max_new_tokens: int,
        constraint: Constraint | None,
    ) -> tuple[GenerationRequest, int]:
        """Return a request and its maximum number of sampled tokens."""
        requested_tokens = DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
        max_tokens = min(requested_tokens, max_new_tokens)
        # Without stop strings no text is decoded here: the client decodes whole completions, and caches them.
        renderer = self.renderer if sampling.stop else None
        if renderer is None:
            checker = StopChecker(sampling, max_tokens, self.stop_ids, constraint=constraint)
        else:
            checker = StopChecker(
                sampling, max_tokens, self.stop_ids, renderer.decode, constraint, prompt_ids, renderer.end_ids
            )
        future = asyncio.get_running_loop().create_future()
        return GenerationRequest(sampling, seed, future, on_token, checker, constraint), max_tokens

    @torch.inference_mode()
    def _score_prompt(
        self, prompt_ids: Sequence[int], params: SamplingParams, adapter: lora.Adapter | None
    ) -> PromptScores:
        """Return log-probabilities of the prompt tokens; the whole prompt is computed again for them."""
        needed_bytes = 8 * len(prompt_ids) * self.vocab  # logits and their logarithms in fp32
        if needed_bytes > self._cache_bytes:
            raise ConfigError(
                f"prompt_logprobs of {len(prompt_ids)} tokens needs {needed_bytes >> 20} MiB, the engine has "
                f"{self._cache_bytes >> 20} MiB: shorten the prompt, or give the engine more cache_bytes"
            )
        ids = torch.tensor([list(prompt_ids)], device=self.model.device)
        with lora.adapter_hooks(self.model, adapter):
            logits = self.model(input_ids=ids, use_cache=False).logits[0, :-1]
        return score_tokens(logits, ids[0, 1:], params.prompt_logprobs or 0)

    def score(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Return the log-probability of each of `ids[1:]` given the tokens before it."""
        tokens = torch.tensor([list(ids)], device=self.model.device)
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, use_cache=False).logits[0, :-1].float() / temperature
        return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0].tolist()

    def update_weights(self, version: int, weights: Mapping[str, torch.Tensor] | str | Path | None = None) -> None:
        """Load new weights and clear the cache. Loaded adapters remain and now change the new weights.

        With `in_flight_updates`, running requests continue: each token keeps the version that sampled it
        (`Generation.version_spans`). Their keys and values are kept, but no other request reuses them.

        Args:
            version: Version of the weights, recorded with every token sampled from now on.
            weights: Parameter name → tensor (also a `state_dict()` of a tied model), or a checkpoint folder; copied in place.
                None if the parameters were already changed in place.
        """
        self._drop_cancelled()
        active = self._runner.active()
        if active and not self.in_flight_updates:
            raise ConfigError(
                f"{len(active)} requests are running; expected none at update_weights: await or cancel them first, or create "
                "the engine with in_flight_updates=True"
            )
        if weights is not None:
            if not isinstance(weights, Mapping):
                weights = read_weights(weights, self.model)
            copy_weights(self.model, weights)
        for seq in active:
            if seq.adapter is None:  # tokens of an adapter carry the adapter's version
                seq.request.close_version_span(self.policy_version)
        self.policy_version = version
        self._runner.weights_changed()

    def load_adapter(self, name: str, source: lora.Source, version: int = 0) -> None:
        """Load a LoRA adapter, replacing a loaded adapter of the same name.

        Args:
            source: A folder written by PEFT, or `lora.PeftWeights`; copied.
            version: Version of the adapter, recorded with every token sampled with it.
        """
        if not name:
            raise ConfigError("the adapter name is empty; expected a name for requests to use")
        self._check_unused(name)
        loaded = self._runner.load_adapter(source, version)
        if name in self._adapters:
            self._runner.drop_adapter(self._adapters[name])
        self._adapters[name] = loaded

    def drop_adapter(self, name: str) -> None:
        """Unload an adapter and clear its cache."""
        dropped = lora.find_adapter(self._adapters, name)
        self._check_unused(name)
        self._runner.drop_adapter(dropped)
        del self._adapters[name]

    def _check_unused(self, name: str) -> None:
        self._drop_cancelled()
        adapter = self._adapters.get(name)
        if adapter is None:
            return
        active = len([seq for seq in self._runner.active() if seq.adapter is adapter])
        if active:
            raise ConfigError(
                f"{active} requests with the adapter '{name}' are running: await or cancel them before replacing or dropping it"
            )

    def release(self) -> None:
        """Free the keys and values of ended requests, and the copies of the weights; the next request makes new copies."""
        self._runner.clear_cache(release=True)
        if self._grammar_checker is not None:
            self._grammar_checker.close()

    async def _serve(self) -> None:
        # On the event loop's own thread: in another thread, batches and so rounding errors would depend on the clock, and a
        # resumed run would end with other weights (docs/decisions/waves.md).
        has_ended = True
        while self._runner.active():
            await self._yield_to_event_loop(has_ended)
            self._drop_cancelled()
            if not self._runner.active():
                return
            try:
                has_ended = self._step()
            except Exception as error:  # such as no memory: it concerns every request of the batch, but not later ones
                for seq in self._runner.drop_all():
                    _fail(seq, error)
                self._reset_sampler()

    async def _yield_to_event_loop(self, has_ended: bool) -> None:
        """Let other tasks run. After a request has ended, wait until the tasks have submitted their next requests, so that these
        requests share a batch.
        """
        await asyncio.sleep(0)
        quiet_passes = 1
        while has_ended and quiet_passes < QUIET_PASSES:
            num_requests = self._num_requests
            await asyncio.sleep(0)
            quiet_passes = quiet_passes + 1 if self._num_requests == num_requests else 0

    def _drop_cancelled(self) -> None:
        ended = [seq for seq in self._runner.active() if seq.request.future.done()]
        if ended:
            self._runner.finish(ended)

    @torch.inference_mode()
    def _step(self) -> bool:
        """Compute a step and deliver its tokens; return whether any request ended."""
        seqs, logits = self._runner.step()
        if not seqs:
            return False
        self._sync_sampler(seqs)
        generated = self._sampler.step(logits)
        sampled = zip(seqs, generated.ids.tolist(), generated.logprobs.tolist(), strict=True)
        ended: list[SequenceState] = []
        for i, (seq, token, logprob) in enumerate(sampled):
            if self._append_token(seq, token, logprob, generated.top.get(i)):
                ended.append(seq)
        if ended:
            self._runner.finish(ended)
        return bool(ended)

    def _reset_sampler(self) -> None:
        self._sampler = Sampler(self.vocab, sorted(self.stop_ids), self.model.device)
        self._sampler_rows: list[SequenceState] = []
        """Sequences of the sampler's rows, in the order of the rows."""

    def _sync_sampler(self, seqs: list[SequenceState]) -> None:
        """Bring the sampler's rows into the order of `seqs`. A preempted sequence returns with its earlier tokens."""
        if seqs == self._sampler_rows:
            return
        rows = {seq: row for row, seq in enumerate(self._sampler_rows)}
        new_rows: list[sampler.SamplerRow] = []
        for seq in seqs:
            if seq not in rows:
                rows[seq] = len(rows)
                request: GenerationRequest = seq.request
                prompt = seq.tokens[: seq.prompt_length]
                new_rows.append(
                    sampler.SamplerRow(request.sampling, request.seed, prompt, request.ids, request.constraint)
                )
        self._sampler.add(new_rows)
        self._sampler.keep([rows[seq] for seq in seqs])
        self._sampler_rows = seqs

    def _append_token(
        self, seq: SequenceState, token: int, logprob: float, top: list[tuple[int, float]] | None
    ) -> bool:
        """Deliver a token to a request; return whether it was the request's last token."""
        request: GenerationRequest = seq.request
        try:
            if not math.isfinite(logprob):
                raise ModelError(
                    "the model's probabilities are not finite: its weights are damaged, or training diverged"
                )
            request.ids.append(token)
            request.logprobs.append(logprob)
            if top is not None:
                request.top_logprobs.append(top)
            stop_reason = request.stop_checker.push(token)
            if request.on_token is not None:
                text = request.stop_checker.take_text() if request.sampling.stop else None
                request.on_token(Token(token, logprob, top, text))
        except Exception as error:  # of its callback or grammar: other requests of the batch continue
            _fail(seq, error)
            return True
        if stop_reason is None:
            seq.tokens.append(token)
        elif not request.future.done():
            version = seq.adapter.version if seq.adapter else self.policy_version
            request.future.set_result(request.generation(version))
        return stop_reason is not None


def _with_prompt_logprobs(generated: Generation, scored: PromptScores | None, sampling: SamplingParams) -> Generation:
    """Return the generation with log-probabilities of the prompt, if they were requested."""
    if scored is None:
        return generated
    logprobs, top_logprobs = scored
    requested_top = top_logprobs if sampling.prompt_logprobs else None
    return msgspec.structs.replace(generated, prompt_logprobs=logprobs, prompt_top_logprobs=requested_top)


def _fail(seq: SequenceState, error: Exception) -> None:
    if not seq.request.future.done():
        seq.request.future.set_exception(error)


def _check_sampling(params: SamplingParams, vocab: int, has_renderer: bool) -> None:
    if params.extra:
        raise ConfigError(
            f"the embedded engine does not support {', '.join(sorted(params.extra))}; expected arguments of "
            "rove.SamplingParams"
        )
    for name in ("logit_bias", "stop_token_ids"):
        unknown = [token for token in getattr(params, name) or () if not 0 <= token < vocab]
        if unknown:
            raise ConfigError(f"{name} is for the tokens {unknown}; expected ids from 0 to {vocab - 1}, the vocabulary")
    texts = [name for name in ("stop", "response_format", "structured_outputs") if getattr(params, name)]
    if texts and not has_renderer:
        raise ConfigError(f"{', '.join(texts)} needs the text of tokens: create the engine with the model's renderer")
