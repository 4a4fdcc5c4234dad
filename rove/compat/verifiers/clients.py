"""v0's clients on top of rove's clients: configuration, the abstract `Client` that packages subclass, and one class per API."""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

from rove.clients.anthropic import AnthropicClient
from rove.clients.openai import OpenAIClient, ResponsesClient, as_client
from rove.compat.verifiers.errors import EmptyModelResponseError, Error, ModelError
from rove.compat.verifiers.legacy import as_tool_defs
from rove.compat.verifiers.messages import Model, ToolCall, content_text, normalize_messages, to_rove
from rove.compat.verifiers.types import Response, ResponseMessage, ResponseTokens, State, Tool, Usage, wire_tool
from rove.core.protocols import Client as RoveClient
from rove.core.protocols import Request, SamplingParams
from rove.core.protocols import Response as RoveResponse
from rove.core.records import Usage as RoveUsage

ClientT = TypeVar("ClientT")
MessagesT = TypeVar("MessagesT")
ResponseT = TypeVar("ResponseT")
ToolT = TypeVar("ToolT")
MAX_CONCURRENT_REQUESTS = 1024
"""Maximum concurrent requests to one endpoint; in v0, only the number of connections was limited."""


class EndpointClientConfig(Model):
    """Settings of the connection to one endpoint."""

    defaults: ClassVar = {
        "client_idx": 0,
        "api_key_var": "PRIME_API_KEY",
        "api_base_url": "https://api.pinference.ai/api/v1",
        "timeout": 3600.0,
        "connect_timeout": 5.0,
        "max_connections": 28000,
        "max_keepalive_connections": 28000,
        "max_retries": 10,
        "extra_headers": dict,
    }


class ClientConfig(EndpointClientConfig):
    """Settings of the connection to endpoints, and the API that the endpoints implement."""

    defaults: ClassVar = {
        **EndpointClientConfig.defaults,
        "client_type": "openai_chat_completions",
        "renderer_config": None,
        "renderer_model_name": None,
        "renderer_pool_size": None,
        "endpoint_configs": list,
        "extra_headers_from_state": dict,
    }

    def resolved(self) -> list[ClientConfig]:
        """Return one config per endpoint, in which its own settings override the shared ones."""
        if not self["endpoint_configs"]:
            return [self]
        configs: list[ClientConfig] = []
        for endpoint in self["endpoint_configs"]:
            configs.append(ClientConfig(**{**self, **dict(endpoint), "endpoint_configs": []}))
        return configs


class EndpointConfig(Model):
    """An entry of endpoints.toml."""

    required = ("model", "base_url", "api_key_var")
    defaults: ClassVar = {"api_client_type": None, "extra_headers": dict}


Endpoints = dict[str, list[EndpointConfig]]


class EvalConfig(Model):
    """Settings of an evaluation."""

    required = ("env_id", "model")


class EvalRunConfig(Model):
    """Settings of several evaluations."""

    required = ("evals",)
    defaults: ClassVar = {"heartbeat_url": None}


class Client(ABC, Generic[ClientT, MessagesT, ResponseT, ToolT]):
    """Sends v0 messages to an API: converts them, sends the request, validates and converts the response.

    Args:
        client_or_config: the API's client, or a `ClientConfig` from which `setup_client` creates it.
    """

    def __init__(self, client_or_config: Any):
        self.logger = logging.getLogger(f"verifiers.{type(self).__name__}")
        self._config = client_or_config if isinstance(client_or_config, ClientConfig) else None
        self._client = client_or_config if self._config is None else self.setup_client(self._config)

    @property
    def client(self) -> Any:
        """The API's client."""
        return self._client

    @property
    def config(self) -> ClientConfig | None:
        """The config from which this client was created, if any."""
        return self._config

    @cached_property
    def chat(self) -> SimpleNamespace:
        """The method `chat.completions.create` of OpenAI's client, which `state["client"]` was until 0.1.10."""

        async def create(model: str, messages: Any, tools: Any = None, **sampling_args: Any) -> Response:
            return await self.get_response(messages, model, sampling_args, as_tool_defs(tools))

        return SimpleNamespace(completions=SimpleNamespace(create=create))

    def begin(self, state: State) -> None:
        """Handle the start of a rollout; called with its initial state."""

    @abstractmethod
    def setup_client(self, config: ClientConfig) -> ClientT:
        """Create the API's client from a config."""

    @abstractmethod
    async def to_native_tool(self, tool: Tool) -> ToolT:
        """Convert a tool to the API's form."""

    @abstractmethod
    async def to_native_prompt(self, messages: Any) -> tuple[MessagesT, dict[str, Any]]:
        """Convert messages to the API's form; return them with further arguments for `get_native_response`."""

    @abstractmethod
    async def get_native_response(
        self,
        prompt: MessagesT,
        model: str,
        sampling_args: dict[str, Any],
        tools: list[ToolT] | None = None,
        **kwargs: Any,
    ) -> ResponseT:
        """Send the request."""

    @abstractmethod
    async def raise_from_native_response(self, response: ResponseT) -> None:
        """Raise a `ModelError` if the response is unusable."""

    @abstractmethod
    async def from_native_response(self, response: ResponseT) -> Response:
        """Convert the response to v0's form."""

    @abstractmethod
    async def close(self) -> None:
        """Release resources."""

    async def to_native_tools(self, tools: list[Tool] | None) -> list[ToolT] | None:
        """Convert tools to the API's form."""
        return None if tools is None else [await self.to_native_tool(tool) for tool in tools]

    async def get_response(
        self, prompt: Any, model: str, sampling_args: Mapping[str, Any], tools: list[Tool] | None = None, **kwargs: Any
    ) -> Response:
        """Return the response to a conversation.

        Raises:
            ModelError: or one of its subclasses. Any other exception becomes the cause of a `ModelError`.
        """
        headers = headers_from_state(self._config, kwargs.get("state"))
        if headers:
            kwargs["extra_headers"] = headers
        try:
            native_prompt, extra = await self.to_native_prompt(prompt)
            native_tools = await self.to_native_tools(tools)
            native_response = await self.get_native_response(
                native_prompt, model, dict(sampling_args), native_tools, **extra, **kwargs
            )
            await self.raise_from_native_response(native_response)
            return await self.from_native_response(native_response)
        except Error:
            raise
        # Loops and retries of v0 handle only a `vf.Error`, so any other exception of a client becomes one.
        except Exception as error:
            raise ModelError(f"{type(error).__name__}: {error}") from error


