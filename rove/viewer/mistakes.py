"""What a model still gets wrong: where its evaluation loses reward, by question, by reply, by the fields of the rows,
and by how rollouts of several turns ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean, quantiles
from typing import NamedTuple

import msgspec

from rove.core.messages import text_of
from rove.core.plain import JsonMapping, JsonObject, MessageDict
from rove.statistics.format import cut, number, percent
from rove.statistics.intervals import beta_below
from rove.utils.units import counted
from rove.viewer.html import utf8_text
from rove.viewer.index import Index
from rove.viewer.queries import CURRENT_ROLLOUTS
from rove.viewer.rollouts import read_line

MAX_ROLLOUTS = 5_000
"""Maximum number of rollouts of an evaluation that are read."""
MAX_GROUPS = 8
"""Maximum number of groups listed per kind."""
MAX_FIELDS = 4
"""Maximum number of fields listed."""
MAX_VALUES = 12
"""Maximum number of values of a listed field; numbers with more values are divided into `NUM_RANGES` ranges."""
NUM_RANGES = 4
MAX_CHANCE = 0.01
"""A field is listed if its groups would differ as much by chance with at most this probability (F test)."""
MIN_EXPLAINED = 0.005
"""Minimum share of the variance of the rewards that a listed field explains."""
MIN_LOST = 0.03
"""Minimum share of the lost reward of a listed reply, and of a value of a field in a sentence."""
MIN_LOST_BY_QUESTION = 0.005
"""Minimum share of the lost reward of a listed question: questions are examples, of which each loses little."""
MOST_LOST = 0.9
"""Share of the lost reward for which the summary counts the worst rollouts."""
FREQUENT_LOST, FREQUENT_REPLIES = 0.1, 3
"""A wrong reply is mentioned from this share of the lost reward and this number of rollouts on."""
MAX_SHORT_CHARS = 90
"""Maximum characters shown of a message in a sentence."""
MAX_CHARS = 160
"""Maximum characters shown of a question, a reply or a value."""
LAST_MESSAGE = "last message of the environment"
TURN_FIELDS = ("stop condition", "number of turns", LAST_MESSAGE)
"""Fields of the end of a rollout. They are compared only if some rollout has several turns."""
MIN_SAME_MESSAGES = 3
"""If there are more than `MAX_VALUES` last messages, only those of at least this number of rollouts have a group of their own,
and only if it loses at least `MIN_LOST`."""
OTHER_MESSAGES = "other messages"


class Graded(NamedTuple):
    """A scored rollout."""

    question: str
    """The last message of the prompt."""
    answer: str
    """The expected answer; "" if there is none."""
    reply: str
    fields: Mapping[str, str | float]
    """The fields of the row's `info`, the length of the question in characters, and `TURN_FIELDS`."""
    reward: float
    line: int
    """Line in rollouts.jsonl."""
    turns: int = 1
    ending: str = ""
    """The last reply with the messages around it; "" without a reply."""


class _Row(msgspec.Struct, frozen=True):
    prompt: list[MessageDict] = []
    completion: list[MessageDict] = []
    info: object = None
    stop_condition: str | None = None


class _StoredRow(msgspec.Struct, frozen=True):
    record: _Row


def graded_rollouts(index: Index) -> list[Graded]:
    """Return the scored rollouts of an evaluation, at most `MAX_ROLLOUTS`."""
    sql = (
        "SELECT rollouts.line, offset, size, reward, answer, reply FROM rollouts "
        f"JOIN questions ON questions.line = rollouts.line WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL "
        f"ORDER BY rollouts.line LIMIT {MAX_ROLLOUTS}"
    )
    graded: list[Graded] = []
    for line, offset, size, reward, answer, reply in index.query(sql):
        row = msgspec.json.decode(read_line(index.file, offset, size), type=_StoredRow).record
        question = _text(row.prompt[-1]) if row.prompt else ""
        turns = sum(message.get("role") == "assistant" for message in row.completion)
        fields = {"length of the question": float(len(question)), **_turn_fields(row, turns), **_fields(row.info)}
        ending = _ending(row.completion) if turns else ""
        graded.append(Graded(question, answer or "", reply or "", fields, float(reward), line, turns, ending))
    return graded


