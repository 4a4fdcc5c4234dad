"""Servers of vLLM that all have the same, newest weights; plain calls, one after another or in threads.

Written against vLLM 0.32 (`/pause`, `/collective_rpc`, `/load_lora_adapter`, `/update_weight_version`).

An update: each server is paused with its requests kept, reads a folder, is told the version of what it has read, goes on. Nothing
that was computed with older weights is found by a later request, because what is cached is salted with the version. Then a
fixed probe is scored by every server, and compared with what the trainer says.

An adapter alone is always in the same folder: servers are told to forget the one they have, and read it anew when it is asked
for next. (vLLM's own `load_inplace` would let them read it in every single step, from then on.)
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rove.core.digest import ADAPTER_CONFIG
from rove.core.errors import InfraError, RunError
from rove.vllm.responses import ParityCheck, max_differences
from rove.vllm.server import LoRAShape, RefusedError, Server, VLLMConfig

MAX_STARTS = 3
"""So often a server that dies is started again without having taken new weights in between."""
BACKOFF_S = 1.0


class AdapterRefusedError(InfraError):
    """A server does not take an adapter beside the weights of its base."""


class ServedWeights(NamedTuple):
    """What servers are to compute with."""

    version: int
    model: Path
    """A folder, as `rove.vllm.weights` writes it."""
    adapter: Path | None = None
    """The folder of an adapter that goes beside the model, which is its base then."""

    @property
    def lora_shape(self) -> LoRAShape | None:
        """Of the adapter."""
        if self.adapter is None:
            return None
        config = msgspec.json.decode((self.adapter / ADAPTER_CONFIG).read_bytes())
        return LoRAShape(config["r"], sorted(config["target_modules"]))


class Fleet:
    """Servers, the weights that they are to have, and what they must say with these.

    Args:
        config: settings.
        folder: for logs.
        context: most tokens of prompt and answer together; servers may take fewer.
    """

    def __init__(self, config: VLLMConfig, folder: Path, context: int):
        self.config = config
        self.context = context
        self.version = 0
        self.weights: ServedWeights | None = None
        self.parity_error = 0.0
        """Largest between the servers' probes and the trainer's, after the last update."""
        self.parity_failure: RunError | None = None
        """A server that was started again computes something else."""
        urls = config.urls or [None] * config.servers
        self.servers = [Server(url, config, number, folder) for number, url in enumerate(urls)]
        self.parity_check: ParityCheck | None = None
        self._salt = secrets.token_hex(8)  # of this run: others may have used the same servers
        self._prepared: set[int] = set()
        self._locks = [threading.Lock() for _ in self.servers]

    @property
    def restarts(self) -> int:
        """How often a server had to be started again, so far."""
        return sum(max(0, server.starts - 1) for server in self.servers)

    def is_busy(self, server: Server) -> bool:
        """Whether a server is being started, or takes new weights."""
        return self._locks[server.number].locked()

    def request_body(self, ids: Sequence[int], params: Mapping[str, Any]) -> dict[str, Any]:
        """Of a request for what follows so many tokens, with the newest weights."""
        body = {"token_ids": list(ids), "sampling_params": params, "cache_salt": f"{self._salt}-{self.version}"}
        return {**body, "model": self._adapter_name} if self._has_adapter else body

    def scoring_body(self, ids: Sequence[int], temperature: float) -> dict[str, Any]:
        """Of one for a token, and the log-probabilities of those before it; training waits for it, so it need not queue."""
        params = {"max_tokens": 1, "temperature": temperature, "prompt_logprobs": 0, "logprobs": 0}
        body = self.request_body(ids, {**params, "detokenize": False, "ignore_eos": True})
        return {**body, "priority": -1} if self.servers[0].is_ours else body

    def update(self, weights: ServedWeights) -> None:
        """Let all servers take new weights; the first time they are started, if that is up to us. Requests under way go on.

        Raises:
            AdapterRefusedError: a server takes no adapter, or not this one.
            RunError: a server does not take them, cannot be started, or computed something else when it was started again.
        """
        if self.parity_failure is not None:
            raise self.parity_failure
        what = (
            "vLLM could not begin"
            if self.weights is None
            else f"the weights of version {weights.version} were not taken"
        )
        self.parity_check = None  # of the old weights
        self.weights, self.version = weights, weights.version
        with ThreadPoolExecutor(len(self.servers)) as pool:
            for done in [pool.submit(self._update, server, weights) for server in self.servers]:
                try:
                    done.result()
                except AdapterRefusedError:
                    raise
                except InfraError as error:
                    raise RunError(f"{what}: {error}") from error

    def check(self, probe: ParityCheck) -> None:
        """Compare what every server says of a probe with what the trainer does; those that are started anew must say it, too.

        Raises:
            RunError: they differ by more than the tolerance, or a server does not answer.
        """
        self.parity_check = probe
        try:
            self.parity_error = max(self._compare_or_restart(server, probe) for server in self.servers)
        except InfraError as error:
            raise RunError(str(error)) from error

    def _compare_or_restart(self, server: Server, probe: ParityCheck) -> float:
        try:
            return self._compare(server, probe)
        except InfraError:
            time.sleep(BACKOFF_S)
            if not server.is_ours or server.is_alive():
                raise
            server.is_hung = True
            self.restart(server)
            return self._compare(server, probe)

    def restart(self, server: Server) -> None:
        """Start a server that has died or hangs, unless somebody else has; what others have started is given its weights.

        Raises:
            InfraError: it cannot be started, or dies all the time.
            RunError: it says something else.
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
        """End the servers that were started here, for good."""
        for server in self.servers:
            server.close()

    # One server

    def _update(self, server: Server, weights: ServedWeights) -> None:
        """Let one server have the newest weights."""
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
                time.sleep(BACKOFF_S)  # a dying one must be seen dead
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
        """Make sure that a server that was there before us can be used."""
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
        """It may take fewer tokens than the model could (`--max-model-len`)."""
        [model, *_] = server.request_json("GET", "/v1/models")["data"]
        self.context = min(self.context, model.get("max_model_len") or self.context)

    def _replace_weights(self, server: Server, weights: ServedWeights) -> None:
        """Let a server that runs read them."""
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
        """Let a server read the adapter: now, or if it has read one from there, when it is asked for next."""
        if server.has_adapter:
            answer = server.request_json("POST", "/collective_rpc", {"method": "list_loras"})
            for number in sorted({number for worker in answer["results"] for number in worker}):
                server.request_json("POST", "/collective_rpc", {"method": "remove_lora", "args": [number]})
            return
        try:
            server.request("POST", "/v1/load_lora_adapter", {"lora_name": self._adapter_name, "lora_path": str(folder)})
        except RefusedError as error:
            raise AdapterRefusedError(str(error)) from error
        server.has_adapter = True

    def _set_version(self, server: Server, version: int) -> None:
        server.request_json("POST", "/update_weight_version", {"new_version": str(version)})

    def _compare(self, server: Server, probe: ParityCheck) -> float:
        """How far a server's log-probabilities of a probe are off."""
        answer = server.request_json("POST", "/inference/v1/generate", self.scoring_body(probe.ids, probe.temperature))
        worst, drawn = max_differences(answer, probe)
        if max(worst, drawn) <= self.config.tolerance:
            return max(worst, drawn)
        if worst <= self.config.tolerance:
            raise RunError(
                f"{server.name} gives a token that was drawn at temperature {probe.temperature} a log-probability that is "
                f"{drawn:.2g} off the tempered distribution's: start it with --logprobs-mode processed_logprobs"
            )
        raise RunError(
            f"{server.name} does not compute what the trainer does: after the update to version {self.version} their "
            f"log-probabilities of the probe differ by {worst:.2g}, and vllm.tolerance is {self.config.tolerance:g}. "
            "Either it has not taken all of the weights (one that was started with tied embeddings may keep its old head: start "
            'it with a folder whose config.json says "tie_word_embeddings": false, or let rove start it), or it computes in '
            "fewer digits (then raise vllm.tolerance)"
            + (
                ", or it does not have all of the adapter's layers (then set vllm.merge_adapter)"
                if self._has_adapter
                else ""
            )
        )
