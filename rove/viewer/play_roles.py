"""Assign the roles in `rove play` to the person, the model of `-m`, and the models of `--model-role`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol, runtime_checkable

from rove.core.errors import ConfigError
from rove.core.protocols import Client, SamplingParams
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import plan


class RoleOptions(NamedTuple):
    """The values of `--model-role`: patterns of role names."""

    person: list[str]
    """Roles that the person plays."""
    models: dict[str, str]
    """Role → the model that plays it, as for `-m`."""


def read_roles(options: Sequence[str], watch: bool, has_model: bool) -> RoleOptions:
    """Parse the values of `--model-role`: NAME for the person, NAME=MODEL for a model."""
    roles = RoleOptions([], {})
    for text in options:
        name, equals, model = (part.strip() for part in text.partition("="))
        if not name or (equals and not model):
            raise ConfigError(
                f"--model-role is {text!r}; expected --model-role NAME for yourself, or --model-role NAME=MODEL; NAME may "
                "contain *"
            )
        if name in roles.person or name in roles.models:
            raise ConfigError(f"--model-role {name} is given twice; give each role once")
        if equals:
            roles.models[name] = model
        else:
            roles.person.append(name)
    if roles.person and watch:
        raise ConfigError(f"--watch and --model-role {roles.person[0]} exclude each other; leave one of them out")
    if roles.person and not has_model:
        raise ConfigError(
            f"--model-role {roles.person[0]} is your role; name the model that plays the main role: -m MODEL"
        )
    return roles


@runtime_checkable
class RoleAware(Protocol):
    """A client that answers model roles through another client."""

    def in_role(self, role: str) -> Client:
        """Return the client for a model role."""
        ...


class PlayRoles:
    """Chooses the client of each model role (`rove.core.model_roles.RoleClients`), and records the roles that were used.

    Args:
        person: Function that returns the person's client for a role, or None. The person takes precedence over `models`.
    """

    def __init__(self, models: Mapping[str, Client], person: Callable[[str], Client | None]):
        self.models = models
        self.person = person
        self.used: dict[str, None] = {}
        """The roles that the environment queried, in order of first use."""

    def get(self, role: str, client: Client, /) -> Client:
        """Return the client for a role: the person's, the named model's, or the environment's own client."""
        self.used.setdefault(role)
        person = self.person(role)
        if person is not None:
            return person
        for pattern, model in self.models.items():
            if fnmatchcase(role, pattern):
                return model
        # A person never gets an unexpected role: without --model-role, a game is as in evaluations (docs/decisions/viewer.md).
        return client.in_role(role) if isinstance(client, RoleAware) else client

    async def close(self) -> None:
        """Close the models' clients."""
        for client in self.models.values():
            await client.close()


def unused_roles(names: Iterable[str], used: Iterable[str]) -> list[str]:
    """Return a message for each name given to `--model-role` that the environment never queried."""
    used_names = list(used)
    actual = f"it queried: {', '.join(used_names)}" if used_names else "it queried no model role (rove.query)"
    return [
        f"the environment never queried the role '{name}'; {actual}"
        for name in names
        if not any(fnmatchcase(role, name) for role in used_names)
    ]


async def one_game(
    env: Environment, client: Client, model: str, sampling: SamplingParams, seed: int, roles: PlayRoles | None = None
) -> RolloutRecord:
    """Run one rollout on an example chosen by `seed`."""
    example = random.Random(seed).choice(env.get_eval_dataset(1000))
    groups = plan([example], 1, seed)
    rollouts = run_groups(env, client, groups, model=model, sampling=sampling, max_concurrent=1, model_roles=roles)
    (record,) = [record async for record in rollouts]
    return record
