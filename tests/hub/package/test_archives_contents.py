"""The files and entry points of a wheel: one module named like the package and its own environment, nothing else."""

from __future__ import annotations

import importlib.metadata
import string
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packages import MODULE, wheel_files
from tiers import each_row

from rove.core.errors import PackageError
from rove.hub.package.archives import ENTRY_POINT_GROUP, LOAD, check_contents

INFO = "my_sums-1.0.dist-info"


def check_files(extra_files: dict[str, bytes], project: str = "my-sums") -> str:
    files = {**wheel_files(), f"{INFO}/RECORD": b"", **extra_files}
    return check_contents(files, INFO, project, "a.whl")


def entry_points(text: str) -> dict[str, bytes]:
    return {f"{INFO}/entry_points.txt": text.encode()}


@pytest.mark.parametrize(
    "extra_files",
    [
        {},
        {"pyproject.toml": b"", "README.md": b"", "LICENSE": b"", "questions.jsonl": b"", "prompts.yaml": b""},
        {"my_sums.py": MODULE, f"{INFO}/top_level.txt": b"my_sums\n"},
        {f"{INFO}/licenses/LICENSE": b"", f"{INFO}/LICENSE.txt": b"", f"{INFO}/AUTHORS.md": b""},
        entry_points("[rove.environments]\nmy-sums = my_sums\n"),
        entry_points("[rove.environments]\r\nmy_sums=my_sums:load_environment\r\n\r\n"),
        entry_points("[rove.environments]\nmy-sums = my_sums\nmy_sums = my_sums\n"),
        entry_points(""),
    ],
)
def test_files_that_build_backends_write_are_accepted(extra_files: dict[str, bytes]):
    assert check_files(extra_files) == "my_sums"


def test_a_package_folder_with_modules_and_data_is_accepted():
    files = {
        "my_sums/__init__.py": MODULE,
        "my_sums/deep/os.py": b"",
        "my_sums/data/rows.bin": b"",
        "my_sums/a.pth": b"",
    }
    info = {path: data for path, data in wheel_files().items() if path.startswith(INFO)}
    assert check_contents({**files, **info}, INFO, "my-sums", "a.whl") == "my_sums"


@each_row(
    "path",
    [
        "_distutils_hack/__init__.py",
        "distutils-precedence.pth",
        "evil.PTH",
        "evil.start",
        "evil.egg-link",
        "easy-install.pth",
        "__editable__.my_sums-1.0.pth",
        "__editable___my_sums_finder.py",
        "sitecustomize.py",
        "usercustomize/__init__.py",
        "conftest.py",
        "yarl/__init__.py",
        "multidict.py",
        "markdown_it/__init__.py",
        "typing_extensions.py",
        "cryptography/fernet.py",
        "openai/__init__.py",
        "google/__init__.py",
        "os.py",
        "Json.py",
        "my_sums_helpers.py",
        "my_sums_/__init__.py",
        "_my_sums.py",
        "my_sums/__init__.py",
        "my_sums.pyw",
        "data/rows.json",
        "tests/test_sums.py",
        "my_sums.egg-info/PKG-INFO",
        "my_sums-1.0.egg",
        "my_sums-1.0.data/purelib/evil.py",
        "my_sums-1.0.data/platlib/evil.py",
        "my_sums-1.0.data/scripts/pip",
        "my_sums-1.0.data/data/etc/evil",
        "my_sums-1.0.data/headers/evil.h",
        "lib.so.1",
        "my_sums/lib.so.1.2",
        "my_sums/a.abi3.so",
        "my_sums/a.PYD",
        "my_sums/a.dll",
        "my_sums/a.dylib",
        "my_sums/__pycache__/a.cpython-311.pyc",
        "pyvenv.cfg",
        "python311.zip",
        ".hidden.json",
        "-r.txt",
        f"{INFO}/direct_url.json",
        f"{INFO}/INSTALLER",
        f"{INFO}/ENTRY_POINTS.TXT",
        f"{INFO}/namespace_packages.txt",
        f"{INFO}/entry_points.txt/x",
        f"{INFO}/evil.py",
    ],
)
def test_files_that_run_code_or_hide_modules_are_rejected(path: str):
    with pytest.raises(PackageError, match=r"a\.whl: "):
        check_files({path: MODULE})


def test_a_folder_named_like_a_file_is_rejected():
    files = {path: data for path, data in wheel_files().items() if path.startswith(INFO)}
    with pytest.raises(PackageError, match="is not a valid module name"):
        check_contents({**files, "my_sums.py/__init__.py": MODULE}, INFO, "my-sums", "a.whl")


def test_a_module_with_another_name_is_rejected():
    with pytest.raises(
        PackageError, match=r"'my_sums' is not named like the package 'other'; .* move my_sums\.py into"
    ):
        check_files({}, project="other")


