"""Evaluate against faulty servers: no rollout may be lost, duplicated, scored wrongly or left without an end.

    python benchmarks/faults.py [--rollouts 10000] [--admitted 50] [--latency 0.2]

The first run uses a server that injects a fault into each response with probability 0.3: 429 with or without Retry-After, 500,
a reset connection, half a body, a body that arrives more slowly than the timeout allows, text that is not JSON, a completion
without choices, two tool calls with the same id, or a huge body. Every rollout must either be scored with the correct reward or
fail with a typed error.

The second run uses a server that accepts ADMITTED concurrent requests and rejects all others. The client's limit must converge
to within 10% of ADMITTED.
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
from rove import Run

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
FAULT_PROBABILITY = 0.3
TIMEOUT_S = 2.0


def completion(text: str, **message: Any) -> dict[str, Any]:
    """Return a chat completion with `text`; `message` has more fields of the message."""
    full = {"role": "assistant", "content": text, **message}
    return {"choices": [{"index": 0, "message": full, "finish_reason": "stop"}], "usage": {}}


async def inject(fault: str, request: web.Request) -> web.StreamResponse:
    """Respond to one request with this fault."""
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
            await asyncio.sleep(TIMEOUT_S / 20)
            await reply.write(b" ")
    else:
        for _ in range(90):
            await reply.write(b" " * (1 << 20))
    return reply


async def serve(seed: int) -> None:
    """Serve chat completions that repeat the number in the prompt, with random faults; huge bodies are rare."""
    rng = random.Random(seed)
    weights = [1.0 if fault != "huge body" else 0.02 for fault in FAULTS]

    async def respond(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if rng.random() < FAULT_PROBABILITY:
            try:
                return await inject(rng.choices(FAULTS, weights)[0], request)
            except (ConnectionError, asyncio.CancelledError):
                return web.Response()
        return web.json_response(completion(body["messages"][-1]["content"].split()[-1]))

    app = web.Application()
    app.router.add_post("/v1/chat/completions", respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.sleep(1e9)


def correct(completion: list[dict[str, Any]], answer: str) -> float:
    """Return 1 if the response is correct, else 0."""
    return float(completion[-1]["content"] == answer)


async def evaluate_faults(count: int) -> None:
    """Evaluate `count` rollouts against the faulty server and print the outcomes."""
    rows = [{"question": f"Say {i}", "answer": str(i)} for i in range(count)]
    env = rove.SingleTurnEnv(dataset=rows, rubric=rove.Rubric([correct]))
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    client = rove.OpenAIClient(server.stdout.readline().strip(), timeout=TIMEOUT_S, max_retries=2, backoff=0.05)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            async with asyncio.timeout(1800):
                summary = await rove.evaluate(env, client, "mock", run=f"{folder}/run")
        finally:
            await client.close()
            server.kill()
        records = list(Run(f"{folder}/run").rollouts())
    keys = Counter((record.example_key, record.rollout_index) for record in records)
    wrong = sum(record.reward not in (None, 1.0) for record in records)
    lost = count - len(keys)
    duplicates = sum(number - 1 for number in keys.values())
    untyped = sum((record.error is None) == (record.scores is None) for record in records)
    print(
        f"{count} rollouts in {time.perf_counter() - started:.0f} s: {summary.scored} scored, {summary.failed} failed"
    )
    print(f"lost {lost}, duplicates {duplicates}, wrong rewards {wrong}, neither scored nor failed {untyped}")
    print(f"failed attempts before a response: {summary.retries}; errors: {summary.errors}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
    if lost or duplicates or wrong or untyped:
        sys.exit("some rollouts were lost, duplicated, scored wrongly or neither scored nor failed; expected none")


async def evaluate_capacity(count: int, admitted: int, latency: float) -> None:
    """Evaluate against a server that accepts `admitted` concurrent requests; print the limit that the client converges to.

    Args:
        count: Number of rollouts.
        admitted: Concurrent requests that the server accepts.
        latency: Seconds per response.
    """
    env = rove.SingleTurnEnv(dataset=[{"question": str(i)} for i in range(count)], rubric=rove.Rubric())
    limits: list[int] = []
    with mock_server(latency, admitted) as url:
        client = rove.OpenAIClient(url, max_retries=20, backoff=0.05)
        started = time.perf_counter()
        summary = await rove.evaluate(env, client, "mock", on_record=lambda _: limits.append(client.limiter.limit))
        wall = time.perf_counter() - started
        history = list(client.limiter.history)
        await client.close()
    converged = limits[len(limits) // 4 :]
    low, high = statistics.quantiles(converged, n=20)[0], statistics.quantiles(converged, n=20)[-1]
    print(
        f"\n{admitted} concurrent requests accepted, {latency:g} s each: limit {statistics.mean(converged):.1f} on average "
        f"after the first quarter (5% to 95%: {low:.0f} to {high:.0f})"
    )
    print(
        f"{count / wall:.0f} rollouts/s, {count / wall / (admitted / latency):.0%} of the server's capacity; ", end=""
    )
    print(f"{summary.retries} requests rejected, {summary.failed} rollouts failed")
    print("first changes of the limit:", json.dumps([list(change) for change in history[:8]]))
    if abs(statistics.mean(converged) - admitted) > 0.1 * admitted or summary.failed:
        sys.exit(f"expected no failed rollouts and an average limit within 10% of {admitted}")


def main() -> None:
    """Run both evaluations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--admitted", type=int, default=50)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(seed=0))
    asyncio.run(evaluate_faults(args.rollouts))
    asyncio.run(evaluate_capacity(args.rollouts, args.admitted, args.latency))


if __name__ == "__main__":
    main()
