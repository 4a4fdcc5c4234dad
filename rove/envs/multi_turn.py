"""The life of a rollout in which model and environment take turns."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from rove.core.errors import ConfigError, phase
from rove.core.messages import Messages, as_messages, text_of
from rove.core.renderings import Rendering
from rove.core.state import State
from rove.envs.environment import Environment, Turn, stop
from rove.rubrics import Rubric
from rove.utils.functions import maybe_await


class Opponent(Protocol):
    """Takes the other role of a two-player environment: set by `rove play`, for instance."""

    async def __call__(self, view: str, legal: list[str], board: Rendering | None = None) -> str:
        """Its move: one of the legal ones. It sees `view`, drawn as `board` where the environment can."""
        ...


@runtime_checkable
class TwoPlayer(Protocol):
    """An environment that may have another role."""

    two_player: bool
    """Whether it asks `opponent`, when that is set, for the other role's moves."""
    opponent: Opponent | None


class HasOpponent(Protocol):
    """An environment with the attribute `opponent`."""

    opponent: Opponent | None


GameEnv = TypeVar("GameEnv", bound=HasOpponent)


def env_with_opponent(env: GameEnv, opponent: Opponent | None) -> GameEnv:
    """Return a shallow copy of an environment with another opponent; rollouts of the original keep theirs."""
    copied = copy.copy(env)
    copied.opponent = opponent
    return copied


def num_turns(state: State) -> int:
    """Model turns in the rollout."""
    return len(state["trajectory"])


class MultiTurnEnv(Environment):
    """Model and environment take turns until a stop condition holds.

    One turn: the model answers → stop conditions → `env_response` → stop conditions and limits. The environment sees every
    model turn, the last allowed one too.

    Args:
        max_turns: most model turns; -1 = no limit.
        max_total_completion_tokens: stop once the model has produced this many tokens in the rollout; -1 = no limit.
        timeout_seconds: wall-clock limit of a rollout; None = no limit. A rollout that meets it is scored as it stands.
        Everything else: see `Environment`.
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
        self.opponent: Opponent | None = None
        monitor = Rubric()
        monitor.add_metric(num_turns)
        self.add_rubric(monitor)

    async def setup_state(self, state: State, **kwargs: Any) -> Mapping[str, Any] | None:
        """Prepare the rollout's state: change it in place, or return what is to be added to it. May be sync."""
        return state

    two_player: ClassVar[bool] = False
    """Whether the environment asks `self.opponent`, when it is set, for the other role's moves."""

    @abstractmethod
    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Any:
        """Answer the model's turn with messages (or a text, said by the user).

        To end the rollout with these messages set `state["final_env_response"]` to them.
        """

    def render(self, state: State) -> Rendering | None:
        """What the rollout looks like now, for people; None: like its messages. Asked after `setup_state` and each reply.

        What is drawn is kept in the record's `boards`, and shown by `rove view` and `rove play --web`; the model never sees it.
        """
        return None

    @stop(priority=50)
    def has_final_env_response(self, state: State) -> bool:
        """The environment has said its last word."""
        return state.get("final_env_response") is not None

    async def run(self, state: State, turn: Turn) -> None:
        """Set the state up, then let model and environment take turns until something stops them."""
        await self._set_up(state)
        messages: Messages = as_messages(state["prompt"])
        start = len(messages)
        self._draw(state, messages)
        while True:
            messages.append(await turn(state, messages))
            state["completion"] = self._shown(messages[start:])
            with phase("stop"):
                if await self.check_stops(state):
                    return
            with phase("env_response"):
                reply = as_messages(await maybe_await(self.env_response(self._shown(messages), state)) or [])
                final = state.get("final_env_response")
                messages.extend(as_messages(final) if final is not None else reply)
                state["completion"] = self._shown(messages[start:])
            self._draw(state, messages)
            with phase("stop"):
                if await self.check_stops(state) or self._limit_reached(state):
                    return

    async def _set_up(self, state: State) -> None:
        state["completion"] = self._shown([])
        with phase("setup_state"):
            returned = await maybe_await(self.setup_state(state))
            if returned is not None and returned is not state:
                state.update(returned)
            is_text = isinstance(state["prompt"], str)
            if self.message_type == "completion" and not is_text:
                kind = type(state["prompt"]).__name__
                raise ConfigError(f"state['prompt'] is a {kind}; message_type 'completion' needs a text")
            if self.message_type == "chat" and is_text:
                state["prompt"] = as_messages(state["prompt"])

    def _draw(self, state: State, messages: Messages) -> None:
        """Keep what the rollout looks like beside the last message.

        Raises:
            ConfigError: `render` returned no board.
        """
        with phase("render"):
            board = self.render(state)
            if board is None:
                return
            if not isinstance(board, Rendering):
                raise ConfigError(f"render() returned a {type(board).__name__}; expected a rove.Rendering or None")
            state.setdefault("drawn_boards", {})[len(messages) - 1] = board

    def _shown(self, messages: Messages) -> Any:
        """What was said as environments and rubrics see it: the messages, or in completion mode the text they add up to."""
        return messages if self.message_type == "chat" else "".join(map(text_of, messages))

    def _limit_reached(self, state: State) -> bool:
        steps = state["trajectory"]
        if 0 <= self.max_turns <= len(steps):
            state["stop_condition"] = "max_turns_reached"
            return True
        produced = sum(step.usage.completion_tokens for step in steps)
        if 0 <= self.max_total_completion_tokens <= produced:
            state["stop_condition"] = "max_total_completion_tokens_reached"
            state["is_truncated"] = True
            return True
        return False


class MultiTurnCompletionEnv(MultiTurnEnv):
    """Model and environment take turns at one raw text: a `MultiTurnEnv` whose message_type is "completion".

    `state["prompt"]` is the row's text and `state["completion"]` all that both have added to it. Arguments: see
    `MultiTurnEnv`.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(message_type="completion", **kwargs)

    @abstractmethod
    async def env_response(self, messages: str, state: State, **kwargs: Any) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Answer the model's turn with the text to add to `messages`, the whole text so far.

        To end the rollout with this text set `state["final_env_response"]` to it.
        """
