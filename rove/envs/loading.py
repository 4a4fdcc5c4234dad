"""Load environments by name."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint
from itertools import chain
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, NamedTuple, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec

from rove.core.config import read_toml
from rove.core.digest import digest_files
from rove.core.errors import ConfigError, Error, nearest
from rove.core.plain import Arguments, is_mapping
from rove.envs.environment import Environment
from rove.envs.libraries import Library, find_library, library_version
from rove.envs.question_files import check_question_file, is_question_file
from rove.envs.questions import QuestionsEnv
from rove.utils.systems import has_folder

ENTRY_POINT_GROUP = "rove.environments"
"""Entry point group of packages with environments; the name of an entry point is the environment's name."""
_PACKAGE_DIR = Path(__file__).resolve().parents[1]
CHECKED_TYPES = {int, float, bool, str, NoneType}
"""Annotations of environment arguments whose values are checked."""
DIGEST = "__rove_digest__"
"""Attribute of an environment's module: digest of its files at its import, so that an edited environment is imported again."""


class ExternalEnvironment(NamedTuple):
    """An environment that is not a module of this interpreter."""

    file: Path
    """File of the environment's module."""
    load: Callable[..., Environment]
    """Function that loads the environment; called with a mapping of its arguments, and with keywords of `rove.IsolatedEnv`."""


external_finders: list[Callable[[str], ExternalEnvironment | None]] = []
"""Functions that are called first for names like "owner/name" and "owner/name@version". `import rove` adds a finder for
environments installed from a hub."""


def load_environment(env_id: str, env_dir: str | Path | None = None, **env_args: Any) -> Environment:
    """Load an environment by calling `load_environment(**env_args)` in its package.

    Search order: `env_dir` if given; entry points in the group `rove.environments`; installed modules;
    `./environments`; the examples shipped with rove. In "owner/name@version", "name" is looked up in this way ("-" as
    "_"), unless one of the `finders` knows the full name as an environment installed from a hub. The path of an existing
    folder or Python file ("./environments/name") is that environment. A name that ends in
    .jsonl, .ndjson, .csv or .parquet is a file of questions with the arguments of `rove.envs.questions.QuestionsEnv`. A name
    like "gym:FrozenLake-v1" is an environment of another library (see `rove.envs.libraries`). If the package's
    `load_environment` returns an object of another library with a method `__rove_environment__`, this method is called to
    convert the object.

    A module of a folder is imported again if its files changed since its import, as after an edit in a notebook; for an
    installed module, a warning says that the old code is in use.

    Args:
        env_id: name of the environment.
        env_dir: folder of environments to search first.
        env_args: arguments of the package's `load_environment`.

    Raises:
        ConfigError: the name is unknown or ambiguous, or the version differs; the module cannot be imported, or its
            `load_environment` is missing or fails; or an argument is unknown or does not match its annotation (int,
            float, bool or str).

    Example:
        env = rove.load_environment("tictactoe", num_examples=100)
    """
    match = find_library(env_id)
    if match is not None:
        return _load_from_library(env_id, *match, env_args)
    if is_question_file(env_id):
        return _load_questions(env_id, env_args)
    external = find_external_environment(env_id, env_dir)
    if external is not None:
        return external.load(env_args)
    name, env_dir = _module_name(env_id), _folder_of(env_id, env_dir)
    _check_version(env_id, *_locate(name, env_dir))
    _note_replacement(name, env_dir)
    module = _import(name, env_dir)
    load = getattr(module, "load_environment", None)
    if load is None:
        raise ConfigError(f"{module.__file__} has no load_environment(); an environment package must define it")
    _check_args(env_id, load, env_args)
    _check_types(env_id, load, env_args)
    with _reporting(f"load_environment() of '{env_id}' failed", Path(module.__file__ or "")):
        loaded = load(**env_args)
    env = as_environment(loaded, f"load_environment() of '{env_id}' returned")
    env.env_id = env.env_id or name
    env.env_args = env.env_args or env_args
    env.source = _source(Path(module.__file__ or ""))
    return env


