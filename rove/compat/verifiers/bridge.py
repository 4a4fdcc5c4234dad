"""Adapter that makes a v0 environment a rove environment: v0's loop, a rove client, v0's rubric.

Each response is one step of rove's trajectory if v0's trajectory contains it, in the same order. Other model calls that the
environment makes are recorded under the model role "environment" and are not trained on. docs/decisions/compat.md
explains why this is an adapter and not a subclass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rove.compat.verifiers.clients import Client, as_json, as_response, raw_text, response_id
from rove.compat.verifiers.data import as_info
from rove.compat.verifiers.evaluation import EvaluableEnvironment, reward_errors
from rove.compat.verifiers.messages import content_text, normalize_messages, to_rove
from rove.compat.verifiers.release import fixed
from rove.compat.verifiers.types import Response, State, Tool, wire_tool
from rove.core.code_digest import digest_code
from rove.core.errors import ConfigError
from rove.core.messages import Message, UserMessage
from rove.core.protocols import Response as RoveResponse
from rove.core.records import Scores, TrajectoryStep
from rove.core.state import State as RoveState
from rove.core.state import bookkeeping
from rove.envs.environment import Environment, Turn
from rove.rubrics import Rubric
from rove.utils.functions import function_name, unwrapped

ROLE = "environment"
_V0_STATE = "v0_state"
"""Key of a rove state under which the v0 state of its rollout is stored."""


class TurnClient(Client[Any, Any, Any, Any]):
    """The v0 client of one rollout: it requests turns from rove."""

    def __init__(self, turn: Turn, outer: RoveState, raw: bool):
        super().__init__(None)
        self.turn = turn
        self.outer = outer
        self.raw = raw
        self.state: State | None = None
        self.inner = RoveState(outer)
        """The state that is passed to turns; its steps are those in v0's trajectory."""
        self._steps: dict[str, TrajectoryStep] = {}
        """Steps by the id of their response."""

    def begin(self, state: State) -> None:
        """Store the rollout's state, even for rollouts that are canceled later."""
        self.state = state

    def steps(self) -> tuple[list[TrajectoryStep], list[TrajectoryStep]]:
        """Return the steps that are in v0's trajectory, and the other steps, both in order."""
        trajectory = self.state["trajectory"] if self.state is not None else []
        # A package may copy, reorder or drop v0's steps and responses; the id of a response survives copies.
        turn_ids = [response_id(step.get("response")) for step in trajectory]
        turns = [self._steps[turn_id] for turn_id in turn_ids if turn_id in self._steps]
        other_calls = [step for call_id, step in self._steps.items() if call_id not in turn_ids]
        return turns, other_calls

    async def get_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Sequence[Tool] | None = None, **kwargs: Any
    ) -> Response:
        """Return the model's response. Calls with their own `model` or `sampling_args` are recorded under a model role."""
        steps, _ = self.steps()
        trajectory = list(steps)  # a list per call, since an environment may call the model concurrently
        inner = bookkeeping(self.inner)
        inner.trajectory = trajectory
        inner.tools = [wire_tool(tool) for tool in tools or []] or None
        prompt_messages = _pieces(prompt, steps) if self.raw else _as_sampled(to_rove(prompt), steps)
        # v0's loop calls with the model "" and the state's own arguments; a call with others was made by the package.
        has_own_sampling = self.state is not None and sampling_args and sampling_args is not self.state["sampling_args"]
        if not model and not has_own_sampling:
            await self.turn(self.inner, prompt_messages)
            step = trajectory[-1]
        else:
            reply = await self.turn(
                self.inner, prompt_messages, role=ROLE, model=model, sampling_args=_sampling(sampling_args)
            )
            step = next(step for step in inner.model_roles[ROLE] if step.completion[-1] is reply)
        message = Message(step.completion[-1])
        response = as_response(RoveResponse(message, step.usage, step.finish_reason, step.tokens))
        self._steps[response["id"]] = step
        return response

    def setup_client(self, config: Any) -> Any:
        """Do nothing: the client has no configuration."""

    async def to_native_tool(self, tool: Tool) -> Any:
        """Return a tool in the OpenAI wire form."""
        return wire_tool(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        """Return messages in the OpenAI wire form."""
        return to_rove(messages), {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> Any:
        """Unused, because `get_response` is overridden."""
        raise NotImplementedError

    async def raise_from_native_response(self, response: Any) -> None:
        """Unused."""

    async def from_native_response(self, response: Any) -> Response:
        """Unused."""
        raise NotImplementedError

    async def close(self) -> None:
        """Do nothing: the client holds no resources."""


def _as_sampled(messages: Sequence[Message], steps: Sequence[TrajectoryStep]) -> list[Message]:
    """Replace unmodified messages of the model with the sampled ones.

    v0 drops empty contents, so its conversation would be rendered to different tokens.
    """
    sampled = {_message_key(step.completion[-1]): Message(step.completion[-1]) for step in steps}
    replaced: list[Message] = []
    for message in messages:
        is_of_model = message["role"] == "assistant"
        replaced.append(sampled.get(_message_key(message), message) if is_of_model else message)
    return replaced


def _message_key(message: Mapping[str, Any]) -> str:
    calls: list[Any] = []
    for call in message.get("tool_calls") or ():
        function = call.get("function")
        if isinstance(function, Mapping):
            calls.append((call.get("id"), function.get("name"), as_json(function.get("arguments"))))
    return json.dumps([message.get("content") or "", message.get("reasoning_content") or "", calls], default=str)


def _pieces(prompt: Any, steps: Sequence[TrajectoryStep]) -> list[Message]:
    """Return the messages of a raw prompt, separated by blank lines as v0 does; a text is split at the previous turn."""
    if isinstance(prompt, str):
        return _text_pieces(prompt, steps)
    pieces: list[Message] = []
    for message in normalize_messages(prompt):
        if pieces:
            pieces.append(UserMessage("\n\n"))
        role = "assistant" if message["role"] == "assistant" else "user"
        pieces.append(Message(role=role, content=content_text(message["content"])))
    return pieces


def _text_pieces(prompt: str, steps: Sequence[TrajectoryStep]) -> list[Message]:
    # Only the turns tell which parts of the text the model has written.
    for step in reversed(steps):
        pieces = [Message(piece) for piece in (*step.prompt, *step.completion)]
        text = _joined(pieces)
        if prompt.startswith(text):
            added = prompt[len(text) :]
            return [*pieces, UserMessage(added)] if added else pieces
    return [UserMessage(prompt)]


def _joined(pieces: Iterable[Mapping[str, Any]]) -> str:
    return "".join(str(piece["content"] or "") for piece in pieces)


class BridgedEnvironment(Environment):
    """A v0 environment as a rove environment. It uses the dataset, limits and cleanups of the v0 environment."""

    def __init__(self, inner: EvaluableEnvironment):
        self.inner = inner
        # The rows stay a builder: a package may load them only when a run needs them.
        super().__init__(
            dataset=None if inner.dataset_source is None else lambda: list(self._table(True)),
            eval_dataset=None if inner.eval_dataset_source is None else lambda: list(self._table(False)),
            rubric=BridgedRubric(inner),
            sampling_args=_sampling(inner.sampling_args),
            env_id=inner.env_id,
            env_args=inner.env_args,
        )
        self.message_type = inner.message_type
        self.max_turns = inner.max_turns

    def _table(self, train: bool) -> Any:
        has_training_rows = self.inner.build_dataset() is not None
        if train and has_training_rows:
            return self.inner.get_dataset()
        return self.inner.evaluation_rows()

    def examples(self, n: int = -1, train: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the first `n` examples (all if n < 0). `v0_row` is the row in v0's form."""
        for index, row in enumerate(self._table(train)):
            if 0 <= n <= index:
                return
            yield self._example(row, index)

    def _example(self, row: dict[str, Any], index: int) -> dict[str, Any]:
        prompt, answer = row.get("prompt"), row.get("answer")
        raw = self.message_type == "completion"
        standard = ("prompt", "answer", "info", "example_id", "task")
        extra = {name: value for name, value in row.items() if name not in standard}
        return {
            **extra,
            "prompt": raw_text(prompt) if raw else list(to_rove(normalize_messages(prompt))),
            "answer": "" if answer is None else str(answer),
            "info": as_info(row.get("info") or None),
            "example_id": index,
            "v0_row": row,
        }

    def count_examples(self, n: int = -1, train: bool = False) -> int | None:
        """Return the number of examples that `examples` yields."""
        count = len(self._table(train))
        return count if n < 0 else min(n, count)

    async def run(self, state: RoveState, turn: Turn) -> None:
        """Run the rollout with v0's loop, and raise the error that v0 records in its state."""
        client = TurnClient(turn, state, raw=self.message_type == "completion")
        try:
            inner = client.state = await self.inner.run_row(_row_of(state), client, "", dict(self.inner.sampling_args))
        finally:
            # Also after a cancellation or a limit, so that the record has the turns that were sampled.
            if client.state is not None:
                self._copy_result(state, client)
        # v0 scores a rollout with an error; with rove's commands it fails and is left out of means (docs/compat.md).
        if inner["error"] is not None:
            raise inner["error"]

    def _copy_result(self, state: RoveState, client: TurnClient) -> None:
        inner = client.state
        assert inner is not None
        turns, other_calls = client.steps()
        completion = inner.get("completion") or []
        if isinstance(completion, str):
            completion = [{"role": "assistant", "content": completion}]
        state[_V0_STATE] = inner
        record = bookkeeping(state)
        record.trajectory = turns
        if other_calls:
            record.model_roles = {**record.model_roles, ROLE: other_calls}
        record.prompt = raw_text(inner["prompt"]) if client.raw else list(to_rove(inner["prompt"]))
        record.completion = _raw_completion(turns, completion) if client.raw else list(to_rove(completion))
        record.tools = [wire_tool(tool) for tool in inner.get("tool_defs") or []] or None
        stop_condition = inner.get("stop_condition")
        record.stop_condition = None if stop_condition is None else str(stop_condition)
        record.is_truncated = bool(inner.get("is_truncated"))
        route = self.inner.env_route(_row_of(state))
        if route:
            record.env_id = "/".join(route)

    async def tear_down(self) -> None:
        """Run v0's teardown methods, including those of the rubric."""
        await self.inner._teardown()

    @property
    def identity(self) -> dict[str, Any]:
        """See `rove.Environment.identity`; it depends on whether v0's faults are fixed."""
        compat = {"compat": "fixed" if fixed() else "v0", "class": type(self.inner).__qualname__}
        return {**super().identity, **compat}


def _sampling(args: dict[str, Any]) -> dict[str, Any]:
    """Remove sampling arguments that are rove's defaults."""
    return {name: value for name, value in args.items() if (name, value) not in (("n", 1), ("extra_body", {}))}


def _raw_completion(steps: Sequence[TrajectoryStep], completion: Sequence[Any]) -> str:
    """Return the completion of a raw prompt, including the environment's last message."""
    completion_text = raw_text(list(completion))
    if not steps:
        return completion_text
    # The first piece of the last prompt is the question; what follows includes the texts of the environment.
    pieces = [*steps[-1].prompt, *steps[-1].completion][1:]
    recorded_text = _joined(pieces)
    return completion_text if completion_text.startswith(recorded_text) else recorded_text


class BridgedRubric(Rubric):
    """Scores rollouts with a v0 environment's rubric.

    Values that do not add up to the reward, as in rubrics with their own scoring, are metrics.
    """

    def __init__(self, inner: EvaluableEnvironment):
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
        """Name, weight and code hash of every v0 function."""
        rubric = self.inner.rubric
        lines: list[str] = []
        for func, weight in zip(rubric._get_reward_funcs(), rubric._get_reward_weights(), strict=False):
            lines.append(f"{function_name(func)} × {weight:g} #{digest_code(unwrapped(func))}")
        return lines

    async def score_rollout(self, state: RoveState) -> Scores:
        """Return v0's scores of a finished rollout; empty if the rubric scores whole groups."""
        if self.has_group_rewards:
            return Scores(0.0, {}, {})
        [scores] = await self._scored([state])
        return scores

    async def score_group(self, states: Sequence[RoveState], scores: Sequence[Scores] | None = None) -> list[Scores]:
        """Return v0's scores of the rollouts of a group."""
        return await self._scored(states) if self.has_group_rewards or scores is None else list(scores)

    async def _scored(self, states: Sequence[RoveState]) -> list[Scores]:
        inner = [_state_of(state) for state in states]
        await self.inner.score_states(inner)
        await self.inner.clean_up_scored(inner)
        return [self._scores_of(state) for state in inner]

    def _scores_of(self, state: State) -> Scores:
        # The weights of an EnvGroup's own rubric are not those that the member's rubric used.
        rubric = self.inner.member_of(state).rubric
        scores = as_scores(state, rubric._get_reward_func_names(), rubric._get_reward_weights())
        return msgspec.structs.replace(scores, extras=reward_errors(state))


def _row_of(state: RoveState) -> dict[str, Any]:
    return (bookkeeping(state).input or {})["v0_row"]


def _state_of(state: RoveState) -> State:
    if _V0_STATE not in state:
        raise ConfigError(
            "a v0 rubric scores only rollouts that its v0 environment has run in this process, and this one was loaded"
        )
    return state[_V0_STATE]


def as_scores(state: State, names: Iterable[str], weights: Iterable[float]) -> Scores:
    """Convert the reward and metrics of a scored v0 state."""
    reward = float(state["reward"] or 0.0)
    values = {name: float(value) for name, value in (state["metrics"] or {}).items()}
    weight_of: dict[str, float] = {}
    for name, weight in zip(names, weights, strict=False):
        if weight and name in values:
            weight_of[name] = weight
    weighted_sum = sum(weight * values[name] for name, weight in weight_of.items())
    # A rubric with its own `score_group`, or two functions of one name, has a reward that its metrics do not explain.
    if abs(weighted_sum - reward) > 1e-9:
        metrics = {name: value for name, value in values.items() if name != "reward"}
        return Scores(reward, {"reward": reward}, {"reward": 1.0}, metrics)
    rewards = {name: values[name] for name in weight_of}
    metrics = {name: value for name, value in values.items() if name not in weight_of}
    return Scores(reward, rewards, weight_of, metrics)
