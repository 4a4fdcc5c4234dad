"""`rove play --model-role`: who answers in the roles that an environment asks through `rove.query`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from rove.core.errors import ConfigError
from rove.core.protocols import Client, Request, Response


class Given(NamedTuple):
    """What `--model-role` says: patterns of roles' names."""

    mine: list[str]
    """Those in which the person sits."""
    models: dict[str, str]
    """Those in which a model sits → its name, as after `-m`."""


def read_roles(given: Sequence[str], watch: bool, has_model: bool) -> Given:
    """What was said after `--model-role`, once for each: NAME is the person's role, NAME=MODEL a model's.

    Raises:
        ConfigError: a name is empty or comes twice, or the person would sit nowhere, or in two places.
    """
    read = Given([], {})
    for text in given:
        name, equals, model = (part.strip() for part in text.partition("="))
        if not name or (equals and not model):
            raise ConfigError(
                f"--model-role is {text!r}; expected --model-role NAME for you, or --model-role NAME=MODEL; NAME may have * in it"
            )
        if name in read.mine or name in read.models:
            raise ConfigError(f"--model-role {name} is given twice; a role has one who sits in it")
        if equals:
            read.models[name] = model
        else:
            read.mine.append(name)
    if read.mine and watch:
        raise ConfigError(
            f"--watch and --model-role {read.mine[0]}: you watch, or you sit there; leave one of them out"
        )
    if read.mine and not has_model:
        raise ConfigError(f"--model-role {read.mine[0]} is your role; who takes the model's? -m MODEL")
    return read


@runtime_checkable
class Seated(Protocol):
    """A client of the model's role that is somebody else in other roles."""

    def in_role(self, role: str) -> Client:
        """Who answers when the same client is asked in another role."""
        ...


class Named:
    """A client whose model has a name, whatever the environment calls whom it asks."""

    def __init__(self, client: Client, model: str):
        self.client, self.model = client, model

    @property
    def max_concurrent(self) -> int:
        """See `Client`."""
        return self.client.max_concurrent

    async def respond(self, request: Request) -> Response:
        """Pass the question on under that name."""
        return await self.client.respond(msgspec.structs.replace(request, model=self.model))

    async def close(self) -> None:
        """Close the client behind."""
        await self.client.close()


class Roles:
    """Who answers in other roles than the model's (`rove.core.model_roles.RoleClients`), and who was asked there.

    Args:
        models: patterns of names → who sits there.
        person: the person in a role; None where it does not sit there. It comes before the models.
    """

    def __init__(self, models: Mapping[str, Client], person: Callable[[str], Client | None]):
        self.models = models
        self.person = person
        self.asked: dict[str, None] = {}
        """The roles in which somebody was asked, the first one first."""

    def get(self, role: str, client: Client, /) -> Client:
        """The person, a model that was named, or whom the environment asks."""
        self.asked.setdefault(role)
        found = self.person(role) or next((one for name, one in self.models.items() if fnmatchcase(role, name)), None)
        if found is not None:
            return found
        return client.in_role(role) if isinstance(client, Seated) else client

    async def close(self) -> None:
        """Close the models."""
        for client in self.models.values():
            await client.close()


def never_asked(names: Iterable[str], asked: Iterable[str]) -> list[str]:
    """A line for each name given to `--model-role` that nobody was asked by."""
    known = list(asked)
    told = f"those that were: {', '.join(known)}" if known else "this environment asked nobody through rove.query"
    return [
        f"nobody was asked in the role '{name}'; {told}"
        for name in names
        if not any(fnmatchcase(role, name) for role in known)
    ]
