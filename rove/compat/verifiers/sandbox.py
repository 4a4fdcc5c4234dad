"""v0's `SandboxEnv` and `PythonEnv` on rove's sandboxes, which run on this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rove.compat.verifiers.decorators import cleanup, maybe_await, teardown
from rove.compat.verifiers.errors import SandboxError
from rove.compat.verifiers.messages import Messages
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.tools import StatefulToolEnv
from rove.compat.verifiers.types import State
from rove.envs.sandbox import override_limits, package_names
from rove.sandbox import Backend, LocalBackend, Result, SandboxLimits, Session

# fmt: off
_IGNORED_ARGUMENTS = (
    "sandbox_name", "docker_image", "cpu_cores", "gpu_count", "timeout_minutes", "team_id", "advanced_configs", "labels",
    "max_retries", "base_delay", "backoff_factor", "max_backoff_seconds", "jitter", "max_startup_wait_seconds",
    "sandbox_client_max_workers", "sandbox_client_max_connections", "sandbox_client_max_keepalive_connections",
)
"""Arguments about a vendor's machines."""
# fmt: on


class SandboxMonitorRubric(Rubric):
    """The metrics `sandbox_ready_wait_time` and `sandbox_command_execution_time`, in seconds."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_metric(self.sandbox_ready_wait_time)
        self.add_metric(self.sandbox_command_execution_time)

    async def sandbox_ready_wait_time(self, state: State) -> float:
        """Seconds until the sandbox was ready."""
        return state["sandbox_state"]["ready_wait_time"]

    async def sandbox_command_execution_time(self, state: State) -> float:
        """Mean seconds per call; 0 without calls."""
        times = state["sandbox_state"]["command_execution_times"]
        return sum(times) / len(times) if times else 0.0


class CommandResult(NamedTuple):
    """Result of a command; `stdout` has all output."""

    stdout: str
    stderr: str
    exit_code: int


class SandboxClient:
    """The `sandbox_client` of environments, which they use mainly in `post_rollout`."""

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
        """Run a bash command."""
        session = await self.env.session(sandbox_id)
        result = await session.bash(_in_folder(command, working_dir), timeout)
        exit_code = 124 if result.timed_out else result.exit_code or 0  # 124 as of the program `timeout`
        return CommandResult(result.output, result.error, exit_code)

    async def upload_bytes(self, sandbox_id: str, file_path: str, file_bytes: bytes, *ignored: Any) -> None:
        """Write a file in the sandbox."""
        session = await self.env.session(sandbox_id)
        await session.put(file_path, file_bytes)

    async def upload_file(self, sandbox_id: str, file_path: str, local_file_path: str, **ignored: Any) -> None:
        """Copy a local file to the sandbox."""
        await self.upload_bytes(sandbox_id, file_path, await asyncio.to_thread(Path(local_file_path).read_bytes))

    async def download_file(self, sandbox_id: str, file_path: str, local_file_path: str, **ignored: Any) -> None:
        """Copy a file of the sandbox to a local file."""
        session = await self.env.session(sandbox_id)
        data = await session.get(file_path)
        await asyncio.to_thread(Path(local_file_path).write_bytes, data)

    async def wait_for_creation(self, sandbox_id: str, **ignored: Any) -> None:
        """Open the sandbox if it is not open."""
        await self.env.session(sandbox_id)


class SandboxEnv(StatefulToolEnv):
    """Gives the model bash in its own sandbox (tool `bash`). `rove.sandbox` replaces the vendor's sandboxes of v0.

    Args:
        backend: provides sandboxes; use `rove.sandbox.DockerBackend` for an image. Default: this machine.
        memory_gb, disk_size_gb, timeout_per_command_seconds: limits of one sandbox.
        start_command: bash command for a new sandbox; v0's default is ignored.
        environment_vars: variables that the code can read.
        Arguments about a vendor's machines are ignored. Everything else: see `StatefulToolEnv`.
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
        ignored = {name: kwargs.pop(name) for name in _IGNORED_ARGUMENTS if name in kwargs}
        if ignored.get("docker_image", "python:3.11-slim") != "python:3.11-slim" and backend is None:
            warnings.warn(
                f"docker_image={ignored['docker_image']!r} is ignored: sandboxes run on this machine; for an image pass "
                "backend=rove.sandbox.DockerBackend(image)",
                stacklevel=2,
            )
        super().__init__(stop_errors=[SandboxError] if stop_errors is None else stop_errors, **kwargs)
        self.add_rubric(SandboxMonitorRubric())
        self.timeout_per_command_seconds = timeout_per_command_seconds
        # v0's default keeps a container alive; here it would be a command that never ends.
        self.start_command = "" if start_command == "tail -f /dev/null" else start_command
        if backend is None:
            limits = override_limits(SandboxLimits(), timeout_per_command_seconds, memory_gb, disk_size_gb)
            backend = LocalBackend(limits, packages=package_names(packages), environment=environment_vars)
        self.backend = backend
        self.sandbox_client = SandboxClient(self)
        self._sessions: dict[str, Session] = {}
        self.add_tool(self.bash, args_to_skip=["sandbox_id", "working_dir", "sandbox_state"])

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Assign a sandbox to the rollout; the first call opens it."""
        state["sandbox_id"] = uuid.uuid4().hex
        state["sandbox_state"] = {"ready": False, "ready_wait_time": 0.0, "command_execution_times": []}
        return await super().setup_state(state, **kwargs) or state

    async def session(self, sandbox_id: str, sandbox_state: dict[str, Any] | None = None) -> Session:
        """Return a rollout's sandbox, opened if necessary.

        Raises:
            SandboxError: it could not be started, or `start_command` failed.
        """
        if sandbox_id not in self._sessions:
            started_at = time.perf_counter()
            # Stored before `start_command` runs, so that a sandbox whose command fails is closed as well.
            session = self._sessions[sandbox_id] = await self.backend.open()
            if sandbox_state is not None:
                sandbox_state.update(ready=True, ready_wait_time=time.perf_counter() - started_at)
            if self.start_command:
                result = await session.bash(self.start_command)
                if not result.ok:
                    raise SandboxError(f"start_command failed: {result.text()}")
        return self._sessions[sandbox_id]

    async def bash(
        self, command: str, sandbox_id: str, sandbox_state: dict[str, Any], working_dir: str | None = None
    ) -> str:
        """Execute `command` inside persistent sandbox container."""
        # The docstring is the tool's description, and the replies are v0's: models were scored with these texts.
        session = await self.session(sandbox_id, sandbox_state)
        result = await session.bash(_in_folder(command, working_dir))
        sandbox_state["command_execution_times"].append(result.seconds)
        if result.timed_out:
            return f"Error: Command timed out after {self.timeout_per_command_seconds}s"
        return result.output.strip() or "(no output)"

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Add the rollout's sandbox to calls of `bash`."""
        if tool_name != "bash":
            return dict(tool_args)
        sandbox = {"sandbox_id": state["sandbox_id"], "sandbox_state": state["sandbox_state"]}
        return {**tool_args, **sandbox, "working_dir": tool_args.get("working_dir")}

    async def post_rollout(self, state: State) -> None:
        """Read data for scoring from the sandbox; called before the sandbox is closed."""

    @cleanup
    async def destroy_sandbox(self, state: State) -> None:
        """Run `post_rollout`, then close the sandbox."""
        # A package's `post_rollout` may raise, and the sandbox must not outlive its rollout.
        try:
            await maybe_await(self.post_rollout, state)
        finally:
            session = self._sessions.pop(state.get("sandbox_id", ""), None)
            if session is not None:
                await session.close()

    @teardown
    async def teardown_sandboxes(self) -> None:
        """Close all sandboxes."""
        await self.backend.close()


