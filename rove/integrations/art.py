"""Rollouts of rove as trajectories of ART (openpipe-art 0.5.23 or later, which needs Python 3.12)."""

from __future__ import annotations

import platform
from datetime import UTC, datetime, timedelta

from rove.core.errors import ConfigError
from rove.core.messages import as_messages
from rove.core.plain import ToolDefinition
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.rollouts.groups import RolloutError
from rove.train.sequences import total_reward
from rove.wire.chat import request_body, response_body, with_tokens
from rove.wire.serving import TokenLogprob, new_head

try:
    from art.trajectories import (  # pyright: ignore[reportMissingImports]
        ChatCompletionsExchange,
        Trajectory,
        TrajectoryExchanges,
    )
except ImportError as error:
    # On Python 3.11, pip installs openpipe-art 0.5.18, which has no exchanges.
    raise ConfigError(
        f"rove.integrations.art cannot import ART ({error}) on Python {platform.python_version()}; expected openpipe-art 0.5.23 "
        "or later, which needs Python 3.12 or later: pip install 'openpipe-art>=0.5.23'"
    ) from error


def trajectory_from_record(record: RolloutRecord, model: str) -> Trajectory:
    """Return a rollout as a trajectory for `TrainableModel.train`, with one exchange per turn.

    If the record has tokens, the exchanges have the same ids and log-probabilities, so that ART tokenizes nothing again.
    Otherwise ART applies the model's chat template to the messages. The reward is that of the rollout with the rewards of its
    turns. Rewards and metrics of the rubric's functions are metrics.

    Example:
        >>> async def rollout(row) -> art.Trajectory:
        ...     [record] = await rove.run_rollouts(env, [row], client, model.get_inference_name())
        ...     return trajectory_from_record(record, model.get_inference_name())
        >>> group = await art.trajectory_group([rollout(row) for _ in range(8)], return_exceptions=True)

    Args:
        record: A rollout.
        model: Name of the model that ART trains, as in its requests.

    Raises:
        RolloutError: The rollout failed. With `return_exceptions`, it is one of the group's `exceptions`, and has no reward.
    """
    if record.scores is None:
        raise RolloutError(record)
    exchanges: list[ChatCompletionsExchange] = []
    # ART orders the exchanges by their times.
    start = datetime.now(UTC) - timedelta(seconds=sum(step.seconds for step in record.steps))
    for step in record.steps:
        tools = record.tools if step.tools is None else step.tools
        exchange = _exchange(step, tools, record.temperature, model, start)
        exchanges.append(exchange)
        start = exchange.end_time
    versions = [step.tokens.policy_version for step in record.steps if step.tokens is not None]
    return Trajectory(
        exchanges=TrajectoryExchanges(chat_completions=exchanges),
        reward=total_reward(record),
        initial_policy_version=min(versions, default=None),
        final_policy_version=max(versions, default=None),
        metrics={**record.scores.rewards, **record.scores.metrics},
        metadata={
            "example_id": record.example_id,
            "rollout_index": record.rollout_index,
            "stop_condition": record.stop_condition,
        },
    )


def _exchange(
    step: TrajectoryStep, tools: list[ToolDefinition] | None, temperature: float | None, model: str, start: datetime
) -> ChatCompletionsExchange:
    """Return a turn as request and response of a chat-completions endpoint."""
    request = Request(step.prompt, SamplingParams(temperature=temperature), model, tools)
    message = as_messages(step.completion)[-1]
    response = Response(message, step.usage, step.finish_reason, step.tokens)
    head = new_head("chatcmpl", model)
    if step.tokens is None:
        body = response_body(head, [response], step.usage)
    else:
        body = with_tokens(response_body(head, [response], step.usage, [_logprobs(step)]), [response], True, None)
    # At least a microsecond, so that no two turns have the same time.
    end = start + timedelta(seconds=step.seconds) + timedelta(microseconds=1)
    return ChatCompletionsExchange(request=request_body(request), response=body, start_time=start, end_time=end)


def _logprobs(step: TrajectoryStep) -> list[TokenLogprob]:
    """Return the sampled tokens under the names that vLLM gives them with `return_tokens_as_token_ids`."""
    assert step.tokens is not None
    pairs = zip(step.tokens.completion_ids, step.tokens.logprobs, strict=True)
    return [TokenLogprob(f"token_id:{token}", logprob, id=token) for token, logprob in pairs]
