"""A small server that speaks as much of vLLM 0.32's HTTP as rove uses, with rove's engine behind it.

In a thread beside the test (`FakeVLLM`), or as a program (`python vllm_server.py --model FOLDER --port N`) in place of vLLM's.
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
"""transformers changes what all threads see while it loads a model."""
NOT_OURS = ("detokenize", "stop_token_ids", "ignore_eos", "prompt_logprobs", "seed")


class FakeVLLM:
    """A server of the model in a folder, in a thread of its own while used as a context.

    Args:
        model: the folder.
        faults: what it does wrong: "keeps_head" (of tied embeddings, when weights are replaced), "raw_logprobs" (not those of the
            tempered distribution), "no_dev_mode", "no_lora" (it was not started for adapters), "refuses_lora", "hangs" (its
            engine: /health is answered); or before its first answers "http_500", "abort".
    """

    def __init__(self, model: Path, *faults: str):
        self.faults = list(faults)
        self.asked: list[tuple[str, Any]] = []
        """Path and body of each request."""
        self.version = "default"
        self.context = 1 << 20
        self.url = ""
        self.adapters: dict[str, Path] = {}
        """Where each that was loaded is."""
        self._load(model)
        self._thread: threading.Thread | None = None

    def _load(self, model: Path) -> None:
        with LOADING:
            loaded = load_model(model, "cpu")
        self.tied = bool(loaded.model.config.tie_word_embeddings)
        self.folder = model
        self.engine = Engine(loaded.model, [], renderer=loaded.renderer)
        self.adapted: Engine | None = None

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
        """Begin to answer."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _handle(self, request: web.Request) -> web.Response:
        body: Any = await request.json() if request.can_read_body else None
        self.asked.append((request.path_qs, body))
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
            self.adapted = None
        return [1] if body["method"] == "list_loras" and self.adapted else []

    def _reload(self, folder: Path) -> None:
        kept = self.engine.model.lm_head.weight.detach().clone()
        version, tied = self.version, self.tied
        self._load(folder)
        self.version, self.tied = version, tied
        if self.tied and "keeps_head" in self.faults:
            self.engine.model.lm_head.weight = type(self.engine.model.lm_head.weight)(kept)

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
            self.adapted = Engine(merge_adapter(base.model, folder), [], renderer=base.renderer)
        return self.adapted

    async def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        engine = self.engine
        if body.get("model") is not None:
            engine = self.adapted or self._adapt(self.adapters[body["model"]])
        params = body["sampling_params"]
        sampling = SamplingParams(**{k: v for k, v in params.items() if k not in NOT_OURS})
        more = {"stop_token_ids": params.get("stop_token_ids"), "prompt_logprobs": params.get("prompt_logprobs")}
        sampling = SamplingParams.from_args({k: getattr(sampling, k) for k in sampling.__struct_fields__}, more)
        generation = await engine.generate(body["token_ids"], sampling, len(self.asked))
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
    """Of each token, and the likeliest in its place: the sampled one first."""
    found = []
    for i, (token, logprob) in enumerate(zip(generation.ids, generation.logprobs, strict=True)):
        one = {"token_id": token, "logprob": logprob}
        others = [(t, p) for t, p in (generation.top_logprobs[i] if generation.top_logprobs else []) if t != token]
        found.append({**one, "top_logprobs": [one, *({"token_id": t, "logprob": p} for t, p in others)]})
    return found


def _prompt(ids: list[int], generation: Generation) -> list[Any] | None:
    if generation.prompt_logprobs is None:
        return None
    tops = generation.prompt_top_logprobs or [[]] * len(generation.prompt_logprobs)
    places = []
    for token, logprob, top in zip(ids[1:], generation.prompt_logprobs, tops, strict=True):
        places.append({str(t): {"logprob": p} for t, p in [(token, logprob), *top]})
    return [None, *places]


async def main(words: list[str]) -> None:
    """Serve until killed."""
    options = dict(zip(words[::2], words[1::2], strict=False))
    await FakeVLLM(Path(options["--model"])).listen(int(options["--port"]))
    print("listening", os.getpid(), json.dumps(words), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
