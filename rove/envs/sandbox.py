"""Environments in which the model has a sandbox with bash or a Python session."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rove.core.checks import checked
from rove.core.errors import ConfigError, SandboxError, phase
from rove.core.messages import Messages
from rove.core.plain import Identity
from rove.core.ranges import PositiveFloat, PositiveInt, Seconds
from rove.core.state import State, bookkeeping
from rove.envs.environment import cleanup, teardown
from rove.envs.tool import StatefulToolEnv
from rove.rubrics import MathRubric, Rubric
from rove.sandbox import Backend, Functions, LocalBackend, Result, SandboxLimits, Session
from rove.tools.tool import Arguments, make_tool

CALL_TIMEOUT_S = 30.0
"""Default time limit of a call, in seconds of wall time."""
BYTES_PER_GB = 1 << 30
VENDOR_HINT = "it is specific to the sandboxes of a vendor; remove it"
UNSUPPORTED_ARGUMENTS = {
    "docker_image": "pass backend=rove.sandbox.DockerBackend(image)",
    "cpu_cores": "cores are not reserved; limit usage with limits=SandboxLimits(processes=…, cpu_seconds=…)",
    "gpu_count": "sandboxes have no GPU",
    "timeout_minutes": "a sandbox lasts as long as its rollout, which timeout_seconds limits",
    "max_startup_wait_seconds": "Python is ready with its sandbox; remove it",
    **dict.fromkeys(("sandbox_name", "team_id", "labels", "advanced_configs"), VENDOR_HINT),
}
"""Arguments of other libraries → advice on what to do instead."""
MATH_PROMPT = (
    "Solve the problem. Use the tool `python` for every calculation that you cannot do reliably; variables persist between "
    "calls. Put the final answer in \\boxed{}, for example \\boxed{42}."
)


@dataclass(slots=True)
class SandboxUse:
    """A rollout's sandbox: `state["sandbox"]`."""

    session: Session | None = None
    is_ready: bool = False
    """Whether the sandbox has been set up."""
    is_over: bool = False
    ready_wait: float = 0.0
    """Seconds that the rollout waited for the sandbox, including the wait because of `max_sandboxes`."""
    calls: list[Result] = field(default_factory=list[Result])
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    limit: asyncio.Semaphore | None = None
    """The semaphore that counts this sandbox; None while there is no sandbox."""

    async def end(self) -> None:
        """Close the sandbox for good."""
        self.is_over = True  # a late tool call must not open another sandbox, which nothing would close
        if self.session is not None:
            await self.session.close()
        if self.limit is not None:
            self.limit.release()
            self.limit = None


def use_of(state: State) -> SandboxUse:
    """Return the sandbox use of a rollout."""
    internals = bookkeeping(state)
    if internals.sandbox is None:
        internals.sandbox = SandboxUse()
    return internals.sandbox


def sandbox_ready_wait_time(state: State) -> float:
    """Seconds the rollout waited for its sandbox; 0 where it opened none."""
    return use_of(state).ready_wait


def sandbox_command_execution_time(state: State) -> float:
    """Mean seconds of a call; 0 without any."""
    calls = use_of(state).calls
    return sum(result.seconds for result in calls) / len(calls) if calls else 0.0


def sandbox_timeouts(state: State) -> int:
    """Calls that were stopped after their wall time."""
    return sum(result.timed_out for result in use_of(state).calls)


