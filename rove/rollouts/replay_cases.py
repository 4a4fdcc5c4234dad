"""Replay cases: recorded games that serve as regression tests of the current model."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from fnmatch import fnmatchcase
from itertools import islice
from typing import NamedTuple

from rove.core.errors import RunError
from rove.core.messages import as_message, text_of
from rove.core.protocols import Client, Request, Response, SamplingParams
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.core.renderings import Rendering
from rove.envs.dataset import example_key
from rove.envs.environment import Environment
from rove.envs.multi_turn import MultiTurnEnv, Opponent, env_with_opponent
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Job

OPPONENT = "opponent"
"""Model role under which a person's moves as the opponent are recorded."""
MAX_EXAMPLES = 10_000
"""Maximum number of dataset examples to search for the example of a game."""


class ReplayCase(NamedTuple):
    """A recorded game and its replay."""

    then: RolloutRecord
    now: RolloutRecord

    @property
    def is_worse(self) -> bool:
        """Whether the replay failed or has a lower reward."""
        return self.now.reward is None or self.now.reward < (self.then.reward or 0.0)


async def run_replay_cases(
    env: Environment,
    client: Client,
    recorded: Iterable[RolloutRecord],
    *,
    model: str = "",
    sampling: SamplingParams | None = None,
    role: str = "",
) -> AsyncIterator[ReplayCase]:
    """Replay recorded games one after another, each on its own example.

    If a person was the opponent, the replay repeats the recorded moves in recorded positions and uses reproducible random legal
    moves in other positions. If a person answered in a model role, the replay repeats the recorded answers in recorded
    conversations and queries the environment's client in other conversations.

    Args:
        env: The environment; it is not changed.
        recorded: The games; failed games are skipped.
        role: Name, or a pattern of names, of the model roles in which the person answered.
    """
    # By the content of an example: its number in the dataset depends on the environment's arguments.
    rows = {example_key(row): row for row in islice(env.examples(), MAX_EXAMPLES)}
    for record in recorded:
        if record.scores is None:
            continue
        row = rows.get(record.example_key.partition("#")[0])  # equal rows have the keys "…", "…#2", …
        if row is None:
            raise RunError(
                f"example {record.example_id} of a recorded game is not among the first {MAX_EXAMPLES:,} examples of "
                f"'{env.env_id}'; pass the environment arguments (-a) of the recorded game"
            )
        game = env
        if isinstance(env, MultiTurnEnv):
            game = env_with_opponent(env, recorded_opponent(record))
        jobs = [[Job(row, record.example_key, 0, 0)]]
        roles = RecordedRoles(record, role)
        rollouts = run_groups(game, client, jobs, model=model, sampling=sampling, max_concurrent=1, model_roles=roles)
        async for replayed in rollouts:
            yield ReplayCase(record, replayed)


def recorded_opponent(record: RolloutRecord) -> Opponent | None:
    """Return an opponent that repeats a person's recorded moves; None if the opponent was not a person."""
    steps = record.model_roles.get(OPPONENT, [])
    moves = {text_of(step.prompt[-1]): text_of(step.completion[-1]) for step in steps}

    async def opponent(view: str, legal: list[str], board: Rendering | None = None) -> str:
        move = moves.get(view)
        if move in legal:
            return move
        # The current model led the game to another position than the recorded one.
        return random.Random(f"{record.example_key}:{view}").choice(legal)

    return opponent if moves else None


class RecordedRoles:
    """Model roles of a replay: a person's recorded answers come first (implements `rove.core.model_roles.RoleClients`)."""

    def __init__(self, record: RolloutRecord, role: str):
        self.record, self.role = record, role

    def get(self, role: str, client: Client, /) -> Client:
        """Return a client that repeats recorded answers, or `client` for other roles."""
        if not fnmatchcase(role, self.role):
            return client
        return RecordedClient(self.record.model_roles.get(role, []), client)


class RecordedClient:
    """A client that repeats recorded answers and forwards unknown conversations to another client."""

    def __init__(self, steps: Iterable[TrajectoryStep], client: Client):
        self.steps, self.client = list(steps), client

    @property
    def max_concurrent(self) -> int:
        """See `Client`."""
        return self.client.max_concurrent

    async def respond(self, request: Request) -> Response:
        """Return the recorded answer, or query the other client."""
        recorded = next((step for step in self.steps if step.prompt == request.messages), None)
        if recorded is None:
            return await self.client.respond(request)
        return Response(as_message(recorded.completion[-1]))

    async def close(self) -> None:
        """Close the client for other conversations."""
        await self.client.close()
