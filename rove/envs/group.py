"""Several environments as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from itertools import chain
from random import Random
from typing import Any

from rove.core.errors import ConfigError, nearest
from rove.core.messages import Messages
from rove.core.plain import Identity, Row
from rove.core.protocols import Answer
from rove.core.records import Scores
from rove.core.state import State, bookkeeping
from rove.envs.environment import Environment, ScriptedPolicy, Turn
from rove.rubrics import Rubric
from rove.rubrics.rubric import merge_scores
from rove.utils.functions import maybe_await


class EnvGroup(Environment):
    """Several environments as one; each example is run and scored by its own environment.

    Every member keeps its prompts, turns, parser, rubric, time limit, cleanup and teardown. The examples of each member follow
    those of the previous member. Their column `env_id` names the member ("outer/inner" in nested groups), and so does
    `info["env_id"]` during a rollout (a list in nested groups). Neither value is part of the example's key, so seeds are the
    same as outside of the group (unless two members have equal rows). A metric that a member does not have is missing from its
    scores, not 0. Functions added to the group's own rubric score all rollouts.

    Args:
        envs: at least one environment; may include groups.
        env_names: one name per environment. Default: its `env_id`, else "env_0", "env_1", …
        sampling_args: default sampling arguments for all members; required if the members' own arguments differ.
        env_id, env_args: see `Environment`.

    Raises:
        ConfigError: no environment, wrong number of names, a name that is empty, repeated or contains "/", or missing
            `sampling_args`.

    Example:
        env = rove.EnvGroup([rove.load_environment("tictactoe"), rove.load_environment("sql_agent")])
    """

    def __init__(
        self,
        envs: Sequence[Environment],
        env_names: Sequence[str] | None = None,
        sampling_args: Mapping[str, object] | None = None,
        env_id: str = "",
        env_args: Mapping[str, object] | None = None,
    ):
        self.envs = list(envs)
        self.env_names = _checked_names(self.envs, env_names)
        self.members = dict(zip(self.env_names, self.envs, strict=True))
        super().__init__(
            dataset=lambda: self.examples(train=True),
            rubric=_MemberRubric(self),
            sampling_args=_common_sampling(self.members) if sampling_args is None else sampling_args,
            policies=self._common_policies(),
            env_id=env_id,
            env_args=env_args,
        )
        types = {env.message_type for env in self.envs}
        self.message_type = types.pop() if len(types) == 1 else "chat"

    def examples(self, n: int = -1, train: bool = False) -> Iterator[Row]:
        """Yield the first `n` examples (all if n < 0), member after member; `example_id` is numbered consecutively."""
        position = 0
        for name, env in self.members.items():
            for example in env.examples(n if n < 0 else n - position, train):
                path = f"{name}/{example['env_id']}" if isinstance(env, EnvGroup) else name
                yield {**example, "env_id": path, "example_id": position}
                position += 1

    def count_examples(self, n: int = -1, train: bool = False) -> int | None:
        """Return the number of `examples`; None if all examples would have to be read to count them."""
        total = 0
        for env in self.envs:
            count = env.count_examples(n if n < 0 else n - total, train)
            if count is None:
                return None
            total += count
        return total

    @property
    def identity(self) -> Identity:
        """Like `Environment.identity`, with the identities of the members."""
        return {**super().identity, "members": {name: env.identity for name, env in self.members.items()}}

    def time_limit(self, state: State) -> float | None:
        """Return the time limit of the member."""
        with self.at_member(state) as env:
            return env.time_limit(state)

    async def run(self, state: State, turn: Turn) -> None:
        """Run the rollout in the member of its example."""
        internals = bookkeeping(state)
        assert internals.input is not None
        path = internals.env_id = internals.input["env_id"]
        route = path.split("/")
        internals.input["info"]["env_id"] = route if len(route) > 1 else path
        with self.at_member(state) as env:
            await env.run(state, turn)

    async def post_rollout(self, state: State) -> None:
        """Call `post_rollout` of the member."""
        with self.at_member(state) as env:
            await maybe_await(env.post_rollout(state))

    async def clean_up(self, state: State) -> None:
        """Run the `@cleanup` methods of the member."""
        with self.at_member(state) as env:
            await env.clean_up(state)

    async def tear_down(self) -> None:
        """Tear down every member that no run uses, even if one fails."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(super().tear_down)
            for env in {id(env): env for env in self.envs}.values():
                if not env.use_count:
                    stack.push_async_callback(env.tear_down)

    @property
    def components(self) -> list[Any]:
        """This group and the components of its members."""
        return [*super().components, *chain.from_iterable(env.components for env in self.envs)]

    @contextmanager
    def at_member(self, state: State) -> Generator[Environment]:
        """Return a context manager with the member of a rollout's example.

        In this context, the bookkeeping's `env_depth` is the position of nested groups in the path.

        Raises:
            ConfigError: the example is not from this group.
        """
        internals = bookkeeping(state)
        depth, path = internals.env_depth, str((internals.input or {}).get("env_id"))
        route = path.split("/")
        name = route[depth] if depth < len(route) else ""  # no member has the name ""
        if name not in self.members:
            raise ConfigError(
                f"the example's env_id is {path!r}; expected a member of this group: {nearest(path, self.members)}"
            )
        internals.env_depth = depth + 1
        try:
            yield self.members[name]
        finally:
            internals.env_depth = depth

    def _common_policies(self) -> dict[str, ScriptedPolicy]:
        """Return the scripted policies that every member has; each call goes to the member of the example."""
        first, *remaining = (set(env.policies) for env in self.envs)
        common = first.intersection(*remaining)

        def delegate(name: str) -> ScriptedPolicy:
            def policy(messages: Messages, state: State, rng: Random) -> Answer | Awaitable[Answer]:
                env: Environment = self
                for part in str((bookkeeping(state).input or {})["env_id"]).split("/"):
                    assert isinstance(env, EnvGroup)
                    env = env.members[part]
                return env.policies[name](messages, state, rng)

            return policy

        return {name: delegate(name) for name in self.envs[0].policies if name in common}


