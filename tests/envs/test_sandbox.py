"""Tests of SandboxEnv: one sandbox per rollout, opened at the first call, its failures, and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from toy_envs import generate_sync, rows, scripted_client

import rove as vf
from rove.envs.sandbox import UNSUPPORTED_ARGUMENTS
from rove.sandbox import Description, LocalBackend, SandboxLimits, Session
from tests.envs.test_tool import call, calls, replies_in_order, run_replies, tool_results

LIMITS = SandboxLimits(seconds=10.0, memory_bytes=256 << 20, processes=16, output_chars=2000)


class CountingBackend:
    """A local backend that counts opened and closed sessions."""

    def __init__(self, limits: SandboxLimits = LIMITS, fail: Exception | None = None):
        self.limits, self.fail = limits, fail
        self.local = LocalBackend(limits, unsafe=True)
        self.opened: list[Session] = []
        self.closed: list[Session] = []
        self.ended = 0

    async def open(self, limits: SandboxLimits | None = None) -> Session:
        if self.fail:
            raise self.fail
        session = await self.local.open(limits)
        self.opened.append(session)
        close = session.close

        async def counted() -> None:
            await close()
            self.closed.append(session)

        session.close = counted
        return session

    async def describe(self) -> Description:
        return await self.local.describe()

    async def close(self) -> None:
        self.ended += 1
        await self.local.close()

    @property
    def is_clean(self) -> bool:
        return sorted(map(id, self.opened)) == sorted(map(id, self.closed)) and self.ended > 0


def bash(command: str, id: str = "call_1") -> dict[str, Any]:
    return call("bash", {"command": command}, id)


def env_of(**options: Any) -> vf.SandboxEnv:
    return vf.SandboxEnv(**{"dataset": rows(1), "backend": CountingBackend(), **options})


def scores_of(record: vf.RolloutRecord) -> dict[str, float]:
    assert record.scores is not None
    return record.scores.metrics


def resource_counts() -> tuple[int, int, int]:
    """Return the numbers of open files, threads and children of this process."""
    gc.collect()
    children = sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children"))
    return len(os.listdir("/proc/self/fd")), threading.active_count(), children


def no_new_resources(earlier_counts: tuple[int, int, int]) -> bool:
    """Return whether the process holds no more resources than before; idle threads of earlier tests may have ended."""
    return all(count <= earlier_count for count, earlier_count in zip(resource_counts(), earlier_counts))


def command_lines_with(word: str) -> list[bytes]:
    """Return the command lines of all processes on the machine that contain a word."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines += [line] if word.encode() in (line := path.read_bytes()) else []
    return lines


def test_files_persist_between_calls_and_turns_but_not_between_rollouts():
    env = env_of(dataset=rows(3))
    script = [
        calls(bash("ls; echo 3 > a; cd /", "1"), bash("cat a", "2")),
        calls(bash("cat a; exit 4"), bash("pwd")),
        calls(bash("true")),
    ]
    for record in generate_sync(env, replies_in_order(*script), rollouts_per_example=2):
        assert tool_results(record) == ["[no output]", "3", "3\n[exit status 4]", "/session", "[no output]"]
        metrics = scores_of(record)
        assert metrics["bash_calls"] == 5 and metrics["sandbox_timeouts"] == 0
        assert metrics["sandbox_ready_wait_time"] > 0 < metrics["sandbox_command_execution_time"]
    assert len(env.backend.opened) == 6 and env.backend.is_clean


def test_the_model_sees_only_the_command_argument():
    [tool] = env_of().tool_defs
    assert tool["function"]["name"] == "bash"
    assert list(tool["function"]["parameters"]["properties"]) == ["command"]


def test_a_rollout_without_a_valid_call_opens_no_sandbox():
    env = env_of()
    assert scores_of(run_replies(env, "no need"))["sandbox_ready_wait_time"] == 0
    invalid_calls = calls(call("bash", {"comand": "ls"}), call("dash"), call("bash", "{"), call("bash", {"command": 1}))
    assert len(tool_results(run_replies(env, invalid_calls))) == 4
    assert env.backend.opened == [] and env.backend.is_clean


def test_a_command_timeout_is_reported_to_the_model():
    env = env_of(timeout_per_command_seconds=0.3)
    record = run_replies(env, calls(bash("echo 1 > a; echo so far; sleep 60", "1"), bash("cat a", "2")))
    assert tool_results(record) == ["so far\nstopped after 0.3 s\n[the sandbox was restarted: variables are gone]", "1"]
    assert scores_of(record)["sandbox_timeouts"] == 1 and record.error is None


