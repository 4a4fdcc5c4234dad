"""Read untrusted zip and tar archives strictly.

Only archives that every program reads in the same way are accepted: relative paths, regular files, unique names, an index that
matches the contents, no extra bytes, and no more bytes than `limits` allows. All other archives raise `PackageError`.
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
from rove.utils.files import UNREADABLE_ARCHIVE

Members = dict[str, bytes]
"""Files of an archive by path."""
CHUNK = 1 << 16
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"com{port}" for port in "0123456789¹²³"}
    | {f"lpt{port}" for port in "0123456789¹²³"}
)
"""File names that Windows treats as devices, with any suffix."""
_NOT_ON_WINDOWS = frozenset('<>"|?*')
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of control, format, surrogate, private and line separator characters."""
_END = struct.Struct("<4s4H2LH")
"""End record of a zip: signature, two disk numbers, two counts, size and offset of the index, comment length."""
_LOCATOR = 20
"""Size of the zip64 locator, which precedes the end record in zips above 4 GB."""
_LOCAL = struct.Struct("<4s5H3L2H")
"""Local header of a zip member, ending in CRC, packed size, size, and the lengths of the name and the extra field."""
_AFTER = struct.Struct("<3L")
"""Data descriptor after a streamed member, with an optional signature before it: CRC, packed size, size."""
_STREAMED = 8


class Budget:
    """Counts unpacked bytes and refuses archives that exceed the limits."""

    def __init__(self, name: str, packed: int):
        self.name, self.packed, self.taken = name, packed, 0

    def take(self, size: int) -> None:
        """Count `size` more unpacked bytes."""
        self.taken += size
        if self.taken > limits.MAX_UNPACKED_BYTES:
            raise PackageError(f"{self.name} unpacks to more than {limits.MAX_UNPACKED_BYTES:,} bytes")
        if self.taken > limits.RATIO_FREE_BYTES and self.taken > limits.MAX_COMPRESSION_RATIO * self.packed:
            raise PackageError(
                f"{self.name} unpacks to more than {limits.MAX_COMPRESSION_RATIO} times its size; it is a decompression bomb"
            )


def zip_members(stream: IO[bytes], name: str) -> Members:
    """Return all files of a zip."""
    size = _check_end(stream, name)
    budget = Budget(name, size)
    members: Members = {}
    try:
        with zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
            # Names as they are stored: zipfile cuts `filename` at a NUL character, other programs do not.
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
                    raise PackageError(f"{name}: {info.filename!r} is truncated")
    except UNREADABLE_ARCHIVE as error:
        raise PackageError(f"{name} is a broken zip: {error}") from None
    _check_nested(members, budget)
    return members


