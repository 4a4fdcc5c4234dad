"""Who plays in an RL run: the model itself, a copy of it, or servers of vLLM; each learns of the trainer's newest weights."""

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
from rove.models.load import LoadedModel, clone_model, trainable_parameters
from rove.train.config import RLConfig
from rove.vllm.engine import VLLMEngine
from rove.vllm.fleet import AdapterRefusedError
from rove.vllm.responses import ParityCheck
from rove.vllm.server import LORA_RANKS
from rove.vllm.weights import folder_bytes, write_adapter, write_served

logger = logging.getLogger(__name__)
FOLDER = "vllm"
PROBE_TOKENS = 64


class Sampler(Protocol):
    """Who plays."""

    client: EngineClient
    """Answers with the weights of the last `publish`."""

    def publish(self, version: int) -> None:
        """Let it have the newest weights, written on every token it samples from now on.

        Raises:
            RunError: it does not take them, or does not compute with them what the trainer does.
        """
        ...

    async def beside(self, update: Callable[[], None]) -> None:
        """Run an update (a `publish`) while requests are under way."""
        ...

    @property
    def metrics(self) -> dict[str, float]:
        """What there is to say of the last update."""
        ...

    async def close(self) -> None:
        """End what was started for it."""
        ...


def make_sampler(config: RLConfig, loaded: LoadedModel, folder: Path, copies: bool) -> Sampler:
    """The sampler that the settings ask for.

    Args:
        config: settings.
        loaded: the model that is trained.
        folder: of the run.
        copies: the sampler needs weights of its own, because it plays while others are trained.
    """
    if config.backend == "vllm":
        return Served(config, loaded, folder / FOLDER)
    return Embedded(config, loaded, copies)


class Embedded:
    """The embedded engine, with the trainer's own weights or a copy of them; of a model with an adapter, copies have only the
    adapter to themselves (but the one in bf16), and only its weights travel.

    Args:
        config: settings.
        loaded: the model that is trained.
        copies: whether it has a copy; with `bf16_sampling` it always has.
    """

    metrics: dict[str, float] = {}  # noqa: RUF012  nothing to say

    def __init__(self, config: RLConfig, loaded: LoadedModel, copies: bool):
        self.loaded = loaded
        self.copies = copies or config.bf16_sampling
        sampler = loaded
        if self.copies:
            copied = copy.deepcopy(loaded.model) if config.bf16_sampling else clone_model(loaded.model)
            sampler = loaded._replace(model=copied)
        if config.bf16_sampling:
            for parameter in sampler.model.parameters():  # and no buffer: positions' angles need their digits
                parameter.data = parameter.data.bfloat16()
        self.client = EngineClient.from_model(
            sampler, config.batch_size, in_flight_updates=config.max_off_policy_steps > 1
        )

    def publish(self, version: int) -> None:
        """See `Sampler`."""
        newest = trainable_parameters(self.loaded.model) if self.copies else None
        self.client.engine.update_weights(version, newest)

    async def beside(self, update: Callable[[], None]) -> None:
        """See `Sampler`; between two tokens, on the thread that computes them."""
        update()

    async def close(self) -> None:
        """Nothing was started."""


class Served:
    """Servers of vLLM. They get the weights as model folders below `folder`; of a model with an adapter, its base once, and the
    adapter alone in every update, unless one of them does not take adapters.

    Args:
        config: settings.
        loaded: the model that is trained.
        folder: for weights and logs.
    """

    def __init__(self, config: RLConfig, loaded: LoadedModel, folder: Path):
        self.loaded = loaded
        fits = loaded.adapter is not None and config.lora.rank <= LORA_RANKS[-1]
        self._goes_alone = fits and not config.vllm.merge_adapter
        self._base: Path | None = None
        self.folder = folder.resolve()  # servers have a working directory of their own
        vocab = int(loaded.model.config.get_text_config().vocab_size)
        self._probe = random.Random(0).choices(range(vocab), k=min(PROBE_TOKENS, loaded.context - 1))
        self.engine = VLLMEngine(
            config.vllm,
            folder,
            sorted(loaded.renderer.stop_ids),
            loaded.context,
            vocab,
            config.batch_size,
            loaded.renderer,
        )
        self.client = EngineClient(self.engine, loaded.renderer, loaded.name)
        self.metrics: dict[str, float] = {}
        for left in folder.glob("weights-*"):  # by a run that was killed
            shutil.rmtree(left, ignore_errors=True)

    def publish(self, version: int) -> None:
        """See `Sampler`."""
        started = time.perf_counter()
        count = self._send(version)
        self.engine.check_parity(probe_of(self.loaded.model, self._probe))
        self.metrics = {
            "sampler/probe_difference": self.engine.fleet.parity_error,
            "sampler/restarts": float(self.engine.fleet.restarts),
            "sampler/sent_bytes": float(count),
            "time/sync": time.perf_counter() - started,
        }

    def _send(self, version: int) -> int:
        """Let the servers have the newest weights; how many bytes are written for it."""
        if self._goes_alone:
            try:
                return self._send_adapter(version)
            except AdapterRefusedError as error:
                logger.warning("vLLM gets whole weights with the adapter merged into them, since %s", error)
                self._goes_alone = False
        weights = self._new_folder(version)
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
        adapter = self._base / "adapter"
        write_adapter(self.loaded.adapter, adapter)
        self.engine.update_weights(version, self._base, adapter)
        return count + folder_bytes(adapter)

    def _new_folder(self, version: int) -> Path:
        return self.folder / f"weights-{version}-{time.time_ns()}"

    async def beside(self, update: Callable[[], None]) -> None:
        """See `Sampler`; environments go on meanwhile, and what they ask waits for the new weights."""
        self.engine.pause_requests()
        try:
            await asyncio.to_thread(update)
        finally:
            self.engine.resume_requests()

    async def close(self) -> None:
        """End the servers that were started."""
        await self.engine.close()


def probe_of(model: Any, ids: list[int]) -> ParityCheck:
    """What a model says of a sequence of tokens."""
    tokens = torch.tensor([ids], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits[0].float()
    temperature = ParityCheck._field_defaults["temperature"]
    after = (logits[-1] / temperature).log_softmax(-1).tolist()
    return ParityCheck(ids, score_tokens(logits[:-1], tokens[0, 1:])[0], after, temperature)
