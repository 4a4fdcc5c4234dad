"""Does `rove train` end with the same results after `kill -9` at random moments?

    python benchmarks/learning/interrupt.py --env nim --kills 10

Trains once without interruption and once with interruptions, then compares the results tables and the final weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RUNS = Path("runs") / "interrupted"
RECIPE_FILES = ("recipe.toml", "request.json", "evidence.json")
"""Copied from the first run: the recipe contains an estimate of the time, which differs from run to run."""
WEIGHTS = ("sft/final/model.safetensors", "rl1/final/model.safetensors")


def start(env: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start or continue `rove train`."""
    words = [
        sys.executable,
        "-m",
        "rove",
        "train",
        env,
        "--env-dir",
        str(HERE / "environments"),
        "--run-dir",
        str(folder),
    ]
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log)


def results(folder: Path) -> dict[str, str]:
    """Return what is compared: the rewards of the results table, and digests of the final weights."""
    rows = json.loads((folder / "results.json").read_text())
    rewards = {row["name"]: {name: one["reward"] for name, one in row["conditions"].items()} for row in rows}
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in WEIGHTS}
    return {"results table": json.dumps(rewards), **digests}


def main() -> None:
    """Train twice and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="nim")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="Random seed of the moments.")
    args = parser.parse_args()
    whole, cut = RUNS / f"{args.env}-whole", RUNS / f"{args.env}-cut"
    for folder in (whole, cut):
        shutil.rmtree(folder, ignore_errors=True)
    RUNS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    if start(args.env, whole).wait():
        raise SystemExit(f"the uninterrupted run failed: see {whole}.log")
    seconds = time.monotonic() - started
    shutil.copytree(whole, cut, ignore=lambda folder, names: [name for name in names if name not in RECIPE_FILES])
    rng, kills = random.Random(args.seed), 0
    while True:
        run = start(args.env, cut)
        try:
            run.wait(timeout=rng.uniform(0.03, 0.13) * seconds if kills < args.kills else None)
            break
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
            kills += 1
            print(f"kill {kills}: {', '.join(sorted(one.name for one in cut.iterdir() if one.is_dir()))}", flush=True)
    first, second = results(whole), results(cut)
    for name in first:
        print(f"{name}: {'equal' if first[name] == second[name] else 'DIFFERENT'}")
    print(f"{kills} interruptions of a run that takes {seconds:.0f} s")
    sys.exit(first != second)


if __name__ == "__main__":
    main()
