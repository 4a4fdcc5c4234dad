"""CPU seconds of RL until tic-tac-toe is played well: rove against TRL, from the same start, one thread.

    python benchmarks/time_to_target.py --peer PYTHON [--start MODEL ...] [--steps 25] [--games 500] [--output FILE]

Both train the same SFT model in rove's own environment with the settings of "RL 1" of its demo.toml, of which the first steps
are taken: the same examples in the same order, the same opponents, rewards, games per step, loss, advantages, optimizer and
learning rates. TRL plays in its
multi-turn interface: a `rollout_func`, in which rove's rollouts, and so rules and tokens, are answered by TRL's own
`generate`, all games that wait for the model in one batch. Its tokens and mask of several turns are then trained by TRL.

The two are processes of their own that take steps in turn. Every 5 steps their weights are saved and measured by rove in this
process: the share of draws against the optimal opponent, greedy. Counted are the CPU seconds of the processes from the call that
starts training, all that is saved for the measurement left out. The target is reached when more than 85 % are drawn.

`--start` names one or more SFT models; each is a comparison of its own. Without any, one is made as the demo makes it (about 8
CPU minutes). `--peer` is the Python of an environment with TRL and rove's dependencies. The curves are in FILE.json and FILE.png,
anew after every measurement.
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
from training import Peer, peak

ENV = "tictactoe"
EVERY = 5
TARGET = 0.85
SIDES = ("rove", "TRL")
# The fastest of those tried for this task (see RESULTS.md).
PEER_SETTINGS = {"bf16": True, "gradient_checkpointing": False}
PEER_ROWS = 32

Curve = list[dict[str, float]]


def stage(start: str, seed: int) -> Any:
    """The settings of "RL 1", for both sides."""
    from rove.cli.demo import load_recipe
    from rove.core.config import convert
    from rove.train.config import RLConfig

    values = {key: value for key, value in load_recipe(ENV).rl[0].items() if key != "name"}
    over = {"env": ENV, "model": start, "seed": seed, "checkpoint_every": 1000, "threads": 1}
    return convert(RLConfig, {**values, **over})


class Clock:
    """CPU seconds of this process in training; the steps of both sides take turns by it.

    Args:
        save: writes the weights to a folder.
        folder: where.
    """

    def __init__(self, save: Callable[[Path], None], folder: Path):
        self.save = save
        self.folder = folder
        self.seconds = 0.0
        self._began = 0.0

    def start(self) -> None:
        """Wait until it is this process's turn."""
        if not sys.stdin.readline():
            sys.exit()
        self._began = time.process_time()

    def step(self, number: int) -> None:
        """A step is done: tell, and wait for the next turn."""
        self.seconds += time.process_time() - self._began
        if number % EVERY == 0:
            self.save(self.folder / str(number))
        print(json.dumps({"seconds": self.seconds, "peak": peak()}), flush=True)
        self.start()


def train_with_rove(config: Any, folder: Path) -> None:
    """Be the process that trains with rove."""
    from rove import Run, load_environment, load_model
    from rove.train.rl import train_rl

    loaded = load_model(config.model)
    env = load_environment(ENV, **config.env_args)
    clock = Clock(loaded.save, folder)
    with Run(folder / "run") as run:
        run.start("rl", {}, {})
        clock.start()
        asyncio.run(train_rl(config, env, loaded, run, lambda step, _: clock.step(step)))


