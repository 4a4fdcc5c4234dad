"""What goes wrong in training, said in words.

Every alert is a function of the metrics of all steps so far, oldest first, and of limits: it gives a sentence when something is
wrong now, else None. Whether it was wrong before, the same function tells of the steps before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from rove.core.config import check_positive
from rove.core.errors import ConfigError

History = Sequence[Mapping[str, float]]


MAX_PLAUSIBLE_LOSS = 20.0
"""Nats per token that no model loses which has learnt anything: a guess among 250,000 tokens loses 12.4."""
COLLAPSE_STEPS = 2
"""Steps in a row without a living group, after ones that had some, that are no accident any more."""
MAX_CHANCE = 0.01
"""What is at least as likely as that may have happened by itself."""
REPEAT_AFTER_STEPS = 20
"""Steps that an alert is silent for before it is told again: some come and go around their limit."""
MIN_ENTROPY_CHANGE = 0.5
"""Nats per token up to which entropy may grow; a model that was almost certain may well explore more."""


class AlertLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[alerts]` table: from where on something is alerting."""

    window: int = 5
    """Steps that are averaged before anything is compared."""
    entropy_share: float = 0.1
    """Entropy below this share of what it was in the first steps."""
    entropy_factor: float = 3.0
    """Entropy above this times what it was in the first steps, and above 0.5 nats per token."""
    ratio: float = 0.1
    """Mean ratio to the sampler further than this from 1."""
    mismatch_kl: float = 0.01
    """Nats per token between sampler and trainer."""
    length_factor: float = 2.0
    """Completions longer than this times what they were in the first steps."""
    zero_advantage_groups: float = 0.8
    """More than this share of the groups has no spread."""
    format_drop: float = 0.1
    """A format score has fallen by more than this from its best."""
    held_out_gain: float = 0.1
    """The reward in training has risen by more than this since the held-out reward was last at its best …"""
    held_out_measurements: int = 3
    """… and that was at least so many measurements ago."""
    loss_factor: float = 2.0
    """SFT: a loss above this times the lowest so far, and more than 0.5 nats per token above it."""
    grad_norm_factor: float = 10.0
    """A gradient longer than this times the median of the steps before."""
    idle: float = 0.8
    """Where rollouts are played all the time: trainer, or sampler, idle for more than this share of it."""

    def check(self) -> None:
        """Refuse limits that make no sense.

        Raises:
            ConfigError: one is out of range.
        """
        try:
            check_positive(self, *self.__struct_fields__)
        except ConfigError as error:
            raise ConfigError(f"alerts: {error}") from None
        for name in ("entropy_share", "zero_advantage_groups", "idle"):
            if getattr(self, name) > 1:
                raise ConfigError(f"alerts: {name} is {getattr(self, name)}; expected a share, at most 1")


class Alert(msgspec.Struct, frozen=True):
    """Something that has started to go wrong."""

    step: int
    name: str
    text: str


def _values(history: History, name: str) -> list[float]:
    return [row[name] for row in history if name in row]


def _last(history: History, name: str, window: int) -> float | None:
    """Mean of the last `window` values; None when there are fewer."""
    values = [row[name] for row in history[-4 * window :] if name in row][-window:]
    return statistics.fmean(values) if len(values) == window else None


def _first_and_last(history: History, name: str, window: int) -> tuple[float, float] | None:
    """Means of the first and the last `window` values; None while they overlap."""
    values = _values(history, name)
    if len(values) < 2 * window:
        return None
    return statistics.fmean(values[:window]), statistics.fmean(values[-window:])


def _window_means(values: Sequence[float], window: int) -> list[float]:
    """Means of every `window` values in a row; none when there are fewer."""
    return [statistics.fmean(values[i : i + window]) for i in range(len(values) - window + 1)]


def _rate(history: History) -> str:
    """The highest learning rate so far (with warm-up, less than the setting); "" when it was not kept."""
    rates = _values(history, "optim/lr")
    return f" (up to {max(rates):g} so far)" if rates else ""


def entropy_collapse(history: History, limits: AlertLimits) -> str | None:
    """The model has stopped to explore. In SFT, which has no rewards, certainty is what is wanted."""
    if "reward/mean" not in history[-1]:
        return None
    means = _first_and_last(history, "entropy/all/mean", limits.window)
    if means is None or means[1] >= limits.entropy_share * means[0]:
        return None
    return (
        f"entropy collapse: {means[1]:.3g} nats per token, {means[0]:.3g} in the first steps; the model hardly explores any "
        "more. Lower the learning rate, or raise entropy_bonus or the temperature"
    )


def entropy_growth(history: History, limits: AlertLimits) -> str | None:
    """The model says more and more at random."""
    means = _first_and_last(history, "entropy/all/mean", limits.window)
    if means is None or means[1] <= max(MIN_ENTROPY_CHANGE, limits.entropy_factor * means[0]):
        return None
    return (
        f"entropy growth: {means[1]:.3g} nats per token, {means[0]:.3g} in the first steps; what the model says gets random. "
        "Lower entropy_bonus, the learning rate or the temperature, or train the model longer with SFT first"
    )


