"""Rollouts on a Ray cluster of three nodes on this machine: what they cost the run's process, what a node's death does to them.

    python benchmarks/ray_rollouts.py [--rollouts 5000] [--rounds 3] [--nodes 3] [--concurrency 256] [--work 0]

The tool environment `lookup` (two turns, two tools) is played by a function. "here" has the environment in the run's process,
"isolated" in a worker (`--isolated`), "ray" on the cluster (each node a raylet of its own with one CPU, hence one actor);
"per core" is one process for each core, each with its share of the rollouts; with --work a turn of the environment takes so many
milliseconds of CPU. All keep their rollouts in a run folder. Each run
is a process of its own, one after another in every round; printed are medians: CPU seconds per 1,000 rollouts of the run's
process, of everything, and rollouts per second (start-up excluded). The next run kills a node (`kill -9` of its raylet and of
all that this has started) when two fifths of the rollouts are kept, and counts what is in rollouts.jsonl and what was asked. The
last measures single calls: of an actor through Ray, and of a worker on a connection of its own; and how large what they carry is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

import rove as vf
from rove.core.protocols import Request, Response
from rove.remote.loading import Isolation, open_environment
from rove.workers import Worker

CPUS = os.cpu_count() or 1
TICKS = os.sysconf("SC_CLK_TCK")


BUSY = """
import time
import rove as vf

def load_environment(num_examples, work):
    env = vf.load_environment("lookup", num_examples=num_examples)
    plain = env.env_response

    async def busy(messages, state, **kwargs):
        until = time.process_time() + work / 1000
        while time.process_time() < until:
            pass
        return await plain(messages, state, **kwargs)

    env.env_response = busy
    return env
"""


class Model:
    """Looks up, then answers what it was told; counts how often it was asked each question."""

    def __init__(self, concurrency: int):
        self.max_concurrent = concurrency
        self.asked: Counter[int] = Counter()

    async def respond(self, request: Request) -> Response:
        """The next call of a tool."""
        self.asked[request.seed or 0] += 1
        await asyncio.sleep(0)
        last = request.messages[-1]
        name, argument = ("answer", "room") if last["role"] == "tool" else ("lookup", "who")
        function = {"name": name, "arguments": json.dumps({argument: last["content"]})}
        call = {"id": name, "type": "function", "function": function}
        return Response(vf.AssistantMessage(None, tool_calls=[call]), finish_reason="tool_calls")

    async def close(self) -> None:
        """Nothing to free."""


def tree(root: int) -> list[int]:
    """A process and all that it has started, directly or not."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, left = [], [root]
    while left:
        one = left.pop()
        found.append(one)
        left += parents.get(one, [])
    return found


def cpu_of(pids: list[int]) -> float:
    """CPU seconds of processes, those of children that have ended included."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / TICKS


def own_cpu() -> float:
    """Of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cluster_of(nodes: int) -> Any:
    """A cluster of raylets on this machine, and its address."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, object_store_memory=100_000_000, include_dashboard=False)
    return cluster


def raylet_of(cluster: Any, but: str) -> int:
    """The process of a node's raylet, not of the one that the driver is on."""
    node = next(node for node in cluster.list_all_nodes() if node.node_id != but)
    return node.all_processes["raylet"][0].process.pid


def measure(how: str, count: int, concurrency: int, nodes: int, kill: bool, work: float) -> dict[str, Any]:
    """One evaluation, in this process."""
    envs = tempfile.TemporaryDirectory()
    (Path(envs.name) / "busy.py").write_text(BUSY)
    cluster, isolation = None, Isolation(on=how == "isolated")
    if how == "ray":
        cluster = cluster_of(nodes)
        isolation = Isolation(on=True, ray=cluster.address)
    before_opening = time.perf_counter()
    env = open_environment("busy", envs.name, {"num_examples": count, "work": work}, isolation)
    opening = time.perf_counter() - before_opening
    model, done, killed, slept = Model(concurrency), 0, 0.0, 0.0

    def watch(record: Any) -> None:
        nonlocal done, killed, slept
        done += 1
        slept = max(slept, time.perf_counter() - last[0])
        last[0] = time.perf_counter()
        if kill and done == count * 2 // 5:
            import ray

            victims = tree(raylet_of(cluster, ray.get_runtime_context().get_node_id()))
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            killed = float(len(victims))

    with tempfile.TemporaryDirectory() as folder:
        everything = tree(os.getpid())
        cpu, all_cpu, wall = own_cpu(), cpu_of(everything), time.perf_counter()
        last = [wall]
        summary = asyncio.run(vf.evaluate(env, model, "m", run=Path(folder) / "run", on_record=watch))
        wall, cpu = time.perf_counter() - wall, own_cpu() - cpu
        everything += [pid for pid in tree(os.getpid()) if pid not in everything]
        all_cpu = cpu_of(everything) - all_cpu
        keys = Counter((one.example_key, one.rollout_index) for one in vf.Run(Path(folder) / "run").outcomes())
    if cluster is not None:
        import ray

        ray.shutdown()
        cluster.shutdown()
    return {
        "opening": opening,
        "cpu": cpu / count * 1000,
        "all": max(all_cpu, cpu) / count * 1000,
        "wall": wall,
        "scored": summary["scored"],
        "failed": summary["failed"],
        "reward": summary["reward"]["mean"],
        "lines": keys.total(),
        "rollouts": len(keys),
        "most_lines": max(keys.values()),
        "asked": model.asked.total(),
        "most_asked": max(model.asked.values()),
        "killed": killed,
        "longest_wait": slept,
    }


