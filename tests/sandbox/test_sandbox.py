"""Test sandbox sessions: state, limits, files, failures and cleanup."""

from __future__ import annotations

import ast
import asyncio
import errno
import gc
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row, first_quick

from rove.core.errors import ConfigError, SandboxError, SandboxFileError
from rove.sandbox import Backend, LocalBackend, Result, SandboxLimits, Session
from rove.sandbox.cgroups import Groups
from rove.sandbox.inside import seccomp
from rove.sandbox.inside.calls import Clipped, readable
from rove.sandbox.inside.frames import read_frame, write_frame
from rove.sandbox.inside.repl import answer
from rove.sandbox.parent import first_user_id

LIMITS = SandboxLimits(seconds=10.0, memory_bytes=256 << 20, output_chars=2000, file_bytes=1 << 20)
module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[LocalBackend]:
    """Yield an unsafe backend, so that these tests also run on machines that cannot contain code."""
    async with LocalBackend(LIMITS, unsafe=True, max_sessions=4) as backend:
        yield backend


@pytest_asyncio.fixture(loop_scope="module")
async def session(backend: LocalBackend) -> AsyncIterator[Session]:
    session = await backend.open()
    yield session
    await session.close()


@module_loop
async def test_python_state_persists_and_values_are_returned(session: Session) -> None:
    assert await session.run_python("import math\nx = 3") == check_fields(
        await session.run_python(""), output="", value=""
    )
    first = await session.run_python("print('out')\nimport sys\nprint('err', file=sys.stderr)\nx + 1")
    assert (first.output, first.value, first.error, first.ok) == ("out\nerr\n", "4", "", True)
    assert (await session.run_python("def f(n): return n * x\nf(2)")).value == "6"
    assert (
        await session.run_python("class A: pass\nimport pickle\npickle.loads(pickle.dumps(A())).__class__ is A")
    ).value == "True"
    assert (await session.run_python("import asyncio\nasyncio.run(asyncio.sleep(0, 5))")).value == "5"
    assert (
        await session.run_python("import subprocess\nsubprocess.run(['echo', 'child']) and None")
    ).output == "child\n"


def check_fields(result: Result, **fields: object) -> Result:
    assert {name: getattr(result, name) for name in fields} == fields
    return AnyTime(result)


class AnyTime:
    """A result that equals any result with the same fields except the duration."""

    def __init__(self, result: Result):
        self.result = result

    def __eq__(self, other: object) -> bool:
        fields = (name for name in Result.__struct_fields__ if name != "seconds")
        return all(getattr(self.result, name) == getattr(other, name) for name in fields)


@module_loop
async def test_a_traceback_shows_only_the_users_code(session: Session) -> None:
    result = await session.run_python("def f():\n    return 1 / 0\n\nf()")
    assert not result.ok
    assert [line for line in result.error.splitlines() if "File" in line] == [
        '  File "<cell 1>", line 4, in <module>',
        '  File "<cell 1>", line 2, in f',
    ]
    assert "return 1 / 0" in result.error
    assert result.error.endswith("ZeroDivisionError: division by zero")
    assert "SyntaxError" in (await session.run_python("1 +")).error


@module_loop
async def test_bash_and_python_share_files(session: Session) -> None:
    assert (await session.bash("echo one > a; cat missing")).exit_code == 1
    assert (await session.run_python("open('a').read()")).value == "'one\\n'"
    result = await session.bash("cat a; echo err >&2; exit 3")
    assert (result.output, result.exit_code, result.ok) == ("one\nerr\n", 3, False)
    assert result.text() == "one\nerr\n[exit status 3]"
    assert (await session.bash("kill -9 $$")).exit_code == 137
    assert (await session.bash("python3 -c 'import json; print(6)'")).output == "6\n"


