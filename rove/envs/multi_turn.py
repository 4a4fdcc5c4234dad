"""Environments in which model and environment alternate turns, and the single-turn case."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from rove.core.checks import check_values
from rove.core.errors import ConfigError, phase
from rove.core.messages import Messages, as_messages, text_of
from rove.core.ranges import CountOrUnlimited, Seconds
from rove.core.renderings import Rendering
from rove.core.state import State, bookkeeping
from rove.envs.environment import Environment, Turn, stop
from rove.rubrics import Rubric
from rove.utils.functions import maybe_await


class Opponent(Protocol):
    """Chooses the moves of the second role in a two-player environment; set by `rove play`."""

    async def __call__(self, view: str, legal: list[str], board: Rendering | None = None) -> str:
        """Return one of the legal moves. `view` is the position as text, `board` the same position as a rendering, or None."""
        ...


@runtime_checkable
class TwoPlayer(Protocol):
    """An environment that may have a second role."""

    two_player: bool
    """Whether the environment asks `opponent`, if set, for the moves of the second role."""
    opponent: Opponent | None


GameEnv = TypeVar("GameEnv", bound=TwoPlayer)


def env_with_opponent(env: GameEnv, opponent: Opponent | None) -> GameEnv:
    """Return a shallow copy of an environment with another opponent; rollouts of the original keep theirs."""
    copied = copy.copy(env)
    copied.opponent = opponent
    return copied


def num_turns(state: State) -> int:
    """Model turns in the rollout."""
    return len(bookkeeping(state).trajectory)


class MultiTurnEnv(Environment):
    """The model and the environment take turns until a stop condition is met.

    One turn: model reply → stop conditions → `env_response` → stop conditions and limits. The environment also receives the
    last allowed model turn.

    Args:
        max_turns: maximum number of model turns (1 or more); -1 = no limit.
        max_total_completion_tokens: stop after this many generated tokens (1 or more); -1 = no limit.
        timeout_seconds: wall-time limit of a rollout; None = no limit. A rollout that exceeds it is scored as it is.
        **kwargs: see `Environment`.

    Example:
        class Guess(rove.MultiTurnEnv):
            async def env_response(self, messages, state, **kwargs):
                state["solved"] = messages[-1].content == state["answer"]
                return "correct" if state["solved"] else "try again"

        env = Guess(dataset=[{"question": "Guess a digit.", "answer": "7"}], max_turns=10)
    """

    def __init__(
        self,
        max_turns: int = -1,
        max_total_completion_tokens: int = -1,
        timeout_seconds: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.max_turns = max_turns
        self.max_total_completion_tokens = max_total_completion_tokens
        self.timeout_seconds = timeout_seconds
        check_values(self, max_turns=CountOrUnlimited, max_total_completion_tokens=CountOrUnlimited)
        check_values(self, timeout_seconds=Seconds | None)
        monitor = Rubric()
        monitor.add_metric(num_turns)
        self.add_rubric(monitor)

    async def setup_state(self, state: State, **kwargs: Any) -> Mapping[str, object] | None:
        """Prepare the state in place, or return a mapping to add to it. May be sync."""
        return state

    two_player: bool = False
    """Whether this is a two-player game; see `rove.envs.multi_turn.TwoPlayer`."""
    opponent: Opponent | None = None

    @abstractmethod
    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Any:
        """Return the environment's reply to the model: messages, or a text as one user message.

        Set `state["final_env_response"]` to messages to end the rollout with them.

        Args:
            messages: the whole conversation so far, with the model's turn at the end.
            state: the rollout.
        """

    def render(self, state: State) -> Rendering | None:
        """Return a picture of the state for people; None shows only messages. Called after `setup_state` and each reply.

        The record keeps it in `renderings`; `rove view` and `rove play --web` show it. The model never sees it.
        """
        return None

    @stop(priority=50)
    def has_final_env_response(self, state: State) -> bool:
        """Stop when the environment has set `state["final_env_response"]`."""
        return state.get("final_env_response") is not None

    async def run(self, state: State, turn: Turn) -> None:
        """Set up the state, then alternate turns until a stop condition or limit applies."""
        await self._set_up(state)
        internals = bookkeeping(state)
        messages: Messages = as_messages(internals.prompt)
        start = len(messages)
        self._store_rendering(state, messages)
        while True:
            messages.append(await turn(state, messages))
            # Stop conditions and `env_response` may read `state["completion"]`.
            internals.completion = self._visible(messages[start:])
            with phase("stop"):
                if await self.check_stops(state):
                    return
            with phase("env_response"):
                reply = as_messages(await maybe_await(self.env_response(self._visible(messages), state)) or [])
                final = state.get("final_env_response")
                messages.extend(as_messages(final) if final is not None else reply)
                internals.completion = self._visible(messages[start:])
            self._store_rendering(state, messages)
            with phase("stop"):
                if await self.check_stops(state) or self._limit_reached(state):
                    return

    async def _set_up(self, state: State) -> None:
        internals = bookkeeping(state)
        internals.completion = self._visible([])
        with phase("setup_state"):
            returned = await maybe_await(self.setup_state(state))
            if returned is not None and returned is not state:
                state.update(returned)
            prompt = state["prompt"]  # read once: what the author sets later changes nothing (docs/decisions/state.md)
            if self.message_type == "completion" and not isinstance(prompt, str):
                kind = type(prompt).__name__
                raise ConfigError(f"state['prompt'] is a {kind}; message_type 'completion' needs a text")
            internals.prompt = prompt if self.message_type == "completion" else as_messages(prompt)

    def _store_rendering(self, state: State, messages: Messages) -> None:
        """Store the rendering of the state with the last message.

        Raises:
            ConfigError: `render` did not return a Rendering.
        """
        with phase("render"):
            rendering = self.render(state)
            if rendering is None:
                return
            if not isinstance(rendering, Rendering):  # pyright: ignore[reportUnnecessaryIsInstance]  users return anything
                raise ConfigError(f"render() returned a {type(rendering).__name__}; expected a rove.Rendering or None")
            bookkeeping(state).renderings[len(messages) - 1] = rendering

    def _visible(self, messages: Messages) -> Any:
        """Return messages as environments and rubrics see them: in completion mode, their concatenated text."""
        return messages if self.message_type == "chat" else "".join(map(text_of, messages))

    def _limit_reached(self, state: State) -> bool:
        internals = bookkeeping(state)
        if 0 <= self.max_turns <= len(internals.trajectory):
            internals.stop_condition = "max_turns_reached"
            return True
        generated = sum(step.usage.completion_tokens for step in internals.trajectory)
        if 0 <= self.max_total_completion_tokens <= generated:
            internals.stop_condition = "max_total_completion_tokens_reached"
            internals.is_truncated = True
            return True
        return False


class MultiTurnCompletionEnv(MultiTurnEnv):
    """A `MultiTurnEnv` in completion mode: the model and the environment take turns extending one raw text.

    `state["prompt"]` is the row's text; `state["completion"]` is everything added to it. See `MultiTurnEnv` for
    arguments.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(message_type="completion", **kwargs)

    @abstractmethod
    async def env_response(self, messages: str, state: State, **kwargs: Any) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the text to append to `messages`, the whole text so far.

        Set `state["final_env_response"]` to a text to end the rollout with it.
        """


class SingleTurnEnv(MultiTurnEnv):
    """The model answers the prompt once; the rubric scores the answer. See `Environment` for arguments.

    With `message_type="completion"` prompt and completion are raw texts.

    Example:
        def correct(completion, answer) -> float:
            return float(completion[-1].content.strip() == answer)

        env = rove.SingleTurnEnv(dataset=[{"question": "6 * 7?", "answer": "42"}], rubric=rove.Rubric([correct]))
        records = env.generate_sync(rove.OpenAIClient(), "gpt-4.1-nano")
    """

    def __init__(self, **kwargs: Any):
        super().__init__(max_turns=1, **kwargs)

    async def run(self, state: State, turn: Turn) -> None:
        """Set up the state and query the model once."""
        await self._set_up(state)
        internals = bookkeeping(state)
        internals.completion = self._visible([await turn(state, as_messages(internals.prompt))])
        if not await self.check_stops(state):
            internals.stop_condition = "answered"

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Return nothing; a single-turn environment never replies."""
        return []
