"""Hostile uploads and requests, one per row: each is refused with a reason, and nothing is written."""

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
from hubs import InThread, add, form, list_again, listing, package
from packages import MODULE, source_files, tarred, wheel_files, with_record, zipped
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
from rove.hub.server.uploads import MAX_UPLOAD_BYTES, Pace

SCRIPT = "<script>alert(1)</script>"
NAME, WHEEL = "bad-sums", "bad_sums-1.0-py3-none-any.whl"
INFO = "bad_sums-1.0.dist-info"
NEW = f"/api/environments/acme/{NAME}/1.0"
Parts = dict[str, bytes]


class Room(NamedTuple):
    """A hub with a public and a private package, and what it holds before anybody attacks it."""

    hub: InThread
    folder: Path
    parts: Parts
    """Of a right package, `bad-sums` 1.0, which is nowhere yet."""
    keys: Path
    before: dict[str, str]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    place = tmp_path_factory.mktemp("hostile")
    server_patch = pytest.MonkeyPatch()
    # A busy machine may leave a good connection alone for more than half a second before it reads its request.
    for name, seconds in {"KEEPALIVE_TIMEOUT_S": 2.0, "LINGERING_TIME_S": 0.5}.items():
        server_patch.setattr(app, name, seconds)
    store = Store(place / "hub")
    public = make_key(place / "own.key")
    make_key(place / "other.key")
    store.add_owner("acme")
    store.add_owner("signed", [public])
    add(store, "acme", "my-sums")
    store.set_private("acme", "secret", True, Access("acme", ("admin",)))
    add(store, "acme", "secret")
    made = {
        "reads": make_token(store.database, "acme", ["read"]),
        "one": make_token(store.database, "acme", ["upload:acme/other"]),
        "expired": make_token(store.database, "acme", days=1e-9),
        "signed": make_token(store.database, "signed"),
        "uploads": make_token(store.database, "acme", ["upload:acme/*"]),
    }
    store.close()
    hub = InThread(place / "hub", pace=Pace(uploads=2, seconds=1.5, idle_seconds=0.5))
    hub.asking.tokens = {**hub.asking.tokens, **made}
    try:
        yield Room(hub, place / "hub", package(place / "p", NAME), place, listing(place / "hub"))
    finally:
        hub.close()
        server_patch.undo()


def unharmed(room: Room) -> None:
    """Nothing was written; what a connection that broke off has left goes within a moment."""
    until = time.monotonic() + 10
    while listing(room.folder) != room.before and time.monotonic() < until:
        time.sleep(0.05)
    assert listing(room.folder) == room.before


# Packages


def manifest(parts: Parts, **fields: Any) -> Parts:
    """The same with other fields in its manifest."""
    return {**parts, "manifest": canonical({**msgspec.json.decode(parts["manifest"]), **fields})}


def archive(kind: str, made: Callable[[], bytes]) -> Callable[[Parts], Parts]:
    """Another wheel or source archive, made when it is needed, which the manifest describes as it is."""

    def change(parts: Parts) -> Parts:
        content = made()
        files = msgspec.json.decode(parts["manifest"])["files"]
        for file in files:
            if file["kind"] == kind:
                file["sha256"], file["size"] = hashlib.sha256(content).hexdigest(), len(content)
        return {**manifest(parts, files=files), kind: content}

    return change


def wheel(more: dict[str, bytes], modes: dict[str, int] | None = None, **options: Any) -> Callable[[Parts], Parts]:
    """A wheel with more files."""
    return archive("wheel", lambda: zipped(with_record({**wheel_files(NAME, **options), **more}), modes))


def source(extra: dict[str, bytes], kinds: dict[str, bytes] | None = None) -> Callable[[Parts], Parts]:
    """A source archive with more entries."""
    return archive("source", lambda: tarred({**source_files(NAME), **extra}, kinds))


