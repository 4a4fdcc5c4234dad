"""Compare the sampling speed of rove's engine and `transformers.generate` on a CPU: new tokens per CPU second, one thread.

    python benchmarks/generation.py [--cases 1,32,32x8,turns] [--dtypes float32,bfloat16] [--rounds 3] [--model smollm2-135m]
        [--peer PYTHON] [--llama PYTHON --gguf FILE ...]

The model is a Llama with 4.2 M random parameters (hidden size 256, 6 layers, 8 heads of size 32, 2 key/value heads, MLP size
640, vocabulary of 1,024), or the model that `--model` selects. A case is a number of prompts of 150 random tokens. Each prompt
is continued by 64 tokens at temperature 1; no token ends a response. "32x8" is 32 prompts with 8 responses each. "turns" is 256
conversations of four turns: a prompt of 120 tokens, then in each turn 40 sampled tokens and 40 tokens from the environment;
`generate` computes the whole conversation again in every turn.

Both programs return the log-probabilities of the sampled tokens. Each round uses new prompts and measures one program after
the other in this process, so that other load on the machine affects both. The script prints medians over the rounds: new
tokens per CPU second (including prefill), their ratio to `generate` in the same precision, and their share of the limit. The
limit is the rate at which this machine computes only the products with the model's weights, 256 rows at a time; it is measured
in the same run.

`--peer` is the Python interpreter of an environment with vLLM for CPU (bf16, compiled). vLLM runs in separate processes and is
measured in wall time. `--llama` is the Python interpreter of an environment with `llama-cpp-python`. It runs each GGUF file
with one thread on the same number of prompts and tokens, without sampling. `--memory DTYPE` only measures the memory of "32x8".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT_TOKENS, NEW_TOKENS = 150, 64
"""Tokens per prompt and per response, in all cases except "turns"."""
TURNS, FIRST_PROMPT_TOKENS, TURN_NEW_TOKENS, TURN_ENV_TOKENS = 4, 120, 40, 40
"""The case "turns": number of turns, tokens of the prompt, and in each turn sampled tokens and tokens of the environment."""
VOCAB_SIZE = 1024
MIB = 1 << 20
RATE_FILE = "rate.json"
"""File in which the process that runs vLLM saves its rate."""


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its child processes that have ended."""
    usages = [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def model_folder(name: str | None) -> str | None:
    """Return the folder of a model, given its folder or its name in the catalog; None for None."""
    if name is None:
        return None
    from rove.models.pretrained import model_path

    return str(model_path(name))


def new_model(dtype: str, folder: str | None = None) -> Any:
    """Return the model in a folder, or one with fixed random weights; no token ends its responses."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

    if folder is not None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        model.config.eos_token_id = None
        model.generation_config = GenerationConfig(pad_token_id=0)
        return model
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


def new_prompts(case: str, seed: int) -> list[list[int]]:
    """Return the prompts of a case, random token ids; equal prompts are adjacent."""
    import torch

    count, _, copies = ("256" if case == "turns" else case).partition("x")
    generator = torch.Generator().manual_seed(seed)
    length = FIRST_PROMPT_TOKENS if case == "turns" else PROMPT_TOKENS
    prompts = torch.randint(0, VOCAB_SIZE, (int(count), length), generator=generator).tolist()
    return [prompt for prompt in prompts for _ in range(int(copies or 1))]


def new_env_tokens(turn: int, rows: int, seed: int) -> list[list[int]]:
    """Return the random tokens that the environment adds to each of `rows` conversations after a turn."""
    import torch

    generator = torch.Generator().manual_seed(1000 * seed + turn)
    return torch.randint(0, VOCAB_SIZE, (rows, TURN_ENV_TOKENS), generator=generator).tolist()


Generate = Callable[[list[list[int]], int, int], list[list[int]]]
"""A sampling function: (prompts, number of new tokens, seed) → the new tokens of each prompt."""


def run_case(case: str, generate: Generate, seed: int) -> tuple[int, float]:
    """Run a case once; return the number of new tokens and the CPU seconds."""
    prompts = new_prompts(case, seed)
    started = cpu_seconds()
    if case != "turns":
        responses = generate(prompts, NEW_TOKENS, seed)
        assert [len(ids) for ids in responses] == [NEW_TOKENS] * len(prompts)
        return NEW_TOKENS * len(prompts), cpu_seconds() - started
    for turn in range(TURNS):
        responses = generate(prompts, TURN_NEW_TOKENS, seed * TURNS + turn)
        env_tokens = new_env_tokens(turn, len(prompts), seed)
        prompts = [p + r + e for p, r, e in zip(prompts, responses, env_tokens, strict=True)]
    return TURNS * TURN_NEW_TOKENS * len(prompts), cpu_seconds() - started


def load_rove(model: Any, temperature: float = 1.0) -> Generate:
    """Return a function that samples with rove's embedded engine; every response is a separate request."""
    from rove import SamplingParams
    from rove.engine.engine import Engine
    from rove.models.load import prepare

    class NoTokenizer:
        eos_token_id = bos_token_id = None

    loaded = prepare(model, NoTokenizer())
    engine = Engine(loaded.model, [])

    def generate(prompts: list[list[int]], count: int, seed: int) -> list[list[int]]:
        async def generate_all() -> list[Any]:
            sampling = SamplingParams(temperature=temperature, max_tokens=count)
            requests = (engine.generate(p, sampling, seed=seed * 1000 + i) for i, p in enumerate(prompts))
            return await asyncio.gather(*requests)

        generations = asyncio.run(generate_all())
        assert all(len(generation.logprobs) == count for generation in generations)
        return [generation.ids for generation in generations]

    return generate


def load_transformers(model: Any, temperature: float = 1.0) -> Generate:
    """Return a function that samples with `transformers.generate` and computes the log-probabilities of the sampled tokens."""
    import torch

    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}

    def generate(prompts: list[list[int]], count: int, seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                **sampling,
                max_new_tokens=count,
                return_dict_in_generate=True,
                output_logits=True,
            )
            new = out.sequences[:, ids.shape[1] :]
            logprobs = [
                logits.float().log_softmax(-1).gather(1, new[:, i : i + 1]) for i, logits in enumerate(out.logits)
            ]
            torch.cat(logprobs, 1).tolist()
        return new.tolist()

    return generate


