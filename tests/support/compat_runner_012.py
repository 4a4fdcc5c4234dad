"""Run packages of `compat_packages_012` on a version of `verifiers`, and print the rows as JSON.

`python compat_runner_012.py real` uses the installed library (0.1.2.post1), `rove` rove.compat and its `evaluate`, and
`bridge` rove's runs. `record PYTHON` writes the rows of the real library of another Python to
`compat_recorded_012`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from compat_runner import by_content, plain, print_results, run_script
from compat_server import ScriptedServer

FOLDER = Path(__file__).parents[1] / "compat_packages_012"
RECORDED = Path(__file__).parents[1] / "compat_recorded_012"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))
ROLLOUTS = 2
ARGUMENTS = {"capital_judge": lambda url: {"judge_base_url": url}}


def load(name: str, server: ScriptedServer) -> Any:
    os.environ.update(OPENAI_BASE_URL=server.url, OPENAI_API_KEY="EMPTY")
    return importlib.import_module(name).load_environment(**ARGUMENTS.get(name, lambda url: {})(server.url))


def message_of(message: Any) -> list[Any]:
    """Return role, text and calls of a message in a common form."""
    calls = [plain(call) for call in message.get("tool_calls") or []]
    calls = [json.loads(call) if isinstance(call, str) else call for call in calls]
    functions = [call.get("function", call) for call in calls]
    named = [
        [call.get("id"), function["name"], function["arguments"]]
        for call, function in zip(calls, functions, strict=True)
    ]
    return [message["role"], message.get("content") or "", named, message.get("tool_call_id")]


def row_of(prompt: Any, completion: Any, reward: float, metrics: Any) -> dict[str, Any]:
    return {
        "prompt": [message_of(message) for message in prompt],
        "completion": [message_of(message) for message in completion],
        "reward": reward,
        "metrics": metrics,
    }


def run_real(name: str, server: ScriptedServer) -> list[Any]:
    from openai import OpenAI

    client = OpenAI(base_url=server.url, api_key="EMPTY", max_retries=0)
    results = load(name, server).evaluate(client, name, rollouts_per_example=ROLLOUTS, max_concurrent=1)
    metrics = [{key: values[i] for key, values in results.metrics.items()} for i in range(len(results.reward))]
    return [row_of(*row) for row in zip(results.prompt, results.completion, results.reward, metrics, strict=True)]


async def run_rove(name: str, server: ScriptedServer) -> list[Any]:
    env = load(name, server)
    client = importlib.import_module("verifiers.types").ClientConfig(
        client_type="openai_chat_completions", api_base_url=server.url, api_key_var="OPENAI_API_KEY", max_retries=0
    )
    results = await env.evaluate(client, name, rollouts_per_example=ROLLOUTS, max_concurrent=1)
    await env._teardown()
    errors = [output["error"] for output in results["outputs"] if output["error"]]
    assert not errors, errors
    return [
        row_of(output["prompt"], output["completion"], output["reward"], output["metrics"])
        for output in results["outputs"]
    ]


async def run_bridged(name: str, server: ScriptedServer) -> list[Any]:
    import rove
    from rove.clients.openai import OpenAIClient

    env = load(name, server).__rove_environment__()
    client = OpenAIClient(server.url, "EMPTY", max_retries=0)
    async with env.used_in_run():
        records = await rove.generate(env, client, name, rollouts_per_example=ROLLOUTS, max_concurrent=1)
    await client.close()
    errors = [record.error for record in records if record.error]
    assert not errors, errors
    scores = [record.scores for record in records if record.scores is not None]
    return [
        row_of(record.prompt, record.completion, score.reward, score.rewards | score.metrics)
        for record, score in zip(records, scores, strict=True)
    ]


def run(mode: str, name: str) -> dict[str, Any]:
    """Run a package; return its rows, or the error."""
    with ScriptedServer() as server:
        try:
            if mode == "real":
                rows = run_real(name, server)
            else:
                rows = asyncio.run((run_rove if mode == "rove" else run_bridged)(name, server))
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:2000]}
        return {"rows": by_content(rows)}


def results(mode: str, python: str = sys.executable) -> dict[str, Any]:
    """Return the rows of all packages, by how they were run, from a separate process."""
    return run_script(python, __file__, mode)


def main() -> None:
    mode, *names = sys.argv[1:]
    if mode == "record":
        for name, recorded in results("real", names[0])["real"].items():
            text = json.dumps(recorded, sort_keys=True, ensure_ascii=False, indent=1)
            (RECORDED / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
        return
    sys.path.insert(0, str(FOLDER))
    print_results(mode, lambda: {kind: {name: run(kind, name) for name in names or NAMES} for kind in mode.split("+")})


if __name__ == "__main__":
    main()
