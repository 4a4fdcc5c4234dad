"""A client for Anthropic's Messages API. It needs no `anthropic` package."""

from __future__ import annotations

from rove.clients.endpoint import EndpointClient
from rove.core.plain import JsonObject
from rove.core.protocols import Request, Response
from rove.wire.anthropic import API_VERSION, read_response, request_body


class AnthropicClient(EndpointClient):
    """A client for Anthropic's Messages API; see `EndpointClient` for arguments, retries and errors.

    `base_url` defaults to `ANTHROPIC_BASE_URL`, then to Anthropic's own API; it may omit the final /v1. `api_key` defaults
    to `ANTHROPIC_API_KEY`.

    Example:
        client = rove.AnthropicClient(max_concurrent=8)
        records = env.generate_sync(client, "claude-sonnet-4-5", num_examples=10)
    """

    default_base_url = "https://api.anthropic.com/v1"
    base_url_var = "ANTHROPIC_BASE_URL"
    api_key_var = "ANTHROPIC_API_KEY"

    def auth_headers(self, key: str) -> dict[str, str]:
        """Return the headers with the key and the API version."""
        return {"x-api-key": key, "anthropic-version": API_VERSION}

    def translate(self, request: Request) -> tuple[str, JsonObject]:
        """Return path and body of a Messages API call; see `EndpointClient.translate`."""
        self._require_messages(request, "Anthropic's Messages API")
        return "messages" if self.base_url.endswith("/v1") else "v1/messages", request_body(request)

    def read(self, request: Request, answer: object) -> Response:
        """Read a Messages API reply."""
        return read_response(answer)
