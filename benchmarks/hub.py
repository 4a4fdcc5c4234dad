"""Compare `rove hub serve` with `pypiserver` on the same files: requests per CPU second of the server, and per second.

    python -m venv /tmp/other && /tmp/other/bin/pip install pypiserver waitress watchdog
    python benchmarks/hub.py --pypiserver /tmp/other/bin/pypi-server [--rounds 5]

Each server runs in one process on this machine and has the same packages: 20 environments with 20 versions each, and one of
8 MiB. Every round sends the same requests to one server after the other and alternates which server comes first. Each response
is compared with the file. The script prints medians over the rounds. CPU seconds include the child processes of a server.

pypiserver runs in its recommended configuration for high load: on waitress (its own choice), with the cached backend, without a
log and without passwords. It stores uploads unchecked; the hub checks tokens, archives, hashes, names and manifests, and waits
until the data are on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from hubs import add, form, parts_of
from packages import MODULE, put_package

from rove.hub.server.store import Store
from rove.hub.server.tokens import make_token

ENVIRONMENTS, VERSIONS, LARGE_BYTES = 20, 20, 8 << 20
MAX_CONCURRENT = 16
"""Concurrent requests."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Workload(NamedTuple):
    """A kind of request."""

    name: str
    count: int
    """Requests per round."""
    send: Callable[[Server, aiohttp.ClientSession, int], Awaitable[None]]


class Server:
    """A server in a separate process.

    `page` and `file` are URL templates of an index page (name) and of a file (name, version, filename).
    """

    def __init__(self, name: str, command: Sequence[str], page: str, file: str):
        self.name, self.page, self.file = name, page, file
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def cpu(self) -> float:
        """Return the CPU seconds of the process and its children so far."""
        return _cpu(self.process.pid)


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_PER_S + sum(map(_cpu, children))


