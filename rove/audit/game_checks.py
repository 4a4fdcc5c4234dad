"""Checks of games and tools: policies that ignore observations, and steps that are paid repeatedly."""

from __future__ import annotations

import inspect
import random
import re
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise, permutations

from rove.audit.baseline import MIN_PAIRS, Baseline, beats_guess, is_higher
from rove.audit.findings import shortened
from rove.audit.replies import Form, constant, last_message, observed_actions, shown
from rove.audit.subject import TRIED_EXAMPLES, Measured, Policy, Subject, highest, measure_promising
from rove.audit.traces import Moves, calls_of, moves_by_row, of_other_row, of_other_rows, replayed, with_repeated_moves
from rove.core.findings import Finding, Severity
from rove.core.messages import AssistantMessage, Message, Messages, text_of
from rove.core.state import State, bookkeeping
from rove.envs.tool import example_call

MAX_PAIRED = 5
"""Maximum number of actions from which pairs of alternating actions are formed."""
SCRIPTED_TURNS = (2, 5)
"""Numbers of repetitions of an action before another one, as in several low offers before an acceptance."""
MAX_ACTIONS = 12
"""Maximum number of different actions that are tried."""
BLIND_SHARE = 0.5
"""A blind policy is a finding, of high severity, if it earns this share of the range of rewards."""
PHRASES = ("Is it working now?", "Is the problem solved?", "Done. Everything is solved.", "Yes.", "Goodbye.")
"""Messages that a scripted user may take for success."""
OPPOSITES = (("north", "south"), ("west", "east"), ("up", "down"), ("left", "right"), ("forward", "back"))
SWEPT_ACTIONS, SWEPT_TURNS = 4, 5
"""Number of actions from which sweeps are formed, and turns in one direction."""
MAX_CALLS = 4
"""Maximum number of calls of tools that are tried as blind actions."""
ROW_TURNS = 40
"""Maximum number of moves of other rows in one rollout."""
PROMISING_SHARE = 0.1
"""A blind policy that exceeds this share of the range on a few examples is tried on all examples."""
MAX_PROMISING = 4
"""Maximum number of blind policies that are tried on all examples. Of 24 sweeps of a map, all may be paid, at 40 turns each."""
NEARLY_ALL = 0.8
"""A blind policy that earns at least this share of the best policy's reward is a finding, even if the weakest policy is good."""
TRIED_TURNS, MIN_TRIED = 240, 6
"""Number of turns for which a policy is tried in long games, and minimum number of its examples."""
MAX_VERBS = 4
"""Maximum number of verbs of commands that are tried as steps."""
MAX_REPEATED = 8
"""Maximum number of different replies of a policy that are tried as repeated actions."""
REPEATED_EXAMPLES = 5
"""Number of examples on which repeated replies are tried."""
MANY_TURNS = 1.5
"""Minimum ratio of the turns of a policy that repeats actions for rewards to the turns of the policy that does the task."""
PAID_STEP = 0.03
"""Minimum share of the range of rewards that a further repetition must add."""
STALLING_SHARE = 0.2
"""It is a finding if repeating a move raises the reward of a policy that stopped early by this share of the range of rewards."""
COPIES, FIRST_COPIES = 3, 20
"""Copies of each move of a good policy, and of its first move."""
EXTRA_SHARE = 0.1
"""It is a finding if superfluous moves of a good policy raise its reward by this share of the range of rewards."""