def _text(message: MessageDict) -> str:
    try:
        return utf8_text(text_of(message))
    except (AttributeError, TypeError):  # a content that is neither text nor a list of parts
        return ""


def _ending(completion: Sequence[MessageDict]) -> str:
    """Return the last reply with the message before it and the message after it."""
    last = max(position for position, message in enumerate(completion) if message.get("role") == "assistant")
    texts = [cut(_text(message), MAX_SHORT_CHARS) for message in completion[max(0, last - 1) : last + 2]]
    return " → ".join(" ".join(text.split()) for text in texts if text.strip())


def _turn_fields(row: _Row, turns: int) -> dict[str, str | float]:
    """Return the `TURN_FIELDS` of a rollout."""
    stop, number_of_turns, last_message = TURN_FIELDS
    fields: dict[str, str | float] = {stop: row.stop_condition or "none", number_of_turns: float(turns)}
    messages = [message for message in row.completion if message.get("role") != "assistant"]
    if messages:
        text = cut(" ".join(_text(messages[-1]).split()), MAX_SHORT_CHARS)
        fields[last_message] = f'"{text}"'
    return fields


def _fields(info: object) -> dict[str, str | float]:
    """Return the fields of a row's `info` that are texts, numbers or truth values."""
    fields: dict[str, str | float] = {}
    for name, value in info.items() if isinstance(info, dict) else ():
        if isinstance(value, (bool, str)):
            fields[name] = cut(str(value), MAX_CHARS)
        elif isinstance(value, (int, float)):
            fields[name] = float(value)
    return fields


def describe_mistakes(
    rollouts: Sequence[Graded], earlier_rollouts: Sequence[Graded] = (), best: float | None = None
) -> JsonObject:
    """Describe where an evaluation loses reward.

    A rollout loses the difference between the best reward and its own reward.

    Args:
        rollouts: The rollouts of the evaluation.
        earlier_rollouts: The rollouts of an earlier model on the same examples, for comparison.
        best: The best reward. Default: the highest reward of these rollouts.

    Returns:
        `summary`: sentences, the most important one first. `field_sentences`: those about fields. `best`: the best
        reward. `wrong`: number of rollouts that earn less. `share`: lost reward / reward that can be lost, None without
        rollouts. `worst`: `line` of the worst rollout and `words` about its end, None if no reward is lost. `has_turns`: whether
        a rollout has several turns. `questions` and `replies`: groups, those that lose most first, each with `name`, `answer`,
        `reply`, `turns` and `ending` (of the worst rollout), `rollouts`, `wrong` (number of rollouts that lose reward), `mean`,
        `before` (mean of the earlier model, None without it), `lost` (share of the lost reward), `points` (lost reward) and
        `line` (of the worst rollout). `fields`: name → groups, in the order of the values, for at most `MAX_FIELDS` fields whose
        groups differ more than by chance.
    """
    best = max((rollout.reward for rollout in (*rollouts, *earlier_rollouts)), default=0.0) if best is None else best
    lost = sum(best - rollout.reward for rollout in rollouts)
    if not rollouts or lost <= 1e-9:
        return {
            "summary": [f"None of {counted(len(rollouts), 'rollout')} lost reward."] if rollouts else [],
            "field_sentences": [],
            "best": best,
            "wrong": 0,
            "share": 0.0 if rollouts else None,
            "worst": None,
            "has_turns": False,
            "questions": [],
            "replies": [],
            "fields": {},
        }
    wrong = sorted(
        (rollout for rollout in rollouts if best - rollout.reward > 1e-9), key=lambda rollout: rollout.reward
    )
    questions = _groups(rollouts, earlier_rollouts, lambda rollout: rollout.question, best, lost)
    listed_questions = [group for group in questions if group["lost"] >= MIN_LOST_BY_QUESTION][:MAX_GROUPS]
    fields = _field_groups(rollouts, earlier_rollouts, best, lost)
    # The last reply of several turns answers the message before it, not the question.
    single_turns = [rollout for rollout in wrong if rollout.turns <= 1]
    replies = _groups(single_turns, (), lambda rollout: rollout.reply, best, lost)
    repeated = [group for group in replies if group["rollouts"] > 1 and group["lost"] >= MIN_LOST]
    possible = (best - _least(rollouts, earlier_rollouts, best)) * len(rollouts)
    field_sentences = _field_sentences(fields, rollouts)
    summary = _size_sentences(rollouts, wrong, best, lost, possible)
    summary += _question_sentences(listed_questions, len(questions), len(rollouts))
    summary += field_sentences
    summary += _reply_sentences(repeated)
    if len(rollouts) == MAX_ROLLOUTS:
        summary.append(f"Only the first {MAX_ROLLOUTS:,} rollouts were read.")
    return {
        "summary": summary,
        "field_sentences": field_sentences,
        "best": best,
        "wrong": len(wrong),
        "share": lost / possible,
        "worst": {"line": wrong[0].line, "words": _worst_words(wrong[0])},
        "has_turns": any(rollout.turns > 1 for rollout in rollouts),
        "questions": [_shown(group) for group in listed_questions],
        "replies": [_shown(group) for group in repeated[:MAX_GROUPS]],
        "fields": {name: [_shown(group) for group in groups] for name, groups in fields.items()},
    }


