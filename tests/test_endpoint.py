"""An independent OpenAI-compatible server, `transformers serve`, with a tiny model."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import pytest
from commands import Rove, in_process_rove

from rove.runs.run import Run

pytestmark = pytest.mark.slow

START_TIMEOUT_S = 180
"""Time limit for the server to load PyTorch and the model on a busy machine."""


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@contextmanager
def transformers_serve(model: Path, home: Path) -> Iterator[str]:
    """Serve a model folder; requests must name the model by the path of the folder.

    Yields:
        the base URL.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("transformers"), "serve", model, "--host", "127.0.0.1"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(home)}
    with (home / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--device", "cpu"],
            env={**os.environ, **offline},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_until_healthy(f"http://127.0.0.1:{port}/health", server, home / "server.log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    direct = build_opener(ProxyHandler({}))
    for _ in range(START_TIMEOUT_S * 5):
        assert server.poll() is None, log.read_text()
        try:
            if direct.open(url, timeout=5).status == 200:
                return
        except (URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"no answer from {url}: {log.read_text()}")


def words_of(run: str) -> dict[str, str]:
    """Return the model's reply to each example without special tokens, which the server leaves out of its text.

    Without a special token in front, the server's tokenizer drops the space before the first word.
    """
    replies = {record.example_key: record.completion[-1]["content"] for record in Run(run).rollouts()}
    return {key: re.sub(r"<\|\w+\|>", "", text).lstrip() for key, text in replies.items()}


def test_a_server_that_rove_did_not_write(rove: Rove, tmp_path: Path):
    model = tmp_path / "model"
    assert rove("model", "new", "--env", "reverse_text", "--games", "50", "-o", str(model)).status == 0
    words = ["eval", "reverse_text", "-m", str(model), "-n", "3", "-r", "1", "-t", "16", "-T", "0", "--json"]
    with transformers_serve(model, tmp_path) as url:
        done = rove(*words, "-b", url)
        refused = rove(*words[:2], "-m", "nobody/nothing", *words[4:], "-b", url, "--max-retries", "0")
    assert done.status == 0
    summary = json.loads(done.out)
    assert (summary["rollouts"], summary["scored"], summary["failed"]) == (3, 3, 0)
    assert 0 < summary["completion_tokens"] <= 3 * 16
    # The same weights in the embedded engine: the same prompts to the token, and greedy, the same words.
    local = json.loads(rove(*words).out)
    assert local["prompt_tokens"] == summary["prompt_tokens"]
    assert words_of(local["run"]) == words_of(summary["run"])
    # An unknown model name fails the rollouts with the server's message and gives no reward.
    assert refused.status == 1
    failed = json.loads(refused.out)
    assert (failed["scored"], failed["failed"], failed["reward"]["mean"]) == (0, 3, None)
    assert "nobody/nothing" in refused.err
