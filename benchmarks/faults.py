"""A server that misbehaves in every way it can: nothing may be lost, invented or left hanging.

    python benchmarks/faults.py [--rollouts 10000] [--admitted 50] [--latency 0.2]

Two runs. First a server that answers each request well or, with a chance of 0.3, with one of: 429 with and without
Retry-After, 500, a reset connection, half a body, a body that drips for longer than the time limit, text that is not JSON,
a completion without choices, two tool calls with one id, a huge body. Every rollout must end as scored, with the reward that
its answer deserves, or as a typed error. Then a server that admits ADMITTED requests at a time and refuses the rest: the
limiter must settle within 10 % of that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

from aiohttp import web
from mock_server import mock_server

import rove
from rove.runs.run import Run

FAULTS = (
    "429 with Retry-After",
    "429",
    "500",
    "reset",
    "half a body",
    "slow drip",
    "not JSON",
    "no choices",
    "duplicate tool ids",
    "huge body",
)
CHANCE = 0.3
DRIP_LIMIT = 2.0


def completion(text: str, **message: Any) -> dict[str, Any]:
    """A chat completion."""
    said = {"role": "assistant", "content": text, **message}
    return {"choices": [{"index": 0, "message": said, "finish_reason": "stop"}], "usage": {}}


async def misbehave(fault: str, request: web.Request) -> web.StreamResponse:
    """Answer one request in one wrong way."""
    transport = request.transport
    assert transport is not None
    if fault == "429 with Retry-After":
        return web.Response(status=429, headers={"Retry-After": "0.05"}, text="busy")
    if fault in ("429", "500"):
        return web.Response(status=int(fault), text="no")
    if fault == "not JSON":
        return web.Response(text="<html>welcome</html>", content_type="application/json")
    if fault == "no choices":
        return web.json_response({"choices": []})
    if fault == "duplicate tool ids":
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return web.json_response(completion("", tool_calls=[call, call]))
    reply = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(100 << 20)})
    if fault == "reset":
        transport.abort()
        return reply
    await reply.prepare(request)
    await reply.write(b'{"choices": [')
    if fault == "half a body":
        transport.abort()
    elif fault == "slow drip":
        for _ in range(100):
            await asyncio.sleep(DRIP_LIMIT / 20)
            await reply.write(b" ")
    else:
        for _ in range(90):
            await reply.write(b" " * (1 << 20))
    return reply


async def serve(seed: int) -> None:
    """Answer with the number in the question; a fault now and then, by a seeded coin; the huge body rarely."""
    coin = random.Random(seed)
    weights = [1.0 if fault != "huge body" else 0.02 for fault in FAULTS]

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if coin.random() < CHANCE:
            try:
                return await misbehave(coin.choices(FAULTS, weights)[0], request)
            except (ConnectionError, asyncio.CancelledError):
                return web.Response()
        return web.json_response(completion(body["messages"][-1]["content"].split()[-1]))

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.sleep(1e9)


def correct(completion: list[dict[str, Any]], answer: str) -> float:
    """1 when the answer is right."""
    return float(completion[-1]["content"] == answer)


async def play_faults(count: int) -> None:
    """Evaluate against the server that misbehaves and count what came of it."""
    rows = [{"question": f"Say {i}", "answer": str(i)} for i in range(count)]
    env = rove.SingleTurnEnv(dataset=rows, rubric=rove.Rubric([correct]))
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    client = rove.OpenAIClient(server.stdout.readline().strip(), timeout=DRIP_LIMIT, max_retries=2, backoff=0.05)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            async with asyncio.timeout(1800):
                summary = await rove.evaluate(env, client, "mock", run=f"{folder}/run")
        finally:
            await client.close()
            server.kill()
        records = list(Run(f"{folder}/run").rollouts())
    places = Counter((record.example_key, record.rollout_index) for record in records)
    wrong = sum(record.reward not in (None, 1.0) for record in records)
    lost = count - len(places)
    twice = sum(times - 1 for times in places.values())
    untyped = sum((record.error is None) == (record.scores is None) for record in records)
    print(
        f"{count} rollouts in {time.perf_counter() - began:.0f} s: {summary['scored']} scored, {summary['failed']} failed"
    )
    print(f"lost {lost}, twice {twice}, scored by accident {wrong}, neither scored nor failed {untyped}")
    print(f"tries that failed before an answer: {summary['retries']}; errors: {summary['errors']}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
    if lost or twice or wrong or untyped:
        sys.exit("that is not how it should be")


async def play_capacity(count: int, admitted: int, latency: float) -> None:
    """Evaluate against a server that admits so many at a time; where does the limit settle?"""
    env = rove.SingleTurnEnv(dataset=[{"question": str(i)} for i in range(count)], rubric=rove.Rubric())
    limits: list[int] = []
    with mock_server(latency, admitted) as url:
        client = rove.OpenAIClient(url, max_retries=20, backoff=0.05)
        began = time.perf_counter()
        summary = await rove.evaluate(env, client, "mock", on_record=lambda _: limits.append(client.limiter.limit))
        wall = time.perf_counter() - began
        history = list(client.limiter.history)
        await client.close()
    settled = limits[len(limits) // 4 :]
    low, high = statistics.quantiles(settled, n=20)[0], statistics.quantiles(settled, n=20)[-1]
    print(
        f"\n{admitted} admitted at a time, {latency:g} s each: limit {statistics.mean(settled):.1f} on average after the first "
        f"quarter (5 % to 95 %: {low:.0f} to {high:.0f})"
    )
    print(
        f"{count / wall:.0f} rollouts/s, {count / wall / (admitted / latency):.0%} of what the server can do; ", end=""
    )
    print(f"{summary['retries']} requests refused, {summary['failed']} rollouts failed")
    print("the first changes:", json.dumps([list(change) for change in history[:8]]))
    if abs(statistics.mean(settled) - admitted) > 0.1 * admitted or summary["failed"]:
        sys.exit("that is not how it should be")


def main() -> None:
    """Both runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--admitted", type=int, default=50)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(seed=0))
    asyncio.run(play_faults(given.rollouts))
    asyncio.run(play_capacity(given.rollouts, given.admitted, given.latency))


if __name__ == "__main__":
    main()