@module_loop
async def test_files_are_written_and_read_back(session: Session) -> None:
    data = bytes(range(256)) * 100
    await session.put("folder/deep/a.bin", data)
    assert await session.get("folder/deep/a.bin") == data
    assert (await session.run_python("len(open('folder/deep/a.bin', 'rb').read())")).value == "25600"
    await session.put("folder/deep/a.bin", b"")
    assert await session.get("folder/deep/a.bin") == b""


@module_loop
@pytest.mark.parametrize(
    ("setup", "path", "why"),
    [
        ("", "missing", "No such file"),
        ("", ".", "Is a directory|not a regular file"),
        ("import os; os.mkfifo('pipe')", "pipe", "not a regular file"),
        ("", "/dev/zero", "not a regular file"),
        ("open('large', 'wb').write(bytes(1 << 20)); open('large', 'ab').truncate(1 << 20)", "large", ""),
        ("import os; os.symlink('/etc/shadow', 'link')", "link", "No such file"),
    ],
)
async def test_unreadable_files_raise_an_error(
    contained: None, session: Session, setup: str, path: str, why: str
) -> None:
    await session.run_python(setup)
    if not why:
        assert len(await session.get(path)) == 1 << 20
        return
    with pytest.raises(SandboxFileError, match=why):
        await session.get(path)
    assert (await session.run_python("1")).ok


@module_loop
async def test_put_refuses_links_pipes_and_large_files(session: Session) -> None:
    await session.run_python("import os; os.symlink('elsewhere', 'link'); os.mkfifo('pipe')")
    for path in ("link", "pipe"):
        with pytest.raises(SandboxFileError):
            await session.put(path, b"x")
    with pytest.raises(SandboxFileError, match="file_bytes"):
        await session.put("a", bytes((1 << 20) + 1))


@module_loop
async def test_a_timeout_resets_processes_and_variables_but_keeps_files(session: Session) -> None:
    await session.run_python("x = 1; open('kept', 'w').write('yes') and None")
    for call in (
        session.run_python("print('said', flush=True)\nwhile True: pass", 0.2),
        session.bash("echo said; sleep 60", 0.2),
    ):
        result = await call
        assert (result.timed_out, result.restarted, result.files_lost, result.output) == (True, True, False, "said\n")
        assert result.error == "stopped after 0.2 s"
    assert "NameError" in (await session.run_python("x")).error
    assert (await session.run_python("open('kept').read()")).value == "'yes'"


@module_loop
async def test_an_unnoticed_exit_of_python_is_reported_by_the_next_call(session: Session) -> None:
    await session.run_python("import os, threading\nthreading.Timer(0.05, os._exit, (0,)).start()")
    await asyncio.sleep(0.5)
    result = await session.run_python("1 + 1")
    assert (result.value, result.restarted) == ("2", True)
    assert (await session.run_python("1 + 1")).restarted is False


@module_loop
async def test_output_is_clipped_in_the_middle(session: Session) -> None:
    result = await session.run_python("print('begin', 'x' * 10_000, 'end')")
    assert result.truncated
    assert result.output.startswith("begin x")
    assert result.output.endswith("x end\n")
    assert "bytes left out" in result.output
    assert len(result.output) < 2100
    value = (await session.run_python("'y' * 10_000")).value
    assert value.startswith("'yy") and value.endswith("yy'") and len(value) < 2100
    forged = "struct.pack('<QBI', 3, 0, 9000) + b'x' * 9000"  # the value of the third call
    code = f"import os, struct\nfor fd in range(3, 20):\n    try: os.write(fd, {forged})\n    except OSError: pass"
    assert "malformed answer" in (await session.run_python(code)).error


@module_loop
async def test_concurrent_calls_run_one_after_another(session: Session) -> None:
    results = await asyncio.gather(
        *(session.run_python(f"x = {i}\nimport time; time.sleep(0.01)\nx") for i in range(8))
    )
    assert [result.value for result in results] == [str(i) for i in range(8)]


