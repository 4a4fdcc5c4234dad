"""Read the settings of runs from config.toml without passwords, and compare them with their defaults and between runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources

import msgspec
import tomli_w

from rove.core.errors import RunError
from rove.core.masking import without_secrets
from rove.core.plain import JsonObject, JsonValue
from rove.runs.run import Run

OUTSIDE_SETTINGS = ("run_dir", "overwrite")
"""Settings that do not influence a result."""
MAX_SETTINGS = 2000
"""Maximum number of settings that are listed."""


def describe_run(run: Run) -> JsonObject:
    """Return `kind`, `env`, `model` and the whole `config` of a run, without passwords."""
    content = run.config()
    config = without_secrets(content["config"])
    env = config.get("env") or _first_of(config.get("data")) or ""
    return {"kind": content["kind"], "env": str(env), "model": str(config.get("model") or ""), "config": config}


def _first_of(value: object) -> JsonValue:
    return value[0] if isinstance(value, list) and value else value


def settings_of(run: Run) -> list[JsonObject]:
    """Return the settings of a run: `name`, `value`, `default` (None if there is none) and `changed`; changed settings come
    first.
    """
    content = describe_run(run)
    known_defaults = _defaults_of(content["kind"], content["config"])
    settings = dict(flat(content["config"]))
    rows = [
        {
            "name": name,
            "value": value,
            "default": known_defaults.get(name),
            "changed": _is_changed(name, value, known_defaults),
        }
        for name, value in list(settings.items())[:MAX_SETTINGS]
    ]
    return sorted(rows, key=lambda row: (not row["changed"], row["name"] not in ("env", "model"), row["name"]))


def _defaults_of(kind: str, config: Mapping[str, object]) -> dict[str, str]:
    """Return the defaults of a run's settings by dotted name, including the defaults of its `[[evaluation]]` tables."""
    known_defaults = dict(flat(defaults().get(kind, {})))
    tables = config.get("evaluation")
    for position in range(len(tables) if isinstance(tables, list) else 0):
        known_defaults |= flat(defaults()["evaluation"], f"evaluation[{position}]")
    return known_defaults


def _is_changed(name: str, value: str, known_defaults: Mapping[str, str]) -> bool:
    return name not in OUTSIDE_SETTINGS and value != known_defaults.get(name, "")


def flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of nested tables by dotted name, values as in a settings file; empty tables and lists are omitted."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for position, item in enumerate(value):
            yield from flat(item, f"{name}[{position}]")
    elif value is not None and value != []:
        yield name, value if isinstance(value, str) else _written(value)


def _written(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:.10g}" if isinstance(value, float) else str(value)
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


@cache
def defaults() -> dict[str, dict[str, object]]:
    """Return the default settings by kind of run; `make settings-page` writes the file."""
    # From a file, because importing the settings of RL imports PyTorch, which takes seconds (docs/decisions/viewer.md).
    return msgspec.json.decode((resources.files("rove.viewer") / "defaults.json").read_bytes())


def differences(runs: Sequence[tuple[str, Run]]) -> JsonObject:
    """Return the settings in which runs differ: their names, and a row of `name` and `values` for each."""
    settings_by_run = []
    for _, run in runs:
        try:
            settings_by_run.append({row["name"]: row["value"] for row in settings_of(run)})
        except (RunError, OSError):
            settings_by_run.append({})
    rows = []
    for name in sorted(set().union(*settings_by_run) - set(OUTSIDE_SETTINGS)):
        values = [settings.get(name) for settings in settings_by_run]
        if len(set(values)) > 1:
            rows.append({"name": name, "values": values})
    return {"runs": [name for name, _ in runs], "rows": rows}
