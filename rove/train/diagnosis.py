"""Find out why training does not progress: from the environment's rollouts, the losses of SFT, and the metrics of RL.

Each function returns diagnoses, the most likely cause first; an empty list means that nothing looks wrong.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from rove.core.records import RolloutRecord
from rove.engine.client import EngineClient
from rove.models.load import load_model
from rove.runs.run import Run
from rove.train.sequences import TrainingSequence, sequences_from_messages
from rove.train.sft import conversations_of

History = Sequence[Mapping[str, float]]
Score = Callable[[Sequence[int]], list[float]]
"""Token ids → log-probability of each but the first."""

MIN_HIDDEN_SHARE = 0.1
"""Minimum value of `hidden_share` that means a hidden state."""
MIN_COMPARABLE_TURNS = 20
"""Minimum number of pairs of turns that `hidden_share` compares."""
MIN_STANDARD_ERRORS = 4.0
"""Standard errors by which agreement within examples must exceed that across examples."""
CERTAIN_NATS = 0.1
"""Tokens with less entropy than this, over all rollouts, are format."""
GUESS_SHARE = 0.93
"""Share of the entropy of a guess above which a loss means guessing."""
MEMORIZED_SHARE = 0.75
"""A training loss below this share of the held-out loss means memorization."""
SATURATED_SHARE = 0.97
"""Share of the range of rewards above which a reward is at its maximum."""
MAX_REWARD_DROP = 0.2
"""Fall of the reward since its best window, as a share of the range of rewards, that means a collapse."""
LEARNED_SHARE = 0.2
"""Share of the way from the weakest to the best policy from which a model has learned something of the task."""
MAX_SHOWN = 8
"""Maximum number of tokens that a text lists."""
MIN_EQUAL_SHARE = 1 - 1 / 32
"""Share of zero-advantage groups from which RL has nothing to learn from."""
MAX_CONVERSATIONS = 100
"""Conversations on which the losses of token classes are measured."""


class Diagnosis(msgspec.Struct, frozen=True):
    """A cause of missing progress."""

    kind: str
    """reward_error, no_spread, hidden_state, merged_tokens, learning_rate, guessing, unpredictable, saturated, or collapse."""
    text: str
    """What was measured, and what it means."""
    advice: str
    """What to change."""


class TokenClass(msgspec.Struct, frozen=True):
    """The tokens that follow the same token in responses, such as the digits after `<answer>`."""

    before: str
    """The token before."""
    tokens: list[str]
    """The most frequent tokens."""
    count: int
    """Occurrences."""
    entropy: float
    """Entropy of the tokens' frequencies, in nats: the loss of a model that knows only the frequencies."""
    loss: float
    """Mean held-out loss of the model, in nats."""
    training_loss: float
    """Mean loss on training data, in nats."""

    @property
    def is_format(self) -> bool:
        """Whether the token is nearly always the same."""
        return self.entropy < CERTAIN_NATS


