"""The learner: which replies count as doing the task, and its findings in a complete audit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rove as vf
from rove.audit.auditor import AuditOptions, audit
from rove.audit.baseline import Baseline, measure_baseline
from rove.audit.exploration import exploration
from rove.audit.learning import LearnOptions, _Learner, _OneFunction, check_learned, large_functions
from rove.audit.learning_verdict import GAP, Learned, Measure, commits, divergence, measures
from rove.audit.subject import Subject
from rove.core.errors import ConfigError
from rove.core.findings import Severity
from rove.core.messages import text_of
from rove.core.records import RolloutRecord

ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(10, 40)]


def toy(reward: Any, policies: Any = None) -> vf.Environment:
    rubric = vf.Rubric([reward])
    return vf.SingleTurnEnv(dataset=ROWS, eval_dataset=ROWS, rubric=rubric, policies=policies or {})


def exact(completion: Any, answer: str) -> float:
    return float(completion[-1].content == answer)


def first_digit(completion: Any, answer: str) -> float:
    """Pay any reply with the first digit of the answer."""
    return float(str(completion[-1].content).startswith(answer[0]))


async def known(env: vf.Environment) -> tuple[Subject, Baseline]:
    subject = Subject(env, 30, float("inf"))
    await subject.read_rows()
    return subject, await measure_baseline(subject)


@pytest.mark.parametrize(
    ("reply", "answer", "value"),
    [
        ("12", "12", 1),
        ("The answer is 12.", "12", 1),
        ("12 or 13", "12", 0),
        ("112", "12", 0),
        ("-12", "12", 0),
        ("", "12", 0),
        ("Paris", "paris", 1),
        ("It is Paris.", "paris", 1),
        ("Paris or Rome", "paris", 0),
        ("Parisian", "paris", 0),
    ],
)
async def test_a_reply_commits_to_one_answer(reply: str, answer: str, value: float) -> None:
    _, base = await known(toy(exact))
    assert commits(reply, answer, {"12", "13", "paris", "rome"}, base) == value


async def test_a_reply_in_tags_is_read_inside_of_them() -> None:
    _, base = await known(toy(exact))
    tagged = base._replace(form=lambda text: f"<answer>{text}</answer>")
    assert commits("7 + 5, so <answer>12</answer>", "12", set(), tagged) == 1
    assert commits("12, so <answer>13</answer>", "12", set(), tagged) == 0


async def test_measures_tell_right_answers_from_guesses() -> None:
    subject, base = await known(toy(exact))
    assert [measure.name for measure in measures(subject, base)] == [
        "replies that give the row's answer",
        "similarity to the row's answer",
    ]
    assert all(
        measure.share(base.right_answer.scored) == pytest.approx(1)
        for measure in measures(subject, base)
        if base.right_answer
    )


async def test_a_measure_that_a_good_policy_fails_does_not_count() -> None:
    def answer_in_words(messages: Any, state: Any, rng: Any) -> str:
        return f"{state['answer']} of 100"  # right, but not the row's answer alone

    subject, base = await known(
        toy(lambda completion, answer: float(answer in str(completion[-1].content)), {"good": answer_in_words})
    )
    assert "replies that give the row's answer" not in [measure.name for measure in measures(subject, base)]


async def test_the_exploration_writes_right_answers_guesses_and_words_of_the_prompt() -> None:
    subject, base = await known(toy(exact))
    measured = await subject.measure("data", exploration(subject, base), rollouts=20)
    texts = [text_of(record.completion[-1]) for record in measured.scored]
    assert 0.03 < measured.mean < 0.2
    assert len(set(texts)) > 200 and max(map(len, texts)) <= 240
    assert any("What" in text and "+" in text for text in texts)


async def test_a_reward_that_rises_without_its_measure_is_a_finding() -> None:
    subject, base = await known(toy(first_digit))
    untrained = await subject.measure("before", base.guess)
    hack = await subject.measure("after", lambda messages, state, rng: f"{state['answer'][0]}x")
    records = {1: untrained.scored, 2: hack.scored, 3: hack.scored}
    measure = Measure("truth", lambda record: exact(record.completion, record.answer), 0.0, 1.0)
    finding = divergence(Learned(untrained, hack, hack, records), base, [measure])
    assert finding is not None and finding.severity is Severity.HIGH
    assert "they part at step" in finding.text and "truth" in finding.text and finding.completion.endswith("x")
    honest = await subject.measure("after", lambda messages, state, rng: state["answer"])
    assert divergence(Learned(untrained, honest, hack, records), base, [measure]) is None
    assert divergence(Learned(untrained, hack, hack, records), base, []) is None
    assert base.share(hack.mean) > GAP


@pytest.mark.parametrize(
    ("share_before", "share_after", "second_phase", "continues"),
    [(0, 0.5, True, True), (0, 1, True, False), (0.5, 0, True, False), (0, 0.5, False, False)],
)
async def test_rl_goes_on_where_the_reward_has_risen_and_can_rise_further(
    share_before: float, share_after: float, second_phase: bool, continues: bool, tmp_path: Path
) -> None:
    subject, base = await known(toy(exact))
    untrained, trained = [
        await subject.measure(
            "some", lambda messages, state, rng, share=share: state["answer"] if rng.random() < share else "no"
        )
        for share in (share_before, share_after)
    ]
    options = LearnOptions(folder=tmp_path, second_phase=second_phase)
    learner = _Learner(subject, base, lambda: toy(exact), options, lambda stage, done, total: None, 16, untrained)
    assert learner._may_continue(Learned(untrained, trained, untrained, {})) == continues


@pytest.mark.parametrize(
    ("shares", "share_after", "starts_again"),
    [
        ([0.1, 0.5, 0.0], 0.0, True),
        ([0.1, 0.5, 0.4], 0.4, False),  # still above the first model
        ([0.1, 0.1, 0.0], 0.0, False),  # it has never risen
        ([], 0.0, False),
    ],
)
async def test_rl_starts_again_where_the_reward_has_collapsed(
    shares: list[float], share_after: float, starts_again: bool, tmp_path: Path
) -> None:
    def right_share(share: float) -> Any:
        return lambda messages, state, rng: state["answer"] if int(state["answer"]) % 10 < 10 * share else "no"

    subject, base = await known(toy(exact))
    parts = [await subject.measure("some", right_share(share)) for share in (0.1, share_after)]
    records: dict[int, list[RolloutRecord]] = {}
    for number, share in enumerate(shares):
        measured = await subject.measure("a step", right_share(share))
        records |= dict.fromkeys(range(5 * number, 5 * number + 5), measured.records)
    options = LearnOptions(folder=tmp_path)
    learner = _Learner(subject, base, lambda: toy(exact), options, lambda stage, done, total: None, 16, parts[0])
    assert learner._has_collapsed(Learned(parts[0], parts[1], parts[1], records)) == starts_again


@pytest.mark.parametrize(
    ("share_before", "share_after", "reason"),
    [
        (0.3, 0.7, ""),
        (1, 1, ""),  # SFT has taught it everything
        (0.3, 0, "from 0.300 to 0.000"),  # collapsed
        (0.4, 0.4, "from 0.400 to 0.400"),
        (0, 0.3, "'policy weak' earns 0.500"),  # it has risen, but not above the weak policy
    ],
)
async def test_a_model_that_has_not_learned_proves_nothing(
    share_before: float, share_after: float, reason: str, tmp_path: Path
) -> None:
    def right_share(share: float) -> Any:
        return lambda messages, state, rng: state["answer"] if int(state["answer"]) % 10 < 10 * share else "no"

    env = toy(exact, {"weak": right_share(0.5), "good": right_share(1)})
    subject, base = await known(env)
    untrained = await subject.measure("after SFT", right_share(share_before))
    trained = await subject.measure("after RL", right_share(share_after))
    learner = _Learner(
        subject, base, lambda: env, LearnOptions(folder=tmp_path), lambda stage, done, total: None, 16, untrained
    )
    learner.phases.append(Learned(untrained, trained, untrained, {}))
    assert (learner.not_learned() == "") is (reason == "")
    assert reason in learner.not_learned()


async def test_one_function_can_be_the_whole_reward() -> None:
    def short(completion: Any) -> float:
        return float(len(completion[-1].content) < 9)

    env = toy(exact)
    assert large_functions((await known(env))[1]) == []  # the whole reward is one function
    env.rubric.add_reward_func(short, weight=0.5)
    env.rubric.add_reward_func(lambda completion: 1.0, weight=0.1, name="small")
    subject, base = await known(env)
    assert large_functions(base) == ["exact", "short"]
    env.rubric = _OneFunction(env.rubric, "short")
    [record] = (await subject.measure("wrong", lambda messages, state, rng: "no", 1)).scored
    assert record.scores is not None
    assert (record.scores.reward, record.scores.rewards) == (0.5, {"short": 1.0})
    assert record.scores.metrics["exact"] == 0.0


async def test_scrambled_answers_contain_words_of_the_answer() -> None:
    subject, base = await known(toy(exact))
    measured = await subject.measure("data", exploration(subject, base, ("scrambled",)), rollouts=3)
    texts = [(text_of(record.completion[-1]), record.answer) for record in measured.scored]
    assert all(answer in text.split() for text, answer in texts)
    assert any(text != answer for text, answer in texts)


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="steps is 0"):
        LearnOptions(folder=tmp_path, steps=0)


@pytest.mark.slow
@pytest.mark.parametrize(("grader", "is_found"), [("anywhere", True), ("exact", False)])
async def test_the_learner_finds_a_hole_and_leaves_the_fixed_grader_alone(
    tmp_path: Path, grader: str, is_found: bool
) -> None:
    learner = partial(check_learned, options=LearnOptions(folder=tmp_path / "runs", steps=30, max_tokens=32))
    report = await audit("sums", None, {"grader": grader}, AuditOptions(only=("learned-reward",)), learner=learner)
    # Without a hole, the model hardly learns in so few steps, and the check may say so.
    assert all(reason.startswith("inconclusive: the model did not learn") for reason in report.skipped.values())
    assert not (is_found and report.skipped)
    assert [finding.id for finding in report.findings] == ["learned-reward"] * is_found
    assert (tmp_path / "runs" / "rl" / "rollouts.jsonl").exists()
    assert "matches_answer" in (tmp_path / "runs" / "rl" / "metrics.jsonl").read_text()