class Batched:
    """Stands where `EngineClient` has rove's engine: answers by `say`, every request that waits in one batch.

    Args:
        say: continues prompts.
        context: most tokens of a conversation.
    """

    def __init__(self, say: Callable[[list[list[int]]], list[list[int]]], context: int, max_batch: int):
        self.say = say
        self.context = context
        self.max_batch = max_batch
        self.adapters: list[str] = []
        self._waiting: list[tuple[list[int], asyncio.Future[list[int]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def generate(self, prompt_ids: list[int], sampling: Any, *_: Any) -> Any:
        """The continuation of a prompt."""
        from rove.core.protocols import Generation

        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt_ids, future))
        if self._task is None:
            self._task = asyncio.create_task(self._answer())
        ids = await future
        # TRL does without the sampler's log-probabilities where it samples with `generate`: they are the trainer's own.
        return Generation(ids, [0.0] * len(ids), "length" if len(ids) == sampling.max_tokens else "stop", 0)

    async def _answer(self) -> None:
        count = -1
        while count != len(self._waiting):  # between two turns of a game its code needs a few passes of the event loop
            count = len(self._waiting)
            for _ in range(10):
                await asyncio.sleep(0)
        asked, self._waiting, self._task = self._waiting, [], None
        made = self.say([prompt for prompt, _ in asked])
        for (_, future), ids in zip(asked, made, strict=True):
            future.set_result(ids)


def train_with_trl(config: Any, folder: Path) -> None:
    """Be the process that trains with TRL."""
    import torch
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    from rove import load_environment
    from rove.core.protocols import SamplingParams
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
    played = 0

    def say(prompts: list[list[int]]) -> list[list[int]]:
        return trainer._generate_single_turn(prompts, None, {}, num_generations=1)[0]

    async def play(step: int) -> list[Any]:
        chosen = [examples[(step * config.groups + i) % len(examples)] for i in range(config.groups)]
        engine: Any = Batched(say, model.config.max_position_embeddings, config.batch_size)
        sampling = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens)
        groups = plan_groups(config, step, chosen)
        rollouts = run_groups(
            env, EngineClient(engine, renderer), groups, sampling=sampling, max_concurrent=config.batch_size
        )
        records = [record async for record in rollouts]
        return sorted(records, key=lambda record: (record.example_id, record.example_key, record.rollout_index))

    def rollout_func(prompts: list[str], _: Any) -> dict[str, list[Any]]:
        nonlocal played
        out: dict[str, list[Any]] = {key: [] for key in ("prompt_ids", "completion_ids", "env_mask", "score")}
        for record in asyncio.run(play(played)):
            [sample] = sequences_from_record(record, 1.0)
            said = sample.mask.index(True)
            out["prompt_ids"].append(sample.ids[:said])
            out["completion_ids"].append(sample.ids[said:])
            out["env_mask"].append([int(own) for own in sample.mask[said:]])
            out["score"].append(record.scores.reward)
        played += 1
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
            clock.step(state.global_step)

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
        per_device_train_batch_size=PEER_ROWS,
        gradient_accumulation_steps=config.batch_size // PEER_ROWS,
        num_generations=config.rollouts_per_example,
        max_completion_length=config.max_tokens,
        temperature=config.temperature,
        loss_type=config.loss,
        epsilon_high=config.max_ratio,  # of CISPO in TRL: the absolute ceiling, as in rove
        scale_rewards="none",
        beta=0.0,
        entropy_coef=config.loss.entropy_bonus,
        **PEER_SETTINGS,
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
    clock = Clock(model.save_pretrained, folder)
    clock.start()
    trainer.train()


def measure(start: str, games: int) -> Callable[[Path], float]:
    """A function: the share of draws of weights in a folder against the optimal opponent."""
    from rove import EngineClient, evaluate, load_environment, load_model

    env = load_environment(ENV, num_examples=games, seed=99, min_random_move_prob=0.0, max_random_move_prob=0.0)
    client = EngineClient.from_model(load_model(start))
    versions = itertools.count(1)

    def draws(folder: Path) -> float:
        client.engine.update_weights(next(versions), folder)
        summary = asyncio.run(evaluate(env, client, sampling_args={"temperature": 0.0, "max_tokens": 32}))
        return summary["functions"]["drawn"]["mean"]

    return draws


