"""Groups of rollouts and the limiter of the client. See also `test_runner` and `test_evaluate`."""

from __future__ import annotations

import asyncio
from typing import Any

from toy_envs import Quiz, scripted_client

import rove as vf
from rove.clients.limiter import Limiter
from rove.core.protocols import Request, SamplingParams
from rove.envs.environment import Turn
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import plan


async def test_a_finished_run_does_not_wait_for_the_pause_of_an_endpoint():
    class PausingClient:
        """Answers and then requests a pause of one hour."""

        max_concurrent = 8

        def __init__(self):
            self.limiter = Limiter(1, adaptive=True, maximum=8)
            self.inner = scripted_client("hi")

        async def respond(self, request):
            admitted = await self.limiter.acquire()
            try:
                return await self.inner.respond(request)
            finally:
                self.limiter.release(admitted, "refused", pause=3600)

        async def close(self):
            """Do nothing."""

    async with asyncio.timeout(20):
        client = PausingClient()
        records = [r async for r in run_groups(Quiz(1), client, plan(Quiz(1).get_dataset(), 1))]
    assert len(records) == 1
    assert client.limiter._reserved == 0


async def test_a_limiter_of_another_type_is_ignored():
    client = scripted_client("hi")
    client.limiter = "mine"  # type: ignore[attr-defined]
    records = [r async for r in run_groups(Quiz(3), client, plan(Quiz(3).get_dataset(), 1))]
    assert len(records) == 3


async def test_only_rollouts_for_training_refuse_sampling_parameters_of_an_agent():
    class Agent(Quiz):
        """An agent with its own top_p."""

        async def run(self, state: vf.State, turn: Turn) -> None:
            agent_request = Request([], SamplingParams(top_p=0.9))
            state["completion"] = [await turn(state, state["prompt"], agent_request=agent_request)]

    async def errors(**options: Any) -> list[str | None]:
        groups = plan(Agent(1).get_dataset(), 1)
        records = [record async for record in run_groups(Agent(1), scripted_client("hi"), groups, **options)]
        return [record.error and record.error.type for record in records]

    assert await errors() == [None]
    assert await errors(for_training=True) == ["ConfigError"]
