"""Measure rollouts on a Ray cluster of three nodes on this machine: the cost to the run's process and the loss of a node.

    python benchmarks/ray_rollouts.py [--rollouts 5000] [--rounds 3] [--nodes 3] [--concurrency 256] [--work 0]

A scripted model runs the tool environment `lookup` (two turns, two tools) in four setups:

- "here": the environment is in the run's process;
- "isolated": the environment is in a worker process (`--isolated`);
- "ray": the environment is on the cluster; each node is a separate raylet with one CPU and therefore one actor;
- "per core": one process per core runs "here", each with an equal share of the rollouts.

With `--work`, each turn of the environment uses the given milliseconds of CPU time. All setups save their rollouts in a run
folder. Each run is a separate process; the runs of a round follow one another. The script prints medians over the rounds: CPU
seconds per 1,000 rollouts of the run's process and of all processes, and rollouts per second (without start-up).

Another run kills a node (`kill -9` of its raylet and of all processes that the raylet has started) when two fifths of the
rollouts are complete; the script then counts the lines of rollouts.jsonl and the model requests. A last process measures single
calls, of an actor through Ray and of a worker through its own connection, and the number of bytes that they carry.
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
from rove import Request, Response
from rove.remote.isolation import Isolation
from rove.remote.loading import open_environment
from rove.workers import Worker

CPU_COUNT = os.cpu_count() or 1
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


BUSY_ENVIRONMENT = """
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


class ScriptedModel:
    """A model that calls the tool `lookup`, then answers with the result; counts the requests of each seed."""

    def __init__(self, concurrency: int):
        self.max_concurrent = concurrency
        self.requests: Counter[int] = Counter()

    async def respond(self, request: Request) -> Response:
        """Return the next tool call."""
        self.requests[request.seed or 0] += 1
        await asyncio.sleep(0)
        last = request.messages[-1]
        name, argument = ("answer", "room") if last["role"] == "tool" else ("lookup", "who")
        function = {"name": name, "arguments": json.dumps({argument: last["content"]})}
        call = {"id": name, "type": "function", "function": function}
        return Response(vf.AssistantMessage(None, tool_calls=[call]), finish_reason="tool_calls")

    async def close(self) -> None:
        """Close the client, which holds no resources."""


def process_tree(root: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    pids, pending = [], [root]
    while pending:
        pid = pending.pop()
        pids.append(pid)
        pending += children.get(pid, [])
    return pids


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU seconds of processes and of their child processes that have ended."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS_PER_SECOND


def own_cpu_seconds() -> float:
    """Return the CPU seconds of this process, without child processes."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def start_cluster(nodes: int) -> Any:
    """Start a Ray cluster on this machine, with one raylet per node, and return it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, object_store_memory=100_000_000, include_dashboard=False)
    return cluster


def raylet_pid(cluster: Any, driver_node: str) -> int:
    """Return the process id of the raylet of a node other than the driver's."""
    node = next(node for node in cluster.list_all_nodes() if node.node_id != driver_node)
    return node.all_processes["raylet"][0].process.pid


