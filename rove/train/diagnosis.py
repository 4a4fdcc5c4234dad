"""Find out why training does not progress, from the environment's rollouts, the losses of SFT, and the metrics of RL.

Each function returns findings, the most likely cause first, or an empty list if it finds no problem.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, compress, islice

import msgspec

from rove.core.findings import Finding, registry
from rove.rendering.renderer import Renderer
from rove.runs.metrics import interval_of, zero_advantage_share
from rove.runs.run import Run
from rove.statistics.compare import Difference
from rove.statistics.format import interval, signed
from rove.train.alerts import window_means
from rove.train.drift import measurements_of, unrewarded_growth
from rove.train.predictability import merged_symbols, prompts_are_related
from rove.train.sequences import sequences_of
from rove.train.teacher_data import CERTAIN_NATS, TokenClass, entropy_of, good_rollouts

History = Sequence[Mapping[str, float]]

SAMPLED_REWARD = "eval/sampled/reward/mean"
"""Metric of the held-out evaluation in every recipe of `rove train`."""
MIN_HIDDEN_SHARE = 0.1
"""Minimum value of `hidden_share` that indicates a hidden state."""
GUESS_SHARE = 0.93
"""A loss above this share of the entropy of token frequencies means that the model guesses."""
MEMORIZED_SHARE = 0.75
"""A training loss below this share of the held-out loss means memorization."""
SATURATED_SHARE, SATURATED_EQUAL_SHARE = 0.96, 0.8
"""Little is left to learn if RL begins with a held-out reward above the first share of the range of rewards, and with more than
the second share of zero-advantage groups. The recipe's SFT ends at a share of 0.9 or a little more, and RL then still removed
two thirds of the errors in Roman numerals (0.92 of the range), so the threshold must be higher."""
WINDOW = 5
"""Number of consecutive steps of RL whose rewards are averaged."""
MIN_GROUPS = 32
"""Minimum number of groups that show how many have zero advantage."""
MAX_REWARD_DROP = 0.2
"""A fall of the reward since its best window by more than this share of the range of rewards means a collapse."""
MAX_HELD_OUT_GAP = 0.4
"""Training rewards that exceed held-out rewards by more than this share of the range of rewards mean memorization."""
MAX_NO_GAIN_GAP = 0.2
"""RL without a gain whose training rewards exceed held-out rewards by more than this share of the range of rewards: memorization
may be the reason."""
SAME_REWARD = 0.05
"""A difference of two mean rewards up to this share of the range of rewards is noise."""
LEARNED_SHARE = 0.2
"""A model has learned a part of the task if its reward has risen by this share of the difference between the weakest and the
best policy."""
LEARNED_MEASUREMENTS = 3
"""Number of consecutive measurements whose mean must have risen by that share."""
MAX_SHOWN = 8
"""Maximum number of tokens listed in a finding."""
MIN_EQUAL_SHARE, SUCCESS_SHARE = 1 - 1 / 32, 0.93
"""With a share of zero-advantage groups above `MIN_EQUAL_SHARE`, RL has nothing to learn from. That is no problem if the reward
is above `SUCCESS_SHARE` of the range of rewards."""
MIN_STUCK_EQUAL_SHARE = 0.5
"""RL makes no progress if its reward is no better than the weakest policy's and more than this share of the groups has zero
advantage."""
LATE_FALL = 0.1
"""Share by which the validation loss must fall in the second half of SFT to advise more steps."""
EASIER = "easier examples, or a larger model"
"""Advice if SFT no longer makes progress."""
RECALL = 'if replies repeat a part of the prompt, model.arch = "lfm2" and model.init = "recall"'
"""Further advice: such a model can find and copy symbols of the prompt (docs/decisions/recall_layers.md)."""
MAX_TEACHER_ROLLOUTS = 4000
"""Maximum number of the teacher's rollouts that are searched for repeated examples and for relations of prompts to responses."""
MAX_DISTINCT_SHARE = 0.5
"""If the share of distinct examples is below this value, a diagnosis of memorization mentions that examples repeat."""
MAX_UNSEEN_SHARE = 0.5
"""If the share of held-out answers that are not in the training data is above this value, a diagnosis of memorization mentions
it."""
STUCK_AFTER = 0.1
"""After this share of the SFT steps, a reward at the level of the weakest policy means that SFT is stuck."""
PLATEAU_STEPS, PLATEAU_MEASUREMENTS = 150, 5
"""SFT may be on a plateau after this number of steps, if so many measurements in a row show it."""
PLATEAU_SPREAD, PLATEAU_LOSS = 0.1, 0.9
"""On a plateau, the rewards differ by at most the first share of the difference between the weakest and the best policy, and the
validation loss does not fall below the second share of its first value."""
UNLEARNED_SHARE = 0.9
"""A loss above this share of the entropy of token frequencies means that the model has not even learned the format."""
SUDDEN_STEPS = 15
"""If the reward falls within this many steps, the cause is updates that are too large."""
MAX_ENTROPY_GROWTH, MIN_ENTROPY_RISE = 1.25, 0.05
"""RL that raises the entropy of the responses by more than this factor, and by more than so many nats, makes them more random. In
32 of 33 runs, the entropy of the later steps was below that of the first ones; the other run gained nothing."""
FEW_ADVANTAGES = 0.7
"""Share of zero-advantage groups above which RL that has not raised the reward had few groups to learn from."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an environment that are known before training."""

    weakest: float
    """Mean reward of the weakest scripted policy or, if there is only one policy, of the pretrained model."""
    start_name: str = "the weakest policy"
    """Name of the policy whose reward is `weakest`."""
    lowest: float | None = None
    """Lower end of the range of rewards. Default: `weakest`."""
    best: float
    """Mean reward of the best scripted policy."""
    highest: float
    """Highest reward of a single rollout."""
    hidden: float | None = None
    """See `hidden_share`."""
    merged: list[str] = []
    """See `merged_symbols`."""
    is_related: bool | None = None
    """See `prompts_are_related`."""
    token_entropy: float | None = None
    """Entropy of the frequencies of the teacher's tokens, in nats: the loss of a model that knows only these frequencies."""
    examples: tuple[int, int] | None = None
    """Number of examples in the teacher's first rollouts, and the number of distinct ones by prompt, answer, and info."""
    unseen: tuple[int, int] | None = None
    """See `unseen_answers`."""

    @property
    def range_of_rewards(self) -> tuple[float, float]:
        """The lower and the upper end of the range of rewards."""
        return self.weakest if self.lowest is None else self.lowest, self.highest

    def is_like_best(self, reward: float) -> bool:
        """Return whether a mean reward is near that of the best policy, if that policy is clearly better than the weakest."""
        lowest, highest = self.range_of_rewards
        return reward >= self.best - SAME_REWARD * (highest - lowest) > self.weakest

    def has_learned(self, history: History) -> bool:
        """Return whether the sampled reward of a run is clearly above the weakest policy's reward, for a few measurements in a
        row: the highest of many measurements is a lucky one.
        """
        rewards = _sampled_rewards(history)
        if not rewards:
            return False
        means = window_means(rewards, min(len(rewards), LEARNED_MEASUREMENTS))
        return max(means) > self.weakest + LEARNED_SHARE * (self.best - self.weakest)


