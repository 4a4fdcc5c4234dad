"""Reading hubs: a folder and the same behind HTTP, which fails, lies and stops in the middle."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hubs import code, list_again, publish, tampered

from rove.core.errors import ConfigError, HubError, InfraError, TrustError
from rove.hub.client.hub import Hub, HubFile, check_filename
from rove.hub.client.settings import keep
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


class Static:
    """A web server of a hub's folder that may be told to do otherwise with the next requests."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.asked: list[tuple[str, str | None]] = []
        self.otherwise: list[Callable[[web.Request], Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, request.headers.get("Authorization")))
        if self.otherwise:
            answer = self.otherwise.pop(0)(request)
            return await answer if not isinstance(answer, web.StreamResponse) else answer
        file = self.folder / request.path.lstrip("/")
        return web.FileResponse(file) if file.is_file() else web.Response(status=404)


@pytest.fixture
async def static(hub: Path) -> AsyncIterator[tuple[Static, str]]:
    server = Static(hub)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    async with TestServer(app) as listening:
        yield server, str(listening.make_url("")).rstrip("/")


def wheels(folder: Path) -> list[Path]:
    return list(folder.glob("*.whl"))


@pytest.fixture(params=["folder", "web"])
def where(request: pytest.FixtureRequest, hub: Path, static: tuple[Static, str]) -> str:
    return str(hub) if request.param == "folder" else static[1]


async def test_a_folder_and_a_web_server_are_read_alike(where: str, hub: Path, tmp_path: Path) -> None:
    async with Hub(where) as one:
        assert [listed.reference for listed in (await one.index()).environments] == ["alice/doubling", "bob/tripling"]
        releases = await one.releases(DOUBLING)
        release = releases.choose(None)
        assert release.version == "1.0"
        content = await one.manifest(DOUBLING, release.manifest)
        assert content == (hub / "alice/doubling/1.0/manifest.json").read_bytes()
        assert await one.signature(DOUBLING) is None and await one.readme(DOUBLING) is None
        assert await one.results(DOUBLING) == []
        [file] = release.files
        wheel = await one.download(DOUBLING, file, tmp_path)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == file.sha256


async def test_search_without_an_api_reads_the_index(where: str) -> None:
    async with Hub(where) as one:
        asked = [{}, {"words": "tripling OF"}, {"tag": "math"}, {"owner": "bob"}, {"compatibility": "verifiers v0"}]
        found = [[listed.owner for listed in (await one.search(**words))[0]] for words in asked]
        assert found == [["alice", "bob"], ["bob"], ["alice"], ["bob"], ["bob"]]
        some, total = await one.search(limit=1, offset=1)
        assert ([listed.owner for listed in some], total) == (["bob"], 2)
        assert await one.search("nothing has this") == ([], 0)


async def test_what_is_not_there_is_said(where: str, tmp_path: Path) -> None:
    async with Hub(where) as one:
        with pytest.raises(HubError, match=r"no environment alice/else.*rove search else"):
            await one.releases(Reference("alice", "else"))
        with pytest.raises(HubError, match=r"no version 2\.0; the hub has 1\.0"):
            (await one.releases(DOUBLING)).choose("2.0")
        with pytest.raises(NotFoundError):
            await one.download(DOUBLING, HubFile(filename="else.whl", sha256="0" * 64, size=1), tmp_path)
    assert not wheels(tmp_path)
    async with Hub(str(tmp_path)) as one:
        with pytest.raises(HubError, match="expected a hub"):
            await one.index()
    with pytest.raises(ConfigError, match="not an existing folder"):
        async with Hub(str(tmp_path / "nowhere")) as one:
            await one.index()


async def test_a_changed_file_is_noticed_while_it_comes(where: str, hub: Path, tmp_path: Path) -> None:
    folder = hub / "alice/doubling/1.0"
    async with Hub(where) as one:
        release = (await one.releases(DOUBLING)).choose(None)
        [file] = release.files
        tampered(folder / "manifest.json", b"doubling of alice", b"doubling of Alice")
        with pytest.raises(TrustError, match=r"the manifest of alice/doubling@1\.0 does not match the hub's index"):
            await one.manifest(DOUBLING, release.manifest)
        wheel = folder / file.filename
        wheel.write_bytes(wheel.read_bytes()[:-1] + b"!")
        with pytest.raises(TrustError, match="doubling-1.0-py3-none-any.whl does not match"):
            await one.download(DOUBLING, file, tmp_path)
        wheel.write_bytes(wheel.read_bytes() + b"!")
        with pytest.raises(TrustError, match="has more than"):
            await one.download(DOUBLING, file, tmp_path)
    assert not wheels(tmp_path)


