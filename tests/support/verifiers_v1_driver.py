"""Run tasksets in verifiers 0.4; `test_verifiers_v1.py` starts this file with the Python of a virtual environment.

The job on stdin has the URL of an endpoint, an output folder, and runs. A run has a taskset, and the arguments of `vf-eval`
(`words`), settings for an environment server and its client, which prime-rl uses (`serve`), or both. The results on stdout, one
JSON line per run, are lists of traces by the way of running them: "vf-eval" or "server".
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import queue
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from verifiers.v1.cli.eval.main import main as vf_eval  # pyright: ignore[reportMissingImports]
from verifiers.v1.serve import EnvClient, EnvServer, env_config_data, serve_env  # pyright: ignore[reportMissingImports]

KEY_VARIABLE = "ROVE_NO_KEY"
MODEL = "scripted"
CONCURRENT = 16
START_TIMEOUT_S = 300


def evaluate(run: dict[str, Any], url: str, output: Path) -> list[dict[str, Any]]:
    """Return the traces of `vf-eval`."""
    words = [run["taskset"], "-m", MODEL, "--client.base-url", url, "--client.api-key-var", KEY_VARIABLE]
    words += ["--no-push", "--no-rich", "-o", str(output), "--run.name", "run", *run["words"]]
    with open(os.devnull, "w") as devnull, redirect_stdout(devnull):  # vf-eval prints every trace
        vf_eval(words)
    [file] = output.rglob("traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [trace for episode in episodes for trace in episode["traces"]]


class Server:
    """An environment server in a separate process, started as prime-rl starts it."""

    def __init__(self, config: Any):
        context = multiprocessing.get_context("spawn")
        addresses = context.Queue()
        self.process = context.Process(
            target=serve_env,
            kwargs={
                "config_data": env_config_data(config),
                "address": "tcp://127.0.0.1:0",
                "address_queue": addresses,
                "max_workers": 1,
            },
        )
        self.process.start()
        self.address = addresses.get(True, START_TIMEOUT_S)

    def end(self, kill: bool = False) -> None:
        """End the process, or kill it as `kill -9` does."""
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.join(START_TIMEOUT_S)


class ThreadServer:
    """The same server in a thread of this process, which saves the seconds in which a process imports verifiers."""

    def __init__(self, config: Any):
        addresses: queue.Queue[str] = queue.Queue()
        options = {"config": config, "address": "tcp://127.0.0.1:0", "address_queue": addresses}
        threading.Thread(target=EnvServer.run_server, kwargs=options, daemon=True).start()
        self.address = addresses.get(True, START_TIMEOUT_S)

    def end(self, kill: bool = False) -> None:
        """Do nothing: the thread ends with the process."""


async def run_tasks(
    server: Server | ThreadServer, tasks: list[vf.Task], url: str, kill_after: int | None = None
) -> dict[str, dict[str, Any]]:
    """Return the traces of tasks by key; with `kill_after`, kill the server after this number of finished tasks."""
    endpoint = vf.EvalClientConfig(base_url=url, api_key_var=KEY_VARIABLE)
    gate = asyncio.Semaphore(CONCURRENT)
    client = EnvClient(server.address)
    await client.wait_for_server_startup(START_TIMEOUT_S)

    async def run_task(task: vf.Task) -> tuple[str, dict[str, Any]]:
        async with gate:
            data = task.data.model_dump(mode="json")
            episode = await client.run(endpoint, MODEL, vf.SamplingConfig(), data)
            return task.key, episode.traces[0].model_dump(mode="json")

    running = [asyncio.create_task(run_task(task)) for task in tasks]
    traces: dict[str, dict[str, Any]] = {}
    try:
        for finished in asyncio.as_completed(running):
            key, trace = await finished
            traces[key] = trace
            if len(traces) == kill_after:
                server.end(kill=True)
                break
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await client.close()
    return traces


def serve_and_run(run: dict[str, Any], url: str) -> list[dict[str, Any]]:
    """Return the traces of an environment server, whose tasks a client sends, as prime-rl does.

    With `kill_after`, the server is a process that is killed during the run; another one runs the remaining tasks.
    """
    config = vf.resolve_env_config({"taskset": {"id": run["taskset"], **run["taskset_config"]}, **run.get("env", {})})
    tasks = list(vf.load_taskset(config.taskset).select(vf.SelectConfig(limit=run["limit"])))
    traces: dict[str, dict[str, Any]] = {}
    if run.get("kill_after"):
        traces = asyncio.run(run_tasks(Server(config), tasks, url, run["kill_after"]))
    server = Server(config) if run.get("kill_after") else ThreadServer(config)
    try:
        missing = [task for task in tasks if task.key not in traces]
        traces |= asyncio.run(run_tasks(server, missing, url))
    finally:
        server.end()
    return [traces[task.key] for task in tasks]


def main() -> None:
    """Run the job on stdin."""
    job = json.load(sys.stdin)
    for number, run in enumerate(job["runs"]):
        traces = {}
        if run.get("words") is not None:
            traces["vf-eval"] = evaluate(run, job["url"], Path(job["output"]) / str(number))
        if run.get("serve"):
            traces["server"] = serve_and_run(run, job["url"])
        print(json.dumps(traces), flush=True)


if __name__ == "__main__":
    main()
