"""Weighted reward functions over finished rollouts."""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rove.core.digest import digest_code
from rove.core.errors import ConfigError, Error, nearest, phase
from rove.core.records import Scores
from rove.core.state import INPUT_FIELDS, State
from rove.parsers.parser import Parser
from rove.utils.functions import function_name, maybe_await, unwrapped

RewardFunc = Callable[..., Any]
"""A reward function: arguments by name, returns a number, or (marked with `group_reward`) one number per state."""

_FuncT = TypeVar("_FuncT", bound=RewardFunc)

_ABSENT = object()
_GROUP_MARK = "rove_group_reward"
_PLURALS = {"prompts": "prompt", "completions": "completion", "answers": "answer", "infos": "info", "tasks": "task"}
_GROUP_NAMES = frozenset({"states", "parser", *_PLURALS})
_STATE_FIRST = INPUT_FIELDS | {"completion"}
"""Names whose value in the state wins over a dataset column of that name."""
_FALLBACKS: dict[str, Callable[[], Any]] = {"answer": str, "info": dict}
_RESERVED = _STATE_FIRST | {"state", "states", *_PLURALS}


def group_reward(func: _FuncT) -> _FuncT:
    """Mark a reward function that compares the siblings of a group.

    It is called once for a whole group, with the lists `states`, `prompts`, `completions`, `answers`, `infos`, `tasks`
    (plus `parser` and class objects), and returns one number per state.
    """
    setattr(func, _GROUP_MARK, True)
    return func


@dataclass(frozen=True, slots=True)
class _Function:
    """A reward function with everything about its signature that a call needs."""

    func: RewardFunc
    name: str
    weight: float
    is_group: bool
    parameters: tuple[str, ...]
    """Names it can take."""
    required: frozenset[str]
    """Those without a default."""
    takes_all: bool
    """It has **kwargs."""
    bound: frozenset[str]
    """Names already bound by functools.partial: never injected."""

    @property
    def phase(self) -> str:
        return f"reward {self.name}"

    def arguments(self, find: Callable[[str], Any], available: Callable[[], Iterable[str]]) -> dict[str, Any]:
        """What to call it with: `find` looks a name up, `available` lists the names there are."""
        names = self.required.union(available()) - self.bound if self.takes_all else self.parameters
        found: dict[str, Any] = {}
        for name in names:
            value = find(name)
            if value is not _ABSENT:
                found[name] = value
            elif name in self.required:
                raise ConfigError(self._complaint(name, sorted(available())))
        return found

    def _complaint(self, name: str, available: list[str]) -> str:
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
    """Weighted reward functions: the reward is the sum of weight * value; a function of weight 0 is a metric.

    Functions are sync or async and get their arguments by name: `prompt`, `completion`, `answer` ("" when the row has
    none), `info` ({} likewise), `task`, `state`, `parser`, class objects, columns of the dataset row, then any other
    key of the state. A parameter whose name nobody has keeps its default; `**kwargs` gets everything. Functions marked
    with `group_reward` run once per group. Nothing here writes to the state; a failing function is an error, not a 0.

    Args:
        funcs: reward functions; more can be added with `add_reward_func` and `add_metric`. Default: none.
        weights: one per function. Default: 1.0 each.
        parser: injected as `parser`. Default: that of the environment, else a plain `Parser`.

    Raises:
        ConfigError: the weights do not match the functions, or a function cannot be added (see `add_reward_func`).
    """

    use_count = 0
    """Runs that use it now; see `rove.Environment.used_in_run`."""

    def __init__(
        self,
        funcs: Sequence[RewardFunc] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
    ):
        self.parser: Any = parser or Parser()
        self.has_own_parser = parser is not None
        self.class_objects: dict[str, Any] = {}
        self._functions: list[_Function] = []
        funcs = list(funcs or ())
        weights = [1.0] * len(funcs) if weights is None else list(weights)
        if len(weights) != len(funcs):
            raise ConfigError(f"{len(weights)} weights for {len(funcs)} reward functions; give one weight per function")
        for func, weight in zip(funcs, weights, strict=True):
            self.add_reward_func(func, weight)

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0, name: str | None = None) -> None:
        """Add a function that counts towards the reward (a metric if `weight` is 0).

        Args:
            name: the key of its values. Default: the function's own name.

        Raises:
            ConfigError: the name is taken, the weight is no finite number, or `func` cannot take arguments by name.
        """
        if not callable(func):
            raise ConfigError(f"{func!r} is not a reward function; expected something to call")
        name = name or function_name(func)
        if name in self.names:
            raise ConfigError(f"a function named '{name}' is here already; pass name= to add_reward_func or add_metric")
        if not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise ConfigError(f"the weight of reward function '{name}' is {weight!r}; expected a finite number")
        self._functions.append(_inspected(func, float(weight), name))

    def add_metric(self, func: RewardFunc, weight: float = 0.0, name: str | None = None) -> None:
        """Add a function that is only reported; otherwise like `add_reward_func`."""
        self.add_reward_func(func, weight, name)

    def adopt_parser(self, parser: Parser) -> None:
        """Take the environment's parser, unless one was given."""
        if not self.has_own_parser:
            self.parser = parser

    def add_class_object(self, name: str, obj: Any) -> None:
        """Make `obj` available to every function as the argument `name`.

        Raises:
            ConfigError: `name` is one that always means something of the rollout, such as "answer".
        """
        if name in _RESERVED:
            raise ConfigError(f"class object '{name}' would hide the rollout's own; names taken: {sorted(_RESERVED)}")
        if name == "parser":
            self.parser, self.has_own_parser = obj, True
        else:
            self.class_objects[name] = obj

    @property
    def names(self) -> list[str]:
        """Names of all functions, in the order they were added."""
        return [function.name for function in self._functions]

    @property
    def held_parts(self) -> list[Rubric]:
        """The rubrics that are torn down one by one: itself."""
        return [self]

    @property
    def extras_names(self) -> list[str]:
        """Keys of what it notes beside the scores, in their `extras`: none."""
        return []

    @property
    def identity(self) -> list[str]:
        """Name, weight and hash of the code of every function."""
        return [f"{f.name} × {f.weight:g} #{digest_code(unwrapped(f.func))}" for f in self._functions]

    @property
    def has_group_rewards(self) -> bool:
        """Whether some function needs the whole group."""
        return any(function.is_group for function in self._functions)

    async def score_rollout(self, state: State) -> Scores:
        """Scores of one finished rollout, group functions left out.

        Raises:
            ConfigError: a function needs an argument that nobody has.
            Error: a function did not return a finite number.

        Whatever a function raises passes through, marked with the phase "reward <name>".
        """
        values: dict[str, float] = {}
        for function in self._functions:
            if not function.is_group:
                with phase(function.phase):
                    arguments = function.arguments(lambda name: self._find(name, state), lambda: self._available(state))
                    values[function.name] = _number(function.name, await maybe_await(function.func(**arguments)))
        return self._scores(values)

    async def score_group(self, states: Sequence[State], scores: Sequence[Scores] | None = None) -> list[Scores]:
        """Scores of the siblings of a group, group functions included.

        Args:
            scores: what `score_rollout` said of each state. Default: every state is scored first, one after another.

        Raises:
            ConfigError: as `score_rollout`, or there is not one of `scores` per state.
            Error: as `score_rollout`, or a group function did not return one number per state.
        """
        if scores is None:
            scores = [await self.score_rollout(state) for state in states]
        if len(scores) != len(states):
            raise ConfigError(f"{len(scores)} scores for {len(states)} states; pass one per state, in the same order")
        group = list(states)
        merged = list(scores)
        for function in self._functions:
            if function.is_group and group:
                values = await self._group_values(function, group)
                added = [self._scores({function.name: value}) for value in values]
                merged = [merge_scores(parts) for parts in zip(merged, added, strict=True)]
        return merged

    async def teardown(self) -> None:
        """Free what the rubric holds; called once, after all scoring. This one holds nothing."""

    async def _group_values(self, function: _Function, states: list[State]) -> list[float]:
        with phase(function.phase):
            available = _GROUP_NAMES.union(self.class_objects)
            arguments = function.arguments(lambda name: self._find_for_group(name, states), lambda: available)
            result = await maybe_await(function.func(**arguments))
            if not isinstance(result, Iterable):
                raise Error(
                    f"group reward function '{function.name}' returned {reprlib.repr(result)}; "
                    f"expected a list of {len(states)} numbers, one per state"
                )
            values = [_number(function.name, value) for value in result]
            if len(values) != len(states):
                raise Error(
                    f"group reward function '{function.name}' returned {len(values)} values for {len(states)} states; "
                    "expected one per state, in the same order"
                )
            return values

    def _scores(self, values: Mapping[str, float]) -> Scores:
        weights = {f.name: f.weight for f in self._functions if f.weight and f.name in values}
        rewards = {name: values[name] for name in weights}
        metrics = {name: value for name, value in values.items() if name not in weights}
        return Scores(_weighted_sum(rewards, weights), rewards, weights, metrics)

    def _available(self, state: State) -> set[str]:
        return {"state", "parser", *_FALLBACKS, *self.class_objects, *(state.get("input") or ()), *state}

    def _find(self, name: str, state: State) -> Any:
        if name == "state":
            return state
        if name == "parser":
            return self.parser
        if name in self.class_objects:
            return self.class_objects[name]
        if name not in _STATE_FIRST:
            row = state.get("input") or {}
            if name in row:
                return row[name]
        value = state.get(name, _ABSENT)
        return _FALLBACKS[name]() if value is _ABSENT and name in _FALLBACKS else value

    def _find_for_group(self, name: str, states: list[State]) -> Any:
        if name == "states":
            return states
        if name in _PLURALS:
            values = [self._find(_PLURALS[name], state) for state in states]
            return [None if value is _ABSENT else value for value in values]
        return self.parser if name == "parser" else self.class_objects.get(name, _ABSENT)