def _load_questions(env_id: str, env_args: Arguments) -> Environment:
    _check_args(env_id, QuestionsEnv, env_args | {"path": env_id})
    _check_types(env_id, QuestionsEnv.__init__, env_args)
    env = QuestionsEnv(env_id, **env_args)
    env.env_id, env.env_args = env_id, env_args
    return env


def _load_from_library(env_id: str, library: Library, name: str, env_args: Arguments) -> Environment:
    """Load an environment of another library, and check that it can be reached."""
    load = library.load_class()
    _check_args(env_id, load, env_args)
    first, *further = inspect.signature(load).parameters.values()
    if first.name in env_args:
        raise ConfigError(f"environment '{env_id}' has its '{first.name}' in its name; leave out the argument")
    for parameter in further:
        is_required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if is_required and parameter.name not in env_args:
            arguments = f'{{"{parameter.name}": …}}'
            raise ConfigError(
                f"environment '{env_id}' needs the argument '{parameter.name}'; give it with -a '{arguments}' (env_args in "
                "Python)"
            )
    with _reporting(f"environment '{env_id}' cannot be loaded", library.file):
        env = load(name, **env_args)
        check_reachable = getattr(env, "check_reachable", None)
        if check_reachable is not None:
            check_reachable()
    env.env_id, env.env_args = env_id, env_args
    env.source = library_version(library, env_args)
    return env


def find_external_environment(env_id: str, env_dir: str | Path | None = None) -> ExternalEnvironment | None:
    """Return the environment that a finder knows by this name; None for a module name, a path, or with `env_dir`."""
    if env_dir is not None or "/" not in env_id or _is_path(env_id) or find_library(env_id) is not None:
        return None
    matches = (finder(env_id) for finder in external_finders)
    return next((match for match in matches if match is not None), None)


class ForeignEnvironment(Protocol):
    """An environment of another library with a method that converts it."""

    def __rove_environment__(self) -> Environment:
        """Return a rove environment."""
        ...


def as_environment(value: object, prefix: str = "this is") -> Environment:
    """Return a rove environment unchanged; convert an object that has the method `__rove_environment__`."""
    convert = None if isinstance(value, Environment) else getattr(value, "__rove_environment__", None)
    env = value if convert is None else convert()
    if not isinstance(env, Environment):
        hint = ""
        if isinstance(value, str) and prefix == "this is":
            hint = ": rove.load_environment(NAME) returns one, and rove.evaluate_model takes names"
        raise ConfigError(f"{prefix} a {type(env).__name__}, expected a rove Environment{hint}")
    return env


def _source(file: Path) -> str:
    """Return version and code hash of a package, so that scores of different versions are not mixed."""
    digest = digest_files(_source_files(file))
    project = project_file(file)
    if not project.is_file():
        return digest
    return f"{read_toml(project).get('project', {}).get('version', '')}#{digest}"


def project_file(file: Path) -> Path:
    """Return the path of `pyproject.toml` for a module: in its folder or, for NAME/NAME/__init__.py, in the parent folder."""
    folder = file.parent
    nested = file.name == "__init__.py" and folder.name == folder.parent.name
    return (folder.parent if nested else folder) / "pyproject.toml"


def environment_defaults(
    env_id: str, env_dir: str | Path | None = None, tool: str = "rove"
) -> tuple[Path, dict[str, object]]:
    """Return the `pyproject.toml` of an environment and its unchecked table `[tool.rove.eval]` ({} without one)."""
    file = project_file(environment_file(env_id, env_dir))
    if is_question_file(env_id):
        return file, {}
    table: Any = read_toml(file) if file.is_file() else {}
    for name in ("tool", tool, "eval"):
        table = table.get(name, {})
        if not is_mapping(table):
            raise ConfigError(f"{file}: '{name}' is {table!r}; expected the table [tool.{tool}.eval]")
    return file, dict(table)


