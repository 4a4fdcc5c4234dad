"""Web pages of other origins cannot use a server without an API key."""

from __future__ import annotations

import json
import socket
from typing import Any

import aiohttp
import pytest
from toy_envs import Talk

from rove.integrations.open_env_server import OpenEnvServer
from rove.server import base_url_of, listening, make_app
from rove.server.admission import names_this_server
from tests.integrations.test_open_env import serving as serving_open_env
from tests.server.test_server import HI, RecordingClient, http

BODY = json.dumps({"messages": HI})
JSON = {"Content-Type": "application/json"}
FOREIGN_HEADERS: list[tuple[str, dict[str, str], int]] = [
    ("a form of another site", {"Content-Type": "text/plain", "Origin": "https://evil.example"}, 403),
    ("a form without Origin", {"Content-Type": "text/plain"}, 415),
    ("a form, URL-encoded", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ("a form in parts", {"Content-Type": "multipart/form-data; boundary=x"}, 415),
    ("a script of another site", {**JSON, "Origin": "https://evil.example"}, 403),
    ("a script of another port", {**JSON, "Origin": "http://127.0.0.1:1"}, 403),
    ("a page in a sandboxed frame", {**JSON, "Origin": "null"}, 403),
    ("an origin that cannot be parsed", {**JSON, "Origin": "http://["}, 403),
    ("an image of another site", {**JSON, "Sec-Fetch-Site": "cross-site"}, 403),
    ("DNS rebinding", {**JSON, "Host": "evil.example"}, 403),
    ("DNS rebinding, with its origin", {**JSON, "Host": "evil.example:80", "Origin": "http://evil.example:80"}, 403),
    ("a name that begins with the address", {**JSON, "Host": "127.0.0.1.evil.example"}, 403),
    ("an address of another machine", {**JSON, "Host": "192.168.0.9"}, 403),
    ("a Host that cannot be parsed", {**JSON, "Host": "["}, 403),
]
OWN_HEADERS: list[dict[str, str]] = [
    JSON,
    {"Content-Type": "application/json; charset=utf-8"},
    {**JSON, "Host": "localhost:8000"},
    {**JSON, "Host": "[::1]:8000"},
    {**JSON, "Host": socket.gethostname()},
    {**JSON, "Host": "localhost:8000", "Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-origin"},
]


async def test_requests_from_pages_of_another_origin_never_reach_the_model():
    client = RecordingClient()
    async with http(client) as (session, _):
        for case_name, headers, status in FOREIGN_HEADERS:
            for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"):
                async with session.post(path, data=BODY, headers=headers) as reply:
                    assert reply.status == status, (case_name, path)
                    assert "expected" in (await reply.json())["error"]["message"]
                    assert "Access-Control-Allow-Origin" not in reply.headers
    assert client.requests == []


async def test_requests_with_a_rebound_host_name_read_nothing():
    async with http(RecordingClient()) as (session, _):
        for path in ("/v1/models", "/v1/models/toy", "/metrics", "/health"):
            async with session.get(path, headers={"Host": "evil.example"}) as reply:
                assert (reply.status, "toy" in await reply.text()) == (403, False)


@pytest.mark.parametrize("headers", OWN_HEADERS, ids=str)
async def test_requests_from_programs_and_the_servers_own_pages_are_accepted(headers: dict[str, str]):
    async with http(RecordingClient()) as (session, _):
        async with session.post("/v1/chat/completions", data=BODY, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
        async with session.get("/v1/models", headers=headers) as reply:
            assert reply.status == 200


async def test_a_request_with_the_api_key_is_accepted_from_any_origin():
    client = RecordingClient()
    page = {**JSON, "Host": "models.example", "Origin": "https://page.example"}
    async with http(client, api_key="secret") as (session, _):
        for key, status in (("secret", 200), ("other", 401)):
            headers = {**page, "Authorization": f"Bearer {key}"}
            async with session.post("/v1/chat/completions", data=BODY, headers=headers) as reply:
                assert reply.status == status
        async with session.post("/v1/chat/completions", data=BODY, headers=page) as reply:
            assert reply.status == 401
    assert len(client.requests) == 1


async def test_on_a_public_interface_only_browser_requests_need_a_known_host():
    async with (
        listening(make_app(RecordingClient(), "toy"), "0.0.0.0") as runner,
        aiohttp.ClientSession(base_url_of(runner).replace("0.0.0.0", "127.0.0.1").removesuffix("/v1")) as session,
    ):
        for headers, status in (
            ({"Host": "model-service:8000"}, 200),
            ({"Host": "10.0.0.5:8000", "Origin": "http://10.0.0.5:8000"}, 200),
            ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
            ({"Host": "10.0.0.5:8000", "Origin": "http://evil.example"}, 403),
        ):
            async with session.post("/v1/chat/completions", data=BODY, headers={**JSON, **headers}) as reply:
                assert reply.status == status, headers


def test_names_this_server_compares_the_host_with_the_bind_address():
    assert names_this_server("Box.Example:80", "box.example")
    assert names_this_server("10.0.0.5", "0.0.0.0") and not names_this_server("10.0.0.5", "127.0.0.1")
    assert not names_this_server("", "127.0.0.1")


async def test_an_open_env_server_refuses_foreign_pages():
    server: Any = OpenEnvServer(Talk(turns=3), "talk")
    async with serving_open_env(server.app()) as url, aiohttp.ClientSession() as session:
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await session.ws_connect(f"{url}/ws", headers=headers)
            async with session.get(f"{url}/schema", headers=headers) as reply:
                assert reply.status == 403
        async with session.post(f"{url}/reset", data="{}", headers={"Content-Type": "text/plain"}) as reply:
            assert reply.status == 415
        assert server.limit.active == 0
        async with session.ws_connect(f"{url}/ws", headers={"Origin": url}) as ws:
            await ws.send_json({"type": "state"})
            assert (await ws.receive_json())["type"] == "state"
