"""The learning suite: `rove train` with its defaults in ten environments that differ, with three seeds each.

    python benchmarks/learning/suite.py                        # everything: 8 to 23 CPU-minutes for each run so far
    python benchmarks/learning/suite.py --only nim --seeds 0   # a part; the table contains whatever is complete
    python benchmarks/learning/suite.py --strangers            # 20 environments by authors who knew only the documentation

A run has learned if its final model is better than the model after SFT and than the weakest scripted policy: the 95% interval
of the mean difference in reward (T = 1, the same 1,000 held-out examples) is above 0. `rove compare` computes the same interval.
It has reached the ceiling if it is better than the weakest policy, not detectably different from the model after SFT, and not
detectably worse than the best policy.
A second table shows whether RL spoils what the reward does not see: tokens per rollout, truncated rollouts, and replies with text
after their last closing tag, before and after RL.
Repeat the command to continue a stopped run.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from rove import Run, compare
from rove.statistics.compare import Difference

HERE = Path(__file__).parent
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "reverse_text": {"max_words": 3},
    "letter_count": {},
    "modular": {},
    "mastermind": {},
    "word_game": {},
    "frozen_lake": {},
    "lookup": {},
    "facts": {},
    "nim": {},
    "reasoning_mix": {},
}
"""Name → arguments."""
STRANGERS = sorted(file.stem for file in (HERE / "strangers").glob("*.py"))
"""Names of the environments whose authors knew only the documentation; strangers/notes.json describes them."""
RUNS = Path("runs") / "learning"


class Reward(NamedTuple):
    """A mean reward at T = 1 with its 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {(self.high - self.low) / 2:.2f}"


def is_complete(folder: Path) -> bool:
    """Return whether all stages of a run, and this script's record of its CPU time, are complete."""
    return (folder / "complete.json").exists() and (folder / "cpu_seconds.txt").exists()


def train(env: str, seed: int, folder: Path, options: Sequence[str] = ()) -> None:
    """Run `rove train` with further options, and record its CPU time."""
    if is_complete(folder):
        return
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [str(HERE / "strangers" / f"{env}.py")]
    if env in ENVIRONMENTS:
        words = [env, "--env-dir", str(HERE / "environments"), "-a", json.dumps(ENVIRONMENTS[env])]
    words += ["--seed", str(seed), *options]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log:
        subprocess.run(
            [sys.executable, "-m", "rove", "train", *words, "--run-dir", str(folder)],
            stdout=log,
            stderr=log,
            check=False,
        )
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    with (folder / "cpu_seconds.txt").open("a") as file:  # one line per session
        file.write(f"{used:.1f}\n")


def read(folder: Path) -> dict[str, Any] | None:
    """Return the rewards and the CPU time of a run; None if it is not complete."""
    if not is_complete(folder):
        return None
    rows = {
        row["name"]: row["conditions"]["sampled"]["reward"] for row in json.loads((folder / "results.json").read_text())
    }
    rewards = {  # equal rewards have no interval
        name: Reward(
            reward["mean"], *(reward["mean"] if reward[end] is None else reward[end] for end in ("low", "high"))
        )
        for name, reward in rows.items()
    }
    policies = sorted((name for name in rewards if name.startswith("scripted:")), key=lambda name: rewards[name].mean)
    names = [name for name in rewards if not name.startswith("scripted:")]
    weakest, best = policies[0], policies[-1]
    sft = "+ SFT" if "+ SFT" in rewards else "base"
    gain, over_weakest, over_best = (difference(folder, row, names[-1]) for row in (sft, weakest, best))
    verdict = "no"
    if over_weakest.direction > 0 and gain.direction > 0:
        verdict = "yes"
    elif over_weakest.direction > 0 and over_best.direction >= 0 and gain.direction == 0:
        verdict = "ceiling"
    return {
        "weakest": rewards[weakest],
        "best": rewards[best],
        "SFT": rewards[sft],
        "RL": rewards[names[-1]],
        "gain": f"{gain.difference:.2f} [{gain.low:.2f}, {gain.high:.2f}]",
        "learned": verdict,
        "cpu": sum(map(float, (folder / "cpu_seconds.txt").read_text().split())) / 60,
    }