def with_teacher_data(task: Task, renderer: Renderer, run: Run, min_reward: float | None) -> Task:
    """Return the task, completed with facts about the tokenizer and the relations of prompts to responses from the teacher's
    rollouts.
    """
    records = list(islice(good_rollouts(run, min_reward), MAX_TEACHER_ROLLOUTS))
    sequences = sequences_of(renderer, records)
    examples = {
        msgspec.json.encode((record.prompt, record.answer, record.info), order="deterministic") for record in records
    }
    tokens: set[int] = set()
    sampled: Counter[int] = Counter()
    for sequence in sequences:
        tokens.update(sequence.ids)
        sampled.update(compress(sequence.ids, sequence.mask))
    return msgspec.structs.replace(
        task,
        merged=merged_symbols(renderer.decode([token]) for token in tokens),
        is_related=prompts_are_related(sequences),
        token_entropy=entropy_of(sampled) if sampled else None,
        examples=(len(records), len(examples)),
    )


def is_stuck(history: History, total: int, task: Task) -> bool:
    """Return whether SFT is still at the reward of the weakest policy after a tenth of the maximum number of steps."""
    is_measured = any(SAMPLED_REWARD in row for row in history)
    return is_measured and len(history) >= STUCK_AFTER * total and not task.has_learned(history)


