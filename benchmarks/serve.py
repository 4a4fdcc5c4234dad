"""Measure whether the memory of `rove serve` grows with the number of requests.

    python benchmarks/serve.py [REQUESTS, default 10,000]

The script sends requests of mixed kinds in waves to the real server, which runs in this process with a tiny model with random
weights. The column "MiB" is the resident memory of the process after it released the KV cache of finished requests and collected
garbage; the next column is the size of that cache before the release.
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
"""Concurrent requests per wave."""
REPORT = 1000
"""Requests between two printed lines."""


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # return free memory to the system, so that it does not count as growth
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def request(i: int, rng: random.Random) -> tuple[str, Any]:
    """Return the path and the body of request number `i`; schemas and prompts of different requests differ."""
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
            (chat, {"messages": messages, "structured_outputs": {"regex": f"({i}"}}),  # invalid regex
            ("/v1/completions", {"prompt": [5, 6, i % 300], "top_p": 0.9}),
            ("/generate", {"prompt_ids": [i % 300, 7], "prompt_logprobs": 1}),
            (f"/made/up/{i}", {}),
            ("/v1/completions", {"prompt": "x" * 20_000}),  # longer than the context
        ]
    )
    return path, {"max_tokens": rng.randint(1, 16), **body, "stream": rng.random() < 0.5}


async def post(session: aiohttp.ClientSession, path: str, body: Any, seconds: float | None) -> int:
    """Send a request and return the status of the response; 0 if the client disconnected after `seconds`."""
    try:
        async with asyncio.timeout(seconds), session.post(path, json=body) as reply:
            await reply.read()
            return reply.status
    except TimeoutError:
        return 0


async def main(count: int) -> None:
    """Send `count` requests and print a line after every `REPORT` requests."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from fakes import tiny_model

    from rove.engine.client import EngineClient

    rng, statuses = random.Random(0), dict[int, int]()
    client = EngineClient.from_model(tiny_model(context=512), max_batch=64)
    client.engine.release()
    print(f"{'requests':>9} {'MiB':>7} {'KV MiB':>9} {'seconds':>8}  statuses (0: client disconnected)")
    async with listening(make_app(client, "tiny")) as runner:
        root, started = base_url_of(runner).removesuffix("/v1"), time.monotonic()
        async with aiohttp.ClientSession(root, connector=aiohttp.TCPConnector(limit=WAVE)) as session:
            for start in range(0, count, WAVE):
                requests = [request(start + i, rng) for i in range(WAVE)]
                tasks = [post(session, *arguments, rng.choice((None, None, None, 0.05))) for arguments in requests]
                for status in await asyncio.gather(*tasks):
                    statuses[status] = statuses.get(status, 0) + 1
                if (start + WAVE) % REPORT == 0:
                    cache_mib = client.engine._runner.cache.allocated_bytes / 2**20  # pyright: ignore[reportAttributeAccessIssue]
                    client.engine.release()
                    counts = " ".join(f"{status}: {number}" for status, number in sorted(statuses.items()))
                    seconds = time.monotonic() - started
                    print(
                        f"{start + WAVE:>9} {resident_mib():>7.1f} {cache_mib:>9.1f} {seconds:>8.1f}  {counts}",
                        flush=True,
                    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