def environment_version(
    env_id: str, env_dir: str | Path | None = None, env_args: Mapping[str, object] | None = None
) -> str:
    """Return name, version and code hash of the environment that `load_environment` would load.

    Args:
        env_args: the environment's arguments. The version of an environment of another library includes the files of rows.
    """
    match = find_library(env_id)
    if match is not None:
        library, _ = match
        return f"{env_id}#{library_version(library, env_args or {})}"
    file = environment_file(env_id, env_dir)
    if is_question_file(env_id):
        check_question_file(file)
        return f"{env_id}#{digest_files([file])}"
    return f"{_module_name(env_id)}#{_source(file)}"


def environment_module(env_id: str, env_dir: str | Path | None = None) -> ModuleType:
    """Import and return the module that `load_environment` would use."""
    return _import(_module_name(env_id), _folder_of(env_id, env_dir))


def environment_arguments(env_id: str, env_dir: str | Path | None = None) -> dict[str, Any]:
    """Return the names and defaults of the arguments of an environment's `load_environment`, `inspect.Parameter.empty` without a
    default; {} if the environment has its own virtual environment.
    """
    match = find_library(env_id)
    if match is not None:
        library, _ = match
        load: Any = library.load_class()
    elif is_question_file(env_id):
        load = QuestionsEnv.__init__
    elif find_external_environment(env_id, env_dir) is not None:
        return {}
    else:
        load = getattr(environment_module(env_id, env_dir), "load_environment", lambda: None)
    parameters = inspect.signature(load).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.name not in {"self", "path"}}


def environment_file(env_id: str, env_dir: str | Path | None = None) -> Path:
    """Return the file of the module that `load_environment` would use, without importing it."""
    match = find_library(env_id)
    if match is not None:
        library, _ = match
        return library.file
    if is_question_file(env_id):
        return Path(env_id)
    external = find_external_environment(env_id, env_dir)
    if external is not None:
        return external.file
    file, _ = _locate(_module_name(env_id), _folder_of(env_id, env_dir))
    return file


def _check_version(env_id: str, file: Path, installed: str | None) -> None:
    """Raise ConfigError if a name has a version, and the module's version differs or is unknown."""
    # A version in a name is a promise; an unknown one cannot keep it (docs/decisions/env_search.md).
    _, separator, version = env_id.partition("@")
    if not separator:
        return
    from packaging.version import InvalidVersion, Version  # slow to import; only names with "@" need it

    try:
        expected_version = Version(version)
    except InvalidVersion as error:
        raise ConfigError(
            f"'{version}' in '{env_id}' is not a version; expected for example '{env_id.partition('@')[0]}@0.1.0', or the name "
            "without '@'"
        ) from error
    found_version = _version(file, installed)
    try:
        is_same = Version(found_version) == expected_version
    except InvalidVersion as error:
        reason = "it has no pyproject.toml with a version"
        if found_version:
            reason = f"its version is {found_version!r}"
        raise ConfigError(
            f"the version of '{_module_name(env_id)}' in {file} is unknown, so '@{version}' cannot be checked: "
            f"{reason}. Add one, or omit '@{version}'"
        ) from error
    if not is_same:
        raise ConfigError(
            f"{env_id} is not installed; '{_module_name(env_id)}' in {file} is version {found_version}: install the other one "
            f"(rove install {env_id}), or omit '@{version}'"
        )


def _note_replacement(name: str, env_dir: str | Path | None) -> None:
    """Warn if a name refers to an unexpected file instead of rove's example or the file in ./environments.

    Without the warning, a module or an entry point of any installed package could silently replace an example of the same name.

    A file in a folder that the caller names with `env_dir` is always expected.
    """
    if env_dir is not None and _file_in([Path(env_dir)], name) is not None:
        return
    file, module = _locate(name, env_dir)
    candidates = [_file_in([folder], name) for folder in (Path("environments"), _examples_dir())]
    if module not in (None, name):
        candidates.append(_installed(name))
    replaced = next(
        (candidate for candidate in filter(None, candidates) if candidate.resolve() != file.resolve()), None
    )
    if replaced is None or _source(replaced) == _source(file):  # a copy of the same code, as in rove's repository
        return
    if module is None:
        origin = "in ./environments"
    elif _entry_point_module(name):
        origin = f"by the entry point of {_packages_of(name)}"
    else:
        origin = "a module on the import path"
    warnings.warn(
        f"environment '{name}' is loaded from {file} ({origin}), not from {replaced}; name the folder of the one that you mean "
        "with --env-dir (env_dir in Python)",
        stacklevel=3,
    )


