"""The study behind the defaults of `rove train`: one setting of the recipe changed at a time, in three environments.

    python benchmarks/learning/study.py                     # everything: 2 to 9 CPU-minutes for each of 59 runs per seed
    python benchmarks/learning/study.py --only rl_rate      # one setting; the plots show all finished runs
    python benchmarks/learning/study.py --plots             # only plots and the table, from study.json and finished runs

The base is the recipe of `rove train` with two differences, which were the defaults when the study began: SFT ends at 0.6 of
the way from the weakest to the best policy (now 0.9), and its learning rate is 1.5e-3 (now 1e-3). Changes of RL start from the
SFT of the base. The results of finished runs are kept in study.json beside this file. Plots go to
benchmarks/reports/study/learning_SETTING.png, the table to stdout.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w
from matplotlib.figure import Figure

HERE = Path(__file__).parent
RUNS = Path("runs") / "study_learning"
PLOTS, STORED = HERE.parent / "reports" / "study", HERE / "study.json"
ENVIRONMENTS = ("nim", "letter_count", "reasoning_mix")
BASE, BASE_GOAL, BASE_SFT_RATE = "default", 0.6, 1.5e-3
"""Name of the runs without a change, the share of the way to the best policy at which their SFT ends, and its learning rate."""
DIFFICULTY = {"nim": "info.stones", "letter_count": "info.letters"}
"""Environment → column of the examples that says how hard they are; reasoning_mix has none."""
Recipe = dict[str, Any]


def rl(**values: Any) -> Callable[[Recipe], None]:
    """Return a change of settings of RL."""
    return lambda recipe: recipe["rl"][0].update(values)


def rl_batch(count: int) -> Callable[[Recipe], None]:
    """Return a change of the rollouts per step of RL, with as many rollouts in all."""

    def change(recipe: Recipe) -> None:
        stage = recipe["rl"][0]
        factor = stage["batch_size"] / count
        stage.update(batch_size=count, steps=round(stage["steps"] * factor))
        evaluation = stage["evaluation"][0]
        evaluation["every"] = max(1, round(evaluation["every"] * factor))

    return change


def group(size: int) -> Callable[[Recipe], None]:
    """Return a change of the rollouts per example of RL, with nearly as many rollouts per step."""

    def change(recipe: Recipe) -> None:
        stage = recipe["rl"][0]
        stage.update(rollouts_per_example=size, batch_size=stage["batch_size"] // size * size)

    return change


def entropy(bonus: float, target: float | None) -> Callable[[Recipe], None]:
    """Return a change of the entropy bonus, and of the entropy above which it is off."""
    values = {"entropy_bonus": bonus} | ({} if target is None else {"entropy_target": target})
    return lambda recipe: recipe["rl"][0].update(loss=values)


def easy_first(recipe: Recipe) -> None:
    """Order the examples of RL from easy to hard."""
    stage = recipe["rl"][0]
    stage["curriculum"] = {"column": DIFFICULTY[recipe["env"]]}


def sft(**values: Any) -> Callable[[Recipe], None]:
    """Return a change of settings of SFT."""
    return lambda recipe: recipe["sft"].update(values)


def goal(share: float) -> Callable[[Recipe], None]:
    """Return a change of where SFT ends: a share of the way from the weakest to the best policy."""

    def change(recipe: Recipe) -> None:
        weakest, best = recipe["study"]
        recipe["sft"]["target"] = round(weakest + share * (best - weakest), 4)

    return change


def as_base(recipe: Recipe) -> None:
    """Change the settings of a recipe whose defaults have changed since the study began."""
    goal(BASE_GOAL)(recipe)
    sft(learning_rate=BASE_SFT_RATE)(recipe)


def data(count: int) -> Callable[[Recipe], None]:
    """Return a change of the number of the teacher's rollouts, with as many steps of SFT."""

    def change(recipe: Recipe) -> None:
        section = recipe["data"]
        recipe["sft"]["epochs"] = round(recipe["sft"]["epochs"] * section["num_examples"] / count)
        section["num_examples"] = section["env_args"]["num_examples"] = count

    return change


def words(share: float) -> Callable[[Recipe], None]:
    """Return a change of the tokenizer: the minimum share of the rollouts that contain a word with a token of its own."""
    return lambda recipe: recipe["model"].update(word_share=share)


def size(name: str) -> Callable[[Recipe], None]:
    """Return a change of the model's size."""
    return lambda recipe: recipe["model"].update(size=name)


