"""Hostile uploads and requests, one per row: each is refused with a reason, and nothing is written."""

from __future__ import annotations

import gzip
import io
import socket
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hubs import InThread, add, form, listing, package
from packages import source_files, tarred, wheel_files, with_record, zipped

from rove.hub import server
from rove.hub.manifest import canonical
from rove.hub.signing import make_key, load_key, sign
from rove.hub.store import Store
from rove.hub.tokens import Access, make_token
from rove.hub.uploads import LARGEST, Limits

SCRIPT = "<script>alert(1)</script>"
NAME, WHEEL = "bad-sums", "bad_sums-1.0-py3-none-any.whl"
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
    server_patch.setattr(server, "IDLE_SECONDS", 1.0)
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
    hub = InThread(place / "hub", limits=Limits(uploads=2, seconds=2.0, idle_seconds=0.7))
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


def archive(kind: str, content: bytes) -> Callable[[Parts], Parts]:
    """Another wheel or source archive, which the manifest describes as it is."""

    def change(parts: Parts) -> Parts:
        import hashlib

        files = msgspec.json.decode(parts["manifest"])["files"]
        for file in files:
            if file["kind"] == kind:
                file["sha256"], file["size"] = hashlib.sha256(content).hexdigest(), len(content)
        return {**manifest(parts, files=files), kind: content}

    return change


def wheel(extra: dict[str, bytes], modes: dict[str, int] | None = None, **options: Any) -> Callable[[Parts], Parts]:
    """A wheel with more files."""
    return archive("wheel", zipped(with_record({**wheel_files(NAME, **options), **extra}), modes))


def source(extra: dict[str, bytes], kinds: dict[str, bytes] | None = None) -> Callable[[Parts], Parts]:
    """A source archive with more entries."""
    return archive("source", tarred({**source_files(NAME), **extra}, kinds))


def renamed(name: str) -> bytes:
    """A wheel in which the file `xx` is called otherwise, of one length."""
    content = zipped(with_record({**wheel_files(NAME), "x" * len(name): b"evil"}))
    return content.replace(b"x" * len(name), name.encode())


