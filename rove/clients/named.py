"""A client that always queries the same model."""

from __future__ import annotations

import msgspec

from rove.core.protocols import Client, Request, Response


class NamedClient:
    """A client that replaces the model name of every request."""

    def __init__(self, client: Client, model: str):
        self.client, self.model = client, model

    @property
    def max_concurrent(self) -> int:
        """See `Client`."""
        return self.client.max_concurrent

    async def respond(self, request: Request) -> Response:
        """Forward the request with the fixed model name."""
        return await self.client.respond(msgspec.structs.replace(request, model=self.model))

    async def close(self) -> None:
        """Close the wrapped client."""
        await self.client.close()
