"""Analyze the teacher's rollouts after SFT: the losses of classes of tokens, and answers that the training data lacks."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import msgspec

from rove.core.messages import text_of
from rove.core.plain import JsonMapping, JsonObject
from rove.core.records import RolloutRecord
from rove.engine.client import EngineClient
from rove.models.load import load_model
from rove.runs.run import Run
from rove.train.sequences import TrainingSequence, sequences_of

Context = tuple[int, ...]
"""The tokens before a token."""
Score = Callable[[Sequence[int]], list[float]]
"""Token ids → log-probability of each token except the first."""

CERTAIN_NATS = 0.1
"""If the entropy of a class of tokens over all rollouts is below this value, its tokens count as format."""
MAX_TOKENS = 9
"""Maximum number of tokens that a class lists."""
MAX_CONVERSATIONS = 100
"""Maximum number of conversations on which the losses of token classes are measured."""
MAX_CONTEXT, MIN_CONTEXT_COUNT = 4, 50
"""Maximum number of tokens that name a token class, and minimum occurrences of a name of several tokens. A single token is not
enough in JSON, where names and values follow the same quotation mark."""
MIN_REPEATS = 2
"""Minimum average number of occurrences of a held-out answer for new answers to mean something."""


class TokenClass(msgspec.Struct, frozen=True):
    """The tokens that follow the same tokens in responses, such as the digits after `<answer>`."""

    before: str
    """The tokens after which the tokens of the class occur."""
    tokens: list[str]
    """The most frequent tokens of the class."""
    count: int
    """Number of occurrences of the class."""
    entropy: float
    """Entropy of the tokens' frequencies, in nats: the loss of a model that knows only the frequencies."""
    loss: float
    """Mean held-out loss of the model, in nats."""
    training_loss: float
    """Mean loss on training data, in nats."""

    @property
    def is_format(self) -> bool:
        """Whether the same token nearly always follows."""
        return self.entropy < CERTAIN_NATS


def unseen_answers(training: Run, held_out: Run, min_reward: float | None) -> tuple[int, int] | None:
    """Return the number of distinct held-out answers that occur in no training response, and the number of all distinct
    held-out answers.

    Return None if the numbers prove nothing: answers that hardly repeat, such as long numbers, are always new, and in some tasks
    responses do not contain the answers.

    Args:
        min_reward: Minimum reward of the rollouts that count as training data; None uses all.
    """
    texts: set[str] = set()
    trained_answers: set[str] = set()
    for record in good_rollouts(training, min_reward):
        trained_answers.add(record.answer)
        for message in record.completion:
            if message["role"] == "assistant":
                texts.update(_texts(message))
    held_out_answers = Counter(record.answer for record in held_out.finished() if record.answer)
    if not held_out_answers or held_out_answers.total() < MIN_REPEATS * len(held_out_answers):
        return None
    responses = "\n".join(texts)
    words = set(re.findall(r"\w+", responses))

    def is_missing(answer: str) -> bool:
        if answer.isalnum():  # such an answer counts only as a whole word: "1" is not in "12"
            return answer not in words
        escaped = json.dumps(answer)[1:-1]  # as in the arguments of tool calls
        return answer not in responses and escaped not in responses

    missing = set(filter(is_missing, {*held_out_answers, *trained_answers}))
    # The responses of this task do not contain the answers, so nothing follows from a missing one.
    if len(missing & trained_answers) > len(trained_answers) / 2:
        return None
    return len(missing & held_out_answers.keys()), len(held_out_answers)


def _texts(message: JsonMapping) -> Iterator[str]:
    """Yield the text of a message, and the arguments of its tool calls."""
    yield text_of(message)
    calls: list[JsonObject] = message.get("tool_calls") or []
    for call in calls:
        yield str(call["function"]["arguments"])


def measure_token_classes(model: Path, training: Run, held_out: Run, min_reward: float | None) -> list[TokenClass]:
    """Return a trained model's losses on the teacher's tokens by class.

    Args:
        min_reward: Minimum reward of the rollouts; None uses all.
    """
    loaded = load_model(str(model), "cpu")
    renderer = loaded.renderer
    trained_rollouts = islice(good_rollouts(training, min_reward), MAX_CONVERSATIONS)
    held_out_rollouts = islice(good_rollouts(held_out, min_reward), MAX_CONVERSATIONS)
    sequences = sequences_of(renderer, trained_rollouts), sequences_of(renderer, held_out_rollouts)
    engine = EngineClient.from_model(loaded).engine
    return token_classes(*sequences, engine.score, renderer.decode)


def good_rollouts(run: Run, min_reward: float | None) -> Iterator[RolloutRecord]:
    """Yield the scored rollouts with at least this reward."""
    for record in run.finished():
        if record.scores is not None and (min_reward is None or record.scores.reward >= min_reward):
            yield record


def token_classes(
    training: Sequence[TrainingSequence],
    held_out: Sequence[TrainingSequence],
    score: Score,
    decode: Callable[[Sequence[int]], str],
) -> list[TokenClass]:
    """Return the losses of the sampled tokens, grouped by the tokens before them; the most frequent class comes first.

    A class is named by up to `MAX_CONTEXT` tokens: the longest context that still occurs `MIN_CONTEXT_COUNT` times.
    """
    occurrences: Counter[Context] = Counter()
    # Both parts use the same contexts, so that their losses can be compared class by class.
    for sequence in chain(training, held_out):
        for position in _sampled(sequence):
            occurrences.update(_contexts(sequence, position))
    frequencies: dict[Context, Counter[int]] = defaultdict(Counter)
    training_losses: dict[Context, list[float]] = defaultdict(list)
    held_out_losses: dict[Context, list[float]] = defaultdict(list)
    for sequences, losses in ((training, training_losses), (held_out, held_out_losses)):
        for sequence in sequences:
            logprobs = score(sequence.ids)
            for position in _sampled(sequence):
                contexts = _contexts(sequence, position)
                frequent = [context for context in contexts if occurrences[context] >= MIN_CONTEXT_COUNT]
                context = frequent[0] if frequent else contexts[-1]
                frequencies[context][sequence.ids[position]] += 1
                losses[context].append(-logprobs[position - 1])
    classes: list[TokenClass] = []
    for context, counts in sorted(frequencies.items(), key=lambda item: -item[1].total()):
        if not training_losses[context] or not held_out_losses[context]:
            continue
        # Miller and Madow's correction: the tokens of a small sample vary less than those of all texts.
        correction = (len(counts) - 1) / (2 * counts.total())
        token_class = TokenClass(
            before=decode(context),
            tokens=[decode([token]) for token, _ in counts.most_common(MAX_TOKENS)],
            count=counts.total(),
            entropy=entropy_of(counts) + correction,
            loss=statistics.fmean(held_out_losses[context]),
            training_loss=statistics.fmean(training_losses[context]),
        )
        classes.append(token_class)
    return classes


def _sampled(sequence: TrainingSequence) -> list[int]:
    """Return the positions of the sampled tokens."""
    return [i for i in range(1, len(sequence.ids)) if sequence.mask[i]]


def _contexts(sequence: TrainingSequence, position: int) -> list[Context]:
    """Return the tokens of the response before a position, from the longest context to the shortest of one token."""
    start = position - 1
    while start > position - MAX_CONTEXT and sequence.mask[start] and sequence.mask[start - 1]:
        start -= 1
    return [tuple(sequence.ids[first:position]) for first in range(start, position)]


def entropy_of(counts: Counter[int]) -> float:
    """Return the entropy of frequencies, in nats."""
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values())
