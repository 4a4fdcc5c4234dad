"""Deaths, full disks and damage on a hub and in the installation of a package."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
import shutil
import signal
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from damage import boundaries, files_of
from hubs import code, parts_of, publish
from packages import put_package
from run_faults import NO_MOUNT, descendants
from trials import Disk, Process, Trial, die, fault, on_file_operation
from workshop import MATERIALS, Material, Workshop

from rove.core.errors import Error, RejectedError
from rove.hub.client import installed
from rove.hub.client.hub import Hub
from rove.hub.client.installing import fetch, install, look_up
from rove.hub.package.manifest import read_manifest
from rove.hub.package.names import Reference, parse_reference
from rove.hub.server import catalogue
from rove.hub.server.checkers import Session
from rove.hub.server.store import Store, StoredFile
from rove.hub.server.tokens import make_token

PADDING_BYTES = 1 << 18
"""Incompressible bytes in the uploaded package, so that its upload takes long enough to be interrupted."""
MAX_STEP = 60
"""Upper bound of the number of file and database operations of an upload."""
REFERENCE = Reference("alice", "doubling")


def _make_packages(workshop: Workshop, folder: Path) -> None:
    """Make two versions of a package, a hub with the first one, and the folder of a hub as `rove hub export` writes it."""
    modules = {"my_sums/__init__.py": code(), "my_sums/padding.bin": random.Random(0).randbytes(PADDING_BYTES)}
    for version in ("1.0", "1.1"):
        put_package(folder / version, "my-sums", version, modules=modules)
    store = Store(folder / "hub")
    store.add_owner("acme")
    (folder / "token").write_text(make_token(store.database, "acme"))
    _add(store, folder / "1.0", "1.0")
    store.close()
    (folder / "static").mkdir()
    publish(folder / "static")


def _make_installed(workshop: Workshop, folder: Path) -> None:
    """Make a hub's folder with two versions of a package."""
    (folder / "static").mkdir()
    publish(folder / "static")
    publish(folder / "static", version="2.0", module=code("Double", 2, 4.0))


MATERIALS["packages"] = Material(_make_packages)
MATERIALS["versions"] = Material(_make_installed)


def _add(store: Store, folder: Path, version: str) -> None:
    """Store a version as an upload does."""
    draft = store.new_draft()
    manifest = _manifest(folder)
    for part, content in parts_of(folder, manifest).items():
        (draft / part).write_bytes(content)
    files = [StoredFile(**file) for file in Session().check(str(draft), "acme", "my-sums", version, [])]
    store.add("acme", manifest, draft, files)


def _manifest(folder: Path) -> Any:
    return read_manifest((folder / "manifest.json").read_bytes())


def check_hub(trial: Trial, data: Path) -> set[str]:
    """Check a hub's data folder after a restart: every version is complete, and nothing else is left. Return the versions."""
    store = Store(data)
    try:
        store.recover()
        releases = catalogue.releases(store, "acme", "my-sums")
        project = store.files / "acme" / "my-sums"
        for release in releases:
            for file in release.files:
                content = (project / release.version / file.filename).read_bytes()
                is_same = (hashlib.sha256(content).hexdigest(), len(content)) == (file.sha256, file.size)
                trial.require(is_same, f"{release.version}/{file.filename} is partial")
        versions = {release.version for release in releases}
        folders = {path.name for path in project.iterdir()}
        trial.require(folders == versions, f"folders {folders} and versions {versions} differ")
        trial.require(not any(store.drafts.iterdir()), "a draft was left")
        return versions
    finally:
        store.close()


def check_upload_again(trial: Trial, data: Path, versions: set[str]) -> None:
    """Upload the version again: the hub accepts it unless it has it."""
    trial.require(versions in ({"1.0"}, {"1.0", "1.1"}), f"versions {versions}")
    store = Store(data)
    try:
        _add(store, trial.workshop["packages"] / "1.1", "1.1")
        trial.require("1.1" not in versions, "an existing version was replaced")
    except RejectedError as error:
        trial.require("1.1" in versions, f"an absent version was rejected: {error}")
    finally:
        store.close()
    check_hub(trial, data)


def at_each_step(act: Callable[[int], object]) -> None:
    """Call `act` with the number of each file or database operation of this process."""
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1
        act(count)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            step()
            return function(*args, **options)

        return call

    for module, name in ((os, "fsync"), (os, "replace"), (os, "mkdir"), (shutil, "rmtree")):
        setattr(module, name, counted(getattr(module, name)))
    connect = sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(step)
        return connection

    sqlite3.connect = traced


def _upload(trial: Trial, data: Path, prepare: Callable[[], object]) -> Process:
    """Store the new version in another process, to which a fault is applied."""

    def run() -> None:
        prepare()
        store = Store(data)
        store.recover()
        _add(store, trial.workshop["packages"] / "1.1", "1.1")
        store.close()

    return Process(run, trial.folder, trial.folder / "upload")


