"""Rollouts that another program drives step by step: it takes a request of the environment, and replies as the model."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from rove.core.errors import ConfigError, OverlongPromptError
from rove.core.plain import JsonMapping
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.integrations.verifiers_export import check_group_rewards, group_rewards_of
from rove.rollouts.groups import RolloutError

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class StepwiseRollout(Generic[RequestT, ReplyT]):
    """One rollout whose client passes its requests to another program.

    The client calls `ask`. The other program calls `start`, and then `next_request` and `reply` in turns, until there is no
    further request.
    """

    def __init__(self) -> None:
        self.record: RolloutRecord | None = None
        """The scored rollout, once it has ended."""
        self._requests: asyncio.Queue[tuple[RequestT, asyncio.Future[ReplyT]]] = asyncio.Queue()
        self._reply: asyncio.Future[ReplyT] | None = None
        self._task: asyncio.Task[list[RolloutRecord]] | None = None

    def start(self, rollout: Coroutine[Any, Any, list[RolloutRecord]]) -> None:
        """Start the rollout: a call of `run_rollouts` for one row."""
        self._task = asyncio.create_task(rollout)

    async def ask(self, request: RequestT) -> ReplyT:
        """Return the other program's reply to a request."""
        reply: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((request, reply))
        return await reply

    async def next_request(self) -> RequestT | None:
        """Return the next request; None if the rollout has ended.

        Raises:
            RolloutError: The rollout failed.
        """
        if self._task is None:
            raise ConfigError("the rollout has not been started; call start first")
        waiting = asyncio.create_task(self._requests.get())
        try:
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                request, self._reply = waiting.result()
                return request
        finally:
            waiting.cancel()  # a queue's waiter that is left over would take the next request
        [self.record] = self._task.result()
        if self.record.error is not None:
            raise RolloutError(self.record)
        return None

    def reply(self, reply: ReplyT) -> None:
        """Reply to the last request."""
        if self._reply is not None and not self._reply.done():  # it is canceled if the rollout's time limit has passed
            self._reply.set_result(reply)

    async def end(self, error: Exception) -> None:
        """Fail the last request, and all further ones, and wait for the end of the rollout.

        Raises:
            RolloutError: The rollout failed.
        """
        # An environment may catch the error and send another request.
        while self.record is None:
            if self._reply is not None and not self._reply.done():
                self._reply.set_exception(error)
            await self.next_request()

    async def close(self) -> None:
        """Cancel the rollout, if it has not ended."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._task


class StepwiseClient:
    """A client whose responses are the other program's replies to the requests of the rollout."""

    max_concurrent = 1

    def __init__(self, rollout: StepwiseRollout[Request, Response]):
        self.rollout = rollout

    async def respond(self, request: Request) -> Response:
        """Return the reply to a request."""
        return await self.rollout.ask(request)

    async def close(self) -> None:
        """Do nothing: there are no resources."""


class LibraryEngine:
    """Base of inference engines whose model belongs to another library."""

    context: int
    """Maximum tokens of prompt and completion."""

    def remaining_context(self, prompt_ids: Sequence[int]) -> int:
        """Return the maximum number of tokens that can follow a prompt.

        Raises:
            OverlongPromptError: The prompt fills the context.
        """
        remaining = self.context - len(prompt_ids)
        if remaining < 1:
            raise OverlongPromptError(f"the prompt has {len(prompt_ids)} tokens; the context is {self.context} tokens")
        return remaining

    @property
    def adapters(self) -> list[str]:
        """Names of the loaded adapters: none."""
        return []

    def score(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Refuse: the library computes log-probabilities in its own training step."""
        raise ConfigError("the engine of another library does not score tokens")

    def update_weights(self, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """Ignore the weights: the library updates its own."""

    def release(self) -> None:
        """Keep the caches, which belong to the library."""


def load_once(name: str, env_args: JsonMapping) -> Environment:
    """Return an environment, loaded once per process, since libraries ask for it in every rollout."""
    # As a text, because the arguments of a cached function must be hashable.
    return _load(name, json.dumps(env_args, sort_keys=True))


@functools.cache
def _load(name: str, env_args: str) -> Environment:
    return load_environment(name, **json.loads(env_args))


def check_stepwise(env: Environment, name: str, library: str, unsupported: Sequence[str]) -> None:
    """Check that a library that samples every rollout alone can run an environment.

    Args:
        unsupported: Sampling parameters that the library's generation does not have.

    Raises:
        ConfigError: The environment has group rewards, or needs one of these sampling parameters.
    """
    check_group_rewards(name, group_rewards_of(env), library)
    check_sampling_args(env, name, library, unsupported)


def check_sampling_args(env: Environment, name: str, library: str, unsupported: Sequence[str]) -> None:
    """Raise ConfigError if an environment sets one of the sampling parameters that a library does not have."""
    sampling = SamplingParams.from_args(env.sampling_args)
    for parameter in unsupported:
        if getattr(sampling, parameter) is not None:
            raise ConfigError(
                f"'{name}' sets {parameter} in its sampling_args, which {library} does not have; leave it out"
            )
