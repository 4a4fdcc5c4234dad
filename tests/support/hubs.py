"""Hubs for tests: a data folder with owners and packages, a server to ask over a real socket, and a folder of plain files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from aiohttp import ClientSession, FormData, TCPConnector
from multidict import CIMultiDictProxy
from packages import put_package
from yarl import URL

from rove.hub.package.manifest import Manifest
from rove.hub.server.app import make_app, serving
from rove.hub.server.checkers import Session
from rove.hub.server.store import Store, StoredFile, read_run
from rove.hub.server.tokens import ADMIN, Access, make_token

DOUBLING = """
import rove as vf
{imports}

def load_environment(num_examples: int = 4, seed: int = 0):
    def correct(completion, answer):
        return float(completion[-1]["content"] == answer)

    return vf.SingleTurnEnv(
        dataset=[{{"question": f"{what} {{n}}", "answer": str({factor} * n)}} for n in range(seed, seed + num_examples)],
        rubric=vf.Rubric([correct], [{weight}]),
        policies={{"oracle": lambda messages, state, rng: state["answer"]}},
    )
"""
V0 = """
import verifiers as vf


def load_environment(num_examples=4, **kwargs):
    def correct(completion, answer):
        return 1.0 if completion[-1]["content"] == answer else 0.0

    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(num_examples)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[correct]))
"""


T = TypeVar("T")


def add(store: Store, owner: str = "acme", name: str = "my-sums", version: str = "1.0", **fields: Any) -> Manifest:
    """Put a package on a hub, checked as an upload is; `fields` are more of its manifest's, but for `private`."""
    private = fields.pop("private", False)
    folder = store.folder.parent / "made" / owner / name / version
    manifest = put_package(folder, name, version, **fields)
    draft = store.new_draft()
    for part, content in parts_of(folder, manifest).items():
        (draft / part).write_bytes(content)
    kept = [StoredFile(**file) for file in Session().check(str(draft), owner, name, version, [])]
    store.add(owner, manifest, draft, kept)
    if private:
        store.set_private(owner, manifest.name, True, Access(owner, (ADMIN,)))
    return manifest


def fill(store: Store, keys: list[str] | None = None) -> None:
    """Put on a hub: acme/my-sums, one version with a run and one yanked; zeta/chess; acme/secret, which is private."""
    store.add_owner("acme", keys)
    store.add_owner("zeta")
    for version in ("1.0", "1.1"):
        add(store, version=version)
    add(store, "zeta", "chess")
    store.set_private("acme", "secret", True, Access("acme", ("admin",)))
    add(store, name="secret")
    store.add_run("acme", "my-sums", "1.1", read_run(b'{"model": "tiny", "summary": {"reward": 1}}'))
    store.yank("acme", "my-sums", "1.0", "old")


def parts_of(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    """The parts of an upload of a package in a folder."""
    files = {"manifest": "manifest.json", "readme": "README.md", "signature": "manifest.sig"}
    files |= {file.kind: file.filename for file in manifest.files}
    return {part: (folder / name).read_bytes() for part, name in files.items() if (folder / name).exists()}


def package(folder: Path, name: str = "my-sums", version: str = "1.0", **fields: Any) -> dict[str, bytes]:
    """The parts of an upload of a new package."""
    return parts_of(folder, put_package(folder, name, version, **fields))


def listing(folder: Path) -> dict[str, str]:
    """Every file and folder of a hub, with what is in it; of its tables what they say, as SQLite moves bytes around."""
    store = Store(folder)
    try:
        tables = [
            row[0] for row in store.database.query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        ]
        rows = {table: str([tuple(row) for row in store.database.query(f"SELECT * FROM {table}")]) for table in tables}
    finally:
        store.close()
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if not path.name.startswith("hub.sqlite")
    }
    return files | rows


