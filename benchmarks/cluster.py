"""Where a run on 1,000 GPUs would be stuck first, by the costs of single items as they are measured here.

    python benchmarks/cluster.py [--gpus 8 64 250 1000] [--rollouts-per-gpu 100] [--json FILE]

Nothing of that size can be run here, so it is computed. Measured, in CPU seconds on one core: what the process that plays
pays for one turn (rendering, the HTTP request with token ids both ways against a server that answers at once, the rollout
itself), for a finished rollout (its line in rollouts.jsonl), and what a trained token costs on its way to the trainer's
processes. Assumed, and printed: the model, the speed of GPUs, links and disks. A discrete-event simulation then plays the
whole number of rollouts as a closed loop of queues (GPUs that sample, the process that plays, environments) and prints how
fast it goes beside what the GPUs would allow; a table says how busy each queue, link and disk is, the busiest first.
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

TURNS, PROMPT, ANSWER = 8, 200, 400
"""Of a rollout: turns, tokens that the environment adds in each, tokens that the model says in each."""


@dataclass(frozen=True)
class Assumed:
    """What cannot be measured here."""

    gpus: int = 1000
    rollouts_per_gpu: float = 100
    parameters: float = 8e9
    sampled_per_second: float = 4000
    """Tokens of one GPU that samples, all of its rollouts together."""
    trained_per_second: float = 8000
    """Tokens of one GPU that trains: 6 operations a parameter and token at 40 % of 1,000 TFLOP/s."""
    gpus_per_node: int = 8
    link: float = 12.5e9
    """Bytes per second into or out of a node: 100 Gbit/s."""
    shared_disk: float = 10e9
    """Bytes per second of the disk that all nodes see."""
    environment_seconds: float = 1.0
    """Of one answer of an environment, wall time."""
    away: float = 0.19e-3
    """CPU seconds more of the process that plays, a turn, since environments are on other machines: half of 1.14 − 0.76 ms, what
    `ray_rollouts.py` measures for a rollout of two turns."""
    batch: int = 8192
    """Rollouts of a training step."""

    @property
    def samplers(self) -> int:
        """GPUs that sample, the others train: as many as make both sides equally fast."""
        sampling = TURNS * ANSWER / self.sampled_per_second
        training = TURNS * (PROMPT + ANSWER) / self.trained_per_second
        return max(1, round(self.gpus * sampling / (sampling + training)))

    @property
    def rollouts(self) -> int:
        """At once."""
        return round(self.gpus * self.rollouts_per_gpu)

    @property
    def ideal(self) -> float:
        """Rollouts per second that the GPUs allow."""
        return self.samplers * self.sampled_per_second / (TURNS * ANSWER)


@dataclass(frozen=True)
class Costs:
    """Measured, CPU seconds and bytes."""

    turn: float
    """Of the process that plays, without the request over HTTP."""
    request: float
    """Of the same, for a request with its ids and the answer's ids and log-probabilities, of average length."""
    kept: float
    """Of a finished rollout's line."""
    kept_bytes: float
    request_bytes: float
    """Both ways, a turn."""
    sample: float
    """A token on its way into a batch, in the process that plays."""
    sent: float
    """A token made into bytes for the other trainer processes."""
    received: float
    """The same, in each of them."""
    sent_bytes: float


def measure(rounds: int = 3) -> Costs:
    """Medians of several rounds."""
    found = [_measured() for _ in range(rounds)]
    return Costs(**{name: statistics.median(asdict(one)[name] for one in found) for name in asdict(found[0])})


def _measured(rollouts: int = 24) -> Costs:
    from rove.runs.run import Run
    from rove.train.sequences import sequences_from_record

    records, played = asyncio.run(_played(rollouts))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        with run:
            run.start("rl", {}, {})
            kept = _cpu(lambda: [run.append_rollout(record) for record in records])
            size = (run.path / "rollouts.jsonl").stat().st_size
    samples: list[Any] = []
    sampled = _cpu(lambda: samples.extend(one for record in records for one in sequences_from_record(record, 0.5)))
    tokens = sum(len(sample.ids) for sample in samples)
    told = b""

    def send() -> None:
        nonlocal told
        told = pickle.dumps(samples)

    sent = _cpu(send)
    received = _cpu(lambda: pickle.loads(told))
    request, request_bytes = _requests()
    return Costs(
        turn=played / (rollouts * TURNS),
        request=request,
        kept=kept / rollouts,
        kept_bytes=size / rollouts,
        request_bytes=request_bytes,
        sample=sampled / tokens,
        sent=sent / tokens,
        received=received / tokens,
        sent_bytes=len(told) / tokens,
    )


