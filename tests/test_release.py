"""The checks of `make release`, and the description that a registry shows."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import release
import yaml
from markdown_it import MarkdownIt
from release import ReleaseError

import rove
from hatch_build import project_urls, registry_description

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REPOSITORY = "https://repository.invalid/owner/rove"
PAGES = f"{REPOSITORY}/blob/v{rove.__version__}/"


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(markdown)


def dead_addresses(html: str, repository: str) -> list[str]:
    dead = release.dead_addresses(html, repository, rove.__version__)
    return [address for address in dead if not address.startswith("#")]  # only the registry's renderer writes anchors


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Create a repository with a version, a dated changelog, and one commit."""
    (tmp_path / "rove").mkdir()
    (tmp_path / "rove/__init__.py").write_text('"""A package."""\n\n__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0 (2026-12-01)\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_repository_makes_every_link_of_the_readme_absolute() -> None:
    text = registry_description(README, REPOSITORY, rove.__version__)
    html = rendered(text)
    assert dead_addresses(html, REPOSITORY) == []
    assert html.count(f'href="{PAGES}docs/') > 50
    pictures = re.findall(r'<img src="([^"]*)"', html)
    assert len(pictures) == 3 and all(address.startswith(f"{REPOSITORY}/raw/v") for address in pictures)
    assert 'srcset="docs' not in text


def test_without_a_repository_the_description_has_no_links_into_it() -> None:
    text = registry_description(README, "", rove.__version__)
    html = rendered(text)
    assert dead_addresses(html, "") == []
    assert "<img" not in html and "picture>" not in html
    assert "the first hour, six pages" in text
    assert project_urls("", "1.0") == {}


def test_addresses_that_lead_nowhere_are_found() -> None:
    html = '<h2 id="a"></h2><a href="#a"></a><a href="#b"></a><a href="docs/x.md"></a><img src="https://example.org/x.png">'
    assert release.dead_addresses(html, "", "1.0") == ["#b", "docs/x.md"]
    pages = f"{REPOSITORY}/blob/v1.0/"
    html = (
        f'<a href="{pages}README.md#x"></a><a href="{pages}NO.md"></a><a href="{REPOSITORY}/blob/v1.0/docs/guides"></a>'
    )
    assert release.dead_addresses(html, REPOSITORY, "1.0") == [f"{pages}NO.md"]


def test_the_addresses_of_the_project_are_of_files_that_exist() -> None:
    urls = project_urls(REPOSITORY, "1.0")
    assert urls["Repository"] == REPOSITORY
    for name in ("Documentation", "Changelog"):
        assert (ROOT / urls[name].removeprefix(f"{REPOSITORY}/blob/v1.0/")).is_file()


def test_only_the_package_states_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"] and "version" in project["project"]["dynamic"]
    assert release.project_version() == rove.__version__
    assert release.project_repository() == project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]


def check_tree(tree: Path) -> None:
    for check in (release.check_clean_tree, release.check_changelog, release.check_tag):
        check(tree)


def uncommitted_change(tree: Path) -> None:
    (tree / "rove/new.py").write_text("")


def unreleased_section(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("## 1.2.0 (unreleased)\n")
    git(tree, "commit", "-qam", "second")


def tag_on_an_older_commit(tree: Path) -> None:
    git(tree, "tag", "v1.2.0")
    git(tree, "commit", "-q", "--allow-empty", "-m", "second")


def version_in_no_line(tree: Path) -> None:
    (tree / "rove/__init__.py").write_text("version = 1\n")
    git(tree, "commit", "-qam", "second")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (uncommitted_change, "working tree has changes"),
        (unreleased_section, r"no heading '## 1.2.0 \(YYYY-MM-DD\)'"),
        (tag_on_an_older_commit, "the tag v1.2.0 is on another commit"),
        (version_in_no_line, "no line __version__"),
    ],
)
def test_a_tree_that_cannot_be_released_is_refused(tree: Path, damage: Callable[[Path], None], message: str) -> None:
    check_tree(tree)
    damage(tree)
    with pytest.raises(ReleaseError, match=message):
        check_tree(tree)


def test_a_tag_on_this_commit_is_fine(tree: Path) -> None:
    git(tree, "tag", "v1.2.0")
    check_tree(tree)


def test_builds_that_differ_are_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter([{"a.whl": "1"}, {"a.whl": "2"}])
    monkeypatch.setattr(release, "build", lambda root, out: next(digests))
    with pytest.raises(ReleaseError, match="two builds of the same files differ"):
        release.check_reproducible(tree, tree / "dist")


@pytest.mark.slow
def test_two_builds_in_different_folders_are_equal(tmp_path: Path) -> None:
    release.check_reproducible(ROOT, tmp_path / "dist")
    assert sorted(file.suffix for file in (tmp_path / "dist").iterdir()) == [".gz", ".whl"]


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAKE_TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def commands_of(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_workflows_run_targets_of_the_makefile() -> None:
    commands = [command for workflow in WORKFLOWS for command in commands_of(workflow)]
    outside = [command for command in commands if not command.startswith("make ")]
    assert outside == ["choco install make --no-progress"]  # Windows has no make
    targets = {command.split()[1] for command in commands if command.startswith("make ")}
    assert targets == {"check", "test", "test-broad", "release", "docs", "test-pythons"}
    assert targets <= MAKE_TARGETS


def test_workflows_test_every_python_on_three_systems() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["pythons"]["strategy"]["matrix"]
    assert [name.split("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]
    assert set(matrix["python"]) == {"3.11", "3.12", "3.13", "3.14"}


def test_the_citation_states_no_version_of_its_own() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)
    assert "version" not in citation


def test_the_image_and_the_services_use_files_and_options_that_exist() -> None:
    copied = re.findall(r"^COPY (\S+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert copied == [".", "constraints.txt"] and all((ROOT / name).exists() for name in copied)
    services = yaml.safe_load((ROOT / "compose.yml").read_text(encoding="utf-8"))["services"]
    command = services["rove"]["command"]
    assert command[:2] == ["eval", "reverse_text"] and "http://vllm:8000/v1" in command
    assert set(services["rove"]["depends_on"]) <= set(services)


def test_pages_for_contributors_link_to_files_that_exist() -> None:
    html = rendered((ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    names = re.findall(r'href="([^"#]+)"', html)
    assert len(names) > 5 and all((ROOT / name).is_file() for name in names)
