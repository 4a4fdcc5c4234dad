"""Wheels and source archives: valid ones are accepted, invalid ones rejected with a reason, and no code is executed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packages import (
    MODULE,
    README,
    file_entry,
    make_tar,
    make_zip,
    put_package,
    put_source,
    put_wheel,
    rename_in_zip_index,
    source_files,
    wheel_files,
    with_record,
)

from rove.core.errors import PackageError
from rove.hub.package import limits
from rove.hub.package.archives import (
    check_package,
    check_source,
    check_wheel,
    digest_content,
    has_load_environment,
    verify,
)
from rove.hub.package.manifest import manifest_bytes, read_manifest
from rove.hub.package.signing import load_key, make_key, sign

ZEROS = bytes(6 << 20)
METADATA = b"Metadata-Version: 2.1\nName: my-sums\nVersion: 1.0\n"
WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
NESTED_PARTS = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(1_500))
"""Nested multipart messages, for the e-mail parser that reads metadata."""


def test_a_wheel_is_read_without_executing_it(tmp_path: Path):
    wheel = check_wheel(put_wheel(tmp_path))
    assert (wheel.name, wheel.version, wheel.module) == ("my-sums", "1.0", "my_sums")
    assert (wheel.summary, wheel.requires_python, wheel.dependencies) == ("Sums", ">=3.11", ["rove>=0.1"])
    assert wheel.readme == README
    assert sorted(wheel.files) == ["my_sums-1.0.dist-info/METADATA", "my_sums-1.0.dist-info/WHEEL", "my_sums.py"]
    assert wheel.content == digest_content(wheel.files)


def test_a_wheel_may_contain_pyproject_toml_next_to_its_module(tmp_path: Path):
    wheel = check_wheel(put_wheel(tmp_path, with_record({**wheel_files(), "pyproject.toml": b""})))
    assert "pyproject.toml" in wheel.files


def test_the_content_digest_does_not_depend_on_compression_and_order(tmp_path: Path):
    files = with_record(wheel_files())
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = put_wheel(tmp_path / "a", files)
    second = tmp_path / "b" / first.name
    with zipfile.ZipFile(second, "w", zipfile.ZIP_STORED) as archive:
        for path in reversed(files):
            archive.writestr(path, files[path])
    assert check_wheel(first).sha256 != check_wheel(second).sha256
    assert check_wheel(first).content == check_wheel(second).content


def test_a_streamed_wheel_is_accepted(tmp_path: Path):
    class Pipe(io.RawIOBase):
        content = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.content += bytes(data)
            return len(data)

    def write_wheel(content: bytes) -> Path:
        file = tmp_path / "my_sums-1.0-py3-none-any.whl"
        file.write_bytes(content)
        return file

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[arg-type]
        for path, data in with_record(wheel_files()).items():
            archive.writestr(path, data)
    assert check_wheel(write_wheel(pipe.content)).module == "my_sums"
    descriptor_start = pipe.content.index(b"PK\7\x08")
    with pytest.raises(PackageError, match="differs between its index"):
        check_wheel(write_wheel(pipe.content[: descriptor_start + 4] + b"\0\0" + pipe.content[descriptor_start + 6 :]))


def nested_zip(depth: int) -> bytes:
    content = b"inner"
    for _ in range(depth):
        content = make_zip({"a.zip": content})
    return content


@pytest.mark.parametrize(
    ("extra_files", "words"),
    [
        ({"../evil.py": b""}, "leaves the archive"),
        ({"a/../../evil.py": b""}, "leaves the archive"),
        ({"/etc/evil": b""}, "is absolute"),
        ({"C:/evil": b""}, "is absolute"),
        ({"a//b": b""}, "an empty part"),
        ({"./a": b""}, "an empty part"),
        ({"a\\..\\evil.py": b""}, "a backslash"),
        ({"a\tb": b""}, "invisible"),
        ({"a\u202eb": b""}, "invisible"),
        ({"my_sums.py ": b""}, "space"),
        ({"a./b": b""}, "trailing dot"),
        ({"x" * 241: b""}, "more than 240 characters"),
        ({"my_sums/CON.py": b""}, "a device name on Windows"),
        ({"my_sums/nul": b""}, "a device name on Windows"),
        ({"my_sums/aux.tar.txt": b""}, "a device name on Windows"),
        ({"my_sums/COM1 .txt": b""}, "a device name on Windows"),
        ({"my_sums/lpt\u00b9.txt": b""}, "a device name on Windows"),
        ({"con/__init__.py": b""}, "a device name on Windows"),
        ({"my_sums/what?.txt": b""}, "a character that Windows does not allow"),
        ({"my_sums/a.txt|b": b""}, "a character that Windows does not allow"),
        ({"my_sums/a.txt:stream": b""}, "is absolute"),
        ({"my_sums/Data/a": b"", "my_sums/data/A": b""}, "the same file on some systems"),
        ({"MY_SUMS.py": MODULE}, "the same file on some systems"),
        ({"my_sum\u017f.py": b""}, "the same file on some systems"),
        ({"data": b"", "data/a": b""}, "both a file and a folder"),
        ({"data/bomb.bin": bytes(60 << 20)}, "times its size; it is a decompression bomb"),
        ({"a.gz": gzip.compress(ZEROS)}, "it is a decompression bomb"),
        ({"a.bz2": bz2.compress(ZEROS)}, "it is a decompression bomb"),
        ({"a.bz2": bz2.compress(b"") * 2000}, "more than 1,000 compressed streams"),
        ({"a.xz": lzma.compress(ZEROS)}, "it is a decompression bomb"),
        ({"a.zip": make_zip({"a": ZEROS})}, "it is a decompression bomb"),
        ({"a.zip": make_zip({"b.gz": gzip.compress(ZEROS)})}, "it is a decompression bomb"),
        ({"a.zip": nested_zip(4)}, "more than 2 deep"),
        ({"evil.pth": b"import os"}, "whenever Python starts"),
        ({"sitecustomize.py": b""}, "would hide"),
        ({"rove/__init__.py": b""}, "would hide"),
        ({"json/tool.py": b""}, "would hide"),
        ({"numpy/__init__.py": b""}, "would hide"),
        ({"numpy/data": b""}, "would hide"),
        ({"my-data/rows": b""}, "is not a valid module name"),
        ({"evil.cpython-311-x86_64-linux-gnu.so": b""}, "compiled code"),
        ({"data/__init__.pyc": b""}, "compiled code"),
        ({"my_sums-1.0.data/scripts/pip": b""}, "outside of the modules"),
        (
            {"my_sums-1.0.dist-info/entry_points.txt": b"[console_scripts]\npip = evil:main\n"},
            r"the group \[console_scripts\]",
        ),
        ({"my_sums-1.0.dist-info/entry_points.txt": b"[rove.environments]\nmy-sums = good_two\n"}, "names 'good_two'"),
        ({"my_sums-1.0.dist-info/entry_points.txt": b"[rove.environments\n"}, "has the line"),
        ({"other-1.0.dist-info/METADATA": b""}, "2 folders"),
        ({"other.py": MODULE}, "'other' is not named like the package 'my-sums'"),
        ({"my_sums.py": b"def (:"}, "my_sums.py cannot be parsed as Python"),
        ({"my_sums.py": b"\0"}, "my_sums.py cannot be parsed as Python"),
        ({"my_sums.py": b"(" * 10_000}, "my_sums.py cannot be parsed as Python"),
        ({"my_sums.py": b"x = 1\n"}, "my_sums.py has none"),
        (
            {"my_sums-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux\n"},
            "pure Python",
        ),
        ({"my_sums-1.0.dist-info/WHEEL": b"Wheel-Version: 2.0\n"}, "expected 1.0"),
        (
            {"my_sums-1.0.dist-info/WHEEL": WHEEL.replace(b"true", b"false") + b"Root-Is-Purelib: true\n"},
            "more than once",
        ),
        ({"my_sums-1.0.dist-info/WHEEL": WHEEL.replace(b"true", b"true\n\nRoot-Is-Purelib: false")}, "the line ''"),
        ({"my_sums-1.0.dist-info/WHEEL": WHEEL.replace(b"true", b"true\n false")}, "the line ' false'"),
        ({"my_sums-1.0.dist-info/METADATA": METADATA + b"Requires-Dist: a; " + b"(" * 2_000}, "at most 500"),
        ({"my_sums-1.0.dist-info/METADATA": METADATA + b"Requires-Dist: a; " + b"(" * 100}, "100 parentheses"),
        ({"my_sums-1.0.dist-info/METADATA": METADATA + b"Requires-Python: " + b">=3," * 200}, "requires Python"),
        ({"my_sums-1.0.dist-info/METADATA": METADATA + b"Description-Content-Type:" + b" :" * 9_000}, "at most 200"),
        ({"my_sums-1.0.dist-info/METADATA": METADATA + NESTED_PARTS}, "metadata cannot be read: maximum recursion"),
        pytest.param(
            {"my_sums-1.0.dist-info/METADATA": METADATA + b"Author-email: " + b"(" * 5_000},
            "nests too deep",
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 13), reason="its email package does not read nested comments"
            ),
        ),
        ({"my_sums-1.0.dist-info/METADATA": b"\xff\xfe"}, "metadata"),
        (
            {"my_sums-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: a\nName: b\nVersion: 1\n"},
            "metadata is invalid",
        ),
        ({"my_sums-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: api\nVersion: 1\n"}, "reserved"),
        ({"my_sums-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: my-sums\nVersion: 1+local\n"}, "local part"),
        (
            {"my_sums-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"},
            "METADATA describes other 1.0",
        ),
        ({"my_sums-1.0.dist-info/METADATA": b"x" * (limits.MAX_METADATA_BYTES + 1)}, "at most 1,048,576"),
    ],
    ids=lambda value: next(iter(value))[:30] if isinstance(value, dict) else "",
)
def test_invalid_wheels_are_rejected(tmp_path: Path, extra_files: dict[str, bytes], words: str):
    with pytest.raises(PackageError, match=words) as error:
        check_wheel(put_wheel(tmp_path, with_record({**wheel_files(), **extra_files})))
    assert "my_sums-1.0-py3-none-any.whl" in str(error.value)


def test_a_dependency_by_url_is_rejected(tmp_path: Path):
    files = wheel_files(extra="Requires-Dist: evil @ https://example.org/evil.whl\n")
    with pytest.raises(PackageError, match="depends on evil from https"):
        check_wheel(put_wheel(tmp_path, with_record(files)))


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (stat.S_IFLNK | 0o777, "is a link"),
        (stat.S_IFCHR, "a device"),
        (stat.S_IFIFO, "a device"),
        (stat.S_IFDIR, "a device"),
    ],
)
def test_links_and_devices_are_rejected(tmp_path: Path, mode: int, words: str):
    file = tmp_path / "my_sums-1.0-py3-none-any.whl"
    file.write_bytes(make_zip({**with_record(wheel_files()), "link": b"/etc/passwd"}, {"link": mode}))
    with pytest.raises(PackageError, match=words):
        check_wheel(file)


def test_too_many_and_too_large_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wheel, source = put_wheel(tmp_path), put_source(tmp_path)
    for limit, value, words in (
        ("MAX_FILES", 2, "more than 2 files"),
        ("MAX_FILE_BYTES", 20, "at most 20"),
        ("MAX_UNPACKED_BYTES", 100, "more than 100 bytes"),
        ("MAX_ARCHIVE_BYTES", 100, "expected 1 to 100"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, value)
            for check, file in ((check_wheel, wheel), (check_source, source)):
                with pytest.raises(PackageError, match=words):
                    check(file)
    wheel.write_bytes(b"")
    with pytest.raises(PackageError, match="has 0 bytes"):
        check_wheel(wheel)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda zip: b"#!/bin/sh\n" + zip, "before, between or after"),
        (lambda zip: zip + b"more", "after its end"),
        (lambda zip: zip[:-2] + b"\4\0more", "after its end"),
        (lambda zip: b"not a zip", "not a zip"),
        (lambda zip: rename_in_zip_index(zip, "my_sums.py", "my_sumz.py"), "differs between its index"),
        (lambda zip: rename_in_zip_index(zip, "my_sums.py", "my_s\0ms.py"), "invisible"),
        (lambda zip: zip.replace(b"PK\3\4", b"PK\3\5", 1), "broken zip"),
        (lambda zip: zip[:60] + b"\xff\xff" + zip[62:], "broken zip"),
    ],
)
def test_ambiguous_zips_are_rejected(tmp_path: Path, spoil: Any, words: str):
    wheel = put_wheel(tmp_path)
    wheel.write_bytes(spoil(wheel.read_bytes()))
    with pytest.raises(PackageError, match=words):
        check_wheel(wheel)


def add_extra_fields(zip: bytes) -> bytes:
    """Add an extra field with a second name of each file, which some programs use."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(zip)) as old, zipfile.ZipFile(stream, "w") as new:
        for info in old.infolist():
            info.extra = b"up\x05\0\1abcd"
            new.writestr(info, old.read(info))
    return stream.getvalue()