def _packages_of(name: str) -> str:
    points = _entry_points().get(name, [])
    packages = [f"{point.dist.name} {point.dist.version}" if point.dist else "?" for point in points]
    return " and ".join(sorted(packages))


def _version(file: Path, installed: str | None) -> str:
    """Return the version of the package of a module; "" if unknown."""
    project = project_file(file)
    if project.is_file():
        return str(read_toml(project).get("project", {}).get("version", ""))
    for name in importlib.metadata.packages_distributions().get(installed or "", []):
        return importlib.metadata.version(name)
    points = [point for point in chain.from_iterable(_entry_points().values()) if point.module == installed]
    return next((point.dist.version for point in points if point.dist), "")


def _module_name(env_id: str) -> str:
    if _is_path(env_id):
        return Path(env_id).resolve().stem.replace("-", "_")
    if env_id.endswith(".py"):
        raise ConfigError(
            f"there is no file {Path(env_id).resolve()}; expected the file or the folder of an environment, or the name of an "
            "installed one"
        )
    _, _, name_with_version = env_id.rpartition("/")
    name, _, _ = name_with_version.partition("@")
    return name.replace("-", "_")


def _is_path(env_id: str) -> bool:
    """Return whether a name is the path of an existing folder or Python file, such as "./environments/my_task"."""
    path = Path(env_id)
    # A name without a folder is a path only with .py: a folder of the same name may hold anything, such as runs.
    is_file = path.suffix == ".py" and path.is_file()
    return is_file or (has_folder(env_id) and path.is_dir())


def _folder_of(env_id: str, env_dir: str | Path | None) -> str | Path | None:
    """Return the folder that is searched first: the folder of a path, else `env_dir`."""
    return Path(env_id).resolve().parent if _is_path(env_id) else env_dir


def example_environments() -> dict[str, Path]:
    """Return names and files of the example environments shipped with rove."""
    return dict(_modules_in(_examples_dir()))


def environments_in(folder: str | Path) -> dict[str, Path]:
    """Return names and files of the environments in a folder, such as ./environments; empty if it does not exist.

    The modules are not imported: a module counts if its text contains "load_environment".
    """
    if Path(folder).resolve() == _examples_dir().resolve():
        return {}
    return {name: file for name, file in _modules_in(Path(folder)) if b"load_environment" in file.read_bytes()}


def _examples_dir() -> Path:
    packaged = _PACKAGE_DIR / "_environments"
    return packaged if packaged.is_dir() else _PACKAGE_DIR.parent / "environments"


def _modules_in(folder: Path) -> Iterator[tuple[str, Path]]:
    children = sorted(folder.iterdir()) if folder.is_dir() else []
    for child in children:
        package = child / child.name / "__init__.py"
        for file in (child / f"{child.name}.py", child / "__init__.py", package, child):
            if file.is_file() and file.suffix == ".py":
                yield child.stem, file
                break


def _import(name: str, env_dir: str | Path | None) -> ModuleType:
    file, module = _locate(name, env_dir)
    if module is None:  # not `import_module`: another module of this name may be on the import path
        return _import_file(name, file)
    if getattr(sys.modules.get(module), "__file__", str(file)) != str(file):
        _forget(module)
    digest = digest_files(_source_files(file))
    with _importing(module, file):
        loaded = importlib.import_module(module)
    _warn_if_changed(loaded, file, digest)
    return loaded


