"""Virtual environments for environment packages, created on first use."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rove.core.config import read_toml
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError
from rove.envs.loading import project_file
from rove.utils.files import cache_folder
from rove.utils.systems import rename, venv_packages, venv_python

INSTALL_TIMEOUT_S = 1800.0
"""Time limit for installing a package's dependencies."""
MAX_ERROR_LINES = 15
"""Maximum number of lines of pip's output that an error shows."""
FALLBACK_PTH = "import site; site.addsitedir({folder!r})\n"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: rove\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
CONFLICT = re.compile(r"The conflict is caused by:\n(.*?)\n\n", re.DOTALL)
"""Pattern of pip's explanation of a version conflict, which pip prints on standard output, not among its errors."""

StandIns = Mapping[str, Sequence[str]]
"""Distribution name → its versions, in ascending order. rove installs empty distributions in place of these distributions,
because it provides their modules."""


def python_for(file: Path, stand_ins: StandIns | None = None) -> str | None:
    """Return the interpreter of a package's virtual environment; None if the package depends only on rove.

    The environment holds the declared dependencies, which take precedence over packages of this interpreter. If the
    dependencies or the interpreter change, the environment is created again in the cache folder
    (`$XDG_CACHE_HOME/rove/venvs`).

    Args:
        file: File of the environment's module; see `project_file`.
    """
    needed = dependencies(project_file(file))
    if not needed:
        return None
    identity = {
        "needs": needed,
        "python": sys.version,
        "at": sys.prefix,
        "behind": _fallback_folders(),
        **(stand_ins or {}),
    }
    try:
        folder = cache_folder() / "venvs" / f"{file.stem}-{fingerprint(identity)}"
        return make_venv(folder, needed, stand_ins=stand_ins)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nset --isolated-python to the interpreter of an environment with the dependencies of '{file.stem}'"
        ) from error


def make_venv(
    folder: Path, arguments: Sequence[str], seconds: float = INSTALL_TIMEOUT_S, stand_ins: StandIns | None = None
) -> str:
    """Create a virtual environment with the result of `pip install`, and return its interpreter.

    Packages of this interpreter are importable, but the environment's own packages take precedence. Creation is atomic, so that
    several processes may request the same folder. An existing folder is not changed: its name must identify its contents.

    Args:
        arguments: Arguments of `pip install`: requirements, files, flags; if it is empty, nothing is installed.
    """
    if not (folder / "made").exists():
        _make(folder, arguments, seconds, stand_ins or {})
    return str(venv_python(folder))


def run_pip(python: str | Path, words: Sequence[str], failed: str, seconds: float = INSTALL_TIMEOUT_S) -> None:
    """Run `pip WORDS`."""
    command = [str(python), "-m", "pip", *words[:1], "--disable-pip-version-check", *words[1:]]
    try:
        result = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{failed}: pip did not end within {seconds:g} s") from error
    if result.returncode:
        conflict = CONFLICT.search(result.stdout)
        output = conflict[1] if conflict else result.stderr or result.stdout
        lines = output.strip().splitlines()[-MAX_ERROR_LINES:]
        raise ConfigError("\n  ".join([f"{failed}:", *map(str.strip, lines)]))


def stand_in_arguments(folder: Path, stand_ins: StandIns) -> list[str]:
    """Write empty wheels into `folder` and return the pip arguments that install them instead of the real distributions.

    The wheels' versions have a local part, because pip prefers such versions among equal versions.

    Args:
        folder: A folder that does not exist yet; pip must be able to read it.
    """
    if not stand_ins:
        return []
    folder.mkdir()
    for name, versions in stand_ins.items():
        for version in versions:
            stem = f"{name}-{version}+rove"
            metadata = METADATA.format(name=name, version=f"{version}+rove")
            with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
                wheel.writestr(f"{stem}.dist-info/WHEEL", WHEEL)
                wheel.writestr(f"{stem}.dist-info/RECORD", "")
    # Otherwise pip would take a newer real distribution.
    limits = [f"{name}<={versions[-1]}\n" for name, versions in stand_ins.items()]
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(limits), encoding="utf-8", newline="\n")
    return ["--find-links", str(folder), "--constraint", str(constraints)]


def dependencies(project: Path) -> list[str]:
    """Return the dependencies of a `pyproject.toml`, without rove itself unless it has extras; [] if there is no such file."""
    if not project.is_file():
        return []
    declared: list[str] = read_toml(project).get("project", {}).get("dependencies", [])
    needed: list[str] = []
    for requirement in declared:
        name_and_version = requirement.split(";")[0].strip()  # without a marker, such as `; python_version < "3.12"`
        if not re.fullmatch(r"rove\s*([<>=!~].*)?", name_and_version):
            needed.append(requirement)
    return sorted(needed)


def _make(folder: Path, arguments: Sequence[str], seconds: float, stand_ins: StandIns) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new_folder = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise ConfigError(f"the virtual environment {folder} cannot be made: {error}") from error
    try:
        venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(new_folder)
        fallbacks = [FALLBACK_PTH.format(folder=fallback) for fallback in _fallback_folders()]
        # "zz": Python reads these files in alphabetical order, and the package's own come first (docs/decisions/workers.md).
        # Python 3.11 and 3.12 read these files with the encoding of the system.
        paths = venv_packages(new_folder) / "zz_behind.pth"
        paths.write_text("".join(fallbacks), encoding="locale", newline="\n")
        if arguments:
            words = ["install", *stand_in_arguments(new_folder / "stand_ins", stand_ins), *arguments]
            run_pip(venv_python(new_folder), words, f"{', '.join(arguments)} cannot be installed", seconds)
        _name_final_folder(new_folder, folder)
        (new_folder / "made").touch()  # last: a folder without it is incomplete
        rename(new_folder, folder)
    except OSError as error:
        if not (folder / "made").exists():  # else another process has made it
            raise ConfigError(f"the virtual environment {folder} cannot be made: {error}") from error
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)


def _name_final_folder(new_folder: Path, folder: Path) -> None:
    """Let the scripts of a virtual environment start its interpreter in the folder into which it will be moved."""
    if os.name == "nt":
        return  # there, the scripts are programs
    old, new = os.fsencode(new_folder), os.fsencode(folder)
    for script in venv_python(new_folder).parent.iterdir():
        if not script.is_symlink() and script.is_file():
            content = script.read_bytes()
            if content.startswith(b"#!"):
                script.write_bytes(content.replace(old, new))


def _fallback_folders() -> list[str]:
    """Return the folders in which this interpreter finds installed packages."""
    folders = (*site.getsitepackages(), site.getusersitepackages())
    return [folder for folder in folders if Path(folder).is_dir()]
