"""Compare the training speed of rove and TRL on a CPU: CPU seconds per optimizer step, one thread.

    python benchmarks/training.py --peer PYTHON [--cases grpo64,grpo256,sft] [--rounds 3] [--settings NAME ...]
        [--model smollm2-135m] [--trl-batch 64]

The model is the Llama with 4.2 M random parameters of generation.py, or the model that `--model` selects. "grpo64" is a
complete step of reinforcement learning: 8 prompts of 150 random tokens, 8 responses of 64 tokens per prompt, sampled at
temperature 1 (no token ends a response), random rewards, and one optimizer step. "grpo256" has 32 prompts. "sft" is a step on
8 packed sequences of 256 tokens. `--peer` is the Python interpreter of an environment with TRL. Each configuration runs in a
separate process. The processes take turns, one step at a time, so that other load on the machine affects all of them. The
ratio compares with the fastest of the measured TRL configurations.

TRL runs in fp32, in bf16, and with its defaults (bf16 with gradient checkpointing), with `--trl-batch` responses per
micro-batch. rove runs in four configurations, each of which adds to the previous one: fp32; bf16 matrix products in the
backward pass; bf16 weights for sampling; bf16 matrix products in the forward pass ("mixed precision"). "LoRA" trains adapters
of rank 8 on all linear layers. `--settings` selects configurations. The script prints medians over the rounds, the ratio, the
share of the limit, and the peak memory of each process. The limit is the CPU time of only the step's matrix products with the
weights, at this machine's best fp32 rate.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from generation import NEW_TOKENS, PROMPT_TOKENS, VOCAB_SIZE, max_tokens_per_second, model_folder, new_model

GROUP_SIZE = 8
SFT_ROWS, SFT_LENGTH = 8, 256
MICRO_BATCH_TOKENS = {"full": 1024, "LoRA": 512}  # larger micro-batches take more memory and are no faster
WARM_UP_STEPS = 1
SETTINGS = {
    "TRL, fp32": {"bf16": False, "gradient_checkpointing": False},
    "TRL, bf16": {"bf16": True, "gradient_checkpointing": False},
    "TRL, its defaults": {"bf16": True, "gradient_checkpointing": True},
    "TRL, LoRA fp32": {"bf16": False, "gradient_checkpointing": False},
}
ROVE = (
    "rove, fp32",
    "rove, bf16 backward",
    "rove, and bf16 sampling",
    "rove, mixed precision",
    "rove, LoRA fp32",
    "rove, LoRA mixed precision",
)
DEFAULT_SETTINGS = [name for name in [*SETTINGS, *ROVE] if "LoRA" not in name]
LORA_RANK = 8


def num_rollouts(case: str) -> int:
    """Return the number of rollouts per step of a GRPO case."""
    return int(case.removeprefix("grpo"))


def new_prompts(count: int, seed: int) -> list[list[int]]:
    """Return `count` prompts of random token ids."""
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def peak_mib() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rove_steps(case: str, setting: str, model: str | None) -> Iterator[float]:  # noqa: PLR0915
    """Train with rove; yield the CPU seconds of each step."""
    import asyncio
    import copy

    import torch

    from rove import SamplingParams
    from rove.engine.engine import Engine
    from rove.models.adapter import add_adapter
    from rove.models.linear import use_fast_linear
    from rove.models.load import prepare
    from rove.train.advantages import group_advantages
    from rove.train.batch import can_pack, count_trained_tokens, micro_batches
    from rove.train.losses import cross_entropy, make_loss
    from rove.train.sequences import TrainingSequence
    from rove.train.trainer import Trainer
    from rove.utils.processes import trim_heap

    class NoTokenizer:
        eos_token_id = bos_token_id = None

    mixed = "mixed precision" in setting
    bf16_backward, bf16_sampling = mixed or "bf16" in setting, mixed or "sampling" in setting
    loaded = prepare(new_model("float32", model), NoTokenizer())
    if "LoRA" in setting:
        add_adapter(loaded.model, LORA_RANK, 2 * LORA_RANK, 0.0, [], 0, model or "")
    use_fast_linear(loaded.model, bf16_backward, mixed)
    trainer = Trainer(loaded.model, 1e-5, mixed_precision=mixed)
    sampling_model = copy.deepcopy(loaded.model).to(torch.bfloat16) if bf16_sampling else loaded.model
    engine = Engine(sampling_model, [])
    sampling = SamplingParams(temperature=1.0, max_tokens=NEW_TOKENS)

    async def sample(prompts: list[list[int]], seed: int) -> list[Any]:
        requests = [engine.generate(p, sampling, seed=seed * 10_000 + i) for i, p in enumerate(prompts)]
        return await asyncio.gather(*requests)

    def grpo(seed: int) -> None:
        rng = random.Random(seed)
        prompts = [p for p in new_prompts(num_rollouts(case) // GROUP_SIZE, seed) for _ in range(GROUP_SIZE)]
        generations = asyncio.run(sample(prompts, seed))
        engine.release()
        trim_heap()
        sequences = []
        for start in range(0, len(generations), GROUP_SIZE):
            advantages = group_advantages([rng.random() for _ in range(GROUP_SIZE)]) or [0.0] * GROUP_SIZE
            group = generations[start : start + GROUP_SIZE]
            for prompt, generation, advantage in zip(prompts[start:], group, advantages, strict=False):
                mask = [False] * PROMPT_TOKENS + [True] * NEW_TOKENS
                sequences.append(
                    TrainingSequence(
                        prompt + generation.ids,
                        mask,
                        [0.0] * PROMPT_TOKENS + generation.logprobs,
                        [advantage * m for m in mask],
                    )
                )
        step(sequences, make_loss("cispo"))
        engine.update_weights(seed, dict(loaded.model.named_parameters()) if bf16_sampling else None)

    def sft(seed: int) -> None:
        rng = random.Random(seed)
        rows = [[rng.randrange(VOCAB_SIZE) for _ in range(SFT_LENGTH)] for _ in range(SFT_ROWS)]
        step(
            [TrainingSequence(ids, [True] * SFT_LENGTH, [0.0] * SFT_LENGTH, [1.0] * SFT_LENGTH) for ids in rows],
            cross_entropy,
        )

    def step(sequences: list[Any], loss: Any) -> None:
        tokens = MICRO_BATCH_TOKENS["LoRA" if "LoRA" in setting else "full"]
        batches = micro_batches(sequences, tokens, pack=can_pack(loaded.model))
        trainer.step(batches, loss, count_trained_tokens(sequences))

    for seed in range(1_000_000):
        started = time.process_time()
        (sft if case == "sft" else grpo)(seed)
        yield time.process_time() - started


def train_with_trl(case: str, setting: str, model: str | None, batch: int, report: Callable[[float], None]) -> None:
    """Train with TRL; each step waits for a line on stdin and then passes its CPU seconds to `report`."""
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer  # pyright: ignore[reportMissingImports]

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB_SIZE)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w2")
    started = 0.0

    class TakeTurns(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            nonlocal started
            if not sys.stdin.readline():
                sys.exit()
            started = time.process_time()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            report(time.process_time() - started)

    rng = random.Random(0)

    def text(length: int) -> str:
        return " ".join(f"w{rng.randrange(VOCAB_SIZE)}" for _ in range(length))

    policy = new_model("float32", model)
    adapter = {}
    if "LoRA" in setting:
        from peft import LoraConfig

        adapter["peft_config"] = LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear")
    with tempfile.TemporaryDirectory() as folder:
        common = {
            "output_dir": folder,
            "max_steps": 1000,
            "report_to": [],
            "save_strategy": "no",
            "use_cpu": True,
            "disable_tqdm": True,
            "learning_rate": 1e-5,
            **SETTINGS[setting],
        }
        if case == "sft":
            dataset = Dataset.from_dict({"text": [text(SFT_LENGTH) for _ in range(2000)]})
            config = SFTConfig(
                **common,
                per_device_train_batch_size=min(batch, SFT_ROWS),
                gradient_accumulation_steps=max(1, SFT_ROWS // batch),
                packing=True,
                packing_strategy="wrapped",
                max_length=SFT_LENGTH,
            )
            trainer = SFTTrainer(policy, config, train_dataset=dataset, processing_class=tokenizer, **adapter)
        else:
            dataset = Dataset.from_dict({"prompt": [text(PROMPT_TOKENS) for _ in range(4000)]})
            count = num_rollouts(case)
            config = GRPOConfig(
                **common,
                per_device_train_batch_size=min(batch, count),
                gradient_accumulation_steps=max(1, count // batch),
                num_generations=GROUP_SIZE,
                max_completion_length=NEW_TOKENS,
                beta=0.0,
                generation_kwargs={"min_new_tokens": NEW_TOKENS},
            )
            trainer = GRPOTrainer(
                policy,
                lambda completions, **_: [rng.random() for _ in completions],
                config,
                train_dataset=dataset,
                processing_class=tokenizer,
                **adapter,
            )
        trainer.add_callback(TakeTurns())
        trainer.train()


class StepProcess:
    """A child process that runs one training step per request.

    Args:
        command: The command to run. For each line on its stdin, it must run a step and print the step's "seconds" (CPU seconds)
            and its "peak" (MiB) as JSON.
    """

    def __init__(self, command: list[str]):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def step(self) -> tuple[float, float]:
        """Run a step; return the reported CPU seconds and the peak memory so far in MiB."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith('{"seconds"'):  # TRL prints its own logs, too
                report = json.loads(line)
                return report["seconds"], report["peak"]
        sys.exit(
            f"a training process ended with exit code {self.process.wait()}; to see its error, run: {self.process.args}"
        )

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()


