"""One rollout of an environment in a worker process, with its model requests; it is replayed after a crash.

docs/decisions/workers.md explains why many rollouts share a worker, and how a replay matches requests.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rove.core.errors import (
    Error,
    LimitReachedError,
    OverlongPromptError,
    RemoteError,
    WorkerError,
    cancelled_unanswered,
    phase_of,
    unanswered_attempts,
)
from rove.core.messages import Message
from rove.core.plain import JsonObject, JsonValue, MessageDict, ToolDefinition
from rove.core.protocols import Request, SamplingParams
from rove.core.records import Scores, TrajectoryStep
from rove.core.renderings import Rendering
from rove.core.state import State, bookkeeping
from rove.envs.environment import Turn
from rove.envs.multi_turn import Opponent
from rove.remote.worker_pool import WorkerPool, WorkerPools
from rove.workers import Worker

CONTROL_ERRORS = {"LimitReachedError": LimitReachedError, "OverlongPromptError": OverlongPromptError}
"""Errors that end a rollout without failing it."""
MAX_LOST_NODES = 3
"""Number of nodes that may be lost during one rollout; beyond that, the rollout itself is considered the cause."""
NONDETERMINISTIC = "its worker died, and the replayed environment sent a request that differs from the recorded one"


class RemoteRollout:
    """A rollout that runs in a shared worker; if the worker dies, it is replayed alone in a new worker.

    A replay receives the recorded responses again, so that the model is not queried twice. Replaying alone shows whether this
    rollout kills workers: if the second worker dies too, the rollout fails. Rollouts are not blamed for the loss of
    their node; they are replayed on another node's shared worker.

    Args:
        state: State of the rollout in this process; the worker has its own copy.
    """

    def __init__(self, pools: WorkerPools, state: State, turn: Turn, opponent: Opponent | None = None):
        self.pools, self.state = pools, state
        self.pool: WorkerPool | None = None
        self.worker: Worker | None = None
        self.number = -1
        """The rollout's number in its worker."""
        self.record = bookkeeping(state)
        self.record.remote = self
        self._requests = ModelRequests(state, turn, opponent)
        self._has_opponent = opponent is not None
        self._is_registered = False
        self._ran_alone = False
        self._is_scored = False
        self._lost_nodes = 0

    async def time_limit(self) -> float | None:
        """Return the time limit of the rollout in seconds; None = no limit."""
        while True:
            worker = await self._acquire_worker()
            try:
                return await worker.request("time_limit", example=self.record.input)
            except WorkerError:
                if not await self._may_change_node():
                    raise

    async def run(self) -> None:
        """Run the rollout to its end."""
        try:
            worker = await self._acquire_worker()
            while True:
                try:
                    await self.run_in(worker)
                    break
                except WorkerError:
                    replacement = await self._replacement_worker()
                    if replacement is None:
                        raise
                    worker = replacement
        except asyncio.CancelledError as error:
            attempts = await self._requests.end()
            if attempts is not None:
                raise cancelled_unanswered(attempts) from error
            raise
        finally:
            await self._requests.end()

    async def clean_up(self, keep: bool = False) -> None:
        """Clean up in the worker and copy the rollout's result into the state.

        Args:
            keep: Do not leave the worker yet if the rollout has scores, because group rewards follow.
        """
        failed: JsonObject | None = None
        try:
            if self._is_gone or (self.worker is not None and self.worker.is_closed and self._is_scored):
                self._keep_replies()
                return  # what there was to clean up has ended with the worker
            reply = await self._call_with_replay("clean_up", self._replay_finished, **self._end_reasons())
            self._apply(reply)
            failed = reply["failed"]
        finally:
            has_failed = failed is not None or self.record.error is not None
            if has_failed or not keep or not self._is_scored:
                self.release()
        if failed is not None:  # raised last: the result is needed although the cleanup failed
            raise RemoteError(**failed)

    def _keep_replies(self) -> None:
        """Fill the completion of a rollout whose worker ended before it sent one, with the messages that this process knows."""
        record = self.record
        if record.completion or not record.trajectory or isinstance(record.prompt, str):
            return
        # The environment may have changed the prompt of the row before the first turn.
        record.prompt = record.trajectory[0].prompt
        last = record.trajectory[-1]
        record.completion = [*last.prompt[len(record.prompt) :], *last.completion]

    @property
    def _is_gone(self) -> bool:
        """Whether the rollout has never had a worker, or failed because its worker ended."""
        return self.worker is None or (self.worker.is_closed and self.record.error is not None)

    async def finish(self) -> None:
        """Stop the rollout in the worker if it still runs, and call the environment's `post_rollout`."""
        if not self._is_gone:
            await self._call_with_replay("finish", self._replay, **self._end_reasons())

    async def score(self) -> Scores:
        """Return the scores of the environment's rubric, without group rewards."""
        scores = self.apply_scores(await self._call_with_replay("score", self._replay_finished))
        self._is_scored = True
        return scores

    def apply_scores(self, reply: JsonObject) -> Scores:
        """Copy a worker's reply into the state and return its scores."""
        self._apply(reply)
        return msgspec.convert(reply["scores"], Scores)

    async def run_in(self, worker: Worker) -> None:
        """Run or replay the rollout in `worker`."""
        assert self.pool is not None
        self._detach()
        self.worker, self.number = worker, self.pool.register(self._requests)
        self._is_registered = True
        self._requests.begin(worker)
        await self._run()

    async def _replay_finished(self, worker: Worker) -> None:
        """Replay a finished rollout in `worker`, without its cleanup."""
        await self._replay(worker)
        with suppress(RemoteError):  # post_rollout fails as it did before
            await self._call("finish", **self._end_reasons())

    async def replay_cleaned_up(self, worker: Worker) -> None:
        """Replay a finished rollout in `worker`, including its cleanup."""
        await self._replay_finished(worker)
        await self._call("clean_up", **self._end_reasons())

    async def score_with(self, rollouts: Sequence[RemoteRollout], scores: Sequence[Scores]) -> list[JsonObject]:
        """Return the scores of a group's members, who are all in this rollout's worker, for `apply_scores`."""
        assert self.worker is not None
        numbers = [rollout.number for rollout in rollouts]
        return await self.worker.request("score_group", numbers=numbers, scores=msgspec.to_builtins(list(scores)))

    def release(self) -> None:
        """Leave the worker and the pool."""
        self._detach()
        if self.pool is not None:
            self.pool.members.discard(self)

    def _detach(self) -> None:
        if self._is_registered:
            assert self.pool is not None
            assert self.worker is not None
            self._is_registered = False
            self.pool.unregister(self.number, self.worker)

    async def call_policy(self, name: str, messages: list[Any], rng: Any, conversation: int = 0) -> object:
        """Return the message of a scripted policy; `conversation` is the worker's number of the conversation."""
        return await self._call("policy", policy=name, messages=messages, rng=rng, conversation=conversation)

    def join_pool(self, pool: WorkerPool) -> None:
        """Use this pool from now on."""
        self.pool = pool
        pool.members.add(self)

    async def _acquire_worker(self, alone: bool = False) -> Worker:
        """Return the shared worker of a pool; with `alone`, return a new worker."""
        while True:
            if self.pool is None:
                self.join_pool(await self.pools.choose(self.state))
            assert self.pool is not None
            try:
                return await (self.pool.open_worker() if alone else self.pool.shared_worker())
            except WorkerError:
                if not await self._may_change_node():
                    raise

    async def _may_change_node(self) -> bool:
        """Return whether the rollout's node is lost and another node may replay the rollout; the rollout then leaves its pool."""
        if self.pool is not None:
            if not await self.pools.is_lost(self.pool):
                return False
            self.release()
            self.pool = None
            self._lost_nodes += 1
        return self._lost_nodes < MAX_LOST_NODES

    async def _replacement_worker(self) -> Worker | None:
        """Return the worker for a replay after its worker died; None if the rollout may not be replayed again."""
        if await self._may_change_node():
            return await self._acquire_worker(self._ran_alone)
        if self._ran_alone or self.pool is None:  # it was alone, so it is the cause
            return None
        self._ran_alone = True
        return await self._acquire_worker(alone=True)

    async def _run(self) -> None:
        assert self.pool is not None
        assert self.worker is not None
        seeds = {"seed": self.record.seed, "env_seed": self.record.env_seed}
        try:
            options = {"has_opponent": self._has_opponent, "forget": self.pool.take_finished(self.worker)}
            await self._call("run", example=self.record.input, **seeds, **options)
        except RemoteError as error:
            failure = self._requests.failure
            # The model's error came back through the worker: the original has its class, attempts and traceback.
            if failure is not None and (error.type, error.args[0]) == (type(failure).__name__, str(failure)):
                raise failure from None
            if error.type in CONTROL_ERRORS:
                raise CONTROL_ERRORS[error.type](error.args[0]) from error
            raise

    async def _call(self, name: str, **args: object) -> JsonValue:
        assert self.worker is not None
        return await self.worker.request(name, number=self.number, **args)

    async def _call_with_replay(self, name: str, replay: Callable[[Worker], Awaitable[None]], **args: Any) -> JsonValue:
        """Call a worker about a finished rollout; if the worker died, first call `replay` with a new worker."""
        worker: Worker | None = None
        while True:
            try:
                if worker is not None:
                    await replay(worker)
                return await self._call(name, **args)
            except WorkerError:
                worker = await self._replacement_worker()
                if worker is None:
                    raise

    async def _replay(self, worker: Worker) -> None:
        """Replay a finished rollout, which ends as it did before."""
        with suppress(RemoteError, *CONTROL_ERRORS.values()):
            await self.run_in(worker)

    def _end_reasons(self) -> JsonObject:
        """Return the reasons for the rollout's end, as far as this process knows them."""
        return {"stop_condition": self.record.stop_condition, "is_truncated": self.record.is_truncated}

    def _apply(self, reply: JsonObject) -> None:
        record, requests = self.record, self._requests
        for name in ("prompt", "completion"):
            value = reply[name]
            setattr(record, name, value if isinstance(value, str) else [Message(message) for message in value])
        # Limits are enforced in this process, so its stop condition takes precedence.
        record.stop_condition = record.stop_condition or reply["stop_condition"]
        record.is_truncated = record.is_truncated or reply["is_truncated"]
        record.tools = reply["tools"]
        record.renderings = msgspec.convert(reply["renderings"], dict[int, Rendering], strict=False)
        record.model_roles = {role: requests.steps(steps) for role, steps in reply["model_roles"].items()}
        record.env_id = reply["env_id"] or record.env_id
        steps = requests.steps(reply["trajectory"])
        for step, reward in zip(steps, reply["step_rewards"], strict=True):
            if reward is not None:
                step["reward"] = reward
        record.trajectory[:] = [*steps, *requests.missing(reply["trajectory"])]