def ratio_drift(history: History, limits: AlertLimits) -> str | None:
    """The model that is trained is no longer the one that sampled."""
    ratio = _last(history, "ratio/mean", limits.window)
    if ratio is None or abs(ratio - 1) <= limits.ratio:
        return None
    return (
        f"ratio drift: the trainer gives sampled tokens {ratio:.3g} times the sampler's probability, expected about 1. The "
        "rollouts are of other weights, or of another temperature, than training takes them for"
    )


def logprob_mismatch(history: History, limits: AlertLimits) -> str | None:
    """Sampler and trainer disagree on how likely the same tokens are."""
    kl = _last(history, "mismatch_kl/all/mean", limits.window)
    if kl is None or kl <= limits.mismatch_kl:
        return None
    worst = max(_values(history[-limits.window :], "logprob_diff/max"), default=0.0)
    seen = (
        f"log-prob mismatch: sampler and trainer are {kl:.3g} nats per token apart, at most {worst:.3g} for one token"
    )
    age = max(_values(history[-limits.window :], "off_policy/max"), default=0.0)
    if age > 1:
        rate = _rate(history)
        return (
            f"{seen}, with weights up to {age:g} versions old. Lower max_off_policy_steps, or the learning rate{rate}"
        )
    return (
        f"{seen}; expected about 0. Look for a sampler with stale weights, coarser numbers, or a truncated distribution (top_p, "
        "top_k)"
    )


def length_growth(history: History, limits: AlertLimits) -> str | None:
    """Completions get ever longer."""
    means = _first_and_last(history, "length/mean", limits.window)
    if means is None or means[1] <= limits.length_factor * means[0]:
        return None
    return (
        f"length growth: {means[1]:.0f} tokens per rollout, {means[0]:.0f} in the first steps. Look whether length is being "
        "rewarded for its own sake"
    )


def zero_advantage_groups(history: History, limits: AlertLimits) -> str | None:
    """Most groups teach nothing."""
    dead = _last(history, "groups/zero_spread", limits.window)
    groups = _last(history, "groups/all", limits.window)
    if (
        dead is None
        or not groups
        or dead <= limits.zero_advantage_groups * groups
        or _reward_crash(history) is not None
    ):
        return None
    seen = f"dead groups: {dead / groups:.0%} of the groups have no spread and teach nothing"
    rewards = _first_and_last(history, "reward/mean", limits.window)
    entropies = _values(history, "entropy/all/mean")
    got_worse = rewards is not None and rewards[1] < rewards[0]
    if got_worse:
        return f"{seen}, and the reward has fallen. Lower the learning rate{_rate(history)} first; else look for easier examples"
    if entropies and entropies[-1] < limits.entropy_share * entropies[0]:
        return (
            f"{seen}, and the model has become certain of what it says. If that is not what earns the most, lower the learning "
            f"rate{_rate(history)} first; if it is, the examples are too easy by now"
        )
    return (
        f"{seen}. The examples are too easy or too hard: change their mix, skip them (hard_threshold, easy_threshold), or fill "
        "the batch (dynamic_sampling_rounds)"
    )


def policy_collapse(history: History, limits: AlertLimits) -> str | None:
    """One update was far too large: the model says always the same, or is not rewarded for anything any more."""
    seen = _entropy_crash(history, limits) or _reward_crash(history)
    if seen is None:
        return None
    return (
        f"policy collapse: {seen}. The learning rate{_rate(history)} is too high, most likely: start again (--overwrite) with a "
        "tenth of it or less; rove doctor tells which ones work"
    )


def _entropy_crash(history: History, limits: AlertLimits) -> str | None:
    values = _values(history, "entropy/all/mean")
    if not {"entropy/all/mean", "reward/mean"} <= history[-1].keys() or len(values) < 2:
        return None
    before, now = values[-2:]
    if now >= limits.entropy_share * before or before - now <= MIN_ENTROPY_CHANGE:
        return None
    return f"from one trained step to the next entropy fell from {before:.3g} to {now:.3g} nats per token"


def _reward_crash(history: History) -> str | None:
    rows = [row for row in history if "reward/mean" in row and row.get("groups/all")]
    dead = [row["groups/zero_spread"] == row["groups/all"] for row in rows]
    if len(rows) <= COLLAPSE_STEPS or not all(dead[-COLLAPSE_STEPS:]) or all(dead):
        return None
    last = len(dead) - dead[::-1].index(False)  # steps up to the last one with a living group
    before, after = ([row["reward/mean"] for row in part] for part in (rows[:last], rows[last:]))
    if max(after) >= min(before) or _chance_of_dead(rows[:last], rows[-COLLAPSE_STEPS:]) >= MAX_CHANCE:
        return None
    return (
        f"since step {rows[last]['step']:g} no group has any spread, and the reward is {after[-1]:.3g}; it was {min(before):.3g} "
        "or more before"
    )


def _chance_of_dead(before: History, now: History) -> float:
    """How likely no group of the steps `now` has any spread, if groups are dead as often as those before were.

    By Laplace's rule, as few groups before say little.
    """
    dead, there = (sum(row[name] for row in before) for name in ("groups/zero_spread", "groups/all"))
    return ((dead + 1) / (there + 2)) ** sum(row["groups/all"] for row in now)


