"""A minimal chat-completions server with low CPU cost: hand-parsed HTTP/1.1 and one fixed response, in a separate process.

    python benchmarks/mock_server.py [LATENCY_SECONDS] [ADMITTED]

The script prints its base URL and serves until it is killed. LATENCY_SECONDS delays each response (default: 0). The server
rejects requests beyond ADMITTED concurrent ones with status 429 (default: no limit). With the base path /v1/tools/TURNS instead
of /v1, every response also contains the tool call `add(a=1, b=2)` until the request has TURNS - 1 tool messages.
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
_TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}


def _body(finish_reason: str, **message_fields: object) -> bytes:
    message = {"role": "assistant", "content": REPLY, **message_fields}
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
_CALL_TOOL = _reply(b"200 OK", _body("tool_calls", tool_calls=[_TOOL_CALL]))
_BUSY = _reply(b"429 Too Many Requests", b'{"error": {"message": "busy"}}')


class Connection(asyncio.Protocol):
    """A connection of a client; the class attributes are shared by all connections."""

    latency = 0.0
    """Seconds per response."""
    admitted = 1 << 30
    """Maximum concurrent requests."""
    active = 0
    """Concurrent requests now."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        """Respond to every request that has arrived completely."""
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = self.received[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 : (head + b"\r\n").find(b"\r\n", at)]) if at >= 0 else 0
            if len(self.received) < end + 4 + length:
                return
            body = self.received[end + 4 : end + 4 + length]
            self.received = self.received[end + 4 + length :]
            self.respond(_CALL_TOOL if b"/tools/" in head and _needs_call(head, body) else _OK)

    def respond(self, reply: bytes) -> None:
        """Write the reply after the latency, or a 429 if too many requests are active."""
        if Connection.active >= Connection.admitted:
            self.transport.write(_BUSY)
        elif Connection.latency:
            Connection.active += 1
            asyncio.get_running_loop().call_later(Connection.latency, self.finish, reply)
        else:
            self.transport.write(reply)

    def finish(self, reply: bytes) -> None:
        """Write the reply at the end of the latency."""
        Connection.active -= 1
        self.transport.write(reply)


def _needs_call(head: bytes, body: bytes) -> bool:
    """Return whether the request has fewer than TURNS - 1 tool messages."""
    turns = int(head.split(b"/tools/", 1)[1].split(b"/", 1)[0])
    return body.count(b'"role":"tool"') < turns - 1


async def _serve(latency: float, admitted: int) -> None:
    Connection.latency, Connection.admitted = latency, admitted
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}/v1", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def mock_server(latency: float = 0.0, admitted: int = 1 << 30) -> Iterator[str]:
    """Run the mock server in a separate process and yield its base URL.

    Args:
        latency: Seconds per response.
        admitted: Maximum concurrent requests; the server rejects others with status 429.
    """
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
