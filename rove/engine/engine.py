"""The embedded engine: samples many conversations together from a transformers model in this process.

Requests join and leave between steps of one token (`rove.engine.scheduler`). Steps run on the event loop's own thread, which
is free between them: timeouts fire, tools and judges answer. What is computed together depends on the order in which
requests arrive and never on the clock, so the order of everything stays the same from run to run.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from rove.core.errors import ConfigError, ModelError
from rove.core.protocols import Generation, OnToken, SamplingParams, Token, room_after
from rove.engine import decoder, lora, sampler
from rove.engine.constraints import Constraint, constraint_for
from rove.engine.runners import FastRunner, Runner, SlowRunner
from rove.engine.sampler import Sampler, score_tokens
from rove.engine.scheduler import SequenceState
from rove.engine.stop_checker import StopChecker
from rove.models.load import context_of, copy_weights, read_weights
from rove.rendering.renderer import Renderer


@dataclass(eq=False)
class GenerationRequest:
    """Who asked for a row, and what has been said so far."""

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
    """Versions of the weights, and how many tokens each has said, in their order; what was said since the last change is not yet
    here."""

    def close_version_span(self, version: int) -> None:
        """What was said since the weights last changed, was said with these."""
        said = len(self.ids) - sum(count for _, count in self.version_spans)
        if said and self.version_spans and self.version_spans[-1][0] == version:
            said += self.version_spans.pop()[1]
        if said:
            self.version_spans.append((version, said))

    def generation(self, version: int) -> Generation:
        """What was said, once it has ended; `version` are the weights that said the last token."""
        ending = self.stop_checker
        self.close_version_span(version)
        return Generation(
            self.ids,
            self.logprobs,
            ending.reason or "stop",
            self.version_spans[0][0],
            top_logprobs=self.top_logprobs or None,
            text=ending.text if self.sampling.stop else None,
            stopped_by=ending.stopped_by,
            version_spans=self.version_spans if len(self.version_spans) > 1 else [],
        )


logger = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 512
CACHE_BYTES = 2 << 30
"""Counted in positions, a cache that suits a tiny model fills a machine: one of a 0.6 B model takes 0.2 MB."""
CHUNK_TOKENS = 1024
"""Prompt tokens read in by one step: enough that matrix products are at their best, and the next tokens not far."""
QUIET_PASSES = 4
"""Passes of the event loop without a new request before the next step: code between two model turns needs a few."""

PromptScores = tuple[list[float], list[list[tuple[int, float]]]]


class Engine:
    """Batched sampling with log-probabilities from a transformers model; an `InferenceEngine`.

    Args:
        model: a causal language model prepared by `rove.models.load`.
        stop_ids: tokens that end a generation.
        max_batch: most requests under way; more wait.
        cache_bytes: most memory for keys and values: of requests under way, and of ended ones for their next turn.
        chunk: most prompt tokens read in between two sampled tokens of those under way.
        renderer: of the same model; only stop texts and structured output need one.
        native: on a CPU, use kernels that its C compiler makes for it, where there is one.
        in_flight: take new weights while requests are under way, too; they go on with them.
    """

    def __init__(
        self,
        model: Any,
        stop_ids: Sequence[int],
        max_batch: int = 256,
        cache_bytes: int = CACHE_BYTES,
        chunk: int = CHUNK_TOKENS,
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
        self._sampler = Sampler(self.vocab, sorted(self.stop_ids), model.device)
        self._adapters: dict[str, lora.Adapter] = {}
        self._sampler_rows: list[SequenceState] = []  # the sampler's rows, in its order
        self._cache_bytes = cache_bytes
        self._num_requests = 0
        self._task: asyncio.Task[None] | None = None
        self.is_fast = decoder.supports(model)
        """Whether requests are batched token by token, share prefixes and keep them."""
        self._runner: Runner
        if self.is_fast:
            self._runner = FastRunner(model, max_batch, cache_bytes, chunk, native)
        else:
            self._runner = SlowRunner(model, max_batch, cache_bytes)
            logger.info(
                "%s has no fast path in rove's engine: prompts are recomputed every turn, and batched only with others of their "
                "length",
                config.model_type,
            )

    @property
    def computed_tokens(self) -> int:
        """Tokens put through the model so far."""
        return self._runner.computed_tokens

    @property
    def adapters(self) -> list[str]:
        """Names of the adapters that are loaded, in the order they were first loaded in."""
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
            prompt_ids: the prompt. The part of it that this engine has seen before is found and not computed again.
            sampling: temperature (default 1), max_tokens (default 512; 0 generates nothing) and all else but `extra`; what it
                does to the distribution, tells `rove.engine.sampler`.
            seed: of this request's own random stream; the same request with the same weights gets the same tokens.
            on_token: called on the event loop with every sampled token.
            adapter: name of a loaded one, whose version the answer then has; None = the model as it is. Requests of all adapters
                and of none are computed together, and share nothing that was computed with another.

        Raises:
            OverlongPromptError: the prompt leaves no room in the model's context; with `max_tokens` 0 it may fill the context.
            ConfigError: a sampling argument the embedded engine does not have, an empty prompt, a token the model does not
                have, a form that cannot be, more keys and values than the cache can ever hold, or no such adapter.
            ModelError: the model's probabilities are no numbers, or the grammar of a structured output could not go on.
        """
        used = None if adapter is None else lora.find_adapter(self._adapters, adapter)
        room = room_after(prompt_ids, self.vocab, self.context, least=0 if sampling.max_tokens == 0 else 1)
        request, max_tokens = self._new_request(sampling, seed, on_token, room)
        scored = None if sampling.prompt_logprobs is None else self._score_prompt(prompt_ids, sampling, used)
        if max_tokens == 0:
            version = self.policy_version if used is None else used.version
            return _with_prompt_logprobs(Generation([], [], "length", version), scored, sampling)
        self._runner.submit(SequenceState(self._num_requests, list(prompt_ids), max_tokens, request, used))
        self._num_requests += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())
        return _with_prompt_logprobs(await request.future, scored, sampling)

    def _new_request(
        self, sampling: SamplingParams, seed: int, on_token: OnToken | None, room: int
    ) -> tuple[GenerationRequest, int]:
        """A request, and the most tokens that it may sample."""
        _check_sampling(sampling, self.vocab, self.renderer is not None)
        max_tokens = min(DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens, room)
        constraint = decode = None
        if self.renderer is not None:
            constraint = constraint_for(sampling, self.renderer.tokenizer, sorted(self.stop_ids))
            decode = self.renderer.decode if sampling.stop else None
        ending = StopChecker(sampling, max_tokens, self.stop_ids, decode, constraint)
        future = asyncio.get_running_loop().create_future()
        return GenerationRequest(sampling, seed, future, on_token, ending, constraint), max_tokens

    @torch.inference_mode()
    def _score_prompt(
        self, prompt_ids: Sequence[int], asked: SamplingParams, adapter: lora.Adapter | None
    ) -> PromptScores:
        """Log-probabilities of the prompt's tokens; all of it is computed afresh for them."""
        need = 8 * len(prompt_ids) * self.vocab
        if need > self._cache_bytes:
            raise ConfigError(
                f"prompt_logprobs of {len(prompt_ids)} tokens needs {need >> 20} MiB, the engine has "
                f"{self._cache_bytes >> 20} MiB: shorten the prompt, or give the engine more cache_bytes"
            )
        ids = torch.tensor([list(prompt_ids)], device=self.model.device)
        with lora.adapter_hooks(self.model, adapter):
            logits = self.model(input_ids=ids, use_cache=False).logits[0, :-1]
        return score_tokens(logits, ids[0, 1:], asked.prompt_logprobs or 0)

    def score(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each of `ids[1:]` given what precedes it."""
        tokens = torch.tensor([list(ids)], device=self.model.device)
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, use_cache=False).logits[0, :-1].float() / temperature
        return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0].tolist()

    def update_weights(self, version: int, weights: Mapping[str, torch.Tensor] | str | Path | None = None) -> None:
        """Take new weights and forget what was computed with the old ones. Adapters stay, on top of the new ones.

        With `in_flight` requests under way go on: what they have said stays, with the version that said it
        (`Generation.version_spans`), and so do the keys and values computed for them, which are of no use to others any more, not
        even to their own next turn.

        Args:
            version: written on every token sampled from now on.
            weights: parameter name → tensor (a `state_dict()` of a tied model, too), or a checkpoint's folder; copied in
                place. None when they were changed in place already.

        Raises:
            ConfigError: names or shapes do not match the model's, or requests are under way and the engine is not to take
                weights in flight (then await or cancel them first).
        """
        self._drop_cancelled()
        under_way = self._runner.active()
        if under_way and not self.in_flight_updates:
            raise ConfigError(
                f"{len(under_way)} requests are under way, and an answer has one version of the weights: "
                "await or cancel them before update_weights, or make the engine with in_flight"
            )
        if weights is not None:
            copy_weights(self.model, weights if isinstance(weights, Mapping) else read_weights(weights))
        for row in under_way:
            if row.adapter is None:
                row.request.said_with(self.policy_version)
        self.policy_version = version
        self._runner.weights_changed()

    def load_adapter(self, name: str, source: lora.Source, version: int = 0) -> None:
        """Load a LoRA adapter, or another one in place of that of the same name.

        Args:
            name: what `generate` calls it.
            source: a folder that PEFT has written, or `lora.PeftWeights`; copied. What it may hold, tells `lora.load`.
            version: written on every token sampled with it.

        Raises:
            ConfigError: it is not a plain LoRA of this model, the model has no fast path, the name is empty, or requests with
                this adapter are under way. The one that was loaded then stays.
        """
        if not name:
            raise ConfigError("the adapter's name is empty; expected what requests are to call it")
        self._check_unused(name)
        loaded = self._runner.load_adapter(source, version)
        if name in self._adapters:
            self._runner.drop_adapter(self._adapters[name])
        self._adapters[name] = loaded

    def drop_adapter(self, name: str) -> None:
        """Forget an adapter, and what was computed with it.

        Raises:
            ConfigError: there is none of this name, or requests with it are under way.
        """
        dropped = lora.find_adapter(self._adapters, name)
        self._check_unused(name)
        self._runner.drop_adapter(dropped)
        del self._adapters[name]

    def _check_unused(self, name: str) -> None:
        self._drop_cancelled()
        own = self._adapters.get(name)
        under_way = sum(own is not None and row.adapter is own for row in self._runner.active())
        if under_way:
            raise ConfigError(
                f"{under_way} requests with the adapter '{name}' are under way: await or cancel them before it is replaced or "
                "dropped"
            )

    def release(self) -> None:
        """Drop the keys and values kept of ended requests, and the memory they took."""
        self._runner.clear_cache(release=True)

    async def _serve(self) -> None:
        listen = True
        while self._runner.active():
            await self._yield_to_event_loop(listen)
            self._drop_cancelled()
            if not self._runner.active():
                return
            try:
                listen = self._step()
            except Exception as error:
                for row in self._runner.drop_all():
                    _fail(row, error)

    async def _yield_to_event_loop(self, listen: bool) -> None:
        """Let others run; after somebody was answered, until nobody has anything more to ask."""
        await asyncio.sleep(0)
        quiet = 1
        while listen and quiet < QUIET_PASSES:
            before = self._num_requests
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._num_requests == before else 0

    def _drop_cancelled(self) -> None:
        gone = [row for row in self._runner.active() if row.request.future.done()]
        if gone:
            self._runner.finish(gone)

    @torch.inference_mode()
    def _step(self) -> bool:
        """Compute one step and hand out its tokens; whether anybody was answered."""
        rows, logits = self._runner.step()
        if not rows:
            return False
        self._sync_sampler(rows)
        made = self._sampler.step(logits)
        told = zip(rows, made.ids.tolist(), made.logprobs.tolist(), strict=True)
        ended = [
            row
            for i, (row, token, logprob) in enumerate(told)
            if self._append_token(row, token, logprob, made.top.get(i))
        ]
        if ended:
            self._runner.finish(ended)
        return bool(ended)

    def _sync_sampler(self, rows: list[SequenceState]) -> None:
        """Bring the sampler's rows into this order; those who come back (from being set aside) bring what they have said."""
        if rows == self._sampler_rows:
            return
        places = {row: i for i, row in enumerate(self._sampler_rows)}
        new = [row for row in rows if row not in places]
        asked: list[GenerationRequest] = [row.request for row in new]
        self._sampler.add(
            [
                sampler.SamplerRow(
                    request.sampling, request.seed, row.tokens[: row.prompt_length], request.ids, request.constraint
                )
                for row, request in zip(new, asked, strict=True)
            ]
        )
        places |= {row: len(places) + i for i, row in enumerate(new)}
        self._sampler.keep([places[row] for row in rows])
        self._sampler_rows = rows

    def _append_token(
        self, row: SequenceState, token: int, logprob: float, top: list[tuple[int, float]] | None
    ) -> bool:
        """Give a row its token; whether that was its last."""
        request: GenerationRequest = row.request
        try:
            if not math.isfinite(logprob):
                raise ModelError(
                    "the model's probabilities are not finite numbers: its weights are damaged, or training diverged"
                )
            request.ids.append(token)
            request.logprobs.append(logprob)
            if top is not None:
                request.top_logprobs.append(top)
            ended = request.stop_checker.push(token)
            if request.on_token is not None:
                request.on_token(
                    Token(token, logprob, top, request.stop_checker.take_text() if request.sampling.stop else None)
                )
        except Exception as error:
            _fail(row, error)
            return True
        if ended is None:
            row.tokens.append(token)
        elif not request.future.done():
            request.future.set_result(request.generation(row.adapter.version if row.adapter else self.policy_version))
        return ended is not None


def _with_prompt_logprobs(made: Generation, scored: PromptScores | None, sampling: SamplingParams) -> Generation:
    """The generation with the prompt's log-probabilities, if they were requested."""
    if scored is None:
        return made
    logprobs, top = scored
    return msgspec.structs.replace(
        made, prompt_logprobs=logprobs, prompt_top_logprobs=top if sampling.prompt_logprobs else None
    )


def _fail(row: SequenceState, error: Exception) -> None:
    if not row.request.future.done():
        row.request.future.set_exception(error)


def _check_sampling(asked: SamplingParams, vocab: int, has_renderer: bool) -> None:
    if asked.extra:
        raise ConfigError(
            f"the embedded engine does not have {', '.join(sorted(asked.extra))}; expected arguments of rove.Sampling: "
            "leave the others out"
        )
    for name in ("logit_bias", "stop_token_ids"):
        unknown = [token for token in getattr(asked, name) or () if not 0 <= token < vocab]
        if unknown:
            raise ConfigError(f"{name} is for the tokens {unknown}; expected ids from 0 to {vocab - 1}, the vocabulary")
    texts = [name for name in ("stop", "response_format", "structured_outputs") if getattr(asked, name)]
    if texts and not has_renderer:
        raise ConfigError(f"{', '.join(texts)} needs the tokens' texts; build the engine with the model's renderer")
