"""v0's environment: rows, state, stop conditions and cleanup; subclasses define how a rollout runs."""

from __future__ import annotations

import importlib
import json
import logging
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from packaging.version import Version

from rove.compat.verifiers.bridge import BridgedEnvironment
from rove.compat.verifiers.clients import raw_text, resolve_client
from rove.compat.verifiers.data import as_table, with_ids, with_prompts
from rove.compat.verifiers.decorators import call_user, discover_decorated, maybe_call_with_named_args
from rove.compat.verifiers.errors import MissingKeyError, OverlongPromptError
from rove.compat.verifiers.evaluation import EvaluableEnvironment, UsageTracker, make_dataset
from rove.compat.verifiers.legacy import as_tool_defs, call_scoring, info_tools
from rove.compat.verifiers.legacy_loop import current_rollout, model_request, overlong_prompt
from rove.compat.verifiers.messages import as_legacy_messages, normalize_messages
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.release import fixed, outdated, written_for
from rove.compat.verifiers.rubrics import Rubric, RubricGroup, score_single
from rove.compat.verifiers.types import (
    Response,
    RolloutTiming,
    SamplingArgs,
    State,
    Tool,
    as_oai_tools,
    flatten_task_input,
)
from rove.envs.environment import unknown_keyword
from rove.envs.loading import environment_file, environment_module

_CONSTRUCTOR_ARGS_010 = frozenset({"client", "model", "max_concurrent"})
"""Keywords of 0.1.0 that are set as attributes without a warning."""
_SYSTEM_PROMPT_ADDED = Version("0.1.9")
"""First release that adds a system prompt to rows that have a prompt."""
_CALL_DICTS = Version("0.1.7")
"""First release in which the tool calls of messages are dicts."""
_MESSAGE_MODELS = Version("0.1.11")
"""First release in which messages are models with all fields, and rows have no column `task`."""


