"""`rove search`, `info`, `install`, `list`, `uninstall`, `push`, `hub login`, and hub environments in other commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Rove, in_process_rove, write_environment
from fault_endpoint import last_text
from hubs import V0_MODULE, code, publish, rewrite_indexes, tamper
from packages import put_wheel, wheel_files, with_record

from rove.cli import hub_options as hub_options
from rove.cli import install
from rove.hub.client.hub import Hub, HubFile
from rove.hub.client.installed import all_installed
from rove.hub.client.installing import Locked, write_lock
from rove.hub.client.settings import token_for
from tests.cli.test_main import endpoint


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("ROVE_HUB_TOKEN", raising=False)


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    folder.mkdir()
    publish(folder, tags=["math"], metrics=["correct"], reward_range=(0.0, 1.0))
    publish(folder, owner="bob", name="triples", module=code("Triple", 3))
    monkeypatch.setenv("ROVE_HUB", str(folder))
    return folder


@pytest.mark.parametrize("target", ["./package", "package-1.0-py3-none-any.whl", "git+https://example.com/a/package"])
def test_locked_installs_no_local_package(rove: Rove, target: str) -> None:
    status, _, err = rove("install", target, "--locked", "--yes")
    assert status == 2 and "--locked installs only versions in rove.lock" in err


def test_search_lists_environments_and_suggests_the_next_command(rove: Rove, hub: Path) -> None:
    status, out, _ = rove("search")
    assert status == 0 and "alice/doubling" in out and "bob/triples" in out
    assert "rove info alice/doubling" in out and max(map(len, out.splitlines())) <= 100
    status, out, _ = rove("search", "doubling", "--tag", "math", "--json")
    assert [listed["owner"] for listed in json.loads(out)["environments"]] == ["alice"]
    assert "nothing found" in rove("search", "chess")[1]


def test_control_characters_and_markup_of_descriptions_have_no_effect(rove: Rove, hub: Path) -> None:
    index = json.loads((hub / "index.json").read_bytes())
    index["environments"][0]["description"] = "\x1b[31mred\x1b]8;;http://evil\x07 [bold]big[/bold] \u202eback"
    (hub / "index.json").write_text(json.dumps(index))
    out = rove("search")[1]
    assert "\x1b" not in out and "\x07" not in out and "\u202e" not in out and "[bold]" in out


@pytest.mark.slow
def test_suggested_commands_repeat_the_hub_option(rove: Rove, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROVE_HUB")
    flag = ("--hub", str(hub))
    expected_flag = f"--hub {hub}"
    out = rove("search", *flag)[1]
    assert f"rove info alice/doubling {expected_flag}" in out and f"rove install alice/doubling {expected_flag}" in out
    assert f"list everything: rove search {expected_flag}" in rove("search", "chess", *flag)[1]
    assert f"rove install alice/doubling {expected_flag}" in rove("info", "alice/doubling", *flag)[1]
    words = ("eval", "alice/doubling", "-m", "scripted:oracle", "-n", "1", "-r", "1")
    status, _, err = rove(*words, *flag)
    assert status == 2 and f"install it first: rove install alice/doubling {expected_flag}, or give --yes" in err
    status, out, err = rove(*words, *flag, "--yes")
    assert status == 0 and "rove play alice/doubling -m scripted:oracle" in out, err
    assert rove("play", "alice/doubling", "-m", "scripted:oracle", "--hub", "/nowhere")[0] == 0  # it is installed


def test_info_shows_the_manifest_and_the_needs(rove: Rove, hub: Path) -> None:
    publish(hub, version="1.1", needs={"secrets": ["JUDGE_KEY"], "network": True})
    status, out, _ = rove("info", "alice/doubling@1.0")
    assert status == 0
    for words in (
        "doubling of alice",
        "math",
        "0 to 1",
        "no network, no key, no sandbox",
        "rove install alice/doubling",
        "1.1",
    ):
        assert words in out
    assert "network access, key JUDGE_KEY" in rove("info", "alice/doubling")[1]
    report = json.loads(rove("info", "alice/doubling", "--json")[1])
    assert (
        report["manifest"]["version"] == "1.1" and report["installed"] is None and len(report["index"]["versions"]) == 2
    )
    status, _, err = rove("info", "doubling")
    assert status == 2 and "OWNER/NAME" in err


def test_nothing_is_installed_without_confirmation(rove: Rove, hub: Path) -> None:
    status, out, err = rove("install", "alice/doubling")
    assert status == 2 and "doubling of alice" in out and "no terminal to ask in: give --yes" in err
    status, _, err = rove("eval", "alice/doubling", "-m", "scripted:oracle")
    assert status == 2 and "install it first: rove install alice/doubling, or give --yes" in err
    assert all_installed() == []


def test_environments_in_folders_are_listed_without_importing_them(rove: Rove) -> None:
    for folder, name in (("environments", "courier"), ("mine", "other")):
        write_environment(Path(folder), name, "raise SystemExit('imported')\ndef load_environment(): ...\n")
    Path("environments/helpers.py").write_text("WORDS = []\n")
    status, out, _ = rove("list")
    assert status == 0 and "in environments: courier\n" in out and "other" not in out
    assert "in mine: other\nin environments: courier\n" in rove("list", "--env-dir", "mine")[1]
    assert json.loads(rove("list", "--json")[1]) == [
        {"environment": "courier", "origin": "environments", "path": "environments/courier/courier.py"}
    ]
    status, _, err = rove("list", "--env-dir", "nowhere")
    assert status == 2 and "--env-dir nowhere is not a folder" in err


@pytest.mark.broad
def test_an_environment_is_installed_evaluated_listed_and_uninstalled(rove: Rove, hub: Path) -> None:
    status, out, err = rove("install", "alice/doubling", "--yes", "--lock", "--json")
    assert status == 0, err
    [installed] = json.loads(out)
    assert installed["environment"] == "alice/doubling" and installed["module"] == "doubling"
    assert Path("rove.lock").read_text().count("[[environment]]") == 1
    status, out, err = rove("eval", "alice/doubling", "-m", "scripted:oracle", "-n", "2", "-r", "1", "--json")
    assert status == 0, err
    assert json.loads(out)["reward"]["mean"] == 1.0
    status, out, _ = rove("play", "alice/doubling", "-m", "scripted:oracle", "--seed", "1")
    assert status == 0 and "Double" in out
    status, out, _ = rove("list")
    assert status == 0 and "alice/doubling" in out and "tictactoe" in out
    assert [row["environment"] for row in json.loads(rove("list", "--json")[1])] == ["alice/doubling"]
    assert "already installed" in rove("install", "--locked")[1]
    assert rove("uninstall", "alice/doubling")[0] == 2
    assert rove("uninstall", "alice/doubling", "--yes")[0] == 0
    status, _, err = rove("uninstall", "alice/doubling", "--yes")
    assert status == 1 and "is not installed; installed: none" in err
    # installs the locked version, although the hub has a newer one
    publish(hub, version="2.0")
    assert json.loads(rove("install", "--yes", "--json")[1])[0]["version"] == "1.0"
    status, _, err = rove("install", "bob/triples", "--locked", "--yes")
    assert status == 2 and "not in rove.lock" in err
    tamper(hub / "alice/doubling/1.0/manifest.json", b"doubling of alice", b"doubling of Alice")
    rewrite_indexes(hub)
    rove("uninstall", "alice/doubling", "--yes")
    status, _, err = rove("install", "--yes")
    assert status == 1 and "alice/doubling@1.0 does not match rove.lock: its manifest differs" in err


def test_into_current_writes_a_lock_and_a_declined_install_fails(
    rove: Rove, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "install_into_current", lambda *words: None)
    assert rove("install", "alice/doubling", "--yes", "--lock", "--into-current")[0] == 0
    assert 'name = "doubling"' in Path("rove.lock").read_text()
    monkeypatch.setattr(install, "confirmed", lambda *words: False)
    assert rove("install")[0] == 1


def test_a_hub_named_only_in_a_lock_receives_no_token(rove: Rove, monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[tuple[str, str | None]] = []

    class RecordingHub(Hub):
        def __init__(self, address: str, token: str | None = None):
            connections.append((address, token or token_for(address)))
            super().__init__("nowhere")

    monkeypatch.setattr(hub_options, "Hub", RecordingHub)
    monkeypatch.delenv("ROVE_HUB", raising=False)
    monkeypatch.setenv("ROVE_HUB_TOKEN", "rove_mine")
    files = [HubFile(filename="a-1.0-py3-none-any.whl", sha256="0" * 64, size=1)]
    locked = Locked(owner="a", name="b", version="1.0", hub="https://evil", manifest="0" * 64, files=files)
    write_lock(Path("rove.lock"), [locked])
    for words in (["install", "--yes"], ["install", "--yes", "a/b", "--hub", "https://mine"]):
        assert rove(*words)[0] != 0
    assert connections == [("https://evil", None), ("https://mine", "rove_mine")]


@pytest.mark.broad
def test_a_wheel_written_for_verifiers_v0_is_installed_and_evaluated(rove: Rove, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    files = wheel_files("old-sums", "0.3", {"old_sums.py": V0_MODULE.encode()}, "Requires-Dist: verifiers>=0.1.5\n")
    wheel = put_wheel(folder, with_record(files), "old_sums-0.3-py3-none-any.whl")
    status, out, err = rove("install", str(wheel), "--yes")
    assert status == 0, err
    assert "verifiers v0" in out and "local/old-sums@0.3" in out
    with endpoint([], lambda body: str(2 * int(last_text(body).split()[2]))) as server:
        words = ("-m", "any", "-b", server.base_url, "-n", "3", "-r", "1", "--json")
        status, out, err = rove("eval", "local/old-sums", *words)
    assert status == 0, err
    assert json.loads(out)["reward"]["mean"] == 1.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["install"], "nothing to install: name an environment"),
        (["install", "nothing.whl"], "the wheel nothing.whl does not exist"),
        (["install", "./nowhere"], "has no pyproject.toml"),
        (["install", "doubling"], "write OWNER/NAME"),
        (["install", "Alice/doubling"], "is not a valid owner name"),
        (["install", "alice/doubling@one"], "is not a valid version"),
        (["install", "git+file:///nowhere/at/all", "--yes"], "git clone"),
        (["push", "--yes"], "is a read-only folder"),
        (["hub", "login", "http://127.0.0.1:9", "--no-token"], "no response from the hub"),
    ],
)
def test_invalid_commands_are_refused(rove: Rove, hub: Path, words: list[str], message: str) -> None:
    status, _, err = rove(*words)
    assert status in (1, 2) and message in err


def test_login_stores_the_hub_folder(rove: Rove, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROVE_HUB")
    status, _, err = rove("search")
    assert status == 2 and "no hub is configured" in err
    status, out, _ = rove("hub", "login", str(hub))
    assert status == 0 and "is now your hub" in out
    assert "alice/doubling" in rove("search")[1]
    status, _, err = rove("hub", "login", str(tmp_path / "nothing"))
    assert status == 2 and "not an existing folder" in err


def test_without_a_hub_names_with_an_owner_are_modules_with_a_notice(
    rove: Rove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROVE_HUB", raising=False)
    status, _, err = rove("eval", "someone/tictactoe", "-m", "scripted:teacher", "-n", "1", "-r", "1")
    assert status == 0 and err.count("someone/tictactoe is not installed; trying a module of that name") == 1
