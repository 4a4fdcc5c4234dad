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
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table

ENVIRONMENTS = Path(__file__).parent / "environments"
BEFORE = ("hidden_state", "no_spread", "reward_error")
"""Kinds that the first rollouts of the scripted policies show."""
ROWS = 3000
MERGED = {"word_share": 0.0, "vocab_size": 20_000, "games": ROWS, "env_args": {"num_examples": ROWS}}
"""A tokenizer with a token for each word of the first rows."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "healthy": ("", {}),
    "merged_tokens": ("", {"model": MERGED, "data": ROWS}),
    "hidden_state": ("hidden_state", {}),
    "no_spread": ("no_spread", {}),
    "saturated": ("", {"goal": 0.98}),
    "learning_rate": ("", {"rl_rate": 10.0}),
    "reward_error": ("reward_error", {}),
    "unpredictable": ("shuffled_labels", {}),
}
"""Expected kind of the first diagnosis → fault of the environment, and changes of the recipe."""


def change(
    recipe: dict[str, Any],
    model: Mapping[str, Any] = MappingProxyType({}),
    data: int = 0,
    rl_rate: float = 1.0,
    goal: float = 0.0,
) -> None:
    """Plant a fault in a recipe.

    Args:
        recipe: The recipe, changed in place.
        model: Settings of the new model.
        data: Rows of the training data; 0 keeps the recipe's.
        rl_rate: Factor of the learning rate of RL.
        goal: Goal of SFT; 0 keeps the recipe's.
    """
    recipe["model"]["env_args"] |= model.get("env_args", {})
    recipe["model"] |= {name: value for name, value in model.items() if name != "env_args"}
    if data:
        recipe["data"]["num_examples"] = recipe["data"]["env_args"]["num_examples"] = data
    recipe["sft"]["target"] = goal or recipe["sft"]["target"]
    recipe["rl"][0]["steps"] = 100
    recipe["rl"][0]["learning_rate"] *= rl_rate
    recipe["evaluation"]["num_examples"] = 100


def run(kind: str, seed: int, folder: Path) -> str:
    """Run a case until its first diagnosis; return the kind and when it was found, or "none"."""
    fault, changes = CASES[kind]
    words = [sys.executable, "-m", "rove", "train", "planted", "--seed", str(seed), "--json"]
    env = ["--env-dir", str(ENVIRONMENTS), "-a", json.dumps({"fault": fault})]
    dry_run = subprocess.run(
        [*words, *env, "--run-dir", str(folder), "--dry-run"], capture_output=True, text=True, check=False
    )
    if dry_run.returncode:
        refused = re.search(rf"({'|'.join(BEFORE)}): ", dry_run.stderr)
        return refused[1] if refused else "none"
    evidence = json.loads((folder / "evidence.json").read_text())
    if evidence["diagnoses"]:
        return evidence["diagnoses"][0]["id"]
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    change(recipe, **changes)
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe))
    with (
        (folder / "log.txt").open("w") as log,
        # --yes: the recipe is no longer the one that rove wrote, and it names the folder of the environment.
        subprocess.Popen([*words, *env, "--run-dir", str(folder), "--yes"], stdout=log, stderr=log) as training,
    ):
        diagnoses: list[dict[str, Any]] = []
        while not diagnoses and training.poll() is None:
            time.sleep(0.5)
            path = folder / "diagnoses.json"
            diagnoses = json.loads(path.read_text()) if path.exists() else []
        training.kill()
    if not diagnoses and training.returncode:
        raise SystemExit(f"{kind}, seed {seed}: {(folder / 'log.txt').read_text()[-2000:]}")
    if not diagnoses:
        return "none"
    first = diagnoses[0]
    return f"{first['id']} ({first['stage']} {first['step']} of {first['steps']})"


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    console = Console(width=100)
    table = Table("planted", *(f"seed {seed}" for seed in args.seeds))
    right = 0
    for kind in args.only:
        outcomes = []
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(run(kind, seed, Path(folder)))
            console.print(f"{kind}, seed {seed}: {outcomes[-1]}")
        table.add_row(kind, *outcomes)
        right += sum(name.split()[0] == (kind if kind != "healthy" else "none") for name in outcomes)
    console.print(table)
    console.print(f"right: {right} of {len(args.only) * len(args.seeds)}")


if __name__ == "__main__":
    main()