def free_port() -> int:
    """Return an unused TCP port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Comparison:
    """The two servers, their packages and the workloads."""

    def __init__(self, folder: Path, pypiserver: str):
        self.folder = folder
        self.wheels: dict[str, bytes] = {}
        self.uploads = 0
        store = Store(folder / "hub")
        store.add_owner("acme")
        self.token = make_token(store.database, "acme")
        (folder / "flat").mkdir()
        for number in range(ENVIRONMENTS):
            for version in range(VERSIONS):
                self._put(store, f"sums-{number}", f"1.{version}")
        large = {"large/__init__.py": MODULE, "large/padding.bin": os.urandom(LARGE_BYTES)}
        self.large = self._put(store, "large", "1.0", large)
        store.close()
        ports = free_port(), free_port()
        rove = [
            sys.executable,
            "-m",
            "rove.cli.main",
            "hub",
            "serve",
            "--data",
            str(folder / "hub"),
            "--port",
            str(ports[0]),
        ]
        peer_command = [
            pypiserver,
            "run",
            "-p",
            str(ports[1]),
            "-i",
            "127.0.0.1",
            "-a",
            ".",
            "-P",
            ".",
            "--disable-fallback",
        ]
        peer_command += ["--log-stream", "none", "--backend", "cached-dir", str(folder / "flat")]
        self.servers = [
            Server(
                "rove hub",
                rove,
                f"http://127.0.0.1:{ports[0]}/acme/simple/{{}}/",
                f"http://127.0.0.1:{ports[0]}/acme/{{}}/{{}}/{{}}",
            ),
            Server(
                "pypiserver",
                peer_command,
                f"http://127.0.0.1:{ports[1]}/simple/{{}}/",
                f"http://127.0.0.1:{ports[1]}/packages/{{2}}",
            ),
        ]
        self.workloads = [
            Workload("index page of 20 versions", 300, self.get_page),
            Workload("wheel of 1 KiB", 300, self.get_small),
            Workload("wheel of 8 MiB", 12, self.get_large),
            Workload("upload of 2 KiB", 16, self.upload),
        ]

    def _put(self, store: Store, name: str, version: str, modules: dict[str, bytes] | None = None) -> str:
        manifest = add(store, "acme", name, version, modules=modules)
        source = self.folder / "made/acme" / name / version
        for file in manifest.files:
            shutil.copy(source / file.filename, self.folder / "flat")
        self.wheels[f"{name} {version}"] = (source / manifest.wheel.filename).read_bytes()
        return manifest.wheel.filename

    async def get_page(self, server: Server, session: aiohttp.ClientSession, number: int) -> None:
        """Request the index page of a project and check its wheels."""
        name = f"sums-{number % ENVIRONMENTS}"
        async with session.get(server.page.format(name), headers={"Accept": "text/html"}) as response:
            wheels = set(re.findall(r">\s*(\S+\.whl)\s*<", await response.text()))
        assert len(wheels) == VERSIONS, (server.name, response.status, wheels)

    async def get_small(self, server: Server, session: aiohttp.ClientSession, number: int) -> None:
        """Download a small wheel and check its bytes."""
        await self._get_file(server, session, f"sums-{number % ENVIRONMENTS}", f"1.{number // ENVIRONMENTS % VERSIONS}")

    async def get_large(self, server: Server, session: aiohttp.ClientSession, number: int) -> None:
        """Download the large wheel and check its bytes."""
        await self._get_file(server, session, "large", "1.0")

    async def _get_file(self, server: Server, session: aiohttp.ClientSession, name: str, version: str) -> None:
        filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        async with session.get(server.file.format(name, version, filename)) as response:
            content = await response.read()
        assert content == self.wheels[f"{name} {version}"], (server.name, response.status)

    async def upload(self, server: Server, session: aiohttp.ClientSession, number: int) -> None:
        """Upload a new version in the format of this server."""
        self.uploads += 1
        version = f"2.{self.uploads}"
        folder = self.folder / "new" / version
        manifest = put_package(folder, "uploads", version)
        if server.name == "rove hub":
            url = server.file.format("uploads", version, "")[:-1].replace("/acme/", "/api/environments/acme/")
            parts, headers = parts_of(folder, manifest), {"Authorization": f"Bearer {self.token}"}
            async with session.put(url, data=form(parts), headers=headers) as response:
                assert response.status == 201, await response.text()
            return
        for file in manifest.files:
            data = aiohttp.FormData()
            data.add_field(":action", "file_upload")
            data.add_field("content", (folder / file.filename).read_bytes(), filename=file.filename)
            async with session.post(server.page.partition("simple")[0], data=data) as response:
                assert response.status == 200, await response.text()

    async def measure(self, server: Server, workload: Workload) -> tuple[float, float]:
        """Run a workload and return the requests per CPU second of the server, and per second."""
        numbers = iter(range(workload.count))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:

            async def worker() -> None:
                for number in numbers:
                    await workload.send(server, session, number)

            used, started = server.cpu(), time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(MAX_CONCURRENT)))
            seconds = time.perf_counter() - started
            return workload.count / max(server.cpu() - used, 1 / TICKS_PER_S), workload.count / seconds

    async def warm_up(self) -> None:
        """Wait until both servers respond, and run each workload once."""
        async with aiohttp.ClientSession() as session:
            for server in self.servers:
                for _ in range(200):
                    try:
                        await self.get_page(server, session, 0)
                        break
                    except aiohttp.ClientError:
                        await asyncio.sleep(0.1)
                for workload in self.workloads:
                    await workload.send(server, session, 1)


async def compare(comparison: Comparison, rounds: int) -> None:
    """Measure both servers in alternating order and print the medians over the rounds."""
    await comparison.warm_up()
    rates: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for workload in comparison.workloads:
            for server in comparison.servers[:: 1 if number % 2 == 0 else -1]:
                measured = await comparison.measure(server, workload)
                rates.setdefault((workload.name, server.name), []).append(measured)
    print(f"{'':28}{'per CPU second of the server':>32}{'per second':>26}")
    print(
        f"{f'median of {rounds} rounds':28}" + f"{'rove hub':>16}{'pypiserver':>16}{'rove hub':>13}{'pypiserver':>13}"
    )
    for workload in comparison.workloads:
        columns = []
        for which, width in ((0, 16), (1, 13)):
            for server in comparison.servers:
                median = statistics.median(rate[which] for rate in rates[workload.name, server.name])
                columns.append(f"{median:>{width},.0f}")
        print(f"{workload.name:28}{''.join(columns)}")


def main() -> None:
    """Start both servers, compare them and stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pypiserver", default="pypi-server", help="pypiserver command (default: pypi-server)")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if shutil.which(args.pypiserver) is None:
        sys.exit(
            f"{args.pypiserver} not found; run pip install pypiserver waitress watchdog in a separate environment and pass "
            "--pypiserver"
        )
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(Path(folder), args.pypiserver)
        try:
            asyncio.run(compare(comparison, args.rounds))
        finally:
            for server in comparison.servers:
                server.process.kill()
                server.process.wait()


if __name__ == "__main__":
    main()