@fault("death during push", "hub", 320, ("packages",))
def die_in_upload(trial: Trial) -> None:
    """Die at an operation of an upload, restart, and upload again."""
    data = trial.copy(trial.workshop["packages"] / "hub", "hub")
    step = trial.ordinal % MAX_STEP + 1

    def act(number: int) -> None:
        if number == step:
            die()

    ended = _upload(trial, data, lambda: at_each_step(act)).wait()
    assert ended is not None
    if ended.status == -signal.SIGKILL:
        trial.injected(f"operation {step}")
    else:
        trial.require(ended.status == 0, f"the upload failed: {ended.text[-500:]}")
    check_upload_again(trial, data, check_hub(trial, data))


@fault("disk full", "hub", 120, ("packages",), NO_MOUNT)
def fill_hub(trial: Trial) -> None:
    """Upload to a hub on a disk that is too small, then to a larger one."""
    source = trial.workshop["packages"] / "hub"
    disk = Disk(trial.folder / "hub", 1 << 28)
    shutil.copytree(source, disk.folder, dirs_exist_ok=True)
    disk.resize(disk.used_bytes() + trial.rng.randrange(1 + PADDING_BYTES // 2048) * 4096)
    ended = _upload(trial, disk.folder, lambda: None).wait()
    assert ended is not None
    if ended.status:
        trial.injected("no room for the upload")
        trial.require(bool(re.search("No space|disk|full", ended.text)), f"no reason: {ended.text[-500:]}")
    disk.resize(1 << 28)
    check_upload_again(trial, disk.folder, check_hub(trial, disk.folder))


class HubServer:
    """`rove hub serve` of a data folder."""

    def __init__(self, trial: Trial, data: Path, prepare: Callable[[], object] | None = None):
        self.process = trial.start(("hub", "serve", "--data", str(data), "--port", "0"), prepare)
        end = time.monotonic() + 60
        while (match := re.search(r"http://[\d.:]+", self._printed())) is None:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the hub did not start: {self.process.err.read_text()[-500:]}")
            time.sleep(0.003)
        self.url = match.group()

    def _printed(self) -> str:
        return self.process.out.read_text() if self.process.out.exists() else ""

    def kill(self) -> None:
        """End the hub as `kill -9` does."""
        self.process.send(signal.SIGKILL)
        self.process.wait()


def _request(url: str, token: str, method: str, body: bytes | None = None, kind: str = "") -> tuple[int, bytes]:
    """Return status and content of a response; (0, b"") if there was none."""
    request = urllib.request.Request(url, data=body, method=method, headers={"Authorization": f"Bearer {token}"})
    if kind:
        request.add_header("Content-Type", kind)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, ValueError):
        return 0, b""


def form_of(folder: Path) -> tuple[str, bytes]:
    """Return the content type and the bytes of an upload of the package in a folder."""
    boundary = "campaign"
    content = b""
    for part, data in parts_of(folder, _manifest(folder)).items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{part}"; filename="{part}"\r\n\r\n'
        content += head.encode() + data + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", content + f"--{boundary}--\r\n".encode()


@fault("kill -9", "hub", 70, ("packages",))
def kill_hub(trial: Trial) -> None:
    """Kill the hub at a random moment of an upload, restart it, and upload again."""
    packages = trial.workshop["packages"]
    data, token = trial.copy(packages / "hub", "hub"), (packages / "token").read_text()
    hub = HubServer(trial, data)
    kind, body = form_of(packages / "1.1")
    address = f"{hub.url}/api/environments/acme/my-sums/1.1"
    answers: list[int] = []
    uploading = threading.Thread(target=lambda: answers.append(_request(address, token, "PUT", body, kind)[0]))
    uploading.start()
    time.sleep(trial.rng.uniform(0.0, 0.6))
    trial.injected("the hub was killed during an upload")
    hub.kill()
    uploading.join()
    versions = check_hub(trial, data)
    trial.require(answers[0] in (0, 201), f"the upload returned {answers[0]}")
    trial.require(answers[0] != 201 or "1.1" in versions, "the upload was accepted, and is lost")
    check_upload_again(trial, data, versions)


@fault("hang-ups and garbage of a client", "hub", 60, ("packages",))
def break_upload(trial: Trial) -> None:
    """Break off an upload at a random byte, or flip a bit of it; the hub has the complete version or none."""
    packages = trial.workshop["packages"]
    data, token = trial.copy(packages / "hub", "hub"), (packages / "token").read_text()
    hub = HubServer(trial, data)
    kind, body = form_of(packages / "1.1")
    content = bytearray(body)
    if trial.rng.random() < 0.5:
        content = content[: trial.rng.randrange(len(content))]
        trial.injected(f"cut after {len(content)} bytes")
    else:
        position = trial.rng.randrange(len(content))
        content[position] ^= 1 << trial.rng.randrange(8)
        trial.injected(f"a bit of byte {position}")
    status, _ = _request(f"{hub.url}/api/environments/acme/my-sums/1.1", token, "PUT", bytes(content), kind)
    is_listed, listing = _request(f"{hub.url}/acme/my-sums/index.json", token, "GET")
    trial.require(is_listed == 200, f"the hub answers {is_listed} afterward")
    trial.require((b'"1.1"' in listing) == (status == 201), f"status {status}, and the list is {listing[:300]!r}")
    trial.require(status == 201 or 400 <= status < 500, f"the upload returned {status}")
    hub.kill()
    versions = check_hub(trial, data)
    trial.require(("1.1" in versions) == (status == 201), f"status {status}, and versions {versions}")


def _download(hub: Path, work: Path, name: str = "alice/doubling") -> bytes:
    """Look up and verify a package in a hub's folder as an installation does; return its wheel."""

    async def download() -> bytes:
        async with Hub(str(hub)) as client:
            offer = await look_up(client, parse_reference(name))
            return (await fetch(client, offer, work)).read_bytes()

    work.mkdir(exist_ok=True)
    return asyncio.run(download())


@fault("torn file", "hub", 110, ("packages",))
def tear_package(trial: Trial) -> None:
    """Cut a file of a hub's folder; the package is refused with a reason, or unchanged."""
    hub = trial.copy(trial.workshop["packages"] / "static", "static")
    files = files_of(hub)
    file = files[trial.ordinal % len(files)]
    length = trial.rng.choice(boundaries(file))
    os.truncate(file, length)
    trial.injected(f"{file.relative_to(hub)} cut to {length} bytes")
    check_download(trial, hub)


@fault("flipped bit", "hub", 110, ("packages",))
def flip_package(trial: Trial) -> None:
    """Flip a bit of a file of a hub's folder; the package is refused with a reason, or unchanged."""
    hub = trial.copy(trial.workshop["packages"] / "static", "static")
    files = files_of(hub)
    file = files[trial.ordinal % len(files)]
    content = bytearray(file.read_bytes())
    position = trial.rng.randrange(len(content))
    content[position] ^= 1 << trial.rng.randrange(8)
    file.write_bytes(content)
    trial.injected(f"a bit of byte {position} of {file.relative_to(hub)}")
    check_download(trial, hub)


def check_download(trial: Trial, hub: Path) -> None:
    """Check that a damaged hub's package is refused, or has the original bytes."""
    [wheel] = (trial.workshop["packages"] / "static").rglob("*.whl")
    try:
        content = _download(hub, trial.folder / "work")
    except Error as error:
        trial.require(bool(str(error)), "an error without a text")
        return
    trial.require(content == wheel.read_bytes(), "a damaged package was accepted")


@fault("death during installation", "hub", 40, ("versions",))
def die_in_installation(trial: Trial) -> None:
    """Kill an installation and its processes; the previous version remains, or the new one is complete."""
    static, data = trial.workshop["versions"] / "static", trial.folder / "data"
    os.environ["XDG_DATA_HOME"] = str(data)
    _install(static, trial.folder / "first", "alice/doubling@1.0")
    operation, seconds = trial.rng.randint(1, 40), trial.rng.uniform(0.0, 3.0)
    is_at_operation = trial.rng.random() < 0.6

    def act(number: int) -> None:
        if number == operation:
            die()

    def run() -> None:
        if is_at_operation:
            on_file_operation(data, act)
        _install(static, trial.folder / "second", "alice/doubling@2.0")

    process = Process(run, trial.folder, trial.folder / "install")
    end = time.monotonic() + seconds
    while process.poll() is None and (is_at_operation or time.monotonic() < end):
        time.sleep(0.003)
    if not is_at_operation and process.poll() is None:
        for pid in [process.pid, *descendants(process.pid)]:
            os.kill(pid, signal.SIGKILL)
    ended = process.wait()
    if ended is not None and ended.status:
        trial.injected(f"operation {operation}" if is_at_operation else f"after {seconds:.1f} s")
    environment = installed.find(REFERENCE)
    trial.require(environment is not None, "the previous version is lost")
    if environment is not None:
        wheel = static / "alice" / "doubling" / environment.version / f"doubling-{environment.version}-py3-none-any.whl"
        trial.require(hashlib.sha256(wheel.read_bytes()).hexdigest() == environment.wheel, "another wheel is recorded")
        module = environment.path / environment.file
        trial.require(module.is_file() and environment.python.exists(), "half an installation is recorded")
    _install(static, trial.folder / "third", "alice/doubling@2.0")
    environment = installed.find(REFERENCE)
    trial.require(environment is not None and environment.version == "2.0", "the repeated installation failed")
    folders = [path for path in installed.environment_folder(REFERENCE).iterdir() if path.is_dir()]
    trial.require(len(folders) <= 2, f"unfinished installations are left: {[path.name for path in folders]}")


def _install(hub: Path, work: Path, name: str) -> None:
    """Install a package from a hub's folder."""
    work.mkdir()

    async def put() -> None:
        async with Hub(str(hub)) as client:
            offer = await look_up(client, parse_reference(name))
            install(offer, await fetch(client, offer, work))

    asyncio.run(put())