def _least(rollouts: Sequence[Graded], earlier_rollouts: Sequence[Graded], best: float) -> float:
    """Return the reward from which points are counted: 0, or the lowest reward if some are negative or all are close together,
    such as 100 and 101.
    """
    lowest = min(rollout.reward for rollout in (*rollouts, *earlier_rollouts))
    return lowest if lowest < 0 or lowest > best / 2 else 0.0


def _size_sentences(
    rollouts: Sequence[Graded], wrong: Sequence[Graded], best: float, lost: float, possible: float
) -> list[str]:
    """Return sentences about how much reward is lost, and by how many rollouts.

    Args:
        wrong: The rollouts that lose reward, the worst first.
        possible: The reward that all rollouts together can lose.
    """
    points = f"{number(lost)} of {possible:,.6g} points ({percent(lost / possible)}%)"
    size = f"{len(wrong):,} of {counted(len(rollouts), 'rollout')}"
    sentences = [f"{size} earned less than the best reward, {number(best)}; together they lost {points}."]
    num_worst = 0
    lost_by_worst = 0.0
    while lost_by_worst < MOST_LOST * lost and num_worst < len(wrong):
        lost_by_worst += best - wrong[num_worst].reward
        num_worst += 1
    if num_worst < len(wrong) / 2:
        worst = f"{num_worst:,} worst rollouts" if num_worst > 1 else "worst rollout"
        sentences.append(f"The {worst} lost {percent(lost_by_worst / lost)}% of these points.")
    return sentences


def _worst_words(rollout: Graded) -> str:
    """Return how a rollout ended. Of several turns, the last reply answers the message before it, not the question."""
    if rollout.turns > 1:
        return f"after {rollout.turns:,} turns: {rollout.ending}"
    question = cut(" ".join(rollout.question.split()), MAX_SHORT_CHARS)
    expected = f" (expected: {rollout.answer})" if rollout.answer else ""
    return " ".join(f"{question} → {rollout.ending or rollout.reply}{expected}".split())


def _question_sentences(questions: Sequence[JsonMapping], num_questions: int, num_rollouts: int) -> list[str]:
    """Return a sentence about the listed questions; none if each question has one rollout, or if all are listed."""
    if num_questions == num_rollouts or not questions or len(questions) == num_questions:
        return []
    share = sum(group["lost"] for group in questions)
    return [f"{len(questions):,} of {counted(num_questions, 'question')} lost {percent(share)}% of these points."]


def _reply_sentences(replies: Sequence[JsonMapping]) -> list[str]:
    """Return a sentence about the wrong reply that loses most, if it is frequent."""
    if not replies or replies[0]["lost"] < FREQUENT_LOST or replies[0]["rollouts"] < FREQUENT_REPLIES:
        return []
    worst = replies[0]
    name = cut(" ".join(worst["name"].split()), MAX_SHORT_CHARS) or "(empty)"
    share = f"{percent(worst['lost'])}% of these points in {worst['rollouts']:,} rollouts"
    return [f"The wrong reply that loses most is {name}: {share}."]


