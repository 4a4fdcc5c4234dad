"""Environments for external agents: programs that query the model over HTTP, with limits on their turns and tokens."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rove.core.checks import check_values
from rove.core.code_digest import digest_code
from rove.core.errors import (
    AgentError,
    ConfigError,
    Error,
    LimitReachedError,
    cancelled_unanswered,
    ends_task,
    nearest,
    phase,
)
from rove.core.messages import AssistantMessage, Message, Messages, as_messages, text_of
from rove.core.plain import Identity
from rove.core.protocols import Request, SamplingParams
from rove.core.ranges import CountOrUnlimited, PositiveInt, Seconds
from rove.core.records import TrajectoryStep
from rove.core.state import State, bookkeeping, prompt_of
from rove.envs.environment import Environment, Turn, teardown
from rove.envs.multi_turn import num_turns
from rove.rubrics import Rubric
from rove.server.proxy import Access, AgentTurns, ModelTurn, Proxy
from rove.tools.tool import as_content
from rove.utils.functions import is_async, maybe_await, unwrapped
from rove.utils.processes import hidden_command, run_command, safe_environment
from rove.utils.systems import shell_command
from rove.utils.threads import PendingCalls, Threads

Agent = Callable[[Access, State], Any]
"""A foreign agent as a sync or async function: (access to the model, state of the rollout) → the agent's answer."""

MAX_ERROR_CHARS = 2000
"""Maximum characters of a command's stderr in an error message."""
CANCEL_TIMEOUT_S = 2.0
"""Maximum seconds to wait for an agent to end after it is canceled."""


