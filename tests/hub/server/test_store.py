"""The data folder: uploads are atomic, and unfinished ones are removed when the hub starts."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hubs import add, hub_contents

from rove.core.errors import ConfigError, RejectedError
from rove.hub.server import catalogue
from rove.hub.server.store import Store, read_run
from rove.hub.server.tokens import Access

ADMIN = Access("acme", ("admin",))


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "hub")
    store.recover()
    store.add_owner("acme")
    yield store
    store.close()


def test_versions_are_sorted_and_the_highest_usable_one_is_shown(store: Store):
    def shown_version() -> str:
        return catalogue.listing(store, "hub")["environments"][0]["version"]

    for version in ("1.10", "2.0rc1", "1.9"):
        add(store, version=version)
    assert [v["version"] for v in catalogue.environment(store, "acme", "my-sums")["versions"]] == [
        "1.9",
        "1.10",
        "2.0rc1",
    ]
    assert shown_version() == "1.10"
    store.yank("acme", "my-sums", "1.10", "")
    assert shown_version() == "1.9"
    store.yank("acme", "my-sums", "1.9", "both")
    assert shown_version() == "2.0rc1"
    store.yank("acme", "my-sums", "1.9", None)
    assert shown_version() == "1.9"


@pytest.mark.parametrize(
    ("name", "version", "status", "words"),
    [
        ("my-sums", "1.0", 409, "acme/my-sums 1.0 already exists and cannot be changed"),
        ("my-sums", "1", 409, "acme/my-sums 1.0 already exists"),
        ("m-ysums", "1.0", 409, "'m-ysums' is too similar to the existing acme/my-sums"),
        ("mysums", "2.0", 409, "'mysums' is too similar to the existing acme/my-sums"),
        ("rny-sums", "2.0", 409, "'rny-sums' is too similar to the existing acme/my-sums"),
    ],
)
def test_existing_and_confusable_versions_are_rejected(store: Store, name: str, version: str, status: int, words: str):
    add(store)
    listing_before = hub_contents(store.folder)
    with pytest.raises(RejectedError, match=words) as refused:
        add(store, name=name, version=version)
    assert refused.value.status == status
    assert hub_contents(store.folder) == listing_before


def test_confusable_unknown_and_invalid_owners_are_rejected(store: Store):
    assert not store.add_owner("acme", ["key"])
    assert catalogue.keys(store, "acme") == ["key"]
    with pytest.raises(RejectedError, match="'acrne' is too similar to the owner 'acme'"):
        store.add_owner("acrne")
    with pytest.raises(RejectedError, match="no owner 'nobody'"):
        add(store, "nobody")
    for invalid in ("Acme", "a_b", "", "simple", "-a", "a" * 41, "ácme"):
        with pytest.raises(ConfigError):
            store.add_owner(invalid)


def test_unfinished_files_are_deleted_when_the_hub_starts(store: Store):
    add(store)
    store.add_run("acme", "my-sums", "1.0", read_run(b'{"model": "tiny", "summary": {}}'))
    listing_before = hub_contents(store.folder)
    (store.drafts / "half").mkdir()
    (store.drafts / "half/wheel").write_bytes(b"half")
    shutil.copytree(store.files / "acme/my-sums/1.0", store.files / "acme/my-sums/2.0")
    shutil.copytree(store.files / "acme/my-sums/1.0", store.files / "acme/others/1.0")
    (store.files / "acme/my-sums/1.0/runs/abc.json").write_bytes(b"{}")
    (store.files / "acme/my-sums/notes.txt").write_bytes(b"no version")
    (store.drafts / ".DS_Store").write_bytes(b"no draft")
    other_store = Store(store.folder)
    assert other_store.recover() == []
    assert hub_contents(store.folder) != listing_before  # Another store is open, so nothing is deleted.
    store.close()
    other_store.close()
    last = Store(store.folder)
    assert last.recover() == []
    last.close()
    assert hub_contents(store.folder) == listing_before


def test_missing_and_changed_files_are_reported_when_the_hub_starts(store: Store):
    add(store)
    (store.files / "acme/my-sums/1.0/my_sums-1.0.tar.gz").unlink()
    (store.files / "acme/my-sums/1.0/README.md").write_bytes(b"")
    store.close()
    reopened = Store(store.folder)
    assert sorted(Path(file).name for file in reopened.recover()) == ["README.md", "my_sums-1.0.tar.gz"]
    reopened.close()


@pytest.mark.parametrize("dies", ["replace", "fsync", "COMMIT"])
def test_a_failed_upload_leaves_no_files(store: Store, monkeypatch: pytest.MonkeyPatch, dies: str):
    add(store)
    listing_before = hub_contents(store.folder)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if dies == "COMMIT":
        connection = store.database._connection()
        connection.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON main.files BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
    else:
        monkeypatch.setattr(os, dies, fail)
    with pytest.raises((OSError, sqlite3.Error)):
        add(store, name="others")
    monkeypatch.undo()
    store.close()
    reopened = Store(store.folder)
    reopened.recover()
    assert hub_contents(store.folder) == listing_before
    add(reopened, name="others")
    reopened.close()


def test_an_uploader_can_create_a_private_environment_but_not_publish_it(store: Store):
    uploader = Access("acme", ("upload:acme/my-sums",))
    for _ in range(2):
        store.set_private("acme", "my-sums", True, uploader)
    with pytest.raises(RejectedError, match="may not show or hide"):
        store.set_private("acme", "my-sums", False, uploader)
    with pytest.raises(RejectedError, match="may not upload to acme/others"):
        store.set_private("acme", "others", True, uploader)
    add(store)
    assert catalogue.listing(store, "hub")["environments"] == []
    assert catalogue.search(store, catalogue.Query(), "acme")["total"] == 1
    store.set_private("acme", "my-sums", False, ADMIN)
    assert catalogue.search(store, catalogue.Query())["total"] == 1


def test_a_folder_that_is_not_a_hub_is_rejected_and_unchanged(tmp_path: Path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is not a hub's data folder"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/hub.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match="cannot be used as a hub's database"):
        Store(tmp_path / "hub")


def test_a_database_of_a_newer_rove_is_rejected(store: Store):
    store.database._connection().execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="by a newer rove"):
        Store(store.folder)


@pytest.mark.broad
def test_an_upload_killed_at_any_step_is_atomic(tmp_path: Path):
    """Runs one process per file or database operation and ends it at that operation."""
    store = Store(tmp_path / "hub")
    store.add_owner("acme")
    add(store, version="1.0")
    store.close()
    first_listing, step, exit_codes = hub_contents(tmp_path / "hub"), 0, []
    while not exit_codes or exit_codes[-1] == EXIT_CODE_AT_STEP:
        child = os.fork()
        if child == 0:
            _upload_and_exit_at(step, tmp_path)
        exit_codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        step += 1
        reopened = Store(tmp_path / "hub")
        assert reopened.recover() == []
        versions = [release.version for release in catalogue.releases(reopened, "acme", "my-sums")]
        if versions != ["1.0"]:
            for file in catalogue.releases(reopened, "acme", "my-sums")[-1].files:
                content = (reopened.files / "acme/my-sums" / versions[-1] / file.filename).read_bytes()
                assert hashlib.sha256(content).hexdigest() == file.sha256
            break
        reopened.close()
        assert hub_contents(tmp_path / "hub") == first_listing
    reopened.close()
    assert step > 20, "the steps are not seen any more"


EXIT_CODE_AT_STEP = 9


def _upload_and_exit_at(step: int, folder: Path) -> None:
    """Upload and exit when the operation with this number begins. Never returns."""
    try:
        store = Store(folder / "hub")
        store.recover()
        steps = itertools.count()

        def exit_at_step(*_: object) -> None:
            if next(steps) == step:
                os._exit(EXIT_CODE_AT_STEP)

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                exit_at_step()
                return function(*args, **options)

            return call

        store.database._connection().set_trace_callback(exit_at_step)
        for module, name in ((os, "fsync"), (os, "replace"), (os, "mkdir"), (shutil, "rmtree")):
            setattr(module, name, counted(getattr(module, name)))
        add(store, version="1.1")
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
