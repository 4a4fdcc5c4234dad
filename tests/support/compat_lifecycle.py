"""Run the environments of `compat_lifecycle` on the `verifiers` that is installed, and print the rows as JSON.

`python compat_lifecycle.py real RELEASE REQUIREMENT` uses the installed library, `rove …` rove.compat and its `evaluate`,
`bridge …` rove's runs, and `all …` the last two. REQUIREMENT is that of the environments' package on `verifiers`, such as
`==0.1.9`. `record PYTHON RELEASE` writes the rows of the library of another Python to `compat_recorded_lifecycle`. `table`
prints which cases of which release have the same rows here.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from compat_runner import plain, print_results, run_script
from compat_server import ScriptedServer, text_of

FOLDER = Path(__file__).parents[1] / "compat_lifecycle"
RECORDED = Path(__file__).parents[1] / "compat_recorded_lifecycle"
SOURCES = {
    "0.1.2": "dialogue_012.py",
    "0.1.6": "dialogue_016.py",
    "0.1.9": "dialogue_019.py",
    "0.3.1": "dialogue_019.py",
}
"""Release → file with the environments that are written for it."""
MODEL = "dialogue"
ROVE_ONLY_METRICS = ("num_turns", "reward")
"""Metrics that not all releases have: that of 0.1.9, and the reward of a rubric with its own scoring method."""


def write_package(folder: Path, release: str, requirement: str) -> str:
    """Write the environments of a release as a package with a requirement on `verifiers`; return its name."""
    name = f"dialogue_{release.replace('.', '')}"
    (folder / f"{name}.py").write_text((FOLDER / SOURCES[release]).read_text(encoding="utf-8"), encoding="utf-8")
    project = f'[project]\nname = "{name}"\nversion = "1"\ndependencies = ["verifiers{requirement}"]\n'
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    return name


def cases_of(module: Any, release: str) -> list[str]:
    removed = module.REMOVED_IN_031 if release == "0.3.1" else ()
    return [case for case in [*module.ENVIRONMENTS, *module.RUBRICS] if case not in removed]


def row_of(completion: Any, reward: float, metrics: dict[str, float]) -> dict[str, Any]:
    """Return what is compared: the completion, the model's turns, the reward and the metrics."""
    messages = [[message["role"], text_of(plain(message))] for message in completion]
    turns = sum(role == "assistant" for role, _ in messages)
    metrics = {name: value for name, value in metrics.items() if name not in ROVE_ONLY_METRICS}
    return {"completion": messages, "turns": turns, "reward": reward, "metrics": metrics}


async def run_real(env: Any, server: ScriptedServer) -> list[Any]:
    """Run on the real library, whose clients and results differ between releases."""
    types = importlib.import_module("verifiers.types")
    options = {"rollouts_per_example": 1, "max_concurrent": 1}
    if hasattr(types, "EndpointClientConfig"):  # since 0.1.11
        client = types.ClientConfig(
            client_type="openai_chat_completions", api_base_url=server.url, api_key_var="EMPTY_KEY", max_retries=0
        )
    else:
        client = importlib.import_module("openai").AsyncOpenAI(base_url=server.url, api_key="EMPTY", max_retries=0)
    if hasattr(env, "a_generate"):  # 0.1.2, whose `evaluate` is synchronous
        results = await asyncio.to_thread(env.evaluate, client, MODEL, **options)
    else:
        results = await env.evaluate(client, MODEL, **options)
    if hasattr(env, "_teardown"):
        await env._teardown()
    results = results if isinstance(results, dict) else vars(results)
    if "outputs" in results:
        return [row_of(row["completion"], row["reward"], row["metrics"]) for row in results["outputs"]]
    names = results["metrics"]
    metrics = [{name: names[name][i] for name in names} for i in range(len(results["reward"]))]
    return [row_of(*row) for row in zip(results["completion"], results["reward"], metrics, strict=True)]


async def run_bridged(env: Any, server: ScriptedServer) -> list[Any]:
    """Run with rove's own runs."""
    import rove
    from rove.clients.openai import OpenAIClient

    bridged = env.__rove_environment__()
    client = OpenAIClient(server.url, "EMPTY", max_retries=0)
    async with bridged.used_in_run():
        records = await rove.generate(bridged, client, MODEL, rollouts_per_example=1, max_concurrent=1)
    await client.close()
    errors = [record.error for record in records if record.error]
    assert not errors, errors[0]
    scores = [record.scores for record in records if record.scores is not None]
    return [
        row_of(record.completion, score.reward, score.rewards | score.metrics)
        for record, score in zip(records, scores, strict=True)
    ]


def run(mode: str, module: Any, case: str) -> dict[str, Any]:
    """Return the rows of a case and what the model read, or the error."""
    with ScriptedServer() as server:
        try:
            env = module.load_environment(case)
            rows = asyncio.run(asyncio.wait_for((run_bridged if mode == "bridge" else run_real)(env, server), 15))
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:1000]}
        requests = [
            [[message["role"], text_of(message)] for message in request["messages"]] for request in server.asked
        ]
        ended = list(getattr(module, "ENDED", ()))
    return {"rows": rows, "asked": sorted(requests), "ended": ended}


def run_cases(mode: str, release: str, requirement: str) -> dict[str, Any]:
    """Return the results of all cases of a release, by how they were run."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        module = importlib.import_module(write_package(Path(folder), release, requirement))
        kinds = ["rove", "bridge"] if mode == "all" else [mode]
        cases = cases_of(module, release)
        return {kind: {case: run(kind, module, case) for case in cases} for kind in kinds}


def results(mode: str, release: str, python: str = sys.executable, requirement: str = "") -> dict[str, Any]:
    """Return the results of all cases of a release, by how they were run, from a separate process."""
    return run_script(python, __file__, mode, release, requirement or f"=={release}")


def recorded(release: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{release}.json").read_text(encoding="utf-8"))


def print_table() -> None:
    """Print a row per case and a column per release: "same", "differs", or "–" if the release has no such method."""
    rove_results = {release: results("all", release) for release in SOURCES}
    real = {release: recorded(release) for release in SOURCES}
    cases = list(dict.fromkeys(case for release in SOURCES for case in real[release]))
    print("| overridden method |", " | ".join(SOURCES), "|")
    print("|---|" + "---|" * len(SOURCES))
    for case in cases:
        cells = [cell_of(case, real[release], rove_results[release]) for release in SOURCES]
        print(f"| {case} |", " | ".join(cells), "|")


def cell_of(case: str, real: dict[str, Any], rove_results: dict[str, Any]) -> str:
    if case not in real:
        return "–"
    is_same = (
        rove_results["rove"][case] == real[case] and rove_results["bridge"][case].get("rows") == real[case]["rows"]
    )
    turns = ", ".join(str(row["turns"]) for row in real[case].get("rows", ()))
    rewards = ", ".join(f"{row['reward']:g}" for row in real[case].get("rows", ()))
    return f"{'same' if is_same else 'differs'} (turns {turns}; rewards {rewards})"


def main() -> None:
    mode, *names = sys.argv[1:]
    if mode == "table":
        return print_table()
    if mode == "record":
        python, release = names
        text = json.dumps(results("real", release, python)["real"], sort_keys=True, ensure_ascii=False, indent=1)
        (RECORDED / f"{release}.json").write_text(f"{text}\n", encoding="utf-8")
        return None
    release, requirement = names
    return print_results(mode, lambda: run_cases(mode, release, requirement))


if __name__ == "__main__":
    main()
