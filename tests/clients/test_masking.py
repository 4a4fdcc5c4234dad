"""No key and no header's value in what is told, whatever a server repeats."""

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
from fault_endpoint import Answer, Fault, FaultEndpoint, completion
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rove.clients.masking import MASK, NO_KEY, Secrets
from rove.clients.openai import OpenAIClient, ResponsesClient
from rove.clients.replicas import Replicas
from rove.core.errors import Error, InfraError, InvalidModelResponseError, ModelError, traceback_text
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


def check(error: BaseException) -> None:
    told = [str(error), repr(error), traceback_text(error), *getattr(error, "attempts", ())]
    for text in told:
        spelt = text.replace("\\", "")
        for secret in SECRETS:
            assert secret[:7].replace("\\", "") not in spelt


ECHOES: dict[str, Fault] = {
    "401": Answer(401, f"wrong: {ALL}"),
    "400 in JSON": Answer(400, {"error": {"message": ALL}}),
    "429": Answer(429, ALL),
    "500": Answer(500, ALL),
    "not JSON": Answer(200, f"<html>{ALL}"),
    "JSON of another shape": Answer(200, {"error": ALL}),
    "empty": Answer(200, {"echo": ALL, **completion(None)}),
    "too long": Answer(400, f"maximum context length {ALL}"),
    **{f"cut after {n}, {status}": Answer(status, LONG[:-n] + KEY) for n in (1, 3, 8) for status in (200, 500)},
    "cut inside JSON": Answer(200, {"e": LONG[:-8] + KEY}),
}


@pytest.mark.parametrize("name", ECHOES)
async def test_no_error_tells_a_secret(name: str):
    async with FaultEndpoint(lambda number, body: ECHOES[name]) as server:
        error = await failure(server)
    check(error)
    assert MASK in str(error)


async def test_nor_does_one_of_a_server_that_failed_to_answer():
    faults = Answer(body={**openai_response(""), "status": "failed", "error": {"message": ALL}})
    async with ApiEndpoint("/v1/responses", openai_response, lambda number, body: faults) as server:
        check(await failure(server, ResponsesClient))


async def test_nor_does_the_cause_of_one():
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
    check(caught.value)
    await client.close()
    server.close()


async def test_nor_do_the_failed_tries_of_an_answer_or_of_several_replicas():
    async with FaultEndpoint([Answer(500, ALL)] * 3) as server:
        client = OpenAIClient(server.base_url, KEY, headers=HEADERS, max_retries=1, backoff=0.0)
        replicas = Replicas([(client, "m"), (client, "m")], "tiny")
        response = await replicas.respond(Request([UserMessage("hi")]))
        await replicas.close()
    assert len(response.attempts) == 3
    check(InfraError("", response.attempts))


async def test_errors_of_other_kinds_keep_their_kind_where_they_can():
    class Odd(OpenAIClient):
        def translate(self, request: Request) -> Any:
            if request.model == "os":
                raise OSError(5, f"about {KEY}")
            try:
                raise KeyError(KEY)
            except KeyError as error:
                raise ValueError(f"about {KEY}") from error

    client = Odd("http://host/v1", KEY, headers=HEADERS)
    with pytest.raises(ValueError, match=r"about \*\*\*") as caught:
        await client.respond(Request([]))
    check(caught.value)
    with pytest.raises(InfraError, match=r"OSError: .* about \*\*\*") as replaced:
        await client.respond(Request([], model="os"))
    check(replaced.value)


def spellings(secret: str) -> dict[str, str]:
    """How a server may repeat a secret."""
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


@pytest.mark.parametrize("name", spellings(KEY))
async def test_no_spelling_of_a_key_is_in_an_error_or_an_answer(name: str):
    spelled = spellings(KEY)[name]
    echoes = [Answer(500, f"key={spelled}&"), Answer(body=completion(f"My key is {spelled}.", reasoning=spelled))]
    async with FaultEndpoint(echoes) as server:
        client = OpenAIClient(server.base_url, KEY, backoff=0.0)
        response = await client.respond(Request([UserMessage("hi")]))
        await client.close()
    kept = msgspec.json.encode(response).decode() + str(response.attempts)
    assert kept.count(MASK) >= 3
    core = spelled[6:-6]
    assert core not in kept


async def test_an_answer_has_no_credentials_in_tool_calls_either():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"key": KEY})}}
    async with FaultEndpoint(Answer(body=completion(None, tool_calls=[call]))) as server:
        client = OpenAIClient(server.base_url, KEY)
        response = await client.respond(Request([UserMessage("hi")]))
        await client.close()
    assert response.message.role == "assistant"
    assert json.loads(response.message.tool_calls[0]["function"]["arguments"]) == {"key": MASK}


async def test_words_that_are_no_credentials_stay_in_answers():
    text = "ollama and the research group answer"
    async with FaultEndpoint(reply=lambda body: text) as server:
        client = OpenAIClient(server.base_url, "ollama", headers={"X-Team": "the research group"})
        assert (await client.respond(Request([UserMessage("hi")]))).message.content == text
        await client.close()


async def test_credentials_of_headers_are_masked_in_answers():
    async with FaultEndpoint(reply=lambda body: f"cookie c00kie-value, auth {TOKEN}, team-blue-97531") as server:
        client = OpenAIClient(server.base_url, KEY, headers=HEADERS)
        response = await client.respond(Request([UserMessage("hi")]))
        await client.close()
    assert response.message.content == f"cookie {MASK}, auth {MASK}, {MASK}"


async def test_causes_without_a_secret_stay():
    async with FaultEndpoint("garbage") as server:
        error = await failure(server)
    assert isinstance(error, InvalidModelResponseError)
    assert isinstance(error.__cause__, msgspec.DecodeError)


async def test_no_key_and_short_values_are_no_secrets():
    async with FaultEndpoint(Answer(400, f"{NO_KEY} blue")) as server:
        client = OpenAIClient(server.base_url, headers={"X-Team": "blue"})
        with pytest.raises(ModelError, match=f"{NO_KEY} blue"):
            await client.respond(Request([UserMessage("hi")]))
        await client.close()


@given(
    secret=st.text(st.characters(codec="ascii", exclude_characters="*"), min_size=6), before=st.text(), after=st.text()
)
@example(secret='000000"0', before="", after="")
def test_masked_wherever_it_is(secret: str, before: str, after: str):
    assume(len(secret.replace("\\", "")) >= 6)
    secrets = Secrets(secret, {})
    assert secret not in secrets.masked_in(before + secret + after)
    assert secrets.masked_in(f"<{repr(secret)!r}>").replace("\\", "").strip("'\"<>") == MASK
