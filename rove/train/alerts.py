"""Training alerts: findings about a run that goes wrong.

An alert is a function of the metrics of all steps so far (oldest first) and of limits; it returns a finding while something is
wrong, else None. Its name is the id of the finding. `new_alerts` also applies it to earlier steps, to report only new findings.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import msgspec

from rove.core.checks import Settings
from rove.core.findings import Finding
from rove.core.ranges import PositiveFloat, PositiveFraction, PositiveInt
from rove.runs.metrics import interval_of, zero_advantage_share
from rove.train.drift import Growth, Measurement, unrewarded_growth

History = Sequence[Mapping[str, float]]


MAX_PLAUSIBLE_LOSS = 20.0
"""Loss in nats per token above which a single step shows growth: a uniform guess among 250,000 tokens has a loss of 12.4."""
COLLAPSE_STEPS = 2
"""Number of consecutive steps with only zero-advantage groups that count as a collapse."""
MAX_CHANCE = 0.01
"""Events with at least this probability may be chance."""
REPEAT_AFTER_STEPS = 20
"""Number of steps before an alert is repeated; some values oscillate around their limit."""
MIN_ENTROPY_CHANGE = 0.5
"""Entropy changes up to this many nats per token cause no alert: a model that was almost certain may well explore more."""


SLOW_ROLLOUTS = "a few rollouts are much slower than the others"
SLOW_ROLLOUTS_REMEDY = "raise max_off_policy_steps, or end slow rollouts sooner in the environment"


class AlertLimits(Settings, frozen=True, kw_only=True):
    """The `[alerts]` table: limits of training alerts."""

    window: PositiveInt = 5
    """Number of steps over which values are averaged before the alerts compare them."""
    entropy_share: PositiveFraction = 0.1
    """Minimum entropy, as a fraction of the entropy in the first steps."""
    entropy_factor: PositiveFloat = 3.0
    """Maximum entropy, as a multiple of the entropy in the first steps; values up to 0.5 nats per token never cause an alert."""
    ratio: PositiveFloat = 0.1
    """Maximum difference between the mean importance ratio and 1."""
    mismatch_kl: PositiveFloat = 0.01
    """Maximum KL divergence between the sampler and the trainer, in nats per token."""
    length_factor: PositiveFloat = 2.0
    """Maximum completion length, as a multiple of the length in the first steps."""
    zero_advantage_groups: PositiveFraction = 0.8
    """Maximum fraction of zero-advantage groups."""
    format_drop: PositiveFloat = 0.1
    """Maximum decrease of a format score from its best value."""
    held_out_gain: PositiveFloat = 0.1
    """Maximum increase of the training reward since the evaluation with the best held-out reward."""
    held_out_measurements: PositiveInt = 3
    """Minimum number of evaluations without a new best held-out reward before `held_out_gain` applies."""
    loss_factor: PositiveFloat = 2.0
    """Maximum loss in SFT, as a multiple of the lowest loss so far; increases of up to 0.5 nats per token cause no alert."""
    grad_norm_factor: PositiveFloat = 10.0
    """Maximum gradient norm, as a multiple of the median of the previous steps."""
    idle: PositiveFraction = 0.8
    """Maximum fraction of the time that the trainer or the sampler may be idle in asynchronous training."""


def _values(history: History, name: str) -> list[float]:
    return [row[name] for row in history if name in row]


def _last(history: History, name: str, window: int) -> float | None:
    """Return the mean of the last `window` values; None if there are fewer values."""
    values = [row[name] for row in history[-4 * window :] if name in row][-window:]
    return statistics.fmean(values) if len(values) == window else None


def _first_and_last(history: History, name: str, window: int) -> tuple[float, float] | None:
    """Return the means of the first and the last `window` values; None if they overlap."""
    values = _values(history, name)
    if len(values) < 2 * window:
        return None
    return statistics.fmean(values[:window]), statistics.fmean(values[-window:])


def window_means(values: Sequence[float], window: int) -> list[float]:
    """Return the means of all windows of consecutive values."""
    return [statistics.fmean(values[i : i + window]) for i in range(len(values) - window + 1)]


def _rate(history: History) -> str:
    """Return the highest learning rate so far as text (less than the setting during warmup); "" if none was recorded."""
    rates = _values(history, "optim/lr")
    return f" (up to {max(rates):g} so far)" if rates else ""


def entropy_collapse(history: History, limits: AlertLimits) -> Finding | None:
    """Check for low entropy, except in SFT, where low entropy is wanted."""
    if "reward/mean" not in history[-1]:
        return None
    means = _first_and_last(history, "entropy/all/mean", limits.window)
    if means is None:
        return None
    first, last = means
    if last >= limits.entropy_share * first or _held_out_is_well(history):
        return None
    return Finding("entropy_collapse", f"{last:.3g} nats per token, {first:.3g} in the first steps")


def entropy_growth(history: History, limits: AlertLimits) -> Finding | None:
    """Compare the entropy of the last steps with that of the first steps."""
    means = _first_and_last(history, "entropy/all/mean", limits.window)
    if means is None:
        return None
    first, last = means
    if last <= max(MIN_ENTROPY_CHANGE, limits.entropy_factor * first):
        return None
    return Finding("entropy_growth", f"{last:.3g} nats per token, {first:.3g} in the first steps")


def ratio_drift(history: History, limits: AlertLimits) -> Finding | None:
    """Compare the mean importance ratio with 1."""
    ratio = _last(history, "ratio/mean", limits.window)
    if ratio is None or abs(ratio - 1) <= limits.ratio:
        return None
    text = f"the trainer gives sampled tokens {ratio:.3g} times the sampler's probability, expected about 1"
    return Finding("ratio_drift", text)


def logprob_mismatch(history: History, limits: AlertLimits) -> Finding | None:
    """Compare the log-probabilities of the sampler and the trainer."""
    # A difference without older weights is an error in one of both: the gradient would be of another policy.
    kl = _last(history, "mismatch_kl/all/mean", limits.window)
    if kl is None or kl <= limits.mismatch_kl:
        return None
    worst = max(_values(history[-limits.window :], "logprob_diff/max"), default=0.0)
    text = f"sampler and trainer are {kl:.3g} nats per token apart, at most {worst:.3g} for one token"
    age = max(_values(history[-limits.window :], "off_policy/max"), default=0.0)
    if age <= 1:
        return Finding("logprob_mismatch", f"{text}; expected about 0")
    return Finding(
        "logprob_mismatch",
        f"{text}, with weights up to {age:g} versions old",
        remedy=f"lower max_off_policy_steps, or the learning rate{_rate(history)}",
        cause="the weights of the sampler are too old",
    )


def length_growth(history: History, limits: AlertLimits) -> Finding | None:
    """Compare the lengths of the last steps with those of the first steps."""
    means = _first_and_last(history, "length/mean", limits.window)
    if means is None:
        return None
    first, last = means
    if last <= limits.length_factor * first:
        return None
    text = f"{last:.0f} tokens per rollout, {first:.0f} in the first steps"
    growth = _unrewarded_growth(history, limits.window)
    if growth is None:
        return Finding("length_growth", text)
    rewards = f"{growth.last_short.reward:.3g} at step {growth.last_short.step} and {growth.last.reward:.3g} now"
    return Finding(
        "length_growth",
        f"{text}, and the reward has not risen with them: {rewards}",
        remedy="set loss.kl_penalty = 0.03 and loss.entropy_bonus = 0, or let a reward function read the whole response",
        cause="no reward function reads the additional tokens",
    )


def _unrewarded_growth(history: History, window: int) -> Growth | None:
    """Return the growth of responses since the reward last rose, from means over `window` steps."""
    rows = [row for row in history if "length/mean" in row and "reward/mean" in row]
    measurements: list[Measurement] = []
    for end in range(window, len(rows) + 1, window):
        steps = rows[end - window : end]
        reward = statistics.fmean(row["reward/mean"] for row in steps)
        length = statistics.fmean(row["length/mean"] for row in steps)
        measurements.append(Measurement(int(steps[-1]["step"]), reward, length))
    rewards = [measurement.reward for measurement in measurements]
    return unrewarded_growth(measurements, max(rewards, default=0.0) - min(rewards, default=0.0))


def zero_advantage_groups(history: History, limits: AlertLimits) -> Finding | None:
    """Check for too many zero-advantage groups, unless a policy collapse explains them."""
    rows = [row for row in history[-4 * limits.window :] if "groups/all" in row][-limits.window :]
    # The share of all groups, not a mean of the steps' shares: steps may differ in their number of groups.
    share = zero_advantage_share(*rows) if len(rows) == limits.window else None
    if share is None or share <= limits.zero_advantage_groups or _reward_crash(history) is not None:
        return None
    # The other groups are enough while the held-out reward rises: it rose from 0.945 to 0.995 with 18% of the groups.
    if _held_out_is_well(history):
        return None
    text = f"{share:.0%} of the groups have equal rewards and no effect"
    rewards = _first_and_last(history, "reward/mean", limits.window)
    entropies = _values(history, "entropy/all/mean")
    if rewards is not None and rewards[1] < rewards[0]:
        return Finding(
            "zero_advantage_groups",
            f"{text}, and the reward has fallen",
            remedy=f"lower the learning rate{_rate(history)} first; otherwise use easier examples",
            cause="the learning rate is too high",
        )
    if entropies and entropies[-1] < limits.entropy_share * entropies[0]:
        return Finding(
            "zero_advantage_groups",
            f"{text}, and the model has become certain of its answers",
            remedy=f"lower the learning rate{_rate(history)} first, unless they earn the most; then use harder examples",
            cause="the model explores too little, or the examples are too easy by now",
        )
    return Finding("zero_advantage_groups", text)


def policy_collapse(history: History, limits: AlertLimits) -> Finding | None:
    """Compare single steps, to find an update that was far too large."""
    text = _entropy_crash(history, limits) or _reward_crash(history)
    if text is None or _held_out_is_well(history, if_unknown=False):
        return None
    return Finding("policy_collapse", f"{text}; the learning rate{_rate(history)} is probably too high")


def _entropy_crash(history: History, limits: AlertLimits) -> str | None:
    values = _values(history, "entropy/all/mean")
    if not {"entropy/all/mean", "reward/mean"} <= history[-1].keys() or len(values) < 2:
        return None
    previous, last = values[-2:]
    if last >= limits.entropy_share * previous or previous - last <= MIN_ENTROPY_CHANGE:
        return None
    return f"within one trained step entropy fell from {previous:.3g} to {last:.3g} nats per token"


def _reward_crash(history: History) -> str | None:
    rows = [row for row in history if "reward/mean" in row and row.get("groups/all")]
    is_zero_advantage = [zero_advantage_share(row) == 1 for row in rows]
    if len(rows) <= COLLAPSE_STEPS or not all(is_zero_advantage[-COLLAPSE_STEPS:]) or all(is_zero_advantage):
        return None
    # The collapse begins after the last step with an advantage.
    start = len(rows) - is_zero_advantage[::-1].index(False)
    usual, collapsed = rows[:start], rows[start:]
    lowest_usual = min(row["reward/mean"] for row in usual)
    # A policy that has solved the examples has no advantages either, but its reward is high.
    if max(row["reward/mean"] for row in collapsed) >= lowest_usual:
        return None
    if _chance_of_zero_advantage(usual, rows[-COLLAPSE_STEPS:]) >= MAX_CHANCE:
        return None
    return (
        f"since step {collapsed[0]['step']:g} all groups have zero advantage, and the reward is "
        f"{collapsed[-1]['reward/mean']:.3g}; it was {lowest_usual:.3g} or more before"
    )


def _chance_of_zero_advantage(usual: History, steps: History) -> float:
    """Return the probability that all groups of `steps` have zero advantage, at the rate of the usual steps.

    The rate is estimated by Laplace's rule of succession, for runs with few groups.
    """
    zero_advantage = sum(row["groups/zero_spread"] for row in usual)
    groups = sum(row["groups/all"] for row in usual)
    rate = (zero_advantage + 1) / (groups + 2)
    return rate ** sum(row["groups/all"] for row in steps)


def loss_growth(history: History, limits: AlertLimits) -> Finding | None:
    """Check the loss in SFT; in RL, the loss does not measure progress."""
    if "loss" not in history[-1] or "reward/mean" in history[-1]:
        return None
    values = _values(history, "loss")
    steps = 1
    if values[-1] <= MAX_PLAUSIBLE_LOSS:
        # The loss of a single batch varies: only the mean over some steps shows a trend.
        steps = limits.window
        values = window_means(values, steps)
        if len(values) < 2:
            return None
    last, best = values[-1], min(values)
    if last <= max(limits.loss_factor * best, best + MIN_ENTROPY_CHANGE):
        return None
    over = f" over {steps} steps" if steps > 1 else ""
    return Finding(
        "loss_growth",
        f"{last:,.4g} nats per token{over}, and it was {best:.3g} before",
        remedy=f"start again in a new folder (run_dir) with a tenth of learning_rate{_rate(history)}, or more warmup_steps",
    )


def format_drift(history: History, limits: AlertLimits) -> Finding | None:
    """Compare scores with "format" in their names with their best values."""
    names = set(chain.from_iterable(history[-limits.window :]))
    for name in sorted(filter(_is_format_score, names)):
        values = _values(history, name)
        means = window_means(values, limits.window)
        if not means:
            continue
        last, best = means[-1], max(means)
        if last < best - limits.format_drop:
            return Finding("format_drift", f"{name} is {last:.3g}, and was {best:.3g}")
    return None


def _is_format_score(name: str) -> bool:
    return name.startswith(("reward/", "metrics/")) and "format" in name.rsplit("/", 1)[-1]


def _is_held_out_reward(name: str) -> bool:
    return name.startswith("eval/") and name.endswith("/reward/mean")


def _held_out_is_well(history: History, if_unknown: bool = True) -> bool:
    """Return whether a held-out reward has risen since the first measurement, and has not fallen since its best one.

    A measurement has not fallen if its 95% interval reaches that of the best.

    Args:
        if_unknown: Result if no held-out reward is known to do well, and one was measured only once.
    """
    is_unknown = False
    for name in filter(_is_held_out_reward, set(chain.from_iterable(history))):
        measured = [row for row in history if name in row]
        if len(measured) < 2:
            is_unknown = True
            continue
        first, newest = measured[0], measured[-1]
        best = max(measured, key=lambda row: row[name])
        lowest_best, _ = interval_of(best, name)
        _, highest_newest = interval_of(newest, name)
        if newest[name] > first[name] and highest_newest >= lowest_best:
            return True
    return is_unknown and if_unknown


def held_out_flat(history: History, limits: AlertLimits) -> Finding | None:
    """Compare the rewards on training examples with the rewards on held-out examples."""
    last = history[-1]
    for name in sorted(filter(_is_held_out_reward, last)):
        measured = [index for index, row in enumerate(history) if name in row]
        best = max(measured, key=lambda index: history[index][name])
        later_measurements = sum(index > best for index in measured)
        reward_at_best = _last(history[: best + 1], "reward/mean", min(limits.window, best + 1))
        reward = _last(history, "reward/mean", limits.window)
        if later_measurements < limits.held_out_measurements or reward_at_best is None or reward is None:
            continue
        # Rewards below the held-out one are no sign of memorized examples: the policy explores at a temperature above 1.
        if reward - reward_at_best > limits.held_out_gain and reward > last[name]:
            text = (
                f"since step {history[best]['step']:g} the reward in training has risen from {reward_at_best:.3g} to "
                f"{reward:.3g}, {name} has not ({history[best][name]:.3g} then, {last[name]:.3g} now)"
            )
            return Finding("held_out_flat", text)
    return None


def grad_norm_spike(history: History, limits: AlertLimits) -> Finding | None:
    """Compare the last gradient norm with the median of the earlier gradient norms."""
    values = _values(history[-10 * limits.window :], "optim/grad_norm")
    if len(values) <= limits.window or "optim/grad_norm" not in history[-1]:
        return None
    # A median, because earlier spikes should not raise the limit.
    usual = statistics.median(values[:-1])
    if values[-1] <= limits.grad_norm_factor * usual:
        return None
    return Finding("grad_norm_spike", f"{values[-1]:.3g}, usually {usual:.3g}; it is clipped to max_grad_norm")


def trainer_idle(history: History, limits: AlertLimits) -> Finding | None:
    """Check whether the trainer of asynchronous training waits for rollouts."""
    idle = _last(history, "idle/trainer", limits.window)
    if idle is None or idle <= limits.idle:
        return None
    text = f"{idle:.0%} of the time the trainer waits for rollouts"
    # Without late groups, the trainer waits because sampling is slow in general.
    if not _last(history, "queue/late", limits.window):
        return Finding("trainer_idle", text)
    return Finding(
        "trainer_idle",
        f"{text}, in particular for slow ones that would be too old for a later step",
        remedy=SLOW_ROLLOUTS_REMEDY,
        cause=SLOW_ROLLOUTS,
    )


def sampler_idle(history: History, limits: AlertLimits) -> Finding | None:
    """Check whether slots for rollouts of asynchronous training are empty."""
    idle = _last(history, "idle/sampler", limits.window)
    if idle is None or idle <= limits.idle:
        return None
    text = f"{idle:.0%} of the slots for rollouts are empty"
    if (_last(history, "idle/trainer", limits.window) or 0.0) <= 1 - limits.idle:
        return Finding("sampler_idle", text)
    return Finding(
        "sampler_idle",
        f"{text}, because few more rollouts could be trained in time next to the slow ones that are running",
        remedy=SLOW_ROLLOUTS_REMEDY,
        cause=SLOW_ROLLOUTS,
    )


ALERTS: dict[str, Callable[[History, AlertLimits], Finding | None]] = {
    alert.__name__: alert
    for alert in (
        entropy_collapse,
        entropy_growth,
        ratio_drift,
        logprob_mismatch,
        length_growth,
        zero_advantage_groups,
        policy_collapse,
        loss_growth,
        format_drift,
        held_out_flat,
        grad_norm_spike,
        trainer_idle,
        sampler_idle,
    )
}


def new_alerts(history: History, limits: AlertLimits) -> list[Finding]:
    """Return the alerts after the last step, without alerts that one of the `REPEAT_AFTER_STEPS` steps before it already had."""
    if not history:
        return []
    alerts: list[Finding] = []
    # From the latest step back, since an alert that lasts was most likely there one step ago.
    earlier_ends = range(len(history) - 1, max(0, len(history) - 1 - REPEAT_AFTER_STEPS), -1)
    for alert in ALERTS.values():
        finding = alert(history, limits)
        if finding is not None and all(alert(history[:end], limits) is None for end in earlier_ends):
            alerts.append(msgspec.structs.replace(finding, step=int(history[-1]["step"])))
    return alerts
