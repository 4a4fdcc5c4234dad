"""The mutable state of a rollout."""

from __future__ import annotations

from typing import Any

INPUT_FIELDS = frozenset({"prompt", "answer", "info", "example_id", "task"})


class State(dict[str, Any]):
    """Mutable state of one rollout, written by `setup_state` and `env_response` and read by rubrics.

    `state["input"]` is the dataset row; reads of prompt, answer, info, example_id and task fall through to it. rove sets:

    - `trajectory`: steps so far; their `reward` may be set
    - `model_roles`: steps of other models by role, see `rove.query`
    - `completion`: messages after the prompt; a text in completion mode
    - `tools`: tools offered to the model, in a `ToolEnv`
    - `seed`, `env_seed`: seeds of this rollout and of its group
    - `stop_condition`, `is_truncated`, `error`
    - `renderings`: see `MultiTurnEnv.render`

    Environments add any other key.

    Example:
        >>> state["guesses"] = state.get("guesses", 0) + 1
        >>> state["answer"]  # of the dataset row
    """

    def __missing__(self, key: str) -> Any:
        if key in INPUT_FIELDS:
            row = super().get("input") or {}
            if key in row:
                return row[key]
        raise KeyError(f"{key!r} is not in this rollout's state; it has {sorted(self)}")

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (key in INPUT_FIELDS and key in (super().get("input") or {}))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value under `key`, falling through to the dataset row, or `default`."""
        return self[key] if key in self else default  # noqa: SIM401  dict.get would not read the input row
