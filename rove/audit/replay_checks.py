"""Checks that replay moves: those of the most similar training row, and those that earned a reward in random play."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain, pairwise, permutations, product
from typing import Any

from rove.audit.baseline import Baseline, is_higher
from rove.audit.findings import shortened
from rove.audit.game_checks import BLIND_SHARE, MAX_PAIRED, MAX_REPEATED, NEARLY_ALL, actions_of, commands_in
from rove.audit.leak_checks import shown_to_all
from rove.audit.replies import last_message, shown
from rove.audit.subject import Measured, Policy, Subject, highest, reward_of
from rove.audit.traces import moves_by_row, replayed
from rove.core.findings import Finding, Severity
from rove.core.messages import Messages, text_of
from rove.core.records import RolloutRecord
from rove.core.state import State, bookkeeping

TRAINING_ROWS = 200
"""Number of training rows among which the most similar one is searched."""
MIN_DIFFERENT_MOVES = 20
"""Minimum number of different sequences of moves of a good policy; a repetition of fewer may be chance."""
OTHER_SHARE = 0.3
"""The moves on any other training row must earn less than this share of the full reward."""
SEQUENCES = (1, 3, 8, 12)
"""Lengths of the sequences of words by which texts are compared: words of a question, and lines of a board."""
MAX_WORDS = 2000
"""Maximum number of words of a text that are compared. Whole documents would need gigabytes of memory."""
RARE_SEQUENCE = 0.1
"""Sequences in more than this share of the texts do not count."""
MAX_EXPLORED = 3
"""Maximum number of rollouts of random play in which a repeatable reward is searched."""
EXPLORED_ROWS, EXPLORED_ROLLOUTS = 6, 10
"""Number of rows of random play, and of its rollouts per row."""
REPETITIONS = (1, 2, 3)
"""Numbers of repetitions of two commands of which each must earn more than the one before."""
MIN_STATE_WORDS = 10
"""A message with fewer words may only confirm a command, and does not show that nothing in the game has changed."""
MAX_LIST, MAX_LIST_MOVES = 12, 40
"""Maximum length of the lists of moves that are searched, and maximum number of different moves."""
FIRST_LISTS, MAX_CHANGES, LIST_EXAMPLES = 12, 80, 10
"""Number of lists with which the search begins, maximum number of changes, and number of examples on which lists are tried."""
LIST_TURNS = 6000
"""Maximum number of turns of the search."""
RANDOM_LISTS, MIN_DIFFERENT_REWARDS = 8, 3
"""Number of random lists of moves that are played in all rows, and minimum number of different rewards that they earn."""
SINGLE_LETTER, SHORT_NUMBER = re.compile(r"(?<!\w)[A-Za-z](?!\w)"), re.compile(r"(?<!\w)\d{1,2}(?!\w)")
"""Parts of coordinates, as the edges of a board show them."""
MAX_VARIED = 400
"""Maximum number of moves that are formed from one example."""
TAGGED_EXAMPLE = re.compile(r"<(\w+)>([^<>\n]{1,20})</\1>")
MANY_REPETITIONS = 10
"""A repeatable reward is of high severity if this many repetitions earn half of the full reward."""
Candidate = tuple[RolloutRecord, list[str], list[str]]
"""A rollout, its moves up to the first reward, and two moves that may earn more when they are repeated."""


async def check_moves_of_similar_rows(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if the moves of a good policy on the most similar training row do the task of an evaluation row.

    Then evaluation measures memory: the rows differ in words that do not matter. The moves of any other training row must not
    do the task, and the moves must differ, since a small choice of moves is right by chance.
    """
    if not base.honest:
        return
    best = highest(base.honest)
    prompts = {record.example_id: _text_of_prompt(record.prompt) for record in best.scored}
    if len(set(prompts.values())) < len(prompts) / 2:
        return
    policy = subject.env.policies[best.name.removeprefix("policy ")]
    on_training_rows = await subject.measure(f"the {best.name} on training rows", policy, TRAINING_ROWS, train=True)
    training_keys = {record.example_key for record in on_training_rows.records}
    is_same_split = sum(record.example_key in training_keys for record in best.records) > len(best.records) / 2
    moves = moves_by_row(on_training_rows)
    if is_same_split or len({str(row_moves) for row_moves in moves.values()}) < MIN_DIFFERENT_MOVES:
        return
    texts = {record.example_id: _text_of_prompt(record.prompt) for record in on_training_rows.scored}
    nearest = dict(zip(prompts, most_similar(list(prompts.values()), texts), strict=True))
    similar = await subject.measure(
        f"moves of the {best.name} on the most similar training row",
        replayed(lambda row: moves[nearest[row]] if row in nearest else []),
    )
    if base.share_of_task(similar.mean) < NEARLY_ALL * base.share_of_task(best.mean):
        return
    rows = sorted(moves)
    unrelated = await subject.measure(
        f"moves of the {best.name} on another training row",
        replayed(lambda row: moves[rows[(row + len(rows) // 2) % len(rows)]]),
    )
    if base.share_of_task(unrelated.mean) < OTHER_SHARE and is_higher(similar, unrelated, base.task_range):
        row = max(similar.scored, key=reward_of).example_id
        yield Finding(
            id="data-overlap",
            severity=Severity.HIGH,
            text=f"the {similar.name} earn {similar.mean:.3f} on evaluation rows, the moves on another row {unrelated.mean:.3f}: "
            "these rows are training rows with changes that do not matter",
            rate=similar.interval,
            floor=unrelated.mean,
            prompt=f"evaluation: {shortened(prompts[row], 400)}\ntraining: {shortened(texts[nearest[row]], 400)}",
        )


def most_similar(texts: Sequence[str], candidates: Mapping[int, str]) -> list[int]:
    """Return the key of the most similar candidate for each text, by the rare sequences of words that both contain."""
    index: dict[tuple[str, ...], list[int]] = {}
    for key, text in candidates.items():
        for gram in _sequences(text):
            index.setdefault(gram, []).append(key)
    chosen: list[int] = []
    for text in texts:
        shared: Counter[int] = Counter()
        for gram in _sequences(text):
            keys = index.get(gram, [])
            if len(keys) <= max(1, RARE_SEQUENCE * len(candidates)):
                shared.update(keys)
        chosen.append(max(shared, key=lambda key: (shared[key], -key), default=min(candidates)))
    return chosen


def _sequences(text: str) -> set[tuple[str, ...]]:
    words = text.split()[:MAX_WORDS]
    starts = range(len(words))
    return {
        tuple(words[start : start + length]) for length in SEQUENCES for start in starts if start + length <= len(words)
    }


def _text_of_prompt(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n".join(text_of(message) for message in prompt if message["role"] != "system")


async def check_repeatable_rewards(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if two moves earn a reward again with each repetition.

    For games without scripted policies. The reward rises while the messages of the environment repeat, so nothing in the game
    has changed; see `check_repeated_actions` for the source.
    """
    if base.honest:
        return
    span = max(base.task_range, 1e-9)
    verbs = commands_in("\n".join([*base.prompts, *map(shown_to_all, base.idle.records[:1])]))
    async for record, beginning, pair in _candidates(subject, base, verbs):
        rewards: list[float] = []
        results: list[Measured] = []
        for count in REPETITIONS:
            results.append(await _play(subject, record, [*beginning, *pair * count]))
            rewards.append(results[-1].mean)
        if any(second <= first + 1e-6 for first, second in pairwise(rewards)):
            continue
        messages = _messages_after(results[-1].records[0], len(beginning))
        if not _messages_repeat(messages) or min(len(message.split()) for message in messages[:2]) < MIN_STATE_WORDS:
            continue
        is_severe = rewards[-1] - rewards[0] >= BLIND_SHARE * span * (REPETITIONS[-1] - 1) / MANY_REPETITIONS
        yield results[-1].finding(
            "blind-game",
            f"repeating {shortened(pair[0], 60)!r} and {shortened(pair[1], 60)!r} raises the reward each time, from "
            f"{rewards[0]:.3f} to {rewards[-1]:.3f} with {REPETITIONS[-1]} repetitions, while the messages repeat; a full reward "
            f"is {base.full:.3f}",
            Severity.HIGH if is_severe else Severity.MEDIUM,
            floor=base.idle.mean,
        )
        return


def _messages_repeat(messages: Sequence[str]) -> bool:
    """Return whether the messages after the second repetition of two moves are those after the first one.

    Four messages are compared, because the last one is missing at the limit of turns.
    """
    return len(messages) >= 4 and messages[0] == messages[2] and messages[1] == messages[3]


async def _candidates(subject: Subject, base: Baseline, verbs: Sequence[str]) -> AsyncIterator[Candidate]:
    """Yield pairs of commands, if the prompt has any, and then pairs of actions."""
    if verbs:
        async for candidate in _paid_commands(subject, base, verbs):
            yield candidate
    async for candidate in _paid_actions(subject, base):
        yield candidate


async def _paid_commands(subject: Subject, base: Baseline, verbs: Sequence[str]) -> AsyncIterator[Candidate]:
    """Yield pairs of commands from the random rollouts with the highest rewards."""
    explored = await subject.measure(
        "random commands", _random_commands(verbs), EXPLORED_ROWS, rollouts=EXPLORED_ROLLOUTS
    )
    limit = 0.01 * max(base.task_range, 1e-9)
    # Rows are played up to the row of a rollout, so the first rows take the least time.
    for record in sorted(explored.scored, key=lambda played: (-reward_of(played), played.example_id))[:MAX_EXPLORED]:
        if reward_of(record) <= max(base.idle.mean, base.floor.mean) + limit:
            return
        beginning, pair = await _rewarded_pair(subject, record, base.idle.mean + limit)
        if pair:
            yield record, beginning, pair


async def _paid_actions(subject: Subject, base: Baseline) -> AsyncIterator[Candidate]:
    """Yield pairs of actions that the prompts mention and that earn a reward in turns, the highest reward first."""
    limit = max(base.idle.mean, base.floor.mean) + 0.01 * max(base.task_range, 1e-9)
    candidates: list[Candidate] = []
    for first, then in permutations(actions_of(base)[:MAX_PAIRED], 2):
        pair = [base.form(first), base.form(then)]
        name = f"{first!r} and {then!r}, {REPETITIONS[-1]} times"
        played = await subject.measure(
            name, _played_list(pair * REPETITIONS[-1]), EXPLORED_ROWS, max_turns=2 * REPETITIONS[-1]
        )
        for record in played.scored:
            if reward_of(record) > limit and _messages_repeat(_messages_after(record, 0)):
                candidates.append((record, [], pair))
    candidates.sort(key=lambda candidate: -reward_of(candidate[0]))
    for candidate in candidates[:MAX_EXPLORED]:
        yield candidate


async def check_fixed_moves(subject: Subject, base: Baseline, seed: int = 0) -> AsyncIterator[Finding]:
    """Yield a finding if a fixed list of moves does the task of all rows, as against an opponent that always plays the same.

    Lists of the best policy are changed at random as long as they earn more: Russell and Norvig, "Artificial Intelligence: A
    Modern Approach", section 4.1 (hill climbing).
    """
    if not base.honest:
        return
    best = highest(base.honest)
    lists = [list(map(text_of, moves)) for moves in moves_by_row(best).values() if moves]
    turns = max(map(len, lists), default=0)
    # The same list on all rows shows that the rows are one task.
    if not 1 < turns <= MAX_LIST or len(set(map(tuple, lists))) < 2:
        return
    if any(not move for moves in lists for move in moves):  # calls of tools have no text
        return
    moves = list(dict.fromkeys(chain.from_iterable(lists)))
    if len(moves) > MAX_LIST_MOVES:
        return
    mean, chosen = await _best_list(subject, lists, moves, best.mean, seed)
    if mean < NEARLY_ALL * best.mean:
        return
    # On the rows of the search, the best of many lists is partly lucky.
    fixed = await subject.measure("a fixed list of moves", _played_list(chosen))
    weak_means = [policy.mean for policy in base.honest if policy is not best]
    expected = base.share_of_task(max(base.idle.mean, min(weak_means, default=base.idle.mean)))
    if expected >= 1 or base.share_of_task(fixed.mean, expected) < BLIND_SHARE:
        return
    if fixed.mean >= NEARLY_ALL * best.mean and is_higher(fixed, base.idle, base.task_range):
        shown_moves = ", ".join(shortened(move, 30) for move in chosen)
        yield fixed.finding(
            "blind-game",
            f"the fixed list of moves {shortened(shown_moves, 200)} earns {fixed.mean:.3f} in all rows, without looking at "
            f"them; the {best.name} earns {best.mean:.3f}. An opponent may ignore the row's seed",
            Severity.HIGH,
            floor=base.idle.mean,
        )


async def check_equal_rows(subject: Subject, base: Baseline, seed: int = 0) -> AsyncIterator[Finding]:
    """Yield a finding if rows with different prompts are the same game: each list of moves has the same answers of the
    environment, and the same reward, in all of them.

    The usual cause is a seed of the row that the environment does not read. For games without scripted policies, whose moves
    are formed from the examples of the prompts.
    """
    moves = varied_moves(base.prompts)
    if base.honest or len(set(base.prompts)) < 2 or len(moves) < MIN_DIFFERENT_MOVES:
        return
    rng = random.Random(seed)
    lists: list[Measured] = []
    for _ in range(RANDOM_LISTS):
        chosen = rng.sample(moves, min(MAX_LIST, len(moves)))
        played = await subject.measure("search: a list of moves", _played_list(chosen), LIST_EXAMPLES)
        answers = {tuple(_messages_after(record, 0)) for record in played.scored}
        if len(played.scored) < LIST_EXAMPLES or len(answers) > 1 or max(played.rewards) - min(played.rewards) > 1e-9:
            return
        lists.append(played)
    means = sorted({round(played.mean, 9) for played in lists})
    if len(means) < MIN_DIFFERENT_REWARDS or means[-1] <= base.idle.mean:
        return
    yield highest(lists).finding(
        "blind-game",
        f"{RANDOM_LISTS} random lists of moves earn {means[0]:.3f} to {means[-1]:.3f}, and each of them the same in all of "
        f"{LIST_EXAMPLES} rows, although their prompts differ: the game may ignore the row's seed, so that one list of moves "
        "fits all rows",
        Severity.MEDIUM,
        floor=base.idle.mean,
    )


def varied_moves(prompts: Sequence[str]) -> list[str]:
    """Return moves like the examples in tags, with the other letters and numbers that prompts show alone: "B4", "A1"."""
    text = "\n".join(prompts)
    letters, numbers = (list(dict.fromkeys(pattern.findall(text))) for pattern in (SINGLE_LETTER, SHORT_NUMBER))
    moves: list[str] = []
    for tag, content in dict.fromkeys(TAGGED_EXAMPLE.findall(text)):
        parts = re.findall(r"[A-Za-z]+|\d+|[^A-Za-z\d]+", content)
        options: list[list[str]] = []
        for part in parts:
            alternatives: list[str] = []
            if part.isdigit():
                alternatives = numbers
            elif len(part) == 1 and part.isalpha():
                alternatives = [letter for letter in letters if letter.isupper() == part.isupper()]
            options.append([part, *alternatives])
        if math.prod(map(len, options)) <= MAX_VARIED:
            moves += [f"<{tag}>{''.join(chosen)}</{tag}>" for chosen in product(*options)]
    return list(dict.fromkeys(moves))


async def _best_list(
    subject: Subject, lists: Sequence[Sequence[str]], moves: Sequence[str], goal: float, seed: int
) -> tuple[float, tuple[str, ...]]:
    """Return the best list of moves that the search finds, with its mean reward; it ends at a mean reward of `goal`.

    Args:
        lists: The lists of the best policy, with which the search begins.
        moves: The moves that a list may have.
    """
    rng = random.Random(seed)
    candidates = list(dict.fromkeys(map(tuple, lists)))[:FIRST_LISTS]
    mean, chosen = max([(await _mean_of_list(subject, candidate), candidate) for candidate in candidates])
    turns = max(map(len, lists))
    for _ in range(min(MAX_CHANGES, LIST_TURNS // (turns * LIST_EXAMPLES))):
        if mean >= goal:
            break
        changed = _changed_list(rng, chosen, moves)
        new_mean = await _mean_of_list(subject, changed)
        if new_mean >= mean:
            mean, chosen = new_mean, changed
    return mean, chosen


async def _mean_of_list(subject: Subject, moves: Sequence[str]) -> float:
    measured = await subject.measure("search: a list of moves", _played_list(moves), LIST_EXAMPLES)
    return measured.mean


def _played_list(moves: Sequence[str]) -> Policy:
    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        turn = len(bookkeeping(state).trajectory)
        return moves[turn] if turn < len(moves) else moves[-1]

    return policy


def _changed_list(rng: random.Random, moves: Sequence[str], candidates: Sequence[str]) -> tuple[str, ...]:
    """Return a list with two moves exchanged, or with one move replaced."""
    changed = list(moves)
    index, other_index = rng.randrange(len(changed)), rng.randrange(len(changed))
    if rng.random() < 0.5:
        changed[index], changed[other_index] = changed[other_index], changed[index]
    else:
        changed[index] = rng.choice(candidates)
    return tuple(changed)


def _random_commands(verbs: Sequence[str]) -> Policy:
    """Return a policy of random commands, each a verb with a word of the conversation."""

    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        words = re.findall(r"[a-z][\w-]{2,}", last_message(messages))
        if len(bookkeeping(state).trajectory) % 2 or not words:
            words = re.findall(r"\b(?:the|on|in|a|to) ([a-z][\w-]{2,})", shown(messages)) or words or ["it"]
        return f"{rng.choice(verbs)} {rng.choice(words)}"

    return policy


async def _rewarded_pair(subject: Subject, record: RolloutRecord, limit: float) -> tuple[list[str], list[str]]:
    """Return the moves of a rollout up to the first reward, and two of these moves that earn more when they are repeated.

    Both are empty if there are no such moves.

    Args:
        limit: Highest reward that is earned without the first rewarded move.
    """
    moves = [text_of(message) for message in record.completion if message["role"] == "assistant"]
    for length in range(2, len(moves) + 1):
        beginning = moves[:length]
        played = await _play(subject, record, beginning)
        if played.mean <= limit:
            continue
        *before, last = beginning
        # The move that makes the last one possible again is one of those before it.
        earlier_moves = [move for move in dict.fromkeys(reversed(before)) if move != last]
        for earlier in earlier_moves[:MAX_REPEATED]:
            repeated = await _play(subject, record, [*beginning, earlier, last])
            if repeated.mean > played.mean + 1e-6:
                return beginning, [earlier, last]
        break
    return [], []


async def _play(subject: Subject, record: RolloutRecord, moves: Sequence[str]) -> Measured:
    """Play moves on the row of a rollout, then stop."""

    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        turn = len(bookkeeping(state).trajectory)
        return moves[turn] if turn < len(moves) and int(state["example_id"]) == record.example_id else ""

    measured = await subject.measure("search: moves of a rollout", policy, record.example_id + 1, max_turns=len(moves))
    return Measured(measured.name, [played for played in measured.scored if played.example_id == record.example_id])


def _messages_after(record: RolloutRecord, num_moves: int) -> list[str]:
    """Return the environment's messages after the first `num_moves` moves."""
    texts = [text_of(message) for message in record.completion if message["role"] != "assistant"]
    return texts[num_moves : num_moves + 2 * REPETITIONS[-1]]
