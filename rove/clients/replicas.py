"""Several servers of the same model as one client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from rove.clients.endpoint import OVERLOADED_STATUSES, EndpointClient
from rove.clients.limiter import Change
from rove.core.errors import (
    ConfigError,
    InfraError,
    InvalidModelResponseError,
    ModelError,
    cancelled_unanswered,
    unanswered_attempts,
)
from rove.core.plain import Identity
from rove.core.protocols import Request, Response
from rove.core.state import State, bookkeeping

AVOID_S = 30.0
"""Seconds for which a replica that failed to respond gets no requests; after that, one request checks whether it responds
again."""
MAX_REMEMBERED_ROLLOUTS = 100_000
"""Maximum number of rollouts whose replica is remembered, the latest rollouts."""


class Replicas:
    """A client that balances requests over replicas and keeps the turns of a rollout on one replica.

    The server of the last turn has the conversation in its prefix cache. A request that fails at a replica, after the retries
    of its client, goes to the next replica, until all replicas have failed. A replica that does not respond is avoided for a
    while; an overloaded replica is not.

    Args:
        replicas: A client and the name of its model for each replica.
        name: common name; it identifies the replicas in run folders, so that a run can resume after the servers moved.
        clock: a monotonic clock in seconds.

    Example:
        clients = [rove.OpenAIClient(f"http://node{i}:8000/v1") for i in range(4)]
        client = Replicas([(client, "Qwen/Qwen3-8B") for client in clients], "qwen")
    """

    forces_tool_calls = True
    """Whether the API supports `Request.tool_choice`."""

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
        self._assigned: dict[int, _Replica] = {}
        """Replica by the rollout's seed, the latest last."""
        self._limiter = JointLimiter(self._replicas, self._choose)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def identity(self) -> Identity:
        """Values that distinguish these servers' responses from those of other servers; addresses are not included."""
        apis = sorted({type(replica.client).__name__ for replica in self._replicas})
        models = sorted({replica.model for replica in self._replicas})
        return {"api": ", ".join(apis), "endpoint": self.name, "model": ", ".join(models)}

    @property
    def limiter_now(self) -> JointLimiter:
        """The combined limiter, also outside of an event loop."""
        return self._limiter

    @property
    def limiter(self) -> JointLimiter:
        """The combined limiter on the running event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._limiter.restart()
        return self._limiter

    @property
    def max_concurrent(self) -> int:
        """The upper limit of concurrent requests."""
        return sum(replica.client.max_concurrent for replica in self._replicas)

    async def respond(self, request: Request) -> Response:
        """Send one request; the replica's model name overrides the request's model name."""
        tried: list[_Replica] = []
        attempts: list[str] = []
        seed = None if request.state is None else _seed_of(request.state)
        while True:
            replica = self._choose(seed, tried)
            tried.append(replica)
            try:
                response = await self._send(replica, request)
            except (InfraError, ModelError) as error:
                attempts += self._labeled(replica, error.attempts)
                error.attempts = attempts
                # Any other `ModelError` is a rejection of the request, which would fail everywhere.
                may_succeed = isinstance(error, (InfraError, InvalidModelResponseError))
                if not may_succeed or len(tried) == len(self._replicas):
                    raise
            except asyncio.CancelledError as cancelled:
                if attempts:
                    attempts += self._labeled(replica, unanswered_attempts(cancelled) or ())
                    raise cancelled_unanswered(attempts) from cancelled
                raise
            else:
                attempts += self._labeled(replica, response.attempts)
                return msgspec.structs.replace(response, attempts=attempts)

    async def close(self) -> None:
        """Close the connections to all replicas."""
        await asyncio.gather(*(replica.client.close() for replica in self._replicas))

    def _choose(self, seed: int | None = None, tried: Sequence[_Replica] = ()) -> _Replica:
        """Return the replica of the rollout with this seed, else the replica with the lowest load."""
        time_s = self._clock()
        untried = [replica for replica in self._replicas if replica not in tried]
        answering = [replica for replica in untried if replica.avoided_until <= time_s]
        assigned = None if seed is None else self._assigned.pop(seed, None)
        # If all are avoided, an unlikely answer is better than none.
        least_busy = min(answering or untried, key=lambda replica: replica.load)
        chosen = assigned if assigned in answering else least_busy
        if seed is not None:
            self._assigned[seed] = chosen
            if len(self._assigned) > MAX_REMEMBERED_ROLLOUTS:
                del self._assigned[next(iter(self._assigned))]
        return chosen

    async def _send(self, replica: _Replica, request: Request) -> Response:
        replica.under_way += 1
        if replica.avoided_until:  # this request checks whether it is back
            replica.avoided_until = self._clock() + AVOID_S
        try:
            response = await replica.client.respond(msgspec.structs.replace(request, model=replica.model))
        except InfraError as error:
            is_overloaded = error.status in OVERLOADED_STATUSES
            replica.avoided_until = 0.0 if is_overloaded else self._clock() + AVOID_S
            raise
        except ModelError:
            replica.avoided_until = 0.0  # a rejection is a response, too
            raise
        finally:
            replica.under_way -= 1
        replica.avoided_until = 0.0
        return response

    def _labeled(self, replica: _Replica, attempts: Sequence[str]) -> list[str]:
        """Return the failed tries, with the address of the replica if there are several."""
        if len(self._replicas) == 1:
            return list(attempts)
        return [f"{replica.client.base_url}: {line}" for line in attempts]


class JointLimiter:
    """The limiters of all replicas as one; see `Limiter`."""

    def __init__(self, replicas: Sequence[_Replica], choose: Callable[[], _Replica]):
        self._replicas = replicas
        self._choose = choose
        self._reserved: list[_Replica] = []
        self._on_change: Callable[[Change], None] | None = None

    @property
    def adaptive(self) -> bool:
        """Whether a limit adapts."""
        return any(replica.client.limiter_now.adaptive for replica in self._replicas)

    @property
    def limit(self) -> int:
        """The current sum of the limits."""
        return sum(replica.client.limiter_now.limit for replica in self._replicas)

    @property
    def on_change(self) -> Callable[[Change], None] | None:
        """Called with every change of a limit; its `limit` is the sum."""
        return self._on_change

    @on_change.setter
    def on_change(self, callback: Callable[[Change], None] | None) -> None:
        self._on_change = callback
        for replica in self._replicas:
            replica.client.limiter_now.on_change = None if callback is None else self._forward

    def _forward(self, change: Change) -> None:
        if self._on_change is not None:
            self._on_change(change._replace(limit=self.limit))

    def restart(self) -> None:
        """Forget all requests: their event loop has ended."""
        self._reserved.clear()
        for replica in self._replicas:
            replica.under_way = replica.reserved = 0

    async def reserve(self) -> None:
        """Wait until one more rollout can start at the replica with the lowest load; `unreserve` must follow."""
        replica = self._choose()
        replica.reserved += 1
        try:
            await replica.client.limiter.reserve()
        except BaseException:
            replica.reserved -= 1
            raise
        self._reserved.append(replica)

    def unreserve(self) -> None:
        """Give up a reservation; see `Limiter.unreserve`."""
        if not self._reserved:  # `restart` cleared it
            return
        replica = self._reserved.pop()
        replica.reserved -= 1
        replica.client.limiter.unreserve()


class _Replica:
    def __init__(self, client: EndpointClient, model: str):
        self.client = client
        self.model = model
        self.under_way = 0
        """Number of requests, including waiting requests."""
        self.reserved = 0
        """Number of rollouts that have a reservation or wait for a reservation."""
        self.avoided_until = 0.0
        """Time until which the replica gets no requests; 0 if it answered the last request."""

    @property
    def load(self) -> float:
        """Number of requests and reservations, divided by the limit."""
        return (self.under_way + self.reserved) / self.client.limiter_now.limit


def _seed_of(state: State) -> int | None:
    """Return the seed of a rollout, which may be 0; None for a state without a seed."""
    rollout = bookkeeping(state)
    return rollout.seed if "seed" in rollout.initial_fields else None
