"""A kill harness for the hub: `kill -9` at random instants of uploads; each version is there whole afterwards, or not at all.

    python benchmarks/hub_kills.py [--kills 100] [--seed 0]

A hub is started, a package is uploaded to it, and the process is killed at a random instant between the upload's first byte and a
little after its end, judged by how long the last ones took. Then it is started again: what the index has must be whole (every
file there, of the right size and hash), no file or folder may lie in the data folder that the index does not know, a version that
was answered with 201 must be there, and the same upload must be taken or, where the version is there, be refused as being there.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from packages import put_package

from rove.hub.server import catalogue
from rove.hub.server.store import Store
from rove.hub.server.tokens import make_token

PADDING = 1 << 20
"""Bytes that do not compress, in each wheel: an upload is to take a while."""


class Outcome(NamedTuple):
    """How many uploads ended in which way."""

    kills: int
    answered: int
    """Of those that were killed, how many had had their answer."""
    whole: int
    """... and how many versions were there after the restart."""


class Hub:
    """`rove hub serve` in a process of its own."""

    def __init__(self, data: Path):
        command = [sys.executable, "-m", "rove.cli.main", "hub", "serve", "--data", str(data), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            sys.exit(f"the hub did not start: {line}")
        self.url = found.group()

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def body_of(folder: Path) -> tuple[str, bytes]:
    """An upload of a package: its content type and its bytes."""
    boundary = "b" * 30
    parts = {"manifest": "manifest.json", "readme": "README.md"}
    parts |= {"wheel" if file.suffix == ".whl" else "source": file.name for file in folder.glob("*-*.*")}
    content = b""
    for part, name in parts.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{part}"; filename="{name}"\r\n\r\n'
        content += head.encode() + (folder / name).read_bytes() + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", content + f"--{boundary}--\r\n".encode()


def upload(url: str, token: str, version: str, body: tuple[str, bytes]) -> int:
    """Upload; the status of the answer, 0 where there was none."""
    request = urllib.request.Request(f"{url}/api/environments/acme/my-sums/{version}", data=body[1], method="PUT")
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Content-Type", body[0])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def check(data: Path) -> set[str]:
    """The versions of a data folder after a restart; ends the program where it is not as it should be."""
    store = Store(data)
    try:
        known = {Path("my-sums")} if (store.files / "acme/my-sums").exists() else set()
        try:
            releases = catalogue.releases(store, "acme", "my-sums")
        except Exception:
            releases = []
        for release in releases:
            place = store.files / "acme/my-sums" / release.version
            known.add(place.relative_to(store.files / "acme"))
            for file in release.files:
                content = (place / file.filename).read_bytes()
                if (hashlib.sha256(content).hexdigest(), len(content)) != (file.sha256, file.size):
                    sys.exit(f"{place / file.filename} is torn")
                known.add((place / file.filename).relative_to(store.files / "acme"))
        there = {path.relative_to(store.files / "acme") for path in store.files.glob("acme/**/*")} - {Path()}
        if there != known:
            sys.exit(f"in the folder, and not in the index or the other way round: {there ^ known}")
        if any(store.drafts.iterdir()):
            sys.exit("a draft has stayed")
        return {release.version for release in releases}
    finally:
        store.close()


def harass(place: Path, kills: int, seed: int, tell: bool = True) -> Outcome:
    """Kill, start again, look; ends the program at the first thing that is not right."""
    instants = random.Random(seed)
    data = place / "hub"
    store = Store(data)
    store.add_owner("acme")
    token = make_token(store.database, "acme")
    store.close()
    noise = random.Random(seed).randbytes(PADDING)
    answered = whole = 0
    hub = Hub(data)
    try:
        took = [_measure(hub, place, token, noise)]
        for number in range(kills):
            version = f"1.{number}"
            body = _package(place, version, noise)
            answers: list[int] = []
            uploading = threading.Thread(target=_note, args=(answers, took, hub.url, token, version, body))
            uploading.start()
            time.sleep(instants.uniform(0.0, 1.1 * statistics.median(took[-5:])))
            hub.kill()
            uploading.join()
            hub = Hub(data)
            there = version in check(data)
            if answers[0] == 201 and not there:
                sys.exit(f"{version} was taken (201), and is not there")
            if answers[0] not in (0, 201):
                sys.exit(f"{version} was answered with {answers[0]}")
            answered, whole = answered + (answers[0] == 201), whole + there
            began = time.perf_counter()
            again = upload(hub.url, token, version, body)
            if again == 201:
                took.append(time.perf_counter() - began)
            if again != (409 if there else 201):
                sys.exit(
                    f"{version} is {'' if there else 'not '}there, and uploading it again is answered with {again}"
                )
            if tell and (number + 1) % 10 == 0:
                print(
                    f"{number + 1} kills: {answered} after the answer, {whole} versions whole, the others absent",
                    flush=True,
                )
        check(data)
        return Outcome(kills, answered, whole)
    finally:
        hub.kill()


def _note(answers: list[int], took: list[float], *asked: Any) -> None:
    began = time.perf_counter()
    answers.append(upload(*asked))
    if answers[-1] == 201:
        took.append(time.perf_counter() - began)


def _measure(hub: Hub, place: Path, token: str, noise: bytes) -> float:
    """Seconds that the first upload to a hub takes, as each of those that are killed is."""
    body = _package(place, "0.1", noise)
    began = time.perf_counter()
    if upload(hub.url, token, "0.1", body) != 201:
        sys.exit("an upload that nobody disturbs is not taken")
    return time.perf_counter() - began


def _package(place: Path, version: str, noise: bytes) -> tuple[str, bytes]:
    folder = place / "made" / version
    put_package(folder, "my-sums", version, {"padding.bin": noise})
    return body_of(folder)


def main() -> None:
    """Kill and look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        done = harass(Path(place), given.kills, given.seed)
    print(
        f"{done.kills} kills: {done.whole} versions were there whole, {done.kills - done.whole} not at all, none half; all "
        f"{done.answered} that had been answered with 201 were there"
    )


if __name__ == "__main__":
    main()
