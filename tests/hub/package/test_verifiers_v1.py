"""`rove build --verifiers-v1`: a wheel that makes an environment a taskset of verifiers v1, and what it refuses."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

import pytest
from packages import put_wheel

from rove.core.errors import ConfigError
from rove.hub.package.archives import check_wheel
from rove.hub.package.building import build
from rove.hub.package.manifest import ROVE, V0
from rove.hub.package.scaffold import scaffold
from rove.hub.package.verifiers_v1 import check_verifiers_v1, write_verifiers_v1

GROUP_REWARD = """

@vf.group_reward
def shortest(completions):
    return [0.0 for _ in completions]

"""


def test_the_wheel_has_the_taskset_and_its_requirements(tmp_path: Path) -> None:
    wheel = check_wheel(put_wheel(tmp_path))
    file = write_verifiers_v1(wheel, tmp_path / "dist")
    assert file.name == "my_sums_v1-1.0-py3-none-any.whl"
    assert file.read_bytes() == write_verifiers_v1(wheel, tmp_path / "again").read_bytes()
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        metadata = archive.read("my_sums_v1-1.0.dist-info/METADATA").decode()
        module = archive.read("my_sums_v1/__init__.py").decode()
    assert names[0] == "my_sums_v1/__init__.py" and names[-1] == "my_sums_v1-1.0.dist-info/RECORD"
    assert "Name: my-sums-v1\n" in metadata and "Requires-Dist: my-sums==1.0\n" in metadata
    assert "Requires-Dist: verifiers>=0.4,<0.5\n" in metadata
    code = ast.parse(module)
    [taskset] = [node for node in code.body if isinstance(node, ast.ClassDef)]
    assert taskset.name == "MySumsTaskset" and 'environment = "my_sums"' in module
    assert '__all__ = ["MySumsTaskset", "RoveEnv", "RoveHarness"]' in module


def test_environments_that_verifiers_cannot_run_are_refused_by_name() -> None:
    check_verifiers_v1("mine", ROVE, [], "chat")
    with pytest.raises(ConfigError, match="'mine' is written for verifiers v0, whose modules verifiers 0.4 replaces"):
        check_verifiers_v1("mine", V0, [], "chat")
    with pytest.raises(ConfigError, match=r"'mine' has group rewards \(shortest, longest\)"):
        check_verifiers_v1("mine", ROVE, ["shortest", "longest"], "chat")


@pytest.mark.broad
def test_a_build_writes_both_wheels_or_none(tmp_path: Path) -> None:
    folder = scaffold("my-task", tmp_path)
    built = build(folder, tmp_path / "dist", verifiers_v1=True)
    assert built.verifiers_v1 == tmp_path / "dist" / "my_task_v1-0.1.0-py3-none-any.whl"
    assert built.verifiers_v1.is_file() and built.folder.is_dir()
    with pytest.raises(ConfigError, match="--verifiers-v1 loads the environment to check its rewards"):
        build(folder, tmp_path / "dist", run_policies=False, verifiers_v1=True)
    module = folder / "my_task.py"
    text = module.read_text(encoding="utf-8").replace("\ndef load_environment", GROUP_REWARD + "def load_environment")
    module.write_text(
        text.replace("    return vf.", "    rubric.add_reward_func(shortest)\n    return vf."), encoding="utf-8"
    )
    with pytest.raises(ConfigError, match=r"has group rewards \(shortest\)"):
        build(folder, tmp_path / "refused", verifiers_v1=True)
    assert not (tmp_path / "refused").exists()