def load_vllm(folder: str) -> Generate:
    """Return a function that samples with vLLM for CPU, from the model in a folder."""
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    llm = LLM(folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=1024)

    def generate(prompts: list[list[int]], count: int, seed: int) -> list[list[int]]:
        params = SamplingParams(temperature=1.0, max_tokens=count, ignore_eos=True, logprobs=0, detokenize=False)
        results = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    return generate


def max_tokens_per_second(model: Any) -> float:
    """Return the tokens per CPU second if only the products with the weights took time; the best of 40 measurements."""
    import torch

    from rove.models.linear import linear

    weights = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    best = float("inf")
    with torch.inference_mode():
        inputs = [torch.randn(256, weight.shape[1], dtype=weight.dtype) for weight in weights]
        for _ in range(40):  # the best of many, because other load on the machine must not lower the limit
            started = time.process_time()
            for x, weight in zip(inputs, weights, strict=True):
                linear(x, weight)
            best = min(best, time.process_time() - started)
    return 256 / best


def print_memory(dtype: str, folder: str | None = None) -> None:
    """Run "32x8" four times in this process and print its peak memory."""
    import torch

    def peak_mib() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    torch.set_num_threads(1)
    model = new_model(dtype, folder)
    generate, base_mib = load_rove(model), peak_mib()
    for seed in range(4):
        run_case("32x8", generate, seed)
    config = model.config
    weights = sum(p.nbytes for p in model.parameters()) / MIB
    bytes_per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
    cache = 256 * (PROMPT_TOKENS + NEW_TOKENS) * bytes_per_token / MIB
    print(
        f"{dtype}: peak {peak_mib():.0f} MiB, of which {base_mib:.0f} MiB were in use before the first token (Python, PyTorch, "
        f"transformers, weights); computed sizes: weights {weights:.0f} MiB, keys and values of 256 sequences {cache:.0f} MiB"
    )


def measure_vllm_here(folder: str, case: str, rounds: int) -> None:
    """Measure vLLM in this process, and save the median of new tokens per second of wall time in `RATE_FILE`."""
    generate = load_vllm(folder)
    run_case(case, generate, 99)
    rates = []
    for seed in range(rounds):
        started = time.perf_counter()
        tokens, _ = run_case(case, generate, seed)
        rates.append(tokens / (time.perf_counter() - started))
    (Path(folder) / RATE_FILE).write_text(json.dumps(statistics.median(rates)))


