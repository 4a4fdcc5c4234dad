"""Properties of the hub as a whole: consistent limits, lazy imports."""

from __future__ import annotations

from rove.hub.package import limits


def test_limits_are_consistent():
    assert limits.MAX_FILE_BYTES <= limits.MAX_UNPACKED_BYTES
    assert limits.MAX_ARCHIVE_BYTES <= limits.MAX_UNPACKED_BYTES
    assert limits.RATIO_FREE_BYTES < limits.MAX_UNPACKED_BYTES
    assert limits.MAX_MANIFEST_BYTES > limits.MAX_ITEMS * limits.MAX_LINE_CHARS
    assert limits.MAX_METADATA_BYTES < limits.MAX_FILE_BYTES
