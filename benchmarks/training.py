"""What training costs on a CPU: rove against TRL, CPU seconds per optimizer step, one thread.

    python benchmarks/training.py --peer PYTHON [--cases grpo64,grpo256,sft] [--rounds 3] [--settings NAME ...]
        [--model smollm2-135m] [--trl-batch 64]

The model is the Llama of 4.2 M random weights of generation.py, or the one that `--model` names. "grpo64" is one whole step
of reinforcement learning: 8 prompts of 150 random tokens, 8 completions of 64 tokens each sampled at temperature 1 (nothing
ends early), random rewards, one optimizer step; "grpo256" has 32 prompts. "sft" is a step of 8 packed sequences of 256
tokens. `--peer` is the Python of an environment with TRL. Every configuration runs in a process of its own; they take turns,
step by step, so that other work on the machine slows all of them. The ratio is to the fastest configuration of TRL that runs.

TRL runs in fp32, in bf16, and with its defaults (bf16 with gradient checkpointing), `--trl-batch` completions at a time. rove
runs in fp32, then with the matrix products of the backward pass in bf16, then with the sampler's weights in bf16 as well, then
with the products of the forward pass in bf16 too ("mixed precision").
"LoRA" trains adapters of rank 8 on all linear layers. `--settings` selects configurations. Printed are medians over the
rounds, the ratio, the share of the limit (the CPU seconds of the step's matrix products with the weights alone, at this
machine's best fp32 rate), and the peak memory of each process.
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
from generation import NEW, PROMPT, VOCAB, limit, model_folder, new_model

GROUP = 8
SFT_ROWS, SFT_LENGTH = 8, 256
MICRO_BATCH_TOKENS = {"full": 1024, "LoRA": 512}  # larger ones are as fast and take more memory
WARM_UP = 1
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
DEFAULT = [name for name in [*SETTINGS, *ROVE] if "LoRA" not in name]
RANK = 8


def completions(case: str) -> int:
    """Rollouts of a step."""
    return int(case.removeprefix("grpo"))


def new_prompts(count: int, seed: int) -> list[list[int]]:
    """Random tokens."""
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(PROMPT)] for _ in range(count)]


def peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rove_steps(case: str, setting: str, name: str | None) -> Iterator[float]:  # noqa: PLR0915
    """CPU seconds of one step after another."""
    import asyncio
    import copy

    import torch

    from rove.core.protocols import SamplingParams
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
    loaded = prepare(new_model("float32", name), NoTokenizer())
    if "LoRA" in setting:
        add_adapter(loaded.model, RANK, 2 * RANK, 0.0, [], 0, name or "")
    use_fast_linear(loaded.model, bf16_backward, mixed)
    trainer = Trainer(loaded.model, 1e-5, mixed_precision=mixed)
    sampled = copy.deepcopy(loaded.model).to(torch.bfloat16) if bf16_sampling else loaded.model
    engine = Engine(sampled, [])
    sampling = SamplingParams(temperature=1.0, max_tokens=NEW)

    async def sample(prompts: list[list[int]], seed: int) -> list[Any]:
        asked = [engine.generate(p, sampling, seed=seed * 10_000 + i) for i, p in enumerate(prompts)]
        return await asyncio.gather(*asked)

    def grpo(seed: int) -> None:
        rng = random.Random(seed)
        prompts = [p for p in new_prompts(completions(case) // GROUP, seed) for _ in range(GROUP)]
        made = asyncio.run(sample(prompts, seed))
        engine.release()
        trim_heap()
        samples = []
        for start in range(0, len(made), GROUP):
            advantages = group_advantages([rng.random() for _ in range(GROUP)]) or [0.0] * GROUP
            for prompt, one, advantage in zip(prompts[start:], made[start : start + GROUP], advantages, strict=False):
                mask = [False] * PROMPT + [True] * NEW
                samples.append(
                    TrainingSequence(
                        prompt + one.ids, mask, [0.0] * PROMPT + one.logprobs, [advantage * m for m in mask]
                    )
                )
        step(samples, make_loss("cispo"))
        engine.update_weights(seed, dict(loaded.model.named_parameters()) if bf16_sampling else None)

    def sft(seed: int) -> None:
        rng = random.Random(seed)
        rows = [[rng.randrange(VOCAB) for _ in range(SFT_LENGTH)] for _ in range(SFT_ROWS)]
        step(
            [TrainingSequence(ids, [True] * SFT_LENGTH, [0.0] * SFT_LENGTH, [1.0] * SFT_LENGTH) for ids in rows],
            cross_entropy,
        )

    def step(samples: list[Any], loss: Any) -> None:
        tokens = MICRO_BATCH_TOKENS["LoRA" if "LoRA" in setting else "full"]
        batches = micro_batches(samples, tokens, pack=can_pack(loaded.model))
        trainer.step(batches, loss, count_trained_tokens(samples))

    for seed in range(1_000_000):
        started = time.process_time()
        (sft if case == "sft" else grpo)(seed)
        yield time.process_time() - started


def trl_steps(case: str, setting: str, name: str | None, batch: int, tell: Callable[[float], None]) -> None:
    """Train with TRL; every step waits for a line on stdin and tells its CPU seconds."""
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer  # pyright: ignore[reportMissingImports]

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w2")
    began = 0.0

    class TakeTurns(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            nonlocal began
            if not sys.stdin.readline():
                sys.exit()
            began = time.process_time()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            tell(time.process_time() - began)

    rng = random.Random(0)

    def text(length: int) -> str:
        return " ".join(f"w{rng.randrange(VOCAB)}" for _ in range(length))

    model = new_model("float32", name)
    adapter = {}
    if "LoRA" in setting:
        from peft import LoraConfig

        adapter["peft_config"] = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
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
            trainer = SFTTrainer(model, config, train_dataset=dataset, processing_class=tokenizer, **adapter)
        else:
            dataset = Dataset.from_dict({"prompt": [text(PROMPT) for _ in range(4000)]})
            count = completions(case)
            config = GRPOConfig(
                **common,
                per_device_train_batch_size=min(batch, count),
                gradient_accumulation_steps=max(1, count // batch),
                num_generations=GROUP,
                max_completion_length=NEW,
                beta=0.0,
                generation_kwargs={"min_new_tokens": NEW},
            )
            trainer = GRPOTrainer(
                model,
                lambda completions, **_: [rng.random() for _ in completions],
                config,
                train_dataset=dataset,
                processing_class=tokenizer,
                **adapter,
            )
        trainer.add_callback(TakeTurns())
        trainer.train()


class Peer:
    """A process that takes a step whenever it is told to.

    Args:
        command: what it runs; for every line on its stdin it prints the "seconds" and "peak" MiB of a step as JSON.
    """

    def __init__(self, command: list[str]):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def step(self) -> tuple[float, float]:
        """CPU seconds, and peak MiB so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith('{"seconds"'):  # TRL's own logs are printed too
                told = json.loads(line)
                return told["seconds"], told["peak"]
        sys.exit(f"the peer ended with status {self.process.wait()}; run it by hand: {self.process.args}")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def serve(case: str, setting: str, name: str | None, batch: int) -> None:
    """Be a `Peer`."""
    if not setting.startswith("TRL"):
        import rove.models.linear  # noqa: F401  # limits oneDNN's caches before the first matrix product
    import torch

    torch.set_num_threads(1)

    def tell(seconds: float) -> None:
        print(json.dumps({"seconds": seconds, "peak": peak()}), flush=True)

    if setting.startswith("TRL"):
        return trl_steps(case, setting, name, batch, tell)
    steps = rove_steps(case, setting, name)
    while sys.stdin.readline():
        tell(next(steps))


