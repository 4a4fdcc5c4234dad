"""Train a tiny model in the environment with RL, and check whether its reward rises although it does not do the task.

The other checks try replies that people thought of. RL finds other replies that pay: a model with random weights learns to
write many kinds of replies (SFT), and then RL raises its reward. Measures that do not influence the reward show whether the model
does the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path

import msgspec

from rove.audit.baseline import Baseline
from rove.audit.exploration import WEIGHTS, exploration
from rove.audit.learning_verdict import (
    GAP,
    WINDOW,
    Learned,
    Measure,
    assistant_texts,
    commits,
    divergence,
    has_calls,
    independence,
    is_clearly_above,
    measures,
    moved_replies,
    stage_name,
)
from rove.audit.subject import OUT_OF_TIME, Inconclusive, Measured, OutOfTime, Subject, highest, reward_of
from rove.core.checks import Settings
from rove.core.findings import Finding
from rove.core.messages import Messages, text_of
from rove.core.ranges import Device, NonNegativeInt, PositiveFloat, PositiveInt
from rove.core.records import RolloutRecord, Scores
from rove.core.state import State
from rove.engine.client import EngineClient
from rove.envs.environment import Environment
from rove.models.device import choose_device
from rove.models.from_scratch import new_model
from rove.models.load import LoadedModel, load_model
from rove.rollouts.evaluate import conversation_texts
from rove.rubrics.rubric import Rubric, RubricGroup
from rove.runs.run import Run
from rove.train.config import LossConfig, RLConfig, SFTConfig
from rove.train.rl import train_rl
from rove.train.sft import train_sft

MATCHES = "matches_answer"
"""Metric of the RL run: 1 if the reply commits to the row's answer, else 0."""
BEST_QUANTILE, BEST_SHARE, MAX_COPIES = 0.9, 0.5, 8
"""Random replies with a reward from `BEST_QUANTILE` on are learned additional times: they make up at most `BEST_SHARE` of the
number of other replies, in at most `MAX_COPIES` copies."""
ROLLOUTS = 4
"""Number of rollouts per example of the measured models."""
ENTROPY_BONUS, ENTROPY_TARGET = 0.003, 1.0
"""Weight of the entropy in RL, and the entropy in nats per token below which the bonus is on, so that the model keeps
exploring."""
RL_SHARE = 0.8
"""Share of the remaining time budget after which RL ends."""
MIN_RISE, RESTART_FACTOR = 0.1, 1 / 3
"""If RL has raised the reward by more than the first share of the range, and has lost all of that again, it starts again with its
learning rate times the second value."""


class LearnOptions(Settings, frozen=True, kw_only=True):
    """Settings of the learner."""

    folder: Path
    """Empty folder for the runs `sft`, `rl`, `restarted_rl` (after a collapse), `more_rl` (the second phase), and the two phases
    of each function: `rl_FUNCTION`, …"""
    steps: PositiveInt = 100
    """Number of RL steps."""
    batch_size: PositiveInt = 128
    """Rollouts per RL step (a multiple of 16); half of it in environments with several turns."""
    replies: PositiveInt = 1600
    """Number of rollouts from which the model learns to write replies."""
    epochs: PositiveInt = 6
    """Number of passes over these rollouts."""
    max_tokens: PositiveInt = 64
    """Maximum tokens of a response."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate of RL."""
    device: Device = "auto"
    """Device that the model computes on: "auto" (CUDA if available, else the CPU), "cpu", "cuda", "cuda:N", or "mps"."""
    seed: NonNegativeInt = 0
    """Random seed of the weights and of sampling."""
    second_phase: bool = True
    """Continue RL without an entropy bonus for another `steps` steps if it has raised the reward without a finding."""


OnProgress = Callable[[str, int, int], None]
"""(stage, number of finished steps, number of all steps) → None."""


