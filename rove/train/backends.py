"""Sampling backends of RL: the embedded engine or vLLM servers. Each receives the trainer's newest weights."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from rove.engine.client import EngineClient
from rove.engine.sampler import score_tokens
from rove.models.linear import has_bf16_products
from rove.models.load import LoadedModel, clone_model, trainable_parameters
from rove.utils.processes import trim_heap
from rove.vllm.engine import VLLMEngine
from rove.vllm.fleet import AdapterRefusedError
from rove.vllm.server import LORA_RANKS, ParityCheck, VLLMConfig
from rove.vllm.weights import folder_bytes, write_adapter, write_served

logger = logging.getLogger(__name__)
FOLDER = "vllm"
PARITY_CHECK_TOKENS = 64


class SamplingBackend(Protocol):
    """Samples the rollouts of a training run."""

    client: EngineClient[Any]
    """Client that samples with the weights of the last `publish`."""

    def publish(self, version: int) -> None:
        """Load the trainer's newest weights; `version` is recorded with every token sampled from now on."""
        ...

    def release(self) -> None:
        """Free the memory that only sampling needs; no request may be running."""
        ...

    async def publish_while_sampling(self, update: Callable[[], None]) -> None:
        """Run an update that calls `publish` while requests are in progress."""
        ...

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last update."""
        ...

    async def close(self) -> None:
        """Stop what the backend has started."""
        ...


class EmbeddedBackend:
    """The embedded engine, which samples with the trainer's weights or a copy of them.

    With an adapter, a copy shares the frozen base weights unless it is in bf16, and only the adapter is copied at each update.

    Args:
        separate_weights: Whether the engine samples while the model trains, so that it needs a copy of the weights.
        bf16: Whether to sample with a copy in bf16, if the device can multiply matrices in bf16.
    """

    metrics: dict[str, float] = {}  # never changed

    def __init__(
        self,
        loaded: LoadedModel,
        max_batch: int,
        separate_weights: bool = False,
        bf16: bool = False,
        in_flight_updates: bool = False,
    ):
        self.loaded = loaded
        # A CPU without bf16 instructions would emulate the products, several times slower than fp32.
        in_bf16 = bf16 and has_bf16_products(loaded.model.device)
        self.has_copy = separate_weights or in_bf16
        sampled = loaded
        if self.has_copy:
            copied = copy.deepcopy(loaded.model) if in_bf16 else clone_model(loaded.model)
            sampled = loaded._replace(model=copied)
        if in_bf16:
            for parameter in sampled.model.parameters():  # buffers stay fp32: rotary angles need the precision
                parameter.data = parameter.data.bfloat16()
        self.client = EngineClient.from_model(sampled, max_batch, in_flight_updates=in_flight_updates)

    def publish(self, version: int) -> None:
        """See `SamplingBackend`."""
        newest = trainable_parameters(self.loaded.model) if self.has_copy else None
        self.client.engine.update_weights(version, newest)

    def release(self) -> None:
        """See `SamplingBackend`; frees keys, values and copies of the weights."""
        self.client.engine.release()
        trim_heap()

    async def publish_while_sampling(self, update: Callable[[], None]) -> None:
        """See `SamplingBackend`; runs between two tokens, on the thread that computes them."""
        update()

    async def close(self) -> None:
        """See `SamplingBackend`; there is nothing to stop."""


class VLLMBackend:
    """vLLM servers, which load the weights from model folders.

    With an adapter, they load the base model once and then only the adapter, unless a server refuses adapters.

    Args:
        folder: Folder for logs and weights; it must have the same path for the servers.
        lora_rank: Rank of the model's adapter, if it has one.
    """

    def __init__(self, vllm: VLLMConfig, loaded: LoadedModel, folder: Path, max_batch: int, lora_rank: int = 0):
        self.loaded = loaded
        fits = loaded.adapter is not None and lora_rank <= LORA_RANKS[-1]
        self._sends_adapter = fits and not vllm.merge_adapter
        self._base: Path | None = None
        self.folder = folder.resolve()  # servers have another working directory
        vocab = int(loaded.model.config.get_text_config().vocab_size)
        self._check_ids = random.Random(0).choices(range(vocab), k=min(PARITY_CHECK_TOKENS, loaded.context - 1))
        self.engine = VLLMEngine(
            vllm,
            folder,
            sorted(loaded.renderer.stop_ids),
            loaded.context,
            vocab,
            max_batch,
            loaded.renderer,
        )
        self.client = EngineClient(self.engine, loaded.renderer, loaded.name)
        self.metrics: dict[str, float] = {}
        for stale in folder.glob("weights-*"):  # left by a killed run
            shutil.rmtree(stale, ignore_errors=True)

    def publish(self, version: int) -> None:
        """See `SamplingBackend`."""
        started = time.perf_counter()
        count = self._send(version)
        # A server may ignore some layers of an adapter, or compute an architecture wrongly, without an error.
        self.engine.check_parity(parity_check(self.loaded.model, self._check_ids))
        self.metrics = {
            "sampler/probe_difference": self.engine.fleet.parity_error,
            "sampler/restarts": float(self.engine.fleet.restarts),
            "sampler/sent_bytes": float(count),
            "time/sync": time.perf_counter() - started,
        }

    def release(self) -> None:
        """See `SamplingBackend`; the servers keep their memory."""

    def _send(self, version: int) -> int:
        """Write the newest weights and have the servers load them; return the number of bytes written."""
        if self._sends_adapter:
            try:
                return self._send_adapter(version)
            except AdapterRefusedError as error:
                logger.warning("vLLM receives full weights with the adapter merged, since %s", error)
                self._sends_adapter = False
        weights = self._new_folder(version)
        # A new folder for each version: a server may still be reading the one before.
        write_served(self.loaded, weights)
        self.engine.update_weights(version, weights)
        return folder_bytes(weights)

    def _send_adapter(self, version: int) -> int:
        assert self.loaded.adapter is not None
        count = 0
        if self._base is None:
            self._base = self._new_folder(version)
            write_served(self.loaded, self._base, merged=False)
            count = folder_bytes(self._base)
        # Always the same folder: docs/decisions/vllm_adapters.md.
        adapter = self._base / "adapter"
        write_adapter(self.loaded.adapter, adapter)
        self.engine.update_weights(version, self._base, adapter)
        return count + folder_bytes(adapter)

    def _new_folder(self, version: int) -> Path:
        return self.folder / f"weights-{version}-{time.time_ns()}"

    async def publish_while_sampling(self, update: Callable[[], None]) -> None:
        """See `SamplingBackend`; environments continue, and their model requests wait for the new weights."""
        # A server that loads weights cannot answer; requests wait in this process, and environments go on.
        self.engine.pause_requests()
        try:
            await asyncio.to_thread(update)
        finally:
            self.engine.resume_requests()

    async def close(self) -> None:
        """Stop the servers that were started."""
        await self.engine.close()


def parity_check(model: Any, ids: list[int]) -> ParityCheck:
    """Return the log-probabilities that a model assigns to a token sequence, to compare with a server's."""
    tokens = torch.tensor([ids], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits[0].float()
    temperature = ParityCheck._field_defaults["temperature"]
    next_logprobs = (logits[-1] / temperature).log_softmax(-1).tolist()
    return ParityCheck(ids, score_tokens(logits[:-1], tokens[0, 1:])[0], next_logprobs, temperature)
