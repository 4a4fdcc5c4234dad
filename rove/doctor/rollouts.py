"""Checks of sampled groups: rewards, lengths, tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from rove.core.errors import Error
from rove.core.findings import HIGH, MEDIUM, OK, SKIPPED, Finding, registry
from rove.core.messages import text_of
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.rendering.renderer import Renderer
from rove.runs.metrics import zero_advantage_share
from rove.statistics import mean
from rove.train.collect import training_sequences
from rove.train.sequences import sequences_from_record

EASY_REWARD = 0.8
"""If the mean reward exceeds this fraction of the best reward, there is little left to learn."""
PROMPTS = 8
"""Number of training examples whose first prompts are measured."""
MAX_TRUNCATED = 0.05
"""Fraction of truncated responses above which truncation affects training."""
EQUAL_REWARDS = 0.05
"""Rewards count as equal if they differ by less than this fraction of the best reward."""
MAX_ZERO_ADVANTAGE = 0.5
"""Fraction of zero-advantage groups above which a step learns from much fewer rollouts than it samples."""
BAD_FORMAT = 0.5
"""If the mean of a format reward is lower, most responses cannot be parsed."""

WORDS_OF_FORMAT = {"format", "formatted", "formatting"}
WORDS_OF_FAULTS = {"bad", "error", "errors", "failed", "failure", "failures", "invalid", "penalty", "wrong"}
"""Words in the name of a score whose lower values are better."""


class Lengths(NamedTuple):
    """Lengths of rollouts in tokens of the model; 0 if there are none."""

    prompt: int = 0
    """Length of the longest prompt of any turn, including the history."""
    response: int = 0
    shortest_prompt: int = 0


def check_samples(
    records: Sequence[RolloutRecord],
    scripted: Sequence[RolloutRecord],
    renderer: Renderer,
    max_tokens: int,
    context: int,
) -> Iterator[Finding]:
    """Yield findings about sampled groups.

    Args:
        scripted: Rollouts of the environment's scripted policies; may be empty.
        max_tokens: Maximum tokens per response.
    """
    yield check_failures(records)
    scored = [record for record in records if record.scores is not None]
    if scored:
        yield check_reward(scored)
        yield check_advantages(scored)
        yield check_format(scored)
    best = max((record.reward or 0.0 for record in scripted), default=0.0)
    lowest = best - abs(best) / 2  # the best reward may be negative
    good = [record for record in scripted if (record.reward or 0.0) >= lowest]  # a poor policy may need many tokens
    yield check_truncation(records, lengths_of(good, renderer), max_tokens)
    yield check_context(lengths_of(records, renderer), lengths_of(scripted, renderer), max_tokens, context)
    yield check_history(records, scripted, renderer)
    yield check_tokens(records)


def check_failures(records: Sequence[RolloutRecord]) -> Finding:
    """Check whether rollouts fail."""
    errors = [record.error for record in records if record.error is not None]
    if not errors:
        return Finding("rollouts", f"{len(records)} sampled, none failed", OK)
    first = errors[0]
    summary = f"{len(errors)} of {len(records)} failed; {first.phase}: {first.type}: {first.message}"
    return Finding("rollouts", summary, HIGH if len(errors) == len(records) else MEDIUM)


def check_reward(scored: Sequence[RolloutRecord]) -> Finding:
    """Check whether the model sometimes succeeds and sometimes fails."""
    rewards = [record.scores.reward for record in scored if record.scores]
    scores = scored[0].scores
    assert scores is not None
    best = max(sum(weight for weight in scores.weights.values() if weight > 0), *rewards)
    average, lowest, highest = mean(rewards), min(rewards), max(rewards)
    summary = f"mean {average:.3f}, from {lowest:.3g} to {highest:.3g} (at most about {best:.3g})"
    if highest <= 0 and highest - lowest < EQUAL_REWARDS * best:
        return Finding("base_reward", f"{summary}: nothing to reinforce", HIGH)
    if best > 0 and average > EASY_REWARD * best:
        return Finding("base_reward", f"{summary}: little left to learn", MEDIUM, "use harder examples")
    return Finding("base_reward", summary, OK)


def check_advantages(scored: Sequence[RolloutRecord]) -> Finding:
    """Check whether rewards differ within groups: zero-advantage groups give no gradient."""
    _, counts = training_sequences(scored)
    share = zero_advantage_share(counts) or 0.0
    text = f"{counts['groups/zero_spread']:.0f} of {counts['groups/all']:.0f} groups have zero advantage"
    if share == 1:
        return Finding("zero_advantage_groups", f"{text}: no gradient", HIGH, registry()["base_reward"].remedy)
    if share > MAX_ZERO_ADVANTAGE:
        text += f": a step trains on {1 - share:.0%} of its groups"
        return Finding("zero_advantage_groups", text, MEDIUM, "raise -r, or use examples of medium difficulty")
    return Finding("zero_advantage_groups", text, OK)


def check_format(scored: Sequence[RolloutRecord]) -> Finding:
    """Check whether the model's responses have the required format."""
    values: dict[str, list[float]] = {}
    for record in scored:
        scores = {**record.scores.metrics, **record.scores.rewards} if record.scores else {}
        for name, value in scores.items():
            if _is_format(name):
                values.setdefault(name, []).append(value)
    if not values:
        remedy = "one with a small weight helps weak models"
        return Finding("format", "no reward function has 'format' in its name", SKIPPED, remedy)
    worst = min(values, key=lambda name: mean(values[name]))
    average = mean(values[worst])
    return Finding("format", f"{worst} {average:.2f}", OK if average >= BAD_FORMAT else MEDIUM)


