"""What can be read of a package without running it."""

from __future__ import annotations

import pytest

from rove.core.errors import ConfigError, PackageError
from rove.hub.package.building import arguments, check_api, compatibility, declared, read_code, secrets
from rove.hub.package.manifest import ROVE, V0, Argument

LOADER = b"""
def load_environment(a, b: int = 3, *, level: "str | None" = None, names=("x", "y"), **more):
    ...
"""


def test_arguments_are_those_of_the_source():
    expected = [
        Argument(name="a"),
        Argument(name="b", type="int", default="3"),
        Argument(name="level", type="'str | None'", default="None"),
        Argument(name="names", default="('x', 'y')"),
    ]
    assert arguments({"m.py": LOADER}, "m") == expected
    package = {"m/__init__.py": b"from .envs.main import load as load_environment\n", "m/envs/__init__.py": b""}
    package["m/envs/main.py"] = b"from m.deep import load_environment as load\n"
    package["m/deep.py"] = LOADER
    assert arguments(package, "m") == expected


def test_a_long_default_is_cut():
    [argument] = arguments({"m.py": f"def load_environment(prompt={'x' * 1000!r}): ...".encode()}, "m")
    assert argument.default == "'" + "x" * 198 + "…"
    [argument] = arguments({"m.py": b'def load_environment(prompt="""a\nb"""): ...'}, "m")
    assert argument.default == r"'a\nb'"


def test_arguments_that_nobody_can_read_are_none():
    assert arguments({"m.py": b"load_environment = make()"}, "m") == []
    assert arguments({"m.py": b"from elsewhere import load_environment"}, "m") == []
    assert (
        arguments(
            {"m/__init__.py": b"from .a import load_environment", "m/a.py": b"from . import load_environment"}, "m"
        )
        == []
    )


@pytest.mark.parametrize(
    ("source", "api"),
    [
        (b"import rove as vf", ROVE),
        (b"import verifiers as vf", V0),
        (b"from verifiers.types import State", V0),
        (b"def load_environment():\n    import verifiers", V0),
        (b"from .verifiers import x", ROVE),
        (b"# import verifiers", ROVE),
        (b"import verifiers_tools", ROVE),
    ],
)
def test_which_api_it_is_written_for(source: bytes, api: str):
    assert compatibility(read_code({"m/__init__.py": b"", "m/a.py": source})) == api


@pytest.mark.parametrize(
    "source", [b"import verifiers.v1 as vf", b"from verifiers import v1", b"from verifiers.v1 import Task"]
)
def test_verifiers_v1_is_another_api(source: bytes):
    with pytest.raises(
        PackageError, match=r"written for verifiers v1, which has another API; rove provides the API of 0\.1\.0"
    ):
        check_api(read_code({"m/a.py": source}))
    check_api(read_code({"m/a.py": source, "m/b.py": b"from rove import TasksetEnv"}))
    check_api(read_code({"m/a.py": b"from verifiers import v10, types"}))


def test_names_of_secrets_are_found_and_other_variables_left():
    source = b"""
import os
from os import environ, getenv
os.environ["JUDGE_API_KEY"]; environ.get("MY_TOKEN", ""); getenv("DB_PASSWORD"); os.getenv("HOME")
{}.get("NOT_A_KEY"); Judge(api_key_var="OTHER_KEY"); os.environ["PATH"]; os.getenv(name)
"""
    assert secrets(read_code({"m.py": source})) == ["DB_PASSWORD", "JUDGE_API_KEY", "MY_TOKEN", "OTHER_KEY"]


def test_data_sources_are_found():
    source = b'load_dataset("openai/gsm8k", "main"); datasets.load_dataset("a/b"); load_dataset(name); load("c/d")'
    assert read_code({"m.py": source}).datasets == {"a/b", "openai/gsm8k"}


def test_what_is_no_python_is_told():
    with pytest.raises(PackageError, match=r"m/a\.py cannot be parsed as Python"):
        read_code({"m/a.py": b"def ("})


def test_the_table_in_pyproject():
    table = {"tags": ["a"], "reward_range": [0, 1], "needs": {"secrets": ["A_KEY"]}, "eval": {"num_examples": 5}}
    said = declared({"tool": {"rove": table}})
    assert (said.tags, said.reward_range, said.needs.secrets) == (["a"], (0.0, 1.0), ["A_KEY"])
    assert declared({}).tags is None
    for wrong, words in (
        ({"tag": []}, "did you mean 'tags'"),
        ({"tags": "a"}, "tags"),
        ({"needs": {"secret": ["A"]}}, "secret"),
        ({"reward_range": [0]}, "reward_range"),
    ):
        with pytest.raises(ConfigError, match=words):
            declared({"tool": {"rove": wrong}})
