"""Test the lessons of the published Tic-Tac-Toe baseline: the same RL run repeated with one change at a time.

    python benchmarks/study.py [--only batch,format] [--seeds 0,1] [--steps 100] [--start MODEL]

Every run is an ordinary run of `rove rl` in FOLDER (--folder, default: runs/study) with two held-out evaluations. To resume an
interrupted script, run the same command again. At the end, the script draws a plot per lesson and prints a table of all existing
runs. benchmarks/reports/study.md discusses the results. --smoke tests the script with tiny sizes; its results are meaningless.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from matplotlib.figure import Figure

from rove import ConsoleReporter, Outcome, Reporter, RolloutRecord, Run, compare
from rove.core.config import convert, merge
from rove.runs.metrics import zero_advantage_share
from rove.stages.evaluation import EvalConfig, run_eval
from rove.stages.pipeline import Pipeline
from rove.stages.recipe import RecipeFile, load_recipe
from rove.stages.rl import run_rl
from rove.statistics import mean
from rove.train.config import RLConfig
from rove.train.worker_group import SINGLE_PROCESS

HERE = Path(__file__).parent
NUM_EVALUATIONS = 5
"""Held-out evaluations per run, including the one after the last step."""
AVERAGED_EVALUATIONS = 3
"""Last evaluations over which the table averages, because single evaluations are noisy."""
GAMES_PER_EVALUATION = 400
"""Games per evaluation against each opponent."""
PERFECT = {"min_random_move_prob": 0.0, "max_random_move_prob": 0.0}
WINS, DRAWS = "eval/random/metrics/won", "eval/optimal/metrics/drawn"
OPPONENTS = {"random": {"min_random_move_prob": 1.0, "max_random_move_prob": 1.0}, "optimal": PERFECT}

Rows = Sequence[Mapping[str, float]]
"""Metrics of a run, one row per step."""


class Variant(NamedTuple):
    """A run with its changes relative to the base run."""

    label: str
    env_args: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    env: str = "tictactoe"
    start: str = "good"
    """Initial model: "good" is the demo's SFT model, "weak" a model after a short SFT."""
    batch_divisor: int = 1
    """Factor by which the batch is smaller and the number of steps larger."""


class Lesson(NamedTuple):
    """The variants that a plot compares, and the training metric of its third panel."""

    title: str
    variants: Sequence[str]
    metric: str
    """Last part of the metric's name."""
    caption: str


VARIANT = "tictactoe_variant"
VARIANTS = {
    "base": Variant("base: 256 games a step, opponents 20-70% random, T = 1"),
    "batch-32": Variant("32 games a step, 8 times the steps", batch_divisor=8),
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
    "one-behind": Variant("sampled one step ahead", settings={"max_off_policy_steps": 1}),
}
LESSONS = {
    "batch": Lesson("Batch size, as many games", ("base", "batch-32"), "mean", "reward in training"),
    "opponents": Lesson("Opponents", ("base", "perfect"), "zero_spread", "share of zero-advantage groups"),
    "format": Lesson(
        "The format reward",
        ("base", "no-format", "weak", "weak-no-format", "weak-no-bonus"),
        "format",
        "format in training",
    ),
    "memory": Lesson("An opponent with habits", ("perfect", "first-best"), "drawn", "draws in training"),
    "temperature": Lesson("Temperature", ("base", "T-1.25", "T-1.4"), "invalid_move", "invalid moves in training"),
    "async": Lesson("Sampling one step ahead", ("base", "one-behind"), "mean", "reward in training"),
}


def evaluation_settings(opponent: str, games: int, max_tokens: int) -> dict[str, Any]:
    """Return the settings of an evaluation against an opponent: greedy games of a held-out dataset."""
    return {
        "env": "tictactoe",
        "env_args": {"seed": 99, **OPPONENTS[opponent]},
        "num_examples": games,
        "rollouts_per_example": 1,
        "temperature": 0.0,
        "max_tokens": max_tokens,
    }


