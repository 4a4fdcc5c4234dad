"""Scoring as rubrics of 0.1.0 to 0.1.7 had it: by prompt, completion, answer and state, as a `RolloutScore`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rove.compat.verifiers.calls import call_user
from rove.compat.verifiers.mode import outdated
from rove.compat.verifiers.types import RolloutScore, RolloutScores, State


class FormerScoring:
    """What a `Rubric` had under other names, and with other arguments, before 0.1.8."""

    funcs: list[Callable[..., Any]]
    weights: list[float]
    parser: Any
    class_objects: dict[str, Any]

    @property
    def reward_funcs(self) -> list[Callable[..., Any]]:
        """The reward functions: `funcs`."""
        return self.funcs

    @reward_funcs.setter
    def reward_funcs(self, funcs: list[Callable[..., Any]]) -> None:
        outdated("rubric.reward_funcs", "set rubric.funcs")
        self.funcs = funcs

    @property
    def reward_weights(self) -> list[float]:
        """The weights of the reward functions: `weights`."""
        return self.weights

    @reward_weights.setter
    def reward_weights(self, weights: list[float]) -> None:
        outdated("rubric.reward_weights", "set rubric.weights")
        self.weights = weights

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
        """The value of one reward function; 0.0 where it raises."""
        objects = {"prompt": prompt, "completion": completion, "answer": answer, "state": state, "task": task}
        objects |= {**self.class_objects, "parser": parser or self.parser, "info": info or {}, **kwargs}
        return await self._value(func, objects, float, 0.0, [] if state is None else [state])  # type: ignore[attr-defined]

    async def former_score_rollout(
        self,
        prompt: Any,
        completion: Any,
        answer: Any = "",
        state: Any = None,
        task: Any = "default",
        info: Any = None,
        **kwargs: Any,
    ) -> RolloutScore:
        """The score of one rollout, of functions that score single rollouts."""
        pairs = self._weighted()  # type: ignore[attr-defined]
        given = {"prompt": prompt, "completion": completion, "answer": answer, "task": task, "info": info, **kwargs}
        values = [await self.call_reward_func(func, state=state, **given) for func, _ in pairs]
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
        """The scores of several rollouts, as lists. rove calls an override with the rollouts of one example at a time."""
        rows = zip(prompts, completions, answers, states, tasks, infos, strict=True)
        scores = await asyncio.gather(*(self.score_rollout(*row, **kwargs) for row in rows))  # type: ignore[attr-defined]
        names = dict.fromkeys(name for score in scores for name in score["metrics"])
        return RolloutScores(
            reward=[score["reward"] for score in scores],
            metrics={name: [score["metrics"].get(name, 0.0) for score in scores] for name in names},
        )


def only_state(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return the state of a call `score_rollout(state)`; None for a call with the former arguments."""
    if len(arguments) + len(named) != 1:
        return None
    return arguments[0] if arguments else named.get("state")


async def score_as_formerly(rubric: Any, states: list[State], base: type) -> bool:
    """Score states by a rubric's own `score_rollouts`, or `score_rollout` with the former arguments; whether it has one.

    Args:
        base: the class whose methods are not the rubric's own.
    """
    own = type(rubric)
    if own.score_rollouts is not base.score_rollouts:  # type: ignore[attr-defined]
        outdated(f"{own.__name__}.score_rollouts", "override score_group(states)")
        columns = zip(*(_former_row(state) for state in states), strict=True)
        scores = await call_user(rubric.score_rollouts, *map(list, columns))
        for i, state in enumerate(states):
            state["reward"] = float(scores["reward"][i])
            state["metrics"] = {name: float(values[i]) for name, values in scores["metrics"].items()}
        return True
    if own.score_rollout is base.score_rollout or "completion" not in inspect.signature(own.score_rollout).parameters:  # type: ignore[attr-defined]
        return False
    outdated(f"{own.__name__}.score_rollout(prompt, completion, …)", "override score_rollout(state) and score_group")
    for state in states:
        score = await call_user(rubric.score_rollout, *_former_row(state))
        state["reward"], state["metrics"] = float(score["reward"]), dict(score["metrics"])
    return True


def _former_row(state: State) -> tuple[Any, ...]:
    given = (state["prompt"], state["completion"], state.get("answer", ""), state)
    return (*given, state.get("task"), state.get("info") or {})