def loss_growth(history: History, limits: AlertLimits) -> str | None:
    """SFT diverges. In RL the loss says nothing of how well things go."""
    if "loss" not in history[-1] or "reward/mean" in history[-1]:
        return None
    values = _values(history, "loss")
    last, best, steps = values[-1], min(values), 1
    if last <= MAX_PLAUSIBLE_LOSS:
        means = _window_means(values, limits.window)
        if len(means) < 2:
            return None
        last, best, steps = means[-1], min(means), limits.window
    if last <= max(limits.loss_factor * best, best + MIN_ENTROPY_CHANGE):
        return None
    return (
        f"loss growth: {last:,.4g} nats per token{f' over {steps} steps' if steps > 1 else ''}, and it was {best:.3g} before. "
        f"Training diverges: start again (--overwrite) with a tenth of the learning rate{_rate(history)}, or more warmup_steps"
    )


def format_drift(history: History, limits: AlertLimits) -> str | None:
    """The model forgets the format it is asked for."""
    names = {name for row in history[-limits.window :] for name in row if name.startswith(("reward/", "metrics/"))}
    for name in sorted(name for name in names if "format" in name.rsplit("/", 1)[-1]):
        values = _values(history, name)
        means = _window_means(values, limits.window)
        if means and means[-1] < max(means) - limits.format_drop:
            return (
                f"format drift: {name} is {means[-1]:.3g}, and was {max(means):.3g}. Give the format more weight, or lower the "
                "learning rate"
            )
    return None


def held_out_flat(history: History, limits: AlertLimits) -> str | None:
    """The model gets better at what it trains on and at nothing else."""
    names = {name for row in history[-1:] for name in row if name.startswith("eval/") and name.endswith("/reward/mean")}
    for name in sorted(names):
        places = [i for i, row in enumerate(history) if name in row]
        best = max(places, key=lambda i: history[i][name])
        before = _last(history[: best + 1], "reward/mean", min(limits.window, best + 1))
        now = _last(history, "reward/mean", limits.window)
        if sum(i > best for i in places) < limits.held_out_measurements or before is None or now is None:
            continue
        if now - before > limits.held_out_gain:
            return (
                f"reward up, held-out flat: since step {history[best]['step']:g} the reward in training has risen from "
                f"{before:.3g} to {now:.3g}, {name} has not ({history[best][name]:.3g} then, {history[-1][name]:.3g} now). "
                "Look for memorised examples, or for a reward that is earned in the wrong way"
            )
    return None


def grad_norm_spike(history: History, limits: AlertLimits) -> str | None:
    """One gradient is much longer than all others."""
    values = _values(history[-10 * limits.window :], "optim/grad_norm")
    if len(values) <= limits.window or "optim/grad_norm" not in history[-1]:
        return None
    usual = statistics.median(values[:-1])
    if values[-1] <= limits.grad_norm_factor * usual:
        return None
    return (
        f"grad-norm spike: {values[-1]:.3g}, usually {usual:.3g}. It is cut to max_grad_norm; if it comes again, lower the "
        "learning rate or look at the rollouts of this step"
    )


def trainer_idle(history: History, limits: AlertLimits) -> str | None:
    """What is trained has to be waited for most of the time."""
    idle = _last(history, "idle/trainer", limits.window)
    if idle is None or idle <= limits.idle:
        return None
    seen = f"trainer idle: {idle:.0%} of the time it waits for rollouts"
    if _last(history, "queue/late", limits.window):
        return (
            f"{seen}, and for slow ones, which would be too old for a later step. Raise max_off_policy_steps, or let the "
            "environment end them sooner"
        )
    return (
        f"{seen}. Sampling takes longer than training: more samplers, or faster environments, save time; a faster trainer does "
        "not"
    )


def sampler_idle(history: History, limits: AlertLimits) -> str | None:
    """Hardly anything is played."""
    idle = _last(history, "idle/sampler", limits.window)
    if idle is None or idle <= limits.idle:
        return None
    seen = f"sampler idle: {idle:.0%} of the places for rollouts are empty"
    if (_last(history, "idle/trainer", limits.window) or 0.0) <= 1 - limits.idle:
        return f"{seen}: the trainer is slower than they are played. A faster trainer saves time; more samplers do not"
    return (
        f"{seen}, as few more can be trained in time beside the slow ones that are under way. Raise max_off_policy_steps, or let "
        "the environment end them sooner"
    )


ALERTS: dict[str, Callable[[History, AlertLimits], str | None]] = {
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


def new_alerts(history: History, limits: AlertLimits) -> list[Alert]:
    """The alerts that hold after the last step and held after none of the `QUIET` steps before."""
    if not history:
        return []
    found: list[Alert] = []
    before = range(len(history) - 1, max(0, len(history) - 1 - REPEAT_AFTER_STEPS), -1)
    for name, alert in ALERTS.items():
        text = alert(history, limits)
        if text is not None and all(alert(history[:end], limits) is None for end in before):
            found.append(Alert(int(history[-1]["step"]), name, text))
    return found
