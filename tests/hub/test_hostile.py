"""Hostile uploads and requests, one per row: the hub refuses each with a reason and writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import re
import socket
import tarfile
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hubs import HubThread, add, form, hub_contents, package_parts, rewrite_indexes
from packages import MODULE, make_tar, make_zip, source_files, wheel_files, with_record
from tiers import some_quick
from yarl import URL

from rove.core.errors import HubError, PackageError
from rove.hub.client.hub import Hub
from rove.hub.client.installing import fetch, look_up
from rove.hub.package.manifest import canonical
from rove.hub.package.names import Reference
from rove.hub.package.signing import load_key, make_key, sign
from rove.hub.server import app
from rove.hub.server.store import Store
from rove.hub.server.tokens import Access, make_token
from rove.hub.server.uploads import MAX_UPLOAD_BYTES, UploadLimits

SCRIPT = "<script>alert(1)</script>"
NAME, WHEEL = "bad-sums", "bad_sums-1.0-py3-none-any.whl"
INFO = "bad_sums-1.0.dist-info"
NEW_VERSION_PATH = f"/api/environments/acme/{NAME}/1.0"
Parts = dict[str, bytes]


class HubUnderAttack(NamedTuple):
    """A hub with a public and a private package, and its contents before the attacks."""

    hub: HubThread
    folder: Path
    parts: Parts
    """The parts of a valid package, `bad-sums` 1.0, that is not yet uploaded."""
    keys: Path
    initial_contents: dict[str, str]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubUnderAttack]:
    base = tmp_path_factory.mktemp("hostile")
    server_patch = pytest.MonkeyPatch()
    # A busy machine may take more than half a second to read the request of a valid connection.
    for name, seconds in {"KEEPALIVE_TIMEOUT_S": 2.0, "LINGERING_TIME_S": 0.5}.items():
        server_patch.setattr(app, name, seconds)
    store = Store(base / "hub")
    public = make_key(base / "own.key")
    make_key(base / "other.key")
    store.add_owner("acme")
    store.add_owner("signed", [public])
    add(store, "acme", "my-sums")
    store.set_private("acme", "secret", True, Access("acme", ("admin",)))
    add(store, "acme", "secret")
    tokens = {
        "reads": make_token(store.database, "acme", ["read"]),
        "one": make_token(store.database, "acme", ["upload:acme/other"]),
        "expired": make_token(store.database, "acme", days=1e-9),
        "signed": make_token(store.database, "signed"),
        "uploads": make_token(store.database, "acme", ["upload:acme/*"]),
    }
    store.close()
    hub = HubThread(base / "hub", pace=UploadLimits(uploads=2, seconds=1.5, idle_seconds=0.5))
    hub.client.tokens = {**hub.client.tokens, **tokens}
    try:
        yield HubUnderAttack(hub, base / "hub", package_parts(base / "p", NAME), base, hub_contents(base / "hub"))
    finally:
        hub.close()
        server_patch.undo()


def check_nothing_written(target: HubUnderAttack) -> None:
    """Check that the hub's files are unchanged, after waiting for the remains of broken connections to be removed."""
    deadline = time.monotonic() + 10
    while hub_contents(target.folder) != target.initial_contents and time.monotonic() < deadline:
        time.sleep(0.05)
    assert hub_contents(target.folder) == target.initial_contents


# Packages


def manifest(parts: Parts, **fields: Any) -> Parts:
    """Return the parts with other fields in the manifest."""
    return {**parts, "manifest": canonical({**msgspec.json.decode(parts["manifest"]), **fields})}


def archive(kind: str, make: Callable[[], bytes]) -> Callable[[Parts], Parts]:
    """Return a change that replaces the wheel or the source archive and updates the manifest to match.

    The archive is built when the change is applied.
    """

    def change(parts: Parts) -> Parts:
        content = make()
        files = msgspec.json.decode(parts["manifest"])["files"]
        for entry in files:
            if entry["kind"] == kind:
                entry["sha256"], entry["size"] = hashlib.sha256(content).hexdigest(), len(content)
        return {**manifest(parts, files=files), kind: content}

    return change


def wheel(
    extra_files: dict[str, bytes], modes: dict[str, int] | None = None, **options: Any
) -> Callable[[Parts], Parts]:
    """Return a change that adds files to the wheel."""
    return archive("wheel", lambda: make_zip(with_record({**wheel_files(NAME, **options), **extra_files}), modes))


def source(extra: dict[str, bytes], kinds: dict[str, bytes] | None = None) -> Callable[[Parts], Parts]:
    """Return a change that adds entries to the source archive."""
    return archive("source", lambda: make_tar({**source_files(NAME), **extra}, kinds))


def modules(*paths: str) -> Callable[[Parts], Parts]:
    """Return a change that adds working modules to the wheel."""
    return wheel(dict.fromkeys(paths, MODULE))


def entry_points(text: str) -> Callable[[Parts], Parts]:
    """Return a change that adds entry points to the wheel."""
    return wheel({f"{INFO}/entry_points.txt": text.encode()})


def only_modules(*paths: str) -> Callable[[Parts], Parts]:
    """Return a change that replaces the wheel's module by these files."""
    return archive("wheel", lambda: make_zip(with_record(wheel_files(NAME, modules=dict.fromkeys(paths, MODULE)))))


def record(old: bytes, new: bytes) -> Callable[[Parts], Parts]:
    """Return a change that makes the wheel's RECORD wrong."""

    def build() -> bytes:
        files = with_record(wheel_files(NAME))
        return make_zip({**files, f"{INFO}/RECORD": files[f"{INFO}/RECORD"].replace(old, new)})

    return archive("wheel", build)


def tar(change: Callable[[bytes], bytes], form: int = tarfile.USTAR_FORMAT) -> Callable[[Parts], Parts]:
    """Return a change of the uncompressed bytes of the source archive."""
    return archive("source", lambda: gzip.compress(change(gzip.decompress(make_tar(source_files(NAME), form=form)))))


