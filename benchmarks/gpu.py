"""Sampling and training on one GPU: rove's embedded engine and trainer against `transformers`, in seconds of wall time.

    python benchmarks/gpu.py                         # a model with the shapes of SmolLM2-135M and random weights
    python benchmarks/gpu.py --model FOLDER          # another model
    python benchmarks/gpu.py --device cpu --requests 8 --rounds 1

Sampling: requests in groups of 8 with equal prompts of 150 random tokens, 64 sampled tokens each at temperature 1, with their
log-probabilities. The limit is the time to read the weights once per token and to compute the products with the weights, at
the rates of a large copy and of a large product of matrices on the same device. Training: one GRPO update on these rollouts,
against the forward and backward pass of `transformers` with up to 32,768 tokens per batch; rove computes equal prompts once.
Every figure is the median of several rounds after a warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from rove import SamplingParams
from rove.engine.engine import Engine
from rove.models.linear import use_fast_linear
from rove.models.load import prepare
from rove.train.batch import can_pack, count_trained_tokens, micro_batches
from rove.train.losses import make_loss
from rove.train.sequences import TrainingSequence
from rove.train.trainer import Trainer

PROMPT, NEW, GROUP = 150, 64, 8
MICRO_BATCH_TOKENS = 32_768
SMOLLM2_135M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}


class NoTokenizer:
    """Takes the place of a tokenizer: no token ends a response."""

    eos_token_id = bos_token_id = None


def load(path: str | None, device: str, dtype: torch.dtype) -> Any:
    """Return a model from a folder, or one with random weights."""
    if path is not None:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    else:
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SMOLLM2_135M))
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return cast(Any, model).to(device, dtype).eval()


def wait(device: str) -> None:
    """Wait until the device has finished its work."""
    if device != "cpu":
        torch.cuda.synchronize()


def measure(work: Callable[[int], Any], device: str, rounds: int) -> float:
    """Return the median seconds of `work(round)` after one warm-up."""
    seconds = []
    for number in range(rounds + 1):
        wait(device)
        started = time.perf_counter()
        work(number)
        wait(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def prompts(requests: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Return random prompts; GROUP consecutive ones are equal."""
    rng = random.Random(seed)
    groups = [[rng.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(requests // GROUP)]
    return [prompt for prompt in groups for _ in range(GROUP)]


def rove_samples(engine: Engine, requests: int, vocabulary: int, seed: int) -> list[TrainingSequence]:
    """Sample with the embedded engine; return training sequences with random advantages."""
    sampling = SamplingParams(temperature=1.0, max_tokens=NEW)
    inputs = prompts(requests, vocabulary, seed)

    async def every() -> list[Any]:
        return await asyncio.gather(
            *(engine.generate(ids, sampling, seed=seed * 10_000 + i) for i, ids in enumerate(inputs))
        )

    outputs = asyncio.run(every())
    rng, mask = random.Random(seed), [False] * PROMPT + [True] * NEW
    samples = []
    for ids, output in zip(inputs, outputs, strict=True):
        advantage = rng.uniform(-1, 1)
        logprobs = [0.0] * PROMPT + output.logprobs
        samples.append(TrainingSequence(ids + output.ids, mask, logprobs, [advantage * trained for trained in mask]))
    return samples


def generate(model: Any, requests: int, vocabulary: int, seed: int) -> None:
    """Sample with `transformers.generate`, with the log-probabilities of the sampled tokens."""
    torch.manual_seed(seed)
    ids = torch.tensor(prompts(requests, vocabulary, seed), device=model.device)
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": NEW}
    with torch.inference_mode():
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, return_dict_in_generate=True, output_logits=True, **options)
        new = out.sequences[:, PROMPT:]
        steps = (x.float().log_softmax(-1).gather(1, new[:, i : i + 1]) for i, x in enumerate(out.logits))
        torch.cat([*steps], 1).tolist()


def update(trainer: Trainer, samples: list[TrainingSequence], seed: int) -> None:
    """Run a policy-gradient update; the seed is not used."""
    batches = micro_batches(samples, MICRO_BATCH_TOKENS, trainer.model.device, can_pack(trainer.model))
    trainer.step(batches, make_loss("cispo"), count_trained_tokens(samples))


def peer_update(model: Any, optimizer: Any, samples: list[TrainingSequence], in_bf16: bool, seed: int) -> None:
    """Run a policy-gradient update with the model's own forward pass; the seed is not used."""
    size = max(1, MICRO_BATCH_TOKENS // (PROMPT + NEW))
    for start in range(0, len(samples), size):
        batch = samples[start : start + size]
        ids = torch.tensor([sample.ids for sample in batch], device=model.device)
        advantages = torch.tensor([sample.advantages[PROMPT:] for sample in batch], device=model.device)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=in_bf16):
            logits = model(ids, logits_to_keep=NEW + 1).logits[:, :-1]
        logprobs = logits.float().log_softmax(-1).gather(2, ids[:, PROMPT:, None])[..., 0]
        (-(logprobs * advantages).sum() / (NEW * len(samples))).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def sampling_limit(model: Any, requests: int, device: str) -> float:
    """Return the seconds that reading the weights and multiplying with them takes at the device's best rates."""
    large = torch.empty(2**28 if device != "cpu" else 2**25, dtype=torch.uint8, device=device)
    copied = 2 * large.nbytes / measure(lambda _: large.clone(), device, 9)
    side = 8192 if device != "cpu" else 1024
    a, b = (torch.randn(side, side, dtype=model.dtype, device=device) for _ in range(2))
    computed = 2 * side**3 / measure(lambda _: a @ b, device, 9)
    size = sum(p.numel() for p in model.parameters())
    read = NEW * sum(p.nbytes for p in model.parameters()) / copied
    return max(read, 2 * size * requests * NEW / computed) + 2 * size * requests // GROUP * PROMPT / computed


def agreement(model: Any, samples: list[TrainingSequence]) -> float:
    """Return the largest difference between the sampler's log-probabilities and those of a plain forward pass."""
    worst = 0.0
    with torch.inference_mode():
        for sample in samples[:16]:
            ids = torch.tensor([sample.ids], device=model.device)
            logprobs = model(ids).logits[0, PROMPT - 1 : -1].float().log_softmax(-1).gather(1, ids[0, PROMPT:, None])
            sampled = torch.tensor(sample.logprobs[PROMPT:], device=model.device)
            worst = max(worst, (logprobs[:, 0] - sampled).abs().max().item())
    return worst


def compare(args: argparse.Namespace, dtype: torch.dtype) -> None:
    """Print a line of JSON per number of requests."""

    def timed(work: Callable[..., Any], *arguments: Any) -> float:
        return measure(lambda seed: work(*arguments, seed), args.device, args.rounds)

    model, in_bf16 = load(args.model, args.device, dtype), dtype == torch.bfloat16
    sampled = prepare(copy.deepcopy(model), NoTokenizer()).model  # pyright: ignore[reportArgumentType]
    trained, peer = (load(args.model, args.device, torch.float32) for _ in range(2))
    trained = prepare(trained, NoTokenizer()).model  # pyright: ignore[reportArgumentType]
    use_fast_linear(trained, in_bf16, in_bf16)
    trainer = Trainer(trained, 1e-6, mixed_precision=in_bf16)
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-6, fused=True)
    for requests in args.requests:
        shape, engine = (requests, model.config.vocab_size), Engine(sampled, [], max_batch=requests)
        samples = rove_samples(engine, *shape, 99)
        seconds = {
            "sampling, rove": timed(rove_samples, engine, *shape),
            "sampling, generate": timed(generate, model, *shape),
            "sampling, limit": sampling_limit(model, requests, args.device),
            "update, rove": timed(update, trainer, samples),
            "update, transformers": timed(peer_update, peer, optimizer, samples, in_bf16),
        }
        row = {"type": str(dtype), "requests": requests, "largest difference": agreement(model, samples)}
        print(json.dumps(row | {name: round(value, 4) for name, value in seconds.items()}), flush=True)


def main() -> None:
    """Run the comparison in fp32 and in bf16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a Hugging Face model")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--requests", nargs="*", type=int, default=[8, 64, 512], help="multiples of 8")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for dtype in (torch.float32, torch.bfloat16):
        compare(args, dtype)


if __name__ == "__main__":
    main()
