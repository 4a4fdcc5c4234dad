"""Any server that speaks OpenAI's Responses API."""

from __future__ import annotations

from typing import Any

from rove.clients.openai import OpenAIClient
from rove.core.errors import ConfigError
from rove.core.protocols import Request, Response
from rove.wire.responses import read_response, request_body


class ResponsesClient(OpenAIClient):
    """An endpoint of OpenAI's Responses API. Arguments, retries and errors: see `EndpointClient`.

    Base URL and key are found as by `OpenAIClient`.
    """

    def translate(self, request: Request) -> tuple[str, dict[str, Any]]:
        """A response.

        Raises:
            ConfigError: the request is a raw text, or holds what the API cannot take.
        """
        if request.text is not None:
            raise ConfigError(
                "OpenAI's Responses API cannot continue a raw text; expected messages: "
                "use an environment with message_type='chat', or an endpoint that has /completions"
            )
        return "responses", request_body(request)

    def read(self, request: Request, answer: Any) -> Response:
        """The answer in a response."""
        return read_response(answer)
