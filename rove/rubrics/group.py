"""Several rubrics as one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from rove.core.errors import ConfigError
from rove.core.records import Scores
from rove.core.state import State
from rove.parsers.parser import Parser
from rove.rubrics.rubric import RewardFunc, Rubric, merge_scores
from rove.utils.functions import function_name


class RubricGroup(Rubric):
    """Scores with several rubrics: rewards are summed, values and metrics merged.

    Functions and class objects added to the group go to its first rubric.

    Args:
        rubrics: at least one; no function name may occur in two of them, nor the name of a `JudgeRubric`.

    Raises:
        ConfigError: there is no rubric, or two of them share a name.
    """

    def __init__(self, rubrics: Sequence[Rubric]):
        if not rubrics:
            raise ConfigError("a RubricGroup needs at least one rubric; got none")
        super().__init__(parser=rubrics[0].parser)
        self.has_own_parser = rubrics[0].has_own_parser
        self.rubrics = list(rubrics)
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise ConfigError(f"{twice} are in more than one rubric; pass name= to add_reward_func or add_metric")
        twice = sorted({name for name in self.extras_names if self.extras_names.count(name) > 1})
        if twice:
            raise ConfigError(f"more than one rubric is named {twice}; pass name= to JudgeRubric")

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0, name: str | None = None) -> None:
        """Add a function to the first rubric; see `Rubric.add_reward_func`."""
        name = name or function_name(func)
        if name in self.names:
            raise ConfigError(f"a function named '{name}' is here already; pass name= to add_reward_func or add_metric")
        self.rubrics[0].add_reward_func(func, weight, name)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Add a class object to the first rubric; see `Rubric.add_class_object`."""
        self.rubrics[0].add_class_object(name, obj)

    def adopt_parser(self, parser: Parser) -> None:
        """Hand the environment's parser to every rubric that was given none."""
        for rubric in self.rubrics:
            rubric.adopt_parser(parser)
        self.parser = self.rubrics[0].parser

    @property
    def names(self) -> list[str]:
        """Names of all functions of all rubrics."""
        return [name for rubric in self.rubrics for name in rubric.names]

    @property
    def held_parts(self) -> list[Rubric]:
        """Those of all rubrics."""
        return [part for rubric in self.rubrics for part in rubric.held_parts]

    @property
    def extras_names(self) -> list[str]:
        """Keys of what all rubrics note beside the scores."""
        return [name for rubric in self.rubrics for name in rubric.extras_names]

    @property
    def identity(self) -> list[str]:
        """Name, weight and hash of the code of every function of every rubric."""
        return [entry for rubric in self.rubrics for entry in rubric.identity]

    @property
    def has_group_rewards(self) -> bool:
        """Whether some function of some rubric needs the whole group."""
        return any(rubric.has_group_rewards for rubric in self.rubrics)

    async def score_rollout(self, state: State) -> Scores:
        """The merged scores of one finished rollout, group functions left out; raises what the rubrics raise."""
        return merge_scores([await rubric.score_rollout(state) for rubric in self.rubrics])

    async def score_group(self, states: Sequence[State], scores: Sequence[Scores] | None = None) -> list[Scores]:
        """The merged scores of the siblings of a group; see `Rubric.score_group`."""
        merged = [await self.score_rollout(state) for state in states] if scores is None else list(scores)
        for rubric in self.rubrics:
            merged = await rubric.score_group(states, merged)
        return merged

    async def teardown(self) -> None:
        """Tear every rubric down that no run uses, also when one of them fails."""
        async with AsyncExitStack() as stack:
            for rubric in self.rubrics:
                if not rubric.use_count:
                    stack.push_async_callback(rubric.teardown)