def is_on_plateau(history: History, task: Task) -> bool:
    """Return whether reward and validation loss of SFT have hardly improved for some measurements in a row, before the model has
    learned more than the weakest policy.
    """
    measured = [row for row in history if SAMPLED_REWARD in row and "validation_loss" in row][-PLATEAU_MEASUREMENTS:]
    if len(history) < PLATEAU_STEPS or len(measured) < PLATEAU_MEASUREMENTS or task.has_learned(history):
        return False
    rewards = [row[SAMPLED_REWARD] for row in measured]
    losses = [row["validation_loss"] for row in measured]
    span = task.best - task.weakest
    is_flat = span > 0 and max(rewards) - min(rewards) <= PLATEAU_SPREAD * span
    return is_flat and min(losses) >= PLATEAU_LOSS * losses[0]


def during_sft(history: History, task: Task) -> list[Finding]:
    """Return the causes of stuck SFT that the loss and the teacher's rollouts show."""
    # The loss of a single batch varies too much. A skipped step has none.
    losses = [row["loss"] for row in history if "loss" in row][-5:]
    loss = statistics.fmean(losses) if losses else 0.0
    if task.token_entropy is not None and loss > UNLEARNED_SHARE * task.token_entropy:
        text = f"the loss is {loss:.2f} nats; a model that knows only how frequent each token is has {task.token_entropy:.2f}"
        return [_learning_rate(text)]
    return _cause(f"After {len(history)} steps, the reward is that of {task.start_name}", task)


def after_sft(
    history: History, classes: Sequence[TokenClass], task: Task, target: float | None = None
) -> list[Finding]:
    """Return the reasons why SFT learned little of the task or stopped progressing below its target; [] if it did neither.

    Args:
        classes: Losses by token class.
    """
    if target is not None and max(_sampled_rewards(history), default=-math.inf) >= target:
        return []  # perhaps at the second measurement, which is too early for `has_learned`
    unsure = [token_class for token_class in classes if not token_class.is_format]
    fixed = [token_class for token_class in classes if token_class.is_format]
    # Tokens that never vary are learned in the first steps, unless the learning rate is wrong.
    if fixed and _mean(fixed, "loss") > 3 * max(CERTAIN_NATS, _mean(fixed, "entropy")):
        return [_learning_rate(f"tokens that never vary have a loss of {_mean(fixed, 'loss'):.2f} nats")]
    # Token classes of a model that has learned the task may still be uncertain: several answers may be right.
    if task.has_learned(history):
        return _below_target(history, unsure, task, target)
    if not unsure or _mean(unsure, "loss") < GUESS_SHARE * _mean(unsure, "entropy"):
        return _unfinished(history, unsure, task)
    text = f"SFT learned only the format. {_largest_loss(unsure)}"
    causes = _cause(text, task)
    if causes:
        return causes
    if _has_memorized(unsure):
        training_loss = _mean(unsure, "training_loss")
        return [Finding("unpredictable", f"{text}; on the training data the loss is {training_loss:.2f}: it memorizes")]
    return [Finding("guessing", text)]