class PythonMonitorRubric(Rubric):
    """The metric `python_ready_wait_time`, in seconds."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_metric(self.python_ready_wait_time)

    async def python_ready_wait_time(self, state: State) -> float:
        """Seconds until Python was ready."""
        return state["python_state"]["ready_wait_time"]


class PythonEnv(SandboxEnv):
    """Gives the model a persistent Python interpreter (tool `python`).

    Args:
        pip_install_packages: packages that the code may import. They must be installed in rove's environment; others cause a
            warning.
        Everything else: see `SandboxEnv`.
    """

    def __init__(self, pip_install_packages: str = "numpy sympy scipy", **kwargs: Any):
        super().__init__(packages=_installed(pip_install_packages), **kwargs)
        self.add_rubric(PythonMonitorRubric())
        self.add_tool(self.python, args_to_skip=["sandbox_id", "sandbox_state", "python_state"])
        self.remove_tool(self.bash)

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Assign an interpreter to the rollout; the first call starts it."""
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
        return _format_result(result, python_state["execution_count"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Add the rollout's sandbox and interpreter to calls of `python`."""
        if tool_name != "python":
            return super().update_tool_args(tool_name, tool_args, messages, state, **kwargs)
        hidden = {name: state[name] for name in ("sandbox_id", "sandbox_state", "python_state")}
        return {**tool_args, **hidden}


def _in_folder(command: str, folder: str | None) -> str:
    return f"cd {folder} && {command}" if folder else command


def _format_result(result: Result, number: int) -> str:
    value = f"Out[{number}]: {result.value}" if result.value else ""
    parts = filter(None, (result.output.rstrip(), result.error.rstrip(), value))
    return "\n".join(parts) or "(no output)"


def _installed(packages: str) -> list[str]:
    """Return the packages that are installed; warn of the others."""
    names: list[str] = []
    for package in packages.split():
        names.append(package.split("==")[0].split(">=")[0])
    requested = package_names(" ".join(names))
    # v0 runs pip in a container that it deletes later; rove does not install packages on the user's machine.
    missing = [name for name in requested if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        warnings.warn(f"code in sandboxes cannot import {', '.join(missing)}: not installed here", stacklevel=4)
    return [name for name in requested if name not in missing]
