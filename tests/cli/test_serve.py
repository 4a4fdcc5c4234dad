"""`rove serve` as people start, ask and stop it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from commands import Rove, environment, in_its_own, in_this_process
from fakes import tiny_model

SLOW_ENV = """
import asyncio
import rove as vf

async def slow(messages, state, rng):
    if messages[-1].content == "wait":
        await asyncio.sleep(1)
    return "done"

def load_environment(**kwargs):
    return vf.SingleTurnEnv(dataset=[{"question": "wait"}], policies={"slow": slow})
"""


QUOTED_ENV = """
import rove as vf

def oracle(messages, state, rng):
    return state["answer"]

def load_environment(**kwargs):
    return vf.SingleTurnEnv(dataset=[{"question": "What's \\"$x\\" in [bold]?", "answer": "42"}], policies={"oracle": oracle})
"""


CURL = ["curl", "-sS", "--noproxy", "*", "-H", "Content-Type: application/json"]


def wait_for(url: str, metric: str, asking: subprocess.Popen[str]) -> None:
    """Wait until the server reports a metric; the request that is to cause it must not have ended."""
    while metric not in ask(url.removesuffix("/v1") + "/metrics"):
        assert asking.poll() is None, asking.communicate()


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_this_process(tmp_path, monkeypatch, capsys)


@contextmanager
def server(folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its base URL, and the process."""
    process = in_its_own(folder, "serve", *words, "--port", "0")
    assert process.stdout is not None and process.stderr is not None
    try:
        assert process.stdout.readline().startswith("loading ")
        line = process.stdout.readline()
        found = re.search(r"http://\S+/v1", line)
        assert found, line + process.stderr.read()
        yield found[0], process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """All it said; not by communicate(), which forgets what came together with the first line."""
    assert process.stdout is not None and process.stderr is not None
    process.wait(60)
    return process.stdout.read(), process.stderr.read()


def ask(url: str, body: object = None, **headers: str) -> str:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    with build_opener(ProxyHandler({})).open(Request(url, data, headers), timeout=60) as reply:
        return reply.read().decode()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model().save(folder)
    return folder


def test_loading_is_announced_before_the_model_is_read(rove: Rove, tmp_path: Path):
    (tmp_path / "models/broken").mkdir(parents=True)
    done = rove("serve", "models/broken")
    assert done.status != 0
    assert done.out.startswith("loading models/broken …")


@pytest.mark.slow
def test_a_model_folder_is_served_evaluated_and_stopped(rove: Rove, tmp_path: Path, model: Path):
    with server(tmp_path, str(model), "--name", "tiny", "--max-batch", "4") as (url, process):
        done = rove("eval", "reverse_text", "-m", "tiny", "-b", url, "-n", "3", "-r", "2", "-t", "8", "--json")
        assert done.status == 0, done.err
        summary = json.loads(done.out)
        assert (summary["scored"], summary["failed"]) == (6, 0)
        assert 0 < summary["completion_tokens"] <= 6 * 8
        assert '"tiny"' in ask(f"{url}/models")
        metrics = ask(url.removesuffix("/v1") + "/metrics")
        assert f"rove_completion_tokens_total {summary['completion_tokens']}" in metrics
        process.send_signal(signal.SIGTERM)
        out, err = ended(process)
        assert (process.returncode, err) == (0, "")
        assert "all requests were answered" in out
        assert f"rove eval reverse_text -m tiny -b {url}" in out


