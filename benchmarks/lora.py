"""Compare LoRA with full fine-tuning in the first RL stage (RL 1) of the Tic-Tac-Toe demo, seed by seed.

    python benchmarks/lora.py [--seeds 0,1,2] [--rates 5e-4,1e-3] [--rank 8]

The script first runs the demo's recipe up to the end of SFT in FOLDER (--folder, default: runs/lora); pass the folder of a
finished demo to skip this step. From the SFT model, it runs RL 1 once per seed with the full model at the recipe's learning rate,
and once per seed and learning rate with a LoRA adapter. Each final model is evaluated as in the demo: 1,000 greedy games against
each opponent. To resume an interrupted script, run it again; finished runs are skipped. --smoke tests the script with tiny sizes;
its results are meaningless.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rove import ConsoleReporter
from rove.stages.pipeline import Pipeline, results_table
from rove.stages.recipe import load_recipe
from rove.stages.rl import run_rl
from rove.statistics import mean
from rove.train.config import RLConfig
from rove.train.worker_group import SINGLE_PROCESS


def stages(rl: RLConfig, seeds: Sequence[int], rates: Sequence[str], rank: int) -> list[tuple[str, RLConfig]]:
    """Return the name and settings of each run, seed by seed."""
    runs = []
    for seed, rate in itertools.product(seeds, ["", *rates]):
        config = msgspec.structs.replace(rl, seed=seed, threads=1)
        if rate:
            lora = msgspec.structs.replace(config.lora, rank=rank)
            config = msgspec.structs.replace(config, lora=lora, learning_rate=float(rate))
        runs.append((f"adapter, {rate}" if rate else "whole model", config))
    return runs


def summary(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return a Markdown table of wins, draws and invalid moves in %: a row per kind of run, with the mean and each seed."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for kind, conditions in rows:
        kinds.setdefault(kind, []).append(conditions)
    lines = ["| RL 1 | wins vs random, % | draws vs optimal, % | invalid, % |", "|---|---|---|---|"]
    for kind, measured in kinds.items():
        cells = [kind]
        for opponent, name in (
            ("against random", "won"),
            ("against optimal", "drawn"),
            ("against random", "invalid_move"),
        ):
            values = [100 * conditions[opponent]["functions"][name]["mean"] for conditions in measured]
            cells.append(f"{mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the missing stages and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="seeds of RL (default: 0,1,2); SFT always uses seed 0")
    parser.add_argument("--rates", default="5e-4,1e-3", help="learning rates of the LoRA runs (default: 5e-4,1e-3)")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=Path("runs/lora"))
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes to test the script")
    args = parser.parse_args()
    reporter = ConsoleReporter()
    recipe = load_recipe("tictactoe", ["smoke"] if args.smoke else []).complete("tictactoe", args.folder)
    demo = Pipeline(msgspec.structs.replace(recipe, rl=[]), reporter, SINGLE_PROCESS)
    demo.run()
    kinds: dict[str, str] = {}
    seeds = [int(seed) for seed in args.seeds.split(",")]
    for kind, config in stages(recipe.rl[0].config, seeds, args.rates.split(","), args.rank):
        name = f"{kind}, seed {config.seed}"
        folder = args.folder / name.replace(", ", "-").replace(" ", "-")
        reporter.title(name)
        model = str(args.folder / "sft" / "final")
        result = run_rl(msgspec.structs.replace(config, model=model, run_dir=str(folder)), reporter)
        demo.measure(name, str(result.model))
        kinds[name] = kind
    reporter.table(results_table(recipe, demo.rows))
    print(summary([(kinds[row.name], row.conditions) for row in demo.rows if row.name in kinds]))


if __name__ == "__main__":
    main()
