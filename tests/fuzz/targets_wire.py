"""Targets for what arrives over a network: responses of endpoints, requests to rove's servers, messages of other servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import aiohttp
import mcp.types
import msgspec

from rove.clients import endpoint
from rove.core.errors import RejectedError
from rove.core.messages import FIELDS, AssistantMessage, UserMessage
from rove.core.plain import UNREADABLE, JsonObject
from rove.core.protocols import Request, Response
from rove.core.records import Usage
from rove.core.state import State
from rove.doctor.endpoint import logprobs_in
from rove.envs.mcp import MCPEnv
from rove.hub.client import hub, transport
from rove.hub.server import app as hub_app
from rove.hub.server import store
from rove.integrations import open_env_server
from rove.integrations.environments import open_env
from rove.mcp import sdk
from rove.mcp.settings import ServerSettings
from rove.wire import (
    anthropic,
    chat,
    completions,
    responses,
    serving,
    serving_anthropic,
    serving_responses,
    tokens,
)
from tests.fuzz.target import Target, parts_of, text_of

LOOP = asyncio.new_event_loop()
HEAD = serving.Head("id", "model", 0)
WORDS = (
    *('"role":', '"content":', '"tool_calls":', '"arguments":', '"function":', '"type":', '"text"', '"tool_use"'),
    *(
        '"choices":',
        '"message":',
        '"finish_reason":',
        '"usage":',
        '"output":',
        '"image_url"',
        '"tool_result"',
        '"refusal"',
    ),
)


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in the event loop of all targets."""
    return LOOP.run_until_complete(coroutine)


# Responses of endpoints. A response that can be read must also be possible in the next request.


def _next_request(response: Response) -> Request:
    return Request([UserMessage("question"), response.message, UserMessage("next question")], model="m")


