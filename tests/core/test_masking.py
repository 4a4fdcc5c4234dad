"""Masking of API keys and header values in errors and responses, even if a server echoes them."""

from __future__ import annotations

import asyncio
import base64
import html
import json
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from api_endpoint import ApiEndpoint, openai_response
from fault_endpoint import Fault, FaultEndpoint, HttpResponse, completion
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rove.clients.openai import OpenAIClient, ResponsesClient
from rove.clients.replicas import Replicas
from rove.core.errors import Error, InfraError, InvalidModelResponseError, ModelError, traceback_text
from rove.core.masking import MASK, NO_KEY, Secrets, public_path
from rove.core.messages import UserMessage
from rove.core.protocols import Request

KEY = "sk-se'cr\"et/0123456789"
TOKEN = "dG9rZW46\\MTIzNDU2"
HEADERS = {"X-Team-Token": "team-blue-97531", "X-Auth": f"Basic {TOKEN}", "Cookie": "a=1; session=c00kie-value"}
SECRETS = [KEY, TOKEN, "team-blue-97531", "c00kie-value"]
ALL = " ".join(SECRETS)
LONG = "x" * 188


async def failure(server: FaultEndpoint, kind: type[OpenAIClient] = OpenAIClient) -> Error:
    client = kind(server.base_url, KEY, headers=HEADERS, max_retries=1, backoff=0.0)
    with pytest.raises(Error) as caught:
        await client.respond(Request([UserMessage("hi")], model="tiny"))
    await client.close()
    return caught.value


def assert_no_secrets(error: BaseException) -> None:
    texts = [str(error), repr(error), traceback_text(error), *getattr(error, "attempts", ())]
    for text in texts:
        unescaped = text.replace("\\", "")
        for secret in SECRETS:
            assert secret[:7].replace("\\", "") not in unescaped


ECHOES: dict[str, Fault] = {
    "401": HttpResponse(401, f"wrong: {ALL}"),
    "400 in JSON": HttpResponse(400, {"error": {"message": ALL}}),
    "429": HttpResponse(429, ALL),
    "500": HttpResponse(500, ALL),
    "not JSON": HttpResponse(200, f"<html>{ALL}"),
    "JSON of another shape": HttpResponse(200, {"error": ALL}),
    "empty": HttpResponse(200, {"echo": ALL, **completion(None, finish_reason="error")}),
    "too long": HttpResponse(400, f"maximum context length {ALL}"),
    **{f"cut after {n}, {status}": HttpResponse(status, LONG[:-n] + KEY) for n in (1, 3, 8) for status in (200, 500)},
    "cut inside JSON": HttpResponse(200, {"e": LONG[:-8] + KEY}),
}


@pytest.mark.parametrize("name", ECHOES)
async def test_no_error_contains_a_secret(name: str):
    async with FaultEndpoint(lambda number, body: ECHOES[name]) as server:
        error = await failure(server)
    assert_no_secrets(error)
    assert MASK in str(error)


async def test_the_error_of_a_failed_response_contains_no_secret():
    faults = HttpResponse(body={**openai_response(""), "status": "failed", "error": {"message": ALL}})
    async with ApiEndpoint("/v1/responses", openai_response, lambda number, body: faults) as server:
        assert_no_secrets(await failure(server, ResponsesClient))


async def test_the_cause_of_an_error_contains_no_secret():
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ALL.encode() + b"\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    client = OpenAIClient(
        f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", KEY, headers=HEADERS, max_retries=0
    )
    with pytest.raises(InfraError, match=r"Bad status line.*\*\*\*") as caught:
        await client.respond(Request([UserMessage("hi")]))
    assert_no_secrets(caught.value)
    await client.close()
    server.close()


async def test_failed_attempts_of_clients_and_replicas_contain_no_secret():
    async with FaultEndpoint([HttpResponse(500, ALL)] * 3) as server:
        client = OpenAIClient(server.base_url, KEY, headers=HEADERS, max_retries=1, backoff=0.0)
        replicas = Replicas([(client, "m"), (client, "m")], "tiny")
        response = await replicas.respond(Request([UserMessage("hi")]))
        await replicas.close()
    assert len(response.attempts) == 3
    assert_no_secrets(InfraError("", response.attempts))


async def test_masked_errors_keep_their_type_where_possible():
    class LeakyClient(OpenAIClient):
        def translate(self, request: Request) -> Any:
            if request.model == "os":
                raise OSError(5, f"about {KEY}")
            try:
                raise KeyError(KEY)
            except KeyError as error:
                raise ValueError(f"about {KEY}") from error

    client = LeakyClient("http://host/v1", KEY, headers=HEADERS)
    with pytest.raises(ValueError, match=r"about \*\*\*") as caught:
        await client.respond(Request([]))
    assert_no_secrets(caught.value)
    with pytest.raises(InfraError, match=r"OSError: .* about \*\*\*") as replaced:
        await client.respond(Request([], model="os"))
    assert_no_secrets(replaced.value)


