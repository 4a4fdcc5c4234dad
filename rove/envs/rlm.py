"""Recursive language models: a long input is a variable in the Python session of a model, and the model queries sub-models about
parts of the input.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from rove.core.checks import check_values
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, SandboxError, phase
from rove.core.messages import Message, Messages, SystemMessage, UserMessage, as_messages, text_of
from rove.core.model_roles import query
from rove.core.plain import Identity, is_list, is_mapping
from rove.core.protocols import Client
from rove.core.ranges import CountOrUnlimited, NonNegativeInt, PositiveInt
from rove.core.records import TrajectoryStep
from rove.core.state import State, bookkeeping
from rove.envs.environment import Turn, stop, teardown
from rove.envs.sandbox import PythonEnv, use_of
from rove.rubrics import Rubric
from rove.sandbox import Backend, Functions, Session
from rove.utils.functions import function_name, maybe_await

FENCED = re.compile(r"```(?:python|py)[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
READ_ANSWER = '_set_answer(str(answer["content"]), bool(answer["ready"]))'
RENAMED_ARGUMENTS = {
    "max_sub_llm_parallelism": "max_parallel_calls",
    "sub_llm_max_turns": "sub_max_turns",
    "include_sub_llm_in_trajectory": "train_sub_calls",
    "context_key": "context",
    "code_execution_timeout": "timeout_per_command_seconds",
    "max_output_length": "limits=SandboxLimits(output_chars=…)",
    "max_iterations": "max_turns",
    "root_tools": "tools, which the model calls in addition to Python",
}
"""Argument names of other implementations → the names in `RLMEnv`."""


ROLE = "sub_model"
"""Model role of sub-models that are not trained."""
LOAD_CONTEXT = {
    "context.txt": 'with open("context.txt", encoding="utf-8", newline="") as file: context = file.read()',
    "context.json": 'import json\nwith open("context.json", encoding="utf-8") as file: context = json.load(file)\ndel json',
}
"""Code that loads the context file into a variable."""
INIT_ANSWER = '\ndel file\nanswer = {"content": "", "ready": False}'
INSTRUCTIONS = """\
Answer the question about an input that may be too long to read at once. The input is not in this conversation. It is the \
value of the variable `context` in a Python session. {code_instructions} Variables persist. You see what the code prints and the \
value of its last expression; the middle of a long output is omitted.

In the Python session, `llm(prompt)` sends a prompt to a language model and returns its reply as a string. The language model \
sees only the prompt, so include the text that it should read. `llm_batch(prompts)` sends several prompts concurrently and \
returns the list of replies.{recursion} You can send at most {max_sub_calls} prompts in total. For example:

parts = [context[:5000], context[5000:10000]]
replies = llm_batch(["Who is ill in this text?\\n\\n" + part for part in parts])

When you know the answer, store it and mark it as ready. For example:

answer["content"] = "Ophelia"
answer["ready"] = True"""
CODE_INSTRUCTIONS = {
    "tool": "Use the tool `python` to run code in this session.",
    "fence": "To run code in this session, write the code between ```python and ```.",
}
RECURSION_INSTRUCTIONS = """\
 With `llm(prompt, context=part)` or `llm_batch(prompts, contexts)`, the language model gets its own Python session, in which \
the variable `context` holds that part of the input."""


def answer_ready(state: State) -> float:
    """1 if the model has marked its answer as final."""
    return float(bookkeeping(state).rlm.ready)


def sub_calls(state: State) -> float:
    """Replies of sub-models."""
    return float(len(bookkeeping(state).rlm.calls.steps))


def sub_tokens(state: State) -> float:
    """Tokens that sub-models read and generated."""
    return float(
        sum(step.usage.prompt_tokens + step.usage.completion_tokens for step in bookkeeping(state).rlm.calls.steps)
    )


@dataclass(slots=True)
class SubCalls:
    """All calls of sub-models in a rollout, at all depths."""

    turn: Turn
    parallel: asyncio.Semaphore
    model_roles: Mapping[str, list[TrajectoryStep]]
    """Steps of the rollout by model role."""
    conversations: list[list[TrajectoryStep]]
    """Trajectories to train on: the rollout's own, then those of its sub-models."""
    num_calls: int = 0

    @property
    def steps(self) -> list[TrajectoryStep]:
        """All steps of sub-models so far."""
        return [*self.model_roles.get(ROLE, ()), *chain.from_iterable(self.conversations[1:])]


