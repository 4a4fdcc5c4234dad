"""Faults of an endpoint: one request of an evaluation gets a wrong response, in one of three APIs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from trials import API_KEY, Trial, fault
from workshop import check_kept, check_no_invented_reward, finished_lines

import rove
from rove import Run

TIMEOUT_S = 1.0
EXAMPLES = 6
STATUSES = (
    *(204, 206, 301, 302, 307, 400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 415, 418, 421, 422, 425, 429, 431),
    *(451, 500, 501, 502, 503, 504, 508, 520, 521, 522, 524, 529, 599, 600, 999),
)


def chat(text: str) -> dict[str, Any]:
    """Return a response of the API for chat completions."""
    message = {"role": "assistant", "content": text}
    return {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {}}


def responses(text: str) -> dict[str, Any]:
    """Return a response of the API for responses."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "1", "role": "assistant", "status": "completed", "content": content}
    return {"id": "1", "object": "response", "status": "completed", "output": [message]}


def anthropic(text: str) -> dict[str, Any]:
    """Return a response of Anthropic's API for messages."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    content = [{"type": "text", "text": text}]
    return {"id": "1", "type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"} | {
        "usage": usage
    }


APIS: dict[str, tuple[Any, Callable[[str], dict[str, Any]]]] = {
    "chat": (rove.OpenAIClient, chat),
    "responses": (rove.ResponsesClient, responses),
    "anthropic": (rove.AnthropicClient, anthropic),
}


def http(body: bytes, status: int = 200, *headers: str, length: int | None = None) -> bytes:
    """Return an HTTP response."""
    head = [
        f"HTTP/1.1 {status} X",
        "Content-Type: application/json",
        f"Content-Length: {length or len(body)}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


class Reply:
    """A response in pieces: bytes to send, or seconds to wait. The connection is closed afterward unless `keep` is set."""

    def __init__(self, *pieces: bytes | float, keep: bool = False, reset: bool = False):
        self.pieces, self.keep, self.reset = pieces, keep, reset


Make = Callable[[random.Random, bytes], Reply]
"""Makes a faulty reply of the body that a correct response has."""


def _status(rng: random.Random, body: bytes) -> Reply:
    """A status, with an error that repeats the API key."""
    status = rng.choice(STATUSES)
    extra = rng.choice(((), ("Retry-After: 0.05",), ("Retry-After: soon",), ("Location: http://127.0.0.1:1/v1",)))
    return Reply(http(json.dumps({"error": {"message": f"not with {API_KEY}"}}).encode(), status, *extra), keep=True)


def _cut(rng: random.Random, body: bytes) -> Reply:
    """A hang-up somewhere in the response."""
    response = http(body)
    return Reply(response[: rng.randrange(len(response))], reset=rng.random() < 0.5)


def _cut_chunks(rng: random.Random, body: bytes) -> Reply:
    """A hang-up in a response in chunks."""
    half = len(body) // 2
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]))
    return Reply(head + chunks[: rng.randrange(len(chunks))])


def _cut_stream(rng: random.Random, body: bytes) -> Reply:
    """Server-sent events, which nobody asked for, with an end in the middle."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    return Reply(head + b"data: " + body[: rng.randrange(len(body))], 0.01, b"", reset=rng.random() < 0.5)


def _garbage(rng: random.Random, body: bytes) -> Reply:
    """Bytes that are no HTTP, or a body that is no JSON of the API."""
    deep = b"[" * 100_000
    values = (
        None,
        [],
        7,
        "x",
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [{}]},
        {"choices": [{"message": 3}]},
    )
    bodies = [rng.randbytes(40), b"<html>welcome</html>", b"", b"\xff\xfe{}", deep, b"null", body[:-2], b'{"a": 1e999}']
    bodies += [json.dumps(value).encode() for value in (*values, {"output": None}, {"content": 5}, {"content": [4]})]
    if rng.random() < 0.2:
        return Reply(rng.randbytes(rng.randrange(1, 200)))
    return Reply(http(rng.choice(bodies)), keep=True)