async def score_in_one_worker(rollouts: Sequence[RemoteRollout], scores: Sequence[Scores]) -> list[Scores]:
    """Return the scores of the members of a group with group rewards. If they are in several workers, first
    replay them in one worker.
    """
    first = rollouts[0]
    while True:
        try:
            workers = {rollout.worker for rollout in rollouts}
            if len(workers) > 1 or first.worker is None or first.worker.is_closed:
                worker = await first._acquire_worker(alone=True)
                assert first.pool is not None
                for rollout in rollouts:
                    rollout.release()
                    rollout.join_pool(first.pool)
                    await rollout.replay_cleaned_up(worker)
            replies = await first.score_with(rollouts, scores)
            return [rollout.apply_scores(reply) for rollout, reply in zip(rollouts, replies, strict=True)]
        except WorkerError:
            if not await first._may_change_node():
                raise


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model request of a worker; see `rove.envs.environment.Turn`."""

    messages: list[MessageDict]
    tools: list[ToolDefinition] | None
    """Tools of the rollout."""
    prompt: str | None
    """The rollout's prompt if it is a text."""
    seed: int
    """Seed of the conversation."""
    role: str | None = None
    model: str = ""
    sampling_args: JsonObject | None = None
    agent_request: JsonObject | None = None
    """Sampling parameters and tools of a foreign agent."""


