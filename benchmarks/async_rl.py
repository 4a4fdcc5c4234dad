"""Compare synchronous and asynchronous RL in an environment that waits: steps per minute and final reward.

    python benchmarks/async_rl.py [--steps 100] [--seeds 3] [--ahead 0 3]

A model trained from scratch (0.5 M parameters) has two turns per rollout. Between them, the environment waits 50 ms, as for a
tool, and 20 times as long in 1 of 20 rollouts. The reward is the share of lowercase letters in the model's messages. For each
seed, the script trains once with each value of `max_off_policy_steps` (`--ahead`), one run after another and in a different order
for each seed, so that other load on the machine affects all values. Steps per minute are those of the whole run; the final
reward is the mean over the last tenth of the steps.
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
from rove import Run
from rove.models.from_scratch import new_model
from rove.train.config import RLConfig
from rove.train.rl import train_rl

WAIT_S = 0.05
"""Seconds that the environment waits between the turns of most rollouts."""
SLOW_FACTOR, SLOW_ONE_IN = 20, 20
"""One of `SLOW_ONE_IN` rollouts waits `SLOW_FACTOR` times as long."""


class WaitingEnv(vf.MultiTurnEnv):
    """An environment with two turns that waits between them."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        """Wait, then return the second user message."""
        await asyncio.sleep(WAIT_S * (SLOW_FACTOR if state["seed"] % SLOW_ONE_IN == 0 else 1))
        return "again"


def lowercase_share(completion: vf.Messages) -> float:
    """Return the share of lowercase letters in all characters of the model's messages."""
    text = "".join(message["content"] for message in completion if message["role"] == "assistant")
    return sum("a" <= c <= "z" for c in text) / max(1, len(text))


class Result(NamedTuple):
    """Figures of a run."""

    steps_per_minute: float
    final_reward: float
    """Mean over the last tenth of the steps."""
    first_reward: float
    """Mean over the first tenth of the steps."""
    cpu_seconds: float
    metrics: dict[str, float]
    """Means over all steps."""


def train(max_off_policy_steps: int, seed: int, steps: int, folder: Path) -> Result:
    """Train a new model and return the figures of the run."""
    env = WaitingEnv(
        dataset=[{"question": f"say {number}"} for number in range(16)],
        rubric=vf.Rubric([lowercase_share]),
        max_turns=2,
    )
    loaded = new_model(["say something again"], vocab_size=300, seed=seed)
    config = RLConfig(
        env="waits",
        model="new",
        steps=steps,
        batch_size=64,
        rollouts_per_example=8,
        learning_rate=3e-3,
        max_tokens=4,
        max_off_policy_steps=max_off_policy_steps,
        checkpoint_every=steps,
        threads=1,
        log_token_stats=0,
        seed=seed,
    )
    with Run(folder) as run:
        run.start("rl", {}, {})
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        asyncio.run(train_rl(config, env, loaded, run))
        minutes, cpu_seconds = (time.perf_counter() - wall_start) / 60, time.process_time() - cpu_start
        rows = run.metrics()
    rewards = [row["reward/mean"] for row in rows]
    tenth = max(1, steps // 10)
    names = ("off_policy/mean", "off_policy/max", "idle/trainer", "idle/sampler", "queue/ended", "queue/late")
    metrics = {name: statistics.fmean(row[name] for row in rows) for name in names if name in rows[-1]}
    first_reward, final_reward = statistics.fmean(rewards[:tenth]), statistics.fmean(rewards[-tenth:])
    return Result(steps / minutes, final_reward, first_reward, cpu_seconds, metrics)


def main() -> None:
    """Train with each setting and seed; print the figures of each run and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="training steps per run (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument(
        "--ahead", type=int, nargs="+", default=[0, 3], help="values of max_off_policy_steps (default: 0 3)"
    )
    args = parser.parse_args()
    results: dict[int, list[Result]] = {ahead: [] for ahead in args.ahead}
    with tempfile.TemporaryDirectory() as folder:
        train(0, 0, 1, Path(folder) / "warm")
        for seed in range(args.seeds):
            first = seed % len(args.ahead)
            for ahead in [*args.ahead[first:], *args.ahead[:first]]:
                result = train(ahead, seed, args.steps, Path(folder) / f"{ahead}-{seed}")
                results[ahead].append(result)
                metrics = "  ".join(f"{name} {value:.2f}" for name, value in result.metrics.items())
                print(
                    f"seed {seed}  max_off_policy_steps {ahead}: {result.steps_per_minute:6.1f} steps/min  reward "
                    f"{result.first_reward:.3f} → {result.final_reward:.3f}  {result.cpu_seconds:.0f} CPU s  {metrics}",
                    flush=True,
                )
    print(
        f"\nby max_off_policy_steps: median steps/min, median and range of their ratio to {args.ahead[0]} with the same seed, "
        f"mean and range of the final reward; {args.seeds} seeds"
    )
    baseline = results[args.ahead[0]]
    for ahead, runs in results.items():
        speeds = [result.steps_per_minute for result in runs]
        ratios = [speed / reference.steps_per_minute for speed, reference in zip(speeds, baseline, strict=True)]
        rewards = [result.final_reward for result in runs]
        print(
            f"  {ahead}: {statistics.median(speeds):.1f} steps/min, {statistics.median(ratios):.2f} times "
            f"({min(ratios):.2f} to {max(ratios):.2f}); reward {statistics.fmean(rewards):.3f} "
            f"({min(rewards):.3f} to {max(rewards):.3f})"
        )


if __name__ == "__main__":
    main()
