"""Environments in which the model gets a sandbox of its own: bash, and whatever else runs in there."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rove.core.errors import ConfigError, SandboxError, phase
from rove.core.messages import Messages
from rove.core.state import State
from rove.envs.environment import cleanup, teardown
from rove.envs.stateful_tool import StatefulToolEnv
from rove.rubrics import Rubric
from rove.sandbox import Backend, LocalBackend, Result, SandboxLimits, Session
from rove.tools.tool import Arguments
from rove.utils.functions import maybe_await

SECONDS = 30.0
"""Wall time of one call, where nothing else is said."""
GB = 1 << 30
VENDOR = "it belongs to the sandboxes of a vendor; leave it out"
NOT_HERE = {
    "docker_image": "pass backend=rove.sandbox.DockerBackend(image)",
    "cpu_cores": "no cores are set aside; limits=SandboxLimits(processes=…, cpu_seconds=…) bounds what a sandbox may use",
    "gpu_count": "sandboxes have no GPU",
    "timeout_minutes": "a sandbox lives as long as its rollout, which timeout_seconds bounds",
    "max_startup_wait_seconds": "Python is there as soon as its sandbox is; leave it out",
    **dict.fromkeys(("sandbox_name", "team_id", "labels", "advanced_configs"), VENDOR),
}
"""Arguments that people know from elsewhere, and what to do instead."""


@dataclass(slots=True)
class SandboxUse:
    """What one rollout has of its sandbox: `state["sandbox"]`."""

    session: Session | None = None
    is_ready: bool = False
    """It has been set up."""
    is_over: bool = False
    ready_wait: float = 0.0
    """Seconds that the rollout waited for it, other rollouts' included where there are as many as may be."""
    calls: list[Result] = field(default_factory=list)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def end(self) -> None:
        """Close it; none is opened any more."""
        self.is_over = True
        if self.session is not None:
            await self.session.close()


