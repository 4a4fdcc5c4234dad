"""Former names of settings. rove upgrades them in run folders and rejects them in TOML files and flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED: Mapping[str, str] = {
    "advantages": "advantage_estimator",
    "alarms": "alerts",
    "clip_high": "loss.clip_high",
    "clip_low": "loss.clip_low",
    "correction_cap": "loss.importance_cap",
    "curriculum": "curriculum.column",
    "difficulty_window": "filter.difficulty_window",
    "dynamic_sampling_rounds": "filter.dynamic_sampling_rounds",
    "easy_threshold": "filter.easy_threshold",
    "entropy_bonus": "loss.entropy_bonus",
    "hard_threshold": "filter.hard_threshold",
    "importance_cap": "loss.importance_cap",
    "isolated": "isolation.enabled",
    "isolated_hang_seconds": "isolation.hang_seconds",
    "isolated_python": "isolation.python",
    "isolated_start_seconds": "isolation.start_seconds",
    "kl_penalty": "loss.kl_penalty",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "lora_rank": "lora.rank",
    "lora_targets": "lora.targets",
    "loss": "loss.kind",
    "loss_aggregation": "loss.aggregation",
    "loss_constant": "loss.constant",
    "max_bad_steps": "max_non_finite_steps",
    "max_ratio": "loss.max_ratio",
    "normalisation": "loss.aggregation",
    "players": "policies",
    "ray": "ray.address",
    "ray_actors": "ray.actors",
    "ray_rollouts": "ray.rollouts_per_actor",
    "resample_zero_spread": "filter.dynamic_sampling_rounds",
    "sampler": "backend",
    "seat_prices": "role_prices",
    "shuffle": "curriculum.shuffle",
    "skip_at_least": "filter.easy_threshold",
    "skip_at_most": "filter.hard_threshold",
    "skip_memory": "filter.difficulty_window",
    "stratify": "curriculum.stratify",
    "stratify_bins": "curriculum.stratify_bins",
    "sync_reference_every": "loss.sync_reference_every",
    "token_stats": "log_token_stats",
    "updates_per_batch": "num_iterations",
}
"""Former name → new name; `table.name` is in a table. "loss", "curriculum" and "ray" are now tables."""
EXHAUSTIVE = "every_line"
"""Former setting of an evaluation; true is now `kind = "exhaustive"`."""


def upgrade(settings: Mapping[str, object]) -> dict[str, Any]:
    """Return settings of an older run under their new names and in tables; current settings are returned unchanged."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        *table, last = RENAMED[name].split(".") if name in RENAMED else [name]
        if table == [name] and isinstance(value, Mapping):  # already in the new form: the name is that of a table
            found.setdefault(name, {}).update(value)
        elif table:
            found.setdefault(table[0], {})[last] = value
        else:
            found[last] = value
    if isinstance(found.get("evaluation"), list):
        tables = found["evaluation"]
        found["evaluation"] = [_upgrade_evaluation(one) if isinstance(one, Mapping) else one for one in tables]
    return found


def _upgrade_evaluation(table: Mapping[str, object]) -> dict[str, Any]:
    found = upgrade(table)
    if EXHAUSTIVE in found:
        found["kind"] = "exhaustive" if found.pop(EXHAUSTIVE) else "rollouts"
        found["goals"] = {name: value for name, value in found.get("goals", {}).items() if value}
    return found


def rename_hint(name: str) -> str | None:
    """Return what to write instead of a former name; None if `name` is not one."""
    if name == EXHAUSTIVE:
        return 'write kind = "exhaustive"'
    new = RENAMED.get(name)
    if new is None:
        return None
    return f"it is now '{new}'" + (f", in the table [{new.split('.')[0]}] or as --{new}" if "." in new else "")
