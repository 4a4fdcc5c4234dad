"""Reading the files of a zip or a tar that anybody may have made: either every byte of it is what it seems, or it is refused.

Only what every program reads in the same way passes: paths that stay inside, plain files, no name twice, an index and contents
that agree, no bytes beside them, and no more bytes than `limits` allows.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from rove.core.errors import PackageError
from rove.hub.package import limits

Members = dict[str, bytes]
"""The files of an archive, by path."""
CHUNK = 1 << 16
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$", *(f"{d}{n}" for d in ("com", "lpt") for n in "0123456789¹²³")}
)
"""File names that Windows reads as devices, whatever suffix follows."""
_NOT_ON_WINDOWS = frozenset('<>"|?*')
_END = struct.Struct("<4s4H2LH")
"""The last record of a zip: signature, two disk numbers, two counts, size and place of the index, length of a comment."""
_LOCATOR = 20
"""Bytes of what stands before it in a zip of more than 4 GB, and says that its numbers are elsewhere."""
_LOCAL = struct.Struct("<4s5H3L2H")
"""What stands before each file of a zip; the last are CRC, packed size, size, and lengths of the name and the extra field."""
_AFTER = struct.Struct("<3L")
"""What stands after a file that was streamed, perhaps with a signature before it: CRC, packed size, size."""
_STREAMED = 8

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    OSError,
)
"""What the standard library raises where an archive is not what it says."""


class Budget:
    """Counts the bytes that come out of an archive, and refuses what is too much."""

    def __init__(self, name: str, packed: int):
        self.name, self.packed, self.taken = name, packed, 0

    def take(self, size: int) -> None:
        """Count some bytes more.

        Raises:
            PackageError: these are too many, of themselves or for what they were packed into.
        """
        self.taken += size
        if self.taken > limits.UNPACKED:
            raise PackageError(f"{self.name} unpacks to more than {limits.UNPACKED:,} bytes")
        if self.taken > limits.RATIO_FREE and self.taken > limits.RATIO * self.packed:
            raise PackageError(f"{self.name} unpacks to more than {limits.RATIO} times its size: it is a bomb")


def zip_members(stream: IO[bytes], name: str) -> Members:
    """All files of a zip.

    Raises:
        PackageError: see the module.
    """
    size = _check_end(stream, name)
    budget = Budget(name, size)
    members: Members = {}
    try:
        with zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
            _check_paths([info.orig_filename for info in infos], name)
            _check_layout(stream, archive, name)
            for info in infos:
                _check_entry(info, name)
            for info in infos:
                if info.is_dir():
                    continue
                with archive.open(info) as file:
                    members[info.filename] = _read(file, budget, info.filename)
                if len(members[info.filename]) != info.file_size:
                    raise PackageError(f"{name}: {info.filename!r} is cut off")
    except _UNREADABLE as error:
        raise PackageError(f"{name} is a broken zip: {error}") from None
    _check_nested(members, budget)
    return members


def tar_members(packed: IO[bytes], unpacked: IO[bytes], name: str) -> Members:
    """All files of a gzipped tar, which is unpacked to a second, empty file on the way.

    Raises:
        PackageError: see the module.
    """
    size = packed.seek(0, io.SEEK_END)
    packed.seek(0)
    budget = Budget(name, size)
    for piece in _gunzipped(packed, name):
        budget.take(len(piece))
        unpacked.write(piece)
    unpacked.seek(0)
    members: Members = {}
    paths: list[str] = []
    for info in _headers(unpacked, name):
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            kinds = {
                tarfile.SYMTYPE: "a link",
                tarfile.LNKTYPE: "a link",
                tarfile.CHRTYPE: "a device",
                tarfile.BLKTYPE: "a device",
            }
            what = kinds.get(info.type, f"an entry of type {info.type!r}")
            raise PackageError(f"{name}: {info.name!r} is {what}; only plain files and folders may be in it")
        if not info.isdir() and info.name.endswith("/"):
            raise PackageError(f"{name}: {info.name!r} is a file whose name ends with a slash, which is a folder")
        paths.append(info.name + "/" * info.isdir())
        if len(paths) > limits.FILES:
            raise PackageError(f"{name} has more than {limits.FILES:,} files")
        if info.size > limits.FILE:
            raise PackageError(f"{name}: {info.name!r} has {info.size:,} bytes; expected at most {limits.FILE:,}")
        content = unpacked.read(info.size)
        if len(content) != info.size:
            raise PackageError(f"{name}: {info.name!r} is cut off")
        unpacked.read(-info.size % tarfile.BLOCKSIZE)
        if not info.isdir():
            members[info.name] = content
    _check_paths(paths, name)
    _check_nested(members, budget)
    return members


def _check_paths(paths: list[str], name: str) -> None:
    """Paths stay inside, and mean the same file on every system; none is there twice, or both a file and a folder."""
    seen: dict[str, str] = {}
    folders: set[str] = set()
    for path in paths:
        reason = _path_fault(path)
        if reason:
            raise PackageError(f"{name}: the path {path[: limits.PATH]!r} {reason}")
        same = unicodedata.normalize("NFKC", path.rstrip("/")).casefold()
        if same in seen:
            raise PackageError(f"{name}: {path!r} and {seen[same]!r} are the same file on some systems")
        seen[same] = path
        parts = same.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    for same, path in seen.items():
        if same in folders and not path.endswith("/"):
            raise PackageError(f"{name}: {path!r} is both a file and a folder")


def _path_fault(path: str) -> str:
    parts = path.removesuffix("/").split("/")
    if len(path) > limits.PATH:
        return f"has more than {limits.PATH} characters"
    if path.startswith("/") or ":" in path:
        return "is absolute"
    if "\\" in path:
        return "has a backslash, which is a folder on some systems"
    if ".." in parts:
        return "leads out of the archive"
    if any(part in ("", ".") for part in parts):
        return "has an empty part"
    if any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for c in path):
        return "has characters that cannot be seen"
    if any(part != part.strip(" ") or part.endswith(".") for part in parts):
        return "has a part that begins or ends with a space, or ends with a dot, which some systems drop"
    return _windows_fault(parts)


def _windows_fault(parts: list[str]) -> str:
    if any(part.partition(".")[0].rstrip(" ").casefold() in _DEVICES for part in parts):
        return "has a part that is the name of a device on Windows"
    if any(_NOT_ON_WINDOWS & set(part) for part in parts):
        return "has a character that Windows does not allow"
    return ""


def _check_end(stream: IO[bytes], name: str) -> int:
    """The last record of a zip is the last thing of the file, and its index ends where that begins. Returns the file's size."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - _END.size - _LOCATOR))
    before, tail = stream.read(_LOCATOR), stream.read()
    if len(tail) < _END.size or not tail.startswith(b"PK\5\6"):
        raise PackageError(f"{name} is not a zip, or has something after its end")
    _, disk, index_disk, here, count, index, place, comment = _END.unpack(tail)
    if (
        (disk, index_disk, comment) != (0, 0, 0)
        or here != count
        or index + place + _END.size != size
        or before.startswith(b"PK\6\7")
    ):
        raise PackageError(
            f"{name}: its index does not fit the file; something stands before, between or after its parts"
        )
    if count > limits.FILES or index > limits.FILES * 2 * (46 + limits.PATH):
        raise PackageError(f"{name} has more than {limits.FILES:,} files")
    return size


