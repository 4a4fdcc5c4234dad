"""Read `endpoints.toml`: short names for models behind endpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from rove.clients.anthropic import AnthropicClient
from rove.clients.endpoint import EndpointClient
from rove.clients.openai import CompletionsClient, OpenAIClient, ResponsesClient
from rove.clients.replicas import Replicas
from rove.core.checks import Settings
from rove.core.config import convert, read_toml
from rove.core.errors import ConfigError, MissingKeyError, nearest
from rove.core.masking import NO_KEY
from rove.core.ranges import NonNegativeFloat, PositiveInt

DEFAULT_PATHS = (Path("endpoints.toml"), Path("configs/endpoints.toml"))
"""Paths that are tried if none is given."""

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
"""Values of `api_client_type`, long and short."""

Text = Annotated[str, msgspec.Meta(min_length=1)]


class Address(Settings, frozen=True, kw_only=True):
    """One `[[endpoint]]` table: the address of a served model. Tables with the same `endpoint_id` are replicas."""

    endpoint_id: Text
    """Name for `-m`."""
    model: Text
    """The server's name for the model."""
    url: str | None = None
    """Base URL. Default: the base URL of the API's client."""
    key: str | None = None
    """Name of the environment variable with the API key. Default: the variable of the API's client. `NO_KEY`: the
    server needs no key."""
    api_client_type: str = "openai_chat_completions"
    """One of `APIS`."""
    headers: dict[str, str] = {}
    """Headers for every request."""
    price: dict[str, NonNegativeFloat] | None = None
    """Price per million tokens: `{input = 0.4, output = 1.6}`. One replica may state the price for all replicas."""
    max_concurrent: PositiveInt | None = None
    """Maximum number of concurrent requests. Default: adaptive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api_client_type not in APIS:
            raise ConfigError(
                f"api_client_type is '{self.api_client_type}'; {nearest(self.api_client_type, APIS)} "
                f"(there are {', '.join(APIS)})"
            )
        if self.price is not None and self.price.keys() != {"input", "output"}:
            raise ConfigError(f"price is {self.price}; expected {{input = …, output = …}}")
        if self.key is not None and not _is_variable_name(self.key):
            raise ConfigError(
                "key is not the name of an environment variable, and may be the secret itself (so it is not shown); "
                'expected a name like key = "OPENAI_API_KEY", with the secret in that variable'
            )

    def client(self, api_key: str | None = None, **settings: Any) -> EndpointClient:
        """Return a client for this address. `api_key` overrides the environment variable."""
        kind = APIS[self.api_client_type]
        client = kind(self.url, api_key or self._api_key(), headers=self.headers, **settings)
        if self.key is not None and api_key is None:
            client.api_key_var = self.key  # errors name it
        return client

    def _api_key(self) -> str | None:
        if self.key is None:
            return None
        value = os.environ.get(self.key) or (NO_KEY if self.key == NO_KEY else "")
        if not value:
            raise MissingKeyError(
                f"environment variable {self.key} is not set, but is the key of endpoint '{self.endpoint_id}'"
            )
        return value


class Endpoint(NamedTuple):
    """The address of a model, or the addresses of its replicas, under one name."""

    endpoint_id: str
    addresses: list[Address]

    @property
    def price(self) -> dict[str, float] | None:
        """Price per million tokens, "input" and "output"; None if the file does not state it."""
        return next((address.price for address in self.addresses if address.price is not None), None)

    def client(
        self,
        api_key: str | None = None,
        max_concurrent: int | None = None,
        timeout: float = 600.0,
        max_retries: int = 4,
    ) -> Replicas:
        """Return one client for all addresses.

        Args:
            max_concurrent: maximum number of concurrent requests per address; if the address has a lower limit, that limit
                applies.
            timeout: maximum seconds per attempt.
        """
        # Divided and rounded up: a request that fails at one replica goes to the next one.
        retries = -(-max_retries // len(self.addresses))
        replicas = []
        for address in self.addresses:
            limit = min(filter(None, (address.max_concurrent, max_concurrent)), default=None)
            client = address.client(api_key, max_concurrent=limit, timeout=timeout, max_retries=retries)
            replicas.append((client, address.model))
        return Replicas(replicas, self.endpoint_id)


def read_endpoints(path: str | Path) -> dict[str, Endpoint]:
    """Read the endpoints of a file, by name."""
    content = read_toml(path)
    tables = content.pop("endpoint", [])
    for name in content:
        raise ConfigError(f"{path}: unknown setting '{name}'; expected nothing but [[endpoint]] tables")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: 'endpoint' is not a list of tables; expected [[endpoint]], with two brackets")
    endpoints: dict[str, Endpoint] = {}
    for number, table in enumerate(tables, start=1):
        try:
            address = convert(Address, table)
            endpoint = endpoints.setdefault(address.endpoint_id, Endpoint(address.endpoint_id, []))
            endpoint.addresses.append(address)
            _check_prices(endpoint.addresses)
        except ConfigError as error:
            raise ConfigError(f"{path}, endpoint {number} ({table.get('endpoint_id', 'unnamed')}): {error}") from error
    return endpoints


def known_endpoints(path: str | Path | None = None) -> dict[str, Endpoint]:
    """Read the endpoints of a file, or else of the first existing file in `DEFAULT_PATHS`; {} without a file."""
    if path is not None:
        return read_endpoints(path)
    for default_path in DEFAULT_PATHS:
        if default_path.is_file():
            return read_endpoints(default_path)
    return {}


def _check_prices(addresses: Iterable[Address]) -> None:
    prices = [address.price for address in addresses if address.price is not None]
    if prices and prices[-1] != prices[0]:
        raise ConfigError(f"price is {prices[-1]}, but that of an earlier replica {prices[0]}; expected one price")


def _is_variable_name(key: str) -> bool:
    """Return whether the key is the name of an environment variable: the variable is set, or the key is written like a
    variable name.

    Long capitals and digits without an underscore are more likely a secret.
    """
    if key in os.environ:
        return True
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", key):
        return False
    return "_" in key or len(key) < 16
