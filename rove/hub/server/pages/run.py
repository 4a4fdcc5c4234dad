"""The page of a run whose results were pushed: the report of `rove view`, with the rollouts that were pushed with it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rove.core.errors import RunError
from rove.core.plain import JsonObject, is_list, is_mapping
from rove.hub.server.pages.html import PageLocation
from rove.hub.server.pages.leaderboard import Row
from rove.statistics.format import cut
from rove.viewer.html import page_code, whole_page
from rove.viewer.report import PAGE_DEFAULTS, rollout_data, summary_data, summary_markdown

RUN_POLICY = f"{page_code().policy}; frame-ancestors 'none'"
"""Content security policy of the page; style and script of the page are inline."""
MAX_ROLLOUTS = 10
"""Maximum number of rollouts per page."""
MAX_SETTINGS_CHARS = 20_000
"""Maximum characters shown of the settings."""
PAGE_DEPTH = 4
"""Number of folders above the page: OWNER/NAME/VERSION/runs/."""
OPTIONAL_FIELDS = {"answer": "", "info": {}, "scores": None, "stop_condition": None, "is_truncated": False}
"""Fields that a pushed rollout may lack, with their defaults."""
OMITTED_FIELDS = {"example_key": "", "example_id": 0, "rollout_index": 0, "seed": 0, "steps": [], "error": None}
"""Fields of a record that `rove push` omits. A page must not show such fields, so these values replace the values in an upload.
"""


def run_page(hub: str, reference: tuple[str, str], row: Row, pushed: Mapping[str, object], leaf: str) -> bytes:
    """Render the page of a run from its row of the leaderboard and its pushed document; `leaf`: see `PageLocation`.

    A pushed document is untrusted: the page contains it as data, and its policy allows no script but the report's own.
    """
    location, (owner, name) = PageLocation(PAGE_DEPTH, leaf), reference
    data = summary_data(row.summary, _checksum(pushed))
    rollouts, malformed = _rollouts(pushed.get("examples"))
    note = "A selection, lowest reward first."
    if malformed:
        note += f" {malformed:,} entries that are not rollouts are omitted."
    page = {
        **PAGE_DEFAULTS,
        **data,
        "title": row.model,
        "facts": [f"{owner}/{name} {row.version}", f"pushed {row.uploaded[:10]}"],
        "links": [
            (location.front(), hub),
            (location.environment(owner, name), f"{owner}/{name}"),
            (f"{row.id}.json", "Download as JSON"),
        ],
        "rollouts": rollouts,
        "rollouts_note": note,
        "settings": _settings(pushed.get("settings")),
    }
    title = f"{row.model} · {owner}/{name} · {hub}"
    return whole_page(title, summary_markdown(title, data), page).encode(errors="replace")


def _checksum(pushed: Mapping[str, object]) -> str:
    sha256 = pushed.get("sha256")
    return f"SHA-256 of the rollouts: {cut(sha256, 100)}" if isinstance(sha256, str) else ""


def _settings(settings: object) -> str:
    if not settings:
        return "None were pushed."
    return cut(msgspec.json.format(msgspec.json.encode(settings), indent=2).decode(), MAX_SETTINGS_CHARS)


def _rollouts(pushed: object) -> tuple[list[JsonObject], int]:
    """Return the data of pushed rollouts, and the number of entries that are not rollouts."""
    entries = pushed[:MAX_ROLLOUTS] if is_list(pushed) else []
    rollouts: list[JsonObject] = []
    for entry in entries:
        if not is_mapping(entry):
            continue
        record = {**OPTIONAL_FIELDS, **entry, **OMITTED_FIELDS}
        try:
            line = msgspec.json.encode({"record": record, "steps": []})
            rollout = rollout_data(len(rollouts), line, len(line))
        except (RunError, RecursionError):
            continue
        stop = rollout["stop_condition"] or "not recorded"
        rollouts.append({**rollout, "stopped": stop + ("; truncated" if rollout["is_truncated"] else "") + "."})
    return rollouts, len(entries) - len(rollouts)
