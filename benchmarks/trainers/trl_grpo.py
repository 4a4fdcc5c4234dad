"""Train rove environments in TRL's `GRPOTrainer` and in `rove rl`, from the same models with the same settings.

    python benchmarks/trainers/trl_grpo.py [--env reverse_text tictactoe] [--seeds 0 1 2] [--folder runs/trl_grpo]
        [--plot docs/trl_grpo.png] [--table]

The Python needs TRL and rove's extras "train" and "hf"; `make test-trainers` makes such a virtual environment in
build/trainers/trl. For each environment, the script trains a tiny model with a short SFT on the environment's scripted policy.
From this start, it continues with RL twice per seed: with `rove.integrations.trl.Rollouts` in `GRPOTrainer`, and with `rove.rl`.
Both use the same rows in the same order, batch and group size, loss, advantages, optimizer, learning rate, sampling, and fp32;
they differ in the random numbers of sampling and of opponents. rove's engine then evaluates the start and both results on the
same held-out rows, which gives a paired 95% interval of the change (`rove.compare`).

One thread. All results are in FOLDER; to resume an interrupted script, run the same command again. `--table` only prints the
table of existing results, and draws the plot.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

SIDES = ("TRL", "rove")
COLORS = {"TRL": "tab:orange", "rove": "tab:blue"}
HELD_OUT_ROWS = 250
MICRO_BATCH = 64
"""Rollouts per forward pass of TRL."""


class Recipe(NamedTuple):
    """Settings of the stages; the script fills in models, data, folders, and seeds."""

    data: dict[str, Any]
    """Settings of `rove eval` for the rollouts of SFT."""
    sft: dict[str, Any]
    rl: dict[str, Any]
    evaluation: dict[str, Any]
    """Arguments of the environment in the evaluation."""
    max_completion_length: int
    """TRL's limit of a whole rollout; it must not cut any, since `rove rl` has no such limit."""


SHARED_RL = {
    "steps": 20,
    "batch_size": 256,  # with 64, the reward did not rise within 12 steps
    "rollouts_per_example": 8,
    "learning_rate": 3e-4,
    "final_lr_fraction": 1.0,
    "warmup_steps": 5,
    "threads": 1,
    "checkpoint_every": 1000,
    "max_tokens": 32,
}
PHRASES = {"num_words": 16, "max_words": 2}
PERFECT_OPPONENT = {"min_random_move_prob": 0.0, "max_random_move_prob": 0.0}
"""Against weaker opponents, the SFT model already earns almost what it can, and 40 steps show no change."""
RECIPES = {
    "reverse_text": Recipe(
        data={"model": "scripted:oracle", "num_examples": 2200, "env_args": {"num_examples": 2200, **PHRASES}},
        sft={"epochs": 1, "batch_size": 32, "learning_rate": 2e-3, "threads": 1, "final_eval_rollouts": 0},
        rl={**SHARED_RL, "max_tokens": 16, "env_args": {"num_examples": 2000, "seed": 1, **PHRASES}},
        evaluation={"num_examples": HELD_OUT_ROWS, **PHRASES},
        max_completion_length=16,
    ),
    "tictactoe": Recipe(
        data={"model": "scripted:teacher", "num_examples": 8000, "env_args": {"num_examples": 8000}},
        sft={"epochs": 3, "batch_size": 32, "learning_rate": 2e-3, "min_reward": 0.6, "threads": 1},
        rl={**SHARED_RL, "steps": 30, "env_args": {"num_examples": 2000, "seed": 1, **PERFECT_OPPONENT}},
        evaluation={"num_examples": HELD_OUT_ROWS, "seed": 99, **PERFECT_OPPONENT},
        max_completion_length=1024,
    ),
}


def train_start(env: str, folder: Path) -> Path:
    """Return the model from which both sides start; train it if it does not exist."""
    import rove

    recipe = RECIPES[env]
    data = str(folder / "data")
    if not (folder / "untrained").exists():
        rove.evaluate_model(env=env, train=True, rollouts_per_example=1, run_dir=data, **recipe.data)
        rove.new_model(env, folder / "untrained")
    rove.sft(folder / "untrained", data, run_dir=str(folder / "start"), **recipe.sft)
    return folder / "start" / "final"


