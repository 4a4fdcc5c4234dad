"""What a package needs beside the rove that is here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from packages import put_wheel, wheel_files, with_record

import rove
from rove.errors import ConfigError
from rove.hub.requirements import SHIM, brought_along, check_python, needed, stand_in

ROOT = Path(__file__).resolve().parents[1]


def test_rove_and_verifiers_are_here_already() -> None:
    given = [
        "rove>=0.0.1",
        "ROVE",
        "verifiers>=0.1.5,<0.4",
        "numpy==1.26.4",
        "tomli; python_version < '3'",
        "x; extra == 'dev'",
    ]
    assert needed(given, "it") == ["numpy==1.26.4"]


def test_roves_extras_are_what_they_stand_for() -> None:
    found = needed(["rove[math]"], "it")
    assert [one.split(">")[0] for one in found] == ["math-verify"]
    assert needed(["rove[nobody-knows-this]"], "it") == []


@pytest.mark.parametrize("one", ["rove>99", "verifiers>=0.4", "verifiers==0.5.1"])
def test_another_one_is_not(one: str) -> None:
    with pytest.raises(ConfigError, match="it needs"):
        needed([one], "it")


def test_python() -> None:
    check_python("", "it")
    check_python(">=3.11", "it")
    with pytest.raises(ConfigError, match=r"it needs Python <3\.9; this is 3"):
        check_python("<3.9", "it")


def test_what_verifiers_brought_along(tmp_path: Path) -> None:
    for code, wanted in [
        (b"from datasets import load_dataset\n", ["datasets>=3.0"]),
        (b"def f():\n    import openai, json\n", ["openai>=1.50"]),
        (b"# import datasets\nimport datasets_server\n", []),
    ]:
        module = {"my_sums.py": code + b"def load_environment(): pass\n"}
        assert brought_along(put_wheel(tmp_path, with_record(wheel_files(modules=module)))) == wanted


def test_installers_find_rove_and_v0_code_finds_the_shim(tmp_path: Path) -> None:
    stand_in(tmp_path, is_v0=True)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from importlib.metadata import version\nimport verifiers\nfrom verifiers.types import State\n"
        "print(version('rove'), version('verifiers'), verifiers.__name__, verifiers.SingleTurnEnv.__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    words = done.stdout.split()
    assert words[:3] == [rove.__version__, "0.3.1+rove1", "verifiers"] and words[3].startswith("rove.compat")
    other = tmp_path / "other"
    other.mkdir()
    stand_in(other, is_v0=False)
    assert not (other / "verifiers").exists()


def test_the_shim_is_that_of_the_distribution() -> None:
    file = ROOT / "shim/verifiers/__init__.py"
    assert file.read_text(encoding="utf-8") == SHIM
    assert importlib.util.find_spec("rove.compat") is not None
