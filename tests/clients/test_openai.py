from __future__ import annotations

import asyncio
import random
import re
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import openai
import pytest
from api_endpoint import ApiEndpoint, text_completion
from fault_endpoint import Fault, FaultEndpoint, HttpResponse, completion, last_text
from hypothesis import given
from hypothesis import strategies as st

from rove.clients.endpoint import MAX_BACKOFF_S, requested_pause, retry_delay
from rove.clients.openai import CompletionsClient, OpenAIClient, as_client
from rove.clients.scripted import ScriptedClient
from rove.core.errors import (
    ConfigError,
    EmptyModelResponseError,
    InfraError,
    InvalidModelResponseError,
    MissingKeyError,
    ModelError,
    OverlongPromptError,
)
from rove.core.messages import UserMessage
from rove.core.protocols import Client, Request, SamplingParams
from rove.core.records import Usage

pytestmark = pytest.mark.filterwarnings("error")  # a connection left open is a failure


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def make_request(text: str = "hello", **fields: Any) -> Request:
    return Request([UserMessage(text)], model="tiny", **fields)


async def get_response(server: FaultEndpoint, request: Request | None = None, **settings: Any):
    """Return the response to one request of a new client that does not pause between attempts."""
    client = OpenAIClient(server.base_url, **{"backoff": 0.0, **settings})
    try:
        return await client.respond(request or make_request())
    finally:
        await client.close()


# Requests and responses


async def test_round_trip():
    async with FaultEndpoint() as server:
        response = await get_response(
            server, make_request("Привет, 世界 🌍", sampling_params=SamplingParams(max_tokens=5)), api_key="sk-1"
        )
    assert response.message == {"role": "assistant", "content": "Привет, 世界 🌍"}
    assert response.usage == Usage(3, 2)
    message = {"role": "user", "content": "Привет, 世界 🌍"}
    assert server.bodies == [{"model": "tiny", "messages": [message], "max_tokens": 5}]
    assert server.headers[0]["Authorization"] == "Bearer sk-1"
    assert server.headers[0]["Content-Type"] == "application/json"


async def test_other_endpoints_get_a_placeholder_without_a_key():
    async with FaultEndpoint() as server:
        await get_response(server, headers={"X-Team": "blue"})
    assert server.headers[0]["Authorization"] == "Bearer EMPTY"
    assert server.headers[0]["X-Team"] == "blue"


async def test_user_headers_override_the_defaults():
    async with FaultEndpoint() as server:
        await get_response(server, api_key="sk-1", headers={"authorization": "Basic abc"})
    assert server.headers[0].getall("Authorization") == ["Basic abc"]  # pyright: ignore[reportAttributeAccessIssue]


async def test_settings_are_read_from_environment_variables(monkeypatch: pytest.MonkeyPatch):
    async with FaultEndpoint() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url + "/")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-env\n")
        client = OpenAIClient()
        await client.respond(make_request())
        await client.close()
    assert server.headers[0]["Authorization"] == "Bearer sk-env"


async def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch):
    async with FaultEndpoint() as proxy:
        monkeypatch.setenv("http_proxy", proxy.base_url.removesuffix("/v1"))
        client = OpenAIClient("http://model.invalid/v1")
        response = await client.respond(make_request())
        await client.close()
    assert response.message.content == "hello"
    assert proxy.headers[0]["Host"] == "model.invalid"


async def test_loopback_addresses_bypass_the_proxy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://proxy.invalid")
    async with FaultEndpoint() as server:
        await get_response(server, max_retries=0)
    assert server.num_requests == 1


def test_openai_gets_max_completion_tokens_and_other_endpoints_max_tokens():
    request = make_request(sampling_params=SamplingParams(max_tokens=5))
    assert OpenAIClient(api_key="sk-1").translate(request)[1]["max_completion_tokens"] == 5
    assert "max_tokens" not in OpenAIClient(api_key="sk-1").translate(request)[1]
    assert OpenAIClient("http://localhost/v1").translate(request)[1]["max_tokens"] == 5


# Raw texts