class Environment(EvaluableEnvironment):
    """Base class of v0's environments. Any other keyword becomes an attribute.

    Raises:
        ValueError: neither `dataset` nor `eval_dataset` is given.
        ConfigError: a keyword is unknown, with ROVE_COMPAT=fixed.
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
        self.has_legacy_messages = self.written_for < _MESSAGE_MODELS
        if "oai_tools" in kwargs:
            outdated("oai_tools=", "pass tool_defs=[{'name': …, 'description': …, 'parameters': {…}}]")
            tool_defs = kwargs.pop("oai_tools")
        if message_type != "chat":
            warnings.warn("message_type is deprecated and will be removed", DeprecationWarning, stacklevel=2)
        self.logger = logging.getLogger(f"verifiers.{type(self).__name__}")
        self.message_type = message_type
        self.tool_defs: list[Tool] | None = as_tool_defs(tool_defs)
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
        self._set_datasets(dataset, eval_dataset)
        # v0's defaults: packages read `env.sampling_args`.
        body = dict((sampling_args or {}).get("extra_body", {}))
        self.sampling_args: dict[str, Any] = {"n": 1, **(sampling_args or {}), "extra_body": body}
        for name, value in kwargs.items():
            _warn_unknown(type(self), name)
            setattr(self, name, value)
        self.__post_init__()

    _adapter: Any = None

    def __post_init__(self) -> None:
        """Find the decorated methods; subclasses that decorate methods later call this again."""
        self._stop_conditions = discover_decorated(self, "stop")
        self._cleanup_handlers = discover_decorated(self, "cleanup")
        self._teardown_handlers = discover_decorated(self, "teardown")

    # Not a property: the search for decorated methods reads all properties.
    def __getattr__(self, name: str) -> Any:
        """Provide `oai_tools`, the tools in the OpenAI wire form, which packages for 0.1.2 to 0.1.10 read and append to."""
        if name != "oai_tools":
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")
        outdated("env.oai_tools", "read env.tool_defs")
        return None if self.tool_defs is None else as_oai_tools(self.tool_defs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "oai_tools":
            outdated("env.oai_tools", "set env.tool_defs")
            name = "tool_defs"
        super().__setattr__(name, value)

    def __rove_environment__(self) -> Any:
        """Return this environment as a rove environment; see `rove.load_environment`."""
        # Always the same object: with a new one per run, no run was the last, and the environment was never torn down.
        if self._adapter is None:
            self._adapter = BridgedEnvironment(self)
        return self._adapter

    def _set_datasets(self, dataset: Any, eval_dataset: Any) -> None:
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
        if type(self).format_dataset is not Environment.format_dataset:
            outdated(f"{type(self).__name__}.format_dataset", "format the dataset before passing it")
            return with_ids(self.format_dataset(dataset, system_prompt, few_shot))
        return self._with_prompts(with_ids(dataset), system_prompt, few_shot, map_kwargs)

    def _with_prompts(self, dataset: Any, system_prompt: str | None, few_shot: Any, map_kwargs: Any) -> Any:
        if self.written_for < _SYSTEM_PROMPT_ADDED and "prompt" in dataset.column_names:
            return dataset
        return with_prompts(dataset, system_prompt, few_shot, map_kwargs)

    def format_dataset(
        self,
        dataset: Any,
        system_prompt: str | None = None,
        few_shot: Any = None,
        question_key: str = "question",
        answer_key: str = "answer",
    ) -> Any:
        """Return rows with prompts and ids; packages for 0.1.0 to 0.1.7 override it."""
        for key, name in ((question_key, "question"), (answer_key, "answer")):
            if key != name and key in dataset.column_names:
                dataset = dataset.rename_column(key, name)
        return self._with_prompts(with_ids(dataset), system_prompt, few_shot, {})

    def _build(self, source: Callable[[], Any] | None, built: Any) -> Any:
        if built is not None or source is None:
            return built
        return self._format_dataset(as_table(source()), self.system_prompt, self.few_shot, self.map_kwargs)

    def build_dataset(self) -> Any:
        """Return the training rows, built at the first call; None if there are none."""
        self.dataset = self._build(self.dataset_source, self.dataset)
        return self.dataset

    def build_eval_dataset(self) -> Any:
        """Return the evaluation rows, built at the first call; None if there are none."""
        self.eval_dataset = self._build(self.eval_dataset_source, self.eval_dataset)
        return self.eval_dataset

    def get_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """Return the first `n` training rows (all if n < 1), after shuffling if there is a `seed`.

        Raises: ValueError: there are no training rows.
        """
        dataset = self.build_dataset()
        if dataset is None:
            raise ValueError("dataset is not set")
        return _first(dataset, n, seed)

    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """Return the first `n` evaluation rows; training rows if there are no others."""
        dataset = self.build_eval_dataset()
        if dataset is None:
            self.logger.warning("eval_dataset is not set, falling back to train dataset")
            return self.get_dataset(n, seed)
        return _first(dataset, n, seed)

    make_dataset = staticmethod(make_dataset)

    def _tracker(self, state: State) -> UsageTracker:
        if not isinstance(state.get("usage_tracker"), UsageTracker):
            state["usage_tracker"] = UsageTracker()
            state["usage"] = state["usage_tracker"].usage
        return state["usage_tracker"]

    def increment_state_usage(self, state: State, input_tokens: float = 0, output_tokens: float = 0) -> None:
        """Count the tokens of a call that the environment itself made."""
        self._tracker(state).increment(input_tokens, output_tokens)

    def increment_state_usage_from_response(self, state: State, response: Response) -> None:
        """Count the tokens of a response."""
        if response.get("usage") is not None:
            self.increment_state_usage(state, response.usage["prompt_tokens"], response.usage["completion_tokens"])

    def get_state_usage(self, state: State) -> dict[str, float] | None:
        """Return the tokens of a rollout so far; None if no usage has been reported."""
        return self._tracker(state).snapshot()

    async def init_state(self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None) -> State:
        """Return the initial state of a rollout of a row; packages may override it."""
        return await self.new_state(input, client, model, sampling_args)

    async def new_state(self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None) -> State:
        """Return the initial state of a rollout of a row."""
        # Environments change rows in place, and the rollouts of a group have the same row.
        row = deepcopy(dict(input))
        if isinstance(row.get("info"), str):
            row["info"] = json.loads(row["info"])
        task = flatten_task_input(row)
        # Before 0.1.11, `task` was a name, "default" for rows without the column.
        if self.written_for < _MESSAGE_MODELS and isinstance(task, dict):
            task = "default"
        state = State(input=task if isinstance(task, dict) else row, task=task)
        prompt = state["input"].get("prompt")
        if isinstance(prompt, (str, list)):
            state["prompt"] = self.as_written(normalize_messages(prompt, field_name="input.prompt"))
        info = state.get("info")
        row_tools = info_tools(info) if isinstance(info, Mapping) else None
        state.update(
            client=resolve_client(client),
            model=model,
            sampling_args=sampling_args,
            is_completed=False,
            is_truncated=False,
            tool_defs=as_tool_defs(self.tool_defs if row_tools is None else row_tools) or [],
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
        # The bridge's client stores the state now: a rollout that is canceled returns none.
        state["client"].begin(state)
        return state

    @property
    def has_text_prompts(self) -> bool:
        """Whether prompts and completions are texts, as in completion environments until 0.1.10."""
        return self.has_legacy_messages and self.message_type == "completion"

    def as_written(self, messages: Any) -> Any:
        """Return messages in the form of the release for which the package is written."""
        if not self.has_legacy_messages:
            return messages
        if self.has_text_prompts:
            return raw_text(messages)
        return as_legacy_messages(messages, has_call_objects=self.written_for < _CALL_DICTS)

    async def get_model_response(self, *args: Any, **kwargs: Any) -> Response:
        """Request a response; model, tools and sampling arguments default to those of the rollout.

        The arguments are `(state, prompt, client=None, model=None, tool_defs=None, sampling_args=None)`, or as until 0.1.7
        `(client, model, prompt, oai_tools=None, sampling_args=None, message_type=None)`, which has no defaults.
        """
        request = model_request(args, kwargs)
        state = request.state or {}
        tools = as_tool_defs(state.get("tool_defs") if request.tools is None else request.tools)
        client = state["client"] if request.client is None else resolve_client(request.client)
        sampling_args = request.sampling_args
        if not sampling_args and not request.is_legacy:
            sampling_args = state["sampling_args"]
        try:
            response = await client.get_response(
                prompt=request.prompt,
                model=request.model or state.get("model") or "",
                tools=tools or None,
                sampling_args=sampling_args or {},
                state=request.state,
            )
        # Until 0.1.7 this was not an exception: the loop compared the id of the response.
        except OverlongPromptError:
            if request.is_legacy:
                return overlong_prompt()
            raise
        if request.state is not None:
            self.increment_state_usage_from_response(request.state, response)
        rollout = current_rollout()
        if rollout is not None:
            rollout.remember_call(request.prompt, response)
        return response

    async def is_completed(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether a stop condition holds; the first that does ends the rollout.

        Messages before the state, which packages for 0.1.2 to 0.1.7 pass, are ignored.
        """
        state = kwargs.pop("state", None) or next(argument for argument in args if isinstance(argument, State))
        for condition in self._stop_conditions:
            if await maybe_call_with_named_args(condition, state=state, env=self, **kwargs):
                self._mark_completed(state, condition.__name__)
                return True
        return False

    def _mark_completed(self, state: State, condition: str) -> None:
        has_truncated_step = any(step.get("is_truncated") for step in state["trajectory"])
        is_truncated = bool(state.get("is_truncated")) or has_truncated_step
        state.update(is_completed=True, is_truncated=is_truncated, stop_condition=condition)

    async def cleanup(self, state: State, task: Any = None, resources: Any = None) -> None:
        """Run the `@cleanup` methods."""
        for handler in self._cleanup_handlers:
            await maybe_call_with_named_args(handler, state=state, task=task, env=self, resources=resources)

    async def _teardown(self) -> None:
        await self.rubric.teardown()
        for handler in self._teardown_handlers:
            await call_user(handler)

    async def score_states(self, states: list[State], independently: bool = False) -> None:
        """Score the finished rollouts of one example, as a group or each one independently."""
        if self.score_rollouts and independently:
            for state in states:
                await score_single(self.rubric, state)
            return
        score = self.rubric.score_group if self.score_rollouts else self.rubric.dummy_score_group
        await call_scoring(score, states)

    async def clean_up_scored(self, states: list[State]) -> None:
        """Run the rubric's `@cleanup` methods."""
        for state in states:
            await self.rubric.cleanup(state)

    @property
    def requires_group_rollouts(self) -> bool:
        """Whether a reward function needs a whole group."""
        return self.rubric.has_group_rewards

    @property
    def provides_advantages(self) -> bool:
        """Whether the rubric sets its own advantages."""
        return self.rubric.has_advantages

    def set_kwargs(self, **kwargs: Any) -> None:
        """Set attributes; if there is a method `set_<name>`, call it instead."""
        for name, value in kwargs.items():
            setter = getattr(self, f"set_{name}", None)
            if callable(setter):
                setter(value)
            else:
                setattr(self, name, value)

    def add_rubric(self, rubric: Rubric) -> None:
        """Add a rubric that also scores rollouts."""
        if isinstance(self.rubric, RubricGroup):
            self.rubric.rubrics.append(rubric)
        else:
            self.rubric = RubricGroup(rubrics=[self.rubric, rubric])

    def set_concurrency(self, concurrency: int) -> None:
        """Set the attribute; rove's clients and pools have their own limits."""
        self.concurrency = concurrency

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Truncate the tokens of steps at this length."""
        self.max_seq_len = max_seq_len

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Set whether rollouts are scored."""
        self.score_rollouts = score_rollouts


