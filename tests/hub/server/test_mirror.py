"""Mirroring the public packages of another hub with their hashes, signatures and owners."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hubs import add, fill, hub, listing, package
from packages import put_package

from rove.core.errors import ConfigError
from rove.hub.client.hub import Hub
from rove.hub.package.signing import load_key, make_key, sign
from rove.hub.server import catalogue
from rove.hub.server.export import export
from rove.hub.server.mirror import Mirror, MirrorResult
from rove.hub.server.store import Store
from rove.hub.server.tokens import make_token


@pytest.fixture
def there(tmp_path: Path):
    store = Store(tmp_path / "there")
    fill(store)
    yield store
    store.close()


@pytest.fixture
def here(tmp_path: Path):
    store = Store(tmp_path / "here")
    store.recover()
    yield store
    store.close()


async def run_mirror(source: str | Path, store: Store, *owners: str) -> MirrorResult:
    async with Hub(str(source), retries=0) as client:
        return await Mirror(client, store).run(owners)


def catalogue_of(store: Store) -> list[object]:
    cards = catalogue.listing(store, "")["environments"]
    names = [(card["owner"], card["name"]) for card in cards]
    runs = catalogue.runs(store, "acme", "my-sums", "1.1")["runs"]
    return [*(catalogue.environment(store, *place) for place in names), [{**run, "uploaded": ""} for run in runs]]


async def test_public_versions_are_mirrored_and_later_only_new_ones(there: Store, here: Store):
    async with hub(there.folder) as asking:
        assert await run_mirror(asking.url, here) == MirrorResult(3, 0, [])
        assert catalogue_of(here) == catalogue_of(there)
        before = listing(here.folder)
        assert await run_mirror(asking.url, here) == MirrorResult(0, 3, [])
        assert listing(here.folder) == before
        add(there, version="1.2")
        there.yank("acme", "my-sums", "1.0", None)
        assert await run_mirror(asking.url, here) == MirrorResult(1, 3, [])
        assert catalogue_of(here) == catalogue_of(there)
    assert not list(here.drafts.iterdir())


async def test_an_exported_hub_can_be_mirrored(there: Store, here: Store, tmp_path: Path):
    export(there, tmp_path / "site")
    assert await run_mirror(tmp_path / "site", here, "zeta") == MirrorResult(1, 0, [])
    assert [card["name"] for card in catalogue.listing(here, "")["environments"]] == ["chess"]


@pytest.mark.parametrize("file", ["my_sums-1.1.tar.gz", "my_sums-1.1-py3-none-any.whl", "manifest.json"])
async def test_modified_files_are_not_mirrored(there: Store, here: Store, tmp_path: Path, file: str):
    export(there, tmp_path / "site")
    target = tmp_path / "site/acme/my-sums/1.1" / file
    content = target.read_bytes()
    target.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    result = await run_mirror(tmp_path / "site", here)
    assert (result.new, len(result.problems)) == (2, 1) and "acme/my-sums@1.1" in result.problems[0]
    assert not list(here.drafts.iterdir())


async def test_a_conflicting_version_is_reported_and_the_local_one_kept(there: Store, here: Store, tmp_path: Path):
    await run_mirror(_export_site(there, tmp_path), here)
    site = tmp_path / "site"
    manifest = put_package(tmp_path / "other", version="1.1", description="Other")
    index = msgspec.json.decode((site / "acme/my-sums/index.json").read_bytes())
    index["versions"][1]["manifest"] = hashlib.sha256((tmp_path / "other/manifest.json").read_bytes()).hexdigest()
    (site / "acme/my-sums/index.json").write_bytes(msgspec.json.encode(index))
    before = listing(here.folder)
    result = await run_mirror(site, here)
    assert "a different version with this number" in result.problems[0] and manifest.description == "Other"
    assert listing(here.folder) == before


def _export_site(store: Store, place: Path) -> Path:
    export(store, place / "site")
    return place / "site"


@pytest.mark.broad
async def test_signatures_are_mirrored_and_changed_keys_are_not_accepted(there: Store, here: Store, tmp_path: Path):
    public = make_key(tmp_path / "key")
    there.add_owner("acme", [public])
    parts = package(tmp_path / "p", version="2.0")
    async with hub(there.folder) as asking:
        signed_parts = {**parts, "signature": sign(parts["manifest"], load_key(tmp_path / "key"))}
        assert (await asking.upload("acme/my-sums/2.0", signed_parts)).status == 201
        result = await run_mirror(asking.url, here)
        # 1.0 and 1.1 are unsigned, but acme's packages must be signed here.
        assert result.new == 2 and len(result.problems) == 2
        assert catalogue.keys(here, "acme") == [public]
        file = catalogue.find_file(here, "acme", "my-sums", "2.0", "manifest.sig")
        assert file.path.read_bytes() == signed_parts["signature"]
        there.add_owner("acme", [make_key(tmp_path / "new")])
        result = await run_mirror(asking.url, here)
        assert "'acme' has different keys" in result.problems[0]
        assert catalogue.keys(here, "acme") == [public]


async def test_an_owner_is_either_local_or_mirrored(there: Store, here: Store, tmp_path: Path):
    here.add_owner("acme")
    result = await run_mirror(_export_site(there, tmp_path), here)
    assert result.new == 1 and "'acme' is an owner of this hub; environments" in result.problems[0]
    with pytest.raises(ConfigError, match="'zeta' is mirrored from"):
        make_token(here.database, "zeta")
    with pytest.raises(ConfigError, match="'zeta' is mirrored from"):
        make_token(here.database, "acme", ["upload:zeta/*"])


def test_a_hub_cannot_be_mirrored_into_itself(here: Store):
    with pytest.raises(ConfigError, match="this hub's data folder"):
        Mirror(Hub(str(here.folder)), here)
