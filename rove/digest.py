"""Short names for content: the same content has the same name on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def digest_files(files: Iterable[Path]) -> str:
    """Hash of files by name, size and at most their first and last megabyte, as 12 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(files):
        size = file.stat().st_size
        with file.open("rb") as content:
            digest.update(f"{file.name} {size} ".encode() + content.read(1 << 20))
            content.seek(max(0, size - (1 << 20)))
            digest.update(content.read())
    return digest.hexdigest()


def digest_model(model: str | Path) -> str:
    """A model's name; for a folder what tells its weights and its words from others, wherever it lies."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return str(model)
    patterns = ("*.safetensors", "tokenizer*.json", "chat_template*")
    return "folder#" + digest_files(file for pattern in patterns for file in folder.glob(pattern))


def derive_seed(*parts: Any) -> int:
    """A 63-bit seed from anything printable; the same parts give the same seed on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
