"""Regression cases: games that were kept, played again by whatever model there is now."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple

from rove.core.errors import RunError
from rove.core.messages import as_message, text_of
from rove.core.protocols import Client, Request, Response, SamplingParams
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.core.renderings import Rendering
from rove.envs.dataset import example_key
from rove.envs.environment import Environment
from rove.envs.multi_turn import MultiTurnEnv, Opponent
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Job

OPPONENT = "opponent"
"""The role under which a person's moves are kept."""
SEARCHED = 10_000
"""Examples of the dataset among which a game's is looked for."""


class ReplayCase(NamedTuple):
    """A game as it was, and as it is now."""

    then: RolloutRecord
    now: RolloutRecord

    @property
    def is_worse(self) -> bool:
        """Whether it has a smaller reward now, or fails."""
        return self.now.reward is None or self.now.reward < (self.then.reward or 0.0)


async def run_replay_cases(
    env: Environment,
    client: Client,
    kept: Iterable[RolloutRecord],
    *,
    model: str = "",
    sampling: SamplingParams | None = None,
    role: str = "",
) -> AsyncIterator[ReplayCase]:
    """Play games again, one after the other, on the examples they had.

    Where a person had the opponent's role, its moves come again wherever the game comes to what they answered; elsewhere a
    legal move is drawn, the same one every time. Where it had a role that the environment asks by name, its words come again
    likewise; elsewhere whom the environment asks is asked.

    Args:
        env: a two-player environment's `opponent` is taken meanwhile.
        client: who plays now.
        kept: the games; failed ones are left out.
        role: the name by which the environment asked the person; it may be a pattern.

    Raises:
        RunError: the dataset has the example of a game no more.
    """
    rows = {example_key(row): row for row in islice(env.examples(), SEARCHED)}
    before = env.opponent if isinstance(env, MultiTurnEnv) else None
    try:
        for record in kept:
            if record.scores is None:
                continue
            row = rows.get(record.example_key)
            if row is None:
                raise RunError(
                    f"the example {record.example_id} of a kept game is not among the first {SEARCHED:,} of '{env.env_id}'; "
                    "give the arguments of the environment (-a) that it was played with"
                )
            if isinstance(env, MultiTurnEnv):
                env.opponent = replayed(record)
            jobs = [[Job(row, record.example_key, 0, 0)]]
            played = run_groups(
                env, client, jobs, model=model, sampling=sampling, max_concurrent=1, model_roles=Recalled(record, role)
            )
            async for now in played:
                yield ReplayCase(record, now)
    finally:
        if isinstance(env, MultiTurnEnv):
            env.opponent = before


def replayed(record: RolloutRecord) -> Opponent | None:
    """The opponent of a kept game; None where that was the environment's own."""
    steps = record.model_roles.get(OPPONENT, [])
    moves: dict[str, Any] = {text_of(step.prompt[-1]): text_of(step.completion[-1]) for step in steps}

    async def opponent(view: str, legal: list[str], board: Rendering | None = None) -> str:
        move = moves.get(view)
        return move if move in legal else random.Random(f"{record.example_key}:{view}").choice(legal)

    return opponent if moves else None


class Recalled:
    """Who answers in the roles that a person had in a game (`rove.core.model_roles.RoleClients`): it does, as it did.

    Args:
        record: the game.
        role: pattern of the roles' names.
    """

    def __init__(self, record: RolloutRecord, role: str):
        self.record, self.role = record, role

    def get(self, role: str, client: Client, /) -> Client:
        """The person's words, before whom the environment asks."""
        return Memory(self.record.model_roles.get(role, []), client) if fnmatchcase(role, self.role) else client


class Memory:
    """A client that says what was said to the same conversation before, and asks another one where there was none.

    Args:
        steps: what was said.
        client: who is asked otherwise.
    """

    def __init__(self, steps: Iterable[TrajectoryStep], client: Client):
        self.steps, self.client = list(steps), client

    @property
    def max_concurrent(self) -> int:
        """See `Client`."""
        return self.client.max_concurrent

    async def respond(self, request: Request) -> Response:
        """The recorded answer, or a new one."""
        found = next((step for step in self.steps if step.prompt == request.messages), None)
        return await self.client.respond(request) if found is None else Response(as_message(found.completion[-1]))

    async def close(self) -> None:
        """Close the client behind."""
        await self.client.close()