def use_of(state: State) -> SandboxUse:
    """The rollout's use of its sandbox; an empty one where it has not needed any."""
    return state.setdefault("sandbox", SandboxUse())


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
    """The model has bash in a sandbox of its own (tool `bash`); files stay for the next call.

    A rollout's sandbox is opened by its first call (one that calls nothing pays nothing) and closed when it ends, however it
    ends. What goes wrong inside, a call that takes too long included, is told to the model; a sandbox that cannot be
    started ends the rollout with a `SandboxError`. Further tools that need it are methods added with
    `add_tool(…, args_to_skip=["state"])`: they are given the state, and `await self.sandbox(state)` is the session.

    Args:
        backend: where sandboxes come from. Default: a `LocalBackend`. It is closed when the run ends, and can be used again.
        limits: of one sandbox. Default: those of `backend`, else of `SandboxLimits` with 30 s for a call.
        timeout_per_command_seconds, memory_gb, disk_size_gb: these of the limits. The disk is memory, too.
        pip_install_packages: packages that code may import, as a list or separated by spaces, by their names without
            versions. They have to be installed where rove runs; nothing is installed. Default: the standard library.
        environment_vars: further environment variables, which the code can read.
        start_command: run by bash in every new sandbox, before the first call; must succeed.
        unsafe: go on where this machine cannot enforce what a sandbox takes (see `LocalBackend`): trust the code.
        max_sandboxes: most at once; a rollout that needs one more waits.
        parallel_calls: whether calls of one turn start at once; in the sandbox they run one after the other anyway.
        Everything else: see `ToolEnv`.

    Raises:
        ConfigError: a package is not installed, a limit not above 0, or something is given that `backend` has to be told.
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
        for name in NOT_HERE.keys() & kwargs.keys():
            raise ConfigError(f"{type(self).__name__} has no argument '{name}': {NOT_HERE[name]}")
        super().__init__(parallel_calls=parallel_calls, **kwargs)
        self.packages = package_names(pip_install_packages)
        self.start_command = start_command
        self._local_backend = functools.partial(
            LocalBackend,
            SandboxLimits(seconds=SECONDS),
            packages=self.packages,
            environment=environment_vars,
            unsafe=unsafe,
            max_sessions=max_sandboxes,
        )
        if backend is None:
            backend = self._local_backend()
        elif given := [
            name
            for name, value in (
                ("pip_install_packages", self.packages),
                ("environment_vars", environment_vars),
                ("unsafe", unsafe),
            )
            if value
        ]:
            raise ConfigError(f"{given[0]} is given beside backend; expected one of them: tell the backend")
        self.backend: Backend = backend
        self.limits = limited(limits or backend.limits, timeout_per_command_seconds, memory_gb, disk_size_gb)
        monitor = Rubric()
        for metric in (sandbox_ready_wait_time, sandbox_command_execution_time, sandbox_timeouts):
            monitor.add_metric(metric)
        self.add_rubric(monitor)
        self.add_tool(self.bash, args_to_skip=["state"])

    @property
    def identity(self) -> dict[str, Any]:
        """See `Environment.identity`; what a sandbox may use and import counts, too."""
        return {**super().identity, "sandbox": {**msgspec.to_builtins(self.limits), "packages": self.packages}}

    async def setup_sandbox(self, session: Session, state: State) -> None:
        """Prepare a new sandbox, before its first call: files, say, with `session.put`. Runs `start_command`.

        Called again, for the next call, should a sandbox have died with its files.

        Raises:
            SandboxError: `start_command` failed.
        """
        if self.start_command:
            result = await session.bash(self.start_command)
            if not result.ok:
                raise SandboxError(f"start_command failed: {result.text()}")

    async def post_rollout(self, state: State) -> Any:
        """The rollout is over and its sandbox still open: the place to fetch from it what is to be scored. May be sync.

        `await self.sandbox(state)` is the session; it is opened if the rollout did not.
        """

    async def sandbox(self, state: State) -> Session:
        """The rollout's session, opened and set up if it is not yet.

        Raises:
            ConfigError: this machine cannot enforce what a sandbox takes.
            SandboxError: it could not be started, or the rollout is over.
        """
        use = use_of(state)
        async with use.opening:
            if use.is_over:
                raise SandboxError("the rollout is over, and its sandbox closed")
            if use.session is None:
                began = time.perf_counter()
                try:
                    use.session = await self.backend_of(state).open(self.limits)
                finally:
                    use.ready_wait += time.perf_counter() - began
            if not use.is_ready:
                with phase("setup_sandbox"):
                    await self.setup_sandbox(use.session, state)
                use.is_ready = True
            return use.session

    def backend_of(self, state: State) -> Backend:
        """Where this rollout's sandbox comes from."""
        return self.backend

    async def bash(self, command: str, state: State) -> str:
        """Run a command of bash in a sandbox and get its output. Files stay for the next call. There is no network.

        Args:
            command: may have several lines
        """
        session = await self.sandbox(state)
        return self.told(await session.bash(command), state)

    def told(self, result: Result, state: State) -> str:
        """What the model is told of a call's result, which is kept for the metrics."""
        use = use_of(state)
        use.calls.append(result)
        use.is_ready = use.is_ready and not result.files_lost
        return result.text() or "[no output]"

    async def update_tool_args(
        self, tool_name: str, tool_args: Arguments, messages: Messages, state: State, **kwargs: Any
    ) -> Arguments:
        """Adds `state` for tools that hide it, and opens the sandbox: what fails there is no error of the model's."""
        if "state" not in self._known[tool_name].hidden:
            return tool_args
        await self.sandbox(state)
        return {**tool_args, "state": state}

    @cleanup
    async def close_sandbox(self, state: State) -> None:
        """`post_rollout`, then the end of the sandbox whatever came of that."""
        use = use_of(state)
        try:
            with phase("post_rollout"):
                await maybe_await(self.post_rollout(state))
        finally:
            await use.end()

    @teardown
    async def close_backend(self) -> None:
        """Close the backend; the next call of any rollout starts it anew."""
        await self.backend.close()


def package_names(given: str | Sequence[str]) -> list[str]:
    """Names of packages from a list, or a text that has them separated by spaces.

    Raises:
        ConfigError: one has a version, or is something else than a name.
    """
    names = given.split() if isinstance(given, str) else list(given)
    for name in names:
        if not name.replace("-", "_").replace(".", "_").isidentifier():
            raise ConfigError(
                f"pip_install_packages has '{name}'; expected names without versions: what is installed here is used"
            )
    return names


def limited(
    limits: SandboxLimits, seconds: float | None, memory_gb: float | None, disk_size_gb: float | None
) -> SandboxLimits:
    """The limits with those of them replaced that are given.

    Raises:
        ConfigError: one is not above 0.
    """
    given = {
        "seconds": seconds,
        "memory_bytes": None if memory_gb is None else int(memory_gb * GB),
        "disk_bytes": None if disk_size_gb is None else int(disk_size_gb * GB),
    }
    changed = {name: value for name, value in given.items() if value is not None}
    return SandboxLimits(**{**msgspec.structs.asdict(limits), **changed})