def _check_layout(stream: IO[bytes], archive: zipfile.ZipFile, name: str) -> None:
    """The files follow each other, up to the index, without gaps or overlaps."""
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.header_offset != end:
            raise PackageError(
                f"{name}: there are bytes between its files, or files that overlap, at {info.filename!r}"
            )
        end = _end_of(stream, info, name)
    if end != archive.start_dir:
        raise PackageError(f"{name}: there are bytes between its files and its index")


def _end_of(stream: IO[bytes], info: zipfile.ZipInfo, name: str) -> int:
    """Where a file of a zip ends. What stands before its content, and after it where it was streamed, says what the index says:
    where these differ, one program unpacks another file than the other program."""
    stream.seek(info.header_offset)
    header = stream.read(_LOCAL.size)
    if len(header) != _LOCAL.size:
        raise PackageError(f"{name}: {info.filename!r} is cut off")
    _, _, flags, method, _, _, *told, name_length, extra_length = _LOCAL.unpack(header)
    sizes = [info.CRC, info.compress_size, info.file_size]
    path = stream.read(name_length).decode("utf-8" if flags & 0x800 else "cp437")
    is_same = (path, flags, method) == (info.orig_filename, info.flag_bits, info.compress_type)
    end = info.header_offset + _LOCAL.size + name_length + extra_length + info.compress_size
    if flags & _STREAMED:
        stream.seek(end)
        after = stream.read(_AFTER.size + 4)
        skipped = 4 if after.startswith(b"PK\7\x08") else 0
        after = after[skipped : skipped + _AFTER.size]
        is_same = is_same and told in ([0, 0, 0], sizes) and after == _AFTER.pack(*sizes)
        end += skipped + _AFTER.size
    else:
        is_same = is_same and told == sizes
    if not is_same:
        raise PackageError(f"{name}: {info.filename!r} is another file in its index than beside its content")
    if extra_length or info.extra:
        raise PackageError(
            f"{name}: {info.filename!r} has fields that only some programs read; build it with rove build"
        )
    return end