def _is_format(name: str) -> bool:
    """Return whether a score measures the format, so that higher values are better: not "informativeness", "format_errors"."""
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))
    return not words.isdisjoint(WORDS_OF_FORMAT) and words.isdisjoint(WORDS_OF_FAULTS)


def check_truncation(records: Sequence[RolloutRecord], scripted: Lengths, max_tokens: int) -> Finding:
    """Check whether responses fit into `max_tokens`."""
    steps = list(chain.from_iterable(record.steps for record in records))
    truncated = sum(step.finish_reason == "length" for step in steps) / max(1, len(steps))
    summary = f"{truncated:.0%} of responses truncated at {max_tokens}"
    if scripted.response > max_tokens:
        summary += f"; a scripted policy needs {scripted.response}"
        return Finding("max_tokens", summary, MEDIUM, f"-t {scripted.response * 3 // 2}")
    return Finding("max_tokens", summary, OK if truncated <= MAX_TRUNCATED else MEDIUM)


def check_context(sampled: Lengths, scripted: Lengths, max_tokens: int, context: int) -> Finding:
    """Check whether the longest rollouts fit into the model's context."""
    longest = max(sampled.prompt, scripted.prompt)
    summary = f"longest prompt {longest:,} + {max_tokens:,} of {context:,} tokens"
    if not longest:
        return Finding("context", "no prompts to measure", SKIPPED)
    if max(sampled.shortest_prompt, scripted.shortest_prompt) >= context:
        return Finding("context", f"{summary}: no prompt leaves room for a response", HIGH)
    measured = [lengths for lengths in (sampled, scripted) if lengths.prompt]
    shortest = min(lengths.shortest_prompt for lengths in measured)
    if shortest + max_tokens > context:
        remedy = f"at most -t {context - longest}" if longest < context else "a much smaller -t"
        return Finding("context", f"{summary}: no prompt leaves room for a response of this length", HIGH, remedy)
    return Finding("context", summary, OK if longest + max_tokens <= context else MEDIUM)