def _special_kind(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "a link"
    if info.ischr() or info.isblk():
        return "a device"
    return f"an entry of type {info.type!r}"


def tar_members(packed: IO[bytes], unpacked: IO[bytes], name: str) -> Members:
    """Return all files of a gzipped tar; `unpacked` is an empty temporary file for the tar."""
    size = packed.seek(0, io.SEEK_END)
    packed.seek(0)
    budget = Budget(name, size)
    for piece in _gunzipped(packed, name):
        budget.take(len(piece))  # before it is written, so that a bomb does not fill the disk
        unpacked.write(piece)
    unpacked.seek(0)
    members: Members = {}
    paths: list[str] = []
    for info in _headers(unpacked, name):
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            raise PackageError(
                f"{name}: {info.name!r} is {_special_kind(info)}; only regular files and folders are allowed"
            )
        if not info.isdir() and info.name.endswith("/"):
            raise PackageError(f"{name}: {info.name!r} is a file whose name ends with a slash, like a folder")
        paths.append(f"{info.name}/" if info.isdir() else info.name)
        if len(paths) > limits.MAX_FILES:
            raise PackageError(f"{name} has more than {limits.MAX_FILES:,} files")
        if info.size > limits.MAX_FILE_BYTES:
            raise PackageError(
                f"{name}: {info.name!r} has {info.size:,} bytes; expected at most {limits.MAX_FILE_BYTES:,}"
            )
        content = unpacked.read(info.size)
        if len(content) != info.size:
            raise PackageError(f"{name}: {info.name!r} is truncated")
        unpacked.read(-info.size % tarfile.BLOCKSIZE)
        if not info.isdir():
            members[info.name] = content
    _check_paths(paths, name)
    _check_nested(members, budget)
    return members


def _check_paths(paths: list[str], name: str) -> None:
    """Check that paths are relative, unique, and name the same file on every system."""
    names: dict[str, str] = {}
    folders: set[str] = set()
    for path in paths:
        if reason := _path_problem(path):
            raise PackageError(f"{name}: the path {path[: limits.MAX_PATH_CHARS]!r} {reason}")
        # File systems of Windows and macOS ignore case, and macOS normalizes Unicode.
        same = unicodedata.normalize("NFKC", path.rstrip("/")).casefold()
        if same in names:
            raise PackageError(f"{name}: {path!r} and {names[same]!r} are the same file on some systems")
        names[same] = path
        parts = same.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    for same, path in names.items():
        if same in folders and not path.endswith("/"):
            raise PackageError(f"{name}: {path!r} is both a file and a folder")


def _path_problem(path: str) -> str:
    """Return the reason why a path is refused, or ""."""
    parts = path.removesuffix("/").split("/")
    reasons = {
        f"has more than {limits.MAX_PATH_CHARS} characters": len(path) > limits.MAX_PATH_CHARS,
        "is absolute": path.startswith("/") or ":" in path,
        "has a backslash, which separates folders on some systems": "\\" in path,
        "leaves the archive": ".." in parts,
        "has an empty part": "" in parts or "." in parts,
        "has invisible characters": any(unicodedata.category(c) in _INVISIBLE for c in path),
        "has a part with a leading or trailing space or a trailing dot, which some systems drop": any(
            part != part.strip(" ") or part.endswith(".") for part in parts
        ),
        "has a part that is a device name on Windows": any(
            part.partition(".")[0].rstrip(" ").casefold() in _DEVICES for part in parts
        ),
        "has a character that Windows does not allow": not _NOT_ON_WINDOWS.isdisjoint(path),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _check_end(stream: IO[bytes], name: str) -> int:
    """Check that a zip ends with its end record, directly after the index; return the size of the file."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - _END.size - _LOCATOR))
    locator, tail = stream.read(_LOCATOR), stream.read()
    if len(tail) < _END.size or not tail.startswith(b"PK\5\6"):
        raise PackageError(f"{name} is not a zip, or has data after its end")
    _, disk, index_disk, disk_entries, count, index, index_offset, comment = _END.unpack(tail)
    if (
        (disk, index_disk, comment) != (0, 0, 0)
        or disk_entries != count
        or index + index_offset + _END.size != size
        or locator.startswith(b"PK\6\7")
    ):
        raise PackageError(
            f"{name}: its index does not match the file; there is data before, between or after its parts"
        )
    if count > limits.MAX_FILES or index > limits.MAX_FILES * 2 * (46 + limits.MAX_PATH_CHARS):
        raise PackageError(f"{name} has more than {limits.MAX_FILES:,} files")
    return size


def _check_layout(stream: IO[bytes], archive: zipfile.ZipFile, name: str) -> None:
    """Check that members follow each other up to the index, without gaps or overlaps."""
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
    """Return the offset where a zip member ends. Its local header, and the data descriptor of a streamed member, must match the
    index: otherwise different programs would unpack different files."""
    stream.seek(info.header_offset)
    header = stream.read(_LOCAL.size)
    if len(header) != _LOCAL.size:
        raise PackageError(f"{name}: {info.filename!r} is truncated")
    _, _, flags, method, _, _, *local_sizes, name_length, extra_length = _LOCAL.unpack(header)
    sizes = [info.CRC, info.compress_size, info.file_size]
    path = stream.read(name_length).decode("utf-8" if flags & 0x800 else "cp437")  # as zipfile decodes the index
    is_same = (path, flags, method) == (info.orig_filename, info.flag_bits, info.compress_type)
    end = info.header_offset + _LOCAL.size + name_length + extra_length + info.compress_size
    if flags & _STREAMED:
        stream.seek(end)
        descriptor = stream.read(_AFTER.size + 4)
        skipped = 4 if descriptor.startswith(b"PK\7\x08") else 0  # writers may leave out the signature
        descriptor = descriptor[skipped : skipped + _AFTER.size]
        is_same = is_same and local_sizes in ([0, 0, 0], sizes) and descriptor == _AFTER.pack(*sizes)
        end += skipped + _AFTER.size
    else:
        is_same = is_same and local_sizes == sizes
    if not is_same:
        raise PackageError(f"{name}: {info.filename!r} differs between its index and its local header")
    if extra_length or info.extra:
        raise PackageError(
            f"{name}: {info.filename!r} has extra fields that only some programs read; build it with rove build"
        )
    return end


def _check_entry(info: zipfile.ZipInfo, name: str) -> None:
    if info.flag_bits & 0x41:  # encryption, old and strong
        raise PackageError(f"{name}: {info.filename!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise PackageError(
            f"{name}: {info.filename!r} uses compression method {info.compress_type}; expected stored or deflated"
        )
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise PackageError(f"{name}: {info.filename!r} has two sizes")
    if not (info.orig_filename.isascii() or info.flag_bits & 0x800):  # programs disagree on the encoding otherwise
        raise PackageError(f"{name}: the path {info.orig_filename!r} is not in UTF-8")
    if info.orig_filename != info.filename:
        raise PackageError(f"{name}: the path {info.orig_filename!r} is read differently by some programs")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFDIR if info.is_dir() else stat.S_IFREG):
        entry_kind = "a link" if kind == stat.S_IFLNK else "a device or another special file"
        raise PackageError(f"{name}: {info.filename!r} is {entry_kind}; only regular files are allowed")
    if info.is_dir() and info.file_size:
        raise PackageError(f"{name}: the folder {info.filename!r} has content")
    if info.file_size > limits.MAX_FILE_BYTES:
        raise PackageError(
            f"{name}: {info.filename!r} has {info.file_size:,} bytes; expected at most {limits.MAX_FILE_BYTES:,}"
        )


def _read(file: IO[bytes] | gzip.GzipFile, budget: Budget, path: str) -> bytes:
    """Read a member, counting its bytes."""
    content = bytearray()
    while piece := file.read(CHUNK):
        budget.take(len(piece))
        content += piece
        if len(content) > limits.MAX_FILE_BYTES:
            raise PackageError(f"{budget.name}: {path!r} unpacks to more than {limits.MAX_FILE_BYTES:,} bytes")
    return bytes(content)


def _gunzipped(packed: IO[bytes], name: str) -> Iterator[bytes]:
    """Unpack a single gzip stream in pieces; refuse data after it."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        while not unpacker.eof:
            raw = unpacker.unconsumed_tail or packed.read(CHUNK)
            if not raw:
                raise PackageError(f"{name} is truncated")
            yield unpacker.decompress(raw, CHUNK)
    except zlib.error as error:
        raise PackageError(f"{name} is not a gzipped tar: {error}") from None
    if unpacker.unused_data or packed.read(1):
        raise PackageError(f"{name} has data after its end")


def _headers(unpacked: IO[bytes], name: str) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of a tar, each before its content; only zeros may follow the last.

    `tarfile.open` is unsafe here: it parses extended headers of any size, with regular expressions, before they can be checked.
    """
    while any(block := unpacked.read(tarfile.BLOCKSIZE)):
        if len(block) == tarfile.BLOCKSIZE and block[257:265] != tarfile.POSIX_MAGIC:
            raise PackageError(f"{name} is a broken tar or not in ustar format; build it with rove build")
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeError, ValueError) as error:
            raise PackageError(f"{name} is a broken tar: {error}") from None
        if info.size < 0 or (info.isdir() and info.size):
            raise PackageError(f"{name}: {info.name!r} has {info.size} bytes")
        yield info
    if len(block) < tarfile.BLOCKSIZE:
        raise PackageError(f"{name} is truncated")
    while block:
        if any(block):
            raise PackageError(f"{name} has data after its end")
        block = unpacked.read(CHUNK)


def _check_nested(members: Members, budget: Budget) -> None:
    """Count the unpacked bytes of nested zip, gzip, bzip2 and xz archives, too."""
    for path, content in members.items():
        _count(content, path, budget, limits.MAX_NESTING)


def _count(content: bytes, path: str, budget: Budget, depth: int) -> None:
    for unpacked in _unpacked(content, path, budget):
        if depth == 0:
            raise PackageError(f"{budget.name}: {path!r} contains archives nested more than {limits.MAX_NESTING} deep")
        _count(unpacked, path, budget, depth - 1)


def _unpacked(content: bytes, path: str, budget: Budget) -> Iterator[bytes]:
    """Yield the unpacked content of a packed file; nothing for a malformed file or any other file."""
    try:
        if content.startswith(b"PK\3\4"):
            if content.count(b"PK\1\2") > limits.MAX_FILES:
                raise PackageError(f"{budget.name}: {path!r} has more than {limits.MAX_FILES:,} files")
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for info in archive.infolist():
                    with archive.open(info) as file:
                        yield _read(file, budget, path)
        elif content.startswith(b"\x1f\x8b"):
            yield _read(gzip.GzipFile(fileobj=io.BytesIO(content)), budget, path)
        elif content.startswith((b"BZh", b"\xfd7zXZ\0")):
            yield _inflated(content, budget, path)
    except UNREADABLE_ARCHIVE:
        return


def _inflated(content: bytes, budget: Budget, path: str) -> bytes:
    """Unpack bzip2 or xz in bounded memory: an xz file can request gigabytes."""
    inflated = bytearray()
    num_streams = 0
    while content:
        num_streams += 1
        if num_streams > limits.MAX_STREAMS:
            raise PackageError(f"{budget.name}: {path!r} has more than {limits.MAX_STREAMS:,} compressed streams")
        unpacker = (
            bz2.BZ2Decompressor()
            if content.startswith(b"BZh")
            else lzma.LZMADecompressor(memlimit=limits.MAX_FILE_BYTES)
        )
        piece = unpacker.decompress(content, CHUNK)
        while piece or not (unpacker.eof or unpacker.needs_input):
            budget.take(len(piece))
            inflated += piece
            if len(inflated) > limits.MAX_FILE_BYTES:
                raise PackageError(f"{budget.name}: {path!r} unpacks to more than {limits.MAX_FILE_BYTES:,} bytes")
            piece = b"" if unpacker.eof else unpacker.decompress(b"", CHUNK)
        content = unpacker.unused_data
    return bytes(inflated)