def _check_entry(info: zipfile.ZipInfo, name: str) -> None:
    if info.flag_bits & 0x41:
        raise PackageError(f"{name}: {info.filename!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise PackageError(
            f"{name}: {info.filename!r} is packed by method {info.compress_type}; expected stored or deflated"
        )
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise PackageError(f"{name}: {info.filename!r} has two sizes")
    if not (info.orig_filename.isascii() or info.flag_bits & 0x800):
        raise PackageError(f"{name}: the path {info.orig_filename!r} is not in UTF-8")
    if info.orig_filename != info.filename:
        raise PackageError(f"{name}: the path {info.orig_filename!r} has a part that some programs do not read")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFDIR if info.is_dir() else stat.S_IFREG):
        what = "a link" if kind == stat.S_IFLNK else "a device, or of another kind"
        raise PackageError(f"{name}: {info.filename!r} is {what}; only plain files may be in it")
    if info.is_dir() and info.file_size:
        raise PackageError(f"{name}: the folder {info.filename!r} has content")
    if info.file_size > limits.FILE:
        raise PackageError(f"{name}: {info.filename!r} has {info.file_size:,} bytes; expected at most {limits.FILE:,}")


def _read(file: IO[bytes] | gzip.GzipFile, budget: Budget, path: str) -> bytes:
    """A file's content, counted as it comes."""
    content = bytearray()
    while piece := file.read(CHUNK):
        budget.take(len(piece))
        content += piece
        if len(content) > limits.FILE:
            raise PackageError(f"{budget.name}: {path!r} unpacks to more than {limits.FILE:,} bytes")
    return bytes(content)


def _gunzipped(packed: IO[bytes], name: str) -> Iterator[bytes]:
    """One gzip stream, piece by piece; nothing may follow it."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        while not unpacker.eof:
            raw = unpacker.unconsumed_tail or packed.read(CHUNK)
            if not raw:
                raise PackageError(f"{name} is cut off")
            yield unpacker.decompress(raw, CHUNK)
    except zlib.error as error:
        raise PackageError(f"{name} is not a gzipped tar: {error}") from None
    if unpacker.unused_data or packed.read(1):
        raise PackageError(f"{name} has something after its end")


def _headers(unpacked: IO[bytes], name: str) -> Iterator[tarfile.TarInfo]:
    """The headers of a tar, each read before its content; at its end only zeros.

    Not tarfile.open: it reads extended headers, of any size and with regular expressions, before anybody can look at them.
    """
    while any(block := unpacked.read(tarfile.BLOCKSIZE)):
        if len(block) == tarfile.BLOCKSIZE and block[257:265] != tarfile.POSIX_MAGIC:
            raise PackageError(f"{name} is a broken tar, or one of another format than ustar; build it with rove build")
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeError, ValueError) as error:
            raise PackageError(f"{name} is a broken tar: {error}") from None
        if info.size < 0 or (info.isdir() and info.size):
            raise PackageError(f"{name}: {info.name!r} has {info.size} bytes")
        yield info
    if len(block) < tarfile.BLOCKSIZE:
        raise PackageError(f"{name} is cut off")
    while block:
        if any(block):
            raise PackageError(f"{name} has something after its end")
        block = unpacked.read(CHUNK)


def _check_nested(members: Members, budget: Budget) -> None:
    """What archives inside an archive would unpack to counts as well: zip, gzip, bzip2 and xz, which Python reads."""
    for path, content in members.items():
        _count(content, path, budget, limits.NESTED)


def _count(content: bytes, path: str, budget: Budget, depth: int) -> None:
    for unpacked in _unpacked(content, path, budget):
        if depth == 0:
            raise PackageError(f"{budget.name}: {path!r} holds archives in archives, more than {limits.NESTED} deep")
        _count(unpacked, path, budget, depth - 1)


def _unpacked(content: bytes, path: str, budget: Budget) -> Iterator[bytes]:
    """What comes out of a packed file; nothing of one that is not packed, or that nobody can unpack."""
    try:
        if content.startswith(b"PK\3\4"):
            if content.count(b"PK\1\2") > limits.FILES:
                raise PackageError(f"{budget.name}: {path!r} has more than {limits.FILES:,} files")
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for info in archive.infolist():
                    with archive.open(info) as file:
                        yield _read(file, budget, path)
        elif content.startswith(b"\x1f\x8b"):
            yield _read(gzip.GzipFile(fileobj=io.BytesIO(content)), budget, path)
        elif content.startswith((b"BZh", b"\xfd7zXZ\0")):
            yield _inflated(content, budget, path)
    except _UNREADABLE:
        return


def _inflated(content: bytes, budget: Budget, path: str) -> bytes:
    """What comes out of bzip2 or xz, in bounded memory: a file of xz may ask for gigabytes."""
    inflated = bytearray()
    while content:
        unpacker = bz2.BZ2Decompressor() if content.startswith(b"BZh") else lzma.LZMADecompressor(memlimit=limits.FILE)
        piece = unpacker.decompress(content, CHUNK)
        while piece or not (unpacker.eof or unpacker.needs_input):
            budget.take(len(piece))
            inflated += piece
            if len(inflated) > limits.FILE:
                raise PackageError(f"{budget.name}: {path!r} unpacks to more than {limits.FILE:,} bytes")
            piece = b"" if unpacker.eof else unpacker.decompress(b"", CHUNK)
        content = unpacker.unused_data
    return bytes(inflated)