def train_rove(env: str, start: Path, seed: int, folder: Path) -> list[float]:
    """Train with rove; return the mean reward of each step."""
    import rove

    rove.rl(start, env, seed=seed, run_dir=str(folder), **RECIPES[env].rl)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["reward/mean"] for line in lines if "reward/mean" in line]


def train_trl(env: str, start: Path, seed: int, folder: Path) -> list[float]:
    """Train with TRL; return the mean reward of each step."""
    import torch
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    from rove.core.config import convert
    from rove.integrations.trl import Rollouts
    from rove.train.config import RLConfig
    from rove.train.trainer import lr_scale

    recipe = RECIPES[env]
    settings = convert(RLConfig, {"env": env, "model": str(start), **recipe.rl})
    warnings.simplefilter("ignore")  # TRL calls rollout_func experimental
    rollouts = Rollouts(env, settings.env_args, max_tokens=settings.max_tokens, num_eval_examples=0)
    config = GRPOConfig(
        output_dir=str(folder),
        seed=seed,
        max_steps=settings.steps,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=settings.batch_size // MICRO_BATCH,
        num_generations=settings.rollouts_per_example,
        max_grad_norm=settings.max_grad_norm,
        loss_type=settings.loss.kind,
        epsilon_high=settings.loss.max_ratio,  # for CISPO, TRL uses it as the absolute maximum, as rove does
        scale_rewards="none",
        beta=0.0,
        temperature=settings.temperature,
        max_completion_length=recipe.max_completion_length,
        shuffle_dataset=False,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay
    )
    # TRL's own schedules begin with a step at a learning rate of 0.
    schedule = LambdaLR(
        optimizer, lambda step: lr_scale(step, settings.steps, settings.warmup_steps, settings.final_lr_fraction)
    )
    trainer = GRPOTrainer(
        model,
        args=config,
        train_dataset=rollouts.dataset,
        processing_class=AutoTokenizer.from_pretrained(start),
        rollout_func=rollouts,
        reward_funcs=rollouts.reward,
        optimizers=(optimizer, schedule),
    )
    trainer.train()
    trainer.save_model(str(folder / "final"))
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def evaluate(env: str, model: Path) -> list[Any]:
    """Return the rollouts of held-out rows, sampled at the temperature of training."""
    import rove

    recipe = RECIPES[env]
    environment = rove.load_environment(env, **recipe.evaluation)
    client = rove.EngineClient.from_model(rove.load_model(model, "cpu"))
    sampling = {"temperature": 1.0, "max_tokens": recipe.rl["max_tokens"]}
    return environment.generate_sync(client, num_examples=HELD_OUT_ROWS, sampling_args=sampling, seed=7)


