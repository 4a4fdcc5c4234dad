"""v0's `EnvGroup`: several environments as one; each row runs and is scored in its own environment."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from packaging.version import Version

from rove.compat.verifiers.data import Table, as_info, with_prompts
from rove.compat.verifiers.environment import Environment
from rove.compat.verifiers.legacy import call_scoring
from rove.compat.verifiers.release import fixed, written_for
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.types import State

_INFO_ROUTES = Version("0.1.11")
"""First release in which `info`, not the column `task`, holds the member's name."""
ENV_GROUP_INFO_KEY = "env_id"
"""Key of a row's info with the row's member: a name, or a list of names in nested groups."""


def _route(info: Any) -> list[str]:
    value = as_info(info).get(ENV_GROUP_INFO_KEY)
    if isinstance(value, str):
        return [value]
    return [str(name) for name in value or ()]


def _with_route(row: Mapping[str, Any], route: Sequence[str]) -> dict[str, Any]:
    info = as_info(row.get("info"))
    info.pop(ENV_GROUP_INFO_KEY, None)
    if route:
        # As in v0's rows: one name, or in nested groups a list.
        info[ENV_GROUP_INFO_KEY] = route[0] if len(route) == 1 else list(route)
    routed = {name: value for name, value in row.items() if name != "info"}
    if info:
        routed["info"] = info
    return routed


def _all_names(envs: Iterable[Environment]) -> list[str]:
    names: set[str] = set()
    for env in envs:
        names.update(env.rubric._get_reward_func_names())
    return sorted(names)


class EnvGroupRubric(Rubric):
    """Scores states with the rubric of their environment; metrics of other members are 0 (absent with ROVE_COMPAT=fixed)."""

    def __init__(self, env_map: Mapping[str, Environment]):
        super().__init__()
        self.env_map = env_map

    @property
    def all_reward_names(self) -> list[str]:
        """Sorted names of the functions of all members."""
        return self.get_reward_func_names()

    def get_reward_func_names(self) -> list[str]:
        """Return the sorted names of the functions of all members."""
        return _all_names(self.env_map.values())

    @property
    def has_group_rewards(self) -> bool:
        """Whether a member's rubric needs whole groups."""
        return any(env.rubric.has_group_rewards for env in self.env_map.values())

    def _member(self, state: State) -> Environment | None:
        route = _route(state.get("info"))
        return self.env_map.get(route[0]) if route else None

    async def score_rollout(self, state: Any, *former: Any, **kwargs: Any) -> Any:
        """Set reward and metrics with the member's rubric."""
        member = self._member(state)
        await call_scoring(self.dummy_score_rollout if member is None else member.rubric.score_rollout, state)
        self._fill(state)

    async def score_group(self, states: list[State], score_sem: Any = None) -> None:
        """Set rewards and metrics with the member's rubric."""
        member = self._member(states[0])
        await call_scoring(self.dummy_score_group if member is None else member.rubric.score_group, states)
        for state in states:
            self._fill(state)

    def _fill(self, state: State) -> None:
        if not fixed():
            metrics = state["metrics"] or {}
            state["metrics"] = {name: metrics.get(name, 0.0) for name in self._get_reward_func_names()}

    async def cleanup(self, state: State) -> None:
        """Run the `@cleanup` methods of the member's rubric."""
        member = self._member(state)
        if member is not None:
            await member.rubric.cleanup(state)

    async def teardown(self) -> None:
        """Tear down the members' rubrics."""
        for env in self.env_map.values():
            await env.rubric.teardown()


def _routed_row(row: Mapping[str, Any], name: str, has_tasks: bool) -> dict[str, Any]:
    """Return a member's row as a row of the group; until 0.1.10 the column `task` names the member, too."""
    task = {"task": row.get("task", name)} if has_tasks else {}
    return {**task, **_with_route(row, [name, *_route(row.get("info"))])}


