"""Tic-Tac-Toe's RL 1 with an adapter and with the whole model: how well both play, seed by seed.

    python benchmarks/lora.py [--seeds 0,1,2] [--rates 5e-4,1e-3] [--rank 8]

The demo's recipe is followed up to its SFT (in FOLDER, runs/lora when not given; a demo's folder has it already). From there its
RL 1 is made once per seed with the whole model, at the recipe's learning rate, and once per seed and learning rate with an
adapter. All are measured as the demo does: 1,000 greedy games against either opponent. Stop it whenever you like: what is there
is not done again. --smoke is tiny and learns nothing.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rove.cli.common import console_for
from rove.cli.demo import load_recipe
from rove.cli.pipeline import Pipeline, results_table
from rove.cli.rl import run_rl
from rove.statistics import mean
from rove.train.worker_group import SINGLE_PROCESS


def stages(
    rl: Mapping[str, Any], seeds: Sequence[int], rates: Sequence[str], rank: int
) -> list[tuple[str, dict[str, Any]]]:
    """The runs, seed by seed: name and settings."""
    found = []
    for seed, rate in itertools.product(seeds, ["", *rates]):
        adapter = {"lora": {"rank": rank}, "learning_rate": float(rate)} if rate else {}
        name = f"adapter, {rate}" if rate else "whole model"
        found.append((name, {**rl, **adapter, "seed": seed}))
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Wins against random and draws against optimal in Markdown, a row for each kind of run: the mean and all seeds."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row["conditions"])
    lines = ["| RL 1 | wins vs random, % | draws vs optimal, % | invalid, % |", "|---|---|---|---|"]
    for kind, measured in kinds.items():
        cells = [kind]
        for opponent, name in (
            ("against random", "won"),
            ("against optimal", "drawn"),
            ("against random", "invalid_move"),
        ):
            values = [100 * one[opponent]["functions"][name]["mean"] for one in measured]
            cells.append(f"{mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="of RL; SFT is that of seed 0")
    parser.add_argument("--rates", default="5e-4,1e-3", help="learning rates of adapters")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=Path("runs/lora"))
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args()
    console, recipe = console_for(json=False), load_recipe("tictactoe", ["smoke"] if given.smoke else [])
    demo = Pipeline("tictactoe", msgspec.structs.replace(recipe, rl=[]), given.folder, 0, console, SINGLE_PROCESS)
    demo.run()
    rl = {**recipe.rl[0], "threads": 1}
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for kind, stage in stages(rl, seeds, given.rates.split(","), given.rank):
        name = f"{kind}, seed {stage['seed']}"
        config = demo.rl_config(name.replace(", ", "-").replace(" ", "-"), stage, str(given.folder / "sft" / "final"))
        console.print(f"\n{name}")
        demo.measure(name, str(run_rl(config, console)[0]))
        demo.rows[-1]["kind"] = kind
    console.print(results_table(recipe, demo.rows, recipe.evaluation["num_examples"]))
    print(summary([row for row in demo.rows if "kind" in row]))


if __name__ == "__main__":
    main()
