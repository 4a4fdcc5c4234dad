"""Merge settings from TOML files, dotted flags and named flags into a typed struct."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rove.core.checks import fields_of, is_text, is_text_list, raise_explained, text_list, type_below
from rove.core.errors import ConfigError, nearest
from rove.core.plain import UNREADABLE, is_mapping

T = TypeVar("T")
Table = dict[str, Any]
"""Settings as nested tables, as in TOML."""

RUN_CONFIG = {"kind", "identity", "config"}
"""Tables of a run folder's config.toml; `@ runs/…/config.toml` reuses its settings."""

MAX_DOTS = 10_000
"""Maximum number of dots in a settings file: Python's parser takes quadratic time for a key such as a.b.c with many parts."""


def load(
    kind: type[T], named: Mapping[str, object], extra: Sequence[str] = (), bare: str = "", flags: Iterable[str] = ()
) -> T:
    """Build a settings struct from command-line arguments.

    Example:
        >>> load(RLConfig, {"seed": 1}, ["tictactoe", "--loss.kind", "cispo"], bare="env")

    Args:
        named: Values of named flags by the dotted name of their setting; None = not given. They take precedence.
        extra: Remaining arguments: `@ file.toml` (or `@file.toml`), `--dotted.key value`, `--dotted.key=value`, `--no-flag`,
            and a `--flag` alone, which means true. Values are parsed as JSON if possible, except for text settings. Later
            arguments take precedence; lists are replaced, tables are merged.
        flags: Names of flags that are not settings, for suggestions after a misspelled name.
    """
    values: Table = {}
    positional: Table = {}
    words = list(extra)
    while words:
        word = words.pop(0)
        if word.startswith("@"):
            if word == "@" and not words:
                raise ConfigError("expected a file after @")
            content = read_toml(word[1:] or words.pop(0))
            is_run = content.keys() >= RUN_CONFIG and is_mapping(content["config"])
            merge(values, content["config"] if is_run else content)
        elif word.startswith("--"):
            key, value = _flag(word[2:], words, kind)
            if value is True:
                _check_alone(kind, key, words)
            merge(values, nested(key, value))
        elif bare and bare not in positional:
            positional[bare] = word
        else:
            raise ConfigError(f"unexpected argument '{word}'; pass settings as --key value or @ file.toml")
    merge(values, positional)  # last: an environment named in the command line replaces that of a settings file
    for key, value in named.items():
        if value is not None:
            merge(values, nested(key, value))
    return convert(kind, values, flags, _advice(_missing(kind, values), bare))


def _advice(missing: Sequence[str], bare: str) -> str:
    arguments = [bare.upper() if name == bare else f"--{name.replace('_', '-')} …" for name in missing]
    pronoun = "them" if len(missing) > 1 else "it"
    return f"; pass {' and '.join(arguments)}, or a file that contains {pronoun}: @ settings.toml"


def _check_known(kind: type, values: Iterable[str], flags: Iterable[str]) -> None:
    names = {field.name for field in fields_of(kind)}
    for key in values:
        if key in names:
            continue
        if key in flags:
            raise ConfigError(f"'{key}' is a flag of the command, not a setting; pass --{key.replace('_', '-')}")
        raise ConfigError(f"unknown setting '{key}'; {nearest(key, {*names, *flags})}")


def _missing(kind: type, values: Mapping[str, object]) -> list[str]:
    required = [field.name for field in fields_of(kind) if field.required]
    return [name for name in required if name not in values]


def convert(kind: type[T], values: Mapping[str, object], flags: Iterable[str] = (), advice: str = "") -> T:
    """Build a settings struct from plain values.

    Args:
        advice: The end of the error if settings are missing: how to add them.
    """
    # Checked before the conversion, whose messages could not suggest a flag or name all missing settings.
    _check_known(kind, values, flags)
    missing = _missing(kind, values)
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise ConfigError(f"missing setting{plural}: {', '.join(missing)}{advice}")
    try:
        return msgspec.convert(dict(values), kind, strict=False)  # not strict: a flag's "5" is also a number
    except msgspec.ValidationError as error:
        raise_explained(error, values, kind, strict=False)


