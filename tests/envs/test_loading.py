"""Tests of how an environment is found by its name and loaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rove as vf
from rove.core.errors import ConfigError
from rove.envs import loading
from rove.envs.loading import (
    environment_defaults,
    environment_file,
    environment_module,
    example_environments,
    load_environment,
)

MODULE = """
import rove as vf

ORIGIN = '@'


class Env(vf.SingleTurnEnv):
    origin = ORIGIN


def load_environment(num_examples: int = 1, seed: int = 0) -> vf.Environment:
    return Env(dataset=[{"question": f"{seed}"}] * num_examples)
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    """Change to an empty working directory; remove modules that the test loaded."""
    modules_before = dict(sys.modules)
    path_before = list(sys.path)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield tmp_path
    sys.path[:] = path_before
    for name in set(sys.modules) - set(modules_before):
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def write_environment(folder: Path, name: str, origin: str, source: str = MODULE) -> Path:
    """Write the environment file FOLDER/NAME/NAME.py."""
    file = folder / name / f"{name}.py"
    file.parent.mkdir(parents=True)
    file.write_text(source.replace("@", origin))
    return file


def install_module(folder: Path, name: str, origin: str) -> None:
    """Write a module to a folder and add the folder to sys.path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(MODULE.replace("@", origin))
    sys.path.insert(0, str(folder))


def origin(env: vf.Environment) -> str:
    return env.origin  # pyright: ignore[reportAttributeAccessIssue]


def test_env_dir_precedes_installed_modules_and_the_environments_folder(working_folder):
    """Adds the locations in reverse search order and checks that each new one is used."""
    env_dir = working_folder / "given"
    with pytest.raises(ConfigError, match="no environment 'toy'"):
        load_environment("toy", env_dir=env_dir)
    write_environment(Path("environments"), "toy", "./environments")
    assert origin(load_environment("toy", env_dir=env_dir)) == "./environments"
    install_module(working_folder / "site", "toy", "installed")
    assert origin(load_environment("toy", env_dir=env_dir)) == "installed"
    write_environment(env_dir, "toy", "--env-dir")
    assert origin(load_environment("toy", env_dir=env_dir)) == "--env-dir"
    assert origin(load_environment("toy")) == "installed"  # an earlier load has no influence
    sys.path.remove(str(working_folder / "site"))
    assert origin(load_environment("toy")) == "./environments"


@pytest.mark.parametrize("path", ["./elsewhere/my_env", "elsewhere/my_env/", "elsewhere/my_env/my_env.py"])
def test_a_path_that_exists_is_that_environment(path: str, working_folder):
    write_environment(Path("environments"), "my_env", "the usual folder")
    write_environment(Path("elsewhere"), "my_env", "the path")
    requested_names: list[str] = []
    first_finders = [*loading.external_finders]
    loading.external_finders[:] = [lambda name: requested_names.append(name)]
    try:
        env = load_environment(path, num_examples=3)
    finally:
        loading.external_finders[:] = first_finders
    assert (env.origin, env.env_id) == ("the path", "my_env")
    assert requested_names == []  # no hub is queried, and nothing is "not installed"
    assert environment_file(path).resolve() == Path("elsewhere/my_env/my_env.py").resolve()
    assert "num_examples" in loading.environment_arguments(path)


def test_a_file_of_this_folder(working_folder, monkeypatch):
    monkeypatch.chdir(write_environment(Path("elsewhere"), "my_env", "this folder").parent)
    assert load_environment("my_env.py").origin == "this folder"
    with pytest.raises(
        ConfigError, match=r"This folder has \./my_env\.py, but rove does not search it: give \./my_env\.py"
    ):
        load_environment("my_env")


def test_a_local_environment_overrides_the_shipped_one():
    assert environment_file("tictactoe") == example_environments()["tictactoe"]
    local = write_environment(Path("environments"), "tictactoe", "mine")
    assert environment_file("tictactoe") == local.resolve()


@pytest.mark.broad
def test_shipped_environments_are_found_from_any_directory():
    code = "import rove; print(rove.load_environment('reverse-text', num_examples=1).env_id)"
    root = Path(vf.__file__).parents[1]
    process = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    assert process.stdout == "reverse_text\n", process.stderr


@pytest.mark.parametrize("env_id", ["my_toy", "my-toy", "ann/my-toy"])
def test_owner_and_dashes_in_the_name_are_ignored(env_id, working_folder):
    write_environment(working_folder, "my_toy", "here")
    env = load_environment(env_id, env_dir=working_folder, num_examples=2)
    assert (env.env_id, env.env_args) == ("my_toy", {"num_examples": 2})
    assert len(env.get_dataset()) == 2


@pytest.mark.parametrize("layout", ["toy/toy.py", "toy/__init__.py", "toy/toy/__init__.py", "toy.py"])
def test_an_environment_can_be_a_file_a_package_or_a_folder_with_a_file(layout, working_folder):
    file = working_folder / "given" / layout
    file.parent.mkdir(parents=True)
    file.write_text(MODULE.replace("@", layout))
    assert origin(load_environment("toy", env_dir=working_folder / "given")) == layout


def test_version_and_defaults_of_a_nested_package_come_from_the_outer_folder(working_folder):
    module = working_folder / "given" / "toy" / "toy" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text(MODULE)
    project = working_folder / "given" / "toy" / "pyproject.toml"
    project.write_text("[project]\nversion = '1.5'\n[tool.rove.eval]\nseed = 3\n")
    assert load_environment("toy", env_dir=working_folder / "given").source.startswith("1.5#")
    assert environment_defaults("toy", working_folder / "given") == (project, {"seed": 3})


def test_a_package_can_import_its_own_modules(working_folder):
    folder = working_folder / "given" / "toy"
    folder.mkdir(parents=True)
    (folder / "words.py").write_text("WORDS = ['a', 'b']")
    (folder / "__init__.py").write_text("from .words import WORDS\n" + MODULE)
    load_environment("toy", env_dir=working_folder / "given")
    assert sys.modules["toy"].WORDS == ["a", "b"]


def test_two_packages_with_the_same_name_use_their_own_modules(working_folder):
    for parent in ("one", "other"):
        folder = working_folder / parent / "toy"
        folder.mkdir(parents=True)
        (folder / "words.py").write_text(f"WORD = {parent!r}")
        (folder / "__init__.py").write_text("from .words import WORD\n" + MODULE)
        load_environment("toy", env_dir=working_folder / parent)
        word = sys.modules["toy"].WORD
        assert word == parent


def test_the_same_file_is_loaded_once(working_folder):
    write_environment(working_folder, "toy", "here")
    first = load_environment("toy", env_dir=working_folder)
    assert type(load_environment("toy", env_dir=working_folder)) is type(first)


def test_an_edited_module_is_imported_again(working_folder, recwarn: pytest.WarningsRecorder):
    file = write_environment(working_folder, "toy", "old")
    assert origin(load_environment("toy", env_dir=working_folder)) == "old"
    file.write_text(MODULE.replace("@", "new"))  # in the same second and with the same size
    assert origin(load_environment("toy", env_dir=working_folder)) == "new"
    assert origin(load_environment(f"{working_folder}/toy")) == "new"
    assert not recwarn.list


def test_an_edited_submodule_of_a_package_is_imported_again(working_folder):
    folder = working_folder / "given" / "toy"
    folder.mkdir(parents=True)
    (folder / "words.py").write_text("WORD = 'old'")
    (folder / "__init__.py").write_text("from .words import WORD\n" + MODULE)
    load_environment("toy", env_dir=working_folder / "given")
    (folder / "words.py").write_text("WORD = 'new'")
    load_environment("toy", env_dir=working_folder / "given")
    assert sys.modules["toy"].WORD == "new"
    (folder / "more.py").write_text("WORD = 'more'")
    (folder / "__init__.py").write_text("from .more import WORD\n" + MODULE)
    load_environment("toy", env_dir=working_folder / "given")
    assert sys.modules["toy"].WORD == "more"


def test_an_edit_that_fails_is_reported_and_the_repaired_module_is_imported(working_folder):
    file = write_environment(working_folder, "toy", "old")
    load_environment("toy", env_dir=working_folder)
    file.write_text("import\n")
    with pytest.raises(vf.ConfigError, match="SyntaxError"):
        load_environment("toy", env_dir=working_folder)
    file.write_text(MODULE.replace("@", "new"))
    assert origin(load_environment("toy", env_dir=working_folder)) == "new"


def test_an_edited_installed_module_stays_and_is_named(working_folder):
    install_module(working_folder / "site", "toy", "old")
    first = load_environment("toy")
    (working_folder / "site" / "toy.py").write_text(MODULE.replace("@", "newer"))
    with pytest.warns(UserWarning, match="restart the kernel"):
        reloaded = load_environment("toy")
    assert type(reloaded) is type(first)


def test_an_environment_in_the_environments_folder_can_be_named_like_a_standard_module():
    write_environment(Path("environments"), "calendar", "mine")
    standard = sys.modules.get("calendar")
    try:
        assert origin(load_environment("calendar")) == "mine"
    finally:
        sys.modules.pop("calendar")
        if standard is not None:
            sys.modules["calendar"] = standard


def test_a_misspelled_name_is_reported_with_a_suggestion(working_folder):
    write_environment(working_folder, "toy", "here")
    with pytest.raises(
        ConfigError, match=rf"not an installed module, nor in {working_folder}, environments, .*'toy'\?"
    ):
        load_environment("tooy", env_dir=working_folder)
    with pytest.raises(ConfigError, match="did you mean 'tictactoe'"):
        load_environment("tictacto")


@pytest.mark.parametrize("name", ["sys", "os.path", "", "../toy", "two words"])
def test_invalid_names_are_rejected(name):
    with pytest.raises(ConfigError, match="no environment"):
        load_environment(name)


def test_a_misspelled_argument_is_reported_with_a_suggestion(working_folder):
    write_environment(working_folder, "toy", "here")
    with pytest.raises(ConfigError, match=r"'toy' has no argument 'num_exmples'; did you mean 'num_examples'\?"):
        load_environment("toy", env_dir=working_folder, num_exmples=3)


def test_a_load_environment_with_kwargs_receives_all_arguments(working_folder):
    source = (
        "import rove\n\ndef load_environment(**kwargs):\n    return rove.load_environment('reverse_text', **kwargs)\n"
    )
    write_environment(working_folder, "toy", "", source)
    assert len(load_environment("toy", env_dir=working_folder, num_examples=2).get_dataset()) == 2


def test_a_module_without_load_environment_is_rejected(working_folder):
    write_environment(working_folder, "toy", "", "x = 1\n")
    with pytest.raises(
        ConfigError, match=r"toy\.py has no load_environment\(\); an environment package must define it"
    ):
        load_environment("toy", env_dir=working_folder)


def test_a_load_environment_that_returns_another_type_is_rejected(working_folder):
    write_environment(working_folder, "toy", "", "def load_environment():\n    return 'env'\n")
    with pytest.raises(ConfigError, match=r"load_environment\(\) of 'toy' returned a str, expected a rove Environment"):
        load_environment("toy", env_dir=working_folder)


def test_an_import_error_is_reported_with_its_line_and_the_module_can_be_repaired(working_folder):
    file = write_environment(working_folder, "toy", "", "\nimport a_package_that_is_not_there\n")
    with pytest.raises(
        ConfigError, match=r"'toy' could not be imported: .*a_package_that_is_not_there.*toy\.py, line 2\)"
    ):
        load_environment("toy", env_dir=working_folder)
    assert "toy" not in sys.modules
    file.write_text(MODULE.replace("@", "repaired"))
    assert origin(load_environment("toy", env_dir=working_folder)) == "repaired"


def test_an_import_error_in_another_file_of_an_installed_package_is_reported(working_folder, monkeypatch):
    monkeypatch.syspath_prepend(working_folder / "site")
    site = working_folder / "site" / "broken_toy"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("from broken_toy.rules import RULES\n")
    (site / "rules.py").write_text("\n\nimport a_package_that_is_not_there\n")
    with pytest.raises(
        ConfigError, match=r"'broken_toy' could not be imported: .*a_package_that_is_not_there.*rules\.py, line 3\)"
    ):
        load_environment("broken_toy")
    assert "broken_toy" not in sys.modules


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        ("int", "x", "int"),
        ("int", 1.5, "int"),
        ("bool", 3, "bool"),
        ("float", "0.5", "float"),
        ("int | None", [1], "int"),
        ("str | float", {}, "float or str"),
    ],
)
def test_an_argument_that_does_not_match_its_annotation_is_rejected(
    working_folder, annotation: str, value: object, expected: str
):
    write_environment(
        working_folder, "toy", "", f"def load_environment(n: {annotation} = 1):\n    raise RuntimeError('called')\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_environment("toy", env_dir=working_folder, n=value)
    assert str(caught.value) == f"environment 'toy': n is {value!r}; expected {expected}"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [("float", 1), ("int", None), ("list[int]", "x"), ("'Unknown'", 1), ("object", 1), ("int | None", 2)],
)
def test_other_arguments_reach_load_environment(working_folder, annotation: str, value: object):
    write_environment(
        working_folder, "toy", "", f"def load_environment(n: {annotation} = 1):\n    raise RuntimeError('called')\n"
    )
    with pytest.raises(ConfigError, match="RuntimeError: called"):
        load_environment("toy", env_dir=working_folder, n=value)


def test_env_id_and_env_args_set_by_the_environment_are_not_overwritten(working_folder):
    source = (
        "import rove\n\ndef load_environment(n=1):\n    env = rove.load_environment('reverse_text')\n"
        "    env.env_id, env.env_args = 'own', {'n': 7}\n    return env\n"
    )
    write_environment(working_folder, "toy", "", source)
    env = load_environment("toy", env_dir=working_folder)
    assert (env.env_id, env.env_args) == ("own", {"n": 7})


def test_example_environments_are_listed_with_their_files():
    files = example_environments()
    assert {"tictactoe", "reverse_text", "double_check"} <= files.keys()
    assert all(file.is_file() and name in (file.stem, file.parent.name) for name, file in files.items())


def test_a_failing_load_environment_is_reported_with_its_line(tmp_path: Path):
    (tmp_path / "broken.py").write_text("def load_environment(n: int = 1):\n    return {}['x']\n")
    with pytest.raises(
        ConfigError, match=r"load_environment\(\) of 'broken' failed: KeyError: 'x' \(.*broken.py, line 2\)"
    ):
        load_environment("broken", tmp_path)


def install_entry_point(folder: Path, package: str, name: str, module: str) -> None:
    """Write the metadata of an installed package whose entry point maps an environment name to a module."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rove.environments]\n{name} = {module}\n")


