"""Compare rove and TRL by the CPU seconds of RL until a model is good at tic-tac-toe, from the same start, one thread.

    python benchmarks/time_to_target.py --peer PYTHON [--start MODEL ...] [--steps 25] [--games 500] [--output FILE]

Both train the same SFT model in rove's environment, with the first steps of the stage "RL 1" of the environment's demo.toml: the
same examples in the same order, the same opponents, rewards, games per step, loss, advantages, optimizer and learning rates.
TRL uses its multi-turn interface: in a `rollout_func`, rove's rollouts apply the rules and render the tokens, and TRL's own
`generate` answers all waiting requests in one batch. TRL then trains on these tokens and masks of several turns.

Both run in separate processes, which take turns, one step at a time. Every 5 steps they save their weights, and this process
measures the share of draws against the optimal opponent with greedy sampling. The CPU time of a process counts from the call
that starts training and excludes saving the weights. The target is a share of draws above 85%.

Each MODEL of `--start` is an SFT model and a separate comparison. Without `--start`, the script trains an SFT model as the demo
does (about 8 CPU minutes). `--peer` is the Python interpreter of an environment with TRL and rove's dependencies. The script
writes the curves to FILE.json and FILE.png after every measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from training import StepProcess, peak_mib

ENV = "tictactoe"
STEPS_PER_MEASUREMENT = 5
TARGET = 0.85
"""Share of draws."""
SIDES = ("rove", "TRL")
# The fastest of the TRL settings that were measured for this task (see RESULTS.md).
TRL_SETTINGS = {"bf16": True, "gradient_checkpointing": False}
TRL_BATCH_SIZE = 32

Curve = list[dict[str, float]]
"""Measurements of one side: "step", "seconds" (CPU seconds), "draws" (a share) and, after the first, "peak" (MiB)."""


def rl_config(start: str, seed: int) -> Any:
    """Return the settings of the stage "RL 1", for both sides."""
    from rove.core.config import convert
    from rove.stages.recipe import load_recipe
    from rove.train.config import RLConfig

    values = {key: value for key, value in load_recipe(ENV).rl[0].items() if key != "name"}
    overrides = {"env": ENV, "model": start, "seed": seed, "checkpoint_every": 1000, "threads": 1}
    return convert(RLConfig, {**values, **overrides})


class StepTimer:
    """Measures the CPU seconds of training in this process, and lets both sides take turns.

    Args:
        save: Writes the weights to a folder.
        folder: Parent of these folders.
    """

    def __init__(self, save: Callable[[Path], None], folder: Path):
        self.save = save
        self.folder = folder
        self.seconds = 0.0
        self._started = 0.0

    def start(self) -> None:
        """Wait for a line on stdin, then start the clock."""
        if not sys.stdin.readline():
            sys.exit()
        self._started = time.process_time()

    def step(self, number: int) -> None:
        """Report the end of a step, and wait for this process's next turn."""
        self.seconds += time.process_time() - self._started
        if number % STEPS_PER_MEASUREMENT == 0:
            self.save(self.folder / str(number))
        print(json.dumps({"seconds": self.seconds, "peak": peak_mib()}), flush=True)
        self.start()


def train_with_rove(config: Any, folder: Path) -> None:
    """Train with rove in this process."""
    from rove import Run, load_environment, load_model
    from rove.train.rl import train_rl

    loaded = load_model(config.model)
    env = load_environment(ENV, **config.env_args)
    timer = StepTimer(loaded.save, folder)
    with Run(folder / "run") as run:
        run.start("rl", {}, {})
        timer.start()
        asyncio.run(train_rl(config, env, loaded, run, lambda step, _: timer.step(step)))


