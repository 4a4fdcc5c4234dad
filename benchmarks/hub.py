"""`rove hub serve` beside `pypiserver`, serving the same files: requests for each second of the server's CPU, and in a second.

    python -m venv /tmp/other && /tmp/other/bin/pip install pypiserver waitress watchdog
    python benchmarks/hub.py --pypiserver /tmp/other/bin/pypi-server [--rounds 5]

Both run in one process each on this machine, with the same packages: 20 environments of 20 versions, and one of 8 MiB. In every
round each of them is asked for the same, one after the other, who begins changing from round to round; printed are the medians
over the rounds. Each answer is compared with the file. CPU seconds are those of the server's process and what it has started.

pypiserver runs as it is meant to under load: on waitress (which it chooses itself), with its cached backend, no log and no
passwords. It stores what is uploaded as it comes; the hub checks tokens, archives, hashes, names and manifests, and waits until
all of it is on the disk.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hubs import add, form, parts_of
from packages import put_package

from rove.hub.server.store import Store
from rove.hub.server.tokens import make_token

ENVIRONMENTS, VERSIONS, LARGE = 20, 20, 8 << 20
AT_ONCE = 16
"""Requests under way at a time."""
TICK = os.sysconf("SC_CLK_TCK")


class Kind(NamedTuple):
    """Something that servers are asked for."""

    name: str
    count: int
    """Requests in a round."""
    ask: Callable[[Server, aiohttp.ClientSession, int], Awaitable[None]]


class Server:
    """A server in a process of its own."""

    def __init__(self, name: str, command: Sequence[str], page: str, file: str):
        self.name, self.page, self.file = name, page, file
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def cpu(self) -> float:
        """Seconds that it and what it has started have used."""
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
    return sum(map(int, fields[11:15])) / TICK + sum(map(_cpu, children))


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class Field:
    """What is measured, and on whom."""

    def __init__(self, place: Path, pypiserver: str):
        self.place = place
        self.wheels: dict[str, bytes] = {}
        self.uploads = 0
        store = Store(place / "hub")
        store.add_owner("acme")
        self.token = make_token(store.database, "acme")
        (place / "flat").mkdir()
        for number in range(ENVIRONMENTS):
            for version in range(VERSIONS):
                self._put(store, f"sums-{number}", f"1.{version}")
        self.large = self._put(store, "large", "1.0", {"padding.bin": os.urandom(LARGE)})
        store.close()
        ports = free_port(), free_port()
        rove = [
            sys.executable,
            "-m",
            "rove.cli.main",
            "hub",
            "serve",
            "--data",
            str(place / "hub"),
            "--port",
            str(ports[0]),
        ]
        other = [pypiserver, "run", "-p", str(ports[1]), "-i", "127.0.0.1", "-a", ".", "-P", ".", "--disable-fallback"]
        other += ["--log-stream", "none", "--backend", "cached-dir", str(place / "flat")]
        self.servers = [
            Server(
                "rove hub",
                rove,
                f"http://127.0.0.1:{ports[0]}/acme/simple/{{}}/",
                f"http://127.0.0.1:{ports[0]}/acme/{{}}/{{}}/{{}}",
            ),
            Server(
                "pypiserver",
                other,
                f"http://127.0.0.1:{ports[1]}/simple/{{}}/",
                f"http://127.0.0.1:{ports[1]}/packages/{{2}}",
            ),
        ]
        self.kinds = [
            Kind("index page of 20 versions", 300, self.page),
            Kind("wheel of 1 KiB", 300, self.small),
            Kind("wheel of 8 MiB", 12, self.big),
            Kind("upload of 2 KiB", 16, self.upload),
        ]

    def _put(self, store: Store, name: str, version: str, more: dict[str, bytes] | None = None) -> str:
        manifest = add(store, "acme", name, version, more=more)
        folder = self.place / "made/acme" / name / version
        for file in manifest.files:
            shutil.copy(folder / file.filename, self.place / "flat")
        self.wheels[f"{name} {version}"] = (folder / manifest.wheel.filename).read_bytes()
        return manifest.wheel.filename

    async def page(self, server: Server, session: aiohttp.ClientSession, number: int) -> None:
        """The page of a project."""
        name = f"sums-{number % ENVIRONMENTS}"
        async with session.get(server.page.format(name), headers={"Accept": "text/html"}) as answer:
            found = set(re.findall(r">\s*(\S+\.whl)\s*<", await answer.text()))
        assert len(found) == VERSIONS, (server.name, answer.status, found)

    async def small(self, server: Server, session: aiohttp.ClientSession, number: int) -> None:
        """A small file."""
        await self._file(server, session, f"sums-{number % ENVIRONMENTS}", f"1.{number // ENVIRONMENTS % VERSIONS}")

    async def big(self, server: Server, session: aiohttp.ClientSession, number: int) -> None:
        """A large one."""
        await self._file(server, session, "large", "1.0")

    async def _file(self, server: Server, session: aiohttp.ClientSession, name: str, version: str) -> None:
        filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        async with session.get(server.file.format(name, version, filename)) as answer:
            content = await answer.read()
        assert content == self.wheels[f"{name} {version}"], (server.name, answer.status)

    async def upload(self, server: Server, session: aiohttp.ClientSession, number: int) -> None:
        """A new version, as that server takes it."""
        self.uploads += 1
        version = f"2.{self.uploads}"
        folder = self.place / "new" / version
        manifest = put_package(folder, "uploads", version)
        if server.name == "rove hub":
            url = server.file.format("uploads", version, "")[:-1].replace("/acme/", "/api/environments/acme/")
            parts, headers = parts_of(folder, manifest), {"Authorization": f"Bearer {self.token}"}
            async with session.put(url, data=form(parts), headers=headers) as answer:
                assert answer.status == 201, await answer.text()
            return
        for file in manifest.files:
            data = aiohttp.FormData()
            data.add_field(":action", "file_upload")
            data.add_field("content", (folder / file.filename).read_bytes(), filename=file.filename)
            async with session.post(server.page.partition("simple")[0], data=data) as answer:
                assert answer.status == 200, await answer.text()

    async def measure(self, server: Server, kind: Kind) -> tuple[float, float]:
        """Requests for each CPU second of the server's, and in a second."""
        numbers = iter(range(kind.count))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:

            async def ask() -> None:
                for number in numbers:
                    await kind.ask(server, session, number)

            used, began = server.cpu(), time.perf_counter()
            await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
            seconds = time.perf_counter() - began
            return kind.count / max(server.cpu() - used, 1 / TICK), kind.count / seconds

    async def ready(self) -> None:
        """Both answer, and each has done everything once."""
        async with aiohttp.ClientSession() as session:
            for server in self.servers:
                for _ in range(200):
                    try:
                        await self.page(server, session, 0)
                        break
                    except aiohttp.ClientError:
                        await asyncio.sleep(0.1)
                for kind in self.kinds:
                    await kind.ask(server, session, 1)