def import_function(setting: str, path: str) -> Callable[..., Any]:
    """Import the function "package.module:function" that a setting names.

    The module may be installed, in a folder of PYTHONPATH, or in the current folder.
    """
    module, _, name = path.partition(":")
    parts = [*module.split("."), name]
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{setting} '{path}' is not of the form package.module:function")
    try:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            sys.path.append(str(Path.cwd()))  # at the end: a file here must not hide an installed module
            importlib.invalidate_caches()
        imported = importlib.import_module(module)
    except Exception as error:  # importing runs arbitrary code
        raise ConfigError(
            f"{setting} '{path}': importing {module} failed with {type(error).__name__}: {error}; "
            "it must be in the current folder, installed, or in a folder of PYTHONPATH"
        ) from error
    function: object = getattr(imported, name, None)
    if function is None:
        functions = [key for key, value in vars(imported).items() if callable(value)]
        public_functions = [key for key in functions if not key.startswith("_")]
        raise ConfigError(f"{setting} '{path}': {module} has no '{name}'; {nearest(name, public_functions)}")
    if not callable(function):
        raise ConfigError(f"{setting} '{path}' is of type {type(function).__name__}; expected a function")
    return function


def read_toml(path: str | Path) -> Table:
    """Return the content of a TOML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if text.count(".") > MAX_DOTS:
            raise ConfigError(f"settings file {path} has {text.count('.'):,} dots; expected at most {MAX_DOTS:,}")
        return tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigError(f"settings file {path} does not exist") from error
    except IsADirectoryError as error:
        raise ConfigError(f"settings file {path}: it is a folder; expected a TOML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"settings file {path}: it is not UTF-8 text; expected a TOML file ({error})") from error
    except (OSError, ValueError, *UNREADABLE) as error:
        raise ConfigError(f"settings file {path}: {error}") from error


def merge(base: Table, over: Mapping[str, object]) -> Table:
    """Merge `over` into `base` in place: tables are merged, other values are replaced."""
    for key, value in over.items():
        if is_mapping(value):
            # Merged into a new table even if `base` has none, so that later merges into `base` do not change `over`.
            table: Table = base[key] if isinstance(base.get(key), dict) else {}
            base[key] = merge(table, value)
        else:
            base[key] = value
    return base


def parse_value(text: str) -> object:
    """Return a flag's value: parsed as JSON if possible, else the text."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, *UNREADABLE):  # a text needs no quotation marks: --loss.kind cispo, not '"cispo"'
        return text


def _flag(word: str, words: list[str], kind: object) -> tuple[str, object]:
    """Return the key and value of a flag. The value is removed from `words` unless it follows "=" or is absent."""
    key, equals, text = word.partition("=")
    name = key.replace("-", "_")
    if not equals:
        alone = not words or words[0].startswith(("--", "@"))
        positive = name.removeprefix("no_")
        if name != positive and (alone or _setting_type(kind, positive) is bool):
            return positive, False
        # A bool setting takes only true and false: another word after it is a positional argument.
        if alone or (_setting_type(kind, name) is bool and words[0] not in ("true", "false")):
            return name, True
        text = words.pop(0)
    value = text if is_text(_setting_type(kind, name)) else parse_value(text)
    return name, value


def _setting_type(kind: object, key: str) -> object:
    """Return the type of a setting by its dotted name; None if it is unknown."""
    annotation = kind
    for step in key.split("."):
        annotation = type_below(annotation, step)
    return annotation


def _check_alone(kind: object, key: str, words: Sequence[str]) -> None:
    """Refuse a list setting without a value; the next argument, which starts like a flag, may be the intended value."""
    if is_text_list(_setting_type(kind, key)):
        raise ConfigError(f"--{key} expects a JSON list: --{key} {text_list(words[0] if words else 'a value')}")


def nested(name: str, value: object) -> Table:
    """Return a setting with a dotted name as nested tables."""
    *tables, key = name.split(".")
    result: Table = {key: value}
    for table in reversed(tables):
        result = {table: result}
    return result


def dotted(values: Mapping[str, object], prefix: str = "") -> Table:
    """Return the settings of nested tables by their dotted names; the inverse of `nested`."""
    settings: Table = {}
    for name, value in values.items():
        if is_mapping(value):
            settings |= dotted(value, f"{prefix}{name}.")
        else:
            settings[f"{prefix}{name}"] = value
    return settings
