"""A virtual environment for an environment package, made the first time it is asked for."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from rove.config import read_toml
from rove.digest import fingerprint
from rove.errors import ConfigError

SECONDS = 1800.0
"""For installing what a package needs."""
TOLD = 15
"""Last lines of an installer's words in an error."""
BEHIND = "import site; site.addsitedir({folder!r})\n"


def python_for(file: Path) -> str | None:
    """The interpreter of a package's own virtual environment; None where the package needs nothing but rove.

    What the package declares is installed there, and comes before what is installed here, which is found behind it. It is
    made anew when that, or the interpreter, changes. Kept in the cache folder (`$XDG_CACHE_HOME/rove/venvs`).

    Args:
        file: of the environment's module; its `pyproject.toml` lies beside it.

    Raises:
        ConfigError: what it needs cannot be installed.
    """
    needed = dependencies(file.with_name("pyproject.toml"))
    if not needed:
        return None
    name = f"{file.stem}-{fingerprint({'needs': needed, 'python': sys.version, 'at': sys.prefix, 'behind': _behind()})}"
    try:
        return make_venv(_cache() / name, needed)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\ngive the python of an environment that has what '{file.stem}' needs with --isolated-python"
        ) from error


def make_venv(folder: Path, arguments: Sequence[str], seconds: float = SECONDS) -> str:
    """The interpreter of a virtual environment with what `pip install` is given; packages installed here are found behind it.

    The folder is there whole or not at all, so that several processes may ask for the same one. One that is there is
    left as it is: its name is to tell what is in it.

    Args:
        arguments: for `pip install`: requirements, files, flags. None: nothing is installed.
        seconds: that installing may take.

    Raises:
        ConfigError: pip failed, with its last lines; it took too long; the folder cannot be made.
    """
    if not (folder / "made").exists():
        _make(folder, arguments, seconds)
    return str(_python(folder))


def dependencies(project: Path) -> list[str]:
    """What a `pyproject.toml` declares, rove itself left out unless with extras; nothing where there is no such file."""
    if not project.is_file():
        return []
    declared = read_toml(project).get("project", {}).get("dependencies", [])
    return sorted(one for one in declared if not re.fullmatch(r"rove\s*([<>=!~].*)?", one.split(";")[0].strip()))


def _make(folder: Path, arguments: Sequence[str], seconds: float) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise ConfigError(f"the virtual environment {folder} cannot be made: {error}") from error
    try:
        venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(made)
        [own] = made.glob("lib/python*/site-packages")
        (own / "zz_behind.pth").write_text("".join(BEHIND.format(folder=folder) for folder in _behind()))
        if arguments:
            install(_python(made), arguments, seconds)
        (made / "made").touch()
        made.rename(folder)
    except OSError as error:
        if not (folder / "made").exists():  # else somebody else has made it meanwhile
            raise ConfigError(f"the virtual environment {folder} cannot be made: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def install(python: str | Path, arguments: Sequence[str], seconds: float = SECONDS) -> None:
    """Have pip install what it is given, for an interpreter that finds pip.

    Raises:
        ConfigError: pip failed, with its last lines, or it took too long.
    """
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    what = ", ".join(arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"installing {what} did not end within {seconds:g} s") from error
    if done.returncode:
        said = "\n".join(f"  {line}" for line in (done.stderr or done.stdout).strip().splitlines()[-TOLD:])
        raise ConfigError(f"{what} cannot be installed:\n{said}")


def _behind() -> list[str]:
    """Where packages are installed here."""
    return [folder for folder in (*site.getsitepackages(), site.getusersitepackages()) if Path(folder).is_dir()]


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".cache") / "rove" / "venvs"
