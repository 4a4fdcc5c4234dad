"""Copying source for a build backend and packing reproducible archives."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packages import make_tar, source_files, wheel_files, with_record

from rove.core.errors import PackageError
from rove.hub.package.archives import check_source, check_wheel
from rove.hub.package.backend import (
    ARCHIVE_DATE,
    SOURCE_DATE_EPOCH_S,
    copy_source,
    pack_source,
    pack_wheel,
    unpack_source,
)
from rove.hub.package.scaffold import scaffold

SOURCE = {"README.md", "my_task.py", "pyproject.toml", "tests/test_my_task.py"}


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def copy_and_list(folder: Path, copy: Path) -> set[str]:
    copy_source(folder, copy)
    return {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}


def test_generated_files_and_keys_are_not_copied(tmp_path: Path):
    folder = scaffold("my_task", tmp_path)
    write_files(
        folder,
        "dist/a",
        "runs/a",
        "build/a",
        "__pycache__/a",
        "my_task.egg-info/a",
        ".venv/a",
        ".git/a",
        ".ruff_cache/a",
    )
    write_files(folder, ".env", ".env.local", "deploy.pem", "data/signing.key", "tests/__pycache__/a.pyc")
    write_files(folder, "data/runs/a", ".gitignore")
    assert copy_and_list(folder, tmp_path / "copy") == SOURCE | {"data/runs/a", ".gitignore"}


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_files_ignored_by_git_are_not_copied(tmp_path: Path):
    folder = scaffold("my_task", tmp_path / "environments")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    write_files(folder, "password.txt", "cache/deep/a", "kept.txt")
    (tmp_path / ".gitignore").write_text("password.txt\ncache/\n")
    assert copy_and_list(folder, tmp_path / "copy") == SOURCE | {"kept.txt"}
    (tmp_path / ".gitignore").write_text("environments/\n")
    assert copy_and_list(folder, tmp_path / "again") == SOURCE | {"kept.txt", "password.txt", "cache/deep/a"}


def test_a_broken_link_is_an_error(tmp_path: Path):
    folder = scaffold("my_task", tmp_path)
    (folder / "data").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PackageError, match="cannot be copied(.|\n)*my_task.data"):
        copy_source(folder, tmp_path / "copy")


CONTENTS = st.dictionaries(
    st.from_regex(r"my_sums/data/[a-d]{1,3}\.txt", fullmatch=True), st.binary(max_size=50), max_size=5
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(CONTENTS, st.randoms(use_true_random=False))
def test_the_bytes_of_a_wheel_do_not_depend_on_the_order_of_files(
    tmp_path: Path, data: dict[str, bytes], rng: random.Random
):
    files = wheel_files(modules={"my_sums/__init__.py": b"load_environment = 1\n", **data})
    paths = list(files)
    rng.shuffle(paths)
    first = pack_wheel(files, "my-sums", "1.0")
    assert first == pack_wheel(with_record({path: files[path] for path in paths}), "my-sums", "1.0")
    wheel = tmp_path / "my_sums-1.0-py3-none-any.whl"
    wheel.write_bytes(first)
    assert set(check_wheel(wheel).files) == set(files)


def test_a_wheel_contains_no_timestamps_and_no_local_file_modes():
    with zipfile.ZipFile(io.BytesIO(pack_wheel(wheel_files(), "my-sums", "1.0"))) as archive:
        names = archive.namelist()
        assert names[-1] == "my_sums-1.0.dist-info/RECORD"
        assert {info.date_time for info in archive.infolist()} == {ARCHIVE_DATE}
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}


def test_the_name_of_the_metadata_folder_is_normalized(tmp_path: Path):
    files = {path.replace("my_sums-1.0.dist", "My.Sums-1.0.dist"): data for path, data in wheel_files().items()}
    wheel = tmp_path / "my_sums-1.0-py3-none-any.whl"
    wheel.write_bytes(pack_wheel(files, "my-sums", "1.0"))
    assert check_wheel(wheel).name == "my-sums"


def test_the_bytes_of_a_source_archive_do_not_depend_on_the_original_tar(tmp_path: Path):
    files = source_files()
    reversed_files = {path: files[path] for path in reversed(files)}
    first, second = (
        unpack_source(make_tar(each, form=form))
        for each, form in ((files, tarfile.USTAR_FORMAT), (reversed_files, tarfile.PAX_FORMAT))
    )
    packed = pack_source(first, "my-sums", "1.0")
    assert packed == pack_source(second, "my-sums", "1.0")
    file = tmp_path / "my_sums-1.0.tar.gz"
    file.write_bytes(packed)
    assert check_source(file) == ("my-sums", "1.0")
    assert packed[4:8] == bytes(4)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as archive:
        entry_attributes = {(entry.mtime, entry.uid, entry.uname, entry.mode) for entry in archive}
    assert entry_attributes == {(SOURCE_DATE_EPOCH_S, 0, "", 0o644)}


def test_another_compression_level_changes_bytes_but_not_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another zlib version may compress differently: archive bytes differ; the wheel's `content` and the tar do not."""
    files = wheel_files(modules={"my_sums.py": b"def load_environment(): ...\n" * 100})
    sources = {f"my-sums-1.0/{path}": content for path, content in files.items()}
    builds = []
    for level in (9, 1):
        compress = zlib.compressobj
        with monkeypatch.context() as patch:
            patch.setattr(
                zlib, "compressobj", lambda _, *arguments, level=level, make=compress: make(level, *arguments)
            )
            wheel, source = pack_wheel(files, "my-sums", "1.0"), pack_source(sources, "my-sums", "1.0")
        file = tmp_path / "my_sums-1.0-py3-none-any.whl"
        file.write_bytes(wheel)
        builds.append((wheel, source, check_wheel(file).content, gzip.decompress(source)))
    [(wheel, source, *content), (other_wheel, other_source, *other_content)] = builds
    assert wheel != other_wheel and source != other_source
    assert content == other_content