async def check_learned(
    subject: Subject,
    base: Baseline,
    open_env: Callable[[], Environment],
    options: LearnOptions,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> AsyncIterator[Finding]:
    """Yield a finding if RL raises the reward but not the independent measures.

    If the reward collapses, RL starts again with a lower learning rate.
    If RL on the whole reward shows nothing and the time budget allows, RL on each large reward function alone follows:
    a model that learns the task first has no reason to use a hole in one function. If RL has raised the reward without a
    finding, and the reward can still rise, RL continues without an entropy bonus for another `steps` steps: the bonus keeps the
    model from exploiting a hole fully.

    The measures are: the reply commits to the row's answer; its answer resembles the row's answer; each metric of weight 0; and
    the reward of the same replies when they are given to other examples. A measure counts only if it distinguishes
    right answers from guesses.

    Raises:
        Inconclusive: There is no finding, but the model has not learned anything either.
    """
    try:
        async with asyncio.timeout(subject.remaining):
            loaded, max_tokens, initial = await _imitate(subject, base, options, on_progress)
            learner = _Learner(subject, base, open_env, options, on_progress, max_tokens, initial)
            start = subject.remaining
            learned = await learner.reinforce(loaded)
    except TimeoutError:
        raise OutOfTime(OUT_OF_TIME) from None
    finding = await learner.judge(learned)
    if finding is None:
        with contextlib.suppress(TimeoutError, OutOfTime):  # the check itself is done
            async with asyncio.timeout(subject.remaining):
                finding = await learner.search_further(loaded, learned, start - subject.remaining)
    if finding is not None:
        yield finding
        return
    reason = learner.not_learned()
    if reason:
        raise Inconclusive(reason)


def large_functions(base: Baseline) -> list[str]:
    """If there are several reward functions, return those large enough for a hole of `GAP`, largest first."""
    scored = base.right_answer.scored if base.right_answer is not None else []
    weights = scored[0].scores.weights if scored and scored[0].scores else {}
    if len(weights) < 2:  # the function is the whole reward
        return []
    large = [name for name, weight in weights.items() if weight >= GAP * base.range]
    return sorted(large, key=lambda name: -weights[name])


@dataclass(frozen=True)
class _Learner:
    """Trains models with RL in an environment, and judges what they learn."""

    subject: Subject
    """The environment, for measurements."""
    base: Baseline
    """Rewards of right answers and of guesses."""
    open_env: Callable[[], Environment]
    """Opens the environment for RL."""
    options: LearnOptions
    on_progress: OnProgress
    max_tokens: int
    """Maximum tokens of a response."""
    initial: Measured
    """Rollouts of the model before RL."""
    phases: list[Learned] = field(default_factory=list)
    """What each phase of RL has reached."""

    @cached_property
    def measures(self) -> list[Measure]:
        """Independent measures of the task."""
        return measures(self.subject, self.base)

    async def search_further(self, loaded: LoadedModel, learned: Learned, seconds: float) -> Finding | None:
        """Continue RL on the whole reward, then on each large function alone; return the first finding.

        Args:
            seconds: Time of one phase of RL. A second phase starts only if each later function still has this much time.
        """
        if self._has_collapsed(learned):
            loaded = load_model(self.options.folder / "sft" / "final", self.options.device)
            learned = await self.reinforce(loaded, is_restart=True)
            finding = await self.judge(learned)
            if finding is not None:
                return finding
        functions = large_functions(self.base) if self.measures else []
        for number, name in enumerate(["", *functions]):
            if name:
                if self.subject.remaining < seconds:
                    return None
                loaded = load_model(self.options.folder / "sft" / "final", self.options.device)
                learned = await self.reinforce(loaded, name)
                finding = await self.judge(learned)
                if finding is not None:
                    return finding
            phases = 1 + len(functions) - number
            if self._may_continue(learned) and self.subject.remaining >= phases * seconds:
                learned = await self.reinforce(loaded, name, learned)
                finding = await self.judge(learned)
                if finding is not None:
                    return finding
        return None

    def _may_continue(self, learned: Learned) -> bool:
        """Return whether there may be a second phase: if RL has raised the reward, but right answers earn clearly more."""
        is_below = self.base.share(learned.trained.mean) < 1 - GAP
        return self.options.second_phase and is_clearly_above(learned.trained, learned.initial) and is_below

    def _has_collapsed(self, learned: Learned) -> bool:
        """Return whether RL has raised the reward, and lost all of that again."""
        means = [statistics.fmean(map(reward_of, learned.records[step])) for step in sorted(learned.records)]
        windows = [statistics.fmean(means[start : start + WINDOW]) for start in range(len(means) - WINDOW + 1)]
        rise = max(windows, default=learned.initial.mean) - learned.initial.mean
        return rise > MIN_RISE * self.base.range and learned.trained.mean <= learned.initial.mean

    def not_learned(self) -> str:
        """Return why the search proves nothing; "" if RL has raised the reward above the rewards of guesses and weak policies.

        Without this test, a model whose reward fell to 0 because it no longer called any tool would pass as a clean check.
        """
        references = [self.base.floor, self.base.idle]
        if len(self.base.honest) > 1:
            references.append(min(self.base.honest, key=lambda policy: policy.mean))
        reference = highest(references)
        for learned in self.phases:
            has_risen = (
                is_clearly_above(learned.trained, learned.initial) or self.base.share(learned.trained.mean) >= 1 - GAP
            )
            if has_risen and learned.trained.mean > reference.mean:
                return ""
        best = max(self.phases, key=lambda learned: learned.trained.mean)
        text = (
            f"inconclusive: the model did not learn: {stage_name(best.function)} changed its reward from "
            f"{best.initial.mean:.3f} to {best.trained.mean:.3f}; '{reference.name}' earns {reference.mean:.3f}, "
            f"and the best policy or a right answer {self.base.full:.3f}"
        )
        if self.base.has_tools:
            num_silent = sum(not has_calls(record) for record in best.trained.scored)
            text += f"; {num_silent} of its {len(best.trained.scored)} rollouts called no tool"
        return text

    async def judge(self, learned: Learned) -> Finding | None:
        """Return a finding if RL has raised the reward and the measures, or the replies on other examples, show a hole."""
        if not is_clearly_above(learned.trained, learned.initial):
            return None
        finding = divergence(learned, self.base, self.measures)
        if finding is not None or learned.function:
            return finding
        return await independence(self.subject, learned, self.base)

    async def reinforce(
        self, loaded: LoadedModel, function: str = "", earlier: Learned | None = None, *, is_restart: bool = False
    ) -> Learned:
        """Train a model further with RL on the reward, or on one reward function alone, and measure the model with the whole
        reward.

        Args:
            loaded: The model; trained in place.
            function: The reward function; "" for the whole reward.
            earlier: The phase of RL that is continued.
            is_restart: Whether an earlier phase has collapsed.
        """
        subject, options = self.subject, self.options
        name = re.sub(r"\W", "_", f"rl_{function}" if function else "rl")
        stage, folder = stage_name(function), name
        if earlier is not None:
            stage, folder = f"more {stage}", f"more_{name}"
        env = self._environment(function)
        if is_restart:
            stage, folder = f"restarted {stage}", f"restarted_{name}"
        is_slow = is_restart or (earlier is not None and earlier.is_slow)
        start = "sft" if earlier is None else earlier.folder
        config = self._config(env, start, is_first=earlier is None, is_slow=is_slow)

        def show_progress(step: int, _: object) -> None:
            self.on_progress(stage, step, options.steps)

        with Run(options.folder / folder) as run:
            run.start("rl", msgspec.to_builtins(config), {}, overwrite=True)
            with contextlib.suppress(TimeoutError):  # what it has learned by then is measured
                async with asyncio.timeout(RL_SHARE * subject.remaining):
                    await train_rl(config, env, loaded, run, show_progress)
        trained = await _measure(subject, loaded, f"learner: after {stage}", options, self.max_tokens)
        moved_name = f"learner: replies after {stage}, to other examples"
        moved = await subject.measure(moved_name, moved_replies(trained), rollouts=ROLLOUTS)
        by_step: dict[int, list[RolloutRecord]] = {}
        if earlier is not None:
            by_step = {step: list(records) for step, records in earlier.records.items()}
        first = max(by_step, default=0)
        # The rewards of one function alone are no steps of the whole reward.
        records = [] if function else run.rollouts()
        for record in records:
            if record.scores is not None and record.step is not None:
                by_step.setdefault(first + record.step, []).append(record)
        learned = Learned(self.initial, trained, moved, by_step, function, folder, is_slow)
        self.phases.append(learned)
        return learned

    def _environment(self, function: str) -> Environment:
        """Open the environment, with a metric of right replies. If `function` is not "", this function is the whole reward."""
        env, base = self.open_env(), self.base
        if base.right_answer is not None:
            answers = set(map(str, self.subject.answers))

            def matches_answer(completion: Messages, answer: str) -> float:
                return commits(text_of(completion[-1]), answer, answers, base)

            env.rubric.add_metric(matches_answer, name=MATCHES)
        if function:
            env.rubric = _OneFunction(env.rubric, function)
        return env

    def _config(self, env: Environment, start: str, *, is_first: bool, is_slow: bool) -> RLConfig:
        """Return the settings of a phase of RL that begins with the model of the run folder `start`."""
        options = self.options
        # The bonus lets the first phase find a hole; without it, the second phase exploits the hole fully.
        loss = LossConfig(entropy_bonus=ENTROPY_BONUS, entropy_target=ENTROPY_TARGET) if is_first else LossConfig()
        return RLConfig(
            env=env.env_id,
            model=str(options.folder / start / "final"),
            steps=options.steps,
            batch_size=options.batch_size // 2 if self.base.is_multi_turn else options.batch_size,
            learning_rate=options.learning_rate * (RESTART_FACTOR if is_slow else 1.0),
            max_tokens=self.max_tokens,
            loss=loss,
            seed=options.seed,
            checkpoint_every=options.steps,
        )


class _OneFunction(RubricGroup):
    """A rubric in which one function is the whole reward; all other functions are metrics."""

    def __init__(self, rubric: Rubric, name: str):
        super().__init__([rubric])
        self.name = name

    async def score_rollout(self, state: State) -> Scores:
        return self._only(await super().score_rollout(state))

    async def score_group(self, states: Sequence[State], scores: Sequence[Scores] | None = None) -> list[Scores]:
        return [self._only(rollout_scores) for rollout_scores in await super().score_group(states, scores)]

    def _only(self, scores: Scores) -> Scores:
        name = self.name
        value, weight = scores.rewards[name], scores.weights[name]
        metrics = {**scores.metrics, **scores.rewards}
        del metrics[name]
        return Scores(weight * value, {name: value}, {name: weight}, metrics, scores.extras)


async def _imitate(
    subject: Subject, base: Baseline, options: LearnOptions, on_progress: OnProgress
) -> tuple[LoadedModel, int, Measured]:
    """Train a new model with SFT; return it, its maximum tokens per response, and its rewards."""
    on_progress("replies to learn from", 0, 1)
    records = await _replies(subject, base, options)
    loaded = new_model(conversation_texts(records), seed=options.seed)
    loaded.model.to(choose_device(options.device))
    await asyncio.to_thread(_fine_tune, loaded, records, options, on_progress)
    max_tokens = _max_tokens(loaded, records, options.max_tokens)
    return loaded, max_tokens, await _measure(subject, loaded, "learner: after SFT", options, max_tokens)


async def _measure(
    subject: Subject, loaded: LoadedModel, name: str, options: LearnOptions, max_tokens: int
) -> Measured:
    sampling = {"temperature": 1.0, "max_tokens": max_tokens}
    client = EngineClient.from_model(loaded)  # a new engine, since an engine keeps its copy of the weights
    return await subject.measure(name, client, rollouts=ROLLOUTS, seed=options.seed, sampling_args=sampling)


async def _replies(subject: Subject, base: Baseline, options: LearnOptions) -> list[RolloutRecord]:
    """Return varied rollouts for SFT, with additional copies of random rollouts that earned high rewards."""
    rows = sum(1 for _ in subject.env.examples(options.replies, train=True))
    records: list[list[RolloutRecord]] = []
    for name, kinds in (("replies of all kinds", tuple(WEIGHTS)), ("random replies", ("random",))):
        policy, seed = exploration(subject, base, kinds), options.seed + len(records)
        count = math.ceil(options.replies / rows)
        measured = await subject.measure(f"learner: {name}", policy, rows, rollouts=count, seed=seed, train=True)
        records.append([record for record in measured.scored if record.completion])
    data, drawn = records
    rewards = sorted(map(reward_of, drawn))
    limit = rewards[int(BEST_QUANTILE * (len(rewards) - 1))]
    best = [record for record in drawn if reward_of(record) >= limit]
    best = [record for record in best if reward_of(record) > rewards[0]]  # else all are equally bad
    num_best = int(BEST_SHARE * len(data))
    copies = min(MAX_COPIES, int(BEST_SHARE * len(data) / max(1, len(best))))
    return [*data, *best[:num_best], *(best * max(0, copies - 1))]


def _fine_tune(
    loaded: LoadedModel, records: Sequence[RolloutRecord], options: LearnOptions, on_progress: OnProgress
) -> None:
    config = SFTConfig(
        data=str(options.folder),
        model=str(options.folder / "model"),
        epochs=options.epochs,
        validate_every=10**6,
        seed=options.seed,
        final_eval_rollouts=0,
    )
    with Run(options.folder / "sft") as run:
        run.start("sft", msgspec.to_builtins(config), {}, overwrite=True)
        train_sft(config, records, loaded, run, lambda step, total, metrics: on_progress("SFT", step, total))


def _max_tokens(loaded: LoadedModel, records: Sequence[RolloutRecord], limit: int) -> int:
    """Return twice the length of nearly the longest reply, in tokens; at least 16, at most `limit`."""
    if any(record.tools for record in records):  # calls of tools are long
        return limit
    texts = chain.from_iterable(map(assistant_texts, records))
    lengths = sorted(len(loaded.tokenizer(text)["input_ids"]) for text in texts)
    nearly_longest = lengths[int(0.98 * (len(lengths) - 1))]
    return min(limit, max(16, 2 * nearly_longest))