def _as_builder(source: Any) -> Callable[[], Any] | None:
    return source if source is None or callable(source) else lambda: source


def _first(dataset: Any, n: int, seed: int | None) -> Any:
    if seed is not None:
        dataset = dataset.shuffle(seed=seed)
    return dataset.select(range(min(n, len(dataset)))) if n > 0 else dataset


def _warn_unknown(cls: type, name: str) -> None:
    """Warn of a keyword that becomes an attribute and may be misspelled; refuse it with ROVE_COMPAT=fixed."""
    if name in _CONSTRUCTOR_ARGS_010:
        return
    error = unknown_keyword(cls, name)
    if fixed():
        raise error
    warnings.warn(f"{error} It becomes an attribute, as in v0.", stacklevel=4)


def load_environment(env_id: str, **env_args: Any) -> Any:
    """Load the environment of a package: `load_environment(**env_args)` of its module, as in v0.

    Args:
        env_id: the module's name is the last part of "owner/my-env".

    Raises:
        ValueError: there is no such package.
        MissingKeyError: environment variables that it needs are not set.
        RuntimeError: it could not be loaded; the cause has the error.
    """
    name = env_id.split("@")[0].replace("-", "_").split("/")[-1]
    try:
        env = _import_environment(name).load_environment(**env_args)
        env.env_id = env.env_id or env_id
        env.env_args = env.env_args or env_args
        return env
    except ImportError as error:
        raise ValueError(
            f"Could not import '{env_id}' environment ({error}). Ensure that its package is installed."
        ) from error
    except MissingKeyError:
        raise
    except Exception as error:
        raise RuntimeError(f"Failed to load environment '{env_id}': {error}") from error


def _import_environment(name: str) -> Any:
    """Import an installed module, or one in a folder that rove searches for environments."""
    # An environment may be called "calendar" or "code"; the import would give the standard library's module.
    if name in sys.stdlib_module_names:
        return environment_module(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The package itself was found, but a module that it imports is missing.
        if error.name != name:
            raise
        try:
            environment_file(name)
        except ValueError:
            raise error from None
        return environment_module(name)