def renamed(name: str) -> bytes:
    """A wheel in which the file `xx` is called otherwise, of one length."""
    content = zipped(with_record({**wheel_files(NAME), "x" * len(name): b"evil"}))
    return content.replace(b"x" * len(name), name.encode())


def top(*paths: str) -> Callable[[Parts], Parts]:
    """A wheel with more files, each of which is a module that works."""
    return wheel(dict.fromkeys(paths, MODULE))


def points(text: str) -> Callable[[Parts], Parts]:
    """A wheel with entry points."""
    return wheel({f"{INFO}/entry_points.txt": text.encode()})


def own(*paths: str) -> Callable[[Parts], Parts]:
    """A wheel with these files instead of its module."""
    return archive("wheel", lambda: zipped(with_record(wheel_files(NAME, modules=dict.fromkeys(paths, MODULE)))))


def recorded(old: bytes, new: bytes) -> Callable[[Parts], Parts]:
    """A wheel with a RECORD that lies."""

    def made() -> bytes:
        files = with_record(wheel_files(NAME))
        return zipped({**files, f"{INFO}/RECORD": files[f"{INFO}/RECORD"].replace(old, new)})

    return archive("wheel", made)


def tar(change: Callable[[bytes], bytes], form: int = tarfile.USTAR_FORMAT) -> Callable[[Parts], Parts]:
    """A source archive whose bytes, unpacked, are changed."""
    return archive("source", lambda: gzip.compress(change(gzip.decompress(tarred(source_files(NAME), form=form)))))


def header(**fields: Any) -> bytes:
    """A tar header with other fields, and a right checksum."""
    info = tarfile.TarInfo("bad_sums-1.0/evil")
    for name, value in fields.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.USTAR_FORMAT)


