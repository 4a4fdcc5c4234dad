"""Formatted numbers."""

from __future__ import annotations

from rove.utils.units import human_bytes, human_seconds


def test_sizes_and_durations_are_formatted_with_units():
    assert [human_bytes(n) for n in (5, 1500, 2.5e7, 3e9, 4e12)] == ["5 B", "1.5 kB", "25 MB", "3.0 GB", "4.0 TB"]
    assert [human_seconds(s) for s in (0.05, 12, 300, 7200, 1e6)] == ["0.05 s", "12 s", "5.0 min", "2.0 h", "11.6 days"]