class SandboxEnv(StatefulToolEnv):
    """The model has a sandbox with bash (tool `bash`); files persist between calls.

    The first call of a rollout opens its sandbox; the end of the rollout closes it. Failures inside the sandbox, including
    timeouts, are reported to the model; a sandbox that cannot be started ends the rollout with a `SandboxError`. To add tools
    that use the sandbox, add methods with `add_tool(…, args_to_skip=["state"])`: they receive the state, and `await
    self.sandbox(state)` returns the session.

    Args:
        backend: where sandboxes come from; closed when the run ends, and reusable. Default: a `LocalBackend`.
        limits: limits of a sandbox. Default: the limits of `backend`, else `SandboxLimits` with 30 s per call.
        timeout_per_command_seconds, memory_gb, disk_size_gb: override these values in `limits`. Files on the sandbox's disk count
            as memory.
        pip_install_packages: installed packages that the code may import, without versions, as a list or separated by spaces.
            Nothing is installed. Default: the standard library only.
        environment_vars: additional environment variables; the code can read them.
        start_command: bash command that must succeed in every new sandbox before the first call.
        unsafe: continue if this machine cannot enforce isolation (see `LocalBackend`); only for trusted code.
        max_sandboxes: maximum number of rollouts that have a sandbox at the same time; other rollouts wait. Reward functions that
            open a sandbox themselves need a backend with a greater `max_sessions`; the default backend has twice as many.
        parallel_calls: start the calls of one turn concurrently; the sandbox still runs them one by one.
        **kwargs: see `ToolEnv`.

    Raises:
        ConfigError: a package is not installed, a limit is not above 0, or an argument must be given to `backend` instead.

    Example:
        env = rove.SandboxEnv(dataset=[{"question": "Count the primes below 1000 with bash."}], rubric=rubric, memory_gb=1)
    """

    def __init__(
        self,
        backend: Backend | None = None,
        limits: SandboxLimits | None = None,
        timeout_per_command_seconds: float | None = None,
        memory_gb: float | None = None,
        disk_size_gb: float | None = None,
        pip_install_packages: str | Sequence[str] = (),
        environment_vars: Mapping[str, str] | None = None,
        start_command: str = "",
        unsafe: bool = False,
        max_sandboxes: int = 64,
        parallel_calls: bool = False,
        **kwargs: Any,
    ):
        for name in UNSUPPORTED_ARGUMENTS.keys() & kwargs.keys():
            raise ConfigError(f"{type(self).__name__} has no argument '{name}': {UNSUPPORTED_ARGUMENTS[name]}")
        checked("memory_gb", memory_gb, PositiveFloat | None)
        checked("disk_size_gb", disk_size_gb, PositiveFloat | None)
        checked("timeout_per_command_seconds", timeout_per_command_seconds, Seconds | None)
        checked("max_sandboxes", max_sandboxes, PositiveInt)
        super().__init__(parallel_calls=parallel_calls, **kwargs)
        self.packages = package_names(pip_install_packages)
        self.start_command = start_command
        self.max_sandboxes = max_sandboxes
        self._limits_of_loop: tuple[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]] | None = None
        self._local_backend = functools.partial(
            LocalBackend,
            SandboxLimits(seconds=CALL_TIMEOUT_S),
            packages=self.packages,
            environment=environment_vars,
            unsafe=unsafe,
            # A rollout holds its sandbox while it is scored. If all sessions were held by rollouts, reward functions that open
            # another one would wait forever.
            max_sessions=2 * max_sandboxes,
        )
        if backend is None:
            backend = self._local_backend()
        else:
            backend_options = {
                "pip_install_packages": self.packages,
                "environment_vars": environment_vars,
                "unsafe": unsafe,
            }
            for name, value in backend_options.items():
                if value:
                    raise ConfigError(
                        f"{name} and backend are both given; expected one of them: pass {name} to the backend"
                    )
        self.backend: Backend = backend
        self.limits = override_limits(limits or backend.limits, timeout_per_command_seconds, memory_gb, disk_size_gb)
        monitor = Rubric()
        for metric in (sandbox_ready_wait_time, sandbox_command_execution_time, sandbox_timeouts):
            monitor.add_metric(metric)
        self.add_rubric(monitor)
        self.add_tool(self.bash, args_to_skip=["state"])

    @property
    def identity(self) -> Identity:
        """Like `Environment.identity`, with limits and packages of the sandbox."""
        return {**super().identity, "sandbox": {**msgspec.to_builtins(self.limits), "packages": self.packages}}

    async def setup_sandbox(self, session: Session, state: State) -> None:
        """Prepare a new sandbox before its first call, for example with `session.put`. Runs `start_command`.

        This method is called again if a sandbox died and lost its files.

        Raises:
            SandboxError: `start_command` failed.
        """
        if self.start_command:
            result = await session.bash(self.start_command)
            if not result.ok:
                raise SandboxError(f"start_command failed: {result.text()}")

    async def sandbox(self, state: State) -> Session:
        """Return the session of the rollout, opened and set up.

        Raises:
            ConfigError: this machine cannot enforce the isolation of a sandbox.
            SandboxError: the sandbox could not be started, or the rollout is over.
        """
        use = use_of(state)
        async with use.opening:  # concurrent calls of one turn share the sandbox
            if use.is_over:
                raise SandboxError("the rollout is over and its sandbox is closed")
            if use.session is None:
                began = time.perf_counter()
                backend = self.backend_of(state)
                limit = self._limit_of(backend)
                try:
                    if use.limit is None:  # else an earlier call failed to open the sandbox
                        await limit.acquire()
                        use.limit = limit
                    use.session = await backend.open(self.limits)
                finally:
                    use.ready_wait += time.perf_counter() - began
            if not use.is_ready:
                with phase("setup_sandbox"):
                    await self.setup_sandbox(use.session, state)
                use.is_ready = True
            return use.session

    def backend_of(self, state: State) -> Backend:
        """Return the backend for this rollout."""
        return self.backend

    def _limit_of(self, backend: Backend) -> asyncio.Semaphore:
        """Return the semaphore that limits the rollouts with a sandbox of `backend`."""
        # A semaphore belongs to one event loop, and every `evaluate_sync` has its own.
        loop = asyncio.get_running_loop()
        if self._limits_of_loop is None or self._limits_of_loop[0] is not loop:
            self._limits_of_loop = (loop, {})
        return self._limits_of_loop[1].setdefault(id(backend), asyncio.Semaphore(self.max_sandboxes))

    async def bash(self, command: str, state: State) -> str:
        """Run a bash command in a sandbox and return its output. Files persist between calls. There is no network access.

        Args:
            command: The command to run. It may have several lines.
        """
        session = await self.sandbox(state)
        result = await session.bash(command)
        return self.format_result(result, state)

    def format_result(self, result: Result, state: State) -> str:
        """Return the text of a result for the model, and record the result for the metrics."""
        use = use_of(state)
        use.calls.append(result)
        use.is_ready = use.is_ready and not result.files_lost  # else the next call sets the sandbox up again
        return result.text() or "[no output]"

    async def update_tool_args(
        self, tool_name: str, tool_args: Arguments, messages: Messages, state: State, **kwargs: Any
    ) -> Arguments:
        """Add `state` for tools that hide it, and open the sandbox, so that its failure does not count as the model's error."""
        if "state" not in self._tools_by_name[tool_name].hidden:
            return tool_args
        # Here and not in the tool: otherwise rollouts would be scored as if the model had made a mistake
        # (docs/decisions/tools.md).
        await self.sandbox(state)
        return {**tool_args, "state": state}

    @cleanup
    async def close_sandbox(self, state: State) -> None:
        """Close the sandbox, after scoring."""
        await use_of(state).end()

    @teardown
    async def close_backend(self) -> None:
        """Close the backend; a later call reopens it."""
        await self.backend.close()


