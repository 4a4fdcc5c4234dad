"""rove.lock: what is written is read, what is not a lock file is refused, what differs is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.errors import ConfigError, TrustError
from rove.hub.client.hub import HubFile
from rove.hub.client.installing import Locked, check_locked, read_lock, write_lock
from rove.hub.package.names import RESERVED

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


@given(st.lists(locked, max_size=4, unique_by=lambda one: (one.owner, one.name)))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[Locked]) -> None:
    file = tmp_path_factory.mktemp("lock") / "rove.lock"
    write_lock(file, rows)
    first = file.read_bytes()
    assert read_lock(file) == {(one.owner, one.name): one for one in rows}
    write_lock(file, reversed(rows))
    assert file.read_bytes() == first


def test_no_file_holds_nothing(tmp_path: Path) -> None:
    assert read_lock(tmp_path / "rove.lock") == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
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
def test_what_is_no_lock_file_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "rove.lock"
    write_lock(file, [DOUBLING])
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=r"rove\.lock") as caught:
        read_lock(file)
    assert said in str(caught.value)


def test_what_differs_is_named() -> None:
    file = Path("rove.lock")
    check_locked(DOUBLING, DOUBLING.manifest, [WHEEL], file)
    other = HubFile(filename=WHEEL.filename, sha256="ef" * 32, size=900)
    with pytest.raises(TrustError, match=r"alice/doubling@1\.0 does not match rove\.lock: its manifest differs"):
        check_locked(DOUBLING, "00" * 32, [WHEEL], file)
    with pytest.raises(TrustError, match=r"does not match .*: doubling-1\.0-py3-none-any\.whl differs"):
        check_locked(DOUBLING, DOUBLING.manifest, [other], file)
    with pytest.raises(TrustError, match=r"its manifest, doubling-1\.0-py3-none-any\.whl differ\."):
        check_locked(DOUBLING, "00" * 32, [], file)