class _RoveBacked(Client[RoveClient, list[Any], RoveResponse, dict[str, Any]]):
    """A v0 client that sends its requests with a rove client."""

    kind: ClassVar[type[Any]] = OpenAIClient
    raw = False
    """Whether a prompt is a single text to continue."""

    def __init__(self, client_or_config: Any):
        super().__init__(client_or_config)
        if self._config is None:
            self._client = as_client(client_or_config)

    def setup_client(self, config: ClientConfig) -> RoveClient:
        """Create the rove client of a config."""
        configs = config.resolved()
        config = configs[config.client_idx % len(configs)]
        headers, key = _headers_and_key(config)
        return self.kind(
            config.api_base_url,
            key or "EMPTY",  # local servers need no key, but a client needs a value
            max_concurrent=min(config.max_connections, MAX_CONCURRENT_REQUESTS),
            timeout=config.timeout,
            connect_timeout=config.connect_timeout,
            max_retries=config.max_retries,
            headers=headers,
        )

    async def to_native_tool(self, tool: Tool) -> dict[str, Any]:
        """Convert a tool to the OpenAI wire form."""
        return wire_tool(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        """Convert messages to the OpenAI wire form."""
        return list(to_rove(messages)), {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: dict[str, Any], tools: list[Any] | None = None, **kwargs: Any
    ) -> RoveResponse:
        """Send the request with the rove client."""
        text = raw_text(prompt) if self.raw else None
        sampling = rove_sampling(sampling_args)
        return await self.client.respond(Request(prompt, sampling, model, tools, text=text))

    async def raise_from_native_response(self, response: RoveResponse) -> None:
        """Refuse an empty response. (rove's client accepts it if a length limit explains it.)

        Raises:
            EmptyModelResponseError: the response has no content and no tool calls.
        """
        message = response.message
        has_text = content_text(message.get("content")) or message.get("refusal") or message.get("reasoning_content")
        if not has_text and not message.get("tool_calls"):
            raise EmptyModelResponseError("the model returned no content and did not call any tools")

    async def from_native_response(self, response: RoveResponse) -> Response:
        """Convert the response to v0's form."""
        return as_response(response)

    async def close(self) -> None:
        """Close the rove client."""
        await self.client.close()


class OpenAIChatCompletionsClient(_RoveBacked):
    """OpenAI's chat completions API."""


class OpenAIChatCompletionsTokenClient(OpenAIChatCompletionsClient):
    """v0's client that sends tokens. Here it sends messages; exact tokens come from the server or an embedded engine."""


class NeMoRLChatCompletionsClient(OpenAIChatCompletionsClient):
    """The chat completions API of NeMo RL."""


class RendererClient(OpenAIChatCompletionsClient):
    """v0's client that applies chat templates itself. Here it sends messages; rove renders them if it samples itself."""


class OpenAICompletionsClient(_RoveBacked):
    """OpenAI's completions API for raw text."""

    raw = True


class OpenAIResponsesClient(_RoveBacked):
    """OpenAI's responses API."""

    kind = ResponsesClient


class AnthropicMessagesClient(_RoveBacked):
    """Anthropic's messages API."""

    kind = AnthropicClient


_CLIENTS: dict[str, type[_RoveBacked]] = {
    "openai_completions": OpenAICompletionsClient,
    "openai_chat_completions": OpenAIChatCompletionsClient,
    "openai_chat_completions_token": OpenAIChatCompletionsTokenClient,
    "openai_responses": OpenAIResponsesClient,
    "renderer": RendererClient,
    "anthropic_messages": AnthropicMessagesClient,
    "nemorl_chat_completions": NeMoRLChatCompletionsClient,
}


def resolve_client(client: Any) -> Client[Any, Any, Any, Any]:
    """Return a v0 client for a v0 client, a `ClientConfig`, an `openai.AsyncOpenAI` (as before 0.1.9) or a rove client."""
    if isinstance(client, Client):
        return client
    if isinstance(client, ClientConfig):
        return _CLIENTS[client.client_type](client)
    return OpenAIChatCompletionsClient(client)


def raw_text(messages: Any) -> str:
    """Return the prompt for a completion endpoint: the texts of the messages, separated by blank lines."""
    return "\n\n".join(content_text(message["content"]) for message in normalize_messages(messages))


def rove_sampling(args: Mapping[str, Any] | None) -> SamplingParams:
    """Convert v0's sampling arguments; `n=1` is dropped, because it is the default."""
    parameters = dict(args or {})
    if parameters.get("n") == 1:
        del parameters["n"]
    return SamplingParams.from_args(parameters)


def as_response(response: RoveResponse) -> Response:
    """Convert a rove response to v0's form, with a unique id."""
    message, usage = response.message, response.usage
    calls = [
        ToolCall(
            id=call.get("id") or "",
            name=call["function"].get("name") or "",
            arguments=as_json(call["function"].get("arguments")),
        )
        for call in message.get("tool_calls") or []
    ]
    content = message.get("content")
    if not content_text(content):
        content = message.get("refusal") or None  # a refusal is then the text that parsers and judges see
    # v0 knows three reasons; any other, such as "content_filter", is None.
    has_v0_reason = response.finish_reason in ("stop", "length", "tool_calls")
    return Response(
        id=uuid.uuid4().hex,
        created=int(time.time()),
        usage=None if usage == RoveUsage() else _usage(usage),
        message=ResponseMessage(
            content=content,
            reasoning_content=message.get("reasoning_content"),
            tool_calls=calls or None,
            finish_reason=response.finish_reason if has_v0_reason else None,
            is_truncated=response.finish_reason == "length",
            tokens=_response_tokens(response),
        ),
    )


def response_id(response: Any) -> Any:
    """Return the id of a response, which a copy has as well; None for anything else, or without an id."""
    return (response.get("id") or None) if isinstance(response, Mapping) else None


def _response_tokens(response: RoveResponse) -> ResponseTokens | None:
    tokens = response.tokens
    if tokens is None:
        return None
    return ResponseTokens(
        prompt_ids=tokens.prompt_ids,
        prompt_mask=[0] * len(tokens.prompt_ids),
        completion_ids=tokens.completion_ids,
        completion_mask=[1] * len(tokens.completion_ids),
        completion_logprobs=tokens.logprobs,
    )


def _usage(usage: RoveUsage) -> Usage:
    total = usage.prompt_tokens + usage.completion_tokens
    return Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, total_tokens=total)


