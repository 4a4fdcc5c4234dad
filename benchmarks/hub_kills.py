"""Test that publishing to a hub is atomic: `kill -9` at random times during uploads leaves a complete version or none.

    python benchmarks/hub_kills.py [--kills 100] [--seed 0]

The script starts a hub, uploads a package and kills the hub at a random time between the first byte of the upload and shortly
after its expected end, which it estimates from recent uploads. Then it restarts the hub and checks that

- every version in the index is complete: all files exist with the right size and hash;
- the data folder contains no file or folder that is missing from the index;
- the version exists if the hub responded with 201;
- the same upload is accepted (201), or rejected (409) if the version exists.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from packages import put_package

from rove.hub.server import catalogue
from rove.hub.server.store import Store
from rove.hub.server.tokens import make_token

PADDING_BYTES = 1 << 20
"""Incompressible bytes in each wheel, so that an upload takes long enough to be interrupted."""


class Outcome(NamedTuple):
    """Counts of uploads by outcome."""

    kills: int
    acknowledged: int
    """Uploads that the hub answered with 201 before it was killed."""
    published: int
    """Versions that existed after the restart."""


class Hub:
    """`rove hub serve` in a separate process."""

    def __init__(self, data: Path):
        command = [sys.executable, "-m", "rove.cli.main", "hub", "serve", "--data", str(data), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.search(r"http://\S+", line)
        if match is None:
            sys.exit(f"the hub did not start: {line}")
        self.url = match.group()

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait for its end."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def body_of(folder: Path) -> tuple[str, bytes]:
    """Return the content type and the bytes of an upload of the package in `folder`."""
    boundary = "b" * 30
    parts = {"manifest": "manifest.json", "readme": "README.md"}
    parts |= {"wheel" if file.suffix == ".whl" else "source": file.name for file in folder.glob("*-*.*")}
    content = b""
    for part, name in parts.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{part}"; filename="{name}"\r\n\r\n'
        content += head.encode() + (folder / name).read_bytes() + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", content + f"--{boundary}--\r\n".encode()


def upload(url: str, token: str, version: str, body: tuple[str, bytes]) -> int:
    """Upload a version; return the status of the response, or 0 if there was none."""
    request = urllib.request.Request(f"{url}/api/environments/acme/my-sums/{version}", data=body[1], method="PUT")
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Content-Type", body[0])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def check(data: Path) -> set[str]:
    """Return the versions in a data folder after a restart; exit with a message if the folder is inconsistent."""
    store = Store(data)
    try:
        known = {Path("my-sums")} if (store.files / "acme/my-sums").exists() else set()
        try:
            releases = catalogue.releases(store, "acme", "my-sums")
        except Exception:
            releases = []
        for release in releases:
            folder = store.files / "acme/my-sums" / release.version
            known.add(folder.relative_to(store.files / "acme"))
            for file in release.files:
                content = (folder / file.filename).read_bytes()
                if (hashlib.sha256(content).hexdigest(), len(content)) != (file.sha256, file.size):
                    sys.exit(f"{folder / file.filename} has the wrong size or hash")
                known.add((folder / file.filename).relative_to(store.files / "acme"))
        existing = {path.relative_to(store.files / "acme") for path in store.files.glob("acme/**/*")} - {Path()}
        if existing != known:
            sys.exit(f"files only in the folder or only in the index: {existing ^ known}")
        if any(store.drafts.iterdir()):
            sys.exit("a draft of an upload was not removed")
        return {release.version for release in releases}
    finally:
        store.close()


def kill_uploads(folder: Path, kills: int, seed: int, verbose: bool = True) -> Outcome:
    """Kill a hub during `kills` uploads, restart it and check it each time; exit with a message at the first error.

    Args:
        folder: Empty folder for the hub and the packages.
        kills: Number of kills.
        seed: Random seed of the times and of the padding.
        verbose: Whether to print the counts after every 10 kills.
    """
    rng = random.Random(seed)
    data = folder / "hub"
    store = Store(data)
    store.add_owner("acme")
    token = make_token(store.database, "acme")
    store.close()
    noise = random.Random(seed).randbytes(PADDING_BYTES)
    acknowledged = published = 0
    hub = Hub(data)
    try:
        durations = [_first_upload_seconds(hub, folder, token, noise)]
        for number in range(kills):
            version = f"1.{number}"
            body = _package(folder, version, noise)
            statuses: list[int] = []
            uploading = threading.Thread(
                target=_timed_upload, args=(statuses, durations, hub.url, token, version, body)
            )
            uploading.start()
            time.sleep(rng.uniform(0.0, 1.1 * statistics.median(durations[-5:])))
            hub.kill()
            uploading.join()
            hub = Hub(data)
            exists = version in check(data)
            if statuses[0] == 201 and not exists:
                sys.exit(f"the upload of {version} was accepted (201), but the version does not exist")
            if statuses[0] not in (0, 201):
                sys.exit(f"the upload of {version} returned status {statuses[0]}; expected 201 or no response")
            acknowledged, published = acknowledged + (statuses[0] == 201), published + exists
            started = time.perf_counter()
            again = upload(hub.url, token, version, body)
            if again == 201:
                durations.append(time.perf_counter() - started)
            if again != (409 if exists else 201):
                sys.exit(
                    f"{version} {'exists' if exists else 'does not exist'}, but uploading it again returned status {again}"
                )
            if verbose and (number + 1) % 10 == 0:
                print(
                    f"{number + 1} kills: {acknowledged} after the response, {published} versions complete, the others absent",
                    flush=True,
                )
        check(data)
        return Outcome(kills, acknowledged, published)
    finally:
        hub.kill()


def _timed_upload(statuses: list[int], durations: list[float], *arguments: Any) -> None:
    started = time.perf_counter()
    statuses.append(upload(*arguments))
    if statuses[-1] == 201:
        durations.append(time.perf_counter() - started)


def _first_upload_seconds(hub: Hub, folder: Path, token: str, noise: bytes) -> float:
    """Upload to a new hub without a kill and return the seconds that it takes."""
    body = _package(folder, "0.1", noise)
    started = time.perf_counter()
    if upload(hub.url, token, "0.1", body) != 201:
        sys.exit("an upload without a kill was not accepted; expected status 201")
    return time.perf_counter() - started


def _package(folder: Path, version: str, noise: bytes) -> tuple[str, bytes]:
    source = folder / "made" / version
    put_package(source, "my-sums", version, {"padding.bin": noise})
    return body_of(source)


def main() -> None:
    """Run the test and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = kill_uploads(Path(folder), args.kills, args.seed)
    print(
        f"{outcome.kills} kills: {outcome.published} versions were complete, {outcome.kills - outcome.published} absent, none "
        f"partial; all {outcome.acknowledged} that the hub had acknowledged with 201 existed"
    )


if __name__ == "__main__":
    main()
