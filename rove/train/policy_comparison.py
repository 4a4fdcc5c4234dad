"""Compare a trained model with the scripted policies of an environment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, islice

import msgspec

from rove.core.errors import RunError
from rove.core.protocols import Client
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.rendering.renderer import Renderer
from rove.rollouts.evaluate import evaluate
from rove.statistics import Estimate, EvaluationResult
from rove.train.callbacks import EvaluationProgress, OnProgress, ignore
from rove.train.conversations import Conversation, conversations_of
from rove.train.sequences import sequences_from_conversation

FORMAT_LEARNED = 0.9
"""A model has learned the format if the mean of its format functions is at least this value."""
MIN_TASK_MARGIN = 0.02
"""Task scores that differ by less than this value count as equal."""
MORE_EPOCHS = (
    "The format is right: if the loss has been flat, train for more --epochs, since it may stay flat for hundreds of steps and "
    "then fall."
)
"""Advice if a model's reward is between the rewards of two policies and nearer to the weaker policy's."""
MAX_TURN_TOKENS = 512
"""Maximum tokens per response."""
MAX_READ_ROLLOUTS = 200
"""Maximum number of rollouts in which `turn_limit` measures turns."""


class PolicyResult(msgspec.Struct, frozen=True):
    """Scores of one model or policy."""

    name: str
    reward: float
    low: float
    """Lower limit of the 95% interval of the reward; nan without an interval."""
    high: float
    """Upper limit of the interval."""
    format: float | None
    """Mean of the functions whose name contains "format"; None if there are none."""
    task: float
    """Weighted sum of the means of the other reward functions."""
    task_margin: float
    """About half of the 95% interval of `task`."""
    task_names: list[str]
    """Names of the functions in `task`."""
    scored: int
    """Number of scored rollouts."""


async def measure_policy(
    env: Environment,
    client: Client,
    name: str,
    rollouts: int,
    *,
    max_tokens: int = MAX_TURN_TOKENS,
    seed: int = 0,
    on_progress: OnProgress = ignore,
) -> PolicyResult:
    """Evaluate a client greedily in an environment.

    Args:
        env: Environment; it is torn down afterwards.
        rollouts: Approximate number of rollouts: one per example, or several if there are fewer examples.
        max_tokens: Maximum tokens per response.
    """
    count = env.count_examples(rollouts)
    # Fewer examples than rollouts: each is run several times.
    each = max(1, rollouts // count) if count else 1
    total = (count or rollouts) * each
    progress = EvaluationProgress(name, total, on_progress)
    # Greedy: the comparison should not depend on the random seed of sampling.
    sampling = {"temperature": 0.0, "max_tokens": max_tokens}
    result = await evaluate(
        env,
        client,
        on_record=progress,
        num_examples=rollouts,
        rollouts_per_example=each,
        sampling_args=sampling,
        seed=seed,
    )
    if not result.scored:
        error = progress.first_error
        reason = "there are no examples" if error is None else f"{error.phase}: {error.message}"
        raise RunError(f"no rollout of {name} was scored; the first error: {reason}")
    return result_of(name, result)


def result_of(name: str, result: EvaluationResult) -> PolicyResult:
    """Return the result of a policy from its evaluation."""
    functions = result.functions
    formats = [function.mean for key, function in functions.items() if "format" in key]
    # Functions without a weight are metrics; the others measure the task.
    weighted = {key: function for key, function in functions.items() if function.weight}
    tasks = {key: function for key, function in weighted.items() if "format" not in key}
    return PolicyResult(
        name,
        reward=result.reward.mean,
        low=result.reward.low,
        high=result.reward.high,
        format=math.fsum(formats) / len(formats) if formats else None,
        task=math.fsum(function.weight * function.mean for function in tasks.values()),
        task_margin=math.hypot(*(function.weight * _margin(function) for function in tasks.values())),
        task_names=[*tasks],
        scored=result.scored,
    )


def _margin(estimate: Estimate) -> float:
    """Return half the width of an interval; 0 without an interval."""
    half = (estimate.high - estimate.low) / 2
    return half if math.isfinite(half) else 0.0


def learned_only_format(model: PolicyResult, policies: Sequence[PolicyResult]) -> bool:
    """Return whether a model follows the format but is no better at the task than the weakest policy."""
    return model.format is not None and model.format >= FORMAT_LEARNED and is_weakest(model, policies)


def is_weakest(model: PolicyResult, policies: Sequence[PolicyResult]) -> bool:
    """Return whether a model is no better at the task than the weakest policy; False if all policies are equal."""
    tasks = [policy.task for policy in policies]
    margin = max(MIN_TASK_MARGIN, model.task_margin)
    if len(tasks) < 2:
        return False
    limit = min(tasks) + margin
    return max(tasks) > limit and model.task <= limit


def placement_text(model: PolicyResult, policies: Sequence[PolicyResult]) -> str:
    """Return a sentence or two that compare a model with the policies."""
    if not policies:
        return f"reward {model.reward:.3f}; the environment has no scripted policies to compare with"
    if is_weakest(model, policies):
        weakest = min(policies, key=lambda policy: policy.task)
        comparison = (
            f"{' + '.join(model.task_names)} of {model.task:.3f} is no better than that of the weakest scripted policy, "
            f"{weakest.name} ({weakest.task:.3f})"
        )
        if learned_only_format(model, policies):
            return f"The model learned only the format: format {model.format:.2f}, but {comparison}."
        return f"The model learned little of the task: {comparison}."
    weaker = [policy for policy in policies if policy.reward <= model.reward]
    stronger = [policy for policy in policies if policy.reward > model.reward]
    below = max(weaker, key=lambda policy: policy.reward, default=None)
    above = min(stronger, key=lambda policy: policy.reward, default=None)
    if below is None:
        assert above is not None
        return f"Its reward of {model.reward:.3f} is below every scripted policy; the weakest is {_with_reward(above)}."
    if above is None:
        return f"Its reward of {model.reward:.3f} is at least that of every scripted policy; the best is {_with_reward(below)}."
    text = f"Its reward of {model.reward:.3f} is between {_with_reward(below)} and {_with_reward(above)}."
    is_nearer_to_weaker = model.reward - below.reward < above.reward - model.reward
    has_format = model.format is not None and model.format >= FORMAT_LEARNED
    return f"{text} {MORE_EPOCHS}" if is_nearer_to_weaker and has_format else text


def _with_reward(result: PolicyResult) -> str:
    return f"{result.name} ({result.reward:.3f})"


def longest_response(renderer: Renderer, items: Iterable[RolloutRecord | Conversation]) -> int:
    """Return the number of tokens in the longest response, including tool calls and the end of the turn."""
    longest = 0
    for mask in chain.from_iterable(_masks(renderer, item) for item in items):
        lengths = [len(list(run)) for is_sampled, run in groupby(mask) if is_sampled]
        longest = max([longest, *lengths])
    return longest


def _masks(renderer: Renderer, item: RolloutRecord | Conversation) -> list[list[bool]]:
    """Return, for each token sequence of a rollout or conversation, whether each of its tokens is sampled."""
    if not item.is_text:
        messages = item.messages if isinstance(item, Conversation) else [*item.prompt, *item.completion]
        return [mask for _, mask in renderer.training_branches(messages, item.tools)]
    masks: list[list[bool]] = []
    for conversation in [item] if isinstance(item, Conversation) else conversations_of(item):
        masks += [sequence.mask for sequence in sequences_from_conversation(renderer, conversation, None)]
    return masks


def turn_limit(renderer: Renderer, items: Iterable[RolloutRecord | Conversation]) -> int:
    """Return the maximum tokens per response for a model trained on these rollouts or conversations: twice their longest
    response.
    """
    return min(MAX_TURN_TOKENS, 2 * longest_response(renderer, islice(items, MAX_READ_ROLLOUTS)) + 16)
