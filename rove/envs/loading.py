"""Finding an environment by name: the one registry rove has."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from rove.core.config import read_toml
from rove.core.digest import digest_files
from rove.core.errors import ConfigError, Error, nearest
from rove.envs.environment import Environment
from rove.envs.questions import QuestionsEnv, is_question_file

GROUP = "rove.environments"
"""Entry points of packages that bring environments: the name of one = its top-level module."""
_ROVE = Path(__file__).resolve().parents[1]
PLAIN = {int, float, bool, str, NoneType}
"""Types of environment arguments that are checked."""


class Elsewhere(NamedTuple):
    """An environment that is not one of this interpreter's modules."""

    file: Path
    """Of its module."""
    load: Callable[..., Environment]
    """Called with its arguments as one mapping, and keywords of `rove.IsolatedEnv`."""


finders: list[Callable[[str], Elsewhere | None]] = []
"""Asked about names like "owner/name" and "owner/name@version" first.
`import rove` puts one here that knows what is installed from a hub."""


def load_environment(env_id: str, env_dir: str | Path | None = None, **env_args: Any) -> Environment:
    """Load the environment `env_id` by calling its package's `load_environment(**env_args)`.

    Searched in this order: `env_dir` if given, entry points of the group `rove.environments` of installed packages, installed
    modules, `./environments`, the examples shipped with rove. The last part of "owner/name@version" is the name of one of these
    entry points, or the module's own, "-" read as "_", unless one of the `finders` knows the whole: then it is an environment
    installed from a hub. A name that ends in .jsonl, .csv or .parquet is a file of questions, whose arguments are those of
    `rove.envs.questions.QuestionsEnv`. An environment of another library's may come with a method `__rove_environment__` that
    returns it as one of rove's.

    Raises:
        ConfigError: nothing has that name, or two installed packages do, or its version is another than the one that
            is named; it cannot be imported, it has no `load_environment` or
            that fails; or an argument is unknown or, where it is annotated with int, float, bool or str, something else.
    """
    if is_question_file(env_id):
        return _load_questions(env_id, env_args)
    away = elsewhere(env_id, env_dir)
    if away is not None:
        return away.load(env_args)
    name = _module_name(env_id)
    _check_version(env_id, *_found(name, env_dir))
    module = _import(name, env_dir)
    load = getattr(module, "load_environment", None)
    if load is None:
        raise ConfigError(f"{module.__file__} has no load_environment(); an environment package must define it")
    _check_args(env_id, load, env_args)
    _check_types(env_id, load, env_args)
    with _telling(f"load_environment() of '{env_id}' failed", Path(module.__file__ or "")):
        made = load(**env_args)
    env = as_environment(made, f"load_environment() of '{env_id}' returned")
    env.env_id = env.env_id or name
    env.env_args = env.env_args or env_args
    env.source = _source(Path(module.__file__ or ""))
    return env


def _load_questions(env_id: str, env_args: dict[str, Any]) -> Environment:
    _check_args(env_id, QuestionsEnv, env_args | {"path": env_id})
    _check_types(env_id, QuestionsEnv.__init__, env_args)
    env = QuestionsEnv(env_id, **env_args)
    env.env_id, env.env_args = env_id, env_args
    return env


def elsewhere(env_id: str, env_dir: str | Path | None = None) -> Elsewhere | None:
    """What the `finders` know of a name; None where it is a module's, or a folder is given to look in."""
    if env_dir is not None or "/" not in env_id:
        return None
    return next((found for finder in finders if (found := finder(env_id)) is not None), None)


def as_environment(value: Any, said: str = "this is") -> Environment:
    """An environment as it is, or one of another library's as the one of rove's that its `__rove_environment__` returns.

    Args:
        said: the beginning of an error, before what it is instead.

    Raises:
        ConfigError: it is neither.
    """
    if not isinstance(value, Environment) and hasattr(value, "__rove_environment__"):
        value = value.__rove_environment__()
    if not isinstance(value, Environment):
        raise ConfigError(f"{said} a {type(value).__name__}, expected a rove Environment")
    return value


def _source(file: Path) -> str:
    """Version and hash of a package: scores of an older one are not its scores."""
    digest = digest_files(file.parent.rglob("*.py") if file.name == "__init__.py" else [file])
    project = project_file(file)
    if not project.is_file():
        return digest
    return f"{read_toml(project).get('project', {}).get('version', '')}#{digest}"


