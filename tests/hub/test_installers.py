"""Plain pip and uv install from a hub's server and from an exported hub."""

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
from hubs import HubThread, add

from rove.hub.server.export import export
from rove.hub.server.store import Store
from rove.hub.server.tokens import Access

UV_PROGRAM = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
WHEEL = "my_sums-1.1-py3-none-any.whl"


@pytest.fixture(scope="module")
def hub_urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the addresses of the index of `acme` by kind of hub."""
    folder = tmp_path_factory.mktemp("installers")
    store = Store(folder / "hub")
    store.add_owner("acme")
    for version in ("1.0", "1.1", "1.2", "2.0rc1"):
        add(store, version=version)
    store.yank("acme", "my-sums", "1.2", "gives rewards above 1")
    export(store, folder / "site")
    store.set_private("acme", "secret", True, Access("acme", ("admin",)))
    add(store, name="secret")
    store.close()
    hub = HubThread(folder / "hub", fallback="https://pypi.invalid/simple")
    handler = functools.partial(QuietHandler, directory=str(folder / "site"))
    web_server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=web_server.serve_forever, daemon=True).start()
    url = hub.client.url
    credentials = f"__token__:{hub.client.tokens['acme']}"
    try:
        yield {
            "served": f"{url}/acme/simple/",
            "served, with a token": f"{url.replace('//', f'//{credentials}@')}/acme/simple/",
            "file://": f"{(folder / 'site/acme/simple').as_uri()}/",
            "any web server": f"http://127.0.0.1:{web_server.server_port}/acme/simple/",
        }
    finally:
        web_server.shutdown()
        web_server.server_close()
        hub.close()


class QuietHandler(SimpleHTTPRequestHandler):
    """A file server that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the user's settings for pip and uv."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    env |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=env)


def pip(index: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
    return run_command(*command, "--index-url", index, *words)


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["served", "file://"])
def test_pip_downloads_the_highest_version_that_is_neither_yanked_nor_a_prerelease(
    hub_urls: dict[str, str], kind: str, tmp_path: Path
):
    done = pip(hub_urls[kind], "my-sums", "-d", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [WHEEL]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["served", "served, with a token", "file://", "any web server"])
def test_pip_downloads_a_pinned_yanked_version_a_prerelease_and_a_private_package(
    hub_urls: dict[str, str], kind: str, tmp_path: Path
):
    yanked = pip(hub_urls[kind], "my-sums==1.2", "-d", str(tmp_path / "yanked"))
    assert yanked.returncode == 0 and "gives rewards above 1" in yanked.stderr
    prerelease = pip(hub_urls[kind], "my-sums", "--pre", "--no-binary", ":none:", "-d", str(tmp_path / "early"))
    assert [path.name for path in (tmp_path / "early").iterdir()] == ["my_sums-2.0rc1-py3-none-any.whl"], (
        prerelease.stderr
    )
    secret = pip(hub_urls[kind], "secret", "-d", str(tmp_path / "secret"))
    assert (secret.returncode == 0) == ("token" in kind), secret.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["served", "served, with a token", "file://", "any web server"])
def test_uv_installs_public_packages_and_private_ones_with_a_token(hub_urls: dict[str, str], kind: str, tmp_path: Path):
    if UV_PROGRAM is None:
        pytest.skip("uv is not installed; pip install uv")
    command = [
        UV_PROGRAM,
        "pip",
        "install",
        "--no-deps",
        "--no-cache",
        "--python",
        sys.executable,
        "--target",
        str(tmp_path),
    ]
    done = run_command(*command, "--index-url", hub_urls[kind], "my-sums")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my_sums.py").exists() and (tmp_path / "my_sums-1.1.dist-info").exists()
    done = run_command(*command, "--index-url", hub_urls[kind], "secret")
    assert (done.returncode == 0) == ("token" in kind), done.stderr