def add_zip64_locator(zip: bytes) -> bytes:
    """Add a locator record that claims that the index is elsewhere."""
    index_start = struct.unpack("<L", zip[-6:-2])[0]
    index = zip[index_start:-22] + b"PK\6\7" + bytes(16)
    return zip[:index_start] + index + zip[-22:-10] + struct.pack("<L", len(index)) + zip[-6:]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(add_extra_fields, "fields that only some programs read"), (add_zip64_locator, "does not match the file")],
)
def test_zips_with_redundant_names_or_locators_are_rejected(tmp_path: Path, spoil: Any, words: str):
    wheel = put_wheel(tmp_path)
    wheel.write_bytes(spoil(wheel.read_bytes()))
    with pytest.raises(PackageError, match=words):
        check_wheel(wheel)


def test_a_duplicate_file_is_rejected(tmp_path: Path):
    wheel = put_wheel(tmp_path)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("my_sums.py", b"evil")
    with pytest.raises(PackageError, match="the same file"):
        check_wheel(wheel)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"my_sums.py,sha256=", b"my_sums.py,sha256=A", "does not match its RECORD"),
        (b"my_sums.py,", b"my_sumz.py,", "RECORD"),
        (b"RECORD,,", b"RECORD,,\nghost.py,,", "is listed in its RECORD, but missing"),
        (b"RECORD,,", b"RECORD,,\nmy_sums.py,,", "twice"),
        (b"RECORD,,", b"RECORD,,0", "does not list itself"),
        (b"RECORD,,", b"RECORD", "cannot be read"),
        (b"RECORD,,", b"RECORD,,\n\xff,,", "cannot be read"),
        (b"my_sums-1.0.dist-info/RECORD,,\n", b"", "does not list itself"),
    ],
)
def test_incorrect_records_are_rejected(tmp_path: Path, old: bytes, new: bytes, words: str):
    files = with_record(wheel_files())
    record = "my_sums-1.0.dist-info/RECORD"
    files[record] = files[record].replace(old, new, 1)
    with pytest.raises(PackageError, match=words):
        check_wheel(put_wheel(tmp_path, files))


