"""What every environment is: tasks, instructions, an interaction protocol, and a rubric."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from rove.core.digest import digest_files
from rove.core.errors import ConfigError, ends_task, nearest
from rove.core.messages import AssistantMessage, Message, Messages, UserMessage, text_of
from rove.core.protocols import Request
from rove.core.records import TrajectoryStep
from rove.core.state import State
from rove.envs.dataset import DatasetSource, Rows, build_example
from rove.parsers.parser import Parser
from rove.rubrics import Rubric, RubricGroup
from rove.utils.functions import maybe_await


class Turn(Protocol):
    """Shows the model a conversation, records the step in the state's trajectory, returns the answer. Made by `rove.rollout`.

    Where the state's prompt is a text (completion mode), the model continues the text that the messages add up to. In another
    `role` it is asked as by `rove.query`: recorded apart, under that name, and there under another name of a model and with
    other sampling arguments where they are given. Where a foreign agent asks, `asked` has its tools (instead of
    `state["tools"]`), its sampling (which goes over the run's), and who is told the answer as it comes.
    """

    def __call__(
        self,
        state: State,
        messages: Messages,
        *,
        role: str | None = None,
        model: str = "",
        sampling_args: Mapping[str, Any] | None = None,
        asked: Request | None = None,
    ) -> Awaitable[Message]:
        """The model's answer."""
        ...


ScriptedPolicy = Callable[[Messages, State, Any], Any]
"""A scripted policy: (messages, state, random.Random) → text or message."""


def stop(priority: Any = 0) -> Any:
    """Mark an async or sync method `(self, state) -> bool` as a stop condition; its name becomes `state["stop_condition"]`.

    Checked after the model's turn and again after the environment's, highest `priority` first, then by name.
    """
    return _mark("rove_stop", priority)


def cleanup(priority: Any = 0) -> Any:
    """Mark a method `(self, state)` to run after every rollout, whatever happened in it, highest `priority` first."""
    return _mark("rove_cleanup", priority)


def teardown(priority: Any = 0) -> Any:
    """Mark a method `(self)` to run once, when the run that used the environment ends, highest `priority` first."""
    return _mark("rove_teardown", priority)


def _mark(kind: str, priority: Any) -> Any:
    if callable(priority):  # used bare: @stop
        setattr(priority, kind, 0)
        return priority

    def decorate(method: Any) -> Any:
        setattr(method, kind, priority)
        return method

    return decorate


class Environment(ABC):
    """Tasks (dataset), instructions (system prompt), an interaction protocol (`run`) and a rubric.

    Args:
        dataset: rows to train on (see `DatasetSource`); each has `prompt` or `question`, optionally `answer`, `info`, and more.
        eval_dataset: rows to evaluate on; `dataset` when not given.
        system_prompt: put first unless a row's prompt has its own.
        few_shot: messages between the system prompt and a row's `question`.
        parser: of every rubric that was given none; that of `rubric`, where it was given one, when not given.
        rubric: a `Rubric` or `RubricGroup`; an empty rubric when not given (reward 0).
        sampling_args: default sampling, under OpenAI's names.
        message_type: "chat", or "completion": prompt and completion are raw texts, which the model continues without a chat
            template. In records each piece of them is a message: the assistant's what the model wrote, the user's all else.
        players: scripted policies the environment ships, found with `-m scripted:NAME`.
        env_id, env_args: how it was loaded; set by `load_environment`.

    Raises:
        ConfigError: no dataset, an unknown keyword (with the nearest known one) or message_type, or a system prompt or
            few_shot in completion mode.
    """

    def __init__(
        self,
        dataset: DatasetSource | None = None,
        eval_dataset: DatasetSource | None = None,
        system_prompt: str | None = None,
        few_shot: Sequence[Mapping[str, Any]] | None = None,
        parser: Parser | None = None,
        rubric: Rubric | RubricGroup | None = None,
        sampling_args: Mapping[str, Any] | None = None,
        message_type: str = "chat",
        policies: Mapping[str, ScriptedPolicy] | None = None,
        env_id: str = "",
        env_args: Mapping[str, Any] | None = None,
        **unknown: Any,
    ):
        if unknown:
            raise _unknown_keyword(type(self), next(iter(unknown)))
        if dataset is None and eval_dataset is None:
            raise ConfigError(f"{type(self).__name__} needs a dataset: pass dataset= or eval_dataset=")
        if message_type not in ("chat", "completion"):
            raise ConfigError(f"message_type is {message_type!r}; expected 'chat' or 'completion'")
        if message_type == "completion" and (system_prompt or few_shot):
            given = "system_prompt" if system_prompt else "few_shot"
            raise ConfigError(
                f"{given} has no place in a raw text (message_type 'completion'); write it into the prompts"
            )
        self.message_type = message_type
        self.dataset = Rows(dataset) if dataset is not None else None
        self.eval_dataset = Rows(eval_dataset) if eval_dataset is not None else None
        self.system_prompt = system_prompt
        self.few_shot = list(few_shot or [])
        for name, value, wanted in (("rubric", rubric, (Rubric, RubricGroup)), ("policies", policies, Mapping)):
            if value is not None and not isinstance(value, wanted):
                kind = "a rove.Rubric" if name == "rubric" else "a dict of functions by name"
                raise ConfigError(f"{name} is {value!r}; expected {kind}")
        self.rubric: Rubric | RubricGroup = rubric if rubric is not None else Rubric()
        self.parser: Parser = parser or self.rubric.parser
        self._has_parser = parser is not None or self.rubric.has_own_parser
        if self._has_parser:
            self.rubric.adopt_parser(self.parser)
        self.sampling_args = dict(sampling_args or {})
        self.timeout_seconds: float | None = None
        self.policies = dict(policies or {})
        self.env_id = env_id
        self.env_args = dict(env_args or {})
        self.source = ""
        """Version and hash of the code of the package it was loaded from; set by `load_environment`."""
        self._stops = _marked(self, "rove_stop")
        self._cleanups = _marked(self, "rove_cleanup")
        self._teardowns = _marked(self, "rove_teardown")

    use_count = 0
    """Runs that use it now; see `used_in_run`."""

    @abstractmethod
    async def run(self, state: State, turn: Turn) -> None:
        """Play one rollout: call `turn` for every model turn, keep everything else in `state`."""

    def get_dataset(self, n: int = -1) -> list[dict[str, Any]]:
        """The first `n` training examples (all when n < 0), ready to roll out."""
        return list(self.examples(n, train=True))

    def get_eval_dataset(self, n: int = -1) -> list[dict[str, Any]]:
        """The first `n` evaluation examples (all when n < 0); the training ones when there are no others."""
        return list(self.examples(n))

    def examples(self, n: int = -1, train: bool = False) -> Iterator[dict[str, Any]]:
        """The first `n` examples (all when n < 0), each made when it is asked for."""
        wanted, other = (self.dataset, self.eval_dataset) if train else (self.eval_dataset, self.dataset)
        rows = wanted if wanted is not None else other
        assert rows is not None
        for index, row in enumerate(rows.first(n)):
            yield build_example(row, index, self.system_prompt, self.few_shot, self.message_type)

    def count_examples(self, n: int = -1, train: bool = False) -> int | None:
        """How many `examples` would give; None when only reading them all would tell."""
        wanted, other = (self.dataset, self.eval_dataset) if train else (self.eval_dataset, self.dataset)
        rows = wanted if wanted is not None else other
        assert rows is not None
        return rows.count(n)

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this environment from others: name, version and hash of its code, arguments, and how it scores.

        Code that reward functions and the environment call elsewhere does not count.
        """
        source = self.source
        if not source:  # not loaded by name
            with suppress(OSError, TypeError):  # typed into an interpreter
                source = digest_files([Path(inspect.getfile(type(self)))])
        return {
            "env": f"{self.env_id or type(self).__qualname__}#{source}",
            "env_args": self.env_args,
            "rubric": self.rubric.identity,
            **{name: getattr(self, name) for name in ("max_turns", "timeout_seconds") if hasattr(self, name)},
        }

    def add_rubric(self, rubric: Rubric) -> None:
        """Score with `rubric` too: rewards add up, metrics are joined.

        Raises:
            ConfigError: as `RubricGroup`.
        """
        mine = self.rubric.rubrics if isinstance(self.rubric, RubricGroup) else [self.rubric]
        self.rubric = RubricGroup([*mine, rubric])
        if self._has_parser:
            rubric.adopt_parser(self.parser)

    async def generate(self, client: Any, model: str = "", **options: Any) -> list[Any]:
        """See `rove.generate`."""
        return await importlib.import_module("rove.rollouts.evaluate").generate(self, client, model, **options)

    async def evaluate(self, client: Any, model: str = "", **options: Any) -> dict[str, Any]:
        """See `rove.evaluate`."""
        return await importlib.import_module("rove.rollouts.evaluate").evaluate(self, client, model, **options)

    def make_dataset(self, records: Iterable[Any], **options: Any) -> list[dict[str, Any]]:
        """See `rove.make_dataset`."""
        return importlib.import_module("rove.rollouts.evaluate").make_dataset(records, **options)

    def generate_sync(self, client: Any, model: str = "", **options: Any) -> list[Any]:
        """`generate` for code that is not async."""
        return asyncio.run(self.generate(client, model, **options))

    def evaluate_sync(self, client: Any, model: str = "", **options: Any) -> dict[str, Any]:
        """`evaluate` for code that is not async."""
        return asyncio.run(self.evaluate(client, model, **options))

    def admitted(self) -> AbstractAsyncContextManager[None]:
        """Held while a run plays and scores one of its rollouts. Where it has no room for one more, this waits until it has."""
        return nullcontext()

    def time_limit(self, state: State) -> float | None:
        """Wall seconds that this rollout may take; None = no limit."""
        return self.timeout_seconds

    async def check_stops(self, state: State) -> bool:
        """Run the stop conditions; the first that holds becomes `state["stop_condition"]`."""
        for method in self._stops:
            if await maybe_await(method(state)):
                state["stop_condition"] = method.__name__
                return True
        return False

    async def clean_up(self, state: State) -> None:
        """Run every `@cleanup` method, each even if one before it failed; then raise the first failure."""
        await _run_all(self._cleanups, state)

    async def tear_down(self) -> None:
        """Run every `@teardown` method and the rubric's, each even if one before it failed; then raise the first failure.

        A rubric that a run in another environment uses is left to that one.
        """
        await _run_all([*self._teardowns, *([] if self.rubric.use_count else [self.rubric.teardown])])

    @asynccontextmanager
    async def used_in_run(self) -> AsyncIterator[None]:
        """For as long as a run uses it. Of several runs at once, in this environment or with its rubrics, the last to end
        tears down what nobody uses any more."""
        parts = self.held_parts  # as they are now: a rubric may be added meanwhile
        for part in parts:
            part.use_count += 1
        try:
            yield
        finally:
            for part in parts:
                part.use_count -= 1
            if not self.use_count:
                await self.tear_down()

    @property
    def held_parts(self) -> list[Any]:
        """Itself and what else is torn down with it, unless somebody else uses that."""
        return [self, *self.rubric.held_parts]


def messages_of(state: State) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Prompt and completion of a rollout as messages; where they are texts, one for each piece of them.

    A piece that the model wrote is the assistant's, any other the user's. A completion that does not start with what the
    last turn knew and said is an environment's own account of what the model said: one message of the assistant's.
    """
    prompt, completion = state["prompt"], state["completion"]
    if not isinstance(prompt, str):
        return prompt, completion
    if not isinstance(completion, str):
        return [UserMessage(prompt)], completion
    steps: list[TrajectoryStep] = state["trajectory"]
    pieces = [*steps[-1].prompt, *steps[-1].completion][1:] if steps else []
    known = "".join(map(text_of, pieces))
    if not completion.startswith(known):
        return [UserMessage(prompt)], [AssistantMessage(completion)]
    added = completion[len(known) :]
    return [UserMessage(prompt)], [*pieces, UserMessage(added)] if added else pieces


async def _run_all(methods: Sequence[Callable[..., Any]], *args: Any) -> None:
    failures: list[BaseException] = []
    for method in methods:
        try:
            await maybe_await(method(*args))
        except BaseException as error:
            if ends_task(error):
                raise
            failures.append(error)
    if failures:
        raise failures[0]


def _marked(env: Environment, kind: str) -> list[Callable[..., Any]]:
    names = [name for name in dir(type(env)) if hasattr(getattr(type(env), name, None), kind)]
    names.sort(key=lambda name: (-getattr(getattr(type(env), name), kind), name))
    return [getattr(env, name) for name in names]


def _unknown_keyword(cls: type, name: str) -> ConfigError:
    known: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            known |= {p.name for p in inspect.signature(base.__init__).parameters.values() if p.kind in (1, 3)}
    return ConfigError(f"{cls.__name__} has no argument '{name}'; {nearest(name, known - {'self'})}")
