"""Conversations to fine-tune on, and the rollouts that they come from."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from rove.core.errors import ConfigError
from rove.core.messages import text_of
from rove.core.plain import JsonMapping
from rove.core.records import RolloutRecord, TrajectoryStep


class Conversation(NamedTuple):
    """A finished conversation to train on."""

    messages: list[dict[str, object]]
    tools: list[dict[str, object]] | None = None
    """Tools that the model was shown."""
    sampled_messages: frozenset[int] | None = None
    """Indices of the messages that the model sampled; None means all assistant messages."""
    example_key: str = ""
    """Key of the example; conversations with equal keys are either all for training or all for validation."""
    prompt_length: int | None = None
    """Number of messages before the completion; None if unknown."""
    template_kwargs: JsonMapping | None = None
    """Variables of the chat template."""
    is_text: bool = False
    """Whether prompt and completion are raw texts, which the chat template does not render."""
    origin: str = ""
    """File and line of the conversation, such as "chats.jsonl, line 3"."""

    def trained_messages(self, loss_on: str) -> Collection[int] | None:
        """Return the indices of the messages to train on; None means all assistant messages."""
        if loss_on == "all":
            return self.sampled_messages
        sampled = self.sampled_messages
        if sampled is None:
            sampled = [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]
        if loss_on == "last":
            return sorted(sampled)[-1:]
        # Which messages are the completion cannot be guessed: a prompt may contain assistant messages, too.
        if self.prompt_length is None:
            raise ConfigError(
                f"{self.origin}: loss_on is 'completion', but the row has no 'prompt' and 'completion'; use 'all' or 'last'"
            )
        return [index for index in sampled if index >= self.prompt_length]


def conversations_of(record: RolloutRecord) -> list[Conversation]:
    """Return the conversations of a rollout; every message that the model sampled is in exactly one conversation.

    Usually, there is one conversation: prompt and completion. But the model may have seen other conversations, because an
    external agent may add its own system prompt, rewrite messages, and hold several conversations. Of raw texts, each turn is
    a conversation.
    """
    steps = record.steps
    # Repeated examples, and those of asynchronous training, have keys of their own, as in "key#2" or "key@5".
    example_key = re.split("[#@]", record.example_key)[0]
    if record.is_text:
        return _text_conversations(record, example_key)
    sampled = [step.completion[-1] for step in steps if step.completion]
    responses = [message for message in record.completion if message["role"] == "assistant"]
    # The model was shown exactly the conversation of the record, so one sequence has every response.
    has_one_conversation = not sampled or (steps[0].prompt == record.prompt and sampled == responses)
    if has_one_conversation and all(step.tools is None for step in steps):
        messages = [*record.prompt, *record.completion]
        return [Conversation(messages, record.tools, None, example_key, len(record.prompt))]
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
            example_key,
            prompt_length=0,
        )
        for chain in chains
    ]


def _text_conversations(record: RolloutRecord, example_key: str) -> list[Conversation]:
    """Return a conversation per turn: the text before the turn, and the text that the model added."""
    turns = [(step.prompt, step.completion) for step in record.steps] or [(record.prompt, record.completion)]
    conversations: list[Conversation] = []
    for prompt, completion in turns:
        messages: list[dict[str, object]] = [
            {"role": "user", "content": "".join(map(text_of, prompt))},
            {"role": "assistant", "content": "".join(map(text_of, completion))},
        ]
        conversations.append(Conversation(messages, example_key=example_key, prompt_length=1, is_text=True))
    return conversations


def _continues(step: TrajectoryStep, previous: TrajectoryStep) -> bool:
    messages = [*previous.prompt, *previous.completion]
    return step.tools == previous.tools and step.prompt[: len(messages)] == messages
