"""Settings of vLLM servers, and starting one, with a small program in place of vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiers import each_row

from rove.core.errors import ConfigError, InfraError
from rove.vllm.server import DEFAULT_CONFIG, LOG_HINTS, LoRAShape, Server, VLLMConfig

PROGRAM = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        status, said = {"/health": (200, ""), "/words": (200, json.dumps(sys.argv[1:])), "/odd": (200, "{"),
                        "/env": (200, json.dumps(dict(os.environ)))}.get(self.path, (404, "no such path"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(said.encode())

port = int(sys.argv[sys.argv.index("--port") + 1])
print("I am", os.getpid(), flush=True)
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A command that starts a server."""
    (tmp_path / "serve.py").write_text(PROGRAM)
    return f"{sys.executable} -S {tmp_path / 'serve.py'}"


@pytest.fixture
def server(tmp_path: Path, program: str) -> Iterator[Server]:
    server = Server(None, VLLMConfig(command=program), 0, tmp_path / "logs")
    yield server
    server.stop()


def command_arguments(command: str, **settings: Any) -> list[str]:
    """Return the command line of a server without starting it."""
    return Server(None, VLLMConfig(command=command, **settings), 0, Path())._command(Path("/m"), 7)


@each_row(
    ("settings", "message"),
    [
        ({"servers": 0}, "servers is 0; expected an integer, 1 or more"),
        ({"tolerance": 0.0}, "tolerance is 0.0; expected a number, more than 0"),
        ({"start_seconds": -1.0}, "start_seconds is -1.0"),
        ({"hang_seconds": 0.0}, "hang_seconds is 0.0"),
        ({"urls": ["localhost:8000"]}, 'vllm.urls has "localhost:8000"; expected addresses like'),
        ({"urls": ["http://a"], "args": ["-x"]}, "vllm.args is for servers that rove starts"),
        ({"urls": ["http://a"], "servers": 2}, "vllm.servers is for servers that rove starts"),
        ({"gpus": ["0", "1"]}, "vllm.gpus is for 2 servers, vllm.servers is 1"),
        (
            {"command": "no/such/vllm serve"},
            "vllm.command is 'no/such/vllm serve', and there is no such program: install",
        ),
        ({"command": ""}, "there is no such program"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        VLLMConfig(
            **{"command": sys.executable, **({"command": "vllm serve"} if "urls" in settings else {}), **settings}
        ).check()


def test_external_servers_need_no_command():
    VLLMConfig(urls=["http://node7:8000/"]).check()


def test_the_arguments_of_the_command():
    served, module = (
        command_arguments("vllm serve"),
        command_arguments("python -m vllm.entrypoints.openai.api_server", args=["--dtype=half"]),
    )
    assert served[:3] == ["vllm", "serve", "/m"]
    assert module[:5] == ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m"]
    for arguments in (served, module):
        assert arguments[arguments.index("--logprobs-mode") + 1] == "processed_logprobs"
        assert arguments[arguments.index("--scheduling-policy") + 1] == "priority"
        assert arguments[arguments.index("--port") + 1] == "7"
    assert served[served.index("--dtype") + 1] == "float32"
    assert [argument for argument in module if "dtype" in argument] == ["--dtype=half"]
    assert command_arguments("vllm serve", args=["-tp", "2"])[-2:] == ["-tp", "2"]


def test_a_server_for_adapters_gets_the_maximum_lora_rank(tmp_path: Path):
    server = Server(None, VLLMConfig(command="vllm serve", args=["--max-lora-rank", "64"]), 0, tmp_path)
    shape = LoRAShape(9, ["q_proj", "up_proj"])
    arguments = server._command(Path("/m"), 7, shape)
    assert arguments[arguments.index("--max-lora-rank") + 1] == "16"  # the next rank that vLLM accepts
    assert arguments[-2:] == ["--max-lora-rank", "64"]  # the user's arguments come last
    assert "--enable-lora" in arguments
    assert arguments[arguments.index("--lora-target-modules") + 1 :][:2] == shape.targets
    assert server._environment(shape)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "--enable-lora" not in server._command(Path("/m"), 7)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in server._environment()


def test_every_setting_is_tested():
    assert set(VLLMConfig.__struct_fields__) == {
        "urls",  # below: no process is started
        "command",  # above
        "args",  # above
        "servers",  # test_engine.py
        "gpus",  # below
        "start_seconds",  # below
        "hang_seconds",  # test_router.py
        "merge_adapter",  # tests/train/test_backends.py
        "tolerance",  # test_engine.py
    }


def test_a_server_starts_and_stops(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    server.start(Path("/some/model"))
    assert server.request_json("GET", "/words")[:2] == ["--model", "/some/model"]
    environment = server.request_json("GET", "/env")
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "WORLD_SIZE" not in environment
    assert not server.has_ended
    assert (server.starts, server.starts_since_update) == (1, 1)
    pid = int(server.log.read_text().split()[2])
    server.stop()
    assert server.has_ended
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_each_server_gets_its_own_gpus(tmp_path: Path):
    config = VLLMConfig(servers=2, gpus=["1", "2,3"])
    gpus = [Server(None, config, number, tmp_path)._environment()["CUDA_VISIBLE_DEVICES"] for number in (0, 1)]
    assert gpus == ["1", "2,3"]


def test_an_external_server_is_never_started_or_stopped(tmp_path: Path, server: Server):
    server.start(Path("/m"))
    external = Server(server.url + "/", VLLMConfig(urls=[server.url]), 0, tmp_path)
    assert external.is_ready()
    external.stop()
    assert not external.has_ended
    assert server.is_ready()


def test_a_killed_server_is_detected(server: Server):
    server.start(Path("/m"))
    os.kill(int(server.log.read_text().split()[2]), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while not server.has_ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.has_ended
    with pytest.raises(InfraError, match=r"does not answer GET /words: .*refused.*the end of its log:\nI am"):
        server.request_json("GET", "/words")


KILLED = """
import os, signal, sys
from pathlib import Path
from rove.vllm.server import Server, VLLMConfig

server = Server(None, VLLMConfig(command=sys.argv[1]), 0, Path(sys.argv[2]))
server.start(Path("/m"))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.broad
def test_a_server_ends_when_the_process_that_started_it_is_killed(tmp_path: Path, program: str):
    """The starting process is ended with SIGKILL."""
    completed = subprocess.run([sys.executable, "-c", KILLED, program, str(tmp_path)], check=False)
    assert completed.returncode == -signal.SIGKILL
    pid = int((tmp_path / "server-0.log").read_text().split()[2])
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_start_errors_contain_the_last_lines_of_the_log(tmp_path: Path):
    for message, hint in {"boom": "$", "No module named vllm": "install vLLM in a separate environment"}.items():
        command = f"{sys.executable} -S -c \"print('{message}'); raise SystemExit(3)\""
        server = Server(None, VLLMConfig(command=command), 0, tmp_path / message)
        with pytest.raises(InfraError, match=rf"(?s)ended with exit code 3; the end of its log:\n{message}.*{hint}"):
            server.start(Path("/m"))


def test_start_errors_contain_the_error_line_even_if_many_lines_follow(tmp_path: Path):
    program = tmp_path / "fails.py"
    program.write_text("print('ValueError: heads of 8')\nfor n in range(99): print('later', n)\nraise SystemExit(1)")
    server = Server(None, VLLMConfig(command=f"{sys.executable} -S {program}"), 0, tmp_path)
    with pytest.raises(InfraError, match=r"its log:\nValueError: heads of 8\nlater 87\n"):
        server.start(Path("/m"))


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path):
    server = Server(None, DEFAULT_CONFIG, 0, tmp_path)
    with server.log.open("wb") as log:
        log.truncate(1 << 40)  # a sparse file; all of it would not fit into memory
        log.seek(0, os.SEEK_END)
        log.write(b"\nthe last line\n")
    assert server.log_tail().endswith("\nthe last line")


@pytest.mark.parametrize("message", LOG_HINTS)
def test_known_log_messages_get_a_hint(tmp_path: Path, message: str):
    server = Server(None, VLLMConfig(), 0, tmp_path)
    server.log.write_text("x" * 500 + f"Error: {message} (20.5/23.5 GiB)\n" + "at a line\n" * 50)
    assert server.log_tail().endswith(f"\n{LOG_HINTS[message]}")


def test_a_server_that_is_never_ready_times_out(tmp_path: Path):
    command = f"{sys.executable} -S -c \"import time; print('loading', flush=True); time.sleep(60)\""
    server = Server(None, VLLMConfig(command=command, start_seconds=0.5), 0, tmp_path)
    with pytest.raises(InfraError, match=r"was not ready after vllm.start_seconds \(0.5\)"):
        server.start(Path("/m"))
    assert server.has_ended


def test_invalid_responses_raise_errors(server: Server):
    server.start(Path("/m"))
    with pytest.raises(InfraError, match="answers GET /nothing with HTTP 404: no such path"):
        server.request_json("GET", "/nothing")
    with pytest.raises(InfraError, match="with what is no JSON: b'{'"):
        server.request_json("GET", "/odd")


def test_the_default_command_is_vllm_serve():
    assert msgspec.to_builtins(DEFAULT_CONFIG)["command"] == "vllm serve"
