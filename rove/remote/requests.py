"""What a rollout in a worker asks of this process: the model's turns, and the moves of whoever sits in another role."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rove.core.errors import Error, LimitReachedError, WorkerError, phase_of
from rove.core.messages import Message
from rove.core.protocols import Request, SamplingParams
from rove.core.records import TrajectoryStep
from rove.core.renderings import Rendering
from rove.core.state import State
from rove.envs.environment import Turn
from rove.envs.multi_turn import Opponent
from rove.workers import Worker

OTHERWISE = "its worker died; played again, the environment said something else than before"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the model; see `rove.envs.environment.Turn`."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    """Those of the rollout."""
    prompt: str | None
    """The rollout's, where it is a text."""
    seed: int
    """Of the conversation."""
    role: str | None = None
    model: str = ""
    sampling_args: dict[str, Any] | None = None
    asked: dict[str, Any] | None = None
    """Sampling and tools of an agent."""


@dataclass(eq=False, slots=True)
class _Asked:
    """A question, who asks it, and its answer."""

    number: int
    question: Question
    state: State
    """Of the conversation, here."""
    which: int
    """The worker's number of the call."""
    is_own: bool
    """Whether it is a turn of the rollout's own: these come one after another."""
    is_claimed: bool = True
    """Whether the worker that plays now has asked it."""
    is_back: asyncio.Event = field(default_factory=asyncio.Event)
    """Asked again in another worker."""
    task: asyncio.Task[Message] | None = None
    step: TrajectoryStep | None = None


