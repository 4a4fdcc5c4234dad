"""Groups of rollouts and the limiter of the client. See also `test_runner` and `test_evaluate`."""

from __future__ import annotations

import asyncio

from toys import Quiz, says

from rove.clients.limiter import Limiter
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import plan


async def test_a_finished_run_does_not_wait_for_the_pause_of_an_endpoint():
    class Closing:
        """Answers and then requests a pause of one hour."""

        max_concurrent = 8

        def __init__(self):
            self.limiter = Limiter(1, adaptive=True, maximum=8)
            self.inner = says("hi")

        async def respond(self, request):
            admitted = await self.limiter.acquire()
            try:
                return await self.inner.respond(request)
            finally:
                self.limiter.release(admitted, "refused", pause=3600)

        async def close(self):
            """Nothing to free."""

    async with asyncio.timeout(20):
        client = Closing()
        records = [r async for r in run_groups(Quiz(1), client, plan(Quiz(1).get_dataset(), 1))]
    assert len(records) == 1
    assert client.limiter._reserved == 0


async def test_a_limiter_of_another_type_is_ignored():
    client = says("hi")
    client.limiter = "mine"  # type: ignore[attr-defined]
    records = [r async for r in run_groups(Quiz(3), client, plan(Quiz(3).get_dataset(), 1))]
    assert len(records) == 3
