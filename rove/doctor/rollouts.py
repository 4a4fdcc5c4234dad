"""What a few sampled groups say of a training run: rewards, lengths, tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rove.core.errors import Error
from rove.core.messages import text_of
from rove.core.records import RolloutRecord
from rove.doctor.findings import FAIL, OK, SKIP, WARN, Finding
from rove.envs.environment import Environment
from rove.rendering.renderer import Renderer
from rove.statistics import mean
from rove.train.advantages import turn_advantages
from rove.train.collect import turn_rewards
from rove.train.sequences import sequences_from_record

EASY = 0.8
"""Share of the best reward above which there is little left to learn."""
TRUNCATED = 0.05
"""Share of cut answers above which what is learnt changes."""
SAME = 0.05
"""Rewards this near to each other, measured by the best one, and none above 0: nothing was ever done right."""
DEAD = 0.5
"""Share of groups without spread above which a step is much smaller than it looks."""
BAD_FORMAT = 0.5
SFT = "warm it up first: rove sft on good rollouts (of a scripted policy, or a larger model)"


class Lengths(NamedTuple):
    """The longest of some rollouts, in tokens of the model; 0 where there are none."""

    prompt: int = 0
    """Prompt of any turn, all that was said before it included."""
    answer: int = 0
    shortest_prompt: int = 0


def check_samples(
    records: Sequence[RolloutRecord], played: Sequence[RolloutRecord], renderer: Renderer, max_tokens: int, context: int
) -> Iterator[Finding]:
    """Findings about sampled groups.

    Args:
        records: whole groups, sampled by the model.
        played: rollouts of the environment's scripted policies; may be empty.
        renderer: of the model.
        max_tokens: of one answer.
        context: positions of the model.
    """
    yield check_failures(records)
    scored = [record for record in records if record.scores is not None]
    if scored:
        yield check_reward(scored)
        yield check_spread(scored)
        yield check_format(scored)
    players = lengths_of(played, renderer)
    yield check_truncation(records, players, max_tokens)
    yield check_context(lengths_of(records, renderer), players, max_tokens, context)
    yield check_history(records, played, renderer)
    yield check_tokens(records)


def check_failures(records: Sequence[RolloutRecord]) -> Finding:
    """Whether rollouts end in an error."""
    errors = [record.error for record in records if record.error is not None]
    if not errors:
        return Finding(OK, "rollouts", f"{len(records)} sampled, none failed")
    seen = f"{len(errors)} of {len(records)} failed; {errors[0].phase}: {errors[0].type}: {errors[0].message}"
    if len(errors) == len(records):
        return Finding(FAIL, "rollouts", seen, "rove rl stops when all of a step fail: play it first with rove eval")
    return Finding(WARN, "rollouts", seen, "failed ones are left out of their group; rove eval shows where they fail")


def check_reward(scored: Sequence[RolloutRecord]) -> Finding:
    """Whether the model sometimes does well, and sometimes not."""
    rewards = [record.scores.reward for record in scored if record.scores]
    scores = scored[0].scores
    assert scores is not None
    most = max(sum(weight for weight in scores.weights.values() if weight > 0), *rewards)
    seen = f"mean {mean(rewards):.3f}, from {min(rewards):.3g} to {max(rewards):.3g} (at most about {most:.3g})"
    if max(rewards) <= 0 and max(rewards) - min(rewards) < SAME * most:
        return Finding(FAIL, "base reward", seen, f"nothing to reinforce; {SFT}, or start with easier examples")
    if most > 0 and mean(rewards) > EASY * most:
        return Finding(WARN, "base reward", seen, "little left to learn: harder examples")
    return Finding(OK, "base reward", seen)


def check_spread(scored: Sequence[RolloutRecord]) -> Finding:
    """Whether siblings score differently, without which a group teaches nothing."""
    groups, alive = len({record.example_key for record in scored}), len(groups_with_spread(scored))
    dead = groups - alive
    seen = f"{dead} of {groups} groups have none"
    if dead == groups:
        return Finding(FAIL, "spread", seen, f"no gradient at all; {SFT}, or a reward with more steps in it")
    if dead > DEAD * groups:
        advice = f"a step trains on {alive / groups:.0%} of its rollouts: a larger -r, or examples of medium difficulty"
        return Finding(WARN, "spread", seen, advice)
    return Finding(OK, "spread", seen)


def groups_with_spread(records: Sequence[RolloutRecord]) -> list[list[RolloutRecord]]:
    """The scored siblings of each group that teaches something."""
    groups: dict[str, list[RolloutRecord]] = {}
    for record in records:
        if record.reward is not None:
            groups.setdefault(record.example_key, []).append(record)
    return [group for group in groups.values() if turn_advantages(turn_rewards(group)) is not None]


def check_format(scored: Sequence[RolloutRecord]) -> Finding:
    """Whether the model answers in the form that is asked for."""
    values: dict[str, list[float]] = {}
    for record in scored:
        told = {**record.scores.metrics, **record.scores.rewards} if record.scores else {}
        for name, value in told.items():
            if "format" in name:
                values.setdefault(name, []).append(value)
    if not values:
        return Finding(SKIP, "format", "no reward function is called so", "one of small weight helps weak models")
    worst = min(values, key=lambda name: mean(values[name]))
    seen = f"{worst} {mean(values[worst]):.2f}"
    if mean(values[worst]) < BAD_FORMAT:
        return Finding(WARN, "format", seen, f"most answers cannot be read; {SFT}")
    return Finding(OK, "format", seen)


def check_truncation(records: Sequence[RolloutRecord], players: Lengths, max_tokens: int) -> Finding:
    """Whether answers fit into `max_tokens`."""
    steps = [step for record in records for step in record.steps]
    cut = sum(step.finish_reason == "length" for step in steps) / max(1, len(steps))
    seen = f"{cut:.0%} of the answers cut at {max_tokens}"
    if players.answer > max_tokens:
        advice = f"a scripted policy needs {players.answer}: -t {players.answer * 3 // 2}"
        return Finding(WARN, "max_tokens", seen, advice)
    if cut > TRUNCATED:
        advice = "a larger -t; if it rambles instead, warm it up with rove sft. --truncated says how they count"
        return Finding(WARN, "max_tokens", seen, advice)
    return Finding(OK, "max_tokens", seen)


def check_context(sampled: Lengths, players: Lengths, max_tokens: int, context: int) -> Finding:
    """Whether the longest rollouts fit into the model's context."""
    longest = max(sampled.prompt, players.prompt)
    seen = f"longest prompt {longest:,} + {max_tokens:,} of {context:,} tokens"
    if not longest:
        return Finding(SKIP, "context", "nothing was said")
    if max(sampled.shortest_prompt, players.shortest_prompt) >= context:
        return Finding(FAIL, "context", seen, "no prompt leaves room for an answer: a model with a larger context")
    shortest = min(one.shortest_prompt for one in (sampled, players) if one.prompt)
    if shortest + max_tokens > context:
        less = f"at most -t {context - longest}" if longest < context else "a much smaller -t"
        advice = f"no prompt leaves room for so long an answer, each may be cut before: {less}"
        return Finding(FAIL, "context", seen, advice)
    if longest + max_tokens > context:
        advice = "long rollouts end as truncated: a smaller -t, fewer turns, or a model with a larger context"
        return Finding(WARN, "context", seen, advice)
    return Finding(OK, "context", seen)


