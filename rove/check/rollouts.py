"""Scripted rollouts of an environment in a worker process."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from rove.audit.replies import REASONING_TAGS, TAG
from rove.clients.scripted import ScriptedClient
from rove.core.checks import Settings
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, Error
from rove.core.messages import AssistantMessage, Message, Messages, text_of
from rove.core.protocols import Limits
from rove.core.ranges import PositiveInt, Seconds
from rove.core.records import Outcome, RolloutRecord
from rove.core.state import State, bookkeeping
from rove.envs.tool import example_call
from rove.remote import IsolatedEnv
from rove.rollouts.evaluate import generate
from rove.rollouts.runner import plan
from rove.statistics.summary import RewardErrors

MAX_TOOL_CALLS = 6
"""Maximum number of tools that the `tools` policy calls before it answers."""
JUNK = 'Zażółć <answer> \\boxed{ {"a": [1, 2 ```python\nprint(</think>\x00\t' + "🦆" * 40


# The policies probe what a scorer reads: a complete answer, an answer without markup, nothing, and text that breaks parsers.


def unsure(messages: Messages, state: State, rng: Any) -> str:
    """Give no answer."""
    return "I do not know."


def answer(messages: Messages, state: State, rng: Any) -> str:
    """Give the row's answer in the tags named in the prompt; without tags, after a reasoning block and in a box."""
    text = str(state.get("answer") or "yes")
    # Not the policy's own turns, which contain the tags of earlier answers.
    prompt = "\n".join(text_of(message) for message in messages if message["role"] != "assistant")
    lines: list[str] = []
    for tag in dict.fromkeys(TAG.findall(prompt)):
        content = "scripted" if tag.lower() in REASONING_TAGS else text
        lines.append(f"<{tag}>{content}</{tag}>")
    return "\n".join(lines) or f"<think>scripted</think>\nThe answer is \\boxed{{{text}}}"


def bare(messages: Messages, state: State, rng: Any) -> str:
    """Give the row's answer without any markup."""
    return str(state.get("answer") or "yes")


def junk(messages: Messages, state: State, rng: Any) -> str:
    """Give text that breaks naive parsers."""
    return JUNK


def tools(messages: Messages, state: State, rng: Any) -> str | Message:
    """Call each tool once, with values that fit its schema, then answer."""
    definitions: Sequence[Mapping[str, Any]] = bookkeeping(state).tools or []
    turn = len(bookkeeping(state).trajectory)
    if turn >= min(MAX_TOOL_CALLS, len(definitions)):
        return answer(messages, state, rng)
    return AssistantMessage(None, tool_calls=[example_call(definitions[turn], f"call_{turn}")])


PROBE_POLICIES: dict[str, Callable[[Messages, State, Any], Any]] = {
    "answer": answer,
    "bare": bare,
    "junk": junk,
    "tools": tools,
    "unsure": unsure,
}


REWARD_FAILED = re.compile(r"Error calling reward function (.*)")
"""Log line of v0 when a reward function raises; v0 then counts the reward as 0."""
CALL_PREFIX = re.compile(r"^\w+\(\{.*?\}\): ")
"""Prefix of a dead worker's error: the call with the rollout's number, which differs between rollouts."""
MAX_ERROR_CHARS = 300
"""Maximum characters kept of an error message."""


class CheckLimits(Settings, frozen=True, kw_only=True):
    """Limits of a check."""

    num_examples: PositiveInt = 2
    """Number of examples for which each scripted policy runs a rollout."""
    max_turns: PositiveInt = 30
    """Maximum turns per rollout."""
    install_seconds: Seconds = 900.0
    """Time limit for installing the package with its dependencies."""
    start_seconds: Seconds = 120.0
    """Time limit for loading the environment, and the same limit again for loading its dataset."""
    hang_seconds: Seconds = 30.0
    """Kill the environment when it is unresponsive for this many seconds."""
    play_seconds: Seconds = 300.0
    """Time limit for all rollouts."""


class Failure(msgspec.Struct, frozen=True, order=True):
    """An error that ended rollouts."""

    phase: str
    type: str
    message: str
    times: int = 1


class RolloutResults(msgspec.Struct):
    """Results of the scripted rollouts of a package."""

    policies: list[str] = []
    own_policies: bool = False
    """Whether the policies are the environment's own."""
    rollouts: int = 0
    failed: int = 0
    rewards: dict[str, float] = {}
    """Policy → mean reward of its rollouts that did not fail."""
    metrics: list[str] = []
    """Names of reward functions and metrics."""
    failures: list[Failure] = []
    """Errors of failed rollouts, the most frequent first."""
    swallowed: list[str] = []
    """Exceptions in reward functions; such a reward was counted as 0."""
    broken: dict[str, str] = {}
    """Reward function → its error, for functions that raised in every rollout."""
    unloaded: str = ""
    """Error raised while the environment or its dataset was loaded; "" if both were loaded."""