def merge_scores(parts: Sequence[Scores]) -> Scores:
    """The scores of several rubrics, or of several functions, of the same rollout as one.

    Raises:
        ConfigError: two parts have a value of the same name.
    """
    rewards: dict[str, float] = {}
    weights: dict[str, float] = {}
    metrics: dict[str, float] = {}
    extras: dict[str, Any] = {}
    for part in parts:
        twice = (rewards.keys() | metrics.keys()) & (part.rewards.keys() | part.metrics.keys())
        if twice:
            raise ConfigError(f"two functions are named {sorted(twice)}; pass name= to add_reward_func or add_metric")
        rewards |= part.rewards
        weights |= part.weights
        metrics |= part.metrics
        extras |= part.extras
    return Scores(_weighted_sum(rewards, weights), rewards, weights, metrics, extras)


def _weighted_sum(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    # fsum, so that the order in which functions were added cannot change the reward.
    return math.fsum(weights[name] * value for name, value in rewards.items())


def _number(name: str, value: Any) -> float:
    # By __float__, so that numbers of numpy and torch count and texts do not.
    try:
        number = float(value) if hasattr(value, "__float__") else math.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise Error(f"reward function '{name}' returned {reprlib.repr(value)}; expected a finite number")
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
    bound = frozenset(func.keywords if isinstance(func, functools.partial) else ())
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in bound]
    inner = unwrapped(func)
    marked = (func, inner, getattr(inner, "__call__", None))  # noqa: B004  the mark may be on a class's __call__
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
