"""Reading hubs from a folder and over HTTP, with failures, wrong content and truncated responses."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hubs import code, publish, rewrite_indexes, tamper

from rove.core.errors import ConfigError, HubError, InfraError, TrustError
from rove.hub.client.hub import Hub, HubFile, check_filename
from rove.hub.client.settings import save_hub
from rove.hub.client.transport import NotFoundError
from rove.hub.package.names import Reference

DOUBLING = Reference("alice", "doubling", "1.0")


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    folder = tmp_path / "hub"
    folder.mkdir()
    publish(folder, tags=["math"])
    publish(folder, owner="bob", name="tripling", module=code("Triple", 3), compatibility="verifiers v0")
    return folder


class StaticServer:
    """A web server of a hub's folder; the handlers in `next_handlers` replace its next responses."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.requests: list[tuple[str, str | None]] = []
        self.next_handlers: list[Callable[[web.Request], Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path, request.headers.get("Authorization")))
        if self.next_handlers:
            answer = self.next_handlers.pop(0)(request)
            return await answer if not isinstance(answer, web.StreamResponse) else answer
        file = self.folder / request.path.lstrip("/")
        return web.FileResponse(file) if file.is_file() else web.Response(status=404)


@pytest.fixture
async def static(hub: Path) -> AsyncIterator[tuple[StaticServer, str]]:
    server = StaticServer(hub)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    async with TestServer(app) as test_server:
        yield server, str(test_server.make_url("")).rstrip("/")


def wheels_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.whl"))


@pytest.fixture(params=["folder", "web"])
def location(request: pytest.FixtureRequest, hub: Path, static: tuple[StaticServer, str]) -> str:
    return str(hub) if request.param == "folder" else static[1]


async def test_a_folder_and_a_web_server_have_the_same_content(location: str, hub: Path, tmp_path: Path) -> None:
    async with Hub(location) as client:
        assert [listed.reference for listed in (await client.index()).environments] == [
            "alice/doubling",
            "bob/tripling",
        ]
        releases = await client.releases(DOUBLING)
        release = releases.choose(None)
        assert release.version == "1.0"
        content = await client.manifest(DOUBLING, release.manifest)
        assert content == (hub / "alice/doubling/1.0/manifest.json").read_bytes()
        assert await client.signature(DOUBLING) is None
        assert await client.results(DOUBLING) == []
        [file] = release.files
        wheel = await client.download(DOUBLING, file, tmp_path)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == file.sha256


async def test_search_without_an_api_reads_the_index(location: str) -> None:
    async with Hub(location) as client:
        queries = [{"tag": ""}, {"words": "tripling OF"}, {"tag": "math"}, {"words": "bob"}]
        owners = [[listed.owner for listed in (await client.search(**query))[0]] for query in queries]
        assert owners == [["alice", "bob"], ["bob"], ["alice"], ["bob"]]
        page, total = await client.search(limit=1, offset=1)
        assert ([listed.owner for listed in page], total) == (["bob"], 2)
        assert await client.search("nothing has this") == ([], 0)


async def test_missing_environments_versions_files_and_hubs_are_errors(location: str, tmp_path: Path) -> None:
    async with Hub(location) as client:
        with pytest.raises(HubError, match=r"no environment alice/else.*rove search else"):
            await client.releases(Reference("alice", "else"))
        with pytest.raises(HubError, match=r"no version 2\.0; the hub has 1\.0"):
            (await client.releases(DOUBLING)).choose("2.0")
        with pytest.raises(NotFoundError):
            await client.download(DOUBLING, HubFile(filename="else.whl", sha256="0" * 64, size=1), tmp_path)
    assert not wheels_in(tmp_path)
    async with Hub(str(tmp_path)) as client:
        with pytest.raises(HubError, match="expected a hub"):
            await client.index()
        (tmp_path / "index.json").symlink_to("index.json")
        with pytest.raises(HubError, match=f"{tmp_path}/index.json cannot be read"):
            await client.index()
    with pytest.raises(ConfigError, match="not an existing folder"):
        async with Hub(str(tmp_path / "nowhere")) as client:
            await client.index()


async def test_a_modified_file_is_detected_during_download(location: str, hub: Path, tmp_path: Path) -> None:
    folder = hub / "alice/doubling/1.0"
    async with Hub(location) as client:
        release = (await client.releases(DOUBLING)).choose(None)
        [file] = release.files
        tamper(folder / "manifest.json", b"doubling of alice", b"doubling of Alice")
        with pytest.raises(TrustError, match=r"the manifest of alice/doubling@1\.0 does not match the hub's index"):
            await client.manifest(DOUBLING, release.manifest)
        wheel = folder / file.filename
        wheel.write_bytes(wheel.read_bytes()[:-1] + b"!")
        with pytest.raises(TrustError, match="doubling-1.0-py3-none-any.whl does not match"):
            await client.download(DOUBLING, file, tmp_path)
        wheel.write_bytes(wheel.read_bytes() + b"!")
        with pytest.raises(TrustError, match="has more than"):
            await client.download(DOUBLING, file, tmp_path)
    assert not wheels_in(tmp_path)


