"""Weighted reward functions over finished rollouts."""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, SupportsFloat, TypeVar, cast

from rove.core.code_digest import digest_code
from rove.core.errors import ConfigError, Error, nearest, phase, short_repr
from rove.core.plain import Arguments, JsonObject
from rove.core.records import Scores
from rove.core.state import INPUT_FIELDS, READABLE, State, bookkeeping, completion_of, prompt_of
from rove.rubrics.parser import Parser
from rove.utils.functions import function_name, maybe_await, unwrapped

RewardFunc = Callable[..., Any]
"""A reward function takes arguments by name and returns a number, or one number per state if marked with `group_reward`."""

_FuncT = TypeVar("_FuncT", bound=RewardFunc)

_ABSENT = object()
_GROUP_MARK = "rove_group_reward"
_PLURALS = {"prompts": "prompt", "completions": "completion", "answers": "answer", "infos": "info", "tasks": "task"}
_GROUP_NAMES = frozenset({"states", "parser", *_PLURALS})
_STATE_FIRST = INPUT_FIELDS | {"completion"}
"""Names that are looked up in the state before the dataset row."""
_FALLBACKS: dict[str, Callable[[], Any]] = {"answer": str, "info": dict}
_RESERVED = _STATE_FIRST | {"state", "states", *_PLURALS}


def group_reward(func: _FuncT) -> _FuncT:
    """Mark a reward function that compares the members of a group.

    It is called once per group with the lists `states`, `prompts`, `completions`, `answers`, `infos`, `tasks` (also
    `parser` and class objects) and returns one number per state.

    Example:
        @rove.group_reward
        def shortest(completions) -> list[float]:
            lengths = [len(str(completion)) for completion in completions]
            return [float(length == min(lengths)) for length in lengths]
    """
    setattr(func, _GROUP_MARK, True)
    return func


@dataclass(frozen=True, slots=True)
class _Function:
    """A reward function and its signature."""

    func: RewardFunc
    name: str
    weight: float
    is_group: bool
    parameters: tuple[str, ...]
    """Names of its parameters."""
    required: frozenset[str]
    """Parameters without a default."""
    takes_all: bool
    """Whether it has **kwargs."""
    bound: frozenset[str]
    """Names already bound by functools.partial: never injected."""

    @property
    def phase(self) -> str:
        return f"reward {self.name}"

    def arguments(self, find: Callable[[str], Any], available: Callable[[], Iterable[str]]) -> Arguments:
        """Return the arguments of a call: `find` looks up a name, `available` lists all names."""
        # Without **kwargs, `available` is not called: it reads all keys of the state.
        names = self.required.union(available()) - self.bound if self.takes_all else self.parameters
        arguments: Arguments = {}
        for name in names:
            value = find(name)
            if value is not _ABSENT:
                arguments[name] = value
            elif name in self.required:
                raise ConfigError(self._missing_message(name, sorted(available())))
        return arguments

    def _missing_message(self, name: str, available: list[str]) -> str:
        hint, listing = nearest(name, available), ", ".join(available)
        if listing not in hint:
            hint = f"{hint} (available: {listing})"
        if name in _GROUP_NAMES and not self.is_group:
            hint += "; a function over a whole group is marked with @group_reward"
        return (
            f"reward function '{self.name}' needs '{name}', which is neither a standard argument, a class object, "
            f"a dataset column nor a key of the state: {hint}"
        )