def _cause(text: str, task: Task) -> list[Finding]:
    """Return why the model guesses, if the teacher's rollouts show a cause; `text` describes how the guessing was noticed."""
    if task.hidden is not None and task.hidden > MIN_HIDDEN_SHARE:
        return [_hidden_state(f"{text}. ", task.hidden)]
    if task.merged:
        return [_merged_tokens(task.merged, f"{text}. ")]
    if task.is_related is False:
        text += ". No single token of the prompts is related to any token of the teacher's responses"
        return [Finding("unpredictable", text)]
    return []


def _unfinished(history: History, unsure: Sequence[TokenClass], task: Task) -> list[Finding]:
    """Return the reasons why a model that learned more than the format in SFT is no better than the weakest policy."""
    rewards = _sampled_rewards(history)
    if not rewards:
        return []
    text = (
        f"the highest reward in {len(history)} steps of SFT was {max(rewards):.3f}; {task.start_name} has {task.weakest:.3f}, "
        f"the best policy {task.best:.3f}. "
    )
    if _has_memorized(unsure):
        return [_memorized_data(text, unsure, task)]
    text += "The model has learned more than the format"
    remedy = ""
    if _is_flat(rewards, task):
        fall = _late_fall(history)
        if fall is None:
            text += ", but the reward did not rise in the second half of the steps"
            remedy = f"{EASIER}; {RECALL}"
        else:
            text += f". In the second half of the steps the validation loss still fell, from {fall[0]:.2f} to {fall[1]:.2f} nats"
    if unsure:
        text += f". {_largest_loss(unsure)}"
    return [Finding("unfinished", text, remedy=remedy)]


def _below_target(history: History, unsure: Sequence[TokenClass], task: Task, target: float | None) -> list[Finding]:
    """Return the reasons why the reward stopped rising below the target of SFT; [] if it was still rising."""
    rewards = _sampled_rewards(history)
    if target is None or not _is_flat(rewards, task):
        return []
    text = (
        f"the highest reward in {len(history)} steps of SFT was {max(rewards):.3f}, below its target of {target:.3f}, and it "
        "did not rise in the second half of the steps"
    )
    if _has_memorized(unsure):
        return [_memorized_data(f"{text}. ", unsure, task)]
    return [Finding("unfinished", text, remedy=f"a third of sft.learning_rate, {EASIER}")]


def _largest_loss(unsure: Sequence[TokenClass]) -> str:
    """Return the token class that contributes most to the loss."""
    worst = max(unsure, key=lambda token_class: token_class.count * token_class.loss)
    names = [repr(token) for token in worst.tokens[:MAX_SHOWN]]
    if len(worst.tokens) > MAX_SHOWN:
        names.append("…")
    tokens = ", ".join(names)
    if worst.loss > GUESS_SHARE * worst.entropy:
        text = f"After {worst.before!r} the model guesses among {tokens}:"
    else:
        text = f"After {worst.before!r}, where {tokens} are frequent,"
    return (
        f"{text} the loss is {worst.loss:.2f} nats, like a uniform choice among {math.exp(worst.loss):.1f} tokens; "
        f"frequencies alone give {worst.entropy:.2f} nats"
    )


def _sampled_rewards(history: History) -> list[float]:
    return [row[SAMPLED_REWARD] for row in history if SAMPLED_REWARD in row]


def _is_flat(rewards: Sequence[float], task: Task) -> bool:
    """Return whether the second half of the evaluations has no better rewards than the first half."""
    middle = len(rewards) // 2
    if middle == 0:
        return False
    gain = max(rewards[middle:]) - max(rewards[:middle])
    return gain <= SAME_REWARD * (task.best - task.weakest)


def _late_fall(history: History) -> tuple[float, float] | None:
    """Return the validation losses in the middle and at the end of SFT, if the loss fell by at least `LATE_FALL` in between, else
    None. The loss falls before the reward rises.
    """
    losses = [row["validation_loss"] for row in history if "validation_loss" in row]
    middle, last = len(losses) // 2, len(losses) - 1
    if middle >= last or losses[last] > (1 - LATE_FALL) * losses[middle]:
        return None
    return losses[middle], losses[last]


