"""Planted faults: does `rove train` name the cause, and is a healthy run left in peace?

    python benchmarks/learning/planted.py --seeds 0 1 2

Each case is one run of `rove train` in the environment `planted`, with a fault in the environment or in the recipe. It is right
if the first diagnosis, or the error before training, has the expected kind.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table

ENVIRONMENTS = Path(__file__).parent / "environments"
BEFORE = ("hidden_state", "no_spread", "reward_error")
"""Kinds that the first rollouts of the scripted policies show."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "healthy": ("", {}),
    "hidden_state": ("hidden_state", {}),
    "no_spread": ("no_spread", {}),
    "reward_error": ("reward_error", {}),
    "unpredictable": ("unpredictable", {"data": 2000}),
    "learning_rate": ("", {"sft_rate": 10.0}),
    "collapse": ("", {"rl_rate": 30.0}),
    "saturated": ("saturated", {"goal": 0.99}),
}
"""Expected kind → fault of the environment, and changes of the recipe."""


def change(
    recipe: dict[str, Any], data: int = 4000, sft_rate: float = 1.0, rl_rate: float = 1.0, goal: float = 0.0
) -> None:
    """Make a recipe small, and plant a fault in it: factors of the learning rates, or another goal of SFT."""
    recipe["data"] |= {"num_examples": data, "env_args": {**recipe["data"]["env_args"], "num_examples": data}}
    recipe["sft"]["learning_rate"] *= sft_rate
    recipe["sft"]["epochs"] = 30_000 // data
    recipe["sft"]["target"] = goal or recipe["sft"]["target"]
    recipe["rl"][0]["steps"] = 40
    recipe["rl"][0]["learning_rate"] *= rl_rate
    recipe["evaluation"]["num_examples"] = 100


def run(kind: str, seed: int, folder: Path) -> str:
    """Run a case; return the kind of the first diagnosis, or "none"."""
    fault, changes = CASES[kind]
    words = [sys.executable, "-m", "rove", "train", "planted", "--seed", str(seed), "--json"]
    env = ["--env-dir", str(ENVIRONMENTS), "-a", json.dumps({"fault": fault})]
    made = subprocess.run(
        [*words, *env, "--run-dir", str(folder), "--dry-run"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        found = re.search(rf"({'|'.join(BEFORE)}): ", made.stderr)
        return found[1] if found else "none"
    evidence = json.loads((folder / "evidence.json").read_text())
    if evidence["diagnoses"]:
        return evidence["diagnoses"][0]["kind"]
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    change(recipe, **changes)
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe))
    done = subprocess.run([*words, *env, "--run-dir", str(folder)], capture_output=True, text=True, check=True)
    diagnoses = json.loads(done.stdout)["diagnoses"]
    return diagnoses[0]["kind"] if diagnoses else "none"


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    console = Console(width=100)
    table = Table("planted", *(f"seed {seed}" for seed in args.seeds))
    for kind in args.only:
        found = []
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as folder:
                found.append(run(kind, seed, Path(folder)))
            console.print(f"{kind}, seed {seed}: {found[-1]}")
        table.add_row(kind, *found)
    console.print(table)


if __name__ == "__main__":
    main()