def test_arguments_set_the_sandbox_limits():
    env = env_of(timeout_per_command_seconds=2.5, memory_gb=0.5, disk_size_gb=0.25)
    changed = {"seconds": 2.5, "memory_bytes": 1 << 29, "disk_bytes": 1 << 28}
    assert env.limits == SandboxLimits(**{"processes": 16, "output_chars": 2000, **changed})
    record = run_replies(env_of(disk_size_gb=1 / 1024), calls(bash("head -c 2000000 /dev/zero > a")))
    assert "No space left on device" in tool_results(record)[0]
    assert vf.SandboxEnv(dataset=rows(1)).limits == SandboxLimits(seconds=30.0)
    assert env_of(limits=SandboxLimits(files=7), memory_gb=1).limits == SandboxLimits(files=7)
    assert env_of().identity != env_of(memory_gb=1).identity


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"memory_gb": 0}, "memory_gb is 0; expected a number, more than 0"),
        ({"timeout_per_command_seconds": -1}, "timeout_per_command_seconds is -1"),
        (
            {"pip_install_packages": "nonesuch"},
            "packages has 'nonesuch', which is not installed; pip install none",
        ),
        ({"pip_install_packages": ["numpy==1.0"]}, "has 'numpy==1.0'; expected names without versions"),
        ({"unsafe": True, "backend": CountingBackend()}, "unsafe and backend are both given"),
        (
            {"pip_install_packages": "json", "backend": CountingBackend()},
            "pip_install_packages and backend are both given",
        ),
        ({"environment_vars": {"A": "1"}, "backend": CountingBackend()}, "environment_vars and backend are both given"),
        ({"max_sandboxes": 0}, "max_sandboxes is 0"),
        ({"memry_gb": 1}, "SandboxEnv has no argument 'memry_gb'; did you mean 'memory_gb'"),
        *[({name: 1}, f"SandboxEnv has no argument '{name}': ") for name in UNSUPPORTED_ARGUMENTS],
    ],
)
def test_invalid_arguments_are_rejected_with_the_expected_ones(options: dict[str, Any], complaint: str):
    with pytest.raises(vf.ConfigError, match=complaint):
        vf.SandboxEnv(dataset=rows(1), **options)


def test_arguments_configure_the_local_backend():
    env = vf.SandboxEnv(dataset=rows(1), environment_vars={"COLOUR": "red"}, max_sandboxes=3, unsafe=True)
    assert isinstance(env.backend, LocalBackend)
    assert (env.backend.max_sessions, env.backend.unsafe) == (6, True)
    assert tool_results(run_replies(env, calls(bash("echo $COLOUR")))) == ["red"]


def test_a_sandbox_is_set_up_before_its_first_call():
    class Prepared(vf.SandboxEnv):
        async def setup_sandbox(self, session: Session, state: vf.State) -> None:
            await super().setup_sandbox(session, state)
            await session.put("question", state["answer"].encode())

    env = Prepared(dataset=rows(2), backend=CountingBackend(), start_command="echo ready > started")
    for record in generate_sync(
        env, replies_in_order(calls(bash("cat question started")), calls(bash("cat question")))
    ):
        assert tool_results(record) == [f"{record.answer}ready", record.answer]
    assert env.backend.is_clean


def test_a_sandbox_that_dies_during_a_call_is_reported_and_set_up_again():
    class Dying(vf.SandboxEnv):
        def __init__(self, **options: Any):
            super().__init__(**options)
            self.add_tool(self.die, args_to_skip=["state"])

        async def die(self, state: vf.State) -> str:
            """The supervisor is gone."""
            session: Any = await self.sandbox(state)
            command = asyncio.ensure_future(session.bash("sleep 60"))
            await asyncio.sleep(0.2)
            session._backend._parent.kill(session._number)
            return self.format_result(await command, state)

    env = Dying(dataset=rows(1), backend=CountingBackend(), start_command="echo ready > started")
    first, last = tool_results(run_replies(env, calls(call("die")), calls(bash("cat started"))))
    assert first.startswith("the sandbox died") and first.endswith("files and variables are gone]")
    assert last == "ready"
    assert env.backend.is_clean


def test_a_failing_start_command_fails_the_rollout():
    env = env_of(start_command="echo no such thing >&2; exit 3")
    record = run_replies(env, calls(bash("ls")))
    assert record.error is not None
    assert (record.error.type, record.error.phase) == ("SandboxError", "setup_sandbox")
    assert record.error.message == "start_command failed: no such thing\n[exit status 3]"
    assert env.backend.is_clean and env.backend.opened


@pytest.mark.parametrize("error", [vf.SandboxError("no processes left"), vf.ConfigError("cannot contain code")])
def test_a_sandbox_that_cannot_be_opened_fails_the_rollout(error: Exception):
    record = run_replies(env_of(backend=CountingBackend(fail=error)), calls(bash("ls")))
    assert record.error is not None
    assert (record.error.type, record.error.message) == (type(error).__name__, str(error))
    assert tool_results(record) == [] and record.scores is None


@pytest.mark.broad
def test_a_machine_without_isolation_is_rejected_unless_unsafe():
    class UnisolatedBackend(LocalBackend):
        def __init__(self, unsafe: bool):
            super().__init__(LIMITS, without=["network"], unsafe=unsafe)

    rejected = run_replies(env_of(backend=UnisolatedBackend(False)), calls(bash("echo 1")))
    assert rejected.error is not None
    assert rejected.error.type == "ConfigError" and "unsafe=True" in rejected.error.message
    assert tool_results(run_replies(env_of(backend=UnisolatedBackend(True)), calls(bash("echo 1")))) == ["1"]