RL_CHANGES: dict[str, dict[str, Callable[[Recipe], None]]] = {
    "rl_rate": {"1e-4": rl(learning_rate=1e-4), "1e-3": rl(learning_rate=1e-3)},
    "group_size": {"4": group(4), "16": group(16)},
    "batch_size": {"64": rl_batch(64), "256": rl_batch(256)},
    "lr_backoff": {"none": lambda recipe: recipe["rl"][0].pop("lr_backoff")},
    "entropy_bonus": {"none": entropy(0.0, None), "always": entropy(0.01, None)},
    "dynamic_sampling": {"2 rounds": rl(filter={"dynamic_sampling_rounds": 2})},
    "curriculum": {"easy first": easy_first},
}
"""Setting → values → change, for changes that keep the SFT."""
SFT_CHANGES: dict[str, dict[str, Callable[[Recipe], None]]] = {
    "sft_goal": {"0.3": goal(0.3), "0.9": goal(0.9)},
    "sft_rate": {"5e-4": sft(learning_rate=5e-4), "5e-3": sft(learning_rate=5e-3)},
    "sft_data": {"1,000": data(1000), "5,000": data(5000)},
    "word_share": {"0": words(0.0), "1": words(1.0)},
    "model_size": {"small (4 M)": size("small")},
}
"""The same for changes before or in SFT."""
CHANGES = {**RL_CHANGES, **SFT_CHANGES}
LABELS = {
    "rl_rate": "3e-4",
    "group_size": "8",
    "batch_size": "up to 1,024",
    "lr_backoff": "0.3",
    "entropy_bonus": "below 0.15 nats",
    "dynamic_sampling": "none",
    "curriculum": "in the dataset's order",
    "sft_goal": "0.6",
    "sft_rate": "1.5e-3",
    "sft_data": "up to 40,000",
    "word_share": "0.05",
    "model_size": "tiny (0.5 M)",
}
"""Setting → its value in the base."""


def train(env: str, seed: int, folder: Path, *options: str) -> None:
    """Run `rove train`, or continue it."""
    if (folder / "results.json").exists():
        return
    words = [sys.executable, "-m", "rove", "train", env, "--seed", str(seed), "--run-dir", str(folder), *options]
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        subprocess.run(words, stdout=log, stderr=log, check=True)


def changed(path: Path, evidence: Path, change: Callable[[Recipe], None]) -> str:
    """Return a recipe with a change, as TOML.

    Args:
        path: The recipe.
        evidence: What its environment showed: rewards of the policies.
        change: Changes the recipe.
    """
    policies = json.loads(evidence.read_text())["policies"]
    recipe: Recipe = tomllib.loads(path.read_text())
    recipe["study"] = policies[0]["reward"], policies[-1]["reward"]
    change(recipe)
    del recipe["study"]
    return tomli_w.dumps(recipe)


def run(env: str, seed: int, setting: str, value: str) -> None:
    """Train with one changed setting, and once without any."""
    base = RUNS / f"{env}-{BASE}-{seed}"
    recipe, evidence, env_options = (
        base / "recipe.toml",
        base / "evidence.json",
        ("--env-dir", str(HERE / "environments")),
    )
    if not recipe.exists():
        train(env, seed, base, *env_options, "--dry-run")
        recipe.write_text(changed(recipe, evidence, as_base))
    train(env, seed, base, *env_options)
    folder = RUNS / f"{env}-{setting}-{value.split()[0]}-{seed}"
    path = RUNS / f"{folder.name}.toml"
    path.write_text(changed(recipe, evidence, CHANGES[setting][value]))
    if setting in RL_CHANGES and not folder.exists():
        shutil.copytree(base, folder, ignore=lambda _, names: [n for n in names if n in ("rl1", "results.json")])
        for evaluation in (folder / "eval").glob("RL-*"):
            shutil.rmtree(evaluation)
    train(env, seed, folder, "--recipe", str(path))


