"""Listening on a socket, until told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from rove.core.errors import ConfigError
from rove.server.admission import HOST
from rove.server.app import DESK

BACKLOG = 2048
"""Connections that may wait to be accepted."""
GOODBYE = 1.0
"""Seconds to tell those who are cut off."""


@asynccontextmanager
async def listening(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[web.AppRunner]:
    """The application at work, at `base_url_of(runner)`; at the end whatever still runs is cut off.

    Args:
        app: of `make_app`.
        host: where to listen.
        port: 0 = any that is free.

    Raises:
        ConfigError: nobody can listen there.
    """
    if not app.frozen:
        app[HOST] = host
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} ({error}); give another --port (0 = a free one)"
            ) from error
        yield runner
    finally:
        await runner.cleanup()


def base_url_of(runner: web.AppRunner) -> str:
    """Where clients find the API."""
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
    """Serve until SIGTERM or SIGINT; then nobody new is let in and what runs may end, until a second signal.

    What has not ended by then is cut off: a stream ends with an error event, any other request with status 503.

    Args:
        app: of `make_app`.
        host: where to listen.
        port: 0 = any that is free.
        drain: most seconds for what runs to end.
        on_start: told the base URL once the server listens.
        on_drain: told how many requests are waited for, if there are any.

    Returns:
        how many requests were cut off.

    Raises:
        ConfigError: nobody can listen there.
    """
    desk, stop, cut = app[DESK], asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (cut if stop.is_set() else stop).set()

    async with listening(app, host, port) as runner:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # Windows: Ctrl-C interrupts without any draining
                loop.add_signal_handler(number, signalled)
        on_start(base_url_of(runner))
        await stop.wait()
        desk.draining = True
        for site in list(runner.sites):
            await site.stop()
        if desk.metrics.open:
            on_drain(desk.metrics.open)
        await _first_of(drain, desk.idle, cut)
        late = desk.metrics.open
        desk.cut_off()
        await _first_of(GOODBYE, desk.idle)
        return late


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    """Until one of them is set, or so much time has passed."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
