"""Token sequences from rollouts, with a mask of the trained tokens.

`rove rl` and other trainers use the same function, `sequences_from_record`; docs/trainers.md states what is exact.

A rollout of two turns whose second prompt extends the first turn's tokens is one sequence. With first prompt [1, 2], sampled [7,
8], and second prompt [1, 2, 7, 8, 3], sampled [9]:

    ids   1  2  7  8  3  9
    mask  0  0  1  1  0  1

If the second prompt did not start with [1, 2, 7, 8], it would start a second sequence. A turn extends the longest
sequence that is a prefix of its prompt, so turns of other conversations in between (see `RLMEnv`, `AgentEnv`) do not
matter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rove.core.errors import ConfigError
from rove.core.records import RolloutRecord
from rove.rendering.renderer import Renderer
from rove.train.conversations import Conversation, conversations_of


class Origin(msgspec.Struct, frozen=True):
    """The rollout that a sequence comes from."""

    example_key: str
    rollout_index: int
    turns: list[tuple[int, int]]
    """(turn number, number of sampled tokens) in the order of the tokens."""
    rewards: list[float] = []
    """The reward of each of these turns, see `rewards_by_turn`; [] if the rollout failed."""


class TrainingSequence(msgspec.Struct, frozen=True):
    """One token sequence to train on; all lists have the length of `ids`."""

    ids: list[int]
    mask: list[bool]
    """True on tokens that the model sampled."""
    logprobs: list[float]
    """The sampler's log-probabilities where the mask is true, else 0."""
    advantages: list[float]
    """The advantage of each token; 0 where the mask is false."""
    temperature: float = 1.0
    weight: float = 1.0
    """Weight of the losses of the sequence's tokens, relative to a mean over all tokens of the step."""
    policy_version: int = 0
    """Oldest version of the weights that sampled a token of the sequence."""
    origin: Origin | None = None
    """The rollout that the sequence comes from; None if it does not come from a rollout."""
    version_spans: list[tuple[int, int]] = []
    """(version, number of sampled tokens) in order, if several versions sampled the tokens."""

    def truncated(self, length: int) -> TrainingSequence:
        """Return the sequence cut to its first `length` tokens, for SFT."""
        if len(self.ids) <= length:
            return self
        return _for_sft(self.ids[:length], self.mask[:length])

    @property
    def num_trained(self) -> int:
        """Number of trained tokens. The first token is never trained, because no token predicts it."""
        return sum(self.mask[1:])

    @property
    def versions(self) -> list[tuple[int, int]]:
        """Pairs (version of the weights, number of sampled tokens), in the order of the tokens."""
        return self.version_spans or [(self.policy_version, sum(self.mask))]


class _Branch(NamedTuple):
    """A sequence under construction."""

    ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    advantages: list[float]
    versions: list[tuple[int, int]]
    turns: list[tuple[int, int]]


def sequences_from_record(
    record: RolloutRecord, advantages: float | Sequence[float] = 1.0, renderer: Renderer | None = None
) -> list[TrainingSequence]:
    """Return the token sequences of a rollout, with masks, log-probabilities and the rewards of turns.

    Every sampled token is in exactly one sequence, and the mask is true on sampled tokens only. The ids are those that the
    model was shown and that it sampled, and the log-probabilities are those of the sampler: nothing is tokenized again. A
    sequence is one branch of the rollout, which is usually the whole rollout. A turn whose prompt does not extend the tokens
    of an earlier turn starts a new sequence; so do other conversations of an agent.

    A record without tokens, such as one from an endpoint that returns only text, needs a `renderer`. Its messages are then
    tokenized again with the model's chat template, as for SFT. Such sequences may differ from what the model sampled; their
    log-probabilities are 0, and `origin` is None.

    Example:
        >>> for sequence in rove.sequences_from_record(record, advantages=0.5):
        ...     train_on(sequence.ids, sequence.mask, sequence.logprobs, sequence.advantages)

    Args:
        record: A rollout. `origin.rewards` has the rewards of its turns.
        advantages: Advantage of each turn, or one for all turns.
        renderer: Renderer of the model, such as `rove.load_model(folder).renderer`, for records without tokens.

    Raises:
        ConfigError: The record has no tokens, and there is no renderer; or there is one, and an advantage per turn.
    """
    if renderer is not None and any(step.tokens is None for step in record.steps):
        return _retokenized(record, advantages, renderer)
    branches: list[_Branch] = []
    turn_advantages = advantages if isinstance(advantages, Sequence) else [advantages]
    if len(turn_advantages) == 1:
        turn_advantages = [turn_advantages[0]] * len(record.steps)
    for turn, (step, advantage) in enumerate(zip(record.steps, turn_advantages, strict=True)):
        tokens = step.tokens
        if tokens is None:
            raise ConfigError(
                "this rollout has no token record: RL needs a client that returns tokens (the embedded engine does)"
            )
        # Not always the last one: agents and RLMEnv interleave several conversations.
        index = _longest_extended([branch.ids for branch in branches], tokens.prompt_ids)
        if index is None:
            index = len(branches)
            branches.append(_Branch([], [], [], [], [], []))
        branch = branches[index]
        prompt_count = len(tokens.prompt_ids) - len(branch.ids)  # new tokens of the prompt
        sampled_count = len(tokens.completion_ids)
        branches[index] = _Branch(
            tokens.prompt_ids + tokens.completion_ids,
            branch.mask + [False] * prompt_count + [True] * sampled_count,
            branch.logprobs + [0.0] * prompt_count + tokens.logprobs,
            branch.advantages + [0.0] * prompt_count + [advantage] * sampled_count,
            _joined(branch.versions, tokens.versions),
            [*branch.turns, (turn, sampled_count)],
        )
    return [
        TrainingSequence(
            branch.ids,
            branch.mask,
            branch.logprobs,
            branch.advantages,
            # Greedy sampling counts as 1: probabilities at temperature 0 have no gradient.
            record.temperature or 1.0,
            policy_version=min(version for version, _ in branch.versions),
            origin=_origin(record, branch.turns),
            version_spans=branch.versions if len(branch.versions) > 1 else [],
        )
        for branch in branches
    ]


