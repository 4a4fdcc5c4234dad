"""Which held-out examples a recipe uses, by what the environment makes of its argument `seed`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from commands import write_environment

from rove.envs.dataset import content_key
from rove.envs.loading import environment_arguments, load_environment
from rove.stages.examination import Evidence, PolicyEvidence
from rove.stages.preparation import choose_examples, chosen_arguments, members_left_out
from rove.stages.recipe import Section
from rove.stages.request import TrainRequest
from rove.train.held_out import SELECTION_ROLLOUTS

SOURCE = """
import random
import rove as vf

def rows(count, seed):
ROWS

def load_environment(num_examples: int = 100, seed: int = 0):
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"), eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        rubric=vf.Rubric(),
    )
"""
GENERATOR = """
    rng = random.Random(seed)
    return [{"question": f"{rng.randrange(10**9)}?", "answer": "a"} for _ in range(count)]
"""
POOL = """
    numbers = list(range(1000))
    random.Random(seed).shuffle(numbers)
    return [{"question": f"{n}?", "answer": "a"} for n in numbers[:count]]
"""
LARGE_POOL = POOL.replace("range(1000)", "range(4000)")
SMALL_SPACE = GENERATOR.replace("10**9", "300")
GAME = """
    rng = random.Random(seed)
    return [{"question": "Play.", "info": {"start": rng.randrange(10**9)}} for _ in range(count)]
"""


def policy(name: str, reward: float) -> PolicyEvidence:
    return PolicyEvidence(name, reward, reward, reward, False, reward, 1.0)


def chosen(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> tuple[dict[str, Section], Evidence]:
    """Return the settings of all stages for an environment whose rows a function body makes, and the evidence."""
    monkeypatch.chdir(folder)
    write_environment(folder / "environments", "quiz", SOURCE.replace("ROWS", body))
    evidence = Evidence(
        policies=[policy("weak", 0.0), policy("good", 1.0)],
        examples=100,
        held_out=100,
        arguments=environment_arguments("quiz", None),
        functions=["correct"],
        rollout_tokens=10.0,
        response_tokens=5,
    )
    sections, counted = choose_examples(TrainRequest("quiz"), evidence)
    return {section.name: section for section in sections}, counted


def questions(settings: Mapping[str, object]) -> list[str]:
    """Return the keys of the examples that an evaluation uses."""
    env_args, count, skipped = settings["env_args"], settings["num_examples"], settings.get("skip_examples", 0)
    assert isinstance(env_args, dict) and isinstance(count, int) and isinstance(skipped, int)
    return [content_key(row) for row in load_environment("quiz", None, **env_args).examples(skipped + count)][skipped:]


def shared(sections: Mapping[str, Section]) -> tuple[int, int]:
    """Return how many examples of the table choose the weights, and how many examples the table has."""
    selected = set(questions(sections["rl"].values[0]["evaluation"][0]))
    reported = questions(sections["evaluation"].values)
    return sum(key in selected for key in reported), len(reported)


def test_a_seed_that_makes_other_examples_is_used_for_the_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sections, evidence = chosen(tmp_path, monkeypatch, GENERATOR)
    assert sections["rl"].values[0]["evaluation"][0]["env_args"] == {"num_examples": SELECTION_ROLLOUTS, "seed": 1}
    assert "skip_examples" not in sections["evaluation"].values
    assert shared(sections) == (0, 1000)
    assert sections["evaluation"].reason.endswith(
        "The evaluations in training, which choose the weights, use examples of another seed."
    )
    assert (evidence.seed_repeats, evidence.shared) == (False, 0)


@pytest.mark.parametrize(("body", "table"), [(POOL, 800), (LARGE_POOL, 1000)])
def test_a_seed_that_reshuffles_a_pool_is_the_same_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, table: int
):
    sections, evidence = chosen(tmp_path, monkeypatch, body)
    assert shared(sections) == (0, table)
    assert sections["evaluation"].values["skip_examples"] == SELECTION_ROLLOUTS
    reason = sections["evaluation"].reason
    assert (
        "Another seed would repeat some of the table's examples, so all held-out examples have the same seed." in reason
    )
    assert "The first 200 examples choose the weights in training; the table uses others." in reason
    assert "use examples of another seed" not in reason and "repeats questions" not in reason
    assert (evidence.seed_repeats, evidence.shared) == (True, 0)


def test_questions_that_a_small_space_repeats_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sections, evidence = chosen(tmp_path, monkeypatch, SMALL_SPACE)
    count, table = shared(sections)
    assert 300 < count < 700  # 200 draws reach half of the 300 questions
    assert (
        f"But the environment repeats questions: {count:,} of the table's {table:,} examples have the question and the answer of "
        "an example that chooses the weights."
    ) in sections["evaluation"].reason
    assert (evidence.seed_repeats, evidence.shared) == (False, count)


def test_games_with_one_prompt_are_compared_by_their_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sections, evidence = chosen(tmp_path, monkeypatch, GAME)
    assert "use examples of another seed." in sections["evaluation"].reason
    assert (evidence.seed_repeats, evidence.shared) == (False, 0)


@pytest.mark.parametrize(
    ("defaults", "env_args", "expected"),
    [
        ({"seed": 0, "size": 3}, {}, ({"seed", "size"}, 0)),
        ({"seed": 1}, {}, ({"seed"}, 1)),
        ({"seed": 1}, {"seed": 7}, ({"seed"}, 7)),
        ({"seed": None}, {}, ({"seed"}, 0)),
        ({"size": 3}, {}, ({"size"}, 0)),
        ({"seed": "puzzle", "size": 3}, {}, ({"size"}, 0)),
        ({"seed": 0}, {"seed": "abc"}, (set[str](), 0)),
        ({"seed": 0}, {"seed": None}, (set[str](), 0)),
        ({"seed": True}, {}, (set[str](), 0)),
    ],
)
def test_only_a_seed_that_is_a_number_has_a_next_one(
    defaults: dict[str, object], env_args: dict[str, Any], expected: tuple[set[str], int]
):
    assert chosen_arguments(defaults, env_args) == expected


GROUP = """
import rove as vf

def member(name, count):
    return vf.SingleTurnEnv(dataset=[{"question": f"{name} {n}?"} for n in range(count)], rubric=vf.Rubric())

def load_environment():
    return vf.EnvGroup([member("a", 60), member("b", 60), member("c", 60)], ["a", "b", "c"])
"""


@pytest.mark.parametrize(
    ("skipped", "count", "names"), [(0, 60, ["b", "c"]), (0, 61, ["c"]), (0, 180, []), (60, 60, ["a", "c"])]
)
def test_members_without_an_example_in_the_table_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipped: int, count: int, names: list[str]
):
    monkeypatch.chdir(tmp_path)
    write_environment(tmp_path / "environments", "three", GROUP)
    table = Section("evaluation", {"env_args": {}, "num_examples": count, "skip_examples": skipped})
    assert members_left_out(TrainRequest("three"), [table]) == names