def header(**fields: Any) -> bytes:
    """Return a tar header with these fields and a valid checksum."""
    info = tarfile.TarInfo("bad_sums-1.0/evil")
    for name, value in fields.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.USTAR_FORMAT)


def bomb(size: int = 100 << 20) -> bytes:
    """Return a small wheel that unpacks to `size` bytes."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive_file,
        archive_file.open("bad_sums.py", "w") as file,
    ):
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return stream.getvalue()


def text(**fields: Any) -> tuple[Callable[[Parts], Parts], int, str]:
    """Return a row of the table: a script in a field of the manifest."""
    return (
        lambda parts: manifest(parts, **fields),
        422,
        r"browser would execute|is invalid|is not a valid|cannot be|not normalized|requires Python|expected https",
    )


def marker(depth: int) -> str:
    """Return a dependency whose marker has nested parentheses."""
    return f"a; {'(' * depth}os_name == 'x'{')' * depth}"


OWN_ENTRY_POINTS = "[rove.environments]\nbad-sums = bad_sums\n"
PKG_INFO = b"Metadata-Version: 2.3\nName: bad-sums\nVersion: 1.0\n"
CLIENT_CASES = ("wheel", "start", "hides", "compiled", "path", "points", "record", "nested")
"""Prefixes of the cases that apply to a client as well, which reads wheels and manifests."""
NESTED_PARTS = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(1_500))
"""Nested multipart messages, for the e-mail parser that reads metadata."""

PACKAGES: dict[str, tuple[Callable[[Parts], Parts], int, str]] = {
    "wheel: path leads out": (wheel({"../evil.py": b""}), 422, "leaves the archive"),
    "wheel: absolute path": (wheel({"/etc/evil": b""}), 422, "absolute"),
    "wheel: drive letter": (wheel({"C:evil.py": b""}), 422, "absolute"),
    "wheel: backslashes": (wheel({"..\\evil.py": b""}), 422, "backslash"),
    "wheel: symlink": (wheel({"link": b"/etc/passwd"}, {"link": 0o120777}), 422, "link"),
    "wheel: device": (wheel({"dev": b""}, {"dev": 0o020666}), 422, "device"),
    "wheel: names that differ by case": (wheel({"data.txt": b"1", "DATA.txt": b"2"}), 422, "same file on some systems"),
    "wheel: bomb": (archive("wheel", bomb), 422, "expected at most 67,108,864"),
    "wheel: bomb in a bomb": (lambda p: wheel({"inner.zip": bomb(60 << 20)})(p), 422, "unpacks|out of|more than"),
    "wheel: very many files": (lambda p: wheel({f"d/{i}": b"" for i in range(5_001)})(p), 422, "files|5,000"),
    "wheel: huge METADATA": (wheel({}, extra=f"Keywords: {'a' * (1 << 20)}\n"), 422, "METADATA|metadata"),
    "wheel: .pth file": (wheel({"evil.pth": b"import os"}), 422, "would run whenever Python starts"),
    "wheel: sitecustomize": (wheel({"sitecustomize.py": b""}), 422, "would hide"),
    "wheel: a module of Python's": (wheel({"os.py": b""}), 422, "would hide"),
    "wheel: commands": (
        wheel({"bad_sums-1.0.dist-info/entry_points.txt": b"[console_scripts]\npip = bad_sums:f\n"}),
        422,
        r"the group \[console_scripts\]",
    ),
    "wheel: files outside of modules": (wheel({"bad_sums-1.0.data/scripts/pip": b""}), 422, "outside of the modules"),
    "wheel: something after its end": (lambda p: archive("wheel", lambda: p["wheel"] + b"PK")(p), 422, "end"),
    "wheel: something before it": (lambda p: archive("wheel", lambda: b"#!/bin/sh\n" + p["wheel"])(p), 422, "index"),
    "wheel: cut off": (lambda p: archive("wheel", lambda: p["wheel"][:-30])(p), 422, "not a zip"),
    "wheel: no zip": (archive("wheel", lambda: b"hello"), 422, "not a zip"),
    "wheel: other name within": (
        archive("wheel", lambda: make_zip(with_record(wheel_files("other")))),
        422,
        "METADATA describes other",
    ),
    "wheel: dependency from a URL": (
        wheel({}, extra="Requires-Dist: evil @ https://evil.example/evil.whl\n"),
        422,
        "depends on evil from",
    ),
    "wheel: no load_environment": (
        archive("wheel", lambda: make_zip(with_record(wheel_files(NAME, modules={"bad_sums.py": b"x = 1\n"})))),
        422,
        "load_environment",
    ),
    "wheel: source nested too deep": (
        archive(
            "wheel", lambda: make_zip(with_record(wheel_files(NAME, modules={"bad_sums.py": b"x = " + b"(" * 99_999})))
        ),
        422,
        "cannot be parsed as Python",
    ),
    "source: path leads out": (source({"../evil": b""}), 422, "leaves the archive|outside"),
    "source: symlink": (source({"bad_sums-1.0/l": b"/etc/passwd"}, {"bad_sums-1.0/l": tarfile.SYMTYPE}), 422, "link"),
    "source: hard link": (source({"bad_sums-1.0/l": b"/etc/passwd"}, {"bad_sums-1.0/l": tarfile.LNKTYPE}), 422, "link"),
    "source: device": (
        source({"bad_sums-1.0/d": b""}, {"bad_sums-1.0/d": tarfile.CHRTYPE}),
        422,
        "regular file|device",
    ),
    "source: bomb": (archive("source", lambda: gzip.compress(bytes(100 << 20))), 422, "more than|out of|unpacks"),
    "start: _distutils_hack": (modules("_distutils_hack/__init__.py"), 422, "not named like the package"),
    "start: usercustomize": (modules("usercustomize.py"), 422, "would hide"),
    "start: sitecustomize, a package": (modules("sitecustomize/__init__.py"), 422, "would hide"),
    "start: a .pth of another case": (modules("evil.PTH"), 422, "whenever Python starts"),
    "start: a .pth in purelib": (modules("bad_sums-1.0.data/purelib/evil.pth"), 422, "outside of the modules"),
    "start: a .pth in platlib": (modules("bad_sums-1.0.data/platlib/evil.pth"), 422, "outside of the modules"),
    "start: a .pth in data": (modules("bad_sums-1.0.data/data/evil.pth"), 422, "outside of the modules"),
    "start: headers": (modules("bad_sums-1.0.data/headers/evil.h"), 422, "outside of the modules"),
    "start: .data of another case": (modules("bad_sums-1.0.DATA/scripts/pip"), 422, "outside of the modules"),
    "start: .egg-link": (modules("bad_sums.egg-link"), 422, "whenever Python starts"),
    "start: .start": (modules("evil.start"), 422, "whenever Python starts"),
    "start: an editable finder": (modules("__editable___bad_sums_finder.py"), 422, "not named like the package"),
    "start: .egg-info": (modules("evil.egg-info/PKG-INFO"), 422, "is not a valid module name"),
    "start: a zip of modules": (modules("python311.zip"), 422, "not allowed next to the module"),
    "start: metadata of another package": (modules("pip-99.dist-info/METADATA"), 422, "2 folders"),
    "start: provenance": (modules(f"{INFO}/direct_url.json"), 422, "not part of a wheel's metadata"),
    "start: entry points of another case": (modules(f"{INFO}/Entry_Points.txt"), 422, "not part of a wheel's metadata"),
    "start: modules of others": (wheel({f"{INFO}/top_level.txt": b"bad_sums\nrove\n"}), 422, "its only module is"),
    "start: two roots": (
        wheel(
            {f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nRoot-Is-Purelib: true\nTag: py3-none-any"}
        ),
        422,
        "more than once",
    ),
    **{
        f"hides: {module}": (modules(f"{module}/__init__.py"), 422, "would hide")
        for module in ("yarl", "multidict", "markdown_it", "typing_extensions", "cryptography", "openai", "google")
    },
    "hides: a second module": (modules("bad_sums_helpers.py"), 422, "not named like the package"),
    "hides: a module and a package": (modules("bad_sums/__init__.py"), 422, "are both top-level modules"),
    "hides: only a folder without modules": (only_modules("bad_sums/part.py"), 422, "__init__.py has none"),
    "hides: another name": (only_modules("good_sums.py"), 422, "'good_sums' is not named like the package"),
    "hides: a private name": (only_modules("_bad_sums.py"), 422, "not named like the package"),
    "hides: a data folder": (wheel({"data/rows.json": b""}), 422, "not named like the package"),
    "compiled: a versioned library": (modules("lib.so.1"), 422, "compiled code"),
    "compiled: in the package": (only_modules("bad_sums/__init__.py", "bad_sums/lib.so.1.2"), 422, "compiled code"),
    "compiled: stable ABI": (modules("bad_sums.abi3.so"), 422, "compiled code"),
    "compiled: of Windows": (modules("bad_sums.PYD"), 422, "compiled code"),
    "compiled: bytecode": (modules("__pycache__/bad_sums.cpython-311.pyc"), 422, "compiled code"),
    "path: device of Windows": (only_modules("bad_sums/__init__.py", "bad_sums/CON.py"), 422, "device name on Windows"),
    "path: device with a suffix": (
        only_modules("bad_sums/__init__.py", "bad_sums/aux.txt"),
        422,
        "device name on Windows",
    ),
    "path: folder named like a device": (
        only_modules("bad_sums/__init__.py", "bad_sums/com1/a.py"),
        422,
        "device name on Windows",
    ),
    "path: ends with a dot": (only_modules("bad_sums/__init__.py", "bad_sums/a.py."), 422, "trailing dot"),
    "path: ends with a space": (only_modules("bad_sums/__init__.py", "bad_sums/a.py "), 422, "trailing space"),
    "path: wildcard": (only_modules("bad_sums/__init__.py", "bad_sums/*.py"), 422, "Windows does not allow"),
    "path: stream of NTFS": (only_modules("bad_sums/__init__.py", "bad_sums/a.py:b"), 422, "absolute"),
    "path: folders that differ by case": (
        only_modules("bad_sums/__init__.py", "Bad_Sums/a.py"),
        422,
        "are both top-level modules",
    ),
    "points: plugin of pytest": (entry_points("[pytest11]\nevil = bad_sums\n"), 422, r"the group \[pytest11\]"),
    "points: command of distutils": (entry_points("[distutils.commands]\nbuild = bad_sums:B\n"), 422, "the group"),
    "points: commands, with spaces": (entry_points("[ console_scripts ]\npip = bad_sums:f\n"), 422, "the group"),
    "points: commands, in other case": (entry_points("[Console_Scripts]\npip = bad_sums:f\n"), 422, "the group"),
    "points: commands, in two brackets": (entry_points("[[console_scripts]]\npip = bad_sums:f\n"), 422, "has the line"),
    "points: an indented group": (
        entry_points(f"{OWN_ENTRY_POINTS} [pytest11]\n evil = bad_sums\n"),
        422,
        "has the line",
    ),
    "points: a group after a line end": (
        entry_points(f"{OWN_ENTRY_POINTS.strip()}\r[pytest11]\revil = bad_sums\n"),
        422,
        "has the line",
    ),
    "points: a default group": (entry_points(f"[DEFAULT]\nevil = bad_sums\n{OWN_ENTRY_POINTS}"), 422, "the group"),
    "points: a group twice": (entry_points(OWN_ENTRY_POINTS + OWN_ENTRY_POINTS), 422, "cannot be read"),
    "points: an environment twice": (
        entry_points(f"{OWN_ENTRY_POINTS}bad-sums = bad_sums:load_environment\n"),
        422,
        "cannot be read",
    ),
    "points: another delimiter": (entry_points("[rove.environments]\nbad-sums : bad_sums\n"), 422, "has the line"),
    "points: another's environment": (
        entry_points("[rove.environments]\nmy-sums = bad_sums\n"),
        422,
        "environment 'my-sums'",
    ),
    "points: another's module": (entry_points("[rove.environments]\nbad-sums = my_sums\n"), 422, "names 'my_sums'"),
    "points: another's attribute": (
        entry_points("[rove.environments]\nbad-sums = bad_sums:f\n"),
        422,
        "names 'bad_sums:f'",
    ),
    "points: not in ASCII": (entry_points(f"\ufeff{OWN_ENTRY_POINTS}"), 422, "cannot be read"),
    "record: a file that is not there": (record(b"bad_sums.py,", b"../../evil.py,"), 422, "RECORD"),
    "record: another hash": (record(b"sha256=", b"sha256=A"), 422, "does not match its RECORD"),
    "record: no hash": (record(b",sha256=", b",md5="), 422, "does not match its RECORD"),
    "nested: marker in METADATA": (wheel({}, extra=f"Requires-Dist: {marker(2_000)}\n"), 422, "cannot be read"),
    "nested: short marker in METADATA": (wheel({}, extra=f"Requires-Dist: {marker(200)}\n"), 422, "200 parentheses"),
    "nested: marker in the manifest": (lambda p: manifest(p, dependencies=[marker(2_000)]), 422, "length <= 500"),
    "nested: short marker in the manifest": (lambda p: manifest(p, dependencies=[marker(200)]), 422, "200 parentheses"),
    "nested: Requires-Python": (wheel({}, extra="Requires-Python: " + ">=3," * 9_999 + "\n"), 422, "metadata"),
    "nested: parts of METADATA": (
        archive(
            "wheel", lambda: make_zip(with_record({**wheel_files(NAME), f"{INFO}/METADATA": PKG_INFO + NESTED_PARTS}))
        ),
        422,
        "metadata cannot be read",
    ),
    "nested: authors": (wheel({}, extra=f"Author-email: {'(' * 5_000}\n"), 422, "nests too deep"),
    "tar: marker": (
        source({"bad_sums-1.0/PKG-INFO": PKG_INFO + b"Requires-Dist: " + marker(2_000).encode()}),
        422,
        "cannot be read",
    ),
    "tar: extended header": (tar(lambda t: header(type=tarfile.XHDTYPE) + t), 422, "of type b'x'"),
    "tar: global header": (tar(lambda t: header(type=tarfile.XGLTYPE) + t), 422, "of type b'g'"),
    "tar: long name": (tar(lambda t: header(type=tarfile.GNUTYPE_LONGNAME) + t), 422, "of type b'L'"),
    "tar: long link": (tar(lambda t: header(type=tarfile.GNUTYPE_LONGLINK) + t), 422, "of type b'K'"),
    "tar: sparse": (tar(lambda t: header(type=tarfile.GNUTYPE_SPARSE) + t), 422, "of type b'S'"),
    "tar: contiguous": (tar(lambda t: header(type=tarfile.CONTTYPE) + t), 422, "of type b'7'"),
    "tar: pipe": (tar(lambda t: header(type=tarfile.FIFOTYPE) + t), 422, "of type b'6'"),
    "tar: block device": (tar(lambda t: header(type=tarfile.BLKTYPE) + t), 422, "device"),
    "tar: format of GNU": (tar(bytes, tarfile.GNU_FORMAT), 422, "not in ustar format"),
    "tar: folder with content": (tar(lambda t: header(type=tarfile.DIRTYPE, size=512) + t), 422, "has 512 bytes"),
    "tar: file larger than the archive": (tar(lambda t: header(size=1 << 25) + t), 422, "is truncated"),
    "tar: file larger than allowed": (tar(lambda t: header(size=7 << 30) + t), 422, "expected at most 67,108,864"),
    "tar: prefix leads out": (
        tar(lambda t: header(name="a/" * 60 + "../../" + "b" * 20) + t),
        422,
        "leaves the archive",
    ),
    "tar: absolute path": (tar(lambda t: header(name="/etc/evil") + t), 422, "absolute"),
    "tar: other folder": (tar(lambda t: header(name="good_sums-1.0/evil") + t), 422, "outside the folder"),
    "tar: file twice": (tar(lambda t: header(name="bad_sums-1.0/pyproject.toml") + t), 422, "same file"),
    "tar: file of another case": (tar(lambda t: header(name="bad_sums-1.0/PyProject.toml") + t), 422, "same file"),
    "tar: file that is a folder": (
        tar(lambda t: header(name="bad_sums-1.0/my_sums.py/a") + t),
        422,
        "a file and a folder",
    ),
    "tar: file called like a folder": (source({"bad_sums-1.0/data/": b"evil"}), 422, "ends with a slash"),
    "tar: device of Windows": (tar(lambda t: header(name="bad_sums-1.0/nul.py") + t), 422, "device name on Windows"),
    "tar: backslash": (tar(lambda t: header(name="bad_sums-1.0/..\\evil") + t), 422, "backslash"),
    "tar: wrong checksum": (tar(lambda t: t[:148] + b"0000000\0" + t[156:]), 422, "broken tar"),
    "tar: something after its end": (tar(lambda t: t + b"evil"), 422, "after its end"),
    "tar: a second tar": (tar(lambda t: t + t), 422, "after its end"),
    "tar: a second gzip": (archive("source", lambda: make_tar(source_files(NAME)) * 2), 422, "after its end"),
    "tar: cut off": (tar(lambda t: t[:700]), 422, "truncated"),
    "tar: no metadata": (
        archive("source", lambda: make_tar({"bad_sums-1.0/pyproject.toml": b""})),
        422,
        "no bad_sums-1.0/PKG",
    ),
    "tar: no pyproject.toml": (
        archive("source", lambda: make_tar({"bad_sums-1.0/PKG-INFO": PKG_INFO})),
        422,
        "no bad_sums-1.0/py",
    ),
    "tar: other version within": (
        source({"bad_sums-1.0/PKG-INFO": PKG_INFO.replace(b"1.0", b"2.0")}),
        422,
        "PKG-INFO describes",
    ),
    "manifest: not JSON": (lambda p: {**p, "manifest": b"{"}, 422, "cannot be read as JSON"),
    "manifest: nested too deep": (lambda p: {**p, "manifest": b"[" * 200_000}, 422, "cannot be read as JSON"),
    "manifest: huge": (lambda p: manifest(p, description="a" * (300 << 10)), 413, "more than 262,144 bytes"),
    "manifest: long description": (lambda p: manifest(p, description="a" * 501), 422, "500"),
    "manifest: newer schema": (lambda p: manifest(p, schema=2), 422, "schema 2"),
    "manifest: written otherwise": (lambda p: {**p, "manifest": p["manifest"] + b" "}, 422, "not canonical"),
    "manifest: of another environment": (lambda p: manifest(p, name="other"), 422, ""),
    "manifest: of another version": (lambda p: manifest(p, version="9.9"), 422, ""),
    "manifest: file with a path": (
        lambda p: manifest(p, files=[{**msgspec.json.decode(p["manifest"])["files"][0], "filename": f"../{WHEEL}"}]),
        422,
        "expected bad_sums",
    ),
    "manifest: dependencies that the wheel does not have": (
        lambda p: manifest(p, dependencies=[]),
        422,
        "dependencies",
    ),
    "manifest: text that runs backwards": (lambda p: manifest(p, description="\u202egnp.exe"), 422, "U\\+202E"),
    "manifest: terminal codes": (lambda p: manifest(p, licence="\x1b[2J"), 422, "U\\+001B"),
    "hash: wheel changed on its way": (
        lambda p: {**p, "wheel": p["wheel"][:-1] + b"\1"},
        422,
        "not the expected file",
    ),
    "hash: source changed on its way": (
        lambda p: {**p, "source": p["source"] + b"\0"},
        422,
        "not the expected file",
    ),
    "parts: no wheel": (lambda p: {"manifest": p["manifest"]}, 400, "lacks the part wheel"),
    "parts: no source, though it is named": (
        lambda p: {k: v for k, v in p.items() if k != "source"},
        422,
        "is missing",
    ),
    "parts: one of no known name": (lambda p: {**p, "../../evil": b""}, 400, "unexpected part '../../evil'"),
    "parts: README that is no text": (
        lambda p: {**p, "readme": b"\xff\xfe\x00"},
        422,
        "differs from the README in the wheel",
    ),
    "parts: huge README": (lambda p: {**p, "readme": b"a" * (2 << 20)}, 413, "readme has more than"),
    "parts: huge signature": (lambda p: {**p, "signature": b"a" * 9_000}, 413, "signature has more than"),
    "signature: none at all": (lambda p: {**p, "signature": b"signed"}, 422, "cannot be parsed"),
    "script: name": text(name=SCRIPT),
    "script: version": text(version=SCRIPT),
    "script: module": text(module=SCRIPT),
    "script: description": text(description=SCRIPT),
    "script: description, escaped": text(description="<\\script>alert(1)"),
    "script: description, an attribute": text(description='<b onmouseover="alert(1)">'),
    "script: tags": text(tags=[SCRIPT]),
    "script: licence": text(licence=f"MIT{SCRIPT}"),
    "script: authors": text(authors=[f"Eve {SCRIPT}"]),
    "script: requires_python": text(requires_python=SCRIPT),
    "script: compatibility": text(compatibility=SCRIPT),
    "script: metrics": text(metrics=[SCRIPT]),
    "script: tools": text(tools=["<img src=x onerror=alert(1)>"]),
    "script: players": text(policies={SCRIPT: {"reward": 1.0, "n": 1}}),
    "script: secrets": text(needs={"network": False, "secrets": [SCRIPT], "sandbox": False}),
    "script: data sources": text(data_sources=["javascript:alert(1)"]),
    "script: arguments": text(arguments=[{"name": "n", "type": "int", "default": f"'{SCRIPT}'"}]),
    "script: repository": text(source={"repository": "JavaScript:alert(1)", "commit": "", "builder": ""}),
    "script: builder": text(source={"repository": "", "commit": "", "builder": SCRIPT}),
    "script: a field by a newer rove": text(novelty=SCRIPT),
    "script: the name of a field": text(**{SCRIPT: 1}),
}


@pytest.mark.parametrize("case", some_quick(PACKAGES, 8, broad_every=8))
def test_a_hostile_package_is_refused(target: HubUnderAttack, case: str):
    change, status, words = PACKAGES[case]
    response = target.hub.run(target.hub.client.upload(f"acme/{NAME}/1.0", change(target.parts)))
    assert response.status == status, response.text
    assert re.search(words, response.error), response.error
    check_nothing_written(target)


@pytest.mark.parametrize(
    "case", some_quick([case for case in PACKAGES if case.partition(":")[0] in CLIENT_CASES], 6, broad_every=8)
)
def test_a_client_rejects_a_hostile_package_from_a_hub(target: HubUnderAttack, tmp_path: Path, case: str):
    """A client does not trust a hub: it refuses in a download what a hub refuses in an upload."""
    parts = PACKAGES[case][0](target.parts)
    with pytest.raises((PackageError, HubError)) as error:
        asyncio.run(download(static_hub(tmp_path / "hub", parts), tmp_path))
    assert "source" in case or re.search(PACKAGES[case][2], str(error.value))


def test_a_client_accepts_the_valid_package(target: HubUnderAttack, tmp_path: Path):
    """The positive control of the test above."""
    assert asyncio.run(download(static_hub(tmp_path / "hub", target.parts), tmp_path)).name == WHEEL


def static_hub(folder: Path, parts: Parts) -> Path:
    """Write a hub of plain files that contains the parts unchecked, with an index of the matching hashes."""
    version_folder = folder / "acme" / NAME / "1.0"
    version_folder.mkdir(parents=True)
    (version_folder / "manifest.json").write_bytes(parts["manifest"])
    (version_folder / WHEEL).write_bytes(parts["wheel"])
    rewrite_indexes(folder)
    return folder


async def download(hub: Path, folder: Path) -> Path:
    """Download the wheel as an installation does."""
    async with Hub(str(hub)) as client:
        offer = await look_up(client, Reference("acme", NAME))
        return await fetch(client, offer, folder)


# Requests

VISIBLE = "/api/environments/acme/secret"
RUNS = "/api/environments/acme/my-sums/1.0/runs"
YANK_PATH = "/api/environments/acme/my-sums/1.0/yank"
Row = tuple[str, str, str | None, dict[str, Any], int, str]


def put(path: str, token: str | None, status: int, words: str, **options: Any) -> Row:
    """Return a row of the table: an upload of the valid package."""
    return "PUT", f"/api/environments/{path}", token, {"upload": True, **options}, status, words


def post(path: str, token: str | None, status: int, words: str, **options: Any) -> Row:
    return "POST", path, token, options, status, words


def get(path: str, status: int = 404, words: str = "", token: str | None = None, **options: Any) -> Row:
    return "GET", path, token, options, status, words


BASIC = {"Authorization": "Basic X190b2tlbl9fOnJvdmVfYWJj"}

REQUESTS: dict[str, Row] = {
    "upload: no token": put("acme/bad-sums/1.0", None, 401, "a token is required"),
    "upload: forged token": put("acme/bad-sums/1.0", "rove_" + "A" * 43, 401, "unknown token"),
    "upload: a token's hash as token": put("acme/bad-sums/1.0", hashlib.sha256(b"").hexdigest(), 401, "invalid token"),
    "upload: very long token": put("acme/bad-sums/1.0", "rove_" + "A" * 5_000, 401, "invalid token"),
    "upload: expired token": put("acme/bad-sums/1.0", "expired", 401, "has expired"),
    "upload: token that reads": put("acme/bad-sums/1.0", "reads", 403, "may not upload to acme/bad-sums"),
    "upload: token of another environment": put("acme/bad-sums/1.0", "one", 403, "may not upload to acme/bad-sums"),
    "upload: token of another owner": put("acme/bad-sums/1.0", "zeta-admin", 403, "may not upload to acme/bad-sums"),
    "upload: password of a browser": put("acme/bad-sums/1.0", None, 401, "Bearer", headers=BASIC),
    "upload: owner that is not there": put("nobody/bad-sums/1.0", "acme-admin", 403, "may not upload to nobody"),
    "upload: version that is there": put("acme/my-sums/1.0", "acme", 409, "cannot be changed"),
    "upload: version that is there, written otherwise": put("acme/my-sums/1", "acme", 409, "cannot be changed"),
    "upload: private version that is there": put("acme/secret/1.0", "acme", 409, "cannot be changed"),
    "upload: name that differs by case": put("acme/My-Sums/2.0", "acme", 400, "not normalized"),
    "upload: name that differs by a dot": put("acme/my.sums/2.0", "acme", 400, "not normalized"),
    "upload: name without its dash": put("acme/mysums/2.0", "acme", 409, "is too similar to the existing acme/my-sums"),
    "upload: name that looks alike": put(
        "acme/rny-sums/2.0", "acme", 409, "is too similar to the existing acme/my-sums"
    ),
    "upload: name in Cyrillic": put("acme/m\u0443-sums/2.0", "acme", 400, "is not a valid environment name"),
    "upload: name in wide letters": put("acme/\uff4dy-sums/2.0", "acme", 400, "is not a valid environment name"),
    "upload: reserved name": put("acme/simple/2.0", "acme", 400, "reserved"),
    "upload: name that leads out": put("acme/..%2f..%2fevil/1.0", "acme", 400, "is not a valid environment name"),
    "upload: name with a zero byte": put("acme/bad%00sums/1.0", "acme", 400, "is not a valid environment name"),
    "upload: very long name": put(f"acme/{'a' * 65}/1.0", "acme", 400, "1 to 64"),
    "upload: version that leads out": put("acme/bad-sums/..%2f..%2f9", "acme", 400, "is not a valid version"),
    "upload: version with a local part": put("acme/bad-sums/1.0+evil", "acme", 400, "local part"),
    "upload: script in the version": put("acme/bad-sums/%3Cscript%3E", "acme", 400, "is not a valid version"),
    "upload: not signed, though it has to be": put("signed/bad-sums/1.0", "signed", 422, "every upload must be signed"),
    "upload: JSON": ("PUT", NEW_VERSION_PATH, "acme", {"json": {}}, 415, "expected multipart/form-data"),
    "upload: no length": put("acme/bad-sums/1.0", "acme", 411, "send Content-Length", chunked=True),
    "upload: compressed once more": put(
        "acme/bad-sums/1.0", "acme", 415, "Content-Encoding", headers={"Content-Encoding": "gzip"}
    ),
    "upload: method of another": post(NEW_VERSION_PATH, "acme", 405, "method not allowed"),
    "visibility: a private one shown by who may upload": (
        "PUT",
        VISIBLE,
        "uploads",
        {"json": {"visibility": "public"}},
        403,
        "may not show or hide",
    ),
    "visibility: by another owner": ("PUT", VISIBLE, "zeta-admin", {"json": {"visibility": "public"}}, 403, "may not"),
    "visibility: without a token": (
        "PUT",
        VISIBLE,
        None,
        {"json": {"visibility": "public"}},
        401,
        "a token is required",
    ),
    "visibility: of no kind": ("PUT", VISIBLE, "acme-admin", {"json": {"visibility": SCRIPT}}, 400, "expected"),
    "yank: by another owner": post(YANK_PATH, "zeta", 403, "may not upload to acme/my-sums", json={"reason": "mine"}),
    "yank: without a token": post(YANK_PATH, None, 401, "a token is required", json={"reason": "mine"}),
    "yank: script": post(YANK_PATH, "acme", 400, "plain text", json={"reason": SCRIPT}),
    "yank: lines": post(YANK_PATH, "acme", 400, "plain text", json={"reason": "a\nb"}),
    "yank: very long": post(YANK_PATH, "acme", 400, "at most 500", json={"reason": "a" * 501}),
    "yank: JSON that nests too deep": post(YANK_PATH, "acme", 400, "cannot be decoded", data=b"[" * 300_000),
    "yank: body too large": post(YANK_PATH, "acme", 413, "too large", data=b"a" * (5 << 20)),
    "runs: script": post(RUNS, "acme", 400, "model's name", json={"model": SCRIPT, "summary": {}}),
    "runs: no object": post(RUNS, "acme", 400, "malformed", json=[1]),
    "runs: no summary": post(RUNS, "acme", 400, "malformed", json={"model": "m"}),
    "runs: huge summary": post(
        RUNS, "acme", 413, "expected at most", json={"model": "m", "summary": {"a": "a" * 70_000}}
    ),
    "runs: of a version that is not there": post(
        RUNS.replace("1.0", "9"), "acme", 404, "this hub has no", json={"model": "m", "summary": {}}
    ),
    "runs: by another owner": post(RUNS, "zeta", 403, "may not", json={"model": "m", "summary": {}}),
    "read: private": get("/acme/secret/1.0/manifest.json"),
    "read: private, with another owner's token": get("/acme/secret/1.0/manifest.json", token="zeta-admin"),
    "read: private, by who may only upload": get("/acme/secret/1.0/manifest.json", token="uploads"),
    "read: forged token": get("/acme/my-sums/index.json", 401, "unknown token", token="rove_" + "B" * 43),
    "read: expired token": get("/acme/my-sums/index.json", 401, "has expired", token="expired"),
    "read: garbage for a password": get("/acme/simple/", 401, "__token__", headers={"Authorization": "Basic ####"}),
    "read: the tables": get("/hub.sqlite"),
    "read: the tables, by a path": get("/acme/my-sums/1.0/..%2f..%2f..%2f..%2fhub.sqlite"),
    "read: a path out": get("/acme/my-sums/1.0/..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd"),
    "read: a path out, in a version": get("/acme/my-sums/%2e%2e%2f%2e%2e/hub.sqlite"),
    "read: a path out, of results": get("/acme/my-sums/1.0/runs/..%2fmanifest.json"),
    "read: a zero byte": get("/acme/my-sums/1.0/manifest.json%00.txt"),
    "read: SQL": get("/acme/my-sums/1.0/'%20OR%20'1'='1"),
    "read: SQL in a search": get("/api/search?limit=1;DROP%20TABLE%20owners", 400, "limit"),
    "read: script in a path": get("/%3Cscript%3Ealert(1)%3C/script%3E/x/index.json"),
    "read: a very long query": get(f"/api/search?q={'a' * 5_000}", 400, "too long"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_hostile_request_is_refused(target: HubUnderAttack, case: str):
    method, path, token, options, status, words = REQUESTS[case]
    options = dict(options)
    if options.pop("upload", False):
        body = target.hub.run(encode_form(target.parts))
        options["headers"] = {"Content-Type": body[0], **options.pop("headers", {})}
        options["data"] = stream_without_length(body[1]) if options.pop("chunked", False) else body[1]
    url = URL(target.hub.client.url + path.replace("\u0443", "%D1%83").replace("\uff4d", "%EF%BD%8D"), encoded=True)
    response = target.hub.run(target.hub.client.request(method, url, token, **options))
    assert (response.status, response.headers["Content-Type"]) == (status, "application/json"), response.text
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert re.search(words, response.error), response.error
    check_nothing_written(target)


async def encode_form(parts: Parts) -> tuple[str, bytes]:
    """Return the content type and the bytes of the form."""
    payload = form(parts)()
    return payload.headers["Content-Type"], await payload.as_bytes()


async def stream_without_length(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body without declaring its length."""
    yield body


