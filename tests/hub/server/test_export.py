"""Exporting a hub to plain files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hubs import add_example_packages, running_hub

from rove.core.errors import ConfigError, PackageError
from rove.hub.server.export import export
from rove.hub.server.store import Store


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "hub")
    add_example_packages(store, ["key"])
    yield store
    store.close()


def test_public_versions_are_exported_and_private_ones_are_not(store: Store, tmp_path: Path):
    result = export(store, tmp_path / "site", "test")
    assert (result.environments, result.versions) == (2, 3)
    assert not [path for path in (tmp_path / "site").rglob("*") if "secret" in path.name]


async def test_each_exported_file_equals_the_servers_response(store: Store, tmp_path: Path):
    export(store, tmp_path / "site", "test")
    count = 0
    async with running_hub(tmp_path / "hub") as asking:
        for file in sorted((tmp_path / "site").rglob("*")):
            path = f"/{file.relative_to(tmp_path / 'site')}"
            if not file.is_file():
                continue
            headers = {}
            if "/simple/" in path:
                headers["Accept"] = "text/html" if file.suffix == ".html" else "application/vnd.pypi.simple.v1+json"
                path = path.removesuffix(file.name)
            path = path.removesuffix("index.html")
            response = await asking.request("GET", path, headers=headers)
            served, written = response.body, file.read_bytes()
            if file.suffix == ".html":  # A browser opens no index page of a local folder, so exported links name it.
                written = written.replace(b'index.html"', b'"').replace(b"index.html?", b"?")
            if path == "/index.json":
                served, written = msgspec.json.decode(served), msgspec.json.decode(written)
                assert (served.pop("search"), written.pop("search")) == ("/api/search", None)
            assert (response.status, served) == (200, written), path
            count += 1
    assert count > 20


def test_export_replaces_only_a_previous_export(store: Store, tmp_path: Path):
    site = tmp_path / "site"
    export(store, site)
    (site / "acme/gone").mkdir()
    export(store, site)
    assert not (site / "acme/gone").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter.txt").write_text("dear")
    for folder in (tmp_path / "home", store.folder, store.folder / "files", tmp_path):
        with pytest.raises(ConfigError):
            export(store, folder)
    assert (tmp_path / "home/letter.txt").read_text() == "dear"


def test_a_modified_file_is_not_exported_and_the_previous_export_stays(store: Store, tmp_path: Path):
    export(store, tmp_path / "site")
    (store.files / "zeta/chess/1.0/chess-1.0.tar.gz").write_bytes(b"other")
    with pytest.raises(PackageError, match="was modified after its upload"):
        export(store, tmp_path / "site")
    assert (tmp_path / "site/zeta/chess/1.0/manifest.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "made", "site"]
