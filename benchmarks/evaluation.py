"""Compare the client's CPU time of an evaluation by rove and other libraries ("peers") with a minimal aiohttp loop.

    python benchmarks/evaluation.py [--rollouts 2000] [--concurrency 256] [--latency 0] [--turns 1] [--rounds 5]
                                    [--peer verifiers=/path/to/venv/bin/python --peer inspect=/path/to/venv/bin/python]
                                    [--tools]

Every harness sends the same requests (prompts of 100 words, responses of 60 words) to the same mock server. Each harness runs
in a separate process. Each round runs all harnesses one after another, so that other load on the machine affects all of them.
rove and the peers score every response by exact match and save every rollout. The minimal loop, "raw", only encodes, sends,
receives and decodes; it is the lower bound. The script prints medians over the rounds: CPU seconds (user + system) per 1,000
rollouts without start-up, and their ratio to "raw".

With --tools and several turns, "tools" is a ToolEnv in which every response except the last calls a trivial tool; "inline" is
the same environment with the tool on the event loop. The last lines compare both with rove's MultiTurnEnv.
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
from typing import Any

from mock_server import REPLY, WORDS, mock_server

PROMPT = " ".join(WORDS[i % len(WORDS)] for i in range(100))


def rows(count: int) -> list[dict[str, str]]:
    """Return `count` examples, which differ by a number in the prompt."""
    return [{"question": f"{i} {PROMPT}", "answer": REPLY} for i in range(count)]


async def raw(url: str, count: int, concurrency: int, turns: int, folder: str) -> int:
    """Send the requests with one aiohttp session and `concurrency` loops, without scores or a run folder; the lower bound.

    Return the number of correct responses.
    """
    import aiohttp
    import msgspec

    numbers = iter(range(count))
    num_correct = 0

    async def loop(session: aiohttp.ClientSession) -> None:
        nonlocal num_correct
        for i in numbers:
            messages = [{"role": "user", "content": f"{i} {PROMPT}"}]
            for _ in range(turns):
                body = msgspec.json.encode({"model": "mock", "messages": messages, "temperature": 1.0})
                async with session.post(f"{url}/chat/completions", data=body) as response:
                    reply = msgspec.json.decode(await response.read())
                messages += [reply["choices"][0]["message"], {"role": "user", "content": "Go on."}]
            num_correct += messages[-2]["content"] == REPLY

    headers = {"Content-Type": "application/json", "Authorization": "Bearer EMPTY"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
        await asyncio.gather(*(loop(session) for _ in range(concurrency)))
    return num_correct


async def rove(url: str, count: int, concurrency: int, turns: int, folder: str) -> int:
    """Evaluate with `rove.evaluate` and save every rollout in a run folder; return the number of correct responses."""
    import rove

    def correct(completion: list[dict[str, Any]], answer: str) -> float:
        return float(completion[-1]["content"] == answer)

    class Chat(rove.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
            return "Go on." if len(state["trajectory"]) < turns else ""

    rubric = rove.Rubric([correct])
    env = (
        rove.SingleTurnEnv(dataset=rows(count), rubric=rubric)
        if turns == 1
        else Chat(dataset=rows(count), rubric=rubric, max_turns=turns)
    )
    client = rove.OpenAIClient(url, "EMPTY", max_concurrent=concurrency)
    from rove import Run

    run = Run(f"{folder}/run")
    run.start("eval", {}, {})
    summary = await rove.evaluate(
        env, client, "mock", sampling_args={"temperature": 1.0}, max_concurrent=concurrency, run=run
    )
    await client.close()
    return round(summary.reward.mean * summary.scored)


async def tools(url: str, count: int, concurrency: int, turns: int, folder: str, **options: Any) -> int:
    """Evaluate a rove ToolEnv with as many requests as `rove` sends; the turns between them are results of a tool."""
    import rove

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def correct(completion: list[dict[str, Any]], answer: str) -> float:
        results = [message["content"] for message in completion if message["role"] == "tool"]
        return float(completion[-1]["content"] == answer and results == ["3"] * (turns - 1))

    env = rove.ToolEnv(tools=[add], dataset=rows(count), rubric=rove.Rubric([correct]), max_turns=turns, **options)
    client = rove.OpenAIClient(f"{url}/tools/{turns}", "EMPTY", max_concurrent=concurrency)
    from rove import Run

    run = Run(f"{folder}/run")
    run.start("eval", {}, {})
    summary = await rove.evaluate(
        env, client, "mock", sampling_args={"temperature": 1.0}, max_concurrent=concurrency, run=run
    )
    await client.close()
    return round(summary.reward.mean * summary.scored)


async def inline(url: str, count: int, concurrency: int, turns: int, folder: str) -> int:
    """Run `tools` with the tool on the event loop instead of in threads."""
    return await tools(url, count, concurrency, turns, folder, max_threads=0)


async def verifiers(url: str, count: int, concurrency: int, turns: int, folder: str) -> int:
    """Evaluate with verifiers v0 (0.3.1)."""
    import verifiers as vf
    from datasets import Dataset

    def correct(completion: Any, answer: str) -> float:
        return float(completion[-1]["content"] == answer)

    class Chat(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return [{"role": "user", "content": "Go on."}]

    rubric = vf.Rubric(funcs=[correct])
    data = Dataset.from_list(rows(count))
    kind, options = (vf.SingleTurnEnv, {}) if turns == 1 else (Chat, {"max_turns": turns})
    env = kind(dataset=data, eval_dataset=data, rubric=rubric, **options)
    os.environ["OPENAI_API_KEY"] = "EMPTY"
    config = vf.ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=url)
    results = await env.evaluate(
        config,
        "mock",
        sampling_args={"temperature": 1.0},
        num_examples=count,
        rollouts_per_example=1,
        max_concurrent=concurrency,
        save_results=True,
        results_path=__import__("pathlib").Path(folder) / "results",
    )
    return round(sum(output["reward"] for output in results["outputs"]))


async def inspect(url: str, count: int, concurrency: int, turns: int, folder: str) -> int:
    """Evaluate with inspect-ai: the solver `generate` and the scorer `exact`."""
    os.environ["INSPECT_DISPLAY"] = "none"
    from inspect_ai import Task, eval_async
    from inspect_ai.dataset import Sample
    from inspect_ai.model import get_model
    from inspect_ai.scorer import exact
    from inspect_ai.solver import generate

    task = Task(
        dataset=[Sample(input=row["question"], target=row["answer"]) for row in rows(count)],
        solver=generate(),
        scorer=exact(),
    )
    model = get_model("openai-api/mock/mock", base_url=url, api_key="EMPTY")
    logs = await eval_async(task, model=model, max_connections=concurrency, max_samples=concurrency, log_dir=folder)
    assert logs[0].results is not None, logs[0].error
    metrics = logs[0].results.scores[0].metrics
    return round(metrics["accuracy" if "accuracy" in metrics else "mean"].value * count)


PEERS = {"verifiers": verifiers, "inspect": inspect}
HARNESSES = {"raw": raw, "rove": rove, "tools": tools, "inline": inline, **PEERS}


def child(name: str, url: str, count: int, concurrency: int, turns: int) -> None:
    """Run one harness in this process and print its CPU seconds, wall seconds and peak memory (MiB) as JSON.

    A small run before the measurement excludes imports and the filling of caches.
    """

    def cpu_seconds() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(HARNESSES[name](url, 10, 10, turns, f"{folder}/warm"))
        cpu, wall = cpu_seconds(), time.perf_counter()
        num_correct = asyncio.run(HARNESSES[name](url, count, concurrency, turns, f"{folder}/real"))
        cost = {"cpu": cpu_seconds() - cpu, "wall": time.perf_counter() - wall}
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**cost, "rss": rss, "right": num_correct}))


def measure(
    name: str, python: str, url: str, count: int, concurrency: int, turns: int, counts: dict[str, int]
) -> dict[str, float]:
    """Run one harness in a separate process and return its costs: CPU seconds per 1,000 rollouts, rollouts per second, MiB."""
    size = counts.get(name, count)
    command = [python, __file__, "--child", name, url, str(size), str(concurrency), str(turns)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    if result["right"] != size:
        sys.exit(f"{name}: {result['right']} of {size} responses were correct; expected all")
    return {**result, "cpu": result["cpu"] / size * 1000, "rate": size / result["wall"]}


def main() -> None:
    """Measure all harnesses in interleaved rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--peer-rollouts", type=int, default=500, help="rollouts of each peer (default: 500)")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    peers = f"peer (one of {list(PEERS)}) and its Python interpreter"
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help=peers)
    parser.add_argument("--tools", action="store_true", help="also measure a ToolEnv")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, url, *numbers = args.child
        child(name, url, *map(int, numbers))
        return
    builtin = ["raw", "rove", *(["tools", "inline"] if args.tools else [])]
    pythons = {**dict.fromkeys(builtin, sys.executable), **dict(peer.split("=", 1) for peer in args.peer)}
    sizes = dict.fromkeys(PEERS, args.peer_rollouts)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
    with mock_server(args.latency) as url:
        for _ in range(args.rounds):
            for name, python in pythons.items():
                measured[name].append(measure(name, python, url, args.rollouts, args.concurrency, args.turns, sizes))
    print(
        f"{args.rollouts} rollouts, {args.turns} turns, concurrency {args.concurrency}, latency {args.latency:g} s, ",
        end="",
    )
    print(f"median of {args.rounds} interleaved rounds")
    floor = statistics.median(round["cpu"] for round in measured["raw"])
    print(f"{'':12}{'CPU-s / 1,000':>15}{'× raw':>9}{'rollouts / s':>15}{'peak MiB':>11}")
    for name, rounds in measured.items():
        cpu, rate, rss = (statistics.median(round[key] for round in rounds) for key in ("cpu", "rate", "rss"))
        print(f"{name:12}{cpu:15.3f}{cpu / floor:9.2f}{rate:15.0f}{rss:11.0f}")
    if args.tools:
        for name in ("tools", "inline"):
            ratio = statistics.median(
                a["cpu"] / b["cpu"] for a, b in zip(measured[name], measured["rove"], strict=True)
            )
            print(f"{name} / rove: {ratio:.2f} ×")


if __name__ == "__main__":
    main()