@pytest.mark.parametrize("forged", ["another's key", "does not match", "of another key's name"])
def test_a_forged_signature_is_refused(target: HubUnderAttack, forged: str):
    own_key, other_key = load_key(target.keys / "own.key"), load_key(target.keys / "other.key")
    content = target.parts["manifest"]
    signature = {
        "another's key": sign(content, other_key),
        "does not match": sign(content + b" ", own_key),
        "of another key's name": canonical(
            {**msgspec.json.decode(sign(content, other_key)), "key": msgspec.json.decode(sign(content, own_key))["key"]}
        ),
    }[forged]
    response = target.hub.run(
        target.hub.client.upload("signed/bad-sums/1.0", {**target.parts, "signature": signature}, "signed")
    )
    assert (response.status, "sign" in response.error) == (422, True), response.text
    check_nothing_written(target)


# Bytes

HEAD = (
    f"PUT {NEW_VERSION_PATH} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer TOKEN\r\n"
    "Content-Type: multipart/form-data; boundary=b\r\n"
)
SMUGGLED = (
    f"PUT {VISIBLE} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer ADMIN\r\nContent-Length: 23\r\n\r\n"
    + '{"visibility":"public"}'
)
PART = '--b\r\nContent-Disposition: form-data; name="manifest"\r\n\r\n'