@pytest.mark.broad
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_a_player_says_what_it_answers_and_the_hint_is_such(tmp_path: Path, rove: Rove):
    environment(tmp_path / "environments", "quoted", QUOTED_ENV)
    with server(tmp_path, "scripted:oracle", "--env", "quoted") as (url, process):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        (command,) = [line.removeprefix("→ try it: ") for line in lines if "chat/completions" in line]
        made = subprocess.run(["bash", "-c", f"{command.strip()} -sS --noproxy '*'"], capture_output=True, text=True)
        assert json.loads(made.stdout)["choices"][0]["message"]["content"] == "42", made
        with pytest.raises(HTTPError, match="400") as refused:
            ask(f"{url}/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})
        assert "start with a prompt of 'quoted'" in refused.value.read().decode()
    with server(tmp_path, "scripted:teacher", "--env", "tictactoe") as (url, process):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        (command,) = [line.removeprefix("→ try it: ") for line in lines if "chat/completions" in line]
        made = subprocess.run(["bash", "-c", f"{command.strip()} -sS --noproxy '*'"], capture_output=True, text=True)
        assert "reads 'board', which only a rollout of 'tictactoe' has" in json.loads(made.stdout)["error"]["message"]


@pytest.mark.slow
def test_a_player_knows_the_row_it_is_asked_about(rove: Rove, tmp_path: Path):
    with server(tmp_path, "scripted:oracle", "--env", "reverse_text") as (url, _):
        done = rove("eval", "reverse_text", "-m", "oracle", "-b", url, "-n", "4", "-r", "1", "--json")
        here = rove("eval", "reverse_text", "-m", "scripted:oracle", "-n", "4", "-r", "1", "--json")
    assert json.loads(done.out)["reward"]["mean"] == json.loads(here.out)["reward"]["mean"] > 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_commands_it_prints_work(tmp_path: Path, model: Path):
    with server(tmp_path, str(model)) as (_, process):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        (command,) = [line.removeprefix("→ try it: ") for line in lines if "chat/completions" in line]
        made = subprocess.run(["bash", "-c", f"{command.strip()} -sS --noproxy '*'"], capture_output=True, text=True)
        assert json.loads(made.stdout)["choices"][0]["message"]["role"] == "assistant", made.stderr


@pytest.mark.broad
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_what_runs_may_end_after_ctrl_c(tmp_path: Path):
    environment(tmp_path / "environments", "slow", SLOW_ENV)
    with server(tmp_path, "scripted:slow", "--env", "slow") as (url, process):
        body = json.dumps({"model": "slow", "messages": [{"role": "user", "content": "wait"}]})
        asking = subprocess.Popen([*CURL, f"{url}/chat/completions", "-d", body], stdout=subprocess.PIPE, text=True)
        wait_for(url, "rove_answers_under_way 1", asking)
        process.send_signal(signal.SIGINT)
        answer, _ = asking.communicate(timeout=60)
        assert json.loads(answer)["choices"][0]["message"]["content"] == "done"
        out, err = ended(process)
        assert (process.returncode, err, "all requests were answered" in out) == (0, "", True)
        assert "waiting for 1 response; press Ctrl-C again to cut it off" in out


@pytest.mark.broad
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
@pytest.mark.parametrize("drain", ["0.1", "1000"])  # its time is over, or a second signal comes
def test_what_runs_is_cut_off_and_told_so(tmp_path: Path, drain: str):
    environment(tmp_path / "environments", "slow", SLOW_ENV.replace("sleep(1)", "sleep(1000)"))
    with server(tmp_path, "scripted:slow", "--env", "slow", "--drain-seconds", drain) as (url, process):
        body = json.dumps({"messages": [{"role": "user", "content": "wait"}]})
        words = [*CURL, f"{url}/chat/completions", "-d", body]
        asking = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        wait_for(url, "rove_answers_under_way 1", asking)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert any("waiting for 1 response" in line for line in process.stdout)
        if drain == "1000":
            process.send_signal(signal.SIGINT)
        answer, _ = asking.communicate(timeout=60)
        assert "stopped before" in json.loads(answer)["error"]["message"]
        out, err = ended(process)
        assert (process.returncode, "1 request cut off" in out, err) == (1, True, "")


@pytest.mark.broad
def test_a_key_is_asked_for_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    environment(tmp_path / "environments", "slow", SLOW_ENV)
    monkeypatch.setenv("SERVER_KEY", "s3cret")
    words = ("scripted:slow", "--env", "slow", "--api-key-var", "SERVER_KEY")
    with server(tmp_path, *words) as (url, process):
        with pytest.raises(HTTPError, match="401"):
            ask(f"{url}/models")
        assert "slow" in ask(f"{url}/models", Authorization="Bearer s3cret")
        process.send_signal(signal.SIGTERM)
        out, err = ended(process)
        assert "s3cret" not in out + err and "$SERVER_KEY" in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nobody/nothing"], "not a model folder"),
        (["./nothing"], "not a model folder"),
        (["scripted:oracle"], "--env"),
        (["scripted:nobody", "--env", "reverse_text"], "oracle"),
        (["scripted:oracle", "--env", "reverse_text", "-k", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["scripted:oracle", "--env", "reverse_text", "--port", "70000"], "65535"),
        (["scripted:oracle", "--env", "reverse_text", "--host", "203.0.113.1"], "cannot listen"),
        (["scripted:oracle", "--env", "reverse_text", "--max-batch", "0"], "max_batch"),
        ([], "missing setting: model"),
    ],
)
def test_what_cannot_be_served_is_said(rove: Rove, words: list[str], reason: str):
    done = rove("serve", *words)
    assert (done.status, reason in done.err) == (2, True), done.err


def test_a_server_for_everybody_without_a_key_is_warned_about(rove: Rove):
    done = rove("serve", "scripted:oracle", "--env", "reverse_text", "--host", "203.0.113.1")
    assert "anyone who can reach 203.0.113.1" in done.out + done.err


@pytest.mark.slow
def test_adapters_are_served_by_their_names(rove: Rove, tmp_path: Path, model: Path):
    from tests.engine.test_lora import adapter_of, save

    loaded = tiny_model()
    for i, name in enumerate(("pirate", "poet")):
        save(adapter_of(loaded, i), tmp_path / name)
    (tmp_path / "serve.toml").write_text('name = "tiny"\n[adapters]\npoet = "poet"\n')
    with server(tmp_path, str(model), "@", "serve.toml", "--adapter", "pirate=pirate") as (url, _):
        assert [one["id"] for one in json.loads(ask(f"{url}/models"))["data"]] == ["tiny", "poet", "pirate"]
        said = set()
        for name in ("tiny", "pirate", "poet"):
            body = {"model": name, "messages": [{"role": "user", "content": "0 1 2"}], "seed": 4, "max_tokens": 8}
            answer = json.loads(ask(f"{url}/chat/completions", body))
            assert answer["model"] == name
            said.add(answer["choices"][0]["message"]["content"])
        assert len(said) == 3
    shutil.copytree(tmp_path / "poet", tmp_path / "strange")
    (tmp_path / "strange/base.txt").write_text("folder#other\n")
    for words, reason in (
        ([str(model), "--adapter", "pirate"], "expected NAME=FOLDER"),
        ([str(model), "--adapter", "poet=poet", "--adapter", "poet=pirate"], "two adapters are called 'poet'"),
        ([str(tmp_path), "--adapter", "poet=nothing"], "nothing is not an adapter"),  # said before there is a model
        ([str(model), "--adapter", "poet=nothing"], "nothing is not an adapter"),
        ([str(model), "--name", "poet", "--adapter", "poet=poet"], "both called 'poet'"),
        ([str(model), "--adapter", "poet=strange"], "strange was trained on another model (folder#other) than"),
        (
            ["scripted:oracle", "--env", "reverse_text", "--adapter", "poet=poet"],
            "only a model folder can have adapters",
        ),
    ):
        done = rove("serve", *words)
        assert (done.status, reason in done.err) == (2, True), done.err
