"""Run and score one rollout. `make_turn` is the only place where a step is recorded."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

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
from rove.core.records import ErrorInfo, RolloutRecord, Scores, Timing, TrajectoryStep, Usage
from rove.core.state import Bookkeeping, State, bookkeeping, prompt_of
from rove.envs.dataset import example_key
from rove.envs.environment import Environment, Turn, messages_of, offered_tools, take_result
from rove.runs.serialization import check_storable
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
    seen: dict[str, int] = {}
    for example in examples:
        key = example_key(example)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 1:
            key = f"{key}#{seen[key]}"
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
            conversations: Steps of all conversations of the rollout if there are several, for the limits of tokens and cost.
        """
        limits = self.limits
        if limits.max_turns is not None and len(steps) + under_way >= limits.max_turns:
            raise LimitReachedError("max_turns_reached")
        if limits.max_total_tokens is not None or limits.max_cost is not None:
            used = sum((step.usage for some in conversations or [steps] for step in some), Usage())
            tokens = used.prompt_tokens + used.completion_tokens
            if limits.max_total_tokens is not None and tokens >= limits.max_total_tokens:
                raise LimitReachedError("max_total_tokens_reached", truncated=True)
            if limits.max_cost is not None and self.price is not None and self.price.of(used) >= limits.max_cost:
                raise LimitReachedError("max_cost_reached", truncated=True)


@dataclass(slots=True)
class _Turns:
    """Counts the turns of one rollout; an agent may request several concurrently."""

    begun: int = 0
    under_way: int = 0

    @contextmanager
    def one_more(self) -> Generator[None]:
        """Count a turn while it runs."""
        self.begun += 1
        self.under_way += 1
        number = self.begun
        try:
            yield
        except BaseException:
            if self.begun == number:
                self.begun -= 1  # a retry is the same turn with the same seed
            raise
        finally:
            self.under_way -= 1


def _continued(
    steps: Sequence[TrajectoryStep], messages: Sequence[object]
) -> tuple[TrajectoryStep | None, list[dict[str, object]]]:
    """Return the step that a conversation continues: the last of those that share the most messages with its beginning.

    Returns:
        The step, and the shared messages; reusing these objects saves memory.
    """
    found: TrajectoryStep | None = None
    most: list[MessageDict] = []
    for step in reversed(steps):
        if found is None or len(step.prompt) + len(step.completion) > len(most):
            known = [*step.prompt, *step.completion]
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(known, messages)))
            if found is None or common > len(most):
                found, most = step, known[:common]
    return found, most


def merge_sampling(sampling: SamplingParams, requested: SamplingParams) -> SamplingParams:
    """Return the run's sampling parameters overridden by an agent's, with the smaller `max_tokens` and both `stop` lists."""
    given = {name: value for name, value in msgspec.structs.asdict(requested).items() if value not in (None, {})}
    if sampling.max_tokens is not None and "max_tokens" in given:
        given["max_tokens"] = min(sampling.max_tokens, given["max_tokens"])
    if sampling.stop and "stop" in given:
        given["stop"] = list(dict.fromkeys([*sampling.stop, *given["stop"]]))
    return msgspec.structs.replace(sampling, **given)


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
"""Sampling parameters that change the distribution of the tokens, and the values with which each does not."""


def check_trainable(sampling: SamplingParams, requested: SamplingParams) -> None:
    """Refuse sampling parameters of an agent that change the distribution of the tokens that are trained.

    Training computes log-probabilities with the temperature of the run: tokens sampled otherwise would be trained with
    wrong importance ratios.
    """
    for name, off in _OFF.items():
        own, given = getattr(sampling, name), getattr(requested, name)
        if given != own and not (given in off and own in off):
            raise ConfigError(
                f"the agent requests {name} = {given!r}, but this training run samples with {name} = {own!r} and computes "
                f"log-probabilities with it: remove '{name}' from agent_sampling of the environment, or let the agent send "
                "the value of the run"
            )


