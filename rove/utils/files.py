"""Files and folders: atomic replacement, and reading of files from untrusted sources."""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from rove.core.errors import RunError
from rove.utils.systems import lock_file, rename, sync_files

UNREADABLE_ARCHIVE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    RuntimeError,
    OSError,
)
"""Exceptions that the standard library raises for malformed archives, or for forms of archives that it does not know."""
MAX_FILE_BYTES = 1 << 26
"""Size limit of a file that is read whole."""
MAX_LINE_BYTES = 1 << 29
"""Size limit of one line of a file of JSON lines."""
FILE_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""Descriptions of the kinds of files that are not regular."""


def cache_folder() -> Path:
    """Return rove's cache folder of this user: `$XDG_CACHE_HOME/rove`, or `~/.cache/rove`."""
    return _user_folder("XDG_CACHE_HOME", ".cache")


def config_folder() -> Path:
    """Return rove's configuration folder of this user: `$XDG_CONFIG_HOME/rove`, or `~/.config/rove`."""
    return _user_folder("XDG_CONFIG_HOME", ".config")


def data_folder() -> Path:
    """Return rove's data folder of this user: `$XDG_DATA_HOME/rove`, or `~/.local/share/rove`."""
    return _user_folder("XDG_DATA_HOME", ".local/share")


def _user_folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable, "").strip()
    folder = Path(base) if base else Path.home() / default
    return folder / "rove"


def open_regular(file: Path, mode: str = "rb") -> BinaryIO:
    """Open a regular file without following a symbolic link and without waiting for a named pipe.

    Args:
        file: a file that may be untrusted in a trusted folder.
    """
    check_regular(file)  # opening a device may already have an effect
    stream: Any = open(file, mode, opener=_opener)  # noqa: SIM115  the caller closes it
    try:  # again: the open file cannot be replaced any more
        _check_kind(file, os.fstat(stream.fileno()))
    except RunError:
        stream.close()
        raise
    return stream


def _opener(path: str, flags: int) -> int:
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # Windows has neither
    return os.open(path, flags, 0o666)


def check_regular(file: Path) -> None:
    """Refuse a symbolic link, a named pipe, a device or a folder; a file that does not exist is fine."""
    if os.path.lexists(file):
        _check_kind(file, os.lstat(file))


def _check_kind(file: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = FILE_KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
        raise RunError(f"{file} is {kind}; expected a regular file. Remove it, or put a copy of the file in its place")


def read_regular(file: Path) -> bytes:
    """Return the content of a regular file."""
    with open_regular(file) as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise RunError(f"{file} has more than {MAX_FILE_BYTES:,} bytes; expected at most that many")
    return content


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of an open file, each with its newline; the last one may have none."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise RunError(
                f"a line of {stream.name} has more than {MAX_LINE_BYTES:,} bytes; expected at most that many"
            )
        yield line


def is_text(name: str) -> bool:
    """Return whether a file name can be written as UTF-8; in other file names, Python represents bytes as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_tree(path: Path) -> None:
    """Refuse a file or folder if writing to it could change files elsewhere (through a link) or hang (at a named pipe)."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        _check_kind(path, status)
        return
    for entry in os.scandir(path):
        if not entry.is_file(follow_symlinks=False):
            check_tree(Path(entry.path))


def remove(path: Path) -> None:
    """Delete a file, a folder with its content, or a symbolic link (but not its target), if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def atomic_write(target: Path, content: bytes) -> None:
    """Write a temporary file and rename it to `target`, so that a reader never sees an incomplete file.

    Symbolic links are never followed.
    """
    draft = target.with_name(f".{target.name}.draft")
    remove(draft)  # of a process that was killed; it may also be a link
    with open_regular(draft, "wb") as stream:
        stream.write(content)
    rename(draft, target)


def create_folders(folder: Path) -> list[Path]:
    """Create a folder and its missing parents; return the folders that this call created, the innermost first."""
    try:
        folder.mkdir()
    except FileExistsError:
        folder.mkdir(exist_ok=True)  # raises if it is a file
        return []
    except FileNotFoundError:
        parents = create_folders(folder.parent)
        return [*create_folders(folder), *parents]
    return [folder]


def atomic_replace(draft: Path, target: Path) -> None:
    """Rename a finished folder to `target`. After a crash or a loss of power, the old or the new folder exists,
    perhaps as `.NAME.old`.
    """
    # Without this, a loss of power could leave the new folder with empty files.
    content = list(draft.rglob("*"))
    sync_files(*(path for path in content if path.is_file()))
    _sync_folders(draft, *(path for path in content if path.is_dir()))
    old = target.with_name(f".{target.name}.old")
    if target.exists():  # a folder that is not empty cannot be replaced in one step
        shutil.rmtree(old, ignore_errors=True)
        rename(target, old)
    rename(draft, target)
    _sync_folders(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_folders(*folders: Path) -> None:
    with suppress(OSError):  # some network file systems sync files only
        sync_files(*folders)


@contextmanager
def file_lock(file: Path) -> Iterator[None]:
    """Wait for a lock that the processes of this machine share, and hold it. The empty lock file remains afterward."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        lock_file(stream)
        yield


def recover_folders(folder: Path) -> None:
    """Undo replacements that were interrupted."""
    for old in folder.glob(".*.old"):
        name = old.name[1:].removesuffix(".old")
        if not name.strip("."):  # no replacement of rove has such a name
            continue
        target = old.with_name(name)
        if target.exists():
            remove(old)
        else:
            rename(old, target)


def truncate_torn_line(file: Path) -> None:
    """Remove an incomplete last line that a crash left behind."""
    if not file.exists():
        return
    with open_regular(file, "rb+") as stream:
        # From the end, because the file may have gigabytes.
        end = position = stream.seek(0, os.SEEK_END)
        while position > 0:
            start = max(0, position - 65536)
            stream.seek(start)
            newline = stream.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            stream.truncate(position)