def completions_endpoint(faults: Any = "ok") -> ApiEndpoint:
    """Return an endpoint whose completions state the length of the prompt."""
    return ApiEndpoint("/v1/completions", text_completion, faults, reply=lambda body: f" and {len(body['prompt'])}")


@pytest.mark.parametrize("kind", [OpenAIClient, CompletionsClient])
async def test_a_raw_text_is_continued(kind: type[OpenAIClient]):
    sampling = SamplingParams(max_tokens=5, stop=["\n"])
    request = Request([UserMessage("not looked at")], sampling, "tiny", text="Once upon")
    async with completions_endpoint(["500"]) as server:
        client = kind(server.base_url, "sk-1", backoff=0.0)
        response = await client.respond(request)
        await client.close()
    assert response.message == {"role": "assistant", "content": " and 9"}
    assert (response.usage, len(response.attempts)) == (Usage(3, 2), 1)
    assert server.paths == ["/v1/completions"] * 2
    assert server.bodies[1] == {"model": "tiny", "prompt": "Once upon", "max_tokens": 5, "stop": ["\n"]}
    assert server.headers[0]["Authorization"] == "Bearer sk-1"


async def test_a_chat_response_to_a_raw_text_is_invalid():
    async with ApiEndpoint("/v1/completions", text_completion, HttpResponse(body=completion("hi"))) as server:
        with pytest.raises(InvalidModelResponseError, match="not a completion"):
            await get_response(server, Request([], text="Once upon"), max_retries=0)


async def test_a_completions_client_rejects_messages_and_tools():
    async with completions_endpoint() as server:
        client = CompletionsClient(server.base_url)
        with pytest.raises(ConfigError, match=f"{server.base_url} .*completions only; .*message_type='completion'"):
            await client.respond(make_request())
        with pytest.raises(ConfigError, match="1 tools given"):
            await client.respond(Request([], text="a", tools=[{"type": "function", "function": {"name": "add"}}]))
        await client.close()
    assert server.num_requests == 0


# Settings


def test_the_openai_api_requires_a_key():
    with pytest.raises(MissingKeyError, match=r"set OPENAI_API_KEY or pass api_key, or .* -b"):
        OpenAIClient()
    assert OpenAIClient(api_key="sk-1").base_url == OpenAIClient.default_base_url


@pytest.mark.parametrize(
    "base_url",
    ["localhost:8000/v1", "ftp://host/v1", "http://", "http://me:pw@host/v1", "http://host/v1?a=b", "http://["],
)
def test_invalid_base_urls_are_rejected(base_url: str):
    with pytest.raises(ConfigError, match="expected http"):
        OpenAIClient(base_url)


@pytest.mark.parametrize(
    "setting", [{"max_concurrent": 0}, {"max_retries": -1}, {"timeout": 0}, {"connect_timeout": -1}, {"backoff": -0.1}]
)
def test_numbers_out_of_range_are_rejected(setting: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} is .*; expected"):
        OpenAIClient("http://host/v1", **setting)


# Transient failures

