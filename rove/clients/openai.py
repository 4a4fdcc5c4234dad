"""Clients for OpenAI-compatible APIs: chat completions, completions and Responses. They need no `openai` package."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rove.clients.endpoint import EndpointClient
from rove.core.errors import ConfigError
from rove.core.masking import NO_KEY
from rove.core.messages import UserMessage
from rove.core.plain import JsonObject
from rove.core.protocols import AnyClient, Client, Request, Response
from rove.wire import chat, completions, responses

_SDK_HEADERS = re.compile(r"accept|authorization|content-type|user-agent|x-stainless-.*", re.IGNORECASE)


class OpenAIClient(EndpointClient):
    """A client for an OpenAI-compatible API; see `EndpointClient` for arguments, retries and errors.

    It sends conversations to chat completions and raw texts to completions. `base_url` defaults to `OPENAI_BASE_URL`, then
    to OpenAI's own API. `api_key` defaults to `OPENAI_API_KEY`.

    Example:
        client = rove.OpenAIClient("http://localhost:8000/v1")  # vLLM, SGLang, llama.cpp, Ollama, …
        records = env.generate_sync(client, "Qwen/Qwen3-0.6B", num_examples=10)
    """

    default_base_url = "https://api.openai.com/v1"
    base_url_var = "OPENAI_BASE_URL"
    api_key_var = "OPENAI_API_KEY"
    _reasoning_field = "reasoning_content"
    """The server's name of the field for reasoning, as in its replies."""

    @classmethod
    def from_sdk(cls, sdk: Any) -> OpenAIClient:
        """Return a client with the base URL, key, headers, retries and timeout of an `openai.AsyncOpenAI`.

        A timeout that is not a number becomes the default.

        Raises:
            ConfigError: the SDK client has a default query (as for Azure) or a function as its key.
        """
        if getattr(sdk, "default_query", None) or callable(getattr(sdk, "_api_key_provider", None)):
            raise ConfigError(
                f"cannot convert this {type(sdk).__name__}: it has a default_query or a function as api_key; "
                "expected plain base_url and api_key: build a rove OpenAIClient(base_url, api_key, headers=…) instead"
            )
        timeout = getattr(sdk, "timeout", None)
        # The SDK describes itself in some headers and marks absent ones with objects that are not strings.
        headers: dict[str, str] = {}
        for name, value in (getattr(sdk, "default_headers", None) or {}).items():
            if isinstance(value, str) and not _SDK_HEADERS.fullmatch(name):
                headers[name] = value
        return cls(
            str(sdk.base_url),
            sdk.api_key or NO_KEY,
            timeout=timeout if isinstance(timeout, (int, float)) else 600.0,
            max_retries=getattr(sdk, "max_retries", 4),
            headers=headers,
        )

    def auth_headers(self, key: str) -> dict[str, str]:
        """Return a header with the key as bearer token."""
        return {"Authorization": f"Bearer {key}"}

    def translate(self, request: Request) -> tuple[str, JsonObject]:
        """Return path and body of a chat completion, or of a completion for a raw text.

        Raises:
            ConfigError: the request has a raw text and tools.
        """
        if request.text is not None:
            raw = msgspec.structs.replace(request, messages=[UserMessage(request.text)])
            return "completions", completions.request_body(raw)
        body = chat.request_body(request, self._reasoning_field)
        if self.is_official and "max_tokens" in body:
            # OpenAI's reasoning models refuse the old name; all its models accept the new one.
            body.setdefault("max_completion_tokens", body.pop("max_tokens"))
        return "chat/completions", body

    def read(self, request: Request, answer: object) -> Response:
        """Read the reply to a chat completion, or to a completion for a raw text."""
        if request.text is not None:
            return completions.read_response(answer)
        # Groq and Cerebras refuse a field with a name that they do not use themselves.
        self._reasoning_field = chat.reasoning_field(answer) or self._reasoning_field
        return chat.read_response(answer)


class CompletionsClient(OpenAIClient):
    """A client for a server that offers only completions, such as a server for models without a chat template."""

    def translate(self, request: Request) -> tuple[str, JsonObject]:
        """Return path and body of a completion."""
        if request.text is None:
            raise ConfigError(
                f"{self.base_url} is configured for completions only; expected a raw text to continue, got messages: "
                "use an environment with message_type='completion', or the endpoint's chat completions"
            )
        return super().translate(request)


class ResponsesClient(OpenAIClient):
    """A client for OpenAI's Responses API; the base URL and the key work as in `OpenAIClient`."""

    def translate(self, request: Request) -> tuple[str, JsonObject]:
        """Return path and body of a Responses API call; see `EndpointClient.translate`."""
        self._require_messages(request, "OpenAI's Responses API")
        return "responses", responses.request_body(request)

    def read(self, request: Request, answer: object) -> Response:
        """Read a Responses API reply."""
        return responses.read_response(answer)


def as_client(client: AnyClient) -> Client:
    """Return a rove client unchanged, or convert an `openai.AsyncOpenAI`.

    Raises:
        ConfigError: the object is neither of the two.
    """
    if isinstance(client, Client):
        return client
    has_chat = hasattr(getattr(client, "chat", None), "completions")
    if has_chat and hasattr(client, "base_url") and hasattr(client, "api_key"):
        return OpenAIClient.from_sdk(client)
    raise ConfigError(
        f"not a client: {client!r}; expected a rove client (something with respond(), close() and max_concurrent, "
        "such as OpenAIClient(base_url, api_key)) or an openai.AsyncOpenAI object"
    )