def actions_of(base: Baseline, measured: Sequence[Measured] = ()) -> list[str]:
    """Return actions that prompts mention, or that scripted policies use."""
    used: Counter[str] = Counter()
    for policy in measured:
        for record in policy.scored[:20]:
            for message in record.completion:
                if message["role"] == "assistant":
                    text = text_of(message)
                    used.update(re.findall(r">([^<>\n]{1,20})</", text) or [text[:40]])
    actions = [action for action, _ in used.most_common(MAX_ACTIONS // 2)]
    for prompt in base.prompts:
        actions += observed_actions(prompt)
    return list(dict.fromkeys(actions))


def blind_policies(form: Form, actions: Sequence[str]) -> dict[str, Policy]:
    """Return policies of several turns that ignore observations, or only repeat parts of them."""
    chosen = list(actions)[:MAX_ACTIONS] or ["1"]

    def first_listed(messages: Messages, state: State, rng: random.Random) -> str:
        return form(next(iter(observed_actions(last_message(messages))), chosen[0]))

    def last_listed(messages: Messages, state: State, rng: random.Random) -> str:
        listed = observed_actions(last_message(messages)) or observed_actions(shown(messages))
        return form(listed[-1] if listed else chosen[0])

    def last_bracket(messages: Messages, state: State, rng: random.Random) -> str:
        brackets = re.findall(r"\[[^\[\]\n]{1,20}\]", shown(messages))
        return brackets[-1] if brackets else "[0]"

    policies: dict[str, Policy] = {
        "nothing": constant(""),
        "no action": constant("I do not know."),
        "form without an action": constant(form("")),
        "echo": lambda messages, state, rng: last_message(messages),
        "echo in the form": lambda messages, state, rng: form(last_message(messages)[:40]),
        "cycle": _in_turns(form, *chosen),
        "first action of the last message": first_listed,
        "last action of the last message": last_listed,
        "last bracket": last_bracket,
        "give up": constant(form("give up")),
        "count up from 0": lambda messages, state, rng: form(str(len(bookkeeping(state).trajectory))),
        "count up from 1": lambda messages, state, rng: form(str(len(bookkeeping(state).trajectory) + 1)),
        # The opponent and the grader may read different numbers of a message.
        "a high number, then a low one": constant("9999, or 1"),
        "a low number, then a high one": constant("1, or 9999"),
        "a high number, then a low one, in the form": constant(form("9999 or 1")),
        "a low number, then a high one, in the form": constant(form("1 or 9999")),
        "random action": lambda messages, state, rng: form(rng.choice(chosen)),
        "all actions at once": constant("\n".join(map(form, chosen))),
    }
    policies |= {f"says {text!r}": constant(text) for text in PHRASES}
    pairs = permutations(chosen[:MAX_PAIRED], 2)
    policies |= {f"{a!r} and {b!r} in turns": _in_turns(form, a, b) for a, b in pairs}
    for first, then in permutations(_with_other_numbers(chosen[:MAX_PAIRED]), 2):
        for count in SCRIPTED_TURNS:
            policies[f"{first!r} {count} times, then {then!r}"] = _path([*[form(first)] * count, form(then)])
    return policies | {f"always {action!r}": constant(form(action)) for action in chosen}


def _with_other_numbers(actions: Sequence[str]) -> list[str]:
    """Return actions such as "offer 42" also with the number 1, the lowest that is usually valid."""
    variants: list[str] = []
    for action in actions:
        variants += [re.sub(r"\d+", "1", action)] if re.search(r"[a-z] \d", action) else []
    return list(dict.fromkeys([*variants, *actions]))[:MAX_PAIRED]


def sweeps(base: Baseline) -> dict[str, Policy]:
    """Return policies that visit every position of a map without looking at it: first a corner, then row by row.

    The four most frequent moves of the good policies are the directions. If their names do not show which of them are opposite,
    all orders are tried; otherwise one order per corner, since each visits all positions.
    """
    if not base.honest or not base.is_multi_turn:
        return {}
    best = highest(base.honest)
    counts: Counter[str] = Counter()
    for moves in moves_by_row(best).values():
        counts.update(text_of(move) for move in moves if not calls_of(move))
    directions = [text for text, count in counts.most_common(SWEPT_ACTIONS) if count >= len(best.scored) / 4]
    if len(directions) < SWEPT_ACTIONS:
        return {}
    policies: dict[str, Policy] = {}
    orders = list(permutations(directions))
    consistent = [order for order in orders if _are_opposite(order[0], order[3]) and _are_opposite(order[1], order[2])]
    for up, left, right, down in consistent[::2] or orders:  # the other half begins at the opposite corner
        rows = [*[right] * SWEPT_TURNS, down, *[left] * SWEPT_TURNS, down]
        path = [*[up] * SWEPT_TURNS, *[left] * SWEPT_TURNS, *rows * SWEPT_TURNS]
        policies[f"sweep: {up!r}, {left!r}, then rows"] = _path(path)
    return policies


def _are_opposite(first: str, second: str) -> bool:
    """Return whether two moves differ only in a direction and its opposite."""
    for pair in OPPOSITES:
        for direction, opposite in (pair, pair[::-1]):
            if re.search(rf"\b{direction}\b", first) and re.sub(rf"\b{direction}\b", opposite, first) == second:
                return True
    return False


def _path(actions: Sequence[str]) -> Policy:
    return lambda messages, state, rng: actions[min(len(bookkeeping(state).trajectory), len(actions) - 1)]


def blind_calls(base: Baseline) -> dict[str, Policy]:
    """Return policies that always make the same calls of tools, alone and two in turns.

    The calls are the most frequent ones of the good policies, and one of each tool with values that fit its schema.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for measured in base.honest:
        for moves in moves_by_row(measured).values():
            calls = [call["function"] for move in moves for call in calls_of(move)]
            counts.update((call["name"], call["arguments"]) for call in calls)
    # A call that is rare in the rows has the arguments of one row.
    chosen = [call for call, count in counts.most_common(MAX_CALLS) if count > 2]
    for tool in base.tools[:MAX_CALLS]:
        function = example_call(tool, "call")["function"]
        chosen.append((function["name"], function["arguments"]))
    chosen = list(dict.fromkeys(chosen))[: 2 * MAX_CALLS]
    policies = {f"always {name}({arguments})": _calls_in_turns((name, arguments)) for name, arguments in chosen}
    for first, second in permutations(chosen[:MAX_CALLS], 2):
        policies[f"{first[0]}({first[1]}) and {second[0]}({second[1]}) in turns"] = _calls_in_turns(first, second)
    return policies


def _calls_in_turns(*calls: tuple[str, str]) -> Policy:
    def policy(messages: Messages, state: State, rng: random.Random) -> Message:
        turn = len(bookkeeping(state).trajectory)
        name, arguments = calls[turn % len(calls)]
        function = {"name": name, "arguments": arguments}
        return AssistantMessage(None, tool_calls=[{"id": f"call_{turn}", "type": "function", "function": function}])

    return policy


async def check_moves_of_other_rows(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if the moves of a good policy on other rows earn a reward, because what the rows show does not matter."""
    # Rows that are all equal are one task, which the same moves do.
    contents = {str({key: value for key, value in row.items() if key != "example_id"}) for row in subject.rows}
    if not base.honest or len(contents) < 2:
        return
    best = highest(base.honest)
    if len(base.honest) == 1 and await _moves_at_random(subject, best):
        return  # its moves look at no row
    moves = moves_by_row(best)
    policies = {
        f"moves of the {best.name} on another row": replayed(of_other_row(moves)),
        f"moves of the {best.name} on other rows": replayed(of_other_rows(moves, ROW_TURNS)),
    }
    # On a row with the same answer, the moves of another row are right; and a weak policy may do as well without them.
    weak_means = [policy.mean for policy in base.honest if policy is not best]
    lowest = min(weak_means, default=base.idle.mean)
    expected = max(base.chance, balanced_share(base), base.share_of_task(max(base.idle.mean, lowest)))
    if expected >= 1:
        return
    tried = [await subject.measure(name, policy, TRIED_EXAMPLES) for name, policy in policies.items()]
    name = highest(tried).name
    if base.share_of_task(highest(tried).mean, expected) < BLIND_SHARE:
        return
    moved = await subject.measure(name, policies[name])
    is_paid = base.share_of_task(moved.mean, expected) >= BLIND_SHARE
    if is_paid and is_higher(moved, base.idle, base.task_range):
        yield moved.finding(
            "blind-game",
            f"the {moved.name} earn {moved.mean:.3f}, without looking at the row; on its own rows, it earns {best.mean:.3f}",
            Severity.HIGH,
            floor=base.idle.mean,
        )


async def _moves_at_random(subject: Subject, measured: Measured) -> bool:
    """Return whether a scripted policy does something else on most rows in another rollout."""
    policy = subject.env.policies[measured.name.removeprefix("policy ")]
    repeated = await subject.measure(f"{measured.name} again", policy, TRIED_EXAMPLES, seed=1)
    first, second = moves_by_row(measured), moves_by_row(repeated)
    num_changed = sum(str(moves) != str(first.get(row)) for row, moves in second.items())
    return num_changed > len(second) / 2


def balanced_share(base: Baseline) -> float:
    """Return the share of rows that a constant last move gets right if the last moves of the best policy are balanced.

    A decision between two tools is right in half of the rows, also in a sound environment. 0 if all last moves are equal.
    """
    if not base.honest:
        return 0.0
    last_moves: set[str] = set()
    for moves in moves_by_row(highest(base.honest)).values():
        acting = [move for move in moves if calls_of(move)] or moves
        functions = [call["function"] for call in calls_of(acting[-1])] if acting else []
        text = text_of(acting[-1]) if acting else ""
        last_moves.add(str(functions) if functions else text)
    return 1 / len(last_moves) if len(last_moves) > 1 else 0.0


def _in_turns(form: Form, *actions: str) -> Policy:
    return lambda messages, state, rng: form(actions[len(bookkeeping(state).trajectory) % len(actions)])


async def check_blind_games(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if a policy that ignores the environment earns as much as a good policy."""
    policies = blind_policies(base.form, actions_of(base, base.honest)) | sweeps(base) | blind_calls(base)
    above = base.floor.mean + PROMISING_SHARE * base.range
    above = min(above, NEARLY_ALL * base.full) if base.full > 0 else above
    turns = statistics.fmean([len(record.steps) for record in base.floor.scored] or [1])
    tried = max(MIN_TRIED, min(TRIED_EXAMPLES, int(TRIED_TURNS / max(turns, 1))))
    # A policy exactly at the limit counts, too; `measure_promising` requires more than its limit.
    measured = await measure_promising(subject, policies, above - 1e-9, tried, MAX_PROMISING)
    balanced = balanced_share(base)
    paid: list[Measured] = []
    for candidate in measured:
        is_paid = beats_guess(candidate, base) and _share_above(base, candidate, balanced) >= BLIND_SHARE
        # A guess may earn nearly the full reward, too; then nothing is higher than the floor.
        is_full = base.full > 0 and candidate.mean >= NEARLY_ALL * base.full
        if is_paid or is_full:
            paid.append(candidate)
    if paid:
        worst = highest(paid)
        is_severe = beats_guess(worst, base) and _share_above(base, worst, balanced) >= BLIND_SHARE
        comparison = "the best scripted policy" if base.honest else "a full reward"
        yield worst.finding(
            "blind-game",
            f"the policy '{worst.name}', which does not do the task, earns {worst.mean:.3f}; {comparison} earns {base.full:.3f}, "
            f"'{base.floor.name}' {base.floor.mean:.3f}",
            Severity.HIGH if is_severe else Severity.MEDIUM,
            floor=base.floor.mean,
        )


def _share_above(base: Baseline, measured: Measured, expected: float) -> float:
    """Return the position of a reward between a guess and a right answer, above an expected share."""
    return (base.share(measured.mean) - expected) / (1 - expected)


async def check_repeated_actions(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if repeating two actions of the best policy earns as much as the whole task.

    The usual cause is a reward for a step towards the goal that can be earned repeatedly: Ng, Harada and Russell 1999,
    "Policy invariance under reward transformations".
    """
    if not base.honest:
        return
    best = highest(base.honest)
    policy = subject.env.policies[best.name.removeprefix("policy ")]
    if not is_higher(best, base.floor, base.range):
        return
    replies: Counter[str] = Counter()
    for record in best.scored[:20]:
        for message in record.completion:
            if message["role"] == "assistant" and not message.get("tool_calls"):
                replies[text_of(message)] += 1
    del replies[""]  # a Counter ignores a missing key here
    # A reply to a single row is an answer, not an action.
    chosen = [reply for reply, count in replies.most_common(MAX_REPEATED) if count > 1]
    verbs = commands_in("\n".join(base.prompts))
    # A good policy never undoes a step, such as "drop key" after "take key", but another command of the prompt may do so.
    undone = [(first, then) for first in chosen for then in with_other_verbs(first, verbs)]
    tried: list[tuple[Measured, str, str]] = []
    for first, then in [*permutations(chosen, 2), *undone]:
        repeated = _repeated(policy, first, then)
        measured = await subject.measure(f"{first!r}, then {then!r}", repeated, REPEATED_EXAMPLES)
        tried.append((measured, first, then))
    if not tried:
        return
    # Only the best of the few-example trials is worth a measurement on all examples.
    promising, first, then = max(tried, key=lambda attempt: attempt[0].mean)
    if promising.mean < NEARLY_ALL * base.full:
        return
    repeating = await subject.measure(promising.name, _repeated(policy, first, then))
    # A policy that stops after `first` shows whether the repetition or the beginning is paid.
    idle = await subject.measure(f"{first!r}, then nothing", _repeated(policy, first, ""))
    turns = statistics.fmean(len(record.steps) for record in repeating.scored)
    needed = statistics.fmean(len(record.steps) for record in best.scored)
    is_paid = repeating.mean >= NEARLY_ALL * base.full and is_higher(repeating, idle, base.range)
    if is_paid and turns >= MANY_TURNS * needed:
        yield repeating.finding(
            "blind-game",
            f"after {shortened(first, 60)!r}, repeating {shortened(then, 60)!r} and the former earns {repeating.mean:.3f} in "
            f"{turns:.0f} turns; the {best.name} does the task in {needed:.0f} turns and earns {best.mean:.3f}",
            floor=idle.mean,
        )


async def check_copied_moves(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if the best policy earns more when it makes each of its moves several times: a step is paid repeatedly.

    Calls of tools are left to `check_paid_calls`.
    """
    if not base.honest:
        return
    best = highest(base.honest)
    moves = moves_by_row(best)
    if any(calls_of(move) for row_moves in moves.values() for move in row_moves):
        return
    variants = {
        f"the {best.name} with each move {COPIES} times": with_repeated_moves(moves, COPIES),
        f"the first move of the {best.name}, {FIRST_COPIES} times": lambda row: moves.get(row, [])[:1] * FIRST_COPIES,
    }
    counts = Counter(text_of(move) for row_moves in moves.values() for move in row_moves)
    frequent = [move for move, count in counts.most_common(MAX_PAIRED) if count > 1]
    for first, then in permutations(frequent, 2):
        # Two moves may undo each other, such as a step forward and back.
        name = (
            f"{shortened(first, 40)!r} and {shortened(then, 40)!r}, {COPIES} times, before the moves of the {best.name}"
        )
        pairs: Moves = [AssistantMessage(first), AssistantMessage(then)] * COPIES
        variants[name] = lambda row, pairs=pairs: [*pairs, *moves.get(row, [])]
    for name, choose in variants.items():
        tried = await subject.measure(name, replayed(choose), REPEATED_EXAMPLES)
        if tried.mean - best.mean < EXTRA_SHARE * base.task_range:
            continue
        copied = await subject.measure(name, replayed(choose))
        gain = copied.mean - best.mean
        if gain >= EXTRA_SHARE * base.task_range and is_higher(copied, best, base.task_range):
            yield copied.finding(
                "blind-game",
                f"{name} earns {copied.mean:.3f}, as it is {best.mean:.3f}: repeated moves are paid again",
                Severity.HIGH if base.share_of_task(gain) >= BLIND_SHARE else Severity.MEDIUM,
                floor=best.mean,
            )
            return


async def check_stalling(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if repeating the last move but one, in place of the last one, earns much of what the best policy earns.

    The usual cause is credit for partial success that is paid in every turn, while success ends the rollout.
    """
    if not base.honest:
        return
    best = highest(base.honest)
    moves: dict[int, Moves] = {}
    for row, row_moves in moves_by_row(best).items():
        # If the last two moves are equal, the repetition may be what the task asks for.
        if len(row_moves) > 1 and text_of(row_moves[-1]) != text_of(row_moves[-2]):
            moves[row] = row_moves
    has_calls = any(calls_of(move) for row_moves in moves.values() for move in row_moves)
    if has_calls or len(moves) < MIN_PAIRS:
        return

    def repeating(copies: int) -> Policy:
        return replayed(lambda row: [*moves.get(row, [])[:-1], *moves.get(row, [])[-2:-1] * copies])

    name = f"the {best.name} with its last move but one repeated in place of the last one"
    for count in (REPEATED_EXAMPLES, None):  # all examples only if the first few show the fault
        stopped = await subject.measure(f"the {best.name} without its last move", repeating(0), count)
        # The first repetition may end an unfinished game differently; each further one must be paid again.
        once, twice = [await subject.measure(f"{name}, {n} times", repeating(n), count) for n in (1, 2)]
        stalled = await subject.measure(name, repeating(FIRST_COPIES), count)
        step, gain = twice.mean - once.mean, stalled.mean - stopped.mean
        is_paid = step > PAID_STEP * base.task_range and gain >= STALLING_SHARE * base.task_range
        if not is_paid or base.share_of_task(stalled.mean) < BLIND_SHARE:
            return
    if is_higher(stalled, stopped, base.task_range):
        yield stalled.finding(
            "blind-game",
            f"{name} earns {stalled.mean:.3f}, and {stopped.mean:.3f} without the repetitions: partial success is paid in every "
            f"turn; as it is, the policy earns {best.mean:.3f}",
            Severity.HIGH if stalled.mean >= best.mean else Severity.MEDIUM,
            floor=stopped.mean,
        )


async def check_redone_steps(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if a step of the best policy is paid again after it was undone: "put crown" after "take crown".

    Each verb of the prompt's commands is tried as the step, and each other verb with the same words as its undoing. The reward
    must rise with the second step and again with the third one; all rollouts end with the same empty reply.
    """
    if not base.honest:
        return
    best = highest(base.honest)
    policy = subject.env.policies[best.name.removeprefix("policy ")]
    commands = [list(map(text_of, moves)) for moves in moves_by_row(best).values()]
    verbs = commands_in("\n".join(base.prompts))[:MAX_VERBS]
    for verb, undoing in permutations(verbs, 2):
        used = [[command for command in row if command.startswith(f"{verb} ")] for row in commands]
        # A task such as selling and buying repeats its commands.
        is_repeated = any(len(set(row)) < len(row) for row in used)
        if is_repeated or not any(used):
            continue
        variants = {
            f"{undoing!r} and {verb!r}, {count} times, after the first {verb!r}": _redone(
                policy, verb, undoing, 2 * count
            )
            for count in (0, 1, 2)
        }
        step = EXTRA_SHARE * base.task_range
        tried = [await subject.measure(*variant, REPEATED_EXAMPLES) for variant in variants.items()]
        if any(current.mean - previous.mean < step for previous, current in pairwise(tried)):
            continue
        once, twice, thrice = await subject.measure_all(variants)
        if thrice.mean - twice.mean >= step and is_higher(twice, once, base.task_range):
            gain = thrice.mean - once.mean
            yield thrice.finding(
                "blind-game",
                f"{thrice.name}, earns {thrice.mean:.3f}, and the first {verb!r} alone {once.mean:.3f}: the step is paid again "
                f"after it was undone; the {best.name} earns {best.mean:.3f}",
                Severity.HIGH if base.share_of_task(gain) >= BLIND_SHARE else Severity.MEDIUM,
                floor=once.mean,
            )
            return


def _redone(policy: Policy, verb: str, undoing: str, limit: int) -> Policy:
    """Return a policy that follows `policy` up to its first command with a verb, and then undoes and repeats this command.

    Args:
        undoing: Verb that undoes the command.
        limit: Number of commands after the first one, before empty replies.
    """

    async def redone(messages: Messages, state: State, rng: random.Random) -> str | Message:
        replies = [text_of(message) for message in messages if message["role"] == "assistant"]
        steps = [number for number, reply in enumerate(replies) if reply.startswith(f"{verb} ")]
        if not steps:
            reply = policy(messages, state, rng)
            return await reply if inspect.isawaitable(reply) else reply
        num_after = len(replies) - steps[0] - 1
        if num_after >= limit:
            return ""
        words = replies[steps[0]].removeprefix(verb)
        return f"{verb if num_after % 2 else undoing}{words}"

    return redone


def commands_in(text: str) -> list[str]:
    """Return the verbs of commands that a text describes, such as "take THING", "drop <thing>" or "go {room}"."""
    return list(dict.fromkeys(re.findall(r"\b([a-z]+) (?:[A-Z]{2,}\b|<\w+>|\[\w+\]|\{\w+\})", text)))


def with_other_verbs(reply: str, verbs: Sequence[str]) -> list[str]:
    """Return a command such as "take key" with each other verb; [] if its verb is not one of `verbs`."""
    verb, space, argument = reply.partition(" ")
    if verb not in verbs or not argument:
        return []
    return [f"{other_verb}{space}{argument}" for other_verb in verbs if other_verb != verb]


def _repeated(policy: Policy, first: str, then: str) -> Policy:
    """Return a policy that follows `policy` until this replies `first`, and then alternates `then` and `first`; if `then` is
    "", its replies are empty from then on.
    """

    async def repeated(messages: Messages, state: State, rng: random.Random) -> str | Message:
        replies = [text_of(message) for message in messages if message["role"] == "assistant"]
        if first not in replies:
            reply = policy(messages, state, rng)
            return await reply if inspect.isawaitable(reply) else reply
        is_even = (len(replies) - replies.index(first)) % 2 == 0
        return first if is_even and then else then

    return repeated
