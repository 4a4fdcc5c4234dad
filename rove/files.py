"""Files and folders that are there whole or not at all, whenever the process dies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_whole(target: Path, content: bytes) -> None:
    """Write a file beside its place and rename it, so that a reader never sees half of it."""
    draft = target.with_name(f".{target.name}.draft")
    draft.write_bytes(content)
    os.replace(draft, target)


def create_folders(folder: Path) -> list[Path]:
    """Create a folder and its missing parents; return those that this call created, the innermost first."""
    try:
        folder.mkdir()
    except FileExistsError:
        folder.mkdir(exist_ok=True)  # raises if it is a file
        return []
    except FileNotFoundError:
        parents = create_folders(folder.parent)
        return [*create_folders(folder), *parents]
    return [folder]


def put_in_place(draft: Path, target: Path) -> None:
    """Rename a finished folder to its place. Dying at any moment leaves the old one or the new one, perhaps as `.NAME.old`."""
    old = target.with_name(f".{target.name}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(target, old)
    os.replace(draft, target)
    shutil.rmtree(old, ignore_errors=True)


def recover_folders(folder: Path) -> None:
    """Undo a replacement that was cut short."""
    for old in folder.glob(".*.old"):
        target = old.with_name(old.name[1:].removesuffix(".old"))
        if target.exists():
            shutil.rmtree(old)
        else:
            os.replace(old, target)


def heal(file: Path) -> None:
    """Cut a last line that was torn by a crash."""
    if not file.exists():
        return
    with file.open("rb+") as stream:
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
