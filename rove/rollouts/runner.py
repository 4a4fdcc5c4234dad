"""Run and score one rollout. `make_turn` is the only place where a step is recorded."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import msgspec

from rove.core.digest import derive_seed
from rove.core.errors import (
    ConfigError,
    Error,
    InfraError,
    LimitReachedError,
    OverlongPromptError,
    RemoteError,
    ends_task,
    phase,
    phase_of,
    traceback_text,
    unanswered_attempts,
)
from rove.core.messages import Message, Messages, text_of
from rove.core.model_roles import RoleClients, query
from rove.core.plain import MessageDict, Row
from rove.core.protocols import Client, Limits, Request, Response, SamplingParams
from rove.core.records import PROMPT_TOO_LONG, ErrorInfo, RolloutRecord, Scores, Timing, TrajectoryStep, Usage
from rove.core.state import Bookkeeping, State, bookkeeping, prompt_of
from rove.envs.dataset import example_key
from rove.envs.environment import Environment, Turn, messages_of, offered_tools, take_result
from rove.runs.serialization import checked_line
from rove.statistics import Price
from rove.utils.functions import maybe_await


class Job(msgspec.Struct, frozen=True):
    """One rollout to run: an example and a position in its group."""

    example: Row
    key: str
    index: int
    seed: int
    """Run seed; the rollout's own seeds are derived from it."""


def plan(examples: Iterable[Row], rollouts_per_example: int, seed: int = 0) -> Iterator[list[Job]]:
    """Yield the jobs of a run, one group per example.

    Equal rows get different keys ("…#2").
    """
    counts: dict[str, int] = {}
    for example in examples:
        key = example_key(example)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] > 1:
            key = f"{key}#{counts[key]}"
        yield [Job(example, key, index, seed) for index in range(rollouts_per_example)]


class Allowance(msgspec.Struct, frozen=True):
    """Limits of the rollouts of a run, and the price for the cost limit."""

    limits: Limits = Limits()
    price: Price | None = None

    def check(
        self,
        steps: Sequence[TrajectoryStep],
        conversations: Sequence[Sequence[TrajectoryStep]] | None = None,
        under_way: int = 0,
    ) -> None:
        """Check that a rollout may make one more turn.

        Args:
            steps: Steps of the conversation, for the limit of turns.
            conversations: Steps of all conversations of the rollout if there are several, for the limits of tokens and cost.
            under_way: Number of turns of the conversation that have started but have no step yet.
        """
        limits = self.limits
        if limits.max_turns is not None and len(steps) + under_way >= limits.max_turns:
            raise LimitReachedError("max_turns_reached")
        if limits.max_total_tokens is not None or limits.max_cost is not None:
            used = Usage()
            for conversation in conversations or [steps]:
                for step in conversation:
                    used += step.usage
            tokens = used.prompt_tokens + used.completion_tokens
            if limits.max_total_tokens is not None and tokens >= limits.max_total_tokens:
                raise LimitReachedError("max_total_tokens_reached", truncated=True)
            if limits.max_cost is not None and self.price is not None and self.price.of(used) >= limits.max_cost:
                raise LimitReachedError("max_cost_reached", truncated=True)


@dataclass(slots=True)
class _Turns:
    """Counts the turns of one rollout; an agent may request several concurrently."""

    started: int = 0
    running: int = 0


class _counted:  # a class: a generator with `contextmanager` takes several times as long, and every turn pays for it
    """Count a turn while it runs."""

    __slots__ = ("number", "turns")

    def __init__(self, turns: _Turns):
        self.turns = turns

    def __enter__(self) -> None:
        self.turns.started += 1
        self.turns.running += 1
        self.number = self.turns.started

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self.turns.started == self.number:
            self.turns.started -= 1  # a retry is the same turn with the same seed
        self.turns.running -= 1


def _continued(
    steps: Sequence[TrajectoryStep], messages: Sequence[object]
) -> tuple[TrajectoryStep | None, list[dict[str, object]]]:
    """Return the step that a conversation continues: the step that shares the most messages with the conversation's beginning (of
    equally good steps, the last).

    An agent may go back to an earlier message, or alternate between conversations, so this is not always the last step.

    Returns:
        The step, and the shared messages as objects of the step; reusing them saves memory.
    """
    continued_step: TrajectoryStep | None = None
    shared: list[MessageDict] = []
    for step in reversed(steps):
        if continued_step is not None and len(step.prompt) + len(step.completion) <= len(shared):
            continue  # too short to share more; comparing long conversations is what costs time here
        step_messages = [*step.prompt, *step.completion]
        count = _count_shared(step_messages, messages)
        if continued_step is None or count > len(shared):
            continued_step, shared = step, step_messages[:count]
    return continued_step, shared


