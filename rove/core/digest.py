"""Short names for content: the same content has the same name on every machine."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rove.core.errors import ConfigError

PIECES, PIECE = 16, 1 << 20
ADAPTER_CONFIG, ADAPTER_TENSORS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter, as PEFT names them."""
ADAPTER_BASE = "base.txt"
"""Ours beside them: what tells the model that it was trained on from others, as `digest_model` says it."""
_PLAIN = (int, float, str, bytes, bool, type(None))


def digest_files(files: Iterable[Path]) -> str:
    """Hash of files, as 12 hexadecimal digits: by name and content, of those over 16 MB by name, size and 16 pieces."""
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(files):
        size = file.stat().st_size
        with file.open("rb") as content:
            digest.update(f"{file.name} {size} ".encode())
            for piece in range(PIECES):
                content.seek(max(0, size - PIECE) * piece // (PIECES - 1) if size > PIECES * PIECE else piece * PIECE)
                digest.update(content.read(PIECE))
    return digest.hexdigest()


def digest_code(function: Any) -> str:
    """Hash of a function's source text, of its class's for an object that can be called; "" where there is none to read."""
    for target in (function, type(function)):
        try:
            text = inspect.getsource(target)
        except (OSError, TypeError):  # built in, or typed into an interpreter
            code = getattr(target, "__code__", None)
            text = (
                ""
                if code is None
                else repr((code.co_code, code.co_names, [c for c in code.co_consts if type(c) in _PLAIN]))
            )
        if text:
            return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return ""


def digest_model(model: str | Path) -> str:
    """A model's name; for a folder what tells its weights and its words from others, wherever it lies; for an adapter with its
    base's."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return str(model)
    patterns = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.txt", "*.model")
    files = (file for pattern in patterns for file in folder.glob(pattern))
    # What stands in base.txt, the base says itself.
    name = "folder#" + digest_files(file for file in files if file.name != ADAPTER_BASE)
    base = adapter_base(folder)
    return name if base is None else f"{name} on {digest_model(base)}"


def adapter_base(folder: str | Path) -> str | None:
    """Where the model is that the adapter in a folder belongs to: a folder, or a name on the hub. None: it holds none.

    Raises:
        ConfigError: its file cannot be read, or does not tell.
    """
    file = Path(folder).expanduser() / ADAPTER_CONFIG
    if not file.is_file():
        return None
    try:
        base = msgspec.json.decode(file.read_bytes(), type=_AdapterConfig).base_model_name_or_path
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} cannot be read ({error}); save or copy the adapter again") from error
    if not base:
        raise ConfigError(f"{file} does not tell its base_model_name_or_path; write there where that model is")
    return base


def check_base(folder: str | Path, base: str | Path) -> None:
    """See that a model is the one that the adapter in a folder was trained on, where the folder says which (PEFT's do not).

    Raises:
        ConfigError: it is another one.
    """
    file = Path(folder).expanduser() / ADAPTER_BASE
    if not file.is_file():
        return
    trained, now = file.read_text(encoding="utf-8").strip(), digest_model(base)
    if trained != now:
        raise ConfigError(
            f"the adapter in {folder} was trained on another model ({trained}) than {base} ({now}); give the one that it was "
            f"trained on. If both compute the same (a copy in another precision), delete {file}"
        )


class _AdapterConfig(msgspec.Struct):
    base_model_name_or_path: str | None = None


def derive_seed(*parts: Any) -> int:
    """A 63-bit seed from anything printable; the same parts give the same seed on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def plain(value: Any) -> Any:
    """TOML has no null: drop what is None, all the way down."""
    value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [plain(item) for item in value if item is not None]
    return value


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What is not the same in two identities, a line for each value."""
    lines: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: there {a!r}, now {b!r}")
    return lines


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Six letters and digits that stand for an identity, for a run folder's default name."""
    content = msgspec.json.encode(plain(identity), order="sorted")
    return hashlib.blake2b(content, digest_size=3).hexdigest()
