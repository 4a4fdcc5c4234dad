"""Scripted rollouts of an environment in a worker process: what it does, and what becomes of it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from rove.check.probe_policies import PLAYERS
from rove.clients.scripted import ScriptedClient
from rove.core.config import check_positive
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, Error
from rove.core.messages import Messages
from rove.core.protocols import Limits
from rove.core.records import Outcome, RolloutRecord
from rove.core.state import State
from rove.remote import IsolatedEnv
from rove.rollouts.evaluate import generate
from rove.rollouts.runner import plan
from rove.statistics.reward_errors import RewardErrors

REWARD_FAILED = re.compile(r"Error calling reward function (.*)")
"""What v0 says where a reward function raises, and counts it as 0."""
CALL = re.compile(r"^\w+\(\{.*?\}\): ")
"""How the error of a worker that died begins: with the call, which has the rollout's number."""
WORDS = 300
"""Characters that are kept of an error's words."""


class Limited(msgspec.Struct, frozen=True, kw_only=True):
    """How much an environment gets to show what it does.

    Raises:
        ConfigError: a value is not above 0.
    """

    num_examples: int = 2
    max_turns: int = 30
    """Of a rollout."""
    install_seconds: float = 900.0
    """For what it needs."""
    start_seconds: float = 120.0
    """For loading it, and as much for its dataset."""
    hang_seconds: float = 30.0
    """It is killed when it does not look up for so long."""
    play_seconds: float = 300.0
    """For all its rollouts."""

    def __post_init__(self) -> None:
        check_positive(self, *self.__struct_fields__)


class Failure(msgspec.Struct, frozen=True, order=True):
    """An error that rollouts ended with."""

    phase: str
    type: str
    message: str
    times: int = 1


class Played(msgspec.Struct):
    """What came of the rollouts."""

    policies: list[str] = []
    own_policies: bool = False
    """Whether the environment brought them."""
    rollouts: int = 0
    failed: int = 0
    rewards: dict[str, float] = {}
    """Player → mean reward of its rollouts that did not fail."""
    metrics: list[str] = []
    """Reward functions and metrics."""
    failures: list[Failure] = []
    """The commonest first."""
    swallowed: list[str] = []
    """What reward functions raised, where that counts as 0."""
    broken: dict[str, str] = {}
    """Reward function → its error, of those that raised in every rollout."""
    unloaded: str = ""
    """Why the environment, or its dataset, could not be loaded."""


def play(
    module: str,
    env_args: Mapping[str, Any],
    env_dir: Path | None,
    python: str | None,
    variables: Mapping[str, str],
    limited: Limited,
    prepare: str,
) -> Played:
    """Load an environment and let every player play its first examples. Whatever it does, this comes back."""
    played = Played()
    try:
        env = IsolatedEnv(
            module,
            env_args,
            env_dir,
            python,
            start_seconds=limited.start_seconds,
            hang_seconds=limited.hang_seconds,
            rows_seconds=limited.start_seconds,
            prepare=prepare,
            variables=variables,
        )
    except ConfigError as error:
        played.unloaded = str(error)
        return played
    try:
        asyncio.run(_play(env, played, limited))
    except Error as error:
        played.unloaded = f"its dataset cannot be read: {error}"
    finally:
        env.workers.close()
    return played


async def _play(env: IsolatedEnv, played: Played, limited: Limited) -> None:
    players = env.policies or PLAYERS
    played.policies, played.own_policies = sorted(players), bool(env.policies)
    names = played.policies
    examples = env.examples(limited.num_examples)
    seeds = {
        derive_seed(job.seed, job.key, job.index): job.index for jobs in plan(examples, len(names)) for job in jobs
    }
    records: list[RolloutRecord] = []
    swallowed: dict[str, None] = {}

    def keep(record: RolloutRecord | Outcome) -> None:
        assert isinstance(record, RolloutRecord)
        records.append(record)
        for line in env.workers.recent_output:
            if found := REWARD_FAILED.search(line):
                swallowed[found[1]] = None

    def say(messages: Messages, state: State, rng: Random) -> Any:
        return players[names[seeds[state["seed"]]]](messages, state, rng)

    given: dict[str, Any] = {"num_examples": limited.num_examples, "rollouts_per_example": len(names)}
    limits = Limits(max_turns=limited.max_turns, timeout_seconds=limited.play_seconds / 2)
    try:
        async with asyncio.timeout(limited.play_seconds):
            await generate(env, ScriptedClient(say), limits=limits, on_record=keep, **given)
    except TimeoutError:
        missing = limited.num_examples * len(names) - len(records)
        said = Failure("rollout", "TimeoutError", f"did not end within {limited.play_seconds:g} s", missing)
        _sum_up(played, records, [said])
    else:
        _sum_up(played, records, [])
    played.swallowed = sorted(swallowed)


def _sum_up(played: Played, records: list[RolloutRecord], more: list[Failure]) -> None:
    """Count; a player that calls tools has not played where there are none."""
    if not played.own_policies and not any(record.tools for record in records):
        gone = played.policies.index("tools")
        records = [record for record in records if record.rollout_index != gone]
    else:
        gone = -1
    errors = RewardErrors()
    failed: Counter[tuple[str, str, str]] = Counter()
    values: dict[str, list[float]] = {}
    metrics: dict[str, None] = {}
    for record in records:
        errors.add(record)
        if record.error is not None:
            said = CALL.sub("", record.error.message)[:WORDS]
            failed[record.error.phase, record.error.type, said] += 1
        if record.scores is not None:
            values.setdefault(played.policies[record.rollout_index], []).append(record.scores.reward)
            metrics |= dict.fromkeys([*record.scores.rewards, *record.scores.metrics])
    played.failures = [*(Failure(*what, times) for what, times in failed.most_common()), *more]
    played.failed = sum(failure.times for failure in played.failures)
    played.rollouts = len(records) + sum(failure.times for failure in more)
    played.rewards = {name: round(sum(got) / len(got), 4) for name, got in sorted(values.items())}
    played.metrics = sorted(metrics)
    played.broken = errors.broken
    if gone >= 0:
        played.policies = [name for name in played.policies if name != "tools"]