def _count_shared(step_messages: Sequence[object], messages: Sequence[object]) -> int:
    """Return the number of equal messages at the beginning of both lists."""
    count = 0
    for step_message, message in zip(step_messages, messages):
        if step_message != message:
            break
        count += 1
    return count


def merge_sampling(sampling: SamplingParams, requested: SamplingParams) -> SamplingParams:
    """Return the run's sampling parameters overridden by an agent's, with the smaller `max_tokens` and both `stop` lists."""
    requested_values = msgspec.structs.asdict(requested)
    overrides = {name: value for name, value in requested_values.items() if value not in (None, {})}
    if sampling.max_tokens is not None and "max_tokens" in overrides:
        overrides["max_tokens"] = min(sampling.max_tokens, overrides["max_tokens"])
    if sampling.stop and "stop" in overrides:
        overrides["stop"] = list(dict.fromkeys([*sampling.stop, *overrides["stop"]]))
    return msgspec.structs.replace(sampling, **overrides)


_OFF: dict[str, tuple[Any, ...]] = {
    "temperature": (None,),
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "min_tokens": (None, 0),
    "response_format": (None,),
    "structured_outputs": (None,),
    "extra": ({},),
}
"""Sampling parameters that change the distribution of the tokens, with the values that turn each of them off."""


def check_trainable(sampling: SamplingParams, requested: SamplingParams) -> None:
    """Refuse sampling parameters of an agent that change the distribution of the tokens that are trained.

    Training computes log-probabilities with the run's temperature only, so other parameters would give wrong importance
    ratios.
    """
    for name, off in _OFF.items():
        run_value, agent_value = getattr(sampling, name), getattr(requested, name)
        if agent_value != run_value and not (agent_value in off and run_value in off):
            raise ConfigError(
                f"the agent requests {name} = {agent_value!r}, but this training run samples with {name} = {run_value!r} and "
                f"computes log-probabilities with it: remove '{name}' from agent_sampling of the environment, or let the agent "
                "send the value of the run"
            )


def _step(request: Request, response: Response, seconds: float, offered: object) -> TrajectoryStep:
    """Return the step of a request and its response; `offered` are the tools that the environment offers."""
    return TrajectoryStep(
        prompt=request.messages,
        completion=[response.message],
        finish_reason=response.finish_reason,
        usage=response.usage,
        seconds=seconds,
        tokens=response.tokens,
        attempts=response.attempts,
        tools=None if request.tools == offered else request.tools or [],
    )


def make_turn(
    client: Client,
    model: str,
    sampling: SamplingParams,
    allowance: Allowance = Allowance(),  # noqa: B008  frozen
    on_request: Callable[[], None] = lambda: None,
    for_training: bool = False,
) -> Turn:
    """Make the function that an environment calls for every model turn."""
    default_model = model

    async def turn(
        state: State,
        messages: Messages,
        *,
        role: str | None = None,
        model: str = "",
        sampling_args: Mapping[str, object] | None = None,
        agent_request: Request | None = None,
    ) -> Message:
        rollout = bookkeeping(state)
        offered = rollout.tools = offered_tools(state)
        tools = offered if agent_request is None else agent_request.tools
        if role is not None:
            args = sampling if sampling_args is None else sampling_args
            return await query(
                state, messages, client, role=role, model=model or default_model, sampling_args=args, tools=tools
            )
        if rollout.turn_numbers is None:
            rollout.turn_numbers = _Turns()
        turns: _Turns = rollout.turn_numbers
        trajectory = rollout.trajectory
        allowance.check(trajectory, rollout.conversations, turns.running)
        params = sampling if agent_request is None else merge_sampling(sampling, agent_request.sampling_params)
        if for_training:
            check_trainable(sampling, params)
        continued_step, shared = _continued(trajectory, messages)
        request = Request(
            messages=[*shared, *messages[len(shared) :]],
            sampling_params=params,
            model=default_model,
            tools=tools,
            previous=continued_step.tokens if continued_step else None,
            seed=derive_seed(rollout.seed, turns.started),
            state=state,
            text="".join(map(text_of, messages)) if isinstance(prompt_of(state), str) else None,
            on_text=None if agent_request is None else agent_request.on_text,
        )
        started = time.perf_counter()
        on_request()
        with _counted(turns), phase("model"):
            response = await client.respond(request)
        trajectory.append(_step(request, response, time.perf_counter() - started, offered))
        if response.finish_reason == "length":
            rollout.is_truncated = True
        return response.message

    return turn