def _reader(client: ModuleType, server: ModuleType, can_write: Callable[[Response], bool]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        body = endpoint.decoded_body(data)
        logprobs_in(body)
        response = client.read_response(body)
        written = server.response_body(HEAD, [response], Usage())
        msgspec.json.encode(written)
        if can_write(response):
            assert _fields(client.read_response(written)) == _fields(response)
        if client is not completions:
            msgspec.json.encode(client.request_body(_next_request(response)))

    return read


def _fields(response: Response) -> JsonObject:
    """Return the fields of a response's message that every API can represent."""
    message = {name: value for name, value in response.message.items() if name in FIELDS and value is not None}
    return {"finish_reason": response.finish_reason, **message}


def _always(response: Response) -> bool:
    return True


def _is_plain(response: Response) -> bool:
    """Return whether a response has a text alone: the other APIs write calls, refusals and reasoning in other forms."""
    return response.message.keys() <= {"role", "content"} and response.finish_reason in ("stop", "length")


# Requests to rove's server.


def _request_reader(wire: ModuleType) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        try:
            body = msgspec.json.decode(data)
        except UNREADABLE:  # `handlers.read_json` reports it
            return
        parsed = wire.read_request(body)
        request = parsed.choices[0].request
        if request.text is None and parsed.choices[0].prompt_ids is None:
            msgspec.json.encode(chat.request_body(request))  # the served model may be behind another endpoint
        serving.check_known(parsed)

    return read


# MCP servers: the SDK checks the form of messages.


def read_mcp(data: bytes) -> None:
    """Read a result of a tool, and a list of tools."""
    result, listed = parts_of(data, 2)
    try:
        plain = sdk._plain(mcp.types.CallToolResult.model_validate_json(result))
    except ValueError:
        plain = {}
    content = sdk.content_of(plain, 1000)
    msgspec.json.encode([content, sdk.text_of_result(plain, 1000)])
    try:
        page = sdk._plain(mcp.types.ListToolsResult.model_validate_json(listed))
    except ValueError:
        return
    settings = ServerSettings(name="server", command="server", exclude=["excluded"])
    env = MCPEnv([settings], dataset=[{"question": "x"}])
    env._add_server_tools({"server": page["tools"]})
    msgspec.json.encode([tool.definition for tool in env._tools_by_name.values()])


# OpenEnv: a WebSocket whose messages are the lines of the input.


class _Socket:
    """A WebSocket that receives the given texts, then closes."""

    def __init__(self, texts: list[str]):
        self.texts = texts

    async def __aiter__(self) -> Any:
        for text in self.texts:
            yield aiohttp.WSMessage(aiohttp.WSMsgType.TEXT, text, "")

    async def send_json(self, message: object) -> None:
        pass

    async def close(self) -> None:
        pass


class _Reply:
    """A response of an HTTP server."""

    def __init__(self, content: bytes):
        self.content = content

    async def __aenter__(self) -> _Reply:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def raise_for_status(self) -> None:
        pass

    async def read(self) -> bytes:
        return self.content


class _Http:
    """A connection to an OpenEnv server."""

    def __init__(self, schema: bytes, texts: list[str]):
        self.schema, self.texts = schema, texts

    def get(self, url: str) -> _Reply:
        return _Reply(self.schema if url.endswith("/schema") else b"{}")

    async def ws_connect(self, url: str, max_msg_size: int) -> _Socket:
        return _Socket(self.texts)

    async def close(self) -> None:
        pass


def read_open_env(data: bytes) -> None:
    """Run an episode: the parts of the input are the server's schema, its messages, and the model's answer."""
    schema, messages, answer = parts_of(data, 3)
    run_async(_episode(schema, text_of(messages).splitlines(), text_of(answer)))


async def _episode(schema: bytes, messages: list[str], answer: str) -> None:
    http = _Http(schema, messages)
    original, open_env.aiohttp.ClientSession = open_env.aiohttp.ClientSession, lambda **_: http  # type: ignore[assignment,misc]
    try:
        server = await open_env._Server.connect("http://server", {}, 5.0)
    finally:
        open_env.aiohttp.ClientSession = original
    env = open_env.OpenEnvEnv("http://server", call_seconds=5.0, capacity_seconds=0.001)
    env._connected = lambda: _immediate(server)  # type: ignore[method-assign]
    state = State({"prompt": [UserMessage("")], "info": {"seed": 0}, "answer": "", "example_id": 0})
    try:
        await env.setup_state(state)
        await env.env_response([AssistantMessage(answer)], state)
    finally:
        await env.end_session(state)


async def _immediate(value: Any) -> Any:
    return value


def read_open_env_request(data: bytes) -> None:
    """Read the body of a request to rove's OpenEnv server."""
    request = SimpleNamespace(method="POST", text=lambda: _immediate(text_of(data)))
    body = run_async(open_env_server._data(request))  # type: ignore[arg-type]
    open_env_server._message(body.get("action") if isinstance(body.get("action"), dict) else body)


# Hubs.


def read_hub(data: bytes) -> None:
    """Read every answer of a hub, and the bodies of requests to a hub."""
    transport._error_text(data)
    for kind in (hub.Index, hub.Releases, hub._SearchResult, hub._Runs):
        try:
            hub._decoded(data, kind, "http://hub/index.json")
        except hub.HubError:
            continue
    with suppress(RejectedError):
        store.read_run(data)
    hub_app.decode_or_refuse(lambda: msgspec.json.decode(data, type=hub_app._Visibility), "the body")


TARGETS = [
    Target("chat_response", _reader(chat, chat, _always), ("tests/wire", "tests/clients", "docs"), WORDS),
    Target("completions_response", _reader(completions, completions, _always), ("tests/wire", "tests/clients"), WORDS),
    Target("anthropic_response", _reader(anthropic, serving_anthropic, _is_plain), ("tests/wire",), WORDS),
    Target("responses_response", _reader(responses, serving_responses, _is_plain), ("tests/wire",), WORDS),
    Target("chat_request", _request_reader(chat), ("tests/wire", "tests/server"), WORDS),
    Target("completions_request", _request_reader(completions), ("tests/wire", "tests/server"), WORDS),
    Target("anthropic_request", _request_reader(serving_anthropic), ("tests/wire", "tests/server"), WORDS),
    Target("responses_request", _request_reader(serving_responses), ("tests/wire", "tests/server"), WORDS),
    Target("tokens_request", _request_reader(tokens), ("tests/wire", "tests/server"), WORDS),
    Target("mcp", read_mcp, ("tests/mcp", "tests/envs/test_mcp.py"), ('"structuredContent":', '"inputSchema":')),
    Target("open_env", read_open_env, ("tests/integrations",), ('"observation"', '"reward":', '"error"', '"data":')),
    Target("open_env_request", read_open_env_request, ("tests/integrations",), ('"action":', '"message":')),
    Target("hub_messages", read_hub, ("tests/hub",), ('"environments":', '"versions":', '"schema":1', '"summary":')),
]