def _has_memorized(unsure: Sequence[TokenClass]) -> bool:
    return bool(unsure) and _mean(unsure, "training_loss") < MEMORIZED_SHARE * _mean(unsure, "loss")


def _memorized_data(text: str, unsure: Sequence[TokenClass], task: Task) -> Finding:
    training, held_out = _mean(unsure, "training_loss"), _mean(unsure, "loss")
    losses = f"{training:.2f} nats on training data and {held_out:.2f} on held-out data"
    return _memorized(f"{text}The loss is {losses}: the model has memorized the training data", task)


def _memorized(text: str, task: Task) -> Finding:
    remedy = ""
    count, distinct = task.examples or (0, 0)
    if distinct < MAX_DISTINCT_SHARE * count:
        text += f". Only {distinct:,} of the first {count:,} training examples differ"
        remedy = "add more different examples to the environment: a larger num_examples only repeats them"
    unseen, answers = task.unseen or (0, 0)
    if unseen > MAX_UNSEEN_SHARE * answers:
        text += f". {unseen:,} of the {answers:,} different held-out answers occur in no response that SFT trained on"
        remedy = "list the possible answers in the prompt, train on examples that cover them, or use a pretrained model"
    return Finding("memorized", text, remedy=remedy)


def _learning_rate(text: str) -> Finding:
    return Finding("learning_rate", f"SFT did not even learn the format: {text}")


def _mean(classes: Sequence[TokenClass], name: str) -> float:
    """Return the mean of the field `name` over all tokens of the classes."""
    total = sum(token_class.count for token_class in classes)
    return sum(token_class.count * getattr(token_class, name) for token_class in classes) / total


def _hidden_state(text: str, hidden: float) -> Finding:
    return Finding(
        "hidden_state",
        f"{text}For equal conversations, the scripted policy's responses agree within an example, but not "
        f"across examples (excess agreement {hidden:.0%}): it uses something that the model does not see",
    )


def _merged_tokens(merged: Sequence[str], text: str) -> Finding:
    tokens = ", ".join(map(repr, merged[:MAX_SHOWN]))
    return Finding("merged_tokens", f"{text}Tokens like {tokens} contain several symbols, which the model cannot see")


def before_training(
    rewards: Mapping[str, Sequence[float]], errors: Mapping[str, str], hidden: float | None, failed: int = 0
) -> list[Finding]:
    """Return the obstacles to learning that rollouts of the scripted policies show.

    Args:
        rewards: Policy → rewards of its scored rollouts.
        errors: Policy → its first error.
        failed: Number of failed rollouts.
    """
    scored = list(chain.from_iterable(rewards.values()))
    findings: list[Finding] = []
    if errors:
        name, error = next(iter(errors.items()))
        count = len(scored) + failed
        amount = f"{failed / count:.0%} of {count} rollouts fail" if scored else "every rollout fails"
        findings.append(Finding("reward_error", f"{amount}; the first, of {name}: {error}"))
        if not scored:
            return findings
    if len(set(scored)) == 1 and len(rewards) > 1:
        text = f"every rollout of {len(rewards)} scripted policies has the reward {scored[0]:g}"
        findings.append(Finding("no_spread", text, remedy="reward the better policy more than the weaker one"))
    if hidden is not None and hidden > MIN_HIDDEN_SHARE:
        findings.append(_hidden_state("", hidden))
    return findings


def during_rl(history: History, task: Task, steps: int | None = None) -> list[Finding]:
    """Return findings about problems of an RL run with this maximum number of steps."""
    lowest, highest = task.range_of_rewards
    if highest <= lowest:
        return []
    return [*_rl_obstacles(history, task, steps), *_drift(history, task)]


