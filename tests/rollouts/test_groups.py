"""Many rollouts at once: see also test_rollout, test_evaluate."""

from __future__ import annotations

import asyncio

from toys import Quiz, says

from rove.clients.limiter import Limiter
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import plan


async def test_the_end_does_not_wait_for_an_endpoint_that_has_closed():
    class Closing:
        """Answers, and then wants to be left alone for an hour."""

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


async def test_a_limiter_of_another_kind_is_left_alone():
    client = says("hi")
    client.limiter = "mine"  # type: ignore[attr-defined]
    records = [r async for r in run_groups(Quiz(3), client, plan(Quiz(3).get_dataset(), 1))]
    assert len(records) == 3
