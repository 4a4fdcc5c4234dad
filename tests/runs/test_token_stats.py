"""Token statistics survive a round trip; damaged files are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from rove.core.errors import RunError
from rove.runs.token_stats import TrainedRollout, TrainedTurn, file_of, read_tokens, write_tokens


def test_token_statistics_are_read_by_step(tmp_path: Path):
    rollouts = [
        TrainedRollout("key", 3, [TrainedTurn(0, [-0.5, -1.25], [0.0, 2.5], -0.75), TrainedTurn(2, [], [], 0.5)])
    ]
    write_tokens(tmp_path, 7, rollouts)
    assert (read_tokens(tmp_path, 7), read_tokens(tmp_path, 8)) == (rollouts, [])
    write_tokens(tmp_path, 7, [])
    assert read_tokens(tmp_path, 7) == []


@pytest.mark.parametrize("content", [b"", b"\xff", b'"\xff"', b"[1]", b'[{"example_key": 3}]'])
def test_a_damaged_file_is_reported(tmp_path: Path, content: bytes):
    write_tokens(tmp_path, 1, [])
    file_of(tmp_path, 1).write_bytes(content)
    with pytest.raises(RunError, match=r"1\.json cannot be read.*delete it"):
        read_tokens(tmp_path, 1)