def _rl_obstacles(history: History, task: Task, steps: int | None) -> list[Finding]:
    """Return why RL makes no progress."""
    trained = [row for row in history if "reward/mean" in row]
    if len(trained) < WINDOW:
        return []
    rewards = [row["reward/mean"] for row in trained]
    means = window_means(rewards, WINDOW)
    held_out = _sampled_rewards(history)
    # Whether the first held-out reward is that of the initial weights.
    is_measured = bool(held_out) and history[0]["step"] == 0
    # An earlier held-out reward would lag behind the training reward.
    current = held_out[-1] if SAMPLED_REWARD in trained[-1] else None
    collapsed = _collapsed(history, rewards, means, held_out, is_measured, task)
    if collapsed is not None:
        return [collapsed]
    memorized = _memorized_in_rl(means[-1], current, task)
    if memorized is not None:
        return [memorized]
    # While the held-out reward rises, RL learns from few groups as well.
    num_groups = sum(row.get("groups/all", 0.0) for row in trained[-WINDOW:])
    if held_out_has_risen(history) or num_groups < MIN_GROUPS:
        return []
    saturated = _saturated(held_out[0], trained[:WINDOW], task) if is_measured else None
    if saturated is not None:
        return [saturated]
    return _no_spread(trained, means, task) or _no_progress(trained, means, task, steps)


def _collapsed(
    history: History,
    rewards: Sequence[float],
    means: Sequence[float],
    held_out: Sequence[float],
    is_measured: bool,
    task: Task,
) -> Finding | None:
    """Return a finding if the training reward and the held-out reward have fallen.

    Args:
        rewards: Training reward of each step.
        means: Mean rewards of each sequence of `WINDOW` consecutive steps.
        held_out: Held-out rewards; the first one is that of the initial weights if `is_measured`.
    """
    lowest, highest = task.range_of_rewards
    reward_range = highest - lowest
    start, reward = rewards[0], means[-1]
    # Includes the reward before the first update: if that update causes the fall, every window is low.
    best = max(start, *means)
    if best - reward <= MAX_REWARD_DROP * reward_range:
        return None
    # The examples of a step may be harder by chance, and the model may forget training examples that it had memorized: the
    # held-out reward must have fallen too. Without a measurement of the initial weights, `start` stands for it.
    if not held_out or not held_out_has_fallen(history):
        return None
    best_held_out = max(held_out) if is_measured else max(start, *held_out)
    if best_held_out - held_out[-1] <= MAX_REWARD_DROP / 2 * reward_range:
        return None
    near_best = [index for index, mean in enumerate(means) if mean >= best - SAME_REWARD * reward_range]
    steps = len(means) - 1 - near_best[-1] if near_best else len(rewards) - 1
    text = f"the mean reward fell from {best:.3f} to {reward:.3f} in {steps} steps"
    if steps <= SUDDEN_STEPS:
        text += ": the updates are too large"
        return Finding("learning_rate", text, remedy="lower rl.learning_rate to a third or a tenth")
    return Finding("collapse", text)


def _memorized_in_rl(reward: float, held_out: float | None, task: Task) -> Finding | None:
    """Return a finding if the training reward is far above the held-out reward; None if the latter was not measured."""
    lowest, highest = task.range_of_rewards
    if held_out is None or reward - held_out <= MAX_HELD_OUT_GAP * (highest - lowest):
        return None
    text = (
        f"the mean reward is {reward:.3f} on training examples, and {held_out:.3f} on held-out ones: the model has "
        "memorized the training examples, or held-out examples are harder"
    )
    return _memorized(text, task)


def held_out_has_risen(history: History) -> bool:
    """Return whether the newest held-out reward is above the 95% interval of the first one."""
    measured = [row for row in history if SAMPLED_REWARD in row]
    if len(measured) < 2:
        return False
    _, high = interval_of(measured[0], SAMPLED_REWARD)
    return measured[-1][SAMPLED_REWARD] > high