def measure(setup: str, count: int, concurrency: int, nodes: int, kill: bool, work: float) -> dict[str, Any]:
    """Run one evaluation in this process and return its figures.

    Args:
        setup: "here", "isolated" or "ray".
        count: Number of rollouts.
        concurrency: Maximum number of concurrent rollouts.
        nodes: Number of nodes of the cluster.
        kill: Whether to kill a node during the evaluation; needs the setup "ray".
        work: CPU milliseconds per turn of the environment.
    """
    env_dir = tempfile.TemporaryDirectory()
    (Path(env_dir.name) / "busy.py").write_text(BUSY_ENVIRONMENT)
    cluster, isolation = None, Isolation(on=setup == "isolated")
    if setup == "ray":
        cluster = start_cluster(nodes)
        isolation = Isolation(on=True, ray=cluster.address)
    before_opening = time.perf_counter()
    env = open_environment("busy", env_dir.name, {"num_examples": count, "work": work}, isolation)
    opening = time.perf_counter() - before_opening
    model, num_records, num_killed, longest_wait = ScriptedModel(concurrency), 0, 0.0, 0.0

    def on_record(record: Any) -> None:
        nonlocal num_records, num_killed, longest_wait
        num_records += 1
        longest_wait = max(longest_wait, time.perf_counter() - last[0])
        last[0] = time.perf_counter()
        if kill and num_records == count * 2 // 5:
            import ray

            pids = process_tree(raylet_pid(cluster, ray.get_runtime_context().get_node_id()))
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            num_killed = float(len(pids))

    with tempfile.TemporaryDirectory() as folder:
        pids = process_tree(os.getpid())
        cpu, all_cpu, wall = own_cpu_seconds(), cpu_seconds(pids), time.perf_counter()
        last = [wall]
        summary = asyncio.run(vf.evaluate(env, model, "m", run=Path(folder) / "run", on_record=on_record))
        wall, cpu = time.perf_counter() - wall, own_cpu_seconds() - cpu
        pids += [pid for pid in process_tree(os.getpid()) if pid not in pids]
        all_cpu = cpu_seconds(pids) - all_cpu
        keys = Counter(
            (outcome.example_key, outcome.rollout_index) for outcome in vf.Run(Path(folder) / "run").outcomes()
        )
    if cluster is not None:
        import ray

        ray.shutdown()
        cluster.shutdown()
    return {
        "opening": opening,
        "cpu": cpu / count * 1000,
        "all": max(all_cpu, cpu) / count * 1000,
        "wall": wall,
        "scored": summary.scored,
        "failed": summary.failed,
        "reward": summary.reward.mean,
        "lines": keys.total(),
        "rollouts": len(keys),
        "max_lines_per_rollout": max(keys.values()),
        "requests": model.requests.total(),
        "max_requests_per_seed": max(model.requests.values()),
        "killed": num_killed,
        "longest_wait": longest_wait,
    }