RETRY_NOW = HttpResponse(429, "slow down", {"Retry-After": "0"})
TRANSIENT: dict[str, tuple[Fault, str]] = {
    "408": ("408", "HTTP 408: "),
    "409": ("409", "HTTP 409: "),
    "429": ("429", "HTTP 429: .*told to answer 429"),
    "429 with Retry-After": (RETRY_NOW, "HTTP 429: slow down"),
    "429 with a date": (
        HttpResponse(429, "", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        "HTTP 429: \\(nothing\\)",
    ),
    "500": ("500", "HTTP 500: "),
    "503": ("503", "HTTP 503: "),
    "garbage": ("garbage", "not JSON .*Bad gateway"),
    "invalid UTF-8": (
        HttpResponse(body=b'{"choices": "\xff\xfe"}'),
        r"not JSON .*(can't decode byte 0xff|Invalid UTF-8)",
    ),
    "error as success": (HttpResponse(body={"error": "overloaded"}), "not a chat completion .*overloaded"),
    "aborted": ("aborted", "empty and ended with 'abort'"),
    "close": ("close", "Disconnected|Connection"),
    "cut": ("cut", "ClientPayloadError|Connection"),
    "hang": ("hang", "no answer within 0.3 s"),
}
INVALID_RESPONSES = {"garbage", "invalid UTF-8", "error as success", "aborted"}


@pytest.mark.parametrize("name", TRANSIENT)
async def test_transient_failures_are_retried_until_success(name: str):
    fault, _ = TRANSIENT[name]
    async with FaultEndpoint([fault, fault]) as server:
        response = await get_response(server, timeout=0.3 if name == "hang" else 30)
        assert response.message.content == "hello"
        assert server.num_requests == 3
        assert server.bodies == [server.bodies[0]] * 3


@pytest.mark.parametrize("name", TRANSIENT)
async def test_a_persistent_failure_is_raised_after_max_retries(name: str):
    fault, line = TRANSIENT[name]
    async with FaultEndpoint(lambda number, body: fault) as server:
        with pytest.raises(
            InvalidModelResponseError if name in INVALID_RESPONSES else InfraError, match=line
        ) as caught:
            await get_response(server, timeout=0.3 if name == "hang" else 30, max_retries=2)
        assert server.num_requests == 3
    attempts = caught.value.attempts  # pyright: ignore[reportAttributeAccessIssue]
    assert len(attempts) == 3
    assert all(re.search(line, attempt) for attempt in attempts)


async def test_all_attempts_are_listed_in_order():
    async with FaultEndpoint(["500", "garbage", "close", "aborted", "429"]) as server:
        with pytest.raises(InfraError, match=r"no answer from http://.*/chat/completions in 5 tries") as caught:
            await get_response(server)
    first, second, third, fourth, fifth = caught.value.attempts
    assert first.startswith("HTTP 500")
    assert second.startswith("not JSON")
    assert third
    assert fourth.startswith("the answer is empty")
    assert fifth.startswith("HTTP 429")


async def test_an_empty_response_that_the_server_aborted_raises_its_own_error():
    async with FaultEndpoint("aborted") as server:
        with pytest.raises(EmptyModelResponseError):
            await get_response(server, max_retries=0)
        assert server.num_requests == 1


async def test_an_empty_response_is_an_answer_and_is_not_requested_again():
    async with FaultEndpoint("empty") as server:
        response = await get_response(server)
        assert (response.message, response.finish_reason, response.attempts) == (
            {"role": "assistant", "content": ""},
            "stop",
            [],
        )
        assert server.num_requests == 1


async def test_connection_errors_are_retried_and_listed():
    async with FaultEndpoint() as server:
        base_url = server.base_url
    client = OpenAIClient(base_url, backoff=0.0, max_retries=1)
    with pytest.raises(InfraError, match="in 2 tries") as caught:
        await client.respond(make_request())
    assert [attempt.split(":")[0] for attempt in caught.value.attempts] == ["ClientConnectorError"] * 2
    assert str(caught.value).endswith(f"is the server running at {base_url.removesuffix('/v1')}?")
    await client.close()


# Permanent failures


@pytest.mark.parametrize("status", ["400", "404", "413", "422"])
async def test_client_errors_are_not_retried(status: str):
    async with FaultEndpoint(status) as server:
        with pytest.raises(ModelError, match=f"HTTP {status} from .*told to answer {status}") as caught:
            await get_response(server)
        assert type(caught.value) is ModelError
        assert server.num_requests == 1


@pytest.mark.parametrize("status", ["401", "403"])
async def test_authentication_errors_name_the_variable_of_the_key(status: str):
    async with FaultEndpoint(status) as server:
        with pytest.raises(ModelError, match=f"HTTP {status} .*API key .*OPENAI_API_KEY"):
            await get_response(server)
        assert server.num_requests == 1


async def test_the_api_key_is_masked_in_errors():
    async with FaultEndpoint(HttpResponse(401, "wrong key: sk-secret")) as server:
        with pytest.raises(ModelError) as caught:
            await get_response(server, api_key="sk-secret")
    assert "wrong key: ***" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "fault",
    [
        "context",
        HttpResponse(400, "This model's maximum context length is 4096 tokens."),
        HttpResponse(400, "prompt is too long: 200001 tokens > 200000 maximum"),
        HttpResponse(400, "Input is too long for requested model."),
        HttpResponse(400, "The prompt with 9000 tokens is too long."),
        HttpResponse(400, "The decoder prompt (length 9) is longer than the maximum model length of 8."),
        HttpResponse(400, "Your input exceeds the context window of this model."),
        HttpResponse(400, {"error": {"type": "exceed_context_size_error"}}),
        HttpResponse(413, {"error": {"code": "prompt_too_long"}}),
        HttpResponse(
            400,
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens (100000 of text "
            "input, 31808 of tool input, 8192 in the output).",
        ),
        HttpResponse(
            400,
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 4500 "
            "tokens: 4000 tokens from the input messages and 500 tokens for the completion.",
        ),
        HttpResponse(
            400,
            "This model's maximum context length is 4096 tokens. However, you requested 64 output tokens and your prompt "
            "contains at least 4033 input tokens, for a total of at least 4097 tokens.",
        ),
        HttpResponse(
            400, "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length"
        ),
        HttpResponse(422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000"),
        HttpResponse(
            422,
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`",
        ),
    ],
)
async def test_a_prompt_that_is_too_long_raises_overlong_prompt_error(fault: Fault):
    async with FaultEndpoint(fault) as server:
        with pytest.raises(OverlongPromptError, match="HTTP 4"):
            await get_response(server)
        assert server.num_requests == 1


@pytest.mark.parametrize(
    "message",
    [
        "'max_tokens' or 'max_completion_tokens' is too large: 32768. This model's maximum context length is 32768 tokens and "
        "your request has 23 input tokens (32768 > 32768 - 23).",
        "This model's maximum context length is 8192 tokens. However, you requested 8228 tokens (36 in the messages, 8192 in the "
        "completion). Please reduce the length of the messages or completion.",
        "input length and `max_tokens` exceed context limit: 959 + 200000 > 200000, decrease input length or `max_tokens`",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 40 `inputs` tokens and 4096 `max_new_tokens`",
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 40012 tokens (12 of text input, "
        "40000 in the output). Please reduce the length of either one.",
        "This endpoint's maximum context length is 200000 tokens. However, you requested about 213432 tokens (81684 of text "
        "input, 3748 of tool input, 128000 in the output).",
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5012 tokens: "
        "12 tokens from the input messages and 5000 tokens for the completion.",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 output tokens and your prompt contains "
        "at least 1 input tokens, for a total of at least 5001 tokens.",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 output tokens and your prompt contains "
        "12 input tokens, for a total of 5012 tokens.",
        "This model's maximum context length is 32768 tokens. However, you requested 32768 output tokens and your prompt "
        "contains 31800 characters (more than 0 characters, which is the upper bound for 0 input tokens).",
        "You passed 3073 input tokens and requested 128000 output tokens. However, the model's context length is only 131072 "
        "tokens, resulting in a maximum input length of 3072 tokens.",
    ],
)
async def test_a_length_that_fills_the_context_is_a_mistake_of_the_settings(message: str):
    async with FaultEndpoint(HttpResponse(400, message)) as server:
        with pytest.raises(ModelError, match=r"of the context's \d+ tokens: lower max_tokens") as caught:
            await get_response(server)
    assert not isinstance(caught.value, OverlongPromptError)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_goes_back_under_the_name_that_the_server_uses(name: str):
    message = {"role": "assistant", "content": "4", name: "2 + 2"}
    async with FaultEndpoint(HttpResponse(200, {"choices": [{"message": message, "finish_reason": "stop"}]})) as server:
        client = OpenAIClient(server.base_url)
        first = await client.respond(make_request())
        request = make_request()
        messages = [*request.messages, first.message, UserMessage("sure?")]
        await client.respond(msgspec.structs.replace(request, messages=messages))
        await client.close()
    assert first.message.reasoning_content == "2 + 2"
    assert server.bodies[1]["messages"][-2] == message


@pytest.mark.parametrize(
    "message",
    ["Invalid 'stop': array too long. Expected at most 4.", "Invalid 'tools[0].function.name': string too long."],
)
async def test_other_too_long_errors_are_not_overlong_prompts(message: str):
    async with FaultEndpoint(HttpResponse(400, message)) as server:
        with pytest.raises(ModelError) as caught:
            await get_response(server)
    assert not isinstance(caught.value, OverlongPromptError)


async def test_a_permanent_failure_after_a_transient_one_lists_all_attempts():
    async with FaultEndpoint(["429", "context"]) as server:
        with pytest.raises(OverlongPromptError) as caught:
            await get_response(server)
    attempts = caught.value.attempts  # pyright: ignore[reportAttributeAccessIssue]
    assert [attempt[:8] for attempt in attempts] == ["HTTP 429", "HTTP 400"]


# Pauses between attempts


@given(failures=st.integers(1, 50), backoff=st.floats(0, 10), requested_pause=st.floats(0, 60), seed=st.integers())
def test_pause_is_bounded(failures: int, backoff: float, requested_pause: float, seed: int):
    pause = retry_delay(failures, backoff, requested_pause, random.Random(seed))
    assert requested_pause <= pause <= requested_pause + min(MAX_BACKOFF_S, backoff * 2 ** (failures - 1))


def test_the_pause_stays_bounded_after_any_number_of_failures():
    assert 0 <= retry_delay(1026, 0.5, 0.0, random.Random(0)) <= MAX_BACKOFF_S


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("1.5", 1.5),
        ("3600", 60),
        ("inf", 60),
        ("-1", 0),
        ("nan", 0),
        ("soon", 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 60),
        ("Fri, 31 Dec 999999999999 23:59:59 GMT", 60),
        ("9" * 5000, 60),
        ("Wed, 99 Foo 20", 0),
    ],
)
def test_the_retry_after_header_is_parsed(header: str | None, seconds: float):
    assert requested_pause({"Retry-After": header} if header else {}) == seconds


async def test_pauses_grow_and_respect_the_retry_after_header(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def record_pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async with FaultEndpoint(["500", "500", HttpResponse(503, "", {"Retry-After": "7"}), "500"]) as server:
        client = OpenAIClient(server.base_url)
        monkeypatch.setattr(client._jitter, "uniform", lambda low, high: high)  # the longest pause jitter allows
        monkeypatch.setattr(
            "rove.clients.endpoint.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": record_pause})
        )
        await client.respond(make_request())
        await client.close()
    assert pauses == [0.5, 1.0, 9.0, 4.0]


async def test_a_request_that_pauses_does_not_block_others():
    def slow_down_the_first(number: int, body: dict[str, Any]) -> Fault:
        return HttpResponse(429, "later", {"Retry-After": "60"}) if last_text(body) == "first" else "ok"

    async with FaultEndpoint(slow_down_the_first) as server:
        client = OpenAIClient(server.base_url, max_concurrent=1)
        first = asyncio.create_task(client.respond(make_request("first")))
        await server.wait_for_requests(1)
        async with asyncio.timeout(20):
            assert (await client.respond(make_request("second"))).message.content == "second"
        assert not first.done()
        assert [last_text(body) for body in server.bodies] == ["first", "second"]
        first.cancel()
        await asyncio.wait([first])
        await client.close()


# Concurrency and lifetime


async def test_the_concurrency_limit_is_respected_and_fully_used():
    async with FaultEndpoint(min_in_flight=3) as server:
        client = OpenAIClient(server.base_url, max_concurrent=3)
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(client.respond(make_request(str(number))) for number in range(12)))
        await client.close()
        assert [answer.message.content for answer in answers] == [str(number) for number in range(12)]
        assert server.peak_in_flight == 3


async def test_the_concurrency_limit_holds_while_requests_fail():
    async with FaultEndpoint(["500", "close", "garbage", "429"] * 5) as server:
        client = OpenAIClient(server.base_url, max_concurrent=2, max_retries=30, backoff=0.0)
        await asyncio.gather(*(client.respond(make_request(str(number))) for number in range(8)))
        await client.close()
        assert server.peak_in_flight <= 2
        assert server.num_requests == 28


async def test_cancelled_requests_release_their_slots():
    async with FaultEndpoint(["hang", "hang"]) as server:
        client = OpenAIClient(server.base_url, max_concurrent=2)
        hanging = [asyncio.create_task(client.respond(make_request("hang"))) for _ in range(2)]
        await server.wait_for_requests(2)
        for task in hanging:
            task.cancel()
        await asyncio.wait(hanging)
        async with asyncio.timeout(20):
            await asyncio.gather(*(client.respond(make_request()) for _ in range(2)))
        await client.close()
        assert server.num_requests == 4


async def test_a_closed_client_can_be_used_again():
    async with FaultEndpoint() as server:
        client = OpenAIClient(server.base_url)
        await client.close()
        await client.respond(make_request())
        await client.close()
        await client.respond(make_request())
        await client.close()
        await client.close()
        assert server.num_requests == 2


@pytest.mark.broad
async def test_one_client_works_in_several_event_loops_without_warnings():
    script = """if True:
        import asyncio, sys
        from rove.clients.openai import OpenAIClient
        from rove.core.protocols import Request

        client = OpenAIClient(sys.argv[1], max_concurrent=1)

        async def several():
            request = Request([{"role": "user", "content": "hi"}])
            answers = await asyncio.gather(*(client.respond(request) for _ in range(3)))
            return [answer.message.content for answer in answers]

        print(asyncio.run(several()), asyncio.run(several()))
    """
    async with FaultEndpoint() as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            script,
            server.base_url,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert err.decode() == ""
    assert out.decode().strip() == "['hi', 'hi', 'hi'] ['hi', 'hi', 'hi']"


# Conversion of other clients


async def test_from_sdk_copies_the_settings_of_the_sdk_client():
    async with FaultEndpoint(["500", "500"]) as server:
        sdk = openai.AsyncOpenAI(
            base_url=server.base_url,
            api_key="sk-sdk",
            timeout=17,
            max_retries=2,
            organization="org-1",
            default_headers={"X-Team": "blue"},
        )
        client = OpenAIClient.from_sdk(sdk)
        client.backoff = 0.0
        await client.respond(make_request())
        await client.close()
        await sdk.close()
        assert server.num_requests == 3
    assert (client.timeout, client.max_retries) == (17, 2)
    sent = server.headers[0]
    assert (sent["Authorization"], sent["X-Team"], sent["OpenAI-Organization"]) == ("Bearer sk-sdk", "blue", "org-1")
    assert "AsyncOpenAI" not in sent["User-Agent"]
    assert not [name for name in sent if name.lower().startswith("x-stainless")]


async def test_from_sdk_copies_the_defaults_of_the_sdk():
    sdk = openai.AsyncOpenAI(api_key="sk-sdk")
    client = OpenAIClient.from_sdk(sdk)
    assert (client.base_url, client.timeout, client.max_retries) == (OpenAIClient.default_base_url, 600.0, 2)
    await sdk.close()


async def async_key() -> str:
    return "sk-1"


@pytest.mark.parametrize("settings", [{"api_key": "k", "default_query": {"api-version": "1"}}, {"api_key": async_key}])
async def test_from_sdk_rejects_settings_that_it_cannot_copy(settings: dict[str, Any]):
    sdk = openai.AsyncOpenAI(base_url="http://host/v1", **settings)
    with pytest.raises(ConfigError, match="cannot convert this AsyncOpenAI"):
        OpenAIClient.from_sdk(sdk)
    await sdk.close()


async def test_as_client_accepts_rove_and_sdk_clients():
    ours = OpenAIClient("http://host/v1")
    scripted = ScriptedClient(lambda messages, state, rng: "hi")
    sdk = openai.AsyncOpenAI(base_url="http://host/v1", api_key="k")
    lookalike = SimpleNamespace(chat=SimpleNamespace(completions=None), base_url="http://host/v1", api_key="k")
    assert as_client(ours) is ours
    assert as_client(scripted) is scripted
    for sdk_client in (sdk, lookalike):
        client = as_client(sdk_client)
        assert isinstance(client, OpenAIClient)
        assert isinstance(client, Client)
        assert client.base_url == "http://host/v1"
    with pytest.raises(ConfigError, match="not a client: 'gpt'; expected a rove client"):
        as_client("gpt")
    await sdk.close()