def test_a_file_missing_from_the_record_is_rejected(tmp_path: Path):
    with pytest.raises(PackageError, match=r"'more\.py' is not listed in its RECORD"):
        check_wheel(put_wheel(tmp_path, {**with_record(wheel_files()), "more.py": b""}))


@pytest.mark.parametrize(
    "name",
    [
        "other-1.0-py3-none-any.whl",
        "my_sums-1.0.0-py3-none-any.whl",
        "my-sums-1.0-py3-none-any.whl",
        "my_sums-1.0-1-py3-none-any.whl",
    ],
)
def test_the_file_name_of_a_wheel_must_match_its_metadata(tmp_path: Path, name: str):
    with pytest.raises(PackageError, match=r"expected the file name my_sums-1\.0-py3-none-any\.whl"):
        check_wheel(put_wheel(tmp_path, name=name))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.integers(0, 600), st.binary(min_size=1, max_size=4))
def test_a_damaged_wheel_is_rejected_or_has_the_same_content(tmp_path: Path, position: int, junk: bytes):
    wheel = put_wheel(tmp_path)
    original_content, original_bytes = check_wheel(wheel).content, wheel.read_bytes()
    wheel.write_bytes(original_bytes[:position] + junk + original_bytes[position + len(junk) :])
    try:
        assert check_wheel(wheel).content == original_content
    except PackageError as error:
        assert wheel.name in str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.integers(0, 4000), st.binary(min_size=1, max_size=4))
