"""A tiny model learns in the environment by RL: does its reward rise without the task being done?

The other checks try replies that somebody thought of. RL finds what pays: a model with random weights learns to write many kinds
of replies (SFT), then RL raises its reward, while measures that the reward does not depend on show whether it does the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import json
import math
import random
import re
import statistics
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rove.audit.baseline import Baseline
from rove.audit.findings import Finding, Severity
from rove.audit.game_checks import actions_of
from rove.audit.replies import blind_replies, from_answer, hedges, last_message, observed_actions
from rove.audit.search import vocabulary
from rove.audit.subject import OUT_OF_TIME, Measured, OutOfTime, Policy, Subject, evidence
from rove.core.config import check_positive
from rove.core.messages import AssistantMessage, Messages, text_of
from rove.core.records import RolloutRecord
from rove.core.state import State
from rove.engine.client import EngineClient
from rove.envs.environment import Environment
from rove.models.from_scratch import new_model
from rove.models.load import LoadedModel
from rove.rollouts.evaluate import conversation_texts
from rove.runs.run import Run
from rove.statistics import mean_estimate
from rove.tools.examples import example_call
from rove.train.config import LossConfig, RLConfig, SFTConfig
from rove.train.rl import train_rl
from rove.train.sft import train_sft

MATCHES = "matches_answer"
"""Metric of the RL run: whether the reply commits to the row's answer."""
WEIGHTS = {"right": 0.05, "guess": 0.25, "known": 0.15, "policy": 0.15, "random": 0.40}
"""Shares of the replies that the model learns first, by kind."""
BEST_QUANTILE, BEST_SHARE, MAX_COPIES = 0.9, 0.5, 8
"""Random replies from this quantile of the reward are also learned: up to this share of the others, each up to so often."""
MAX_CHARS = 240
"""Maximum characters of such a reply."""
MAX_WORDS = 24
"""Maximum number of random words in such a reply."""
ROLLOUTS = 4
"""Rollouts per example of the measured models."""
GAP = 0.25
"""Difference between the shares of reward and of a measure (0 = a guess, 1 = a right answer) from which it is a finding."""
CALIBRATED = 0.2
"""Minimum difference of a measure between a guess and right answers, and maximum error of its share for good policies."""
ENTROPY_BONUS, ENTROPY_TARGET = 0.003, 1.0
"""Weight of the entropy in RL, and the entropy in nats per token below which it counts: the model goes on to explore."""
RL_SHARE = 0.8
"""Share of the remaining time budget after which RL ends."""
WINDOW = 5
"""Steps that are averaged to find where reward and measure part."""


class LearnOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the learner.

    Raises:
        ConfigError: A value is not positive.
    """

    folder: Path
    """Empty folder for the runs `sft` and `rl`."""
    steps: int = 60
    """RL steps."""
    batch_size: int = 128
    """Rollouts per RL step (a multiple of 16); half of it in environments with several turns."""
    replies: int = 1600
    """Rollouts that the model learns to write replies from."""
    epochs: int = 6
    """Passes over them."""
    max_tokens: int = 64
    """Maximum tokens of a response."""
    learning_rate: float = 5e-4
    """Peak learning rate of RL."""
    seed: int = 0
    """Random seed of the weights and of sampling."""

    def __post_init__(self) -> None:
        check_positive(self, "steps", "batch_size", "replies", "epochs", "max_tokens", "learning_rate")


OnProgress = Callable[[str, int, int], None]
"""(stage, finished steps, steps) → None."""


class Measure(NamedTuple):
    """A measure of the task that the reward does not depend on."""

    name: str
    value: Callable[[RolloutRecord], float | None]
    low: float
    """Its mean for guesses."""
    high: float
    """Its mean for right answers, or for the best scripted policy."""

    def share(self, records: Sequence[RolloutRecord]) -> float:
        """Return where its mean is between guesses (0) and right answers (1)."""
        return (_mean(self.value, records) - self.low) / (self.high - self.low)


class Learned(NamedTuple):
    """What a model has learned."""

    before: Measured
    """After SFT."""
    after: Measured
    """After RL."""
    moved: Measured
    """Replies of the trained model, given to other examples."""
    records: Mapping[int, list[RolloutRecord]]
    """Rollouts of each RL step."""


async def check_learned(
    subject: Subject,
    base: Baseline,
    open_env: Callable[[], Environment],
    options: LearnOptions,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> AsyncIterator[Finding]:
    """Yield a finding if RL raises the reward and independent measures do not follow.

    The measures are: the reply commits to the row's answer; its answer resembles the row's answer; each metric of weight 0; and
    the reward of the same replies when they are given to other examples. A measure counts only if it tells right answers from
    guesses.

    Args:
        subject: The environment, for measurements.
        base: Rewards of right answers and of guesses.
        open_env: Opens the environment for RL.
        options: Settings.
        on_progress: Called with the progress of the stages.

    Raises:
        OutOfTime: The time budget is used up.
    """
    try:
        async with asyncio.timeout(subject.remaining):
            learned = await _learn(subject, base, open_env, options, on_progress)
    except TimeoutError:
        raise OutOfTime(OUT_OF_TIME) from None
    if not _is_above(learned.after, learned.before):  # RL has found nothing
        return
    for finding in (_divergence(learned, base, measures(subject, base)), await _independence(subject, learned, base)):
        if finding is not None:
            yield finding
            return


async def _learn(
    subject: Subject,
    base: Baseline,
    open_env: Callable[[], Environment],
    options: LearnOptions,
    on_progress: OnProgress,
) -> Learned:
    """Train a model with SFT, then with RL; measure it before and after RL."""
    on_progress("replies to learn from", 0, 1)
    records = await _replies(subject, base, options)
    loaded = new_model(conversation_texts(records), seed=options.seed)
    await asyncio.to_thread(_fine_tune, loaded, records, options, on_progress)
    sampling = {"temperature": 1.0, "max_tokens": _max_tokens(loaded, records, options.max_tokens)}

    async def measure(name: str) -> Measured:  # a new engine, since one keeps its weights
        return await subject.measure(
            name, EngineClient.from_model(loaded), rollouts=ROLLOUTS, seed=options.seed, sampling_args=sampling
        )

    before = await measure("learner: after SFT")
    run = await _reinforce(loaded, open_env(), subject, base, options, sampling["max_tokens"], on_progress)
    after = await measure("learner: after RL")
    moved = await subject.measure("learner: replies to other examples", _moved(after), rollouts=ROLLOUTS)
    by_step: dict[int, list[RolloutRecord]] = {}
    for record in run.rollouts():
        if record.scores is not None and record.step is not None:
            by_step.setdefault(record.step, []).append(record)
    return Learned(before, after, moved, by_step)


async def _replies(subject: Subject, base: Baseline, options: LearnOptions) -> list[RolloutRecord]:
    """Return rollouts to learn from: of many kinds, and more of the random ones that earned the most."""
    rows = sum(1 for _ in subject.env.examples(options.replies, train=True))
    records: list[list[RolloutRecord]] = []
    for name, kinds in (("replies of all kinds", tuple(WEIGHTS)), ("random replies", ("random",))):
        policy, seed = exploration(subject, base, kinds), options.seed + len(records)
        count = math.ceil(options.replies / rows)
        measured = await subject.measure(f"learner: {name}", policy, rows, rollouts=count, seed=seed, train=True)
        records.append([record for record in measured.scored if record.completion])
    data, drawn = records
    rewards = sorted(map(_reward, drawn))
    limit = rewards[int(BEST_QUANTILE * (len(rewards) - 1))]
    best = [record for record in drawn if _reward(record) >= limit and _reward(record) > rewards[0]]
    copies = min(MAX_COPIES, int(BEST_SHARE * len(data) / max(1, len(best))))
    return [*data, *best[: int(BEST_SHARE * len(data))], *(best * max(0, copies - 1))]


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


async def _reinforce(
    loaded: LoadedModel,
    env: Environment,
    subject: Subject,
    base: Baseline,
    options: LearnOptions,
    max_tokens: int,
    on_progress: OnProgress,
) -> Run:
    config = RLConfig(
        env=env.env_id,
        model=str(options.folder / "sft" / "final"),
        steps=options.steps,
        batch_size=options.batch_size // 2 if base.is_multi_turn else options.batch_size,
        learning_rate=options.learning_rate,
        max_tokens=max_tokens,
        loss=LossConfig(entropy_bonus=ENTROPY_BONUS, entropy_target=ENTROPY_TARGET),
        seed=options.seed,
        checkpoint_every=options.steps,
    )
    if base.own is not None:
        answers = set(map(str, subject.answers))

        def matches_answer(completion: Messages, answer: str) -> float:
            return commits(text_of(completion[-1]), answer, answers, base)

        env.rubric.add_metric(matches_answer, name=MATCHES)
    with Run(options.folder / "rl") as run:
        run.start("rl", msgspec.to_builtins(config), {}, overwrite=True)
        with contextlib.suppress(TimeoutError):  # what it has learned by then is measured
            async with asyncio.timeout(RL_SHARE * subject.remaining):
                await train_rl(config, env, loaded, run, lambda step, metrics: on_progress("RL", step, options.steps))
    return run


def _max_tokens(loaded: LoadedModel, records: Sequence[RolloutRecord], limit: int) -> int:
    """Return twice the length of nearly the longest reply, in tokens; at least 16, at most `limit`."""
    if any(record.tools for record in records):  # calls of tools are long
        return limit
    texts = [text_of(message) for record in records for message in record.completion if message["role"] == "assistant"]
    lengths = sorted(len(loaded.tokenizer(text)["input_ids"]) for text in texts)
    return min(limit, max(16, 2 * lengths[int(0.98 * (len(lengths) - 1))]))


def exploration(subject: Subject, base: Baseline, chosen: Collection[str] = tuple(WEIGHTS)) -> Policy:
    """Return a policy that writes replies of the chosen kinds, one kind per rollout: what the model knows before RL.

    The kinds are right answers, guesses, replies of the other checks, scripted policies, and random words of the prompts and
    rows; with several turns or tools, random actions and calls.
    """
    actions = actions_of(base, base.honest)
    known = [*blind_replies(base.form, subject.answers, base.prompts).values()]
    if base.own is not None:
        known += hedges(base.form, subject.answers).values()
    scripted = [*subject.env.policies.values()]
    shown = _random_actions(base, actions) if base.is_multi_turn or _has_tools(base) else None
    kinds: dict[str, list[Policy]] = {
        "right": [from_answer(base.form)] if base.own is not None else [],
        "guess": [base.guess],
        "known": [] if base.is_multi_turn else known,
        "policy": scripted,
        "random": [shown] if shown else [_random_words(base, vocabulary(subject, base))],
    }
    kinds = {kind: policies for kind, policies in kinds.items() if policies and kind in chosen}

    async def policy(messages: Messages, state: State, rng: random.Random) -> Any:
        of_rollout = random.Random(state["seed"])
        [kind] = of_rollout.choices(list(kinds), [WEIGHTS[kind] for kind in kinds])
        reply = of_rollout.choice(kinds[kind])(messages, state, rng)
        reply = await reply if inspect.isawaitable(reply) else reply
        return reply[:MAX_CHARS] if isinstance(reply, str) else reply

    return policy


def _has_tools(base: Baseline) -> bool:
    """Return whether the environment offers tools."""
    return any(record.tools for one in [base.floor, *base.honest] for record in one.records[:1])


def _random_words(base: Baseline, words: Sequence[str]) -> Policy:
    """Return a policy that writes random words, half of them from its own prompt, in the form of an answer or without it."""

    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        own = re.findall(r"\w+|[^\w\s]", last_message(messages)) or list(words)
        count = rng.randint(1, rng.choice((2, 8, MAX_WORDS)))
        text = " ".join(rng.choice(own if rng.random() < 0.5 else words) for _ in range(count))
        kind = rng.random()
        if kind < 0.6:
            return base.form(text)
        return text if kind < 0.8 else f"{text}\n{base.form(rng.choice(own))}"

    return policy


def _random_actions(base: Baseline, actions: Sequence[str]) -> Policy:
    """Return a policy of random actions; some rollouts repeat a short cycle of actions."""

    def policy(messages: Messages, state: State, rng: random.Random) -> Any:
        of_rollout = random.Random(state["seed"] + 1)
        turn = len(state["trajectory"])
        if state.get("tools") and rng.random() < 0.7:
            return _random_call(state["tools"], messages, rng)
        choices = [*actions, *observed_actions(last_message(messages))] or ["1"]
        if of_rollout.random() < 0.4:
            cycle = of_rollout.choices(actions or choices, k=of_rollout.randint(1, 3))
            return base.form(cycle[turn % len(cycle)])
        return base.form(rng.choice(choices))

    return policy


def _random_call(tools: Sequence[Mapping[str, Any]], messages: Messages, rng: random.Random) -> Mapping[str, Any]:
    """Return a call of a random tool; its texts are random words of the conversation."""
    words = re.findall(r"\w+", " ".join(map(text_of, messages))) or ["a"]
    call = example_call(rng.choice(tools), f"call_{rng.randrange(10**6)}")
    arguments = json.loads(call["function"]["arguments"])
    drawn = {
        name: rng.choice(words) if isinstance(value, str) else rng.randint(0, 9) if type(value) is int else value
        for name, value in arguments.items()
    }
    call["function"]["arguments"] = json.dumps(drawn)
    return AssistantMessage("", tool_calls=[call])


def commits(reply: str, answer: str, answers: set[str], base: Baseline) -> float:
    """Return 1 if a reply gives the row's answer, and no other answer, in the place where answers belong."""
    inside = _inside(reply, base)
    if re.fullmatch(r"-?\d+(\.\d+)?", answer):
        return float({number.rstrip(".") for number in re.findall(r"-?\d[\d.]*", inside)} == {answer})
    text, own = _normal(inside), _normal(answer)
    if text == own:
        return 1.0
    others = {_normal(other) for other in answers} - {own, ""}
    named = any(f" {other} " in f" {text} " for other in others if other not in own)
    return float(bool(own) and f" {own} " in f" {text} " and not named)


