"""Check that this commit can be released, and write its wheel and its source distribution to dist/: `make release`.

`--rehearsal` checks everything except what only a release has: a clean tree, a date in CHANGELOG.md, and an unused tag.
docs/releasing.md describes a release.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
REPOSITORY = re.compile(r'^repository = "([^"]*)"$', re.MULTILINE)
FIRST_COMMANDS = (
    ("--version",),
    ("eval", "tictactoe", "-m", "scripted:teacher", "-n", "2", "-r", "1"),
)


class ReleaseError(Exception):
    """A reason not to release, and what to do about it."""


def run(command: Sequence[str | Path], cwd: Path = ROOT, **variables: str) -> str:
    """Run a command and return its output; an error shows it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        command_line = " ".join(str(word) for word in command)
        raise ReleaseError(
            f"{command_line} ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def project_version(root: Path = ROOT) -> str:
    """Return the version, which only rove/__init__.py states."""
    match = VERSION.search((root / "rove/__init__.py").read_text(encoding="utf-8"))
    if match is None:
        raise ReleaseError('rove/__init__.py has no line __version__ = "…"; add it')
    return match[1]


def project_repository(root: Path = ROOT) -> str:
    """Return the address of the public repository; empty if there is none."""
    match = REPOSITORY.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    if match is None:
        raise ReleaseError('pyproject.toml has no line repository = "…" for hatch_build.py; add it')
    return match[1].rstrip("/")


def check_clean_tree(root: Path) -> None:
    """Refuse changes that are not committed: they would be in the files, but not in the tag."""
    if changes := run(["git", "status", "--porcelain"], root):
        raise ReleaseError(f"the working tree has changes; commit or remove them:\n{changes}")


def check_changelog(root: Path) -> None:
    """Refuse a version whose section in CHANGELOG.md has no date."""
    version = project_version(root)
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", text, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no heading '## {version} (YYYY-MM-DD)'; write the day of the release")


def check_tag(root: Path) -> None:
    """Refuse a version that is tagged on another commit."""
    tag = f"v{project_version(root)}"
    if not run(["git", "tag", "--list", tag], root).strip():
        return
    if run(["git", "rev-parse", f"{tag}^{{commit}}"], root) != run(["git", "rev-parse", "HEAD"], root):
        raise ReleaseError(f"the tag {tag} is on another commit; raise the version in rove/__init__.py")


def copy_of_tree(root: Path, target: Path) -> None:
    """Copy the tracked files to another folder, which gives them other times."""
    for name in run(["git", "ls-files", "-z"], root).split("\0"):
        if name and (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, target / name)


def build(root: Path, out: Path) -> dict[str, str]:
    """Build a source distribution, and a wheel from it; return file name → SHA-256."""
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, root], root)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(out.iterdir())}


def check_reproducible(root: Path, dist: Path) -> None:
    """Build in two folders, compare the files byte for byte, and write them to `dist`."""
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder) / name for name in ("first", "second/deeper")]
        built = []
        for number, tree in enumerate(trees):
            copy_of_tree(root, tree)
            built.append(build(tree, dist if number == 0 else Path(folder) / "again"))
    if built[0] != built[1]:
        raise ReleaseError(f"two builds of the same files differ: {built[0]} and {built[1]}")
    for name, digest in built[0].items():
        print(f"  {digest}  {name}")


def check_archives(dist: Path) -> None:
    """Check both archives with twine, and the wheel with check-wheel-contents."""
    programs = Path(sys.executable).parent
    run([programs / "twine", "check", "--strict", *sorted(dist.iterdir())])
    run([programs / "check-wheel-contents", *dist.glob("*.whl")])


class _Page(HTMLParser):
    """Addresses and anchors of a rendered page."""

    def __init__(self, html: str):
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the address and the anchor of an element."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.addresses.append(value)
            if name == "id" and value:
                self.anchors.add(value)


def dead_addresses(html: str, repository: str, version: str, root: Path = ROOT) -> list[str]:
    """Return the broken links of a rendered page without using the network.

    An address in the repository must name a file of this tree, and an anchor must be on the page. Other addresses are not
    checked.
    """
    page = _Page(html)
    dead = []
    for address in page.addresses:
        prefix = re.match(rf"{re.escape(repository)}/(?:blob|raw)/v{re.escape(version)}/", address)
        if address.startswith("#"):
            is_dead = address[1:] not in page.anchors
        elif repository and prefix:
            name = unquote(address[prefix.end() :].partition("#")[0])
            is_dead = not (root / name).exists()
        else:
            is_dead = not re.match(r"https?://", address)
        if is_dead:
            dead.append(address)
    return dead


def check_registry_page(dist: Path) -> None:
    """Render the wheel's description as the registry does and check its links and pictures."""
    from readme_renderer import markdown  # pyright: ignore[reportMissingImports]

    [wheel] = dist.glob("*.whl")
    files = zipfile.ZipFile(wheel)
    [metadata] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
    description = files.read(metadata).decode().partition("\n\n")[2]
    html = markdown.render(description)
    if html is None:
        raise ReleaseError("the registry's renderer cannot render the description; see hatch_build.py")
    repository = project_repository()
    if dead := dead_addresses(html, repository, project_version()):
        raise ReleaseError(f"the registry's page has addresses that lead nowhere: {', '.join(dead)}")
    if not repository:
        print("  note: pyproject.toml names no repository, so the page has no links into it and no pictures")


def check_installation(dist: Path) -> None:
    """Install the wheel into a new virtual environment and evaluate with it in an empty folder."""
    [wheel] = dist.glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "venv", Path(folder, "venv")])
        programs = Path(folder, "venv", "Scripts" if os.name == "nt" else "bin")
        run([programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", wheel])
        empty = Path(folder, "empty")
        empty.mkdir()
        outputs = [run([programs / "rove", *words], empty, HOME=folder) for words in FIRST_COMMANDS]
    if project_version() not in outputs[0]:
        raise ReleaseError(f"rove --version printed {outputs[0]!r}; expected {project_version()}")
    if "2 of 2 rollouts scored" not in outputs[1]:
        raise ReleaseError(f"the first evaluation printed:\n{outputs[1]}")


def main(words: Sequence[str]) -> int:
    """Run all checks and print each result; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearsal", action="store_true", help="skip what only a release has")
    rehearsal = parser.parse_args(words).rehearsal
    only_released: list[tuple[str, Callable[[], None]]] = [
        ("clean tree", lambda: check_clean_tree(ROOT)),
        ("changelog", lambda: check_changelog(ROOT)),
        ("tag", lambda: check_tag(ROOT)),
    ]
    always: list[tuple[str, Callable[[], None]]] = [
        ("two equal builds", lambda: check_reproducible(ROOT, DIST)),
        ("archives", lambda: check_archives(DIST)),
        ("registry page", lambda: check_registry_page(DIST)),
        ("first evaluation", lambda: check_installation(DIST)),
    ]
    failed = []
    for name, check in always if rehearsal else only_released + always:
        print(f"{name} …", flush=True)
        try:
            check()
        except (ReleaseError, OSError, ValueError) as error:
            failed.append(name)
            print(f"  FAILED: {error}", flush=True)
    if failed:
        print(f"not ready to release: {', '.join(failed)}")
        return 1
    print(
        f"{project_version()} is ready, except for a clean tree, a date, and a tag" if rehearsal else "ready to release"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