def held_out_has_fallen(history: History) -> bool:
    """Return whether the 95% interval of the newest held-out reward is below that of the highest one.

    The highest of many measurements is a lucky one, so a difference of their means proves little. For a single measurement,
    return True: the caller compares it with the first training reward.
    """
    measured = [row for row in history if SAMPLED_REWARD in row]
    if len(measured) < 2:
        return bool(measured)
    best = max(measured, key=lambda row: row[SAMPLED_REWARD])
    lowest_best, _ = interval_of(best, SAMPLED_REWARD)
    _, highest_newest = interval_of(measured[-1], SAMPLED_REWARD)
    return highest_newest < lowest_best


def _saturated(initial_reward: float, first_steps: History, task: Task) -> Finding | None:
    """Return whether little was left to learn when RL began.

    Training rewards do not show this: the model has seen the training examples in SFT.
    """
    lowest, highest = task.range_of_rewards
    first_equal = zero_advantage_share(*first_steps) or 0.0
    is_high = initial_reward - lowest > SATURATED_SHARE * (highest - lowest)
    if not is_high or first_equal <= SATURATED_EQUAL_SHARE:
        return None
    text = (
        f"RL began at a held-out reward of {initial_reward:.3f} of {highest:.3f}, and {first_equal:.0%} of the groups in its "
        "first steps have zero advantage: little is left to learn"
    )
    return Finding("saturated", text)


def after_rl(history: History, task: Task, gain: Difference) -> list[Finding]:
    """Return why RL has not raised the reward of the results table; [] if it may have, or if little was left to learn.

    Args:
        gain: The difference between the rewards of the results table before and after RL.
    """
    lowest, highest = task.range_of_rewards
    trained = [row for row in history if "reward/mean" in row]
    reward = max(gain.a, gain.b)
    is_high = reward - lowest > SATURATED_SHARE * (highest - lowest) or task.is_like_best(reward)
    # False without an interval. A wide interval shows nothing.
    is_flat = gain.high <= SAME_REWARD * (highest - lowest)
    if not trained or highest <= lowest or is_high or not is_flat or held_out_has_risen(history):
        return []
    text = (
        f"the reward of the results table changed by {signed(gain.difference)} {interval(msgspec.structs.asdict(gain))}, "
        f"from {gain.a:.3f} to {gain.b:.3f}; the highest reward is {highest:.3f}"
    )
    entropies = [row["entropy/all/mean"] for row in trained if "entropy/all/mean" in row]
    first = statistics.fmean(entropies[:WINDOW] or [0.0])
    later = statistics.fmean(entropies[WINDOW:] or [0.0])
    equal = zero_advantage_share(*trained) or 0.0
    # First, since the entropy is that of the groups with an advantage only.
    if equal > FEW_ADVANTAGES:
        text += f". {equal:.0%} of the groups had zero advantage, so that few rollouts changed the weights"
        return [
            Finding("no_gain", text, remedy="more rl.rollouts_per_example, or more rl.steps with a larger rl.patience")
        ]
    if later > max(MAX_ENTROPY_GROWTH * first, first + MIN_ENTROPY_RISE):
        text += f". The updates made the replies more random: their entropy rose from {first:.2f} to {later:.2f} nats"
        return [Finding("no_gain", text, remedy="lower rl.learning_rate to a third")]
    training_reward = statistics.fmean(row["reward/mean"] for row in trained[-WINDOW:])
    if training_reward - reward > MAX_NO_GAIN_GAP * (highest - lowest):
        text += (
            f". On training examples, the reward of the last steps is {training_reward:.3f}: the model has memorized many of "
            "them, or held-out examples are harder"
        )
        return [Finding("no_gain", text, remedy="more different training examples, or a larger or pretrained model")]
    return [Finding("no_gain", text)]


def _drift(history: History, task: Task) -> list[Finding]:
    """Return whether responses grow although the held-out reward does not rise."""
    lowest, highest = task.range_of_rewards
    growth = unrewarded_growth(measurements_of(history, SAMPLED_REWARD), highest - lowest)
    return [] if growth is None else [Finding("drift", growth.text)]