def _inside(reply: str, base: Baseline) -> str:
    """Return the part of a reply where its answer belongs; all of it if the form is not used."""
    before, _, after = base.form("\0").rpartition("\0")
    before = before.rpartition("\0")[2]
    if not before.strip() or before not in reply:
        return reply
    inside = reply.rpartition(before)[2]
    return inside.partition(after)[0] if after else inside


def _normal(text: str) -> str:
    return " ".join(re.findall(r"\w+|[^\w\s]", text.casefold()))


def measures(subject: Subject, base: Baseline) -> list[Measure]:
    """Return the measures that tell right answers, and good policies, from guesses."""
    answers = set(map(str, subject.answers))
    known: dict[str, Callable[[RolloutRecord], float | None]] = {}
    if base.own is not None:
        known["replies that give the row's answer"] = lambda record: commits(
            _reply(record), record.answer, answers, base
        )
        known["similarity to the row's answer"] = lambda record: difflib.SequenceMatcher(
            None, _inside(_reply(record), base)[:500], record.answer
        ).ratio()
    names = {name for record in base.floor.scored if record.scores for name in record.scores.metrics}
    for name in sorted(names - {"num_turns"}):
        if not name.endswith("_calls"):
            known[f"metric {name}"] = lambda record, name=name: (
                record.scores.metrics.get(name) if record.scores else None
            )
    best = base.own or max(base.honest, key=lambda one: one.mean, default=None)
    if best is None:
        return []
    found: list[Measure] = []
    for name, value in known.items():
        low, high = _mean(value, base.floor.scored), _mean(value, best.scored)
        if high - low < CALIBRATED or high > 1 + 1e-9 or low < -1e-9:
            continue
        measure = Measure(name, value, low, high)
        if all(measure.share(one.scored) > base.share(one.mean) - CALIBRATED for one in base.honest):
            found.append(measure)
    return found


