"""Warnings about known defects of other libraries' tasks, and a proof of each defect."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rove
from rove.integrations import known_defects as defects_module
from rove.integrations.known_defects import KnownDefect, known_defects, warn_of_known_defects, warn_of_seed_overlap


@pytest.fixture(autouse=True)
def reset_warnings() -> Iterator[None]:
    warn_of_known_defects.cache_clear()
    warn_of_seed_overlap.cache_clear()
    yield
    warn_of_known_defects.cache_clear()
    warn_of_seed_overlap.cache_clear()


def warnings_for(library: str, name: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        warn_of_known_defects(library, name)
        warn_of_known_defects(library, name)
    return [str(warning.message) for warning in caught_warnings]


@pytest.mark.parametrize(
    ("library", "name", "defect", "version"),
    [
        ("reasoning-gym", "syllogism", "one gold answer in ten is wrong", "0.1.25"),
        ("textarena", "Bandit-v0", "worse buttons earn more", "0.7.4"),
        ("textarena", "Bandit-v0-hard-train", "worse buttons earn more", "0.7.4"),
    ],
)
def test_a_known_defect_causes_one_warning(library: str, name: str, defect: str, version: str) -> None:
    [text] = warnings_for(library, name)
    assert f"'{name}' has a known defect (confirmed in version {version})" in text and defect in text


@pytest.mark.parametrize("load", [lambda: rove.ReasoningGymEnv("syllogism"), lambda: rove.TextArenaEnv("Bandit-v0")])
def test_loading_an_environment_with_a_known_defect_warns(load: Callable[[], object]) -> None:
    with pytest.warns(UserWarning, match="known defect"):
        load()


@pytest.mark.parametrize(
    ("library", "name"),
    [("reasoning-gym", "chain_sum"), ("other", "syllogism"), ("textarena", "Bandit"), ("textarena", "Bandit-v01")],
)
def test_tasks_without_known_defects_cause_no_warning(library: str, name: str) -> None:
    assert warnings_for(library, name) == []


@pytest.mark.parametrize(("installed", "count"), [("0.1.25", 1), ("0.1.26", 0), ("0.2.0", 0), (None, 1)])
def test_a_version_with_the_fix_causes_no_warning(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, count: int
) -> None:
    defect = KnownDefect(
        library="reasoning-gym", task="syllogism", version="0.1.25", source="x", text="y", fixed_in="0.1.26"
    )
    monkeypatch.setattr(defects_module, "known_defects", lambda: [defect])
    monkeypatch.setattr(defects_module, "installed_version", lambda library: installed)
    assert len(warnings_for("reasoning-gym", "syllogism")) == count


def test_overlapping_seeds_cause_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"seeds task i with seed \+ i"):
        warn_of_seed_overlap()


Entry = dict[str, Any]


def mean_score(family: str, reply: Callable[[Entry], str], size: int = 60) -> float:
    """Return the mean score of replies to tasks of reasoning-gym."""
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(family, size=size, seed=0)
    scores = [float(dataset.score_answer(answer=reply(entry), entry=entry)) for entry in dataset]
    return sum(scores) / size


def everyone_is_a_knight(entry: Entry) -> str:
    metadata = entry["metadata"]
    role = metadata["knight_knave_terms"]["knight"]
    return ", and ".join(f"{name} is a {role}" for name in metadata["names"])


def empty_board(entry: Entry) -> str:
    return json.dumps([[0] * len(row) for row in json.loads(entry["answer"])])


def shared_tasks(family: str) -> int:
    """Return how many tasks two datasets of 100 with distant seeds share."""
    import reasoning_gym

    first, second = (reasoning_gym.create_dataset(family, size=100, seed=seed) for seed in (0, 1_000_003))
    return len({entry["question"] for entry in first} & {entry["question"] for entry in second})


STATEMENT = re.compile(r"(?P<quantity>All|No|Some) (?P<first>\w+) are (?P<negation>not )?(?P<second>\w+)")


def holds(statement: str, members: list[set[str]]) -> bool:
    """Return whether a statement holds for individuals, each of which has a set of properties."""
    match = STATEMENT.fullmatch(statement)
    assert match is not None, statement
    having_first = [properties for properties in members if match["first"] in properties]
    in_second = [match["second"] in properties for properties in having_first]
    if match["quantity"] == "All":
        return all(in_second)
    if match["quantity"] == "No":
        return not any(in_second)
    return not all(in_second) if match["negation"] else any(in_second)


def follows(premises: list[str], conclusion: str) -> bool:
    """Return whether a conclusion holds in every model of the premises in which no class is empty."""
    names: set[str] = set()
    for statement in [*premises, conclusion]:
        match = STATEMENT.fullmatch(statement)
        assert match is not None, statement
        names |= {match["first"], match["second"]}
    kinds = [set(kind) for size in range(len(names) + 1) for kind in itertools.combinations(sorted(names), size)]
    for chosen in itertools.product([False, True], repeat=len(kinds)):
        members = list(itertools.compress(kinds, chosen))
        no_class_is_empty = set().union(*members) == names
        premises_hold = all(holds(premise, members) for premise in premises)
        if no_class_is_empty and premises_hold and not holds(conclusion, members):
            return False
    return True


def wrong_syllogisms() -> float:
    """Return the share of 100 tasks that are marked as valid, but are not."""
    import reasoning_gym

    wrong = 0
    for entry in reasoning_gym.create_dataset("syllogism", size=100, seed=0):
        metadata = entry["metadata"]
        premises = [metadata["premise1"], metadata["premise2"]]
        wrong += entry["answer"] == "Yes" and not follows(premises, metadata["conclusion"])
    return wrong / 100


def rewards_in_bandit() -> tuple[float, float]:
    """Return the rewards of the best and of the worst button as the last choice in Bandit-v0."""
    import textarena

    rewards: list[float] = []
    for choose in (max, min):
        env = textarena.make("Bandit-v0")
        env.reset(num_players=1, seed=3)
        means = env.state.game_state["ground_truth"]
        while not env.state.done:
            env.step(f"[{choose(means, key=means.get)}]")
        rewards.append(env.state.rewards[0])
    best, worst = rewards
    return best, worst


def bandit_pays_for_the_worst_button() -> bool:
    best, worst = rewards_in_bandit()
    return best < worst


PROOFS: dict[tuple[str, str], Callable[[], bool]] = {
    ("reasoning-gym", "syllogism"): lambda: wrong_syllogisms() > 0.05,
    ("reasoning-gym", "game_of_life_halting"): lambda: (
        mean_score("game_of_life_halting", lambda entry: "x", size=10) == 1
    ),
    ("reasoning-gym", "complex_arithmetic"): lambda: mean_score("complex_arithmetic", lambda entry: "nan") == 1,
    ("reasoning-gym", "coin_flip"): lambda: mean_score("coin_flip", lambda entry: "0") > 0.8,
    ("reasoning-gym", "puzzle24"): lambda: mean_score("puzzle24", lambda entry: "4*6*1*1", size=5) == 1,
    ("reasoning-gym", "game_of_life"): lambda: mean_score("game_of_life", empty_board, size=10) > 0.9,
    ("reasoning-gym", "knights_knaves"): lambda: mean_score("knights_knaves", everyone_is_a_knight) > 0.5,
    ("reasoning-gym", "gsm_symbolic"): lambda: mean_score("gsm_symbolic", lambda entry: f"-{entry['answer']}") > 0.9,
    ("reasoning-gym", "polynomial_multiplication"): lambda: (
        mean_score(
            "polynomial_multiplication", lambda entry: f"expand({entry['metadata']['polynomial_expr']})", size=10
        )
        == 1
    ),
    ("reasoning-gym", "string_splitting"): lambda: shared_tasks("string_splitting") > 5,
    ("reasoning-gym", "string_synthesis"): lambda: shared_tasks("string_synthesis") > 5,
    ("textarena", "Bandit-v0"): bandit_pays_for_the_worst_button,
}


def test_every_known_defect_has_a_proof() -> None:
    assert {(defect.library, defect.task) for defect in known_defects()} == set(PROOFS)


@pytest.mark.slow
@pytest.mark.parametrize(("library", "task"), PROOFS)
def test_a_known_defect_is_still_there(library: str, task: str) -> None:
    """If this fails with a newer release, the defect is fixed: set `fixed_in` in known_defects.toml."""
    assert PROOFS[library, task]()