def test_an_environment_is_found_by_its_entry_point(working_folder):
    install_module(working_folder / "site", "toy", "a module of that name")
    with pytest.raises(ConfigError, match="no environment 'toy_game'"):
        load_environment("toy-game")
    install_module(working_folder / "other", "toys_inside", "an entry point")
    install_entry_point(working_folder / "other", "toys", "toy-game", "toys_inside")
    env = load_environment("ann/toy-game@1.0")
    assert (origin(env), env.env_id) == ("an entry point", "toy_game")
    assert environment_file("toy_game") == working_folder / "other" / "toys_inside.py"
    shutil.rmtree(working_folder / "other" / "toys-1.0.dist-info")  # the package is uninstalled
    with pytest.raises(ConfigError, match="no environment 'toy_game'"):
        load_environment("toy-game")


def test_an_entry_point_precedes_a_module_with_the_same_name(working_folder):
    install_module(working_folder / "site", "toy", "a module of that name")
    install_module(working_folder / "other", "toys_inside", "an entry point")
    install_entry_point(working_folder / "other", "toys", "toy", "toys_inside")
    assert origin(load_environment("toy")) == "an entry point"
    write_environment(working_folder / "given", "toy", "--env-dir")
    assert origin(load_environment("toy", env_dir=working_folder / "given")) == "--env-dir"