def _step(request: Request, response: Response, seconds: float, shown: object) -> TrajectoryStep:
    """Return the step of a request and its response; `shown` are the tools that the environment offers."""
    return TrajectoryStep(
        prompt=request.messages,
        completion=[response.message],
        finish_reason=response.finish_reason,
        usage=response.usage,
        seconds=seconds,
        tokens=response.tokens,
        attempts=response.attempts,
        tools=None if request.tools == shown else request.tools or [],
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
        own = bookkeeping(state)
        shown = own.tools = offered_tools(state)
        if role is not None:
            args = sampling if sampling_args is None else sampling_args
            tools = shown if agent_request is None else agent_request.tools
            return await query(
                state, messages, client, role=role, model=model or default_model, sampling_args=args, tools=tools
            )
        if own.turn_numbers is None:
            own.turn_numbers = _Turns()
        turns: _Turns = own.turn_numbers
        trajectory = own.trajectory
        allowance.check(trajectory, own.conversations, turns.under_way)
        how = sampling if agent_request is None else merge_sampling(sampling, agent_request.sampling_params)
        if for_training:
            check_trainable(sampling, how)
        before, known = _continued(trajectory, messages)
        request = Request(
            messages=[*known, *messages[len(known) :]],
            sampling_params=how,
            model=default_model,
            tools=shown if agent_request is None else agent_request.tools,
            previous=before.tokens if before else None,
            seed=derive_seed(own.seed, turns.begun),
            state=state,
            text="".join(map(text_of, messages)) if isinstance(prompt_of(state), str) else None,
            on_text=None if agent_request is None else agent_request.on_text,
        )
        started = time.perf_counter()
        on_request()
        with turns.one_more(), phase("model"):
            response = await client.respond(request)
        trajectory.append(_step(request, response, time.perf_counter() - started, shown))
        if response.finish_reason == "length":
            own.is_truncated = True
        return response.message

    return turn


@asynccontextmanager
async def finished_rollout(
    env: Environment, job: Job, turn: Turn, timeout_seconds: float | None = None, model_roles: RoleClients | None = None
) -> AsyncGenerator[State]:
    """Run one rollout; score it in the `async with` block. Its `@cleanup` methods run at the end of the block.

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
    own = bookkeeping(state)
    try:
        with _timed(own):
            await _run(env, job, state, turn, timeout_seconds)
        yield state
    finally:  # clean up also after a cancellation
        with _timed(own), _contained(state), phase("cleanup"):
            await env.clean_up(state)


async def _run(env: Environment, job: Job, state: State, turn: Turn, timeout_seconds: float | None) -> None:
    own = bookkeeping(state)
    with _contained(state):
        own.input = _own_copy(job.example)  # the group shares the example; a rollout must not change it for others
        limits = (env.time_limit(state), timeout_seconds)
        limit = min((limit for limit in limits if limit is not None), default=None)
        await run_with_limits(limit, state, lambda: env.run(state, turn))
    with _contained(state):
        take_result(state)
    with _contained(state), phase("post_rollout"):
        await maybe_await(env.post_rollout(state))


@contextmanager
def _timed(own: Bookkeeping) -> Generator[None]:
    """Add the wall time of this block to that of the rollout."""
    started = time.perf_counter()
    try:
        yield
    finally:
        own.seconds += time.perf_counter() - started


def scores_after_cleanup(state: State, scores: Scores | None) -> Scores | None:
    """Return the scores of a rollout that has been cleaned up; None if its cleanup failed."""
    return scores if bookkeeping(state).error is None else None


async def run_with_limits(timeout_seconds: float | None, state: State, run: Callable[[], Awaitable[None]]) -> None:
    """Run a rollout until it ends or reaches a limit of turns, tokens or time, and set its stop condition."""
    own = bookkeeping(state)
    limit = asyncio.timeout(timeout_seconds)
    try:
        async with limit:
            await run()
    except OverlongPromptError:
        own.stop_condition, own.is_truncated = "prompt_too_long", True
    except LimitReachedError as reached:
        own.stop_condition, own.is_truncated = str(reached), own.is_truncated or reached.truncated
    except TimeoutError as error:
        if not limit.expired():
            raise
        # A rollout without an answer from its endpoint must not get a score.
        unanswered = unanswered_attempts(error.__cause__)
        if unanswered or not own.trajectory:
            problem = f"no answer within the rollout's time limit of {timeout_seconds:g} s"
            raise InfraError(f"{problem}: {unanswered[-1]}" if unanswered else problem, unanswered or ()) from error
        own.stop_condition, own.is_truncated = "timeout_reached", True


def _own_copy(value: Any) -> Any:
    """Return a deep copy, much faster than `copy.deepcopy` for the usual contents of dataset rows."""
    kind = cast(type[Any], type(value))
    if kind in (str, int, float, bool, type(None)):
        return value
    if kind is dict or isinstance(value, Message):
        copied = cast(dict[Any, Any], dict.__new__(kind))
        copied.update(((name, _own_copy(item)) for name, item in value.items()))
        return copied
    return [_own_copy(item) for item in value] if kind is list else copy.deepcopy(value)


@contextmanager
def _contained(*states: State) -> Generator[None]:
    """Record an exception of this block as the states' error, unless it `ends_task`."""
    try:
        yield
    except BaseException as error:
        if ends_task(error):
            raise
        for state in states:
            own = bookkeeping(state)
            own.error = own.error or error_info(error)


def error_info(error: BaseException) -> ErrorInfo:
    """Return an exception as data; for a worker's exception, as it was in the worker."""
    if isinstance(error, RemoteError) and error.type:
        return ErrorInfo(phase_of(error), error.type, error.args[0], error.traceback)
    attempts = list(error.attempts) if isinstance(error, Error) else []
    return ErrorInfo(phase_of(error), type(error).__name__, str(error), traceback_text(error), attempts)


async def score(env: Environment, state: State) -> Scores | None:
    """Return the scores of a finished rollout; None, with its error recorded, if the rollout or its scoring failed."""
    own = bookkeeping(state)
    if own.error is not None:
        return None
    started = time.perf_counter()
    scores: Scores | None = None
    with _contained(state), phase("scoring"):
        scores = await env.scoring_rubric.score_rollout(state)
    own.scoring_seconds = time.perf_counter() - started
    return scores


async def score_group(env: Environment, states: Sequence[State], scores: list[Scores | None]) -> list[Scores | None]:
    """Add group rewards, which see successful rollouts only. If one raises, all of these fail with its error."""
    alive = [i for i, given in enumerate(scores) if given is not None]
    if not alive or not env.scoring_rubric.has_group_rewards:
        return scores
    merged: list[Scores | None] = [None] * len(scores)
    survivors = [given for given in scores if given is not None]
    with _contained(*(states[i] for i in alive)), phase("scoring"):
        joined = await env.scoring_rubric.score_group([states[i] for i in alive], survivors)
        for i, given in zip(alive, joined, strict=True):
            merged[i] = given
    return merged


def make_record(
    job: Job, state: State, scores: Scores | None, temperature: float | None, step: int | None
) -> RolloutRecord:
    """Return the frozen record of a finished, scored rollout."""
    own = bookkeeping(state)
    prompt, completion = messages_of(state)
    return RolloutRecord(
        example_key=job.key,
        example_id=job.example["example_id"],
        rollout_index=job.index,
        seed=own.seed,
        prompt=prompt,
        completion=completion,
        answer=job.example["answer"],
        info=job.example["info"],
        steps=own.trajectory,
        stop_condition=own.stop_condition,
        is_truncated=own.is_truncated,
        scores=scores,
        error=own.error,
        usage=sum((s.usage for s in own.trajectory), Usage()),
        timing=Timing(own.seconds, sum(s.seconds for s in own.trajectory), own.scoring_seconds),
        temperature=temperature,
        step=step,
        env_id=own.env_id,
        model_roles=own.model_roles,
        renderings=own.renderings,
        tools=own.tools or None,
    )


def try_record(
    job: Job, state: State, scores: Scores | None, temperature: float | None, step: int | None
) -> RolloutRecord:
    """Return the record of a rollout; if it cannot be written to a run folder and read back, a record of that error."""
    with _contained(state), phase("rollout"):
        record = make_record(job, state, scores, temperature, step)
        check_storable(record)
        return record
    own = bookkeeping(state)
    empty = State(
        input=job.example,
        prompt=job.example["prompt"],
        seed=own.seed,
        stop_condition=own.stop_condition,
        is_truncated=own.is_truncated,
        completion=[],
        error=own.error,
        seconds=own.seconds,
        scoring_seconds=own.scoring_seconds,
        env_id=own.env_id,
    )
    return make_record(job, empty, None, temperature, step)
