"""Run packages of `compat_packages` on a version of `verifiers`, and print the results as JSON.

`python compat_runner.py real NAME…` uses the installed library, `rove NAME…` rove.compat and its `evaluate`,
`bridge NAME…` rove's runs of the same environments, and `rove+bridge` both. Without names, all packages run. `record PYTHON`
writes the results of the real library of another Python to `compat_recorded`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from compat_server import ScriptedServer

FOLDER = Path(__file__).parents[1] / "compat_packages"
ROLLOUTS = 2
VARIANTS = {
    "judge_qa": lambda url: {"judge_base_url": url},
    "xml_fields_prompts": lambda url: {"with_prompts": True},
}
"""Variant → arguments of its package; a variant's name begins with that of its package."""
NAMES = sorted({file.stem for file in FOLDER.glob("*.py")} | VARIANTS.keys())
RECORDED = Path(__file__).parents[1] / "compat_recorded"


def package_of(name: str) -> str:
    return name.removesuffix("_prompts")


def plain(value: Any) -> Any:
    """Return a value as JSON data, without the fields of messages that are None."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def by_content(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def row_of(output: Any) -> dict[str, Any]:
    """Return the compared parts of an output."""
    names = (
        "example_id",
        "prompt",
        "completion",
        "reward",
        "metrics",
        "answer",
        "info",
        "stop_condition",
        "is_truncated",
    )
    row = {name: plain(output.get(name)) for name in names}
    row["tools"] = plain(output.get("tool_defs"))
    row["usage"] = plain(output.get("token_usage"))
    row["error"] = (output.get("error") or {}).get("error_chain_str")
    steps = output.get("trajectory") or []
    row["steps"] = [
        [plain(step["prompt"]), plain(step["completion"]), step["reward"], step["advantage"]] for step in steps
    ]
    return row


async def run_v0(vf: Any, name: str, server: ScriptedServer) -> list[Any]:
    from verifiers.types import ClientConfig

    kind = "openai_completions" if name == "story_completion" else "openai_chat_completions"
    env = load(name, server)
    config = ClientConfig(client_type=kind, api_base_url=server.url, api_key_var="EMPTY_KEY", max_retries=0)
    results = await env.evaluate(
        config,
        package_of(name),
        rollouts_per_example=ROLLOUTS,
        state_columns=["trajectory"],
        max_concurrent=1,
    )
    await env._teardown()
    return [row_of(output) for output in results["outputs"]]


async def run_bridged(name: str, server: ScriptedServer) -> list[Any]:
    import rove
    from rove.clients.openai import OpenAIClient

    env = load(name, server).__rove_environment__()
    client = OpenAIClient(server.url, "EMPTY", max_retries=0)
    async with env.used_in_run():
        records = await rove.generate(env, client, package_of(name), rollouts_per_example=ROLLOUTS, max_concurrent=1)
    await client.close()
    return [
        {
            "example_id": record.example_id,
            "prompt": plain(record.prompt),
            "completion": plain(record.completion),
            "reward": record.reward,
            "metrics": record.scores.rewards | record.scores.metrics if record.scores else None,
            "stop_condition": record.stop_condition,
            "is_truncated": record.is_truncated,
            "error": record.error.type if record.error else None,
            "steps": len(record.steps),
            "model_roles": {role: len(steps) for role, steps in record.model_roles.items()},
        }
        for record in records
    ]


def load(name: str, server: ScriptedServer) -> Any:
    module = importlib.import_module(package_of(name))
    return module.load_environment(**VARIANTS.get(name, lambda url: {})(server.url))


def run(mode: str, name: str) -> dict[str, Any]:
    """Run a package; return its rows and the requests to its server, or the error."""
    with ScriptedServer() as server:
        try:
            if mode == "bridge":
                rows = asyncio.run(run_bridged(name, server))
            else:
                rows = asyncio.run(run_v0(importlib.import_module("verifiers"), name, server))
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        return {"rows": by_content(rows), "asked": by_content(server.asked)}


def results(mode: str, python: str = sys.executable) -> dict[str, Any]:
    """Return the results of all packages, by how they were run, from a separate process."""
    return run_script(python, __file__, mode)


def run_script(python: str, script: str, mode: str, *arguments: str) -> dict[str, Any]:
    """Run a script with a Python, and return the JSON that it prints; in mode "real", it cannot import rove."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if mode != "real":
        env["PYTHONPATH"] = str(Path(__file__).parents[2])
    process = subprocess.run([python, script, mode, *arguments], capture_output=True, text=True, check=False, env=env)
    assert process.stdout, process.stderr[-4000:]
    return json.loads(process.stdout)


def print_results(mode: str, compute: Callable[[], dict[str, Any]]) -> None:
    """Print the result of a function as JSON and end the process; unless the mode is "real", `verifiers` is rove.compat.

    The libraries' output and warnings are not part of the results; the environment variable VERBOSE shows their warnings.
    """
    if "VERBOSE" not in os.environ:
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
    os.environ.update(HF_DATASETS_DISABLE_PROGRESS_BARS="1", HF_HUB_OFFLINE="1", EMPTY_KEY="EMPTY")
    if mode != "real":
        import rove.compat

        rove.compat.install()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    out.write(json.dumps(compute()))
    out.flush()
    os._exit(0)  # the exit handlers of the real library wait for closed event loops


def main() -> None:
    mode, *names = sys.argv[1:]
    if mode == "record":
        for name, recorded in results("real", names[0])["real"].items():
            (RECORDED / f"{name}.json").write_text(
                json.dumps(recorded, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        return
    sys.path.insert(0, str(FOLDER))
    print_results(mode, lambda: {kind: {name: run(kind, name) for name in names or NAMES} for kind in mode.split("+")})


if __name__ == "__main__":
    main()