@module_loop
async def test_canceling_a_call_resets_the_session(session: Session) -> None:
    call = asyncio.create_task(session.run_python("x = 1\nimport time; time.sleep(60)", 60))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await session.run_python("'x' in globals()")).value == "False"


@module_loop
async def test_sessions_wait_for_a_free_slot(backend: LocalBackend) -> None:
    async def run_one_session(number: int) -> str:
        session = await backend.open()
        try:
            await session.run_python(f"n = {number}")
            return (await session.run_python("n")).value
        finally:
            await session.close()

    assert await asyncio.gather(*(run_one_session(i) for i in range(12))) == [str(i) for i in range(12)]


@module_loop
async def test_sessions_are_isolated_from_each_other(backend: LocalBackend) -> None:
    first, second = await backend.open(), await backend.open()
    await first.run_python("import random, os; x = 1")
    await first.put("a", b"mine")
    assert "NameError" in (await second.run_python("x")).error
    assert (await second.bash("ls")).output == ""
    seeds = {(await s.run_python("import random; random.random()")).value for s in (first, second)}
    assert len(seeds) == 2
    await first.close()
    assert (await second.run_python("1")).ok
    await second.close()
    await second.close()
    with pytest.raises(SandboxError, match="closed"):
        await second.run_python("1")


@module_loop
async def test_unusual_requests_do_not_break_the_session(session: Session) -> None:
    assert (await session.run_python("'\ud800' and 1")).value == "1"
    assert "null byte" in (await session.bash("echo \0")).output
    with pytest.raises(SandboxFileError, match="null (byte|character)"):
        await session.get("a\0b")
    for seconds in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="seconds is"):
            await session.run_python("1", seconds)
    assert (await session.run_python("open('/proc/self/oom_score_adj').read()")).value == "'500\\n'"
    assert (await session.bash("cat /proc/self/oom_score_adj")).output == "500\n"


@module_loop
async def test_time_and_memory_limits_of_a_session(backend: LocalBackend) -> None:
    session = await backend.open(SandboxLimits(cpu_seconds=1, seconds=20.0, memory_bytes=128 << 20))
    result = await session.run_python("while True: pass")
    assert "SIGXCPU" in result.error or "SIGKILL" in result.error
    assert not result.timed_out
    assert "MemoryError" in (await session.run_python("bytearray(128 << 20)")).error
    await session.close()
    with pytest.raises(ConfigError, match="processes is 0"):
        SandboxLimits(processes=0)


async def test_only_files_are_lost_when_the_supervisor_dies(contained: None) -> None:
    async with LocalBackend(LIMITS, unsafe=True) as backend:
        session = await backend.open()
        await session.put("a", b"1")
        parent = await backend.parent()
        await parent.kill(session._number)
        result = await session.run_python("1")
        assert (result.restarted, result.files_lost) == (True, True)
        assert result.error.startswith("the sandbox died")
        assert (await session.run_python("import os; os.listdir()")).value == "[]"
        parent._process.kill()
        async with asyncio.timeout(60):
            while not parent.is_gone:  # noqa: ASYNC110  other processes set no event
                await asyncio.sleep(0.01)
        assert (await session.run_python("1")).files_lost
        assert (await session.run_python("2")).value == "2"
        await session.close()
        assert (await (await backend.open()).run_python("3")).value == "3"


@pytest.mark.broad
async def test_closing_a_backend_releases_processes_descriptors_and_groups(contained: None) -> None:
    async def round_trip() -> None:
        async with LocalBackend(LIMITS, unsafe=True, max_sessions=8) as backend:
            sessions = await asyncio.gather(*(backend.open() for _ in range(8)))
            await asyncio.gather(*(s.bash(f"setsid sleep 87654.{os.getpid()} &") for s in sessions))
            await asyncio.gather(*(s.close() for s in sessions[:4]))

    groups_before = control_group_folders()
    await round_trip()
    gc.collect()
    held_at_start = held_resources()
    await round_trip()
    await asyncio.sleep(0)
    gc.collect()
    assert held_resources() == held_at_start
    assert matching_processes(f"87654.{os.getpid()}") == []
    assert control_group_folders() == groups_before