def _field_sentences(fields: Mapping[str, Sequence[JsonMapping]], rollouts: Sequence[Graded]) -> list[str]:
    """Return a sentence about the worst value of each field, if one below the mean reward loses at least `MIN_LOST`."""
    mean = fmean(rollout.reward for rollout in rollouts)
    sentences: list[str] = []
    for name, groups in fields.items():
        costly = [group for group in groups if group["lost"] >= MIN_LOST and group["mean"] < mean]
        named = [group for group in costly if group["name"] != OTHER_MESSAGES]
        if not named:
            continue
        # The lowest mean of all may be that of a few unlucky rollouts.
        worst = max(named, key=lambda group: (mean - group["mean"]) * group["rollouts"] ** 0.5)
        other_rewards = [rollout.reward for rollout in rollouts if rollout.line not in worst["lines"]]
        sentences.append(
            f"{name} = {worst['name']}: mean reward {number(worst['mean'])} in {counted(worst['rollouts'], 'rollout')}, "
            f"{number(fmean(other_rewards))} in the others."
        )
    return sentences


def _groups(
    rollouts: Sequence[Graded],
    earlier_rollouts: Sequence[Graded],
    key: Callable[[Graded], str],
    best: float,
    lost: float,
) -> list[JsonObject]:
    """Return the groups of rollouts with the same key, those that lose most reward first."""
    members: dict[str, list[Graded]] = {}
    for rollout in rollouts:
        members.setdefault(key(rollout), []).append(rollout)
    earlier_rewards: dict[str, list[float]] = {}
    for rollout in earlier_rollouts:
        earlier_rewards.setdefault(key(rollout), []).append(rollout.reward)
    groups: list[JsonObject] = []
    for name, group_members in members.items():
        rewards = [rollout.reward for rollout in group_members]
        worst = min(group_members, key=lambda rollout: rollout.reward)
        groups.append(
            {
                "name": name,
                "answer": worst.answer,
                "reply": worst.reply,
                "turns": worst.turns,
                "ending": worst.ending,
                "rollouts": len(group_members),
                "wrong": sum(best - reward > 1e-9 for reward in rewards),
                "mean": fmean(rewards),
                "before": fmean(earlier_rewards[name]) if name in earlier_rewards else None,
                "points": sum(best - reward for reward in rewards),
                "lost": sum(best - reward for reward in rewards) / lost,
                "line": worst.line,
                "lines": {rollout.line for rollout in group_members},
            }
        )
    groups.sort(key=lambda group: -group["lost"])
    return groups


def _shown(group: JsonObject) -> JsonObject:
    """Return a group without its lines, with short texts."""
    texts = {name: cut(" ".join(group[name].split()), MAX_CHARS) for name in ("name", "answer", "reply")}
    return {**{name: value for name, value in group.items() if name != "lines"}, **texts}


