"""Distinguish settings that this user's rove wrote from settings that someone else wrote.

A run folder may come from another person. Its config.toml can name a folder of code, the address of a server, and the variable
with the API key that is sent there. So rove seals each settings file that it writes into a run folder with a keyed
digest of its content; only this user has the key. A file without a valid seal is foreign, and commands ask before they
use the settings that `risky_settings` returns. Only the content counts, so a run folder can be moved or copied by its
owner.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError, RunError
from rove.core.plain import JsonObject, is_list, is_mapping
from rove.utils.files import atomic_write, data_folder, read_regular

_Path = tuple[str | int, ...]
"""Names of tables and settings, and positions in lists."""
KEY_FILE = "run_key"
KEY_BYTES = 32
SEAL = ".{}.seal"
"""Name of a settings file's seal; {} stands for the file's name."""
SETTINGS_FILES = ("config.toml", "recipe.toml")
"""Settings files that rove writes into run folders."""
RUN_FILES = ("rollouts.jsonl", "metrics.jsonl", "summary.json", "versions.json", "checkpoints", "request.json")
"""Files that mark the folder of a run."""
HARMLESS = {
    "aggregation",
    "arch",
    "backend",
    "column",
    "equal_best",
    "init",
    "keep_best",
    "metric",
    "model",
    "name",
    "needs",
    "size",
    "stratify",
    "targets",
    "truncated",
}
"""Settings whose texts name no code, address, variable, command or file."""
HARMLESS_TABLES = {"baseline", "columns", "exhaustive", "goals", "references", "sampling_args", "template_args"}
"""Tables whose names and texts are all harmless."""
RISKY_TABLES = {"adapters", "env_args"}
"""Tables whose texts all count, because their names are free and the reader decides what they mean."""
HARMLESS_WORDS = {"advantage_estimator", "chat_template", "env", "kind"}
"""Text settings that are harmless if they are a bare name; a value with "/", "\\" or ":" names a file or a function."""
RISKY_FLAGS = {"trust_remote_code"}
"""Settings that are risky unless they are false."""


def seal(file: Path) -> None:
    """Mark a settings file as written by this user's rove. Without a writable home folder, the file stays foreign."""
    with suppress(OSError, RuntimeError):
        atomic_write(_seal_file(file), _digest(file.read_bytes()).encode())


def is_own(file: Path) -> bool:
    """Return whether this user's rove wrote a settings file that has not changed since."""
    try:
        recorded = read_regular(_seal_file(file))
        # In constant time, so that a stranger cannot find a valid digest by its timing.
        return hmac.compare_digest(recorded.strip(), _digest(read_regular(file)).encode())
    except (OSError, RuntimeError, RunError):
        return False


def is_in_run_folder(file: Path) -> bool:
    """Return whether a settings file belongs to a run folder; otherwise, a user wrote it and passes it by name."""
    return file.name in SETTINGS_FILES or any((file.parent / name).exists() for name in RUN_FILES)


def risky_settings(values: Mapping[str, object], kind: type[msgspec.Struct] | None = None) -> JsonObject:
    """Return the settings, by dotted name, that can name code, an address, a variable, a command or a file.

    Numbers and flags are harmless, and so are defaults and the names in `HARMLESS`. Every other text counts, and so
    does every setting name that is not a plain name, because commands interpret some names differently ("a=b" as the
    setting "a").

    Args:
        kind: The struct of these settings, for its defaults.
    """
    defaults = dict(_leaves(_defaults(kind))) if kind is not None else {}
    risky: JsonObject = {}
    for path, value in _leaves(values):
        is_default = path in defaults and defaults[path] == value
        if not is_default and _is_risky(path, value):
            risky[".".join(map(str, path))] = value
    return risky


def foreign_settings(
    file: Path, values: Mapping[str, object], kind: type[msgspec.Struct] | None = None, overridden: Iterable[str] = ()
) -> JsonObject:
    """Return the risky settings of a run folder's file that this user's rove did not write; {} for any other file.

    Args:
        kind: The struct of these settings, for its defaults.
        overridden: Settings whose values in the file do not count because they are overridden.
    """
    if not is_in_run_folder(file) or is_own(file):
        return {}
    risky = risky_settings(values, kind)
    own_folder = str(values.get("run_dir", ""))
    if own_folder and Path(own_folder).resolve() == file.parent.resolve():  # the user has named this folder
        risky.pop("run_dir", None)
    return {name: value for name, value in risky.items() if name.split(".")[0] not in overridden}


def check_own(file: Path, values: Mapping[str, object]) -> None:
    """Refuse settings of a run folder that this user's rove did not write and that can run code or send data."""
    risky = foreign_settings(file, values)
    if risky:
        raise ConfigError(
            f"{file} was not written by rove for you, and sets {', '.join(risky)}, which name code, addresses, variables or "
            "files; copy the settings that you trust to a file of your own, and give that file"
        )


def _is_risky(path: _Path, value: object) -> bool:
    # A quoted TOML key may contain dots, which commands read as a path: "env_args.x" counts as two names.
    names = ".".join(part for part in path if isinstance(part, str)).split(".")
    is_in_risky_table = not RISKY_TABLES.isdisjoint(names)
    # In a risky table, names are free: an environment may have an argument "columns" that is a table of commands.
    if HARMLESS_TABLES.intersection(path[:-1]) and not is_in_risky_table:
        return False
    if not all(name.isidentifier() for name in names):
        return True
    if names[-1] in RISKY_FLAGS:
        return value is not False  # a text or a number is read as a flag, too
    if not isinstance(value, str) or not value:
        return False
    if is_in_risky_table:
        return True
    if names[-1] in HARMLESS_WORDS:
        is_bare_name = not any(mark in value for mark in "/\\:")
        return not is_bare_name
    return names[-1] not in HARMLESS


def _leaves(value: object, path: _Path = ()) -> Iterator[tuple[_Path, object]]:
    """Yield the values of nested tables and lists with their paths."""
    if is_mapping(value):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif is_list(value):
        for number, item in enumerate(value):
            yield from _leaves(item, (*path, number))
    else:
        yield path, value


def _defaults(kind: type[msgspec.Struct]) -> dict[str, object]:
    """Return the defaults of a settings struct as plain values."""
    defaults: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT:
            defaults[field.name] = msgspec.to_builtins(field.default)
        elif field.default_factory is not msgspec.NODEFAULT:
            defaults[field.name] = msgspec.to_builtins(field.default_factory())
    return defaults


def _seal_file(file: Path) -> Path:
    return file.parent / SEAL.format(file.name)


def _digest(content: bytes) -> str:
    return hmac.new(_key(), content, "sha256").hexdigest()


def _key() -> bytes:
    """Return this user's key, which is created on first use."""
    file = data_folder() / KEY_FILE
    with suppress(FileNotFoundError):
        return file.read_bytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{KEY_FILE}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(secrets.token_bytes(KEY_BYTES))
    try:
        os.link(draft, file)  # another process may have created the key by now; a link never replaces it
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return file.read_bytes()
