"""API of releases before 0.1.11 that still works, with a warning that names the replacement."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

from packaging.version import Version

from rove.compat.verifiers.decorators import call_user, named_args
from rove.compat.verifiers.release import outdated
from rove.compat.verifiers.types import RolloutScore, RolloutScores, State, Tool
from rove.utils.functions import is_async

_ASYNC = Version("0.1.3")
"""First release in which environments are asynchronous, and `max_turns` is unlimited by default."""


def as_tool_defs(tools: Sequence[Any] | None) -> list[Tool] | None:
    """Return tool definitions as `Tool`; OpenAI's form, which was used until 0.1.10, is converted."""
    if tools is None:
        return None
    definitions: list[Tool] = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping):
            outdated(
                "a tool as {'type': 'function', 'function': {…}}",
                "give {'name': …, 'description': …, 'parameters': {…}}",
            )
            tool = {"parameters": {"type": "object", "properties": {}}, **function}
        definitions.append(Tool.model_validate(tool))
    return definitions


def info_tools(info: Mapping[str, Any]) -> Sequence[Any] | None:
    """Return the tools in a row's info; None if the info has no tools."""
    if info.get("oai_tools") is None:
        return info.get("tool_defs")
    outdated("info['oai_tools']", "call it info['tool_defs']: [{'name': …, 'description': …, 'parameters': {…}}]")
    arguments = info["oai_tools"]
    return arguments if isinstance(arguments, list) else None


def unpack_env_response(reply: Any, adopt: Callable[[Any], None]) -> Any:
    """Return the messages of an `env_response`; until 0.1.7 it could return (messages, state), in 0.1.0 (message, state)."""
    if not (isinstance(reply, tuple) and len(reply) == 2 and isinstance(reply[1], Mapping)):
        return reply
    outdated("env_response returning (messages, state)", "return the messages and change the state in place")
    messages, state = reply
    adopt(state)
    return [messages] if isinstance(messages, Mapping) else messages


def call_update_tool_args(env: Any, name: str, args: Any, messages: Any, state: State, **kwargs: Any) -> Any:
    """Call `env.update_tool_args`; until 0.1.3 it did not take the tool's name."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(env.update_tool_args).parameters
    num_positional = sum(parameter.kind in kinds for parameter in parameters.values())
    # Packages name the parameters as they like; only their number shows which signature it is.
    if num_positional == 3 and "tool_name" not in parameters:
        outdated("update_tool_args(tool_args, messages, state)", "take tool_name first")
        return env.update_tool_args(args, messages, state, **kwargs)
    return env.update_tool_args(name, args, messages, state, **kwargs)


def ends_by_itself(env: Any) -> bool:
    """Return whether only `is_completed` ends a rollout, as from 0.1.3 on. Until 0.1.2, the loop also had a limit of
    turns, 10 by default.

    A package without a requirement on `verifiers` is written for 0.1.2 if its `is_completed` is synchronous.
    """
    func = type(env).is_completed
    is_inherited = func.__module__.split(".")[0] == "rove"
    return env.written_for >= _ASYNC and (is_inherited or is_async(func))


def default_max_turns(env: Any, argument: int | None) -> int:
    """Return the maximum turns of an environment: 10 by default until 0.1.2, and no limit since then."""
    if argument is None and not ends_by_itself(env):
        outdated(f"{type(env).__name__} without max_turns", "pass max_turns=10, its default, or -1 for no limit")
        return 10
    return -1 if argument is None else argument


def _renamed(name: str, attribute: str) -> Any:
    """Return a property that reads and sets an attribute under its name of older releases."""

    def set_attribute(rubric: Any, value: Any) -> None:
        outdated(f"rubric.{name}", f"set rubric.{attribute}")
        setattr(rubric, attribute, value)

    return property(attrgetter(attribute), set_attribute, doc=f"Now `{attribute}`.")


class LegacyScoring:
    """Attributes and methods that had other names or arguments in a `Rubric` before 0.1.8."""

    funcs: list[Callable[..., Any]]
    weights: list[float]
    parser: Any
    class_objects: dict[str, Any]

    reward_funcs = _renamed("reward_funcs", "funcs")
    reward_weights = _renamed("reward_weights", "weights")

    async def call_reward_func(
        self,
        func: Callable[..., Any],
        parser: Any = None,
        prompt: Any = None,
        completion: Any = None,
        answer: Any = "",
        state: Any = None,
        task: Any = "default",
        info: Any = None,
        **kwargs: Any,
    ) -> float:
        """Return the value of one reward function; 0.0 if it raises."""
        objects = {"prompt": prompt, "completion": completion, "answer": answer, "state": state, "task": task}
        objects |= {**self.class_objects, "parser": parser or self.parser, "info": info or {}, **kwargs}
        return await self._value(func, objects, float, 0.0, [] if state is None else [state])  # type: ignore[attr-defined]

    async def legacy_score_rollout(
        self,
        prompt: Any,
        completion: Any,
        answer: Any = "",
        state: Any = None,
        task: Any = "default",
        info: Any = None,
        **kwargs: Any,
    ) -> RolloutScore:
        """Return the score of one rollout from functions that score single rollouts."""
        pairs = self._weighted()  # type: ignore[attr-defined]
        arguments = {"parser": self.parser, "prompt": prompt, "completion": completion, "answer": answer, "task": task}
        arguments |= {"info": info, **kwargs}
        arguments = named_args(self.call_reward_func, arguments)  # overrides for 0.1.3 to 0.1.7 take no parser
        values = [await self.call_reward_func(func, state=state, **arguments) for func, _ in pairs]
        names = self._get_reward_func_names()  # type: ignore[attr-defined]
        reward = sum(value * weight for value, (_, weight) in zip(values, pairs, strict=True))
        return RolloutScore(reward=reward, metrics=dict(zip(names, values, strict=False)))

    async def score_rollouts(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        answers: Sequence[Any],
        states: Sequence[Any],
        tasks: Sequence[Any],
        infos: Sequence[Any],
        **kwargs: Any,
    ) -> RolloutScores:
        """Return the scores of several rollouts, as lists. rove calls an override with the rollouts of one example at a time."""
        rows = zip(prompts, completions, answers, states, tasks, infos, strict=True)
        scores = await asyncio.gather(*(self.score_rollout(*row, **kwargs) for row in rows))  # type: ignore[attr-defined]
        metrics = [score["metrics"] for score in scores]
        names: dict[str, None] = {}
        for values in metrics:
            names.update(dict.fromkeys(values))
        return RolloutScores(
            reward=[score["reward"] for score in scores],
            metrics={name: [values.get(name, 0.0) for values in metrics] for name in names},
        )


def single_state(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the state of a call `score_rollout(state)`; None for a call with the arguments of 0.1.0 to 0.1.7.

    0.1.8 to 0.1.10 passed a semaphore, too.
    """
    keywords = {name: value for name, value in keywords.items() if name != "score_sem"}
    # The semaphore may be the second positional argument; a legacy call begins with the prompt, not with a state.
    if len(arguments) == 2 and not keywords and isinstance(arguments[0], State):
        return arguments[0]
    if len(arguments) + len(keywords) != 1:
        return None
    return arguments[0] if arguments else keywords.get("state")


