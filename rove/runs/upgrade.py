"""Upgrade run folders of older versions of rove: map former names of fields, settings and files to the current ones."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rove.core.plain import JsonObject
from rove.core.renamed_settings import upgrade

RECORD_SCHEMA = 2
"""Schema that `upgrade_line` returns. 2: `seats` became `model_roles`, `boards` became `renderings`."""

OLD_FILES = {"alerts.jsonl": "alarms.jsonl"}
"""File of a run folder → its former name."""

NOT_IDENTITY = ("micro_batch_tokens", "activation_checkpointing")
"""Settings that were part of a run's identity in older versions; a resumed run may change them now."""

_FIELDS = {"seats": "model_roles", "boards": "renderings"}
_SCHEMA_1_MARK = b'"seats":'
"""Key that every line of schema 1 has."""


def upgrade_line(line: bytes) -> bytes:
    """Return a line of rollouts.jsonl in schema 2; lines other than records of schema 1 are unchanged."""
    if _SCHEMA_1_MARK not in line:
        return line
    try:
        stored = msgspec.json.decode(line, type=JsonObject)
    except msgspec.MsgspecError:
        return line  # the caller's decoder reports the error
    record = stored.get("record")
    if not isinstance(record, dict) or record.get("schema_version") != 1:
        return line
    record = {**_renamed(record, _FIELDS), "schema_version": RECORD_SCHEMA}
    return msgspec.json.encode({**_renamed(stored, _FIELDS), "record": record})


def upgrade_summary(summary: dict[str, object]) -> JsonObject:
    """Return the content of summary.json under the current names."""
    return _renamed(summary, _FIELDS)


def upgrade_config(config: dict[str, object]) -> dict[str, object]:
    """Return the content of config.toml, its identity included, under the current names of settings."""
    config = {key: upgrade(part) if isinstance(part, dict) else part for key, part in config.items()}
    identity = config.get("identity")
    if isinstance(identity, dict):
        config["identity"] = {key: value for key, value in identity.items() if key not in NOT_IDENTITY}
    return config


def _renamed(values: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    return {names.get(key, key): value for key, value in values.items()}