def _locate(name: str, env_dir: str | Path | None) -> tuple[Path, str | None]:
    """Return the file of an environment, and the name of its module if it is installed."""
    # A folder that the caller names comes first; docs/decisions/env_search.md has the order and its reasons.
    named = [Path(env_dir)] if env_dir is not None else []
    usual = [Path("environments"), _examples_dir()]
    module = None
    file = _file_in(named, name) or _hidden_by_stdlib(name)
    if file is None:
        module = _entry_point_module(name) or name
        file = _installed(module)
        if file is None and module != name:
            raise ConfigError(
                f"an installed package registers the module '{module}' for '{name}', but it does not exist; reinstall the package"
            )
    if file is None:
        module, file = None, _file_in(usual, name)
    if file is None:
        known_names = set(_entry_points())
        for folder in named + usual:
            known_names.update(dict(_modules_in(folder)))
        folder_names = ", ".join(map(str, named + usual))
        raise ConfigError(
            f"no environment '{name}': not an installed module, nor in {folder_names}; {nearest(name, known_names)}\n"
            f"{_search_advice(name, env_dir)}"
        )
    return file, module


def _search_advice(name: str, env_dir: str | Path | None) -> str:
    """Return advice on how to name an environment that is in no folder that rove searches."""
    if env_dir is not None and not Path(env_dir).is_dir():
        return f"There is no folder {env_dir} (--env-dir; env_dir in Python)"
    if Path(name).is_dir():
        return (
            f"The folder {name} is not an environment: it would contain {name}.py or __init__.py with load_environment"
        )
    local_file = _file_in([Path()], name)
    if local_file is not None:
        path = f"./{os.path.relpath(local_file)}"
        return f"This folder has {path}, but rove does not search it: give {path}, or --env-dir . (env_dir in Python)"
    return "If it is in another folder, give that folder with --env-dir (env_dir in Python)"