def request(extra: str, body: str = "") -> str:
    return f"{HEAD}{extra}\r\n\r\n{body}"


BYTES: dict[str, tuple[str, str]] = {
    "smuggling: length and chunks": (
        request("Content-Length: 5\r\nTransfer-Encoding: chunked", f"0\r\n\r\n{SMUGGLED}"),
        "400",
    ),
    "smuggling: chunks and length": (
        request("Transfer-Encoding: chunked\r\nContent-Length: 5", f"0\r\n\r\n{SMUGGLED}"),
        "400",
    ),
    "smuggling: two lengths": (request(f"Content-Length: 0\r\nContent-Length: {len(SMUGGLED)}", SMUGGLED), "400"),
    "smuggling: a list of lengths": (request("Content-Length: 0, 5", SMUGGLED), "400"),
    "smuggling: length with a sign": (request("Content-Length: +0", SMUGGLED), "400"),
    "smuggling: negative length": (request("Content-Length: -1", SMUGGLED), "400"),
    "smuggling: length in hexadecimal": (request("Content-Length: 0x0", SMUGGLED), "400"),
    "smuggling: space before the colon": (request("Content-Length : 0", SMUGGLED), "400"),
    "smuggling: folded header": (request("Content-Length: 0\r\n Transfer-Encoding: chunked", SMUGGLED), "400"),
    "smuggling: two encodings": (
        request("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", f"0\r\n\r\n{SMUGGLED}"),
        "400",
    ),
    "smuggling: encoding with a tab": (request("Transfer-Encoding: x\x0bchunked", f"0\r\n\r\n{SMUGGLED}"), "400"),
    "smuggling: chunk without a size": (request("Transfer-Encoding: chunked", f"zz\r\n\r\n{SMUGGLED}"), "4(00|11)"),
    "smuggling: zero byte in a header": (request("X: a\0b\r\nContent-Length: 0", SMUGGLED), "400"),
    "smuggling: a bare line feed": (request("X: a\nContent-Length: 0", SMUGGLED), "400"),
    "head: no HTTP": ("hello\r\n\r\n", "400"),
    "head: very long header": (request(f"X: {'a' * 20_000}\r\nContent-Length: 0"), "400"),
    "head: very long path": (f"GET /{'a' * 20_000} HTTP/1.1\r\nHost: h\r\n\r\n", "400|414"),
    "head: very many headers": (request("\r\n".join(f"X{i}: a" for i in range(50_000))), "4.."),
    "body: larger than anything may be": (request(f"Content-Length: {MAX_UPLOAD_BYTES + 1}", "a"), "413"),
    "body: cut off": (request("Content-Length: 5000", f"{PART}abc"), "closed"),
    "body: no parts": (request("Content-Length: 5", "hello"), "400"),
    "body: parts without an end": (request(f"Content-Length: {len(PART) + 3}", f"{PART}abc"), "400"),
    "body: part with a huge header": (request("Content-Length: 30003", f"--b\r\nX: {'a' * 29_995}"), "400"),
    "body: parts in a part": (
        request(
            "Content-Length: 90",
            "--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n\r\n--c--\r\n--b--\r\n".ljust(90),
        ),
        "400",
    ),
    "slow: body that stops": (request("Content-Length: 5000", f"{PART}abc") + "WAIT", "408"),
    "slow: body that does not begin": (request("Content-Length: 5000") + "WAIT", "408"),
    "slow: body that drips": (request("Content-Length: 5000", PART) + "DRIP", "408"),
    "slow: head that stops": (f"GET /index.json HTTP/1.1\r\nHost: h\r\nX: {'a' * 5_000}" + "WAIT", "closed"),
    "slow: nothing at all": ("WAIT", "closed"),
}


