"""The environment that is audited, and measurements of policies in it."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rove.audit.findings import MAX_EVIDENCE_CHARS, shortened
from rove.clients.scripted import ScriptedClient
from rove.core.errors import Error
from rove.core.findings import Finding, Severity, registry
from rove.core.messages import Messages, call_name, text_of
from rove.core.plain import JsonMapping, JsonObject
from rove.core.protocols import Client, Limits
from rove.core.records import RolloutRecord
from rove.core.state import State
from rove.envs.environment import Environment
from rove.rollouts.evaluate import generate
from rove.statistics import mean_estimate

Policy = Callable[[Messages, State, Any], Any]
MAX_TURNS = 40
"""Maximum number of turns in a rollout."""
FEW_TURNS = 3
"""Maximum number of turns where a reply is tried for an effect that the first turns show."""
TRIED_EXAMPLES = 20
"""Number of examples on which many policies are tried before the promising policies run on all examples."""
MAX_RECORDED_CHARS = 1000
"""Maximum length of a recorded reply."""
OUT_OF_TIME = "the time budget is used up"
ROLLOUT_SECONDS = 60.0
"""Time limit of a rollout."""
MAX_BLANK_SHARE = 0.1
"""If at most this share of the rows have no answer, the audit leaves these rows out; else the task has no answers."""
MIN_FAILED_POLICIES = 2
"""The audit ends after this many policies of which every rollout ends or blocks its worker."""
EMPTY = "(empty)"
"""How the evidence shows an empty reply."""
SEARCHED = "search: "
"""Prefix of the names of policies that a search tries."""


class Measured(NamedTuple):
    """Rollouts of one policy."""

    name: str
    records: list[RolloutRecord]

    @property
    def scored(self) -> list[RolloutRecord]:
        """Rollouts with a reward."""
        return [record for record in self.records if record.scores is not None]

    @property
    def rewards(self) -> list[float]:
        """Rewards of the scored rollouts."""
        return [record.scores.reward for record in self.records if record.scores is not None]

    @property
    def mean(self) -> float:
        """Mean reward; 0 if every rollout failed."""
        return statistics.fmean(self.rewards) if self.rewards else 0.0

    @property
    def interval(self) -> tuple[float, float, float]:
        """Mean reward, and the limits of its 95% interval; both limits are the mean if there is no interval."""
        if not self.rewards:
            return 0.0, 0.0, 0.0
        estimate = mean_estimate(self.rewards)
        low = estimate.mean if math.isnan(estimate.low) else estimate.low
        high = estimate.mean if math.isnan(estimate.high) else estimate.high
        return estimate.mean, low, high

    def example(self) -> tuple[str, str]:
        """Return the last prompt message and the completion of the rollout with the highest reward."""
        if not self.scored:
            return "", ""
        return evidence(max(self.scored, key=reward_of))

    def finding(self, id: str, text: str, severity: Severity | None = None, floor: float | None = None) -> Finding:
        """Return a finding with these rollouts as evidence."""
        prompt, completion = self.example()
        severity = severity or registry()[id].severity
        return Finding(id, text, severity, rate=self.interval, floor=floor, prompt=prompt, completion=completion)


def reward_of(record: RolloutRecord) -> float:
    """Return the reward of a rollout; 0 if it failed."""
    return record.scores.reward if record.scores else 0.0


def is_worker_failure(record: RolloutRecord) -> bool:
    """Return whether a rollout ended its worker, or blocked it."""
    return record.error is not None and record.error.type == "WorkerError"


def evidence(record: RolloutRecord, limit: int = MAX_EVIDENCE_CHARS) -> tuple[str, str]:
    """Return the last prompt message and the completion of a rollout, each of at most about `limit` characters."""
    prompt = ""
    if isinstance(record.prompt, str):
        prompt = record.prompt
    elif record.prompt:
        prompt = text_of(record.prompt[-1])
    if isinstance(record.completion, str):
        completion = record.completion
    elif len(record.completion) == 1:
        completion = _with_calls(record.completion[0])
    else:
        completion = "\n".join(f"{message['role']}: {_with_calls(message)}" for message in record.completion)
    # A rollout that ended its worker has no message.
    is_empty = bool(record.completion) and not completion
    return shortened(prompt, limit), EMPTY if is_empty else shortened(completion, limit)


def _with_calls(message: JsonMapping) -> str:
    """Return the text of a message, followed by its tool calls with their arguments in JSON."""
    calls: list[str] = []
    for call in message.get("tool_calls") or []:
        arguments = call["function"].get("arguments")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append(f"{call_name(call)}({written})")
    return " ".join(filter(None, [text_of(message), *calls]))


class OutOfTime(Error):
    """The time budget of the audit is used up."""


class Inconclusive(Error):
    """A check was done, but proves nothing."""


class RolloutsFail(Error):
    """Every rollout failed."""


class Subject:
    """An environment under audit. This object counts the rollouts."""

    def __init__(self, env: Environment, count: int, deadline: float, file: Path | None = None):
        self.env = env
        self.count = count
        self.deadline = deadline
        self.file = file
        self.rollouts = 0
        self.rows: list[JsonObject] = []
        self.records: list[RolloutRecord] = []
        """All rollouts."""
        self.replies: dict[str, str] = {}
        """Short reply of a policy → the answer of its row, with which the scripted judge decides whether the reply is right."""
        self.measured: dict[str, Measured] = {}
        """Last measurement of each policy by the policy's name, without policies of a search."""
        self.worker_failures: list[tuple[str, RolloutRecord, Client]] = []
        """Rollouts that ended or blocked their worker, each with the name of its policy and the policy."""

    async def read_rows(self) -> None:
        """Read the rows on which policies are measured: evaluation rows, or training rows if there are no evaluation rows."""
        self.rows = list(self.env.examples(self.count))

    @property
    def answers(self) -> list[Any]:
        """The rows' answers without `blank_rows`; empty if more rows have no answer."""
        answers = [row["answer"] for row in self.rows if row.get("answer") not in (None, "")]
        return answers if len(answers) + len(self.blank_rows) == len(self.rows) else []

    @property
    def blank_rows(self) -> list[int]:
        """The indexes of the rows without an answer if they are few, so that their answers are probably missing."""
        indexes = [index for index, row in enumerate(self.rows) if row.get("answer") in (None, "")]
        return indexes if len(indexes) <= MAX_BLANK_SHARE * len(self.rows) else []

    @property
    def remaining(self) -> float:
        """Seconds that remain in the time budget."""
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise OutOfTime(OUT_OF_TIME)
        return remaining

    async def measure(
        self,
        name: str,
        policy: Policy | Client,
        count: int | None = None,
        *,
        rollouts: int = 1,
        seed: int = 0,
        train: bool = False,
        sampling_args: JsonMapping = MappingProxyType({}),
        is_recorded: bool = True,
        max_turns: int = MAX_TURNS,
    ) -> Measured:
        """Run a policy, or a model, on the first examples.

        Args:
            count: Number of examples; all by default.
            max_turns: Maximum turns of a rollout. A reply that breaks a grader does so in a few turns; long games are expensive.
        """
        remaining = self.remaining
        records: list[RolloutRecord] = []
        if callable(policy):
            policy = ScriptedClient(self._recorded(policy) if is_recorded else policy, name)
        limits = Limits(max_turns=max_turns, timeout_seconds=ROLLOUT_SECONDS)
        try:
            async with asyncio.timeout(remaining):
                await generate(
                    self.env,
                    policy,
                    num_examples=self.count if count is None else count,
                    rollouts_per_example=rollouts,
                    sampling_args=dict(sampling_args),
                    limits=limits,
                    seed=seed,
                    train=train,
                    on_record=records.append,
                )
        except TimeoutError:  # what has been measured by then counts
            if not records:
                raise OutOfTime(OUT_OF_TIME) from None
        # Rollouts end in any order; what a report says must not depend on it.
        records.sort(key=lambda record: (record.example_id, record.rollout_index))
        self.rollouts += len(records)
        self.records += records
        self.worker_failures += [(name, record, policy) for record in records if is_worker_failure(record)]
        failed = {policy_name for policy_name, _, _ in self.worker_failures}
        # One policy may deliberately break the worker; several that always do so mean that nothing can be measured.
        if len(self.worker_failures) == len(self.records) and len(failed) >= MIN_FAILED_POLICIES:
            raise RolloutsFail(
                f"every rollout ends or blocks its process; the first: {self.error_text(self.records[0])}"
            )
        if self.blank_rows:
            records = [record for record in records if record.answer]
        measured = Measured(name, records)
        if not name.startswith(SEARCHED):
            self.measured[name] = measured
        return measured

    def error_text(self, record: RolloutRecord) -> str:
        """Return type and message of a failed rollout's error, and the last line of the environment's code in its traceback."""
        assert record.error is not None
        frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', record.error.traceback)
        own_frames = [frame for frame in frames if self._is_own(Path(frame[0]))]
        location = ""
        if own_frames:
            file, line, name = own_frames[-1]
            location = f" ({Path(file).name}, line {line}, in {name})"
        message = re.sub(r"^\w+\(\{.*?\): ", "", record.error.message, flags=re.DOTALL)  # the call to a worker
        return f"{record.error.type}: {shortened(message, 300)}{location}"

    def _is_own(self, file: Path) -> bool:
        if self.file is None:
            return False
        is_package = self.file.stem in ("__init__", self.file.parent.name)
        return file.is_relative_to(self.file.parent if is_package else self.file)

    @property
    def rewards(self) -> dict[str, tuple[float, float, float]]:
        """Policy → mean reward with its 95% interval; policies whose rollouts all failed are left out."""
        return {name: measured.interval for name, measured in self.measured.items() if measured.rewards}

    def _recorded(self, policy: Policy) -> Policy:
        async def recorded(messages: Messages, state: State, rng: Any) -> Any:
            reply = policy(messages, state, rng)
            reply = await reply if inspect.isawaitable(reply) else reply
            if isinstance(reply, str) and 0 < len(reply) <= MAX_RECORDED_CHARS:
                self.replies[reply] = str(state.get("answer") or "")
            return reply

        return recorded

    async def measure_all(self, policies: Mapping[str, Policy]) -> list[Measured]:
        """Run several policies."""
        return [await self.measure(name, policy) for name, policy in policies.items()]


async def measure_promising(
    subject: Subject,
    policies: Mapping[str, Policy],
    above: float,
    tried: int = TRIED_EXAMPLES,
    most: int | None = None,
) -> list[Measured]:
    """Run several policies on `tried` examples, then those that earn more than `above` on all examples; return the second
    results.

    Args:
        most: Maximum number of policies that run on all examples, the best ones; no limit by default.
    """
    first = [await subject.measure(name, policy, tried) for name, policy in policies.items()]
    promising = [measured for measured in first if measured.mean > above]
    if most is not None:
        promising.sort(key=lambda measured: -measured.mean)
    return [await subject.measure(measured.name, policies[measured.name]) for measured in promising[:most]]


def highest(measured: Sequence[Measured]) -> Measured:
    """Return the measurement with the highest mean reward."""
    return max(measured, key=lambda policy: policy.mean)
