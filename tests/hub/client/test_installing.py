"""Looking up, downloading and verifying published packages, and lock files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hubs import V0_MODULE as V0_CODE
from hubs import code, publish, rewrite_indexes, tamper
from hypothesis import given
from hypothesis import strategies as st
from packages import put_wheel, wheel_files, with_record

from rove.core.errors import ConfigError, HubError, PackageError, TrustError
from rove.hub.client import installing, settings
from rove.hub.client.hub import Hub, HubFile
from rove.hub.client.installing import (
    Locked,
    Offer,
    check_compatible,
    check_locked,
    fetch,
    install,
    install_into_current,
    look_up,
    read_lock,
    write_lock,
)
from rove.hub.package.manifest import V0
from rove.hub.package.names import RESERVED, Reference, parse_reference
from rove.hub.package.signing import check_signature, load_key, make_key, public_key, sign


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    folder = tmp_path / "hub"
    folder.mkdir()
    publish(folder, reward_range=(0.0, 1.0))
    return folder


def download_wheel(
    hub: Path, name: str = "alice/doubling", locked: Locked | None = None, **options: Any
) -> tuple[Offer, Path]:
    """Look up an environment and download its wheel, as an installation does."""

    async def download() -> tuple[Offer, Path]:
        async with Hub(str(hub)) as client:
            offer = await look_up(client, parse_reference(name), locked, **options)
            work = hub.parent / "work"
            work.mkdir(exist_ok=True)
            return offer, await fetch(client, offer, work)

    return asyncio.run(download())


def test_an_offer_describes_the_published_version(hub: Path) -> None:
    offer, wheel = download_wheel(hub)
    assert offer.reference == Reference("alice", "doubling", "1.0")
    assert offer.manifest.reward_range == (0.0, 1.0) and offer.origin == str(hub)
    assert offer.sha256 == json.loads((hub / "alice/doubling/index.json").read_bytes())["versions"][0]["manifest"]
    assert wheel.read_bytes() == (hub / "alice/doubling/1.0" / wheel.name).read_bytes()
    assert offer.notes == [] and offer.key is None


def test_a_yanked_version_is_used_only_when_named_and_then_noted(hub: Path) -> None:
    publish(hub, version="1.1")
    index = hub / "alice/doubling/index.json"
    content = json.loads(index.read_bytes())
    content["versions"][1]["yanked"] = "wrong answers"
    index.write_bytes(json.dumps(content).encode())
    assert download_wheel(hub)[0].reference.version == "1.0"
    assert download_wheel(hub, "alice/doubling@1.1")[0].notes == ["this version is yanked: wrong answers"]


def _other_wheel(folder: Path) -> None:
    """Replace the wheel by one with other code and the same name."""
    put_wheel(
        folder,
        with_record(wheel_files("doubling", "1.0", {"doubling.py": code(weight=9.0)})),
        "doubling-1.0-py3-none-any.whl",
    )


def _republish(folder: Path) -> None:
    """Republish the version with other code, so that only a lock or a signature detects the change."""
    hub = folder.parents[2]
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    publish(hub, module=code(weight=9.0), reward_range=(0.0, 1.0))


def _change_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder.parent / "index.json"
    content = json.loads(file.read_bytes())
    change(content["versions"][0])
    file.write_bytes(json.dumps(content).encode())


def _index_and_wheel(folder: Path) -> None:
    _other_wheel(folder)
    wheel = next(folder.glob("*.whl")).read_bytes()
    new = {"sha256": hashlib.sha256(wheel).hexdigest(), "size": len(wheel)}
    _change_index(folder, lambda version: version["files"][0].update(new))


def _manifest_of_another(folder: Path) -> None:
    publish(folder.parents[2], name="other")
    (folder / "manifest.json").write_bytes((folder.parents[1] / "other/1.0/manifest.json").read_bytes())
    rewrite_indexes(folder.parents[2])


def _version_in_index(folder: Path) -> None:
    folder.rename(folder.with_name("2.0"))
    _change_index(folder.with_name("2.0"), lambda version: version.update(version="2.0"))


TAMPERED: list[tuple[str, Callable[[Path], Any], str]] = [
    ("wheel", _other_wheel, "doubling-1.0-py3-none-any.whl (has more|does not match)"),
    ("a byte of the wheel", lambda f: tamper(next(f.glob("*.whl")), b"PK\x05\x06", b"PK\x05\x07"), "does not match the hub"),
    ("manifest", lambda f: tamper(f / "manifest.json", b"doubling of alice", b"doubling of Alice"), "the manifest of"),
    ("hash in the index", lambda f: _change_index(f, lambda v: v.update(manifest="0" * 64)), "the manifest of alice"),
    ("file in the index", lambda f: _change_index(f, lambda v: v["files"][0].update(sha256="0" * 64)), "list different files"),
    ("size in the index", lambda f: _change_index(f, lambda v: v["files"][0].update(size=7)), "list different files"),
    ("no file in the index", lambda f: _change_index(f, lambda v: v.update(files=[])), "list different files"),
    ("wheel and index", _index_and_wheel, "list different files"),
    ("another's manifest", _manifest_of_another, "describes other 1.0"),
    ("version in the index", _version_in_index, "describes doubling 1.0"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in TAMPERED], ids=[row[0] for row in TAMPERED])
def test_tampered_packages_are_not_installed(hub: Path, change: Callable[[Path], Any], message: str) -> None:
    change(hub / "alice/doubling/1.0")
    with pytest.raises(TrustError, match=message):
        download_wheel(hub)
    assert not list((hub.parent / "work").glob("*.whl"))


@pytest.mark.parametrize("change", [row[1] for row in TAMPERED if "version" not in row[0]] + [_republish])
def test_a_lock_detects_every_change_even_a_consistent_one(hub: Path, change: Callable[[Path], Any]) -> None:
    locked = download_wheel(hub)[0].locked
    assert download_wheel(hub, locked=locked)[0].locked == locked
    for wheel in (hub.parent / "work").glob("*.whl"):
        wheel.unlink()
    change(hub / "alice/doubling/1.0")
    with pytest.raises(TrustError):
        download_wheel(hub, locked=locked)
    assert not list((hub.parent / "work").glob("*.whl"))


def test_a_lock_pins_the_version_unless_another_is_named(hub: Path) -> None:
    locked = download_wheel(hub)[0].locked
    publish(hub, version="1.1")
    assert download_wheel(hub)[0].reference.version == "1.1"
    assert download_wheel(hub, locked=locked)[0].reference.version == "1.0"
    assert download_wheel(hub, "alice/doubling@1.1", locked=locked)[0].reference.version == "1.1"


def test_a_wheel_that_contradicts_its_manifest_is_rejected(hub: Path) -> None:
    folder = hub / "alice/doubling/1.0"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["module"] = "something_else"
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest, order="sorted") + b"\n")
    rewrite_indexes(hub)
    with pytest.raises(PackageError, match="its module is 'doubling', but the manifest has 'something_else'"):
        download_wheel(hub)


# Signatures


def sign_version(folder: Path, key: Path) -> str:
    """Sign a version and return the public key."""
    private_key = load_key(key)
    (folder / "manifest.sig").write_bytes(sign((folder / "manifest.json").read_bytes(), private_key))
    return public_key(private_key)


def test_only_the_remembered_key_or_a_trusted_new_one_is_accepted(hub: Path, tmp_path: Path) -> None:
    first_key, second_key = tmp_path / "mine.key", tmp_path / "other.key"
    first, second = make_key(first_key), make_key(second_key)
    folder = hub / "alice/doubling/1.0"
    assert sign_version(folder, first_key) == first
    offer, _ = download_wheel(hub)
    assert offer.key == first and "is new and will be saved" in offer.notes[0]
    settings.remember_key(str(hub), "alice", first)
    assert download_wheel(hub)[0].notes == []
    publish(hub, version="1.1")
    with pytest.raises(TrustError, match="is not signed, but 'alice' signs"):
        download_wheel(hub)
    sign_version(hub / "alice/doubling/1.1", second_key)
    with pytest.raises(
        TrustError,
        match=r"Either the owner has a new key, or the version is not from the owner.*--trust-key "
        + second[:8].replace("+", r"\+"),
    ):
        download_wheel(hub)
    offer, _ = download_wheel(hub, trusted=second)
    assert offer.key == second
    sign_version(hub / "alice/doubling/1.1", first_key)
    assert download_wheel(hub)[0].key == first
    publish(hub, owner="bob")
    assert download_wheel(hub, "bob/doubling")[0].key is None  # The key belongs to another owner.


def test_an_installation_into_this_interpreter_remembers_the_key(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "mine.key"
    make_key(key)
    sign_version(hub / "alice/doubling/1.0", key)
    monkeypatch.setattr(installing, "run_pip", lambda *words: None)
    offer, wheel = download_wheel(hub)
    installing.install_into_current(offer, wheel)
    assert settings.known_key(str(hub), "alice") == offer.key is not None


def test_an_invalid_signature_is_rejected(hub: Path, tmp_path: Path) -> None:
    make_key(tmp_path / "mine.key")
    folder = hub / "alice/doubling/1.0"
    sign_version(folder, tmp_path / "mine.key")
    changed_manifest = json.loads((folder / "manifest.json").read_bytes()) | {"description": "better"}
    (folder / "manifest.json").write_bytes(msgspec.json.encode(changed_manifest, order="sorted") + b"\n")
    rewrite_indexes(hub)
    with pytest.raises(PackageError, match="was modified"):
        download_wheel(hub)
    (folder / "manifest.sig").write_bytes(b"{}")
    with pytest.raises(PackageError, match="cannot be parsed"):
        download_wheel(hub)


def test_without_a_remembered_key_the_hubs_keys_of_the_owner_are_required(hub: Path, tmp_path: Path) -> None:
    mine = make_key(tmp_path / "mine.key")
    other_key = make_key(tmp_path / "other.key")
    rewrite_indexes(hub, **{"alice/doubling": {"keys": [mine]}})
    with pytest.raises(TrustError, match="is not signed"):
        download_wheel(hub)
    assert sign_version(hub / "alice/doubling/1.0", tmp_path / "mine.key") == mine
    assert download_wheel(hub)[0].key == mine
    assert sign_version(hub / "alice/doubling/1.0", tmp_path / "other.key") == other_key
    with pytest.raises(TrustError, match="not one of the keys of"):
        download_wheel(hub)
    content = (hub / "alice/doubling/1.0/manifest.json").read_bytes()
    assert check_signature(content, (hub / "alice/doubling/1.0/manifest.sig").read_bytes()) == other_key


# Requirements


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"requires_python": ">=4"}, r"requires Python >=4, but this is Python 3\."),
        ({"dependencies": ["rove>=99"]}, r"requires rove>=99, but rove .*upgrade rove"),
        (
            {"dependencies": ["verifiers>=0.4"], "compatibility": V0},
            r"rove provides the API of verifiers up to 0\.3\.1",
        ),
    ],
)
def test_unmet_requirements_are_errors_before_the_download(hub: Path, fields: dict[str, Any], message: str) -> None:
    manifest = msgspec.structs.replace(download_wheel(hub)[0].manifest, **fields)
    with pytest.raises(ConfigError, match=message):
        check_compatible(manifest, "alice/doubling@1.0")


@pytest.mark.broad
def test_rove_satisfies_dependencies_on_verifiers(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = wheel_files("helper", "1.0", {"helper.py": b""}, "Requires-Dist: verifiers==0.1.5\nRequires-Dist: rove\n")
    put_wheel(tmp_path, with_record(helper), "helper-1.0-py3-none-any.whl")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    publish(hub, name="old", module=V0_CODE.encode(), dependencies=("verifiers<0.2", "helper"), compatibility=V0)
    environment = install(*download_wheel(hub, "alice/old"))
    command = "from importlib.metadata import version; print(version('verifiers'))"
    result = subprocess.run([str(environment.python), "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "0.1.5+rove"


def test_an_unknown_environment_is_an_error(hub: Path) -> None:
    with pytest.raises(HubError, match="no environment alice/doublin"):
        download_wheel(hub, "alice/doublin")


@pytest.mark.broad
def test_an_installation_does_not_replace_a_module_that_is_not_an_environment(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer, wheel = download_wheel(hub)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "doubling.py").write_text("factor = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    pip_words: list[str] = []
    monkeypatch.setattr(installing, "run_pip", lambda python, words, failed: pip_words.extend(words))
    with pytest.raises(
        ConfigError, match=r"doubling\.py, which is not an environment; install it without --into-current"
    ):
        install_into_current(offer, wheel)
    assert pip_words == []
    (tmp_path / "site" / "doubling.py").write_bytes(code())
    install_into_current(offer, wheel)
    assert str(wheel) in pip_words


WHEEL = HubFile(filename="doubling-1.0-py3-none-any.whl", sha256="ab" * 32, size=900)
DOUBLING = Locked(owner="alice", name="doubling", version="1.0", hub="http://hub", manifest="cd" * 32, files=[WHEEL])

names = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True).filter(lambda name: name not in RESERVED)
locked = st.builds(
    Locked,
    owner=names,
    name=names,
    version=st.sampled_from(["1.0", "0.1.0rc1", "2.0.post3"]),
    hub=st.text(max_size=20),
    manifest=st.binary(min_size=32, max_size=32).map(bytes.hex),
    files=st.lists(
        st.builds(HubFile, filename=st.just("a.whl"), sha256=st.just("ab" * 32), size=st.integers(1, 1 << 40)),
        max_size=2,
    ),
)


@given(st.lists(locked, max_size=4, unique_by=lambda entry: (entry.owner, entry.name)))
def test_a_lock_file_is_read_as_written_and_does_not_depend_on_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Locked]
) -> None:
    file = tmp_path_factory.mktemp("lock") / "rove.lock"
    write_lock(file, rows)
    first = file.read_bytes()
    assert read_lock(file) == {(row.owner, row.name): row for row in rows}
    write_lock(file, reversed(rows))
    assert file.read_bytes() == first


def test_a_missing_lock_file_is_empty(tmp_path: Path) -> None:
    assert read_lock(tmp_path / "rove.lock") == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "has schema 2, but this version of rove reads 1"),
        ("schema = 1", "", "has schema None"),
        ("schema = 1", "schema = ", "settings file"),
        ('version = "1.0"', 'version = "../.."', "is not a valid version"),
        ('owner = "alice"', 'owner = "../alice"', "is not a valid owner name"),
        ("doubling-1.0-py3", "../../x", "is not a valid name for a package file"),
        ("cd" * 32, "cd" * 31, "expected a SHA-256"),
        ("size = 900", 'size = "900"', "Expected `int`"),
        ("hub =", "hubs =", "unknown field `hubs`"),
    ],
)
def test_invalid_lock_files_are_rejected(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "rove.lock"
    write_lock(file, [DOUBLING])
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=r"rove\.lock") as caught:
        read_lock(file)
    assert message in str(caught.value)


def test_a_lock_mismatch_names_the_differing_files() -> None:
    file = Path("rove.lock")
    check_locked(DOUBLING, DOUBLING.manifest, [WHEEL], file)
    other_file = HubFile(filename=WHEEL.filename, sha256="ef" * 32, size=900)
    with pytest.raises(TrustError, match=r"alice/doubling@1\.0 does not match rove\.lock: its manifest differs"):
        check_locked(DOUBLING, "00" * 32, [WHEEL], file)
    with pytest.raises(TrustError, match=r"does not match .*: doubling-1\.0-py3-none-any\.whl differs"):
        check_locked(DOUBLING, DOUBLING.manifest, [other_file], file)
    with pytest.raises(TrustError, match=r"its manifest, doubling-1\.0-py3-none-any\.whl differ\."):
        check_locked(DOUBLING, "00" * 32, [], file)
