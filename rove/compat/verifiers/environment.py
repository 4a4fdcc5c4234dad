"""v0's environment: rows, state, stop conditions, cleanup. How it is played is a subclass's; `bridge` makes it one of rove's."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from packaging.version import Version

from rove.compat.verifiers import evaluation, legacy
from rove.compat.verifiers.calls import call_user, maybe_call_with_named_args
from rove.compat.verifiers.clients import resolve_client
from rove.compat.verifiers.data import as_table, with_ids, with_prompts
from rove.compat.verifiers.decorators import discover_decorated
from rove.compat.verifiers.messages import Messages, former_messages, normalize_messages
from rove.compat.verifiers.mode import fixed, outdated
from rove.compat.verifiers.outputs import make_dataset
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.pins import written_for
from rove.compat.verifiers.rubrics import Rubric, RubricGroup
from rove.compat.verifiers.types import Response, RolloutTiming, SamplingArgs, State, Tool, flatten_task_input
from rove.compat.verifiers.usage import UsageTracker
from rove.core.errors import ConfigError, nearest

_FORMER = frozenset({"client", "model", "max_concurrent"})
"""Keywords of 0.1.0 that are still understood."""
_MODELS = Version("0.1.11")
"""The release in which messages became models with all fields, and rows lost their column `task`."""


class Environment(ABC):
    """Rows, a parser, a rubric, and what else v0 keeps in an environment; any other keyword becomes an attribute.

    Raises:
        ValueError: there is neither `dataset` nor `eval_dataset`.
        ConfigError: an unknown keyword, with ROVE_COMPAT=fixed.
    """

    def __init__(
        self,
        dataset: Any = None,
        eval_dataset: Any = None,
        system_prompt: str | None = None,
        few_shot: Any = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        sampling_args: SamplingArgs | None = None,
        message_type: str = "chat",
        tool_defs: Sequence[Any] | None = None,
        max_workers: int = 512,
        env_id: str | None = None,
        env_args: dict[str, Any] | None = None,
        map_kwargs: dict[str, Any] | None = None,
        max_seq_len: int | None = None,
        score_rollouts: bool = True,
        pass_threshold: float = 0.5,
        **kwargs: Any,
    ):
        self.written_for = written_for()
        self.has_former_messages = self.written_for < _MODELS
        if "oai_tools" in kwargs:
            outdated("oai_tools=", "pass tool_defs=[{'name': …, 'description': …, 'parameters': {…}}]")
            tool_defs = kwargs.pop("oai_tools")
        if message_type != "chat":
            warnings.warn("message_type is deprecated and will be removed", DeprecationWarning, stacklevel=2)
        self.logger = logging.getLogger(f"verifiers.{type(self).__name__}")
        self.message_type = message_type
        self.tool_defs: list[Tool] | None = legacy.tool_defs(tool_defs)
        self.system_prompt = system_prompt
        self.few_shot = few_shot
        self.parser = parser or Parser()
        self.rubric: Rubric = rubric or Rubric()
        if type(self.parser) is not type(self.rubric.parser):
            self.logger.warning("The parser and rubric parser are different. This may cause unexpected behavior.")
        self.env_id = env_id or ""
        self.env_args = env_args or {}
        self.max_seq_len = max_seq_len
        self.map_kwargs = map_kwargs or {}
        self.max_workers = max_workers
        self.pass_threshold = pass_threshold
        self.rollouts_per_example: int | None = None
        self.env_client: Any = None
        self.set_score_rollouts(score_rollouts)
        self._set_up_rows(dataset, eval_dataset)
        body = dict((sampling_args or {}).get("extra_body", {}))
        self.sampling_args: dict[str, Any] = {"n": 1, **(sampling_args or {}), "extra_body": body}
        for name, value in kwargs.items():
            _tell_unknown(type(self), name)
            setattr(self, name, value)
        self.__post_init__()

    _bridged: Any = None

    def __post_init__(self) -> None:
        """Find the marked methods; subclasses that mark others later call it again."""
        self._stop_conditions = discover_decorated(self, "stop")
        self._cleanup_handlers = discover_decorated(self, "cleanup")
        self._teardown_handlers = discover_decorated(self, "teardown")

    def __rove_environment__(self) -> Any:
        """This environment as one of rove's, the same one every time; see `rove.load_environment`."""
        if self._bridged is None:
            self._bridged = importlib.import_module("rove.compat.verifiers.bridge").BridgedEnvironment(self)
        return self._bridged

    # Rows

    def _set_up_rows(self, dataset: Any, eval_dataset: Any) -> None:
        if dataset is None and eval_dataset is None:
            raise ValueError("Either dataset or eval_dataset must be provided")
        self.dataset: Any = None
        self.eval_dataset: Any = None
        self.dataset_source = _as_builder(dataset)
        self.eval_dataset_source = _as_builder(eval_dataset)
        if dataset is not None and not callable(dataset):
            self.build_dataset()
        if eval_dataset is not None and not callable(eval_dataset):
            self.build_eval_dataset()

    def _format_dataset(self, dataset: Any, system_prompt: str | None, few_shot: Any, map_kwargs: Any) -> Any:
        return with_prompts(with_ids(dataset), system_prompt, few_shot, map_kwargs)

    def _built(self, source: Callable[[], Any]) -> Any:
        return self._format_dataset(as_table(source()), self.system_prompt, self.few_shot, self.map_kwargs)

    def build_dataset(self) -> Any:
        """The training rows, made at the first call; None where there are none."""
        if self.dataset is None and self.dataset_source is not None:
            self.dataset = self._built(self.dataset_source)
        return self.dataset

    def build_eval_dataset(self) -> Any:
        """The evaluation rows, made at the first call; None where there are none."""
        if self.eval_dataset is None and self.eval_dataset_source is not None:
            self.eval_dataset = self._built(self.eval_dataset_source)
        return self.eval_dataset

    def get_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """The first `n` training rows (all when n < 1), of a shuffled dataset with a `seed`.

        Raises:
            ValueError: there are none.
        """
        dataset = self.build_dataset()
        if dataset is None:
            raise ValueError("dataset is not set")
        return _first(dataset, n, seed)

    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """The first `n` evaluation rows; the training ones when there are no others."""
        dataset = self.build_eval_dataset()
        if dataset is None:
            self.logger.warning("eval_dataset is not set, falling back to train dataset")
            return self.get_dataset(n, seed)
        return _first(dataset, n, seed)

    make_dataset = staticmethod(make_dataset)

    # Tokens

    def _tracker(self, state: State) -> UsageTracker:
        if not isinstance(state.get("usage_tracker"), UsageTracker):
            state["usage_tracker"] = UsageTracker()
            state["usage"] = state["usage_tracker"].usage
        return state["usage_tracker"]

    def increment_state_usage(self, state: State, input_tokens: float = 0, output_tokens: float = 0) -> None:
        """Count tokens of a call that the environment made by itself."""
        self._tracker(state).increment(input_tokens, output_tokens)

    def increment_state_usage_from_response(self, state: State, response: Response) -> None:
        """Count the tokens of an answer."""
        if response.get("usage") is not None:
            self.increment_state_usage(state, response.usage["prompt_tokens"], response.usage["completion_tokens"])

    def get_state_usage(self, state: State) -> dict[str, float] | None:
        """The tokens of a rollout so far; None where nobody has told."""
        return self._tracker(state).snapshot()

    # A rollout's parts

    async def init_state(self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None) -> State:
        """The state that a rollout of a row begins with."""
        row = deepcopy(dict(input))
        if isinstance(row.get("info"), str):
            row["info"] = json.loads(row["info"])
        task = flatten_task_input(row)
        task = "default" if self.written_for < _MODELS and isinstance(task, dict) else task
        state = State(input=task if isinstance(task, dict) else row, task=task)
        if isinstance(state["input"].get("prompt"), (str, list)):
            state["prompt"] = self.as_written(normalize_messages(state["input"]["prompt"], field_name="input.prompt"))
        info = state.get("info")
        own_tools = legacy.info_tools(info) if isinstance(info, Mapping) else None
        state.update(
            client=resolve_client(client),
            model=model,
            sampling_args=sampling_args,
            is_completed=False,
            is_truncated=False,
            tool_defs=legacy.tool_defs(self.tool_defs if own_tools is None else own_tools) or [],
            trajectory=[],
            completion=None,
            trajectory_id=uuid.uuid4().hex,
            reward=None,
            metrics=None,
            error=None,
            final_env_response=None,
            timing=RolloutTiming(),
        )
        self._tracker(state)
        begin = getattr(state["client"], "begin", None)
        if begin is not None:
            begin(state)
        return state

    def as_written(self, messages: Any) -> Any:
        """Messages as they were in the release that the package is written for."""
        return former_messages(messages) if self.has_former_messages else messages

    async def get_model_response(
        self,
        state: State,
        prompt: Messages | str,
        client: Any = None,
        model: str | None = None,
        tool_defs: list[Tool] | None = None,
        sampling_args: SamplingArgs | None = None,
        **former: Any,
    ) -> Response:
        """What a model says to messages; the rollout's own model, tools and sampling where no others are given."""
        tools = state.get("tool_defs") if tool_defs is None else tool_defs
        response = await (state["client"] if client is None else resolve_client(client)).get_response(
            prompt=prompt,
            model=model or state["model"],
            tools=tools or None,
            sampling_args=sampling_args or state["sampling_args"] or {},
            state=state,
        )
        self.increment_state_usage_from_response(state, response)
        return response

    @abstractmethod
    async def rollout(self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None) -> State:
        """Play a rollout of a row, not scored."""

    async def is_completed(self, *args: Any, **kwargs: Any) -> bool:
        """Check the stop conditions of a state; the first that holds ends the rollout. Messages before the state, as
        packages for 0.1.2 to 0.1.7 pass them on to it, are ignored."""
        state = kwargs.pop("state", None) or next(one for one in args if isinstance(one, State))
        for condition in self._stop_conditions:
            if await maybe_call_with_named_args(condition, state=state, env=self, **kwargs):
                self._mark_completed(state, condition.__name__)
                return True
        return False

    def _mark_completed(self, state: State, condition: str) -> None:
        truncated = state.get("is_truncated") or any(step.get("is_truncated") for step in state["trajectory"])
        state.update(is_completed=True, is_truncated=bool(truncated), stop_condition=condition)

    async def cleanup(self, state: State, task: Any = None, resources: Any = None) -> None:
        """Run the `@cleanup` methods."""
        for handler in self._cleanup_handlers:
            await maybe_call_with_named_args(handler, state=state, task=task, env=self, resources=resources)

    async def _teardown(self) -> None:
        await self.rubric.teardown()
        for handler in self._teardown_handlers:
            await call_user(handler)

    async def score_states(self, states: list[State]) -> None:
        """Score the finished rollouts of one example."""
        if self.score_rollouts:
            await self.rubric.score_group(states)
        else:
            await self.rubric.dummy_score_group(states)

    async def clean_up_scored(self, states: list[State]) -> None:
        """Run the rubric's `@cleanup` methods."""
        for state in states:
            await self.rubric.cleanup(state)

    # Runs

    async def run_rollout(
        self, input: Any, client: Any, model: str, sampling_args: Any = None, *args: Any, **options: Any
    ) -> Any:
        """Play and score one rollout; see `evaluation.run_group`."""
        [output] = await self.run_group([input], client, model, sampling_args, *args, **options)
        return output

    async def run_group(
        self, group_inputs: Any, client: Any, model: str, sampling_args: Any = None, *args: Any, **options: Any
    ) -> Any:
        """Play and score the rollouts of one example; see `evaluation.run_group`."""
        return await evaluation.run_group(self, group_inputs, client, model, sampling_args, *args, **options)

    async def generate(
        self, inputs: Any, client: Any = None, model: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Play and score rows; see `evaluation.generate`."""
        return await evaluation.generate(self, inputs, client, model, *args, **options)

    async def evaluate(self, client: Any = None, model: str | None = None, *args: Any, **options: Any) -> Any:
        """Play and score the evaluation rows; see `evaluation.evaluate`."""
        return await evaluation.evaluate(self, client, model, *args, **options)

    def generate_sync(self, inputs: Any, client: Any = None, *args: Any, **options: Any) -> Any:
        """`generate` for code that is not async."""
        return asyncio.run(self.generate(inputs, client, *args, **options))

    def evaluate_sync(self, client: Any = None, model: str | None = None, *args: Any, **options: Any) -> Any:
        """`evaluate` for code that is not async."""
        return asyncio.run(self.evaluate(client, model, *args, **options))

    # Settings

    @property
    def requires_group_rollouts(self) -> bool:
        """Whether a reward function is of a whole group."""
        return self.rubric.has_group_rewards

    @property
    def provides_advantages(self) -> bool:
        """Whether the rubric sets advantages of its own."""
        return self.rubric.has_advantages

    def set_kwargs(self, **kwargs: Any) -> None:
        """Set attributes, by `set_<name>` where there is such a method."""
        for name, value in kwargs.items():
            setter = getattr(self, f"set_{name}", None)
            if callable(setter):
                setter(value)
            else:
                setattr(self, name, value)

    def add_rubric(self, rubric: Rubric) -> None:
        """Score with another rubric, too."""
        if isinstance(self.rubric, RubricGroup):
            self.rubric.rubrics.append(rubric)
        else:
            self.rubric = RubricGroup(rubrics=[self.rubric, rubric])

    def set_concurrency(self, concurrency: int) -> None:
        """Kept as an attribute; rove's clients and pools find their own limits."""
        self.concurrency = concurrency

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Cut the tokens of steps at this length."""
        self.max_seq_len = max_seq_len

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Whether to score at all."""
        self.score_rollouts = score_rollouts


def _as_builder(source: Any) -> Callable[[], Any] | None:
    return source if source is None or callable(source) else lambda: source


def _first(dataset: Any, n: int, seed: int | None) -> Any:
    dataset = dataset if seed is None else dataset.shuffle(seed=seed)
    return dataset.select(range(min(n, len(dataset)))) if n > 0 else dataset


def _tell_unknown(cls: type, name: str) -> None:
    """An unknown keyword is an attribute, of which a misspelt one is told; with ROVE_COMPAT=fixed it is refused."""
    if name in _FORMER:
        return
    known: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            known |= {one.name for one in inspect.signature(base.__init__).parameters.values() if one.kind in (1, 3)}
    said = f"{cls.__name__} has no argument '{name}'; {nearest(name, known - {'self'})}"
    if fixed():
        raise ConfigError(said)
    warnings.warn(f"{said} It becomes an attribute, as in v0.", stacklevel=4)
