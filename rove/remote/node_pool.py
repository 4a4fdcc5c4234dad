"""Worker pools on several nodes: assign rollouts to pools, and replace lost nodes.

docs/decisions/workers.md explains why the loss of a node is not a failure of its rollouts.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import secrets
import socket
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from rove.core.errors import Error, WorkerError
from rove.core.plain import JsonValue
from rove.core.state import State, bookkeeping
from rove.remote.worker_pool import WorkerPool
from rove.workers import Worker
from rove.workers.worker import CallHandler

RESPONSE_TIMEOUT_S = 20.0
"""Seconds after which a node that does not respond is considered lost."""
RETRY_DELAY_S = 1.0
FORK_TIMEOUT_S = 120.0
"""Time limit in seconds for forking a worker and waiting for its connection."""
TOKEN_BYTES = 32
"""Length of the token with which a worker authenticates."""
MAX_GROUPS = 10_000
"""Maximum number of groups whose pool is remembered."""
NODE_LOST = "its node is lost"


class Node(Protocol):
    """A `rove.remote.node.NodeActor` on some machine, as seen from the run."""

    host: str
    """Name of the machine."""

    async def call(self, name: str, /, *args: object) -> JsonValue:
        """Call a method of the actor."""
        ...

    async def lost(self) -> None:
        """Wait until the node is gone or may be gone."""
        ...

    def call_now(self, name: str, /, *args: object) -> JsonValue:
        """Call a method from code that is not async."""
        ...

    def call_no_wait(self, name: str, /, *args: object) -> None:
        """Call a method without waiting for its result."""
        ...

    def end(self) -> None:
        """End the node if it still exists."""
        ...


class NodeWorkers:
    """The workers of an environment on a node; each connects to this process directly."""

    def __init__(self, node: Node, name: str, address: str):
        self.node, self.name, self.address = node, name, address

    async def open(self, handler: CallHandler | None = None) -> Worker:
        """Fork a worker and wait for its connection."""
        # The port is open to the whole network of the cluster: only the process that has this token is accepted.
        token = secrets.token_bytes(TOKEN_BYTES)
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        with socket.create_server((self.address, 0), family=family) as listener:
            listener.setblocking(False)
            port = listener.getsockname()[1]
            try:
                async with asyncio.timeout(FORK_TIMEOUT_S):
                    number = await self.node.call("fork", self.name, self.address, port, token)
                    connection = await _accept(listener, token)
            except TimeoutError as error:
                raise WorkerError(
                    f"no worker of {self.node.host} connected to {self.address}:{port} within {FORK_TIMEOUT_S:g} s"
                ) from error
        kill = functools.partial(self.node.call_no_wait, "kill", self.name, number)
        exit_report = functools.partial(self._exit_report, number)
        return Worker(connection, kill, exit_report, handler)

    async def aclose(self) -> None:
        """End all workers."""
        with suppress(WorkerError, TimeoutError):
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                await self.node.call("end", self.name)

    async def _exit_report(self, number: int) -> str:
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                return await self.node.call("exit_report", self.name, number)
        except (WorkerError, TimeoutError):
            return f" ({NODE_LOST}: {self.node.host})"


class NodePool:
    """A worker pool per node. A rollout goes to the pool with the fewest rollouts.

    Args:
        nodes: The nodes; None stands for a node that has not started yet.
        open_node: Function that starts a node with the environment loaded, to replace a lost node; it may take any time.
        max_rollouts: Maximum number of concurrent rollouts per pool; a group that stays together may exceed it.
    """

    def __init__(
        self,
        nodes: Sequence[Node | None],
        open_node: Callable[[int], Awaitable[Node]],
        name: str,
        address: str,
        *,
        keep_groups_together: bool,
        max_rollouts: int,
        hang_seconds: float = 120.0,
        wait_seconds: float = 60.0,
    ):
        self.nodes = list(nodes)
        self.name, self.address = name, address
        self.keep_groups_together, self.max_rollouts = keep_groups_together, max_rollouts
        self.hang_seconds, self.wait_seconds = hang_seconds, wait_seconds
        self.lost = 0
        """Number of nodes that were lost."""
        self._open_node = open_node
        self._pools: dict[int, WorkerPool] = {}
        self._group_pools: dict[int, WorkerPool] = {}
        self._monitors: dict[int, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = _ResizableSemaphore()
        self._since = 0.0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait until a slot is free, and hold it while a rollout runs and is scored."""
        self._ensure_started()
        await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    async def choose(self, state: State) -> WorkerPool:
        """Return the pool with the fewest rollouts, or the pool of the rollout's group."""
        self._ensure_started()
        while not self._pools:
            remaining = self._since + self.wait_seconds - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, remaining)):
                    await self._changed.wait()
            except TimeoutError as error:
                raise WorkerError(f"no node is left, and no new one started within {self.wait_seconds:g} s") from error
        group = bookkeeping(state).env_seed  # the members of a group share this seed
        pool_of_group = self._group_pools.get(group) if self.keep_groups_together else None
        if pool_of_group is not None and pool_of_group in self._pools.values():
            return pool_of_group
        pool = min(self._pools.values(), key=lambda pool: pool.load)
        if self.keep_groups_together:
            self._group_pools[group] = pool
            while len(self._group_pools) > MAX_GROUPS:  # the oldest: the pool does not learn when a group has ended
                oldest_group = next(iter(self._group_pools))
                del self._group_pools[oldest_group]
        return pool

    async def is_lost(self, pool: WorkerPool) -> bool:
        """Return whether a pool's node is gone or unresponsive."""
        numbers = [number for number, current in self._pools.items() if current is pool]
        if not numbers:
            return True
        [number] = numbers
        node = self.nodes[number]
        assert node is not None
        if await _responds(node):
            return False
        if self._pools.get(number) is pool:  # otherwise its loss is already known
            self._remove_node(number)
            self._monitors.pop(number).cancel()
            self._start_monitor(number)
        return True

    async def tear_down(self) -> None:
        """Run the environment's `@teardown` methods on every node, then end all workers."""
        if self._loop is not asyncio.get_running_loop():
            return
        pools = list(self._pools.values())
        self._reset()
        await asyncio.gather(*(pool.tear_down() for pool in pools))

    def _ensure_started(self) -> None:
        """Open the pools, and open them again if there is a new event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._reset()
        self._loop, self._changed, self._slots = loop, asyncio.Event(), _ResizableSemaphore()
        self._since = time.monotonic()
        for number, node in enumerate(self.nodes):
            if node is not None:
                self._add_pool(number, node)
            self._start_monitor(number)

    def _reset(self) -> None:
        for monitor in self._monitors.values():
            if not monitor.get_loop().is_closed():
                monitor.cancel()
        self._loop = None
        for mapping in (self._monitors, self._pools, self._group_pools):
            mapping.clear()

    def _start_monitor(self, number: int) -> None:
        assert self._loop is not None
        self._monitors[number] = self._loop.create_task(self._monitor(number))

    async def _monitor(self, number: int) -> None:
        """Watch a node and replace it when it is lost."""
        while True:
            node = self.nodes[number]
            if node is None:
                try:
                    node = self.nodes[number] = await self._open_node(number)
                except Error as error:  # any other node would fail the same way
                    warnings.warn(f"a node of the cluster is not used: {error}", stacklevel=2)
                    return
                self._add_pool(number, node)
            await node.lost()
            if await _responds(node):  # a short interruption
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                self._remove_node(number)

    def _add_pool(self, number: int, node: Node) -> None:
        self._pools[number] = WorkerPool(NodeWorkers(node, self.name, self.address), self.hang_seconds)
        self._update_capacity()

    def _remove_node(self, number: int) -> None:
        pool, node = self._pools.pop(number), self.nodes[number]
        self.nodes[number] = None
        self.lost += 1
        self._since = time.monotonic()
        self._update_capacity()
        pool.close_lost(NODE_LOST)
        if node is not None:
            node.end()

    def _update_capacity(self) -> None:
        """Adapt the number of slots to the number of pools."""
        # At least one rollout must run to raise the error that no node is left.
        self._slots.resize(max(1, len(self._pools) * self.max_rollouts))
        if self._pools:
            self._changed.set()
        else:
            self._changed.clear()


class _ResizableSemaphore:
    """A semaphore whose limit may change."""

    def __init__(self) -> None:
        self.limit = self.held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def resize(self, limit: int) -> None:
        """Set the limit."""
        self.limit = limit
        for _ in range(limit - self.held):
            self._wake()

    async def acquire(self) -> None:
        """Wait for a slot."""
        while self.held >= self.limit:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # pass the wake-up on: it was meant for a free slot
                raise
        self.held += 1

    def release(self) -> None:
        """Free a slot."""
        self.held -= 1
        if self.held < self.limit:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


async def _responds(node: Node) -> bool:
    """Return whether a node responds. It gets two attempts, because this process may have been blocked during the first."""
    for _ in range(2):
        with suppress(WorkerError, TimeoutError):
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                await node.call("about")
            return True
    return False


async def _accept(listener: socket.socket, token: bytes) -> socket.socket:
    """Return the first connection that sends the token."""
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await loop.sock_accept(listener)
        received = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                while len(received) < len(token):
                    piece = await loop.sock_recv(connection, len(token) - len(received))
                    if not piece:
                        break
                    received += piece
        if hmac.compare_digest(received, token):
            return connection
        connection.close()
