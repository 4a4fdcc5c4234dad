"""The base class of all environments: dataset, prompts, interaction protocol and rubric."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, Unpack, overload

from rove.core.code_digest import digest_main_code
from rove.core.digest import digest_files
from rove.core.errors import ConfigError, ends_task, nearest, short_repr
from rove.core.messages import AssistantMessage, Message, Messages, UserMessage, as_messages, text_of
from rove.core.plain import Identity, MessageDict, Row, ToolDefinition, is_list, is_mapping
from rove.core.protocols import AnyClient, Request, ScriptedPolicy
from rove.core.records import RolloutRecord
from rove.core.state import State, bookkeeping, completion_of, prompt_of
from rove.envs.dataset import DatasetSource, Rows, build_example
from rove.envs.options import EvaluateOptions, GenerateOptions
from rove.rubrics import Rubric, RubricGroup
from rove.rubrics.parser import Parser
from rove.statistics.result import EvaluationResult
from rove.utils.event_loop import outside_event_loop, run_async
from rove.utils.functions import maybe_await


class Turn(Protocol):
    """Sends a conversation to the model, records the step in the trajectory, and returns the reply.

    If the state's prompt is a text (completion mode), the model continues the concatenated text of the messages.

    Args:
        role: model role; the query is recorded under this name, as by `rove.query`.
        agent_request: request of a foreign agent: its tools (instead of `state["tools"]`), its sampling (overriding the
            run's), and its stream callback.
    """

    def __call__(
        self,
        state: State,
        messages: Messages,
        *,
        role: str | None = None,
        model: str = "",
        sampling_args: Mapping[str, object] | None = None,
        agent_request: Request | None = None,
    ) -> Awaitable[Message]:
        """Return the reply of the model."""
        ...


Method = TypeVar("Method", bound=Callable[..., object])


@overload
def stop(priority: Method) -> Method: ...
@overload
def stop(priority: float = 0) -> Callable[[Method], Method]: ...
def stop(priority: Method | float = 0) -> Method | Callable[[Method], Method]:
    """Mark a method `(self, state) -> bool` as a stop condition; its name becomes `state["stop_condition"]`.

    Stop conditions are checked after the model's turn and after the environment's turn, in the order of descending `priority`,
    then by name. The method may be async.

    Example:
        class Guess(rove.MultiTurnEnv):
            @rove.stop
            async def solved(self, state) -> bool:
                return state["solved"]
    """
    return _mark("rove_stop", priority)


@overload
def cleanup(priority: Method) -> Method: ...
@overload
def cleanup(priority: float = 0) -> Callable[[Method], Method]: ...
def cleanup(priority: Method | float = 0) -> Method | Callable[[Method], Method]:
    """Mark a method `(self, state)` to run after every rollout, even a failed one, in the order of descending `priority`.

    It runs after the rollout's reward functions, which may use the resources that it closes, and before group rewards. Prepare
    data for reward functions in `Environment.post_rollout`.
    """
    return _mark("rove_cleanup", priority)


@overload
def teardown(priority: Method) -> Method: ...
@overload
def teardown(priority: float = 0) -> Callable[[Method], Method]: ...
def teardown(priority: Method | float = 0) -> Method | Callable[[Method], Method]:
    """Mark a method `(self)` to run once, when the run that used the environment ends, in the order of descending `priority`."""
    return _mark("rove_teardown", priority)


def _mark(kind: str, priority: Method | float) -> Method | Callable[[Method], Method]:
    if not isinstance(priority, (int, float)):  # used without parentheses: @stop
        setattr(priority, kind, 0)
        return priority

    def decorate(method: Method) -> Method:
        setattr(method, kind, priority)
        return method

    return decorate


class EvaluationFunctions(NamedTuple):
    """The functions behind `Environment.generate`, `evaluate` and `make_dataset`; these functions belong to a higher layer."""

    generate: Callable[..., Awaitable[list[RolloutRecord]]]
    evaluate: Callable[..., Awaitable[EvaluationResult]]
    make_dataset: Callable[..., list[Row]]


class Environment(ABC):
    """A dataset, a system prompt, an interaction protocol (`run`) and a rubric.

    Args:
        dataset: training rows (see `DatasetSource`) with `prompt` or `question`, and optionally `answer`, `info` and
            other columns.
        eval_dataset: evaluation rows. Default: `dataset`.
        system_prompt: first message, unless the row's prompt has a system message.
        few_shot: messages between the system prompt and a row's `question`.
        parser: used by every rubric without its own parser. Default: the parser of `rubric`.
        rubric: default: an empty rubric (reward 0).
        sampling_args: default sampling arguments in OpenAI's names.
        message_type: "chat", or "completion": prompt and completion are raw texts that the model continues without a
            chat template. Records store the model's parts as assistant messages and all other parts as user messages.
        policies: scripted policies that the environment ships, for `-m scripted:NAME`.
        env_id, env_args: set by `load_environment`.

    Raises:
        ConfigError: no dataset, unknown keyword or message_type, or a system prompt or few_shot in completion mode.

    Example:
        env = rove.SingleTurnEnv(dataset=[{"question": "6 * 7?", "answer": "42"}], rubric=rove.Rubric([correct]))
        records = env.generate_sync(rove.OpenAIClient(), "gpt-4.1-nano", rollouts_per_example=4)
        print(records[0].scores.reward)
    """

    evaluation: ClassVar[EvaluationFunctions]
    """Set by `rove.rollouts.evaluate`, which `import rove` imports."""
    sends_prompt = True
    """Whether the model reads the prompt of an example; the agent of an `AgentEnv` sends its own messages."""
    use_count = 0
    """Number of runs that currently use this environment; see `used_in_run`."""
    split_description = ""
    """How the environment splits its rows into training and evaluation rows, for the recipe of `rove train`."""

    def __init__(
        self,
        dataset: DatasetSource | None = None,
        eval_dataset: DatasetSource | None = None,
        system_prompt: str | None = None,
        few_shot: Sequence[Mapping[str, object]] | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        sampling_args: Mapping[str, object] | None = None,
        message_type: str = "chat",
        policies: Mapping[str, ScriptedPolicy] | None = None,
        env_id: str = "",
        env_args: Mapping[str, object] | None = None,
        **unknown: Any,
    ):
        if unknown:
            raise unknown_keyword(type(self), next(iter(unknown)))
        if dataset is None and eval_dataset is None:
            raise ConfigError(f"{type(self).__name__} needs a dataset: pass dataset= or eval_dataset=")
        if message_type not in ("chat", "completion"):
            raise ConfigError(f"message_type is {message_type!r}; expected 'chat' or 'completion'")
        if message_type == "completion" and (system_prompt or few_shot):
            option = "system_prompt" if system_prompt else "few_shot"
            raise ConfigError(f"{option} cannot be used with message_type 'completion'; write it into the prompts")
        self.message_type = message_type
        self.dataset = Rows(dataset) if dataset is not None else None
        self.eval_dataset = Rows(eval_dataset) if eval_dataset is not None else None
        self.system_prompt = system_prompt
        self.few_shot = list(few_shot or [])
        if rubric is not None and not isinstance(rubric, Rubric):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"rubric is {rubric!r}; expected a rove.Rubric")
        if policies is not None and not isinstance(policies, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"policies is {policies!r}; expected a dict of functions by name")
        self.rubric: Rubric = rubric if rubric is not None else Rubric()
        self._added_rubrics: list[Rubric] = []
        self._combined: RubricGroup | None = None
        self._combined_functions = 0
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
        """Version and code hash of the package; set by `load_environment`."""
        self._stops = _marked(self, "rove_stop")
        self._cleanups = _marked(self, "rove_cleanup")
        self._teardowns = _marked(self, "rove_teardown")

    @abstractmethod
    async def run(self, state: State, turn: Turn) -> None:
        """Run one rollout: call `turn` for every model turn and keep everything else in `state`.

        Args:
            state: the rollout; `state["prompt"]` is its prompt. Set `state["completion"]` to the result: messages, or a text.
            turn: queries the model.
        """

    def get_dataset(self, n: int = -1) -> list[Row]:
        """Return the first `n` training examples (all if n < 0)."""
        return list(self.examples(n, train=True))

    def get_eval_dataset(self, n: int = -1) -> list[Row]:
        """Return the first `n` evaluation examples (all if n < 0); without evaluation rows, return training examples."""
        return list(self.examples(n))

    def examples(self, n: int = -1, train: bool = False) -> Iterator[Row]:
        """Yield the first `n` examples (all if n < 0), built lazily."""
        for index, row in enumerate(self._split_rows(train).first(n)):
            yield build_example(row, index, self.system_prompt, self.few_shot, self.message_type)

    def count_examples(self, n: int = -1, train: bool = False) -> int | None:
        """Return the number of `examples`; None if all examples would have to be read to count them."""
        return self._split_rows(train).count(n)

    def _split_rows(self, train: bool) -> Rows:
        preferred, other = (self.dataset, self.eval_dataset) if train else (self.eval_dataset, self.dataset)
        rows = other if preferred is None else preferred
        assert rows is not None
        return rows

    @property
    def identity(self) -> Identity:
        """Values that distinguish this environment from others: name, version, code hash, arguments and rubric.

        Code outside the environment's package is not included.
        """
        source = self.source
        if not source:  # not loaded by `load_environment`
            try:
                source = digest_files([Path(inspect.getfile(type(self)))])
            except (OSError, TypeError):  # defined in a notebook
                source = digest_main_code(type(self))
        return {
            "env": f"{self.env_id or type(self).__qualname__}#{source}",
            "env_args": self.env_args,
            "rubric": self.scoring_rubric.identity,
            **{name: getattr(self, name) for name in ("max_turns", "timeout_seconds") if hasattr(self, name)},
        }

    def add_rubric(self, rubric: Rubric) -> None:
        """Score with `rubric` as well: rewards are summed, metrics merged.

        Raises:
            ConfigError: as for `RubricGroup`.
        """
        RubricGroup([self.scoring_rubric, rubric])  # refuses a name that both have
        self._added_rubrics.append(rubric)
        if self._has_parser:
            rubric.adopt_parser(self.parser)

    @property
    def scoring_rubric(self) -> Rubric:
        """The author's rubric together with rubrics added by `add_rubric`, such as the metrics of an environment class."""
        if not self._added_rubrics:
            return self.rubric
        rubrics = [self.rubric, *self._added_rubrics]
        # Every rollout asks twice; a new group is made only if an author has replaced a rubric or added a function since.
        if (
            self._combined is None
            or self._combined.rubrics != rubrics
            or self._combined.num_functions != self._combined_functions
        ):
            self._combined = RubricGroup(rubrics)
            self._combined_functions = self._combined.num_functions
        return self._combined

    async def generate(
        self, client: AnyClient, model: str = "", **options: Unpack[GenerateOptions]
    ) -> list[RolloutRecord]:
        """Run rollouts and return records; see `rove.generate`."""
        return await self.evaluation.generate(self, client, model, **options)

    async def evaluate(
        self, client: AnyClient, model: str = "", **options: Unpack[EvaluateOptions]
    ) -> EvaluationResult:
        """Run rollouts and return their statistics; see `rove.evaluate`."""
        return await self.evaluation.evaluate(self, client, model, **options)

    def make_dataset(
        self, records: Iterable[RolloutRecord], min_reward: float | None = None, filter: str | None = None
    ) -> list[Row]:
        """Convert records to dataset rows; see `rove.make_dataset`."""
        return self.evaluation.make_dataset(records, min_reward, filter)

    def generate_sync(
        self, client: AnyClient, model: str = "", **options: Unpack[GenerateOptions]
    ) -> list[RolloutRecord]:
        """Call `generate` from synchronous code, also in a notebook."""
        return outside_event_loop(lambda: run_async(self.generate(client, model, **options)))

    def evaluate_sync(self, client: AnyClient, model: str = "", **options: Unpack[EvaluateOptions]) -> EvaluationResult:
        """Call `evaluate` from synchronous code, also in a notebook."""
        return outside_event_loop(lambda: run_async(self.evaluate(client, model, **options)))

    def rollout_slot(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that is held during one rollout; it may wait until the environment has capacity."""
        return nullcontext()

    def time_limit(self, state: State) -> float | None:
        """Return the wall-time limit of a rollout in seconds; None = no limit."""
        return self.timeout_seconds

    async def check_stops(self, state: State) -> bool:
        """Check the stop conditions; the first condition that holds becomes `state["stop_condition"]`."""
        for method in self._stops:
            if await maybe_await(method(state)):
                bookkeeping(state).stop_condition = method.__name__
                return True
        return False

    async def post_rollout(self, state: State) -> object:  # noqa: B027  a hook that authors may override
        """Prepare data for reward functions, before scoring. May be sync.

        It is called when the rollout has ended, even by a limit or an error; the rollout's resources are still open.
        """

    async def clean_up(self, state: State) -> None:
        """Run every `@cleanup` method, even if one fails, then raise the first failure."""
        # Called after scoring, because reward functions may read what it closes (docs/decisions/cleanup.md).
        await _run_all(self._cleanups, state)

    async def tear_down(self) -> None:
        """Run every `@teardown` method of the environment and its rubric, even if one fails, then raise the first failure.

        A rubric that is in use by a run of another environment is skipped.
        """
        rubric = self.scoring_rubric
        methods = list(self._teardowns)
        if not rubric.use_count:
            methods.append(rubric.teardown)
        await _run_all(methods)

    @asynccontextmanager
    async def used_in_run(self) -> AsyncGenerator[None]:
        """Return a context manager that marks the environment as in use.

        When several runs share an environment or rubric, the last one to end tears it down.
        """
        parts = self.components  # as of now: a rubric may be added during the run
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
    def components(self) -> list[Any]:
        """This environment and its rubrics, which are torn down separately."""
        return [self, *self.scoring_rubric.components]


def messages_of(state: State) -> tuple[list[MessageDict], list[MessageDict]]:
    """Return prompt and completion of a rollout as messages; in completion mode, one message per piece of text.

    The model's pieces become assistant messages, and all other pieces become user messages. If an environment replaced the
    completion with a text that does not start with the text recorded by the last turn, the new text becomes one assistant
    message.
    """
    prompt, completion = prompt_of(state), completion_of(state)
    prompt_messages: list[MessageDict] = [UserMessage(prompt)] if isinstance(prompt, str) else prompt
    if not isinstance(completion, str):
        return prompt_messages, completion
    if not isinstance(prompt, str):
        return prompt_messages, [AssistantMessage(completion)]
    steps = bookkeeping(state).trajectory
    pieces: list[Any] = []
    if steps:
        last = steps[-1]
        pieces = [*last.prompt, *last.completion][1:]  # the first is the prompt
    text = "".join(map(text_of, pieces))
    if not completion.startswith(text):
        return prompt_messages, [AssistantMessage(completion)]
    added = completion[len(text) :]
    if added:
        pieces.append(UserMessage(added))
    return prompt_messages, pieces


def take_result(state: State) -> None:
    """Record the prompt, completion and stop condition that an environment's own `run` has set in the state.

    This is called when `run` has ended; values that are set later do not change the rollout. `MultiTurnEnv` and `AgentEnv` record
    these values themselves.
    """
    internals = bookkeeping(state)
    if internals.stop_condition is None and isinstance(state.get("stop_condition"), str):
        internals.stop_condition = state["stop_condition"]
    prompt, completion = prompt_of(state), completion_of(state)
    # If a check below fails, the record has the prompt of the row: a value that cannot be read back would make the whole
    # run folder unreadable (docs/decisions/state.md).
    internals.prompt = (internals.input or {}).get("prompt", [])
    internals.completion = []
    internals.prompt = _text_or_messages(prompt, "prompt")
    internals.completion = _text_or_messages(completion, "completion")


def _text_or_messages(value: Any, name: str) -> object:
    if isinstance(value, str):
        return value
    try:
        return as_messages(value)
    except (ConfigError, TypeError) as error:
        kind = type(value).__name__
        raise ConfigError(
            f"state['{name}'] is a {kind}: {short_repr(value)}; set it to a text or to messages"
        ) from error


def offered_tools(state: State) -> list[ToolDefinition] | None:
    """Return the tools that the next request offers: `state["tools"]`, if its items are tool definitions."""
    internals = bookkeeping(state)
    tools = state.get("tools")
    # Outside of a `ToolEnv`, "tools" may be a key of the author with any meaning (docs/decisions/state.md).
    if tools is None and not internals.reads_tools:
        return internals.tools
    if tools is None or (is_list(tools) and all(map(_is_tool_definition, tools))):
        return tools
    if internals.reads_tools:
        raise ConfigError(
            f"state['tools'] is {short_repr(tools)}; expected a list of tool definitions "
            '({"type": "function", "function": {"name": …}}), for example a part of env.tool_defs'
        )
    return internals.tools


def _is_tool_definition(tool: object) -> bool:
    function = tool.get("function") if is_mapping(tool) else None
    return is_mapping(function) and isinstance(function.get("name"), str)


async def _run_all(methods: Sequence[Callable[..., object]], *args: object) -> None:
    failures: list[BaseException] = []
    for method in methods:  # a failure must not keep the other resources open
        try:
            await maybe_await(method(*args))
        except BaseException as error:
            if ends_task(error):
                raise
            failures.append(error)
    if failures:
        raise failures[0]


def _marked(env: Environment, kind: str) -> list[Callable[..., Any]]:
    # Looked up in the class: a property of an instance could run the author's code before the instance is complete.
    methods = {name: getattr(type(env), name, None) for name in dir(type(env))}
    marked = [name for name, method in methods.items() if hasattr(method, kind)]
    marked.sort(key=lambda name: (-getattr(methods[name], kind), name))
    return [getattr(env, name) for name in marked]


def unknown_keyword(cls: type, name: str) -> ConfigError:
    """Return the error for a keyword that no `__init__` of a class names."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            parameters = inspect.signature(base.__init__).parameters.values()
            named_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            names |= {parameter.name for parameter in parameters if parameter.kind in named_kinds}
    return ConfigError(f"{cls.__name__} has no argument '{name}'; {nearest(name, names - {'self'})}")
