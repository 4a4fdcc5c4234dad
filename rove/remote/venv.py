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
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rove.core.config import read_toml
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError
from rove.envs.loading import project_file

SECONDS = 1800.0
"""For installing what a package needs."""
TOLD = 15
"""Last lines of an installer's words in an error."""
BEHIND = "import site; site.addsitedir({folder!r})\n"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: rove\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
CONFLICT = re.compile(r"The conflict is caused by:\n(.*?)\n\n", re.DOTALL)
"""What pip says in another place than its errors."""

StandIns = Mapping[str, Sequence[str]]
"""Name of a distribution → its versions, the highest last. Where one of them is asked for, an empty one is installed in its
place: something else answers for what it had."""


def python_for(file: Path, stand_ins: StandIns | None = None) -> str | None:
    """The interpreter of a package's own virtual environment; None where the package needs nothing but rove.

    What the package declares is installed there, and comes before what is installed here, which is found behind it. It is
    made anew when that, or the interpreter, changes. Kept in the cache folder (`$XDG_CACHE_HOME/rove/venvs`).

    Args:
        file: of the environment's module; see `project_file`.
        stand_ins: see `make_venv`.

    Raises:
        ConfigError: what it needs cannot be installed.
    """
    needed = dependencies(project_file(file))
    if not needed:
        return None
    told = {"needs": needed, "python": sys.version, "at": sys.prefix, "behind": _behind(), **(stand_ins or {})}
    try:
        return make_venv(_cache() / f"{file.stem}-{fingerprint(told)}", needed, stand_ins=stand_ins)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\ngive the python of an environment that has what '{file.stem}' needs with --isolated-python"
        ) from error


def make_venv(
    folder: Path, arguments: Sequence[str], seconds: float = SECONDS, stand_ins: StandIns | None = None
) -> str:
    """The interpreter of a virtual environment with what `pip install` is given; packages installed here are found behind it.

    The folder is there whole or not at all, so that several processes may ask for the same one. One that is there is
    left as it is: its name is to tell what is in it.

    Args:
        arguments: for `pip install`: requirements, files, flags. None: nothing is installed.
        seconds: that installing may take.
        stand_ins: distributions that are not fetched where something that is installed asks for them.

    Raises:
        ConfigError: pip failed, with its last lines; it took too long; the folder cannot be made.
    """
    if not (folder / "made").exists():
        _make(folder, arguments, seconds, stand_ins or {})
    return str(_python(folder))


def run_pip(python: str | Path, words: Sequence[str], failed: str, seconds: float = SECONDS) -> None:
    """Run `pip WORDS`.

    Args:
        failed: what did not work if it fails: the beginning of the error.

    Raises:
        ConfigError: it failed, with its last lines; it took too long.
    """
    command = [str(python), "-m", "pip", *words[:1], "--disable-pip-version-check", *words[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{failed}: it did not end within {seconds:g} s") from error
    if done.returncode:
        conflict = CONFLICT.search(done.stdout)
        lines = (conflict[1] if conflict else done.stderr or done.stdout).strip().splitlines()[-TOLD:]
        raise ConfigError("\n  ".join([f"{failed}:", *map(str.strip, lines)]))


def standing_in(folder: Path, stand_ins: StandIns) -> list[str]:
    """Arguments of pip with which it finds empty wheels, written into the folder, and takes none that is newer.

    Of equal versions the one with a local part is the higher, so that it is taken.

    Args:
        folder: there is none yet; pip reads it.
    """
    if not stand_ins:
        return []
    folder.mkdir()
    for name, versions in stand_ins.items():
        for version in versions:
            stem = f"{name}-{version}+rove"
            with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{stem}.dist-info/METADATA", METADATA.format(name=name, version=f"{version}+rove"))
                wheel.writestr(f"{stem}.dist-info/WHEEL", WHEEL)
                wheel.writestr(f"{stem}.dist-info/RECORD", "")
    limits = folder / "constraints.txt"
    limits.write_text("".join(f"{name}<={versions[-1]}\n" for name, versions in stand_ins.items()))
    return ["--find-links", str(folder), "--constraint", str(limits)]


def dependencies(project: Path) -> list[str]:
    """What a `pyproject.toml` declares, rove itself left out unless with extras; nothing where there is no such file."""
    if not project.is_file():
        return []
    declared = read_toml(project).get("project", {}).get("dependencies", [])
    return sorted(one for one in declared if not re.fullmatch(r"rove\s*([<>=!~].*)?", one.split(";")[0].strip()))


def _make(folder: Path, arguments: Sequence[str], seconds: float, stand_ins: StandIns) -> None:
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
            words = ["install", *standing_in(made / "stand_ins", stand_ins), *arguments]
            run_pip(_python(made), words, f"{', '.join(arguments)} cannot be installed", seconds)
        (made / "made").touch()
        made.rename(folder)
    except OSError as error:
        if not (folder / "made").exists():  # else somebody else has made it meanwhile
            raise ConfigError(f"the virtual environment {folder} cannot be made: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _behind() -> list[str]:
    """Where packages are installed here."""
    return [folder for folder in (*site.getsitepackages(), site.getusersitepackages()) if Path(folder).is_dir()]


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".cache") / "rove" / "venvs"
