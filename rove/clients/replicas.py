"""Several servers of one model as one client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rove.clients.endpoint import REFUSED, EndpointClient
from rove.clients.limiter import Change
from rove.core.errors import ConfigError, InfraError, InvalidModelResponseError, ModelError
from rove.core.protocols import Request, Response

AVOIDED = 30.0
"""Seconds a replica that gave no answer is left alone; then one request finds out whether it is back."""
REMEMBERED = 100_000
"""Rollouts whose replica is remembered: the latest ones, many more than ever run at a time."""


class Replicas:
    """Sends each request to the replica with most room, and the turns of one rollout to the same replica.

    (A server that keeps what it computed for the last turn has little left to do for the next.) A request that a
    replica fails for good, its client's own retries included, goes to the next one, until each has had it. A replica
    that gave no answer at all is avoided for a while, also by the rollouts it had; one that has too much to do is not.

    Args:
        replicas: a client and the name of the model there, for each.
        name: what they are called together; it stands for them in the identity of runs, so that a run can go on when
            the servers have moved.
        clock: seconds that only grow.

    Raises:
        ConfigError: there are none.
    """

    forces_tool_calls = True
    """Whether they honor `Request.tool_choice`."""

    def __init__(
        self,
        replicas: Sequence[tuple[EndpointClient, str]],
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not replicas:
            raise ConfigError(f"'{name}' has no replicas; expected at least one client")
        self.name = name
        self._replicas = [_Replica(client, model) for client, model in replicas]
        self._clock = clock
        self._homes: dict[int, _Replica] = {}  # by the seed of the rollout, the latest last
        self._limiter = JointLimiter(self._replicas, self._choose)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What tells the answers of these servers from those of others; where they are does not count."""
        apis = sorted({type(replica.client).__name__ for replica in self._replicas})
        models = sorted({replica.model for replica in self._replicas})
        return {"api": ", ".join(apis), "endpoint": self.name, "model": ", ".join(models)}

    @property
    def limiter_now(self) -> JointLimiter:
        """The same outside of an event loop, to look at."""
        return self._limiter

    @property
    def limiter(self) -> JointLimiter:
        """Who admits the rollouts of this client, on the running event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._limiter.restart()
        return self._limiter

    @property
    def max_concurrent(self) -> int:
        """Most requests that may ever be under way at once."""
        return sum(replica.client.max_concurrent for replica in self._replicas)

    async def respond(self, request: Request) -> Response:
        """Answer one request; the request's own model name gives way to that of the replica.

        Raises:
            ModelError, InfraError: as `EndpointClient.respond`, of the last replica, with the attempts at all of them.
        """
        tried: list[_Replica] = []
        attempts: list[str] = []
        seed = None if request.state is None else request.state.get("seed")
        while True:
            replica = self._choose(seed, tried)
            tried.append(replica)
            try:
                response = await self._ask(replica, request)
            except (InfraError, ModelError) as error:
                attempts += self._told(replica, error.attempts)
                error.attempts = attempts
                may_pass = isinstance(error, (InfraError, InvalidModelResponseError))
                if not may_pass or len(tried) == len(self._replicas):
                    raise
            except asyncio.CancelledError as cancelled:
                if attempts:
                    attempts += self._told(replica, getattr(cancelled, "rove_unanswered", ()))
                    cancelled.rove_unanswered = attempts  # pyright: ignore[reportAttributeAccessIssue]
                raise
            else:
                attempts += self._told(replica, response.attempts)
                return msgspec.structs.replace(response, attempts=attempts)

    async def close(self) -> None:
        """Close the connections to all of them."""
        await asyncio.gather(*(replica.client.close() for replica in self._replicas))

    def _choose(self, seed: int | None = None, tried: Sequence[_Replica] = ()) -> _Replica:
        """The replica for a request of the rollout with this seed: its own, else the one with most room."""
        now = self._clock()
        left = [replica for replica in self._replicas if replica not in tried]
        answering = [replica for replica in left if replica.avoided_until <= now]
        home = None if seed is None else self._homes.pop(seed, None)
        chosen = home if home in answering else min(answering or left, key=lambda replica: replica.load)
        if seed is not None:
            self._homes[seed] = chosen
            if len(self._homes) > REMEMBERED:
                del self._homes[next(iter(self._homes))]
        return chosen

    async def _ask(self, replica: _Replica, request: Request) -> Response:
        replica.under_way += 1
        if replica.avoided_until:  # this request finds out whether it is back; the others stay away until then
            replica.avoided_until = self._clock() + AVOIDED
        try:
            response = await replica.client.respond(msgspec.structs.replace(request, model=replica.model))
        except InfraError as error:
            is_busy = getattr(error, "status", None) in REFUSED
            replica.avoided_until = 0.0 if is_busy else self._clock() + AVOIDED
            raise
        except ModelError:
            replica.avoided_until = 0.0  # even to say no one must be there
            raise
        finally:
            replica.under_way -= 1
        replica.avoided_until = 0.0
        return response

    def _told(self, replica: _Replica, attempts: Sequence[str]) -> list[str]:
        """The failed tries at a replica; where there are several, with its address."""
        return [f"{replica.client.base_url}: {line}" if len(self._replicas) > 1 else line for line in attempts]


class JointLimiter:
    """The limiters of all replicas as one, for those who start rollouts and those who watch. See `Limiter`."""

    def __init__(self, replicas: Sequence[_Replica], choose: Callable[[], _Replica]):
        self._replicas = replicas
        self._choose = choose
        self._held: list[_Replica] = []
        self._on_change: Callable[[Change], None] | None = None

    @property
    def adaptive(self) -> bool:
        """Whether a limit finds itself."""
        return any(replica.client.limiter_now.adaptive for replica in self._replicas)

    @property
    def limit(self) -> int:
        """Requests that may be under way at once, now, at all replicas together."""
        return sum(replica.client.limiter_now.limit for replica in self._replicas)

    @property
    def on_change(self) -> Callable[[Change], None] | None:
        """Called with every change of a replica's limit; the limit it is told is the sum."""
        return self._on_change

    @on_change.setter
    def on_change(self, tell: Callable[[Change], None] | None) -> None:
        self._on_change = tell
        for replica in self._replicas:
            replica.client.limiter_now.on_change = None if tell is None else self._pass_on

    def _pass_on(self, change: Change) -> None:
        if self._on_change is not None:
            self._on_change(change._replace(limit=self.limit))

    def restart(self) -> None:
        """Forget who was under way: their event loop has ended."""
        self._held.clear()
        for replica in self._replicas:
            replica.under_way = replica.held = 0

    async def reserve(self) -> None:
        """Wait for room for one more rollout at the replica that has most of it; `unreserve` must follow."""
        replica = self._choose()
        replica.held += 1
        try:
            await replica.client.limiter.reserve()
        except BaseException:
            replica.held -= 1
            raise
        self._held.append(replica)

    def unreserve(self) -> None:
        """Give a reserved room back. Whoever makes a request right after this finds it, for now it counts as room."""
        if not self._held:  # `restart` has forgotten it
            return
        replica = self._held.pop()
        replica.held -= 1
        replica.client.limiter.unreserve()


class _Replica:
    """One server, and what is known of it."""

    def __init__(self, client: EndpointClient, model: str):
        self.client = client
        self.model = model
        self.under_way = 0  # requests, those that wait to be admitted included
        self.held = 0  # rollouts that have room reserved, or wait for it
        self.avoided_until = 0.0  # 0: it answers, as far as we know

    @property
    def load(self) -> float:
        """How full it is; 1 = at its limit."""
        return (self.under_way + self.held) / self.client.limiter_now.limit
