"""Keep all vLLM servers on the newest weights. The calls block; some of them run in threads.

Written against vLLM 0.32 (`/pause`, `/collective_rpc`, `/load_lora_adapter`, `/update_weight_version`).

An update pauses each server without dropping its requests, loads a folder, sets the version and resumes. Later requests cannot
reuse prefixes that older weights computed, because the number of the update salts the prefix cache. Then every server computes
the log-probabilities of a fixed sequence, which are compared with the trainer's log-probabilities (parity check).

An adapter is always in the same folder: servers remove the loaded adapter and read it again with the next request. vLLM's
`load_inplace` would read it again in every step (docs/decisions/vllm_adapters.md).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from rove.core.digest import ADAPTER_CONFIG
from rove.core.errors import InfraError, RunError
from rove.core.plain import JsonMapping, JsonObject
from rove.vllm.server import LoRAShape, ParityCheck, RefusedError, Server, VLLMConfig, max_differences

MAX_STARTS = 3
"""Maximum number of starts of a server without a weight update in between; after that, it counts as broken."""
BACKOFF_S = 1.0


class AdapterRefusedError(InfraError):
    """A server does not accept an adapter on top of base weights."""


class ServedWeights(NamedTuple):
    """The weights that servers should have."""

    version: int
    model: Path
    """Model folder written by `rove.vllm.weights`."""
    adapter: Path | None = None
    """Folder of an adapter for that model."""

    @property
    def lora_shape(self) -> LoRAShape | None:
        """Rank and targets of the adapter."""
        if self.adapter is None:
            return None
        config = msgspec.json.decode((self.adapter / ADAPTER_CONFIG).read_bytes())
        return LoRAShape(config["r"], sorted(config["target_modules"]))


class Fleet:
    """The servers and their weights.

    Args:
        context: Maximum tokens of prompt and completion; lowered if a server allows fewer.
    """

    def __init__(self, config: VLLMConfig, folder: Path, context: int):
        self.config = config
        self.context = context
        self.version = 0
        self.weights: ServedWeights | None = None
        self.parity_error = 0.0
        """Largest difference of log-probabilities between servers and trainer after the last update."""
        self.parity_failure: RunError | None = None
        """Error to raise if a restarted server computes different log-probabilities than the trainer."""
        urls = config.urls or [None] * config.servers
        self.servers = [Server(url, config, number, folder) for number, url in enumerate(urls)]
        self.parity_check: ParityCheck | None = None
        self._salt = secrets.token_hex(8)
        """Part of the prefix cache's salt: other runs may have used the same servers."""
        self._updates = 0
        """Number of updates, part of the salt. A version does not identify the weights, because RL may return to earlier weights
        within a step."""
        self._prepared: set[int] = set()
        self._locks = [threading.Lock() for _ in self.servers]

    @property
    def restarts(self) -> int:
        """Number of restarts so far."""
        return sum(max(0, server.starts - 1) for server in self.servers)

    def is_busy(self, server: Server) -> bool:
        """Return whether a server is starting or loading weights."""
        return self._locks[server.number].locked()

    def request_body(self, ids: Sequence[int], params: JsonMapping) -> JsonObject:
        """Return the body of a generate request for the newest weights."""
        body = {"token_ids": list(ids), "sampling_params": params, "cache_salt": f"{self._salt}-{self._updates}"}
        return {**body, "model": self._adapter_name} if self._has_adapter else body

    def scoring_body(self, ids: Sequence[int], temperature: float) -> JsonObject:
        """Return the body of a request that scores `ids` and samples one token. It has priority, since training waits for it."""
        params = {"max_tokens": 1, "temperature": temperature, "prompt_logprobs": 0, "logprobs": 0}
        body = self.request_body(ids, {**params, "detokenize": False, "ignore_eos": True})
        return {**body, "priority": -1} if self.servers[0].is_ours else body

    def update(self, weights: ServedWeights) -> None:
        """Load new weights into all servers; the first call starts the servers that rove owns. Running requests continue."""
        if self.parity_failure is not None:
            raise self.parity_failure
        failure = "vLLM could not start"
        if self.weights is not None:
            failure = f"the weights of version {weights.version} were not loaded"
        self.parity_check = None  # of the old weights
        self.weights, self.version = weights, weights.version
        self._updates += 1
        with ThreadPoolExecutor(len(self.servers)) as pool:
            # All are started before the first is awaited: a list, because a generator would submit one at a time.
            updates = [pool.submit(self._update, server, weights) for server in self.servers]
            for update in updates:
                try:
                    update.result()
                except AdapterRefusedError:
                    raise
                except InfraError as error:
                    raise RunError(f"{failure}: {error}") from error

    def check(self, check: ParityCheck) -> None:
        """Compare the log-probabilities of every server with the trainer's; restarted servers are compared again."""
        self.parity_check = check
        try:
            self.parity_error = max(self._compare_or_restart(server, check) for server in self.servers)
        except InfraError as error:
            raise RunError(str(error)) from error

    def _compare_or_restart(self, server: Server, check: ParityCheck) -> float:
        try:
            return self._compare(server, check)
        except InfraError:
            time.sleep(BACKOFF_S)
            if not server.is_ours or server.is_alive():
                raise
            server.is_hung = True
            self.restart(server)
            return self._compare(server, check)

    def restart(self, server: Server) -> None:
        """Restart a server that rove started and that ended or hangs, unless another thread restarted it. A server that someone
        else restarted gets its weights again.
        """
        with self._locks[server.number]:
            if server.is_ours:
                if not server.has_ended and not server.is_hung:
                    return
                if server.starts_since_update >= MAX_STARTS:
                    raise InfraError(
                        f"{server.name} has died {MAX_STARTS} times since it took new weights{server.log_tail()}"
                    )
                self._start(server)
            elif server.was_replaced:
                self._prepare(server)
                assert self.weights is not None
                self._replace_weights(server, self.weights)
            else:
                return
            if self.parity_check is not None:
                try:
                    self._compare(server, self.parity_check)
                except RunError as error:
                    self.parity_failure = error
                    server.stop()
                    raise

    def close(self) -> None:
        """End the servers that rove started."""
        for server in self.servers:
            server.close()

    def _update(self, server: Server, weights: ServedWeights) -> None:
        with self._locks[server.number]:
            server.starts_since_update = 0
            if server.has_ended or (server.is_ours and (server.is_hung or server.shape != weights.lora_shape)):
                return self._start(server)
            try:
                self._prepare(server)
                self._replace_weights(server, weights)
            except AdapterRefusedError:
                raise
            except InfraError:
                time.sleep(BACKOFF_S)  # give a dying process time to exit
                if not server.is_ours or server.is_alive():
                    raise
                self._start(server)

    def _start(self, server: Server) -> None:
        assert self.weights is not None
        weights = self.weights
        try:
            server.start(weights.model, weights.lora_shape)
        except InfraError as error:
            if weights.adapter is not None and server.starts == 1 and "LoRA" in str(error):
                raise AdapterRefusedError(str(error)) from error
            raise
        self._read_context(server)
        if weights.adapter is not None:
            self._load_adapter(server, weights.adapter)
        self._set_version(server, weights.version)
        server.is_failing = False

    def _prepare(self, server: Server) -> None:
        """Check that a server that rove did not start can be used."""
        if server.was_replaced:
            server.was_replaced = server.has_adapter = False
            server.model = None
            self._prepared.discard(server.number)
        if server.is_ours or server.number in self._prepared:
            return
        self._read_context(server)
        try:
            server.request_json("POST", "/resume")
        except InfraError as error:
            raise InfraError(
                f"{error}; start it with VLLM_SERVER_DEV_MODE=1 in its environment and the arguments --enable-scale-out "
                "--logprobs-mode processed_logprobs --generation-config vllm"
            ) from error
        self._prepared.add(server.number)

    def _read_context(self, server: Server) -> None:
        """Lower `context` to the limit of the server (`--max-model-len`)."""
        [model, *_] = server.request_json("GET", "/v1/models")["data"]
        self.context = min(self.context, model.get("max_model_len") or self.context)

    def _replace_weights(self, server: Server, weights: ServedWeights) -> None:
        # "keep": running requests continue with the new weights; other modes would end them, or wait for the longest.
        server.request_json("POST", "/pause?mode=keep", seconds=self.config.hang_seconds)
        if server.model != weights.model:
            path = {"weights_path": str(weights.model)}
            server.request_json("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": path})
            server.model = weights.model
        if weights.adapter is not None:
            self._load_adapter(server, weights.adapter)
        self._set_version(server, weights.version)
        server.request_json("POST", "/resume")
        server.is_failing = server.is_hung = False

    @property
    def _has_adapter(self) -> bool:
        return self.weights is not None and self.weights.adapter is not None

    @property
    def _adapter_name(self) -> str:
        return f"rove-{self._salt}"

    def _load_adapter(self, server: Server, folder: Path) -> None:
        """Load the adapter: immediately the first time, later with the next request."""
        if server.has_adapter:
            answer = server.request_json("POST", "/collective_rpc", {"method": "list_loras"})
            for number in sorted(set(chain.from_iterable(answer["results"]))):
                server.request_json("POST", "/collective_rpc", {"method": "remove_lora", "args": [number]})
            return
        try:
            server.request("POST", "/v1/load_lora_adapter", {"lora_name": self._adapter_name, "lora_path": str(folder)})
        except RefusedError as error:
            raise AdapterRefusedError(str(error)) from error
        server.has_adapter = True

    def _set_version(self, server: Server, version: int) -> None:
        server.request_json("POST", "/update_weight_version", {"new_version": str(version)})

    def _compare(self, server: Server, check: ParityCheck) -> float:
        """Return the largest difference of log-probabilities between a server and the trainer."""
        body = self.scoring_body(check.ids, check.temperature)
        answer = server.request_json("POST", "/inference/v1/generate", body)
        prompt_error, sampled_error = max_differences(answer, check)
        if max(prompt_error, sampled_error) <= self.config.tolerance:
            return max(prompt_error, sampled_error)
        # With correct scores of the prompt, the weights are right: only the distribution of the sampled token differs.
        if prompt_error <= self.config.tolerance:
            raise RunError(
                f"{server.name} gives a token that was drawn at temperature {check.temperature} a log-probability that is "
                f"{sampled_error:.2g} off the tempered distribution's: start it with --logprobs-mode processed_logprobs"
            )
        adapter_cause = ", or it does not have all of the adapter's layers (then set vllm.merge_adapter)"
        raise RunError(
            f"{server.name} does not compute what the trainer does: after the update to version {self.version} their "
            f"log-probabilities of the parity check differ by {prompt_error:.2g}, and vllm.tolerance is "
            f"{self.config.tolerance:g}. "
            "Either it has not taken all of the weights (one that was started with tied embeddings may keep its old head: start "
            'it with a folder whose config.json says "tie_word_embeddings": false, or let rove start it), or it computes in '
            f"fewer digits (then raise vllm.tolerance){adapter_cause if self._has_adapter else ''}"
        )