class BatchingEngine:
    """Replaces rove's engine in an `EngineClient`: answers all waiting requests with one call of `generate`.

    Args:
        generate: Returns the new tokens of each prompt.
        context: Maximum number of tokens per conversation.
        max_batch: Maximum number of concurrent requests.
    """

    def __init__(self, generate: Callable[[list[list[int]]], list[list[int]]], context: int, max_batch: int):
        self.generate_batch = generate
        self.context = context
        self.max_batch = max_batch
        self.adapters: list[str] = []
        self._waiting: list[tuple[list[int], asyncio.Future[list[int]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def generate(self, prompt_ids: list[int], sampling: Any, *_: Any) -> Any:
        """Return the continuation of a prompt."""
        from rove.core.protocols import Generation

        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt_ids, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run_batch())
        ids = await future
        # When TRL samples with `generate`, it uses the trainer's log-probabilities, not the sampler's.
        return Generation(ids, [0.0] * len(ids), "length" if len(ids) == sampling.max_tokens else "stop", 0)

    async def _run_batch(self) -> None:
        count = -1
        while count != len(self._waiting):  # between two turns, a game's code needs a few iterations of the event loop
            count = len(self._waiting)
            for _ in range(10):
                await asyncio.sleep(0)
        requests, self._waiting, self._task = self._waiting, [], None
        responses = self.generate_batch([prompt for prompt, _ in requests])
        for (_, future), ids in zip(requests, responses, strict=True):
            future.set_result(ids)


def train_with_trl(config: Any, folder: Path) -> None:
    """Train with TRL in this process."""
    import torch
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    from rove import SamplingParams, load_environment
    from rove.engine.client import EngineClient
    from rove.rendering.renderer import Renderer
    from rove.rollouts.groups import run_groups
    from rove.train.collect import plan_groups
    from rove.train.sequences import sequences_from_record
    from rove.train.trainer import lr_scale

    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    tokenizer = AutoTokenizer.from_pretrained(config.model, trust_remote_code=False)
    model: Any = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32, trust_remote_code=False)
    renderer = Renderer(tokenizer, [model.generation_config.eos_token_id])
    env = load_environment(ENV, **config.env_args)
    examples = env.get_dataset(config.steps * config.groups)
    num_collected = 0

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        return trainer._generate_single_turn(prompts, None, {}, num_generations=1)[0]

    async def collect(step: int) -> list[Any]:
        chosen = [examples[(step * config.groups + i) % len(examples)] for i in range(config.groups)]
        engine: Any = BatchingEngine(generate, model.config.max_position_embeddings, config.batch_size)
        sampling = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens)
        groups = plan_groups(chosen, config.rollouts_per_example, config.seed, step)
        rollouts = run_groups(
            env, EngineClient(engine, renderer), groups, sampling=sampling, max_concurrent=config.batch_size
        )
        records = [record async for record in rollouts]
        return sorted(records, key=lambda record: (record.example_id, record.example_key, record.rollout_index))

    def rollout_func(prompts: list[str], _: Any) -> dict[str, list[Any]]:
        nonlocal num_collected
        out: dict[str, list[Any]] = {key: [] for key in ("prompt_ids", "completion_ids", "env_mask", "score")}
        for record in asyncio.run(collect(num_collected)):
            [sequence] = sequences_from_record(record, 1.0)
            start = sequence.mask.index(True)
            out["prompt_ids"].append(sequence.ids[:start])
            out["completion_ids"].append(sequence.ids[start:])
            out["env_mask"].append([int(is_sampled) for is_sampled in sequence.mask[start:]])
            out["score"].append(record.scores.reward)
        num_collected += 1
        assert len(prompts) == len(out["score"])
        return {**out, "logprobs": [[0.0] * len(ids) for ids in out["completion_ids"]]}

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    schedule = LambdaLR(
        optimizer, lambda step: lr_scale(step, config.steps, config.warmup_steps, config.final_lr_fraction)
    )

    class TakeTurns(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            timer.step(state.global_step)

    arguments = GRPOConfig(
        output_dir=str(folder / "run"),
        max_steps=config.steps,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        shuffle_dataset=False,
        max_grad_norm=config.max_grad_norm,
        per_device_train_batch_size=TRL_BATCH_SIZE,
        gradient_accumulation_steps=config.batch_size // TRL_BATCH_SIZE,
        num_generations=config.rollouts_per_example,
        max_completion_length=config.max_tokens,
        temperature=config.temperature,
        loss_type=config.loss.kind,
        epsilon_high=config.loss.max_ratio,  # for CISPO, TRL uses it as the absolute maximum, as rove does
        scale_rewards="none",
        beta=0.0,
        entropy_coef=config.loss.entropy_bonus,
        **TRL_SETTINGS,
    )
    trainer = GRPOTrainer(
        model,
        lambda completions, score, **_: score,
        arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(config.steps * config.groups)]}),
        processing_class=tokenizer,
        rollout_func=rollout_func,
        optimizers=(optimizer, schedule),
    )
    trainer.add_callback(TakeTurns())
    timer = StepTimer(model.save_pretrained, folder)
    timer.start()
    trainer.train()


def make_measure(start: str, games: int) -> Callable[[Path], float]:
    """Return a function that loads weights from a folder and returns their share of draws against the optimal opponent."""
    from rove import EngineClient, evaluate, load_environment, load_model

    env = load_environment(ENV, num_examples=games, seed=99, min_random_move_prob=0.0, max_random_move_prob=0.0)
    client = EngineClient.from_model(load_model(start))
    versions = itertools.count(1)

    def measure(folder: Path) -> float:
        client.engine.update_weights(next(versions), folder)
        summary = asyncio.run(evaluate(env, client, sampling_args={"temperature": 0.0, "max_tokens": 32}))
        return summary.functions["drawn"].mean

    return measure


