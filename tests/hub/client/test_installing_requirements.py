"""Requirements of a package in addition to rove, and conflicts with installed packages."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from packages import MODULE, put_wheel, wheel_files, with_record
from tiers import first_quick

from rove.core.errors import ConfigError
from rove.hub.client.installing import check_no_conflict, check_python, required_packages, undeclared_v0_requirements


def test_rove_and_verifiers_are_not_installed_again() -> None:
    dependencies = [
        "rove>=0.0.1",
        "ROVE",
        "verifiers>=0.1.5,<0.4",
        "numpy==1.26.4",
        "tomli; python_version < '3'",
        "x; extra == 'dev'",
    ]
    assert required_packages(dependencies, "it") == ["numpy==1.26.4"]


@pytest.mark.parametrize(
    "requirement", ["verifiers==0.1.5", "verifiers<0.2", "verifiers>=0.1.3,<0.1.6", "verifiers[rl]~=0.1.8"]
)
def test_requirements_of_old_verifiers_versions_are_satisfied(requirement: str) -> None:
    assert required_packages([requirement], "it") == []


def test_extras_of_rove_expand_to_their_packages() -> None:
    packages = required_packages(["rove[math]"], "it")
    assert [package.split(">")[0] for package in packages] == ["math-verify"]
    assert required_packages(["rove[nobody-knows-this]"], "it") == []


@pytest.mark.parametrize("requirement", ["rove>99", "verifiers>=0.4", "verifiers==0.5.1"])
def test_unsupported_versions_of_rove_and_verifiers_are_errors(requirement: str) -> None:
    with pytest.raises(ConfigError, match="it requires"):
        required_packages([requirement], "it")


def test_an_unsupported_python_version_is_an_error() -> None:
    check_python("", "it")
    check_python(">=3.11", "it")
    with pytest.raises(ConfigError, match=r"it requires Python <3\.9, but this is Python 3"):
        check_python("<3.9", "it")


def test_imports_of_packages_that_verifiers_installs_are_required(tmp_path: Path) -> None:
    for code, expected in [
        (b"from datasets import load_dataset\n", ["datasets>=3.0"]),
        (b"def f():\n    import openai, json\n", ["openai>=1.50"]),
        (b"# import datasets\nimport datasets_server\n", []),
    ]:
        module = {"my_sums.py": code + b"def load_environment(): pass\n"}
        assert undeclared_v0_requirements(put_wheel(tmp_path, with_record(wheel_files(modules=module)))) == expected


@pytest.mark.parametrize("requirement", ["a; " + "(" * 2_000, "a; os_name ~= 'posix'"])
def test_dependencies_that_cannot_be_parsed_are_errors(requirement: str) -> None:
    with pytest.raises(ConfigError, match="it has the dependency .* which cannot be read"):
        required_packages([requirement], "it")
    with pytest.raises(ConfigError, match="it requires Python .* which cannot be parsed"):
        check_python(">=" + "(" * 2_000, "it")


def write_distribution(site: Path, name: str, files: dict[str, bytes]) -> None:
    """Write a distribution into a folder, as pip does."""
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    all_files = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()}
    record = "".join(f"{path},,\n" for path in [*all_files, f"{info}/RECORD"])
    for path, content in {**all_files, f"{info}/RECORD": record.encode()}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.broad
def test_a_new_package_and_another_version_of_it_do_not_conflict(site: Path) -> None:
    check_no_conflict("my-sums", "my_sums")
    write_distribution(site, "my-sums", {"my_sums.py": MODULE, "pyproject.toml": b""})
    check_no_conflict("my-sums", "my_sums")


@pytest.mark.parametrize(
    ("name", "files", "words"),
    first_quick(
        [
            ("other", {"my_sums.py": MODULE}, "is already installed by other"),
            ("other", {"my_sums/part.py": b""}, "is already installed by other"),
            ("my-sums", {"sums/__init__.py": b""}, "would replace 'my-sums', which is installed and contains sums"),
            ("My_Sums", {"my_sums.py": b"x = 1\n"}, "would replace or hide the module .*, which is not an environment"),
        ],
        broad=None,
    ),
)
def test_packages_that_would_be_replaced_or_hidden_are_errors(
    site: Path, name: str, files: dict[str, bytes], words: str
) -> None:
    write_distribution(site, name, files)
    with pytest.raises(ConfigError, match=f"{words}; install it without --into-current"):
        check_no_conflict("my-sums", "my_sums")


@pytest.mark.broad
def test_a_module_without_a_distribution_may_not_be_hidden(site: Path) -> None:
    (site / "my_sums.py").write_bytes(b"x = 1\n")
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match="is not an environment"):
        check_no_conflict("my-sums", "my_sums")
    with pytest.raises(ConfigError, match="is not an environment"):
        check_no_conflict("json", "json")
    assert "my_sums" not in sys.modules
