from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from api_endpoint import ApiEndpoint, anthropic_message, openai_response, text_completion
from fault_endpoint import FaultEndpoint

from rove.clients.anthropic import AnthropicClient
from rove.clients.endpoints_file import APIS, Address, Endpoint, known_endpoints, read_endpoints
from rove.clients.openai import CompletionsClient, OpenAIClient, ResponsesClient
from rove.core.errors import ConfigError, InfraError, MissingKeyError
from rove.core.messages import UserMessage
from rove.core.protocols import Request

pytestmark = pytest.mark.filterwarnings("error")  # a connection left open is a failure

SECRET = "sk-a1B2c3D4e5F6g7H8"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "EMPTY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def write_file(text: str, path: str = "endpoints.toml") -> Path:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
    return Path(path)


def table(**fields: Any) -> str:
    fields = {"endpoint_id": "qwen", "model": "Qwen/Qwen3-4B", "url": "http://localhost:8000/v1"} | fields
    lines = [f"{name} = {value if isinstance(value, int) else repr(value)}" for name, value in fields.items()]
    return "\n".join(["[[endpoint]]", *lines, ""])


FULL = """
[[endpoint]]
endpoint_id = "qwen"
model = "Qwen/Qwen3-4B"
url = "http://one:8000/v1"
key = "QWEN_KEY"
headers = { X-Team = "blue" }
price = { input = 0.4, output = 1.6 }
max_concurrent = 8

[[endpoint]]
endpoint_id = "claude"
model = "claude-x"
api_client_type = "anthropic"

[[endpoint]]
endpoint_id = "qwen"
model = "qwen"
url = "http://two:8000/v1"
"""


def test_an_endpoints_file_is_read():
    endpoints = read_endpoints(write_file(FULL))
    assert list(endpoints) == ["qwen", "claude"]
    first_address, second_address = endpoints["qwen"].addresses
    assert first_address == Address(
        endpoint_id="qwen",
        model="Qwen/Qwen3-4B",
        url="http://one:8000/v1",
        key="QWEN_KEY",
        headers={"X-Team": "blue"},
        price={"input": 0.4, "output": 1.6},
        max_concurrent=8,
    )
    assert second_address == Address(endpoint_id="qwen", model="qwen", url="http://two:8000/v1")
    assert endpoints["qwen"].price == {"input": 0.4, "output": 1.6}
    assert (endpoints["claude"].addresses[0].url, endpoints["claude"].price) == (None, None)


def test_the_file_is_searched_in_two_folders_unless_its_path_is_given():
    assert known_endpoints() == {}
    write_file(table(endpoint_id="second"), "configs/endpoints.toml")
    assert list(known_endpoints()) == ["second"]
    write_file(table(endpoint_id="first"))
    assert list(known_endpoints()) == ["first"]
    write_file(table(endpoint_id="named"), "mine.toml")
    assert list(known_endpoints("mine.toml")) == ["named"]
    with pytest.raises(ConfigError, match=r"nowhere.toml does not exist"):
        known_endpoints("nowhere.toml")


def test_an_empty_file_has_no_endpoints():
    assert read_endpoints(write_file("")) == {}


INVALID_FILES = {
    "not TOML": ("[[endpoint", "endpoints.toml: "),
    "one bracket": ("[endpoint]\nmodel = 'm'", r"expected \[\[endpoint\]\], with two brackets"),
    "a list of texts": ("endpoint = ['a']", r"expected \[\[endpoint\]\], with two brackets"),
    "another table": (table() + "[[endpoints]]\n", r"unknown setting 'endpoints'; expected nothing but \[\[endpoint"),
    "an unknown key": (table(modle="x"), r"endpoint 1 \(qwen\): unknown setting 'modle'; did you mean 'model'\?"),
    "no model": ("[[endpoint]]\nendpoint_id = 'a'", r"endpoint 1 \(a\): missing setting: model"),
    "no name": (table() + "[[endpoint]]\nmodel = 'a'", r"endpoint 2 \(unnamed\): missing setting: endpoint_id"),
    "an empty name": (table(endpoint_id=""), "endpoint_id is '': expected `str` of length >= 1"),
    "a wrong type": (table(url=8000), r"url is 8000: expected `str \| null`, got `int`"),
    "an unknown API": (
        table(api_client_type="antropic"),
        r"api_client_type is 'antropic'; did you mean 'anthropic'\?.*openai_responses",
    ),
    "no room": (table(max_concurrent=0), "max_concurrent is 0; expected an integer, 1 or more"),
    "half a price": (table() + "price = {input = 1}", r"price is {'input': 1.*}; expected {input = …, output = …}"),
    "a bad price": (table() + "price = {input = 1, output = -1}", "price.output is -1; expected a number, 0 or more"),
    "a price that is none": (
        table() + "price = {input = 1, output = nan}",
        "price.output is nan; expected a finite number, 0 or more",
    ),
    "two prices": (
        "".join(table() + f"price = {{input = {i}, output = 1}}\n" for i in (1, 2)),
        r"endpoint 2 \(qwen\): price is .*2.*earlier replica.*1.*expected one price",
    ),
}


@pytest.mark.parametrize("name", INVALID_FILES)
def test_errors_of_invalid_files_name_the_entry_and_the_setting(name: str):
    text, pattern = INVALID_FILES[name]
    with pytest.raises(ConfigError, match=pattern):
        read_endpoints(write_file(text))


