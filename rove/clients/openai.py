"""Any server that speaks OpenAI's (chat) completions; the transport is our own, the `openai` package is not needed."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rove.clients.endpoint import EndpointClient
from rove.clients.masking import NO_KEY
from rove.core.errors import ConfigError
from rove.core.messages import UserMessage
from rove.core.protocols import Client, Request, Response
from rove.wire import chat, completions

_SDK_HEADERS = re.compile(r"accept|authorization|content-type|user-agent|x-stainless-.*", re.IGNORECASE)


class OpenAIClient(EndpointClient):
    """An OpenAI-compatible endpoint: chat completions, and completions where a request is a raw text.

    Arguments, retries and errors: see `EndpointClient`. The base URL defaults to `OPENAI_BASE_URL`, else OpenAI itself,
    the key to `OPENAI_API_KEY`.
    """

    maker_url = "https://api.openai.com/v1"
    url_var = "OPENAI_BASE_URL"
    key_var = "OPENAI_API_KEY"

    @classmethod
    def from_sdk(cls, sdk: Any) -> OpenAIClient:
        """A client with an `openai.AsyncOpenAI`'s base URL, key, headers, retries and (where it is a number) timeout.

        Raises:
            ConfigError: it has what has no counterpart here: a default query (as for Azure) or a function as its key.
        """
        if getattr(sdk, "default_query", None) or callable(getattr(sdk, "_api_key_provider", None)):
            raise ConfigError(
                f"cannot take over this {type(sdk).__name__}: it has a default_query or a function as api_key; "
                "expected plain base_url and api_key: build a rove OpenAIClient(base_url, api_key, headers=…) instead"
            )
        timeout = getattr(sdk, "timeout", None)
        # The SDK describes itself in some headers, and marks absent ones with objects of its own.
        headers = {
            name: value
            for name, value in (getattr(sdk, "default_headers", None) or {}).items()
            if isinstance(value, str) and not _SDK_HEADERS.fullmatch(name)
        }
        return cls(
            str(sdk.base_url),
            sdk.api_key or NO_KEY,
            timeout=timeout if isinstance(timeout, (int, float)) else 600.0,
            max_retries=getattr(sdk, "max_retries", 4),
            headers=headers,
        )

    def auth_headers(self, key: str) -> dict[str, str]:
        """A bearer token."""
        return {"Authorization": f"Bearer {key}"}

    def translate(self, request: Request) -> tuple[str, dict[str, Any]]:
        """A chat completion; of a raw text, a completion.

        Raises:
            ConfigError: a raw text comes with tools.
        """
        if request.text is not None:
            raw = msgspec.structs.replace(request, messages=[UserMessage(request.text)])
            return "completions", completions.request_body(raw)
        body = chat.request_body(request)
        if self.is_maker and "max_tokens" in body:
            # OpenAI's reasoning models refuse the old name; all its models know the new one.
            body.setdefault("max_completion_tokens", body.pop("max_tokens"))
        return "chat/completions", body

    def read(self, request: Request, answer: Any) -> Response:
        """The answer in a chat completion, or the continuation of a raw text."""
        return chat.read_response(answer) if request.text is None else completions.read_response(answer)


class CompletionsClient(OpenAIClient):
    """An endpoint that has completions but no chat, as servers of models without a chat template do."""

    def translate(self, request: Request) -> tuple[str, dict[str, Any]]:
        """A completion.

        Raises:
            ConfigError: the request is a conversation, or comes with tools.
        """
        if request.text is None:
            raise ConfigError(
                f"{self.base_url} is said to have only completions; expected a raw text to continue, got messages: "
                "use an environment with message_type='completion', or the endpoint's chat completions"
            )
        return super().translate(request)


def as_client(client: Client | Any) -> Client:
    """A rove client as it is, or one with the settings of an `openai.AsyncOpenAI` object.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(client, Client):
        return client
    speaks_chat = hasattr(getattr(client, "chat", None), "completions")
    if speaks_chat and hasattr(client, "base_url") and hasattr(client, "api_key"):
        return OpenAIClient.from_sdk(client)
    raise ConfigError(
        f"not a client: {client!r}; expected a rove client (something with respond(), close() and max_concurrent, "
        "such as OpenAIClient(base_url, api_key)) or an openai.AsyncOpenAI object"
    )