def test_two_packages_with_the_same_environment_are_reported(working_folder):
    for package in ("toys", "games"):
        install_module(working_folder / package, f"{package}_inside", package)
        install_entry_point(working_folder / package, package, "toy", f"{package}_inside")
    with pytest.raises(ConfigError, match=r"games 1\.0 and toys 1\.0 both provide an environment 'toy'; uninstall one"):
        load_environment("toy")


def test_an_entry_point_without_its_module_is_reported(working_folder):
    install_module(working_folder / "site", "unrelated", "-")
    install_entry_point(working_folder / "site", "toys", "toy", "toys_inside")
    with pytest.raises(ConfigError, match="registers the module 'toys_inside' for 'toy', but it does not exist"):
        load_environment("toy")
    with pytest.raises(ConfigError, match="did you mean 'toy'"):
        load_environment("tooy")


def test_an_environment_named_like_a_standard_module_does_not_replace_it(tmp_path: Path) -> None:
    import math

    source = "import math\nimport rove\n\ndef load_environment():\n    assert math.ceil(0.5) == 1\n"
    source += "    return rove.SingleTurnEnv(dataset=[{'question': '?', 'answer': ''}], rubric=rove.Rubric())\n"
    (tmp_path / "math.py").write_text(source)
    assert load_environment("math", tmp_path).env_id == "math"
    assert environment_module("math", tmp_path).__name__ == "math_environment"
    assert sys.modules["math"] is math
    with pytest.raises(ConfigError, match="no environment 'random'"):
        load_environment("random", tmp_path)