def project_file(file: Path) -> Path:
    """Where the `pyproject.toml` of a module belongs: beside it, or beside its folder in the layout NAME/NAME/__init__.py."""
    folder = file.parent
    nested = file.name == "__init__.py" and folder.name == folder.parent.name
    return (folder.parent if nested else folder) / "pyproject.toml"


def environment_defaults(
    env_id: str, env_dir: str | Path | None = None, tool: str = "rove"
) -> tuple[Path, dict[str, Any]]:
    """How an environment asks to be evaluated: the `pyproject.toml` of its package, and its table `[tool.rove.eval]`.

    The table is empty where there is none; what it holds is not checked. Another `tool`'s has its name in place of "rove".

    Raises:
        ConfigError: nothing has that name, or the file is not TOML or has something else than a table there.
    """
    file = project_file(environment_file(env_id, env_dir))
    if is_question_file(env_id):
        return file, {}
    table: Any = read_toml(file) if file.is_file() else {}
    for name in ("tool", tool, "eval"):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: '{name}' is {table!r}; expected the table [tool.{tool}.eval]")
    return file, table


def environment_version(env_id: str, env_dir: str | Path | None = None) -> str:
    """Name, version and hash of the code of the environment that `load_environment` would load.

    Raises:
        ConfigError: nothing has that name.
    """
    file = environment_file(env_id, env_dir)
    if is_question_file(env_id):
        return f"{env_id}#{digest_files([file])}"
    return f"{_module_name(env_id)}#{_source(file)}"


def environment_module(env_id: str, env_dir: str | Path | None = None) -> ModuleType:
    """The module that `load_environment` would use, imported.

    Raises:
        ConfigError: nothing has that name, or it cannot be imported.
    """
    return _import(_module_name(env_id), env_dir)


def environment_file(env_id: str, env_dir: str | Path | None = None) -> Path:
    """The file of the module that `load_environment` would use; found without importing it.

    Raises:
        ConfigError: nothing has that name.
    """
    if is_question_file(env_id):
        return Path(env_id)
    away = elsewhere(env_id, env_dir)
    return _found(_module_name(env_id), env_dir)[0] if away is None else away.file


def _check_version(env_id: str, file: Path, installed: str | None) -> None:
    """See that a module has the version that a name asks for, as far as it is known: another one's scores are not its scores."""
    from packaging.version import InvalidVersion, Version  # for names with "@" alone

    with suppress(InvalidVersion):
        wanted, here = Version(env_id.partition("@")[2]), Version(_version(file, installed))
        if wanted != here:
            raise ConfigError(
                f"{env_id} is not installed; '{_module_name(env_id)}' in {file} is version {here}: install the other one "
                f"(rove install {env_id}), or leave '@{wanted}' out"
            )


def _version(file: Path, installed: str | None) -> str:
    """Of the package that a module is of; "" where nobody knows."""
    project = project_file(file)
    if project.is_file():
        return str(read_toml(project).get("project", {}).get("version", ""))
    for name in importlib.metadata.packages_distributions().get(installed or "", []):
        return importlib.metadata.version(name)
    return ""


def _module_name(env_id: str) -> str:
    return env_id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")


def example_environments() -> dict[str, Path]:
    """Name and file of every example environment that ships with rove."""
    return dict(_modules_in(_shipped()))


def _shipped() -> Path:
    packaged = _ROVE / "_environments"
    return packaged if packaged.is_dir() else _ROVE.parent / "environments"


def _modules_in(folder: Path) -> Iterator[tuple[str, Path]]:
    for child in sorted(folder.iterdir()) if folder.is_dir() else []:
        for file in (child / f"{child.name}.py", child / "__init__.py", child / child.name / "__init__.py", child):
            if file.is_file() and file.suffix == ".py":
                yield child.stem, file
                break


def _import(name: str, env_dir: str | Path | None) -> ModuleType:
    file, module = _found(name, env_dir)
    if module is None:
        return _import_file(name, file)
    if getattr(sys.modules.get(module), "__file__", str(file)) != str(file):
        _forget(module)
    with _importing(module, file):
        return importlib.import_module(module)


def _found(name: str, env_dir: str | Path | None) -> tuple[Path, str | None]:
    """The file of an environment, and the name of its module if that is installed."""
    given = [Path(env_dir)] if env_dir is not None else []
    usual = [Path("environments"), _shipped()]
    module = None
    file = _file_in(given, name) or _behind_stdlib(name)
    if file is None:
        module = _claimed(name) or name
        file = _installed(module)
        if file is None and module != name:
            raise ConfigError(
                f"an installed package names the module '{module}' for '{name}', which is not there; install that package again"
            )
    if file is None:
        module, file = None, _file_in(usual, name)
    if file is None:
        known = {found for folder in given + usual for found, _ in _modules_in(folder)} | {*_entry_points()}
        where = ", ".join(str(folder) for folder in given + usual)
        raise ConfigError(f"no environment '{name}': not an installed module, nor in {where}; {nearest(name, known)}")
    return file, module


