"""Put `rove serve`, `rove view`, or `rove hub serve` under load from up to 1,000 connections, in turns with another server.

    python benchmarks/load.py serve --gguf FILE [--layers 2] [--xllamacpp PYTHON]
    python benchmarks/load.py view [--inspect PYTHON]
    python benchmarks/load.py hub --pypiserver COMMAND
        [--minutes 4] [--connections 10 100 1000] [--rounds 3]

- serve: chat requests of about 40 tokens that differ at the start of the question, answered by 8 tokens, greedy. Both servers run
  the model in a GGUF file, or only its first `--layers` layers, which are fast enough to load the servers themselves; rove serves
  the folder that `rove model get` makes of it, in fp32. The other server is llama.cpp's, from the wheel of xllamacpp, with 64
  slots and half of the cores as threads, as in rove.
- view: pages of 50 rollouts of a run with 1,000 rollouts. Inspect's viewer sends the summaries of a log with 1,000 samples, which
  its page in the browser reads.
- hub: index pages of 20 versions, and wheels of 1 KiB. The other server is pypiserver, as in hub.py.

All connections are opened anew for each round, and each sends its next request as soon as it has the response. The time of a
round is `--minutes` divided by the number of rounds of all servers; a round ends when all of its requests are answered. The
script prints a line per round with the memory of the server, then for each number of connections the requests per second and
per CPU second of the server, the percentiles of the latency over all rounds, the peak memory, and the number of errors. The exit
status is 1 if rove has answered a request with an error.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import aiohttp
from hub import Comparison, Server, free_port
from viewer import write_run
from yarl import URL

ROVE = [sys.executable, "-m", "rove.cli.main"]
REQUEST_TIMEOUT_S = 600.0
START_TIMEOUT_S = 120.0
ROLLOUTS, PAGE_ROWS = 1000, 50
NEW_TOKENS = 8
LLAMA_SLOTS, LLAMA_SLOT_TOKENS = 64, 512

Send = Callable[[aiohttp.ClientSession, int], Awaitable[None]]
"""Send a request with this number and check the response; raises AssertionError if it is wrong."""

LLAMA = """
import os, sys, time, xllamacpp
file, port, slots, tokens = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = file, ["127.0.0.1"], port
params.n_parallel, params.n_ctx = slots, slots * tokens
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 1) // 2)
server = xllamacpp.Server(params)
while True:
    time.sleep(60)
"""
INSPECT_LOG = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import exact
samples = [Sample(input=f"What is {i} + {i}?", target=str(2 * i)) for i in range(int(sys.argv[2]))]
eval(Task(dataset=samples, scorer=exact()), model="mockllm/model", log_dir=sys.argv[1], display="none")
"""


class Target(NamedTuple):
    """A server under load."""

    server: Server
    send: Send


class Round(NamedTuple):
    """What was measured for a server in a round."""

    seconds: float
    cpu_seconds: float
    latencies: list[float]
    errors: Counter[str]
    peak_mib: float


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process and its children in MiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = {int(child) for task in tasks for child in (task / "children").read_text().split()}
    except OSError:
        return 0.0
    own_kib = sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return own_kib / 1024 + sum(map(memory_mib, children))


async def run_round(target: Target, connections: int, seconds: float, numbers: Iterator[int]) -> Round:
    """Send requests with `connections` connections for some seconds, and wait for the last responses."""
    latencies: list[float] = []
    errors: Counter[str] = Counter()
    peak = memory_mib(target.server.process.pid)
    end = time.perf_counter() + seconds

    async def send_requests(session: aiohttp.ClientSession) -> None:
        while time.perf_counter() < end:
            started = time.perf_counter()
            try:
                await target.send(session, next(numbers))
            except (aiohttp.ClientError, AssertionError, TimeoutError, ValueError) as error:
                errors[f"{type(error).__name__}: {error}"[:100]] += 1
            else:
                latencies.append(time.perf_counter() - started)

    async def watch_memory() -> None:
        nonlocal peak
        while True:
            peak = max(peak, memory_mib(target.server.process.pid))
            await asyncio.sleep(0.5)

    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    cpu, started = target.server.cpu(), time.perf_counter()
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        watcher = asyncio.create_task(watch_memory())
        await asyncio.gather(*(send_requests(session) for _ in range(connections)))
        watcher.cancel()
    return Round(time.perf_counter() - started, target.server.cpu() - cpu, latencies, errors, peak)


