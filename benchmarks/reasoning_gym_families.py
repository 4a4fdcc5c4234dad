"""Test every family of reasoning-gym with `ReasoningGymEnv`: it loads, rewards its reference answers, and not a wrong answer.

python benchmarks/reasoning_gym_families.py [--python OTHER_PYTHON]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import rove as vf
from rove import ReasoningGymEnv

ROWS = 3
COMPOSITE = {"datasets": [{"name": "chain_sum", "weight": 1, "config": {}}, {"name": "gcd", "weight": 1, "config": {}}]}


def mean_reward(env: vf.Environment, answer_of: Any) -> tuple[float | None, list[str]]:
    """Return the mean reward of a scripted policy that answers `answer_of(state)`, and the errors of failed rollouts.

    The mean is None if no rollout was scored.
    """
    records = env.generate_sync(vf.ScriptedClient(lambda messages, state, rng: f"<answer>{answer_of(state)}</answer>"))
    rewards = [record.reward for record in records if record.reward is not None]
    failures = [f"{record.error.type}: {record.error.message}"[:100] for record in records if record.error]
    return (sum(rewards) / len(rewards) if rewards else None), failures


def main() -> None:
    """Print a line per family with an error or an unexpected reward, and the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python")
    python = parser.parse_args().python
    probe = ReasoningGymEnv("gcd", python=python)
    probe.workers.start()
    families = probe.workers.setup_result["families"]
    probe.workers.close()
    started, loaded, num_correct, junk_rewarded = time.monotonic(), 0, 0, []
    for family in families:
        config = COMPOSITE if family == "composite" else {}
        env = ReasoningGymEnv(family, num_eval_examples=ROWS, config=config, python=python, score_seconds=10.0)
        try:
            reference, failures = mean_reward(env, lambda state: state["answer"])
            junk, junk_failures = mean_reward(env, lambda state: "banana")
        except vf.Error as error:
            print(f"{family}: {error}")
            continue
        loaded += 1
        num_correct += reference == 1.0
        if junk:
            junk_rewarded.append(f"{family} {junk:.2f}")
        if reference != 1.0 or failures or junk_failures:
            print(
                f"{family}: reward of the reference answer {reference}, of a wrong answer {junk}, "
                f"{sorted({*failures, *junk_failures})}"
            )
    print(f"{loaded} of {len(families)} families load; {num_correct} reward their reference answers with 1.0", end="; ")
    print(f"{time.monotonic() - started:.0f} s")
    print(f"mean rewards of a wrong answer above 0: {', '.join(junk_rewarded)}")


if __name__ == "__main__":
    main()