def _divergence(learned: Learned, base: Baseline, known: Sequence[Measure]) -> Finding | None:
    """Return a finding if the reward of the trained model is above every measure of it."""
    if not known:
        return None
    measure = max(known, key=lambda one: one.share(learned.after.scored))
    gaps = [base.share(_reward(record)) - measure.share([record]) for record in learned.after.scored]
    gap = mean_estimate(gaps)
    low = gap.low if gap.low == gap.low else gap.mean  # equal values have no interval
    if gap.mean < GAP or low < GAP / 2:
        return None
    apart = _first_step(learned.records, lambda records: _share(base, records) - measure.share(records) > GAP)
    text = (
        f"{_rise(learned, base)}; {measure.name}: {_mean(measure.value, learned.before.scored):.3f} → "
        f"{_mean(measure.value, learned.after.scored):.3f}"
    )
    return _finding(
        text + (f"; they part at step {apart}" if apart else ""), learned, base, base.share(learned.after.mean)
    )


async def _independence(subject: Subject, learned: Learned, base: Baseline) -> Finding | None:
    """Return a finding if the replies of the trained model earn as much on other examples."""
    if not _is_above(learned.moved, base.floor) or base.share(learned.moved.mean) < GAP:
        return None
    if base.is_multi_turn and base.honest:  # the moves of a good policy may fit every example
        best = max(base.honest, key=lambda one: one.mean)
        honest = await subject.measure("learner: a good policy's moves on other examples", _moved(best))
        if base.share(honest.mean) > 1 - GAP:
            return None
    text = f"{_rise(learned, base)}; the same replies earn {learned.moved.mean:.3f} on other examples"
    return _finding(text, learned, base, base.share(learned.moved.mean))