async def call_scoring(score: Callable[..., Any], target: Any) -> None:
    """Call `score_rollout(state)` or `score_group(states)`; an override for 0.1.8 to 0.1.10 takes a semaphore, too."""
    if "score_sem" in inspect.signature(score).parameters:
        await score(target, score_sem=nullcontext())
    else:
        await score(target)


async def score_with_legacy_overrides(rubric: Any, states: list[State], base: type) -> bool:
    """Score states with a rubric's own `score_rollouts`, or `score_rollout` with the legacy arguments.

    Returns whether the rubric overrides one of these methods of `base`.
    """
    cls = type(rubric)
    # The widest override comes first: it was the entry point, and called the others itself.
    if cls.score_rollouts is not base.score_rollouts:  # type: ignore[attr-defined]
        outdated(f"{cls.__name__}.score_rollouts", "override score_group(states)")
        columns = zip(*(_legacy_arguments(state) for state in states), strict=True)
        scores = await call_user(rubric.score_rollouts, *map(list, columns))
        for i, state in enumerate(states):
            state["reward"] = float(scores["reward"][i])
            state["metrics"] = {name: float(values[i]) for name, values in scores["metrics"].items()}
        return True
    # An override `score_rollout(state)` is of 0.1.8 or later, and `score_group` does not call it, as in v0.
    is_overridden = cls.score_rollout is not base.score_rollout  # type: ignore[attr-defined]
    if is_overridden and "completion" in inspect.signature(cls.score_rollout).parameters:  # type: ignore[attr-defined]
        outdated(
            f"{cls.__name__}.score_rollout(prompt, completion, …)", "override score_rollout(state) and score_group"
        )
    elif cls.call_reward_func is not base.call_reward_func:  # type: ignore[attr-defined]
        outdated(f"{cls.__name__}.call_reward_func", "override score_group(states), or wrap the functions")
    else:
        return False
    for state in states:
        score = await call_user(rubric.score_rollout, *_legacy_arguments(state))
        state["reward"] = float(score["reward"])
        state["metrics"] = dict(score["metrics"])
    return True


def _legacy_arguments(state: State) -> tuple[Any, ...]:
    arguments = (state["prompt"], state["completion"], state.get("answer", ""), state)
    return (*arguments, state.get("task"), state.get("info") or {})