def run_steps(case: str, setting: str, model: str | None, batch: int) -> None:
    """Run one step per line on stdin and print its figures; the program of a `StepProcess`."""
    if not setting.startswith("TRL"):
        import rove.models.linear  # noqa: F401  # limits oneDNN's caches before the first matrix product
    import torch

    torch.set_num_threads(1)

    def report(seconds: float) -> None:
        print(json.dumps({"seconds": seconds, "peak": peak_mib()}), flush=True)

    if setting.startswith("TRL"):
        return train_with_trl(case, setting, model, batch, report)
    steps = rove_steps(case, setting, model)
    while sys.stdin.readline():
        report(next(steps))


def min_matmul_tokens(case: str) -> float:
    """Return how many tokens a step must at least multiply with the weights; a backward pass counts twice."""
    if case == "sft":
        return 3.0 * SFT_ROWS * SFT_LENGTH
    count = num_rollouts(case)
    prompt_tokens, response_tokens = count // GROUP_SIZE * PROMPT_TOKENS, count * NEW_TOKENS
    return 4.0 * (prompt_tokens + response_tokens)


def measure(case: str, args: argparse.Namespace, seconds_per_token: float) -> None:
    """Measure all configurations on a case, one step of each in turn, and print a row for each.

    Args:
        case: Name of the case.
        args: The command line.
        seconds_per_token: CPU seconds of a token's products with the weights, at this machine's best fp32 rate.
    """
    settings = [name for name in args.settings if case != "sft" or "sampling" not in name]
    options = ["--trl-batch", str(args.trl_batch), *(["--model", args.model] if args.model else [])]
    processes = {}
    for name in settings:
        python = args.peer if name in SETTINGS else sys.executable
        processes[name] = StepProcess([python, __file__, *options, "--child", case, name])
    times: dict[str, list[float]] = {name: [] for name in processes}
    peaks: dict[str, float] = {}
    for i in range(WARM_UP_STEPS + args.rounds):
        for name, process in processes.items():
            seconds, peaks[name] = process.step()
            if i >= WARM_UP_STEPS:
                times[name].append(seconds)
                print(f"{case:9}{name:22}{seconds:9.2f} s, round {i}", file=sys.stderr, flush=True)
    for process in processes.values():
        process.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min((medians[name] for name in settings if name in SETTINGS), default=float("nan"))
    limit = min_matmul_tokens(case) * seconds_per_token
    for name, median in medians.items():
        print(
            f"{case:9}{name:24}{median:9.2f} s{best / median:8.2f}x{limit / median:8.0%}{peaks[name]:9.0f} MiB",
            flush=True,
        )


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="Python interpreter of an environment with TRL")
    parser.add_argument(
        "--cases", default="grpo64,grpo256,sft", help="cases, separated by commas (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of measured steps (default: %(default)s)")
    parser.add_argument(
        "--settings",
        nargs="+",
        choices=[*SETTINGS, *ROVE],
        default=DEFAULT_SETTINGS,
        help="configurations (default: all without LoRA)",
    )
    parser.add_argument(
        "--model", help="model folder or a name from `rove model list` (default: a Llama with random weights)"
    )
    parser.add_argument(
        "--trl-batch", type=int, default=64, help="responses per micro-batch of TRL (default: %(default)s)"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        case, setting = args.child
        return run_steps(case, setting, args.model, args.trl_batch)
    if args.peer is None and set(args.settings) & set(SETTINGS):
        parser.error(
            "--peer is missing; pass the Python interpreter of an environment with TRL (pip install trl==1.16.0), or select "
            "only configurations of rove with --settings"
        )
    args.model = model_folder(args.model)
    import torch

    torch.set_num_threads(1)
    seconds_per_token = 1 / max_tokens_per_second(new_model("float32", args.model))
    print(f"{'case':9}{'':24}{'CPU s/step':>11}{'ratio':>9}{'limit':>8}{'peak':>13}")
    for case in args.cases.split(","):
        measure(case, args, seconds_per_token)


if __name__ == "__main__":
    main()
