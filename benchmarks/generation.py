"""What sampling costs on a CPU: rove's engine against `transformers.generate`, new tokens per CPU second, one thread.

    python benchmarks/generation.py [--cases 1,32,32x8,turns] [--dtypes float32,bfloat16] [--rounds 3] [--model smollm2-135m]
        [--peer PYTHON] [--llama PYTHON --gguf FILE ...]

The model is a Llama of 4.2 M random weights (hidden 256, 6 layers, 8 heads of 32 over 2 key/value heads, MLP 640, vocabulary
1,024), or the one that `--model` names. A case is a number of prompts of 150 random tokens, each continued by 64 tokens at
temperature 1, nothing ending early; "32x8" is 32 prompts with 8 continuations each; "turns" is 256 conversations of four
turns, 120 prompt tokens, then 40 sampled and 40 given ones a turn, where `generate` reads everything again in every turn.
Both return the log-probabilities of the sampled tokens. Every round has new prompts and measures one after the other in this
process, so that other work on the machine slows all of them. Printed are medians over the rounds: new tokens per CPU second
(prefill included), the ratio to `generate` in the same precision, and the share of the limit: the rate at which this machine
does the weights' matrix products alone, 256 rows at a time, measured in the same run.

`--peer` is the Python of an environment with vLLM for CPU (bf16, compiled), which runs in processes of its own, measured in
wall time. `--llama` is the Python of an environment with `llama-cpp-python`; it runs each GGUF file with one thread on the same
prompts and tokens, without sampling. `--memory DTYPE` instead measures the memory that "32x8" takes in a
process of its own.
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

PROMPT, NEW = 150, 64
FIRST, SAID, GIVEN, TURNS = 120, 40, 40, 4
VOCAB = 1024
MIB = 1 << 20
RESULT = "rate.json"
"""Where the process of a peer leaves its figure."""


def spent() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def model_folder(name: str | None) -> str | None:
    """Return the folder of a model that is named by its folder or by the catalog."""
    if name is None:
        return None
    from rove.models.pretrained import model_path

    return str(model_path(name))


def new_model(dtype: str, name: str | None = None) -> Any:
    """The same weights every time, or those of a model folder; nothing ends its answers."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

    if name is not None:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype)).eval()
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
        vocab_size=VOCAB,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


def new_prompts(case: str, seed: int) -> list[list[int]]:
    """Random tokens; continuations of one prompt stand together."""
    import torch

    count, _, copies = ("256" if case == "turns" else case).partition("x")
    generator = torch.Generator().manual_seed(seed)
    length = FIRST if case == "turns" else PROMPT
    made = torch.randint(0, VOCAB, (int(count), length), generator=generator).tolist()
    return [prompt for prompt in made for _ in range(int(copies or 1))]


def new_given(turn: int, rows: int, seed: int) -> list[list[int]]:
    """What the environment says after a turn."""
    import torch

    generator = torch.Generator().manual_seed(1000 * seed + turn)
    return torch.randint(0, VOCAB, (rows, GIVEN), generator=generator).tolist()


Say = Callable[[list[list[int]], int, int], list[list[int]]]


def play(case: str, say: Say, seed: int) -> tuple[int, float]:
    """New tokens and CPU seconds of a case; `say(prompts, new tokens, seed)` continues prompts."""
    prompts = new_prompts(case, seed)
    started = spent()
    if case != "turns":
        made = say(prompts, NEW, seed)
        assert [len(ids) for ids in made] == [NEW] * len(prompts)
        return NEW * len(prompts), spent() - started
    for turn in range(TURNS):
        made = say(prompts, SAID, seed * TURNS + turn)
        given = new_given(turn, len(prompts), seed)
        prompts = [p + m + g for p, m, g in zip(prompts, made, given, strict=True)]
    return TURNS * SAID * len(prompts), spent() - started


