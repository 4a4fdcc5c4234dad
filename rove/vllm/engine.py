"""Servers of vLLM as an engine: token ids in, token ids and log-probabilities out, weights replaced while they live.

Written against vLLM 0.32 (`/inference/v1/generate`, `/pause`, `/collective_rpc`, `/update_weight_version`); all that knows its
HTTP is here and in `rove.vllm.server`.

An update: the weights are written as a model folder that the servers see; each is paused with its requests kept, reads them,
is told their version, goes on. Nothing that was computed with older weights is found by a later request, because what is
cached is salted with the version. Then a fixed probe is scored by every server, and compared with what the trainer says.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from rove.engine.stops import Ending, ends_of
from rove.errors import ConfigError, InfraError, ModelError, OverlongPromptError, RunError
from rove.protocols import Generation, OnToken, Sampling, Token
from rove.renderer import Renderer
from rove.vllm.answers import Probe, differences, generation, prompt_logprobs
from rove.vllm.server import Server, VLLMConfig
from rove.vllm.spread import Spread

DEFAULT_MAX_TOKENS = 512
STARTS = 3
"""So often a server that dies is started again without having taken new weights in between."""
TRIES = 4
"""Of a request that a server fails although it runs."""
BACKOFF_SECONDS = 1.0
PASSED_ON = (
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "stop",
)
UNKNOWN = ("response_format", "structured_outputs", "logit_bias", "extra")


class VLLMEngine:
    """One or several servers of vLLM, all with the same weights; an `InferenceEngine`.

    Requests are spread over them, a rollout's next turn going where the last one was answered. A server that was started here and
    dies is started anew with the newest weights, and asked again.

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
        self.config = config
        self.folder = folder.resolve()
        self.stop_ids = frozenset(stop_ids)
        self.context = context
        self.vocab = vocab
        self.max_batch = max_batch
        self.renderer = renderer
        self.policy_version = 0
        self.adapters: list[str] = []
        """None: the weights that servers get have the adapter merged into them."""
        self.difference = 0.0
        """Largest between the servers' probes and the trainer's, after the last update."""
        urls = config.urls or [None] * config.servers
        self.servers = [Server(url, config, number, self.folder) for number, url in enumerate(urls)]
        self._model: Path | None = None  # the newest weights
        self._probe: Probe | None = None
        self._salt = secrets.token_hex(8)  # of this run: others may have used the same servers
        self._spread = Spread(self.servers)
        self._met: set[int] = set()
        self._starting = [threading.Lock() for _ in self.servers]
        self._waiting = [asyncio.Lock() for _ in self.servers]
        self._session: aiohttp.ClientSession | None = None
        self._is_open = asyncio.Event()  # not while weights are replaced beside requests
        self._is_open.set()
        self._wrong: RunError | None = None  # a server that was started again computes something else

    @property
    def restarts(self) -> int:
        """How often a server had to be started again, so far."""
        return sum(max(0, server.starts - 1) for server in self.servers)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
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
        await self._is_open.wait()
        body, ending = self._request(prompt_ids, sampling)
        server, key = self._spread.choose(prompt_ids)
        server, answer = await self._ask(server, body)
        made = generation(answer, prompt_ids, sampling, ending, self.policy_version)
        if len(self.servers) > 1:
            self._spread.remember(key, made.ids, server)
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
        answer = self.servers[0].ask("POST", "/inference/v1/generate", self._probing(ids, 1.0))
        return prompt_logprobs(answer, ids)

    def update_weights(self, version: int, weights: Mapping[str, Any] | Path | None = None) -> None:
        """Let all servers take new weights; the first time they are started, if that is up to us. Requests under way go on.

        Args:
            version: written on every token sampled from now on.
            weights: a model folder (see `rove.train.samplers`). None when they are those that the servers have.

        Raises:
            RunError: a server does not take them, cannot be started, or computed something else when it was started again.
        """
        if weights is None:
            if self._model is None or version == self.policy_version:
                self.policy_version = version
                return
        elif not isinstance(weights, Path):
            raise ConfigError("VLLMEngine.update_weights takes the folder of a model; expected a Path")
        if self._wrong is not None:
            raise self._wrong
        self._probe = None  # of the old weights
        old, self._model, self.policy_version = self._model, weights or self._model, version
        with ThreadPoolExecutor(len(self.servers)) as pool:
            for done in [pool.submit(self._update, server) for server in self.servers]:
                try:
                    done.result()
                except InfraError as error:
                    raise RunError(f"the weights of version {version} were not taken: {error}") from error
        if weights is not None and old is not None and old != weights:
            shutil.rmtree(old, ignore_errors=True)

    def check(self, probe: Probe) -> None:
        """Compare what every server says of a probe with what the trainer does; those that are started anew must say it, too.

        Raises:
            RunError: they differ by more than the tolerance, or a server does not answer.
        """
        self._probe = probe
        try:
            self.difference = max(self._compare(server, probe) for server in self.servers)
        except InfraError as error:
            raise RunError(str(error)) from error

    async def close(self) -> None:
        """End the servers that were started here, and forget their weights."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        await asyncio.to_thread(lambda: [server.stop() for server in self.servers])
        if self._model is not None:
            shutil.rmtree(self._model, ignore_errors=True)
            self._model = None

    def hold(self) -> None:
        """Let new requests wait: what one computed with old weights, its salt of the new version would make later ones find."""
        self._is_open.clear()

    def go_on(self) -> None:
        """Let them be asked."""
        self._is_open.set()

    def release(self) -> None:
        """Nothing: servers see to their memory themselves."""

    # Asking

    def _request(self, prompt_ids: Sequence[int], asked: Sampling) -> tuple[dict[str, Any], Ending]:
        """The body of a request, and what tells where its answer ends."""
        room = self._check_prompt(prompt_ids)
        unknown = [name for name in UNKNOWN if getattr(asked, name)]
        if unknown:
            raise ConfigError(
                f"the vLLM sampler does not pass {unknown[0]} on; leave it out, or take the embedded engine"
            )
        max_tokens = min(asked.max_tokens or DEFAULT_MAX_TOKENS, room)
        decode = self.renderer.decode if asked.stop and self.renderer is not None else None
        params = {name: getattr(asked, name) for name in PASSED_ON if getattr(asked, name) is not None}
        params |= {
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "max_tokens": max_tokens,
            "stop_token_ids": sorted(ends_of(asked, self.stop_ids)),
            "ignore_eos": True,  # whatever ends an answer is among the stop tokens
            "detokenize": bool(asked.stop),
            "logprobs": asked.logprobs + 1 if asked.logprobs else 0,  # the sampled token may not be among the likeliest
        }
        if asked.prompt_logprobs is not None:
            params["prompt_logprobs"] = asked.prompt_logprobs
        return self._body(prompt_ids, params), Ending(asked, max_tokens, self.stop_ids, decode)

    def _check_prompt(self, prompt_ids: Sequence[int]) -> int:
        if len(prompt_ids) == 0:
            raise ConfigError("the prompt has no tokens; a model needs at least one to start from")
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.vocab:
            wrong = next(i for i in prompt_ids if not 0 <= i < self.vocab)
            raise ConfigError(
                f"the prompt has token {wrong}; expected ids from 0 to {self.vocab - 1}, the model's vocabulary"
            )
        room = self.context - len(prompt_ids)
        if room < 1:
            raise OverlongPromptError(
                f"the prompt has {len(prompt_ids)} tokens, the model's context {self.context}; expected at least one fewer "
                "than that: shorten the prompt"
            )
        return room

    def _body(self, ids: Sequence[int], params: Mapping[str, Any]) -> dict[str, Any]:
        salt = f"{self._salt}-{self.policy_version}"
        return {"token_ids": list(ids), "sampling_params": params, "cache_salt": salt}

    def _probing(self, ids: Sequence[int], temperature: float) -> dict[str, Any]:
        params = {"max_tokens": 1, "temperature": temperature, "prompt_logprobs": 0, "logprobs": 0}
        return self._body(ids, {**params, "detokenize": False, "ignore_eos": True})

    async def _ask(self, server: Server, body: dict[str, Any]) -> tuple[Server, dict[str, Any]]:
        """An answer, and the server that gave it: the one that is asked first, or after each failure the best one then."""
        attempts: list[str] = []
        while True:
            if self._wrong is not None:
                raise self._wrong
            server.under_way += 1
            try:
                answer = await self._post(server, body)
                server.is_failing = False
                return server, answer
            except (aiohttp.ClientError, OSError, InfraError, msgspec.DecodeError) as error:
                server.is_failing = True
                attempts.append(f"{server.name} fails: {type(error).__name__}: {error}")
                if len(attempts) >= TRIES:
                    raise InfraError(attempts[-1], attempts) from error
                await asyncio.sleep(BACKOFF_SECONDS * 2 ** (len(attempts) - 1))  # a dying one must be seen dead
                waiting = self._waiting[server.number]
                # Where somebody starts it already, others can answer.
                if not waiting.locked() or self._spread.best().is_failing:
                    async with waiting:
                        await asyncio.to_thread(self._revive, server)
            finally:
                server.under_way -= 1
            server = self._spread.best()

    async def _post(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)  # an answer takes as long as it takes
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        async with self._session.post(f"{server.url}/inference/v1/generate", json=body) as response:
            if response.status >= 500:
                raise InfraError(f"HTTP {response.status}: {(await response.text())[:300]}")
            if response.status != 200:
                raise ModelError(f"{server.name} answers with HTTP {response.status}: {(await response.text())[:300]}")
            answer = msgspec.json.decode(await response.read())
        reason = answer["choices"][0]["finish_reason"]
        if reason not in ("stop", "length"):
            raise InfraError(f"it ended the answer with '{reason}'")
        return answer

    # Weights

    def _update(self, server: Server) -> None:
        """Let one server have the newest weights."""
        with self._starting[server.number]:
            server.tries = 0
            if server.has_ended:
                return self._start(server)
            try:
                self._meet(server)
                path = {"weights_path": str(self._model)}
                server.ask("POST", "/pause?mode=keep")
                server.ask("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": path})
                self._tell_version(server)
                server.ask("POST", "/resume")
                server.is_failing = False
            except InfraError:
                time.sleep(BACKOFF_SECONDS)
                if not server.has_ended:
                    raise
                self._start(server)

    def _start(self, server: Server) -> None:
        assert self._model is not None
        server.start(self._model)
        self._learn_context(server)
        self._tell_version(server)
        server.is_failing = False

    def _meet(self, server: Server) -> None:
        """Make sure that a server that was there before us can be used."""
        if server.is_ours or server.number in self._met:
            return
        self._learn_context(server)
        try:
            server.ask("POST", "/resume")
        except InfraError as error:
            raise InfraError(
                f"{error}; start it with VLLM_SERVER_DEV_MODE=1 in its environment and the arguments --enable-scale-out "
                "--logprobs-mode processed_logprobs --generation-config vllm"
            ) from error
        self._met.add(server.number)

    def _learn_context(self, server: Server) -> None:
        """It may take fewer tokens than the model could (`--max-model-len`)."""
        [model, *_] = server.ask("GET", "/v1/models")["data"]
        self.context = min(self.context, model.get("max_model_len") or self.context)

    def _revive(self, server: Server) -> None:
        """Start a server that has died, unless somebody else has, and see that it says what it should.

        Raises:
            InfraError: it cannot be started, or dies all the time.
            RunError: it says something else.
        """
        with self._starting[server.number]:
            if not server.has_ended:
                return
            if server.tries >= STARTS:
                raise InfraError(
                    f"{server.name} has died {STARTS} times since it took new weights{server.last_words()}"
                )
            self._start(server)
            if self._probe is not None:
                try:
                    self._compare(server, self._probe)
                except RunError as error:
                    self._wrong = error
                    server.stop()
                    raise

    def _tell_version(self, server: Server) -> None:
        server.ask("POST", "/update_weight_version", {"new_version": str(self.policy_version)})

    def _compare(self, server: Server, probe: Probe) -> float:
        """How far a server's log-probabilities of a probe are off."""
        answer = server.ask("POST", "/inference/v1/generate", self._probing(probe.ids, probe.temperature))
        worst, drawn = differences(answer, probe)
        if max(worst, drawn) <= self.config.tolerance:
            return max(worst, drawn)
        if worst <= self.config.tolerance:
            raise RunError(
                f"{server.name} gives a token that was drawn at temperature {probe.temperature} a log-probability that is "
                f"{drawn:.2g} off the tempered distribution's: start it with --logprobs-mode processed_logprobs"
            )
        raise RunError(
            f"{server.name} does not compute what the trainer does: after the update to version {self.policy_version} their "
            f"log-probabilities of the probe differ by {worst:.2g}, and vllm.tolerance is {self.config.tolerance:g}. "
            "Either it has not taken all of the weights (one that was started with tied embeddings may keep its old head: start "
            'it with a folder whose config.json says "tie_word_embeddings": false, or let rove start it), or it computes in '
            "fewer digits (then raise vllm.tolerance)"
        )