@pytest.mark.parametrize("case", some_quick(BYTES, 6))
def test_hostile_bytes_are_refused(target: HubUnderAttack, case: str):
    content, expected = BYTES[case]
    tokens = target.hub.client.tokens
    raw = content.replace("TOKEN", tokens["acme"]).replace("ADMIN", tokens["acme-admin"]).encode("latin-1")
    payload, wait_mark, drip_mark = (raw.removesuffix(b"WAIT").removesuffix(b"DRIP"), b"WAIT", b"DRIP")
    url = URL(target.hub.client.url)
    with socket.create_connection((url.host, url.port), timeout=10) as connection:
        connection.sendall(payload)
        if raw.endswith(drip_mark):
            for _ in range(40):
                time.sleep(0.1)
                try:
                    connection.sendall(b"a")
                except OSError:
                    break
        elif expected == "closed" and not raw.endswith(wait_mark):
            connection.shutdown(socket.SHUT_WR)
        responses = b""
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(1 << 16):
                responses += chunk
    statuses = re.findall(rb"HTTP/1\.[01] (\d+) ", responses)
    assert b"200" not in statuses and b"201" not in statuses, responses
    if expected == "closed":
        assert statuses in ([], [b"400"]), responses
    else:
        assert re.fullmatch(expected, statuses[0].decode()), responses
    check_nothing_written(target)


def test_the_hub_still_responds_after_the_attacks(target: HubUnderAttack):
    """The refused requests have not damaged the hub. Runs after the tables above."""
    assert target.hub.run(target.hub.client.get("/index.json"))["environments"][0]["name"] == "my-sums"
    assert len(PACKAGES) + len(REQUESTS) + len(BYTES) > 150


@pytest.mark.broad
def test_a_valid_upload_succeeds_after_the_refused_ones(target: HubUnderAttack):
    """The positive control of the first table, and therefore the last test: the same upload without an attack succeeds."""
    assert target.hub.run(target.hub.client.upload(f"acme/{NAME}/1.0", target.parts)).status == 201
