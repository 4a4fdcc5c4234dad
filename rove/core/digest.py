"""Content hashes and seeds that are the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rove.core.errors import ConfigError, RunError
from rove.core.plain import UNREADABLE, is_list, is_mapping

PIECES, PIECE_BYTES = 16, 1 << 20
"""Number and size of the pieces that are hashed of a file of more than 16 MB."""
ADAPTER_CONFIG, ADAPTER_TENSORS = "adapter_config.json", "adapter_model.safetensors"
"""The names that PEFT gives to the files of an adapter."""
ADAPTER_BASE = "base.txt"
"""Name of rove's additional file with the digest of the model on which the adapter was trained (see `digest_model`)."""


def digest_files(files: Iterable[Path]) -> str:
    """Return a hash of file names and contents as 12 hexadecimal digits; files over 16 MB are sampled at 16 places."""
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(files):
        size = file.stat().st_size
        with file.open("rb") as content:
            digest.update(f"{file.name} {size} ".encode())
            for piece in range(PIECES):
                start = piece * PIECE_BYTES
                if size > PIECES * PIECE_BYTES:  # weights: the pieces lie evenly between the first byte and the last
                    start = (size - PIECE_BYTES) * piece // (PIECES - 1)
                content.seek(start)
                digest.update(content.read(PIECE_BYTES))
    return digest.hexdigest()


CHECKSUMS = "CHECKSUMS"
"""File with the digests of a folder's files, in the format of `b2sum`; `b2sum -c CHECKSUMS` can check it, too."""
MODEL_CARD = "README.md"


def write_checksums(folder: Path) -> None:
    """Write the digest of every file in a folder to the file `CHECKSUMS` in the folder, except for the model card."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    # Results are added to the card later.
    lines = [f"{_checksum(folder / name)}  {name}\n" for name in names if name not in (CHECKSUMS, MODEL_CARD)]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8", newline="\n")


def changed_files(folder: Path) -> list[str]:
    """Return the names of files that are missing or differ from `CHECKSUMS`; [] in a folder without that file."""
    file = folder / CHECKSUMS
    if not file.is_file():
        return []
    changed: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        checksum, _, name = line.partition("  ")
        path = folder / name
        # A line without a name means that CHECKSUMS itself is damaged.
        if not name or not path.is_file() or _checksum(path) != checksum:
            changed.append(name or CHECKSUMS)
    return changed


def check_checksums(folder: Path) -> None:
    """Check that the files of a model or checkpoint have not changed since it was saved, if its checksums were saved.

    Raises:
        RunError: A file is damaged or was edited.
    """
    try:
        changed = changed_files(folder)
    except (OSError, ValueError) as error:
        raise RunError(f"{CHECKSUMS} cannot be read ({error})") from error
    if changed:
        raise RunError(
            f"{', '.join(changed[:3])} changed or went missing since {CHECKSUMS} was written; restore the files, or delete "
            f"{CHECKSUMS} if you edited them yourself"
        )


def check_saved_model(folder: str | Path) -> None:
    """Check a model that a run has saved; otherwise, the next stage would start from other weights.

    Raises:
        RunError: A file is damaged or was edited.
    """
    try:
        check_checksums(Path(folder))
    except RunError as error:
        raise RunError(f"the model {folder} has changed: {error}") from error


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "blake2b").hexdigest()


def digest_model(model: str | Path) -> str:
    """Return a model's name or, for a folder, a hash of its weights and tokenizer. For an adapter, the digest of its base
    follows the hash.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return str(model)
    patterns = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.txt", "*.model")
    files: list[Path] = []
    for pattern in patterns:
        files += folder.glob(pattern)
    # base.txt is excluded because the digest of the base is appended.
    name = "folder#" + digest_files(file for file in files if file.name != ADAPTER_BASE)
    base = adapter_base(folder)
    return name if base is None else f"{name} on {digest_model(base)}"


def adapter_base(folder: str | Path) -> str | None:
    """Return the base model (a path or a name on the Hub) of the adapter in a folder; None if there is no adapter.

    Raises:
        ConfigError: A settings file cannot be read, or adapters are each other's base.
    """
    base = _recorded_base(folder)
    chain = [str(folder)]
    visited = {Path(folder).expanduser().resolve()}
    # Without this check, loading the model would never end.
    current = base
    while current is not None:
        chain.append(current)
        location = Path(current).expanduser().resolve()
        if location in visited:
            raise ConfigError(
                f"the adapter in {folder} has no base model, because its bases form a cycle: {' -> '.join(chain)}; set "
                f"base_model_name_or_path in {Path(folder) / ADAPTER_CONFIG} to the model that it was trained on"
            )
        visited.add(location)
        current = _recorded_base(current)
    return base


def _recorded_base(folder: str | Path) -> str | None:
    file = Path(folder).expanduser() / ADAPTER_CONFIG
    if not file.is_file():
        return None
    try:
        base = msgspec.json.decode(file.read_bytes(), type=_AdapterConfig).base_model_name_or_path
    except UNREADABLE as error:
        raise ConfigError(f"{file} cannot be read ({error}); save or copy the adapter again") from error
    if not base:
        raise ConfigError(f"{file} has no base_model_name_or_path; set it to the path or name of the base model")
    return base


def check_base(folder: str | Path, base: str | Path) -> None:
    """Check that an adapter was trained on this model, if its folder records the base (PEFT's folders do not)."""
    file = Path(folder).expanduser() / ADAPTER_BASE
    if not file.is_file():
        return
    recorded_digest = file.read_text(encoding="utf-8").strip()
    digest = digest_model(base)
    if recorded_digest != digest:
        raise ConfigError(
            f"the adapter in {folder} was trained on another model ({recorded_digest}) than {base} ({digest}); pass the model "
            f"that it was trained on. If both are equivalent (a copy in another precision), delete {file}"
        )


class _AdapterConfig(msgspec.Struct):
    base_model_name_or_path: str | None = None


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed derived from the `repr` of the parts."""
    # Not `hash`, which differs between processes; and 63 bits, because TOML and APIs have signed 64-bit integers.
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def plain(value: object) -> Any:
    """Return a value without None at any depth, since TOML has no null."""
    value = msgspec.to_builtins(value)
    if is_mapping(value):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if is_list(value):
        return [plain(item) for item in value if item is not None]
    return value


def differences(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> list[str]:
    """Return a line for each value that differs between two identities."""
    lines: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        old_value, new_value = old.get(key), new.get(key)
        if is_mapping(old_value) and is_mapping(new_value):
            lines += differences(old_value, new_value, f"{prefix}{key}.")
        elif old_value != new_value:
            lines.append(f"{prefix}{key}: was {old_value!r}, now {new_value!r}")
    return lines


def fingerprint(identity: Mapping[str, object]) -> str:
    """Return six hexadecimal digits for an identity, for the default name of a run folder."""
    # An identity that is read back from config.toml has the same fingerprint: no None, and any order of keys.
    content = msgspec.json.encode(plain(identity), order="sorted")
    return hashlib.blake2b(content, digest_size=3).hexdigest()