def _field_groups(
    rollouts: Sequence[Graded], earlier_rollouts: Sequence[Graded], best: float, lost: float
) -> dict[str, list[JsonObject]]:
    """Return the groups of the fields whose groups differ more than by chance, in the order of their values; the fields that
    explain most of the variance first, at most `MAX_FIELDS`.

    The test takes rollouts as independent: with several rollouts per example, it lists too many fields rather than too few.
    """
    rewards = [rollout.reward for rollout in rollouts]
    mean = fmean(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards)
    explained: list[tuple[float, str, list[JsonObject]]] = []
    has_turns = any(rollout.turns > 1 for rollout in rollouts)
    names = dict.fromkeys(name for rollout in rollouts for name in rollout.fields)
    for name in names if variance else ():
        if name in TURN_FIELDS and not has_turns:
            continue
        values = [rollout.fields[name] for rollout in rollouts if name in rollout.fields]
        label = _message_labels(values) if name == LAST_MESSAGE else _labels(values)
        if label is None:
            continue

        # The defaults keep this field's name and labels: a closure would see those of the last field.
        def value(rollout: Graded, name: str = name, label: Callable[[str | float], str] = label) -> str:
            return label(rollout.fields[name]) if name in rollout.fields else "none"

        groups = _groups(rollouts, earlier_rollouts, value, best, lost)
        between = sum(group["rollouts"] * (group["mean"] - mean) ** 2 for group in groups)
        share, chance = explained_variance(between / variance, len(groups), len(rollouts))
        if share >= MIN_EXPLAINED and chance <= MAX_CHANCE:
            # Only after the test, whose probability holds for groups that are not chosen by their rewards.
            if OTHER_MESSAGES in label.order:
                costly = {group["name"] for group in groups if group["lost"] >= MIN_LOST}
                label = _Labels([text for text in label.order if text in {*costly, OTHER_MESSAGES}])
                groups = _groups(rollouts, earlier_rollouts, partial(value, label=label), best, lost)
            order = {text: position for position, text in enumerate(label.order)}
            groups.sort(key=lambda group: order.get(group["name"], len(order)))
            explained.append((share, name, groups))
    explained.sort(key=lambda entry: -entry[0])
    return {name: groups for _, name, groups in explained[:MAX_FIELDS]}


def explained_variance(share: float, groups: int, rollouts: int) -> tuple[float, float]:
    """Return the share of the variance that groups explain beyond chance, and the probability of such a share by chance.

    Rare errors leave a small share also to a field that causes them, and a field of many values explains some share of any
    rewards. So the share itself does not tell whether a field matters.

    Args:
        share: Variance between the means of the groups / variance of the rewards, 0 to 1.
        groups: Number of groups.
        rollouts: Number of rollouts.

    Returns:
        The share without the part that a field of noise explains on average (Wherry's correction), and the probability of at
        least `share` if the groups do not differ (F test); 0 and 1 if there are too few groups or rollouts to tell.
    """
    freedom = rollouts - groups
    if groups < 2 or freedom < 1:
        return 0.0, 1.0
    corrected = 1 - (1 - share) * (rollouts - 1) / freedom
    return corrected, beta_below(1 - share, freedom / 2, (groups - 1) / 2)


class _Labels:
    """The labels of a field's values.

    Args:
        order: The labels in the order of the values.
        edges: Upper limits of the ranges of a number but the last; () if each value is a label.
    """

    def __init__(self, order: list[str], edges: Sequence[float] = ()):
        self.order = order
        self.edges = edges

    def __call__(self, value: str | float) -> str:
        """Return the label of a value."""
        if not self.edges:
            text = _value_text(value)
            return OTHER_MESSAGES if OTHER_MESSAGES in self.order and text not in self.order else text
        position = sum(isinstance(value, float) and value > edge for edge in self.edges)
        return self.order[position]


def _labels(values: Sequence[str | float]) -> _Labels | None:
    """Return the labels of a field; None if its values cannot be grouped."""
    different = set(values)
    numbers = sorted(value for value in values if isinstance(value, float))
    if len(different) <= MAX_VALUES:
        texts = sorted(value for value in different if isinstance(value, str))
        return _Labels([_value_text(value) for value in (*sorted(set(numbers)), *texts)])
    if len(numbers) < len(values):
        return None
    edges = sorted(set(quantiles(numbers, n=NUM_RANGES, method="inclusive")))
    edges = [edge for edge in edges if edge < numbers[-1]]
    limits = [numbers[0], *edges, numbers[-1]]
    order = [f"{_value_text(low)} to {_value_text(high)}" for low, high in pairwise(limits)]
    return _Labels(order, edges) if edges else None


def _message_labels(values: Sequence[str | float]) -> _Labels | None:
    """Return the labels of last messages. Of many, only frequent ones have a label: an invalid reply often gets the same message,
    while a rollout that reaches the turn limit ends with a message of its own.
    """
    counts = Counter(values)
    if len(counts) <= MAX_VALUES:
        return _labels(values)
    frequent = [str(text) for text, count in counts.most_common(MAX_VALUES - 1) if count >= MIN_SAME_MESSAGES]
    return _Labels([*sorted(frequent), OTHER_MESSAGES])


def _value_text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.6g}"