class Rubric:
    """Weighted reward functions: the reward is the sum of weight * value. A function with weight 0 is a metric.

    Functions may be async and get their arguments by name: `prompt`, `completion`, `answer` (default ""), `info`
    (default {}), `task`, `state`, `parser`, class objects, columns of the dataset row, then keys of the state. A
    parameter that matches none of these keeps its default; `**kwargs` receives all of them. Functions marked with
    `group_reward` run once per group. A rubric never writes to the state. A function that raises makes the rollout
    fail; it does not count as 0.

    Args:
        funcs: reward functions; add more with `add_reward_func` and `add_metric`.
        weights: one per function. Default: 1.0 each.
        parser: injected as `parser`. Default: that of the environment, else a plain `Parser`.

    Raises:
        ConfigError: the number of weights is wrong, or a function cannot be added (see `add_reward_func`).

    Example:
        def correct(parser, completion, answer) -> float:
            return float(parser.parse_answer(completion) == answer)

        rubric = rove.Rubric([correct], [1.0], parser=rove.XMLParser(["think", "answer"]))
    """

    use_count = 0
    """Number of runs that currently use this rubric; see `rove.Environment.used_in_run`."""

    def __init__(
        self,
        funcs: Sequence[RewardFunc] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
    ):
        self.parser: Any = parser or Parser()
        self.has_own_parser = parser is not None
        self.class_objects: dict[str, object] = {}
        self.rubrics: list[Rubric] = []
        """Rubrics of a `RubricGroup`; their scores are merged with those of this rubric's own functions."""
        self._functions: list[_Function] = []
        funcs = list(funcs or ())
        weights = [1.0] * len(funcs) if weights is None else list(weights)
        if len(weights) != len(funcs):
            raise ConfigError(f"{len(weights)} weights for {len(funcs)} reward functions; give one weight per function")
        for func, weight in zip(funcs, weights, strict=True):
            self.add_reward_func(func, weight)

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0, name: str | None = None) -> None:
        """Add a reward function; with weight 0, a metric.

        Args:
            func: see the class.
            weight: factor of its value in the reward.
            name: key of its values. Default: the name of the function.

        Raises:
            ConfigError: the name is taken, the weight is not finite, or `func` cannot take arguments by name.
        """
        if not callable(func):
            raise ConfigError(f"{func!r} is not a reward function; expected a callable")
        name = name or function_name(func)
        self._check_free(name)
        if not isinstance(weight, (int, float)) or not math.isfinite(weight):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"the weight of reward function '{name}' is {weight!r}; expected a finite number")
        self._functions.append(_inspected(func, float(weight), name))

    def _check_free(self, name: str) -> None:
        if name in self.names:
            raise ConfigError(f"a function named '{name}' exists already; pass name= to add_reward_func or add_metric")

    def add_metric(self, func: RewardFunc, weight: float = 0.0, name: str | None = None) -> None:
        """Add a function that is reported but does not count towards the reward; see `add_reward_func`."""
        self.add_reward_func(func, weight, name)

    def adopt_parser(self, parser: Parser) -> None:
        """Use the environment's parser unless the rubric was given one."""
        for rubric in self.rubrics:
            rubric.adopt_parser(parser)
        if not self.has_own_parser:
            self.parser = parser

    def add_class_object(self, name: str, obj: object) -> None:
        """Make `obj` available to every function as the argument `name`.

        Raises:
            ConfigError: `name` is reserved for a part of the rollout, such as "answer".
        """
        if name in _RESERVED:
            raise ConfigError(
                f"class object '{name}' would hide a part of the rollout; reserved names: {sorted(_RESERVED)}"
            )
        if name == "parser":
            self.parser, self.has_own_parser = obj, True
        else:
            self.class_objects[name] = obj

    @property
    def names(self) -> list[str]:
        """Names of all functions in the order in which they were added."""
        members = chain.from_iterable(rubric.names for rubric in self.rubrics)
        return [*members, *(function.name for function in self._functions)]

    @property
    def num_functions(self) -> int:
        """The number of functions, those of all members included."""
        total = len(self._functions)
        for rubric in self.rubrics:
            total += rubric.num_functions
        return total

    @property
    def components(self) -> list[Rubric]:
        """The rubrics that are torn down separately."""
        members = list(chain.from_iterable(rubric.components for rubric in self.rubrics))
        return members or [self]

    @property
    def extras_names(self) -> list[str]:
        """Keys of the additional data in `Scores.extras`."""
        return list(chain.from_iterable(rubric.extras_names for rubric in self.rubrics))

    @property
    def identity(self) -> list[str]:
        """Name, weight and code hash of every function."""
        entries = list(chain.from_iterable(rubric.identity for rubric in self.rubrics))
        for function in self._functions:
            code = digest_code(unwrapped(function.func))
            entries.append(f"{function.name} × {function.weight:g} #{code}")
        return entries

    @property
    def has_group_rewards(self) -> bool:
        """Whether a function needs the whole group."""
        members_have = any(rubric.has_group_rewards for rubric in self.rubrics)
        return members_have or any(function.is_group for function in self._functions)

    @property
    def group_reward_names(self) -> list[str]:
        """Names of the functions that need the whole group."""
        names = list(chain.from_iterable(rubric.group_reward_names for rubric in self.rubrics))
        return [*names, *(function.name for function in self._functions if function.is_group)]

    async def score_rollout(self, state: State) -> Scores:
        """Score one finished rollout without group functions.

        Exceptions of a function pass through, marked with the phase "reward <name>".

        Raises:
            ConfigError: a function needs an argument that does not exist.
            Error: a function did not return a finite number.
        """
        values: dict[str, float] = {}
        for function in self._functions:
            if not function.is_group:
                with phase(function.phase):
                    arguments = function.arguments(lambda name: self._find(name, state), lambda: self._available(state))
                    values[function.name] = _number(function.name, await maybe_await(function.func(**arguments)))
        scores = self._scores(values)
        if not self.rubrics:
            return scores
        members = [await rubric.score_rollout(state) for rubric in self.rubrics]
        return merge_scores([*members, scores] if values else members)

    async def score_group(self, states: Sequence[State], scores: Sequence[Scores] | None = None) -> list[Scores]:
        """Score the members of a group, with group functions.

        Args:
            states: finished rollouts of one example.
            scores: results of `score_rollout`, one per state. Default: computed here.

        Raises:
            ConfigError: as for `score_rollout`, or the number of `scores` is wrong.
            Error: as for `score_rollout`, or a group function did not return one number per state.
        """
        if scores is None:
            scores = [await self.score_rollout(state) for state in states]
        if len(scores) != len(states):
            raise ConfigError(f"{len(scores)} scores for {len(states)} states; pass one per state, in the same order")
        group = list(states)
        merged = list(scores)
        for rubric in self.rubrics:
            merged = await rubric.score_group(group, merged)
        for function in self._functions:
            if function.is_group and group:
                values = await self._group_values(function, group)
                added = [self._scores({function.name: value}) for value in values]
                merged = [merge_scores(parts) for parts in zip(merged, added, strict=True)]
        return merged

    async def teardown(self) -> None:
        """Free resources, except those of rubrics that a run still uses; called once, after all scoring."""
        async with AsyncExitStack() as stack:
            for rubric in self.rubrics:
                if not rubric.use_count:
                    stack.push_async_callback(rubric.teardown)

    async def _group_values(self, function: _Function, states: list[State]) -> list[float]:
        with phase(function.phase):
            available = _GROUP_NAMES.union(self.class_objects)
            arguments = function.arguments(lambda name: self._find_for_group(name, states), lambda: available)
            result = await maybe_await(function.func(**arguments))
            if not isinstance(result, Iterable):
                raise Error(
                    f"group reward function '{function.name}' returned {short_repr(result)}; "
                    f"expected a list of {len(states)} numbers, one per state"
                )
            values = [_number(function.name, value) for value in cast(Iterable[object], result)]
            if len(values) != len(states):
                raise Error(
                    f"group reward function '{function.name}' returned {len(values)} values for {len(states)} states; "
                    "expected one per state, in the same order"
                )
            return values

    def _scores(self, values: Mapping[str, float]) -> Scores:
        weighted = [function for function in self._functions if function.weight]
        weights = {function.name: function.weight for function in weighted if function.name in values}
        rewards = {name: values[name] for name in weights}
        metrics = {name: value for name, value in values.items() if name not in weights}
        return Scores(_weighted_sum(rewards, weights), rewards, weights, metrics)

    def _available(self, state: State) -> set[str]:
        row = bookkeeping(state).input or {}
        recorded = {name for name in READABLE if name in state}
        return {"state", "parser", *_FALLBACKS, *self.class_objects, *row, *recorded, *map(str, state)}

    def _find(self, name: str, state: State) -> Any:
        if name == "state":
            return state
        if name == "parser":
            return self.parser
        if name in self.class_objects:
            return self.class_objects[name]
        # Always rove's values, even if the author has set keys of these names (docs/decisions/state.md).
        if name == "prompt" and "prompt" in state:
            return prompt_of(state)
        if name == "completion" and "completion" in state:
            return completion_of(state)
        row = bookkeeping(state).input or {}
        if name not in _STATE_FIRST and name in row:
            return row[name]
        value = state.get(name, _ABSENT)
        if value is _ABSENT and name in _FALLBACKS:
            return _FALLBACKS[name]()
        return value

    def _find_for_group(self, name: str, states: list[State]) -> object:
        if name == "states":
            return states
        if name in _PLURALS:
            values = [self._find(_PLURALS[name], state) for state in states]
            return [None if value is _ABSENT else value for value in values]
        return self.parser if name == "parser" else self.class_objects.get(name, _ABSENT)


