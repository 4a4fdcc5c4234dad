"""Conversations to fine-tune on, and the rollouts that they come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rove.core.errors import ConfigError
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.train.config import SFTConfig


class Conversation(NamedTuple):
    """A finished conversation to train on."""

    messages: list[dict[str, object]]
    tools: list[dict[str, object]] | None = None
    """Tools that the model was shown."""
    sampled_messages: frozenset[int] | None = None
    """Indices of the messages that the model sampled; None: all assistant messages."""
    example_key: str = ""
    """Key of the rollout's example."""


def conversations_of(record: RolloutRecord) -> list[Conversation]:
    """Return the conversations of a rollout; every message that the model sampled is in exactly one.

    It is one conversation, prompt and completion, unless the model was shown others: an external agent may add its own system
    prompt, rewrite messages and hold several conversations.
    """
    steps = record.steps
    sampled = [step.completion[-1] for step in steps if step.completion]
    if not sampled or (
        steps[0].prompt == record.prompt and sampled == [m for m in record.completion if m["role"] == "assistant"]
    ):
        return [Conversation([*record.prompt, *record.completion], record.tools, example_key=record.example_key)]
    chains: list[list[TrajectoryStep]] = []
    for step in steps:
        chain = next((chain for chain in chains if _continues(step, chain[-1])), None)
        if chain is None:
            chains.append([step])
        else:
            chain.append(step)
    return [
        Conversation(
            [*chain[-1].prompt, *chain[-1].completion],
            record.tools if chain[-1].tools is None else chain[-1].tools or None,
            frozenset(len(step.prompt) for step in chain),
            record.example_key,
        )
        for chain in chains
    ]


def _continues(step: TrajectoryStep, before: TrajectoryStep) -> bool:
    messages = [*before.prompt, *before.completion]
    return step.tools == before.tools and step.prompt[: len(messages)] == messages


def read_conversations(records: Iterable[RolloutRecord], config: SFTConfig) -> list[Conversation]:
    """Return the conversations of the rollouts that pass the filter.

    Raises:
        ConfigError: Fewer than two conversations pass.
    """
    seen = taken = 0
    found: list[Conversation] = []
    for record in records:
        seen += 1
        if record.scores is None or (config.min_reward is not None and record.scores.reward < config.min_reward):
            continue
        if not record.completion:  # the prompt was too long for the model
            continue
        if 0 <= config.max_examples <= taken:
            break
        taken += 1
        found += conversations_of(record)
    if len(found) < 2:
        raise ConfigError(
            f"{len(found)} of {seen} rollouts in {config.data} pass min_reward = {config.min_reward}; SFT needs at least 2"
        )
    return found
