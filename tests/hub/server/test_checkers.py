"""Checking packages in worker processes of the hub, with a time limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hubs import package_parts

from rove.core.errors import RejectedError
from rove.hub.server import checkers
from rove.hub.server.checkers import Checkers


def write_draft(folder: Path, parts: dict[str, bytes]) -> Path:
    folder.mkdir()
    for part, content in parts.items():
        (folder / part).write_bytes(content)
    return folder


async def test_a_check_over_its_time_limit_is_stopped_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    parts = package_parts(tmp_path / "p")
    pool = Checkers()
    try:
        monkeypatch.setattr(checkers, "CHECK_TIMEOUT_S", 0.0)
        with pytest.raises(RejectedError, match="exceeded its time or memory limit") as refused:
            await pool.check(write_draft(tmp_path / "slow", parts), "acme", "my-sums", "1.0", [])
        assert refused.value.status == 422
        monkeypatch.undo()
        accepted = await pool.check(write_draft(tmp_path / "draft", parts), "acme", "my-sums", "1.0", [])
        assert sorted((file.kind, file.filename) for file in accepted) == [
            ("manifest", "manifest.json"),
            ("readme", "README.md"),
            ("source", "my_sums-1.0.tar.gz"),
            ("wheel", "my_sums-1.0-py3-none-any.whl"),
        ]
        assert {path.name for path in (tmp_path / "draft").iterdir()} == {file.filename for file in accepted}
    finally:
        await pool.close()


async def test_the_error_omits_the_hubs_path(tmp_path: Path):
    parts = package_parts(tmp_path / "p")
    pool = Checkers()
    try:
        with pytest.raises(RejectedError) as refused:
            await pool.check(
                write_draft(tmp_path / "draft", {**parts, "readme": b"other"}), "acme", "my-sums", "1.0", []
            )
        assert "README" in str(refused.value) and str(tmp_path) not in str(refused.value)
    finally:
        await pool.close()
