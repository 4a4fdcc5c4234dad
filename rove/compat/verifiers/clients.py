"""v0's clients over rove's: configuration, the abstract `Client` that packages subclass, one class per API."""

from __future__ import annotations

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from rove.clients.anthropic import AnthropicClient
from rove.clients.openai import OpenAIClient, ResponsesClient, as_client
from rove.compat.verifiers.errors import EmptyModelResponseError, Error, ModelError
from rove.compat.verifiers.messages import ToolCall, content_text, normalize_messages, to_rove
from rove.compat.verifiers.models import Model
from rove.compat.verifiers.types import Response, ResponseMessage, ResponseTokens, State, Tool, Usage
from rove.core.protocols import Client as RoveClient
from rove.core.protocols import Request, SamplingParams
from rove.core.protocols import Response as RoveResponse
from rove.core.records import Usage as RoveUsage

ClientT = TypeVar("ClientT")
MessagesT = TypeVar("MessagesT")
ResponseT = TypeVar("ResponseT")
ToolT = TypeVar("ToolT")
MAX_REQUESTS = 1024
"""Requests at once at one endpoint; v0 knew no limit but its sockets'."""


class EndpointClientConfig(Model):
    """How one endpoint is reached."""

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
    """How endpoints are reached, and which API they speak."""

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
        """One config per endpoint: its own settings over these."""
        if not self["endpoint_configs"]:
            return [self]
        return [ClientConfig(**{**self, **dict(one), "endpoint_configs": []}) for one in self["endpoint_configs"]]


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
    """Answers v0's messages in some API: translate, ask, check, translate back.

    Args:
        client_or_config: what asks, or a `ClientConfig` that `setup_client` makes it of.
    """

    def __init__(self, client_or_config: Any):
        self.logger = logging.getLogger(f"verifiers.{type(self).__name__}")
        self._config = client_or_config if isinstance(client_or_config, ClientConfig) else None
        self._client = client_or_config if self._config is None else self.setup_client(self._config)

    @property
    def client(self) -> Any:
        """What asks."""
        return self._client

    @property
    def config(self) -> ClientConfig | None:
        """What it was made of, if that was a config."""
        return self._config

    @abstractmethod
    def setup_client(self, config: ClientConfig) -> ClientT:
        """What asks, from a config."""

    @abstractmethod
    async def to_native_tool(self, tool: Tool) -> ToolT:
        """A tool in the API's words."""

    @abstractmethod
    async def to_native_prompt(self, messages: Any) -> tuple[MessagesT, dict[str, Any]]:
        """Messages in the API's words, and further arguments of `get_native_response`."""

    @abstractmethod
    async def get_native_response(
        self,
        prompt: MessagesT,
        model: str,
        sampling_args: dict[str, Any],
        tools: list[ToolT] | None = None,
        **kwargs: Any,
    ) -> ResponseT:
        """Ask."""

    @abstractmethod
    async def raise_from_native_response(self, response: ResponseT) -> None:
        """Raise a `ModelError` if the answer cannot be used."""

    @abstractmethod
    async def from_native_response(self, response: ResponseT) -> Response:
        """The answer as v0 knows it."""

    @abstractmethod
    async def close(self) -> None:
        """Free what it holds."""

    async def to_native_tools(self, tools: list[Tool] | None) -> list[ToolT] | None:
        """Tools in the API's words."""
        return None if tools is None else [await self.to_native_tool(tool) for tool in tools]

    async def get_response(
        self, prompt: Any, model: str, sampling_args: Mapping[str, Any], tools: list[Tool] | None = None, **kwargs: Any
    ) -> Response:
        """The answer to a conversation.

        Raises:
            ModelError: and its relatives; whatever else goes wrong is the cause of one.
        """
        headers = headers_from_state(self._config, kwargs.get("state"))
        if headers:
            kwargs["extra_headers"] = headers
        try:
            native, extra = await self.to_native_prompt(prompt)
            native_tools = await self.to_native_tools(tools)
            answer = await self.get_native_response(native, model, dict(sampling_args), native_tools, **extra, **kwargs)
            await self.raise_from_native_response(answer)
            return await self.from_native_response(answer)
        except Error:
            raise
        except Exception as error:
            raise ModelError(f"{type(error).__name__}: {error}") from error