async def wait_until_ready(target: Target) -> None:
    """Wait until a server answers a request correctly; exit if it does not."""
    async with aiohttp.ClientSession() as session:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return await target.send(session, 0)
            except (aiohttp.ClientError, AssertionError) as error:
                if target.server.process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{target.server.name} does not answer: {error}")
                await asyncio.sleep(0.2)


async def measure(targets: Sequence[Target], args: argparse.Namespace) -> bool:
    """Measure all servers and print the tables; return whether rove, the first one, made no error."""
    for target in targets:
        await wait_until_ready(target)
    seconds = args.minutes * 60 / (len(args.connections) * args.rounds * len(targets))
    numbers = iter(range(1, 1 << 60))
    began = time.monotonic()
    rounds: dict[tuple[int, str], list[Round]] = {}
    for connections in args.connections:
        for _ in range(args.rounds):
            for target in targets:
                measured = await run_round(target, connections, seconds, numbers)
                name, mib = target.server.name, memory_mib(target.server.process.pid)
                rounds.setdefault((connections, name), []).append(measured)
                print(
                    f"{time.monotonic() - began:6.0f} s  {connections:5} connections  {name:12}{len(measured.latencies):8} "
                    f"responses in {measured.seconds:.0f} s, {mib:.0f} MiB afterward, errors: {dict(measured.errors)}",
                    flush=True,
                )
    titles = ("per second", "per CPU-s", "p50 ms", "p95 ms", "p99 ms", "peak MiB", "errors")
    print(f"{'connections':>11}  {'server':12}" + "".join(f"{title:>12}" for title in titles))
    for (connections, name), measured in rounds.items():
        latencies = sorted(latency * 1000 for one_round in measured for latency in one_round.latencies)
        count, errors = len(latencies), sum(one_round.errors.total() for one_round in measured)
        total_seconds = sum(one_round.seconds for one_round in measured)
        cpu_seconds = sum(one_round.cpu_seconds for one_round in measured)
        percentiles = [latencies[min(count - 1, int(share * count))] if count else 0 for share in (0.5, 0.95, 0.99)]
        columns = [count / total_seconds, count / max(cpu_seconds, 0.01), *percentiles]
        columns += [max(one_round.peak_mib for one_round in measured), errors]
        print(f"{connections:>11}  {name:12}" + "".join(f"{value:12,.0f}" for value in columns))
    return not any(
        one_round.errors for (_, name), measured in rounds.items() if name.startswith("rove") for one_round in measured
    )


def rove_server(name: str, command: Sequence[str | Path], url: str) -> Server:
    """Start a command of rove."""
    return Server(name, [*ROVE, *map(str, command)], url, "")