async def test_an_index_of_something_else_is_refused(where: str, hub: Path) -> None:
    index = hub / "alice/doubling/index.json"
    whole = index.read_bytes()
    for old, new, said in [
        (b'"alice"', b'"carol"', "describes 'carol/doubling'"),
        (b'"schema":1', b'"schema":7', "has schema 7, but this version of rove reads 1"),
        (b'"versions":', b'"version5":', "not a valid hub file"),
        (b"doubling-1.0", b"../../../1.0", "not a valid name"),
        (b'"version":"1.0"', b'"version":"../"', "is not a valid version"),
    ]:
        index.write_bytes(whole.replace(old, new))
        async with Hub(where) as one:
            with pytest.raises((HubError, ConfigError), match=said):
                await one.releases(DOUBLING)


def test_names_of_files_hold_no_path() -> None:
    assert check_filename("my_sums-1.0-py3-none-any.whl")
    for name in ("", "../x.whl", "a/b.whl", ".hidden", "x\\y", "x\n", "a" * 300, "x\u202e.whl"):
        with pytest.raises(TrustError):
            check_filename(name)


async def test_the_newest_that_is_not_yanked_and_no_prerelease(hub: Path) -> None:
    for version in ("0.9", "1.1", "2.0rc1"):
        publish(hub, version=version)
    async with Hub(str(hub)) as one:
        releases = await one.releases(DOUBLING)
        assert [releases.choose(v).version for v in (None, "0.9", "2.0rc1")] == ["1.1", "0.9", "2.0rc1"]
        for release in releases.versions:
            release.yanked = "wrong" if release.version in ("1.0", "1.1", "0.9") else None
        assert releases.choose(None).version == "2.0rc1"
        assert releases.choose("1.1").yanked == "wrong"
        releases.versions[-1].yanked = "also"
        with pytest.raises(HubError, match="has only yanked versions"):
            releases.choose(None)


# over HTTP


async def _half(request: web.Request) -> web.StreamResponse:
    """Half of a file, then nothing."""
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
        [_half, _half],
    ],
    ids=["5xx", "429", "truncated"],
)
async def test_what_may_pass_is_tried_again(static: tuple[Static, str], tmp_path: Path, failures: list[Any]) -> None:
    server, url = static
    async with Hub(url, backoff=0.001) as one:
        file = (await one.releases(DOUBLING)).choose(None).files[0]
        server.otherwise = list(failures)
        wheel = await one.download(DOUBLING, file, tmp_path)
        assert wheel.stat().st_size == file.size
    assert len(server.asked) == 2 + len(failures)


async def test_tries_end_and_say_what_was_last(static: tuple[Static, str]) -> None:
    server, url = static
    server.otherwise = [lambda _: web.json_response({"error": "the disk is full"}, status=503)] * 9
    async with Hub(url, retries=2, backoff=0.001) as one:
        with pytest.raises(InfraError, match=r"after 3 attempts; last error: HTTP 503.*the disk is full"):
            await one.index()
    async with Hub("http://127.0.0.1:9", retries=1, backoff=0.001) as one:
        with pytest.raises(InfraError, match="after 2 attempts"):
            await one.index()


async def test_refusals_are_told_in_the_hubs_words_once_and_without_the_token(static: tuple[Static, str]) -> None:
    server, url = static
    token = "rove_" + "a1b2" * 8
    server.otherwise = [lambda _: web.json_response({"error": f"no {token}\x1b[31m"}, status=401)]
    async with Hub(url, token) as one:
        with pytest.raises(HubError) as caught:
            await one.me()
    assert caught.value.status == 401 and "rove hub login" in str(caught.value)
    assert token not in str(caught.value) and "\x1b" not in str(caught.value)
    assert server.asked == [("/api/me", f"Bearer {token}")]