def bomb(size: int = 300 << 20) -> bytes:
    """A wheel of few bytes that unpacks to many."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        with made.open("bad_sums.py", "w") as file:
            for _ in range(size >> 20):
                file.write(bytes(1 << 20))
    return stream.getvalue()


def text(**fields: Any) -> tuple[Callable[[Parts], Parts], int, str]:
    """A row: script in a field of the manifest."""
    return lambda parts: manifest(parts, **fields), 422, r"browser would act on|not one|cannot be|not normalised|not what"


PACKAGES: dict[str, tuple[Callable[[Parts], Parts], int, str]] = {
    "wheel: path leads out": (wheel({"../evil.py": b""}), 422, "leads out of the archive"),
    "wheel: absolute path": (wheel({"/etc/evil": b""}), 422, "absolute"),
    "wheel: drive letter": (wheel({"C:evil.py": b""}), 422, "absolute"),
    "wheel: backslashes": (wheel({"..\\evil.py": b""}), 422, "backslash"),
    "wheel: symlink": (wheel({"link": b"/etc/passwd"}, {"link": 0o120777}), 422, "link"),
    "wheel: device": (wheel({"dev": b""}, {"dev": 0o020666}), 422, "device"),
    "wheel: names that differ by case": (wheel({"data.txt": b"1", "DATA.txt": b"2"}), 422, "same file on some systems"),
    "wheel: bomb": (archive("wheel", bomb()), 422, "unpacks|bytes come out|out of|too much|more than"),
    "wheel: bomb in a bomb": (wheel({"inner.zip": bomb(60 << 20)}), 422, "unpacks|out of|more than"),
    "wheel: very many files": (wheel({f"d/{i}": b"" for i in range(5_001)}), 422, "files|5,000"),
    "wheel: huge METADATA": (wheel({}, extra=f"Keywords: {'a' * (1 << 20)}\n"), 422, "METADATA|metadata"),
    "wheel: .pth file": (wheel({"evil.pth": b"import os"}), 422, "would run whenever Python starts"),
    "wheel: sitecustomize": (wheel({"sitecustomize.py": b""}), 422, "would hide"),
    "wheel: a module of Python's": (wheel({"os.py": b""}), 422, "would hide"),
    "wheel: commands": (
        wheel({"bad_sums-1.0.dist-info/entry_points.txt": b"[console_scripts]\npip = bad_sums:f\n"}), 422, "install commands",
    ),
    "wheel: files outside of modules": (wheel({"bad_sums-1.0.data/scripts/pip": b""}), 422, "outside of the modules"),
    "wheel: something after its end": (lambda p: archive("wheel", p["wheel"] + b"PK")(p), 422, "end"),
    "wheel: something before it": (lambda p: archive("wheel", b"#!/bin/sh\n" + p["wheel"])(p), 422, "index"),
    "wheel: cut off": (lambda p: archive("wheel", p["wheel"][:-30])(p), 422, "not a zip"),
    "wheel: no zip": (archive("wheel", b"hello"), 422, "not a zip"),
    "wheel: other name within": (archive("wheel", zipped(with_record(wheel_files("other")))), 422, "METADATA says other"),
    "wheel: dependency from a URL": (
        wheel({}, extra="Requires-Dist: evil @ https://evil.example/evil.whl\n"), 422, "depends on evil from",
    ),
    "wheel: no load_environment": (
        archive("wheel", zipped(with_record(wheel_files(NAME, modules={"bad_sums.py": b"x = 1\n"})))), 422, "load_environment",
    ),
    "wheel: source nested too deep": (
        archive("wheel", zipped(with_record(wheel_files(NAME, modules={"bad_sums.py": b"x = " + b"(" * 99_999})))), 422, "no Python",
    ),
    "source: path leads out": (source({"../evil": b""}), 422, "leads out|outside"),
    "source: symlink": (source({"bad_sums-1.0/l": b"/etc/passwd"}, {"bad_sums-1.0/l": tarfile.SYMTYPE}), 422, "link"),
    "source: hard link": (source({"bad_sums-1.0/l": b"/etc/passwd"}, {"bad_sums-1.0/l": tarfile.LNKTYPE}), 422, "link"),
    "source: device": (source({"bad_sums-1.0/d": b""}, {"bad_sums-1.0/d": tarfile.CHRTYPE}), 422, "plain files|kind|device"),
    "source: bomb": (archive("source", gzip.compress(bytes(300 << 20))), 422, "more than|out of|unpacks"),
    "manifest: not JSON": (lambda p: {**p, "manifest": b"{"}, 422, "not JSON"),
    "manifest: nested too deep": (lambda p: {**p, "manifest": b"[" * 200_000}, 422, "not JSON"),
    "manifest: huge": (lambda p: manifest(p, description="a" * (300 << 10)), 413, "more than 262,144 bytes"),
    "manifest: long description": (lambda p: manifest(p, description="a" * 501), 422, "500"),
    "manifest: newer schema": (lambda p: manifest(p, schema=2), 422, "schema 2"),
    "manifest: written otherwise": (lambda p: {**p, "manifest": p["manifest"] + b" "}, 422, "one form"),
    "manifest: of another environment": (lambda p: manifest(p, name="other"), 422, ""),
    "manifest: of another version": (lambda p: manifest(p, version="9.9"), 422, ""),
    "manifest: file with a path": (
        lambda p: manifest(p, files=[{**msgspec.json.decode(p["manifest"])["files"][0], "filename": f"../{WHEEL}"}]), 422, "expected bad_sums",
    ),
    "manifest: dependencies that the wheel does not have": (lambda p: manifest(p, dependencies=[]), 422, "dependencies"),
    "manifest: text that runs backwards": (lambda p: manifest(p, description="\u202egnp.exe"), 422, "U\\+202E"),
    "manifest: terminal codes": (lambda p: manifest(p, licence="\x1b[2J"), 422, "U\\+001B"),
    "hash: wheel changed on its way": (lambda p: {**p, "wheel": p["wheel"][:-1] + b"\1"}, 422, "not the file that was promised"),
    "hash: source changed on its way": (lambda p: {**p, "source": p["source"] + b"\0"}, 422, "not the file that was promised"),
    "parts: no wheel": (lambda p: {"manifest": p["manifest"]}, 400, "no part wheel"),
    "parts: no source, though it is named": (lambda p: {k: v for k, v in p.items() if k != "source"}, 422, "is missing"),
    "parts: one of no known name": (lambda p: {**p, "../../evil": b""}, 400, "a part of this upload is '../../evil'"),
    "parts: README that is no text": (lambda p: {**p, "readme": b"\xff\xfe\x00"}, 422, "not UTF-8"),
    "parts: huge README": (lambda p: {**p, "readme": b"a" * (2 << 20)}, 413, "readme has more than"),
    "parts: huge signature": (lambda p: {**p, "signature": b"a" * 9_000}, 413, "signature has more than"),
    "signature: none at all": (lambda p: {**p, "signature": b"signed"}, 422, "no signature"),
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
    "script: players": text(players={SCRIPT: {"reward": 1.0, "n": 1}}),
    "script: secrets": text(needs={"network": False, "secrets": [SCRIPT], "sandbox": False}),
    "script: data sources": text(data_sources=["javascript:alert(1)"]),
    "script: arguments": text(arguments=[{"name": "n", "type": "int", "default": f"'{SCRIPT}'"}]),
    "script: repository": text(source={"repository": "JavaScript:alert(1)", "commit": "", "builder": ""}),
    "script: builder": text(source={"repository": "", "commit": "", "builder": SCRIPT}),
    "script: a field of a newer rove": text(novelty=SCRIPT),
}


@pytest.mark.parametrize("case", PACKAGES)
def test_a_hostile_package_is_refused(room: Room, case: str):
    change, status, words = PACKAGES[case]
    answer = room.hub.run(room.hub.asking.upload(f"acme/{NAME}/1.0", change(room.parts)))
    assert answer.status == status, answer.text
    assert pytest.importorskip("re").search(words, answer.error), answer.error
    unharmed(room)