def run_seed(env: str, start: Path, first: list[Any], seed: int, folder: Path) -> None:
    """Train and evaluate for one seed, as far as it has not been done.

    Args:
        first: The held-out rollouts of the start.
    """

    train = {"TRL": train_trl, "rove": train_rove}
    records: dict[str, list[Any]] = {}
    results: dict[str, Any] = {}
    for side in reversed(SIDES):  # rove takes less time, and shows sooner whether the settings are any good
        file = folder / f"{side}.json"
        if not file.exists():
            started = time.process_time()
            rewards = train[side](env, start, seed, folder / side)
            result = {"rewards": rewards, "cpu_seconds": time.process_time() - started}
            file.write_text(json.dumps(result), encoding="utf-8")
        results[side] = json.loads(file.read_text(encoding="utf-8"))
        records[side] = evaluate(env, folder / side / "final")
        results[side]["change"] = change(first, records[side])
    results["rove − TRL"] = {"change": change(records["TRL"], records["rove"])}
    (folder / "summary.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


def change(first: list[Any], second: list[Any]) -> dict[str, float]:
    """Return the mean rewards of two models on the same rows, and their difference with its interval."""
    import rove

    main = rove.compare(first, second).main
    return {"a": main.a, "b": main.b, "difference": main.difference, "low": main.low, "high": main.high}


def summaries(folder: Path, env: str) -> dict[str, dict[str, Any]]:
    """Return the results of an environment by seed."""
    files = sorted(folder.glob(f"{env}/[0-9]*/summary.json"))
    return {file.parts[-2]: json.loads(file.read_text(encoding="utf-8")) for file in files}


def print_table(folder: Path) -> None:
    """Print the held-out rewards of all results as a table in Markdown."""
    print(
        "| environment, seed | start | TRL: change (95% interval) | CPU-s | rove: change (95% interval) | CPU-s | rove − TRL |"
    )
    print("|---|---|---|---|---|---|---|")
    for env in RECIPES:
        for seed, results in summaries(folder, env).items():
            cells = [f"{env}, {seed}", f"{results['TRL']['change']['a']:.3f}"]
            for side in SIDES:
                values = results[side]["change"]
                cells += [f"{values['b']:.3f}: {interval_text(values)}", f"{results[side]['cpu_seconds']:.0f}"]
            print("| " + " | ".join([*cells, interval_text(results["rove − TRL"]["change"])]) + " |")


def interval_text(values: dict[str, float]) -> str:
    """Return a difference with its interval."""
    return f"{values['difference']:+.3f} ({values['low']:+.3f} to {values['high']:+.3f})"


def plot(folder: Path, path: Path) -> None:
    """Draw the reward of training by step, a panel per environment, and the held-out rewards at the beginning and the end."""
    from matplotlib.figure import Figure

    environments = [env for env in RECIPES if summaries(folder, env)]
    figure = Figure(figsize=(4.6 * len(environments), 3.2))
    axes = figure.subplots(1, len(environments), squeeze=False)[0]
    for env, axis in zip(environments, axes, strict=True):
        for results in summaries(folder, env).values():
            for side in SIDES:
                rewards, values = results[side]["rewards"], results[side]["change"]
                steps = range(1, len(rewards) + 1)
                axis.plot(steps, rewards, color=COLORS[side], linewidth=0.9, alpha=0.8)
                ends, held_out = [0.5, len(rewards) + 0.5], [values["a"], values["b"]]
                axis.plot(ends, held_out, color=COLORS[side], linestyle="none", marker="o", markersize=4)
        axis.set(title=env, xlabel="step", ylabel="mean reward")
        axis.grid(alpha=0.3)
        for side in SIDES:
            axis.plot([], [], color=COLORS[side], label=side)
        axis.plot([], [], color="grey", linestyle="none", marker="o", markersize=4, label="held out")
        axis.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def train_all(environments: list[str], seeds: list[int], folder: Path) -> None:
    """Train and evaluate whatever has no results yet."""
    import torch

    torch.set_num_threads(1)
    for env in environments:
        start = train_start(env, folder / env)
        missing = [seed for seed in seeds if not (folder / env / str(seed) / "summary.json").exists()]
        first = evaluate(env, start) if missing else []
        for seed in missing:
            (folder / env / str(seed)).mkdir(exist_ok=True)
            run_seed(env, start, first, seed, folder / env / str(seed))


def main() -> None:
    """Train, evaluate, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", choices=RECIPES, default=list(RECIPES), help="environments (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds (default: 0 1 2)")
    parser.add_argument("--folder", type=Path, default=Path("runs/trl_grpo"), help="results (default: %(default)s)")
    parser.add_argument("--plot", type=Path, help="image file to draw")
    parser.add_argument("--table", action="store_true", help="only print the table and draw the plot")
    args = parser.parse_args()
    if not args.table:
        train_all(args.env, args.seeds, args.folder)
    print_table(args.folder)
    if args.plot is not None:
        plot(args.folder, args.plot)


if __name__ == "__main__":
    main()
