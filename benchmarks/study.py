"""The lessons of the public Tic-Tac-Toe record, tried out: the same RL run again and again, each time with one thing changed.

    python benchmarks/study.py [--only batch,format] [--seeds 0,1] [--steps 100] [--start MODEL]

Every run is an ordinary `rove rl` in FOLDER (--folder, default runs/study) with two held-out evaluations. Stop the script
whenever you like: the same command goes on where it was. In the end it draws a plot per lesson and prints a table, from all runs
that are there. docs/study.md tells what came of it. --smoke is tiny and learns nothing.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from matplotlib.figure import Figure
from rich.console import Console

from rove.cli.common import console_for
from rove.cli.demo import load_recipe
from rove.cli.eval import run_eval
from rove.cli.pipeline import Pipeline, Recipe
from rove.cli.rl import run_rl
from rove.cli.suite import EvalConfig
from rove.core.config import convert
from rove.core.records import Outcome, RolloutRecord
from rove.runs.run import Run
from rove.statistics import compare, mean
from rove.train.config import RLConfig
from rove.train.worker_group import SINGLE_PROCESS

HERE = Path(__file__).parent
MEASUREMENTS = 5
"""Of a run on held-out games, the one after the last step included."""
LAST = 3
"""Measurements that the table is a mean of: single ones wander."""
GAMES = 400
"""Of a measurement, against either opponent."""
PERFECT = {"min_random_move_prob": 0.0, "max_random_move_prob": 0.0}
WINS, DRAWS = "eval/random/metrics/won", "eval/optimal/metrics/drawn"
OPPONENTS = {"random": {"min_random_move_prob": 1.0, "max_random_move_prob": 1.0}, "optimal": PERFECT}

Rows = Sequence[Mapping[str, float]]
"""A run's metrics, one row per step."""


class Variant(NamedTuple):
    """A run, and what is different about it."""

    label: str
    env_args: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    env: str = "tictactoe"
    start: str = "good"
    """"good" = the demo's SFT model; "weak" = one of a short SFT."""
    cut: int = 1
    """The batch is so many times smaller, and there are so many times more steps."""


class Lesson(NamedTuple):
    """What is compared, and which metric of training is drawn beside the held-out games."""

    title: str
    variants: Sequence[str]
    metric: str
    """Last part of its name."""
    caption: str


VARIANT = "tictactoe_variant"
VARIANTS = {
    "base": Variant("base: 256 games a step, opponents 20-70 % random, T = 1"),
    "batch-32": Variant("32 games a step, 8 times the steps", cut=8),
    "perfect": Variant("perfect opponent only", PERFECT),
    "no-format": Variant("no format reward", {"format_reward": False}, env=VARIANT),
    "weak": Variant("from a short SFT", start="weak"),
    "weak-no-format": Variant(
        "no format reward, from a short SFT", {"format_reward": False}, env=VARIANT, start="weak"
    ),
    "weak-no-bonus": Variant(
        "from a short SFT, no entropy bonus", settings={"loss": {"entropy_bonus": 0.0}}, start="weak"
    ),
    "first-best": Variant("perfect opponent, always its first best move", {"first_best": True, **PERFECT}, env=VARIANT),
    "T-1.25": Variant("T = 1.25", settings={"temperature": 1.25}),
    "T-1.4": Variant("T = 1.4", settings={"temperature": 1.4}),
    "one-behind": Variant("played one step ahead", settings={"max_off_policy_steps": 1}),
}
LESSONS = {
    "batch": Lesson("Batch size, as many games", ("base", "batch-32"), "mean", "reward in training"),
    "opponents": Lesson("Whom to play", ("base", "perfect"), "zero_spread", "share of groups without spread"),
    "format": Lesson(
        "The format reward",
        ("base", "no-format", "weak", "weak-no-format", "weak-no-bonus"),
        "format",
        "format in training",
    ),
    "memory": Lesson("An opponent with habits", ("perfect", "first-best"), "drawn", "draws in training"),
    "temperature": Lesson("Temperature", ("base", "T-1.25", "T-1.4"), "invalid_move", "invalid moves in training"),
    "async": Lesson("Playing one step ahead", ("base", "one-behind"), "mean", "reward in training"),
}


def evaluation(opponent: str, games: int, max_tokens: int) -> dict[str, Any]:
    """What is measured against an opponent: greedy games of a dataset that nothing was trained on."""
    return {
        "env": "tictactoe",
        "env_args": {"seed": 99, **OPPONENTS[opponent]},
        "num_examples": games,
        "rollouts_per_example": 1,
        "temperature": 0.0,
        "max_tokens": max_tokens,
    }


