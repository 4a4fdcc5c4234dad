"""Writing wheels and source archives in one way: the same files give the same bytes, whoever packs them, when and where.

Sorted, dated `DATE`, all files with the same rights, nobody's name. Only another version of zlib could compress them otherwise.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
import zlib

from rove.hub.package.archives import record_hash
from rove.hub.package.unpacking import Members

DATE = (2020, 2, 2, 0, 0, 0)
SECONDS = 1_580_601_600
"""The same date since 1970, as SOURCE_DATE_EPOCH has it."""
_GZIP = b"\x1f\x8b\x08\0" + struct.pack("<L", 0) + b"\2\xff"
"""The header of a gzip file without a date, a name or a system."""


def pack_wheel(members: Members, name: str, version: str) -> bytes:
    """A wheel of files that may come from another one: its metadata's folder is named anew, its RECORD written anew."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    old = next(path.split("/")[0] for path in members if path.split("/")[0].endswith(".dist-info"))
    files = {
        path.replace(f"{old}/", f"{info}/", 1) if path.startswith(f"{old}/") else path: members[path]
        for path in members
    }
    files.pop(f"{info}/RECORD", None)
    order = sorted(files, key=lambda path: (path.startswith(f"{info}/"), path))  # metadata last, as PEP 427 wants it
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    rows.writerows((path, record_hash(hashlib.sha256(files[path]).hexdigest()), len(files[path])) for path in order)
    rows.writerow((f"{info}/RECORD", "", ""))
    files[f"{info}/RECORD"] = record.getvalue().encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path in [*order, f"{info}/RECORD"]:
            entry = zipfile.ZipInfo(path, DATE)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, files[path], zipfile.ZIP_DEFLATED, 9)
    return stream.getvalue()


def pack_source(members: Members, name: str, version: str) -> bytes:
    """A source archive of files that lie in one folder, which is named anew.

    Raises:
        ValueError: a path is too long for a tar.
    """
    folder = f"{name.replace('-', '_')}-{version}"
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT, encoding="utf-8") as archive:
        for path in sorted(members):
            entry = tarfile.TarInfo(f"{folder}/{path.partition('/')[2]}")
            entry.size, entry.mtime, entry.mode = len(members[path]), SECONDS, 0o644
            archive.addfile(entry, io.BytesIO(members[path]))
    content = stream.getvalue()
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(content) + packer.flush()
    return _GZIP + packed + struct.pack("<LL", zlib.crc32(content), len(content) & 0xFFFFFFFF)


def unpack_wheel(content: bytes) -> Members:
    """The files of a wheel that a build backend has made here."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}


def unpack_source(content: bytes) -> Members:
    """The plain files of a source archive that a build backend has made here."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}  # pyright: ignore[reportOptionalMemberAccess]