class _MemberRubric(Rubric):
    """Scores a rollout with the rubric of its member and with the functions added here."""

    def __init__(self, group: EnvGroup):
        super().__init__()
        self.group = group

    @property
    def names(self) -> list[str]:
        """The union of the members' names in order, then the names of functions added here."""
        member_names = chain.from_iterable(env.scoring_rubric.names for env in self.group.envs)
        return list(dict.fromkeys([*member_names, *super().names]))

    @property
    def has_group_rewards(self) -> bool:
        """Whether a member or this rubric needs whole groups."""
        return super().has_group_rewards or any(env.scoring_rubric.has_group_rewards for env in self.group.envs)

    @property
    def group_reward_names(self) -> list[str]:
        """Names of the functions of members and of this rubric that need whole groups."""
        member_names = chain.from_iterable(env.scoring_rubric.group_reward_names for env in self.group.envs)
        return [*member_names, *super().group_reward_names]

    async def score_rollout(self, state: State) -> Scores:
        """Score a rollout with the rubric of its member; see `Rubric.score_rollout`."""
        group_scores = await super().score_rollout(state)
        with self.group.at_member(state) as env:
            return merge_scores([await env.scoring_rubric.score_rollout(state), group_scores])

    async def score_group(self, states: Sequence[State], scores: Sequence[Scores] | None = None) -> list[Scores]:
        """Score a group, whose members are all from one environment; see `Rubric.score_group`."""
        if scores is None:
            scores = [await self.score_rollout(state) for state in states]
        member_scores = list(scores)
        if states:
            # Every state needs its own context: `at_member` tracks the depth of nested groups in the state.
            with ExitStack() as stack:
                members = [stack.enter_context(self.group.at_member(state)) for state in states]
                member_scores = await members[0].scoring_rubric.score_group(states, member_scores)
        return await super().score_group(states, member_scores)


def _checked_names(envs: Sequence[Environment], names: Sequence[str] | None) -> list[str]:
    if not envs:
        raise ConfigError("an EnvGroup needs at least one environment; got none")
    for env in envs:
        if not isinstance(env, Environment):  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
            raise ConfigError(f"an EnvGroup holds environments; got {env!r}: pass what load_environment() returns")
    if names is None:
        names = [env.env_id or f"env_{i}" for i, env in enumerate(envs)]
    if len(names) != len(envs):
        raise ConfigError(f"{len(names)} env_names for {len(envs)} environments; give one for each")
    wrong = {name for name, count in Counter(names).items() if count > 1}
    for name in names:
        if not name or "/" in name:  # "/" separates the names of nested groups in the path of an example
            wrong.add(name)
    if wrong:
        raise ConfigError(f"env_names has {sorted(wrong)}; expected unique, non-empty names without '/'")
    return list(names)


def _common_sampling(members: Mapping[str, Environment]) -> dict[str, object]:
    first, *remaining = members.values()  # one run has one set of sampling parameters
    if any(env.sampling_args != first.sampling_args for env in remaining):
        differing = {name: env.sampling_args for name, env in members.items()}
        raise ConfigError(
            f"the environments have different sampling_args: {differing}; pass sampling_args= for all of them"
        )
    return first.sampling_args