def _claimed(name: str) -> str | None:
    """The module that an installed package's entry point gives for a name; None where there is none."""
    points = _entry_points().get(name, [])
    modules = {point.module for point in points}
    if len(modules) > 1:
        who = " and ".join(sorted(f"{point.dist.name} {point.dist.version}" if point.dist else "?" for point in points))
        raise ConfigError(
            f"{who} both bring an environment '{name}'; uninstall one of them, or name its folder with --env-dir"
        )
    return next(iter(modules), None)


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Those of the group of environments, by name."""
    points: dict[str, list[EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        points.setdefault(point.name.replace("-", "_"), []).append(point)
    return points


def _installed(name: str) -> Path | None:
    if not name.isidentifier() or name in sys.stdlib_module_names:  # "calendar" is a fine name for an environment
        return None
    # Not importlib.util.find_spec: for a module that we loaded from a folder before, that finds it again.
    spec = next((found for finder in sys.meta_path if (found := finder.find_spec(name, None))), None)
    return Path(spec.origin) if spec is not None and spec.origin and not _is_ours(spec.origin) else None


def _behind_stdlib(name: str) -> Path | None:
    """The file of an installed package's module that one of the standard library hides, as for a package called "math"."""
    if name not in sys.stdlib_module_names:
        return None
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (file for file in files if file.as_posix() in (f"{name}.py", f"{name}/__init__.py"))
    return next((Path(str(file.locate())) for file in found), None)


def _file_in(folders: list[Path], name: str) -> Path | None:
    for folder in folders:
        file = dict(_modules_in(folder)).get(name)
        if file is not None:
            return file.resolve()
    return None


def _is_ours(origin: str) -> bool:
    return Path(origin).is_relative_to(_shipped())


def _import_file(name: str, file: Path) -> ModuleType:
    if name in sys.stdlib_module_names:  # whose module of that name everything else needs
        name = f"{name}_environment"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _forget(name)
    sys.modules[name] = module
    with _importing(name, file):
        spec.loader.exec_module(module)
    return module


def _forget(name: str) -> None:
    """Take a module, and the parts of a package, out of those that are imported."""
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]


@contextmanager
def _importing(name: str, file: Path) -> Iterator[None]:
    """Leave no half of a module behind, and say in which line of the environment's own code its import failed."""
    try:
        with _telling(f"environment '{name}' could not be imported", file):
            yield
    except BaseException:
        _forget(name)
        raise


@contextmanager
def _telling(what: str, file: Path) -> Iterator[None]:
    """Say in which line of an environment's own code it was that something failed."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = file.parent if file.name == "__init__.py" else file
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(inside)]
        place = f"{own[-1].filename}, line {own[-1].lineno}" if own else str(file)
        raise ConfigError(f"{what}: {type(error).__name__}: {error} ({place}){_hint(error)}") from error


def _hint(error: Exception) -> str:
    """What to do where a package needs a library that rove answers for."""
    if "rove.compat has no" in str(error):
        return ""
    if not (isinstance(error, (ImportError, AttributeError)) and re.search(r"\bverifiers\b", str(error))):
        return ""
    return (
        "; rove answers for verifiers 0.1 to 0.3 after rove.compat.install(), or install(replace=True) where another version "
        "is installed; commands do the same, or with --compat"
    )


def _check_args(env_id: str, load: Any, env_args: dict[str, Any]) -> None:
    parameters = inspect.signature(load).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = {p.name for p in parameters}
    for given in env_args:
        if given not in names:
            raise ConfigError(f"environment '{env_id}' has no argument '{given}'; {nearest(given, names)}")


def _check_types(env_id: str, load: Any, env_args: dict[str, Any]) -> None:
    try:
        hints = get_type_hints(load)
    except Exception:  # names that only a type checker knows
        return
    for name, value in env_args.items():
        hint = hints.get(name)
        kinds = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
        if value is None or not kinds <= PLAIN:
            continue
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            wanted = " or ".join(sorted(kind.__name__ for kind in PLAIN & kinds - {NoneType}))
            raise ConfigError(f"environment '{env_id}': {name} is {value!r}; expected {wanted}") from None
