"""Servers of vLLM as an engine: token ids in, token ids and log-probabilities out, weights replaced while they live.

Written against vLLM 0.32 (`/inference/v1/generate`); all that knows its HTTP is here, in `rove.vllm.fleet` (how servers get
weights), `rove.vllm.router` and `rove.vllm.server`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from rove.core.errors import ConfigError, InfraError, ModelError
from rove.core.protocols import Generation, OnToken, SamplingParams, Token, room_after
from rove.engine.stop_checker import StopChecker, end_token_ids
from rove.rendering.renderer import Renderer
from rove.vllm.fleet import Fleet, ServedWeights
from rove.vllm.responses import ParityCheck, parse_generation, prompt_logprobs
from rove.vllm.router import HealthMonitor, Router
from rove.vllm.server import Server, VLLMConfig

DEFAULT_MAX_TOKENS = 512
MAX_ATTEMPTS = 4
"""Of a request that a server fails although it runs."""
BACKOFF_S = 1.0
SUPPORTED = (
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "stop",
)
UNSUPPORTED = ("response_format", "structured_outputs", "logit_bias", "extra")


class VLLMEngine:
    """One or several servers of vLLM, all with the same weights; an `InferenceEngine`.

    Requests are spread over them, a rollout's next turn going where the last one was answered. A server that was started here and
    dies, or hangs, is started anew with the newest weights, and asked again.

    Args:
        config: settings.
        folder: for logs and weights; servers must see it under this path.
        stop_ids: tokens that end a generation.
        context: most tokens of prompt and answer together.
        vocab: tokens the model has.
        max_batch: how many requests it likes to have under way.
        renderer: of the same model; for stop texts.
    """

    def __init__(
        self,
        config: VLLMConfig,
        folder: Path,
        stop_ids: Sequence[int],
        context: int,
        vocab: int,
        max_batch: int = 256,
        renderer: Renderer | None = None,
    ):
        self.folder = folder.resolve()
        self.stop_ids = frozenset(stop_ids)
        self.vocab = vocab
        self.max_batch = max_batch
        self.renderer = renderer
        self.adapters: list[str] = []
        """None to choose from: there is one at most, and it is part of the weights."""
        self.fleet = Fleet(config, self.folder, context)
        self._router = Router(self.fleet.servers)
        self._monitors = [HealthMonitor(server, partial(self.fleet.is_busy, server)) for server in self.fleet.servers]
        self._restarting: dict[int, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._requests_allowed = asyncio.Event()  # not while weights are replaced beside requests
        self._requests_allowed.set()

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.fleet.context

    @property
    def policy_version(self) -> int:
        """Of the newest weights."""
        return self.fleet.version

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
            prompt_ids: the prompt.
            sampling: all but structured output, `logit_bias` and `extra`.
            seed: not passed on: vLLM draws from one stream for all (0.32 on a CPU dies of seeds where it cuts a prompt up).
            on_token: called with every token, when the last one is there.
            adapter: there are none here.

        Raises:
            OverlongPromptError: the prompt leaves no room in the model's context.
            ConfigError: a sampling argument that is not passed on, an empty prompt, a token the model does not have.
            ModelError: the model's probabilities are no numbers.
            InfraError: no server answers.
        """
        await self._requests_allowed.wait()
        params, ending = self._params(prompt_ids, sampling)
        server, key = self._router.choose(prompt_ids)
        server, answer = await self._generate(server, prompt_ids, params)
        made = parse_generation(answer, prompt_ids, sampling, ending, self.policy_version)
        if len(self.fleet.servers) > 1:
            self._router.remember(key, made.ids, server)
        if on_token is not None:
            for i, (token, logprob) in enumerate(zip(made.ids, made.logprobs, strict=True)):
                on_token(Token(token, logprob, made.top_logprobs[i] if made.top_logprobs else None))
        return made

    def score(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each of `ids[1:]` given what precedes it, by the first server.

        Raises:
            ConfigError: the temperature is not 1.
            InfraError: it does not answer.
        """
        if temperature != 1.0:
            raise ConfigError(f"temperature is {temperature}; vLLM scores tokens at temperature 1 alone")
        answer = self.fleet.servers[0].request_json("POST", "/inference/v1/generate", self.fleet.scoring_body(ids, 1.0))
        return prompt_logprobs(answer, ids)

    def update_weights(
        self, version: int, weights: Mapping[str, Any] | Path | None = None, adapter: Path | None = None
    ) -> None:
        """Let all servers take new weights; the first time they are started, if that is up to us. Requests under way go on.

        Args:
            version: written on every token sampled from now on.
            weights: a model folder (see `rove.train.backends`). None when they are those that the servers have.
            adapter: folder of an adapter that goes beside that model, its base.

        Raises:
            AdapterRefusedError: a server takes no adapter, or not this one.
            RunError: a server does not take them, cannot be started, or computed something else when it was started again.
        """
        old = self.fleet.weights
        if weights is None:
            if old is None or version == old.version:
                self.fleet.version = version
                return
            weights, adapter = old.model, old.adapter
        elif not isinstance(weights, Path):
            raise ConfigError("VLLMEngine.update_weights takes the folder of a model; expected a Path")
        self.fleet.update(ServedWeights(version, weights, adapter))
        if old is not None and old.model != weights:
            shutil.rmtree(old.model, ignore_errors=True)

    def check_parity(self, probe: ParityCheck) -> None:
        """Compare what every server says of a probe with what the trainer does; those that are started anew must say it, too.

        Raises:
            RunError: they differ by more than the tolerance, or a server does not answer.
        """
        self.fleet.check(probe)

    async def close(self) -> None:
        """End the servers that were started here, and forget their weights."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        await asyncio.to_thread(self.fleet.close)
        await asyncio.gather(*self._restarting.values(), return_exceptions=True)
        if self.fleet.weights is not None:
            shutil.rmtree(self.fleet.weights.model, ignore_errors=True)
            self.fleet.weights = None

    def pause_requests(self) -> None:
        """Let new requests wait: what one computed with old weights, its salt of the new version would make later ones find."""
        self._requests_allowed.clear()

    def resume_requests(self) -> None:
        """Let them be asked."""
        self._requests_allowed.set()

    def release(self) -> None:
        """Nothing: servers see to their memory themselves."""

    # Asking

    def _params(self, prompt_ids: Sequence[int], asked: SamplingParams) -> tuple[dict[str, Any], StopChecker]:
        """What vLLM is told of how to sample, and what tells where the answer ends."""
        room = room_after(prompt_ids, self.vocab, self.context)
        unknown = [name for name in UNSUPPORTED if getattr(asked, name)]
        if unknown:
            raise ConfigError(
                f"the vLLM sampler does not pass {unknown[0]} on; leave it out, or take the embedded engine"
            )
        if asked.max_tokens == 0:
            raise ConfigError("max_tokens is 0; expected 1 or more: vLLM always generates a token")
        max_tokens = min(asked.max_tokens or DEFAULT_MAX_TOKENS, room)
        decode = self.renderer.decode if asked.stop and self.renderer is not None else None
        params = {name: getattr(asked, name) for name in SUPPORTED if getattr(asked, name) is not None}
        params |= {
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "max_tokens": max_tokens,
            "stop_token_ids": sorted(end_token_ids(asked, self.stop_ids)),
            "ignore_eos": True,  # whatever ends an answer is among the stop tokens
            "detokenize": bool(asked.stop),
            "logprobs": asked.logprobs + 1 if asked.logprobs else 0,  # the sampled token may not be among the likeliest
        }
        if asked.prompt_logprobs is not None:
            params["prompt_logprobs"] = asked.prompt_logprobs
        return params, StopChecker(asked, max_tokens, self.stop_ids, decode)

    async def _generate(
        self, server: Server, ids: Sequence[int], params: Mapping[str, Any]
    ) -> tuple[Server, dict[str, Any]]:
        """An answer, and the server that gave it: the one that is asked first, or after each failure the best one then."""
        attempts: list[str] = []
        while True:
            if self.fleet.parity_failure is not None:
                raise self.fleet.parity_failure
            server.active_requests += 1
            try:
                request = self._post(server, self.fleet.request_body(ids, params))
                answer = await self._monitors[server.number].run(self._open_session(), request)
                server.is_failing = False
                return server, answer
            except (aiohttp.ClientError, OSError, InfraError, msgspec.DecodeError) as error:
                server.is_failing = True
                attempts.append(f"{server.name} fails: {type(error).__name__}: {error}")
                if len(attempts) >= MAX_ATTEMPTS:
                    raise InfraError(attempts[-1], attempts) from error
                await asyncio.sleep(BACKOFF_S * 2 ** (len(attempts) - 1))  # a dying one must be seen dead
                reviving = self._restart(server)
                if self._router.least_busy().is_failing:  # nobody else is there
                    await asyncio.shield(reviving)
            finally:
                server.active_requests -= 1
            server = self._router.least_busy()

    def _restart(self, server: Server) -> asyncio.Task[None]:
        """Have a server looked after, unless it is already."""
        if server.number not in self._restarting:
            task = asyncio.create_task(asyncio.to_thread(self.fleet.restart, server))

            def forget(done: asyncio.Task[None]) -> None:
                del self._restarting[server.number]
                if not done.cancelled():
                    done.exception()  # is seen: who does not wait is told by `wrong`, or at the next update

            task.add_done_callback(forget)
            self._restarting[server.number] = task
        return self._restarting[server.number]

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)  # an answer takes as long as it takes
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self._session

    async def _post(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        async with self._open_session().post(f"{server.url}/inference/v1/generate", json=body) as response:
            if response.status >= 500:
                raise InfraError(f"HTTP {response.status}: {(await response.text())[:300]}")
            if response.status != 200:
                raise ModelError(f"{server.name} answers with HTTP {response.status}: {(await response.text())[:300]}")
            answer = msgspec.json.decode(await response.read())
        choice = answer["choices"][0]
        if not all(one["version"].isdecimal() for one in choice.get("weight_versions") or ()):
            server.was_replaced = True
            raise InfraError("it has other weights than it was given: somebody has started it anew")
        reason = choice["finish_reason"]
        if reason not in ("stop", "length"):
            raise InfraError(f"it ended the answer with '{reason}'")
        return answer