async def compare(field: Field, rounds: int) -> None:
    """Measure both in turn, and print the medians."""
    await field.ready()
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for kind in field.kinds:
            for server in field.servers[:: 1 if number % 2 == 0 else -1]:
                found.setdefault((kind.name, server.name), []).append(await field.measure(server, kind))
    print(f"{'':28}{'per CPU second of the server':>32}{'per second':>26}")
    print(
        f"{f'median of {rounds} rounds':28}" + f"{'rove hub':>16}{'pypiserver':>16}{'rove hub':>13}{'pypiserver':>13}"
    )
    for kind in field.kinds:
        columns = []
        for which, width in ((0, 16), (1, 13)):
            for server in field.servers:
                columns.append(f"{statistics.median(one[which] for one in found[kind.name, server.name]):>{width},.0f}")
        print(f"{kind.name:28}{''.join(columns)}")


def main() -> None:
    """Make both, measure, end both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pypiserver", default="pypi-server", help="its command")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if shutil.which(given.pypiserver) is None:
        sys.exit(
            f"there is no {given.pypiserver}; pip install pypiserver waitress watchdog into an environment of its own"
        )
    with tempfile.TemporaryDirectory() as place:
        field = Field(Path(place), given.pypiserver)
        try:
            asyncio.run(compare(field, given.rounds))
        finally:
            for server in field.servers:
                server.process.kill()
                server.process.wait()


if __name__ == "__main__":
    main()