def first_layers(file: str, layers: int, target: Path) -> Path:
    """Write a GGUF file with only the first layers of a model, and return its path."""
    import gguf

    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":  # the writer adds these
            continue
        value = layers if name == f"{architecture}.block_count" else field.contents()
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, value, field.types[0], field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        prefix, _, suffix = tensor.name.partition(".")
        if prefix != "blk" or int(suffix.partition(".")[0]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def chat_targets(args: argparse.Namespace, folder: Path) -> list[Target]:
    """Return `rove serve` and llama.cpp's server."""

    def chat(url: str) -> Send:
        async def send(session: aiohttp.ClientSession, number: int) -> None:
            content = f"{number} is a number. Say something about it."
            body = {"model": "model", "messages": [{"role": "user", "content": content}]}
            body |= {"max_tokens": NEW_TOKENS, "temperature": 0}
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()
                [choice] = (await response.json())["choices"]
            assert choice["finish_reason"] in ("stop", "length"), choice
            assert isinstance(choice["message"]["content"], str), choice

        return send

    file = first_layers(args.gguf, args.layers, folder / "model.gguf") if args.layers else args.gguf
    model = folder / "model"
    subprocess.run([*ROVE, "model", "get", str(file), "-o", str(model)], check=True, stdout=subprocess.DEVNULL)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ["serve", "-m", model, "--name", "model", "--port", str(port)]
    targets = [Target(rove_server("rove serve", command, url), chat(url))]
    if args.xllamacpp:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        words = [args.xllamacpp, "-c", LLAMA, str(file), str(port), str(LLAMA_SLOTS), str(LLAMA_SLOT_TOKENS)]
        targets.append(Target(Server("llama.cpp", words, url, ""), chat(url)))
    return targets


def page_targets(args: argparse.Namespace, folder: Path) -> list[Target]:
    """Return `rove view` and Inspect's viewer."""
    write_run(folder / "runs" / "large", ROLLOUTS)
    port = free_port()
    url = f"http://127.0.0.1:{port}/"

    async def rove_page(session: aiohttp.ClientSession, number: int) -> None:
        offset = number * PAGE_ROWS % ROLLOUTS
        async with session.get(f"{url}api/rollouts?run=large&limit={PAGE_ROWS}&offset={offset}") as response:
            assert response.status == 200, await response.text()
            assert len((await response.json())["rows"]) == PAGE_ROWS

    targets = [Target(rove_server("rove view", ["view", folder / "runs", "--port", str(port)], url), rove_page)]
    if args.inspect:
        logs = folder / "logs"
        subprocess.run([args.inspect, "-c", INSPECT_LOG, str(logs), str(ROLLOUTS)], check=True)
        [log] = logs.glob("*.eval")
        with zipfile.ZipFile(log) as archive:
            entry = archive.getinfo("summaries.json")
        size = entry.compress_size
        port = free_port()
        page = f"http://127.0.0.1:{port}/api/log-bytes/{quote(str(log), safe='')}"
        page += f"?start={entry.header_offset}&end={entry.header_offset + size - 1}"

        async def inspect_page(session: aiohttp.ClientSession, number: int) -> None:
            async with session.get(URL(page, encoded=True)) as response:
                assert response.status == 200, await response.text()
                assert len(await response.read()) == size

        program = Path(args.inspect).with_name("inspect")
        words = [str(program), "view", "start", "--log-dir", str(logs), "--port", str(port)]
        targets.append(Target(Server("Inspect", words, page, ""), inspect_page))
    return targets


def hub_targets(args: argparse.Namespace, folder: Path) -> list[Target]:
    """Return `rove hub serve` and pypiserver."""
    comparison = Comparison(folder, args.pypiserver)

    def page_or_wheel(server: Server) -> Send:
        async def send(session: aiohttp.ClientSession, number: int) -> None:
            get = comparison.get_page if number % 2 else comparison.get_small
            await get(server, session, number)

        return send

    return [Target(server, page_or_wheel(server)) for server in comparison.servers]


KINDS = {"serve": chat_targets, "view": page_targets, "hub": hub_targets}


def main() -> None:
    """Start the servers, measure them and stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--minutes", type=float, default=4.0, help="minutes in total (default: %(default)s)")
    parser.add_argument("--connections", type=int, nargs="+", default=[10, 100, 1000], help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per server (default: %(default)s)")
    parser.add_argument("--xllamacpp", metavar="PYTHON", help="Python interpreter of an environment with xllamacpp")
    parser.add_argument("--gguf", metavar="FILE", help="GGUF file of the model, for serve")
    parser.add_argument("--layers", type=int, default=0, help="number of the model's layers to keep (default: all)")
    parser.add_argument("--inspect", metavar="PYTHON", help="Python interpreter of an environment with inspect-ai")
    parser.add_argument("--pypiserver", default="pypi-server", help="pypiserver command (default: pypi-server)")
    args = parser.parse_args()
    if args.kind == "serve" and args.gguf is None:
        parser.error("serve needs --gguf")
    with tempfile.TemporaryDirectory() as name:
        targets = KINDS[args.kind](args, Path(name))
        try:
            passes = asyncio.run(measure(targets, args))
        finally:
            for target in targets:
                target.server.process.kill()
                target.server.process.wait()
    sys.exit(0 if passes else 1)


if __name__ == "__main__":
    main()
