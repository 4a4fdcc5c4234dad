"""`rove hub` from the command line."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from commands import Rove, in_process_rove, start_rove
from hubs import add

from rove.hub.package.signing import make_key
from rove.hub.server.store import Store

PAGE = Path(__file__).resolve().parents[2] / "docs/hub_server.md"


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    monkeypatch.delenv("ROVE_HUB_DATA", raising=False)
    return in_process_rove(tmp_path, monkeypatch, capsys)


def publish_two_versions(folder: Path) -> None:
    store = Store(folder)
    store.add_owner("acme")
    for version in ("1.0", "1.1"):
        add(store, version=version)
    store.close()


def serve_once(folder: Path, *words: str) -> tuple[str, str]:
    """Start a hub, request its index and stop it with Ctrl-C; return its output and the index."""
    with start_rove(folder, "hub", "serve", "--port", "0", *words) as process:
        try:
            output, url = _address(process)
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/index.json") as answer:
                index = answer.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
        last_output, errors = process.communicate(timeout=30)
        output += last_output
        assert (process.returncode, "stopped" in output, errors) == (0, True, ""), errors
    return output, index


def _address(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the first lines that a hub prints, and its address."""
    assert process.stdout is not None
    output = line = ""
    while not (match := re.search(r"http://127\.0\.0\.1:\d+", line)):
        line = process.stdout.readline()
        output += line
        assert line, (output, process.communicate(timeout=30))
    return output, match[0]


def test_a_token_is_shown_once_listed_and_revoked(rove: Rove):
    created = rove("hub", "token", "acme", "--note", "laptop")
    assert created.status == 0 and "acme: new owner" in created.out
    [text] = re.findall(r"^rove_\S{43}$", created.out, flags=re.MULTILINE)
    admin_token = json.loads(rove("hub", "token", "acme", "--scope", "admin", "--days", "0", "--json").out)
    assert (admin_token["scopes"], admin_token["expires"], admin_token["token"][:5]) == (["admin"], None, "rove_")
    listed = rove("hub", "token", "--list")
    assert "never" in listed.out and "revoked" not in listed.out
    assert "laptop" in listed.out and text not in listed.out
    assert "was revoked" in rove("hub", "token", "--revoke", "1").out
    [first, second] = json.loads(rove("hub", "token", "--list", "--json").out)
    assert first["revoked"] and not second["revoked"]


def test_invalid_commands_are_refused_before_anything_is_created(rove: Rove, tmp_path: Path):
    for words, message in (
        (["export", "site"], "there is no hub in hub"),
        (["token", "--list"], "there is no hub in hub"),
        (["token"], "name the owner"),
        (["user", "acme", "--key", "abc"], "is not a public key"),
        (["user", "acme", "--key", "A" * 43 + "=", "--no-keys"], "exclude each other"),
        (["serve", "--fallback", "index.example"], "expected an address"),
    ):
        done = rove("hub", *words)
        assert (done.status, message in done.err) == (2, True), done
        assert list(tmp_path.iterdir()) == []
    assert "is not a valid owner name" in rove("hub", "token", "A_B").err
    assert "unknown scope 'write'" in rove("hub", "token", "acme", "--scope", "write").err


def test_keys_of_an_owner_are_set_and_removed(rove: Rove, tmp_path: Path):
    key = make_key(tmp_path / "key")
    assert "new owner" in rove("hub", "user", "acme", "--key", key).out
    store = Store(tmp_path / "hub")
    assert json.loads(store.database.query("SELECT keys FROM owners")[0][0]) == [key]
    assert "an owner" in rove("hub", "user", "acme").out
    assert json.loads(store.database.query("SELECT keys FROM owners")[0][0]) == [key]
    assert rove("hub", "user", "acme", "--no-keys").status == 0
    assert json.loads(store.database.query("SELECT keys FROM owners")[0][0]) == []
    store.close()


@pytest.mark.broad
def test_a_hub_is_exported_and_served_with_its_damage_reported(rove: Rove, tmp_path: Path):
    publish_two_versions(tmp_path / "hub")
    assert "site: 1 environment, 2 versions" in rove("hub", "export", "site", "--name", "ours").out
    (tmp_path / "hub/files/acme/my-sums/1.0/README.md").unlink()
    output, index = serve_once(tmp_path, "--data", "hub", "--name", "theirs")
    assert "README.md is missing or damaged" in output
    assert json.loads(index)["hub"] == "theirs"


@pytest.mark.broad
def test_a_version_is_yanked_and_restored_and_an_environment_made_private(
    rove: Rove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    publish_two_versions(tmp_path / "hub")
    token = json.loads(rove("hub", "token", "acme", "--scope", "admin", "--json").out)["token"]
    with start_rove(tmp_path, "hub", "serve", "--port", "0") as process:
        try:
            url = _address(process)[1]
            monkeypatch.setenv("ROVE_HUB", url)
            name = json.loads(rove("search", "--json").out)["environments"][0]["name"]
            monkeypatch.setenv("ROVE_HUB_TOKEN", token)
            newest = ("info", f"acme/{name}", "--json")
            assert json.loads(rove(*newest).out)["manifest"]["version"] == "1.1"
            done = rove("hub", "yank", f"acme/{name}@1.1", "--reason", "rewards silence")
            assert done.status == 0 and f"rove hub yank acme/{name}@1.1 --undo" in done.err + done.out
            assert json.loads(rove(*newest).out)["manifest"]["version"] == "1.0"
            assert "rewards silence" in rove("info", f"acme/{name}@1.1").out
            assert rove("hub", "yank", f"acme/{name}@1.1", "--undo").status == 0
            assert json.loads(rove(*newest).out)["manifest"]["version"] == "1.1"
            assert rove("hub", "visibility", f"acme/{name}", "private").status == 0
            monkeypatch.delenv("ROVE_HUB_TOKEN")
            assert "has no environment" in rove(*newest).err
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["yank", "acme/sums"], "name a version: acme/sums@VERSION"),
        (["yank", "acme/sums@1"], "give --reason TEXT, or --undo"),
        (["yank", "acme/sums@1", "--reason", "bad", "--undo"], "give --reason TEXT, or --undo"),
        (["yank", "acme/sums@1", "--reason", "bad", "--hub", "site"], "is a read-only folder"),
        (["visibility", "acme/sums@1", "public"], "is one version"),
    ],
)
def test_invalid_commands_of_an_owner_are_refused(rove: Rove, words: list[str], message: str):
    done = rove("hub", *words)
    assert (done.status, message in done.err) == (2, True), done


@pytest.mark.broad
def test_commands_of_the_hub_server_page_work(tmp_path: Path, rove: Rove):
    text = PAGE.read_text(encoding="utf-8")
    commands = [
        shlex.split(line, comments=True)
        for block in re.findall(r"^```bash\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line.strip()
    ]
    publish_two_versions(tmp_path / "hub")
    served_count = 0
    for command in commands:
        assert command[0] == "rove"
        if command[1:3] == ["hub", "serve"]:
            serve_once(tmp_path, *command[3:])
            served_count += 1
        else:
            done = rove(*command[1:])
            assert done.status == 0, (command, done)
    assert served_count >= 1 and len(commands) > 6
