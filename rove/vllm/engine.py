"""vLLM servers as an inference engine: token ids in, token ids and log-probabilities out.

Written against vLLM 0.32 (`/inference/v1/generate`). vLLM's HTTP interface is used only here and in `rove.vllm.fleet` (weights),
`rove.vllm.router` (health) and `rove.vllm.server`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from rove.core.errors import ConfigError, InfraError, ModelError
from rove.core.plain import UNREADABLE, JsonMapping, JsonObject
from rove.core.protocols import Generation, OnToken, SamplingParams, Token, available_tokens
from rove.engine.stop_checker import StopChecker, end_token_ids
from rove.rendering.renderer import Renderer
from rove.vllm.fleet import Fleet, ServedWeights
from rove.vllm.router import HealthMonitor, Router
from rove.vllm.server import ParityCheck, Server, VLLMConfig, parse_generation, prompt_logprobs

DEFAULT_MAX_TOKENS = 512
MAX_ATTEMPTS = 4
"""Maximum number of attempts per request, if servers fail."""
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
    """One or several vLLM servers with equal weights; an `InferenceEngine`.

    Requests are balanced over the servers; the next turn of a rollout goes to the server of the previous turn. If a server that
    rove started ends or hangs, rove restarts it with the newest weights and retries its requests.

    Args:
        folder: Folder for logs and weights; it must have the same path for the servers.
        context: Maximum tokens of prompt and completion.
        renderer: Renderer of the model; needed for stop strings.
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
        """Always empty: an adapter is part of the served weights and cannot be chosen per request."""
        self.fleet = Fleet(config, self.folder, context)
        self._router = Router(self.fleet.servers)
        self._monitors = [HealthMonitor(server, partial(self.fleet.is_busy, server)) for server in self.fleet.servers]
        self._restarting: dict[int, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._requests_allowed = asyncio.Event()
        """Event that is cleared while weights are replaced, so that new requests wait."""
        self._requests_allowed.set()

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and completion."""
        return self.fleet.context

    @property
    def policy_version(self) -> int:
        """Version of the newest weights."""
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
            seed: Not used: servers draw from one random stream (per-request seeds crash vLLM 0.32 on a CPU with chunked
                prefill).
            on_token: Called once per token, but only after the whole generation has ended.
        """
        await self._requests_allowed.wait()
        params, checker = self._params(prompt_ids, sampling)
        server, key = self._router.choose(prompt_ids)
        server, answer = await self._generate(server, prompt_ids, params)
        generation = parse_generation(answer, prompt_ids, sampling, checker, self.policy_version)
        if len(self.fleet.servers) > 1:
            self._router.remember(key, generation.ids, server)
        if on_token is not None:
            for i, (token, logprob) in enumerate(zip(generation.ids, generation.logprobs, strict=True)):
                top = generation.top_logprobs[i] if generation.top_logprobs else None
                on_token(Token(token, logprob, top))
        return generation

    def score(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Return the log-probability of each of `ids[1:]` given the tokens before it, from the first server."""
        if temperature != 1.0:
            raise ConfigError(f"temperature is {temperature}; vLLM scores tokens at temperature 1 alone")
        body = self.fleet.scoring_body(ids, 1.0)
        answer = self.fleet.servers[0].request_json("POST", "/inference/v1/generate", body)
        return prompt_logprobs(answer, ids)

    def update_weights(
        self, version: int, weights: JsonMapping | Path | None = None, adapter: Path | None = None
    ) -> None:
        """Load new weights into all servers; the first call starts the servers that rove owns. Running requests continue.

        Args:
            version: Version of the weights, recorded with every token sampled from now on.
            weights: Model folder (see `rove.train.backends`). None: the servers have these weights already.
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
        """Compare the log-probabilities of every server with the trainer's; restarted servers are compared again."""
        self.fleet.check(probe)

    async def close(self) -> None:
        """End the servers that rove started and delete their weights."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        await asyncio.to_thread(self.fleet.close)
        await asyncio.gather(*self._restarting.values(), return_exceptions=True)
        if self.fleet.weights is not None:
            shutil.rmtree(self.fleet.weights.model, ignore_errors=True)
            self.fleet.weights = None

    def pause_requests(self) -> None:
        """Hold new requests: during an update, a request that is computed with old weights would be cached under the new
        version's salt.
        """
        self._requests_allowed.clear()

    def resume_requests(self) -> None:
        """Send the held requests."""
        self._requests_allowed.set()

    def release(self) -> None:
        """Do nothing: servers manage their own memory."""

    def _params(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> tuple[JsonObject, StopChecker]:
        """Return vLLM's sampling parameters and the stop checker of a request."""
        max_new_tokens = available_tokens(prompt_ids, self.vocab, self.context)
        for name in UNSUPPORTED:
            if getattr(sampling, name):
                raise ConfigError(f"{name} is not supported by the vLLM backend; remove it, or use the embedded engine")
        if sampling.max_tokens == 0:
            raise ConfigError("max_tokens is 0; expected 1 or more: vLLM always generates a token")
        max_tokens = min(sampling.max_tokens or DEFAULT_MAX_TOKENS, max_new_tokens)
        params = {name: getattr(sampling, name) for name in SUPPORTED if getattr(sampling, name) is not None}
        params |= {
            "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
            "max_tokens": max_tokens,
            "stop_token_ids": sorted(end_token_ids(sampling, self.stop_ids)),
            "ignore_eos": True,  # all end tokens are in stop_token_ids
            "detokenize": bool(sampling.stop),
            # One more, because the sampled token may not be among the top ones.
            "logprobs": sampling.logprobs + 1 if sampling.logprobs else 0,
        }
        if sampling.prompt_logprobs is not None:
            params["prompt_logprobs"] = sampling.prompt_logprobs
        if sampling.stop and self.renderer is not None:
            decode, end_ids = self.renderer.decode, self.renderer.end_ids
            checker = StopChecker(
                sampling, max_tokens, self.stop_ids, decode, prompt_ids=prompt_ids, closing_ids=end_ids
            )
        else:
            checker = StopChecker(sampling, max_tokens, self.stop_ids)
        return params, checker

    async def _generate(self, server: Server, ids: Sequence[int], params: JsonMapping) -> tuple[Server, JsonObject]:
        """Return a response and its server; after a failure, retry on the least busy server."""
        attempts: list[str] = []
        while True:
            if self.fleet.parity_failure is not None:
                raise self.fleet.parity_failure
            server.active_requests += 1
            try:
                # No retries in `_post`: a failing server needs a restart, or the next server takes the request.
                request = self._post(server, self.fleet.request_body(ids, params))
                answer = await self._monitors[server.number].run(self._open_session(), request)
                server.is_failing = False
                return server, answer
            except (aiohttp.ClientError, OSError, InfraError, *UNREADABLE) as error:
                server.is_failing = True
                attempts.append(f"{server.name} fails: {type(error).__name__}: {error}")
                if len(attempts) >= MAX_ATTEMPTS:
                    raise InfraError(attempts[-1], attempts) from error
                await asyncio.sleep(BACKOFF_S * 2 ** (len(attempts) - 1))  # give a dying process time to exit
                restarting = self._restart(server)
                if self._router.least_busy().is_failing:  # no other server
                    await asyncio.shield(restarting)
            finally:
                server.active_requests -= 1
            server = self._router.least_busy()

    def _restart(self, server: Server) -> asyncio.Task[None]:
        if server.number not in self._restarting:
            task = asyncio.create_task(asyncio.to_thread(self.fleet.restart, server))

            def forget(restart: asyncio.Task[None]) -> None:
                del self._restarting[server.number]
                if not restart.cancelled():
                    restart.exception()  # mark as retrieved: `parity_failure` or the next update reports it

            task.add_done_callback(forget)
            self._restarting[server.number] = task
        return self._restarting[server.number]

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)  # a long completion takes long
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self._session

    async def _post(self, server: Server, body: JsonObject) -> JsonObject:
        async with self._open_session().post(f"{server.url}/inference/v1/generate", json=body) as response:
            if response.status != 200:
                text = (await response.text())[:300]
                if response.status >= 500:
                    raise InfraError(f"HTTP {response.status}: {text}")
                # The request is at fault, not the server: it would fail everywhere.
                raise ModelError(f"{server.name} answers with HTTP {response.status}: {text}")
            answer = msgspec.json.decode(await response.read())
        choice = answer["choices"][0]
        # vLLM starts with a version that is not a number, and rove sets numbers.
        if not all(span["version"].isdecimal() for span in choice.get("weight_versions") or ()):
            server.was_replaced = True
            raise InfraError("it has other weights than it was given: someone restarted it")
        reason = choice["finish_reason"]
        if reason not in ("stop", "length"):
            raise InfraError(f"it ended the answer with '{reason}'")
        return answer
