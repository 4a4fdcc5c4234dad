"""Any server that speaks Anthropic's Messages API; the transport is our own, the `anthropic` package is not needed."""

from __future__ import annotations

from typing import Any

from rove.clients.endpoint import EndpointClient
from rove.core.errors import ConfigError
from rove.core.protocols import Request, Response
from rove.wire.anthropic import API_VERSION, read_response, request_body


class AnthropicClient(EndpointClient):
    """An endpoint of Anthropic's Messages API. Arguments, retries and errors: see `EndpointClient`.

    The base URL defaults to `ANTHROPIC_BASE_URL`, else Anthropic itself, the key to `ANTHROPIC_API_KEY`. The URL may end
    in /v1 or leave that out, as Anthropic's own package does.
    """

    maker_url = "https://api.anthropic.com/v1"
    url_var = "ANTHROPIC_BASE_URL"
    key_var = "ANTHROPIC_API_KEY"

    def auth_headers(self, key: str) -> dict[str, str]:
        """The key, and the version of the API that the bodies are written for."""
        return {"x-api-key": key, "anthropic-version": API_VERSION}

    def translate(self, request: Request) -> tuple[str, dict[str, Any]]:
        """A message.

        Raises:
            ConfigError: the request is a raw text, or holds what the API cannot take.
        """
        if request.text is not None:
            raise ConfigError(
                "Anthropic's Messages API cannot continue a raw text; expected messages: "
                "use an environment with message_type='chat', or an endpoint that has /completions"
            )
        return "messages" if self.base_url.endswith("/v1") else "v1/messages", request_body(request)

    def read(self, request: Request, answer: Any) -> Response:
        """The answer in a message."""
        return read_response(answer)
