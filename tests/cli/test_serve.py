"""`rove serve`: start, requests and shutdown."""

from __future__ import annotations

import io
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
from commands import Rove, in_process_rove, start_rove, write_environment
from fakes import tiny_model
from rich.console import Console

from rove.cli.options import settings
from rove.cli.serve import command as serve_command
from rove.stages.reporter import ConsoleReporter
from rove.stages.serving import ServeConfig, served_client

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
    """Wait until the server reports a metric; fail if the request that causes it has already ended."""
    while metric not in send(url.removesuffix("/v1") + "/metrics"):
        assert asking.poll() is None, asking.communicate()


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@contextmanager
def server(folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `rove serve`; yield its base URL and the process."""
    process = start_rove(folder, "serve", *words, "--port", "0")
    assert process.stdout is not None and process.stderr is not None
    try:
        assert process.stdout.readline().startswith("loading ")
        line = process.stdout.readline()
        if line.startswith("device: "):
            line = process.stdout.readline()
        address = re.search(r"http://\S+/v1", line)
        if address is None:
            process.kill()  # a server that still runs never closes its output, and reading it would wait forever
            raise AssertionError(line + process.stderr.read())
        yield address[0], process
    finally:
        process.kill()
        process.communicate()


def wait_for_output(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the remaining output; communicate() would lose what was buffered with the first line."""
    assert process.stdout is not None and process.stderr is not None
    process.wait(60)
    return process.stdout.read(), process.stderr.read()


def send(url: str, body: object = None, **headers: str) -> str:
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


@pytest.mark.broad
def test_a_model_folder_is_served_evaluated_and_stopped(rove: Rove, tmp_path: Path, model: Path):
    with server(tmp_path, str(model), "--name", "tiny", "--max-batch", "4") as (url, process):
        done = rove("eval", "reverse_text", "-m", "tiny", "-b", url, "-n", "3", "-r", "2", "-t", "8", "--json")
        assert done.status == 0, done.err
        summary = json.loads(done.out)
        assert (summary["scored"], summary["failed"]) == (6, 0)
        assert 0 < summary["completion_tokens"] <= 6 * 8
        assert '"tiny"' in send(f"{url}/models")
        metrics = send(url.removesuffix("/v1") + "/metrics")
        assert f"rove_completion_tokens_total {summary['completion_tokens']}" in metrics
        process.send_signal(signal.SIGTERM)
        out, err = wait_for_output(process)
        assert (process.returncode, err) == (0, "")
        assert "all requests were answered" in out
        assert f"rove eval ENV -m tiny -b {url}" in out


@pytest.mark.broad
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_a_scripted_policy_responds_and_the_printed_command_works(tmp_path: Path, rove: Rove):
    write_environment(tmp_path / "environments", "quoted", QUOTED_ENV)
    with server(tmp_path, "scripted:oracle", "--env", "quoted") as (url, process):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        (command,) = [line.removeprefix("→ try it: ") for line in lines if "chat/completions" in line]
        curl = subprocess.run(["bash", "-c", f"{command.strip()} -sS --noproxy '*'"], capture_output=True, text=True)
        assert json.loads(curl.stdout)["choices"][0]["message"]["content"] == "42", curl
        with pytest.raises(HTTPError, match="400") as refused:
            send(f"{url}/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})
        assert "start with a prompt of 'quoted'" in refused.value.read().decode()
    with server(tmp_path, "scripted:teacher", "--env", "tictactoe") as (url, process):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        (command,) = [line.removeprefix("→ try it: ") for line in lines if "chat/completions" in line]
        curl = subprocess.run(["bash", "-c", f"{command.strip()} -sS --noproxy '*'"], capture_output=True, text=True)
        assert "reads 'board', which only a rollout of 'tictactoe' has" in json.loads(curl.stdout)["error"]["message"]


@pytest.mark.slow
def test_a_scripted_policy_receives_the_row_of_the_prompt(rove: Rove, tmp_path: Path):
    with server(tmp_path, "scripted:oracle", "--env", "reverse_text") as (url, _):
        remote = rove("eval", "reverse_text", "-m", "oracle", "-b", url, "-n", "4", "-r", "1", "--json")
        local = rove("eval", "reverse_text", "-m", "scripted:oracle", "-n", "4", "-r", "1", "--json")
    assert json.loads(remote.out)["reward"]["mean"] == json.loads(local.out)["reward"]["mean"] > 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_printed_command_works(tmp_path: Path, model: Path):
    with server(tmp_path, str(model)) as (_, process):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        (command,) = [line.removeprefix("→ try it: ") for line in lines if "chat/completions" in line]
        curl = subprocess.run(["bash", "-c", f"{command.strip()} -sS --noproxy '*'"], capture_output=True, text=True)
        assert json.loads(curl.stdout)["choices"][0]["message"]["role"] == "assistant", curl.stderr


@pytest.mark.broad
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_model_is_named_as_in_every_other_command():
    for words in (["-m", "models/tiny"], ["--model", "models/tiny"], ["models/tiny"]):
        context = serve_command.make_context("serve", [*words])
        named = {name: value for name, value in context.params.items() if name != "openenv"}
        config = settings(ServeConfig, context, bare="model", **named)
        assert config.model == "models/tiny"


def test_a_model_is_served_on_the_device_that_is_printed(tmp_path: Path, model: Path):
    console = Console(file=io.StringIO(), width=200)
    client = served_client(ServeConfig(model=str(model), device="cpu"), ConsoleReporter(console))
    assert client.engine.model.device.type == "cpu"
    assert "device: cpu" in console.file.getvalue()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "models/none", "--device", "gpu"], "device is 'gpu'; expected auto, cpu, cuda, cuda:N, or mps"),
        (["-m", "scripted:teacher", "--env", "tictactoe", "--device", "cpu"], "is a scripted policy, so no device"),
        (["-m", "models/tiny", "--openenv", "tictactoe"], "--openenv serves an environment, but -m models/tiny"),
        (["-m", "models/tiny", "--port", "70000"], "'--port': 70000; expected an integer, 0 to 65535"),
        (["-m", "models/tiny", "--drain-seconds", "nan"], "nan; expected a finite number, 0 or more and at most 1e9"),
    ],
)
def test_wrong_devices_and_numbers_are_errors(rove: Rove, words: list[str], message: str):
    done = rove("serve", *words)
    assert done.status != 0
    assert message in done.err


