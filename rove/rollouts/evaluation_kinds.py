"""Registry of evaluation kinds other than rollouts of examples; packages such as `rove.games` add theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from rove.core.config import convert
from rove.core.protocols import Client, SamplingParams
from rove.envs.environment import Environment


class EvaluationKind(NamedTuple):
    """How an evaluation with `kind = NAME` is done."""

    goals: type[msgspec.Struct]
    """Type of the `goals` table."""
    check: Callable[[Environment], object]
    """Raises a ConfigError if the environment does not support this kind."""
    measure: Callable[[Environment, Client, SamplingParams, Any, int], Awaitable[dict[str, float]]]
    """(environment, client, sampling parameters, goals, seed) → metrics; raises a RolloutError if a rollout fails."""

    def read_goals(self, table: Mapping[str, object]) -> object:
        """Return the `goals` table as a struct; raise a ConfigError if it is not valid."""
        return convert(self.goals, table)


EVALUATION_KINDS: dict[str, EvaluationKind] = {}
"""Registered kinds by name."""