def hidden_share(records: Iterable[RolloutRecord]) -> float | None:
    """Return how much a policy's responses depend on something that the conversation does not show (0 to 1).

    Compares rollouts with the same conversation before a turn. If they depend on something hidden in the example, two rollouts of
    one example agree more often than rollouts of two examples.

    Args:
        records: Rollouts of one policy, several per example.

    Returns:
        The excess of agreement within examples, as a share of the possible excess, or 0 where chance explains it; None if fewer
        than `MIN_COMPARABLE_TURNS` pairs can be compared.
    """
    turns: dict[bytes, dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for step in record.steps:
            turns[msgspec.json.encode(step.prompt)][record.example_key].append(msgspec.json.encode(step.completion))
    within_agree = within = across_agree = across = 0
    for by_example in turns.values():
        if len(by_example) < 2:
            continue
        counts = [Counter(responses) for responses in by_example.values()]
        whole = sum(counts, Counter[bytes]())
        agree, pairs = sum(map(_equal_pairs, counts)), sum(math.comb(count.total(), 2) for count in counts)
        within_agree, within = within_agree + agree, within + pairs
        across_agree += _equal_pairs(whole) - agree
        across += math.comb(whole.total(), 2) - pairs
    if within < MIN_COMPARABLE_TURNS or not across:
        return None
    inside, outside = within_agree / within, across_agree / across
    error = math.sqrt(max(inside * (1 - inside), 1 / within) / within)
    return (inside - outside) / (1 - outside) if inside - outside > MIN_STANDARD_ERRORS * error else 0.0


def _equal_pairs(counts: Counter[bytes]) -> int:
    return sum(math.comb(count, 2) for count in counts.values())


def merged_symbols(words: Iterable[str]) -> list[str]:
    """Return words that look like several symbols in one token, such as "RGB", "GBR", "BRG": many of one length over few letters.

    Args:
        words: Words of an environment's texts, or tokens of a vocabulary.
    """
    by_length: dict[int, set[str]] = defaultdict(set)
    for word in {word.strip() for word in words}:
        if len(word) > 1 and word.isalnum():
            by_length[len(word)].add(word)
    found: list[str] = []
    for some in by_length.values():
        letters = [letter for letter, _ in Counter("".join(some)).most_common()]
        for size in (2, 3, 4):
            inside = [word for word in some if set(word) <= set(letters[:size])]
            if len(inside) > 2 * size:
                found += [word for word in inside if word not in found]
    return sorted(found)


def measure_token_classes(
    model: Path, training: Run, held_out: Run, min_reward: float | None
) -> tuple[list[TokenClass], list[str]]:
    """Return a trained model's losses on the teacher's tokens by class, and tokens that contain several symbols.

    Args:
        model: Folder of the model.
        training: Rollouts that it was trained on.
        held_out: The teacher's rollouts of other examples.
        min_reward: Minimum reward of the rollouts; None uses all.
    """
    loaded = load_model(str(model), "cpu")
    renderer = loaded.renderer
    parts = [
        [
            sequence
            for record in islice(_good(run, min_reward), MAX_CONVERSATIONS)
            for one in conversations_of(record)
            for sequence in sequences_from_messages(renderer, one.messages, one.tools, one.sampled_messages)
        ]
        for run in (training, held_out)
    ]
    decoded = {token: renderer.decode([token]) for part in parts for one in part for token in one.ids}
    engine = EngineClient.from_model(loaded).engine
    classes = token_classes(parts[0], parts[1], engine.score, lambda token: decoded[token])
    return classes, merged_symbols(decoded.values())


def _good(run: Run, min_reward: float | None) -> Iterator[RolloutRecord]:
    """Yield the scored rollouts with at least this reward."""
    for record in run.finished():
        if record.scores is not None and (min_reward is None or record.scores.reward >= min_reward):
            yield record


def token_classes(
    training: Sequence[TrainingSequence],
    held_out: Sequence[TrainingSequence],
    score: Score,
    decode: Callable[[int], str],
) -> list[TokenClass]:
    """Return the losses of the sampled tokens by the token before them, the most frequent class first."""
    frequencies: dict[int, Counter[int]] = defaultdict(Counter)
    losses: tuple[dict[int, list[float]], dict[int, list[float]]] = (defaultdict(list), defaultdict(list))
    for part, sequences in enumerate((training, held_out)):
        for sequence in sequences:
            logprobs = score(sequence.ids)
            for position in range(1, len(sequence.ids)):
                if sequence.mask[position]:
                    before = sequence.ids[position - 1]
                    frequencies[before][sequence.ids[position]] += 1
                    losses[part][before].append(-logprobs[position - 1])
    return [
        TokenClass(
            before=decode(before),
            tokens=[decode(token) for token, _ in counts.most_common(MAX_SHOWN)],
            count=counts.total(),
            entropy=_entropy(counts),
            loss=statistics.fmean(losses[1][before]),
            training_loss=statistics.fmean(losses[0][before]),
        )
        for before, counts in sorted(frequencies.items(), key=lambda item: -item[1].total())
        if losses[0][before] and losses[1][before]
    ]


def _entropy(counts: Counter[int]) -> float:
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values())


def after_sft(
    history: History,
    classes: Sequence[TokenClass],
    weakest: float,
    best: float,
    hidden: float | None,
    merged: Sequence[str],
) -> list[Diagnosis]:
    """Return why SFT learned little of the task; nothing if it did.

    Args:
        history: Metrics of the SFT run.
        classes: Losses by token class.
        weakest, best: Mean rewards of the weakest and the best scripted policy.
        hidden: See `hidden_share`.
        merged: See `merged_symbols`.
    """
    rewards = [row["eval/sampled/reward/mean"] for row in history if "eval/sampled/reward/mean" in row]
    has_learned = bool(rewards) and max(rewards) > weakest + LEARNED_SHARE * (best - weakest)
    unsure = [one for one in classes if not one.is_format]
    fixed = [one for one in classes if one.is_format]
    if fixed and _mean(fixed, "loss") > 3 * max(CERTAIN_NATS, _mean(fixed, "entropy")):
        return [
            Diagnosis(
                "learning_rate",
                f"SFT did not even learn the format: tokens that never vary have a loss of {_mean(fixed, 'loss'):.2f} nats",
                "lower sft.learning_rate to a tenth, or train longer if the loss is still falling",
            )
        ]
    if not unsure or _mean(unsure, "loss") < GUESS_SHARE * _mean(unsure, "entropy") or has_learned:
        return []
    worst = max(unsure, key=lambda one: one.count * one.loss)
    seen = (
        f"SFT learned only the format. After '{worst.before}' the model guesses: {', '.join(map(repr, worst.tokens))} have a "
        f"loss of {worst.loss:.2f} nats, like a uniform choice among {math.exp(worst.loss):.1f}"
    )
    if hidden is not None and hidden > MIN_HIDDEN_SHARE:
        return [_hidden_state(seen, hidden)]
    if merged:
        return [_merged_tokens(merged, f"{seen}. ")]
    if _mean(unsure, "training_loss") < MEMORIZED_SHARE * _mean(unsure, "loss"):
        return [
            Diagnosis(
                "unpredictable",
                f"{seen}; on the training data the loss is {_mean(unsure, 'training_loss'):.2f}: it memorizes",
                "check that answers belong to their questions, and that the prompt determines the answer; then add data",
            )
        ]
    return [
        Diagnosis(
            "guessing", seen, 'train longer (sft.epochs), with more data, or with a larger model (model.size = "small")'
        )
    ]