@asynccontextmanager
async def finished_rollout(
    env: Environment, job: Job, turn: Turn, timeout_seconds: float | None = None, model_roles: RoleClients | None = None
) -> AsyncGenerator[State]:
    """Run one rollout; score it in the `async with` block. The `@cleanup` methods run at the end of the block.

    docs/decisions/cleanup.md explains this order: reward functions may use resources that a cleanup releases.

    Errors of the rollout and of the cleanup are recorded in its state instead of raised; see `scores_after_cleanup`.
    """
    state = State(
        input=job.example,
        trajectory=[],
        model_roles={},
        completion=None,
        seed=derive_seed(job.seed, job.key, job.index),
        env_seed=derive_seed(job.seed, job.key),
        stop_condition=None,
        is_truncated=False,
        error=None,
        role_clients=model_roles,
    )
    rollout = bookkeeping(state)
    try:
        with _timed(rollout):
            await _run(env, job, state, turn, timeout_seconds)
        yield state
    finally:  # clean up also after a cancellation
        with _timed(rollout), _contained(state), phase("cleanup"):
            await env.clean_up(state)


async def _run(env: Environment, job: Job, state: State, turn: Turn, timeout_seconds: float | None) -> None:
    with _contained(state):
        # The group shares the example; a rollout must not change it for others.
        bookkeeping(state).input = _deep_copy(job.example)
        limits = (env.time_limit(state), timeout_seconds)
        limit = min((limit for limit in limits if limit is not None), default=None)
        await run_with_limits(limit, state, lambda: env.run(state, turn))
    with _contained(state):
        take_result(state)
    with _contained(state), phase("post_rollout"):
        await maybe_await(env.post_rollout(state))


class _timed:
    """Add the wall time of this block to the rollout's wall time."""

    __slots__ = ("rollout", "started")

    def __init__(self, rollout: Bookkeeping):
        self.rollout = rollout
        self.started = time.perf_counter()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.rollout.seconds += time.perf_counter() - self.started


def scores_after_cleanup(state: State, scores: Scores | None) -> Scores | None:
    """Return the scores of a rollout that has been cleaned up; None if its cleanup failed."""
    return scores if bookkeeping(state).error is None else None


async def run_with_limits(timeout_seconds: float | None, state: State, run: Callable[[], Awaitable[None]]) -> None:
    """Run a rollout until it ends or reaches a limit of turns, tokens or time, and set its stop condition."""
    rollout = bookkeeping(state)
    limit = asyncio.timeout(timeout_seconds)
    try:
        async with limit:
            await run()
    except OverlongPromptError as error:
        if phase_of(error).startswith("role "):  # of a judge, a user or an opponent: the policy is not to blame
            raise
        rollout.stop_condition, rollout.is_truncated = PROMPT_TOO_LONG, True
    except LimitReachedError as reached:
        rollout.stop_condition, rollout.is_truncated = str(reached), rollout.is_truncated or reached.truncated
    except TimeoutError as error:
        if not limit.expired():  # raised by the environment's own code: an error like any other
            raise
        _check_answered(error, rollout, timeout_seconds)
        rollout.stop_condition, rollout.is_truncated = "timeout_reached", True


def _check_answered(timeout: TimeoutError, rollout: Bookkeeping, seconds: float | None) -> None:
    """Raise InfraError if the endpoint had not answered at the time limit: such a rollout must not get a score."""
    unanswered = unanswered_attempts(timeout.__cause__)
    if unanswered:
        problem = f"no answer within the rollout's time limit of {seconds:g} s: {unanswered[-1]}"
        raise InfraError(problem, unanswered) from timeout
    if rollout.trajectory:
        return
    running = phase_of(timeout.__cause__ or timeout)
    problem = f"the rollout's time limit of {seconds:g} s passed in {running}, before the first answer"
    if running in ("model", "rollout"):
        problem = f"no answer within the rollout's time limit of {seconds:g} s"
    raise InfraError(problem) from timeout


def _deep_copy(value: Any) -> Any:
    """Return a deep copy, much faster than `copy.deepcopy` for the usual contents of dataset rows."""
    kind = cast(type[Any], type(value))
    if kind in (str, int, float, bool, type(None)):
        return value
    if kind is dict or isinstance(value, Message):
        copied = cast(dict[Any, Any], dict.__new__(kind))  # without `__init__`: those of messages take other arguments
        copied.update(((name, _deep_copy(item)) for name, item in value.items()))
        return copied
    if kind is list:
        return [_deep_copy(item) for item in value]
    return copy.deepcopy(value)