def test_running_requests_finish_after_ctrl_c(tmp_path: Path):
    write_environment(tmp_path / "environments", "slow", SLOW_ENV)
    with server(tmp_path, "scripted:slow", "--env", "slow") as (url, process):
        body = json.dumps({"model": "slow", "messages": [{"role": "user", "content": "wait"}]})
        client = subprocess.Popen([*CURL, f"{url}/chat/completions", "-d", body], stdout=subprocess.PIPE, text=True)
        wait_for(url, "rove_answers_under_way 1", client)
        process.send_signal(signal.SIGINT)
        answer, _ = client.communicate(timeout=60)
        assert json.loads(answer)["choices"][0]["message"]["content"] == "done"
        out, err = wait_for_output(process)
        assert (process.returncode, err, "all requests were answered" in out) == (0, "", True)
        assert "waiting for 1 response; press Ctrl-C again to cut it off" in out


@pytest.mark.broad
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
@pytest.mark.parametrize("drain", ["0.1", "1000"])  # the drain time ends, or a second signal arrives
def test_running_requests_are_cut_off_with_an_error(tmp_path: Path, drain: str):
    write_environment(tmp_path / "environments", "slow", SLOW_ENV.replace("sleep(1)", "sleep(1000)"))
    with server(tmp_path, "scripted:slow", "--env", "slow", "--drain-seconds", drain) as (url, process):
        body = json.dumps({"messages": [{"role": "user", "content": "wait"}]})
        words = [*CURL, f"{url}/chat/completions", "-d", body]
        client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        wait_for(url, "rove_answers_under_way 1", client)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert any("waiting for 1 response" in line for line in process.stdout)
        if drain == "1000":
            process.send_signal(signal.SIGINT)
        answer, _ = client.communicate(timeout=60)
        assert "stopped before" in json.loads(answer)["error"]["message"]
        out, err = wait_for_output(process)
        assert (process.returncode, "1 request cut off" in out, err) == (1, True, "")


@pytest.mark.broad
def test_an_api_key_is_required_and_never_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_environment(tmp_path / "environments", "slow", SLOW_ENV)
    monkeypatch.setenv("SERVER_KEY", "s3cret")
    words = ("scripted:slow", "--env", "slow", "--api-key-var", "SERVER_KEY")
    with server(tmp_path, *words) as (url, process):
        with pytest.raises(HTTPError, match="401"):
            send(f"{url}/models")
        assert "slow" in send(f"{url}/models", Authorization="Bearer s3cret")
        process.send_signal(signal.SIGTERM)
        out, err = wait_for_output(process)
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
        (["scripted:oracle", "--env", "reverse_text", "--max-batch", "0"], "--max-batch"),
        ([], "missing setting: model"),
    ],
)
def test_invalid_arguments_are_refused(rove: Rove, words: list[str], reason: str):
    done = rove("serve", *words)
    assert (done.status, reason in done.err) == (2, True), done.err


def test_a_public_server_without_a_key_causes_a_warning(rove: Rove):
    done = rove("serve", "scripted:oracle", "--env", "reverse_text", "--host", "203.0.113.1")
    assert "anyone who can reach 203.0.113.1" in done.out + done.err


@pytest.mark.broad
def test_adapters_are_served_by_their_names(rove: Rove, tmp_path: Path, model: Path):
    from tests.engine.test_lora import adapter_of, save

    loaded = tiny_model()
    for i, name in enumerate(("pirate", "poet")):
        save(adapter_of(loaded, i), tmp_path / name)
    (tmp_path / "serve.toml").write_text('name = "tiny"\n[adapters]\npoet = "poet"\n')
    with server(tmp_path, str(model), "@", "serve.toml", "--adapter", "pirate=pirate") as (url, _):
        assert [served["id"] for served in json.loads(send(f"{url}/models"))["data"]] == ["tiny", "poet", "pirate"]
        answers = set()
        for name in ("tiny", "pirate", "poet"):
            body = {"model": name, "messages": [{"role": "user", "content": "0 1 2"}], "seed": 4, "max_tokens": 8}
            answer = json.loads(send(f"{url}/chat/completions", body))
            assert answer["model"] == name
            answers.add(answer["choices"][0]["message"]["content"])
        assert len(answers) == 3
    shutil.copytree(tmp_path / "poet", tmp_path / "strange")
    (tmp_path / "strange/base.txt").write_text("folder#other\n")
    for words, reason in (
        ([str(model), "--adapter", "pirate"], "expected NAME=FOLDER"),
        ([str(model), "--adapter", "poet=poet", "--adapter", "poet=pirate"], "two adapters are called 'poet'"),
        # adapters are checked before the model is loaded
        ([str(tmp_path), "--adapter", "poet=nothing"], "nothing is not an adapter"),
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
