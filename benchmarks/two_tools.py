"""A tiny model learns by RL to use two tools: from random weights, the commands of docs/tools.md in one script.

    python benchmarks/two_tools.py [--seeds 0,1] [--plots docs/study]

A seed is a new model, SFT on the games of `scripted:novice`, which has the form and bad habits, and `rove rl` with
environments/lookup/rl.toml. Its stages are run folders in FOLDER (--folder, default runs/two_tools): stop the script whenever you
like, the same command goes on where it was. In the end it draws the curve of held-out games and prints a table, from all seeds
that were asked for. --smoke is tiny and learns nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.console import Console

from rove.cli.common import console_for
from rove.cli.eval import run_eval
from rove.cli.model import ModelConfig, run_model_new
from rove.cli.rl import run_rl
from rove.cli.sft import run_sft
from rove.cli.suite import EvalConfig
from rove.core.config import convert, read_toml
from rove.envs.loading import environment_file
from rove.runs.run import Run
from rove.train.config import RLConfig, SFTConfig

ENV = "lookup"
NOVICE = {"model": "scripted:novice", "train": True, "num_examples": 14000, "env_args": {"num_examples": 14000}}
SFT = {
    "epochs": 1,
    "batch_size": 16,
    "learning_rate": 1.5e-3,
    "patience": 99,  # the loss stands still for some time before copying is learnt
    "micro_batch_tokens": 2048,
    "bf16_backward": True,
}
HELD_OUT = {"env_args": {"seed": 99}, "num_examples": 500, "max_tokens": 48}
SMOKE: dict[str, dict[str, Any]] = {
    "data": {"num_examples": 120},
    "sft": {"validate_every": 4},
    "held-out": {"num_examples": 8, "max_tokens": 8},
    "rl": {"steps": 2, "batch_size": 16, "rollouts_per_example": 4, "max_tokens": 8},
}
GREEDY = "eval/held-out/reward/mean"
"""What the `[[evaluation]]` of rl.toml measures."""
COLUMNS = ("random weights, T = 1", "after SFT, T = 1", "greedy", "after RL, T = 1", "greedy")


class Learnt(NamedTuple):
    """What came of a seed."""

    seed: int
    measured: Sequence[Mapping[str, float]]
    """Right answers of held-out games, as in COLUMNS: mean and half of the 95 % interval."""
    minutes: Sequence[float]
    """CPU time of SFT, its data included, and of RL with its measurements."""
    rl: Run


class Stages(NamedTuple):
    """The stages of a seed."""

    seed: int
    folder: Path
    smoke: bool
    console: Console

    def eval(self, name: str, values: Mapping[str, Any], model: Path | None = None) -> dict[str, Any]:
        """An evaluation with a run folder of this name; returns its summary."""
        given = {"env": ENV, "run_dir": str(self.folder / name), "rollouts_per_example": 1, "seed": self.seed}
        named = {"model": str(model)} if model else {}
        return run_eval(convert(EvalConfig, {**given, **named, **values}), self.console)[0]

    def held_out(self, name: str, model: Path, temperature: float) -> dict[str, float]:
        """How often it is right in games that nothing was trained on."""
        values = {**HELD_OUT, **(SMOKE["held-out"] if self.smoke else {}), "temperature": temperature}
        reward = self.eval(f"{name}-{temperature:g}", values, model)["reward"]
        return {"mean": reward["mean"], "low": reward["low"], "high": reward["high"]}

    def new_model(self) -> Path:
        """Random weights; short convolutions learn soonest to copy."""
        path = self.folder / "model"
        if not path.exists():
            run_model_new(ModelConfig(env=ENV, arch="lfm2", output=str(path), seed=self.seed))
        return path

    def warm_up(self, model: Path) -> Path:
        """SFT on the novice's games, the lost ones too."""
        self.eval("data", {**NOVICE, **(SMOKE["data"] if self.smoke else {})})
        given = {"data": str(self.folder / "data"), "model": str(model), "run_dir": str(self.folder / "sft")}
        values = {**SFT, **(SMOKE["sft"] if self.smoke else {}), **given, "seed": self.seed, "threads": 1}
        return run_sft(convert(SFTConfig, values), self.console)[0]

    def reinforce(self, model: Path) -> Path:
        """RL with the environment's settings."""
        values = read_toml(environment_file(ENV).with_name("rl.toml"))
        if self.smoke:
            few = {**SMOKE["held-out"], "every": 1}
            values |= {**SMOKE["rl"], "evaluation": [{**one, **few} for one in values["evaluation"]]}
        values |= {"model": str(model), "run_dir": str(self.folder / "rl"), "seed": self.seed, "threads": 1}
        return run_rl(convert(RLConfig, values), self.console)[0]

    def timed(self, name: str, stage: Callable[[Path], Path], model: Path) -> tuple[Path, float]:
        """Run a stage; its CPU minutes are kept beside it for when the script runs again."""
        kept, began = self.folder / f"{name}.minutes", time.process_time()
        made = stage(model)
        if not kept.exists():
            kept.write_text(str((time.process_time() - began) / 60))
        return made, float(kept.read_text())