async def test_an_invalid_or_foreign_index_is_rejected(location: str, hub: Path) -> None:
    index = hub / "alice/doubling/index.json"
    original = index.read_bytes()
    for old, new, message in [
        (b'"alice"', b'"carol"', "describes 'carol/doubling'"),
        (b'"schema":1', b'"schema":7', "has schema 7, but this version of rove reads 1"),
        (b'"versions":', b'"version5":', "not a valid hub file"),
        (b"doubling-1.0", b"../../../1.0", "not a valid name"),
        (b'"version":"1.0"', b'"version":"../"', "is not a valid version"),
    ]:
        index.write_bytes(original.replace(old, new))
        async with Hub(location) as client:
            with pytest.raises((HubError, ConfigError), match=message):
                await client.releases(DOUBLING)


def test_file_names_with_paths_are_rejected() -> None:
    assert check_filename("my_sums-1.0-py3-none-any.whl")
    for name in ("", "../x.whl", "a/b.whl", ".hidden", "x\\y", "x\n", "a" * 300, "x\u202e.whl"):
        with pytest.raises(TrustError):
            check_filename(name)


async def test_the_newest_version_that_is_neither_yanked_nor_a_prerelease_is_chosen(hub: Path) -> None:
    for version in ("0.9", "1.1", "2.0rc1"):
        publish(hub, version=version)
    async with Hub(str(hub)) as client:
        releases = await client.releases(DOUBLING)
        assert [releases.choose(v).version for v in (None, "0.9", "2.0rc1")] == ["1.1", "0.9", "2.0rc1"]
        for release in releases.versions:
            release.yanked = "wrong" if release.version in ("1.0", "1.1", "0.9") else None
        assert releases.choose(None).version == "2.0rc1"
        assert releases.choose("1.1").yanked == "wrong"
        releases.versions[-1].yanked = "also"
        with pytest.raises(HubError, match="has only yanked versions"):
            releases.choose(None)
        assert releases.choose(None, allow_yanked=True).version == "1.1"


# HTTP


async def _truncated(request: web.Request) -> web.StreamResponse:
    """Send part of a file, then close the connection."""
    reply = web.StreamResponse(headers={"Content-Length": "1000"})
    await reply.prepare(request)
    await reply.write(b"x" * 100)
    assert request.transport is not None
    request.transport.close()
    return reply


@pytest.mark.parametrize(
    "failures",
    [
        [lambda _: web.Response(status=503), lambda _: web.Response(status=500)],
        [lambda _: web.Response(status=429, headers={"Retry-After": "0"})],
        [_truncated, _truncated],
    ],
    ids=["5xx", "429", "truncated"],
)
async def test_transient_failures_are_retried(
    static: tuple[StaticServer, str], tmp_path: Path, failures: list[Any]
) -> None:
    server, url = static
    async with Hub(url, backoff=0.001) as client:
        file = (await client.releases(DOUBLING)).choose(None).files[0]
        server.next_handlers = list(failures)
        wheel = await client.download(DOUBLING, file, tmp_path)
        assert wheel.stat().st_size == file.size
    assert len(server.requests) == 2 + len(failures)


async def test_the_error_after_the_last_retry_contains_the_last_failure(static: tuple[StaticServer, str]) -> None:
    server, url = static
    server.next_handlers = [lambda _: web.json_response({"error": "the disk is full"}, status=503)] * 9
    async with Hub(url, retries=2, backoff=0.001) as client:
        with pytest.raises(InfraError, match=r"after 3 attempts; last error: HTTP 503.*the disk is full"):
            await client.index()
    async with Hub("http://127.0.0.1:9", retries=1, backoff=0.001) as client:
        with pytest.raises(InfraError, match="after 2 attempts"):
            await client.index()


async def test_a_refusal_is_not_retried_and_its_message_omits_the_token(static: tuple[StaticServer, str]) -> None:
    server, url = static
    token = "rove_" + "a1b2" * 8
    server.next_handlers = [lambda _: web.json_response({"error": f"no {token}\x1b[31m"}, status=401)]
    async with Hub(url, token) as client:
        with pytest.raises(HubError) as caught:
            await client.me()
    assert caught.value.status == 401 and "rove hub login" in str(caught.value)
    assert token not in str(caught.value) and "\x1b" not in str(caught.value)
    assert server.requests == [("/api/me", f"Bearer {token}")]