def encodings_of(secret: str) -> dict[str, str]:
    """Return the encodings in which a server may echo a secret."""
    return {
        "unescaped": secret,
        "JSON": json.dumps(secret)[1:-1],
        "HTML": html.escape(secret),
        "URL": quote(secret, safe=""),
        "URL, lower case": quote(secret, safe="").replace("%2F", "%2f"),
        "URL path": quote(secret),
        "URL query": urlencode({"key": secret}),
        "base64": base64.b64encode(secret.encode()).decode(),
        "base64 of user and key": base64.b64encode(f"me:{secret}".encode()).decode(),
        "URL-safe base64": base64.urlsafe_b64encode(f"u:{secret}".encode()).decode(),
    }


@pytest.mark.parametrize("name", encodings_of(KEY))
async def test_no_encoding_of_a_key_is_in_an_error_or_a_response(name: str):
    encoded = encodings_of(KEY)[name]
    echoes = [
        HttpResponse(500, f"key={encoded}&"),
        HttpResponse(body=completion(f"My key is {encoded}.", reasoning=encoded)),
    ]
    async with FaultEndpoint(echoes) as server:
        client = OpenAIClient(server.base_url, KEY, backoff=0.0)
        response = await client.respond(Request([UserMessage("hi")]))
        await client.close()
    serialized = msgspec.json.encode(response).decode() + str(response.attempts)
    assert serialized.count(MASK) >= 3
    core = encoded[6:-6]
    assert core not in serialized


async def test_credentials_are_masked_in_tool_calls():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"key": KEY})}}
    async with FaultEndpoint(HttpResponse(body=completion(None, tool_calls=[call]))) as server:
        client = OpenAIClient(server.base_url, KEY)
        response = await client.respond(Request([UserMessage("hi")]))
        await client.close()
    assert response.message.role == "assistant"
    assert json.loads(response.message.tool_calls[0]["function"]["arguments"]) == {"key": MASK}


async def test_placeholder_keys_and_ordinary_header_values_are_not_masked_in_responses():
    text = "ollama and the research group answer"
    async with FaultEndpoint(reply=lambda body: text) as server:
        client = OpenAIClient(server.base_url, "ollama", headers={"X-Team": "the research group"})
        assert (await client.respond(Request([UserMessage("hi")]))).message.content == text
        await client.close()


async def test_credentials_of_headers_are_masked_in_responses():
    async with FaultEndpoint(reply=lambda body: f"cookie c00kie-value, auth {TOKEN}, team-blue-97531") as server:
        client = OpenAIClient(server.base_url, KEY, headers=HEADERS)
        response = await client.respond(Request([UserMessage("hi")]))
        await client.close()
    assert response.message.content == f"cookie {MASK}, auth {MASK}, {MASK}"


async def test_error_causes_without_a_secret_are_kept():
    async with FaultEndpoint("garbage") as server:
        error = await failure(server)
    assert isinstance(error, InvalidModelResponseError)
    assert isinstance(error.__cause__, msgspec.DecodeError)


async def test_the_default_key_and_short_header_values_are_not_masked_in_errors():
    async with FaultEndpoint(HttpResponse(400, f"{NO_KEY} blue")) as server:
        client = OpenAIClient(server.base_url, headers={"X-Team": "blue"})
        with pytest.raises(ModelError, match=f"{NO_KEY} blue"):
            await client.respond(Request([UserMessage("hi")]))
        await client.close()


@given(
    secret=st.text(st.characters(codec="ascii", exclude_characters="*"), min_size=6), prefix=st.text(), suffix=st.text()
)
@example(secret='000000"0', prefix="", suffix="")
def test_a_secret_is_masked_anywhere_in_a_text(secret: str, prefix: str, suffix: str):
    assume(len(secret.replace("\\", "")) >= 6)
    secrets = Secrets(secret, {})
    assert secret not in secrets.mask_text(prefix + secret + suffix)
    assert secrets.mask_text(f"<{repr(secret)!r}>").replace("\\", "").strip("'\"<>") == MASK


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("/home/alice/x/y", "x/y"),
        ("~/data/x", "data/x"),
        ("C:\\Users\\alice\\x", "alice/x"),
        ("file:///home/alice/x/y", "x/y"),
        ("--dir=/home/alice/x", "--dir=alice/x"),
        ("run --dir ~/data/in/x --out='/srv/a/b/c'", "run --dir in/x --out='b/c'"),
        ('["/home/alice/x/y"]', '["x/y"]'),
        ("owner/name", "owner/name"),
        ("https://host.example/a/b/c", "https://host.example/a/b/c"),
        ("answer with yes/no, or /no_think", "answer with yes/no, or /no_think"),
    ],
)
def test_paths_are_public_by_their_last_two_parts(text: str, public: str):
    assert public_path(text) == public