def _cpu(what: Callable[[], object]) -> float:
    before = time.process_time()
    what()
    return time.process_time() - before


async def _played(rollouts: int) -> tuple[list[Any], float]:
    """Token-exact rollouts of a model that answers at once; and the CPU seconds that they took."""
    import rove
    from rove.core.protocols import Generation, SamplingParams
    from rove.engine.client import EngineClient
    from rove.models.from_scratch import new_model
    from rove.rollouts.groups import run_groups
    from rove.rollouts.runner import plan

    words = "the quick brown fox jumps over a lazy dog while seven wizards mix potions in old jars".split()
    loaded = new_model([" ".join(words)] * 20)
    loaded.model.config.max_position_embeddings = 16384
    said = loaded.tokenizer.encode(" ".join(random.Random(0).choices(words, k=4 * ANSWER)), add_special_tokens=False)
    shown = loaded.tokenizer.decode(said[: PROMPT - 10])
    answer = [*said[: ANSWER - 1], loaded.tokenizer.eos_token_id]

    class Env(rove.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
            return shown

    class Instant:
        policy_version = 0
        max_batch = rollouts
        context = 16384
        adapters: tuple[str, ...] = ()

        async def generate(self, *asked: Any, **more: Any) -> Generation:
            return Generation(list(answer), [-0.123456789] * ANSWER, "stop", 0)

        def release(self) -> None:
            pass

    env = Env(dataset=[{"question": shown}], rubric=rove.Rubric([lambda completion: 1.0]), max_turns=TURNS)
    client = EngineClient(Instant(), loaded.renderer)  # pyright: ignore[reportArgumentType]  what of it is asked
    jobs = plan(env.get_dataset(1), rollouts)
    before = time.process_time()
    records = [record async for record in run_groups(env, client, jobs, sampling=SamplingParams(max_tokens=ANSWER))]
    spent = time.process_time() - before
    assert all(record.error is None and len(record.steps) == TURNS for record in records), records[0].error
    return records, spent


def _requests(count: int = 400) -> tuple[float, float]:
    """CPU seconds and bytes of a request with ids both ways, against a server in another process that answers at once."""
    body = {"prompt": [12345] * (TURNS * (PROMPT + ANSWER) // 2), "max_tokens": ANSWER, "seed": 1, "logprobs": 1}
    reply = {"token_ids": [12345] * ANSWER, "logprobs": [-0.123456789] * ANSWER, "finish_reason": "stop"}
    answer = json.dumps({"choices": [reply], "usage": {"prompt_tokens": 1, "completion_tokens": ANSWER}})
    server = subprocess.Popen([sys.executable, __file__, "--serve", answer], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()

    async def ask() -> float:
        import aiohttp

        async def loop(session: aiohttp.ClientSession, numbers: Any) -> None:
            for _ in numbers:
                async with session.post(url, data=msgspec.json.encode(body)) as got:
                    msgspec.json.decode(await got.read())

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            numbers = iter(range(count))
            before = time.process_time()
            await asyncio.gather(*(loop(session, numbers) for _ in range(32)))
            return time.process_time() - before

    try:
        spent = asyncio.run(ask())
    finally:
        server.kill()
        server.wait()
    return spent / count, len(msgspec.json.encode(body)) + len(answer)


async def _serve(answer: str) -> None:
    from aiohttp import web

    async def reply(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=answer, content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/", reply)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
    await asyncio.Event().wait()


def loads(assumed: Assumed, costs: Costs, players: int = 1) -> dict[str, float]:
    """How busy each queue, link and disk is at the speed that the GPUs allow; above 1 it cannot keep pace.

    Args:
        players: processes that play, sharing the rollouts.
    """
    rate = assumed.ideal
    tokens = rate * TURNS * (PROMPT + ANSWER)
    steps = rate / assumed.batch
    trainers = max(1, assumed.gpus - assumed.samplers)
    weights, halves = 4 * assumed.parameters, 2 * assumed.parameters
    nodes = -(-assumed.samplers // assumed.gpus_per_node)
    return {
        f"playing: {players} process{'es' * (players > 1)}, one core each": rate
        * (TURNS * (costs.turn + costs.request + assumed.away) + costs.kept)
        / players,
        "samples into batches, and into bytes (the first trainer process)": tokens * (costs.sample + costs.sent),
        "samples out of bytes, in every trainer process": tokens * costs.received if trainers > 1 else 0.0,
        "link: answers of the model, into the playing process": rate
        * TURNS
        * costs.request_bytes
        / assumed.link
        / players,
        "link: samples to the trainers, passed on in a tree": tokens
        * costs.sent_bytes
        * min(2, trainers)
        / assumed.link,
        "link: fp32 weights to the first trainer process": steps * weights / assumed.link,
        "link: bf16 weights to the samplers, broadcast": steps * halves / assumed.link,
        "disk: bf16 weights read by each sampling node": steps * halves * (1 + nodes) / assumed.shared_disk,
        "disk: rollouts.jsonl": rate * costs.kept_bytes / assumed.shared_disk,
    }


def simulate(assumed: Assumed, costs: Costs, players: int = 1, seconds: float = 15.0, seed: int = 0) -> float:
    """Rollouts per second of the whole loop, the first half of the time left out.

    A rollout waits for its GPU's answer (all rollouts of a GPU share its speed), then for the process that plays, which
    serves one after another, then for its environment. Times of sampling and of environments are drawn from exponential
    distributions; the playing process takes what it was measured to take.
    """
    rng = random.Random(seed)
    share = assumed.rollouts / assumed.samplers
    sampling = share * ANSWER / assumed.sampled_per_second
    serving = costs.turn + costs.request + assumed.away + costs.kept / TURNS
    horizon = 2 * seconds + 2 * (sampling + assumed.environment_seconds)
    free_at = [0.0] * players
    events = [(rng.random() * (sampling + assumed.environment_seconds), i) for i in range(assumed.rollouts)]
    heapq.heapify(events)
    served = 0
    while events[0][0] < horizon:
        now, number = heapq.heappop(events)
        player = number % players
        free_at[player] = done = max(free_at[player], now) + serving
        served += horizon / 2 < done <= horizon
        pause = rng.expovariate(1 / sampling) + rng.expovariate(1 / assumed.environment_seconds)
        heapq.heappush(events, (done + pause, number))
    return served / TURNS / (horizon / 2)


def report(gpus: Sequence[int], base: Assumed, costs: Costs) -> dict[str, Any]:
    """Print the tables; the same as data."""
    print("measured, on one core:")
    for name, value in asdict(costs).items():
        unit = "bytes" if name.endswith("bytes") else "µs of CPU"
        print(f"  {name:14} {value * (1 if unit == 'bytes' else 1e6):12,.2f} {unit}")
    print(f"assumed: {asdict(base)}; {TURNS} turns of {PROMPT} + {ANSWER} tokens")
    found: dict[str, Any] = {"costs": asdict(costs), "assumed": asdict(base), "speeds": []}
    print(
        f"\n{'GPUs':>6} {'rollouts':>9} {'GPUs allow':>11} {'playing in 1 process':>21} {'4':>7} {'16':>7}   rollouts/s"
    )
    for count in gpus:
        assumed = replace(base, gpus=count)
        speeds = [simulate(assumed, costs, players) for players in (1, 4, 16)]
        found["speeds"].append([count, assumed.rollouts, assumed.ideal, *speeds])
        print(
            f"{count:6} {assumed.rollouts:9,} {assumed.ideal:11,.1f} {speeds[0]:21,.1f} {speeds[1]:7,.1f} {speeds[2]:7,.1f}"
        )
    assumed = replace(base, gpus=max(gpus))
    print(f"\nhow busy at the speed that {assumed.gpus:,} GPUs allow ({assumed.samplers} sample, the others train):")
    found["busy"] = dict(sorted(loads(assumed, costs).items(), key=lambda item: -item[1]))
    for name, busy in found["busy"].items():
        print(f"  {name:66} {100 * busy:8,.1f} %   full at {assumed.gpus / busy if busy else float('inf'):12,.0f} GPUs")
    return found


def main() -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 250, 1000])
    parser.add_argument("--rollouts-per-gpu", type=float, default=100)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="File for the figures.")
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(_serve(asked.serve))
        return
    found = report(asked.gpus, Assumed(rollouts_per_gpu=asked.rollouts_per_gpu), measure())
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
