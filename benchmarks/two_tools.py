"""Does a tiny model learn by RL whom to look up before it answers? From random weights, all stages in one script.

    python benchmarks/two_tools.py [--seeds 0,1] [--plots docs/study]

Every seed is a new model, an SFT on the games of `scripted:novice`, which has the form and is mostly wrong, and `rove rl` with
environments/lookup/rl.toml. Stages are run folders in FOLDER (--folder, default runs/two_tools): stop the script whenever you
like, the same command goes on where it was. In the end it prints greedy held-out rewards before and after, and draws their curve.
--smoke is tiny and learns nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.console import Console

from rove.cli.common import console_for
from rove.cli.eval import EvalConfig, run_eval
from rove.cli.model import ModelConfig, run_model_new
from rove.cli.rl import run_rl
from rove.cli.sft import run_sft
from rove.config import convert, read_toml
from rove.envs.loading import environment_file
from rove.runs import Run
from rove.train.rl import RLConfig
from rove.train.sft import SFTConfig

ENV = "lookup"
RL = "rl.toml"
"""Settings of `rove rl`, beside the environment."""
GAMES = 6000
"""Of the novice, to warm up with."""
ARCH = "lfm2"
"""It learns to copy from a tool's message sooner than the others, see LOG.md."""
SFT = {"epochs": 2, "batch_size": 16, "learning_rate": 2e-3, "validate_every": 100}
HELD_OUT = 200
SHOWN = ("correct", "looked_up", "answered")
SMALL = {"steps": 2, "batch_size": 16, "rollouts_per_example": 4, "max_tokens": 8}


class Learnt(NamedTuple):
    """What came of a seed."""

    seed: int
    before: Mapping[str, Any]
    """Summary of the evaluation after SFT."""
    after: Mapping[str, Any]
    """And after RL."""
    rl: Run
    cpu: Mapping[str, float]
    """CPU seconds of each stage in this process; what was there already took none."""


class Clock:
    """CPU seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.process_time()

    def __call__(self, stage: str) -> None:
        """What ran since the last call was this stage."""
        now = time.process_time()
        self.seconds[stage], self._last = now - self._last, now


def measure(model: Path, folder: Path, count: int, max_tokens: int, console: Console) -> dict[str, Any]:
    """Greedy rollouts on evaluation questions that neither SFT nor RL has seen."""
    values = {"env": ENV, "env_args": {"seed": 99}, "model": str(model), "run_dir": str(folder)}
    asked = {"num_examples": count, "rollouts_per_example": 1, "temperature": 0.0, "max_tokens": max_tokens}
    return run_eval(convert(EvalConfig, {**values, **asked}), console)[0]


def learn(seed: int, folder: Path, smoke: bool, console: Console) -> Learnt:
    """All stages of a seed."""
    folder = folder / f"seed{seed}"
    rl = read_toml(environment_file(ENV).with_name(RL))
    games, sft, count = GAMES, SFT, HELD_OUT
    if smoke:
        games, sft, count = 120, {**SFT, "epochs": 1}, 8
        rl |= SMALL
        rl["evaluation"] = [{**table, "num_examples": count, "every": 1, "max_tokens": 8} for table in rl["evaluation"]]
    clock, model = Clock(), folder / "model"
    if not model.exists():
        run_model_new(ModelConfig(env=ENV, arch=ARCH, output=str(model), seed=seed))
    clock("model")
    table = {"env": ENV, "model": "scripted:novice", "train": True, "env_args": {"num_examples": games}, "seed": seed}
    played = {**table, "num_examples": games, "rollouts_per_example": 1, "run_dir": str(folder / "data")}
    run_eval(convert(EvalConfig, played), console)
    clock("data")
    given = {"data": str(folder / "data"), "model": str(model), "run_dir": str(folder / "sft"), "seed": seed}
    warm, _ = run_sft(convert(SFTConfig, {**given, **sft, "threads": 1}), console)
    clock("sft")
    before = measure(warm, folder / "before", count, rl["max_tokens"], console)
    clock("before")
    given = {"model": str(warm), "run_dir": str(folder / "rl"), "seed": seed, "threads": 1}
    final, run = run_rl(convert(RLConfig, {**rl, **given}), console)
    clock("rl")
    after = measure(final, folder / "after", count, rl["max_tokens"], console)
    clock("after")
    return Learnt(seed, before, after, run, clock.seconds)


def draw(found: list[Learnt], path: Path) -> None:
    """Rewards against RL steps: greedy and held out as dots, sampled in training as a thin line, a colour per seed."""
    figure = Figure(figsize=(7, 3.6))
    axis = figure.subplots()
    for number, learnt in enumerate(found):
        rows, colour = learnt.rl.metrics(), f"C{number}"
        name = f"eval/{learnt.rl.config()['config']['evaluation'][0]['name']}/reward/mean"
        measured = [(row["step"], 100 * row[name]) for row in rows if name in row]
        held_out = [(0, 100 * learnt.before["reward"]["mean"]), *measured]
        sampled = [(row["step"], 100 * row["reward/mean"]) for row in rows]
        axis.plot(*zip(*sampled, strict=True), color=colour, linewidth=0.8, alpha=0.6)
        label = f"seed {learnt.seed}, greedy on held-out questions"
        axis.plot(*zip(*held_out, strict=True), color=colour, linewidth=1.4, marker="o", markersize=4, label=label)
    axis.plot([], [], color="grey", linewidth=0.8, label="sampled in training")
    axis.set_xlabel("RL steps")
    axis.set_ylabel("right answers, %")
    axis.set_ylim(-2, 102)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def table(found: list[Learnt]) -> str:
    """Before and after in Markdown, % with 95 % intervals, and the CPU time of the seed."""
    lines = ["| seed | | " + " | ".join(SHOWN) + " | CPU seconds |", "|" + "---|" * (3 + len(SHOWN))]
    for learnt in found:
        times = {"after SFT": ("model", "data", "sft"), "after RL": ("rl",)}
        for (name, stages), summary in zip(times.items(), (learnt.before, learnt.after), strict=True):
            cells = [summary["functions"][function] for function in SHOWN]
            shown = [f"{100 * cell['mean']:.1f} ± {100 * cell['half_width']:.1f}" for cell in cells]
            spent = " + ".join(f"{learnt.cpu[stage]:.0f} ({stage})" for stage in stages)
            lines.append(f"| {learnt.seed} | {name} | {' | '.join(shown)} | {spent} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--folder", type=Path, default=Path("runs/two_tools"))
    parser.add_argument("--plots", type=Path, help="where the plot goes; FOLDER when not given")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args()
    console = console_for(json=False)
    found = [learn(int(seed), given.folder, given.smoke, console) for seed in given.seeds.split(",")]
    plots = given.plots or given.folder
    plots.mkdir(parents=True, exist_ok=True)
    draw(found, plots / "two_tools.png")
    print(table(found))


if __name__ == "__main__":
    main()