def difference(folder: Path, first_name: str, second_name: str) -> Difference:
    """Compare two rows of the results table (T = 1) on the examples that both have."""
    rows = [
        "".join(c if c.isalnum() else "-" for c in f"{row}-sampled").strip("-") for row in (first_name, second_name)
    ]
    first, second = (Run(folder / "eval" / row).outcomes() for row in rows)
    return compare(first, second).main


class Replies(NamedTuple):
    """What the rollouts of one evaluation look like."""

    tokens: float
    """Mean number of sampled tokens per rollout."""
    truncated: float
    """Share of the rollouts."""
    trailing: float
    """Share of the replies with text after their last closing tag."""


def replies(folder: Path, row: str, condition: str) -> Replies:
    """Return the lengths and endings of the replies in a row of the results table."""
    name = "".join(c if c.isalnum() else "-" for c in f"{row}-{condition}").strip("-")
    rows = json.loads((folder / "results.json").read_text())
    [summary] = [result["conditions"][condition] for result in rows if result["name"] == row]
    messages = [message for record in Run(folder / "eval" / name).rollouts() for message in record.completion]
    texts = [str(message.get("content")) for message in messages if message["role"] == "assistant"]
    parts = [re.split(r"</\w+>", text) for text in texts]
    endings = [pieces[-1] for pieces in parts if len(pieces) > 1]
    trailing = sum(bool(ending.strip()) for ending in endings) / max(1, len(texts))
    return Replies(summary["tokens_per_rollout"]["completion"], summary["truncation_share"], trailing)


def replies_table(envs: list[str], seeds: list[int]) -> Table:
    """Return the table of the replies before and after RL of all complete runs: T = 1, and in parentheses greedy."""
    lengths_table = Table(
        "environment", "seed", "tokens: SFT", "RL", "truncated: SFT", "RL", "text after: SFT", "RL", width=110
    )
    for env in envs:
        for seed in seeds:
            folder = RUNS / f"{env}-{seed}"
            if not is_complete(folder):
                continue
            names = [result["name"] for result in json.loads((folder / "results.json").read_text())]
            models = ["+ SFT" if "+ SFT" in names else "base", names[-1]]
            pairs = [[replies(folder, row, condition) for condition in ("sampled", "greedy")] for row in models]
            cells = [[f"{sampled.tokens:.1f} ({greedy.tokens:.1f})" for sampled, greedy in pairs]]
            cells += [[f"{sampled.truncated:.1%} ({greedy.truncated:.1%})" for sampled, greedy in pairs]]
            cells += [[f"{sampled.trailing:.1%} ({greedy.trailing:.1%})" for sampled, greedy in pairs]]
            lengths_table.add_row(env, str(seed), *(cell for column in cells for cell in column))
    return lengths_table


def table(envs: list[str], seeds: list[int]) -> Table:
    """Return the table of all complete runs."""
    results_table = Table(
        "environment", "seed", "weakest", "best", "SFT", "RL", "RL − SFT", "learned", "CPU-min", width=110
    )
    for env in envs:
        for seed in seeds:
            run = read(RUNS / f"{env}-{seed}")
            if run is not None:
                policies = [f"{run[name].mean:.2f}" for name in ("weakest", "best")]
                values = [str(run[name]) for name in ("SFT", "RL", "gain")]
                results_table.add_row(env, str(seed), *policies, *values, run["learned"], f"{run['cpu']:.1f}")
    return results_table


def main() -> None:
    """Run the suite and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="*", choices=[*ENVIRONMENTS, *STRANGERS], help="environments to train in (default: the suite)"
    )
    parser.add_argument("--strangers", action="store_true", help="train in the strangers' environments")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true", help="only print the table")
    args = parser.parse_args()
    envs: list[str] = args.only or (STRANGERS if args.strangers else list(ENVIRONMENTS))
    console = Console(width=110)
    if not args.table:
        for seed in args.seeds:
            for env in envs:
                console.print(f"{env}, seed {seed}")
                train(env, seed, RUNS / f"{env}-{seed}")
    console.print(table(envs, args.seeds))
    console.print(replies_table(envs, args.seeds))


if __name__ == "__main__":
    main()