def _entry_point_module(name: str) -> str | None:
    """Return the module that an entry point registers for a name; None if there is no such entry point."""
    points = _entry_points().get(name, [])
    modules = {point.module for point in points}
    if len(modules) > 1:
        raise ConfigError(
            f"{_packages_of(name)} both provide an environment '{name}'; uninstall one of them, or name its folder with --env-dir"
        )
    return next(iter(modules), None)


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Return the environments that installed packages register, by name."""
    folders = [os.path.abspath(folder) for folder in sys.path]
    return _read_entry_points(tuple((folder, _changed_at(folder)) for folder in folders))


def _changed_at(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


# Reading the entry points of 176 packages takes 20 ms, and every loading of an environment needs them several times. A package
# that is installed or removed changes the time of its folder; importlib.metadata finds packages by these times, too.
@functools.lru_cache(maxsize=4)
def _read_entry_points(import_path: tuple[tuple[str, int], ...]) -> dict[str, list[EntryPoint]]:
    points: dict[str, list[EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        points.setdefault(point.name.replace("-", "_"), []).append(point)
    return points


def _installed(name: str) -> Path | None:
    if not name.isidentifier() or name in sys.stdlib_module_names:  # an environment may be named "calendar"
        return None
    # Not importlib.util.find_spec: it would find a module again that was loaded from a folder before.
    specs = (finder.find_spec(name, None) for finder in sys.meta_path)
    spec = next(filter(None, specs), None)
    if spec is None or not spec.origin or Path(spec.origin).is_relative_to(_examples_dir()):
        return None
    return Path(spec.origin)


def _hidden_by_stdlib(name: str) -> Path | None:
    """Return the file of an installed module that the standard library hides, as it hides a package named "math"."""
    if name not in sys.stdlib_module_names:
        return None
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    module_paths = (f"{name}.py", f"{name}/__init__.py")
    module_file = next((file for file in files if file.as_posix() in module_paths), None)
    return None if module_file is None else Path(str(module_file.locate()))


def _file_in(folders: list[Path], name: str) -> Path | None:
    for folder in folders:
        file = dict(_modules_in(folder)).get(name)
        if file is not None:
            return file.resolve()
    return None


def _import_file(name: str, file: Path) -> ModuleType:
    if name in sys.stdlib_module_names:  # the standard module must stay importable
        name = f"{name}_environment"
    loaded = sys.modules.get(name)
    digest = digest_files(_source_files(file))
    is_same_file = getattr(loaded, "__file__", None) == str(file)
    if loaded is not None and is_same_file and getattr(loaded, DIGEST, digest) == digest:
        return loaded
    if is_same_file:
        _discard_bytecode(file)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _forget(name)
    sys.modules[name] = module
    setattr(module, DIGEST, digest)
    with _importing(name, file):
        spec.loader.exec_module(module)
    return module


def _source_files(file: Path) -> list[Path]:
    """Return the Python files of an environment: all files of a package, or the module alone."""
    return list(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]


def _discard_bytecode(file: Path) -> None:
    """Remove the compiled files of an environment that changed, and let Python look for new submodules.

    Python compares only seconds and sizes, so it would run the old code after a quick edit such as 0.5 → 0.6.
    """
    for source_file in _source_files(file):
        with suppress(OSError):  # a folder without permission to write has no new compiled files either
            Path(importlib.util.cache_from_source(str(source_file))).unlink(missing_ok=True)
    importlib.invalidate_caches()


def _warn_if_changed(module: ModuleType, file: Path, digest: str) -> None:
    """Warn if the files of an installed module changed since its import, which is possible for an editable installation.

    The module is not imported again, because other code may have imported it, too.
    """
    if vars(module).setdefault(DIGEST, digest) != digest:
        warnings.warn(
            f"{file} or a file of its package changed after the import of '{module.__name__}', and the old code is still in use; "
            "start Python again (in a notebook, restart the kernel) to use the new code",
            stacklevel=4,
        )


def _forget(name: str) -> None:
    submodules = [module_name for module_name in sys.modules if module_name.startswith(f"{name}.")]
    for module_name in (name, *submodules):
        sys.modules.pop(module_name, None)


@contextmanager
def _importing(name: str, file: Path) -> Generator[None]:
    """Remove a module whose import fails, and report the line of its own code."""
    try:
        with _reporting(f"environment '{name}' could not be imported", file):
            yield
    except BaseException:
        _forget(name)
        raise


@contextmanager
def _reporting(failure: str, file: Path) -> Generator[None]:
    """Convert an exception to a ConfigError that names the line of the environment's own code."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = file.parent if file.name == "__init__.py" else file
        environment_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(inside)]
        location = str(file)
        if environment_frames:
            last = environment_frames[-1]
            location = f"{last.filename}, line {last.lineno}"
        message = f"{type(error).__name__}: {error} ({location}){_hint(error)}"
        raise ConfigError(f"{failure}: {message}") from error


def _hint(error: Exception) -> str:
    """Return a hint for packages that need the library verifiers."""
    if "rove.compat has no" in str(error):
        return ""
    if not (isinstance(error, (ImportError, AttributeError)) and re.search(r"\bverifiers\b", str(error))):
        return ""
    return (
        "; rove provides verifiers 0.1 to 0.3 after rove.compat.install(), or install(replace=True) if another version is "
        "installed; commands do this themselves, or with --compat"
    )


def _check_args(env_id: str, load: Any, env_args: Arguments) -> None:
    parameters = inspect.signature(load).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = {p.name for p in parameters}
    for argument in env_args:
        if argument not in names:
            raise ConfigError(f"environment '{env_id}' has no argument '{argument}'; {nearest(argument, names)}")


def _check_types(env_id: str, load: object, env_args: Arguments) -> None:
    try:
        hints = get_type_hints(load)
    except Exception:  # names that exist only for type checkers
        return
    for name, value in env_args.items():
        hint = hints.get(name)
        kinds = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
        if value is None or not kinds <= CHECKED_TYPES:
            continue
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            expected = " or ".join(sorted(kind.__name__ for kind in CHECKED_TYPES & kinds - {NoneType}))
            raise ConfigError(f"environment '{env_id}': {name} is {value!r}; expected {expected}") from None
