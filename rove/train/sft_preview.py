"""Preview of SFT, without training: rendered conversations, counts, lengths, and the data that is left out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain, groupby

import msgspec

from rove.models.load import LoadedModel
from rove.rendering.renderer import Renderer
from rove.train.config import SFTConfig
from rove.train.learner import describe_lora
from rove.train.sequences import TrainingSequence
from rove.train.sft_data import SFTData, SFTSource, check_vocabulary, sequence_limit, split, tokenize

SHOWN = 3
"""Number of conversations that are rendered."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a rendered sequence."""

    text: str
    is_trained: bool


class RenderedConversation(msgspec.Struct, frozen=True):
    """A conversation as the model sees it."""

    origin: str
    """Origin of the conversation, such as "chats.jsonl, line 3"; "" for a rollout."""
    sequences: list[list[Piece]]
    """Token sequences of the conversation: more than one if the chat template rewrites earlier turns."""


class SFTPreview(msgspec.Struct, frozen=True):
    """Description of the data that a run of SFT would train on."""

    data: str
    """Name of the data."""
    training: int
    """Number of conversations to train on."""
    validation: int
    """Number of conversations that are held out."""
    sequences: int
    """Number of token sequences of all conversations."""
    tokens: int
    """Number of tokens in all sequences."""
    trained_tokens: int
    min_tokens: int
    """Number of tokens in the shortest sequence."""
    median_tokens: float
    max_tokens: int
    max_length: int
    """Maximum number of tokens in a sequence."""
    truncated_tokens: int
    """Number of tokens that are left out because they are beyond `max_length`."""
    dropped: dict[str, int]
    """Number of rows or conversations that are left out, by reason."""
    shown: list[RenderedConversation]
    """The first conversations."""
    adapter: str = ""
    """A text about the share of the model that the LoRA adapter would cover; "" without an adapter."""
    template: str = ""
    """A text about the chat template: tool calls, thinking, and the values of its variables."""


def preview_sft(config: SFTConfig, loaded: LoadedModel, data: SFTSource | SFTData) -> SFTPreview:
    """Return a description of what `train_sft` would train on with this data."""
    if not isinstance(data, SFTData):
        data = SFTData(data, config)
    tokenized = tokenize(loaded.renderer, data.conversations, config, loaded.context)
    check_vocabulary(loaded.renderer, tokenized, loaded.vocab_size)
    training, _ = split(tokenized, config)
    trainable = [conversation for conversation in tokenized if conversation.sequences]
    sequences = list(chain.from_iterable(conversation.sequences for conversation in trainable))
    lengths = [len(sequence.ids) for sequence in sequences]
    limit = sequence_limit(config, loaded.context)
    dropped = dict(data.dropped)
    truncated_tokens = sum(conversation.truncated for conversation in tokenized)
    num_left_out = len(tokenized) - len(trainable)
    if config.overlong == "drop" and truncated_tokens:
        num_overlong = sum(conversation.truncated > 0 for conversation in tokenized)
        dropped[f"are longer than {limit:,} tokens"] = num_overlong
        num_left_out -= num_overlong
        # These conversations are counted as dropped, so their tokens must not be counted as cut.
        truncated_tokens = 0
    if num_left_out:
        dropped["have no tokens to train on"] = num_left_out
    return SFTPreview(
        data=data.name,
        training=len(training),
        validation=len(trainable) - len(training),
        sequences=len(sequences),
        tokens=sum(lengths),
        trained_tokens=sum(sequence.num_trained for sequence in sequences),
        min_tokens=min(lengths),
        median_tokens=statistics.median(lengths),
        max_tokens=max(lengths),
        max_length=limit,
        truncated_tokens=truncated_tokens,
        dropped=dropped,
        shown=[
            RenderedConversation(conversation.origin, _rendered(loaded.renderer, sequences))
            for conversation, sequences, _ in trainable[:SHOWN]
        ],
        adapter=describe_lora(config, loaded),
        template=_describe_template(loaded.renderer),
    )


def _describe_template(renderer: Renderer) -> str:
    support = renderer.tool_support
    parts = [f"no tools: {support.problem}" if support.format is None else f"tool calls: {support.format.name}"]
    if "<think>" in renderer.template:
        parts.append("writes <think>")
    parts += [f"{name} = {value}" for name, value in renderer.settings.args.items()]
    return "; ".join(parts)


def _rendered(renderer: Renderer, sequences: Sequence[TrainingSequence]) -> list[list[Piece]]:
    rendered: list[list[Piece]] = []
    for sequence in sequences:
        runs = groupby(zip(sequence.ids, sequence.mask, strict=True), key=lambda token: token[1])
        pieces: list[Piece] = []
        for is_trained, run in runs:
            ids = [token for token, _ in run]
            pieces.append(Piece(renderer.decode(ids), is_trained))
        rendered.append(pieces)
    return rendered