@dataclass(slots=True)
class Exploration:
    """A model with a Python session, either the rollout's model or a sub-model: `state["rlm"]`."""

    calls: SubCalls
    depth: int = 0
    """Number of levels below the rollout's own model, which has depth 0."""
    context: Any = None
    content: str = ""
    """The last known answer, final or not."""
    ready: bool = False
    branches: list[tuple[int, State]] = field(default_factory=list[tuple[int, State]])
    """Sub-model conversations in order, each with the number of the model's own turns before it."""

    async def set_answer(self, content: Any, ready: Any) -> None:
        """Store the value of the variable `answer`; called from the model's code."""
        self.content, self.ready = str(content), bool(ready)


def steps_of(state: State) -> Iterator[TrajectoryStep]:
    """Yield all steps of a conversation, each followed by the steps of the conversations that it started."""
    steps = bookkeeping(state).trajectory
    branches_after: dict[int, list[State]] = defaultdict(list)
    for num_turns, branch in bookkeeping(state).rlm.branches:
        branches_after[num_turns].append(branch)
    for num_turns in range(len(steps) + 1):
        if num_turns > 0:
            yield steps[num_turns - 1]
        for branch in branches_after[num_turns]:
            yield from steps_of(branch)


def with_preview(prompt: Sequence[Mapping[str, object]], context: object, count: int) -> Messages:
    """Append a description of the context to a prompt: its type, its length, and its beginning."""
    text = as_text(context)
    preview = f"`context` is {_size(context)}. It begins: {text[:count]!r}"
    *earlier, last = as_messages(prompt) or [UserMessage()]
    if last.role != "user":
        return [*earlier, last, UserMessage(preview)]
    if is_list(content := last.content):
        return [*earlier, Message({**last, "content": [*content, {"type": "text", "text": preview}]})]
    return [*earlier, Message({**last, "content": f"{last.content}\n\n{preview}".lstrip()})]


def _size(context: object) -> str:
    if isinstance(context, str):
        return f"a text of {len(context):,} characters"
    kind = type(context).__name__
    if is_list(context) or is_mapping(context):
        return f"a {kind} of {len(context):,}"
    return f"a value of type {kind}"


def as_text(context: object) -> str:
    """Return a text unchanged, and any other value as JSON."""
    if isinstance(context, str):
        return context
    try:
        return json.dumps(context, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the context cannot be put into a sandbox: {error}; expected a text or a JSON value"
        ) from error


def context_file(context: object) -> tuple[str, bytes]:
    """Return name and content of the context file in the sandbox."""
    name = "context.txt" if isinstance(context, str) else "context.json"
    return name, as_text(context).encode(errors="replace")


def instructions(code_in: str, max_depth: int, max_sub_calls: int) -> str:
    """Return the default system prompt: Python session, sub-models and limits."""
    return INSTRUCTIONS.format(
        code_instructions=CODE_INSTRUCTIONS[code_in],
        recursion=RECURSION_INSTRUCTIONS if max_depth > 1 else "",
        max_sub_calls=max_sub_calls,
    )