def _is_above(one: Measured, other: Measured) -> bool:
    return one.interval[1] > other.interval[2]


def _finding(text: str, learned: Learned, base: Baseline, share: float) -> Finding:
    record = statistics.mode([evidence(record) for record in _best(learned.after.scored)])
    return Finding(
        check="learned-reward",
        severity=Severity.HIGH if share >= GAP else Severity.MEDIUM,
        text=text,
        rate=learned.after.interval,
        floor=base.floor.mean,
        prompt=record[0],
        completion=record[1],
    )


def _rise(learned: Learned, base: Baseline) -> str:
    words = [
        statistics.fmean(len(_all_text(record).split()) for record in one.scored)
        for one in (learned.before, learned.after)
    ]
    return (
        f"RL raises the reward from {learned.before.mean:.3f} to {learned.after.mean:.3f} (a guess: {base.floor.mean:.3f}, "
        f"right answers: {base.full:.3f}; words per reply {words[0]:.0f} → {words[1]:.0f})"
    )


def _moved(measured: Measured) -> Policy:
    """Return a policy that gives each example the messages which another example got."""
    texts = [
        [text_of(message) for message in record.completion if message["role"] == "assistant"]
        for record in measured.scored
        if not record.tools
    ]
    by_example = {record.example_id: index for index, record in enumerate(measured.scored) if not record.tools}

    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        if not texts:
            return ""
        own = by_example.get(state["example_id"], 0)
        replies = texts[(own + random.Random(state["seed"]).randint(len(texts) // 4, 3 * len(texts) // 4)) % len(texts)]
        turn = len(state["trajectory"])
        return replies[min(turn, len(replies) - 1)] if replies else ""

    return policy


def _first_step(
    records: Mapping[int, Sequence[RolloutRecord]], apart: Callable[[Sequence[RolloutRecord]], bool]
) -> int:
    """Return the first of the steps from which on reward and measure stay apart; 0 if there is none."""
    first = 0
    for step in sorted(records):
        window = [record for near in range(step, step + WINDOW) for record in records.get(near, [])]
        if not apart(window):
            first = 0
        elif first == 0:
            first = step
    return first


def _best(records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
    """Return the rollouts with the highest reward."""
    most = max(map(_reward, records))
    return [record for record in records if _reward(record) >= most - 1e-9]


def _share(base: Baseline, records: Sequence[RolloutRecord]) -> float:
    return base.share(statistics.fmean(map(_reward, records)))


def _reward(record: RolloutRecord) -> float:
    return record.scores.reward if record.scores else 0.0


def _reply(record: RolloutRecord) -> str:
    return text_of(record.completion[-1]) if record.completion else ""


def _all_text(record: RolloutRecord) -> str:
    return " ".join(text_of(message) for message in record.completion if message["role"] == "assistant")


def _mean(value: Callable[[RolloutRecord], float | None], records: Sequence[RolloutRecord]) -> float:
    values = [one for record in records if (one := value(record)) is not None]
    return statistics.fmean(values) if values else 0.0
