"""Check in a few minutes that rove has not become slower: six ratios against code that changes of rove cannot change.

    python benchmarks/smoke.py [--cases NAME ...] [--record]

Each ratio is the CPU time of a reference, divided by rove's CPU time for the same work; higher is better:

- evaluation: single-turn rollouts against the local mock server, scored and saved; reference: a loop of aiohttp requests.
- sampling: greedy decoding of 32 prompts of 150 tokens by 32 tokens each; reference: `transformers.generate`.
- RL step: an update on 2 groups of 8 given rollouts with CISPO's loss; reference: plain PyTorch, below.
- SFT step: an update on 8 sequences of 256 tokens; reference: plain PyTorch, below.
- viewer: the first page of a run's rollouts, without an index; reference: decode every line of the file with msgspec.
- import: `import rove` in a new interpreter; reference: `import aiohttp`.

The model is the Llama with 4.2 M random parameters of generation.py, in fp32 on one thread. Both sides of a case run in
separate processes that take turns, so that other load on the machine affects both, and must return equal results. A ratio is
the median over the repeats. The references must not change, because the recorded ratios are relative to them.

`smoke.json` contains the recorded ratios, and the commit, the machine, and the libraries that they were measured with. A ratio
fails if it is below 85% of the recorded one in three rounds of three; only failing cases are measured again. `--record`
measures three rounds and replaces the recorded ratios by the medians. Ratios depend on the processor: before you compare a
change on another machine, record the ratios there without the change.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.metadata
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import evaluation
from generation import VOCAB_SIZE, cpu_seconds, load_rove, load_transformers, new_model, new_prompts
from mock_server import mock_server
from training import MICRO_BATCH_TOKENS
from viewer import write_run

RECORDED = Path(__file__).with_name("smoke.json")
BAR = 0.85
"""Smallest share of the recorded ratio that passes."""
ROUNDS = 3
WARM_UPS = 1
LIBRARIES = ("aiohttp", "msgspec", "torch", "transformers")
NUM_ROLLOUTS, CONCURRENCY = 1000, 64
NUM_NEW_TOKENS = 32
NUM_GROUPS, GROUP_SIZE, PROMPT_TOKENS, RESPONSE_TOKENS = 2, 8, 150, 64
SFT_ROWS, SFT_TOKENS = 8, 256
LEARNING_RATE, BETAS, MAX_GRAD_NORM, MAX_RATIO = 1e-4, (0.9, 0.95), 1.0, 5.0
VIEWED_ROLLOUTS, PAGE_ROWS = 4000, 50
IMPORTS = 3
"""Interpreters per repeat."""

Repeat = Callable[[int], float]
"""Do the work of a case once, with the inputs of this number, and return a result by which both sides are compared."""


class Case(NamedTuple):
    """Two sides, each a function that prepares a `Repeat` in its own process, and the number of repeats per round.

    A side receives the address of the mock server and a folder of its own.
    """

    rove: Callable[[str, Path], Repeat]
    reference: Callable[[str, Path], Repeat]
    repeats: int


def evaluation_side(harness: Callable[..., Any]) -> Callable[[str, Path], Repeat]:
    """Return a side that runs a harness of evaluation.py; its result is the number of correct responses."""

    def prepare(url: str, folder: Path) -> Repeat:
        return lambda i: asyncio.run(harness(url, NUM_ROLLOUTS, CONCURRENCY, 1, str(folder / str(i))))

    return prepare


def sampling_side(load: Callable[..., Any]) -> Callable[[str, Path], Repeat]:
    """Return a side that samples with a program of generation.py; its result is the number of new tokens."""

    def prepare(url: str, folder: Path) -> Repeat:
        generate = load(new_model("float32"), temperature=0.0)
        return lambda i: sum(map(len, generate(new_prompts("32", seed=i), NUM_NEW_TOKENS, i)))

    return prepare


def random_rows(count: int, length: int, seed: int) -> list[list[int]]:
    """Return rows of random token ids."""
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for _ in range(count)]


class TrainingRows(NamedTuple):
    """Sequences of equal length, the number of tokens at their start that are not trained, and an advantage for each."""

    ids: list[list[int]]
    prompt_tokens: int
    advantages: list[float]


SAMPLER_LOGPROB = -math.log(VOCAB_SIZE)
"""Log-probability of all tokens when they were sampled; close to those of the new model."""


def rl_rows(seed: int) -> TrainingRows:
    """Return groups of rollouts that share their prompt; half of each group has a reward of 1."""
    prompts = random_rows(NUM_GROUPS, PROMPT_TOKENS, seed)
    responses = random_rows(NUM_GROUPS * GROUP_SIZE, RESPONSE_TOKENS, seed + 1000)
    ids = [prompts[i // GROUP_SIZE] + response for i, response in enumerate(responses)]
    return TrainingRows(ids, PROMPT_TOKENS, [0.5 if i % 2 else -0.5 for i in range(len(ids))])


def sft_rows(seed: int) -> TrainingRows:
    """Return sequences in which every token but the first is trained, because nothing predicts the first one."""
    return TrainingRows(random_rows(SFT_ROWS, SFT_TOKENS, seed), 1, [1.0] * SFT_ROWS)


def rove_training(rows_of: Callable[[int], TrainingRows], loss_name: str) -> Callable[[str, Path], Repeat]:
    """Return a side that takes optimizer steps with rove; its result is the mean loss per token."""

    def prepare(url: str, folder: Path) -> Repeat:
        from rove.models.linear import use_fast_linear
        from rove.models.load import prepare as prepare_model
        from rove.train.batch import can_pack, count_trained_tokens, micro_batches
        from rove.train.losses import cispo, cross_entropy
        from rove.train.sequences import TrainingSequence
        from rove.train.trainer import Trainer

        class NoTokenizer:
            eos_token_id = bos_token_id = None

        model = prepare_model(new_model("float32"), NoTokenizer()).model
        use_fast_linear(model, False, False)
        trainer = Trainer(model, LEARNING_RATE, MAX_GRAD_NORM)
        loss = cispo(MAX_RATIO) if loss_name == "cispo" else cross_entropy

        def step(i: int) -> float:
            rows = rows_of(i)
            sequences = []
            for ids, advantage in zip(rows.ids, rows.advantages, strict=True):
                mask = [False] * rows.prompt_tokens + [True] * (len(ids) - rows.prompt_tokens)
                logprobs, advantages = [SAMPLER_LOGPROB * m for m in mask], [advantage * m for m in mask]
                sequences.append(TrainingSequence(ids, mask, logprobs, advantages))
            batches = micro_batches(sequences, MICRO_BATCH_TOKENS["full"], pack=can_pack(model))
            return trainer.step(batches, loss, count_trained_tokens(sequences))["loss"]

        return step

    return prepare


def plain_training(rows_of: Callable[[int], TrainingRows], loss_name: str) -> Callable[[str, Path], Repeat]:
    """Return a side that takes the same steps in plain PyTorch; its result is the mean loss per token."""

    def prepare(url: str, folder: Path) -> Repeat:
        import torch

        model = new_model("float32")
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0, fused=True)

        def step(i: int) -> float:
            rows = rows_of(i)
            ids = torch.tensor(rows.ids)
            logits = model(input_ids=ids, use_cache=False).logits[:, rows.prompt_tokens - 1 : -1]
            targets = ids[:, rows.prompt_tokens :, None]
            logprobs = logits.log_softmax(2).gather(2, targets)[:, :, 0]
            loss = -torch.tensor(rows.advantages)[:, None] * logprobs
            if loss_name == "cispo":
                ratio = (logprobs - SAMPLER_LOGPROB).exp().detach()
                loss = ratio.clamp(max=MAX_RATIO) * loss
            mean = loss.mean()
            optimizer.zero_grad()
            mean.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            return mean.item()

        return step

    return prepare


def rove_page(url: str, folder: Path) -> Repeat:
    """Index a run and list its first rollouts as `rove view` does; the result is the sum of their rewards."""
    import msgspec

    from rove.viewer.api import ENDPOINTS, QueryParams
    from rove.viewer.run_store import RunStore

    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    write_run(folder / "run", VIEWED_ROLLOUTS)
    store = RunStore(folder)

    def page(i: int) -> float:
        # A copy of the run has no index yet.
        copy = folder / f"run-{i}"
        copy.mkdir()
        for file in (folder / "run").iterdir():
            os.link(file, copy / file.name)
        query = QueryParams([("run", copy.name), ("limit", str(PAGE_ROWS))])
        while not (answer := ENDPOINTS["rollouts"](store, query))["progress"]["done"]:
            pass
        msgspec.json.encode(answer)
        return sum(row["reward"] for row in answer["rows"])

    return page


def plain_page(url: str, folder: Path) -> Repeat:
    """Decode all lines of a run and encode the first; the result is the sum of their rewards."""
    import msgspec

    write_run(folder / "run", VIEWED_ROLLOUTS)

    def page(i: int) -> float:
        rows = []
        with (folder / "run" / "rollouts.jsonl").open("rb") as file:
            for line in file:
                row = msgspec.json.decode(line)
                if len(rows) < PAGE_ROWS:
                    rows.append(row)
        msgspec.json.encode(rows)
        return sum(row["record"]["scores"]["reward"] for row in rows)

    return page


def import_side(name: str) -> Callable[[str, Path], Repeat]:
    """Return a side that imports a module in new interpreters; its result is their number."""

    def prepare(url: str, folder: Path) -> Repeat:
        def import_module(i: int) -> float:
            for _ in range(IMPORTS):
                subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
            return IMPORTS

        return import_module

    return prepare


CASES = {
    "evaluation": Case(evaluation_side(evaluation.rove), evaluation_side(evaluation.raw), 5),
    "sampling": Case(sampling_side(load_rove), sampling_side(load_transformers), 5),
    "RL step": Case(rove_training(rl_rows, "cispo"), plain_training(rl_rows, "cispo"), 5),
    "SFT step": Case(rove_training(sft_rows, "cross_entropy"), plain_training(sft_rows, "cross_entropy"), 5),
    "viewer": Case(rove_page, plain_page, 9),
    "import": Case(import_side("rove"), import_side("aiohttp"), 5),
}


def run_side(case: str, side: str, url: str, folder: str) -> None:
    """Do the work of a side once per line on stdin; print its CPU seconds and its result as JSON."""
    if case in ("sampling", "RL step", "SFT step"):
        import torch

        torch.set_num_threads(1)
    if side == "rove":
        from rove.utils.processes import GC_THRESHOLDS

        gc.set_threshold(*GC_THRESHOLDS)  # as rove's command line does
    repeat = getattr(CASES[case], side)(url, Path(folder))
    for i, _ in enumerate(sys.stdin):
        started = cpu_seconds()
        result = repeat(i)
        print(json.dumps([cpu_seconds() - started, result]), flush=True)


class Side:
    """A process that runs `run_side`."""

    def __init__(self, case: str, side: str, url: str, folder: Path):
        (folder / side).mkdir(parents=True)
        self.command = [sys.executable, __file__, "--side", case, side, url, str(folder / side)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def repeat(self) -> tuple[float, float]:
        """Do the work once; return its CPU seconds and its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            sys.exit(f"{' '.join(self.command)} failed:\n{self.process.stderr.read()[-3000:]}")
        seconds, result = json.loads(line)
        return seconds, result

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()


