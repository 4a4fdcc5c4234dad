"""Checking beside the hub: what takes too long is refused, and the next package is checked as ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from hubs import package

from rove.core.errors import RejectedError
from rove.hub.server import checkers
from rove.hub.server.checkers import Checkers


def put(folder: Path, parts: dict[str, bytes]) -> Path:
    folder.mkdir()
    for part, content in parts.items():
        (folder / part).write_bytes(content)
    return folder


async def test_a_check_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parts = package(tmp_path / "p")
    pool = Checkers()
    try:
        monkeypatch.setattr(checkers, "CHECK_TIMEOUT_S", 0.0)
        with pytest.raises(RejectedError, match="exceeded its time or memory limit") as refused:
            await pool.check(put(tmp_path / "slow", parts), "acme", "my-sums", "1.0", [])
        assert refused.value.status == 422
        monkeypatch.undo()
        kept = await pool.check(put(tmp_path / "draft", parts), "acme", "my-sums", "1.0", [])
        assert sorted((file.kind, file.filename) for file in kept) == [
            ("manifest", "manifest.json"),
            ("readme", "README.md"),
            ("source", "my_sums-1.0.tar.gz"),
            ("wheel", "my_sums-1.0-py3-none-any.whl"),
        ]
        assert {path.name for path in (tmp_path / "draft").iterdir()} == {file.filename for file in kept}
    finally:
        await pool.close()


async def test_a_refusal_does_not_tell_where_the_hub_lies(tmp_path: Path):
    parts = package(tmp_path / "p")
    pool = Checkers()
    try:
        with pytest.raises(RejectedError) as refused:
            await pool.check(put(tmp_path / "draft", {**parts, "readme": b"other"}), "acme", "my-sums", "1.0", [])
        assert "README" in str(refused.value) and str(tmp_path) not in str(refused.value)
    finally:
        await pool.close()
