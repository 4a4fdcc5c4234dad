"""Recursive language models: a long input is a variable in the model's Python, which asks models about pieces of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rove.core.config import check_positive
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, SandboxError, phase
from rove.core.messages import Message, Messages, SystemMessage, UserMessage, as_messages, text_of
from rove.core.model_roles import query
from rove.core.protocols import Client
from rove.core.state import State
from rove.envs.environment import Turn, stop, teardown
from rove.envs.exploration import (
    BEGIN,
    HOW,
    LOAD,
    ROLE,
    Calls,
    Exploration,
    answer_ready,
    as_text,
    context_file,
    instructions,
    steps_of,
    sub_calls,
    sub_tokens,
    with_preview,
)
from rove.envs.python import PythonEnv
from rove.envs.sandbox import use_of
from rove.rubrics import Rubric
from rove.sandbox import Backend, Functions, Session
from rove.utils.functions import function_name, maybe_await

FENCED = re.compile(r"```(?:python|py)[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
KEEP = '_keep(str(answer["content"]), bool(answer["ready"]))'
RENAMED = {
    "max_sub_llm_parallelism": "max_parallel_calls",
    "sub_llm_max_turns": "sub_max_turns",
    "include_sub_llm_in_trajectory": "train_sub_calls",
    "context_key": "context",
    "code_execution_timeout": "timeout_per_command_seconds",
    "max_output_length": "limits=SandboxLimits(output_chars=…)",
    "max_iterations": "max_turns",
    "root_tools": "tools, which the model calls beside Python",
}
"""Arguments that people know from elsewhere, and what they are called here."""


class RLMEnv(PythonEnv):
    """A recursive language model: it explores a long input with Python and asks sub-models about pieces of it.

    The input is the variable `context`, of which the prompt has the length and the beginning only. Code calls `llm(prompt)` and
    `llm_batch(prompts)`; a call beyond what is allowed raises in the code and ends nothing. The model answers by
    `answer["content"] = …; answer["ready"] = True`: `state["final_answer"]` is the content as it was last seen, "" if none,
    `state["rlm"].ready` whether it was final. A turn without code ends the rollout, too.

    How long sub-calls take does not count for `timeout_per_command_seconds`; what bounds it is the client's patience, the number
    of calls, and the rollout's `timeout_seconds`.

    Args:
        context: key of the row's `info` (or of the row) that has the input; or a function of the state that returns it, sync
            or async, which keeps it out of records. A text, or what JSON can say.
        system_prompt: Default: one that explains all this, with the limits. "" = none.
        sub_client: who answers sub-calls. Default: the model that plays.
        sub_model: name of the model that answers them, for endpoints that serve several. Default: the same.
        sub_sampling_args: its sampling, under OpenAI's names. Default: that of the rollout, or none for `sub_client`.
        max_sub_calls: most answers of sub-models in a rollout; 0 = none.
        max_sub_tokens: no further call once these have read and written so many tokens; -1 = no limit.
        max_parallel_calls: most that are under way at once in a rollout.
        max_depth: 1 = a sub-model answers as it is asked; 2 = one that is given a `context` has a Python and sub-models of its
            own; and so on. At the last level the context is put into the prompt.
        sub_max_turns: most turns of a sub-model that has a Python.
        train_sub_calls: whether sub-calls are steps of the trajectory, and trained on with the rollout's advantage. Else they
            are kept in the role "sub_model". While the rollout is played its trajectory has the turns of the model alone.
        code_in: "tool": code is given to the tool `python`; "fence": it stands between ```python and ``` in what the
            model says, for models that cannot call tools.
        preview_chars: so much of the beginning is shown in the prompt.
        sub_backends: where sandboxes of sub-models come from, one backend per level from the second on: were it one for all,
            rollouts could wait for each other. Needed where `backend` is given and max_depth is more than 1.
        Everything else: see `SandboxEnv`.

    Raises:
        ConfigError: a number is out of range, an argument is known by another name here, sub-calls of another model are to be
            trained, or `sub_backends` are too few.
    """

    def __init__(
        self,
        context: str | Callable[[State], Any] = "context",
        system_prompt: str | None = None,
        sub_client: Client | None = None,
        sub_model: str = "",
        sub_sampling_args: Mapping[str, Any] | None = None,
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
        for name in RENAMED.keys() & kwargs.keys():
            raise ConfigError(f"RLMEnv has no argument '{name}': pass {RENAMED[name]}")
        if code_in not in HOW:
            raise ConfigError(f"code_in is {code_in!r}; expected one of {', '.join(HOW)}")
        if max_sub_calls < 0:
            raise ConfigError(
                f"max_sub_calls is {max_sub_calls}; expected 0 or more: code that nobody trusts makes them"
            )
        self.context = context
        self.sub_client, self.sub_model, self.sub_sampling_args = sub_client, sub_model, sub_sampling_args
        self.max_sub_calls, self.max_sub_tokens = max_sub_calls, max_sub_tokens
        self.max_parallel_calls, self.max_depth, self.sub_max_turns = max_parallel_calls, max_depth, sub_max_turns
        self.train_sub_calls, self.code_in, self.preview_chars = train_sub_calls, code_in, preview_chars
        check_positive(self, "max_parallel_calls", "max_depth", "sub_max_turns", "preview_chars")
        if train_sub_calls and (sub_client is not None or sub_model or sub_sampling_args is not None):
            raise ConfigError(
                "train_sub_calls is set beside sub_client, sub_model or sub_sampling_args; expected one of them: only what the "
                "model that plays has sampled, as it was sampled, is trained on"
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
        """Where sandboxes come from, by depth."""
        monitor = Rubric()
        for metric in (answer_ready, sub_calls, sub_tokens):
            monitor.add_metric(metric)
        self.add_rubric(monitor)

    @property
    def identity(self) -> dict[str, Any]:
        """See `Environment.identity`; what sub-models may do, and who they are, counts, too."""
        names = ("max_sub_calls", "max_sub_tokens", "max_depth", "sub_max_turns", "train_sub_calls", "code_in")
        return {
            **super().identity,
            "context": self.context if isinstance(self.context, str) else function_name(self.context),
            "sub_model": {
                "model": self.sub_model,
                **getattr(self.sub_client, "identity", {}),
                "sampling": dict(self.sub_sampling_args or {}),
            },
            "recursion": {name: getattr(self, name) for name in (*names, "preview_chars")},
        }

    async def run(self, state: State, turn: Turn) -> None:
        """As `PythonEnv`; then sub-calls that are to be trained join the trajectory, in the order in which they were asked."""
        parallel, conversations = asyncio.Semaphore(self.max_parallel_calls), [state["trajectory"]]
        exploration = Exploration(Calls(turn, parallel, state["model_roles"], conversations))
        state.update(rlm=exploration, final_answer="", conversations=conversations)
        try:
            await super().run(state, turn)
        finally:
            if self.train_sub_calls:
                state["trajectory"][:] = list(steps_of(state))

    async def setup_state(self, state: State, **kwargs: Any) -> Any:
        """Finds the context, and ends the prompt with what the model is told of it. Overridden, it has to be called."""
        state["rlm"].context = context = await self._context_of(state)
        if self.code_in == "fence":
            state["tools"] = None
        state["prompt"] = with_preview(state["prompt"], context, self.preview_chars)
        return await super().setup_state(state, **kwargs)

    async def _context_of(self, state: State) -> Any:
        if not isinstance(self.context, str):
            return await maybe_await(self.context(state))
        for columns in (state["info"], state["input"]):
            if self.context in columns:
                return columns[self.context]
        raise ConfigError(
            f"neither the row's info nor the row has '{self.context}'; name what has the input: context=…"
        )

    @stop
    def answer_is_ready(self, state: State) -> bool:
        """The model has said that `answer` is final."""
        return state["rlm"].ready

    @stop
    def no_tools_called(self, state: State) -> bool:
        """The model has answered without code."""
        if self.code_in == "tool":
            return super().no_tools_called(state)
        steps = state["trajectory"]
        return bool(steps) and not self._has_code(steps[-1].completion[-1])

    def _has_code(self, message: Mapping[str, Any]) -> bool:
        return bool(message.get("tool_calls") if self.code_in == "tool" else FENCED.search(text_of(message)))

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """What came of the code of the model's turn."""
        if self.code_in == "tool":
            return await super().env_response(messages, state, **kwargs)
        with phase("tool python"):
            return [UserMessage(await self.python("\n".join(FENCED.findall(text_of(messages[-1]))), state))]

    def backend_of(self, state: State) -> Backend:
        """Each depth has its own."""
        return self.backends[state["rlm"].depth]

    async def setup_sandbox(self, session: Session, state: State) -> None:
        """See `SandboxEnv.setup_sandbox`; the context is put in, and `answer`."""
        await super().setup_sandbox(session, state)
        name, data = context_file(state["rlm"].context)
        await session.put(name, data)
        await self._load(session, name)

    async def _load(self, session: Session, name: str) -> None:
        result = await session.run_python(LOAD[name] + BEGIN)
        if not result.ok:
            raise SandboxError(f"the context could not be loaded: {result.text()}")

    async def python(self, code: str, state: State) -> str:
        """Run Python; see `PythonEnv.python`. It can call sub-models."""
        exploration: Exploration = state["rlm"]
        session = await self.sandbox(state)
        result = await session.run_python(code, functions=self.functions(state))
        told = [self.told(result, state)]
        if not result.restarted:
            result = await session.run_python(KEEP, functions={"_keep": exploration.keep})
            state["final_answer"] = exploration.content
            if not result.ok:
                told.append(
                    f"[`answer` cannot be read, it has to have 'content' and 'ready': {result.error.splitlines()[-1]}]"
                )
        if result.restarted and not result.files_lost:
            await self._load(session, context_file(exploration.context)[0])
            told.append("[`context` and `answer` are as in the beginning]")
        return "\n".join(told)

    def functions(self, state: State) -> Functions:
        """See `PythonEnv.functions`: `llm` and `llm_batch`."""

        async def llm(prompt: Any, context: Any = None) -> str:
            [said] = await self._sub_calls(state, "llm", [prompt], [context])
            return said

        async def llm_batch(prompts: Any, contexts: Any = None) -> list[str]:
            if not isinstance(prompts, list) or not isinstance(contexts, (list, type(None))):
                raise TypeError("llm_batch(prompts, contexts) takes lists")
            if contexts is not None and len(contexts) != len(prompts):
                raise ValueError(f"llm_batch() was given {len(prompts)} prompts and {len(contexts)} contexts")
            return await self._sub_calls(state, "llm_batch", prompts, contexts or [None] * len(prompts))

        return {**super().functions(state), "llm": llm, "llm_batch": llm_batch}

    async def _sub_calls(self, state: State, name: str, prompts: list[Any], contexts: list[Any]) -> list[str]:
        """The answers of sub-models; the first failure ends the others."""
        for prompt in prompts:
            if not isinstance(prompt, str) or not prompt:
                raise TypeError(f"{name}() was given a prompt that is {type(prompt).__name__}; expected a text")
        self._check_left(state, name, len(prompts))
        inner = [self._branch(state, prompt, context) for prompt, context in zip(prompts, contexts, strict=True)]
        tasks = [asyncio.ensure_future(self._answer_of(one)) for one in inner]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # nothing may be at work when the rollout cleans up

    def _check_left(self, state: State, name: str, count: int) -> None:
        left = self.max_sub_calls - state["rlm"].calls.made
        if left < count:
            raise ValueError(f"{name}() asks for {count}, but {left} of {self.max_sub_calls} sub-calls are left")
        if 0 <= self.max_sub_tokens <= (used := sub_tokens(state)):
            raise ValueError(f"{name}() has no tokens left: {used:.0f} of {self.max_sub_tokens} are used")

    def _branch(self, state: State, prompt: str, context: Any) -> State:
        """A new conversation, with a model that has been asked something."""
        mine: Exploration = state["rlm"]
        is_deep = context is not None and mine.depth + 1 < self.max_depth
        messages = as_messages(prompt if context is None or is_deep else f"{prompt}\n\n{as_text(context)}")
        if is_deep:
            messages = with_preview(messages, context, self.preview_chars)
            messages = [SystemMessage(self.system_prompt), *messages] if self.system_prompt else messages
        inner = State(
            input=state["input"],
            prompt=messages,
            trajectory=[],
            completion=[],
            is_truncated=False,
            seed=derive_seed(state["seed"], ROLE, len(mine.branches)) if self.train_sub_calls else state["seed"],
            tools=state["tools"] if is_deep else None,
            rlm=Exploration(mine.calls, mine.depth + 1, context if is_deep else None),
            **{
                name: state[name]
                for name in ("env_seed", "conversations", "model_roles", "role_clients")
                if name in state
            },
            role_numbers=state.setdefault("role_numbers", {}),
        )
        mine.branches.append((len(state["trajectory"]), inner))
        mine.calls.conversations.append(inner["trajectory"])
        return inner

    async def _answer_of(self, inner: State) -> str:
        """What a sub-model says in the end."""
        exploration: Exploration = inner["rlm"]
        messages: Messages = list(inner["prompt"])
        if exploration.context is None:
            return text_of(await self._asked(inner, messages))
        try:
            for _ in range(self.sub_max_turns):
                messages.append(await self._asked(inner, messages))
                if not self._has_code(messages[-1]):
                    return text_of(messages[-1])
                messages += await self.env_response(messages, inner)
                if exploration.ready:
                    break
            return exploration.content
        finally:
            await use_of(inner).end()

    async def _asked(self, inner: State, messages: Messages) -> Message:
        """One answer of a sub-model."""
        calls: Calls = inner["rlm"].calls
        async with calls.parallel:
            self._check_left(inner, "llm", 1)
            calls.made += 1
            if self.train_sub_calls:
                return await calls.turn(inner, messages)
            how, tools = self.sub_sampling_args, inner["tools"]
            if self.sub_client is None:
                return await calls.turn(inner, messages, role=ROLE, model=self.sub_model, sampling_args=how)
            client, model = self.sub_client, self.sub_model
            return await query(inner, messages, client, role=ROLE, model=model, sampling_args=how, tools=tools)

    @teardown
    async def close_sub_backends(self) -> None:
        """Close the backends of sub-models."""
        for backend in self.backends[1:]:
            await backend.close()