def _wrong_head(rng: random.Random, body: bytes) -> Reply:
    """Headers that contradict the body."""
    heads = (
        http(body, length=len(body) + 50),
        http(body, length=max(1, len(body) // 2)),
        http(body, 200, "Content-Encoding: gzip"),
        http(body, 200, "Transfer-Encoding: chunked"),
        http(body, 200, "X-Long: " + "x" * 70_000),
        http(body, 200, "Content-Length: 5"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + http(b"{}", 503),
    )
    return Reply(rng.choice(heads))


def _slow(rng: random.Random, body: bytes) -> Reply:
    """A response in small pieces: in time, or later than the timeout."""
    response = http(body)
    seconds = rng.choice((0.05, 0.3, 1.5 * TIMEOUT_S)) / 8
    size = -(-len(response) // 8)
    pieces = [response[start : start + size] for start in range(0, len(response), size)]
    return Reply(*(part for piece in pieces for part in (piece, seconds)))


def _hang(rng: random.Random, body: bytes) -> Reply:
    """No response within the timeout."""
    return Reply(1.5 * TIMEOUT_S)


def _duplicated(rng: random.Random, body: bytes) -> Reply:
    """Two responses to one request; the second one must not answer the next request."""
    return Reply(http(body) + http(body), keep=True)


KINDS: dict[str, tuple[int, list[Make]]] = {
    "endpoint: status": (240, [_status]),
    "endpoint: hang-up": (300, [_cut, _cut_chunks, _cut_stream]),
    "endpoint: garbage": (280, [_garbage, _wrong_head]),
    "endpoint: slow": (100, [_slow, _slow, _hang]),
    "endpoint: duplicated": (60, [_duplicated]),
}


class Endpoint:
    """A server that answers "Say N" with N, and the first requests about one question with faulty replies."""

    def __init__(self, api: str, question: str, times: int, make: Callable[[bytes], Reply]):
        self.body, self.question, self.left, self.make = APIS[api][1], question, times, make
        self.injected = 0

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                request = await reader.readexactly(int(length[1]) if length else 0)
                [number] = re.findall(rb"Say (\d+)", request)[-1:]
                body = json.dumps(self.body(number.decode())).encode()
                if f"Say {number.decode()}" != self.question or self.left == 0:
                    writer.write(http(body))
                    await writer.drain()
                    continue
                self.left -= 1
                self.injected += 1
                reply = self.make(body)
                for piece in reply.pieces:
                    if isinstance(piece, bytes):
                        writer.write(piece)
                        await writer.drain()
                    else:
                        await asyncio.sleep(piece)
                if not reply.keep:
                    break
            if reply.reset:
                writer.transport.abort()
        writer.close()


@contextlib.asynccontextmanager
async def serving(endpoint: Endpoint) -> AsyncIterator[str]:
    """Serve an endpoint and yield its base URL."""
    server = await asyncio.start_server(endpoint.respond, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}/v1"
    finally:
        server.close()


def correct(completion: list[dict[str, Any]], answer: str) -> float:
    """Return 1 if the response is the answer, else 0.5: no rollout may have the reward 0."""
    return 1.0 if completion[-1]["content"] == answer else 0.5


def environment() -> rove.Environment:
    """Return questions whose answer is the number in the question."""
    rows = [{"question": f"Say {n}", "answer": str(n)} for n in range(1, EXAMPLES + 1)]
    return rove.SingleTurnEnv(dataset=rows, rubric=rove.Rubric([correct]))


async def evaluate(api: str, url: str, run: Path, **options: Any) -> None:
    """Evaluate a client of an API in a run folder."""
    client = APIS[api][0](url, api_key=os.environ["OPENAI_API_KEY"], timeout=TIMEOUT_S, backoff=0.01, **options)
    try:
        await rove.evaluate(environment(), client, "model", run=str(run), max_concurrent=2)
    finally:
        await client.close()


async def _inject(trial: Trial, makers: list[Make]) -> None:
    rng, run = trial.rng, trial.folder / "run"
    api, maker, times = rng.choice(list(APIS)), rng.choice(makers), rng.choice((1, 1, 2, 99))
    endpoint = Endpoint(api, f"Say {rng.randint(1, EXAMPLES)}", times, lambda body: maker(rng, body))
    async with serving(endpoint) as url:
        await evaluate(api, url, run, max_retries=rng.choice((0, 1, 2)))
        check_rewards(trial, run)
        if endpoint.injected:
            trial.injected(f"{api}: {(maker.__doc__ or '').strip()} {endpoint.injected} times")
        earlier = finished_lines(run)
        endpoint.left = 0
        await evaluate(api, url, run, max_retries=4)
    check_rewards(trial, run)
    check_kept(trial, run, earlier)
    scored = [record.example_key for record in Run(run).rollouts() if record.scores]
    trial.require(len(scored) == len(set(scored)), "a finished rollout was repeated")
    trial.require(len(set(scored)) == EXAMPLES, f"{len(set(scored))} of {EXAMPLES} rollouts have a reward")


def check_rewards(trial: Trial, run: Path) -> None:
    """Check that every rollout has failed or has the reward of the right answer."""
    check_no_invented_reward(trial, run)
    for record in Run(run).rollouts():
        content = record.completion[-1].get("content") if record.completion else None
        trial.require(record.reward in (None, 1.0), f"reward {record.reward} for {content!r}")
        trial.require(record.error is None or bool(record.error.type), "an error without a type")


def asynchronous(inject: Callable[[Trial], Coroutine[Any, Any, None]]) -> Callable[[Trial], None]:
    """Return a function that runs a coroutine function to its end."""
    return lambda trial: asyncio.run(inject(trial))


for _kind, (_weight, _makers) in KINDS.items():

    def _run(trial: Trial, makers: list[Make] = _makers) -> None:
        asyncio.run(_inject(trial, makers))

    fault(_kind, "eval", _weight)(_run)