def compare(
    python: str, start: str, seed: int, steps: int, games: int, told: Callable[[dict[str, Curve]], None]
) -> None:
    """Train with both from one start; `told` gets the curves so far after every measurement."""
    draws = measure(start, games)
    first = {"step": 0.0, "seconds": 0.0, "draws": draws(Path(start))}
    curves: dict[str, Curve] = {side: [first] for side in SIDES}
    with tempfile.TemporaryDirectory() as place:
        peers = {}
        for side, program in zip(SIDES, (sys.executable, python), strict=True):
            folder = Path(place) / side
            folder.mkdir()
            peers[side] = Peer([program, __file__, "--child", side, start, str(folder), str(seed)])
        for step in range(1, steps + 1):
            for side, peer in peers.items():
                seconds, most = peer.step()
                if step % EVERY == 0:
                    share = draws(Path(place) / side / str(step))
                    curves[side].append({"step": float(step), "seconds": seconds, "draws": share, "peak": most})
                    print(f"{start} {side:5} step {step:4}{seconds:9.1f} s{share:8.1%}{most:9.0f} MiB", flush=True)
                    told(curves)
        for peer in peers.values():
            peer.close()


def reached(curve: Curve) -> dict[str, float] | None:
    """The first measurement beyond the target."""
    return next((point for point in curve if point["draws"] > TARGET), None)


def plot(found: dict[str, dict[str, Curve]], path: Path) -> None:
    """Draws against CPU seconds, a line for every start and side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axis = figure.subplots()
    for curves in found.values():
        for side, colour in zip(SIDES, ("tab:blue", "tab:orange"), strict=True):
            x, y = ([point[key] for point in curves[side]] for key in ("seconds", "draws"))
            axis.plot(x, y, color=colour, linewidth=1.2, marker=".", markersize=4)
    for side, colour in zip(SIDES, ("tab:blue", "tab:orange"), strict=True):
        axis.plot([], [], color=colour, label=side)
    axis.axhline(TARGET, color="grey", linewidth=0.8, linestyle="--", label="target")
    axis.set_xlabel("CPU seconds of training")
    axis.set_ylabel("draws against the optimal opponent")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def new_start(folder: Path) -> str:
    """An SFT model, made as `rove demo tictactoe` makes it."""
    import tomli_w

    from rove.cli.demo import load_recipe

    recipe = load_recipe(ENV)
    model, data, sft = (str(folder / name) for name in ("model", "data", "sft"))
    shape = [word for key, value in recipe.model.items() for word in (f"--{key}", str(value))]
    words = [["model", "new", "--env", ENV, "-o", model, *shape]]
    for name, table, rest in (
        ("eval", recipe.data, [ENV, "--run-dir", data]),
        ("sft", recipe.sft, ["--data", data, "-m", model, "--run-dir", sft]),
    ):
        file = folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(table))
        words.append([name, *rest, "@", str(file)])
    for command in words:
        subprocess.run([sys.executable, "-m", "rove.cli.main", *command], check=True, stdout=subprocess.DEVNULL)
    return f"{sft}/final"


def main() -> None:
    """Compare from every start, and print when the target was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--start", metavar="MODEL", nargs="+", default=[])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--games", type=int, default=500)
    parser.add_argument("--output", metavar="FILE", type=Path, default=Path("time_to_target"))
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        side, start, folder, seed = given.child
        train = train_with_rove if side == "rove" else train_with_trl
        return train(stage(start, int(seed)), Path(folder))
    if given.peer is None:
        parser.error("give --peer PYTHON, of an environment with TRL (pip install trl==1.16.0) and rove's dependencies")
    with tempfile.TemporaryDirectory() as place:
        run(given.peer, given.start or [new_start(Path(place))], given.steps, given.games, given.output)


def run(python: str, starts: Sequence[str], steps: int, games: int, output: Path) -> None:
    """Compare from every start in turn."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, dict[str, Curve]] = {}
    for seed, start in enumerate(starts):

        def told(curves: dict[str, Curve], name: str = f"start {seed}") -> None:
            found[name] = curves
            output.with_suffix(".json").write_text(json.dumps(found, indent=1))
            plot(found, output.with_suffix(".png"))

        compare(python, start, seed, steps, games, told)
    for name, curves in found.items():
        for side in SIDES:
            point = reached(curves[side])
            words = "not reached" if point is None else f"{point['seconds']:.1f} CPU-s, step {point['step']:.0f}"
            print(f"{name:10}{side:6}{TARGET:.0%} of games drawn: {words}")


if __name__ == "__main__":
    main()