# Keys


@pytest.mark.parametrize(
    "key", [SECRET, "hf_abcDEF123", "AKIAIOSFODNN7EXAMPLE", "0123456789abcdef", "my key", "", "a=b"]
)
def test_a_secret_instead_of_a_variable_name_is_rejected_and_not_shown(key: str):
    with pytest.raises(ConfigError, match="not the name of an environment variable.*not shown") as caught:
        read_endpoints(write_file(table(key=key)))
    assert not key or key not in str(caught.value)


def test_the_key_may_name_any_environment_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("my_key", SECRET)
    for key in ("my_key", "OPENROUTER_API_KEY", "KEY2", "X"):
        assert read_endpoints(write_file(table(key=key)))["qwen"].addresses[0].key == key


async def key_sent(**fields: Any) -> str:
    async with FaultEndpoint() as server:
        client = read_endpoints(write_file(table(url=server.base_url, **fields)))["qwen"].client()
        await client.respond(Request([UserMessage("hi")]))
        await client.close()
    return server.headers[0]["Authorization"]


async def test_the_key_is_read_from_the_named_environment_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QWEN_KEY", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    assert await key_sent(key="QWEN_KEY") == f"Bearer {SECRET}"
    assert await key_sent(key="EMPTY") == "Bearer EMPTY"
    assert await key_sent() == "Bearer sk-openai"
    with pytest.raises(MissingKeyError, match="variable OTHER is not set, .* the key of endpoint 'qwen'"):
        await key_sent(key="OTHER")


def test_an_explicit_key_overrides_the_environment_variables(monkeypatch: pytest.MonkeyPatch):
    endpoint = read_endpoints(write_file(FULL))["qwen"]
    with pytest.raises(MissingKeyError, match="QWEN_KEY"):
        endpoint.client()
    endpoint.client(api_key="sk-1")


def test_an_endpoint_without_url_requires_the_key_of_its_api():
    with pytest.raises(MissingKeyError, match="set ANTHROPIC_API_KEY"):
        read_endpoints(write_file(FULL))["claude"].client()


# Clients


def test_every_api_has_a_long_and_a_short_name():
    kinds = {
        name: type(Address(endpoint_id="a", model="m", url="http://a/v1", api_client_type=name).client())
        for name in APIS
    }
    assert kinds["openai_chat_completions"] is kinds["chat"] is OpenAIClient
    assert kinds["openai_completions"] is kinds["completions"] is CompletionsClient
    assert kinds["openai_responses"] is kinds["responses"] is ResponsesClient
    assert kinds["anthropic_messages"] is kinds["anthropic"] is AnthropicClient
    assert Address(endpoint_id="a", model="m").api_client_type in kinds


async def test_each_replica_gets_its_own_api_and_model_name():
    def reply_hi(body: dict[str, Any]) -> str:
        return "hi"

    async with (
        ApiEndpoint("/v1/messages", anthropic_message, reply=reply_hi) as first_server,
        ApiEndpoint("/v1/responses", openai_response, reply=reply_hi) as second_server,
    ):
        write_file(
            table(url=first_server.base_url, api_client_type="anthropic", model="a", max_concurrent=1)
            + table(url=second_server.base_url, api_client_type="responses", model="b", max_concurrent=1)
            + "headers = {X-Team = 'blue'}"
        )
        client = known_endpoints()["qwen"].client()
        for busy in (0, 1):
            client._replicas[0].under_way = busy
            response = await client.respond(Request([UserMessage("hello")], model="qwen"))
            assert response.message.content == "hi"
        await client.close()
    assert (first_server.bodies[0]["model"], second_server.bodies[0]["model"]) == ("a", "b")
    assert second_server.headers[0]["X-Team"] == "blue"


async def test_a_completions_endpoint_continues_raw_texts():
    async with ApiEndpoint("/v1/completions", text_completion, reply=lambda body: body["prompt"] + "!") as server:
        write_file(table(url=server.base_url, api_client_type="completions"))
        client = known_endpoints()["qwen"].client()
        response = await client.respond(Request([], text="Once"))
        await client.close()
    assert response.message.content == "Once!"


@pytest.mark.parametrize(
    ("own_limit", "client_limit", "limits"),
    [(None, None, [16, 16]), (3, None, [3, 16]), (3, 8, [3, 8]), (9, 8, [8, 8]), (None, 8, [8, 8])],
)
def test_the_lower_concurrency_limit_applies(own_limit: int | None, client_limit: int | None, limits: list[int]):
    first = table() if own_limit is None else table(max_concurrent=own_limit)
    client = read_endpoints(write_file(first + table()))["qwen"].client(max_concurrent=client_limit)
    assert [replica.client.limiter_now.limit for replica in client._replicas] == limits


@pytest.mark.parametrize(("count", "tries"), [(1, 5), (2, 3), (3, 3), (5, 2)])
async def test_replicas_share_the_retries(count: int, tries: int):
    async with FaultEndpoint("500") as server:
        address = Address(endpoint_id="a", model="m", url=server.base_url)
        client = Endpoint("a", [address] * count).client(max_retries=4)
        for replica in client._replicas:
            replica.client.backoff = 0.0
        with pytest.raises(InfraError):
            await client.respond(Request([UserMessage("hi")]))
        await client.close()
    assert server.num_requests == count * tries