def check_history(records: Sequence[RolloutRecord], scripted: Sequence[RolloutRecord], renderer: Renderer) -> Finding:
    """Check whether each turn's prompt extends the tokens of the turn before, under the model's chat template."""
    several_turns = [record for record in records if len(record.steps) > 1]
    # Sampled turns are compared by their tokens. Scripted ones have none, so the chat template renders them.
    tokenized = [record for record in several_turns if all(step.tokens is not None for step in record.steps)]
    rewritten = sum(len(sequences_from_record(record, 0.0)) > 1 for record in tokenized)
    rendered = [record for record in scripted if len(record.steps) > 1]
    try:
        for record in rendered:
            branches = renderer.training_branches([*record.prompt, *record.completion], record.tools)
            rewritten += len(branches) > 1
    except Error as error:
        cause = "the chat template does not support these conversations"
        remedy = "use a model with another chat template"
        return Finding("history", f"a conversation cannot be rendered: {error}", remedy=remedy, cause=cause)
    total = len(tokenized) + len(rendered)
    if not total:
        return Finding("history", "no rollout had a second turn", SKIPPED)
    summary = f"the history of {rewritten} of {total} longer rollouts is rewritten"
    if rewritten:
        return Finding("history", f"{summary}: each turn becomes its own sequence, which is slower")
    return Finding("history", "every turn extends the one before it", OK)


def check_tokens(records: Sequence[RolloutRecord]) -> Finding:
    """Check whether every response has tokens and log-probabilities."""
    steps = list(chain.from_iterable(record.steps for record in records))
    if not steps:
        return Finding("tokens", "no responses to check", SKIPPED)
    without = sum(step.tokens is None for step in steps)
    if without:
        return Finding("tokens", f"{without} of {len(steps)} responses have none")
    tokens = [step.tokens for step in steps if step.tokens is not None]
    wrong = 0
    for response in tokens:
        is_complete = len(response.logprobs) == len(response.completion_ids)
        # Rounding can make the log-probability of a certain token slightly positive.
        is_valid = all(math.isfinite(logprob) and logprob < 1e-4 for logprob in response.logprobs)
        wrong += not (is_complete and is_valid)
    if wrong:
        remedy = "NaN weights? try another checkpoint"
        return Finding("tokens", f"{wrong} responses have invalid log-probs", remedy=remedy)
    total = sum(len(response.completion_ids) for response in tokens)
    return Finding("tokens", f"{total:,}, each with a log-prob", OK)


def lengths_of(records: Sequence[RolloutRecord], renderer: Renderer) -> Lengths:
    """Return the lengths of rollouts: exact if tokens are recorded, else as the model's tokenizer would encode the messages."""
    prompts: list[int] = []
    responses: list[int] = []
    for record in records:
        for step in record.steps:
            if step.tokens is not None:
                prompts.append(len(step.tokens.prompt_ids))
                responses.append(len(step.tokens.completion_ids))
                continue
            tools = record.tools if step.tools is None else step.tools
            try:
                prompts.append(len(renderer.prompt_ids(step.prompt, tools=tools)))
            except Error:  # `check_history` reports it
                continue
            response = sum(len(renderer.encode(text_of(message))) for message in step.completion)
            responses.append(response + 1)  # and the token that ends it
    return Lengths(max(prompts, default=0), max(responses, default=0), min(prompts, default=0))


def first_prompts(env: Environment, renderer: Renderer) -> Lengths:
    """Return the lengths of the first prompts of some training examples."""
    prompts: list[int] = []
    for example in env.examples(PROMPTS, train=True):
        prompt = example["prompt"]
        try:
            if isinstance(prompt, str):
                ids = renderer.text_ids(prompt)
            else:
                ids = renderer.prompt_ids(prompt, tools=getattr(env, "tool_defs", None))
            prompts.append(len(ids))
        except Error:  # sampling reports it
            continue
    return Lengths(max(prompts, default=0), 0, min(prompts, default=0))
