"""Files that are there whole or not at all: see also test_runs and test_kill, which stop writers halfway."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.files import create_folders, heal, put_in_place, recover_folders, write_whole


@given(
    lines=st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=4), torn=st.binary(max_size=9)
)
def test_only_a_torn_last_line_is_cut(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], torn: bytes):
    file = tmp_path_factory.mktemp("heal") / "lines"
    whole = b"".join(line + b"\n" for line in lines)
    file.write_bytes(whole + torn.replace(b"\n", b""))
    heal(file)
    assert file.read_bytes() == whole


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path: Path):
    file = tmp_path / "lines"
    file.write_bytes(b"ok\n" + b"x" * 200_000)
    heal(file)
    assert file.read_bytes() == b"ok\n"
    heal(tmp_path / "nothing")


def test_a_file_is_replaced_whole(tmp_path: Path):
    file = tmp_path / "summary.json"
    write_whole(file, b"1")
    write_whole(file, b"2")
    assert file.read_bytes() == b"2"
    assert list(tmp_path.iterdir()) == [file]


def folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "x").write_text(content)
    return path


def test_a_folder_is_replaced_whole(tmp_path: Path):
    target = folder(tmp_path / "final", "old")
    put_in_place(folder(tmp_path / ".final.draft", "new"), target)
    assert (target / "x").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("there", [True, False])
def test_a_replacement_cut_short_is_undone_or_finished(tmp_path: Path, there: bool):
    folder(tmp_path / ".final.old", "old")
    if there:
        folder(tmp_path / "final", "new")
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