def control_group_folders() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"*/**/rove-{os.getpid()}-*"))


def held_resources() -> tuple[int, int, str]:
    children = " ".join(sorted(path.read_text() for path in Path("/proc/self/task").glob("*/children")))
    return len(os.listdir("/proc/self/fd")), threading.active_count(), children


def matching_processes(word: str) -> list[bytes]:
    """Return the command lines of all processes on the machine that contain the word."""
    matches = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            matches += [line] if word.encode() in (line := path.read_bytes()) else []
        except OSError:
            continue
    return matches


HOST_PROGRAM = """
import asyncio
from rove.sandbox import LocalBackend
async def main():
    session = await LocalBackend(unsafe=True).open()
    await session.bash("setsid sleep 76543 & setsid sleep 76543 &")
    print("ready", flush=True)
    await session.run_python("while True: pass", 60)
asyncio.run(main())
"""


def test_sessions_end_when_the_host_process_is_killed(contained: None) -> None:
    with subprocess.Popen([sys.executable, "-c", HOST_PROGRAM], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        assert matching_processes("76543")
        host.kill()
    deadline = time.monotonic() + 20
    while matching_processes("76543") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert matching_processes("76543") == []


@pytest.mark.broad
def test_a_backend_can_be_used_after_its_event_loop_ends() -> None:
    backend: Backend = LocalBackend(LIMITS, unsafe=True)

    async def run_session() -> str:
        session = await backend.open()
        value = (await session.run_python("6 * 7")).value
        await session.close()
        return value

    async def run_session_and_close() -> str:
        value = await run_session()
        await backend.close()
        return value

    assert [asyncio.run(run_session()), asyncio.run(run_session_and_close())] == ["42", "42"]


@pytest.mark.broad
def test_a_closed_backend_can_be_used_in_another_event_loop() -> None:
    backend = LocalBackend(LIMITS, unsafe=True, max_sessions=2)

    async def run_session() -> str:
        async with await backend.open() as session:
            return (await session.run_python("6 * 7")).value

    async def run_sessions() -> list[str]:
        async with backend:
            return await asyncio.gather(*(run_session() for _ in range(5)))

    assert [asyncio.run(run_sessions()) for _ in range(2)] == [["42"] * 5] * 2


async def test_child_processes_end_without_a_pid_namespace_and_own_user() -> None:
    async with LocalBackend(LIMITS, without=["processes", "own user"], unsafe=True) as backend:
        session = await backend.open()
        call = asyncio.create_task(
            session.run_python("import os\nos.system('sleep 54321 &')\nos.system('sleep 54321')", 60)
        )
        async with asyncio.timeout(60):  # a busy machine may take seconds to start an interpreter
            while not matching_processes("54321"):
                assert not call.done(), call.result()
                await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert matching_processes("54321") == []


UNPRIVILEGED_PROGRAM = """
import asyncio, json, os, sys
from rove.core.errors import ConfigError
from rove.sandbox import LocalBackend, SandboxLimits
from rove.sandbox.inside import kernel
if os.getuid() == 0:  # a user namespace in which root is somebody else
    kernel.unshare(kernel.NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", "12345 0 1"), ("gid_map", "12345 0 1")):
        open(f"/proc/self/{name}", "w").write(text)
async def main():
    async with LocalBackend(SandboxLimits(processes=10, seconds=20.0)) as backend:
        session = await backend.open()
        codes = json.loads(sys.stdin.read())
        print(json.dumps([os.getuid(), *[(await session.run_python(code)).text().splitlines()[-1] for code in codes]]))
try:
    asyncio.run(main())
except (ConfigError, OSError) as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.broad
def test_code_is_contained_when_the_host_user_is_not_root(tmp_path: Path) -> None:
    """If the kernel does not allow user namespaces to this user, the backend refuses to start."""
    (tmp_path / "secret").write_text("canary")
    codes = [
        f"open('{tmp_path}/secret').read()",
        "open('/usr/x', 'w')",
        "import os; os.setuid(0)",
        "os.kill(1, 9)\n7",
    ]
    completed = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED_PROGRAM],
        input=json.dumps(codes),
        capture_output=True,
        text=True,
        check=True,
    )
    results = json.loads(completed.stdout)
    if isinstance(results, str):
        assert "lacks features that the sandbox requires" in results or "Operation not permitted" in results
        return
    uid, secret, system, root, alive = results
    assert uid not in (0, "0")
    assert secret.startswith("FileNotFoundError")
    assert system.startswith("OSError: [Errno 30]")
    assert root.startswith(("OSError: [Errno 22]", "PermissionError"))
    assert alive == "7"


@pytest.mark.parametrize("feature", first_quick(["files", "processes", "network", "ipc", "system calls"], broad=None))
async def test_a_missing_feature_is_refused_unless_unsafe(feature: str) -> None:
    async with LocalBackend(LIMITS, without=[feature]) as backend:
        with pytest.raises(
            ConfigError,
            match=f"lacks features that the sandbox requires:\n(.*\n)*- {feature}: .*turned off(.*\n)*.*unsafe",
        ):
            await backend.open()
        assert [line for line in (await backend.describe()).missing if line.startswith(f"{feature}: ")]
    async with LocalBackend(LIMITS, without=[feature], unsafe=True) as backend:
        session = await backend.open()
        assert (await session.run_python("x = 2; x")).value == "2"
        result = await session.bash(f"sleep 65432.{os.getpid()} & while :; do :; done", 0.3)
        assert (result.timed_out, result.restarted) == (True, True)
        await session.put("a", b"1")
        assert (await session.bash("cat a")).output == "1"
        await session.close()
    assert matching_processes(f"65432.{os.getpid()}") == []


@pytest.mark.broad
async def test_selected_packages_and_paths_are_available_read_only(contained: None, tmp_path: Path) -> None:
    (tmp_path / "shown").write_text("7")
    async with LocalBackend(
        LIMITS, packages=["msgspec"], paths=[str(tmp_path)], environment={"MINE": "1"}, unsafe=True
    ) as backend:
        os.chmod(tmp_path, 0o755)
        session = await backend.open()
        assert (await session.run_python("import msgspec; msgspec.json.decode(b'[1]')")).value == "[1]"
        assert (await session.bash("python3 -c 'import msgspec; print(2)'; echo $MINE")).output == "2\n1\n"
        assert (await session.run_python(f"open('{tmp_path}/shown').read()")).value == "'7'"
        assert "OSError" in (await session.run_python(f"import os; os.chmod('{tmp_path}/shown', 0o777)")).error
        await session.close()
    with pytest.raises(ConfigError, match="pip install no-such-package"):
        LocalBackend(packages=["no-such-package"])
    with pytest.raises(ConfigError, match="existing absolute paths"):
        LocalBackend(paths=["relative"])
    with pytest.raises(ConfigError, match="other than /"):
        LocalBackend(paths=["/proc"])
    with pytest.raises(ConfigError, match="did you mean 'files'"):
        LocalBackend(without=["file"])


async def test_an_import_error_of_a_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "broken_package.py").write_text("raise RuntimeError('no good')")
    monkeypatch.syspath_prepend(str(folder))
    async with LocalBackend(LIMITS, packages=["broken_package"], unsafe=True) as backend:
        with pytest.raises(SandboxError, match="no good"):
            await backend.open()


async def test_other_operating_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="needs Linux, this is darwin"):
        await LocalBackend(unsafe=True).open()
    description = await LocalBackend().describe()
    assert any(line.startswith("network: ") and "this is darwin" in line for line in description.missing)


async def test_a_waiting_session_gets_a_new_zygote_when_the_old_one_dies() -> None:
    async with LocalBackend(LIMITS, unsafe=True, max_sessions=1) as backend:
        first = await backend.open()
        waiting = asyncio.create_task(backend.open())
        await asyncio.sleep(0.05)
        (await backend.parent())._process.kill()
        second = await waiting
        assert (await second.run_python("1")).value == "1"
        await second.close()
        await first.close()


@given(st.lists(st.binary(max_size=300), max_size=12), st.integers(1, 200))
def test_clipping_keeps_both_ends_and_the_limit(pieces: list[bytes], limit: int) -> None:
    clipped, whole = Clipped(limit), b"".join(pieces)
    for piece in pieces:
        clipped.add(piece)
    assert clipped.truncated == (len(whole) > limit)
    if not clipped.truncated:
        assert clipped.text() == whole.decode(errors="replace")
    else:
        head, note, tail = clipped.text().partition(f"\n... [{len(whole) - limit} bytes left out] ...\n")
        assert note
        assert head == whole[: limit - limit // 2].decode(errors="replace")
        assert tail == whole[len(whole) - limit // 2 :].decode(errors="replace")


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=50) | st.integers() | st.none(), max_size=5))
def test_frames_are_read_as_they_were_written(message: dict[str, object]) -> None:
    read_end, write_end = os.pipe()
    try:
        write_frame(write_end, message)
        assert read_frame(read_end) == message
        os.write(write_end, b"\x05\x00")
    finally:
        os.close(write_end)
        assert read_frame(read_end) is None
        os.close(read_end)


SLOW_FORK_PROGRAM = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
from inside.frames import read_frame, write_frame
from inside.supervisor import Supervisor
fork = os.fork
def slow_fork():
    pid = fork()
    if pid:
        time.sleep(0.3)
    return pid
(asked, ask), (answer, answered) = os.pipe(), os.pipe()
for _ in range(2):
    write_frame(ask, {"kind": "bash", "command": "echo here; exit 3", "seconds": 5})
os.close(ask)
os.fork = slow_fork
if fork() == 0:
    os.close(answer)
    Supervisor(asked, answered, json.loads(sys.argv[2]), sys.argv[3], alone=False).serve()
os.close(answered)
while message := read_frame(answer):
    print(message)
"""


def test_a_command_may_end_before_fork_returns_in_the_supervisor(tmp_path: Path) -> None:
    folder = Path(seccomp.__file__).parents[1]
    limits = json.dumps({**msgspec.structs.asdict(LIMITS), "processes": -1})
    command = [sys.executable, "-c", SLOW_FORK_PROGRAM, str(folder), limits, str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    ready, *responses = map(ast.literal_eval, completed.stdout.splitlines())
    assert ready == {"ready": True}
    assert [(response["output"], response["exit_code"]) for response in responses] == [("here\n", 3)] * 2


@each_row("code", ["", "# nothing", "x = 1", "None", "print"])
def test_only_a_last_expression_has_a_value(code: str) -> None:
    assert answer(code, "<cell>", {}) == (False, repr(print) if code == "print" else "")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_system_call_filter_is_a_valid_kernel_program(machine: str) -> None:
    code = seccomp.program(machine)
    assert len(code) % 8 == 0
    assert len(code) // 8 < 4096
    with pytest.raises(OSError, match="no table"):
        seccomp.program("sparc")


async def test_sandboxes_start_in_a_process_with_many_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    descriptors: list[int] = []
    try:
        while not descriptors or descriptors[-1] < 1100:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
        async with LocalBackend(LIMITS, unsafe=True) as backend, await backend.open() as session:
            assert (await session.run_python("6 * 7")).value == "42"
            assert (await session.bash("echo here")).output == "here\n"
    finally:
        for fd in descriptors:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ready_descriptors_are_returned() -> None:
    reader, writer = os.pipe()
    assert readable([reader], 0.0, [writer]) == {writer}
    os.write(writer, b"x")
    assert readable([reader], None, [writer]) == {reader, writer}
    os.close(reader)
    assert readable([], None, [writer]) == {writer}, "whose other end is closed"
    os.close(writer)


@pytest.mark.slow
async def test_256_sandboxes_start_concurrently() -> None:
    """Without control groups, requests arrive faster than the zygote reads them, so its socket fills up."""
    without = ["memory group", "pids group"]
    async with LocalBackend(LIMITS, unsafe=True, max_sessions=256, without=without) as backend:
        sessions = await asyncio.gather(*(backend.open() for _ in range(256)))
        assert len(sessions) == 256


async def test_a_start_waits_until_the_zygote_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is canceled while it waits releases its slot."""
    is_full = [True]

    def send_fds(*words: Any) -> int:
        if is_full[0]:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return send(*words)

    send = socket.send_fds
    async with LocalBackend(LIMITS, unsafe=True, max_sessions=2) as backend:
        await backend.describe()
        monkeypatch.setattr(socket, "send_fds", send_fds)
        for cancelled in (True, True, False):
            opening = asyncio.create_task(backend.open())
            await asyncio.sleep(0.03)
            assert not opening.done()
            if cancelled:
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
        is_full[0] = False
        session = await opening
        assert (await session.run_python("6 * 7")).value == "42"
        assert (await (await backend.open()).run_python("6 * 7")).value == "42"


async def test_missing_control_groups_cause_one_warning_with_a_fix() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        async with LocalBackend(LIMITS, unsafe=True, without=["memory group", "pids group"]) as backend:
            for _ in range(3):
                await (await backend.open()).close()
    (message,) = [
        str(warning.message) for warning in caught if "sandboxes run without control groups" in str(warning.message)
    ]
    assert "memory_bytes limits each process separately" in message
    assert "processes are limited only by the count for the session's user" in message
    assert "run as root, or in a control group" in message


@pytest.mark.broad
def test_user_ids_come_from_the_end_of_the_available_range(tmp_path: Path) -> None:
    few, full = tmp_path / "few", tmp_path / "all"
    few.write_text("0 100000 65536\n")
    full.write_text("0 0 4294967295\n")
    assert first_user_id(64, 1000, few) is None
    assert first_user_id(64, 0, few) == 65536 - 65
    first = first_user_id(64, 0, full)
    assert first is not None
    assert 1_000_000_000 <= first < 2_000_000_000


@pytest.mark.broad
def test_version_2_control_groups_get_their_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary folder replaces the kernel's; `make` creates the files that the kernel would create."""
    own_group = tmp_path / "own"
    own_group.write_text("0::/box\n")
    (tmp_path / "box").mkdir()
    assert sorted(Groups(tmp_path, own_group).missing) == ["memory", "pids"]
    mkdir = Path.mkdir

    def make(path: Path) -> None:
        mkdir(path)
        if "probe" not in path.name:
            (path / "cgroup.procs").touch()

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    groups = Groups(tmp_path, own_group)
    files = groups.enter(3, LIMITS)
    [folder] = (tmp_path / "box").iterdir()
    assert (folder / "memory.max").read_text() == str((256 << 20) + LIMITS.disk_bytes + (64 << 20))
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == str(LIMITS.processes + 8)
    assert len(files) == 1
    os.close(files[0])


@pytest.mark.slow
def test_the_benchmark_leaves_no_resources_behind() -> None:
    script = Path(__file__).resolve().parents[2] / "benchmarks/sandbox.py"
    options = ["--sessions", "300", "--rounds", "2", "--peers", "8"]
    completed = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, check=True)
    assert completed.stdout.endswith("left behind: nothing\n"), completed.stdout