def write_version(folder: Path, version: str) -> None:
    (folder / "pyproject.toml").write_text(f'[project]\nname = "toy"\nversion = "{version}"\n')


@pytest.mark.parametrize(
    ("written", "requested_version", "message"),
    [
        ("1.0", "1.0", ""),
        ("1.0", "1.0.0", ""),
        ("1.0", "1.1", "is version 1.0: install the other one"),
        (None, "1.0", "is unknown, so '@1.0' cannot be checked: it has no pyproject.toml with a version"),
        ("today", "1.0", "is unknown, so '@1.0' cannot be checked: its version is 'today'"),
        ("1.0", "latest", "'latest' in 'toy@latest' is not a version"),
        ("1.0", "", "'' in 'toy@' is not a version"),
    ],
)
def test_a_version_that_differs_or_cannot_be_checked_is_an_error(
    working_folder, written: str | None, requested_version: str, message: str
):
    file = write_environment(working_folder, "toy", "here")
    if written is not None:
        write_version(file.parent, written)
    if not message:
        assert origin(load_environment(f"toy@{requested_version}", env_dir=working_folder)) == "here"
        return
    with pytest.raises(ConfigError) as caught:
        load_environment(f"toy@{requested_version}", env_dir=working_folder)
    assert message in str(caught.value)


