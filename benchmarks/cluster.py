"""Estimate which resource limits a run on up to 1,000 GPUs first, from the costs of single operations on this machine.

    python benchmarks/cluster.py [--gpus 8 64 250 1000] [--rollouts-per-gpu 100] [--json FILE]

A run of this size is computed, not executed. The script measures, in CPU seconds on one core, what the rollout process (the
process that runs the rollouts) needs

- per turn: to render the prompt and run the rollout's code;
- per turn: for the HTTP request, with token ids in both directions, to a server that answers at once;
- per finished rollout: to write its line of rollouts.jsonl;

and what a trained token costs on its way to the trainer processes. The model and the speeds of GPUs, links and disks are
assumed; the script prints the assumptions. A discrete-event simulation then runs all rollouts through a closed loop of queues
(sampling GPUs, rollout process, environments). The script prints the simulated rate next to the rate that the GPUs allow, and
the utilization of each queue, link and disk, highest first.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

TURNS, PROMPT_TOKENS, RESPONSE_TOKENS = 8, 200, 400
"""Turns per rollout, and tokens of the environment and of the model per turn."""


@dataclass(frozen=True)
class Assumptions:
    """Assumed values, which cannot be measured here. The field names are keys of the JSON file."""

    gpus: int = 1000
    rollouts_per_gpu: float = 100
    """Concurrent rollouts per GPU."""
    parameters: float = 8e9
    sampled_per_second: float = 4000
    """Tokens per second of a sampling GPU, over all of its rollouts."""
    trained_per_second: float = 8000
    """Tokens per second of a training GPU: 6 operations per parameter and token at 40% of 1,000 TFLOP/s."""
    gpus_per_node: int = 8
    link: float = 12.5e9
    """Bytes per second into or out of a node: 100 Gbit/s."""
    shared_disk: float = 10e9
    """Bytes per second of the disk that all nodes share."""
    environment_seconds: float = 1.0
    """Mean wall time of an environment's response."""
    away: float = 0.19e-3
    """Additional CPU seconds of the rollout process per turn when environments run on other machines: half of 1.14 − 0.76 ms, the
    difference that `ray_rollouts.py` measures for a rollout of two turns."""
    batch: int = 8192
    """Rollouts per training step."""

    @property
    def samplers(self) -> int:
        """Number of sampling GPUs. The other GPUs train; the division makes both sides equally fast."""
        sampling = TURNS * RESPONSE_TOKENS / self.sampled_per_second
        training = TURNS * (PROMPT_TOKENS + RESPONSE_TOKENS) / self.trained_per_second
        return max(1, round(self.gpus * sampling / (sampling + training)))

    @property
    def rollouts(self) -> int:
        """Number of concurrent rollouts."""
        return round(self.gpus * self.rollouts_per_gpu)

    @property
    def max_rate(self) -> float:
        """Rollouts per second that the GPUs allow."""
        return self.samplers * self.sampled_per_second / (TURNS * RESPONSE_TOKENS)


@dataclass(frozen=True)
class Costs:
    """Measured costs in CPU seconds and bytes. The field names are keys of the JSON file."""

    turn: float
    """CPU seconds of the rollout process per turn, without the HTTP request."""
    request: float
    """CPU seconds of the rollout process for an HTTP request of average length: token ids of the prompt, and token ids and
    log-probabilities of the response."""
    kept: float
    """CPU seconds to write the line of a finished rollout."""
    kept_bytes: float
    """Bytes of the line of a finished rollout."""
    request_bytes: float
    """Bytes of a turn's request and response."""
    sample: float
    """CPU seconds of the rollout process to add a token to a batch."""
    sent: float
    """CPU seconds to serialize a token for the other trainer processes."""
    received: float
    """CPU seconds of each trainer process to deserialize a token."""
    sent_bytes: float
    """Bytes of a serialized token."""


def measure(rounds: int = 3) -> Costs:
    """Measure the costs in several rounds; return the medians."""
    measured = [_measure_once() for _ in range(rounds)]
    return Costs(**{name: statistics.median(asdict(costs)[name] for costs in measured) for name in asdict(measured[0])})


def _measure_once(num_rollouts: int = 24) -> Costs:
    from rove import Run
    from rove.train.sequences import sequences_from_record

    records, rollout_seconds = asyncio.run(_run_rollouts(num_rollouts))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        with run:
            run.start("rl", {}, {})
            write_seconds = _cpu_seconds(lambda: [run.append_rollout(record) for record in records])
            size = (run.path / "rollouts.jsonl").stat().st_size
    sequences: list[Any] = []
    batch_seconds = _cpu_seconds(
        lambda: sequences.extend(sequence for record in records for sequence in sequences_from_record(record, 0.5))
    )
    tokens = sum(len(sequence.ids) for sequence in sequences)
    serialized = b""

    def serialize() -> None:
        nonlocal serialized
        serialized = pickle.dumps(sequences)

    serialize_seconds = _cpu_seconds(serialize)
    deserialize_seconds = _cpu_seconds(lambda: pickle.loads(serialized))
    request, request_bytes = _measure_requests()
    return Costs(
        turn=rollout_seconds / (num_rollouts * TURNS),
        request=request,
        kept=write_seconds / num_rollouts,
        kept_bytes=size / num_rollouts,
        request_bytes=request_bytes,
        sample=batch_seconds / tokens,
        sent=serialize_seconds / tokens,
        received=deserialize_seconds / tokens,
        sent_bytes=len(serialized) / tokens,
    )


