"""A server with the part of vLLM 0.32's HTTP API that rove uses, and rove's engine behind it.

It runs in a thread of the test (`FakeVLLM`) or as a program in place of vLLM: `python vllm_server.py --model FOLDER --port N`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from aiohttp import web

from rove.core.protocols import Generation, SamplingParams
from rove.engine.engine import Engine
from rove.models.adapter import merge_adapter
from rove.models.load import load_model

LOADING = threading.Lock()
"""A lock, because transformers changes global state while it loads a model."""
UNSUPPORTED_FIELDS = ("detokenize", "stop_token_ids", "ignore_eos", "prompt_logprobs", "seed")


class FakeVLLM:
    """A server of a model; used as a context manager, it runs in a separate thread.

    Args:
        model: Folder of the model.
        faults: Any of these names:
            - "keeps_head": keeps a tied output head when weights are replaced
            - "raw_logprobs": returns log-probabilities at temperature 1
            - "no_dev_mode": has no endpoints for weight updates
            - "no_lora": was not started for adapters
            - "refuses_lora": refuses to load an adapter
            - "hangs": the engine hangs, but /health responds
            - "http_500", "abort": the first generation fails in this way
    """

    def __init__(self, model: Path, *faults: str):
        self.faults = list(faults)
        self.requests: list[tuple[str, Any]] = []
        """Path and body of each request."""
        self.version = "default"
        self.context = 1 << 20
        self.url = ""
        self.adapters: dict[str, Path] = {}
        """Name → folder of each loaded adapter."""
        self._load(model)
        self._thread: threading.Thread | None = None

    def _load(self, model: Path) -> None:
        with LOADING:
            loaded = load_model(model, "cpu")
        self.tied = bool(loaded.model.config.tie_word_embeddings)
        self.folder = model
        self.engine = Engine(loaded.model, [], renderer=loaded.renderer)
        self.adapter_engine: Engine | None = None

    def __enter__(self) -> FakeVLLM:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self.listen(0))
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=30)

    async def listen(self, port: int) -> None:
        """Start to listen on a port."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _handle(self, request: web.Request) -> web.Response:
        body: Any = await request.json() if request.can_read_body else None
        self.requests.append((request.path_qs, body))
        if request.path == "/health":
            return web.Response()
        while "hangs" in self.faults:  # noqa: ASYNC110  (a test ends it from another thread)
            await asyncio.sleep(0.05)
        if request.path == "/v1/models":
            return web.json_response(
                {"data": [{"id": "rove", "max_model_len": min(self.context, self.engine.context)}]}
            )
        if request.path == "/inference/v1/generate":
            if "http_500" in self.faults:
                self.faults.remove("http_500")
                return web.Response(status=500, text="EngineDeadError")
            return web.json_response(await self._generate(body))
        return web.Response(status=404) if "no_dev_mode" in self.faults else self._manage(request.path, body)

    def _manage(self, path: str, body: Any) -> web.Response:
        if path == "/v1/load_lora_adapter":
            return self._load_adapter(body)
        if path == "/collective_rpc":
            return web.json_response({"results": [self._call_workers(body)]})
        if path == "/update_weight_version":
            self.version = body["new_version"]
        return web.json_response({"weight_version": self.version})

    def _call_workers(self, body: Any) -> Any:
        if body["method"] == "reload_weights":
            self._reload(Path(body["kwargs"]["weights_path"]))
        if body["method"] == "remove_lora":
            self.adapter_engine = None
        return [1] if body["method"] == "list_loras" and self.adapter_engine else []

    def _reload(self, folder: Path) -> None:
        old_head = self.engine.model.lm_head.weight.detach().clone()
        version, tied = self.version, self.tied
        self._load(folder)
        self.version, self.tied = version, tied
        if self.tied and "keeps_head" in self.faults:
            self.engine.model.lm_head.weight = type(self.engine.model.lm_head.weight)(old_head)

    def _load_adapter(self, body: dict[str, Any]) -> web.Response:
        if "no_lora" in self.faults:
            return web.Response(status=404)
        if "refuses_lora" in self.faults:
            return web.Response(status=500, text="vLLM does not yet support DoRA.")
        self.adapters[body["lora_name"]] = Path(body["lora_path"])
        self._adapt(Path(body["lora_path"]))
        return web.Response(text="Success: LoRA adapter added successfully.")

    def _adapt(self, folder: Path) -> Engine:
        with LOADING:
            base = load_model(self.folder, "cpu")
            self.adapter_engine = Engine(merge_adapter(base.model, folder), [], renderer=base.renderer)
        return self.adapter_engine

    async def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        engine = self.engine
        if body.get("model") is not None:
            engine = self.adapter_engine or self._adapt(self.adapters[body["model"]])
        params = body["sampling_params"]
        sampling = SamplingParams(**{k: v for k, v in params.items() if k not in UNSUPPORTED_FIELDS})
        token_options = {
            "stop_token_ids": params.get("stop_token_ids"),
            "prompt_logprobs": params.get("prompt_logprobs"),
        }
        sampling = SamplingParams.from_args(
            {k: getattr(sampling, k) for k in sampling.__struct_fields__}, token_options
        )
        generation = await engine.generate(body["token_ids"], sampling, len(self.requests))
        if "raw_logprobs" in self.faults:
            generation.logprobs[:] = engine.score([*body["token_ids"], *generation.ids])[-len(generation.ids) :]
        reason = generation.finish_reason
        if "abort" in self.faults:
            self.faults.remove("abort")
            reason = "abort"
        choice = {
            "finish_reason": reason,
            "token_ids": generation.ids,
            "weight_versions": [{"version": self.version, "start": 0, "end": len(generation.ids)}],
            "logprobs": {"content": _content(generation)},
        }
        return {"choices": [choice], "prompt_logprobs": _prompt(body["token_ids"], generation)}


def _content(generation: Generation) -> list[dict[str, Any]]:
    """Return the log-probability of each token and its alternatives, with the sampled token first."""
    entries = []
    for i, (token, logprob) in enumerate(zip(generation.ids, generation.logprobs, strict=True)):
        sampled = {"token_id": token, "logprob": logprob}
        alternatives = [
            (t, p) for t, p in (generation.top_logprobs[i] if generation.top_logprobs else []) if t != token
        ]
        entries.append(
            {**sampled, "top_logprobs": [sampled, *({"token_id": t, "logprob": p} for t, p in alternatives)]}
        )
    return entries


def _prompt(ids: list[int], generation: Generation) -> list[Any] | None:
    if generation.prompt_logprobs is None:
        return None
    tops = generation.prompt_top_logprobs or [[]] * len(generation.prompt_logprobs)
    entries = []
    for token, logprob, top in zip(ids[1:], generation.prompt_logprobs, tops, strict=True):
        entries.append({str(t): {"logprob": p} for t, p in [(token, logprob), *top]})
    return [None, *entries]


async def main(words: list[str]) -> None:
    """Serve until killed."""
    options = dict(zip(words[::2], words[1::2], strict=False))
    await FakeVLLM(Path(options["--model"])).listen(int(options["--port"]))
    print("listening", os.getpid(), json.dumps(words), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