def with_rove(model: Any) -> Say:
    """The embedded engine, every continuation a request of its own."""
    from rove.core.protocols import SamplingParams
    from rove.engine.engine import Engine
    from rove.models.load import prepare

    class NoTokenizer:
        eos_token_id = bos_token_id = None

    loaded = prepare(model, NoTokenizer())
    engine = Engine(loaded.model, [])

    def say(prompts: list[list[int]], count: int, seed: int) -> list[list[int]]:
        async def every() -> list[Any]:
            sampling = SamplingParams(temperature=1.0, max_tokens=count)
            asked = (engine.generate(p, sampling, seed=seed * 1000 + i) for i, p in enumerate(prompts))
            return await asyncio.gather(*asked)

        made = asyncio.run(every())
        assert all(len(one.logprobs) == count for one in made)
        return [one.ids for one in made]

    return say


def with_generate(model: Any) -> Say:
    """`transformers.generate` as it comes, with the log-probabilities of what it sampled."""
    import torch

    def say(prompts: list[list[int]], count: int, seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
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

    return say


def with_vllm(folder: str) -> Say:
    """vLLM for CPU."""
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    llm = LLM(folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=1024)

    def say(prompts: list[list[int]], count: int, seed: int) -> list[list[int]]:
        params = SamplingParams(temperature=1.0, max_tokens=count, ignore_eos=True, logprobs=0, detokenize=False)
        made = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in made]

    return say


def limit(model: Any) -> float:
    """Tokens per CPU second if nothing but the products with the weights cost anything, at their best."""
    import torch

    from rove.models.linear import linear

    weights = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    best = float("inf")
    with torch.inference_mode():
        inputs = [torch.randn(256, weight.shape[1], dtype=weight.dtype) for weight in weights]
        for _ in range(40):  # the best of many: this is the machine's limit, whoever else uses it now
            started = time.process_time()
            for x, weight in zip(inputs, weights, strict=True):
                linear(x, weight)
            best = min(best, time.process_time() - started)
    return 256 / best


def memory(dtype: str, name: str | None = None) -> None:
    """What "32x8" needs in a process that does nothing else, played four times."""
    import torch

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    torch.set_num_threads(1)
    model = new_model(dtype, name)
    say, before = with_rove(model), peak()
    for seed in range(4):
        play("32x8", say, seed)
    config = model.config
    weights = sum(p.nbytes for p in model.parameters()) / MIB
    position = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
    cache = 256 * (PROMPT + NEW) * position / MIB
    print(
        f"{dtype}: peak {peak():.0f} MiB, of which {before:.0f} before the first token (Python, PyTorch, transformers, weights); "
        f"weights {weights:.0f}, keys and values of 256 sequences {cache:.0f} by arithmetic"
    )


def child(folder: str, case: str, rounds: int) -> None:
    """Measure vLLM here; its workers are processes of their own, so the parent counts what this one and they used."""
    say = with_vllm(folder)
    play(case, say, 99)
    rates = []
    for seed in range(rounds):
        started = time.perf_counter()
        tokens, _ = play(case, say, seed)
        rates.append(tokens / (time.perf_counter() - started))
    (Path(folder) / RESULT).write_text(json.dumps(statistics.median(rates)))