def test_a_module_that_replaces_an_example_is_named(working_folder, recwarn: pytest.WarningsRecorder):
    install_module(working_folder / "site", "reverse_text", "a module")
    assert origin(load_environment("reverse_text")) == "a module"
    [note] = [str(warning.message) for warning in recwarn if "is loaded from" in str(warning.message)]
    assert str(working_folder / "site" / "reverse_text.py") in note and "a module on the import path" in note
    assert str(example_environments()["reverse_text"]) in note


def test_an_entry_point_that_replaces_an_example_is_named(working_folder, recwarn: pytest.WarningsRecorder):
    install_module(working_folder / "other", "toys_inside", "an entry point")
    install_entry_point(working_folder / "other", "toys", "reverse-text", "toys_inside")
    assert origin(load_environment("reverse_text")) == "an entry point"
    [note] = [str(warning.message) for warning in recwarn if "is loaded from" in str(warning.message)]
    assert "by the entry point of toys 1.0" in note


def test_the_obvious_file_is_not_named(
    working_folder, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
):
    load_environment("double_check")
    write_environment(working_folder / "given", "reverse_text", "--env-dir")
    install_module(working_folder / "site", "reverse_text", "a module")
    assert origin(load_environment("reverse_text", env_dir=working_folder / "given")) == "--env-dir"
    install_module(working_folder / "site", "own_toy", "a module")
    load_environment("own_toy")
    copy = working_folder / "cwd" / "environments" / "double_check"
    shutil.copytree(example_environments()["double_check"].parent, copy)
    assert environment_file("double_check") == copy / "double_check.py"
    load_environment("double_check")  # a copy of the same code
    assert not [warning for warning in recwarn if "is loaded from" in str(warning.message)]