def measure(name: str, url: str) -> float:
    """Return the ratio of a case: the median over the repeats of the reference's CPU time, divided by rove's."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        rove, reference = (Side(name, side, url, Path(folder)) for side in ("rove", "reference"))
        try:
            for i in range(WARM_UPS + CASES[name].repeats):
                # The second of the two may find warmer caches, so they alternate.
                order = (rove, reference) if i % 2 else (reference, rove)
                measured = {side: side.repeat() for side in order}
                (seconds, result), (reference_seconds, expected) = measured[rove], measured[reference]
                if not math.isclose(result, expected, rel_tol=0.01, abs_tol=1e-4):
                    sys.exit(f"{name}: rove returned {result} and the reference {expected} for the same work")
                if i >= WARM_UPS:
                    ratios.append(reference_seconds / seconds)
        finally:
            rove.close()
            reference.close()
    return statistics.median(ratios)


def machine() -> str:
    """Return the processor, the number of cores, and the Python version."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.processor()
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}"


def record(url: str, cases: list[str]) -> None:
    """Measure three rounds and write the medians to the file of recorded ratios; other cases keep theirs."""
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name in cases:
            rounds[name].append(measure(name, url))
            print(f"{name:12}{rounds[name][-1]:8.3f}", flush=True)
    command = ["git", "-C", str(RECORDED.parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    old = json.loads(RECORDED.read_text())["ratios"] if RECORDED.exists() else {}
    ratios = {**old, **{name: round(statistics.median(values), 3) for name, values in rounds.items()}}
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    text = json.dumps({"commit": commit, "machine": machine(), "libraries": libraries, "ratios": ratios}, indent=2)
    RECORDED.write_text(text + "\n")


def check(url: str, cases: list[str]) -> bool:
    """Measure the cases, and failing ones up to three times; print the table and return whether all pass."""
    recorded = json.loads(RECORDED.read_text())
    print(f"recorded at {recorded['commit']} on {recorded['machine']}")
    print(f"measured on {machine()}")
    for name, version in recorded["libraries"].items():
        if importlib.metadata.version(name) != version:
            print(f"{name} {importlib.metadata.version(name)} is installed; the ratios were recorded with {version}")
    print(f"{'':12}{'recorded':>10}{'now':>8}{'bar':>8}", flush=True)
    failing = cases
    for number in range(1, ROUNDS + 1):
        still_failing = []
        for name in failing:
            recorded_ratio, ratio = recorded["ratios"][name], measure(name, url)
            passes = ratio >= BAR * recorded_ratio
            verdict = "" if passes else f"  below {BAR:.0%} of the recorded ratio in round {number}"
            print(f"{name:12}{recorded_ratio:10.3f}{ratio:8.3f}{BAR * recorded_ratio:8.3f}{verdict}", flush=True)
            if not passes:
                still_failing.append(name)
        failing = still_failing
    return not failing


def main() -> None:
    """Check the ratios, or record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="cases (default: all)")
    parser.add_argument("--record", action="store_true", help="replace the recorded ratios")
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return run_side(*args.side)
    with mock_server() as url:
        if args.record:
            return record(url, args.cases)
        if not check(url, args.cases):
            sys.exit(1)


if __name__ == "__main__":
    main()
