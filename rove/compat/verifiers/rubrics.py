"""v0's rubrics: arguments by name, group functions recognized by their arguments, and 0 for a function that raises.

With `ROVE_COMPAT=fixed`, exceptions of functions are errors, names must be unique, and advantages use the whole reward.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, get_origin

from packaging.version import Version

from rove.compat.verifiers.data import extract_boxed_answer, extract_first_boxed_answer
from rove.compat.verifiers.decorators import call_user, discover_decorated, maybe_call_with_named_args, named_args
from rove.compat.verifiers.legacy import LegacyScoring, call_scoring, score_with_legacy_overrides, single_state
from rove.compat.verifiers.parsers import MaybeThinkParser, Parser, ThinkParser, XMLParser
from rove.compat.verifiers.release import fixed, outdated, set_legacy_attributes, written_for
from rove.compat.verifiers.types import INPUT_FIELDS, State
from rove.core.errors import ConfigError, Error, LimitReachedError, phase
from rove.core.records import REWARD_ERRORS
from rove.rubrics.math import MathPool
from rove.utils.functions import function_name

_PLURALS = frozenset({"states", "prompts", "completions", "answers", "tasks", "infos"})


class Rubric(LegacyScoring):
    """Weighted reward functions; see `rove.Rubric`.

        vf.Rubric(funcs=[correct], weights=[1.0], parser=parser)

    Args:
        funcs: the functions; as before 0.1.2 they may be separate positional arguments.
        weights: weight of each function. Default: 1.0.
        parser: passed to functions as `parser`.
        legacy: other keywords, which 0.1.0 to 0.1.7 set as attributes.

    Raises:
        ValueError: there is not one weight per function.
        TypeError: a keyword is unknown, with ROVE_COMPAT=fixed.
    """

    def __init__(
        self,
        funcs: Sequence[Callable[..., Any]] | Callable[..., Any] | None = None,
        *positional: Any,
        weights: list[float] | None = None,
        parser: Parser | None = None,
        **legacy: Any,
    ):
        funcs, weights, parser = _normalize_arguments(funcs, positional, weights, parser)
        self.logger = logging.getLogger(f"verifiers.{type(self).__name__}")
        self.funcs: list[Callable[..., Any]] = funcs
        self.weights: list[float] = weights or [1.0] * len(funcs)
        if len(self.weights) != len(funcs):
            raise ValueError(f"Number of weights ({len(self.weights)}) must match number of functions ({len(funcs)})")
        self.parser = parser or Parser()
        self.class_objects: dict[str, Any] = {"parser": self.parser}
        self.score_object_providers: list[Callable[[State], Mapping[str, Any]]] = []
        self.group_score_object_providers: list[Callable[[list[State]], Mapping[str, Any]]] = []
        self._cleanup_handlers = discover_decorated(self, "cleanup")
        self._teardown_handlers = discover_decorated(self, "teardown")
        set_legacy_attributes(self, legacy)

    def add_reward_func(self, func: Callable[..., Any], weight: float = 1.0) -> None:
        """Add a weighted function."""
        if fixed() and function_name(func) in self._get_reward_func_names():
            raise ValueError(f"the rubric already has a function named '{function_name(func)}'; set another __name__")
        self.funcs.append(func)
        self.weights.append(weight)

    def add_metric(self, func: Callable[..., Any], weight: float = 0.0) -> None:
        """Add a function that is only reported."""
        Rubric.add_reward_func(self, func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Pass `obj` to functions as the argument `name`."""
        self.class_objects[name] = obj

    def add_score_object_provider(self, provider: Callable[[State], Mapping[str, Any]]) -> None:
        """Pass the values that `provider(state)` returns to functions."""
        self.score_object_providers.append(provider)

    def add_group_score_object_provider(self, provider: Callable[[list[State]], Mapping[str, Any]]) -> None:
        """Pass the values that `provider(states)` returns to group functions."""
        self.group_score_object_providers.append(provider)

    def add_cleanup_handler(self, handler: Callable[..., Any]) -> None:
        """Call a function with every scored state."""
        self._cleanup_handlers.append(handler)
        self._cleanup_handlers.sort(key=lambda func: (-getattr(func, "cleanup_priority", 0), function_name(func)))

    def get_reward_func_names(self) -> list[str]:
        """Return the names of the functions, in order."""
        return [function_name(func) for func in self.funcs]

    def get_reward_funcs(self) -> list[Callable[..., Any]]:
        """Return the functions."""
        return list(self.funcs)

    def get_reward_weights(self) -> list[float]:
        """Return the weights of the functions."""
        return list(self.weights)

    # Before 0.1.9 the public methods were called, and packages override them.
    def _get_reward_func_names(self) -> list[str]:
        return self.get_reward_func_names()

    def _get_reward_funcs(self) -> list[Callable[..., Any]]:
        return self.get_reward_funcs()

    def _get_reward_weights(self) -> list[float]:
        return self.get_reward_weights()

    def _weighted(self) -> list[tuple[Callable[..., Any], float]]:
        """Return the functions with their weights; missing weights are 0."""
        funcs, weights = self._get_reward_funcs(), self._get_reward_weights()
        if len(funcs) != len(weights):
            self.logger.warning(
                f"{type(self).__name__} has {len(funcs)} reward functions and {len(weights)} weights; "
                "functions without a weight count 0, as in v0: give one weight per function"
            )
        missing = [0.0] * (len(funcs) - len(weights))
        return list(zip(funcs, [*weights, *missing], strict=False))

    def _is_group_func(self, func: Callable[..., Any]) -> bool:
        signature = inspect.signature(func)
        returned = signature.return_annotation
        takes_group = not _PLURALS.isdisjoint(signature.parameters)
        return takes_group or returned is list or get_origin(returned) is list

    @property
    def has_group_rewards(self) -> bool:
        """Whether a function needs a whole group."""
        return any(self._is_group_func(func) for func in self.funcs)

    @property
    def has_advantages(self) -> bool:
        """Whether the rubric sets its own advantages."""
        return False

    def score_objects(self, state: State) -> dict[str, Any]:
        """Return the arguments that functions can take by name."""
        task = state.get("task")
        objects = {
            **_columns(state, task),
            "prompt": state["prompt"],
            "completion": state["completion"],
            "answer": state.get("answer", ""),
            "state": state,
            "info": state.get("info", {}),
            **self.class_objects,
            "task": task,
        }
        for provider in self.score_object_providers:
            objects |= provider(state)
        return objects

    def group_score_objects(self, states: list[State]) -> dict[str, Any]:
        """Return the arguments that group functions can take by name."""
        objects_of_states = [self.score_objects(state) for state in states]
        objects = {
            "prompts": [state["prompt"] for state in states],
            "completions": [state["completion"] for state in states],
            "answers": [state.get("answer", "") for state in states],
            "states": states,
            "tasks": [objects.get("task") for objects in objects_of_states],
            "infos": [objects.get("info", {}) for objects in objects_of_states],
            **self.class_objects,
        }
        for provider in self.group_score_object_providers:
            objects |= provider(states)
        return objects

    async def _call_individual_reward_func(self, func: Callable[..., Any], state: State) -> float:
        return await self._value(func, self.score_objects(state), float, 0.0, [state])

    async def _call_group_reward_func(self, func: Callable[..., Any], states: list[State]) -> list[float]:
        objects = self.group_score_objects(states)
        return await self._value(func, objects, lambda scores: scores, [0.0] * len(states), states)

    async def _value(
        self,
        func: Any,
        objects: dict[str, Any],
        as_value: Callable[[Any], Any],
        zero: Any,
        states: Sequence[dict[str, Any]],
    ) -> Any:
        """Return the value of a function. If it raises, record the error in the states and return `zero`."""
        name = function_name(func)
        try:
            with phase(f"reward {name}"):
                return as_value(await call_user(func, **named_args(func, objects)))
        except Exception as error:
            if fixed() or isinstance(error, LimitReachedError):
                raise
            # As in v0, whose only trace of the error is this line. The record also has it, for the summary of the run.
            self.logger.error(f"Error calling reward function {name}: {error}")
            for state in states:
                state.setdefault(REWARD_ERRORS, {})[name] = f"{type(error).__name__}: {error}"
            return zero

    async def score_rollout(self, *arguments: Any, **named: Any) -> Any:
        """Set `state["reward"]` and `state["metrics"]` of a finished rollout, given its `state`.

        With the arguments of 0.1.0 to 0.1.7, (prompt, completion, answer, state, task, info), by position or by name, return
        a `RolloutScore` instead.
        """
        state = single_state(arguments, named)
        if state is None:
            return await self.legacy_score_rollout(*arguments, **named)
        if not self.funcs or self.has_group_rewards:
            raise AssertionError(
                "Rubric.score_rollout requires at least one individual-level reward function and no group-level reward "
                "functions; score_group takes both"
            )
        pairs = self._weighted()
        values = [await self._call_individual_reward_func(func, state) for func, _ in pairs]
        state["reward"] = sum(value * weight for value, (_, weight) in zip(values, pairs, strict=True))
        state["metrics"] = dict(zip(self._get_reward_func_names(), values, strict=True))

    async def score_group(self, states: list[State], score_sem: Any = None) -> None:
        """Set reward, metrics and advantage of the rollouts of one example, function after function.

        Args:
            score_sem: ignored; 0.1.8 to 0.1.10 limited concurrent calls with it.
        """
        if await score_with_legacy_overrides(self, states, Rubric):
            return _set_advantages(states)
        rewards = [0.0] * len(states)
        metrics: list[dict[str, float]] = [{} for _ in states]
        for func, weight in self._weighted():
            if self._is_group_func(func):
                values = await self._call_group_reward_func(func, states)
            else:
                values = await asyncio.gather(*(self._call_individual_reward_func(func, state) for state in states))
            for i in range(len(states)):
                rewards[i] += values[i] * weight
                metrics[i][function_name(func)] = values[i]
        for state, reward, values in zip(states, rewards, metrics, strict=True):
            state["reward"], state["metrics"] = reward, values
        _set_advantages(states)

    async def dummy_score_rollout(self, state: State) -> None:
        """Set a reward of 0 and no metrics."""
        state["reward"], state["metrics"] = 0.0, {}

    async def dummy_score_group(self, states: list[State]) -> None:
        """Set rewards of 0 and no metrics."""
        for state in states:
            await self.dummy_score_rollout(state)

    async def cleanup(self, state: State) -> None:
        """Run the `@cleanup` methods, after scoring."""
        objects = {**self.class_objects, **_columns(state, state.get("task")), "state": state}
        objects |= {name: state.get(name) for name in ("prompt", "completion", "answer", "info", "task")}
        for handler in self._cleanup_handlers:
            await maybe_call_with_named_args(handler, **objects)

    async def teardown(self) -> None:
        """Run the `@teardown` methods."""
        for handler in self._teardown_handlers:
            await call_user(handler)


