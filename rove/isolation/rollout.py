"""One rollout of an isolated environment: where it is played."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from rove.boards import Board
from rove.envs.environment import Turn
from rove.envs.multi_turn import Opponent
from rove.errors import LimitReachedError, OverlongPromptError, RemoteError, WorkerError
from rove.isolation.questions import Questions
from rove.isolation.room import Room
from rove.messages import Message
from rove.records import Scores
from rove.state import State
from rove.workers import Worker

CONTROL = {"LimitReachedError": LimitReachedError, "OverlongPromptError": OverlongPromptError}
"""What ends a rollout without being a failure."""


class Rollout:
    """Played in the worker that many share; once that has died, alone and with the answers it had.

    Args:
        room: the workers.
        state: of the rollout, here. The worker has one of its own.
        turn: asks the model.
        opponent: takes the other seat of a two-player environment, which is asked for then.
    """

    def __init__(self, room: Room, state: State, turn: Turn, opponent: Opponent | None = None):
        self.room, self.state = room, state
        self.worker: Worker | None = None
        self.number = -1
        state["isolated"] = self
        self._questions = Questions(state, turn, opponent)
        self._has_opponent = opponent is not None
        self._has_moved = False

    async def time_limit(self) -> float | None:
        """Wall seconds that it may take."""
        worker = await self.room.shared()
        return await worker.ask("time_limit", example=self.state["input"])

    async def run(self) -> None:
        """Play it to its end.

        Raises:
            WorkerError: the worker died, and so did the next one when it was played again alone.
            RemoteError: what the environment raised.
        """
        try:
            await self._enter(await self.room.shared())
            try:
                await self._play()
            except WorkerError:
                await self.move(await self.room.another())
        except asyncio.CancelledError as error:
            await self._questions.end(error)
            raise
        finally:
            await self._questions.end()

    async def clean_up(self) -> None:
        """End it in its worker, and take over what is to be known of it.

        Raises:
            RemoteError: what a `@cleanup` method raised.
        """
        if self.worker is None or (self.worker.is_gone and self.state["error"] is not None):
            return
        try:
            told = await self._ask("clean_up", **self._reasons())
        except WorkerError:
            if self._has_moved:
                raise
            await self._play_again(await self.room.another())
            told = await self._ask("clean_up", **self._reasons())
        self._take(told)
        if self.state["error"] is not None or told["failed"] is not None:
            self.leave()
        if told["failed"] is not None:
            raise RemoteError(**told["failed"])

    async def score(self) -> Scores:
        """What the environment's rubric says of it, group rewards left out."""
        try:
            told = await self._ask("score")
        except WorkerError:
            if self._has_moved:
                raise
            await self.settle_in(await self.room.another())
            told = await self._ask("score")
        return self.taken(told)

    def taken(self, told: dict[str, Any]) -> Scores:
        """The scores in what a worker has told; the rest is taken over."""
        self._take(told)
        return msgspec.convert(told["scores"], Scores)

    async def move(self, worker: Worker) -> None:
        """Play it again in another worker, with the answers it had."""
        self._has_moved = True
        await self._enter(worker)
        await self._play()

    async def settle_in(self, worker: Worker) -> None:
        """The same for a rollout that is over and cleaned up."""
        await self._play_again(worker)
        await self._ask("clean_up", **self._reasons())

    @property
    def is_lost(self) -> bool:
        """Whether its worker has died."""
        return self.worker is None or self.worker.is_gone

    async def score_with(self, rollouts: Sequence[Rollout], scores: Sequence[Scores]) -> list[dict[str, Any]]:
        """The scores of siblings, all of them in this one's worker, group rewards included; to be `taken`."""
        assert self.worker is not None
        numbers = [rollout.number for rollout in rollouts]
        return await self.worker.ask("score_group", numbers=numbers, scores=msgspec.to_builtins(list(scores)))

    def leave(self) -> None:
        """Nothing more will be asked of its worker."""
        if self.worker is not None:
            self.room.leave(self.number, self.worker)

    async def ask_player(self, name: str, messages: list[Any], rng: Any, conversation: int = 0) -> Any:
        """What a scripted player of the environment says; `conversation` is the worker's number of it."""
        return await self._ask("player", who=name, messages=messages, rng=rng, conversation=conversation)

    async def _enter(self, worker: Worker) -> None:
        self.worker, self.number = worker, self.room.enter(self._questions)
        self._questions.begin(worker)

    async def _play(self) -> None:
        seeds = {"seed": self.state["seed"], "env_seed": self.state["env_seed"]}
        try:
            how = {"has_opponent": self._has_opponent, "forget": self.room.forgotten()}
            await self._ask("run", example=self.state["input"], **seeds, **how)
        except RemoteError as error:
            own = self._questions.failure
            if own is not None and (error.type, error.args[0]) == (type(own).__name__, str(own)):
                raise own from None
            if error.type in CONTROL:
                raise CONTROL[error.type](error.args[0]) from error
            raise

    async def _ask(self, name: str, **args: Any) -> Any:
        assert self.worker is not None
        return await self.worker.ask(name, number=self.number, **args)

    async def _play_again(self, worker: Worker) -> None:
        """Move a rollout that is over; it ends as it did before."""
        with suppress(RemoteError, *CONTROL.values()):
            await self.move(worker)

    def _reasons(self) -> dict[str, Any]:
        """How it ended, where this side knows."""
        return {"stop_condition": self.state["stop_condition"], "is_truncated": self.state["is_truncated"]}

    def _take(self, told: dict[str, Any]) -> None:
        state = self.state
        for name in ("prompt", "completion"):
            said = told[name]
            state[name] = said if isinstance(said, str) else [Message(message) for message in said]
        state["stop_condition"] = state["stop_condition"] or told["stop_condition"]
        state["is_truncated"] = state["is_truncated"] or told["is_truncated"]
        state["tools"] = told["tools"]
        state["drawn_boards"] = msgspec.convert(told["boards"], dict[int, Board], strict=False)
        questions = self._questions
        state["seats"] = {seat: questions.steps(steps) for seat, steps in told["seats"].items()}
        if told["env_id"]:
            state["env_id"] = told["env_id"]
        steps = questions.steps(told["trajectory"])
        for step, reward in zip(steps, told["step_rewards"], strict=True):
            if reward is not None:
                step["reward"] = reward
        state["trajectory"][:] = [*steps, *questions.missing(told["trajectory"])]