def llama_rates(file: str, case: str, rounds: int) -> list[float]:
    """Return new tokens per second of llama.cpp with one thread, for each round; with prefill, without sampling."""
    import ctypes
    import random

    import llama_cpp as llama  # pyright: ignore[reportMissingImports]

    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p())
    llama.llama_backend_init()
    prompts, _, copies = case.partition("x")
    prompts, copies = int(prompts), int(copies or 1)
    options = llama.llama_model_default_params()
    options.use_extra_bufts = False  # llama-cpp-python 0.3.36 crashes with its repacked weights for AMX
    model = llama.llama_model_load_from_file(file.encode(), options)
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = prompts * copies * (PROMPT_TOKENS + NEW_TOKENS), 2048, 512
    params.n_seq_max, params.n_threads, params.n_threads_batch, params.kv_unified = prompts * copies, 1, 1, True
    context = llama.llama_init_from_model(model, params)
    batch = llama.llama_batch_init(2048, 0, 1)

    def decode(tokens: list[tuple[int, int, int, bool]]) -> None:
        """Decode tokens, given as (token, position, sequence, whether its logits are needed)."""
        for start in range(0, len(tokens), 2048):
            chunk = tokens[start : start + 2048]
            batch.n_tokens = len(chunk)
            for i, (token, position, sequence, needs_logits) in enumerate(chunk):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position, needs_logits
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            assert llama.llama_decode(context, batch) == 0

    rng, rates = random.Random(0), []
    for _ in range(rounds + 1):
        memory = llama.llama_get_memory(context)
        llama.llama_memory_clear(memory, True)
        started = time.perf_counter()
        decode(
            [
                (rng.randrange(VOCAB_SIZE), i, prompt * copies, i == PROMPT_TOKENS - 1)
                for prompt in range(prompts)
                for i in range(PROMPT_TOKENS)
            ]
        )
        for sequence in range(prompts * copies):
            if sequence % copies:  # responses to one prompt share its keys and values
                llama.llama_memory_seq_cp(memory, sequence // copies * copies, sequence, -1, -1)
        # the prompt's last logits yield the first new token
        for position in range(PROMPT_TOKENS, PROMPT_TOKENS + NEW_TOKENS - 1):
            decode([(rng.randrange(VOCAB_SIZE), position, sequence, True) for sequence in range(prompts * copies)])
        rates.append(NEW_TOKENS * prompts * copies / (time.perf_counter() - started))
    return rates[1:]


def measure_llama(python: str, file: Path, case: str, rounds: int) -> float:
    """Run llama.cpp in a separate process; return its new tokens per second of wall time."""
    command = [python, __file__, "--child-llama", str(file), case, str(rounds)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"llama.cpp failed with exit code {result.returncode}:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def measure_vllm(python: str, case: str, rounds: int, model: str | None) -> float:
    """Run vLLM in a separate process; return its new tokens per second of wall time.

    The CPU time of its worker processes includes their start-up and is therefore not used.
    """
    with tempfile.TemporaryDirectory() as folder:
        new_model("bfloat16", model).save_pretrained(folder)
        command = [python, __file__, "--child", folder, case, str(rounds)]
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        result = subprocess.run(command, capture_output=True, text=True, env=env)
        if result.returncode:
            sys.exit(f"vLLM failed with exit code {result.returncode}:\n{result.stderr[-3000:]}")
        return json.loads((Path(folder) / RATE_FILE).read_text())


def compare(case: str, dtype: str, rounds: int, model: str | None) -> None:
    """Measure rove and `generate` on a case for several rounds, and print a row of the table."""
    programs = {"generate": load_transformers(new_model(dtype, model)), "rove": load_rove(new_model(dtype, model))}
    rates: dict[str, list[float]] = {program: [] for program in programs}
    for generate in programs.values():  # a warm-up: the first calls compile and fill caches
        run_case(case, generate, 99)
    for seed in range(rounds):
        for program, generate in programs.items():
            tokens, seconds = run_case(case, generate, seed)
            rates[program].append(tokens / seconds)
    theirs, ours = (statistics.median(rates[program]) for program in programs)
    ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["rove"], rates["generate"], strict=True))
    limit = max_tokens_per_second(new_model(dtype, model))
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{case:8}{dtype:10}{theirs:10.0f}{ours:10.0f}{ratio:8.2f}{limit:10.0f}{ours / limit:8.0%}{rss:10.0f}",
        flush=True,
    )


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="1,32,32x8,turns", help="cases, separated by commas (default: %(default)s)")
    parser.add_argument(
        "--dtypes", default="float32,bfloat16", help="precisions, separated by commas (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument(
        "--model", help="model folder or a name from `rove model list` (default: a Llama with random weights)"
    )
    parser.add_argument(
        "--peer", metavar="PYTHON", type=Path, help="Python interpreter of an environment with vLLM for CPU"
    )
    parser.add_argument("--llama", metavar="PYTHON", help="Python interpreter of an environment with llama-cpp-python")
    parser.add_argument("--gguf", metavar="FILE", type=Path, nargs="*", default=[], help="GGUF files for --llama")
    parser.add_argument("--memory", metavar="DTYPE", help="only measure the memory of 256 sequences in this precision")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--child-llama", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child_llama:
        file, case, rounds = args.child_llama
        print(json.dumps(statistics.median(llama_rates(file, case, int(rounds)))))
        return
    args.model = model_folder(args.model)
    if args.memory:
        return print_memory(args.memory, args.model)
    if args.child:
        folder, case, rounds = args.child
        measure_vllm_here(folder, case, int(rounds))
        return
    import gc

    import torch

    from rove.utils.processes import GC_THRESHOLDS

    gc.set_threshold(*GC_THRESHOLDS)  # as rove's command line does; applies to both programs
    torch.set_num_threads(1)
    print(
        f"{'case':8}{'precision':10}{'generate':>10}{'rove':>10}{'ratio':>8}{'limit':>10}{'share':>8}{'peak MiB':>10}"
    )
    for case in args.cases.split(","):
        for dtype in args.dtypes.split(","):
            compare(case, dtype, args.rounds, args.model)
        if args.peer:
            rate = measure_vllm(str(args.peer), case, args.rounds, args.model)
            print(f"{case:8}vLLM, bf16: {rate:.0f} new tokens per second of wall time")
        for file in args.gguf if args.llama else []:
            rate = measure_llama(args.llama, file, case, args.rounds)
            print(f"{case:8}llama.cpp, {file.name}: {rate:.0f} new tokens per second of wall time", flush=True)


if __name__ == "__main__":
    main()