def config_of(variant: Variant, rl: RLConfig, start: Path, seed: int, games: int) -> RLConfig:
    """Return the settings of a run: those of the demo's RL 1 with the changes of the variant.

    The dataset has as many examples as the run has groups, and every step contains each difficulty once.
    """
    group_size, divisor = rl.rollouts_per_example, variant.batch_divisor
    batch, steps = max(group_size, rl.batch_size // divisor), rl.steps * divisor
    groups, every = batch // group_size, max(1, steps // NUM_EVALUATIONS)
    tables = [{**evaluation_settings(name, games, rl.max_tokens), "name": name, "every": every} for name in OPPONENTS]
    values = msgspec.to_builtins(rl)
    values |= {"env": variant.env, "env_dir": str(HERE), "model": str(start), "seed": seed, "threads": 1}
    values |= {"batch_size": batch, "steps": steps, "checkpoint_every": every, "evaluation": tables}
    values["env_args"] = {**rl.env_args, "seed": seed, "num_examples": steps * groups, "num_groups": groups}
    values["env_args"] |= variant.env_args
    return convert(RLConfig, merge(values, dict(variant.settings)))


def make_start(kind: str, file: RecipeFile, folder: Path, reporter: Reporter) -> Path:
    """Train the initial model and return its folder: the demo's SFT, or for "weak" one epoch on half of the games."""
    data, sft = file.data, file.sft
    if kind == "weak":
        data, sft = {**data, "num_examples": data["num_examples"] // 2}, {**sft, "epochs": 1}
    evaluation = {**file.evaluation, "num_examples": 8}  # the demo's own evaluation is not used
    short = msgspec.structs.replace(file, rl=[], evaluation=evaluation, data=data, sft=sft)
    Pipeline(short.complete("tictactoe", folder), reporter, SINGLE_PROCESS).run()
    return folder / "sft" / "final"


def evaluate_start(model: Path, folder: Path, games: int, max_tokens: int, reporter: Reporter) -> dict[str, float]:
    """Evaluate the initial model and return the metrics of a run at step 0."""
    row: dict[str, float] = {"step": 0}
    for name in OPPONENTS:
        values = {**evaluation_settings(name, games, max_tokens), "model": str(model), "run_dir": str(folder / name)}
        result, _ = run_eval(convert(EvalConfig, values), reporter)
        for function, estimate in result.functions.items():
            row[f"eval/{name}/{'reward' if estimate.weight else 'metrics'}/{function}"] = estimate.mean
    return row


class History(NamedTuple):
    """The metrics of a run."""

    run: Run
    rows: Rows
    """The row of the initial model, then a row per step."""
    batch: int
    """Games per step."""

    def curve(self, metric: str, parts: int = 25) -> list[tuple[float, float]]:
        """Return a training metric as (thousand games, mean) for `parts` equal parts of the run."""
        rows = [(row["step"], value) for row in self.rows if (value := training_metric(row, metric)) is not None]
        size = max(1, len(rows) // parts)
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        return [(chunk[-1][0] * self.batch / 1000, mean([value for _, value in chunk])) for chunk in chunks]

    def held_out(self, metric: str) -> list[tuple[float, float]]:
        """Return a metric of held-out games as (thousand training games, value in %) per evaluation."""
        return [(row["step"] * self.batch / 1000, 100 * row[metric]) for row in self.rows if metric in row]

    def last(self, metric: str) -> float:
        """Return the mean of a training metric over the last tenth of the steps."""
        rows = self.rows[-max(1, len(self.rows) // 10) :]
        return mean([value for row in rows if (value := training_metric(row, metric)) is not None])

    def games(self, opponent: str) -> list[Outcome | RolloutRecord]:
        """Return the games of the last evaluations against an opponent."""
        steps = [int(row["step"]) for row in self.rows[1:] if DRAWS in row][-AVERAGED_EVALUATIONS:]
        return [game for step in steps for game in Run(self.run.path / "evaluations" / opponent / str(step)).outcomes()]


def training_metric(row: Mapping[str, float], name: str) -> float | None:
    """Return a training metric by the last part of its name, which can be a reward or a metric; None if it is missing."""
    if name == "zero_spread":
        return zero_advantage_share(row)
    names = (f"reward/{name}", f"metrics/{name}", f"{name}/all/mean")
    return next((row[full] for full in names if full in row), None)


def read_histories(folder: Path, name: str, start: Mapping[str, float]) -> dict[int, History]:
    """Return the runs of a variant by seed, including unfinished runs with at least one evaluation."""
    histories = {}
    for run in (Run(path) for path in sorted(folder.glob(f"{name}-seed*"))):
        config, rows = run.config()["config"], run.metrics()
        if any(DRAWS in row for row in rows):
            histories[config["seed"]] = History(run, [start, *rows], config["batch_size"])
    return histories


Histories = Mapping[str, Mapping[int, History]]
"""Histories by variant and seed."""


def draw(lesson: Lesson, histories: Histories, path: Path) -> None:
    """Save the plot of a lesson: two panels of held-out games and one of training, a color per variant, a line per seed."""
    figure = Figure(figsize=(11, 3.4))
    axes = figure.subplots(1, 3)
    titles = ("draws against optimal, %", "wins against random, %", lesson.caption)
    for number, name in enumerate(lesson.variants):
        for i, history in enumerate(histories.get(name, {}).values()):
            curves = (history.held_out(DRAWS), history.held_out(WINS), history.curve(lesson.metric))
            for axis, points in zip(axes, curves, strict=True):
                label = VARIANTS[name].label if i == 0 else None
                axis.plot(*zip(*points, strict=True), color=f"C{number}", alpha=0.8, linewidth=1.3, label=label)
    for axis in axes[:2]:  # a narrow axis would exaggerate noise
        axis.set_ylim(min(80, axis.get_ylim()[0]), 100.5)
    low, high = axes[2].get_ylim()
    axes[2].set_ylim(min(low, high - 0.1), high + 0.005)
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("thousand training games", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle(lesson.title, fontsize=11)
    figure.tight_layout(rect=(0, 0.04 + 0.05 * ((len(labels) + 1) // 2), 1, 1))
    figure.savefig(path, dpi=80)


HELD_OUT = {"draws vs optimal": DRAWS, "wins vs random": WINS}
TRAINING = {"invalid": "invalid_move", "format": "format", "zero-advantage groups": "zero_spread", "entropy": "entropy"}
"""Columns of the table: title and metric."""


def table(histories: Histories) -> str:
    """Return a Markdown table with a row per run."""
    titles = ["run", "seed", "games", *(word for title in HELD_OUT for word in (title, "less base's")), "invalid"]
    titles += [f"{title}, training" for title in TRAINING]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for name, seed, run in ((name, seed, run) for name, runs in histories.items() for seed, run in runs.items()):
        base = histories.get("base", {}).get(seed) if VARIANTS[name].start == "good" and name != "base" else None
        cells = [f"`{name}`", str(seed), f"{run.rows[-1]['step'] * run.batch:,.0f}"]
        for metric in HELD_OUT.values():
            cells += [f"{held_out(run, metric):.1f}", difference(base, run, metric) if base else ""]
        cells.append(f"{held_out(run, 'invalid_move'):.1f}")
        for metric in TRAINING.values():
            cells.append(f"{run.last(metric):.3f}" if metric == "entropy" else f"{100 * run.last(metric):.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def difference(base: History, run: History, metric: str) -> str:
    """Return the paired difference of the last evaluations from those of `base` in percentage points, with a 95% interval."""
    _, opponent, _, name = metric.split("/")
    comparison = compare(base.games(opponent), run.games(opponent), name)
    main = comparison.main
    return f"{100 * main.difference:+.1f} [{100 * main.low:+.1f}, {100 * main.high:+.1f}]"


def held_out(run: History, metric: str) -> float:
    """Return the mean over a run's last evaluations in %; over both opponents if the metric names none."""
    names = [metric] if "/" in metric else [f"eval/{opponent}/reward/{metric}" for opponent in OPPONENTS]
    return mean([value for name in names for _, value in run.held_out(name)[1:][-AVERAGED_EVALUATIONS:]])


def run_variants(names: Sequence[str], args: argparse.Namespace, reporter: Reporter) -> Histories:
    """Run these variants as far as they are not finished; return their histories, including other seeds in the folder."""
    recipe, folder = load_recipe("tictactoe", ["smoke"] if args.smoke else []), args.folder
    games = 8 if args.smoke else GAMES_PER_EVALUATION
    rl = recipe.complete("tictactoe", folder).rl[0].config
    if not args.smoke:
        rl = msgspec.structs.replace(rl, steps=args.steps)
    models, initial = {}, {}
    for kind in sorted({VARIANTS[name].start for name in names}):
        models[kind] = args.start if kind == "good" else None
        models[kind] = models[kind] or make_start(kind, recipe, folder / kind, reporter)
        initial[kind] = evaluate_start(models[kind], folder / f"{kind}-measured", games, rl.max_tokens, reporter)
    for seed, name in itertools.product(args.seeds.split(","), names):
        variant = VARIANTS[name]
        reporter.title(f"{name}, seed {seed}: {variant.label}")
        config = config_of(variant, rl, models[variant.start], int(seed), games)
        run_rl(msgspec.structs.replace(config, run_dir=str(folder / f"{name}-seed{seed}")), reporter)
    return {name: read_histories(folder, name, initial[VARIANTS[name].start]) for name in names}


def main() -> None:
    """Run the missing variants, then draw the plots and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(LESSONS), help="comma-separated lessons (default: all)")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--start", type=Path, help="initial model (default: a new model after the demo's SFT)")
    parser.add_argument("--folder", type=Path, default=Path("runs/study"))
    parser.add_argument("--plots", type=Path, help="folder of the plots (default: FOLDER)")
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes to test the script")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(LESSONS):
        parser.error(f"unknown lesson: {', '.join(sorted(unknown))}; expected some of {', '.join(LESSONS)}")
    lessons = {name: LESSONS[name] for name in names}
    variants = [name for name in VARIANTS if any(name in lesson.variants for lesson in lessons.values())]
    histories = run_variants(variants, args, ConsoleReporter())
    plots = args.plots or args.folder
    plots.mkdir(parents=True, exist_ok=True)
    for name, lesson in lessons.items():
        draw(lesson, histories, plots / f"{name}.png")
    print(table(histories))


if __name__ == "__main__":
    main()