def rewards_by_turn(record: RolloutRecord) -> list[float]:
    """Return the reward of each turn of a scored rollout; the rollout's own reward is earned in its last turn."""
    rewards = [step.reward or 0.0 for step in record.steps]
    if rewards:
        rewards[-1] += record.reward or 0.0
    return rewards


def total_reward(record: RolloutRecord) -> float:
    """Return the reward of a scored rollout with the rewards of its turns; a rollout without turns has its own reward."""
    rewards = rewards_by_turn(record)
    return math.fsum(rewards) if rewards else record.reward or 0.0


def _origin(record: RolloutRecord, turns: list[tuple[int, int]]) -> Origin:
    if record.scores is None:  # a failure is never a reward of 0
        return Origin(record.example_key, record.rollout_index, turns)
    rewards = rewards_by_turn(record)
    return Origin(record.example_key, record.rollout_index, turns, [rewards[turn] for turn, _ in turns])


def sequences_of(renderer: Renderer, records: Iterable[RolloutRecord]) -> list[TrainingSequence]:
    """Return the token sequences of rollouts."""
    sequences: list[TrainingSequence] = []
    for record in records:
        for conversation in conversations_of(record):
            sequences += sequences_from_conversation(renderer, conversation, conversation.sampled_messages)
    return sequences


def sequences_from_conversation(
    renderer: Renderer, conversation: Conversation, sampled_messages: Collection[int] | None
) -> list[TrainingSequence]:
    """Return the sequences of a conversation for SFT; see `sequences_from_messages` and `sequence_from_text`."""
    if conversation.is_text:
        prompt, completion = (str(message["content"]) for message in conversation.messages)
        return [sequence_from_text(renderer, prompt, completion)]
    return sequences_from_messages(
        renderer, conversation.messages, conversation.tools, sampled_messages, conversation.template_kwargs
    )


def _retokenized(
    record: RolloutRecord, advantages: float | Sequence[float], renderer: Renderer
) -> list[TrainingSequence]:
    if isinstance(advantages, Sequence):
        raise ConfigError(
            f"advantages is a list of {len(advantages)} numbers, but the record has no tokens, so its turns cannot be told "
            "apart; expected one number for all turns"
        )
    return [
        msgspec.structs.replace(sequence, advantages=[advantages * trained for trained in sequence.advantages])
        for sequence in sequences_of(renderer, [record])
    ]


def _joined(spans: list[tuple[int, int]], next_spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans of a sequence followed by the spans of its next turn; adjacent spans of the same version are joined."""
    if not spans or spans[-1][0] != next_spans[0][0]:
        return spans + next_spans
    version, count = spans[-1]
    _, next_count = next_spans[0]
    return [*spans[:-1], (version, count + next_count), *next_spans[1:]]


def _longest_extended(branches: Sequence[list[int]], prompt_ids: list[int]) -> int | None:
    """Return the index of the longest branch that is a prefix of the prompt (of equal ones, the last); None if there is none."""
    longest: int | None = None
    for index, ids in enumerate(branches):
        length = len(ids)
        if length > len(prompt_ids) or (longest is not None and length < len(branches[longest])):
            continue
        # Most branches differ in the last token already, which is cheaper to compare than all of them.
        if ids[-1] == prompt_ids[length - 1] and ids == prompt_ids[:length]:
            longest = index
    return longest


def sequences_from_messages(
    renderer: Renderer,
    messages: Sequence[dict[str, object]],
    tools: Sequence[dict[str, object]] | None = None,
    sampled_messages: Collection[int] | None = None,
    template_kwargs: Mapping[str, object] | None = None,
) -> list[TrainingSequence]:
    """Return the sequences of a finished conversation with these `tools` for SFT, with advantage 1 on assistant tokens.

    See `Renderer.training_branches` for `sampled_messages` and `template_kwargs`.
    """
    branches = renderer.training_branches(messages, tools, sampled_messages, template_kwargs)
    return [_for_sft(ids, mask) for ids, mask in branches]


def sequence_from_text(renderer: Renderer, prompt: str, completion: str) -> TrainingSequence:
    """Return the sequence of a raw prompt and its completion, which gets an end-of-sequence token if it has none."""
    prompt_ids = renderer.text_ids(prompt)
    end = renderer.tokenizer.eos_token_id
    completion_ids = renderer.continuation_ids(prompt, completion)
    # Without it, the model would not learn to stop.
    if end is not None and completion_ids[-1:] != [end]:
        completion_ids = [*completion_ids, end]
    return _for_sft(prompt_ids + completion_ids, [False] * len(prompt_ids) + [True] * len(completion_ids))


def _for_sft(ids: list[int], mask: list[bool]) -> TrainingSequence:
    return TrainingSequence(ids, mask, [0.0] * len(ids), [float(trained) for trained in mask])