class PythonEnv(SandboxEnv):
    """The model has a Python session in a sandbox (tool `python`): variables, functions and files persist between calls.

    The model sees what the code prints, the value of its last expression, and exceptions; the middle of long output
    is omitted. If a call is stopped, Python restarts, and the model is told that variables are lost. For
    an additional bash tool: `env.add_tool(env.bash, args_to_skip=["state"])`. See `SandboxEnv` for arguments.

    Example:
        env = rove.PythonEnv(dataset=[{"question": "What is 2**100?"}], pip_install_packages="numpy", rubric=rubric)
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.remove_tool("bash")
        description = (inspect.getdoc(PythonEnv.python) or "").partition("\n\nArgs:")[0]
        if self.packages:
            description += f" Packages: {', '.join(self.packages)}."
        self.add_tool(make_tool(self.python, description=description, hidden=["state"]))

    def functions(self, state: State) -> Functions:
        """Return async host functions that the model's code can call (see `Session.run_python`). Default: none.

        Describe them in the prompt.
        """
        return {}

    async def python(self, code: str, state: State) -> str:
        """Run Python code and return what it prints and the value of its last expression. Variables persist between calls.
        There is no network access.

        Args:
            code: The code to run. It may have several lines.
        """
        session = await self.sandbox(state)
        result = await session.run_python(code, functions=self.functions(state))
        return self.format_result(result, state)


class CodeMathEnv(PythonEnv):
    """Mathematics questions with a Python session; the answer goes into \\boxed{}.

    Args:
        system_prompt: default: a prompt that explains this format.
        rubric: default: a `MathRubric` (extra `math`).
        **kwargs: see `SandboxEnv`.
    """

    def __init__(self, system_prompt: str | None = MATH_PROMPT, rubric: Rubric | None = None, **kwargs: Any):
        super().__init__(system_prompt=system_prompt, rubric=MathRubric() if rubric is None else rubric, **kwargs)


def package_names(packages: str | Sequence[str]) -> list[str]:
    """Return package names from a list or a space-separated text."""
    names = packages.split() if isinstance(packages, str) else list(packages)
    for name in names:
        if not name.replace("-", "_").replace(".", "_").isidentifier():
            raise ConfigError(
                f"pip_install_packages has '{name}'; expected names without versions: the installed version is used"
            )
    return names


def override_limits(
    limits: SandboxLimits, seconds: float | None, memory_gb: float | None, disk_size_gb: float | None
) -> SandboxLimits:
    """Return the limits with the values that are not None replaced."""
    if seconds is not None:
        limits = msgspec.structs.replace(limits, seconds=seconds)
    if memory_gb is not None:
        limits = msgspec.structs.replace(limits, memory_bytes=int(memory_gb * BYTES_PER_GB))
    if disk_size_gb is not None:
        limits = msgspec.structs.replace(limits, disk_bytes=int(disk_size_gb * BYTES_PER_GB))
    return limits
