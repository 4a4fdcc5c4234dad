"""The working memory of one running rollout."""

from __future__ import annotations

from typing import Any

INPUT_FIELDS = frozenset({"prompt", "answer", "info", "example_id", "task"})


class State(dict[str, Any]):
    """Mutable memory of one rollout: what `setup_state` and `env_response` write, what rubrics read.

    `state["input"]` is the dataset row; reads of prompt, answer, info, example_id and task fall through to it. Set by rove:
    `trajectory` (steps so far, whose `reward` may be set), `roles` (steps of others than the model, by role; see `rove.query`),
    `completion` (messages after the prompt; in completion mode a text), `tools` (what the model is shown of them, in a
    `ToolEnv`), `seed` (this rollout's), `env_seed` (shared by the siblings of its group), `stop_condition`, `is_truncated`,
    `error`, `drawn_boards` (see `MultiTurnEnv.render`). Environments add any other key.
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
        """The value under `key`, falling through to the dataset row, or `default`."""
        return self[key] if key in self else default  # noqa: SIM401  this is what get means here
