"""Environments whose rollouts are played by a foreign agent: a program that talks to the model over HTTP."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rove.core.config import check_positive
from rove.core.digest import digest_code
from rove.core.errors import AgentError, ConfigError, Error, LimitReachedError, ends_task, nearest, phase
from rove.core.messages import AssistantMessage, Message, Messages, as_messages, text_of
from rove.core.protocols import Request, SamplingParams
from rove.core.records import TrajectoryStep
from rove.core.state import State
from rove.envs.environment import Environment, Turn, teardown
from rove.envs.multi_turn import num_turns
from rove.rubrics import Rubric
from rove.server.proxy import Access, AgentTurns, ModelTurn, Proxy
from rove.tools.tool import as_content
from rove.utils.functions import is_async, maybe_await, unwrapped
from rove.utils.processes import run_command
from rove.utils.threads import Threads, UnderWay

Agent = Callable[[Access, State], Any]
"""A foreign agent, sync or async: (how it reaches the model, the rollout's state) → its answer."""

LAST_LINES = 2000
"""Characters of a command's stderr that the error of one that failed has."""
STOP_SECONDS = 2.0
"""How long an agent may take to end once it is cancelled."""


class AgentEnv(Environment):
    """A foreign agent plays each rollout: whatever speaks OpenAI's chat completions or Responses, or Anthropic's Messages.

    It talks to a server in this process, under a key that only its rollout has. Each of its requests is a step of the
    rollout, with the messages and tools that it sent, and with exact tokens where the run's client has them. A request
    that continues an earlier one continues its tokens; any other starts a new branch. Requests of one rollout may be under
    way at once.

    The agent is `agent`, `command`, or an override of `run_agent`. What it returns (a command: what it writes to stdout) is
    its answer: `state["agent_result"]`, and the last message of `state["completion"]`. Before that the completion has the
    conversation of the most steps, from its first prompt on. A rollout ends when its agent does ("agent_finished"),
    when a stop condition holds after a step, or at a limit; then the model answers no more, and an agent that goes on is
    stopped after `grace_seconds`: a coroutine is cancelled, a process killed with its group, a thread left to fail at its next
    request.

    A rollout whose agent raises fails with an `AgentError`, in the phase "agent". One whose model's client raises fails with
    that, in the phase "model", whatever the agent makes of it.

    Sampling is the run's, so that what is trained is what was meant to be: of the agent's own arguments only those in
    `agent_sampling` count. The smaller `max_tokens` holds, and the `stop` texts of both.

    Args:
        agent: called with (access, state) for every rollout; sync ones run in threads.
        command: a line for the shell, or a program and its arguments, run for every rollout with
            `Access.environment`, and the task in `ROVE_TASK` and on stdin.
        max_turns: most answers of the model; -1 = no limit.
        timeout_seconds: wall-clock limit of a rollout; None = no limit. A rollout that meets it is scored as it stands.
        agent_sampling: names of sampling arguments in which the agent has its way. In RL a rollout fails whose agent asks for
            another temperature, or another parameter that changes the distribution of the tokens, than the run.
        grace_seconds: how long an agent may go on when it gets no further answers.
        cwd: folder of the command.
        environment_vars: further variables of the command.
        max_chars: of the command's stdout and stderr that are kept.
        max_threads: most sync agents that run at once.
        Everything else: see `Environment`.

    Raises:
        ConfigError: both agent and command are given, a name of `agent_sampling` is unknown, or message_type is "completion".
    """

    def __init__(
        self,
        agent: Agent | None = None,
        command: str | Sequence[str] | None = None,
        max_turns: int = -1,
        timeout_seconds: float | None = None,
        agent_sampling: Collection[str] = ("max_tokens", "stop"),
        grace_seconds: float = 5.0,
        cwd: str | os.PathLike[str] | None = None,
        environment_vars: Mapping[str, str] | None = None,
        max_chars: int = 100_000,
        max_threads: int = 256,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if agent is not None and command is not None:
            raise ConfigError("both agent and command are given; expected one of them")
        if self.message_type != "chat":
            raise ConfigError("agents hold conversations, not raw texts (message_type 'completion'); expected 'chat'")
        for name in agent_sampling:
            if name not in SamplingParams.__struct_fields__:
                raise ConfigError(
                    f"agent_sampling has '{name}'; {nearest(str(name), SamplingParams.__struct_fields__)}"
                )
        self.agent = agent
        self.command = command if command is None or isinstance(command, str) else list(command)
        self.max_turns = max_turns
        self.timeout_seconds = timeout_seconds
        self.agent_sampling = frozenset(agent_sampling)
        self.grace_seconds = grace_seconds
        self.cwd = None if cwd is None else os.fspath(cwd)
        self.environment_vars = dict(environment_vars or {})
        self.max_chars = max_chars
        self.max_threads = max_threads
        check_positive(self, "grace_seconds", "max_chars", "max_threads")
        self._threads = Threads(max_threads)
        self._proxy: Proxy | None = None
        monitor = Rubric()
        monitor.add_metric(num_turns)
        self.add_rubric(monitor)

    @property
    def identity(self) -> dict[str, Any]:
        """See `Environment.identity`; the agent counts by its code, or its command."""
        code = "" if self.agent is None else digest_code(unwrapped(self.agent))
        return {**super().identity, "agent": self.command or code, "agent_sampling": sorted(self.agent_sampling)}

    async def setup_state(self, state: State, **kwargs: Any) -> Mapping[str, Any] | None:
        """Prepare the rollout's state: change it in place, or return what is to be added to it."""
        return state

    async def run_agent(self, access: Access, state: State) -> Any:
        """Play the rollout and return the answer; it is cancelled when the rollout ends.

        By default `agent` is called, or `command` run, whose output and exit code are then in `state["agent_output"]`,
        `state["agent_errors"]` (stderr) and `state["agent_exit_code"]`.

        Raises:
            AgentError: the command cannot be started, or its exit code is not 0.
        """
        if self.command is not None:
            return await self._run_command(self.command, access, state)
        if self.agent is None:
            raise ConfigError(f"{type(self).__name__} has no agent; pass agent= or command=, or override run_agent")
        if is_async(self.agent):
            return await self.agent(access, state)
        return await maybe_await(await self.in_thread(functools.partial(self.agent, access, state), state))

    async def in_thread(self, call: Callable[[], Any], state: State) -> Any:
        """What a sync function of the rollout returns, which runs beside the event loop."""
        return await self._threads.run(call, state.setdefault("agent_threads", UnderWay()))

    async def run(self, state: State, turn: Turn) -> None:
        """Open a way to the model, and let the agent play."""
        state["completion"] = []
        with phase("setup_state"):
            returned = await self.setup_state(state)
            if returned is not None and returned is not state:
                state.update(returned)
        proxy = await self._started()
        turns = AgentTurns(self._limited(turn), state, self.agent_sampling, self._stops_hold)
        played: tuple[Any, BaseException | None] = (None, None)
        try:
            async with proxy.opened(turns) as access:
                played = await self._played(access, turns, state)
        except asyncio.CancelledError as cancelled:
            if turns.unanswered:
                cancelled.rove_unanswered = turns.unanswered  # pyright: ignore[reportAttributeAccessIssue]
            raise
        finally:
            _conclude(played[0], state)
            if threads := state.get("agent_threads"):  # they hear of it at their next request
                await asyncio.wait(threads, timeout=STOP_SECONDS)
        _raise(played[1], turns, state)
        state["stop_condition"] = state["stop_condition"] or "agent_finished"

    async def _played(self, access: Access, turns: AgentTurns, state: State) -> tuple[Any, BaseException | None]:
        """What the agent returned, or what it raised; it has time to after the model's last answer."""
        agent = asyncio.create_task(self._attempt(access, state))
        over = asyncio.create_task(turns.over.wait())
        try:
            await asyncio.wait((agent, over), return_when=asyncio.FIRST_COMPLETED)
            if not agent.done():
                await asyncio.wait((agent,), timeout=self.grace_seconds)
            return agent.result() if agent.done() else (None, None)
        finally:
            over.cancel()
            turns.over.set()
            agent.cancel()
            await asyncio.wait((agent, over), timeout=STOP_SECONDS)

    async def _attempt(self, access: Access, state: State) -> tuple[Any, BaseException | None]:
        try:
            with phase("agent"):
                return await self.run_agent(access, state), None
        except BaseException as error:  # exit() must not leave a task: it would end the event loop
            if ends_task(error):
                raise
            return None, error

    def _limited(self, turn: Turn) -> ModelTurn:
        """The turn, of which there are `max_turns` at most."""
        begun = 0

        async def limited(state: State, messages: Messages, *, asked: Request | None = None) -> Message:
            nonlocal begun
            if 0 <= self.max_turns <= begun:
                raise LimitReachedError("max_turns_reached")
            begun += 1
            return await turn(state, messages, asked=asked)

        return limited

    async def _stops_hold(self, state: State) -> bool:
        with phase("stop"):
            return await self.check_stops(state)

    async def _run_command(self, command: str | list[str], access: Access, state: State) -> str:
        task = task_of(state)
        env = {**os.environ, **access.environment, "ROVE_TASK": task, **self.environment_vars}
        for name in ("NO_PROXY", "no_proxy"):  # what is set for the way out must not be in the way in
            env[name] = ",".join(filter(None, (env.get(name), "127.0.0.1")))
        try:
            ended = await run_command(command, env=env, cwd=self.cwd, stdin=task, max_chars=self.max_chars)
        except (OSError, ValueError) as error:
            raise AgentError(f"the agent's command cannot be started: {error}") from error
        state.update(agent_output=ended.output, agent_errors=ended.errors, agent_exit_code=ended.exit_code)
        if ended.exit_code:
            said = (ended.errors or ended.output).strip()[-LAST_LINES:]
            raise AgentError(
                f"the agent's command ended with exit code {ended.exit_code}; it said: {said or '(nothing)'}"
            )
        return ended.output.strip()

    async def _started(self) -> Proxy:
        if self._proxy is None or self._proxy.loop is not asyncio.get_running_loop():
            self._proxy = Proxy()
        await self._proxy.start()
        return self._proxy

    @teardown(priority=-100)
    async def close_proxy(self) -> None:
        """Close the server; a later rollout starts another."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None and proxy.loop is asyncio.get_running_loop():
            await proxy.close()


def task_of(state: State) -> str:
    """What the user asks last in a rollout's prompt."""
    said = [text_of(message) for message in as_messages(state["prompt"]) if message["role"] == "user"]
    return said[-1] if said else ""


def longest_conversation(steps: Sequence[TrajectoryStep]) -> list[TrajectoryStep]:
    """The steps of the longest conversation that an agent held; none where there are none.

    Steps belong together whose prompts begin with that of the first of them. Of equals the last counts.
    """
    held: list[list[TrajectoryStep]] = []
    for step in steps:
        mine = next((one for one in held if step.prompt[: len(one[0].prompt)] == one[0].prompt), None)
        if mine is None:
            held.append([step])
        else:
            mine.append(step)
    return max(reversed(held), key=len, default=[])


def conversation(steps: Sequence[TrajectoryStep]) -> Messages:
    """The longest conversation that an agent held, after its first prompt, as its last step shows it."""
    longest = longest_conversation(steps)
    if not longest:
        return []
    first, last = longest[0], longest[-1]
    return as_messages([*last.prompt, *last.completion][len(first.prompt) :])


def _conclude(result: Any, state: State) -> None:
    """Put what was said into the completion, and what the agent answered behind it."""
    messages = conversation(state["trajectory"])
    answer = "" if result is None else as_content(result)
    last = messages[-1] if messages else Message(role="user")
    if answer and (last["role"] != "assistant" or text_of(last) != answer):
        messages.append(AssistantMessage(answer))
    state.update(agent_result=result, completion=messages)


def _raise(error: BaseException | None, turns: AgentTurns, state: State) -> None:
    """What went wrong, if anything did; what ended the model's answers comes before what the agent made of that."""
    if turns.failure is not None:
        raise turns.failure
    if error is None or state["stop_condition"]:
        return
    if turns.overlong is not None:
        raise turns.overlong
    if isinstance(error, Error):
        raise error
    with phase("agent"):
        told = AgentError(f"{type(error).__name__}: {error}")
        raise told.with_traceback(error.__traceback__) from error  # whose last line is the agent's own
