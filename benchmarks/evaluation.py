"""What an evaluation costs: rove and its peers against a bare aiohttp loop, CPU seconds of the client.

    python benchmarks/evaluation.py [--rollouts 2000] [--concurrency 256] [--latency 0] [--turns 1] [--rounds 5]
                                    [--peer verifiers=/path/to/venv/bin/python --peer inspect=/path/to/venv/bin/python]
                                    [--tools]

Every harness sends the same requests (a prompt of 100 words, an answer of 60) to the same mock server, each in a process of
its own, one after another in every round, so that a noisy neighbour hurts them alike. Rove and the peers score every answer
by exact match and save every rollout; the loop called "raw" encodes, sends, receives and decodes, and is the floor. Printed
are medians over the rounds: CPU seconds (user + system) per 1,000 rollouts, start-up excluded, and their ratio to raw.
With --tools and several turns "tools" is a ToolEnv in which every answer but the last calls a trivial tool, "inline" the same
with the tool on the event loop; the last line compares them with rove's MultiTurnEnv.
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
    """Examples that differ by a number."""
    return [{"question": f"{i} {PROMPT}", "answer": REPLY} for i in range(count)]


async def raw(url: str, count: int, concurrency: int, turns: int, folder: str) -> int:
    """The floor: one session, `concurrency` loops, JSON both ways, nothing scored or kept."""
    import aiohttp
    import msgspec

    numbers = iter(range(count))
    right = 0

    async def loop(session: aiohttp.ClientSession) -> None:
        nonlocal right
        for i in numbers:
            messages = [{"role": "user", "content": f"{i} {PROMPT}"}]
            for _ in range(turns):
                body = msgspec.json.encode({"model": "mock", "messages": messages, "temperature": 1.0})
                async with session.post(f"{url}/chat/completions", data=body) as reply:
                    answer = msgspec.json.decode(await reply.read())
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
            right += messages[-2]["content"] == REPLY

    headers = {"Content-Type": "application/json", "Authorization": "Bearer EMPTY"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
        await asyncio.gather(*(loop(session) for _ in range(concurrency)))
    return right


async def rove(url: str, count: int, concurrency: int, turns: int, folder: str) -> int:
    """Rove's public function, every rollout kept in a run folder."""
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
    from rove.runs.run import Run

    run = Run(f"{folder}/run")
    run.start("eval", {}, {})
    summary = await rove.evaluate(
        env, client, "mock", sampling_args={"temperature": 1.0}, max_concurrent=concurrency, run=run
    )
    await client.close()
    return round(summary["reward"]["mean"] * summary["scored"])


async def tools(url: str, count: int, concurrency: int, turns: int, folder: str, **options: Any) -> int:
    """Rove's ToolEnv: as many requests as `rove` sends, a tool's result between them instead of "Go on."."""
    import rove

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def correct(completion: list[dict[str, Any]], answer: str) -> float:
        results = [message["content"] for message in completion if message["role"] == "tool"]
        return float(completion[-1]["content"] == answer and results == ["3"] * (turns - 1))

    env = rove.ToolEnv(tools=[add], dataset=rows(count), rubric=rove.Rubric([correct]), max_turns=turns, **options)
    client = rove.OpenAIClient(f"{url}/tools/{turns}", "EMPTY", max_concurrent=concurrency)
    from rove.runs.run import Run

    run = Run(f"{folder}/run")
    run.start("eval", {}, {})
    summary = await rove.evaluate(
        env, client, "mock", sampling_args={"temperature": 1.0}, max_concurrent=concurrency, run=run
    )
    await client.close()
    return round(summary["reward"]["mean"] * summary["scored"])


async def inline(url: str, count: int, concurrency: int, turns: int, folder: str) -> int:
    """The same without threads."""
    return await tools(url, count, concurrency, turns, folder, max_threads=0)


async def verifiers(url: str, count: int, concurrency: int, turns: int, folder: str) -> int:
    """verifiers v0 (0.3.1)."""
    import verifiers as vf
    from datasets import Dataset

    def correct(completion: Any, answer: str) -> float:
        return float(completion[-1]["content"] == answer)

    class Chat(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return [{"role": "user", "content": "Go on."}]

    rubric = vf.Rubric(funcs=[correct])
    data = Dataset.from_list(rows(count))
    kind, more = (vf.SingleTurnEnv, {}) if turns == 1 else (Chat, {"max_turns": turns})
    env = kind(dataset=data, eval_dataset=data, rubric=rubric, **more)
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
    """inspect-ai: generate and match."""
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
    """Run one harness in this process and print what it cost; a small run first takes imports and caches out of it."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(HARNESSES[name](url, 10, 10, turns, f"{folder}/warm"))
        cpu, wall = spent(), time.perf_counter()
        right = asyncio.run(HARNESSES[name](url, count, concurrency, turns, f"{folder}/real"))
        cost = {"cpu": spent() - cpu, "wall": time.perf_counter() - wall}
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**cost, "rss": rss, "right": right}))


def measure(
    name: str, python: str, url: str, count: int, concurrency: int, turns: int, count_of: dict[str, int]
) -> dict[str, float]:
    """One harness in a process of its own."""
    size = count_of.get(name, count)
    command = [python, __file__, "--child", name, url, str(size), str(concurrency), str(turns)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    if told["right"] != size:
        sys.exit(f"{name}: {told['right']} of {size} answers were right; the comparison would mean nothing")
    return {**told, "cpu": told["cpu"] / size * 1000, "rate": size / told["wall"]}


def main() -> None:
    """Measure in rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--peer-rollouts", type=int, default=500, help="for the slow peers")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help=f"one of {list(PEERS)}")
    parser.add_argument("--tools", action="store_true", help="a ToolEnv, too")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        name, url, *numbers = given.child
        child(name, url, *map(int, numbers))
        return
    ours = ["raw", "rove", *(["tools", "inline"] if given.tools else [])]
    pythons = {**dict.fromkeys(ours, sys.executable), **dict(peer.split("=", 1) for peer in given.peer)}
    sizes = dict.fromkeys(PEERS, given.peer_rollouts)
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
    with mock_server(given.latency) as url:
        for _ in range(given.rounds):
            for name, python in pythons.items():
                seen[name].append(measure(name, python, url, given.rollouts, given.concurrency, given.turns, sizes))
    print(
        f"{given.rollouts} rollouts, {given.turns} turns, concurrency {given.concurrency}, latency {given.latency:g} s, ",
        end="",
    )
    print(f"median of {given.rounds} interleaved rounds")
    floor = statistics.median(round["cpu"] for round in seen["raw"])
    print(f"{'':12}{'CPU-s / 1,000':>15}{'× raw':>9}{'rollouts / s':>15}{'peak MiB':>11}")
    for name, rounds in seen.items():
        cpu, rate, rss = (statistics.median(round[key] for round in rounds) for key in ("cpu", "rate", "rss"))
        print(f"{name:12}{cpu:15.3f}{cpu / floor:9.2f}{rate:15.0f}{rss:11.0f}")
    if given.tools:
        for name in ("tools", "inline"):
            ratio = statistics.median(a["cpu"] / b["cpu"] for a, b in zip(seen[name], seen["rove"], strict=True))
            print(f"{name} / rove: {ratio:.2f} ×")


if __name__ == "__main__":
    main()