def config_of(variant: Variant, rl: Mapping[str, Any], start: Path, seed: int, games: int) -> RLConfig:
    """The settings of a run: the demo's RL 1, with what is different.

    Examples are as many as the run plays, and every step holds each difficulty once.
    """
    siblings = rl.get("rollouts_per_example", 8)
    batch, steps = max(siblings, rl.get("batch_size", 256) // variant.cut), rl["steps"] * variant.cut
    groups, every = batch // siblings, max(1, steps // MEASUREMENTS)
    measured = [{**evaluation(name, games, rl["max_tokens"]), "name": name, "every": every} for name in OPPONENTS]
    values = {key: value for key, value in rl.items() if key != "name"}
    values |= {"env": variant.env, "env_dir": str(HERE), "model": str(start), "seed": seed, "threads": 1}
    values |= {"batch_size": batch, "steps": steps, "checkpoint_every": every, "evaluation": measured}
    values["env_args"] = {**rl["env_args"], "seed": seed, "num_examples": steps * groups, "num_groups": groups}
    values["env_args"] |= variant.env_args
    return convert(RLConfig, {**values, **variant.settings})


def make_start(kind: str, recipe: Recipe, folder: Path, console: Console) -> Path:
    """The model of the demo after its SFT; for "weak" with half of the games, each seen once."""
    few = {**recipe.evaluation, "num_examples": 8}  # the demo's own table is not looked at
    short = msgspec.structs.replace(recipe, rl=[], evaluation=few)
    if kind == "weak":
        data = {**recipe.data, "num_examples": recipe.data["num_examples"] // 2}
        short = msgspec.structs.replace(short, data=data, sft={**recipe.sft, "epochs": 1})
    Pipeline("tictactoe", short, folder, 0, console, SINGLE_PROCESS).run()
    return folder / "sft" / "final"


def measure_start(model: Path, folder: Path, games: int, max_tokens: int, console: Console) -> dict[str, float]:
    """What a run would have measured before its first step."""
    row: dict[str, float] = {"step": 0}
    for name in OPPONENTS:
        values = {**evaluation(name, games, max_tokens), "model": str(model), "run_dir": str(folder / name)}
        summary, _ = run_eval(convert(EvalConfig, values), console)
        for function, found in summary["functions"].items():
            row[f"eval/{name}/{'reward' if found['weight'] else 'metrics'}/{function}"] = found["mean"]
    return row


class History(NamedTuple):
    """What a run measured."""

    run: Run
    rows: Rows
    """A row per step; before them that of the start."""
    batch: int

    def curve(self, metric: str, parts: int = 25) -> list[tuple[float, float]]:
        """A metric of training: (thousand games played, mean), over so many equal parts of the run."""
        rows = [(row["step"], found) for row in self.rows if (found := trained(row, metric)) is not None]
        size = max(1, len(rows) // parts)
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        return [(chunk[-1][0] * self.batch / 1000, mean([seen for _, seen in chunk])) for chunk in chunks]

    def held_out(self, metric: str) -> list[tuple[float, float]]:
        """A metric of held-out games: (thousand games played, value in %)."""
        return [(row["step"] * self.batch / 1000, 100 * row[metric]) for row in self.rows if metric in row]

    def last(self, metric: str) -> float:
        """A metric of training over the last tenth of the steps."""
        rows = self.rows[-max(1, len(self.rows) // 10) :]
        return mean([found for row in rows if (found := trained(row, metric)) is not None])

    def games(self, opponent: str) -> list[Outcome | RolloutRecord]:
        """Those of the last measurements."""
        steps = [int(row["step"]) for row in self.rows[1:] if DRAWS in row][-LAST:]
        return [game for step in steps for game in Run(self.run.path / "evaluations" / opponent / str(step)).outcomes()]


def trained(row: Mapping[str, float], name: str) -> float | None:
    """A metric of training by the last part of its name: what is a reward in one environment is a metric in another."""
    if name == "zero_spread" and "groups/all" in row:
        return row["groups/zero_spread"] / row["groups/all"]
    names = (f"reward/{name}", f"metrics/{name}", f"{name}/all/mean")
    return next((row[full] for full in names if full in row), None)


def read_histories(folder: Path, name: str, start: Mapping[str, float]) -> dict[int, History]:
    """The runs of a variant by seed, those that were stopped too if something was measured."""
    found = {}
    for run in (Run(path) for path in sorted(folder.glob(f"{name}-seed*"))):
        config, rows = run.config()["config"], run.metrics()
        if any(DRAWS in row for row in rows):
            found[config["seed"]] = History(run, [start, *rows], config["batch_size"])
    return found


Found = Mapping[str, Mapping[int, History]]
"""Histories by variant and seed."""


def draw(lesson: Lesson, found: Found, path: Path) -> None:
    """The plot of a lesson: two panels of held-out games and one of training, a colour per variant, a line per seed."""
    figure = Figure(figsize=(11, 3.4))
    axes = figure.subplots(1, 3)
    titles = ("draws against optimal, %", "wins against random, %", lesson.caption)
    for number, name in enumerate(lesson.variants):
        for i, history in enumerate(found.get(name, {}).values()):
            curves = (history.held_out(DRAWS), history.held_out(WINS), history.curve(lesson.metric))
            for axis, points in zip(axes, curves, strict=True):
                label = VARIANTS[name].label if i == 0 else None
                axis.plot(*zip(*points, strict=True), color=f"C{number}", alpha=0.8, linewidth=1.3, label=label)
    for axis in axes[:2]:  # on a narrow axis noise looks like news
        axis.set_ylim(min(80, axis.get_ylim()[0]), 100.5)
    low, high = axes[2].get_ylim()
    axes[2].set_ylim(min(low, high - 0.1), high + 0.005)
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("thousand games played", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle(lesson.title, fontsize=11)
    figure.tight_layout(rect=(0, 0.04 + 0.05 * ((len(labels) + 1) // 2), 1, 1))
    figure.savefig(path, dpi=80)


HELD_OUT = {"draws vs optimal": DRAWS, "wins vs random": WINS}
TRAINING = {"invalid": "invalid_move", "format": "format", "no spread": "zero_spread", "entropy": "entropy"}
"""Columns of the table: title and metric."""


def table(found: Found) -> str:
    """All runs in Markdown, a row each."""
    titles = ["run", "seed", "games", *(word for title in HELD_OUT for word in (title, "less base's")), "invalid"]
    titles += [f"{title}, training" for title in TRAINING]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for name, seed, run in ((name, seed, run) for name, runs in found.items() for seed, run in runs.items()):
        base = found.get("base", {}).get(seed) if VARIANTS[name].start == "good" and name != "base" else None
        cells = [f"`{name}`", str(seed), f"{run.rows[-1]['step'] * run.batch:,.0f}"]
        for metric in HELD_OUT.values():
            cells += [f"{held_out(run, metric):.1f}", difference(base, run, metric) if base else ""]
        cells.append(f"{held_out(run, 'invalid_move'):.1f}")
        for metric in TRAINING.values():
            cells.append(f"{run.last(metric):.3f}" if metric == "entropy" else f"{100 * run.last(metric):.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def difference(base: History, run: History, metric: str) -> str:
    """How a run's last measurements differ from those of `base`, game by game, with the 95 % interval."""
    _, opponent, _, name = metric.split("/")
    found = compare(base.games(opponent), run.games(opponent), name)
    main = found.main
    return f"{100 * main.difference:+.1f} [{100 * main.low:+.1f}, {100 * main.high:+.1f}]"


def held_out(run: History, metric: str) -> float:
    """The mean of a run's last measurements, in %; of both opponents' where the metric names none."""
    names = [metric] if "/" in metric else [f"eval/{opponent}/reward/{metric}" for opponent in OPPONENTS]
    return mean([seen for name in names for _, seen in run.held_out(name)[1:][-LAST:]])


def play(names: Sequence[str], given: argparse.Namespace, console: Console) -> Found:
    """Run what is missing of these variants; returns all that is there of them."""
    recipe, folder = load_recipe("tictactoe", ["smoke"] if given.smoke else []), given.folder
    rl, games = (recipe.rl[0], 8) if given.smoke else ({**recipe.rl[0], "steps": given.steps}, GAMES)
    models, before = {}, {}
    for kind in sorted({VARIANTS[name].start for name in names}):
        models[kind] = given.start if kind == "good" else None
        models[kind] = models[kind] or make_start(kind, recipe, folder / kind, console)
        before[kind] = measure_start(models[kind], folder / f"{kind}-measured", games, rl["max_tokens"], console)
    for seed, name in itertools.product(given.seeds.split(","), names):
        variant = VARIANTS[name]
        console.print(f"\n{name}, seed {seed}: {variant.label}")
        config = config_of(variant, rl, models[variant.start], int(seed), games)
        run_rl(msgspec.structs.replace(config, run_dir=str(folder / f"{name}-seed{seed}")), console)
    return {name: read_histories(folder, name, before[VARIANTS[name].start]) for name in names}


def main() -> None:
    """Run what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(LESSONS), help="lessons; all when not given")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--start", type=Path, help="model to start from, instead of a new one with the demo's SFT")
    parser.add_argument("--folder", type=Path, default=Path("runs/study"))
    parser.add_argument("--plots", type=Path, help="where plots go; FOLDER when not given")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := set(names) - set(LESSONS):
        parser.error(f"no lesson {', '.join(sorted(unknown))}; there are {', '.join(LESSONS)}")
    lessons = {name: LESSONS[name] for name in names}
    wanted = [name for name in VARIANTS if any(name in lesson.variants for lesson in lessons.values())]
    found = play(wanted, given, console_for(json=False))
    plots = given.plots or given.folder
    plots.mkdir(parents=True, exist_ok=True)
    for name, lesson in lessons.items():
        draw(lesson, found, plots / f"{name}.png")
    print(table(found))


if __name__ == "__main__":
    main()