def test_a_damaged_source_archive_is_rejected_or_read_correctly(tmp_path: Path, position: int, junk: bytes):
    tar = gzip.decompress(make_tar(source_files()))
    source = put_source(tmp_path, gzip.compress(tar[:position] + junk + tar[position + len(junk) :]))
    try:
        assert check_source(source) == ("my-sums", "1.0")
    except PackageError as error:
        assert source.name in str(error)


def test_a_source_archive_is_read(tmp_path: Path):
    assert check_source(put_source(tmp_path)) == ("my-sums", "1.0")


@pytest.mark.parametrize(
    ("extra_files", "kinds", "words"),
    [
        ({"my_sums-1.0/../../evil": b""}, {}, "leaves the archive"),
        ({"/etc/evil": b""}, {}, "is absolute"),
        ({"other/a": b""}, {}, "outside the folder my_sums-1.0/"),
        ({"my_sums-1.0/MY_SUMS.PY": b""}, {}, "the same file"),
        ({"my_sums-1.0/a": b"/etc/passwd"}, {"my_sums-1.0/a": tarfile.SYMTYPE}, "is a link"),
        ({"my_sums-1.0/a": b"my_sums-1.0/my_sums.py"}, {"my_sums-1.0/a": tarfile.LNKTYPE}, "is a link"),
        ({"my_sums-1.0/a": b""}, {"my_sums-1.0/a": tarfile.CHRTYPE}, "a device"),
        ({"my_sums-1.0/a": b""}, {"my_sums-1.0/a": tarfile.FIFOTYPE}, "an entry of type"),
        ({"my_sums-1.0/a": b""}, {"my_sums-1.0/a": tarfile.CONTTYPE}, "an entry of type"),
        ({"my_sums-1.0/a": b""}, {"my_sums-1.0/a": tarfile.GNUTYPE_SPARSE}, "an entry of type"),
        ({"my_sums-1.0/a": b""}, {"my_sums-1.0/a": tarfile.GNUTYPE_LONGNAME}, "an entry of type"),
        ({"my_sums-1.0/a": b""}, {"my_sums-1.0/a": tarfile.XGLTYPE}, "an entry of type"),
        ({"my_sums-1.0/data/": b"1"}, {}, "whose name ends with a slash"),
        ({"my_sums-1.0/nul.txt": b""}, {}, "a device name on Windows"),
        ({"my_sums-1.0/a ": b""}, {}, "trailing space"),
        ({"my_sums-1.0": b""}, {}, "both a file and a folder"),
        ({"my_sums-1.0/PKG-INFO": METADATA + b"Requires-Dist: a; " + b"(" * 2_000}, {}, "at most 500"),
        ({"my_sums-1.0/a": ZEROS}, {}, "it is a decompression bomb"),
        ({"my_sums-1.0/a.gz": gzip.compress(ZEROS)}, {}, "it is a decompression bomb"),
        (
            {"my_sums-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"},
            {},
            "PKG-INFO describes other",
        ),
    ],
)
def test_invalid_source_archives_are_rejected(
    tmp_path: Path, extra_files: dict[str, bytes], kinds: dict[str, bytes], words: str
):
    with pytest.raises(PackageError, match=words):
        check_source(put_source(tmp_path, make_tar({**source_files(), **extra_files}, kinds)))


