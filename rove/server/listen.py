"""Run the server on a socket until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from rove.core.errors import ConfigError
from rove.server.admission import HOST
from rove.server.app import QUEUE

SOCKET_BACKLOG = 2048
"""Maximum number of connections that wait to be accepted."""
IDLE_TIMEOUT_S = 300.0
"""Seconds until a connection without a complete request header is closed."""
CANCEL_GRACE_S = 1.0
"""Maximum seconds for cancelled requests to send their error."""


@asynccontextmanager
async def listening(
    app: web.Application, host: str = "127.0.0.1", port: int = 0, **options: Any
) -> AsyncIterator[web.AppRunner]:
    """Serve an application within the `with` block, at `base_url_of(runner)`; cancel running requests at its end.

    Args:
        app: Application from `make_app`.
        host: Address or name to listen on.
        port: Port; 0 chooses a free port.
        options: Options of `aiohttp.web.AppRunner` that override the defaults.

    Raises:
        ConfigError: The server cannot listen on this address or port.
    """
    if not app.frozen:
        app[HOST] = host
    defaults = {"handler_cancellation": True, "shutdown_timeout": 0.5, "keepalive_timeout": IDLE_TIMEOUT_S}
    runner = web.AppRunner(app, access_log=None, **{**defaults, **options})
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=SOCKET_BACKLOG).start()
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} ({error}); choose another --port (0 = any free port)"
            ) from error
        yield runner
    finally:
        await runner.cleanup()


def base_url_of(runner: web.AppRunner) -> str:
    """Return the base URL of the API, with `/v1`."""
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


async def serve(
    app: web.Application,
    host: str = "127.0.0.1",
    port: int = 8000,
    drain: float = 30.0,
    on_start: Callable[[str], None] = lambda url: None,
    on_drain: Callable[[int], None] = lambda count: None,
) -> int:
    """Serve until SIGTERM or SIGINT, then finish running requests for up to `drain` seconds or until a second signal.

    While it drains, the server refuses new requests. It then cancels the remaining requests: a stream ends with an
    error event, any other request with status 503. Returns the number of cancelled requests.

    Args:
        app, host, port: see `listening`.
        drain: Maximum time for running requests to finish, in seconds.
        on_start: Called with the base URL once the server listens.
        on_drain: Called with the number of running requests when draining starts, unless it is 0.

    Raises:
        ConfigError: The server cannot listen on this address or port.
    """
    queue = app[QUEUE]
    stop, abort = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            abort.set()
        stop.set()

    async with listening(app, host, port) as runner:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # on Windows Ctrl-C interrupts without draining
                loop.add_signal_handler(number, on_signal)
        on_start(base_url_of(runner))
        await stop.wait()
        queue.draining = True
        for site in list(runner.sites):  # load balancers see closed ports and send new requests elsewhere
            await site.stop()
        if queue.metrics.open:
            on_drain(queue.metrics.open)
        await _first_of(drain, queue.idle, abort)
        unfinished = queue.metrics.open
        queue.cancel_all()
        await _first_of(CANCEL_GRACE_S, queue.idle)
        return unfinished


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    """Wait until an event is set or the time is over."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
