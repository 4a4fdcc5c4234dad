"""The hub over HTTP: responses to installers and to rove, and access control."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from hubs import HubClient, add, hub_contents, package_parts, running_hub

from rove.hub.server import app, catalogue
from rove.hub.server.store import Store

JSON = "application/vnd.pypi.simple.v1+json"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[HubClient]:
    async with running_hub(tmp_path / "hub") as asking:
        yield asking


async def test_an_uploaded_package_is_public(client: HubClient, tmp_path: Path):
    parts = package_parts(tmp_path / "p")
    upload = await client.upload("acme/my-sums/1.0", parts)
    assert upload.status == 201, upload.text
    [card] = (await client.get("/index.json"))["environments"]
    assert (card["owner"], card["name"], card["version"], card["description"]) == ("acme", "my-sums", "1.0", "Sums")
    [version] = (await client.get("/acme/my-sums/index.json"))["versions"]
    assert (version["version"], version["yanked"]) == ("1.0", None)
    for file in version["files"]:
        kind = "wheel" if file["filename"].endswith(".whl") else "source"
        response = await client.request("GET", f"/acme/my-sums/1.0/{file['filename']}")
        assert (response.body, file["size"]) == (parts[kind], len(parts[kind]))
        assert "immutable" in response.headers["Cache-Control"]
    for filename, part in (("manifest.json", "manifest"), ("README.md", "readme")):
        response = await client.request("GET", f"/acme/my-sums/1.0/{filename}")
        assert response.body == parts[part]
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_readme_is_taken_from_the_wheel_if_none_is_uploaded(client: HubClient, tmp_path: Path):
    parts = package_parts(tmp_path / "p")
    del parts["readme"], parts["source"]
    manifest = msgspec.json.decode(parts["manifest"])
    manifest["files"] = [file for file in manifest["files"] if file["kind"] == "wheel"]
    parts["manifest"] = msgspec.json.encode(manifest, order="sorted") + b"\n"
    upload = await client.upload("acme/my-sums/1.0", parts)
    assert upload.status == 201, upload.text
    readme = await client.request("GET", "/acme/my-sums/1.0/README.md")
    assert readme.text.startswith("# Sums")


async def test_a_version_is_immutable_and_can_be_yanked_and_restored(client: HubClient, tmp_path: Path):
    parts = package_parts(tmp_path / "p")
    assert (await client.upload("acme/my-sums/1.0", parts)).status == 201
    second_reply = await client.upload("acme/my-sums/1.0", parts)
    assert (second_reply.status, "cannot be changed" in second_reply.error) == (409, True)
    yank = "/api/environments/acme/my-sums/1.0/yank"
    assert (await client.request("POST", yank, "acme", json={"reason": "wrong rewards"})).status == 200
    assert (await client.get("/acme/my-sums/index.json"))["versions"][0]["yanked"] == "wrong rewards"
    page = (await client.request("GET", "/acme/simple/my-sums/")).text
    assert 'data-yanked="wrong rewards"' in page
    assert (await client.request("DELETE", yank, "acme")).status == 200
    assert "data-yanked" not in (await client.request("GET", "/acme/simple/my-sums/")).text
    absent = await client.request("POST", "/api/environments/acme/my-sums/2.0/yank", "acme", json={"reason": ""})
    assert absent.status == 404


async def test_the_simple_index_negotiates_html_or_json(client: HubClient, tmp_path: Path):
    await client.upload("acme/my-sums/1.0", package_parts(tmp_path / "p"))
    page = await client.request("GET", "/acme/simple/my-sums/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert 'data-requires-python="&gt;=3.11"' in page.text
    accept_json = {"Accept": f"{JSON}, text/html;q=0.5"}
    response = await client.request("GET", "/acme/simple/my-sums/", headers=accept_json)
    assert response.headers["Content-Type"] == JSON
    document = msgspec.json.decode(response.body)
    assert [file["filename"] for file in document["files"]] == ["my_sums-1.0-py3-none-any.whl", "my_sums-1.0.tar.gz"]
    assert document["versions"] == ["1.0"]
    names = msgspec.json.decode((await client.request("GET", "/acme/simple/", headers=accept_json)).body)
    assert names["projects"] == [{"name": "my-sums"}]
    assert (await client.request("GET", "/acme/simple/my-sums/", headers={"Accept": "image/png"})).status == 406
    moved = await client.request("GET", "/acme/simple/My.Sums/")
    assert (moved.status, moved.headers["Location"]) == (301, "../my-sums/")
    for path in ("/acme/simple", "/acme/simple/my-sums"):
        moved = await client.request("GET", path)
        assert (moved.status, moved.headers["Location"]) == (301, path.rpartition("/")[2] + "/")
    second_reply = await client.request("GET", "/acme/simple/my-sums/", headers={"If-None-Match": page.headers["ETag"]})
    assert (second_reply.status, second_reply.body) == (304, b"")


async def test_private_packages_look_absent_without_a_reading_token(client: HubClient, tmp_path: Path):
    visibility = "/api/environments/acme/my-sums"
    assert (await client.request("PUT", visibility, "acme", json={"visibility": "private"})).status == 200
    await client.upload("acme/my-sums/1.0", package_parts(tmp_path / "p"))
    await client.request("POST", f"{visibility}/1.0/runs", "acme", json={"model": "tiny", "summary": {}})
    [run] = (await client.get("/acme/my-sums/1.0/runs/index.json", "acme"))["runs"]
    paths = ["/acme/my-sums/index.json", "/acme/simple/my-sums/", "/acme/simple/", "/acme/my-sums/1.0/runs/index.json"]
    paths += [f"/acme/my-sums/1.0/{name}" for name in ("manifest.json", "README.md", "my_sums-1.0-py3-none-any.whl")]
    paths += [f"/acme/my-sums/1.0/runs/{run['id']}.json"]
    absent_paths = {
        path: path.replace("my-sums", "no-sums").replace("/acme/simple/", "/nobody/simple/") for path in paths
    }
    for token in (None, "zeta", "zeta-admin"):
        assert (await client.get("/index.json", token))["environments"] == []
        assert (await client.get("/api/search?q=sums", token)) == {"environments": [], "total": 0}
        for path in paths:
            hidden, absent = (
                await client.request("GET", path, token),
                await client.request("GET", absent_paths[path], token),
            )
            assert hidden.status == absent.status == 404
            ignored_headers = {"Date": "", "Content-Length": ""}
            assert {**hidden.headers, **ignored_headers} == {**absent.headers, **ignored_headers}
            hidden_text = hidden.text.replace("my-sums", "no-sums").replace("acme", "")
            assert hidden_text == absent.text.replace("nobody", "").replace("acme", "")
    for token in ("acme", "acme-admin"):
        assert (await client.get("/api/search?q=sums", token))["total"] == 1
        for path in paths:
            reply = await client.request("GET", path, token)
            assert reply.status == 200
            assert reply.headers["Cache-Control"].startswith("private")
    user = base64.b64encode(f"__token__:{client.tokens['acme']}".encode()).decode()
    assert (
        await client.request("GET", "/acme/simple/my-sums/", headers={"Authorization": f"Basic {user}"})
    ).status == 200
    public = {"visibility": "public"}
    assert (await client.request("PUT", visibility, "acme", json=public)).status == 403  # The token may only upload.
    assert (await client.request("PUT", visibility, "acme-admin", json=public)).status == 200
    assert (await client.get("/index.json"))["environments"][0]["name"] == "my-sums"


async def test_search_by_words_tag_owner_and_compatibility(tmp_path: Path):
    store = Store(tmp_path / "hub")
    for owner in ("acme", "zeta"):
        store.add_owner(owner)
    add(store, "acme", "chess", description="A game of kings: ÄRGER", tags=["game"])
    add(store, "acme", "go", description="Stones", tags=["game", "board"])
    add(store, "zeta", "sums", description="No game at all", compatibility="verifiers v0")
    store.add_downloads({("acme", "go"): 5})
    store.close()
    async with running_hub(tmp_path / "hub") as asking:

        async def search_names(query: str) -> list[str]:
            return [card["name"] for card in (await asking.get(f"/api/search?{query}"))["environments"]]

        assert await search_names("") == ["go", "chess", "sums"]
        assert await search_names("q=GAME") == ["go", "chess", "sums"]
        assert await search_names("q=chess+game") == ["chess"]
        assert await search_names("q=%C3%A4rger") == ["chess"]
        assert await search_names("q=%25") == await search_names("q=_") == []
        assert await search_names("tag=board") == ["go"]
        assert await search_names("owner=zeta") == await search_names("compatibility=verifiers+v0") == ["sums"]
        assert await search_names("limit=1&offset=1") == ["chess"]
        assert (await asking.get("/api/search?tag=game&limit=1"))["total"] == 2
        for invalid in ("limit=x", "limit=-1", "limit=1001", "offset=99999999999999999999", "q=" + "a+" * 30):
            assert (await asking.request("GET", f"/api/search?{invalid}")).status == 400


@pytest.mark.broad
async def test_equal_results_are_stored_once(client: HubClient, tmp_path: Path):
    await client.upload("acme/my-sums/1.0", package_parts(tmp_path / "p"))
    runs = "/api/environments/acme/my-sums/1.0/runs"
    result = {"model": "tiny", "summary": {"reward": 0.5}, "examples": [{"reward": 1}], "sha": "0" * 64}
    first, second = [await client.request("POST", runs, "acme", json=result) for _ in range(2)]
    assert (first.status, first.body) == (201, second.body)
    [listed] = (await client.get("/acme/my-sums/1.0/runs/index.json"))["runs"]
    assert (listed["model"], listed["summary"]) == ("tiny", {"reward": 0.5})
    assert await client.get(f"/acme/my-sums/1.0/runs/{listed['id']}.json") == result


@pytest.mark.broad
async def test_head_and_range_requests_of_a_wheel(client: HubClient, tmp_path: Path):
    await client.upload("acme/my-sums/1.0", package_parts(tmp_path / "p"))
    wheel = "/acme/my-sums/1.0/my_sums-1.0-py3-none-any.whl"
    for _ in range(3):
        await client.request("GET", wheel)
    await client.request("HEAD", wheel)
    part = await client.request("GET", wheel, headers={"Range": "bytes=0-9"})
    assert (part.status, len(part.body)) == (206, 10)
    await client.request("GET", "/acme/my-sums/1.0/manifest.json")


@pytest.mark.broad
async def test_download_counts_survive_a_restart(tmp_path: Path):
    async with running_hub(tmp_path / "hub") as asking:
        await asking.upload("acme/my-sums/1.0", package_parts(tmp_path / "p"))
        for _ in range(3):
            await asking.request("GET", "/acme/my-sums/1.0/my_sums-1.0.tar.gz")
    async with running_hub(tmp_path / "hub") as asking:
        assert (await asking.get("/index.json"))["environments"][0]["downloads"] == 3


async def test_download_counts_that_could_not_be_saved_are_saved_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    counted: list[int] = []
    count, loop, done = Store.add_downloads, asyncio.get_running_loop(), asyncio.Event()

    def failing(store: Store, downloads: Counter[tuple[str, str]]) -> None:
        counted.append(downloads.total())
        if len(counted) == 1:
            raise sqlite3.OperationalError("database or disk is full")
        count(store, downloads)
        loop.call_soon_threadsafe(done.set)

    monkeypatch.setattr(Store, "add_downloads", failing)
    monkeypatch.setattr(app, "FLUSH_INTERVAL_S", 0.02)
    async with running_hub(tmp_path / "hub") as asking:
        await asking.upload("acme/my-sums/1.0", package_parts(tmp_path / "p"))
        await asking.request("GET", "/acme/my-sums/1.0/my_sums-1.0.tar.gz")
        await done.wait()
    async with running_hub(tmp_path / "hub") as asking:
        assert (await asking.get("/index.json"))["environments"][0]["downloads"] == 1


async def test_uploads_are_closed_even_if_saving_download_counts_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(store: Store, downloads: object) -> None:
        raise RuntimeError("count")

    closed: list[bool] = []
    monkeypatch.setattr(Store, "add_downloads", broken)
    monkeypatch.setattr(app.Uploads, "close", recording_close(closed, app.Uploads.close))
    with pytest.raises(RuntimeError, match="count"):
        async with running_hub(tmp_path / "hub") as asking:
            await asking.upload("acme/my-sums/1.0", package_parts(tmp_path / "p"))
            await asking.request("GET", "/acme/my-sums/1.0/my_sums-1.0.tar.gz")
    assert closed == [True]


def recording_close(closed: list[bool], close: Callable[[app.Uploads], Awaitable[None]]) -> object:
    async def close_and_record(uploads: app.Uploads) -> None:
        await close(uploads)
        closed.append(True)

    return close_and_record


async def test_the_api_returns_owner_and_scopes_of_a_token(client: HubClient):
    assert await client.get("/api/me", "acme") == {"owner": "acme", "scopes": ["read", "upload:acme/*"]}
    assert (await client.request("GET", "/api/me")).status == 401


async def test_unknown_projects_redirect_to_the_fallback_unless_private_ones_exist(tmp_path: Path):
    async with running_hub(tmp_path / "hub", fallback="https://index.example/simple/") as asking:
        moved = await asking.request("GET", "/acme/simple/msgspec/")
        assert (moved.status, moved.headers["Location"]) == (302, "https://index.example/simple/msgspec/")
        await asking.request("PUT", "/api/environments/acme/secret", "acme", json={"visibility": "private"})
        assert (await asking.request("GET", "/acme/simple/secret/")).status == 404
        assert (
            await asking.request("GET", "/acme/simple/msgspec/")
        ).status == 404  # The same response as for the private project.
        assert (await asking.request("GET", "/acme/simple/msgspec/", "acme")).status == 302
        assert (await asking.request("GET", "/zeta/simple/msgspec/")).status == 302


@pytest.mark.slow
async def test_fifty_uploads_and_five_hundred_downloads_run_concurrently(tmp_path: Path):
    """No request fails and no file is incomplete under concurrent load."""
    async with running_hub(tmp_path / "hub") as asking:
        packages = {f"sums-{i}": package_parts(tmp_path / f"p{i}", f"sums-{i}") for i in range(60)}
        for name in list(packages)[:10]:
            assert (await asking.upload(f"acme/{name}/1.0", packages[name])).status == 201

        async def upload(name: str) -> int:
            return (await asking.upload(f"acme/{name}/1.0", packages[name])).status

        async def download(i: int) -> bool:
            name = list(packages)[i % 10]
            kind, end = (("wheel", "-py3-none-any.whl"), ("source", ".tar.gz"))[i % 2]
            response = await asking.request("GET", f"/acme/{name}/1.0/{name.replace('-', '_')}-1.0{end}")
            return response.status == 200 and response.body == packages[name][kind]

        uploads = [upload(name) for name in list(packages)[10:]]
        (*statuses,) = await asyncio.gather(*uploads, *(download(i) for i in range(500)))
        assert statuses == [201] * 50 + [True] * 500
        assert len((await asking.get("/index.json"))["environments"]) == 60
    store = Store(tmp_path / "hub")
    try:
        assert store.recover() == []
        for name, parts in packages.items():
            for file in catalogue.environment(store, "acme", name)["versions"][0]["files"]:
                path = store.files / "acme" / name / "1.0" / file["filename"]
                assert path.read_bytes() in (parts["wheel"], parts["source"])
    finally:
        store.close()
    assert [path for path in hub_contents(tmp_path / "hub") if path.startswith("drafts/")] == []