def is_refuted(kind: str, history: History, task: Task) -> bool:
    """Return whether the newest held-out measurement of an RL run contradicts a finding of `during_rl`."""
    held_out = _sampled_rewards(history)
    if not held_out:
        return False
    lowest, highest = task.range_of_rewards
    if kind == "no_progress":
        return task.has_learned(history)
    if kind in ("saturated", "no_spread"):
        return held_out_has_risen(history)
    if kind in ("collapse", "learning_rate"):
        return len(held_out) > 1 and held_out[-1] >= max(held_out[:-1]) - SAME_REWARD * (highest - lowest)
    if kind == "memorized":
        rewards = [row["reward/mean"] for row in history if "reward/mean" in row]
        return rewards[-1] - held_out[-1] < MAX_HELD_OUT_GAP / 2 * (highest - lowest)
    return kind == "drift" and not _drift(history, task)


def _no_spread(history: History, means: Sequence[float], task: Task) -> list[Finding]:
    """Return a finding if too many groups have equal rewards for RL to make progress.

    Args:
        means: Mean rewards of each sequence of `WINDOW` consecutive steps.
    """
    lowest, highest = task.range_of_rewards
    first_equal, equal = _zero_advantage_shares(history)
    text = f"{equal:.0%} of the groups have zero advantage at a mean reward of {means[-1]:.3f}"
    is_solved = means[-1] >= lowest + SUCCESS_SHARE * (highest - lowest)
    # Groups with the highest reward have no advantages either, which is no problem.
    if equal <= MIN_EQUAL_SHARE or is_solved:
        return []
    if first_equal > MIN_EQUAL_SHARE:
        return [Finding("no_spread", f"{text}: RL has nothing to learn from")]
    # In a game of luck, replies that do all that can be done become the same as well, below the highest reward.
    if task.is_like_best(means[-1]):
        return []
    if max(history[0]["reward/mean"], *means) - means[-1] > MAX_REWARD_DROP * (highest - lowest):
        return []  # a fall that the next evaluation may confirm
    # Steps without training have no entropy.
    entropies = [row["entropy/all/mean"] for row in history if "entropy/all/mean" in row] or [0.0]
    first, last = statistics.fmean(entropies[:WINDOW]), entropies[-1]
    if last < first / 2:
        text += f": the replies of a group have become the same (entropy {first:.2f} nats at first, {last:.2f} later)"
    else:
        text += ": the rewards of a group have become equal"
    return [Finding("no_spread", text, remedy=registry()["no_progress"].remedy)]


def _zero_advantage_shares(history: History) -> tuple[float, float]:
    """Return the shares of zero-advantage groups in the first and in the last steps."""
    return zero_advantage_share(*history[:WINDOW]) or 0.0, zero_advantage_share(*history[-WINDOW:]) or 0.0


def _no_progress(history: History, means: Sequence[float], task: Task, steps: int | None) -> list[Finding]:
    """Return a finding if RL is no better than the weakest policy, although it has had enough steps.

    Args:
        means: Mean rewards of each sequence of `WINDOW` consecutive steps.
    """
    first_equal, equal = _zero_advantage_shares(history)
    best = max([*means, *_sampled_rewards(history)])
    is_guess = task.lowest is None and best <= task.weakest
    is_late = len(history) >= max(2 * WINDOW, int(STUCK_AFTER * (steps or 0)))
    has_few_advantages = min(first_equal, equal) > MIN_STUCK_EQUAL_SHARE
    if not (is_guess and is_late and has_few_advantages):
        return []
    text = (
        f"after {len(history)} steps, the mean reward is {means[-1]:.3f}; {task.start_name} has {task.weakest:.3f}. {equal:.0%} "
        "of the groups have zero advantage"
    )
    return [Finding("no_progress", text)]