async def call_cost(call: Any, times: int) -> dict[str, float]:
    """Measure a call.

    Returns:
        "ms", the wall time in milliseconds of one of several successive calls, and "cpu_ms", the CPU milliseconds of this
        process for one of 32 concurrent calls.
    """
    await call()
    started = time.perf_counter()
    for _ in range(times // 4):
        await call()
    seconds = (time.perf_counter() - started) / (times // 4)
    cpu_before = own_cpu_seconds()
    for _ in range(times // 32):
        await asyncio.gather(*(call() for _ in range(32)))
    return {"ms": 1000 * seconds, "cpu_ms": 1000 * (own_cpu_seconds() - cpu_before) / (times // 32 * 32)}


def measure_calls(count: int, nodes: int) -> dict[str, Any]:
    """Measure single calls, and the bytes per rollout on a worker's connection, over `count` rollouts."""
    cluster = start_cluster(nodes)
    env: Any = open_environment("lookup", None, {"num_examples": count}, Isolation(on=True, ray=cluster.address))
    sizes: Counter[str] = Counter()
    send, receive = Worker._send, Worker._receive

    async def counted_send(self: Worker, frame: dict[str, Any]) -> None:
        sizes["bytes_to_workers"] += len(msgspec.json.encode(frame)) + 4
        await send(self, frame)

    def counted_receive(self: Worker, frame: dict[str, Any]) -> None:
        sizes["bytes_from_workers"] += len(msgspec.json.encode(frame)) + 4
        sizes["frames_from_workers"] += 1
        receive(self, frame)

    async def single_calls() -> dict[str, Any]:
        env.pools._ensure_started()
        pool = await env.pools.choose({"env_seed": 0})
        node = pool.workers.node
        started = time.perf_counter()
        forks = [await pool.open_worker() for _ in range(5)]
        fork_ms = 1000 * (time.perf_counter() - started) / len(forks)
        worker = await pool.shared_worker()
        ray_call = await call_cost(lambda: node.call("about"), 640)
        connection = await call_cost(lambda: worker.request("ping"), 6400)
        await env.pools.tear_down()
        return {"ray": ray_call, "connection": connection, "fork_ms": fork_ms}

    results = asyncio.run(single_calls())
    Worker._send, Worker._receive = counted_send, counted_receive
    asyncio.run(vf.evaluate(env, ScriptedModel(256), "m"))
    results |= {name: value / count for name, value in sizes.items()}
    results["description_bytes"] = len(msgspec.json.encode(env.description))
    results["row_bytes"] = len(msgspec.json.encode(list(env.examples(100)))) / 100
    import ray

    ray.shutdown()
    cluster.shutdown()
    return results


def start_process(setup: str, count: int, args: argparse.Namespace, *flags: str) -> subprocess.Popen[str]:
    """Start `measure`, or `measure_calls` for the setup "calls", in a separate process."""
    command = [sys.executable, __file__, "--only", setup, "--rollouts", str(count), "--nodes", str(args.nodes)]
    command += ["--concurrency", str(args.concurrency), "--work", str(args.work), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a process of `start_process` and return its figures."""
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return json.loads(out.splitlines()[-1])


def measure_per_core(args: argparse.Namespace) -> dict[str, Any]:
    """Run one process per core at the same time and return their combined figures."""
    share = args.rollouts // CPU_COUNT
    runs = [result_of(process) for process in [start_process("here", share, args) for _ in range(CPU_COUNT)]]
    return {
        "cpu": statistics.mean(run["cpu"] for run in runs),
        "all": statistics.mean(run["all"] for run in runs),
        "wall": max(run["wall"] for run in runs),
    }


def main() -> None:
    """Measure all setups and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=5000, help="rollouts per run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=3, help="nodes of the Ray cluster (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=256, help="concurrent rollouts (default: %(default)s)")
    parser.add_argument(
        "--work", type=float, default=0.0, help="CPU milliseconds per turn of the environment (default: %(default)s)"
    )
    parser.add_argument("--only", help="run only one of here, isolated, ray and calls, in this process")
    parser.add_argument("--kill", action="store_true", help="with --only ray: kill a node during the run")
    args = parser.parse_args()
    if args.only == "calls":
        print(json.dumps(measure_calls(min(args.rollouts, 500), args.nodes)))
        return
    if args.only:
        print(json.dumps(measure(args.only, args.rollouts, args.concurrency, args.nodes, args.kill, args.work)))
        return
    results: dict[str, list[dict[str, Any]]] = {setup: [] for setup in ("here", "isolated", "ray", "per core")}
    for _ in range(args.rounds):
        for setup, runs in results.items():
            if setup == "per core":
                runs.append(measure_per_core(args))
            else:
                runs.append(result_of(start_process(setup, args.rollouts, args)))
    print(f"{args.rollouts} rollouts, {args.nodes} nodes, {CPU_COUNT} cores, medians of {args.rounds} rounds:")
    medians = {
        setup: {name: statistics.median(run[name] for run in runs) for name in ("cpu", "all", "wall")}
        for setup, runs in results.items()
    }
    for setup, median in medians.items():
        print(
            f"  {setup:9} {median['cpu']:6.2f} CPU-s per 1,000 rollouts in the run's process "
            f"({median['cpu'] / medians['here']['cpu']:.2f} times), {median['all']:6.2f} in all processes, "
            f"{args.rollouts / median['wall']:7.1f} rollouts per second"
        )
    with_kill = result_of(start_process("ray", args.rollouts, args, "--kill"))
    print(f"with a node killed during the run ({with_kill['killed']:.0f} processes):", json.dumps(with_kill))
    print("single calls:", json.dumps(result_of(start_process("calls", 500, args))))


if __name__ == "__main__":
    main()
