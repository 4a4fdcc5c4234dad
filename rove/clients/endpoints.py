"""`endpoints.toml`: short names for models behind endpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from rove.clients.anthropic import AnthropicClient
from rove.clients.endpoint import EndpointClient
from rove.clients.masking import NO_KEY
from rove.clients.openai import CompletionsClient, OpenAIClient
from rove.clients.replicas import Replicas
from rove.clients.responses import ResponsesClient
from rove.core.config import check_positive, convert, read_toml
from rove.core.errors import ConfigError, MissingKeyError, nearest

PLACES = (Path("endpoints.toml"), Path("configs/endpoints.toml"))
"""Where the file is looked for when none is named."""

APIS: dict[str, type[EndpointClient]] = {
    "openai_chat_completions": OpenAIClient,
    "chat": OpenAIClient,
    "openai_completions": CompletionsClient,
    "completions": CompletionsClient,
    "openai_responses": ResponsesClient,
    "responses": ResponsesClient,
    "anthropic_messages": AnthropicClient,
    "anthropic": AnthropicClient,
}
"""The names of `api_client_type`, long and short."""

Text = Annotated[str, msgspec.Meta(min_length=1)]


class Address(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[endpoint]]` table: a model somewhere. Tables that share an `endpoint_id` are replicas.

    Raises:
        ConfigError: an unknown API, a limit or price out of range, or a `key` that does not look like a variable's name.
    """

    endpoint_id: Text
    """The name that `-m` takes."""
    model: Text
    """What the model is called there."""
    url: str | None = None
    """The base URL; default: that of the API's client, so in the end the API's maker."""
    key: str | None = None
    """The name of the environment variable that holds the key; default: that of the API's client. `NO_KEY` says that the
    server wants none (unless there is a variable of that name)."""
    api_client_type: str = "openai_chat_completions"
    """One of `APIS`."""
    headers: dict[str, str] = {}
    """Sent with every request."""
    price: dict[str, float] | None = None
    """What a million tokens cost: `{input = 0.4, output = 1.6}`. Of replicas one need say it."""
    max_concurrent: int | None = None
    """Most requests under way at once; None = found out while running."""

    def __post_init__(self) -> None:
        check_positive(self, "max_concurrent")
        if self.api_client_type not in APIS:
            raise ConfigError(
                f"api_client_type is '{self.api_client_type}'; {nearest(self.api_client_type, APIS)} "
                f"(there are {', '.join(APIS)})"
            )
        if self.price is not None and not (
            self.price.keys() == {"input", "output"} and all(cost >= 0 for cost in self.price.values())
        ):
            raise ConfigError(f"price is {self.price}; expected {{input = …, output = …}}, each 0 or more")
        if self.key is not None and not _is_name(self.key):
            raise ConfigError(
                "key is not the name of an environment variable, and may be the secret itself (so it is not shown); "
                'expected a name like key = "OPENAI_API_KEY", with the secret in that variable'
            )

    def client(self, api_key: str | None = None, **settings: Any) -> EndpointClient:
        """A client for it.

        Args:
            api_key: the key to use instead of its own.
            settings: those of `EndpointClient`.

        Raises:
            MissingKeyError: the variable is not set; or none is named, and the API's maker insists on a key.
            ConfigError: the URL is none.
        """
        kind = APIS[self.api_client_type]
        return kind(self.url, api_key or self._api_key(), headers=self.headers, **settings)

    def _api_key(self) -> str | None:
        if self.key is None:
            return None
        value = os.environ.get(self.key) or (NO_KEY if self.key == NO_KEY else "")
        if not value:
            raise MissingKeyError(
                f"environment variable {self.key} is not set, which was to hold the key of endpoint '{self.endpoint_id}'"
            )
        return value


class Endpoint(NamedTuple):
    """What one name stands for: the address of a model, or those of its replicas."""

    endpoint_id: str
    addresses: list[Address]

    @property
    def price(self) -> dict[str, float] | None:
        """What a million tokens cost, "input" and "output", where the file says so."""
        return next((address.price for address in self.addresses if address.price is not None), None)

    def client(
        self,
        api_key: str | None = None,
        max_concurrent: int | None = None,
        timeout: float = 600.0,
        max_retries: int = 4,
    ) -> Replicas:
        """One client for all addresses.

        Args:
            api_key: the key to use instead of their own.
            max_concurrent: most requests under way at once at each; an address's own limit stays if it is lower.
            timeout: seconds one try may take.
            max_retries: tries after the first one; replicas share them out, so that a request does not stay for long
                at one that is down.

        Raises:
            MissingKeyError, ConfigError: see `Address.client`.
        """
        retries = -(-max_retries // len(self.addresses))
        clients = [
            address.client(
                api_key,
                max_concurrent=min(filter(None, (address.max_concurrent, max_concurrent)), default=None),
                timeout=timeout,
                max_retries=retries,
            )
            for address in self.addresses
        ]
        models = [address.model for address in self.addresses]
        return Replicas(list(zip(clients, models, strict=True)), self.endpoint_id)


def read_endpoints(path: str | Path) -> dict[str, Endpoint]:
    """The endpoints of a file, by name.

    Raises:
        ConfigError: the file does not exist or is not TOML, or a table of it is not as `Address` says; or replicas have
            different prices, so that nobody could say what a rollout cost.
    """
    content = read_toml(path)
    tables = content.pop("endpoint", [])
    for name in content:
        raise ConfigError(f"{path}: unknown setting '{name}'; expected nothing but [[endpoint]] tables")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: 'endpoint' is no list of tables; expected [[endpoint]], with two brackets")
    found: dict[str, Endpoint] = {}
    for number, table in enumerate(tables, start=1):
        try:
            address = convert(Address, table)
            known = found.setdefault(address.endpoint_id, Endpoint(address.endpoint_id, []))
            known.addresses.append(address)
            _check_prices(known.addresses)
        except ConfigError as error:
            raise ConfigError(f"{path}, endpoint {number} ({table.get('endpoint_id', 'unnamed')}): {error}") from error
    return found


def known_endpoints(path: str | Path | None = None) -> dict[str, Endpoint]:
    """The endpoints of the named file, else of the first of `PLACES` that exists; without a file there are none.

    Raises:
        ConfigError: see `read_endpoints`.
    """
    found = path if path is not None else next((place for place in PLACES if place.is_file()), None)
    return {} if found is None else read_endpoints(found)


def _check_prices(addresses: Iterable[Address]) -> None:
    prices = [address.price for address in addresses if address.price is not None]
    if prices and prices[-1] != prices[0]:
        raise ConfigError(f"price is {prices[-1]}, but that of an earlier replica {prices[0]}; expected one price")


def _is_name(key: str) -> bool:
    """Whether this names an environment variable: it is one that is set, or is written like one.

    Long capitals and digits without an underscore are more likely a secret of the kind some clouds give out.
    """
    if key in os.environ:
        return True
    return re.fullmatch(r"[A-Z][A-Z0-9_]*", key) is not None and ("_" in key or len(key) < 16)