class _RoveBacked(Client[RoveClient, list[Any], RoveResponse, dict[str, Any]]):
    """A v0 client that asks through a rove client."""

    kind: ClassVar[type[Any]] = OpenAIClient
    raw = False
    """Whether prompts are one text, to be continued."""

    def __init__(self, client_or_config: Any):
        super().__init__(client_or_config)
        if self._config is None:
            self._client = as_client(client_or_config)

    def setup_client(self, config: ClientConfig) -> RoveClient:
        """The rove client of a config."""
        config = config.resolved()[config.client_idx % max(1, len(config.endpoint_configs))]
        headers, key = _headers_and_key(config)
        return self.kind(
            config.api_base_url,
            key or "EMPTY",
            max_concurrent=min(config.max_connections, MAX_REQUESTS),
            timeout=config.timeout,
            connect_timeout=config.connect_timeout,
            max_retries=config.max_retries,
            headers=headers,
        )

    async def to_native_tool(self, tool: Tool) -> dict[str, Any]:
        """A tool in the OpenAI wire form."""
        return wire_tool(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        """Messages in the OpenAI wire form."""
        return list(to_rove(messages)), {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: dict[str, Any], tools: list[Any] | None = None, **kwargs: Any
    ) -> RoveResponse:
        """Ask through the rove client."""
        text = raw_text(prompt) if self.raw else None
        sampling = rove_sampling(sampling_args)
        return await self.client.respond(Request(prompt, sampling, model, tools, text=text))

    async def raise_from_native_response(self, response: RoveResponse) -> None:
        """Refuse an answer without any words, which the rove client takes where a length limit explains it.

        Raises:
            EmptyModelResponseError: there are none.
        """
        message = response.message
        words = (content_text(message.get("content")), message.get("refusal"), message.get("tool_calls"))
        if not any(words) and not message.get("reasoning_content"):
            raise EmptyModelResponseError("the model returned no content and did not call any tools")

    async def from_native_response(self, response: RoveResponse) -> Response:
        """The answer as v0 knows it."""
        return as_response(response)

    async def close(self) -> None:
        """Close the rove client."""
        await self.client.close()


class OpenAIChatCompletionsClient(_RoveBacked):
    """OpenAI's chat completions."""


class OpenAIChatCompletionsTokenClient(OpenAIChatCompletionsClient):
    """v0's client of tokens: here messages; exact tokens are those that the server returns, or an embedded engine's."""


class NeMoRLChatCompletionsClient(OpenAIChatCompletionsClient):
    """Chat completions of NeMo RL."""


class RendererClient(OpenAIChatCompletionsClient):
    """v0's client with templates of its own: here messages, which rove renders where it samples by itself."""


class OpenAICompletionsClient(_RoveBacked):
    """OpenAI's completions of a raw text."""

    raw = True


class OpenAIResponsesClient(_RoveBacked):
    """OpenAI's responses."""

    kind = ResponsesClient


class AnthropicMessagesClient(_RoveBacked):
    """Anthropic's messages."""

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
    """A v0 client from one, from a `ClientConfig`, or (as before 0.1.9) from an `openai.AsyncOpenAI`; a rove client, too.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(client, Client):
        return client
    if isinstance(client, ClientConfig):
        return _CLIENTS[client.client_type](client)
    return OpenAIChatCompletionsClient(client)


def wire_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the OpenAI wire form."""
    function = {name: tool[name] for name in ("name", "description", "parameters")}
    strict = tool.get("strict")
    return {"type": "function", "function": function if strict is None else {**function, "strict": strict}}


def raw_text(messages: Any) -> str:
    """What a completion endpoint continues: the texts of the messages, with a blank line between."""
    return "\n\n".join(content_text(message["content"]) for message in normalize_messages(messages))


def rove_sampling(args: Mapping[str, Any] | None) -> SamplingParams:
    """v0's sampling arguments as rove's; one choice is what is asked for anyway."""
    given = dict(args or {})
    if given.get("n") == 1:
        del given["n"]
    return SamplingParams.from_args(given)


def as_response(response: RoveResponse) -> Response:
    """A rove answer as v0 knows it."""
    message, usage, tokens = response.message, response.usage, response.tokens
    calls = [
        ToolCall(
            id=call.get("id") or "",
            name=call["function"].get("name") or "",
            arguments=as_json(call["function"].get("arguments")),
        )
        for call in message.get("tool_calls") or []
    ]
    content = message.get("content")
    return Response(
        id="",
        created=int(time.time()),
        usage=None if usage == RoveUsage() else _usage(usage),
        message=ResponseMessage(
            content=content if content_text(content) else message.get("refusal") or None,
            reasoning_content=message.get("reasoning_content"),
            tool_calls=calls or None,
            finish_reason=response.finish_reason
            if response.finish_reason in ("stop", "length", "tool_calls")
            else None,
            is_truncated=response.finish_reason == "length",
            tokens=None
            if tokens is None
            else ResponseTokens(
                prompt_ids=tokens.prompt_ids,
                prompt_mask=[0] * len(tokens.prompt_ids),
                completion_ids=tokens.completion_ids,
                completion_mask=[1] * len(tokens.completion_ids),
                completion_logprobs=tokens.logprobs,
            ),
        ),
    )


def _usage(usage: RoveUsage) -> Usage:
    both = (usage.prompt_tokens, usage.completion_tokens)
    return Usage(prompt_tokens=both[0], completion_tokens=both[1], total_tokens=sum(both))


def as_json(arguments: Any) -> str:
    """The arguments of a call as JSON; a text is JSON already."""
    return arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)


def headers_from_state(config: ClientConfig | None, state: State | None) -> dict[str, str]:
    """The headers that a config takes from a state."""
    wanted = config.extra_headers_from_state if config is not None else {}
    found = {header: (state or {}).get(key) for header, key in wanted.items()}
    return {header: str(value) for header, value in found.items() if value is not None}


def _headers_and_key(config: ClientConfig) -> tuple[dict[str, str], str | None]:
    headers, key = dict(config.extra_headers), os.environ.get(config.api_key_var)
    if config.api_key_var != "PRIME_API_KEY":
        return headers, key
    file = Path.home() / ".prime" / "config.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError):
        known = {}
    known = known if isinstance(known, dict) else {}
    team = os.environ.get("PRIME_TEAM_ID") or known.get("team_id")
    if team:
        headers["X-Prime-Team-ID"] = team
    return headers, key or known.get("api_key")