def compare(
    python: str, start: str, seed: int, steps: int, games: int, on_measurement: Callable[[dict[str, Curve]], None]
) -> None:
    """Train with both sides from one start.

    Args:
        python: Python interpreter for TRL.
        start: Folder of the SFT model.
        seed: Random seed of training.
        steps: Number of training steps.
        games: Number of games per measurement.
        on_measurement: Called with the curves so far after every measurement.
    """
    measure = make_measure(start, games)
    first = {"step": 0.0, "seconds": 0.0, "draws": measure(Path(start))}
    curves: dict[str, Curve] = {side: [first] for side in SIDES}
    with tempfile.TemporaryDirectory() as temporary:
        processes = {}
        for side, interpreter in zip(SIDES, (sys.executable, python), strict=True):
            folder = Path(temporary) / side
            folder.mkdir()
            processes[side] = StepProcess([interpreter, __file__, "--child", side, start, str(folder), str(seed)])
        for step in range(1, steps + 1):
            for side, process in processes.items():
                seconds, peak = process.step()
                if step % STEPS_PER_MEASUREMENT == 0:
                    draws = measure(Path(temporary) / side / str(step))
                    curves[side].append({"step": float(step), "seconds": seconds, "draws": draws, "peak": peak})
                    print(f"{start} {side:5} step {step:4}{seconds:9.1f} s{draws:8.1%}{peak:9.0f} MiB", flush=True)
                    on_measurement(curves)
        for process in processes.values():
            process.close()


def first_above_target(curve: Curve) -> dict[str, float] | None:
    """Return the first measurement above the target; None if there is none."""
    return next((point for point in curve if point["draws"] > TARGET), None)


def plot(results: dict[str, dict[str, Curve]], path: Path) -> None:
    """Plot the share of draws over CPU seconds, one line per start and side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axis = figure.subplots()
    for curves in results.values():
        for side, color in zip(SIDES, ("tab:blue", "tab:orange"), strict=True):
            x, y = ([point[key] for point in curves[side]] for key in ("seconds", "draws"))
            axis.plot(x, y, color=color, linewidth=1.2, marker=".", markersize=4)
    for side, color in zip(SIDES, ("tab:blue", "tab:orange"), strict=True):
        axis.plot([], [], color=color, label=side)
    axis.axhline(TARGET, color="grey", linewidth=0.8, linestyle="--", label="target")
    axis.set_xlabel("CPU seconds of training")
    axis.set_ylabel("draws against the optimal opponent")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def train_start_model(folder: Path) -> str:
    """Train an SFT model as `rove demo tictactoe` does; return its folder."""
    import tomli_w

    from rove.stages.recipe import load_recipe

    recipe = load_recipe(ENV)
    model, data, sft = (str(folder / name) for name in ("model", "data", "sft"))
    shape = [word for key, value in recipe.model.items() for word in (f"--{key}", str(value))]
    commands = [["model", "new", "--env", ENV, "-o", model, *shape]]
    for name, table, options in (
        ("eval", recipe.data, [ENV, "--run-dir", data]),
        ("sft", recipe.sft, ["--data", data, "-m", model, "--run-dir", sft]),
    ):
        file = folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(table))
        commands.append([name, *options, "@", str(file)])
    for command in commands:
        subprocess.run([sys.executable, "-m", "rove.cli.main", *command], check=True, stdout=subprocess.DEVNULL)
    return f"{sft}/final"


def main() -> None:
    """Compare both sides from every start, and print when they reached the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peer", metavar="PYTHON", help="Python interpreter of an environment with TRL and rove's dependencies"
    )
    parser.add_argument(
        "--start", metavar="MODEL", nargs="+", default=[], help="folders of SFT models (default: train one)"
    )
    parser.add_argument("--steps", type=int, default=25, help="training steps (default: %(default)s)")
    parser.add_argument("--games", type=int, default=500, help="games per measurement (default: %(default)s)")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("time_to_target"),
        help="path of the .json and .png files, without suffix (default: %(default)s)",
    )
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        side, start, folder, seed = args.child
        train = train_with_rove if side == "rove" else train_with_trl
        return train(rl_config(start, int(seed)), Path(folder))
    if args.peer is None:
        parser.error(
            "--peer is missing; pass the Python interpreter of an environment with TRL (pip install trl==1.16.0) and rove's "
            "dependencies"
        )
    with tempfile.TemporaryDirectory() as temporary:
        starts = args.start or [train_start_model(Path(temporary))]
        compare_all(args.peer, starts, args.steps, args.games, args.output)


def compare_all(python: str, starts: Sequence[str], steps: int, games: int, output: Path) -> None:
    """Compare both sides from one start after another; write the curves and print when they reached the target."""
    import torch

    torch.set_num_threads(1)
    results: dict[str, dict[str, Curve]] = {}
    for seed, start in enumerate(starts):

        def save(curves: dict[str, Curve], name: str = f"start {seed}") -> None:
            results[name] = curves
            output.with_suffix(".json").write_text(json.dumps(results, indent=1))
            plot(results, output.with_suffix(".png"))

        compare(python, start, seed, steps, games, save)
    for name, curves in results.items():
        for side in SIDES:
            point = first_above_target(curves[side])
            result = "not reached" if point is None else f"{point['seconds']:.1f} CPU-s, step {point['step']:.0f}"
            print(f"{name:10}{side:6}{TARGET:.0%} of games drawn: {result}")


if __name__ == "__main__":
    main()