def _mean(classes: Sequence[TokenClass], name: str) -> float:
    total = sum(one.count for one in classes)
    return sum(one.count * getattr(one, name) for one in classes) / total


def _hidden_state(seen: str, hidden: float) -> Diagnosis:
    return Diagnosis(
        "hidden_state",
        f"{seen}{'. ' if seen else ''}For equal conversations, the scripted policy's responses agree within an example, but not "
        f"across examples (excess agreement {hidden:.0%}): it uses something that the model does not see",
        "show everything that the policy uses in the prompt or in env_response",
    )


def _merged_tokens(merged: Sequence[str], seen: str) -> Diagnosis:
    return Diagnosis(
        "merged_tokens",
        f"{seen}Tokens like {', '.join(map(repr, merged[:MAX_SHOWN]))} contain several symbols, which the model cannot see",
        "write the symbols with spaces between them, or use a tokenizer that spells them",
    )


def before_training(
    rewards: Mapping[str, Sequence[float]], errors: Mapping[str, str], hidden: float | None
) -> list[Diagnosis]:
    """Return what prevents learning, as far as rollouts of the scripted policies show it.

    Args:
        rewards: Rewards of the scored rollouts by policy.
        errors: Policy → the first error, of policies with failed rollouts.
        hidden: See `hidden_share`, of the best policy.
    """
    scored = [reward for some in rewards.values() for reward in some]
    if errors and not scored:
        name, error = next(iter(errors.items()))
        return [Diagnosis("reward_error", f"every rollout fails; the first, of {name}: {error}", "fix the environment")]
    found: list[Diagnosis] = []
    if errors:
        name, error = next(iter(errors.items()))
        found.append(Diagnosis("reward_error", f"rollouts fail; the first, of {name}: {error}", "fix the environment"))
    if len(set(scored)) == 1 and len(rewards) > 1:
        text = f"every rollout of {len(rewards)} scripted policies has the reward {scored[0]:g}"
        found.append(Diagnosis("no_spread", text, "reward the better policy more than the weaker one"))
    if hidden is not None and hidden > MIN_HIDDEN_SHARE:
        found.append(_hidden_state("", hidden))
    return found


def during_rl(history: History, lowest: float, highest: float, window: int = 5) -> list[Diagnosis]:
    """Return what is wrong in an RL run.

    Args:
        history: Metrics of all steps so far.
        lowest, highest: Range of the rewards that rollouts of the scripted policies have.
        window: Steps that are averaged.
    """
    if len(history) < window or highest <= lowest:
        return []
    last = history[-window:]
    reward = statistics.fmean(row["reward/mean"] for row in last)
    means = [
        statistics.fmean(row["reward/mean"] for row in history[i : i + window])
        for i in range(len(history) - window + 1)
    ]
    equal = statistics.fmean(row["groups/zero_spread"] / max(1.0, row["groups/all"]) for row in last)
    place = (reward - lowest) / (highest - lowest)
    if max(means) - reward > MAX_REWARD_DROP * (highest - lowest):
        return [
            Diagnosis(
                "collapse",
                f"the mean reward fell from {max(means):.3f} to {reward:.3f}",
                "lower rl.learning_rate to a third or a tenth, and rl.loss.entropy_bonus if the entropy has risen",
            )
        ]
    if equal > MIN_EQUAL_SHARE and place > SATURATED_SHARE:
        text = f"the mean reward is {reward:.3f} of {highest:.3f}, and all groups have zero advantage: nothing is left to learn"
        return [Diagnosis("saturated", text, "stop here, or make the examples harder")]
    if equal > MIN_EQUAL_SHARE:
        text = f"all groups have zero advantage at a mean reward of {reward:.3f}: RL has nothing to learn from"
        return [Diagnosis("no_spread", text, "make examples easier or rewards finer, or run more SFT before RL")]
    return []
