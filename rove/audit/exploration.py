"""Generate varied replies, which the learner's model imitates before RL."""

from __future__ import annotations

import inspect
import json
import random
import re
from collections.abc import Collection, Sequence
from typing import Any

from rove.audit.baseline import Baseline
from rove.audit.game_checks import actions_of
from rove.audit.replies import ANSWER_PLACE, blind_replies, from_answer, hedges, last_message, observed_actions
from rove.audit.search import vocabulary
from rove.audit.subject import Policy, Subject
from rove.core.messages import AssistantMessage, Messages, text_of
from rove.core.plain import JsonMapping
from rove.core.state import State, bookkeeping
from rove.envs.tool import example_call

WEIGHTS = {"right": 0.05, "guess": 0.20, "known": 0.15, "policy": 0.15, "scrambled": 0.10, "random": 0.35}
"""Shares of the replies that the model learns first, by kind."""
MAX_CHARS = 240
"""Maximum characters of a random reply."""
MAX_WORDS = 24
"""Maximum number of random words in a random reply."""


def exploration(subject: Subject, base: Baseline, chosen: Collection[str] = tuple(WEIGHTS)) -> Policy:
    """Return a policy that writes replies of the chosen kinds, one kind per rollout; the model learns them before RL.

    The kinds are right answers, guesses, replies of the other checks, scripted policies, words of the right answer in another
    order mixed with words of the prompt, and random words of the prompts and rows; with several turns or tools, also random
    actions and calls.
    """
    actions = actions_of(base, base.honest)
    replies = [*blind_replies(base.form, subject.answers, base.prompts).values()]
    if base.right_answer is not None:
        replies += hedges(base.form, subject.answers).values()
    scripted = [*subject.env.policies.values()]
    kinds: dict[str, list[Policy]] = {"guess": [base.guess], "policy": scripted}
    if base.right_answer is not None:
        kinds["right"] = [from_answer(base.form)]
    if not base.is_multi_turn:
        kinds["known"] = replies
        if base.right_answer is not None:
            kinds["scrambled"] = [_scrambled_answer(base)]
    if base.is_multi_turn or base.has_tools:
        kinds["random"] = [_random_actions(base, actions)]
    else:
        kinds["random"] = [_random_words(base, vocabulary(subject, base))]
    # In the order of `WEIGHTS`, so that the random draws below are reproducible.
    usable = [kind for kind in WEIGHTS if kind in chosen]
    kinds = {kind: kinds[kind] for kind in usable if kinds.get(kind)}

    async def policy(messages: Messages, state: State, rng: random.Random) -> Any:
        # `rng` differs between the turns of a rollout, and the kind must not.
        of_rollout = random.Random(bookkeeping(state).seed)
        [kind] = of_rollout.choices(list(kinds), [WEIGHTS[kind] for kind in kinds])
        reply = of_rollout.choice(kinds[kind])(messages, state, rng)
        reply = await reply if inspect.isawaitable(reply) else reply
        return reply[:MAX_CHARS] if isinstance(reply, str) else reply

    return policy


def _random_words(base: Baseline, words: Sequence[str]) -> Policy:
    """Return a policy that writes random words, half of them from its own prompt, with or without the form of an answer."""

    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        prompt_words = re.findall(r"\w+|[^\w\s]", last_message(messages)) or list(words)

        def some_words() -> str:
            count = rng.randint(1, rng.choice((2, 8, MAX_WORDS)))
            return " ".join(rng.choice(prompt_words if rng.random() < 0.5 else words) for _ in range(count))

        kind = rng.random()
        if kind < 0.6:
            first, *parts = base.form(ANSWER_PLACE).split(ANSWER_PLACE)
            return first + "".join(f"{some_words()}{part}" for part in parts)
        if kind < 0.8:
            return some_words()
        return f"{some_words()}\n{base.form(rng.choice(prompt_words))}"

    return policy


def _scrambled_answer(base: Baseline) -> Policy:
    """Return a policy that writes some words of the row's answer and of the prompt in a random order."""

    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        answer_words = re.findall(r"\w+|[^\w\s]", state["answer"])
        prompt_words = re.findall(r"\w+", last_message(messages)) or answer_words
        words = rng.sample(answer_words, rng.randint(1, len(answer_words)))
        words += rng.choices(prompt_words, k=rng.choice((0, 0, 1, 2, 4)))
        rng.shuffle(words)
        return base.form(" ".join(words))

    return policy


def _random_actions(base: Baseline, actions: Sequence[str]) -> Policy:
    """Return a policy of random actions; some rollouts repeat a short cycle of actions."""

    def policy(messages: Messages, state: State, rng: random.Random) -> Any:
        # With the seed itself, the first draw would be the one that has chosen the kind of the rollout.
        of_rollout = random.Random(bookkeeping(state).seed + 1)
        turn = len(bookkeeping(state).trajectory)
        tools = bookkeeping(state).tools
        if tools and rng.random() < 0.7:
            return _random_call(tools, messages, rng)
        choices = [*actions, *observed_actions(last_message(messages))] or ["1"]
        if of_rollout.random() < 0.4:
            cycle = of_rollout.choices(actions or choices, k=of_rollout.randint(1, 3))
            return base.form(cycle[turn % len(cycle)])
        return base.form(rng.choice(choices))

    return policy


def _random_call(tools: Sequence[JsonMapping], messages: Messages, rng: random.Random) -> JsonMapping:
    """Return a call of a random tool; its texts are random words of the conversation."""
    words = re.findall(r"\w+", " ".join(map(text_of, messages))) or ["a"]
    call = example_call(rng.choice(tools), f"call_{rng.randrange(10**6)}")
    arguments = json.loads(call["function"]["arguments"])
    for name, value in arguments.items():
        if isinstance(value, str):
            arguments[name] = rng.choice(words)
        elif type(value) is int:  # not a bool
            arguments[name] = rng.randint(0, 9)
    call["function"]["arguments"] = json.dumps(arguments)
    return AssistantMessage("", tool_calls=[call])
