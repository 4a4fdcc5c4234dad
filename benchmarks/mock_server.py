"""A chat-completions server that costs next to nothing: hand-parsed HTTP/1.1, one canned answer, in a process of its own.

    python benchmarks/mock_server.py [LATENCY_SECONDS] [ADMITTED]

prints its base URL and serves until it is killed. ADMITTED: requests beyond so many at once get a 429. Under /v1/tools/TURNS
instead of /v1 every answer but that to TURNS - 1 tool messages has a tool call besides, `add(a=1, b=2)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards mix potions in old jars".split()
REPLY = " ".join(WORDS[i % len(WORDS)] for i in range(60))
_CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}


def _body(finish_reason: str, **more: object) -> bytes:
    message = {"role": "assistant", "content": REPLY, **more}
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": "mock",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
            "usage": {"prompt_tokens": 130, "completion_tokens": 80, "total_tokens": 210},
        }
    ).encode()


def _reply(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


_OK = _reply(b"200 OK", _body("stop"))
_CALLING = _reply(b"200 OK", _body("tool_calls", tool_calls=[_CALL]))
_BUSY = _reply(b"429 Too Many Requests", b'{"error": {"message": "busy"}}')


class Server(asyncio.Protocol):
    """One connection."""

    latency = 0.0
    admitted = 1 << 30
    under_way = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        """Answer every request that has arrived whole."""
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = self.received[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 : (head + b"\r\n").find(b"\r\n", at)]) if at >= 0 else 0
            if len(self.received) < end + 4 + length:
                return
            body = self.received[end + 4 : end + 4 + length]
            self.received = self.received[end + 4 + length :]
            self.answer(_CALLING if b"/tools/" in head and _calls(head, body) else _OK)

    def answer(self, reply: bytes) -> None:
        """Now, later, or not at all."""
        if Server.under_way >= Server.admitted:
            self.transport.write(_BUSY)
        elif Server.latency:
            Server.under_way += 1
            asyncio.get_running_loop().call_later(Server.latency, self.done, reply)
        else:
            self.transport.write(reply)

    def done(self, reply: bytes) -> None:
        """The time is up."""
        Server.under_way -= 1
        self.transport.write(reply)


def _calls(head: bytes, body: bytes) -> bool:
    """Whether there is a turn for another call."""
    turns = int(head.split(b"/tools/", 1)[1].split(b"/", 1)[0])
    return body.count(b'"role":"tool"') < turns - 1


async def _serve(latency: float, admitted: int) -> None:
    Server.latency, Server.admitted = latency, admitted
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}/v1", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def mock_server(latency: float = 0.0, admitted: int = 1 << 30) -> Iterator[str]:
    """A mock server in its own process; gives its base URL."""
    command = [sys.executable, __file__, str(latency), str(admitted)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    numbers = [float(text) for text in sys.argv[1:]]
    asyncio.run(_serve(numbers[0] if numbers else 0.0, int(numbers[1]) if len(numbers) > 1 else 1 << 30))