async def test_the_token_goes_nowhere_else(static: tuple[Static, str], hub: Path) -> None:
    server, url = static
    other = Static(hub)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", other.answer)
    async with TestServer(app) as listening:
        away = listening.make_url("/index.json")

        async def redirect(request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(away)

        server.otherwise = [redirect]
        async with Hub(url, "rove_secret") as one:
            await one.index()
    assert server.asked[0][1] == "Bearer rove_secret"
    assert other.asked == [("/index.json", None)]


async def test_too_much_is_not_read(static: tuple[Static, str], monkeypatch: pytest.MonkeyPatch) -> None:
    server, url = static
    server.otherwise = [lambda _: web.Response(body=b" " * (8 << 20))]
    async with Hub(url) as one:
        with pytest.raises(HubError, match="has more than 4,194,304 bytes"):
            await one.releases(DOUBLING)


async def test_search_asks_the_api_first(static: tuple[Static, str], hub: Path) -> None:
    server, url = static
    index = (hub / "index.json").read_bytes()
    (hub / "index.json").write_bytes(index.replace(b'"search":null', b'"search":"/find"'))
    line = {"owner": "bob", "name": "tripling", "version": "1.0"}

    def found(request: web.Request) -> web.Response:
        assert dict(request.query) == {"q": "triple it", "tag": "math", "limit": "7", "offset": "0"}
        return web.json_response({"environments": [line], "total": 9})

    async with Hub(url) as one:
        server.otherwise = [found]
        await one.search("triple it", tag="math", limit=7)
        assert [path for path, _ in server.asked] == ["/api/search"]
        server.otherwise = [
            lambda _: web.Response(text="<html>", status=403),
            lambda _: web.FileResponse(hub / "index.json"),
            found,
        ]
        some, total = await one.search("triple it", tag="math", limit=7)
        assert ([listed.reference for listed in some], total) == (["bob/tripling"], 9)
        assert [path for path, _ in server.asked[1:]] == ["/api/search", "/index.json", "/find"]
        server.otherwise = [lambda _: web.json_response({"error": "no such token"}, status=401)]
        with pytest.raises(HubError, match="no such token"):
            await one.search("x")
    (hub / "index.json").write_bytes(index.replace(b'"search":null', b'"search":"//evil.example/"'))
    async with Hub(url) as one:
        with pytest.raises(HubError, match="expected a path"):
            await one.search("x")


async def test_an_upload_whose_answer_was_lost_has_succeeded(static: tuple[Static, str], hub: Path) -> None:
    server, url = static
    folder = hub / "alice/doubling/1.0"
    parts = {"manifest": folder / "manifest.json", "wheel": next(folder.glob("*.whl"))}
    seen: list[dict[str, int]] = []

    async def taken(request: web.Request) -> web.StreamResponse:
        seen.append({name: len(field.file.read()) for name, field in (await request.post()).items()})  # pyright: ignore[reportAttributeAccessIssue]
        return web.json_response({}, status=201)

    async def lost(request: web.Request) -> web.StreamResponse:
        await taken(request)
        return web.Response(status=502)

    conflict = lambda _: web.json_response({"error": "1.0 exists"}, status=409)  # noqa: E731
    async with Hub(url, backoff=0.001) as one:
        server.otherwise = [taken]
        assert await one.upload(DOUBLING, parts)
        assert seen == [{name: path.stat().st_size for name, path in parts.items()}]
        server.otherwise = [lost, conflict]
        assert not await one.upload(DOUBLING, parts)
        tampered(folder / "manifest.json", b"doubling of alice", b"doubling of Alice")
        server.otherwise = [conflict]
        with pytest.raises(HubError, match=r"1\.0 exists"):
            await one.upload(DOUBLING, parts)
        confused = lambda _: web.json_response({"error": "can be confused with alice/doubling"}, status=409)  # noqa: E731
        server.otherwise = [confused]
        with pytest.raises(HubError, match="can be confused with alice/doubling"):
            await one.upload(DOUBLING._replace(name="doub-ling"), parts)


async def test_a_kept_token_can_be_left_out(
    static: tuple[Static, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = static
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    keep(url, "rove_revoked")
    for token, shown in ((None, "Bearer rove_revoked"), ("", None)):
        async with Hub(url, token) as one:
            await one.index()
        assert server.asked[-1][1] == shown


async def test_a_folder_takes_nothing(hub: Path) -> None:
    async with Hub(str(hub)) as one:
        for call in (one.me(), one.yank(DOUBLING, "wrong"), one.push_run(DOUBLING, {})):
            with pytest.raises(HubError, match="rove hub serve"):
                await call
    list_again(hub)