def learn(stages: Stages) -> Learnt:
    """All stages of a seed; those that are there are not repeated."""
    model = stages.new_model()
    warm, sft = stages.timed("sft", stages.warm_up, model)
    measured = [stages.held_out("random", model, 1), *(stages.held_out("sft", warm, t) for t in (1, 0))]
    final, rl = stages.timed("rl", stages.reinforce, warm)
    measured += [stages.held_out("rl", final, t) for t in (1, 0)]
    return Learnt(stages.seed, measured, (sft, rl), Run(stages.folder / "rl"))


def draw(found: Sequence[Learnt], path: Path) -> None:
    """Right answers by RL steps: held-out ones, greedy, as dots, those of training as a thin line, a colour per seed."""
    figure = Figure(figsize=(7, 3.6))
    axis = figure.subplots()
    for number, learnt in enumerate(found):
        rows = learnt.rl.metrics()
        sampled = [(row["step"], 100 * row["reward/mean"]) for row in rows]
        held_out = [(0, 100 * learnt.measured[2]["mean"])]
        held_out += [(row["step"], 100 * row[GREEDY]) for row in rows if GREEDY in row]
        label = f"seed {learnt.seed}: held out, greedy"
        axis.plot(*zip(*sampled, strict=True), color=f"C{number}", linewidth=0.8, alpha=0.6)
        axis.plot(*zip(*held_out, strict=True), color=f"C{number}", marker="o", markersize=4, label=label)
    axis.plot([], [], color="grey", linewidth=0.8, label="in training, T = 1")
    axis.set_xlabel("RL steps")
    axis.set_ylabel("right answers, %")
    axis.set_ylim(-2, 102)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def table(found: Sequence[Learnt]) -> str:
    """A row per seed in Markdown: right answers, % with the 95 % interval, and CPU minutes."""
    titles = ["seed", *COLUMNS, "CPU-minutes: SFT", "RL"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for learnt in found:
        cells = [
            f"{100 * one['mean']:.1f} [{100 * one['low']:.1f}, {100 * one['high']:.1f}]" for one in learnt.measured
        ]
        cells += [f"{minutes:.1f}" for minutes in learnt.minutes]
        lines.append(f"| {learnt.seed} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--folder", type=Path, default=Path("runs/two_tools"))
    parser.add_argument("--plots", type=Path, help="where the plot goes; FOLDER when not given")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args()
    console, seeds = console_for(json=False), [int(seed) for seed in given.seeds.split(",")]
    found = [learn(Stages(seed, given.folder / f"seed{seed}", given.smoke, console)) for seed in seeds]
    plots = given.plots or given.folder
    plots.mkdir(parents=True, exist_ok=True)
    draw(found, plots / "two_tools.png")
    print(table(found))


if __name__ == "__main__":
    main()