def bomb(size: int = 100 << 20) -> bytes:
    """A wheel of few bytes that unpacks to many."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made, made.open("bad_sums.py", "w") as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return stream.getvalue()


def text(**fields: Any) -> tuple[Callable[[Parts], Parts], int, str]:
    """A row: script in a field of the manifest."""
    return (
        lambda parts: manifest(parts, **fields),
        422,
        r"browser would execute|is invalid|is not a valid|cannot be|not normalized|requires Python|expected https",
    )


def marker(depth: int) -> str:
    """A dependency with nested parentheses."""
    return f"a; {'(' * depth}os_name == 'x'{')' * depth}"


OWN_ENTRY_POINTS = "[rove.environments]\nbad-sums = bad_sums\n"
PKG_INFO = b"Metadata-Version: 2.3\nName: bad-sums\nVersion: 1.0\n"
UNPACKED = ("wheel", "start", "hides", "compiled", "path", "points", "record", "nested")
"""Beginnings of the cases that a client meets as well: it takes wheels and manifests."""
PARTS = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(1_500))
"""Parts in parts of a message, for the parser of e-mail that reads metadata."""

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
        archive("wheel", lambda: zipped(with_record(wheel_files("other")))),
        422,
        "METADATA describes other",
    ),
    "wheel: dependency from a URL": (
        wheel({}, extra="Requires-Dist: evil @ https://evil.example/evil.whl\n"),
        422,
        "depends on evil from",
    ),
    "wheel: no load_environment": (
        archive("wheel", lambda: zipped(with_record(wheel_files(NAME, modules={"bad_sums.py": b"x = 1\n"})))),
        422,
        "load_environment",
    ),
    "wheel: source nested too deep": (
        archive(
            "wheel", lambda: zipped(with_record(wheel_files(NAME, modules={"bad_sums.py": b"x = " + b"(" * 99_999})))
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
    "start: _distutils_hack": (top("_distutils_hack/__init__.py"), 422, "not named like the package"),
    "start: usercustomize": (top("usercustomize.py"), 422, "would hide"),
    "start: sitecustomize, a package": (top("sitecustomize/__init__.py"), 422, "would hide"),
    "start: a .pth of another case": (top("evil.PTH"), 422, "whenever Python starts"),
    "start: a .pth in purelib": (top("bad_sums-1.0.data/purelib/evil.pth"), 422, "outside of the modules"),
    "start: a .pth in platlib": (top("bad_sums-1.0.data/platlib/evil.pth"), 422, "outside of the modules"),
    "start: a .pth in data": (top("bad_sums-1.0.data/data/evil.pth"), 422, "outside of the modules"),
    "start: headers": (top("bad_sums-1.0.data/headers/evil.h"), 422, "outside of the modules"),
    "start: .data of another case": (top("bad_sums-1.0.DATA/scripts/pip"), 422, "outside of the modules"),
    "start: .egg-link": (top("bad_sums.egg-link"), 422, "whenever Python starts"),
    "start: .start": (top("evil.start"), 422, "whenever Python starts"),
    "start: an editable finder": (top("__editable___bad_sums_finder.py"), 422, "not named like the package"),
    "start: .egg-info": (top("evil.egg-info/PKG-INFO"), 422, "is not a valid module name"),
    "start: a zip of modules": (top("python311.zip"), 422, "not allowed next to the module"),
    "start: metadata of another package": (top("pip-99.dist-info/METADATA"), 422, "2 folders"),
    "start: provenance": (top(f"{INFO}/direct_url.json"), 422, "not part of a wheel's metadata"),
    "start: entry points of another case": (top(f"{INFO}/Entry_Points.txt"), 422, "not part of a wheel's metadata"),
    "start: modules of others": (wheel({f"{INFO}/top_level.txt": b"bad_sums\nrove\n"}), 422, "its only module is"),
    "start: two roots": (
        wheel(
            {f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nRoot-Is-Purelib: true\nTag: py3-none-any"}
        ),
        422,
        "more than once",
    ),
    **{
        f"hides: {module}": (top(f"{module}/__init__.py"), 422, "would hide")
        for module in ("yarl", "multidict", "markdown_it", "typing_extensions", "cryptography", "openai", "google")
    },
    "hides: a second module": (top("bad_sums_helpers.py"), 422, "not named like the package"),
    "hides: a module and a package": (top("bad_sums/__init__.py"), 422, "are both top-level modules"),
    "hides: only a folder without modules": (own("bad_sums/part.py"), 422, "__init__.py has none"),
    "hides: another name": (own("good_sums.py"), 422, "'good_sums' is not named like the package"),
    "hides: a private name": (own("_bad_sums.py"), 422, "not named like the package"),
    "hides: a data folder": (wheel({"data/rows.json": b""}), 422, "not named like the package"),
    "compiled: a versioned library": (top("lib.so.1"), 422, "compiled code"),
    "compiled: in the package": (own("bad_sums/__init__.py", "bad_sums/lib.so.1.2"), 422, "compiled code"),
    "compiled: stable ABI": (top("bad_sums.abi3.so"), 422, "compiled code"),
    "compiled: of Windows": (top("bad_sums.PYD"), 422, "compiled code"),
    "compiled: bytecode": (top("__pycache__/bad_sums.cpython-311.pyc"), 422, "compiled code"),
    "path: device of Windows": (own("bad_sums/__init__.py", "bad_sums/CON.py"), 422, "device name on Windows"),
    "path: device with a suffix": (own("bad_sums/__init__.py", "bad_sums/aux.txt"), 422, "device name on Windows"),
    "path: folder named like a device": (
        own("bad_sums/__init__.py", "bad_sums/com1/a.py"),
        422,
        "device name on Windows",
    ),
    "path: ends with a dot": (own("bad_sums/__init__.py", "bad_sums/a.py."), 422, "trailing dot"),
    "path: ends with a space": (own("bad_sums/__init__.py", "bad_sums/a.py "), 422, "trailing space"),
    "path: wildcard": (own("bad_sums/__init__.py", "bad_sums/*.py"), 422, "Windows does not allow"),
    "path: stream of NTFS": (own("bad_sums/__init__.py", "bad_sums/a.py:b"), 422, "absolute"),
    "path: folders that differ by case": (
        own("bad_sums/__init__.py", "Bad_Sums/a.py"),
        422,
        "are both top-level modules",
    ),
    "points: plugin of pytest": (points("[pytest11]\nevil = bad_sums\n"), 422, r"the group \[pytest11\]"),
    "points: command of distutils": (points("[distutils.commands]\nbuild = bad_sums:B\n"), 422, "the group"),
    "points: commands, with spaces": (points("[ console_scripts ]\npip = bad_sums:f\n"), 422, "the group"),
    "points: commands, in other case": (points("[Console_Scripts]\npip = bad_sums:f\n"), 422, "the group"),
    "points: commands, in two brackets": (points("[[console_scripts]]\npip = bad_sums:f\n"), 422, "has the line"),
    "points: an indented group": (points(f"{OWN_ENTRY_POINTS} [pytest11]\n evil = bad_sums\n"), 422, "has the line"),
    "points: a group after a line end": (
        points(f"{OWN_ENTRY_POINTS.strip()}\r[pytest11]\revil = bad_sums\n"),
        422,
        "has the line",
    ),
    "points: a default group": (points(f"[DEFAULT]\nevil = bad_sums\n{OWN_ENTRY_POINTS}"), 422, "the group"),
    "points: a group twice": (points(OWN_ENTRY_POINTS + OWN_ENTRY_POINTS), 422, "cannot be read"),
    "points: an environment twice": (
        points(f"{OWN_ENTRY_POINTS}bad-sums = bad_sums:load_environment\n"),
        422,
        "cannot be read",
    ),
    "points: another delimiter": (points("[rove.environments]\nbad-sums : bad_sums\n"), 422, "has the line"),
    "points: another's environment": (
        points("[rove.environments]\nmy-sums = bad_sums\n"),
        422,
        "environment 'my-sums'",
    ),
    "points: another's module": (points("[rove.environments]\nbad-sums = my_sums\n"), 422, "names 'my_sums'"),
    "points: another's attribute": (points("[rove.environments]\nbad-sums = bad_sums:f\n"), 422, "names 'bad_sums:f'"),
    "points: not in ASCII": (points(f"\ufeff{OWN_ENTRY_POINTS}"), 422, "cannot be read"),
    "record: a file that is not there": (recorded(b"bad_sums.py,", b"../../evil.py,"), 422, "RECORD"),
    "record: another hash": (recorded(b"sha256=", b"sha256=A"), 422, "does not match its RECORD"),
    "record: no hash": (recorded(b",sha256=", b",md5="), 422, "does not match its RECORD"),
    "nested: marker in METADATA": (wheel({}, extra=f"Requires-Dist: {marker(2_000)}\n"), 422, "cannot be read"),
    "nested: short marker in METADATA": (wheel({}, extra=f"Requires-Dist: {marker(200)}\n"), 422, "200 parentheses"),
    "nested: marker in the manifest": (lambda p: manifest(p, dependencies=[marker(2_000)]), 422, "length <= 500"),
    "nested: short marker in the manifest": (lambda p: manifest(p, dependencies=[marker(200)]), 422, "200 parentheses"),
    "nested: Requires-Python": (wheel({}, extra="Requires-Python: " + ">=3," * 9_999 + "\n"), 422, "metadata"),
    "nested: parts of METADATA": (
        archive("wheel", lambda: zipped(with_record({**wheel_files(NAME), f"{INFO}/METADATA": PKG_INFO + PARTS}))),
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
    "tar: a second gzip": (archive("source", lambda: tarred(source_files(NAME)) * 2), 422, "after its end"),
    "tar: cut off": (tar(lambda t: t[:700]), 422, "truncated"),
    "tar: no metadata": (
        archive("source", lambda: tarred({"bad_sums-1.0/pyproject.toml": b""})),
        422,
        "no bad_sums-1.0/PKG",
    ),
    "tar: no pyproject.toml": (
        archive("source", lambda: tarred({"bad_sums-1.0/PKG-INFO": PKG_INFO})),
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


@pytest.mark.parametrize("case", some_quick(PACKAGES, 4))
def test_a_hostile_package_is_refused(room: Room, case: str):
    change, status, words = PACKAGES[case]
    answer = room.hub.run(room.hub.asking.upload(f"acme/{NAME}/1.0", change(room.parts)))
    assert answer.status == status, answer.text
    assert re.search(words, answer.error), answer.error
    unharmed(room)


@pytest.mark.parametrize("case", some_quick([case for case in PACKAGES if case.partition(":")[0] in UNPACKED], 6))
def test_a_hostile_package_of_a_hub_is_not_taken_by_a_client(room: Room, tmp_path: Path, case: str):
    """A hub is not trusted: what it would refuse in an upload is refused in a download, too."""
    parts = PACKAGES[case][0](room.parts)
    with pytest.raises((PackageError, HubError)) as error:
        asyncio.run(download(hub_of(tmp_path / "hub", parts), tmp_path))
    assert "source" in case or re.search(PACKAGES[case][2], str(error.value))


def test_the_client_takes_the_right_package(room: Room, tmp_path: Path):
    """The control of the test above."""
    assert asyncio.run(download(hub_of(tmp_path / "hub", room.parts), tmp_path)).name == WHEEL


def hub_of(folder: Path, parts: Parts) -> Path:
    """A hub in a folder that has an upload as it is, with an index of the right hashes."""
    place = folder / "acme" / NAME / "1.0"
    place.mkdir(parents=True)
    (place / "manifest.json").write_bytes(parts["manifest"])
    (place / WHEEL).write_bytes(parts["wheel"])
    list_again(folder)
    return folder


async def download(hub: Path, folder: Path) -> Path:
    """As an install does, up to where the wheel lies here."""
    async with Hub(str(hub)) as client:
        offer = await look_up(client, Reference("acme", NAME))
        return await fetch(client, offer, folder)


# Requests

VISIBLE = "/api/environments/acme/secret"
RUNS = "/api/environments/acme/my-sums/1.0/runs"
YANK = "/api/environments/acme/my-sums/1.0/yank"
Row = tuple[str, str, str | None, dict[str, Any], int, str]


def put(path: str, token: str | None, status: int, words: str, **options: Any) -> Row:
    """A row: an upload of the right package."""
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
    "upload: JSON": ("PUT", NEW, "acme", {"json": {}}, 415, "expected multipart/form-data"),
    "upload: no length": put("acme/bad-sums/1.0", "acme", 411, "send Content-Length", chunked=True),
    "upload: compressed once more": put(
        "acme/bad-sums/1.0", "acme", 415, "Content-Encoding", headers={"Content-Encoding": "gzip"}
    ),
    "upload: method of another": post(NEW, "acme", 405, "method not allowed"),
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
    "yank: by another owner": post(YANK, "zeta", 403, "may not upload to acme/my-sums", json={"reason": "mine"}),
    "yank: without a token": post(YANK, None, 401, "a token is required", json={"reason": "mine"}),
    "yank: script": post(YANK, "acme", 400, "plain text", json={"reason": SCRIPT}),
    "yank: lines": post(YANK, "acme", 400, "plain text", json={"reason": "a\nb"}),
    "yank: very long": post(YANK, "acme", 400, "at most 500", json={"reason": "a" * 501}),
    "yank: JSON that nests too deep": post(YANK, "acme", 400, "cannot be decoded", data=b"[" * 300_000),
    "yank: body too large": post(YANK, "acme", 413, "too large", data=b"a" * (5 << 20)),
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
def test_a_hostile_request_is_refused(room: Room, case: str):
    method, path, token, options, status, words = REQUESTS[case]
    options = dict(options)
    if options.pop("upload", False):
        body = room.hub.run(encoded(room.parts))
        options["headers"] = {"Content-Type": body[0], **options.pop("headers", {})}
        options["data"] = pieces(body[1]) if options.pop("chunked", False) else body[1]
    url = URL(room.hub.asking.url + path.replace("\u0443", "%D1%83").replace("\uff4d", "%EF%BD%8D"), encoded=True)
    answer = room.hub.run(room.hub.asking.ask(method, url, token, **options))
    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json"), answer.text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert re.search(words, answer.error), answer.error
    unharmed(room)


async def encoded(parts: Parts) -> tuple[str, bytes]:
    """The content type and the bytes of a body."""
    payload = form(parts)()
    return payload.headers["Content-Type"], await payload.as_bytes()


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """A body whose length nobody tells."""
    yield body


@pytest.mark.parametrize("forged", ["another's key", "does not match", "of another key's name"])
def test_a_forged_signature_is_refused(room: Room, forged: str):
    own, other = load_key(room.keys / "own.key"), load_key(room.keys / "other.key")
    content = room.parts["manifest"]
    signature = {
        "another's key": sign(content, other),
        "does not match": sign(content + b" ", own),
        "of another key's name": canonical(
            {**msgspec.json.decode(sign(content, other)), "key": msgspec.json.decode(sign(content, own))["key"]}
        ),
    }[forged]
    answer = room.hub.run(
        room.hub.asking.upload("signed/bad-sums/1.0", {**room.parts, "signature": signature}, "signed")
    )
    assert (answer.status, "sign" in answer.error) == (422, True), answer.text
    unharmed(room)


# Bytes

HEAD = (
    f"PUT {NEW} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer TOKEN\r\nContent-Type: multipart/form-data; boundary=b\r\n"
)
SNEAKED = (
    f"PUT {VISIBLE} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer ADMIN\r\nContent-Length: 23\r\n\r\n"
    + '{"visibility":"public"}'
)
PART = '--b\r\nContent-Disposition: form-data; name="manifest"\r\n\r\n'


def sent(extra: str, body: str = "") -> str:
    return f"{HEAD}{extra}\r\n\r\n{body}"


BYTES: dict[str, tuple[str, str]] = {
    "smuggling: length and chunks": (
        sent("Content-Length: 5\r\nTransfer-Encoding: chunked", f"0\r\n\r\n{SNEAKED}"),
        "400",
    ),
    "smuggling: chunks and length": (
        sent("Transfer-Encoding: chunked\r\nContent-Length: 5", f"0\r\n\r\n{SNEAKED}"),
        "400",
    ),
    "smuggling: two lengths": (sent(f"Content-Length: 0\r\nContent-Length: {len(SNEAKED)}", SNEAKED), "400"),
    "smuggling: a list of lengths": (sent("Content-Length: 0, 5", SNEAKED), "400"),
    "smuggling: length with a sign": (sent("Content-Length: +0", SNEAKED), "400"),
    "smuggling: negative length": (sent("Content-Length: -1", SNEAKED), "400"),
    "smuggling: length in hexadecimal": (sent("Content-Length: 0x0", SNEAKED), "400"),
    "smuggling: space before the colon": (sent("Content-Length : 0", SNEAKED), "400"),
    "smuggling: folded header": (sent("Content-Length: 0\r\n Transfer-Encoding: chunked", SNEAKED), "400"),
    "smuggling: two encodings": (
        sent("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", f"0\r\n\r\n{SNEAKED}"),
        "400",
    ),
    "smuggling: encoding with a tab": (sent("Transfer-Encoding: x\x0bchunked", f"0\r\n\r\n{SNEAKED}"), "400"),
    "smuggling: chunk without a size": (sent("Transfer-Encoding: chunked", f"zz\r\n\r\n{SNEAKED}"), "4(00|11)"),
    "smuggling: zero byte in a header": (sent("X: a\0b\r\nContent-Length: 0", SNEAKED), "400"),
    "smuggling: a bare line feed": (sent("X: a\nContent-Length: 0", SNEAKED), "400"),
    "head: no HTTP": ("hello\r\n\r\n", "400"),
    "head: very long header": (sent(f"X: {'a' * 20_000}\r\nContent-Length: 0"), "400"),
    "head: very long path": (f"GET /{'a' * 20_000} HTTP/1.1\r\nHost: h\r\n\r\n", "400|414"),
    "head: very many headers": (sent("\r\n".join(f"X{i}: a" for i in range(50_000))), "4.."),
    "body: larger than anything may be": (sent(f"Content-Length: {MAX_UPLOAD_BYTES + 1}", "a"), "413"),
    "body: cut off": (sent("Content-Length: 5000", f"{PART}abc"), "closed"),
    "body: no parts": (sent("Content-Length: 5", "hello"), "400"),
    "body: parts without an end": (sent(f"Content-Length: {len(PART) + 3}", f"{PART}abc"), "400"),
    "body: part with a huge header": (sent("Content-Length: 30003", f"--b\r\nX: {'a' * 29_995}"), "400"),
    "body: parts in a part": (
        sent(
            "Content-Length: 90",
            "--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n\r\n--c--\r\n--b--\r\n".ljust(90),
        ),
        "400",
    ),
    "slow: body that stops": (sent("Content-Length: 5000", f"{PART}abc") + "WAIT", "408"),
    "slow: body that does not begin": (sent("Content-Length: 5000") + "WAIT", "408"),
    "slow: body that drips": (sent("Content-Length: 5000", PART) + "DRIP", "408"),
    "slow: head that stops": (f"GET /index.json HTTP/1.1\r\nHost: h\r\nX: {'a' * 5_000}" + "WAIT", "closed"),
    "slow: nothing at all": ("WAIT", "closed"),
}


@pytest.mark.parametrize("case", some_quick(BYTES, 6))
def test_hostile_bytes_are_refused(room: Room, case: str):
    content, expected = BYTES[case]
    tokens = room.hub.asking.tokens
    sent_bytes = content.replace("TOKEN", tokens["acme"]).replace("ADMIN", tokens["acme-admin"]).encode("latin-1")
    kept, waits, drips = (sent_bytes.removesuffix(b"WAIT").removesuffix(b"DRIP"), b"WAIT", b"DRIP")
    url = URL(room.hub.asking.url)
    with socket.create_connection((url.host, url.port), timeout=10) as connection:
        connection.sendall(kept)
        if sent_bytes.endswith(drips):
            for _ in range(40):
                time.sleep(0.1)
                try:
                    connection.sendall(b"a")
                except OSError:
                    break
        elif expected == "closed" and not sent_bytes.endswith(waits):
            connection.shutdown(socket.SHUT_WR)
        answers = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 16):
                answers += piece
    statuses = re.findall(rb"HTTP/1\.[01] (\d+) ", answers)
    assert b"200" not in statuses and b"201" not in statuses, answers
    if expected == "closed":
        assert statuses in ([], [b"400"]), answers
    else:
        assert re.fullmatch(expected, statuses[0].decode()), answers
    unharmed(room)


def test_after_all_of_that_the_hub_answers(room: Room):
    """Runs last: what was refused has cost the hub nothing it needs."""
    assert room.hub.run(room.hub.asking.get("/index.json"))["environments"][0]["name"] == "my-sums"
    assert len(PACKAGES) + len(REQUESTS) + len(BYTES) > 150


def test_the_version_of_the_refused_uploads_is_free(room: Room):
    """The control of the first table, and so the last test: without its attack an upload to the same place is taken."""
    assert room.hub.run(room.hub.asking.upload(f"acme/{NAME}/1.0", room.parts)).status == 201
