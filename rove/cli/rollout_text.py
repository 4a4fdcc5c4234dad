"""A rollout as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rove.core.messages import text_of
from rove.core.records import RolloutRecord
from rove.viewer.html import cut

MESSAGE_LIMIT = 2_000
"""Most characters shown of one message."""


def rollout_text(record: RolloutRecord, title: str = "") -> str:
    """Who said what, and what it scored or why it failed."""
    facts = [title] if title else []
    facts.append(f"example {record.example_id}, rollout {record.rollout_index}")
    if record.scores is not None:
        parts = [f"{name} {value:.3g}" for name, value in {**record.scores.rewards, **record.scores.metrics}.items()]
        facts.append(
            f"reward {record.scores.reward:.3g} ({', '.join(parts)})" if parts else f"{record.scores.reward:.3g}"
        )
    if record.error is not None:
        facts.append(f"failed in {record.error.phase}: {record.error.type}: {record.error.message}")
    facts.append(f"ended by {record.stop_condition}" + (", truncated" if record.is_truncated else ""))
    lines = [f"  {m['role']}: {said(m)}" for m in [*record.prompt, *record.completion]]
    return "\n".join([" · ".join(facts), *lines])


def said(message: Mapping[str, Any]) -> str:
    """A message's text, and the calls in it."""
    calls = message.get("tool_calls")
    told = [_called(call) for call in calls] if isinstance(calls, list) else []
    return " ".join([cut(text_of(message), MESSAGE_LIMIT), *told])


def _called(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):  # models, and servers, write anything
        return f"→ {cut(str(call), MESSAGE_LIMIT)}"
    return f"→ {function.get('name')}({cut(str(function.get('arguments')), MESSAGE_LIMIT)})"