class EnvGroup(Environment):
    """Several environments as one; `info["env_id"]` of a row names its environment.

    Raises:
        ValueError: there is no environment, or the number of names is wrong.
    """

    def __init__(
        self,
        envs: Sequence[Environment],
        env_names: Sequence[str] | None = None,
        map_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        if not envs:
            raise ValueError("EnvGroup requires at least one environment")
        self.envs = list(envs)
        self.env_names = list(env_names or [f"env_{i}" for i in range(len(self.envs))])
        if len(self.env_names) != len(self.envs):
            raise ValueError("Number of env_names must match number of envs")
        self.env_map = dict(zip(self.env_names, self.envs, strict=True))
        # Until 0.1.10, members without evaluation rows were evaluated on their training rows.
        falls_back = written_for() < _INFO_ROUTES
        eval_tables = [env.get_eval_dataset() if falls_back else env.build_eval_dataset() for env in self.envs]
        super().__init__(
            dataset=self._concatenate([env.build_dataset() for env in self.envs], map_kwargs or {}),
            eval_dataset=self._concatenate(eval_tables, map_kwargs or {}),
            rubric=EnvGroupRubric(self.env_map),
            map_kwargs=map_kwargs,
            **kwargs,
        )

    def _concatenate(self, tables: list[Any], map_kwargs: Mapping[str, Any]) -> Any:
        parts: list[Any] = []
        has_tasks = written_for() < _INFO_ROUTES
        for name, table in zip(self.env_names, tables, strict=True):
            if table is not None:
                parts.append(table.map(partial(_routed_row, name=name, has_tasks=has_tasks), **map_kwargs))
        if not parts:
            return None
        if all(isinstance(part, Table) for part in parts):
            return Table(list(chain.from_iterable(parts)))
        return importlib.import_module("datasets").concatenate_datasets(parts)

    def _format_dataset(self, dataset: Any, system_prompt: str | None, few_shot: Any, map_kwargs: Any) -> Any:
        dataset = with_prompts(dataset, system_prompt, few_shot, map_kwargs)
        # Each member numbers its rows from 0, so their ids collide.
        if "example_id" in dataset.column_names:
            dataset = dataset.remove_columns(["example_id"])
        return dataset.add_column("example_id", list(range(len(dataset))))

    def get_env_for_name(self, name: str) -> Environment:
        """Return a member.

        Raises: ValueError: there is no member of that name.
        """
        if name not in self.env_map:
            raise ValueError(f"No environment found for info['env_id']={name!r}; members are {self.env_names}")
        return self.env_map[name]

    def routed(self, row: Mapping[str, Any]) -> tuple[Environment, dict[str, Any], list[str]]:
        """Return a row's member, the row in that member's form, and the route.

        Raises:
            ValueError: the row does not name its member.
        """
        route = _route(row.get("info"))
        if not route and len(self.envs) > 1:
            raise ValueError(
                "EnvGroup input is missing info['env_id']; use rows of get_dataset() or get_eval_dataset()"
            )
        route = route or [self.env_names[0]]
        return self.get_env_for_name(route[0]), _with_route(row, route[1:]), route

    async def rollout(self, input: Any, client: Any, model: str, sampling_args: Any = None) -> State:
        """Run a rollout in the row's environment."""
        env, row, route = self.routed(input)
        state = await env.run_row(row, client, model, sampling_args)
        state["info"] = _with_route({"info": state.get("info")}, route)["info"]
        return state

    async def run_group(
        self, group_inputs: Any, client: Any, model: str, sampling_args: Any = None, *args: Any, **options: Any
    ) -> Any:
        """Run and score the rollouts of one example in its environment."""
        env, _, route = self.routed(group_inputs[0])
        rows = [self.routed(row)[1] for row in group_inputs]
        outputs = await env.run_group(rows, client, model, sampling_args, *args, **options)
        for output in outputs:
            output["info"] = _with_route({"info": output.get("info")}, route)["info"]
        if self.written_for < _INFO_ROUTES:
            self._fill(outputs)
        return outputs

    async def score_states(self, states: list[State], independently: bool = False) -> None:
        """Score finished rollouts as their environment does, without the zeros of `EnvGroupRubric`, as v0's runs do."""
        await self.member_of(states[0]).score_states(states, independently)
        if self.written_for < _INFO_ROUTES:
            self._fill(states)

    def _fill(self, states: Sequence[dict[str, Any]]) -> None:
        """Set the metrics of other members to 0, as runs did until 0.1.10."""
        zeros = dict.fromkeys(_all_names(self.envs), 0.0)
        for state in states:
            state["metrics"] = {**zeros, **(state["metrics"] or {})}

    async def clean_up_scored(self, states: list[State]) -> None:
        """Run the `@cleanup` methods of the rubric of their environment."""
        await self.member_of(states[0]).clean_up_scored(states)

    def env_route(self, row: Mapping[str, Any]) -> list[str]:
        """Return the names of the members that lead to a row's environment."""
        return self.routed(row)[2]

    def member_of(self, state: State) -> Environment:
        """Return the environment that a rollout ran in: in nested groups, the innermost environment."""
        member: Environment = self
        for name in _route(state.get("info")):
            if isinstance(member, EnvGroup):
                member = member.get_env_for_name(name)
        return member

    async def _teardown(self) -> None:
        await super()._teardown()
        for env in self.envs:
            await env._teardown()

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Set the maximum length for all members."""
        self.max_seq_len = max_seq_len
        for env in self.envs:
            env.set_max_seq_len(max_seq_len)

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Set for all members whether rollouts are scored."""
        self.score_rollouts = score_rollouts
        for env in self.envs:
            env.set_score_rollouts(score_rollouts)
