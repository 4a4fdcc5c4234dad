"""Tests of the environment: the reward, the seed, and the split."""

import asyncio
from pathlib import Path

from rove import ScriptedClient, evaluate, load_environment

HERE = Path(__file__).resolve().parents[1]


def test_the_best_policy_earns_more_than_the_weakest() -> None:
    env = load_environment("my_task", env_dir=HERE.parent, num_examples=20)
    results = [asyncio.run(evaluate(env, ScriptedClient(policy))) for policy in env.policies.values()]
    assert sum(result.failed for result in results) == 0
    means = [result.reward.mean for result in results]
    assert max(means) > min(means)


def test_the_same_seed_gives_the_same_examples() -> None:
    first, second = (load_environment("my_task", env_dir=HERE.parent, num_examples=5, seed=3) for _ in range(2))
    assert first.get_dataset() == second.get_dataset()


def test_training_and_evaluation_examples_are_disjoint() -> None:
    env = load_environment("my_task", env_dir=HERE.parent)
    trained, held_out = (
        {str((row["prompt"], row.get("answer"), row.get("info"))) for row in rows}
        for rows in (env.get_dataset(), env.get_eval_dataset())
    )
    assert trained
    assert held_out
    assert not trained & held_out