class Questions:
    """The questions of one rollout, each put to the model once.

    Where the rollout is played again, a question that was asked before gets the answer that it had. The rollout's own turns come
    in one order; those of sub-models and agents may be under way at once and come in any.

    Args:
        state: of the rollout, here.
        turn: asks the model.
        opponent: takes the other role of a two-player environment.
    """

    def __init__(self, state: State, turn: Turn, opponent: Opponent | None = None):
        self.state, self._turn, self._opponent = state, turn, opponent
        self._numbers = itertools.count()
        self._asked: list[_Asked] = []
        self._conversations: dict[int, State] = {0: state}  # by the number that the worker gives them
        self._moves: list[tuple[list[Any], asyncio.Task[str]]] = []
        self._moves_asked = 0
        self._worker: Worker | None = None
        self.is_over = False
        """Nothing new is answered."""
        self.failure: Error | None = None
        """What the model's client raised last."""
        state["conversations"] = [state["trajectory"]]

    def begin(self, worker: Worker) -> None:
        """The rollout is played from its beginning, in this worker."""
        self._worker = worker
        self._conversations = {0: self.state}
        self._moves_asked = 0
        for one in self._asked:
            one.is_claimed = False

    async def answer(self, which: int, conversation: int, **question: Any) -> dict[str, Any]:
        """The model's answer to a question of the worker's: a new one, or the one that it gave when this was asked before.

        Args:
            which: the worker's number of the call.
            conversation: 0 = the rollout's own, others for those of sub-models that are trained.
            question: see `Question`.
        """
        one = self._claimed(which, conversation, Question(**question))
        if one is None:
            return {"limit": str(self.state["stop_condition"]), "truncated": False}
        assert one.task is not None
        try:
            message = await asyncio.shield(one.task)
        except LimitReachedError as error:
            return {"limit": str(error), "truncated": error.truncated}
        except Error as error:
            return {"failed": {"type": type(error).__name__, "message": str(error), "phase": phase_of(error)}}
        step = one.step
        assert step is not None
        usage = [step.usage.prompt_tokens, step.usage.completion_tokens]
        told = {"finish_reason": step.finish_reason, "usage": usage, "seconds": step.seconds, "attempts": step.attempts}
        return {"message": message, "answer": one.number, **told}

    async def give_up(self, which: int) -> None:
        """The worker does not want the answer any more."""
        for one in [one for one in self._asked if one.which == which and one.is_claimed]:
            if one.task is not None and not one.task.done():
                self._asked.remove(one)
                one.task.cancel()

    async def opponent(self, view: str, legal: list[str], board: dict[str, Any] | None = None) -> str:
        """The move of whoever sits in the other role; the one that they made when the rollout was played before."""
        index, self._moves_asked = self._moves_asked, self._moves_asked + 1
        if index == len(self._moves):
            assert self._opponent is not None
            drawn = None if board is None else msgspec.convert(board, Rendering, strict=False)
            self._moves.append(([view, legal], asyncio.create_task(self._opponent(view, legal, drawn))))
        before, move = self._moves[index]
        if before != [view, legal]:
            raise WorkerError(OTHERWISE)
        return await asyncio.shield(move)

    async def end(self, error: asyncio.CancelledError | None = None) -> None:
        """Nothing is asked any more; what is under way is cancelled.

        Args:
            error: told what the endpoint said, for whoever asks why the rollout took so long.
        """
        self.is_over = True
        pending = [task for task in (one.task for one in self._asked) if task is not None and not task.done()]
        for task in (*pending, *(task for _, task in self._moves)):
            task.cancel()
        for task in pending:
            try:
                await task
            except asyncio.CancelledError as inner:
                if error is not None and hasattr(inner, "rove_unanswered"):
                    error.rove_unanswered = inner.rove_unanswered  # pyright: ignore[reportAttributeAccessIssue]
            except Exception:
                continue

    def steps(self, told: Sequence[Any]) -> list[TrajectoryStep]:
        """Steps as a worker tells them: the number of an answer, or a step that nobody was asked for here."""
        known = {one.number: one.step for one in self._asked if one.step is not None}
        return [known[one] if isinstance(one, int) else msgspec.convert(one, TrajectoryStep) for one in told]

    def missing(self, told: Sequence[Any]) -> list[TrajectoryStep]:
        """The rollout's own turns that were answered, but whose answers the worker, being stopped, has not taken any more."""
        own = [one for one in self._asked if one.state is self.state and one.question.role is None and one.is_claimed]
        return [one.step for one in own if one.step is not None and one.number not in told]

    def _claimed(self, which: int, number: int, question: Question) -> _Asked | None:
        """The question, asked before or now; None where nothing new is answered.

        Raises:
            WorkerError: the rollout's own turn is another one than before.
        """
        waiting = [one for one in self._asked if not one.is_claimed]
        one = next((one for one in waiting if one.question == question), None)
        if one is not None:
            self._conversations.setdefault(number, one.state)["conversation"] = number
            one.is_claimed, one.which = True, which
            one.is_back.set()
            return one
        is_own = number == 0 and question.role is None and question.asked is None
        if is_own and any(one.is_own for one in waiting):
            raise WorkerError(OTHERWISE)
        if self.is_over:
            return None
        one = _Asked(next(self._numbers), question, self._conversation(number, question.seed), which, is_own)
        self._asked.append(one)
        one.state["tools"] = question.tools
        if question.prompt is not None:
            self.state["prompt"] = question.prompt
        one.task = asyncio.create_task(self._answered(one))
        return one

    def _conversation(self, number: int, seed: int) -> State:
        """The state of a conversation, with what all of the rollout's have in common."""
        root = self.state
        if number not in self._conversations:
            shared = {name: root[name] for name in ("input", "env_seed", "model_roles", "conversations", "isolated")}
            role_numbers = root.setdefault("role_numbers", {})
            own = {"trajectory": [], "completion": [], "is_truncated": False, "stop_condition": None, "error": None}
            inner = State(**shared, **own, seed=seed, role_numbers=role_numbers, conversation=number)
            root["conversations"].append(inner["trajectory"])
            self._conversations[number] = inner
        return self._conversations[number]

    async def _answered(self, one: _Asked) -> Message:
        worker = self._worker
        try:
            try:
                message = await self._put(one)
            except WorkerError:  # a scripted policy that died with the worker: another one will know the rollout
                if worker is None or not worker.is_closed:
                    raise
                await one.is_back.wait()
                message = await self._put(one)
        except Error as error:
            self.failure = error
            raise
        role = one.question.role
        steps = one.state["trajectory"] if role is None else one.state["model_roles"][role]
        one.step = next(step for step in reversed(steps) if step.completion[-1] is message)
        return message

    async def _put(self, one: _Asked) -> Message:
        question, shown = one.question, [Message(message) for message in one.question.messages]
        if question.role is not None:
            how = {"role": question.role, "model": question.model, "sampling_args": question.sampling_args}
            return await self._turn(one.state, shown, **how)
        asked = None
        if question.asked is not None:
            sampling = msgspec.convert(question.asked["sampling"], SamplingParams, str_keys=True)
            asked = Request(messages=list(shown), sampling_params=sampling, tools=question.asked["tools"])
        return await self._turn(one.state, shown, asked=asked)