def _normalize_arguments(
    funcs: Any, positional: tuple[Any, ...], weights: Any, parser: Any
) -> tuple[list[Any], Any, Any]:
    """Return functions, weights and parser; the functions may be separate positional arguments."""
    if callable(funcs):
        outdated("Rubric(func, …)", "pass a list: Rubric(funcs=[…], weights=[…])")
        return [funcs, *positional], weights, parser
    if len(positional) > 2:
        raise TypeError(f"Rubric takes funcs, weights and parser; got {2 + len(positional)} positional arguments")
    arguments = {"weights": weights, "parser": parser, **dict(zip(("weights", "parser"), positional, strict=False))}
    # v0 does not copy the lists; some packages append to them later.
    return funcs or [], arguments["weights"], arguments["parser"]


def _columns(state: State, task: Any) -> dict[str, Any]:
    """Return the additional columns of the dataset row, and the fields of the task."""
    columns: dict[str, Any] = {}
    row = state.get("input")
    if isinstance(row, Mapping):
        columns = {name: value for name, value in row.items() if name not in INPUT_FIELDS}
    if isinstance(task, Mapping):
        columns |= task
    return columns


def _set_advantages(states: Sequence[State]) -> None:
    mean = sum(state["reward"] for state in states) / len(states) if states else 0.0
    for state in states:
        state["advantage"] = state["reward"] - mean
        # An environment may have set the rewards of its turns, which then stay.
        for step in state["trajectory"]:
            if step["advantage"] is None:
                step["advantage"] = state["advantage"]
            if step["reward"] is None:
                step["reward"] = state["reward"]