def as_json(arguments: Any) -> str:
    """Return the arguments of a call as JSON; a string already is JSON."""
    if isinstance(arguments, str):
        return arguments
    return json.dumps({} if arguments is None else arguments)


def headers_from_state(config: ClientConfig | None, state: State | None) -> dict[str, str]:
    """Return the headers whose values a config takes from the state."""
    if config is None or state is None:
        return {}
    headers: dict[str, str] = {}
    for header, key in config.extra_headers_from_state.items():
        value = state.get(key)
        if value is not None:
            headers[header] = str(value)
    return headers


def _headers_and_key(config: ClientConfig) -> tuple[dict[str, str], str | None]:
    headers, key = dict(config.extra_headers), os.environ.get(config.api_key_var)
    if config.api_key_var != "PRIME_API_KEY":
        return headers, key
    # Prime's own endpoint, the default of a `ClientConfig`: as in v0, its command line tool may have stored the key.
    file = Path.home() / ".prime" / "config.json"
    try:
        prime_config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError):
        prime_config = {}
    prime_config = prime_config if isinstance(prime_config, dict) else {}
    team = os.environ.get("PRIME_TEAM_ID") or prime_config.get("team_id")
    if team:
        headers["X-Prime-Team-ID"] = team
    return headers, key or prime_config.get("api_key")