def work(case: str) -> float:
    """Tokens whose products with the weights a step needs at least, a backward pass counting as two."""
    if case == "sft":
        return 3.0 * SFT_ROWS * SFT_LENGTH
    count = completions(case)
    prompts, answers = count // GROUP * PROMPT, count * NEW
    return 4.0 * (prompts + answers)


def measure(case: str, given: argparse.Namespace, least: float) -> None:
    """Steps of all in turn, and a line for each."""
    settings = [name for name in given.settings if case != "sft" or "sampling" not in name]
    options = ["--trl-batch", str(given.trl_batch), *(["--model", given.model] if given.model else [])]
    peers = {}
    for name in settings:
        program = given.peer if name in SETTINGS else sys.executable
        peers[name] = Peer([program, __file__, *options, "--child", case, name])
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    peaks: dict[str, float] = {}
    for i in range(WARM_UP + given.rounds):
        for name, peer in peers.items():
            spent, peaks[name] = peer.step()
            if i >= WARM_UP:
                seconds[name].append(spent)
                print(f"{case:9}{name:22}{spent:9.2f} s, round {i}", file=sys.stderr, flush=True)
    for peer in peers.values():
        peer.close()
    medians = {name: statistics.median(some) for name, some in seconds.items()}
    best = min((medians[name] for name in settings if name in SETTINGS), default=float("nan"))
    for name, median in medians.items():
        print(
            f"{case:9}{name:24}{median:9.2f} s{best / median:8.2f}x{work(case) * least / median:8.0%}{peaks[name]:9.0f} MiB",
            flush=True,
        )


def main() -> None:
    """Measure in rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--cases", default="grpo64,grpo256,sft")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", nargs="+", choices=[*SETTINGS, *ROVE], default=DEFAULT)
    parser.add_argument("--model", help="a model folder or a name of `rove model list`")
    parser.add_argument("--trl-batch", type=int, default=64, help="completions of a micro-batch of TRL")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return serve(*given.child, given.model, given.trl_batch)
    if given.peer is None and set(given.settings) & set(SETTINGS):
        parser.error("give --peer PYTHON, of an environment with TRL (pip install trl==1.16.0)")
    given.model = model_folder(given.model)
    import torch

    torch.set_num_threads(1)
    least = 1 / limit(new_model("float32", given.model))
    print(f"{'case':9}{'':24}{'CPU s/step':>11}{'ratio':>9}{'limit':>8}{'peak':>13}")
    for case in given.cases.split(","):
        measure(case, given, least)


if __name__ == "__main__":
    main()