def llama_rates(file: str, case: str, rounds: int) -> list[float]:
    """New tokens per second of llama.cpp with one thread, prefill included and sampling left out, in this process."""
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
    params.n_ctx, params.n_batch, params.n_ubatch = prompts * copies * (PROMPT + NEW), 2048, 512
    params.n_seq_max, params.n_threads, params.n_threads_batch, params.kv_unified = prompts * copies, 1, 1, True
    context = llama.llama_init_from_model(model, params)
    batch = llama.llama_batch_init(2048, 0, 1)

    def decode(tokens: list[tuple[int, int, int, bool]]) -> None:
        """Decode (token, position, sequence, whether its logits are needed)."""
        for start in range(0, len(tokens), 2048):
            some = tokens[start : start + 2048]
            batch.n_tokens = len(some)
            for place, (token, position, sequence, wanted) in enumerate(some):
                batch.token[place], batch.pos[place], batch.logits[place] = token, position, wanted
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            assert llama.llama_decode(context, batch) == 0

    rng, rates = random.Random(0), []
    for _ in range(rounds + 1):
        memory = llama.llama_get_memory(context)
        llama.llama_memory_clear(memory, True)
        started = time.perf_counter()
        decode(
            [
                (rng.randrange(VOCAB), i, prompt * copies, i == PROMPT - 1)
                for prompt in range(prompts)
                for i in range(PROMPT)
            ]
        )
        for sequence in range(prompts * copies):
            if sequence % copies:  # continuations of a prompt share its keys and values
                llama.llama_memory_seq_cp(memory, sequence // copies * copies, sequence, -1, -1)
        for position in range(PROMPT, PROMPT + NEW - 1):  # the first new token follows from the prompt
            decode([(rng.randrange(VOCAB), position, sequence, True) for sequence in range(prompts * copies)])
        rates.append(NEW * prompts * copies / (time.perf_counter() - started))
    return rates[1:]


def measure_llama(python: str, file: Path, case: str, rounds: int) -> float:
    """New tokens per second of wall time of llama.cpp, in a process of its own."""
    command = [python, __file__, "--child-llama", str(file), case, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"llama.cpp failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_peer(python: str, case: str, rounds: int, name: str | None) -> float:
    """New tokens per second of wall time (its processes cannot be told apart from their start-up)."""
    with tempfile.TemporaryDirectory() as folder:
        new_model("bfloat16", name).save_pretrained(folder)
        command = [python, __file__, "--child", folder, case, str(rounds)]
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        if done.returncode:
            sys.exit(f"the peer failed:\n{done.stderr[-3000:]}")
        return json.loads((Path(folder) / RESULT).read_text())


def compare(case: str, dtype: str, rounds: int, name: str | None) -> None:
    """Measure a case in rounds, and print its line."""
    says = {"generate": with_generate(new_model(dtype, name)), "rove": with_rove(new_model(dtype, name))}
    rates: dict[str, list[float]] = {who: [] for who in says}
    for say in says.values():  # first calls compile, fill caches and warm up
        play(case, say, 99)
    for seed in range(rounds):
        for who, say in says.items():
            tokens, seconds = play(case, say, seed)
            rates[who].append(tokens / seconds)
    theirs, ours = (statistics.median(rates[who]) for who in says)
    ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["rove"], rates["generate"], strict=True))
    most = limit(new_model(dtype, name))
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{case:8}{dtype:10}{theirs:10.0f}{ours:10.0f}{ratio:8.2f}{most:10.0f}{ours / most:8.0%}{rss:10.0f}", flush=True
    )


def main() -> None:
    """Measure in rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="1,32,32x8,turns")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="a model folder or a name of `rove model list`")
    parser.add_argument("--peer", metavar="PYTHON", type=Path)
    parser.add_argument("--llama", metavar="PYTHON", help="of an environment with llama-cpp-python")
    parser.add_argument("--gguf", metavar="FILE", type=Path, nargs="*", default=[], help="models for --llama")
    parser.add_argument("--memory", metavar="DTYPE", help="instead: the memory of 256 sequences in this precision")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--child-llama", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child_llama:
        file, case, rounds = given.child_llama
        print(json.dumps(statistics.median(llama_rates(file, case, int(rounds)))))
        return
    given.model = model_folder(given.model)
    if given.memory:
        return memory(given.memory, given.model)
    if given.child:
        folder, case, rounds = given.child
        child(folder, case, int(rounds))
        return
    import gc

    import torch

    from rove.cli.main import GC_THRESHOLDS

    gc.set_threshold(*GC_THRESHOLDS)  # as the command line does; for both sides
    torch.set_num_threads(1)
    print(
        f"{'case':8}{'precision':10}{'generate':>10}{'rove':>10}{'ratio':>8}{'limit':>10}{'share':>8}{'peak MiB':>10}"
    )
    for case in given.cases.split(","):
        for dtype in given.dtypes.split(","):
            compare(case, dtype, given.rounds, given.model)
        if given.peer:
            rate = measure_peer(str(given.peer), case, given.rounds, given.model)
            print(f"{case:8}vLLM, bf16, per second of wall time: {rate:.0f}")
        for file in given.gguf if given.llama else []:
            rate = measure_llama(given.llama, file, case, given.rounds)
            print(f"{case:8}llama.cpp, {file.name}, per second of wall time: {rate:.0f}", flush=True)


if __name__ == "__main__":
    main()
