"""A hub with a fallback index refuses new packages whose name that index has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from hubs import package_parts, running_hub

from rove.server import base_url_of, listening

PUBLIC = ("left-pad", "public-sums", "allowed")


@asynccontextmanager
async def public_index(requested_names: list[str]) -> AsyncIterator[str]:
    """Serve a simple index with the projects of `PUBLIC`; one is broken."""

    async def project(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        requested_names.append(name)
        return web.Response(status=500 if name == "broken" else 200 if name in PUBLIC else 404)

    app = web.Application()
    app.router.add_get("/simple/{name}/", project)
    async with listening(app) as runner:
        yield base_url_of(runner).removesuffix("/v1") + "/simple/"


async def test_a_name_of_the_public_index_is_refused(tmp_path: Path):
    requested_names: list[str] = []
    async with (
        public_index(requested_names) as index,
        running_hub(tmp_path / "hub", fallback=index, allow_shadow=["allowed"]) as asking,
    ):
        for name, status in (("left-pad", 409), ("my-sums", 201), ("allowed", 201), ("broken", 503)):
            answer = await asking.upload(f"acme/{name}/1.0", package_parts(tmp_path / name, name))
            assert (name, answer.status) == (name, status)
            if status == 409:
                assert "has a project 'left-pad', which this package would replace" in answer.text
                assert "ask the hub's operator for --allow-shadow left-pad" in answer.text
        assert requested_names == ["left-pad", "my-sums", "broken"]
        assert (await asking.request("GET", "/acme/simple/left-pad/")).status == 302


async def test_versions_of_a_published_package_and_private_names_are_not_looked_up(tmp_path: Path):
    requested_names: list[str] = []
    async with (
        public_index(requested_names) as index,
        running_hub(tmp_path / "hub", fallback=index, allow_shadow=["public-sums"]) as asking,
    ):
        await asking.request("PUT", "/api/environments/acme/secret", "acme-admin", json={"visibility": "private"})
        versions = (("secret", "1.0"), ("public-sums", "1.0"), ("my-sums", "1.0"), ("my-sums", "1.1"))
        for name, version in versions:
            parts = package_parts(tmp_path / f"{name}-{version}", name, version)
            assert (await asking.upload(f"acme/{name}/{version}", parts, "acme-admin")).status == 201
        assert requested_names == ["my-sums"]


async def test_a_fallback_that_cannot_be_asked_refuses_new_names(tmp_path: Path):
    async with running_hub(tmp_path / "hub", fallback="http://127.0.0.1:9/simple/") as asking:
        answer = await asking.upload("acme/my-sums/1.0", package_parts(tmp_path / "a"))
        assert answer.status == 503
        assert "cannot be asked whether it has a project 'my-sums'" in answer.text
