"""Formatted numbers."""

from __future__ import annotations

from rove.utils.units import human_bytes, human_seconds


def test_sizes_and_durations_are_formatted_with_units():
    assert [human_bytes(n) for n in (5, 1500, 2.5e7, 3e9, 4e12)] == ["5 B", "1.5 kB", "25 MB", "3.0 GB", "4.0 TB"]
    texts = {
        0.0005: "under 1 ms",
        0.05: "0.05 s",
        9.96: "10 s",
        12: "12 s",
        300: "5.0 min",
        7200: "2.0 h",
        1e6: "11.6 days",
    }
    assert {seconds: human_seconds(seconds) for seconds in texts} == texts
