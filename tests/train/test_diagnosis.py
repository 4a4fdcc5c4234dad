"""Diagnosis of training without progress."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_folders import make_record, make_scores, write_run_folder
from tiers import each_row

from rove.runs.run import Run
from rove.statistics.compare import Difference
from rove.train.diagnosis import (
    Task,
    after_rl,
    after_sft,
    before_training,
    during_rl,
    during_sft,
    is_on_plateau,
    is_refuted,
    is_stuck,
)
from rove.train.sequences import TrainingSequence
from rove.train.teacher_data import TokenClass, token_classes, unseen_answers


def token_class(entropy: float, loss: float, training_loss: float | None = None) -> TokenClass:
    return TokenClass("<answer>", ["0", "1"], 300, entropy, loss, loss if training_loss is None else training_loss)


FORMAT = token_class(0.0, 0.001)
GUESS = math.log(7)
LOW: list[dict[str, float]] = [{"step": 100, "loss": 0.4, "eval/sampled/reward/mean": 0.34}]


def task(**fields: Any) -> Task:
    return Task(**{"weakest": 0.34, "best": 1.2, "highest": 1.2, **fields})


@each_row(
    ("classes", "task_fields", "kinds"),
    [
        ([FORMAT, token_class(GUESS, 0.3 * GUESS)], {}, ["unfinished"]),
        ([FORMAT, token_class(GUESS, 0.3 * GUESS)], {"weakest": 0.1}, []),
        ([FORMAT, token_class(GUESS, 0.4 * GUESS, 0.1 * GUESS)], {}, ["memorized"]),
        ([FORMAT, token_class(GUESS, GUESS)], {}, ["guessing"]),
        ([FORMAT, token_class(GUESS, 1.5 * GUESS, 0.2 * GUESS)], {}, ["unpredictable"]),
        ([FORMAT, token_class(GUESS, GUESS)], {"is_related": False}, ["unpredictable"]),
        ([FORMAT, token_class(GUESS, GUESS)], {"is_related": True}, ["guessing"]),
        ([FORMAT, token_class(GUESS, GUESS)], {"hidden": 1.0}, ["hidden_state"]),
        ([FORMAT, token_class(GUESS, GUESS)], {"hidden": 0.1, "merged": ["RGB"]}, ["merged_tokens"]),
        ([token_class(0.0, 2.5), token_class(GUESS, GUESS)], {}, ["learning_rate"]),
        ([], {}, ["unfinished"]),
    ],
)
def test_after_sft_finds_the_cause_of_a_low_reward(
    classes: list[TokenClass], task_fields: dict[str, Any], kinds: list[str]
):
    assert [finding.id for finding in after_sft(LOW, classes, task(**task_fields))] == kinds


@pytest.mark.parametrize(
    ("rewards", "text", "advice"),
    [
        ([0.1, 0.2, 0.3, 0.4], "more than the format", "train longer"),
        ([0.1, 0.35, 0.3, 0.36], "did not rise in the second half", "easier examples"),
        ([0.1], "more than the format", "train longer"),
    ],
)
def test_more_steps_are_advised_only_while_the_reward_rises(rewards: list[float], text: str, advice: str):
    history = [{"step": step, "loss": 0.4, "eval/sampled/reward/mean": reward} for step, reward in enumerate(rewards)]
    [finding] = after_sft(history, [FORMAT, token_class(GUESS, 0.3 * GUESS)], task())
    assert finding.id == "unfinished" and text in finding.text and finding.remedy.startswith(advice)


def test_more_steps_are_advised_while_the_validation_loss_falls():
    # The losses of a run whose reward had not begun to rise after 114 steps.
    history = [
        {"step": step, "loss": 0.4, "validation_loss": loss} for step, loss in enumerate([1.94, 0.88, 0.63, 0.56, 0.54])
    ]
    history[0] |= {"eval/sampled/reward/mean": 0.0}
    history[-1] |= {"eval/sampled/reward/mean": 0.0}
    [finding] = after_sft(history, [FORMAT, token_class(GUESS, 0.3 * GUESS)], task())
    assert "still fell, from 0.63 to 0.54 nats" in finding.text and finding.remedy.startswith("train longer")
    for late_losses in ([0.63, 0.63, 0.63], [0.63, 0.8, 1.1]):
        for row, loss in zip(history[2:], late_losses, strict=True):
            row["validation_loss"] = loss
        [finding] = after_sft(history, [FORMAT, token_class(GUESS, 0.3 * GUESS)], task())
        assert finding.remedy.startswith("easier examples")


@each_row(
    ("rewards", "training_loss", "target", "kinds"),
    [
        ([0.6, 0.7, 0.7, 0.71], 0.3 * GUESS, 0.8, ["unfinished"]),
        ([0.6, 0.7, 0.7, 0.71], 0.1 * GUESS, 0.8, ["memorized"]),
        ([0.6, 0.7, 0.75, 0.79], 0.3 * GUESS, 0.8, []),  # still rising
        ([0.6, 0.8, 0.8, 0.8], 0.3 * GUESS, 0.8, []),
        ([0.6, 0.7, 0.7, 0.71], 0.3 * GUESS, None, []),
        ([0.7], 0.3 * GUESS, 0.8, []),
    ],
)
def test_a_reward_that_stays_below_the_target_is_reported(
    rewards: list[float], training_loss: float, target: float | None, kinds: list[str]
):
    history = [{"step": step, "loss": 0.4, "eval/sampled/reward/mean": reward} for step, reward in enumerate(rewards)]
    diagnoses = after_sft(history, [FORMAT, token_class(GUESS, 0.3 * GUESS, training_loss)], task(), target)
    assert [diagnosis.id for diagnosis in diagnoses] == kinds
    assert all("below its target of 0.800" in diagnosis.text for diagnosis in diagnoses)


def test_sft_that_reaches_its_target_at_once_has_no_finding():
    history = [
        {"step": step, "loss": 0.4, "eval/sampled/reward/mean": reward} for step, reward in ((25, 0.0), (50, 0.9))
    ]
    assert after_sft(history, [FORMAT, token_class(GUESS, 0.3 * GUESS)], task(), 0.8) == []


@pytest.mark.parametrize(
    ("examples", "text", "advice"),
    [
        (None, "memorized the training data", "use more different training examples"),
        ((4000, 4000), "memorized the training data", "use more different training examples"),
        ((4000, 880), "Only 880 of the first 4,000 training examples differ", "add more different examples"),
    ],
)
def test_memorized_examples_that_repeat_are_counted(examples: tuple[int, int] | None, text: str, advice: str):
    [finding] = after_sft(LOW, [FORMAT, token_class(GUESS, 0.4 * GUESS, 0.1 * GUESS)], task(examples=examples))
    assert finding.text.endswith(text) and finding.remedy.startswith(advice)


def test_answers_that_no_training_response_contains_are_counted(tmp_path: Path):
    examples = [(1, "7"), (2, "8"), (3, "9")]
    rollouts = [
        make_record(i, answer=text, completion=[{"role": "assistant", "content": text}]) for i, text in examples
    ]
    call = {"function": {"name": "say", "arguments": json.dumps({"text": 'c "d" é'})}}
    with_call = make_record(5, answer="8", completion=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    failed = msgspec.structs.replace(rollouts[2], scores=make_scores(0.0))
    training = write_run_folder(tmp_path / "data", [*rollouts[:2], with_call, failed])
    answers = ["7", "9", "10", 'c "d" é']
    held_out = write_run_folder(tmp_path / "eval", [make_record(i, answer=text) for i, text in enumerate(answers * 2)])
    assert unseen_answers(training, held_out, min_reward=0.5) == (2, 4)
    assert unseen_answers(training, held_out, min_reward=None) == (1, 4)


def test_answers_that_are_new_in_any_case_are_not_counted(tmp_path: Path):
    def run(name: str, answers: Sequence[int], text: str = "{}") -> Run:
        replies = [{"role": "assistant", "content": text.format(answer)} for answer in answers]
        pairs = zip(answers, replies)
        return write_run_folder(
            tmp_path / name, [make_record(i, answer=str(a), completion=[m]) for i, (a, m) in enumerate(pairs)]
        )

    training = run("said", range(9))
    assert unseen_answers(training, run("twice", [20, 20, 21, 21]), None) == (2, 2)
    assert unseen_answers(training, run("once", [20, 21, 22]), None) is None
    assert unseen_answers(training, run("empty", []), None) is None
    assert unseen_answers(run("other", range(9), "well done"), run("again", [20, 20]), None) is None


@pytest.mark.parametrize(
    ("unseen", "is_stated"), [((147, 175), True), ((80, 175), False), ((0, 0), False), (None, False)]
)
def test_memorization_says_if_most_held_out_answers_are_new(unseen: tuple[int, int] | None, is_stated: bool):
    [finding] = after_sft(LOW, [FORMAT, token_class(GUESS, 0.4 * GUESS, 0.1 * GUESS)], task(unseen=unseen))
    assert ("147 of the 175 different held-out answers occur in no response" in finding.text) == is_stated
    assert finding.remedy.startswith("list the possible answers") == is_stated


def test_the_guessing_finding_names_the_tokens_and_the_number_of_choices():
    (finding,) = after_sft(LOW, [FORMAT, token_class(GUESS, GUESS)], task())
    assert "After '<answer>' the model guesses among '0', '1': the loss is 1.95 nats" in finding.text
    assert "uniform choice among 7.0" in finding.text


def test_a_reward_above_the_weakest_policy_is_not_guessing():
    history = [{"step": 100, "eval/sampled/reward/mean": 0.6}]
    assert after_sft(history, [FORMAT, token_class(GUESS, 0.95 * GUESS)], task()) == []


def test_negative_rewards_are_compared_by_their_range():
    history = [{"step": 100, "eval/sampled/reward/mean": -1.0}]
    classes, range_ = [FORMAT, token_class(GUESS, GUESS)], task(weakest=-1.0, best=1.0)
    assert [finding.id for finding in after_sft(history, classes, range_)] == ["guessing"]
    assert after_sft([{"step": 100, "eval/sampled/reward/mean": 0.0}], classes, range_) == []


@pytest.mark.parametrize(
    ("rewards", "losses", "steps", "expected"),
    [
        ([0.3, 0.36, 0.34, 0.35, 0.33], [0.8] * 5, 150, True),
        ([0.0, 0.01, 0.01, 0.0, 0.01], [0.8] * 5, 150, True),  # worse than a guess, and no longer improving
        ([0.3, 0.36, 0.34, 0.35, 0.33], [0.8] * 5, 149, False),  # too early
        ([0.3, 0.36, 0.34, 0.35, 0.33], [0.8, 0.78, 0.76, 0.74, 0.71], 150, False),  # the loss falls
        ([0.25, 0.3, 0.35, 0.4, 0.41], [0.8] * 5, 150, False),  # the reward rises
        ([0.9, 0.9, 0.9, 0.3, 0.36, 0.34, 0.35, 0.34], [0.8] * 8, 150, False),  # it has learned before
        ([0.34, 0.35], [0.8] * 2, 150, False),
    ],
)
def test_sft_is_on_a_plateau(rewards: list[float], losses: list[float], steps: int, expected: bool):
    history: list[dict[str, float]] = [{"step": step} for step in range(steps - len(rewards))]
    for reward, loss in zip(rewards, losses, strict=True):
        history.append({"step": 0.0, "eval/sampled/reward/mean": reward, "validation_loss": loss})
    assert is_on_plateau(history, task()) is expected


def sft(reward: float, steps: int = 10, loss: float = 0.3) -> list[dict[str, float]]:
    return [{"step": step, "loss": loss, "eval/sampled/reward/mean": reward} for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("history", "expected"),
    [(sft(0.34), True), (sft(0.34, steps=9), False), (sft(0.6), False), ([{"step": 1, "loss": 1.0}] * 20, False)],
)
def test_sft_is_stuck_if_a_tenth_of_its_steps_gained_nothing(history: list[dict[str, float]], expected: bool):
    assert is_stuck(history, 100, task()) is expected


@each_row(
    ("task_fields", "loss", "kinds"),
    [
        ({}, 0.3, []),
        ({"is_related": True, "hidden": 0.0, "token_entropy": 3.0}, 0.3, []),
        ({"token_entropy": 3.0}, 2.9, ["learning_rate"]),
        ({"hidden": 0.8, "token_entropy": 3.0}, 0.3, ["hidden_state"]),
        ({"merged": ["RGB"]}, 0.3, ["merged_tokens"]),
        ({"is_related": False}, 0.3, ["unpredictable"]),
    ],
)
def test_during_sft_finds_the_cause_of_no_progress(task_fields: dict[str, Any], loss: float, kinds: list[str]):
    assert [finding.id for finding in during_sft(sft(0.34, loss=loss), task(**task_fields))] == kinds


def joined(ids: Sequence[int]) -> str:
    return "".join(map(str, ids))


def test_token_classes_compare_losses_with_frequencies():
    def sequence(answer: int) -> TrainingSequence:
        return TrainingSequence([1, 2, answer, 9], [False, True, True, True], [0.0] * 4, [0.0] * 4)

    def score(ids: Any) -> list[float]:
        return [-0.01, -math.log(4), -0.02]

    sequences = [sequence(answer) for answer in (3, 4, 5, 6)]
    classes = {token_class.before: token_class for token_class in token_classes(sequences, sequences, score, joined)}
    assert (classes["2"].entropy, classes["2"].loss) == pytest.approx((math.log(4) + 3 / 16, math.log(4)))
    assert classes["1"].is_format and not classes["2"].is_format
    assert sorted(classes["2"].tokens) == ["3", "4", "5", "6"]


def test_token_classes_have_as_much_context_as_is_frequent():
    def sequence(value: int) -> TrainingSequence:  # a quotation mark (7) before a name (5) and before a value
        return TrainingSequence([0, 1, 7, 5, 2, 7, value], [False, *[True] * 6], [0.0] * 7, [0.0] * 7)

    sequences = [sequence(value) for value in (3, 4, 5, 6)] * 10
    classes = token_classes(sequences, sequences, lambda ids: [-0.01] * 5 + [-math.log(4)], joined)
    assert [answer_class.before for answer_class in classes] == ["0", "1", "17", "175", "1752", "7527"]
    assert [round(answer_class.entropy, 2) for answer_class in classes] == [0, 0, 0, 0, 0, 1.41]


def rl(rewards: list[float], zero: float = 0.0, held_out: float | None = None) -> list[dict[str, float]]:
    """Metrics of RL; by default the last held-out reward is the last training reward."""
    rows = [
        {"step": step, "reward/mean": reward, "groups/zero_spread": zero, "groups/all": 32.0}
        for step, reward in enumerate(rewards, start=1)
    ]
    rows[-1]["eval/sampled/reward/mean"] = rewards[-1] if held_out is None else held_out
    return rows


def measured(
    step: int, reward: float, length: float = 10.0, truncated: float = 0.0, half_width: float = 0.01
) -> dict[str, float]:
    """Return the metrics of a held-out evaluation."""
    values = {"reward/mean": reward, "reward/interval_high": reward + half_width, "length/mean": length}
    values["truncated"] = truncated
    return {"step": step, **{f"eval/sampled/{name}": value for name, value in values.items()}}


@each_row(
    ("history", "kinds"),
    [
        (rl([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8]), []),
        (rl([0.7] * 10 + [0.1] * 10), ["learning_rate"]),
        (rl([0.7] * 10 + [0.4] * 10, held_out=0.7), []),  # harder examples by chance
        (rl([0.7 - 0.01 * step for step in range(40)]), ["collapse"]),
        ([measured(0, 0.97), *rl([1.0] * 10, zero=32.0, held_out=0.97)], ["saturated"]),
        ([measured(0, 0.97), *rl([1.0] * 10, zero=16.0, held_out=0.97)], []),  # half of the groups still differ
        ([measured(0, 0.92), *rl([0.97] * 10, zero=27.0, held_out=0.92)], []),  # high only on training examples
        ([measured(0, 0.97), *rl([1.0] * 10, zero=32.0), measured(20, 0.995)], []),  # learned since
        (rl([1.0] * 10, zero=32.0), []),  # the initial weights were not measured
        (rl([*[0.5] * 5, *[1.0] * 10], zero=32.0), []),  # learned by RL
        (rl([0.7, 0.3, 0.4, 0.3, 0.3]), ["learning_rate"]),  # the first update destroys the policy
        ([*rl([0.8] * 9), {**rl([0.8])[0], "eval/sampled/reward/mean": 0.2}], ["memorized"]),
        ([*rl([0.8] * 9), {**rl([0.8])[0], "eval/sampled/reward/mean": 0.6}], []),
        (
            [{"step": 0, "eval/sampled/reward/mean": 0.3}, *rl([0.9] * 9 + [0.6] * 9, held_out=0.3)],
            [],
        ),  # loses memorized examples
        ([{"step": 0, "eval/sampled/reward/mean": 0.9}, *rl([0.9] * 9 + [0.6] * 9, held_out=0.3)], ["learning_rate"]),
        ([{"step": 0, "eval/sampled/reward/mean": 0.3}, *rl([0.6, 0.7, 0.8, 0.9, 0.9, 0.9], held_out=0.8)[:5]], []),
        (rl([0.2] * 10, zero=32.0), ["no_spread"]),
        ([*rl([0.78] * 5), *rl([0.78] * 10, zero=32.0)], []),  # a game of luck, in which the best policy gets no more
        (rl([-0.1] * 10, zero=20.0), ["no_progress"]),
        (rl([-0.1] * 9, zero=20.0), []),
        (rl([-0.1] * 10, zero=12.0), []),
        (rl([-0.1] * 10, zero=20.0, held_out=0.1), []),
        (rl([0.2] * 3, zero=32.0), []),
    ],
)
def test_during_rl_finds_the_cause_of_no_progress(history: list[dict[str, float]], kinds: list[str]):
    assert [finding.id for finding in during_rl(history, task(weakest=0.0, best=0.8, highest=1.0))] == kinds


SHORT = [measured(0, 0.90), measured(10, 0.97, 10.4), measured(20, 0.98, 10.9)]
LONG = [measured(30, 0.97, 14.0), measured(40, 0.99, 19.0), measured(50, 0.98, 24.0, 0.3)]


@each_row(
    ("history", "is_drift"),
    [
        ([*SHORT, *LONG], True),
        ([*SHORT, *LONG[:2]], False),  # two measurements may be noise
        ([*SHORT, *LONG, measured(60, 0.98, 11.0)], False),  # short again
        ([*SHORT[:2], *(measured(step, 0.97, 10.0, 0.1) for step in (20, 30, 40))], True),  # truncated
        ([measured(step, 0.5 + 0.01 * step, 10.0 + step) for step in range(0, 50, 10)], False),  # the reward pays
        ([measured(step, 0.9, 100.0 + step) for step in range(10)], False),  # less than a fifth longer
        ([measured(step, 0.9, 1.0 + 0.1 * step) for step in range(10)], False),  # less than a token
    ],
)
def test_drift_is_growth_that_the_reward_does_not_pay_for(history: list[dict[str, float]], is_drift: bool):
    task_bounds = task(weakest=0.0, best=1.0, highest=1.0)
    findings = during_rl(history, task_bounds)
    assert [finding.id for finding in findings] == (["drift"] if is_drift else [])
    assert is_refuted("drift", history, task_bounds) != is_drift


def test_drift_names_the_last_step_with_short_responses():
    [finding] = during_rl([*SHORT, *LONG], task(weakest=0.0, best=1.0, highest=1.0))
    assert finding.text == (
        "since step 20, responses have grown from 10.9 to 24.0 tokens per rollout (10.0 at first), 30% of them are truncated "
        "(0% at first), and the reward has not risen (0.980 then, 0.980 now)"
    )


@each_row(
    ("kind", "history", "expected"),
    [
        ("saturated", [measured(0, 0.97), measured(10, 0.975)], False),
        ("saturated", [measured(0, 0.97), measured(10, 0.99)], True),
        ("no_spread", [measured(0, 0.2), measured(10, 0.3)], True),
        ("learning_rate", [measured(0, 0.9), measured(10, 0.3)], False),
        ("learning_rate", [measured(0, 0.9), measured(10, 0.3), measured(20, 0.9)], True),
        ("memorized", [measured(0, 0.3), *rl([0.9] * 5, held_out=0.3)], False),
        ("memorized", [measured(0, 0.3), *rl([0.9] * 5, held_out=0.8)], True),
        ("no_progress", [measured(0, 0.0), measured(10, 0.05)], False),
        ("no_progress", [measured(0, 0.0), measured(10, 0.6)], True),
        ("no_progress", rl([0.6] * 5)[:4], False),  # nothing is measured
    ],
)
def test_later_held_out_rewards_refute_findings(kind: str, history: list[dict[str, float]], expected: bool):
    assert is_refuted(kind, history, task(weakest=0.0, best=1.0, highest=1.0)) == expected


def test_no_progress_is_reported_after_a_tenth_of_the_steps():
    history = rl([-0.1] * 30, zero=20.0)
    findings_by_length = [during_rl(history[:end], task(weakest=0.0), steps=300) for end in range(31)]
    assert [bool(findings) for findings in findings_by_length] == [end == 30 for end in range(31)]


def test_groups_that_become_equal_differ_from_groups_that_always_were_equal():
    equal = rl([0.2] * 10, zero=32.0)
    [always] = during_rl(equal, task(weakest=0.0, best=0.8, highest=1.0))
    assert "RL has nothing to learn from" in always.text
    varied = [{**row, "groups/zero_spread": 12.0, "entropy/all/mean": 0.6} for row in equal[:5]]
    certain = {**varied[0], "entropy/all/mean": 0.05}
    [later] = during_rl([*varied, certain, *equal[5:]], task(weakest=0.0, best=0.8, highest=1.0))
    assert later.text == (
        "100% of the groups have zero advantage at a mean reward of 0.200: the replies of a group have become the same "
        "(entropy 0.60 nats at first, 0.05 later)"
    )
    [later] = during_rl([*varied, *equal[5:]], task(weakest=0.0, best=0.8, highest=1.0))
    assert later.text.endswith("the rewards of a group have become equal")
    higher_rewards = [{**row, "reward/mean": 0.7} for row in varied]
    assert during_rl([*higher_rewards, *equal[5:-1]], task(weakest=0.0, best=0.8, highest=1.0)) == []


def gain(old_reward: float, new_reward: float, half_width: float = 0.02) -> Difference:
    """Return a difference of two rewards."""
    change = new_reward - old_reward
    return Difference(
        "reward", old_reward, new_reward, change, change - half_width, change + half_width, None, 1000, 0, None
    )


@each_row(
    ("difference", "zero", "entropies", "expected"),
    [
        (gain(0.6, 0.7), 0.0, (0.4, 0.7), None),
        (gain(0.6, 0.62, half_width=0.1), 4.0, (0.4, 0.7), None),  # too few examples show a gain
        (gain(0.6, 0.6, half_width=math.nan), 4.0, (0.4, 0.7), None),
        (gain(0.98, 0.98), 25.0, (0.4, 0.2), None),  # little was left to learn
        (gain(0.88, 0.88), 32.0, (0.4, 0.2), None),  # like the best policy
        (gain(0.6, 0.59), 4.0, (0.01, 0.02), "from 0.600 to 0.590"),
        (gain(0.6, 0.59), 4.0, (0.4, 0.7), "more random: their entropy rose from 0.40 to 0.70 nats"),
        (gain(0.8, 0.81), 25.0, (0.4, 0.2), "78% of the groups had zero advantage"),
        (gain(0.6, 0.5), 4.0, (0.4, 0.2), "from 0.600 to 0.500"),
        (gain(0.2, 0.2), 4.0, (0.4, 0.2), "reward of the last steps is 0.500: the model has memorized"),
    ],
)
def test_rl_without_a_gain_is_diagnosed(
    difference: Difference, zero: float, entropies: tuple[float, float], expected: str | None
):
    first, later = entropies
    history = [
        {**row, "entropy/all/mean": first if number < 5 else later}
        for number, row in enumerate(rl([0.5] * 20, zero=zero))
    ]
    task_bounds = task(weakest=0.0, best=0.9, highest=1.0)
    # Greedy replies may hide what RL has raised.
    assert after_rl([measured(0, 0.5), *history, measured(20, 0.8)], task_bounds, difference) == []
    findings = after_rl(history, task_bounds, difference)
    if expected is None:
        assert findings == []
    else:
        assert [finding.id for finding in findings] == ["no_gain"]
        assert expected in findings[0].text


def test_noise_of_a_good_pretrained_model_is_not_a_collapse():
    rng = random.Random(0)
    history = [{"step": 0, "eval/sampled/reward/mean": 0.92}]
    for step in range(1, 61):
        [row] = rl([rng.gauss(0.9, 0.02)])
        row["eval/sampled/reward/mean"] = rng.gauss(0.9, 0.02)
        history.append({**row, "step": step})
    model = task(start_name="the model", weakest=0.9, best=1.0, highest=1.0, lowest=0.0)
    assert [during_rl(history[:end], model) for end in range(1, 62)] == [[]] * 61


def test_errors_and_equal_rewards_are_found_before_training():
    assert before_training({"good": [1.0, 0.5], "bad": [0.0, 0.5]}, {}, None) == []
    assert [finding.id for finding in before_training({}, {"good": "reward: ValueError: x"}, None)] == ["reward_error"]
    (some_fail,) = before_training({"good": [1.0, 0.5, 0.0]}, {"good": "reward: ValueError: x"}, None, failed=7)
    assert some_fail.text == "70% of 10 rollouts fail; the first, of good: reward: ValueError: x"
    (equal,) = before_training({"good": [1.0, 1.0], "bad": [1.0, 1.0]}, {}, None)
    assert (equal.id, equal.text) == ("no_spread", "every rollout of 2 scripted policies has the reward 1")
    assert [finding.id for finding in before_training({"good": [1.0], "bad": [0.0]}, {}, 0.9)] == ["hidden_state"]


@pytest.mark.parametrize(("half_width", "kinds"), [(0.07, []), (0.01, ["learning_rate"])])
def test_a_fall_within_the_intervals_of_the_held_out_reward_is_noise(half_width: float, kinds: list[str]):
    def held_out(step: int, mean: float) -> dict[str, float]:
        name = "eval/sampled/reward"
        interval = {f"{name}/interval_low": mean - half_width, f"{name}/interval_high": mean + half_width}
        return {"step": step, f"{name}/mean": mean, **interval}

    rewards = [0.45] * 5 + [0.5] * 5 + [0.36] * 5
    groups = {"groups/all": 16.0, "groups/zero_spread": 2.0, "entropy/all/mean": 0.1}
    steps = [{"step": step, "reward/mean": reward, **groups} for step, reward in enumerate(rewards, start=1)]
    history = [held_out(0, 0.555), *steps[:-1], {**steps[-1], **held_out(15, 0.46)}]
    guess = task(weakest=0.433, best=1.0, highest=1.0)
    assert [finding.id for finding in during_rl(history, guess, steps=15)] == kinds


def test_one_lucky_measurement_is_no_learning():
    def measured(*rewards: float) -> list[dict[str, float]]:
        return [{"step": step, "eval/sampled/reward/mean": reward} for step, reward in enumerate(rewards)]

    guess = task(weakest=0.433, best=1.0, highest=1.0)  # learning begins at 0.546
    assert not guess.has_learned([])
    assert not guess.has_learned(measured(0.51, 0.53, 0.56, 0.53, 0.53))
    assert guess.has_learned(measured(0.51, 0.54, 0.56, 0.55, 0.53))
    assert guess.has_learned(measured(0.6))