async def score_single(rubric: Rubric, state: State) -> None:
    """Score one rollout with the rubric's `score_rollout`, which may have the arguments of 0.1.0 to 0.1.7."""
    if not await score_with_legacy_overrides(rubric, [state], Rubric):
        await call_scoring(rubric.score_rollout, state)


class RubricGroup(Rubric):
    """Several rubrics; rewards and metrics of the same name are added. Functions are added to the first rubric.

    Raises:
        ValueError: there is no rubric.
    """

    def __init__(self, rubrics: list[Rubric], **kwargs: Any):
        if not rubrics:
            raise ValueError("RubricGroup must have at least one rubric")
        super().__init__(**kwargs)
        self.rubrics = rubrics

    def get_reward_func_names(self) -> list[str]:
        """Return the names of all functions."""
        return list(chain.from_iterable(rubric._get_reward_func_names() for rubric in self.rubrics))

    def get_reward_funcs(self) -> list[Callable[..., Any]]:
        """Return all functions."""
        return list(chain.from_iterable(rubric._get_reward_funcs() for rubric in self.rubrics))

    def get_reward_weights(self) -> list[float]:
        """Return the weights of all functions."""
        return list(chain.from_iterable(rubric._get_reward_weights() for rubric in self.rubrics))

    @property
    def has_group_rewards(self) -> bool:
        """Whether a rubric has a function that needs a whole group."""
        return any(rubric.has_group_rewards for rubric in self.rubrics)

    @property
    def has_advantages(self) -> bool:
        """Whether a rubric sets its own advantages."""
        return any(rubric.has_advantages for rubric in self.rubrics)

    def add_reward_func(self, func: Callable[..., Any], weight: float = 1.0) -> None:
        """Add a function to the first rubric."""
        self._first_rubric("reward function").add_reward_func(func, weight)

    def add_metric(self, func: Callable[..., Any], weight: float = 0.0) -> None:
        """Add a metric to the first rubric."""
        self._first_rubric("metric").add_metric(func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Add a class object to the first rubric."""
        self._first_rubric("class object").add_class_object(name, obj)

    def _first_rubric(self, added: str) -> Rubric:
        self.logger.warning(f"Adding {added} to the first rubric in the group.")
        return self.rubrics[0]

    def add_score_object_provider(self, provider: Callable[[State], Mapping[str, Any]]) -> None:
        """Pass what `provider(state)` returns to functions of all rubrics."""
        for rubric in self.rubrics:
            rubric.add_score_object_provider(provider)

    def add_group_score_object_provider(self, provider: Callable[[list[State]], Mapping[str, Any]]) -> None:
        """Pass what `provider(states)` returns to group functions of all rubrics."""
        for rubric in self.rubrics:
            rubric.add_group_score_object_provider(provider)

    async def score_rollout(self, *arguments: Any, **named: Any) -> Any:
        """Set reward and metrics of a finished rollout; see `Rubric.score_rollout`."""
        state = single_state(arguments, named)
        if state is None:
            return await self.legacy_score_rollout(*arguments, **named)
        await self._add_up([state], lambda rubric, states: score_single(rubric, states[0]))

    async def score_group(self, states: list[State], score_sem: Any = None) -> None:
        """Set rewards and metrics of the rollouts of one example.

        The advantage is computed from the first rubric's reward (with ROVE_COMPAT=fixed, from the whole reward).
        """
        steps = list(chain.from_iterable(state["trajectory"] for state in states))
        original = [(step, step["advantage"], step["reward"]) for step in steps]
        await self._add_up(states, lambda rubric, states: call_scoring(rubric.score_group, states))
        # Each rubric sets the advantages that are None, so that in v0 the first one decides. With two rewarding rubrics
        # and the rewards 1, 10, 0 and 0, the rollout with 10 got a negative advantage.
        if fixed():
            for step, advantage, reward in original:
                step["advantage"], step["reward"] = advantage, reward
            _set_advantages(states)

    async def _add_up(self, states: list[State], score: Callable[[Rubric, list[State]], Any]) -> None:
        rewards = [0.0] * len(states)
        metrics: list[dict[str, float]] = [{} for _ in states]
        original = [(state.get("reward"), state.get("metrics")) for state in states]
        for rubric in self.rubrics:
            await score(rubric, states)
            for i, state in enumerate(states):
                rewards[i] += state["reward"] or 0.0
                for name, value in (state["metrics"] or {}).items():
                    metrics[i][name] = metrics[i].get(name, 0.0) + value
                # The next rubric finds the state as the first did.
                reward, values = original[i]
                state["reward"], state["metrics"] = reward, dict(values or {})
        for state, reward, values in zip(states, rewards, metrics, strict=True):
            state["reward"], state["metrics"] = reward, values

    async def cleanup(self, state: State) -> None:
        """Run the `@cleanup` methods of all rubrics."""
        await super().cleanup(state)
        for rubric in self.rubrics:
            await rubric.cleanup(state)

    async def teardown(self) -> None:
        """Run the `@teardown` methods of all rubrics."""
        await super().teardown()
        for rubric in self.rubrics:
            await rubric.teardown()


def strict_boxed_answer(text: str) -> str:
    r"""Return the content of the last `\boxed{…}`; "" without one."""
    return extract_boxed_answer(text, strict=True)


# Releases in which `MathRubric` changed; docs/compat.md has the table.
_NO_TAGS = Version("0.1.2.post1")
_LAST_BOX = Version("0.1.5")
_OPTIONAL_REASONING = Version("0.1.7")
_SHORT_NAME = Version("0.1.9")
_STRICT = Version("0.1.12")


def boxed_answer_extractor() -> Callable[..., str]:
    """Return the `extract_boxed_answer` of the release that the calling package is written for."""
    return extract_boxed_answer if written_for() >= _LAST_BOX else extract_first_boxed_answer


def _default_math_parser(version: Version) -> Parser:
    if version < _NO_TAGS:
        return XMLParser(["think", "answer"])
    if version < _OPTIONAL_REASONING:
        return ThinkParser(extract_boxed_answer if version >= _LAST_BOX else extract_first_boxed_answer)
    return MaybeThinkParser(extract_boxed_answer if version < _STRICT else strict_boxed_answer)


class MathRubric(Rubric):
    """Rewards answers that are equivalent to the reference answer (`correct_answer`, weight 1); see `rove.MathRubric`.

    A comparison that fails or takes too long gives 0 (with ROVE_COMPAT=fixed, an error if the reference answer is the
    cause). For a package whose requirement on `verifiers` excludes newer releases, the parser and the name of the
    function are those of the newest allowed release. Until 0.1.2.post0, the tags are `<think>` and `<answer>`, and
    their format has the weight 0.2.

    Raises:
        ConfigError: math-verify is not installed.
    """

    MAX_VERIFY_CHARS = 50_000

    def __init__(
        self,
        funcs: list[Callable[..., Any]] | None = None,
        weights: list[float] | None = None,
        parser: Parser | None = None,
        max_workers: int = 8,
        timeout_seconds: float = 5,
        max_verify_chars: int = MAX_VERIFY_CHARS,
    ):
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("MathRubric needs math-verify: pip install 'rove[math]'")
        version = written_for()
        super().__init__(funcs=funcs, weights=weights, parser=parser or _default_math_parser(version))
        self.max_verify_chars = max_verify_chars
        self.timeout_seconds = timeout_seconds
        self._pool = MathPool(max(1, min(max_workers, os.cpu_count() or 1)), timeout_seconds, strict=False)
        # The function's name is the metric's: scores under another name could not be compared with published ones.
        self.add_reward_func(self.correct_answer if version >= _SHORT_NAME else self.correct_answer_reward_func)
        if version < _NO_TAGS:
            self.add_reward_func(self.parser.get_format_reward_func(), weight=0.2)

    async def correct_answer(self, parser: Parser, completion: Any, answer: Any, **kwargs: Any) -> float:
        """Return 1.0 if the parsed answer is equivalent to `answer`, else 0.0."""
        response = parser.parse_answer(completion) or ""
        if not response or len(response) > self.max_verify_chars:
            return 0.0
        compare = self._pool.grade if fixed() else self._pool.equal
        try:
            return float(await compare(str(answer), str(response)))
        except Error as error:
            if fixed():
                raise
            self.logger.warning(f"Math verification failed: {error}")
            return 0.0

    async def correct_answer_reward_func(self, parser: Parser, completion: Any, answer: Any, **kwargs: Any) -> float:
        """`correct_answer` under its name until 0.1.8."""
        return await self.correct_answer(parser, completion, answer, **kwargs)

    async def teardown(self) -> None:
        """End the worker processes."""
        await super().teardown()
        await asyncio.to_thread(self._pool.close)
