"""Every family of reasoning-gym through `ReasoningGymEnv`: does it load, mark its own answers right, and junk wrong?

python benchmarks/reasoning_gym_families.py [--python OTHER_PYTHON]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import rove as vf
from rove.integrations.environments.reasoning import ReasoningGymEnv

ROWS = 3
COMPOSITE = {"datasets": [{"name": "chain_sum", "weight": 1, "config": {}}, {"name": "gcd", "weight": 1, "config": {}}]}


def mean(env: vf.Environment, says: Any) -> tuple[float | None, list[str]]:
    """The mean reward of a player that answers `says(row's answer)`, and what failed."""
    records = env.generate_sync(vf.ScriptedClient(lambda messages, state, rng: f"<answer>{says(state)}</answer>"))
    rewards = [record.reward for record in records if record.reward is not None]
    failures = [f"{record.error.type}: {record.error.message}"[:100] for record in records if record.error]
    return (sum(rewards) / len(rewards) if rewards else None), failures


def main() -> None:
    """Print a line per family that is not as one would wish, and the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python")
    python = parser.parse_args().python
    probe = ReasoningGymEnv("gcd", python=python)
    probe.workers.start()
    families = probe.workers.setup_result["families"]
    probe.workers.close()
    began, loaded, right, junk_paid = time.monotonic(), 0, 0, []
    for family in families:
        config = COMPOSITE if family == "composite" else {}
        env = ReasoningGymEnv(family, num_eval_examples=ROWS, config=config, python=python, score_seconds=10.0)
        try:
            own, failures = mean(env, lambda state: state["answer"])
            junk, more = mean(env, lambda state: "banana")
        except vf.Error as error:
            print(f"{family}: {error}")
            continue
        loaded += 1
        right += own == 1.0
        if junk:
            junk_paid.append(f"{family} {junk:.2f}")
        if own != 1.0 or failures or more:
            print(f"{family}: own answer {own}, junk {junk}, {sorted({*failures, *more})}")
    print(f"{loaded} of {len(families)} load and play; {right} give their own answers 1.0", end="; ")
    print(f"{time.monotonic() - began:.0f} s")
    print(f"junk is paid by: {', '.join(junk_paid)}")


if __name__ == "__main__":
    main()