class AgentEnv(Environment):
    """A foreign agent carries out each rollout. It uses OpenAI's Chat Completions or Responses API, or Anthropic's Messages API.

    The agent connects to a server in this process with a key for its rollout. Each request is a step of the rollout, with the
    messages and tools that the agent sent, and with exact tokens if the run's client knows them. A request that continues an
    earlier request reuses its tokens; any other request starts a new branch. Requests of a rollout may be concurrent.

    The agent is `agent`, `command`, or an override of `run_agent`. Its return value (for a command, its stdout) becomes
    `state["agent_result"]` and the last message of `state["completion"]`, after the conversation with the most steps. A
    rollout ends when its agent ends ("agent_finished"), when a stop condition holds after a step, or at a limit. The
    model then rejects further requests. After `grace_seconds`, a coroutine is canceled and a process group is killed; a
    thread fails at its next request.

    An exception of the agent fails the rollout with an `AgentError` in the phase "agent". An exception of the model's client
    fails it in the phase "model", no matter how the agent handles it.

    The run's sampling parameters apply. Of the agent's own parameters, only those in `agent_sampling` are used. If both
    set `max_tokens`, the smaller value applies; `stop` texts are combined.

    Args:
        agent: called with (access, state) for every rollout; sync functions run in threads.
        command: shell command line, or a program with arguments, run for every rollout with `Access.environment` and the task
            in `ROVE_TASK` and on stdin.
        max_turns: maximum number of model replies; -1 = no limit.
        timeout_seconds: wall-time limit of a rollout; None = no limit. A rollout that exceeds the limit is scored as it is.
        agent_sampling: sampling arguments that the agent may set. In RL, an agent that changes the token distribution (e.g.
            temperature) fails its rollout.
        grace_seconds: maximum seconds for the agent to end after the model's last reply.
        cwd: working directory of the command.
        environment_vars: additional variables of the command. It inherits only the variables in
            `rove.utils.processes.SAFE_VARIABLES`, such as PATH and HOME, and no keys.
        hide_processes: keep the command from reading the environment and memory of other processes, which contain keys of other
            rollouts and of this user. This needs Linux with Landlock; elsewhere it has no effect. In the command, setuid programs
            such as sudo then do not work, and operations that need CAP_SYS_ADMIN do not work even for root.
        max_chars: maximum characters of the command's stdout and stderr to keep.
        max_threads: maximum number of concurrent sync agents.
        **kwargs: see `Environment`.

    Raises:
        ConfigError: agent and command are both given, a name in `agent_sampling` is unknown, or message_type is "completion".

    Example:
        async def agent(access, state):
            client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.api_key)
            reply = await client.chat.completions.create(model=access.model, messages=state["prompt"])
            return reply.choices[0].message.content

        env = rove.AgentEnv(agent, dataset=dataset, rubric=rubric)
    """

    sends_prompt = False

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
        hide_processes: bool = True,
        max_chars: int = 100_000,
        max_threads: int = 256,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if agent is not None and command is not None:
            raise ConfigError("both agent and command are given; expected one of them")
        if command is not None and not command:
            raise ConfigError("command is empty; expected a program and its arguments, or a command of the shell")
        if self.message_type != "chat":
            raise ConfigError("agents cannot be used with message_type 'completion'; expected 'chat'")
        for name in agent_sampling:
            if name not in SamplingParams.__struct_fields__:
                raise ConfigError(
                    f"agent_sampling has '{name}'; {nearest(str(name), SamplingParams.__struct_fields__)}"
                )
        self.agent = agent
        self.command = command if command is None or isinstance(command, str) else list(command)
        self.max_turns = max_turns
        self.timeout_seconds = timeout_seconds
        # Tokens sampled at a temperature of the agent would be trained on as if sampled at that of the run
        # (docs/decisions/agents.md).
        self.agent_sampling = frozenset(agent_sampling)
        self.grace_seconds = grace_seconds
        self.cwd = None if cwd is None else os.fspath(cwd)
        self.environment_vars = dict(environment_vars or {})
        self.hide_processes = hide_processes
        self.max_chars = max_chars
        self.max_threads = max_threads
        check_values(self, max_turns=CountOrUnlimited, timeout_seconds=Seconds | None, grace_seconds=Seconds)
        check_values(self, max_chars=PositiveInt, max_threads=PositiveInt)
        self._threads = Threads(max_threads)
        self._proxy: Proxy | None = None
        monitor = Rubric()
        monitor.add_metric(num_turns)
        self.add_rubric(monitor)

    @property
    def identity(self) -> Identity:
        """Like `Environment.identity`, with the code or command of the agent."""
        code = "" if self.agent is None else digest_code(unwrapped(self.agent))
        return {**super().identity, "agent": self.command or code, "agent_sampling": sorted(self.agent_sampling)}

    async def setup_state(self, state: State, **kwargs: Any) -> Mapping[str, object] | None:
        """Prepare the state in place, or return a mapping to add to it."""
        return state

    async def run_agent(self, access: Access, state: State) -> Any:
        """Run the agent and return its answer; canceled when the rollout ends.

        By default this calls `agent` or runs `command`, whose output and exit code are stored in
        `state["agent_output"]`, `state["agent_errors"]` (stderr) and `state["agent_exit_code"]`.

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

    async def in_thread(self, call: Callable[[], object], state: State) -> object:
        """Run a sync function of the rollout in a thread and return its result."""
        internals = bookkeeping(state)
        if internals.agent_threads is None:
            internals.agent_threads = PendingCalls()
        return await self._threads.run(call, internals.agent_threads)

    async def run(self, state: State, turn: Turn) -> None:
        """Give the agent access to the model and run it."""
        internals = bookkeeping(state)
        internals.completion = []
        with phase("setup_state"):
            returned = await maybe_await(self.setup_state(state))
            if returned is not None and returned is not state:
                state.update(returned)
            internals.prompt = as_messages(state["prompt"])
        # One server for all rollouts, each with its own key: a port per rollout would need hundreds of servers
        # (docs/decisions/agents.md).
        proxy = await self._started_proxy()
        turns = AgentTurns(self._limited(turn), state, self.agent_sampling, self._stops_hold)
        answer: object = None
        error: BaseException | None = None
        try:
            async with proxy.opened(turns) as access:
                answer, error = await self._run_until_over(access, turns, state)
        except asyncio.CancelledError as cancelled:
            if turns.unanswered:
                raise cancelled_unanswered(turns.unanswered) from cancelled
            raise
        finally:
            _set_completion(answer, state)
            # The cleanup must not release what a thread still uses (docs/decisions/tools.md).
            if threads := internals.agent_threads:  # threads fail at their next request
                await asyncio.wait(threads, timeout=CANCEL_TIMEOUT_S)
        _raise_failure(error, turns, state)
        internals.stop_condition = internals.stop_condition or "agent_finished"

    async def _run_until_over(
        self, access: Access, turns: AgentTurns, state: State
    ) -> tuple[object, BaseException | None]:
        """Return the result or exception of the agent, which may run for `grace_seconds` after the last model reply."""
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
            await asyncio.wait((agent, over), timeout=CANCEL_TIMEOUT_S)

    async def _attempt(self, access: Access, state: State) -> tuple[object, BaseException | None]:
        try:
            with phase("agent"):
                return await self.run_agent(access, state), None
        except BaseException as error:  # SystemExit must not leave a task: it would end the event loop
            if ends_task(error):
                raise
            return None, error

    def _limited(self, turn: Turn) -> ModelTurn:
        num_started = 0

        async def limited(state: State, messages: Messages, *, agent_request: Request | None = None) -> Message:
            nonlocal num_started
            if 0 <= self.max_turns <= num_started:
                raise LimitReachedError("max_turns_reached")
            num_started += 1  # before the request: an agent may send several at a time
            try:
                return await turn(state, messages, agent_request=agent_request)
            except BaseException:
                num_started -= 1  # a request without a reply is no turn
                raise

        return limited

    async def _stops_hold(self, state: State) -> bool:
        with phase("stop"):
            holds = await self.check_stops(state)
        internals = bookkeeping(state)
        condition = state.get("stop_condition")  # set by an override of check_stops
        if holds and internals.stop_condition is None and isinstance(condition, str):
            internals.stop_condition = condition
        return holds

    async def _run_command(self, command: str | list[str], access: Access, state: State) -> str:
        task = task_of(state)
        env = {**safe_environment(), **access.environment, "ROVE_TASK": task, **self.environment_vars}
        for name in ("NO_PROXY", "no_proxy"):  # a proxy for outside must not handle requests to this process
            env[name] = ",".join(filter(None, (env.get(name), "127.0.0.1")))
        try:
            words = shell_command(command) if isinstance(command, str) else command
            if self.hide_processes:
                _check_program(words[0], env.get("PATH"), self.cwd)
                words = hidden_command(words)
            ended = await run_command(words, env=env, cwd=self.cwd, stdin=task, max_chars=self.max_chars)
        except (OSError, ValueError) as error:
            raise AgentError(f"the agent's command cannot be started: {error}") from error
        state.update(agent_output=ended.output, agent_errors=ended.errors, agent_exit_code=ended.exit_code)
        if ended.exit_code:
            output = (ended.errors or ended.output).strip()[-MAX_ERROR_CHARS:]
            raise AgentError(
                f"the agent's command failed with exit code {ended.exit_code}; its output: {output or '(none)'}"
            )
        return ended.output.strip()

    async def _started_proxy(self) -> Proxy:
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


def _check_program(program: str, path: str | None, cwd: str | None) -> None:
    """Raise the error that starting a missing program raises, because `hidden_command` reports it only as an exit code."""
    location = os.path.join(cwd or "", program) if os.path.dirname(program) else program
    if shutil.which(location, path=path) is None:
        code = errno.EACCES if os.path.exists(location) else errno.ENOENT
        raise OSError(code, os.strerror(code), program)


def task_of(state: State) -> str:
    """Return the last user message of the prompt."""
    texts = [text_of(message) for message in as_messages(prompt_of(state)) if message["role"] == "user"]
    return texts[-1] if texts else ""


def longest_conversation(steps: Sequence[TrajectoryStep]) -> list[TrajectoryStep]:
    """Return the steps of the agent's longest conversation; of equally long conversations, return the last.

    A step belongs to the first conversation whose first prompt is a prefix of the step's prompt.
    """
    conversations: list[list[TrajectoryStep]] = []
    for step in steps:
        for conversation in conversations:
            first_prompt = conversation[0].prompt
            if step.prompt[: len(first_prompt)] == first_prompt:
                conversation.append(step)
                break
        else:
            conversations.append([step])
    return max(reversed(conversations), key=len) if conversations else []


def conversation(steps: Sequence[TrajectoryStep]) -> Messages:
    """Return the messages of the agent's longest conversation after its first prompt."""
    longest = longest_conversation(steps)
    if not longest:
        return []
    first, last = longest[0], longest[-1]
    return as_messages([*last.prompt, *last.completion][len(first.prompt) :])


def _set_completion(result: object, state: State) -> None:
    """Set the completion: the conversation, then the agent's answer."""
    messages = conversation(bookkeeping(state).trajectory)
    answer = "" if result is None else as_content(result)
    last = messages[-1] if messages else Message(role="user")
    if answer and (last["role"] != "assistant" or text_of(last) != answer):
        messages.append(AssistantMessage(answer))
    state["agent_result"] = result
    bookkeeping(state).completion = messages


def _raise_failure(error: BaseException | None, turns: AgentTurns, state: State) -> None:
    """Raise the failure of the rollout, if any; a failure of the model takes precedence over the agent's reaction to it."""
    # An agent that catches every exception would turn an unreachable endpoint into a wrong answer
    # (docs/decisions/agents.md).
    if turns.failure is not None:
        raise turns.failure
    if error is None or bookkeeping(state).stop_condition:
        return
    if turns.overlong is not None:  # only now: an agent can shorten its history and continue
        raise turns.overlong
    if isinstance(error, Error):
        raise error
    with phase("agent"):
        failure = AgentError(f"{type(error).__name__}: {error}")
        raise failure.with_traceback(error.__traceback__) from error  # so that the traceback ends in the agent's code
