"""v0's rollout loop: model turns alternate with `env_response`; stop conditions are checked in between."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from typing import Any

from rove.compat.verifiers.decorators import call_user, cleanup, stop
from rove.compat.verifiers.environment import Environment
from rove.compat.verifiers.errors import OverlongPromptError
from rove.compat.verifiers.legacy import default_max_turns, unpack_env_response
from rove.compat.verifiers.legacy_loop import (
    LegacyRollout,
    add_undecorated_stops,
    current_rollout,
    inherited_rollout,
    is_row_call,
    uses_legacy_loop,
)
from rove.compat.verifiers.messages import (
    AssistantMessage,
    Messages,
    as_legacy_messages,
    concat_messages,
    maybe_normalize_messages,
)
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.release import fixed, outdated
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.types import (
    Response,
    SamplingArgs,
    State,
    TimeSpan,
    TrajectoryStep,
    TrajectoryStepTokens,
)
from rove.core.errors import LimitReachedError


class MultiTurnMonitorRubric(Rubric):
    """The metric `num_turns`."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_metric(self.num_turns)

    async def num_turns(self, state: State) -> int:
        """Number of model turns."""
        return len(state["trajectory"])


class MultiTurnEnv(Environment):
    """The model and the environment take turns. `env_response` is not called after the last allowed model turn.

    With ROVE_COMPAT=fixed, it is called after this turn, too.

    Args:
        max_turns: maximum model turns; -1 = no limit. Default: no limit; 10 in packages written for 0.1.0 to 0.1.2.
        timeout_seconds: time limit of a rollout, which is then scored as it is.
        Everything else: see `Environment`.
    """

    def __init__(self, max_turns: int | None = None, timeout_seconds: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.max_turns = default_max_turns(self, max_turns)
        self.timeout_seconds = timeout_seconds
        self.max_total_completion_tokens = -1
        self.has_legacy_loop = uses_legacy_loop(self, MultiTurnEnv)
        # A package that overrides methods of the old loop also expects dicts as messages, even if its requirement allows 0.3.1.
        self.has_legacy_messages = self.has_legacy_messages or self.has_legacy_loop
        if self.has_legacy_loop:
            add_undecorated_stops(self)
        # As in v0: it makes every rubric a group, whose advantages are those of its first member (docs/compat.md).
        self.add_rubric(MultiTurnMonitorRubric())

    def set_max_total_completion_tokens(self, max_total_completion_tokens: int) -> None:
        """Limit the tokens that the model generates in a rollout; -1 = no limit."""
        self.max_total_completion_tokens = max_total_completion_tokens

    @abstractmethod
    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Any:
        """Return the environment's response to a turn. To end the rollout with it, set `state["final_env_response"]`."""

    @stop(priority=100)
    async def has_error(self, state: State, **kwargs: Any) -> bool:
        """Stop after an error."""
        return state.get("error") is not None

    @stop
    async def prompt_too_long(self, state: State) -> bool:
        """Stop when the conversation exceeds the model's context."""
        return state.get("prompt_too_long", False)

    @stop
    async def max_turns_reached(self, state: State) -> bool:
        """Stop after the maximum number of turns."""
        return 0 < self.max_turns <= len(state["trajectory"])

    @stop
    async def max_total_completion_tokens_reached(self, state: State) -> bool:
        """Stop after the maximum number of generated tokens."""
        if self.max_total_completion_tokens <= 0:
            return False
        usage = self.get_state_usage(state)
        return usage is not None and usage["output_tokens"] >= self.max_total_completion_tokens

    @stop
    async def has_final_env_response(self, state: State) -> bool:
        """Stop after the environment's final response."""
        return state.get("final_env_response") is not None

    async def setup_state(self, state: State, **kwargs: Any) -> State | None:
        """Prepare the state, in place or by returning another state."""
        return state

    async def get_prompt_messages(self, state: State) -> Messages:
        """Return the messages for the next turn: the prompt, or the conversation with the environment's response."""
        if not state["trajectory"]:
            return state["prompt"]
        messages = _conversation(state)
        reply = unpack_env_response(await call_user(self.env_response, messages, state), state.update)
        env_messages = self.as_written(maybe_normalize_messages(reply, field_name="env_response"))
        return concat_messages([messages, env_messages])

    async def render_completion(self, state: State) -> None:
        """Set `state["completion"]` to the messages after the prompt."""
        if self.has_legacy_loop:  # that loop keeps the completion up to date
            return
        if not state["trajectory"]:
            state["completion"] = []
            return
        conversation = _conversation(state)
        if state.get("final_env_response"):
            final = maybe_normalize_messages(state["final_env_response"], field_name="final_env_response")
            conversation = concat_messages([conversation, self.as_written(final)])
        state["completion"] = conversation[len(state["prompt"]) :]

    @cleanup(priority=100)
    async def render_state(self, state: State) -> None:
        """Set the completion before other cleanups run."""
        state["timing"].generation.end = time.time()
        await self.render_completion(state)

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        """Append a turn to the trajectory."""
        state["trajectory"].append(trajectory_step)

    async def add_model_response(self, state: State, prompt_messages: Messages, response: Response) -> None:
        """Append a response to the trajectory."""
        tokens = await parse_response_tokens(response, self.max_seq_len)
        step = TrajectoryStep(
            prompt=prompt_messages,
            completion=self.as_written(await parse_response_message(response)),
            response=response,
            tokens=tokens,
            reward=None,
            advantage=None,
            is_truncated=bool(response.message.is_truncated or (tokens or {}).get("is_truncated")),
            trajectory_id=state["trajectory_id"],
            extras={},
        )
        await self.add_trajectory_step(state, step)

    async def get_context_messages(self, state: State) -> Messages:
        """Return the messages of a rollout so far, as in 0.1.6 and 0.1.7."""
        return concat_messages([state["prompt"], state["completion"]])

    async def init_completion(self) -> Messages:
        """Return the messages that a completion begins with, as in 0.1.6 and 0.1.7."""
        return []

    async def init_state(self, *args: Any, **kwargs: Any) -> State:
        """Return the initial state for a row or, as in 0.1.6 and 0.1.7, for `init_state(prompt, completion, answer, …)`."""
        rollout = current_rollout()
        if is_row_call(args, kwargs) or rollout is None:
            return await self.new_state(*args, **kwargs)
        names = ("prompt", "completion", "answer", "task", "info", "example_id")
        rollout.state.update({**dict(zip(names, args, strict=False)), **kwargs})
        return rollout.state

    async def rollout(self, *args: Any, **kwargs: Any) -> Any:
        """Run a rollout, without scoring it. Errors are stored in `state["error"]`.

        `rollout(input, client, model, sampling_args=None)` returns the state. `rollout(client, model, prompt, …)`, as until
        0.1.7, returns the completion and the state.
        """
        if is_row_call(args, kwargs):
            return await self._rollout_of_row(*args, **kwargs)
        return await inherited_rollout(self, args, kwargs)

    async def run_row(self, row: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None) -> State:
        """Run the package's own `rollout` with a row, without scoring it."""
        if not self.has_legacy_loop:
            return await self.rollout(row, client, model, sampling_args)
        rollout = LegacyRollout(self, await self.new_state(row, client, model, sampling_args))
        rollout.state["timing"].generation.start = time.time()
        try:
            await asyncio.wait_for(rollout.run(), self.timeout_seconds)
        # As in v0, a rollout that has timed out is not an error: it is scored as it is.
        except TimeoutError:
            self._mark_timed_out(rollout.state)
        finally:
            await self.cleanup(rollout.state)
        return rollout.state

    async def _rollout_of_row(
        self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        if self.has_legacy_loop:
            return await self.run_row(input, client, model, sampling_args)
        # `setup_state` may replace the state, and the cleanup needs the new one even if the rollout is canceled.
        holder = [await self.init_state(input, client, model, sampling_args)]
        try:
            await asyncio.wait_for(self._run_turns(holder), self.timeout_seconds)
        except TimeoutError:
            self._mark_timed_out(holder[0])
        finally:
            await self.cleanup(holder[0])
        return holder[0]

    def _mark_timed_out(self, state: State) -> None:
        state.update(timed_out=True, is_completed=True, stop_condition="timeout_reached")

    async def _run_turns(self, holder: list[State]) -> None:
        """Run all turns; `setup_state` may replace the state in the list."""
        state = holder[0]
        state["timing"].generation.start = state["timing"].setup.start = time.time()
        # v0 stores only a `vf.Error` in the state, and any other exception ends the whole run (docs/decisions/compat.md).
        # A limit of the run is rove's, and no error of the environment.
        try:
            holder[0] = state = _replaced_state(state, await call_user(self.setup_state, state))
        except LimitReachedError:
            raise
        except Exception as error:
            state["error"] = error
        state["timing"].setup.end = time.time()
        while not await self._is_over(state):
            try:
                await self._turn(state)
            except LimitReachedError:
                raise
            except OverlongPromptError:
                state.update(prompt_too_long=True, is_truncated=True)
            except Exception as error:
                state["error"] = error

    async def _turn(self, state: State) -> None:
        timing, started = state["timing"], time.time()
        prompt = maybe_normalize_messages(await self.get_prompt_messages(state), field_name="prompt_messages")
        if self.has_text_prompts:
            prompt = self.as_written(prompt)
        if state["trajectory"]:
            timing.env.spans.append(TimeSpan(start=started, end=time.time()))
        # `env_response` runs within `get_prompt_messages`, and may have ended the rollout.
        if state.get("final_env_response") is not None:
            return
        started = time.time()
        response = await self.get_model_response(state, prompt)
        timing.model.spans.append(TimeSpan(start=started, end=time.time()))
        await self.add_model_response(state, prompt, response)

    async def _is_over(self, state: State) -> bool:
        if type(self).is_completed is not Environment.is_completed:
            return await self._is_over_by_override(state)
        is_over = await Environment.is_completed(self, state)
        has_unseen_turn = is_over and state["stop_condition"] == "max_turns_reached" and state["trajectory"]
        if has_unseen_turn and fixed():
            await self._final_response(state)
        return is_over

    async def _is_over_by_override(self, state: State) -> bool:
        """Call a package's own `is_completed(state)` instead of the stop conditions.

        v0 calls it before each turn and before `env_response`, and runs forever after an error. Here, an error ends the
        rollout.
        """
        if await call_user(self.is_completed, state):
            self._mark_completed(state, state.get("stop_condition") or "is_completed")
            return True
        for condition in (self.has_error, self.prompt_too_long, self.has_final_env_response):
            if await call_user(condition, state):
                self._mark_completed(state, condition.__name__)
                return True
        return False

    async def _final_response(self, state: State) -> None:
        """Let the environment respond to the last turn, too."""
        if type(self).env_response is SingleTurnEnv.env_response:
            return
        reply = unpack_env_response(await call_user(self.env_response, _conversation(state), state), state.update)
        if state.get("final_env_response") is None and reply:
            state["final_env_response"] = reply


def _replaced_state(state: State, returned: Any) -> State:
    """Return the state after `setup_state`, which may return another state, or a dict with the state's values."""
    if isinstance(returned, State):
        return returned
    state.update(returned or {})
    return state


def _conversation(state: State) -> Messages:
    """Return the messages up to the last model turn; the prompt before the first."""
    if not state["trajectory"]:
        return concat_messages([state["prompt"]])
    step = state["trajectory"][-1]
    return concat_messages([step["prompt"], step["completion"]])


class SingleTurnEnv(MultiTurnEnv):
    """One question, one response.

    Arguments: see `Environment`. A dataset, parser and rubric may be given as positional arguments, as in 0.1.0.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        if args:
            outdated("SingleTurnEnv(dataset, …)", "pass keywords: dataset=, parser=, rubric=")
        # By type, so that any order works. A second dataset is for evaluation.
        for value in args:
            if isinstance(value, Parser):
                kwargs["parser"] = value
            elif isinstance(value, Rubric):
                kwargs["rubric"] = value
            elif "dataset" in kwargs:
                kwargs["eval_dataset"] = value
            else:
                kwargs["dataset"] = value
        super().__init__(max_turns=1, **kwargs)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Never called."""
        raise NotImplementedError("env_response is not implemented for SingleTurnEnv")


async def parse_response_message(response: Response) -> Messages:
    """Return the message of a response as it is stored in a conversation."""
    message = response.message
    # Fields about the response, such as its tokens, stay out of the conversation; those of a package's client stay in it.
    fields = {name: message[name] for name in AssistantMessage.field_names() if name != "role"}
    extra = {name: value for name, value in message.items() if name not in type(message).field_names()}
    return [AssistantMessage(**fields, **extra)]


async def parse_response_messages(response: Response, message_type: str = "chat") -> Any:
    """Return the messages of a response as 0.1.8 to 0.1.10 stored them, or the text of a completion endpoint."""
    if message_type == "completion":
        return response.choices[0].text or ""
    return as_legacy_messages(await parse_response_message(response), has_call_objects=False)


async def parse_is_truncated(response: Response, message_type: str = "chat") -> bool:
    """Return whether the length limit ended a response, as in 0.1.8 to 0.1.10."""
    return bool(response.message.is_truncated or response.message.finish_reason == "length")


async def parse_response_tokens(response: Response, *limits: Any, **named: Any) -> TrajectoryStepTokens | None:
    """Return the tokens of a response, truncated so that the sequence has at most `max_seq_len`; None if the response
    has no tokens. The other arguments are `(max_seq_len=None)`, or as in 0.1.8 to 0.1.10 `(message_type,
    max_seq_len=None)`.
    """
    numbers = [limit for limit in limits if not isinstance(limit, str)]
    max_seq_len = named.get("max_seq_len", numbers[0] if numbers else None)
    tokens = response.message.tokens if response is not None else None
    if tokens is None:
        return None
    prompt_length, completion_length = len(tokens.prompt_ids), len(tokens.completion_ids)
    limit = prompt_length + completion_length if max_seq_len is None else max_seq_len
    max_completion = max(0, limit - prompt_length)
    return TrajectoryStepTokens(
        prompt_ids=tokens.prompt_ids[:limit],
        prompt_mask=tokens.prompt_mask[:limit],
        completion_ids=tokens.completion_ids[:max_completion],
        completion_mask=tokens.completion_mask[:max_completion],
        completion_logprobs=tokens.completion_logprobs[:max_completion],
        overlong_prompt=prompt_length > limit,
        is_truncated=completion_length > max_completion or prompt_length > limit,
        routed_experts=tokens.routed_experts,
    )