# Cleanup


class FileReadingEnv(vf.SandboxEnv):
    """Fetches the file that the rollout wrote."""

    async def post_rollout(self, state: vf.State) -> None:
        session = await self.sandbox(state)
        state["fetched"] = (await session.get("a")).decode()


def fetched(state: vf.State) -> float:
    return float(state["fetched"])


def test_post_rollout_can_read_files_for_the_rubric_before_the_sandbox_closes():
    env = FileReadingEnv(dataset=rows(2), backend=CountingBackend(), rubric=vf.Rubric([fetched]))
    assert [r.reward for r in generate_sync(env, replies_in_order(calls(bash("echo 0.5 > a"))))] == [0.5, 0.5]
    assert env.backend.is_clean


def test_a_failing_post_rollout_closes_the_sandbox():
    env = FileReadingEnv(dataset=rows(2), backend=CountingBackend(), rubric=vf.Rubric([fetched]))
    for record in generate_sync(env, replies_in_order(calls(bash("ls")))):
        assert record.error is not None
        assert (record.error.type, record.error.phase) == ("SandboxFileError", "post_rollout")
    assert env.backend.is_clean and env.backend.opened


def test_post_rollout_can_be_sync_and_can_open_the_sandbox():
    class Sync(vf.SandboxEnv):
        def post_rollout(self, state: vf.State) -> None:
            state["seen"] = 1

    assert run_replies(Sync(dataset=rows(1), backend=CountingBackend())).error is None
    env = FileReadingEnv(
        dataset=rows(1), backend=CountingBackend(), start_command="echo 7 > a", rubric=vf.Rubric([fetched])
    )
    assert run_replies(env).reward == 7
    assert len(env.backend.opened) == 1 and env.backend.is_clean


async def test_no_sandbox_is_opened_after_cleanup():
    env = env_of()
    state = vf.State(input={})
    await env.clean_up(state)
    with pytest.raises(vf.SandboxError, match="the rollout is over"):
        await env.sandbox(state)


@pytest.mark.broad
def test_the_sandbox_is_closed_after_an_error_a_timeout_and_a_limit():
    def failing(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        if state["trajectory"]:
            raise OSError("endpoint gone")
        return calls(bash("sleep 60 & echo 1"))

    env = env_of()
    [record] = generate_sync(env, scripted_client(failing))
    assert record.error is not None and env.backend.is_clean and env.backend.opened
    env = env_of(timeout_seconds=0.8)
    record = run_replies(env, calls(bash("sleep 60")))
    assert (record.stop_condition, record.error) == ("timeout_reached", None) and env.backend.is_clean
    env = env_of(max_turns=1)
    assert run_replies(env, calls(bash("echo 1"))).stop_condition == "max_turns_reached" and env.backend.is_clean


@pytest.mark.broad
async def test_the_sandbox_is_closed_after_a_cancellation_and_leaves_no_process():
    await generate(env_of())  # allocate what is loaded only once per process
    held_before = resource_counts()
    env = env_of(dataset=rows(8))
    duration = "71717"
    run = asyncio.ensure_future(
        vf.evaluate(env, scripted_client(lambda *_: calls(bash(f"setsid sleep {duration} & sleep {duration}"))))
    )
    async with asyncio.timeout(60):
        while len(command_lines_with(duration)) < 16:  # noqa: ASYNC110  other processes set no event
            await asyncio.sleep(0.02)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await env.tear_down()
    assert env.backend.is_clean
    assert not command_lines_with(duration)
    assert no_new_resources(held_before)


async def generate(env: vf.Environment, *answers: Any, **options: Any) -> list[vf.RolloutRecord]:
    return await vf.generate(env, replies_in_order(*answers), **options)


async def test_parallel_calls_share_one_sandbox():
    env = env_of(parallel_calls=True)
    [record] = await generate(env, calls(*(bash(f"echo {i} >> a; cat a", str(i)) for i in range(4))))
    assert tool_results(record)[-1] == "0\n1\n2\n3"
    assert len(env.backend.opened) == 1 and env.backend.is_clean


def test_other_tools_can_be_added_with_a_hidden_state_argument():
    def double(n: int) -> int:
        """Double."""
        return 2 * n

    class EnvWithTools(vf.SandboxEnv):
        def __init__(self, **options: Any):
            super().__init__(tools=[double], **options)
            self.add_tool(self.submit, args_to_skip=["state"])

        async def submit(self, path: str, state: vf.State) -> str:
            """Hand in a file."""
            return (await (await self.sandbox(state)).get(path)).decode()

    record = run_replies(
        EnvWithTools(dataset=rows(1), backend=CountingBackend()),
        calls(call("double", {"n": 2}), bash("printf yes > a"), call("submit", {"path": "a"})),
        calls(call("submit", {"path": "b"})),
    )
    assert tool_results(record)[:3] == ["4", "[no output]", "yes"]
    assert "b" in tool_results(record)[3] and record.error is None
