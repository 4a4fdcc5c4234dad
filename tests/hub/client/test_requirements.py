"""What a package needs beside the rove that is here."""

from __future__ import annotations

from pathlib import Path

import pytest
from packages import put_wheel, wheel_files, with_record

from rove.core.errors import ConfigError
from rove.hub.client.requirements import check_python, required_packages, undeclared_v0_requirements


def test_rove_and_verifiers_are_here_already() -> None:
    given = [
        "rove>=0.0.1",
        "ROVE",
        "verifiers>=0.1.5,<0.4",
        "numpy==1.26.4",
        "tomli; python_version < '3'",
        "x; extra == 'dev'",
    ]
    assert required_packages(given, "it") == ["numpy==1.26.4"]


@pytest.mark.parametrize(
    "one", ["verifiers==0.1.5", "verifiers<0.2", "verifiers>=0.1.3,<0.1.6", "verifiers[rl]~=0.1.8"]
)
def test_packages_of_old_versions_of_verifiers_are_met(one: str) -> None:
    assert required_packages([one], "it") == []


def test_roves_extras_are_what_they_stand_for() -> None:
    found = required_packages(["rove[math]"], "it")
    assert [one.split(">")[0] for one in found] == ["math-verify"]
    assert required_packages(["rove[nobody-knows-this]"], "it") == []


@pytest.mark.parametrize("one", ["rove>99", "verifiers>=0.4", "verifiers==0.5.1"])
def test_another_one_is_not(one: str) -> None:
    with pytest.raises(ConfigError, match="it requires"):
        required_packages([one], "it")


def test_python() -> None:
    check_python("", "it")
    check_python(">=3.11", "it")
    with pytest.raises(ConfigError, match=r"it requires Python <3\.9, but this is Python 3"):
        check_python("<3.9", "it")


def test_what_verifiers_brought_along(tmp_path: Path) -> None:
    for code, wanted in [
        (b"from datasets import load_dataset\n", ["datasets>=3.0"]),
        (b"def f():\n    import openai, json\n", ["openai>=1.50"]),
        (b"# import datasets\nimport datasets_server\n", []),
    ]:
        module = {"my_sums.py": code + b"def load_environment(): pass\n"}
        assert undeclared_v0_requirements(put_wheel(tmp_path, with_record(wheel_files(modules=module)))) == wanted


@pytest.mark.parametrize("one", ["a; " + "(" * 2_000, "a; os_name ~= 'posix'"])
def test_dependencies_that_cannot_be_read_end_in_words(one: str) -> None:
    with pytest.raises(ConfigError, match="it has the dependency .* which cannot be read"):
        required_packages([one], "it")
    with pytest.raises(ConfigError, match="it requires Python .* which cannot be parsed"):
        check_python(">=" + "(" * 2_000, "it")
