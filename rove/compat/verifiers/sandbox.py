"""v0's `SandboxEnv` and `PythonEnv` over rove's sandboxes, which are on this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rove.compat.verifiers.calls import maybe_await
from rove.compat.verifiers.decorators import cleanup, teardown
from rove.compat.verifiers.errors import SandboxError
from rove.compat.verifiers.messages import Messages
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.tools import StatefulToolEnv
from rove.compat.verifiers.types import State
from rove.envs.sandbox import limited, package_names
from rove.sandbox import Backend, LocalBackend, Result, SandboxLimits, Session

_ELSEWHERE = (
    "sandbox_name",
    "docker_image",
    "cpu_cores",
    "gpu_count",
    "timeout_minutes",
    "team_id",
    "advanced_configs",
    "labels",
)
_ELSEWHERE += (
    "max_retries",
    "base_delay",
    "backoff_factor",
    "max_backoff_seconds",
    "jitter",
    "max_startup_wait_seconds",
)
_ELSEWHERE += tuple(f"sandbox_client_max_{name}" for name in ("workers", "connections", "keepalive_connections"))
"""Arguments about a vendor's machines."""


class SandboxMonitorRubric(Rubric):
    """The metrics `sandbox_ready_wait_time` and `sandbox_command_execution_time`, in seconds."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_metric(self.sandbox_ready_wait_time)
        self.add_metric(self.sandbox_command_execution_time)

    async def sandbox_ready_wait_time(self, state: State) -> float:
        """What the rollout waited for its sandbox."""
        return state["sandbox_state"]["ready_wait_time"]

    async def sandbox_command_execution_time(self, state: State) -> float:
        """Mean of its calls; 0 without any."""
        times = state["sandbox_state"]["command_execution_times"]
        return sum(times) / len(times) if times else 0.0


class CommandResult(NamedTuple):
    """What came of a command; all it printed is in `stdout`."""

    stdout: str
    stderr: str
    exit_code: int


class SandboxClient:
    """What environments call as `self.sandbox_client`, most of all in `post_rollout`.

    Args:
        env: whose sandboxes.
    """

    def __init__(self, env: SandboxEnv):
        self.env = env

    async def execute_command(
        self,
        sandbox_id: str,
        command: str,
        working_dir: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  its name
        **ignored: Any,
    ) -> CommandResult:
        """Run a command of bash."""
        session = await self.env.session(sandbox_id)
        result = await session.bash(f"cd {working_dir} && {command}" if working_dir else command, timeout)
        return CommandResult(result.output, result.error, 124 if result.timed_out else result.exit_code or 0)

    async def upload_bytes(self, sandbox_id: str, file_path: str, file_bytes: bytes, *ignored: Any) -> None:
        """Write a file."""
        await (await self.env.session(sandbox_id)).put(file_path, file_bytes)

    async def upload_file(self, sandbox_id: str, file_path: str, local_file_path: str, **ignored: Any) -> None:
        """Write a file that is here."""
        await self.upload_bytes(sandbox_id, file_path, await asyncio.to_thread(Path(local_file_path).read_bytes))

    async def download_file(self, sandbox_id: str, file_path: str, local_file_path: str, **ignored: Any) -> None:
        """Fetch a file."""
        data = await (await self.env.session(sandbox_id)).get(file_path)
        await asyncio.to_thread(Path(local_file_path).write_bytes, data)

    async def wait_for_creation(self, sandbox_id: str, **ignored: Any) -> None:
        """Open the sandbox if it is not yet."""
        await self.env.session(sandbox_id)


class SandboxEnv(StatefulToolEnv):
    """The model has bash in a sandbox of its own (tool `bash`). What v0 rents is here `rove.sandbox`.

    Args:
        backend: where sandboxes come from; a `rove.sandbox.DockerBackend` for an image. Default: this machine.
        memory_gb, disk_size_gb, timeout_per_command_seconds: of one sandbox.
        start_command: run by bash in a new sandbox; v0's default does nothing here.
        environment_vars: which the code can read.
        What is of a vendor's machines is taken and ignored. Everything else: see `StatefulToolEnv`.
    """

    def __init__(
        self,
        start_command: str = "tail -f /dev/null",
        memory_gb: float = 2,
        disk_size_gb: float | None = None,
        timeout_per_command_seconds: float = 30,
        environment_vars: Mapping[str, str] | None = None,
        stop_errors: Sequence[type[Exception]] | None = None,
        backend: Backend | None = None,
        packages: str | Sequence[str] = (),
        **kwargs: Any,
    ):
        ignored = {name: kwargs.pop(name) for name in _ELSEWHERE if name in kwargs}
        if ignored.get("docker_image", "python:3.11-slim") != "python:3.11-slim" and backend is None:
            warnings.warn(
                f"docker_image={ignored['docker_image']!r} is not used: sandboxes are on this machine; for an image pass "
                "backend=rove.sandbox.DockerBackend(image)",
                stacklevel=2,
            )
        super().__init__(stop_errors=[SandboxError] if stop_errors is None else stop_errors, **kwargs)
        self.add_rubric(SandboxMonitorRubric())
        self.timeout_per_command_seconds = timeout_per_command_seconds
        self.start_command = "" if start_command == "tail -f /dev/null" else start_command
        if backend is None:
            limits = limited(SandboxLimits(), timeout_per_command_seconds, memory_gb, None)
            backend = LocalBackend(limits, packages=package_names(packages), environment=environment_vars)
        self.backend = backend
        self.sandbox_client = SandboxClient(self)
        self._sessions: dict[str, Session] = {}
        self.add_tool(self.bash, args_to_skip=["sandbox_id", "working_dir", "sandbox_state"])

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Give the rollout its sandbox, which is opened by the first call."""
        state["sandbox_id"] = uuid.uuid4().hex
        state["sandbox_state"] = {"ready": False, "ready_wait_time": 0.0, "command_execution_times": []}
        return await super().setup_state(state, **kwargs) or state

    async def session(self, sandbox_id: str, sandbox_state: dict[str, Any] | None = None) -> Session:
        """A rollout's sandbox, opened if it is not yet.

        Raises:
            SandboxError: it could not be started, or `start_command` failed.
        """
        if sandbox_id not in self._sessions:
            began = time.perf_counter()
            session = self._sessions[sandbox_id] = await self.backend.open()
            if sandbox_state is not None:
                sandbox_state.update(ready=True, ready_wait_time=time.perf_counter() - began)
            started = await session.bash(self.start_command) if self.start_command else None
            if started is not None and not started.ok:
                raise SandboxError(f"start_command failed: {started.text()}")
        return self._sessions[sandbox_id]

    async def bash(
        self, command: str, sandbox_id: str, sandbox_state: dict[str, Any], working_dir: str | None = None
    ) -> str:
        """Execute `command` inside persistent sandbox container."""
        session = await self.session(sandbox_id, sandbox_state)
        result = await session.bash(f"cd {working_dir} && {command}" if working_dir else command)
        sandbox_state["command_execution_times"].append(result.seconds)
        if result.timed_out:
            return f"Error: Command timed out after {self.timeout_per_command_seconds}s"
        return result.output.strip() or "(no output)"

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Adds the rollout's sandbox to calls of `bash`."""
        if tool_name != "bash":
            return dict(tool_args)
        here = {"sandbox_id": state["sandbox_id"], "sandbox_state": state["sandbox_state"]}
        return {**tool_args, **here, "working_dir": tool_args.get("working_dir")}

    async def post_rollout(self, state: State) -> None:
        """Called before the sandbox ends: the place to fetch from it what is to be scored."""

    @cleanup
    async def destroy_sandbox(self, state: State) -> None:
        """`post_rollout`, then the end of the sandbox whatever came of that."""
        try:
            await maybe_await(self.post_rollout, state)
        finally:
            session = self._sessions.pop(state.get("sandbox_id", ""), None)
            if session is not None:
                await session.close()

    @teardown
    async def teardown_sandboxes(self) -> None:
        """End all sandboxes."""
        await self.backend.close()