class RubricGroup(Rubric):
    """Several rubrics as one: rewards are summed, values and metrics are merged.

    Functions and class objects added to the group go to its first rubric.

    Args:
        rubrics: at least one. Function names and names of `JudgeRubric` must be unique.

    Raises:
        ConfigError: `rubrics` is empty, or a name occurs twice.
    """

    def __init__(self, rubrics: Sequence[Rubric]):
        if not rubrics:
            raise ConfigError("a RubricGroup needs at least one rubric; got none")
        super().__init__(parser=rubrics[0].parser)
        self.has_own_parser = rubrics[0].has_own_parser
        self.rubrics = list(rubrics)
        # `Environment.scoring_rubric` makes a group for every rollout, so names are listed once.
        duplicates = _duplicates(self.names)
        if duplicates:
            raise ConfigError(f"{duplicates} are in more than one rubric; pass name= to add_reward_func or add_metric")
        duplicates = _duplicates(self.extras_names)
        if duplicates:
            raise ConfigError(f"more than one rubric is named {duplicates}; pass name= to JudgeRubric")

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0, name: str | None = None) -> None:
        """Add a function to the first rubric; see `Rubric.add_reward_func`."""
        name = name or function_name(func)
        self._check_free(name)
        self.rubrics[0].add_reward_func(func, weight, name)

    def add_class_object(self, name: str, obj: object) -> None:
        """Add a class object to the first rubric; see `Rubric.add_class_object`."""
        self.rubrics[0].add_class_object(name, obj)