def test_ambiguous_and_broken_tars_are_rejected(tmp_path: Path):
    good = make_tar(source_files())
    long = make_tar({**source_files(), "my_sums-1.0/" + "x" * 180: b""}, form=tarfile.PAX_FORMAT)
    for content, words in (
        (good + b"more", "after its end"),
        (good[:-9], "truncated"),
        (gzip.compress(gzip.decompress(good) + b"more"), "after its end"),
        (gzip.compress(b"x" * 512), "broken tar"),
        (make_tar(source_files(), form=tarfile.GNU_FORMAT), "not in ustar format"),
        (gzip.compress(gzip.decompress(good)[:600]), "truncated"),
        (b"not a tar", "not a gzipped tar"),
        (good + good, "after its end"),
        (long, "an entry of type"),
        (make_tar({"my_sums-1.0/pyproject.toml": b""}), r"no my_sums-1\.0/PKG-INFO"),
    ):
        with pytest.raises(PackageError, match=words):
            check_source(put_source(tmp_path, content))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def load_environment(): ...", True),
        ("async def load_environment(): ...", True),
        ("from .env import load_environment", True),
        ("from .env import load as load_environment", True),
        ("load_environment = make", True),
        ("try:\n    from a import load_environment\nexcept ImportError:\n    pass", True),
        ("if 1:\n    pass\nelse:\n    def load_environment(): ...", True),
        ("from .env import load_environment as load", False),
        ("class A:\n    def load_environment(self): ...", False),
        ("def f():\n    def load_environment(): ...", False),
        ("# def load_environment(): ...", False),
        ("'load_environment'", False),
    ],
)
def test_load_environment_is_found_in_the_source(source: str, expected: bool):
    assert has_load_environment(source.encode()) is expected


def test_the_files_of_a_package_must_match_its_manifest(tmp_path: Path):
    manifest = put_package(tmp_path)
    wheel, source = (tmp_path / file.filename for file in manifest.files)
    (tmp_path / "upload").write_bytes(wheel.read_bytes())
    assert check_package(manifest, tmp_path / "upload", source).module == "my_sums"
    with pytest.raises(PackageError, match=r"tar\.gz is missing"):
        check_package(manifest, wheel)
    wheel_only = msgspec.structs.replace(manifest, files=manifest.files[:1])
    assert check_package(wheel_only, wheel).readme == README
    with pytest.raises(PackageError, match="is not listed in the manifest"):
        check_package(wheel_only, wheel, source)
    wheel.write_bytes(make_zip(with_record({**wheel_files(), "more.json": b""})))
    with pytest.raises(PackageError, match="is not the expected file"):
        check_package(manifest, wheel, source)
    with pytest.raises(PackageError, match="its content is"):
        check_package(msgspec.structs.replace(manifest, files=[file_entry(wheel), manifest.files[1]]), wheel, source)