def _cpu_seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


async def _run_rollouts(num_rollouts: int) -> tuple[list[Any], float]:
    """Run rollouts with a model that answers at once; return their records, with token ids, and the CPU seconds."""
    import rove
    from rove import SamplingParams
    from rove.core.protocols import Generation
    from rove.engine.client import EngineClient
    from rove.models.from_scratch import new_model
    from rove.rollouts.groups import run_groups
    from rove.rollouts.runner import plan

    words = "the quick brown fox jumps over a lazy dog while seven wizards mix potions in old jars".split()
    loaded = new_model([" ".join(words)] * 20)
    loaded.model.config.max_position_embeddings = 16384
    text = " ".join(random.Random(0).choices(words, k=4 * RESPONSE_TOKENS))
    ids = loaded.tokenizer.encode(text, add_special_tokens=False)
    question = loaded.tokenizer.decode(ids[: PROMPT_TOKENS - 10])
    response = [*ids[: RESPONSE_TOKENS - 1], loaded.tokenizer.eos_token_id]

    class Env(rove.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
            return question

    class InstantEngine:
        """An engine that returns the same response at once."""

        policy_version = 0
        max_batch = num_rollouts
        context = 16384
        adapters: tuple[str, ...] = ()

        async def generate(self, *args: Any, **kwargs: Any) -> Generation:
            return Generation(list(response), [-0.123456789] * RESPONSE_TOKENS, "stop", 0)

        def release(self) -> None:
            pass

    env = Env(dataset=[{"question": question}], rubric=rove.Rubric([lambda completion: 1.0]), max_turns=TURNS)
    # InstantEngine has only the attributes that EngineClient uses.
    client = EngineClient(InstantEngine(), loaded.renderer)  # pyright: ignore[reportArgumentType]
    jobs = plan(env.get_dataset(1), num_rollouts)
    start = time.process_time()
    sampling = SamplingParams(max_tokens=RESPONSE_TOKENS)
    records = [record async for record in run_groups(env, client, jobs, sampling=sampling)]
    seconds = time.process_time() - start
    assert all(record.error is None and len(record.steps) == TURNS for record in records), records[0].error
    return records, seconds


def _measure_requests(count: int = 400) -> tuple[float, float]:
    """Return the CPU seconds and bytes of a request with token ids to a server in another process that answers at once."""
    prompt = [12345] * (TURNS * (PROMPT_TOKENS + RESPONSE_TOKENS) // 2)
    body = {"prompt": prompt, "max_tokens": RESPONSE_TOKENS, "seed": 1, "logprobs": 1}
    tokens = {"token_ids": [12345] * RESPONSE_TOKENS, "logprobs": [-0.123456789] * RESPONSE_TOKENS}
    usage = {"prompt_tokens": 1, "completion_tokens": RESPONSE_TOKENS}
    reply = json.dumps({"choices": [{**tokens, "finish_reason": "stop"}], "usage": usage})
    server = subprocess.Popen([sys.executable, __file__, "--serve", reply], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()

    async def send_all() -> float:
        import aiohttp

        async def loop(session: aiohttp.ClientSession, numbers: Any) -> None:
            for _ in numbers:
                async with session.post(url, data=msgspec.json.encode(body)) as response:
                    msgspec.json.decode(await response.read())

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            numbers = iter(range(count))
            start = time.process_time()
            await asyncio.gather(*(loop(session, numbers) for _ in range(32)))
            return time.process_time() - start

    try:
        seconds = asyncio.run(send_all())
    finally:
        server.kill()
        server.wait()
    return seconds / count, len(msgspec.json.encode(body)) + len(reply)


async def _serve(body: str) -> None:
    """Answer every POST request with `body`, and print the server's URL."""
    from aiohttp import web

    async def respond(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=body, content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
    await asyncio.Event().wait()


def utilization(assumed: Assumptions, costs: Costs, processes: int = 1) -> dict[str, float]:
    """Return the utilization of each queue, link and disk at the rate that the GPUs allow; above 1 it is too slow.

    The keys are labels for the table, and keys of the JSON file.

    Args:
        assumed: The assumptions.
        costs: The measured costs.
        processes: Number of rollout processes, which share the rollouts.
    """
    rate = assumed.max_rate
    tokens = rate * TURNS * (PROMPT_TOKENS + RESPONSE_TOKENS)
    steps = rate / assumed.batch
    trainers = max(1, assumed.gpus - assumed.samplers)
    fp32_bytes, bf16_bytes = 4 * assumed.parameters, 2 * assumed.parameters
    nodes = -(-assumed.samplers // assumed.gpus_per_node)
    return {
        f"playing: {processes} process{'es' * (processes > 1)}, one core each": rate
        * (TURNS * (costs.turn + costs.request + assumed.away) + costs.kept)
        / processes,
        "samples into batches, and into bytes (the first trainer process)": tokens * (costs.sample + costs.sent),
        "samples out of bytes, in every trainer process": tokens * costs.received if trainers > 1 else 0.0,
        "link: answers of the model, into the playing process": rate
        * TURNS
        * costs.request_bytes
        / assumed.link
        / processes,
        "link: samples to the trainers, passed on in a tree": tokens
        * costs.sent_bytes
        * min(2, trainers)
        / assumed.link,
        "link: fp32 weights to the first trainer process": steps * fp32_bytes / assumed.link,
        "link: bf16 weights to the samplers, broadcast": steps * bf16_bytes / assumed.link,
        "disk: bf16 weights read by each sampling node": steps * bf16_bytes * (1 + nodes) / assumed.shared_disk,
        "disk: rollouts.jsonl": rate * costs.kept_bytes / assumed.shared_disk,
    }


def simulate(assumed: Assumptions, costs: Costs, processes: int = 1, seconds: float = 15.0, seed: int = 0) -> float:
    """Simulate the whole loop; return the rollouts per second in the second half of the simulated time.

    A rollout waits for the response of its GPU (all rollouts of a GPU share its speed), then for its rollout process, which
    handles one turn at a time, then for its environment. Sampling and environment times are drawn from exponential
    distributions; the rollout process takes the measured time.

    Args:
        assumed: The assumptions.
        costs: The measured costs.
        processes: Number of rollout processes, which share the rollouts.
        seconds: Simulated seconds per half, in addition to the mean time of a turn.
        seed: Random seed.
    """
    rng = random.Random(seed)
    share = assumed.rollouts / assumed.samplers
    sampling = share * RESPONSE_TOKENS / assumed.sampled_per_second
    serving = costs.turn + costs.request + assumed.away + costs.kept / TURNS
    horizon = 2 * seconds + 2 * (sampling + assumed.environment_seconds)
    free_at = [0.0] * processes
    events = [(rng.random() * (sampling + assumed.environment_seconds), i) for i in range(assumed.rollouts)]
    heapq.heapify(events)
    turns = 0
    while events[0][0] < horizon:
        ready_at, rollout = heapq.heappop(events)
        process = rollout % processes
        free_at[process] = end = max(free_at[process], ready_at) + serving
        turns += horizon / 2 < end <= horizon
        pause = rng.expovariate(1 / sampling) + rng.expovariate(1 / assumed.environment_seconds)
        heapq.heappush(events, (end + pause, rollout))
    return turns / TURNS / (horizon / 2)


def report(gpus: Sequence[int], base: Assumptions, costs: Costs) -> dict[str, Any]:
    """Print the tables; return the same data for the JSON file."""
    print("measured on one core:")
    for name, value in asdict(costs).items():
        unit = "bytes" if name.endswith("bytes") else "µs of CPU"
        print(f"  {name:14} {value * (1 if unit == 'bytes' else 1e6):12,.2f} {unit}")
    print(f"assumed: {asdict(base)}; {TURNS} turns of {PROMPT_TOKENS} + {RESPONSE_TOKENS} tokens")
    results: dict[str, Any] = {"costs": asdict(costs), "assumed": asdict(base), "speeds": []}
    print(f"\n{'GPUs':>6} {'rollouts':>9} {'GPU limit':>11} {'1 rollout process':>21} {'4':>7} {'16':>7}   rollouts/s")
    for count in gpus:
        assumed = replace(base, gpus=count)
        speeds = [simulate(assumed, costs, processes) for processes in (1, 4, 16)]
        results["speeds"].append([count, assumed.rollouts, assumed.max_rate, *speeds])
        print(
            f"{count:6} {assumed.rollouts:9,} {assumed.max_rate:11,.1f} "
            f"{speeds[0]:21,.1f} {speeds[1]:7,.1f} {speeds[2]:7,.1f}"
        )
    assumed = replace(base, gpus=max(gpus))
    print(
        f"\nutilization at the rate that {assumed.gpus:,} GPUs allow ({assumed.samplers} GPUs sample, the others train):"
    )
    results["busy"] = dict(sorted(utilization(assumed, costs).items(), key=lambda item: -item[1]))
    for name, busy in results["busy"].items():
        print(
            f"  {name:66} {100 * busy:8,.1f}%   saturated at {assumed.gpus / busy if busy else float('inf'):12,.0f} GPUs"
        )
    return results


def main() -> None:
    """Measure the costs, run the simulation and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--gpus", type=int, nargs="+", default=[8, 64, 250, 1000], help="numbers of GPUs (default: 8 64 250 1000)"
    )
    parser.add_argument(
        "--rollouts-per-gpu", type=float, default=100, help="concurrent rollouts per GPU (default: %(default)s)"
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", help="JSON file for the figures (default: none)")
    args = parser.parse_args()
    if args.serve:
        asyncio.run(_serve(args.serve))
        return
    results = report(args.gpus, Assumptions(rollouts_per_gpu=args.rollouts_per_gpu), measure())
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