def _duplicates(names: Sequence[str]) -> list[str]:
    if len(set(names)) == len(names):
        return []
    return sorted(name for name, count in Counter(names).items() if count > 1)


def merge_scores(parts: Sequence[Scores]) -> Scores:
    """Merge scores of the same rollout from several rubrics or functions."""
    rewards: dict[str, float] = {}
    weights: dict[str, float] = {}
    metrics: dict[str, float] = {}
    extras: JsonObject = {}
    for part in parts:
        names = rewards.keys() | metrics.keys()
        duplicates = names & (part.rewards.keys() | part.metrics.keys())
        if duplicates:
            raise ConfigError(
                f"two functions are named {sorted(duplicates)}; pass name= to add_reward_func or add_metric"
            )
        rewards |= part.rewards
        weights |= part.weights
        metrics |= part.metrics
        extras |= part.extras
    return Scores(_weighted_sum(rewards, weights), rewards, weights, metrics, extras)


def _weighted_sum(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    # fsum: the reward must not depend on the order of the functions.
    return math.fsum(weights[name] * value for name, value in rewards.items())


def _number(name: str, value: object) -> float:
    # __float__ accepts numbers of numpy and torch and rejects texts.
    try:
        number = float(cast(SupportsFloat, value)) if hasattr(value, "__float__") else math.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise Error(f"reward function '{name}' returned {short_repr(value)}; expected a finite number")
    return number


def _inspected(func: RewardFunc, weight: float, name: str) -> _Function:
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"reward function '{name}' hides its arguments ({error}); wrap it in a def") from error
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise ConfigError(
                f"argument '{parameter.name}' of reward function '{name}' is positional-only, but arguments are given "
                "by name; remove the '/' or wrap the function in a def"
            )
    bound: frozenset[str] = frozenset(
        getattr(func, "keywords", ()) if isinstance(cast(object, func), functools.partial) else ()
    )
    free = [parameter for parameter in parameters if parameter.name not in bound]
    by_name = [p for p in free if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    inner = unwrapped(func)
    marked: tuple[Any, ...] = (func, inner, getattr(inner, "__call__", None))  # noqa: B004  the mark may be on `__call__` of a class
    return _Function(
        func=func,
        name=name,
        weight=weight,
        is_group=any(hasattr(part, _GROUP_MARK) for part in marked),
        parameters=tuple(p.name for p in by_name),
        required=frozenset(p.name for p in by_name if p.default is p.empty),
        takes_all=any(p.kind is p.VAR_KEYWORD for p in parameters),
        bound=bound,
    )
