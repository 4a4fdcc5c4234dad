"""Hubs for tests: a data folder with owners and packages, a server on a real socket, and a folder of plain files."""

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
V0_MODULE = """
import verifiers as vf


def load_environment(num_examples=4, **kwargs):
    def correct(completion, answer):
        return 1.0 if completion[-1]["content"] == answer else 0.0

    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(num_examples)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[correct]))
"""


T = TypeVar("T")


def add(store: Store, owner: str = "acme", name: str = "my-sums", version: str = "1.0", **fields: Any) -> Manifest:
    """Add a package to a hub with the checks of an upload; `fields` are `private` and further fields of its manifest."""
    private = fields.pop("private", False)
    folder = store.folder.parent / "made" / owner / name / version
    manifest = put_package(folder, name, version, **fields)
    draft = store.new_draft()
    for part, content in parts_of(folder, manifest).items():
        (draft / part).write_bytes(content)
    stored = [StoredFile(**file) for file in Session().check(str(draft), owner, name, version, [])]
    store.add(owner, manifest, draft, stored)
    if private:
        store.set_private(owner, manifest.name, True, Access(owner, (ADMIN,)))
    return manifest


def add_example_packages(store: Store, keys: list[str] | None = None) -> None:
    """Add acme/my-sums (a version with a run and a yanked one), zeta/chess, and the private acme/secret to a hub."""
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
    """Return the parts of an upload of the package in a folder."""
    files = {"manifest": "manifest.json", "readme": "README.md", "signature": "manifest.sig"}
    files |= {file.kind: file.filename for file in manifest.files}
    return {part: (folder / name).read_bytes() for part, name in files.items() if (folder / name).exists()}


def package_parts(folder: Path, name: str = "my-sums", version: str = "1.0", **fields: Any) -> dict[str, bytes]:
    """Write a new package and return the parts of its upload."""
    return parts_of(folder, put_package(folder, name, version, **fields))


def hub_contents(folder: Path) -> dict[str, str]:
    """Return the hash of every file of a hub and the rows of its tables; equal tables may have different bytes."""
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


class HubResponse(NamedTuple):
    """A response of a hub."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def error(self) -> str:
        """The error message in the body."""
        return msgspec.json.decode(self.body)["error"]


class HubClient:
    """A client of a hub.

    Args:
        url: Base URL of the hub.
        session: HTTP session.
        tokens: Tokens by name.
    """

    def __init__(self, url: str, session: ClientSession, tokens: Mapping[str, str]):
        self.url, self.session, self.tokens = url, session, tokens

    async def request(self, method: str, path: str | URL, token: str | None = None, **options: Any) -> HubResponse:
        """Send a request and read its response; `token` is a name in `tokens` or a token."""
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
            return HubResponse(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, token: str | None = None, **options: Any) -> Any:
        """Return the JSON at a path; fail unless the status is 200."""
        answer = await self.request("GET", path, token, **options)
        assert answer.status == 200, answer.text
        return msgspec.json.decode(answer.body)

    async def upload(self, path: str, parts: Mapping[str, bytes], token: str | None = "acme") -> HubResponse:
        """Upload parts to OWNER/NAME/VERSION."""
        return await self.request("PUT", f"/api/environments/{path}", token, data=form(parts))


class HubThread:
    """A running hub in a separate thread, for tests that use blocking sockets; arguments are those of `running_hub`."""

    def __init__(self, folder: Path, **options: Any):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._hub = running_hub(folder, **options)
        self.client = self.run(self._hub.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the hub and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        """Stop the hub and its thread."""
        try:
            self.run(self._hub.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def form(parts: Mapping[str, bytes]) -> FormData:
    """Return a body of multipart/form-data."""
    data = FormData()
    for part, content in parts.items():
        data.add_field(part, content, filename=part, content_type="application/octet-stream")
    return data


@asynccontextmanager
async def running_hub(
    folder: Path, owners: tuple[str, ...] = ("acme", "zeta"), **options: Any
) -> AsyncIterator[HubClient]:
    """Run a hub; yield a client that has a token per owner ("acme") and one with all rights ("acme-admin")."""
    store = Store(folder)
    try:
        store.recover()
        tokens = {}
        for owner in owners:
            store.add_owner(owner)
            tokens[owner] = make_token(store.database, owner)
            tokens[f"{owner}-admin"] = make_token(store.database, owner, ["admin"])
        connector = TCPConnector(force_close=True)  # the server may close an idle connection just when it is reused
        async with serving(make_app(store, "test", **options)) as url, ClientSession(connector=connector) as session:
            yield HubClient(url, session, tokens)
    finally:
        store.close()


def code(verb: str = "Double", factor: int = 2, weight: float = 1.0, imports: str = "") -> bytes:
    """Return the source of a working module, in which the policy "oracle" gets the reward `weight`."""
    return DOUBLING.format(what=verb, factor=factor, weight=weight, imports=imports).encode()


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
    """Add a working version to a hub's folder in the layout of `rove hub export`; return the version's folder."""
    folder = hub / owner / name / version
    modules = {f"{module_name or name.replace('-', '_')}.py": code() if module is None else module}
    fields = {"description": f"{name} of {owner}", **fields}
    put_package(folder, name, version, modules=modules, dependencies=dependencies, is_with_source=False, **fields)
    (folder / "README.md").unlink()
    rewrite_indexes(hub)
    return folder


def rewrite_indexes(hub: Path, **index_fields: dict[str, Any]) -> None:
    """Write the indexes of a hub's folder from its packages.

    Args:
        index_fields: Further fields of an environment's index, by "OWNER/NAME".
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
        (environment / "index.json").write_bytes(msgspec.json.encode(index | index_fields.get(f"{owner}/{name}", {})))
        last = json.loads(content)
        summary = {key: last[key] for key in ("description", "tags", "compatibility", "licence")}
        listed.append(
            {"owner": owner, "name": name, "version": last["version"], "downloads": 0, "updated": uploaded} | summary
        )
    (hub / "index.json").write_bytes(
        msgspec.json.encode({"schema": 1, "hub": "test", "environments": listed, "search": None})
    )


def tamper(file: Path, old: bytes, new: bytes) -> None:
    """Replace bytes in a file of a hub by others of the same length."""
    content = file.read_bytes()
    assert old in content and len(old) == len(new)
    file.write_bytes(content.replace(old, new))