async def cost(call: Any, times: int) -> dict[str, float]:
    """Milliseconds of one call after the other; CPU milliseconds of this process for one of 32 at a time."""
    await call()
    started = time.perf_counter()
    for _ in range(times // 4):
        await call()
    waited = (time.perf_counter() - started) / (times // 4)
    before = own_cpu()
    for _ in range(times // 32):
        await asyncio.gather(*(call() for _ in range(32)))
    return {"ms": 1000 * waited, "cpu_ms": 1000 * (own_cpu() - before) / (times // 32 * 32)}


def calls(count: int, nodes: int) -> dict[str, Any]:
    """Single calls, and bytes that a rollout takes on its connection."""
    cluster = cluster_of(nodes)
    env: Any = open_environment("lookup", None, {"num_examples": count}, Isolation(on=True, ray=cluster.address))
    sizes: Counter[str] = Counter()
    send, take = Worker._send, Worker._take

    async def counted_send(self: Worker, frame: dict[str, Any]) -> None:
        sizes["bytes_to_workers"] += len(msgspec.json.encode(frame)) + 4
        await send(self, frame)

    def counted_take(self: Worker, frame: dict[str, Any]) -> None:
        sizes["bytes_from_workers"] += len(msgspec.json.encode(frame)) + 4
        sizes["frames_from_workers"] += 1
        take(self, frame)

    async def single() -> dict[str, Any]:
        env.sites._begin()
        room = await env.sites.choose({"env_seed": 0})
        site = room.workers.site
        started = time.perf_counter()
        forks = [await room.another() for _ in range(5)]
        fork = 1000 * (time.perf_counter() - started) / len(forks)
        worker = await room.shared()
        ray_call, connection = await cost(lambda: site.call("about"), 640), await cost(lambda: worker.ask("ping"), 6400)
        await env.sites.tear_down()
        return {"ray": ray_call, "connection": connection, "fork_ms": fork}

    found = asyncio.run(single())
    Worker._send, Worker._take = counted_send, counted_take
    asyncio.run(vf.evaluate(env, Model(256), "m"))
    found |= {name: value / count for name, value in sizes.items()}
    found["told_bytes"] = len(msgspec.json.encode(env.told))
    found["row_bytes"] = len(msgspec.json.encode(list(env.examples(100)))) / 100
    import ray

    ray.shutdown()
    cluster.shutdown()
    return found


def apart(how: str, count: int, args: argparse.Namespace, *flags: str) -> subprocess.Popen[str]:
    """The same in a process of its own."""
    words = [sys.executable, __file__, "--only", how, "--rollouts", str(count), "--nodes", str(args.nodes)]
    words += ["--concurrency", str(args.concurrency), "--work", str(args.work), *flags]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it measured."""
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return json.loads(out.splitlines()[-1])


def per_core(args: argparse.Namespace) -> dict[str, Any]:
    """One process for each core, at once."""
    share = args.rollouts // CPUS
    runs = [told(one) for one in [apart("here", share, args) for _ in range(CPUS)]]
    return {
        "cpu": statistics.mean(run["cpu"] for run in runs),
        "all": statistics.mean(run["all"] for run in runs),
        "wall": max(run["wall"] for run in runs),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--work", type=float, default=0.0, help="milliseconds of CPU in a turn of the environment")
    parser.add_argument("--only", help="here, isolated, ray or calls: one run, in this process")
    parser.add_argument("--kill", action="store_true", help="with --only ray: kill a node on the way")
    args = parser.parse_args()
    if args.only == "calls":
        print(json.dumps(calls(min(args.rollouts, 500), args.nodes)))
        return
    if args.only:
        print(json.dumps(measure(args.only, args.rollouts, args.concurrency, args.nodes, args.kill, args.work)))
        return
    found: dict[str, list[dict[str, Any]]] = {how: [] for how in ("here", "isolated", "ray", "per core")}
    for _ in range(args.rounds):
        for how, runs in found.items():
            runs.append(per_core(args) if how == "per core" else told(apart(how, args.rollouts, args)))
    print(f"{args.rollouts} rollouts, {args.nodes} nodes, {CPUS} cores, medians of {args.rounds}:")
    middle = {
        how: {name: statistics.median(run[name] for run in runs) for name in ("cpu", "all", "wall")}
        for how, runs in found.items()
    }
    for how, one in middle.items():
        print(
            f"  {how:9} {one['cpu']:6.2f} CPU-s per 1,000 in the run's process ({one['cpu'] / middle['here']['cpu']:.2f} times), "
            f"{one['all']:6.2f} in all, {args.rollouts / one['wall']:7.1f} rollouts per second"
        )
    last = told(apart("ray", args.rollouts, args, "--kill"))
    print(f"a node killed on the way ({last['killed']:.0f} processes):", json.dumps(last))
    print("single calls:", json.dumps(told(apart("calls", 500, args))))


if __name__ == "__main__":
    main()