class _contained:
    """Record an exception of this block as the states' error, unless it `ends_task`."""

    __slots__ = ("states",)

    def __init__(self, *states: State):
        self.states = states

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or ends_task(error):
            return False
        for state in self.states:
            rollout = bookkeeping(state)
            rollout.error = rollout.error or error_info(error)  # the first error is the cause of later ones
        return True


def error_info(error: BaseException) -> ErrorInfo:
    """Return an exception as data; for an exception in a worker process, the data describe the original exception."""
    if isinstance(error, RemoteError) and error.type:
        return ErrorInfo(phase_of(error), error.type, error.args[0], error.traceback)
    attempts = list(error.attempts) if isinstance(error, Error) else []
    return ErrorInfo(phase_of(error), type(error).__name__, str(error), traceback_text(error), attempts)


async def score(env: Environment, state: State) -> Scores | None:
    """Return the scores of a finished rollout; None, with its error recorded, if the rollout or its scoring failed."""
    rollout = bookkeeping(state)
    if rollout.error is not None:  # a failure is never recorded as a reward of 0
        return None
    started = time.perf_counter()
    scores: Scores | None = None
    with _contained(state), phase("scoring"):
        scores = await env.scoring_rubric.score_rollout(state)
    rollout.scoring_seconds = time.perf_counter() - started
    return scores


async def score_group(env: Environment, states: Sequence[State], scores: list[Scores | None]) -> list[Scores | None]:
    """Add group rewards, which get only successful rollouts. If a group reward raises an error, all of these rollouts fail with
    it.
    """
    scored = {position: member for position, member in enumerate(scores) if member is not None}
    if not scored or not env.scoring_rubric.has_group_rewards:
        return scores
    group_scores: list[Scores | None] = [None] * len(scores)
    scored_states = [states[position] for position in scored]
    with _contained(*scored_states), phase("scoring"):
        new_scores = await env.scoring_rubric.score_group(scored_states, list(scored.values()))
        for position, member in zip(scored, new_scores, strict=True):
            group_scores[position] = member
    return group_scores


def make_record(
    job: Job, state: State, scores: Scores | None, temperature: float | None, step: int | None
) -> RolloutRecord:
    """Return the frozen record of a finished, scored rollout."""
    rollout = bookkeeping(state)
    prompt, completion = messages_of(state)
    model_seconds = sum(turn.seconds for turn in rollout.trajectory)
    return RolloutRecord(
        example_key=job.key,
        example_id=job.example["example_id"],
        rollout_index=job.index,
        seed=rollout.seed,
        prompt=prompt,
        completion=completion,
        answer=job.example["answer"],
        info=job.example["info"],
        steps=rollout.trajectory,
        stop_condition=rollout.stop_condition,
        is_truncated=rollout.is_truncated,
        scores=scores,
        error=rollout.error,
        usage=sum((turn.usage for turn in rollout.trajectory), Usage()),
        timing=Timing(rollout.seconds, model_seconds, rollout.scoring_seconds),
        temperature=temperature,
        step=step,
        env_id=rollout.env_id,
        model_roles=rollout.model_roles,
        renderings=rollout.renderings,
        is_text=isinstance(prompt_of(state), str),
        tools=rollout.tools or None,
    )


class FinalRecord(NamedTuple):
    """The record of a finished rollout."""

    record: RolloutRecord
    line: bytes | None = None
    """The record's line in rollouts.jsonl, if it is encoded already; encoding a game of Tic-Tac-Toe again for the file takes 25
    µs."""


def try_record(
    job: Job, state: State, scores: Scores | None, temperature: float | None, step: int | None
) -> FinalRecord:
    """Return the record of a rollout. If the record cannot be written to a run folder and read back, return a record of this
    failure.

    Environments may write any values into the state (docs/decisions/state.md), and a single unreadable line would make the
    whole run folder unusable.
    """
    with _contained(state), phase("rollout"):
        record = make_record(job, state, scores, temperature, step)
        return FinalRecord(record, checked_line(record))
    # Reached only after an exception, which `_contained` has stored as the error of the rollout.
    rollout = bookkeeping(state)
    empty = State(
        input=job.example,
        prompt=job.example["prompt"],
        seed=rollout.seed,
        stop_condition=rollout.stop_condition,
        is_truncated=rollout.is_truncated,
        completion=[],
        error=rollout.error,
        seconds=rollout.seconds,
        scoring_seconds=rollout.scoring_seconds,
        env_id=rollout.env_id,
    )
    return FinalRecord(make_record(job, empty, None, temperature, step))
