"""A v0 environment as one of rove's: played by v0's loop, asked through rove's client, scored by v0's rubric.

Each answer is one step of rove's trajectory where v0's trajectory has it, in its order; other calls that the environment
makes of the model lie in the model role "environment", and are not trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rove.compat.verifiers.clients import Client, as_json, as_response, raw_text, wire_tool
from rove.compat.verifiers.data import as_info
from rove.compat.verifiers.environment import Environment as V0Environment
from rove.compat.verifiers.group import EnvGroup
from rove.compat.verifiers.messages import content_text, normalize_messages, to_rove
from rove.compat.verifiers.mode import fixed
from rove.compat.verifiers.types import Response, State, Tool
from rove.core.digest import digest_code
from rove.core.errors import ConfigError
from rove.core.messages import Message, UserMessage
from rove.core.protocols import Response as RoveResponse
from rove.core.records import REWARD_ERRORS, Scores, TrajectoryStep
from rove.core.state import State as RoveState
from rove.envs.environment import Environment, Turn
from rove.rubrics import Rubric
from rove.utils.functions import function_name, unwrapped

ROLE = "environment"
_KEPT = "v0_state"
"""Where a rove state has the v0 state of its rollout."""


class TurnClient(Client[Any, Any, Any, Any]):
    """The v0 client of one rollout: asks by rove's `turn`."""

    def __init__(self, turn: Turn, outer: RoveState, raw: bool):
        super().__init__(None)
        self.turn = turn
        self.outer = outer
        self.raw = raw
        """Whether the prompt is one text, to be continued."""
        self.state: State | None = None
        self.inner = RoveState(outer)
        """What a call is made with: its steps are those that v0's trajectory has."""
        self._steps: dict[int, tuple[Response, TrajectoryStep]] = {}

    def begin(self, state: State) -> None:
        """Know the rollout's state, also of one that is cancelled."""
        self.state = state

    def steps(self) -> tuple[list[TrajectoryStep], list[TrajectoryStep]]:
        """Steps that are in v0's trajectory, and the others; both in order."""
        trajectory = self.state["trajectory"] if self.state is not None else []
        mine = [self._steps[id(step["response"])][1] for step in trajectory if id(step.get("response")) in self._steps]
        return mine, [step for _, step in self._steps.values() if not any(step is one for one in mine)]

    async def get_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Sequence[Tool] | None = None, **kwargs: Any
    ) -> Response:
        """What rove's model answers; with `model` and `sampling_args` of its own, another call than a turn."""
        steps, _ = self.steps()
        known = list(steps)  # of this call alone: others may be under way
        self.inner.update(trajectory=known, tools=[wire_tool(tool) for tool in tools or []] or None)
        shown = _pieces(prompt) if self.raw else _as_sampled(to_rove(prompt), steps)
        usual = not model and (self.state is None or not sampling_args or sampling_args is self.state["sampling_args"])
        if usual:
            await self.turn(self.inner, shown)
            step = known[-1]
        else:
            said = await self.turn(self.inner, shown, role=ROLE, model=model, sampling_args=_sampling(sampling_args))
            step = next(one for one in self.inner["model_roles"][ROLE] if one.completion[-1] is said)
        response = as_response(RoveResponse(Message(step.completion[-1]), step.usage, step.finish_reason, step.tokens))
        self._steps[id(response)] = (response, step)
        return response

    def setup_client(self, config: Any) -> Any:
        """There is nothing to set up."""

    async def to_native_tool(self, tool: Tool) -> Any:
        """A tool in the OpenAI wire form."""
        return wire_tool(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        """Messages in the OpenAI wire form."""
        return to_rove(messages), {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> Any:
        """Not used: `get_response` asks."""
        raise NotImplementedError

    async def raise_from_native_response(self, response: Any) -> None:
        """Not used."""

    async def from_native_response(self, response: Any) -> Response:
        """Not used."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is held here."""


def _as_sampled(messages: Sequence[Message], steps: Sequence[TrajectoryStep]) -> list[Message]:
    """Messages with those of the model as they were sampled, where nobody has changed a word: v0 has no empty contents, so
    that a conversation would be rendered in other tokens."""
    sampled = {_words(step.completion[-1]): Message(step.completion[-1]) for step in steps}
    return [sampled.get(_words(one), one) if one["role"] == "assistant" else one for one in messages]


def _words(message: Mapping[str, Any]) -> str:
    calls = [(call.get("id"), call.get("function")) for call in message.get("tool_calls") or ()]
    named = [(id, told.get("name"), as_json(told.get("arguments"))) for id, told in calls if isinstance(told, Mapping)]
    return json.dumps([message.get("content") or "", message.get("reasoning_content") or "", named], default=str)


def _pieces(prompt: Any) -> list[Message]:
    """The pieces of a raw text, with the blank lines that v0 puts between."""
    pieces: list[Message] = []
    for message in normalize_messages(prompt):
        role = "assistant" if message["role"] == "assistant" else "user"
        between = [UserMessage("\n\n")] if pieces else []
        pieces += [*between, Message(role=role, content=content_text(message["content"]))]
    return pieces


class BridgedEnvironment(Environment):
    """A v0 environment in rove's hands. Its dataset, limits and cleanups stay the v0 environment's.

    Args:
        inner: the v0 environment.
    """

    def __init__(self, inner: V0Environment):
        self.inner = inner
        has_rows = inner.dataset_source is not None
        has_eval_rows = inner.eval_dataset_source is not None
        super().__init__(
            dataset=(lambda: list(self._rows(True))) if has_rows else None,
            eval_dataset=(lambda: list(self._rows(False))) if has_eval_rows else None,
            rubric=BridgedRubric(inner),
            sampling_args=_sampling(inner.sampling_args),
            env_id=inner.env_id,
            env_args=inner.env_args,
        )
        self.message_type = inner.message_type
        self.max_turns: int = getattr(inner, "max_turns", -1)

    def _table(self, train: bool) -> Any:
        table = self.inner.build_dataset() if train else self.inner.build_eval_dataset()
        if table is None:
            table = self.inner.build_eval_dataset() if train else self.inner.build_dataset()
        return table

    def _rows(self, train: bool) -> Iterator[dict[str, Any]]:
        return iter(self._table(train))

    def examples(self, n: int = -1, train: bool = False) -> Iterator[dict[str, Any]]:
        """The first `n` examples (all when n < 0); `v0_row` is the row as v0 plays it."""
        for index, row in enumerate(self._rows(train)):
            if 0 <= n <= index:
                return
            yield self._example(row, index)

    def _example(self, row: dict[str, Any], index: int) -> dict[str, Any]:
        prompt, answer = row.get("prompt"), row.get("answer")
        raw = self.message_type == "completion"
        extra = {
            name: value for name, value in row.items() if name not in ("prompt", "answer", "info", "example_id", "task")
        }
        return {
            **extra,
            "prompt": raw_text(prompt) if raw else list(to_rove(normalize_messages(prompt))),
            "answer": "" if answer is None else str(answer),
            "info": as_info(row.get("info") or None),
            "example_id": index,
            "v0_row": row,
        }

    def count_examples(self, n: int = -1, train: bool = False) -> int | None:
        """How many `examples` would give."""
        count = len(self._table(train))
        return count if n < 0 else min(n, count)

    async def run(self, state: RoveState, turn: Turn) -> None:
        """Play the rollout by v0's loop; what it calls an error is raised here."""
        client = TurnClient(turn, state, raw=self.message_type == "completion")
        try:
            played = client.state = await self.inner.rollout(
                state["input"]["v0_row"], client, "", dict(self.inner.sampling_args)
            )
        finally:
            if client.state is not None:
                self._take_over(state, client)
        if played["error"] is not None:
            raise played["error"]

    def _take_over(self, state: RoveState, client: TurnClient) -> None:
        inner = client.state
        assert inner is not None
        mine, others = client.steps()
        completion = inner.get("completion") or []
        state.update(
            {_KEPT: inner},
            trajectory=mine,
            model_roles={**(state.get("model_roles") or {}), **({ROLE: others} if others else {})},
            prompt=raw_text(inner["prompt"]) if client.raw else list(to_rove(inner["prompt"])),
            completion=_completed(mine, completion) if client.raw else list(to_rove(completion)),
            tools=[wire_tool(tool) for tool in inner.get("tool_defs") or []] or None,
            stop_condition=inner.get("stop_condition"),
            is_truncated=bool(inner.get("is_truncated")),
        )
        if isinstance(self.inner, EnvGroup):
            state["env_id"] = "/".join(self.inner.routed(state["input"]["v0_row"])[2])

    async def tear_down(self) -> None:
        """Run v0's teardowns, those of the rubric among them."""
        await self.inner._teardown()

    @property
    def identity(self) -> dict[str, Any]:
        """See `rove.Environment.identity`; whether v0's faults are fixed counts."""
        told = {"compat": "fixed" if fixed() else "v0", "class": type(self.inner).__qualname__}
        return {**super().identity, **told}


def _sampling(args: dict[str, Any]) -> dict[str, Any]:
    """v0's sampling arguments without what rove does anyway."""
    return {name: value for name, value in args.items() if (name, value) not in (("n", 1), ("extra_body", {}))}


def _completed(steps: Sequence[TrajectoryStep], completion: Sequence[Any]) -> str:
    """What was added to a raw prompt; what the environment said last stands after it."""
    if not steps:
        return raw_text(list(completion))
    pieces = [*steps[-1].prompt, *steps[-1].completion][1:]
    known = "".join(str(piece["content"] or "") for piece in pieces)
    said = raw_text(list(completion))
    return said if said.startswith(known) else known


class BridgedRubric(Rubric):
    """A v0 environment's scoring as a rubric of rove's.

    Functions that do not add up to the reward, as of a rubric with a scoring of its own, are metrics beside it.
    """

    def __init__(self, inner: V0Environment):
        super().__init__()
        self.inner = inner

    @property
    def names(self) -> list[str]:
        """Names of all v0 functions."""
        return list(dict.fromkeys(self.inner.rubric._get_reward_func_names()))

    @property
    def has_group_rewards(self) -> bool:
        """Whether the v0 rubric needs whole groups."""
        return self.inner.rubric.has_group_rewards

    @property
    def identity(self) -> list[str]:
        """Name, weight and hash of the code of every v0 function."""
        rubric = self.inner.rubric
        known = zip(rubric._get_reward_funcs(), rubric._get_reward_weights(), strict=False)
        return [f"{function_name(func)} × {weight:g} #{digest_code(unwrapped(func))}" for func, weight in known]

    async def score_rollout(self, state: RoveState) -> Scores:
        """v0's scores of a finished rollout; nothing yet where groups are scored as a whole."""
        if self.has_group_rewards:
            return Scores(0.0, {}, {})
        [scores] = await self._scored([state])
        return scores

    async def score_group(self, states: Sequence[RoveState], scores: Sequence[Scores] | None = None) -> list[Scores]:
        """v0's scores of siblings."""
        return await self._scored(states) if self.has_group_rewards or scores is None else list(scores)

    async def _scored(self, states: Sequence[RoveState]) -> list[Scores]:
        inner = [_state_of(state) for state in states]
        await self.inner.score_states(inner)
        await self.inner.clean_up_scored(inner)
        return [
            msgspec.structs.replace(as_scores(state, *self._scorers(state)), extras=_reward_errors(state))
            for state in inner
        ]

    def _scorers(self, state: State) -> tuple[list[str], list[float]]:
        """Names and weights of the functions that scored a state."""
        env = self.inner.member_of(state) if isinstance(self.inner, EnvGroup) else self.inner
        return env.rubric._get_reward_func_names(), env.rubric._get_reward_weights()


def _state_of(state: RoveState) -> State:
    if _KEPT not in state:
        raise ConfigError(
            "a v0 rubric scores what a v0 environment has played in this run; expected a rollout that was just played"
        )
    return state[_KEPT]


def _reward_errors(state: State) -> dict[str, Any]:
    """What reward functions raised, for a record's `extras`; see `rove.evaluate`."""
    return {REWARD_ERRORS: dict(state[REWARD_ERRORS])} if state.get(REWARD_ERRORS) else {}


def as_scores(state: State, names: Iterable[str], weights: Iterable[float]) -> Scores:
    """A scored v0 state's reward and metrics as rove keeps them."""
    reward = float(state["reward"] or 0.0)
    values = {name: float(value) for name, value in (state["metrics"] or {}).items()}
    weighed = {name: weight for name, weight in zip(names, weights, strict=False) if weight and name in values}
    if abs(sum(weight * values[name] for name, weight in weighed.items()) - reward) > 1e-9:
        rest = {name: value for name, value in values.items() if name != "reward"}
        return Scores(reward, {"reward": reward}, {"reward": 1.0}, rest)
    rewards = {name: values[name] for name in weighed}
    return Scores(reward, rewards, weighed, {name: value for name, value in values.items() if name not in rewards})