class Answer(NamedTuple):
    """What a hub has answered."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def text(self) -> str:
        """The body, as text."""
        return self.body.decode()

    @property
    def error(self) -> str:
        """Why it was refused."""
        return msgspec.json.decode(self.body)["error"]


class Asking:
    """A client of a hub.

    Args:
        url: of the hub.
        session: to ask with.
        tokens: by name.
    """

    def __init__(self, url: str, session: ClientSession, tokens: Mapping[str, str]):
        self.url, self.session, self.tokens = url, session, tokens

    async def ask(self, method: str, path: str | URL, token: str | None = None, **options: Any) -> Answer:
        """A request, with a token of `tokens` or any other; its answer has been read."""
        headers = {**options.pop("headers", {})}
        if token is not None:
            headers["Authorization"] = f"Bearer {self.tokens.get(token, token)}"
        async with self.session.request(
            method,
            self.url + path if isinstance(path, str) else path,
            headers=headers,
            allow_redirects=False,
            **options,
        ) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, token: str | None = None, **options: Any) -> Any:
        """JSON that must be there."""
        answer = await self.ask("GET", path, token, **options)
        assert answer.status == 200, answer.text
        return msgspec.json.decode(answer.body)

    async def upload(self, place: str, parts: Mapping[str, bytes], token: str | None = "acme") -> Answer:
        """Upload parts to OWNER/NAME/VERSION."""
        return await self.ask("PUT", f"/api/environments/{place}", token, data=form(parts))


class InThread:
    """A hub at work in a thread of its own, for tests that wait for sockets themselves; arguments are those of `hub`."""

    def __init__(self, folder: Path, **options: Any):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._hub = hub(folder, **options)
        self.asking = self.run(self._hub.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns, in the thread of the hub."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        """End it."""
        try:
            self.run(self._hub.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def form(parts: Mapping[str, bytes]) -> FormData:
    """A body of multipart/form-data."""
    made = FormData()
    for part, content in parts.items():
        made.add_field(part, content, filename=part, content_type="application/octet-stream")
    return made


@asynccontextmanager
async def hub(folder: Path, owners: tuple[str, ...] = ("acme", "zeta"), **options: Any) -> AsyncIterator[Asking]:
    """A hub at work with owners, each of which has a token of its name, and one to do everything: "acme-admin"."""
    store = Store(folder)
    try:
        store.recover()
        tokens = {}
        for owner in owners:
            store.add_owner(owner)
            tokens[owner] = make_token(store.database, owner)
            tokens[f"{owner}-admin"] = make_token(store.database, owner, ["admin"])
        alone = TCPConnector(force_close=True)  # one that is used again may be closed at that moment, for being idle
        async with serving(make_app(store, "test", **options)) as url, ClientSession(connector=alone) as session:
            yield Asking(url, session, tokens)
    finally:
        store.close()


def code(what: str = "Double", factor: int = 2, weight: float = 1.0, imports: str = "") -> bytes:
    """A module that works: its oracle gets `weight`."""
    return DOUBLING.format(what=what, factor=factor, weight=weight, imports=imports).encode()


def publish(
    hub: Path,
    owner: str = "alice",
    name: str = "doubling",
    version: str = "1.0",
    module: bytes | None = None,
    module_name: str | None = None,
    dependencies: tuple[str, ...] = (),
    **fields: Any,
) -> Path:
    """Put a version that works into a hub's folder, as `rove hub export` lays it out; returns where its files are."""
    folder = hub / owner / name / version
    modules = {f"{module_name or name.replace('-', '_')}.py": code() if module is None else module}
    fields = {"description": f"{name} of {owner}", **fields}
    put_package(folder, name, version, modules=modules, dependencies=dependencies, is_with_source=False, **fields)
    (folder / "README.md").unlink()
    list_again(hub)
    return folder


def list_again(hub: Path, **said: dict[str, Any]) -> None:
    """Write the indexes of a hub's folder, from what lies in it.

    Args:
        said: more about an environment, by "OWNER/NAME": fields of its index.
    """
    listed = []
    for environment in sorted(folder for folder in hub.glob("*/*") if folder.is_dir()):
        owner, name = environment.parent.name, environment.name
        versions = []
        for folder in sorted(path for path in environment.iterdir() if path.is_dir()):
            content = (folder / "manifest.json").read_bytes()
            files = [
                {key: file[key] for key in ("filename", "sha256", "size")} for file in json.loads(content)["files"]
            ]
            sha256 = hashlib.sha256(content).hexdigest()
            uploaded = "2026-11-22T00:00:00Z"
            versions.append(
                {"version": folder.name, "uploaded": uploaded, "yanked": None, "manifest": sha256, "files": files}
            )
        index = {"schema": 1, "owner": owner, "name": name, "versions": versions, "keys": []}
        (environment / "index.json").write_bytes(msgspec.json.encode(index | said.get(f"{owner}/{name}", {})))
        last = json.loads(content)
        kept = {key: last[key] for key in ("description", "tags", "compatibility", "licence")}
        listed.append(
            {"owner": owner, "name": name, "version": last["version"], "downloads": 0, "updated": uploaded} | kept
        )
    (hub / "index.json").write_bytes(
        msgspec.json.encode({"schema": 1, "hub": "test", "environments": listed, "search": None})
    )


def tampered(file: Path, old: bytes, new: bytes) -> None:
    """Change what a hub has."""
    content = file.read_bytes()
    assert old in content and len(old) == len(new)
    file.write_bytes(content.replace(old, new))