def check_history(records: Sequence[RolloutRecord], played: Sequence[RolloutRecord], renderer: Renderer) -> Finding:
    """Whether each turn's prompt extends the turn before it, as the model's chat template writes it."""
    long = [r for r in records if len(r.steps) > 1 and all(s.tokens is not None for s in r.steps)]
    forks = sum(len(sequences_from_record(record, 0.0)) > 1 for record in long)
    turns = [([*r.prompt, *r.completion], r.tools) for r in played if len(r.steps) > 1]
    try:
        told = sum(len(renderer.training_branches(*conversation)) > 1 for conversation in turns)
    except Error as error:
        return Finding(WARN, "history", str(error), "the model cannot read this environment's conversations")
    if not long and not turns:
        return Finding(SKIP, "history", "no rollout had a second turn")
    seen = f"{forks + told} of {len(long) + len(turns)} longer rollouts are rewritten"
    if forks + told:
        advice = (
            "each turn becomes a sample of its own: slower. A chat template that only appends (keeps <think>) avoids it"
        )
        return Finding(WARN, "history", seen, advice)
    return Finding(OK, "history", "every turn extends the one before it")


def check_tokens(records: Sequence[RolloutRecord]) -> Finding:
    """Whether every answer came with its tokens and their log-probabilities."""
    steps = [step for record in records for step in record.steps]
    if not steps:
        return Finding(SKIP, "tokens", "nothing was said")
    without = sum(step.tokens is None for step in steps)
    if without:
        advice = "only the embedded engine's answers can be trained"
        return Finding(FAIL, "tokens", f"{without} of {len(steps)} answers have none", advice)
    tokens = [step.tokens for step in steps if step.tokens is not None]
    wrong = sum(
        len(t.logprobs) != len(t.completion_ids) or not all(math.isfinite(p) and p < 1e-4 for p in t.logprobs)
        for t in tokens
    )
    if wrong:
        return Finding(
            FAIL, "tokens", f"{wrong} answers have log-probs that are none", "nan weights? try another checkpoint"
        )
    return Finding(OK, "tokens", f"{sum(len(t.completion_ids) for t in tokens):,}, each with its log-prob")


def lengths_of(records: Sequence[RolloutRecord], renderer: Renderer) -> Lengths:
    """Lengths of rollouts: of their exact tokens, else as the model would read and write them."""
    prompts, answers = [], []
    for step, tools in ((step, record.tools) for record in records for step in record.steps):
        tools = tools if step.tools is None else step.tools
        if step.tokens is not None:
            prompts.append(len(step.tokens.prompt_ids))
            answers.append(len(step.tokens.completion_ids))
            continue
        try:
            prompts.append(len(renderer.prompt_ids(step.prompt, tools=tools)))
        except Error:  # `check_history` tells what the template refuses
            continue
        answers.append(sum(len(renderer.encode(text_of(message))) for message in step.completion) + 1)
    return Lengths(max(prompts, default=0), max(answers, default=0), min(prompts, default=0))


def first_prompts(env: Environment, renderer: Renderer, count: int = 8) -> Lengths:
    """Lengths of the prompts of the first training examples, as the model would read them in the first turn."""
    prompts: list[int] = []
    for example in env.examples(count, train=True):
        prompt = example["prompt"]
        try:
            prompts.append(len(renderer.text_ids(prompt) if isinstance(prompt, str) else renderer.prompt_ids(prompt)))
        except Error:  # sampling tells what the template refuses
            continue
    return Lengths(max(prompts, default=0), 0, min(prompts, default=0))