async def test_the_token_is_not_sent_to_another_host_after_a_redirect(
    static: tuple[StaticServer, str], hub: Path
) -> None:
    server, url = static
    other_server = StaticServer(hub)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", other_server.answer)
    async with TestServer(app) as test_server:
        other_url = test_server.make_url("/index.json")

        async def redirect(request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(other_url)

        server.next_handlers = [redirect]
        async with Hub(url, "rove_secret") as client:
            await client.index()
    assert server.requests[0][1] == "Bearer rove_secret"
    assert other_server.requests == [("/index.json", None)]


async def test_a_response_over_the_size_limit_is_rejected(
    static: tuple[StaticServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = static
    server.next_handlers = [lambda _: web.Response(body=b" " * (8 << 20))]
    async with Hub(url) as client:
        with pytest.raises(HubError, match="has more than 4,194,304 bytes"):
            await client.releases(DOUBLING)


async def test_search_tries_the_api_before_the_index(static: tuple[StaticServer, str]) -> None:
    server, url = static
    row = {"owner": "bob", "name": "tripling", "version": "1.0"}

    def search_response(request: web.Request) -> web.Response:
        assert dict(request.query) == {"q": "triple it", "tag": "math", "limit": "7", "offset": "0"}
        return web.json_response({"environments": [row], "total": 9})

    async with Hub(url) as client:
        server.next_handlers = [search_response]
        page, total = await client.search("triple it", tag="math", limit=7)
        assert ([listed.reference for listed in page], total) == (["bob/tripling"], 9)
        assert [path for path, _ in server.requests] == ["/api/search"]
        server.next_handlers = [lambda _: web.Response(text="<html>", status=403)]
        page, _ = await client.search("doubling")
        assert [listed.reference for listed in page] == ["alice/doubling"]
        assert [path for path, _ in server.requests[1:]] == ["/api/search", "/index.json"]
        server.next_handlers = [lambda _: web.json_response({"error": "no such token"}, status=401)]
        with pytest.raises(HubError, match="no such token"):
            await client.search("x")


async def test_an_upload_whose_response_was_lost_counts_as_successful(
    static: tuple[StaticServer, str], hub: Path
) -> None:
    server, url = static
    folder = hub / "alice/doubling/1.0"
    parts = {"manifest": folder / "manifest.json", "wheel": next(folder.glob("*.whl"))}
    sizes: list[dict[str, int]] = []

    async def accept(request: web.Request) -> web.StreamResponse:
        sizes.append({name: len(field.file.read()) for name, field in (await request.post()).items()})  # pyright: ignore[reportAttributeAccessIssue]
        return web.json_response({}, status=201)

    async def accept_without_response(request: web.Request) -> web.StreamResponse:
        await accept(request)
        return web.Response(status=502)

    conflict = lambda _: web.json_response({"error": "1.0 exists"}, status=409)  # noqa: E731
    async with Hub(url, backoff=0.001) as client:
        server.next_handlers = [accept]
        assert await client.upload(DOUBLING, parts)
        assert sizes == [{name: path.stat().st_size for name, path in parts.items()}]
        server.next_handlers = [accept_without_response, conflict]
        assert not await client.upload(DOUBLING, parts)
        tamper(folder / "manifest.json", b"doubling of alice", b"doubling of Alice")
        server.next_handlers = [conflict]
        with pytest.raises(HubError, match=r"1\.0 exists"):
            await client.upload(DOUBLING, parts)
        confusable = lambda _: web.json_response({"error": "can be confused with alice/doubling"}, status=409)  # noqa: E731
        server.next_handlers = [confusable]
        with pytest.raises(HubError, match="can be confused with alice/doubling"):
            await client.upload(DOUBLING._replace(name="doub-ling"), parts)


async def test_an_empty_token_overrides_the_saved_one(
    static: tuple[StaticServer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = static
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    save_hub(url, "rove_revoked")
    for token, header in ((None, "Bearer rove_revoked"), ("", None)):
        async with Hub(url, token) as client:
            await client.index()
        assert server.requests[-1][1] == header


async def test_a_folder_supports_no_requests_that_need_a_server(hub: Path) -> None:
    async with Hub(str(hub)) as client:
        for call in (client.me(), client.yank(DOUBLING, "wrong"), client.push_run(DOUBLING, {})):
            with pytest.raises(HubError, match="rove hub serve"):
                await call
    rewrite_indexes(hub)