class PythonMonitorRubric(Rubric):
    """The metric `python_ready_wait_time`, in seconds."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_metric(self.python_ready_wait_time)

    async def python_ready_wait_time(self, state: State) -> float:
        """What the rollout waited for its Python."""
        return state["python_state"]["ready_wait_time"]


class PythonEnv(SandboxEnv):
    """The model has a Python that remembers (tool `python`).

    Args:
        pip_install_packages: which code may import; they have to be installed where rove runs. Those that are not are told.
        Everything else: see `SandboxEnv`.
    """

    def __init__(self, pip_install_packages: str = "numpy sympy scipy", **kwargs: Any):
        super().__init__(packages=_installed(pip_install_packages), **kwargs)
        self.add_rubric(PythonMonitorRubric())
        self.add_tool(self.python, args_to_skip=["sandbox_id", "sandbox_state", "python_state"])
        self.remove_tool(self.bash)

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Give the rollout its Python, which is started by the first call."""
        state["python_state"] = {"ready": False, "execution_count": 0, "ready_wait_time": 0.0}
        return await super().setup_state(state, **kwargs)

    async def python(
        self, code: str, sandbox_id: str, sandbox_state: dict[str, Any], python_state: dict[str, Any]
    ) -> str:
        """Execute `code` inside persistent Python REPL."""
        session = await self.session(sandbox_id, sandbox_state)
        result = await session.run_python(code)
        python_state.update(ready=True, ready_wait_time=sandbox_state["ready_wait_time"])
        python_state["execution_count"] += 1
        sandbox_state["command_execution_times"].append(result.seconds)
        return _told(result, python_state["execution_count"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Adds the rollout's sandbox and Python to calls of `python`."""
        if tool_name != "python":
            return super().update_tool_args(tool_name, tool_args, messages, state, **kwargs)
        return {**tool_args, **{name: state[name] for name in ("sandbox_id", "sandbox_state", "python_state")}}


def _told(result: Result, number: int) -> str:
    value = f"Out[{number}]: {result.value}" if result.value else ""
    return "\n".join(part for part in (result.output.rstrip(), result.error.rstrip(), value) if part) or "(no output)"


def _installed(names: str) -> list[str]:
    """Those of the packages that are installed here; the others are told."""
    given = package_names(" ".join(name.split("==")[0].split(">=")[0] for name in names.split()))
    missing = [name for name in given if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        warnings.warn(f"code in sandboxes cannot import {', '.join(missing)}: not installed here", stacklevel=4)
    return [name for name in given if name not in missing]
