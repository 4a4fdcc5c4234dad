"""RL whose rollouts wait for something: steps per minute and final reward, played in step and all the time.

    python benchmarks/async_rl.py [--steps 100] [--seeds 3] [--ahead 0 3]

A model from scratch (0.5 M parameters) has two turns; between them its environment waits 50 ms, as a tool does, and in 1 of 20
rollouts 20 times as long. It is rewarded for the share of small letters in what it says. For each seed the same run is made with
each `max_off_policy_steps`, one after the other and every seed in another order, so that a busy machine is busy for all. Steps
per minute are those of the whole run; the final reward is the mean of the last tenth of the steps.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import rove as vf
from rove.models.from_scratch import new_model
from rove.runs.run import Run
from rove.train.config import RLConfig
from rove.train.rl import train_rl

WAIT, SLOWER, ONE_IN = 0.05, 20, 20


class Waits(vf.MultiTurnEnv):
    """Asks twice, and waits in between."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        """What a tool says, in its time."""
        await asyncio.sleep(WAIT * (SLOWER if state["seed"] % ONE_IN == 0 else 1))
        return "again"


def share(completion: vf.Messages) -> float:
    """Of small letters in all that the model said."""
    said = "".join(m["content"] for m in completion if m["role"] == "assistant")
    return sum("a" <= c <= "z" for c in said) / max(1, len(said))


class Result(NamedTuple):
    """What came of a run."""

    steps_per_minute: float
    reward: float
    first_reward: float
    cpu: float
    last: dict[str, float]


def run(ahead: int, seed: int, steps: int, folder: Path) -> Result:
    """One run, of a fresh model."""
    env = Waits(dataset=[{"question": f"say {number}"} for number in range(16)], rubric=vf.Rubric([share]), max_turns=2)
    loaded = new_model(["say something again"], vocab_size=300, seed=seed)
    config = RLConfig(
        env="waits",
        model="new",
        steps=steps,
        batch_size=64,
        rollouts_per_example=8,
        learning_rate=3e-3,
        max_tokens=4,
        max_off_policy_steps=ahead,
        checkpoint_every=steps,
        threads=1,
        log_token_stats=0,
        seed=seed,
    )
    with Run(folder) as kept:
        kept.start("rl", {}, {})
        started, cpu = time.perf_counter(), time.process_time()
        asyncio.run(train_rl(config, env, loaded, kept))
        minutes, cpu = (time.perf_counter() - started) / 60, time.process_time() - cpu
        rows = kept.metrics()
    rewards = [row["reward/mean"] for row in rows]
    part = max(1, steps // 10)
    names = ("off_policy/mean", "off_policy/max", "idle/trainer", "idle/sampler", "queue/ended", "queue/late")
    told = {name: statistics.fmean(row[name] for row in rows) for name in names if name in rows[-1]}
    return Result(steps / minutes, statistics.fmean(rewards[-part:]), statistics.fmean(rewards[:part]), cpu, told)


def main() -> None:
    """Print each run, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ahead", type=int, nargs="+", default=[0, 3])
    asked = parser.parse_args()
    found: dict[int, list[Result]] = {ahead: [] for ahead in asked.ahead}
    with tempfile.TemporaryDirectory() as folder:
        run(0, 0, 1, Path(folder) / "warm")
        for seed in range(asked.seeds):
            turn = seed % len(asked.ahead)
            for ahead in [*asked.ahead[turn:], *asked.ahead[:turn]]:
                result = run(ahead, seed, asked.steps, Path(folder) / f"{ahead}-{seed}")
                found[ahead].append(result)
                told = "  ".join(f"{name} {value:.2f}" for name, value in result.last.items())
                print(
                    f"seed {seed}  max_off_policy_steps {ahead}: {result.steps_per_minute:6.1f} steps/min  "
                    f"reward {result.first_reward:.3f} → {result.reward:.3f}  {result.cpu:.0f} CPU s  {told}",
                    flush=True,
                )
    print(
        f"\nmedians and ranges of {asked.seeds} seeds; ratios of the same seed, to max_off_policy_steps {asked.ahead[0]}"
    )
    for ahead, results in found.items():
        speeds = [result.steps_per_minute for result in results]
        ratios = [one / other.steps_per_minute for one, other in zip(speeds, found[asked.ahead[0]], strict=True)]
        rewards = [result.reward for result in results]
        print(
            f"  {ahead}: {statistics.median(speeds):.1f} steps/min, {statistics.median(ratios):.2f} times "
            f"({min(ratios):.2f} to {max(ratios):.2f}); reward {statistics.fmean(rewards):.3f} "
            f"({min(rewards):.3f} to {max(rewards):.3f})"
        )


if __name__ == "__main__":
    main()
