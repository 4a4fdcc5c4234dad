"""Atomic writes and safe opening of files; test_runs and test_kill interrupt writers as well."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.errors import RunError
from rove.utils import files
from rove.utils.files import (
    atomic_replace,
    atomic_write,
    check_tree,
    create_folders,
    open_regular,
    read_lines,
    read_regular,
    recover_folders,
    remove,
    truncate_torn_line,
)


@given(
    lines=st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=4), torn=st.binary(max_size=9)
)
def test_only_an_incomplete_last_line_is_removed(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], torn: bytes
):
    file = tmp_path_factory.mktemp("heal") / "lines"
    complete = b"".join(line + b"\n" for line in lines)
    file.write_bytes(complete + torn.replace(b"\n", b""))
    truncate_torn_line(file)
    assert file.read_bytes() == complete


def test_an_incomplete_line_longer_than_a_block_is_removed(tmp_path: Path):
    file = tmp_path / "lines"
    file.write_bytes(b"ok\n" + b"x" * 200_000)
    truncate_torn_line(file)
    assert file.read_bytes() == b"ok\n"
    truncate_torn_line(tmp_path / "nothing")


def test_a_file_is_replaced_and_leaves_no_draft(tmp_path: Path):
    file = tmp_path / "summary.json"
    atomic_write(file, b"1")
    atomic_write(file, b"2")
    assert file.read_bytes() == b"2"
    assert list(tmp_path.iterdir()) == [file]


def make_folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "x").write_text(content)
    return path


def test_a_folder_is_replaced_and_leaves_no_draft(tmp_path: Path):
    target = make_folder(tmp_path / "final", "old")
    atomic_replace(make_folder(tmp_path / ".final.draft", "new"), target)
    assert (target / "x").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_is_on_disk_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draft = make_folder(tmp_path / ".final.draft", "new")
    (draft / "shards").mkdir()
    (draft / "shards" / "0").write_text("shard")
    calls: list[Path] = []
    monkeypatch.setattr(files, "sync_files", lambda *paths: calls.extend(paths))
    monkeypatch.setattr(files, "rename", lambda source, target: calls.append(target))
    atomic_replace(draft, tmp_path / "final")
    synced, renamed = calls[:-2], calls[-2:]
    assert set(synced) == {draft, draft / "x", draft / "shards", draft / "shards" / "0"}
    assert renamed == [tmp_path / "final", tmp_path]


@pytest.mark.parametrize("there", [True, False])
def test_an_interrupted_replacement_is_undone_or_finished(tmp_path: Path, there: bool):
    make_folder(tmp_path / ".final.old", "old")
    if there:
        make_folder(tmp_path / "final", "new")
    recover_folders(tmp_path)
    assert (tmp_path / "final" / "x").read_text() == ("new" if there else "old")
    assert not (tmp_path / ".final.old").exists()


def test_created_folders_are_those_that_did_not_exist(tmp_path: Path):
    assert create_folders(tmp_path / "a" / "b") == [tmp_path / "a" / "b", tmp_path / "a"]
    assert create_folders(tmp_path / "a" / "c") == [tmp_path / "a" / "c"]
    assert create_folders(tmp_path / "a") == []
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        create_folders(tmp_path / "file")


# Untrusted files


@pytest.mark.parametrize("mode", ["rb", "rb+", "ab", "wb"])
@pytest.mark.parametrize("kind", ["a symbolic link", "a named pipe", "a folder", "a device"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str, mode: str):
    file, target = tmp_path / "x", tmp_path / "target"
    target.write_bytes(b"1")
    if kind == "a named pipe":
        os.mkfifo(file)
    elif kind == "a folder":
        file.mkdir()
    elif kind == "a symbolic link":
        file.symlink_to(target)
    else:
        file = Path("/dev/null")
    with pytest.raises(RunError, match=f"{file} is {kind}; expected a regular file"):
        open_regular(file, mode)
    assert target.read_bytes() == b"1"


def test_a_regular_file_is_opened(tmp_path: Path):
    file = tmp_path / "x"
    with pytest.raises(FileNotFoundError):
        open_regular(file)
    with open_regular(file, "ab") as stream:
        stream.write(b"1\n2")
    with open_regular(file) as stream:
        assert list(read_lines(stream)) == [b"1\n", b"2"]
    assert read_regular(file) == b"1\n2"


def test_files_and_lines_have_a_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "x"
    file.write_bytes(b"12345\n1\n")
    monkeypatch.setattr("rove.utils.files.MAX_FILE_BYTES", 7)
    monkeypatch.setattr("rove.utils.files.MAX_LINE_BYTES", 5)
    with pytest.raises(RunError, match="x has more than 7 bytes"):
        read_regular(file)
    with open_regular(file) as stream, pytest.raises(RunError, match="a line of .*x has more than 5 bytes"):
        list(read_lines(stream))


@pytest.mark.parametrize("deep", ["", "a/b/c"])
def test_a_tree_may_contain_only_regular_files_and_folders(tmp_path: Path, deep: str):
    inner = tmp_path / "tree" / deep
    inner.mkdir(parents=True)
    (inner / "x").write_bytes(b"")
    check_tree(tmp_path / "tree")
    (inner / "y").symlink_to(tmp_path)
    with pytest.raises(RunError, match="y is a symbolic link"):
        check_tree(tmp_path / "tree")


def test_removing_a_link_keeps_its_target(tmp_path: Path):
    target = make_folder(tmp_path / "target", "1")
    (tmp_path / "link").symlink_to(target)
    for name in ("link", "nothing"):
        remove(tmp_path / name)
    assert (target / "x").exists() and not (tmp_path / "link").is_symlink()
    remove(target)
    assert not target.exists()


def test_a_draft_that_is_a_link_is_not_followed(tmp_path: Path):
    target, file = tmp_path / "target", tmp_path / "x"
    target.write_bytes(b"1")
    (tmp_path / ".x.draft").symlink_to(target)
    file.symlink_to(target)
    atomic_write(file, b"2")
    assert (file.read_bytes(), target.read_bytes(), file.is_symlink()) == (b"2", b"1", False)
