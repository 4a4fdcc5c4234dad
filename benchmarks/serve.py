"""Does `rove serve` grow? Requests of mixed kinds, one wave after another, and the memory of the process between them.

    python benchmarks/serve.py [REQUESTS, default 10,000]

The model is a tiny one with random weights, its client is in this process behind the real server. Memory is what the
process has resident, in MiB, after it was made to drop the keys and values of ended requests (the next column says how much
they were) and to collect its garbage.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import random
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from rove.server import base_url_of, listening, make_app

WAVE = 250
"""Requests at once."""
REPORT = 1000
"""Requests between two lines."""


def resident() -> float:
    """Memory of this process, in MiB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is no growth
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def request(i: int, rng: random.Random) -> tuple[str, Any]:
    """A path and a body; no two schemas, prompts or stop texts are the same."""
    messages = [{"role": "user", "content": f"{i} " + "hello " * rng.randint(0, 20)}]
    schema = {"type": "object", "properties": {f"a{i}": {"type": "integer", "maximum": i}}, "required": [f"a{i}"]}
    chat = "/v1/chat/completions"
    path, body = rng.choice(
        [
            (chat, {"messages": messages}),
            (chat, {"messages": messages, "logprobs": True, "top_logprobs": 3, "n": 2}),
            (chat, {"messages": messages, "stop": [f"{i % 100}", "o"]}),
            (
                chat,
                {"messages": messages, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
            ),
            (chat, {"messages": messages, "structured_outputs": {"regex": f"({i}"}}),  # broken
            ("/v1/completions", {"prompt": [5, 6, i % 300], "top_p": 0.9}),
            ("/generate", {"prompt_ids": [i % 300, 7], "prompt_logprobs": 1}),
            (f"/made/up/{i}", {}),
            ("/v1/completions", {"prompt": "x" * 20_000}),  # more than the context
        ]
    )
    return path, {"max_tokens": rng.randint(1, 16), **body, "stream": rng.random() < 0.5}


async def ask(session: aiohttp.ClientSession, path: str, body: Any, seconds: float | None) -> int:
    """The status of one request; 0 if whoever asked went away before the answer."""
    try:
        async with asyncio.timeout(seconds), session.post(path, json=body) as reply:
            await reply.read()
            return reply.status
    except TimeoutError:
        return 0


async def main(count: int) -> None:
    """Ask, and print a line now and then."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from fakes import tiny_model

    from rove.engine.client import EngineClient

    rng, seen = random.Random(0), dict[int, int]()
    client = EngineClient.from_model(tiny_model(context=512), max_batch=64)
    client.engine.release()
    print(f"{'requests':>9} {'MiB':>7} {'kept MiB':>9} {'seconds':>8}  statuses (0: went away)")
    async with listening(make_app(client, "tiny")) as runner:
        root, began = base_url_of(runner).removesuffix("/v1"), time.monotonic()
        async with aiohttp.ClientSession(root, connector=aiohttp.TCPConnector(limit=WAVE)) as session:
            for start in range(0, count, WAVE):
                asked = [request(start + i, rng) for i in range(WAVE)]
                tasks = [ask(session, *one, rng.choice((None, None, None, 0.05))) for one in asked]
                for status in await asyncio.gather(*tasks):
                    seen[status] = seen.get(status, 0) + 1
                if (start + WAVE) % REPORT == 0:
                    kept = client.engine._runner.cache.bytes / 2**20  # pyright: ignore[reportAttributeAccessIssue]
                    client.engine.release()
                    told = " ".join(f"{status}: {number}" for status, number in sorted(seen.items()))
                    seconds = time.monotonic() - began
                    print(f"{start + WAVE:>9} {resident():>7.1f} {kept:>9.1f} {seconds:>8.1f}  {told}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
