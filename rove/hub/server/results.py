"""What a model came to in an environment, as it is pushed with a run: its scores and a few rollouts, shown beside the package."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec

from rove.hub.package.texts import active
from rove.hub.server.errors import Refused

LARGEST_RUN = 4 << 20
"""Bytes of one."""
MODEL = 200
"""Characters of a model's name."""
SUMMARY = 64 << 10
"""Bytes of a summary: it is in the list of all runs."""
MOST_RUNS = 1000
"""On one version."""


class Result(NamedTuple):
    """The results of one run, checked."""

    id: str
    """Of its content: the same results pushed twice are there once."""
    model: str
    summary: str
    """JSON."""
    sha256: str
    content: bytes


class _Given(msgspec.Struct):
    model: str
    summary: dict[str, Any]


def read_run(content: bytes) -> Result:
    """Check results.

    Args:
        content: JSON, an object with `model` (its name), `summary` (an object) and what else there is to tell.

    Raises:
        Refused: it is something else, or too large.
    """
    try:
        given = msgspec.json.decode(content, type=_Given)
        written = msgspec.json.encode(msgspec.json.decode(content), order="sorted")
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise Refused(400, f"these are no results of a run: {error}") from error
    if not 0 < len(given.model) <= MODEL or not given.model.isprintable() or active(given.model):
        raise Refused(400, f"a model's name is one line of plain text of at most {MODEL} characters")
    summary = msgspec.json.encode(given.summary, order="sorted")
    if len(summary) > SUMMARY:
        raise Refused(413, f"this summary has {len(summary):,} bytes; the most is {SUMMARY:,}")
    sha256 = hashlib.sha256(written).hexdigest()
    return Result(sha256[:16], given.model, summary.decode(), sha256, written)
