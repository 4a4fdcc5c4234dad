"""What of a folder a build backend gets to see."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rove.cli.init import scaffold
from rove.core.errors import PackageError
from rove.hub.package.backend import copy_source

SOURCE = {"README.md", "my_task.py", "pyproject.toml", "tests/test_my_task.py"}


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def copied(folder: Path, copy: Path) -> set[str]:
    copy_source(folder, copy)
    return {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}


def test_what_commands_make_and_keys_are_left(tmp_path: Path):
    folder = scaffold("my_task", tmp_path)
    put(
        folder,
        "dist/a",
        "runs/a",
        "build/a",
        "__pycache__/a",
        "my_task.egg-info/a",
        ".venv/a",
        ".git/a",
        ".ruff_cache/a",
    )
    put(folder, ".env", ".env.local", "deploy.pem", "data/signing.key", "tests/__pycache__/a.pyc")
    put(folder, "data/runs/a", ".gitignore")
    assert copied(folder, tmp_path / "copy") == SOURCE | {"data/runs/a", ".gitignore"}


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_what_git_ignores_is_left_wherever_that_is_said(tmp_path: Path):
    folder = scaffold("my_task", tmp_path / "environments")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    put(folder, "password.txt", "cache/deep/a", "kept.txt")
    (tmp_path / ".gitignore").write_text("password.txt\ncache/\n")
    assert copied(folder, tmp_path / "copy") == SOURCE | {"kept.txt"}
    (tmp_path / ".gitignore").write_text("environments/\n")
    assert copied(folder, tmp_path / "again") == SOURCE | {"kept.txt", "password.txt", "cache/deep/a"}


def test_a_broken_link_is_told(tmp_path: Path):
    folder = scaffold("my_task", tmp_path)
    (folder / "data").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PackageError, match="cannot be copied(.|\n)*my_task.data"):
        copy_source(folder, tmp_path / "copy")
