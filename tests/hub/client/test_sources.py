"""Packages from Git repositories and local wheels."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from packages import MODULE, put_package, put_wheel, wheel_files, with_record
from tiers import each_row

from rove.core.errors import ConfigError, PackageError
from rove.hub.client import sources
from rove.hub.client.sources import clone, is_git, masked, offer_of_wheel
from rove.hub.package.manifest import ROVE, V0
from rove.hub.package.names import Reference


@each_row(
    "target",
    [
        "git+https://host/a/b",
        "git+https://host/a/b@v1#subdirectory=x",
        "https://host/a/b.git",
        "git@host:a/b.git",
        "git+file:///a",
        "git+ssh://git@host/a/b.git",
        "ssh://git@host/a/b",
        "me@host:a/b.git",
    ],
)
def test_git_addresses_are_recognized(target: str) -> None:
    assert is_git(target)


@each_row("target", ["alice/doubling", "alice/doubling@1.0", "./folder", "a.whl", "https://host/a", "../x.git"])
def test_other_targets_are_not_git_addresses(target: str) -> None:
    assert not is_git(target)


@pytest.mark.parametrize(
    "url", ["ssh://git@host/a/b.git", "https://me:pw@host/a/b", "git@host:a/b.git", "ssh://h:22/a"]
)
def test_a_revision_follows_the_path(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git_calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(sources, "_git", lambda *words: git_calls.append(words) or "")
    for target in (f"git+{url}", f"git+{url}@v1/x"):
        with pytest.raises(ConfigError, match="has no pyproject") as raised:
            clone(target, tmp_path / "new")
        assert "pw" not in str(raised.value)
    assert [words[3] for words in git_calls if words[0] == "clone"] == [url, url]
    assert [words[-2] for words in git_calls if "checkout" in words] == ["v1/x"]


def test_errors_omit_the_token_in_an_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="git clone") as raised:
        clone("git+http://me:tok-en@127.0.0.1:9/a/b", tmp_path / "new")
    assert "tok-en" not in str(raised.value)
    assert masked("git+https://x@h/a@v1 and ssh://git@h/b") == "git+https://h/a@v1 and ssh://h/b"


def make_repository(folder: Path) -> str:
    """Create a Git repository with two commits and a package in a folder; return the first commit."""
    (folder / "below").mkdir(parents=True)

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "-q", "-b", "main")
    (folder / "below/pyproject.toml").write_text("# 1\n")
    git("add", ".")
    git("commit", "-qm", "one")
    first_commit = git("rev-parse", "HEAD")
    (folder / "below/pyproject.toml").write_text("# 2\n")
    git("commit", "-qam", "two")
    return first_commit


def test_a_repository_is_cloned_at_a_commit_with_an_optional_subdirectory(tmp_path: Path) -> None:
    first_commit = make_repository(tmp_path / "there")
    url = f"git+file://{tmp_path / 'there'}"
    package_folder, commit = clone(f"{url}#subdirectory=below", tmp_path / "new")
    assert (package_folder / "pyproject.toml").read_text() == "# 2\n" and commit != first_commit
    package_folder, commit = clone(f"{url}@{first_commit}#subdirectory=below", tmp_path / "old")
    assert (package_folder / "pyproject.toml").read_text() == "# 1\n" and commit == first_commit
    with pytest.raises(ConfigError, match="has no pyproject.toml in its top folder"):
        clone(url, tmp_path / "top")
    with pytest.raises(ConfigError, match=r"has no pyproject\.toml in \.\./\.\."):
        clone(f"{url}#subdirectory=../..", tmp_path / "out")
    with pytest.raises(ConfigError, match="git clone"):
        clone(f"git+file://{tmp_path}/nothing", tmp_path / "none")
    with pytest.raises(ConfigError, match="git checkout|git -C"):
        clone(f"{url}@no-such-revision", tmp_path / "wrong")


def test_a_wheel_without_a_manifest_has_an_inferred_one(tmp_path: Path) -> None:
    offer = offer_of_wheel(put_wheel(tmp_path))
    assert offer.reference == Reference("local", "my-sums", "1.0") and offer.content == b"" and offer.sha256 == ""
    assert (offer.manifest.compatibility, offer.manifest.module) == (ROVE, "my_sums")
    extra = "Requires-Dist: Verifiers (>=0.1.5)\nRequires-Dist: verifiers-more\n"
    old = with_record(wheel_files("old", "1.0", {"old.py": MODULE}, extra))
    assert offer_of_wheel(put_wheel(tmp_path, old, "old-1.0-py3-none-any.whl")).manifest.compatibility == V0


def test_a_manifest_next_to_the_wheel_is_used_if_it_describes_that_wheel(tmp_path: Path) -> None:
    manifest = put_package(tmp_path / "made", description="Adds", metrics=["right"])
    wheel = tmp_path / "made" / manifest.wheel.filename
    offer = offer_of_wheel(wheel)
    assert offer.manifest == manifest and offer.content
    put_wheel(tmp_path / "made", with_record(wheel_files(modules={"my_sums.py": MODULE + b"# other\n"})), wheel.name)
    assert offer_of_wheel(wheel).content == b""
    (tmp_path / "made/manifest.json").write_bytes(b"{}")
    with pytest.raises(PackageError, match="schema"):
        offer_of_wheel(wheel)
