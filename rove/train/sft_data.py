"""The data of SFT: read it from a run, a file of messages or memory, and turn it into training and validation sequences."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rove.core.digest import digest_files
from rove.core.errors import ConfigError, short_repr
from rove.core.plain import is_mapping
from rove.core.records import RolloutRecord
from rove.rendering.renderer import Renderer
from rove.runs.run import Run
from rove.train.callbacks import OnProgress, counted, ignore
from rove.train.config import SFTConfig
from rove.train.conversations import Conversation, conversations_of
from rove.train.message_files import (
    SUFFIXES,
    Row,
    arrow_row,
    conversation_from_row,
    is_message_file,
    read_rows,
)
from rove.train.sequences import TrainingSequence, sequences_from_conversation

SFTSource = str | Path | Run | Iterable[Any]
"""A run folder, a file of messages, a run, or data in memory: rollouts, rows, lists of messages, or a `datasets.Dataset`."""

MAX_CHECKED = 32
"""Maximum number of conversations that are rendered before a run starts: long games have hundreds of sequences of roles."""


class SFTData:
    """The conversations to train on, read at first use.

    Example:
        >>> data = SFTData("chats.jsonl", config)
        >>> data.conversations[0].messages[0]["role"]
        'user'
    """

    def __init__(self, source: SFTSource, config: SFTConfig):
        self._source = source
        self._config = config
        self.run: Run | None = None
        """The run that the data come from; None for messages."""
        self.name = "the data"
        self.dropped: Counter[str] = Counter()
        """Number of rollouts or rows that are not trained on, by reason."""
        if isinstance(source, Run):
            self.run = source
        elif isinstance(source, (str, Path)) and not is_message_file(source):
            if Path(source).is_file():
                raise ConfigError(f"'{source}' is neither a run folder nor a file that ends in {', '.join(SUFFIXES)}")
            self.run = Run(source)
        if self.run is not None:
            self.run.config()
            self.name = str(self.run.path)
        elif isinstance(source, (str, Path)):
            self.name = str(source)
        elif is_mapping(source):
            raise ConfigError(
                f"the data are {short_repr(source)}; expected a list of rows (of a DatasetDict, one split)"
            )

    @cached_property
    def identity(self) -> str:
        """A digest of the content. A run continues only on the same data, but the location of the data does not matter."""
        if self.run is not None:
            file = self.run.path / "rollouts.jsonl"
            return f"{file.name}#{digest_files([file] if file.exists() else [])}"
        if isinstance(self._source, (str, Path)):
            return f"file#{digest_files([Path(self._source)])}"
        content = msgspec.json.encode(self.conversations, order="sorted")
        return f"rows#{hashlib.blake2b(content, digest_size=6).hexdigest()}"

    @cached_property
    def conversations(self) -> list[Conversation]:
        """The conversations that pass the filter, in the order of the data."""
        count = taken = 0
        conversations: list[Conversation] = []
        for value in self._values():
            count += 1
            reason = self._reason_to_drop(value)
            if reason is not None:
                self.dropped[reason] += 1
                continue
            if 0 <= self._config.max_examples <= taken:
                break
            taken += 1
            if isinstance(value, RolloutRecord):
                conversations += conversations_of(value)
            else:
                conversations.append(conversation_from_row(*value))
        if len(conversations) < 2:
            if not count:
                raise ConfigError(f"{self.name} has no conversations; SFT needs at least 2")
            reasons = "".join(f"; {number} {reason}" for reason, number in self.dropped.items())
            raise ConfigError(
                f"{len(conversations)} of {count} conversations in {self.name} are left{reasons}; SFT needs at least 2"
            )
        return conversations

    @property
    def example_keys(self) -> set[str]:
        """The keys of the training and validation examples."""
        return {conversation.example_key for conversation in self.conversations}

    def _values(self) -> Iterator[RolloutRecord | Row]:
        if self.run is not None:
            yield from self.run.finished()
        elif isinstance(self._source, (str, Path)):
            yield from read_rows(Path(self._source))
        else:
            assert not isinstance(self._source, Run)
            is_arrow = hasattr(self._source, "features")  # a `datasets.Dataset`
            for number, value in enumerate(self._source, start=1):
                if isinstance(value, RolloutRecord):
                    yield value
                else:
                    yield f"row {number}", arrow_row(value) if is_arrow and is_mapping(value) else value

    def _reason_to_drop(self, value: RolloutRecord | Row) -> str | None:
        min_reward = self._config.min_reward
        if isinstance(value, RolloutRecord):
            if value.scores is None:
                return "were not scored"
            reward = value.scores.reward
        else:
            reward = math.inf if min_reward is None else _reward(*value)
        if min_reward is not None and reward < min_reward:
            return f"have a reward below {min_reward}"
        if isinstance(value, RolloutRecord) and not value.completion:
            return "have no response"  # the prompt was too long for the model
        return None


def _reward(origin: str, row: Any) -> float:
    """Return the number in the column `reward`."""
    reward: object = row.get("reward") if is_mapping(row) else None
    if not isinstance(reward, (int, float)) or math.isnan(reward):
        raise ConfigError(
            f"{origin}: the reward is {short_repr(reward)}; min_reward needs a number in the column 'reward' of every row"
        )
    return reward


class TokenizedConversation(NamedTuple):
    """A conversation as token sequences."""

    conversation: Conversation
    sequences: list[TrainingSequence]
    """Sequences with trained tokens; no sequence is longer than the limit."""
    truncated: int
    """Number of tokens beyond the limit; they are not trained on."""


def tokenize(
    renderer: Renderer,
    conversations: Sequence[Conversation],
    config: SFTConfig,
    context: int,
    on_progress: OnProgress = ignore,
) -> list[TokenizedConversation]:
    """Return conversations as token sequences; sequences beyond the limit are truncated, or their conversation has no sequences.

    As in TRL, a sequence without a trained token is left out.
    """
    limit = sequence_limit(config, context)
    tokenized: list[TokenizedConversation] = []
    for conversation in counted(conversations, "conversations tokenized", on_progress):
        sequences = _sequences(renderer, conversation, config.loss_on)
        truncated_tokens = sum(max(0, len(sequence.ids) - limit) for sequence in sequences)
        if truncated_tokens and config.overlong == "drop":
            sequences = []
        trained = [sequence.truncated(limit) for sequence in sequences if any(sequence.mask[1:limit])]
        tokenized.append(TokenizedConversation(conversation, trained, truncated_tokens))
    return tokenized


def check_vocabulary(renderer: Renderer, tokenized: Sequence[TokenizedConversation], vocab_size: int) -> None:
    """Check that the model has an embedding of every token: a tokenizer may have tokens that were added without resizing the
    model.
    """
    for conversation, sequences, _ in tokenized:
        for sequence in sequences:
            if max(sequence.ids) < vocab_size:
                continue
            token = next(token for token in sequence.ids if token >= vocab_size)
            source = f"{conversation.origin}: " if conversation.origin else ""
            raise ConfigError(
                f"{source}the conversation has the token {token} ({renderer.decode([token])!r}), but the model has embeddings of "
                f"{vocab_size:,} tokens; expected ids from 0 to {vocab_size - 1}: resize the model with "
                "model.resize_token_embeddings(len(tokenizer)) and save it, or use the tokenizer that belongs to the model"
            )


def sequence_limit(config: SFTConfig, context: int) -> int:
    """Return the maximum number of tokens of a sequence."""
    limit = config.max_length or context
    # Beyond its context, a model with learned positions (GPT-2, OPT) raised an IndexError in the middle of the training, and a
    # model with rotary positions (Llama) was trained beyond its context without a message.
    if limit > context:
        raise ConfigError(
            f"max_length is {limit:,}, but the context of the model has {context:,} tokens; set max_length to at most "
            f"{context:,}, or leave it out"
        )
    return limit


def overlong_notices(tokenized: Sequence[TokenizedConversation], config: SFTConfig, context: int) -> list[str]:
    """Return sentences about the conversations beyond the limit; [] if there are none."""
    tokens = [conversation.truncated for conversation in tokenized if conversation.truncated]
    if not tokens:
        return []
    limit = sequence_limit(config, context)
    source = "the context of the model" if limit == context else "max_length"
    num_lost = sum(1 for conversation in tokenized if conversation.truncated and not conversation.sequences)
    subject = f"{len(tokens):,} of {len(tokenized):,} conversations are longer than {limit:,} tokens ({source})"
    if config.overlong == "drop":
        return [f"{subject}: they are left out"]
    lost = f", and {num_lost:,} of them not at all, because their responses begin later" if num_lost else ""
    advice = "--overlong drop (setting overlong) leaves these conversations out"
    return [f"{subject}: their last {sum(tokens):,} tokens are not trained on{lost}; {advice}"]


def reasoning_notices(renderer: Renderer, tokenized: Sequence[TokenizedConversation], config: SFTConfig) -> list[str]:
    """Return a sentence about the conversations whose `reasoning_content` the template leaves out, if there are any.

    Qwen3's prompt with `enable_thinking` = false closes the reasoning, so only the answer continues it.
    """
    num_left_out = 0
    for conversation, sequences, truncated in tokenized:
        positions = conversation.trained_messages(config.loss_on)
        reasonings = [
            str(message["reasoning_content"]).strip()
            for position, message in enumerate(conversation.messages)
            if message.get("reasoning_content") and (positions is None or position in positions)
        ]
        if not reasonings or truncated:
            continue
        texts = [renderer.decode(sequence.ids) for sequence in sequences]
        if not all(any(reasoning in text for text in texts) for reasoning in reasonings):
            num_left_out += 1
    if not num_left_out:
        return []
    return [
        f"{num_left_out:,} of {len(tokenized):,} conversations have a reasoning_content that the chat template leaves out with "
        "these settings: it is not trained on. To train on it, change --template-args (setting template_args) or --chat-template "
        "(setting chat_template)"
    ]


def check_conversations(renderer: Renderer, conversations: Sequence[Conversation], config: SFTConfig) -> None:
    """Raise a `ConfigError` if the chat template rejects conversations, before a run folder is made.

    Templates reject sequences of roles, so the first conversation of each sequence is rendered.
    """
    checked: set[tuple[object, ...]] = set()
    for conversation in conversations:
        roles = [(message["role"], bool(message.get("tool_calls"))) for message in conversation.messages]
        kind = (conversation.is_text, bool(conversation.tools), *roles)
        if kind not in checked and len(checked) < MAX_CHECKED:
            checked.add(kind)
            _sequences(renderer, conversation, config.loss_on)


def _sequences(renderer: Renderer, conversation: Conversation, loss_on: str) -> list[TrainingSequence]:
    try:
        return sequences_from_conversation(renderer, conversation, conversation.trained_messages(loss_on))
    except ConfigError as error:
        source = f"{conversation.origin}: " if conversation.origin else ""
        raise ConfigError(f"{source}{error}") from error


def split(
    tokenized: Sequence[TokenizedConversation], config: SFTConfig
) -> tuple[list[list[TrainingSequence]], list[TrainingSequence]]:
    """Split conversations into training and validation data.

    All conversations of an example are in the same part; if there is only one example, its conversations are split.

    Returns:
        The sequences of each training conversation, and all validation sequences.
    """
    trainable = [conversation for conversation in tokenized if conversation.sequences]
    if len(trainable) < 2:
        raise ConfigError(
            f"{len(trainable)} of {len(tokenized)} conversations have tokens to train on within max_length; SFT needs at least 2"
        )
    by_example: dict[str, list[list[TrainingSequence]]] = {}
    for conversation, sequences, _ in trainable:
        by_example.setdefault(conversation.example_key, []).append(sequences)
    groups = list(by_example.values())
    if len(groups) == 1:
        groups = [[sequences] for _, sequences, _ in trainable]
    # By example, not by conversation: otherwise the validation loss would measure memorized examples.
    random.Random(config.seed).shuffle(groups)
    held_out = round(len(groups) * config.validation_fraction)
    held_out = min(max(1, held_out), len(groups) - 1)  # at least one group on each side
    validation = list(chain.from_iterable(chain.from_iterable(groups[:held_out])))
    training = list(chain.from_iterable(groups[held_out:]))
    return training, validation