@dataclass(eq=False, slots=True)
class _PendingRequest:
    """A model request with its caller and its response."""

    number: int
    request: ModelRequest
    state: State
    """State of the conversation in this process."""
    call_id: int
    """The worker's number of the call."""
    is_own: bool
    """Whether the request is a turn of the rollout's own conversation, whose turns are sequential."""
    is_matched: bool = True
    """Whether the current worker has sent the request."""
    repeated: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when another worker repeats the request."""
    task: asyncio.Task[Message] | None = None
    step: TrajectoryStep | None = None


class ModelRequests:
    """The model requests of one rollout; each is sent to the model once.

    In a replay, a request gets its recorded response. Turns of the rollout's own conversation are sequential and must
    repeat in the same order. Requests of sub-models and agents may be concurrent, so they may repeat in any order.
    """

    def __init__(self, state: State, turn: Turn, opponent: Opponent | None = None):
        self.state, self._turn, self._opponent = state, turn, opponent
        self._numbers = itertools.count()
        self._sent: list[_PendingRequest] = []
        self._conversations: dict[int, State] = {0: state}  # by the worker's number
        self._moves: list[tuple[list[object], asyncio.Task[str]]] = []
        self._moves_read = 0
        self._worker: Worker | None = None
        self.is_over = False
        """Whether new requests are refused."""
        self.failure: Error | None = None
        """The last error of the model's client."""
        self.record = bookkeeping(state)
        self.record.conversations = [self.record.trajectory]

    def begin(self, worker: Worker) -> None:
        """Start or restart the rollout in this worker."""
        self._worker = worker
        self._conversations = {0: self.state}
        self._moves_read = 0
        for sent in self._sent:
            sent.is_matched = False

    async def respond(self, call_id: int, conversation: int, **request: Any) -> JsonObject:
        """Return the model's response to a worker's request: a new response or, in a replay, the recorded response.

        Args:
            conversation: 0 = the rollout's own conversation; other numbers are conversations of trained sub-models.
        """
        pending = self._match(call_id, conversation, ModelRequest(**request))
        if pending is None:
            return {"limit": str(self.record.stop_condition), "truncated": False}
        assert pending.task is not None
        try:
            # Shielded: this call ends with its worker, but the response is kept for the replay.
            message = await asyncio.shield(pending.task)
        except LimitReachedError as error:
            return {"limit": str(error), "truncated": error.truncated}
        except Error as error:
            return {"failed": {"type": type(error).__name__, "message": str(error), "phase": phase_of(error)}}
        step = pending.step
        assert step is not None
        return {
            "message": message,
            "answer": pending.number,
            "finish_reason": step.finish_reason,
            "usage": [step.usage.prompt_tokens, step.usage.completion_tokens],
            "seconds": step.seconds,
            "attempts": step.attempts,
        }

    async def cancel(self, call_id: int) -> None:
        """Cancel a request that the worker no longer waits for."""
        for sent in list(self._sent):
            is_meant = sent.call_id == call_id and sent.is_matched  # calls of an earlier worker may have the same id
            if is_meant and sent.task is not None and not sent.task.done():
                self._sent.remove(sent)
                sent.task.cancel()

    async def opponent_move(self, view: str, legal: list[str], rendering: JsonObject | None = None) -> str:
        """Return the opponent's move; in a replay, the recorded move."""
        index, self._moves_read = self._moves_read, self._moves_read + 1
        if index == len(self._moves):
            assert self._opponent is not None
            board = None if rendering is None else msgspec.convert(rendering, Rendering, strict=False)
            self._moves.append(([view, legal], asyncio.create_task(self._opponent(view, legal, board))))
        recorded_position, move = self._moves[index]
        if recorded_position != [view, legal]:
            raise WorkerError(NONDETERMINISTIC)
        return await asyncio.shield(move)

    async def end(self) -> list[str] | None:
        """Refuse new requests and cancel running requests.

        Returns:
            The failed attempts of a cancelled request, which explain why the rollout took so long; None if no request was
            cancelled.
        """
        attempts: list[str] | None = None
        self.is_over = True
        tasks = [sent.task for sent in self._sent if sent.task is not None]
        running = [task for task in tasks if not task.done()]
        for task in (*running, *(move for _, move in self._moves)):
            task.cancel()
        for task in running:
            try:
                await task
            except asyncio.CancelledError as cancelled:
                task_attempts = unanswered_attempts(cancelled)
                if task_attempts is not None:
                    attempts = task_attempts
            except Exception:
                continue
        return attempts

    def steps(self, reply: Sequence[object]) -> list[TrajectoryStep]:
        """Return the steps of a worker's reply, in which the number of a request stands for its recorded step."""
        steps_by_number = {sent.number: sent.step for sent in self._sent if sent.step is not None}
        steps: list[TrajectoryStep] = []
        for item in reply:
            steps.append(steps_by_number[item] if isinstance(item, int) else msgspec.convert(item, TrajectoryStep))
        return steps

    def missing(self, reply: Sequence[object]) -> list[TrajectoryStep]:
        """Return the recorded turns of the rollout that a stopped worker has not received."""
        steps: list[TrajectoryStep] = []
        for sent in self._sent:
            is_turn = sent.state is self.state and sent.request.role is None and sent.is_matched
            if is_turn and sent.step is not None and sent.number not in reply:
                steps.append(sent.step)
        return steps

    def _match(self, call_id: int, number: int, request: ModelRequest) -> _PendingRequest | None:
        """Return the recorded request that equals this request, or a new request; None if new requests are refused."""
        unmatched = [sent for sent in self._sent if not sent.is_matched]
        for sent in unmatched:
            if sent.request == request:
                bookkeeping(self._conversations.setdefault(number, sent.state)).conversation = number
                sent.is_matched, sent.call_id = True, call_id
                sent.repeated.set()
                return sent
        is_own = number == 0 and request.role is None and request.agent_request is None
        if is_own and any(sent.is_own for sent in unmatched):
            raise WorkerError(NONDETERMINISTIC)
        if self.is_over:
            return None
        state = self._conversation(number, request.seed)
        pending = _PendingRequest(next(self._numbers), request, state, call_id, is_own)
        self._sent.append(pending)
        bookkeeping(state).tools = request.tools
        if request.prompt is not None:
            self.record.prompt = request.prompt
        pending.task = asyncio.create_task(self._respond(pending))
        return pending

    def _conversation(self, number: int, seed: int) -> State:
        """Return the state of a conversation; it shares some values with the rollout's state."""
        root = self.record
        if number not in self._conversations:
            inner = State(
                input=root.input,
                trajectory=[],
                completion=[],
                is_truncated=False,
                stop_condition=None,
                error=None,
                seed=seed,
                env_seed=root.env_seed,
                model_roles=root.model_roles,
                role_clients=root.role_clients,
                role_numbers=root.role_numbers,
                conversations=root.conversations,
                conversation=number,
                remote=root.remote,
            )
            assert root.conversations is not None
            root.conversations.append(bookkeeping(inner).trajectory)
            self._conversations[number] = inner
        return self._conversations[number]

    async def _respond(self, pending: _PendingRequest) -> Message:
        worker = self._worker
        try:
            try:
                message = await self._send(pending)
            except WorkerError:  # a scripted policy ran in the worker that died: the replay repeats the request
                if worker is None or not worker.is_closed:
                    raise
                await pending.repeated.wait()
                message = await self._send(pending)
        except Error as error:
            self.failure = error
            raise
        role = pending.request.role
        record = bookkeeping(pending.state)
        steps = record.trajectory if role is None else record.model_roles[role]
        # By identity: concurrent requests may have equal responses.
        pending.step = next(step for step in reversed(steps) if step.completion[-1] is message)
        return message

    async def _send(self, pending: _PendingRequest) -> Message:
        request = pending.request
        messages = [Message(message) for message in request.messages]
        if request.role is not None:
            options = {"role": request.role, "model": request.model, "sampling_args": request.sampling_args}
            return await self._turn(pending.state, messages, **options)
        agent_request = None
        if request.agent_request is not None:
            sampling = msgspec.convert(request.agent_request["sampling"], SamplingParams, str_keys=True)
            agent_request = Request(
                messages=list(messages), sampling_params=sampling, tools=request.agent_request["tools"]
            )
        return await self._turn(pending.state, messages, agent_request=agent_request)
