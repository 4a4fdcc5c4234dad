"""Test containers with a fake engine command, which runs the supervisor on this machine; all code is harmless."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
from toy_envs import generate_sync, rows

import rove as vf
from rove.core.errors import ConfigError, SandboxError
from rove.sandbox import Backend, DockerBackend, SandboxLimits
from tests.envs.test_tool import call, calls, replies_in_order, tool_results

ENGINE = """#!{python} -I
import json, os, signal, sys
folder = {folder!r}
words = sys.argv[1:]
with open(folder + "/log", "a") as log:
    log.write(json.dumps(words) + "\\n")
if words[0] == "run":
    name = words[words.index("--name") + 1]
    image = words.index("python:3.11-slim")
    with open(f"{{folder}}/{{name}}", "w") as file:
        file.write(str(os.getpid()))
    os.mkdir(f"{{folder}}/{{name}}-files")
    os.chdir(f"{{folder}}/{{name}}-files")
    os.execv(sys.executable, [sys.executable, *words[image + 1:]])
elif words[0] == "rm":
    with open(f"{{folder}}/{{words[-1]}}") as file:
        os.kill(int(file.read()), signal.SIGKILL)
"""
LIMITS = SandboxLimits(seconds=10.0, memory_bytes=256 << 20, processes=20, disk_bytes=1 << 20)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "docker"
    path.write_text(ENGINE.format(python=sys.executable, folder=str(tmp_path)))
    path.chmod(0o755)
    return path


async def test_a_container_session_has_limits_and_is_removed(engine: Path) -> None:
    backend: Backend = DockerBackend(limits=LIMITS, binary=str(engine), environment={"MINE": "1"})
    session = await backend.open()
    assert (await session.run_python("x = 20")).ok
    assert (await session.run_python("x + 1")).value == "21"
    await session.put("a", b"1 2")
    assert (await session.bash("cat a; exit 2")).text() == "1 2\n[exit status 2]"
    timed_out = await session.run_python("while True: pass", 0.2)
    assert (timed_out.timed_out, timed_out.restarted) == (True, True)
    assert await session.get("a") == b"1 2"
    await session.close()
    await backend.close()
    run_command, remove_command = [json.loads(line) for line in (engine.parent / "log").read_text().splitlines()]
    options = dict(itertools.pairwise(run_command))
    assert (options["--network"], options["--cap-drop"], options["--pids-limit"]) == ("none", "ALL", "20")
    assert options["--memory"] == options["--memory-swap"] == str((256 << 20) + (1 << 20))
    assert "size=1048576" in options["--tmpfs"]
    assert {"--rm", "--read-only", "MINE=1"} <= set(run_command)
    assert remove_command == ["rm", "--force", options["--name"]]


@pytest.mark.broad
async def test_a_container_that_dies_is_replaced(engine: Path) -> None:
    async with DockerBackend(limits=LIMITS, binary=str(engine), max_sessions=1) as backend:
        session = await backend.open()
        assert session._process is not None
        session._process.kill()
        assert (await session.run_python("1")).files_lost
        assert (await session.run_python("2")).value == "2"


@pytest.mark.broad
def test_an_environment_in_containers_can_run_repeatedly(engine: Path) -> None:
    backend = DockerBackend(limits=LIMITS, binary=str(engine), max_sessions=1)
    env = vf.PythonEnv(dataset=rows(3), backend=backend)
    assert env.limits == LIMITS
    for _ in range(2):
        records = generate_sync(
            env, replies_in_order(calls(call("python", {"code": "x = 6"})), calls(call("python", {"code": "x * 7"})))
        )
        assert [tool_results(record) for record in records] == [["[no output]", "42"]] * 3
    lines = [json.loads(line) for line in (engine.parent / "log").read_text().splitlines()]
    assert [words[0] for words in lines].count("run") == [words[0] for words in lines].count("rm") == 6


async def test_a_refusal_of_the_engine_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "podman"
    path.write_text("#!/bin/sh\necho cannot connect >&2\nexit 125\n")
    path.chmod(0o755)
    backend = DockerBackend(binary=str(path), max_sessions=1)
    for _ in range(2):
        with pytest.raises(SandboxError, match="did not start: cannot connect"):
            await backend.open()
    assert len((await backend.describe()).missing) == 3


def test_a_missing_engine_raises_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="docker or podman is not on PATH"):
        DockerBackend()
    with pytest.raises(ConfigError, match="max_sessions"):
        DockerBackend(max_sessions=0)