def collect() -> None:
    """Add the results of finished runs to `study.json`, a line per run."""
    runs = stored()
    complete = sorted(RUNS.glob("*/results.json"))
    for path in complete:
        rows = json.loads(path.read_text())
        rewards = {row["name"]: row["conditions"]["sampled"]["reward"] for row in rows}
        runs[path.parent.name] = {
            "SFT": number(rewards["+ SFT"]["mean"]),
            "final": [number(rewards[rows[-1]["name"]][key]) for key in ("mean", "low", "high")],
            "curve": curve(path.parent),
        }
    lines = [f" {json.dumps(name)}: {json.dumps(runs[name])}" for name in sorted(runs)]
    if complete:
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def stored() -> dict[str, dict[str, Any]]:
    """Return run → reward after SFT, final reward with its interval, and curve of RL."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def number(value: float) -> float:
    """Return a number with four decimals, for small files."""
    return round(value, 4)


def curve(folder: Path) -> list[tuple[float, float]]:
    """Return (rollouts of RL in thousands, held-out reward at T = 1) of each evaluation; empty if there was no RL."""
    path, name = folder / "rl1" / "metrics.jsonl", "eval/sampled/reward/mean"
    if not path.exists():
        return []
    changed_recipe = RUNS / f"{folder.name}.toml"
    recipe = tomllib.loads((changed_recipe if changed_recipe.exists() else folder / "recipe.toml").read_text())
    size = recipe["rl"][0]["batch_size"]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(round(row["step"] * size / 1000, 2), number(row[name])) for row in rows if name in row]


def values_of(setting: str) -> list[tuple[str, str]]:
    """Return (label, part of the run's name) of the base and of the other values."""
    other_values = [(value, f"{setting}-{value.split()[0]}") for value in CHANGES[setting]]
    return [(f"{LABELS[setting]} (base)", BASE), *other_values]


def plot(setting: str, runs: dict[str, dict[str, Any]], folder: Path) -> None:
    """Draw the learning curves: one panel per environment, one line per run, final rewards with their intervals."""
    figure = Figure(figsize=(11, 3.3), layout="constrained")
    panels = figure.subplots(1, len(ENVIRONMENTS))
    for panel, env in zip(panels, ENVIRONMENTS, strict=True):
        for position, (label, part) in enumerate(values_of(setting)):
            for name in (run_name for run_name in sorted(runs) if run_name.rpartition("-")[0] == f"{env}-{part}"):
                run = runs[name]
                rollouts, rewards = zip(*run["curve"] or [(0.0, run["SFT"])], strict=True)
                line = panel.plot(rollouts, rewards, color=f"C{position}", alpha=0.7, label=label)[0]
                mean, low, high = run["final"]
                panel.errorbar(rollouts[-1], mean, [[mean - low], [high - mean]], color=line.get_color(), marker="o")
        panel.set_title(env)
        panel.set_xlabel("rollouts of RL, thousands")
    named = {label: line for panel in panels for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    panels[0].legend(named.values(), named)
    panels[0].set_ylabel("held-out reward at T = 1")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"learning_{setting}.png", dpi=80)


def settings_of(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Return the settings of which there is a run with another value than that of the base."""
    return [setting for setting in CHANGES if any(f"-{setting}-" in name for name in runs)]


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Return the final rewards as a Markdown table: the mean over seeds, with the lowest and the highest if there are several."""
    lines = [f"| setting | value | {' | '.join(ENVIRONMENTS)} |", "|---" * (2 + len(ENVIRONMENTS)) + "|"]
    for setting in settings_of(runs):
        for label, part in values_of(setting):
            runs_per_env = [
                [run for name, run in runs.items() if name.rpartition("-")[0] == f"{env}-{part}"]
                for env in ENVIRONMENTS
            ]
            if any(runs_per_env):
                lines.append(f"| `{setting}` | {label} | {' | '.join(map(cell, runs_per_env))} |")
    return "\n".join(lines)


def cell(runs: list[dict[str, Any]]) -> str:
    """Return the final rewards of one value in one environment."""
    finals = [run["final"] for run in runs]
    means = [mean for mean, _, _ in finals]
    if len(means) < 2:
        return "".join(f"{mean:.2f} ± {(high - low) / 2:.2f}" for mean, low, high in finals)
    return f"{statistics.fmean(means):.2f} ({min(means):.2f} to {max(means):.2f})"


def main() -> None:
    """Run the study, draw the plots and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CHANGES, default=list(CHANGES), help="settings to change")
    parser.add_argument("--envs", nargs="*", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--output", type=Path, default=PLOTS, help="folder of the plots")
    parser.add_argument("--plots", action="store_true", help="only plots and the table")
    args = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    collect()
    for setting in args.only:
        for seed in args.seeds if not args.plots else []:
            for env in args.envs:
                for value in CHANGES[setting] if setting != "curriculum" or env in DIFFICULTY else []:
                    print(f"{setting} = {value}, {env}, seed {seed}", flush=True)
                    run(env, seed, setting, value)
                    collect()
    runs = stored()
    for setting in settings_of(runs):
        plot(setting, runs, args.output)
    print(table(runs))


if __name__ == "__main__":
    main()
