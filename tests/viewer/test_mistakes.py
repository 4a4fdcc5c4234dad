"""Test what a model still gets wrong: groups by question, reply and field."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import make_record, write_run_folder

from rove.core.records import RolloutRecord
from rove.viewer.index import Index
from rove.viewer.mistakes import Graded, describe_mistakes, explained_variance, graded_rollouts


def graded(question: str, reward: float, line: int = 0, reply: str = "", **fields: str | float) -> Graded:
    return Graded(question, f"right answer of {question}", reply, fields, reward, line)


def test_the_questions_that_lose_the_reward_come_first():
    rollouts = [
        graded("a", 1.0, 0),
        graded("a", 0.5, 1),
        graded("b", 0.0, 2, "x"),
        graded("b", 0.5, 3, "x"),
        graded("c", 1.0, 4),
    ]
    mistakes = describe_mistakes(rollouts, [graded("b", 0.25)])
    assert [(group["name"], group["lost"], group["mean"], group["before"]) for group in mistakes["questions"]] == [
        ("b", 0.75, 0.25, 0.25),
        ("a", 0.25, 0.75, None),
    ]
    assert [(group["name"], group["rollouts"]) for group in mistakes["replies"]] == [("x", 2)]
    assert mistakes["questions"][0]["line"] == 2  # the worst rollout
    assert mistakes["summary"] == [
        "3 of 5 rollouts earned less than the best reward, 1.000; together they lost 2.000 of 5 points (40.0%).",
        "2 of 3 questions lost 100.0% of these points.",
    ]


def test_a_frequent_wrong_reply_is_named():
    rollouts = [graded(f"question {line}", 0.0, line, "Mia" if line < 4 else f"reply {line}") for line in range(10)]
    sentence = describe_mistakes([*rollouts, graded("easy", 1.0, 10)])["summary"][-1]
    assert sentence == "The wrong reply that loses most is Mia: 40.0% of these points in 4 rollouts."


def test_a_field_that_explains_the_errors_is_named_and_one_of_noise_is_not():
    drawn = random.Random(0)
    rollouts: list[Graded] = []
    for line in range(400):
        level = line % 5
        fields: Mapping[str, str | float] = {
            "level": float(level),
            "noise": drawn.choice("abcdefgh"),
            "id": f"row {line}",
        }
        reward = 0.0 if level == 4 and drawn.random() < 0.8 else 1.0
        rollouts.append(Graded(f"question {line}", "", "", fields, reward, line))
    mistakes = describe_mistakes(rollouts)
    assert list(mistakes["fields"]) == ["level"]
    assert [group["name"] for group in mistakes["fields"]["level"]] == ["0", "1", "2", "3", "4"]
    assert any(sentence.startswith("level = 4: mean reward 0.") for sentence in mistakes["summary"])


def test_rare_errors_are_explained_by_a_field_that_has_more_of_them_than_by_chance():
    """135 of 1,000 rows have the style of 10 of the 24 errors; it explains 1.9% of the variance."""
    wrong = {*range(10), *range(200, 214)}
    rollouts = [
        graded(
            f"question {line}", float(line not in wrong), line, style="eu" if line < 135 else "us", side=f"{line % 2}"
        )
        for line in range(1000)
    ]
    mistakes = describe_mistakes(rollouts)
    assert list(mistakes["fields"]) == ["style"]
    assert "style = eu: mean reward 0.926 in 135 rollouts, 0.984 in the others." in mistakes["summary"]


def test_explained_variance_has_the_probability_of_the_f_distribution():
    share, chance = explained_variance(0.105, 3, 60)
    assert share == pytest.approx(1 - 0.895 * 59 / 57)
    assert chance == pytest.approx(0.895 ** (57 / 2))  # closed form for three groups
    assert explained_variance(1.0, 2, 2) == (0.0, 1.0)  # a value per rollout explains everything, and nothing


def test_a_number_with_many_values_is_divided_into_ranges():
    rollouts = [graded(f"question {i}", float(i < 75), i, length=float(i)) for i in range(100)]
    groups = describe_mistakes(rollouts)["fields"]["length"]
    assert [group["rollouts"] for group in groups] == [25, 25, 25, 25]
    assert [group["mean"] for group in groups] == [1.0, 1.0, 1.0, 0.0]
    assert groups[-1]["name"] == "74.25 to 99"


@pytest.mark.parametrize(
    ("rewards", "share"),
    [((1.0, -1.0), 0.5), ((101.0, 100.0), 0.5), ((1.0, 0.0), 0.5), ((1.0, 0.25), 0.375), ((-1.0, -3.0), 0.5)],
)
def test_the_lost_share_counts_from_the_lowest_reward_if_rewards_do_not_begin_at_0(
    rewards: tuple[float, float], share: float
):
    assert describe_mistakes([graded("a", reward, line) for line, reward in enumerate(rewards)])["share"] == share


def test_small_numbers_are_different_values_of_a_field():
    rollouts = [graded("a", float(line % 2), line, rate=0.0001 if line % 2 else 0.0004) for line in range(40)]
    assert [group["name"] for group in describe_mistakes(rollouts)["fields"]["rate"]] == ["0.0001", "0.0004"]


def test_few_bad_rollouts_among_many_that_lose_a_little():
    rollouts = [Graded("start", "", "", {}, 1.0, line) for line in range(90)]
    rollouts += [Graded("start", "", "", {}, 0.999, 90 + line) for line in range(9)]
    rollouts.append(Graded("start", "", "", {}, 0.0, 99))
    mistakes = describe_mistakes(rollouts)
    assert mistakes["summary"][:2] == [
        "10 of 100 rollouts earned less than the best reward, 1.000; together they lost 1.009 of 100 points (1.0%).",
        "The worst rollout lost 99.1% of these points.",
    ]
    assert mistakes["worst"]["line"] == 99
    [question] = mistakes["questions"]
    assert (question["rollouts"], question["wrong"]) == (100, 10)


def test_a_rollout_of_several_turns_shows_how_it_ended_instead_of_its_last_reply_alone(tmp_path: Path):
    moves = [("9 stones", "1"), ("7 stones", "2"), ("You lose.", "")]
    completion: list[dict[str, str]] = []
    for observation, reply in moves:
        completion += [{"role": "user", "content": observation}, {"role": "assistant", "content": reply}]
    multi_turn = msgspec.structs.replace(make_record(0, win=0.0), completion=completion[1:-1])
    run = write_run_folder(tmp_path / "run", [multi_turn, make_record(1), make_record(2)])
    index = Index(run.path / "rollouts.jsonl")
    assert index.catch_up(60.0).done
    mistakes = describe_mistakes(graded_rollouts(index))
    index.close()
    [question] = mistakes["questions"]
    assert (question["turns"], question["ending"]) == (2, "7 stones → 2 → You lose.")
    assert mistakes["has_turns"]
    assert mistakes["worst"]["words"] == "after 2 turns: 7 stones → 2 → You lose."
    assert mistakes["replies"] == []


@pytest.mark.parametrize("num_boards", [1, 20])
def test_rollouts_of_several_turns_are_also_grouped_by_how_they_ended(tmp_path: Path, num_boards: int):
    """40 rollouts: 8 end with an invalid reply, 20 reach the turn limit, after messages that differ or not, and 12 succeed."""
    records: list[RolloutRecord] = []
    for example in range(40):
        replies, last, stop = 2, "Done, 3 of 3.", "has_final_env_response"
        if example < 8:
            replies, last = 1, "No  such\nmove 7."
        elif example < 28:
            replies, last, stop = 4, f"board {example % num_boards}", "max_turns_reached"
        completion = [{"role": "assistant", "content": "1"}, {"role": "user", "content": "go on"}] * replies
        completion[-1] = {"role": "user", "content": last}
        record = make_record(example, win=float(example >= 28))
        records.append(msgspec.structs.replace(record, completion=completion, stop_condition=stop))
    run = write_run_folder(tmp_path / "run", records)
    index = Index(run.path / "rollouts.jsonl")
    assert index.catch_up(60.0).done
    fields = describe_mistakes(graded_rollouts(index))["fields"]
    index.close()
    sizes = {name: {group["name"]: group["rollouts"] for group in groups} for name, groups in fields.items()}
    assert sizes["number of turns"] == {"1": 8, "2": 12, "4": 20}
    assert sizes["stop condition"] == {"has_final_env_response": 20, "max_turns_reached": 20}
    messages = {'"No such move 7."': 8, '"board 0"': 20, '"Done, 3 of 3."': 12}
    if num_boards > 1:  # 22 messages; the successful rollouts lose nothing
        messages = {'"No such move 7."': 8, "other messages": 32}
    assert sizes["last message of the environment"] == messages


def test_a_reply_that_loses_little_is_not_listed():
    rollouts = [graded(f"question {line}", 0.0, line, "x" if line < 2 else f"reply {line}") for line in range(100)]
    assert describe_mistakes(rollouts, best=1.0)["replies"] == []


def test_no_mistakes():
    assert describe_mistakes([])["summary"] == []
    assert describe_mistakes([graded("a", 1.0)])["summary"] == ["None of 1 rollout lost reward."]
    assert describe_mistakes([graded("a", 1.0)], best=1.2)["questions"][0]["lost"] == 1.0


values = st.one_of(st.sampled_from("abc"), st.floats(-5, 5), st.integers(0, 40).map(float))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(-1, 1), values), min_size=1, max_size=60))
def test_every_rollout_is_in_one_group_of_a_field_and_shares_add_up(rows: list[tuple[str, float, str | float]]):
    rollouts = [graded(question, reward, line, "r", field=value) for line, (question, reward, value) in enumerate(rows)]
    mistakes = describe_mistakes(rollouts)
    for groups in mistakes["fields"].values():
        assert sum(group["rollouts"] for group in groups) == len(rollouts)
        assert abs(sum(group["lost"] for group in groups) - 1.0) < 1e-6
