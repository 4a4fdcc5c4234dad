"""A small search for replies that earn rewards without knowing the answer, with confirmation on other rows."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import AsyncIterator, Sequence

from rove.audit.baseline import Baseline, beats_guess, is_higher
from rove.audit.game_checks import actions_of
from rove.audit.replies import Form, constant, forms
from rove.audit.reward_checks import PAID_SHARE, severity_of
from rove.audit.subject import Measured, Policy, Subject
from rove.core.findings import Finding, Severity
from rove.core.messages import Messages
from rove.core.state import State, bookkeeping

ROUNDS = ((48, 6), (12, 20), (4, 60))
"""Successive halving: (candidates, examples). Jamieson and Talwalkar 2016, https://arxiv.org/abs/1502.07943."""
LONG_ROUNDS = ((24, 4), (6, 10), (2, 30))
"""The rounds in games of more than `LONG_GAME` turns, whose rollouts take as long as those of several short games."""
LONG_GAME = 10
ANSWER_SHARE = 0.25
"""Share of the first candidates that are answers of rows."""
USUAL_WORDS = (
    "yes",
    "no",
    "true",
    "correct",
    "0",
    "1",
    "done",
    "because",
    "step",
    "therefore",
    "None",
    "[]",
    "{}",
    ",",
    "\n",
)
"""Words that graders of other environments have accepted; each is a candidate, and no chance decides whether it is tried."""
MUTATED_SHARE = 0.5
"""Share of the candidates of a later round that are mutations of the best candidates."""
Candidate = tuple[str, tuple[str, ...]]
"""Pair of the name of a form and its parts: the parts of a reply, or the actions of successive turns."""


async def search(subject: Subject, base: Baseline, seed: int = 0) -> AsyncIterator[Finding]:
    """Yield a finding if the search finds a reply, or a cycle of actions, that earns more than chance on rows that the
    search has not used.
    """
    rng = random.Random(seed)
    words = vocabulary(subject, base)
    forms_by_name = {**forms(base.prompts), base.form_name: base.form}
    turns = statistics.fmean([len(record.steps) for record in base.floor.scored] or [1])
    rounds = LONG_ROUNDS if turns > LONG_GAME else ROUNDS
    pool = [_random(rng, words, list(forms_by_name), base) for _ in range(rounds[0][0])]
    # A row's answer may pass for the answers of many other rows, for example a query that finds nothing. The first rounds
    # measure the first rows, whose own answers would only be lucky.
    answers = list(dict.fromkeys(map(str, reversed(subject.answers))))
    num_answers = int(ANSWER_SHARE * rounds[0][0])
    first_words = [*answers[:num_answers], *USUAL_WORDS]
    pool = [*((base.form_name, (word,)) for word in first_words), *pool]
    best: list[tuple[Measured, Candidate]] = []
    for count, examples in rounds:
        pool = list(dict.fromkeys(pool))[:count]
        best = []
        for candidate in pool:
            label = " ".join(candidate[1])[:30]
            policy = _policy(candidate, forms_by_name, base)
            best.append((await subject.measure(f"search: {label}", policy, examples), candidate))
        best.sort(key=lambda pair: -pair[0].mean)
        survivors = [candidate for _, candidate in best[: max(1, count // 4)]]
        num_mutations = int(MUTATED_SHARE * len(survivors))
        pool = survivors + [_mutated(rng, rng.choice(survivors), words) for _ in range(num_mutations)]
    measured, candidate = best[0]
    if not beats_guess(measured, base):
        return
    policy = _policy(candidate, forms_by_name, base)
    # The best of many candidates is often only lucky, so it has to win again on rows that the search has not seen.
    confirmed = await subject.measure("search: confirmation", policy, subject.count, seed=seed + 1, train=True)
    guess_name = "search: a guess on the same rows"
    guess = await subject.measure(guess_name, base.guess, subject.count, seed=seed + 1, train=True)
    if is_higher(confirmed, guess, base.range):
        num_replies = sum(count for count, _ in rounds)
        share = (confirmed.mean - guess.mean) / base.range
        yield confirmed.finding(
            "policy-search",
            f"a search over {num_replies} replies found one that earns {confirmed.mean:.3f} on other "
            f"rows; a guess earns {guess.mean:.3f}",
            # The best of many replies may be right for a part of a task, such as one of six fields.
            severity_of(share) if share >= PAID_SHARE else Severity.LOW,
            floor=guess.mean,
        )


def vocabulary(subject: Subject, base: Baseline) -> list[str]:
    """Return the words from which replies are made: actions, answers of other rows, and words of the prompts."""
    words = re.findall(r"\w+", " ".join(base.prompts))
    answers = [str(answer) for answer in subject.answers[:50]]
    return list(dict.fromkeys([*actions_of(base, base.honest), *answers, *USUAL_WORDS, *words[:200]]))


def _random(rng: random.Random, words: Sequence[str], names: Sequence[str], base: Baseline) -> Candidate:
    form = rng.choice([base.form_name, base.form_name, *names])
    return form, tuple(rng.choices(words, k=rng.choice((1, 1, 2, 3, 5, 8))))


def _mutated(rng: random.Random, candidate: Candidate, words: Sequence[str]) -> Candidate:
    form, parts = candidate
    changed = list(parts)
    position = rng.randrange(len(changed))
    if rng.random() < 0.3 and len(changed) > 1:
        del changed[position]
    elif rng.random() < 0.5:
        changed.insert(position, rng.choice(words))
    else:
        changed[position] = rng.choice(words)
    return form, tuple(changed)


def _policy(candidate: Candidate, forms_by_name: dict[str, Form], base: Baseline) -> Policy:
    name, parts = candidate
    form = forms_by_name[name]
    if not base.is_multi_turn:
        return constant(form(" ".join(parts)))

    def cycle(messages: Messages, state: State, rng: random.Random) -> str:
        return form(parts[len(bookkeeping(state).trajectory) % len(parts)])

    return cycle