@each_row("project", ["yarl", "openai", "google", "typing-extensions", "distutils", "setuptools"])
def test_a_package_named_like_a_library_is_rejected(project: str):
    files = {path: data for path, data in wheel_files().items() if path.startswith(INFO)}
    with pytest.raises(PackageError, match="would hide"):
        check_contents({**files, f"{project.replace('-', '_')}.py": MODULE}, INFO, project, "a.whl")


def test_top_level_txt_may_list_only_the_module():
    with pytest.raises(PackageError, match="its only module is my_sums"):
        check_files({f"{INFO}/top_level.txt": b"my_sums\ntorch\n"})


HOSTILE_ENTRY_POINTS = [
    "[pytest11]\nevil = my_sums\n",
    "[distutils.commands]\nbuild = my_sums:Build\n",
    "[console_scripts]\npip = my_sums:main\n",
    "[ console_scripts ]\npip = my_sums:main\n",
    "[Console_Scripts]\npip = my_sums:main\n",
    "[[console_scripts]]\npip = my_sums:main\n",
    "[rove.environments]\nmy-sums = my_sums\n [pytest11]\n evil = my_sums\n",
    "[rove.environments]\nmy-sums = my_sums\n\t[pytest11]\n\tevil = my_sums\n",
    "[rove.environments]\nmy-sums = my_sums\r[pytest11]\revil = my_sums\n",
    "[rove.environments]\nmy-sums = my_sums\x0b[pytest11]\x0bevil = my_sums\n",
    "[rove.environments]\nmy-sums = my_sums\u2028[pytest11]\u2028evil = my_sums\n",
    "[rove.environments]\nmy-sums = my_sums\n[rove.environments]\nmy-sums = my_sums\n",
    "[rove.environments]\nmy-sums = my_sums\nmy-sums = my_sums:load_environment\n",
    "[rove.environments]\nmy-sums : my_sums\n",
    "[rove.environments]\nmy-sums\n",
    "[rove.environments]\ntictactoe = my_sums\n",
    "[rove.environments]\nmy-sums = os\n",
    "[rove.environments]\nmy-sums = my_sums.other\n",
    "[rove.environments]\nmy-sums = my_sums:other\n",
    "[rove.environments]\nmy-sums = my_sums [extra]\n",
    "[rove.environments]\nmy-sums = %(x)s\n",
    "[DEFAULT]\nmy-sums = my_sums\n",
    "[DEFAULT]\nevil = my_sums\n[rove.environments]\nmy-sums = my_sums\n",
    "my-sums = my_sums\n",
    "[rove.environments\nmy-sums = my_sums\n",
    "[]\nmy-sums = my_sums\n",
    "\ufeff[rove.environments]\nmy-sums = my_sums\n",
    "[rove.environments] ; x\nmy-sums = my_sums\n",
    "[rove.environments]\n; [pytest11]\nmy-sums = my_sums\n",
    "[rove.environments]\nmy-sums = my_sums\n=\n",
]


@each_row("text", HOSTILE_ENTRY_POINTS)
def test_invalid_and_foreign_entry_points_are_rejected(text: str):
    with pytest.raises(PackageError, match=r"a\.whl: its entry_points\.txt"):
        check_files(entry_points(text))


class DistributionWithEntryPoints(importlib.metadata.Distribution):
    """A distribution with an entry_points.txt, as importlib.metadata reads it."""

    def __init__(self, text: str):
        self.text = text

    def read_text(self, filename: str) -> str | None:
        return self.text if filename == "entry_points.txt" else None

    def locate_file(self, path: object) -> Path:
        return Path(str(path))


ENTRY_POINT_PIECES = st.sampled_from(
    ["[rove.environments]", "[pytest11]", "[DEFAULT]", "my-sums", "My_Sums", "my_sums", "evil", ":load_environment"]
) | st.sampled_from(" \t=:#;[]%\n\r\x0c\x1c\x85")


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(ENTRY_POINT_PIECES, max_size=14).map("".join), st.text(string.printable, max_size=60)))
@example("[rove.environments]\nmy-sums=my_sums\n")
def test_importlib_reads_only_the_expected_entry_point_in_accepted_files(text: str):
    try:
        check_files(entry_points(text))
    except PackageError:
        return
    for point in DistributionWithEntryPoints(text).entry_points:
        assert point.group == ENTRY_POINT_GROUP
        assert point.name.lower().replace("_", "-") == "my-sums"
        assert point.value in ("my_sums", f"my_sums:{LOAD}")


@each_row("text", [text for text in HOSTILE_ENTRY_POINTS if "pytest11" in text and ";" not in text])
def test_importlib_reads_a_plugin_in_the_rejected_files(text: str):
    """The cases are real attacks: pytest would load the plugins of the files rejected above."""
    assert "pytest11" in {point.group for point in DistributionWithEntryPoints(text).entry_points}