def run_rollouts(
    module: str,
    env_args: Mapping[str, Any],
    env_dir: Path | None,
    python: str | None,
    variables: Mapping[str, str],
    limited: CheckLimits,
    prepare: str,
) -> RolloutResults:
    """Load an environment and run every scripted policy on its first examples; errors become part of the result."""
    results = RolloutResults()
    try:
        env = IsolatedEnv(
            module,
            env_args,
            env_dir,
            python,
            start_seconds=limited.start_seconds,
            hang_seconds=limited.hang_seconds,
            rows_seconds=limited.start_seconds,
            prepare=prepare,
            variables=variables,
        )
    except ConfigError as error:
        results.unloaded = str(error)
        return results
    try:
        asyncio.run(_run(env, results, limited))
    except Error as error:
        results.unloaded = f"its dataset cannot be read: {error}"
    finally:
        env.workers.close()
    return results


async def _run(env: IsolatedEnv, results: RolloutResults, limited: CheckLimits) -> None:
    policies = env.policies or PROBE_POLICIES
    results.policies, results.own_policies = sorted(policies), bool(env.policies)
    names = results.policies
    examples = env.examples(limited.num_examples)
    # A client does not see which rollout of a group it answers, but the rollout's seed: rollout i gets the i-th policy.
    index_of_seed: dict[int, int] = {}
    for job in chain.from_iterable(plan(examples, len(names))):
        index_of_seed[derive_seed(job.seed, job.key, job.index)] = job.index
    records: list[RolloutRecord] = []
    swallowed: dict[str, None] = {}

    def collect(record: RolloutRecord | Outcome) -> None:
        assert isinstance(record, RolloutRecord)
        records.append(record)
        # v0 only logs the exception of a reward function, so the log of the worker is the place where it is seen.
        for line in env.workers.recent_output:
            if match := REWARD_FAILED.search(line):
                swallowed[match[1]] = None

    def respond(messages: Messages, state: State, rng: Random) -> Any:
        name = names[index_of_seed[bookkeeping(state).seed]]
        return policies[name](messages, state, rng)

    # One hanging rollout must not use up the time of all others.
    limits = Limits(max_turns=limited.max_turns, timeout_seconds=limited.play_seconds / 2)
    try:
        async with asyncio.timeout(limited.play_seconds):
            await generate(
                env,
                ScriptedClient(respond),
                num_examples=limited.num_examples,
                rollouts_per_example=len(names),
                limits=limits,
                on_record=collect,
            )
    except TimeoutError:
        missing = len(index_of_seed) - len(records)  # a dataset may have fewer than `num_examples` rows
        timeout = Failure("rollout", "TimeoutError", f"did not end within {limited.play_seconds:g} s", missing)
        _summarize(results, records, [timeout])
    else:
        _summarize(results, records, [])
    results.swallowed = sorted(swallowed)


def _summarize(results: RolloutResults, records: list[RolloutRecord], timeouts: list[Failure]) -> None:
    """Count errors and average rewards; drop the `tools` policy if the environment has no tools."""
    has_unused_policy = not results.own_policies and not any(record.tools for record in records)
    # Without tools, that policy gives the same responses as `answer`, and would count their failures twice.
    if has_unused_policy:
        unused_index = results.policies.index("tools")
        records = [record for record in records if record.rollout_index != unused_index]
    errors = RewardErrors()
    failed: Counter[tuple[str, str, str]] = Counter()
    values: dict[str, list[float]] = {}
    metrics: dict[str, None] = {}
    for record in records:
        errors.add(record)
        if record.error is not None:
            message = CALL_PREFIX.sub("", record.error.message)[:MAX_ERROR_CHARS]
            failed[record.error.phase, record.error.type, message] += 1
        if record.scores is not None:
            values.setdefault(results.policies[record.rollout_index], []).append(record.scores.reward)
            metrics |= dict.fromkeys([*record.scores.rewards, *record.scores.metrics])
    results.failures = [*(Failure(*error, times) for error, times in failed.most_common()), *timeouts]
    results.failed = sum(failure.times for failure in results.failures)
    results.rollouts = len(records) + sum(failure.times for failure in timeouts)
    for name, rewards in sorted(values.items()):
        results.rewards[name] = round(sum(rewards) / len(rewards), 4)
    results.metrics = sorted(metrics)
    results.broken = errors.broken
    if has_unused_policy:
        results.policies.remove("tools")