class RLMEnv(PythonEnv):
    """A recursive language model: it explores a long input with Python and queries sub-models about parts of it.

    The input is the variable `context`; the prompt shows only its length and beginning. Code calls `llm(prompt)` and
    `llm_batch(prompts)`; a call beyond the limits raises in the code and does not end the rollout. The model answers with
    `answer["content"] = …; answer["ready"] = True`. `state["final_answer"]` is the last content ("" if there is none), and
    `state["rlm"].ready` says whether the answer was final. A turn without code also ends the rollout.

    The duration of sub-calls does not count for `timeout_per_command_seconds`. It is limited by the client's timeout, the
    number of calls, and `timeout_seconds` of the rollout.

    Args:
        context: key of the input in the row's `info` (or in the row), or a sync or async function that returns the input for a
            state. With a function, records do not contain the input. The input is a text or a JSON value.
        system_prompt: system prompt; "" = none. Default: a prompt that explains the session, the functions, and the limits.
        sub_client: client of sub-models. Default: the client of the rollout.
        sub_model: model name for sub-calls. Default: the model of the rollout.
        sub_sampling_args: sampling arguments for sub-calls, with OpenAI's names. Default: the rollout's arguments; with
            `sub_client`, no arguments.
        max_sub_calls: maximum number of sub-calls in a rollout.
        max_sub_tokens: no further sub-call starts after sub-models have read and generated this many tokens; -1 = no
            limit.
        max_parallel_calls: maximum number of concurrent sub-calls in a rollout.
        max_depth: 1 = sub-models only answer; 2 = a sub-model that is given a `context` has its own Python session and
            sub-models; and so on. At the last level the context is put into the prompt.
        sub_max_turns: maximum number of turns of a sub-model with a Python session.
        train_sub_calls: add sub-calls to the trajectory and train on them with the rollout's advantage. Otherwise they are
            recorded in the model role "sub_model". The trajectory of a running rollout has only the main model's turns.
        code_in: "tool": code is an argument of the tool `python`; "fence": code is between ```python and ```, for models
            without tool calls.
        preview_chars: number of characters of the input that the prompt shows.
        sub_backends: one sandbox backend per depth from 1 on; with a single backend for all depths, rollouts could
            deadlock. Required with `backend` and max_depth > 1.
        **kwargs: see `SandboxEnv`.

    Raises:
        ConfigError: a number is out of range, an argument has a different name in `RLMEnv`, train_sub_calls is combined with
            another model, or there are too few `sub_backends`.

    Example:
        dataset = [{"question": "Who is the murderer?", "answer": "Norman", "info": {"context": novel}}]
        env = rove.RLMEnv(dataset=dataset, rubric=rubric, max_sub_calls=50)
    """

    def __init__(
        self,
        context: str | Callable[[State], Any] = "context",
        system_prompt: str | None = None,
        sub_client: Client | None = None,
        sub_model: str = "",
        sub_sampling_args: Mapping[str, object] | None = None,
        max_sub_calls: int = 100,
        max_sub_tokens: int = -1,
        max_parallel_calls: int = 5,
        max_depth: int = 1,
        sub_max_turns: int = 5,
        train_sub_calls: bool = False,
        code_in: str = "tool",
        preview_chars: int = 200,
        max_turns: int = 20,
        backend: Backend | None = None,
        sub_backends: Sequence[Backend] = (),
        **kwargs: Any,
    ):
        for name in RENAMED_ARGUMENTS.keys() & kwargs.keys():
            raise ConfigError(f"RLMEnv has no argument '{name}': pass {RENAMED_ARGUMENTS[name]}")
        if code_in not in CODE_INSTRUCTIONS:
            raise ConfigError(f"code_in is {code_in!r}; expected one of {', '.join(CODE_INSTRUCTIONS)}")
        self.context = context
        self.sub_client, self.sub_model, self.sub_sampling_args = sub_client, sub_model, sub_sampling_args
        self.max_sub_calls, self.max_sub_tokens = max_sub_calls, max_sub_tokens
        self.max_parallel_calls, self.max_depth, self.sub_max_turns = max_parallel_calls, max_depth, sub_max_turns
        self.train_sub_calls, self.code_in, self.preview_chars = train_sub_calls, code_in, preview_chars
        check_values(
            self, max_sub_calls=NonNegativeInt, max_sub_tokens=CountOrUnlimited, max_parallel_calls=PositiveInt
        )
        check_values(self, max_depth=PositiveInt, sub_max_turns=PositiveInt, preview_chars=PositiveInt)
        if train_sub_calls and (sub_client is not None or sub_model or sub_sampling_args is not None):
            raise ConfigError(
                "train_sub_calls is combined with sub_client, sub_model or sub_sampling_args; expected one of them: training "
                "requires tokens sampled from the trained model with the run's sampling parameters"
            )
        if system_prompt is None:
            system_prompt = instructions(code_in, max_depth, max_sub_calls)
        super().__init__(system_prompt=system_prompt, max_turns=max_turns, backend=backend, **kwargs)
        if backend is None and not sub_backends:
            sub_backends = [self._local_backend() for _ in range(max_depth - 1)]
        if len(sub_backends) < max_depth - 1:
            raise ConfigError(
                f"sub_backends has {len(sub_backends)}; expected {max_depth - 1} for max_depth {max_depth}"
            )
        self.backends: list[Backend] = [self.backend, *sub_backends]
        """Sandbox backends by depth."""
        monitor = Rubric()
        for metric in (answer_ready, sub_calls, sub_tokens):
            monitor.add_metric(metric)
        self.add_rubric(monitor)

    @property
    def identity(self) -> Identity:
        """Like `Environment.identity`, with sub-models and their limits."""
        limits = ("max_sub_calls", "max_sub_tokens", "max_depth", "sub_max_turns", "train_sub_calls", "code_in")
        return {
            **super().identity,
            "context": self.context if isinstance(self.context, str) else function_name(self.context),
            "sub_model": {
                "model": self.sub_model,
                **getattr(self.sub_client, "identity", {}),
                "sampling": dict(self.sub_sampling_args or {}),
            },
            "recursion": {name: getattr(self, name) for name in (*limits, "preview_chars")},
        }

    async def run(self, state: State, turn: Turn) -> None:
        """Run the rollout as `PythonEnv` does; with `train_sub_calls`, then add the sub-calls to the trajectory in order."""
        internals = bookkeeping(state)
        parallel = asyncio.Semaphore(self.max_parallel_calls)
        conversations = [internals.trajectory]
        internals.rlm = Exploration(SubCalls(turn, parallel, internals.model_roles, conversations))
        internals.conversations = conversations
        state["final_answer"] = ""
        try:
            await super().run(state, turn)
        finally:
            # Only now: during the rollout, each turn has to extend the tokens of the turn before it.
            if self.train_sub_calls:
                internals.trajectory[:] = list(steps_of(state))

    async def setup_state(self, state: State, **kwargs: Any) -> Mapping[str, object] | None:
        """Load the context and append its preview to the prompt. An override must call this."""
        bookkeeping(state).rlm.context = context = await self._context_of(state)
        if self.code_in == "fence":
            state["tools"] = None
        state["prompt"] = with_preview(state["prompt"], context, self.preview_chars)
        return await super().setup_state(state, **kwargs)

    async def _context_of(self, state: State) -> object:
        if not isinstance(self.context, str):
            return await maybe_await(self.context(state))
        for columns in (state["info"], bookkeeping(state).input or {}):
            if self.context in columns:
                return columns[self.context]
        raise ConfigError(
            f"neither the row's info nor the row has '{self.context}'; pass the key of the input as context=…"
        )

    @stop
    def answer_is_ready(self, state: State) -> bool:
        """Stop when the model has marked `answer` as final."""
        return bookkeeping(state).rlm.ready

    @stop
    def no_tools_called(self, state: State) -> bool:
        """Stop when the model answers without code."""
        if self.code_in == "tool":
            return super().no_tools_called(state)
        steps = bookkeeping(state).trajectory
        return bool(steps) and not self._has_code(steps[-1].completion[-1])

    def _has_code(self, message: Mapping[str, object]) -> bool:
        if self.code_in == "tool":
            return bool(message.get("tool_calls"))
        return FENCED.search(text_of(message)) is not None

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Run the code of the model's turn and return its output."""
        if self.code_in == "tool":
            return await super().env_response(messages, state, **kwargs)
        blocks = FENCED.findall(text_of(messages[-1]))
        with phase("tool python"):
            return [UserMessage(await self.python("\n".join(blocks), state))]

    def backend_of(self, state: State) -> Backend:
        """Return the backend for the depth of this conversation."""
        # With one backend for all depths, sessions could wait for each other in a circle (docs/decisions/recursion.md).
        depth: int = bookkeeping(state).rlm.depth
        return self.backends[depth]

    async def setup_sandbox(self, session: Session, state: State) -> None:
        """Put the context and `answer` into a new sandbox; see `SandboxEnv.setup_sandbox`."""
        await super().setup_sandbox(session, state)
        name, data = context_file(bookkeeping(state).rlm.context)
        await session.put(name, data)
        await self._load(session, name)

    async def _load(self, session: Session, name: str) -> None:
        result = await session.run_python(LOAD_CONTEXT[name] + INIT_ANSWER)
        if not result.ok:
            raise SandboxError(f"the context could not be loaded: {result.text()}")

    async def python(self, code: str, state: State) -> str:
        """Run Python; see `PythonEnv.python`. It can call sub-models."""
        exploration: Exploration = bookkeeping(state).rlm
        session = await self.sandbox(state)
        result = await session.run_python(code, functions=self.functions(state))
        output = [self.format_result(result, state)]
        if not result.restarted:
            result = await session.run_python(READ_ANSWER, functions={"_set_answer": exploration.set_answer})
            state["final_answer"] = exploration.content
            if not result.ok:
                output.append(
                    f"[`answer` cannot be read, it has to have 'content' and 'ready': {result.error.splitlines()[-1]}]"
                )
        if result.restarted and not result.files_lost:
            await self._load(session, context_file(exploration.context)[0])
            output.append("[`context` and `answer` are as in the beginning]")
        return "\n".join(output)

    def functions(self, state: State) -> Functions:
        """Return the functions `llm` and `llm_batch`; see `PythonEnv.functions`."""

        async def llm(prompt: Any, context: Any = None) -> str:
            [reply] = await self._sub_calls(state, "llm", [prompt], [context])
            return reply

        # For the sandbox, a batch is one request; its calls run concurrently on the host (docs/decisions/recursion.md).
        async def llm_batch(prompts: Any, contexts: Any = None) -> list[str]:
            if not is_list(prompts) or not (contexts is None or is_list(contexts)):
                raise TypeError(
                    "llm_batch() expects lists, for example llm_batch([prompt_1, prompt_2], [context_1, context_2])"
                )
            if contexts is not None and len(contexts) != len(prompts):
                raise ValueError(
                    f"llm_batch() got {len(prompts)} prompts and {len(contexts)} contexts; pass one context for each prompt"
                )
            return await self._sub_calls(state, "llm_batch", prompts, contexts or [None] * len(prompts))

        return {**super().functions(state), "llm": llm, "llm_batch": llm_batch}

    async def _sub_calls(self, state: State, name: str, prompts: list[Any], contexts: list[Any]) -> list[str]:
        """Return the replies of sub-models; the first failure cancels the others."""
        # All checks come before the first call, so that an invalid batch costs nothing.
        for prompt in prompts:
            if not isinstance(prompt, str) or not prompt:
                raise TypeError(f"{name}() got {prompt!r:.60} as a prompt; pass a string that is not empty")
        self._check_budget(state, name, len(prompts))
        branches = [self._branch(state, prompt, context) for prompt, context in zip(prompts, contexts, strict=True)]
        tasks = [asyncio.ensure_future(self._answer_of(branch)) for branch in branches]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # none may still run when the rollout cleans up

    def _check_budget(self, state: State, name: str, count: int) -> None:
        num_left = self.max_sub_calls - bookkeeping(state).rlm.calls.num_calls
        if num_left < count:
            raise ValueError(
                f"{name}() exceeds the limit of {self.max_sub_calls} calls: {count} requested, {num_left} left"
            )
        used = sub_tokens(state)
        if 0 <= self.max_sub_tokens <= used:
            raise ValueError(f"{name}() cannot be called: {used:.0f} of {self.max_sub_tokens} tokens are used")

    def _branch(self, state: State, prompt: str, context: object) -> State:
        internals = bookkeeping(state)
        parent: Exploration = internals.rlm
        is_deep = context is not None and parent.depth + 1 < self.max_depth
        if context is not None and not is_deep:  # without a Python session, the model has to read the context itself
            prompt = f"{prompt}\n\n{as_text(context)}"
        messages = as_messages(prompt)
        if is_deep:
            messages = with_preview(messages, context, self.preview_chars)
            if self.system_prompt:
                messages = [SystemMessage(self.system_prompt), *messages]
        # A separate conversation, so that stop conditions, `max_turns` and seeds work as usual
        # (docs/decisions/recursion.md).
        # Calls that are not trained on get the seed of their role and number instead.
        seed = derive_seed(internals.seed, ROLE, len(parent.branches)) if self.train_sub_calls else internals.seed
        branch = State(
            input=internals.input,
            tools=state["tools"] if is_deep else None,
            trajectory=[],
            completion=[],
            is_truncated=False,
            seed=seed,
            env_seed=internals.env_seed,
            rlm=Exploration(parent.calls, parent.depth + 1, context if is_deep else None),
            reads_tools=True,
            conversations=internals.conversations,
            model_roles=internals.model_roles,
            role_clients=internals.role_clients,
            role_numbers=internals.role_numbers,
        )
        bookkeeping(branch).prompt = messages
        parent.branches.append((len(internals.trajectory), branch))
        parent.calls.conversations.append(bookkeeping(branch).trajectory)
        return branch

    async def _answer_of(self, branch: State) -> str:
        exploration: Exploration = bookkeeping(branch).rlm
        messages: Messages = list(bookkeeping(branch).prompt)
        if exploration.context is None:
            return text_of(await self._query(branch, messages))
        try:
            for _ in range(self.sub_max_turns):
                messages.append(await self._query(branch, messages))
                if not self._has_code(messages[-1]):
                    return text_of(messages[-1])
                messages += await self.env_response(messages, branch)
                if exploration.ready:
                    break
            return exploration.content
        finally:
            await use_of(branch).end()

    async def _query(self, branch: State, messages: Messages) -> Message:
        calls: SubCalls = bookkeeping(branch).rlm.calls
        async with calls.parallel:
            # Again, because calls that waited before this one may have used up the tokens.
            self._check_budget(branch, "llm", 1)
            calls.num_calls += 1
            if self.train_sub_calls:
                return await calls.turn(branch, messages)
            sampling_args = self.sub_sampling_args
            tools = branch["tools"]
            if self.sub_client is None:
                return await calls.turn(branch, messages, role=ROLE, model=self.sub_model, sampling_args=sampling_args)
            client, model = self.sub_client, self.sub_model
            return await query(
                branch, messages, client, role=ROLE, model=model, sampling_args=sampling_args, tools=tools
            )

    @teardown
    async def close_sub_backends(self) -> None:
        """Close the backends of sub-models."""
        for backend in self.backends[1:]:
            await backend.close()