@pytest.mark.parametrize("field", ["module", "requires_python", "dependencies", "content"])
def test_a_manifest_that_contradicts_its_wheel_is_rejected(tmp_path: Path, field: str):
    wrong_value = {"module": "other", "requires_python": ">=3.5", "dependencies": [], "content": "0" * 64}[field]
    manifest = msgspec.structs.replace(put_package(tmp_path), **{field: wrong_value})
    wheel, source = (tmp_path / file.filename for file in manifest.files)
    with pytest.raises(PackageError, match=f"its {field} is"):
        check_package(manifest, wheel, source)


def put_signed_package(folder: Path) -> str:
    """Write a signed package and return its public key."""
    put_package(folder)
    key = folder.parent / "signing.key"
    public = make_key(key)
    (folder / "manifest.sig").write_bytes(sign((folder / "manifest.json").read_bytes(), load_key(key)))
    return public


def test_a_valid_package_is_verified(tmp_path: Path):
    manifest = put_package(tmp_path)
    package = verify(tmp_path)
    assert package.manifest == manifest
    assert package.wheel.module == "my_sums"
    (tmp_path / "README.md").unlink()
    assert verify(tmp_path).manifest == manifest


def test_the_signature_is_checked(tmp_path: Path):
    public = put_signed_package(tmp_path / "p")
    verify(tmp_path / "p")
    verify(tmp_path / "p", [public])
    with pytest.raises(PackageError, match="not one of the owner's keys"):
        verify(tmp_path / "p", ["somebody else"])
    (tmp_path / "p" / "manifest.sig").unlink()
    verify(tmp_path / "p")
    with pytest.raises(PackageError, match="is not signed"):
        verify(tmp_path / "p", [public])


def replace_bytes(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        content = (folder / name).read_bytes()
        assert old in content
        (folder / name).write_bytes(content.replace(old, new, 1))

    return replace


def replace_wheel(folder: Path) -> None:
    """Replace the wheel by another valid one."""
    put_wheel(folder, with_record(wheel_files(modules={"my_sums.py": b"load_environment = print\n"})))


def rewrite_manifest(folder: Path) -> None:
    """Change the manifest's description and keep it canonical."""
    file = folder / "manifest.json"
    manifest = read_manifest(file.read_bytes().replace(b'"description":"Sums"', b'"description":"Good"'))
    file.write_bytes(manifest_bytes(manifest))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (replace_wheel, "not the expected file"),
        (replace_bytes("my_sums-1.0-py3-none-any.whl", b"PK", b"PX"), "not the expected file"),
        (replace_bytes("my_sums-1.0.tar.gz", b"\0", b"\1"), "not the expected file"),
        (replace_bytes("manifest.json", b'"sha256":"', b'"sha256":"0'), "was modified"),
        (rewrite_manifest, "was modified"),
        (replace_bytes("manifest.sig", b'"signature":"', b'"signature":"A'), "cannot be parsed"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "my_sums-1.0-py3-none-any.whl").unlink(), "whl is missing"),
        (lambda folder: (folder / "my_sums-1.0.tar.gz").unlink(), "gz is missing"),
        (lambda folder: (folder / "manifest.json").write_bytes(bytes(1 << 19)), "more than 262,144"),
        (replace_bytes("README.md", b"Sums", b"Evil"), "differs from the README"),
    ],
)
def test_tampering_is_detected(tmp_path: Path, spoil: Callable[[Path], None], words: str):
    put_signed_package(tmp_path / "p")
    spoil(tmp_path / "p")
    with pytest.raises(PackageError, match=words):
        verify(tmp_path / "p")


def test_an_unsigned_manifest_that_contradicts_its_wheel_is_rejected(tmp_path: Path):
    put_package(tmp_path)
    replace_bytes("manifest.json", b'"module":"my_sums"', b'"module":"my_sumz"')(tmp_path)
    with pytest.raises(PackageError, match="its module is 'my_sums', but the manifest has 'my_sumz'"):
        verify(tmp_path)
