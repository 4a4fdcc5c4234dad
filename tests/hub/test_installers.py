"""Plain pip and uv, from a hub that is served and from one that is plain files."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hubs import InThread, add

from rove.hub.server.export import export
from rove.hub.server.store import Store
from rove.hub.server.tokens import Access

UV = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
WHEEL = "my_sums-1.1-py3-none-any.whl"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of the index of `acme`, by kind of hub."""
    place = tmp_path_factory.mktemp("installers")
    store = Store(place / "hub")
    store.add_owner("acme")
    for version in ("1.0", "1.1", "1.2", "2.0rc1"):
        add(store, version=version)
    store.yank("acme", "my-sums", "1.2", "gives rewards above 1")
    export(store, place / "site")
    store.set_private("acme", "secret", True, Access("acme", ("admin",)))
    add(store, name="secret")
    store.close()
    hub = InThread(place / "hub", fallback="https://pypi.invalid/simple")
    files = functools.partial(Quiet, directory=str(place / "site"))
    web = ThreadingHTTPServer(("127.0.0.1", 0), files)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    url = hub.asking.url
    user = f"__token__:{hub.asking.tokens['acme']}"
    try:
        yield {
            "served": f"{url}/acme/simple/",
            "served, with a token": f"{url.replace('//', f'//{user}@')}/acme/simple/",
            "file://": f"{(place / 'site/acme/simple').as_uri()}/",
            "any web server": f"http://127.0.0.1:{web.server_port}/acme/simple/",
        }
    finally:
        web.shutdown()
        web.server_close()
        hub.close()


class Quiet(SimpleHTTPRequestHandler):
    """Says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """A command that knows of no other index and no cache."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    env |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=env)


def pip(index: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
    return run(*command, "--index-url", index, *words)


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["served", "file://"])
def test_pip_finds_and_checks_the_highest_version_that_is_neither_yanked_nor_early(
    places: dict[str, str], kind: str, tmp_path: Path
):
    done = pip(places[kind], "my-sums", "-d", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [WHEEL]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["served", "served, with a token", "file://", "any web server"])
def test_pip_takes_what_is_asked_for(places: dict[str, str], kind: str, tmp_path: Path):
    yanked = pip(places[kind], "my-sums==1.2", "-d", str(tmp_path / "yanked"))
    assert yanked.returncode == 0 and "gives rewards above 1" in yanked.stderr
    early = pip(places[kind], "my-sums", "--pre", "--no-binary", ":none:", "-d", str(tmp_path / "early"))
    assert [path.name for path in (tmp_path / "early").iterdir()] == ["my_sums-2.0rc1-py3-none-any.whl"], early.stderr
    secret = pip(places[kind], "secret", "-d", str(tmp_path / "secret"))
    assert (secret.returncode == 0) == ("token" in kind), secret.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["served", "served, with a token", "file://", "any web server"])
def test_uv_installs(places: dict[str, str], kind: str, tmp_path: Path):
    if UV is None:
        pytest.skip("uv is not installed; pip install uv")
    command = [UV, "pip", "install", "--no-deps", "--no-cache", "--python", sys.executable, "--target", str(tmp_path)]
    done = run(*command, "--index-url", places[kind], "my-sums")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my_sums.py").exists() and (tmp_path / "my_sums-1.1.dist-info").exists()
    done = run(*command, "--index-url", places[kind], "secret")
    assert (done.returncode == 0) == ("token" in kind), done.stderr
